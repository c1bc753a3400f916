//! Terminal blocks, marked as `console`: each command of a page runs in one new directory, in the
//! order of the page, and prints what the page shows.
//!
//! In the shown output a line `...` stands for any lines, and `[..]` for any part of a line. Ids of
//! sessions differ in each run: each id of a page stands for the one that was printed in its place
//! first, also in later commands. A time stands for any time, and `/home/ada` for the directory in
//! which the commands run.
//!
//! An HTML comment that begins with `<!-- before:` contains lines of bash that readers do not see.
//! They run in their place, and have to succeed: they kill a process, or damage a file.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use foldlog_test_support::skipped;

use super::{lines, pages, project, read};

const ID_BYTES: usize = 36;

/// Ids of a page, with those of this run.
type Ids = BTreeMap<String, String>;

/// A home directory for the shown output.
const HOME: &str = "/home/ada";

/// Programs of other packages that pages run. They are next to the binary if the whole workspace
/// was built, as the README's test command does.
const PROGRAMS: [&str; 6] =
    ["approval", "crash_and_recover", "replay_in_ci", "surviving_worker", "task_tree", "claude-stand-in"];

/// Lets a page show how a reader of the checkout runs an example.
const PRELUDE: &str = r#"exec 2>&1
cargo() { [[ "${*:1:5}" == "run -q -p foldlog-examples --bin" ]] && exec "$6" "${@:8}"; }
"#;

struct Shown<'a> {
    line: usize,
    command: String,
    /// The lines that it prints; `None` if it is hidden.
    output: Option<Vec<&'a str>>,
}

#[test]
fn terminal_blocks_print_what_the_pages_show() {
    let (mut ran, mut different) = (0, Vec::new());
    for page in pages() {
        let text = read(&page);
        let commands = shown_commands(&text);
        if let Some(missing) = missing_part(&commands) {
            skipped(format_args!("{}: {missing}; `cargo test` builds it", page.display()));
            continue;
        }
        ran += commands.len();
        different.extend(run_page(&page, commands).err());
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert!(ran > 10, "only {ran} commands ran");
}

fn shown_commands(text: &str) -> Vec<Shown<'_>> {
    let (mut commands, mut hidden): (Vec<Shown<'_>>, Option<Shown<'_>>) = (Vec::new(), None);
    for (number, line, fence) in lines(text) {
        match (line.strip_prefix("$ "), &mut hidden) {
            (_, Some(_)) if line == "-->" => commands.extend(hidden.take()),
            (_, Some(hidden)) => hidden.command.extend([line, "\n"]),
            _ if fence.is_none() && line == "<!-- before:" => {
                hidden = Some(Shown { line: number, command: "set -e\n".to_owned(), output: None });
            }
            _ if fence != Some("console") || line.starts_with("```") => {}
            (Some(command), None) => {
                let command = command.to_owned();
                commands.push(Shown { line: number, command, output: Some(Vec::new()) });
            }
            (None, None) => {
                let last = commands.last_mut().and_then(|command| command.output.as_mut());
                last.expect("a block begins with a command").push(line);
            }
        }
    }
    assert!(hidden.is_none(), "a comment does not end");
    commands
}

/// Returns the part of foldlog that the commands need, and that was not built with this test.
fn missing_part(commands: &[Shown<'_>]) -> Option<String> {
    let is_used = |word: &str| commands.iter().any(|shown| shown.command.contains(word));
    let programs = Path::new(env!("CARGO_BIN_EXE_foldlog")).parent()?;
    let mut missing = PROGRAMS.into_iter().filter(|name| is_used(name) && !programs.join(name).exists());
    let place = !cfg!(feature = "object-store") && is_used("file://");
    missing.next().or(place.then_some("object-store")).map(|name| format!("`{name}` is not built"))
}

/// Runs the commands of a page, up to the first one that prints something else.
fn run_page(page: &Path, commands: Vec<Shown<'_>>) -> Result<(), String> {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let directory = directory.path().canonicalize().expect("its path can be resolved");
    let binary = Path::new(env!("CARGO_BIN_EXE_foldlog"));
    let directories = std::env::var("PATH").expect("there is a PATH");
    let programs = binary.parent().expect("it is in a directory").display();
    let path = format!("{}/bin:{programs}:{directories}", directory.display());
    let mut ids = Ids::new();
    for Shown { line, command, output } in commands {
        let command = ids.iter().fold(command, |command, (shown, id)| command.replace(shown, id));
        let ran = Command::new("bash")
            .args(["-c", &format!("{PRELUDE}{command}")])
            .current_dir(&directory)
            .env_clear()
            .env("PATH", &path)
            .env("HOME", &directory)
            .env("PAGE_SCRIPTS", Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/docs"))
            .stdin(Stdio::null())
            .output()
            .expect("bash runs");
        let printed = String::from_utf8(ran.stdout).expect("output is UTF-8");
        let mut printed = printed.replace(directory.to_str().expect("its path is UTF-8"), HOME);
        if let Some(code) = ran.status.code().filter(|code| *code != 0) {
            printed.push_str(&format!("[exit code {code}]\n"));
        }
        let actual: Vec<&str> = printed.lines().collect();
        let matched = match &output {
            Some(output) => match_lines(output, &actual, &ids),
            None => ran.status.success().then(|| ids.clone()),
        };
        let place = page.strip_prefix(project()).unwrap_or(page).display();
        ids = matched.ok_or_else(|| {
            let shown = output.unwrap_or_default().join("\n");
            format!("{place}:{line}: `{command}` printed\n{printed}\nand the page shows\n{shown}\n")
        })?;
    }
    Ok(())
}

fn match_lines(shown: &[&str], actual: &[&str], ids: &Ids) -> Option<Ids> {
    match (shown, actual) {
        ([], []) => Some(ids.clone()),
        (["...", rest @ ..], _) => {
            (0..=actual.len()).find_map(|left_out| match_lines(rest, &actual[left_out..], ids))
        }
        ([shown, rest @ ..], [actual, further @ ..]) => {
            match_lines(rest, further, &match_text(shown, actual, ids)?)
        }
        _ => None,
    }
}

fn match_text(mut shown: &str, mut actual: &str, ids: &Ids) -> Option<Ids> {
    let mut ids = ids.clone();
    loop {
        if let Some(rest) = shown.strip_prefix("[..]") {
            let ends = actual.char_indices().map(|(end, _)| end).chain([actual.len()]);
            return ends.filter_map(|end| actual.get(end..)).find_map(|left| match_text(rest, left, &ids));
        }
        if let (Some(id), Some(printed)) = (leading_id(shown), leading_id(actual)) {
            if ids.entry(id.to_owned()).or_insert_with(|| printed.to_owned()) != printed {
                return None;
            }
            (shown, actual) = (&shown[ID_BYTES..], &actual[ID_BYTES..]);
            continue;
        }
        if let (Some(shown_time), Some(actual_time)) = (leading_time(shown), leading_time(actual)) {
            (shown, actual) = (&shown[shown_time..], &actual[actual_time..]);
            continue;
        }
        let (mut shown_rest, mut actual_rest) = (shown.chars(), actual.chars());
        match (shown_rest.next(), actual_rest.next()) {
            (None, None) => return Some(ids),
            (Some(one), Some(other)) if one == other => {}
            _ => return None,
        }
        (shown, actual) = (shown_rest.as_str(), actual_rest.as_str());
    }
}

fn leading_id(text: &str) -> Option<&str> {
    let id = text.get(..ID_BYTES)?;
    uuid::Uuid::try_parse(id).is_ok().then_some(id)
}

/// Returns the length of a time such as `2026-11-29T16:00:04.889427Z` at the beginning of a text.
fn leading_time(text: &str) -> Option<usize> {
    let is_time = |character: char| character.is_ascii_digit() || "-:.+TZ".contains(character);
    let length = text.find(|character| !is_time(character)).unwrap_or(text.len());
    (1..=length).rev().find(|end| chrono::DateTime::parse_from_rfc3339(&text[..*end]).is_ok())
}

#[test]
fn ids_and_parts_that_vary_are_matched() {
    let (one, other) = ("29497c3b-39aa-47ea-82d3-3734e98ea0e3", "b2c7361d-ea43-4ea7-af52-75b23154b451");
    let ids = match_text(&format!("at {one} [..] ms"), &format!("at {other} 12 ms"), &Ids::new())
        .expect("it matches");
    assert_eq!(ids.get(one).map(String::as_str), Some(other));
    assert!(match_text(one, one, &ids).is_none(), "the id stands for another one");
    assert!(match_lines(&["a", "...", "d"], &["a", "b", "c", "d"], &ids).is_some());
    assert!(match_lines(&["a", "...", "d"], &["a", "b", "c"], &ids).is_none());
    assert!(match_text("[..] ms", "12 s", &ids).is_none());
    assert!(match_text("at 2026-11-29T16:00:04Z.", "at 2027-01-02T03:04:05.6+00:00.", &ids).is_some());
    assert!(match_text("at 2026-11-29T16:00:04Z", "at once", &ids).is_none());
}

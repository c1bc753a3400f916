//! Terminal blocks, marked as `console`: each command of a page runs in one new directory, in the
//! order of the page, and prints what the page shows.
//!
//! In the shown output a line `...` stands for any lines, and `[..]` for any part of a line. Ids of
//! sessions differ in each run: each id of a page stands for the one that was printed in its place
//! first, also in later commands.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{lines, pages, project, read};

const ID_BYTES: usize = 36;

/// Ids of a page, with those of this run.
type Ids = BTreeMap<String, String>;

struct Shown<'a> {
    line: usize,
    command: &'a str,
    output: Vec<&'a str>,
}

#[test]
fn terminal_blocks_print_what_the_pages_show() {
    let (mut ran, mut different) = (0, Vec::new());
    for page in pages() {
        let text = read(&page);
        let commands = shown_commands(&text);
        ran += commands.len();
        different.extend(run_page(&page, commands).err());
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert!(ran > 10, "only {ran} commands ran");
}

fn shown_commands(text: &str) -> Vec<Shown<'_>> {
    let mut commands: Vec<Shown<'_>> = Vec::new();
    for (number, line, fence) in lines(text) {
        match line.strip_prefix("$ ") {
            _ if fence != Some("console") || line.starts_with("```") => {}
            Some(command) => commands.push(Shown { line: number, command, output: Vec::new() }),
            None => commands.last_mut().expect("a block begins with a command").output.push(line),
        }
    }
    commands
}

/// Runs the commands of a page, up to the first one that prints something else.
fn run_page(page: &Path, commands: Vec<Shown<'_>>) -> Result<(), String> {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let binary = Path::new(env!("CARGO_BIN_EXE_foldlog"));
    let directories = std::env::var("PATH").expect("there is a PATH");
    let path = format!("{}:{directories}", binary.parent().expect("it is in a directory").display());
    let mut ids = Ids::new();
    for Shown { line, command, output } in commands {
        let command = ids.iter().fold(command.to_owned(), |command, (shown, id)| command.replace(shown, id));
        let ran = Command::new("bash")
            .args(["-c", &format!("exec 2>&1\n{command}")])
            .current_dir(&directory)
            .env_clear()
            .env("PATH", &path)
            .env("HOME", directory.path())
            .stdin(Stdio::null())
            .output()
            .expect("bash runs");
        let mut printed = String::from_utf8(ran.stdout).expect("output is UTF-8");
        if let Some(code) = ran.status.code().filter(|code| *code != 0) {
            printed.push_str(&format!("[exit code {code}]\n"));
        }
        let actual: Vec<&str> = printed.lines().collect();
        let place = page.strip_prefix(project()).unwrap_or(page).display();
        ids = match_lines(&output, &actual, &ids).ok_or_else(|| {
            let shown = output.join("\n");
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
}

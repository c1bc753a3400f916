//! Output on a terminal: colours, and the pager. `script` of util-linux makes the terminal.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use foldlog::Store;
use foldlog_test_support::child;
use foldlog_test_support::skipped;
use foldlog_tests::verbs::{Ran, foldlog};

use super::{Fixture, operations, options, step, write};

/// The line before the output of the binary: the test runner prints lines of its own first.
pub(super) const BEGIN: &str = "--- the binary begins";

/// Variables that the binary reads, which the tests set themselves.
const READ: [&str; 7] = ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TERM", "FOLDLOG_PAGER", "PAGER", "LESS"];

/// Returns whether `script` can make a terminal here. If not, the test is reported as skipped.
pub(super) fn has_terminals() -> bool {
    let made = Command::new("script").args(["-qec", "true", "/dev/null"]).stdin(Stdio::null()).output();
    let has = made.is_ok_and(|output| output.status.success());
    if !has {
        skipped("no terminal can be made here by `script`");
    }
    has
}

/// Returns the command that runs the binary with only these of the variables in [`READ`].
fn binary(words: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = child::command("binary::terminal::part_that_is_the_binary", &words.join("\n"));
    READ.iter().for_each(|name| {
        command.env_remove(name);
    });
    command.env("TERM", "xterm").envs(variables.iter().copied());
    command
}

/// Runs the binary on a terminal, and returns the terminal's content and the exit code.
fn shown(words: &[&str], variables: &[(&str, &str)]) -> (String, i32) {
    let binary = binary(words, variables);
    let quoted = |word: &std::ffi::OsStr| format!("'{}'", word.to_str().unwrap());
    let line: Vec<String> =
        std::iter::once(binary.get_program()).chain(binary.get_args()).map(quoted).collect();
    let mut script = Command::new("script");
    script.args(["-qec", &line.join(" "), "/dev/null"]).env("SHELL", "/bin/sh").stdin(Stdio::null());
    for (name, value) in binary.get_envs() {
        match value {
            Some(value) => script.env(name, value),
            None => script.env_remove(name),
        };
    }
    let output = script.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap().replace("\r\n", "\n");
    let (_, text) = text.split_once(&format!("{BEGIN}\n")).unwrap();
    (text.to_owned(), output.status.code().unwrap())
}

#[test]
#[ignore = "a part of other tests, which run it in a process of its own"]
fn part_that_is_the_binary() {
    let Some(argument) = child::argument() else { return };
    println!("{BEGIN}");
    let words = std::iter::once("foldlog").chain(argument.lines()).map(Into::into);
    let code = foldlog_cli::output::with_process(|output| foldlog_cli::run(words, output));
    std::process::exit(code.into());
}

/// Returns the text without sequences that set a style.
fn plain(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let mut plain = parts.next().unwrap().to_owned();
    for part in parts {
        let (style, rest) = part.split_once('m').unwrap();
        assert!(style.chars().all(|c| c.is_ascii_digit() || c == ';'), "{style:?} sets no style");
        plain.push_str(rest);
    }
    plain
}

fn ok(ran: &Ran) -> &str {
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    &ran.stdout
}

/// The demo session of calls, one of slices, one of a conversation, and the store of a damaged one.
struct Sessions {
    calls: Fixture,
    slices: Fixture,
    talk: PathBuf,
    _store: tempfile::TempDir,
}

fn sessions() -> Sessions {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("chat.json");
    fs::write(
        &file,
        r#"[{"role": "system", "content": "be brief"}, {"role": "user", "content": "two\nlines \u001b[31mred"},
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "look", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "a", "content": "Error: lost"}, {"role": "assistant", "content": "no"}]"#,
    )
    .unwrap();
    let store = directory.path().join("store");
    ok(&foldlog([Path::new("import"), Path::new("openai"), &file, Path::new("--store"), &store]));
    let talk = fs::read_dir(store.join("sessions")).unwrap().next().unwrap().unwrap().path();
    Sessions { calls: operations::fixture(), slices: super::fixture(), talk, _store: directory }
}

impl Sessions {
    /// Returns commands with coloured output, each with an expected coloured piece.
    fn commands(&self) -> Vec<(Vec<&str>, &'static str)> {
        let calls = self.calls.session.to_str().unwrap();
        let (slices, store) =
            (self.slices.session.to_str().unwrap(), self.slices.directory.path().to_str().unwrap());
        vec![
            (vec!["show", slices], "\u{1b}[2m"),
            (vec!["show", slices], "\u{1b}[33m      11"),
            (vec!["diff", slices, "7", "13"], "\u{1b}[32m  + "),
            (vec!["diff", slices, "7", "13"], "\u{1b}[31m  - "),
            (
                vec!["transcript", self.talk.to_str().unwrap()],
                "\u{1b}[32m[1] user\u{1b}[0m: two\n  | lines \\u{1b}[31mred",
            ),
            (vec!["ledger", calls], "\u{1b}[32mcommitted"),
            (vec!["ledger", calls], "\u{1b}[31mfailed"),
            (vec!["ledger", calls, "2"], "\u{1b}[32mcommitted"),
            (vec!["sessions", store], "\u{1b}[1msession"),
            (vec!["verify", store], "\u{1b}[32mevery frame"),
        ]
    }
}

#[test]
fn colours_add_nothing_to_what_is_said() {
    let sessions = sessions();
    for (command, piece) in sessions.commands() {
        let colored = foldlog(command.iter().chain(&["--color", "always"]));
        assert!(ok(&colored).contains(piece), "{command:?} has no {piece:?}: {:?}", colored.stdout);
        let never = foldlog(command.iter().chain(&["--color=never"]));
        assert_eq!(plain(&colored.stdout), never.stdout, "{command:?}");
        assert_eq!(foldlog(&command), never, "{command:?}");
        let json = foldlog(command.iter().chain(&["--json"]));
        assert_eq!(foldlog(command.iter().chain(&["--json", "--color", "always"])), json, "{command:?}");
    }
    let wrong = foldlog(["show", "nothing", "--color", "always"]);
    assert!(wrong.stderr.starts_with("\u{1b}[31merror:\u{1b}[0m "), "{}", wrong.stderr);
    assert_eq!(plain(&wrong.stderr), foldlog(["show", "nothing"]).stderr);
    assert!(foldlog(["show", "--color", "always"]).stderr.contains('\u{1b}'));
    assert_eq!(foldlog(["show", "nothing", "--color", "sometimes"]).code, 2);
}

#[test]
fn a_terminal_is_coloured_unless_somebody_says_otherwise() {
    if !has_terminals() {
        return;
    }
    let fixture = super::fixture();
    let session = fixture.session.to_str().unwrap();
    let expected = ok(&foldlog(["show", session])).to_owned();
    let none = ("PAGER", "");
    let colored = shown(&["show", session], &[none]);
    assert!(colored.0.contains("\u{1b}[2m"), "{}", colored.0);
    assert_eq!((plain(&colored.0), colored.1), (expected.clone(), 0));
    for variables in [("NO_COLOR", "1"), ("CLICOLOR", "0"), ("TERM", "dumb"), ("TERM", "")] {
        assert_eq!(shown(&["show", session], &[none, variables]), (expected.clone(), 0), "{variables:?}");
        let always = shown(&["show", session, "--color", "always"], &[none, variables]);
        assert_eq!(always, colored, "{variables:?}");
    }
    assert_eq!(shown(&["show", session, "--color", "never"], &[none]), (expected.clone(), 0));
    // Output to other targets is coloured only on request.
    let piped = |variables: &[(&str, &str)]| {
        let output = binary(&["show", session], variables).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_once(&format!("{BEGIN}\n")).unwrap().1.to_owned()
    };
    assert_eq!(piped(&[("PAGER", "false")]), expected);
    assert_eq!(piped(&[("CLICOLOR_FORCE", "1")]), colored.0);
    assert_eq!(piped(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]), expected);
    let help = shown(&["show", "--help"], &[none]).0;
    assert!(help.contains('\u{1b}'), "{help}");
}

/// Returns a script that acts as a pager: it prints its name, its arguments and `LESS`, and then
/// runs `end`.
fn pager(directory: &Path, name: &str, end: &str) -> String {
    let path = directory.join(name);
    fs::write(&path, format!("#!/bin/sh\necho \"{name} $# $1 $LESS\"\n{end}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn long_results_are_shown_by_a_pager() {
    if !has_terminals() {
        return;
    }
    let sessions = sessions();
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (pager(directory.path(), "first", "cat"), pager(directory.path(), "second", "cat"));
    let verbs = foldlog_cli::commands();
    for (command, _) in sessions.commands() {
        let words = [&command[..], &["--color", "never"]].concat();
        let ran = foldlog(&words);
        let is_paged = verbs.iter().any(|listed| listed.name == command[0] && listed.metadata.is_paged);
        let begin = if is_paged { "second 0  FRX\n" } else { "" };
        let expected = format!("{begin}{}{}", ok(&ran), ran.stderr);
        assert_eq!(shown(&words, &[("PAGER", &second)]), (expected, 0), "{command:?}");
    }
    let session = sessions.slices.session.to_str().unwrap();
    let words = ["show", session, "--color", "never"];
    let expected = ok(&foldlog(words)).to_owned();
    let through = |variables: &[(&str, &str)]| shown(&words, variables);
    let with = |line: &str| (format!("{line}\n{expected}"), 0);
    assert_eq!(through(&[("FOLDLOG_PAGER", &first), ("PAGER", &second), ("LESS", "R")]), with("first 0  R"));
    let quoted = format!("'{first}' 'a  b;$(exit 3)' c");
    assert_eq!(through(&[("FOLDLOG_PAGER", &quoted)]), with("first 2 a  b;$(exit 3) FRX"));
    for none in ["", " ", "cat"] {
        assert_eq!(
            through(&[("FOLDLOG_PAGER", none), ("PAGER", &second)]),
            (expected.clone(), 0),
            "{none:?}"
        );
    }
    let unpaged = shown(&[&words[..], &["--no-pager"]].concat(), &[("PAGER", &second)]);
    assert_eq!(unpaged, (expected.clone(), 0));
    // A pager that cannot be started is reported, and the output is printed without it.
    for (wrong, reason) in
        [("/nothing/here -x", "No such file"), ("less 'open", "it contains an unclosed quote")]
    {
        let (text, code) = through(&[("PAGER", wrong)]);
        let note = text.strip_prefix(&expected).unwrap_or_else(|| panic!("{text}"));
        assert!(
            note.starts_with(&format!("note: the pager `{wrong}` of PAGER cannot be started: ")),
            "{note}"
        );
        assert!(note.contains(reason) && code == 0, "{note}");
    }
    // Without a result no pager is started, and standard error is printed directly.
    let (text, code) = shown(&["show", "/nothing"], &[("PAGER", &second), ("NO_COLOR", "1")]);
    assert!(text.starts_with("error: ") && code == 2, "{text}");
}

#[test]
fn what_is_noted_beside_a_result_is_written_behind_it() {
    if !has_terminals() {
        return;
    }
    let fixture = super::fixture();
    let segment = fs::read_dir(&fixture.session).unwrap().map(|entry| entry.unwrap().path());
    let segment = segment.filter(|path| path.extension().is_some_and(|end| end == "seg")).min().unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[used / 2] ^= 0xff;
    fs::write(&segment, bytes).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let ending = pager(directory.path(), "ending", "cat; echo ended");
    let words = ["show", fixture.session.to_str().unwrap(), "--color", "never"];
    let ran = foldlog(words);
    assert!(ran.code == 1 && !ran.stdout.is_empty() && !ran.stderr.is_empty(), "{ran:?}");
    let expected = format!("ending 0  FRX\n{}ended\n{}", ran.stdout, ran.stderr);
    assert_eq!(shown(&words, &[("PAGER", &ending)]), (expected, 1));
}

#[test]
fn a_pager_that_is_quit_early_ends_the_verb_quietly() {
    if !has_terminals() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
    let session = write(&store);
    // More than a pipe takes, however much the pager reads.
    for part in 0..2_000_u32 {
        session.dispatch(step("a step of many", part as u8)).unwrap();
    }
    let dir = session.dir().to_owned();
    session.close().unwrap();
    let words = ["show", dir.to_str().unwrap(), "--color", "never"];
    assert!(ok(&foldlog(words)).len() > 100_000);
    let quitting = pager(directory.path(), "quitting", "head -n 2 > /dev/null");
    assert_eq!(shown(&words, &[("PAGER", &quitting)]), ("quitting 0  FRX\n".to_owned(), 0));
    let failing = pager(directory.path(), "failing", "exit 7");
    assert_eq!(shown(&words, &[("PAGER", &failing)]), ("failing 0  FRX\n".to_owned(), 0));
}

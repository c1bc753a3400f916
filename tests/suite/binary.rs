//! The binary: output of its verbs, exit codes, and that they write nothing into the stores that
//! they read.

mod backups;
mod budget;
mod captured_backups;
mod checkpoints;
mod children;
mod claude_code;
mod collections;
mod compactions;
mod competing;
mod completions;
mod compressions;
mod conversation;
mod copies;
mod damaged;
mod decisions;
mod escaped;
mod held;
mod imports;
mod incidents;
mod irregular;
mod manual;
mod operations;
mod pending;
mod positions;
mod recover;
mod replicated;
mod rewind;
mod run;
mod salvage;
mod stats;
mod tail;
mod tasks;
mod terminal;
mod transcript;
mod two_sessions;
mod validate;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::SystemTime;

use foldlog::{
    BackgroundSync, Durability, FixedClock, Session, SessionOptions, SnapshotOptions, Store, StoreOptions,
};
use foldlog_cli::Output;
use foldlog_cli::command::{Target, Urls};
use foldlog_test_support::host::{DraftEdited, Noted, StepAdded, Undeclared, types};
use foldlog_test_support::runs::Json;
use foldlog_tests::verbs::{Ran, foldlog, foldlog_with, reading_examples};

/// The environment variable with the store and the session of the demo's child.
const DEMO_CHILD: &str = "FOLDLOG_TEST_DEMO_CHILD";

/// A store whose bytes depend only on this code and the machine's boot id.
struct Fixture {
    directory: tempfile::TempDir,
    session: PathBuf,
    fork: PathBuf,
}

fn options() -> StoreOptions {
    StoreOptions {
        clock: Arc::new(FixedClock::with_step(1_767_323_045_000_006, 1_000)),
        seed: Some(7),
        durability: Durability::Process,
        background: BackgroundSync::Inline,
        ..StoreOptions::default()
    }
}

fn step(title: &str, part: u8) -> StepAdded {
    StepAdded { title: title.to_owned(), part }
}

fn noted(text: &str) -> Noted {
    Noted { text: text.to_owned() }
}

/// Writes the session: plan, notes, a draft, a rollback, and an undeclared event. Returns it still
/// open.
fn write(store: &Store) -> Session {
    let session = store.create_with(&types(), SessionOptions::default().tag("task", "demo")).unwrap();
    session.dispatch(step("read", 1)).unwrap();
    session.dispatch(step("write", 2)).unwrap();
    session.dispatch(noted("it began")).unwrap();
    let before = session.snapshot(SnapshotOptions::with_tag("before the change")).unwrap();
    session.dispatch(step("write again", 2)).unwrap();
    session.dispatch(DraftEdited { place: 0, line: "a line".to_owned() }).unwrap();
    session.dispatch(noted("it failed")).unwrap();
    session.rollback(&before).unwrap();
    session.dispatch(Undeclared { value: -3 }).unwrap();
    session.set_tag("outcome", "kept").unwrap();
    session
}

fn fixture() -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
    let session = write(&store);
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close().unwrap();
    let fork = store.fork(id, 7, &types(), SessionOptions::default().tag("task", "fork")).unwrap();
    fork.dispatch(step("another way", 3)).unwrap();
    let fork_dir = fork.dir().to_owned();
    fork.close().unwrap();
    Fixture { directory, session: dir, fork: fork_dir }
}

impl Fixture {
    /// Runs verbs and returns the output that a person would see. `SESSION`, `FORK`, `STORE` and
    /// `NOTHING` are placeholders for directories.
    fn transcript(&self, commands: &[&str]) -> String {
        commands.iter().map(|command| self.shown(command)).collect()
    }

    fn run(&self, command: &str) -> Ran {
        foldlog(command.split(' ').map(|word| match word {
            "SESSION" => self.session.clone(),
            "FORK" => self.fork.clone(),
            "STORE" => self.directory.path().to_owned(),
            "NOTHING" => self.directory.path().join("nothing"),
            word => PathBuf::from(word),
        }))
    }

    fn shown(&self, command: &str) -> String {
        let ran = self.run(command);
        let mut text = format!("$ foldlog {command}\n{}", ran.stdout);
        if !ran.stderr.is_empty() {
            text.push_str(&format!("--- stderr\n{}", ran.stderr));
        }
        text.push_str(&format!("--- exit {}\n\n", ran.code));
        normal(&text, self.directory.path())
    }
}

/// Replaces the parts that vary between machines: the directory, and checksums, which cover the
/// boot id.
fn normal(text: &str, directory: &Path) -> String {
    let text = text.replace(directory.to_str().unwrap(), "[store]");
    let mut normal = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find("0x") {
        let (head, tail) = rest.split_at(at);
        normal.push_str(head);
        let digits = tail[2..].chars().take_while(char::is_ascii_hexdigit).count();
        normal.push_str(if digits == 8 { "[crc]" } else { &tail[..2 + digits] });
        rest = &tail[2 + digits..];
    }
    normal.push_str(rest);
    let Some((head, tail)) = normal.split_once("\"chain\":") else { return normal };
    format!("{head}\"chain\":\"[crc]\"{}", tail.trim_start_matches(|c: char| c.is_ascii_digit()))
}

#[test]
fn sessions_lists_a_store() {
    let fixture = fixture();
    insta::assert_snapshot!(fixture.transcript(&[
        "sessions STORE",
        "sessions STORE --json",
        "sessions SESSION"
    ]));
}

#[test]
fn show_prints_the_timeline() {
    let fixture = fixture();
    insta::assert_snapshot!(fixture.transcript(&[
        "show SESSION",
        "show SESSION --from 5 --to 6",
        "show SESSION --kind rollback",
        "show FORK --from 7",
        "show SESSION --json",
        "show FORK --from 8 --to 8 --json",
        "show SESSION --kind synced",
        "show SESSION --from 99",
        "show STORE",
    ]));
}

#[test]
fn state_prints_slices() {
    let fixture = fixture();
    insta::assert_snapshot!(fixture.transcript(&[
        "state SESSION",
        "state SESSION --at 12 --slice draft",
        "state SESSION --at 0",
        "state SESSION --json",
        "state SESSION --slice plan --at 3 --json",
        "state SESSION --slice nothing",
        "state SESSION --at 99",
    ]));
}

#[test]
fn diff_names_slices_and_paths() {
    let fixture = fixture();
    insta::assert_snapshot!(fixture.transcript(&[
        "diff SESSION 7 13",
        "diff SESSION 13 7",
        "diff SESSION 13 14",
        "diff SESSION 2 3 --json",
        "diff SESSION 14 17 --json",
        "diff SESSION 3 3",
        "diff SESSION 3 99",
    ]));
}

#[test]
fn verify_and_replay_say_that_sound_logs_hold() {
    let fixture = fixture();
    insta::assert_snapshot!(fixture.transcript(&[
        "verify STORE",
        "verify SESSION FORK --json",
        "verify NOTHING",
        "replay SESSION",
        "replay FORK --thorough",
        "replay SESSION --json",
    ]));
}

#[test]
fn export_writes_both_forms() {
    let fixture = fixture();
    insta::assert_snapshot!(fixture.transcript(&[
        "export SESSION --format snapshot-json",
        "export FORK --at 3 --format snapshot-json",
        "export SESSION --at 4 --format jsonl",
        "export SESSION --at 99 --format jsonl",
        "export SESSION",
    ]));
}

#[test]
fn an_export_comes_back_as_the_same_slices() {
    let fixture = fixture();
    let exported = fixture.run("export SESSION --format snapshot-json").stdout;
    let export = foldlog::Export::from_json(&exported).unwrap();
    let store =
        Store::open_with(fixture.directory.path(), StoreOptions { seed: Some(8), ..options() }).unwrap();
    let keep = foldlog::ImportOptions { keep_unknown: true, ..foldlog::ImportOptions::default() };
    let session = store.import(&export, &types(), keep).unwrap();
    assert_eq!(session.log().export().unwrap().slices, export.slices);
}

/// Returns the names, bytes and modification times of all files in a directory.
fn contents(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let changed = fs::metadata(&path).unwrap().modified().unwrap();
        if path.is_dir() {
            found.extend(contents(&path));
            found.insert(path, (Vec::new(), changed));
        } else {
            found.insert(path.clone(), (fs::read(&path).unwrap(), changed));
        }
    }
    found
}

#[test]
fn verbs_that_read_write_nothing() {
    let fixture = fixture();
    let before = contents(fixture.directory.path());
    for command in [
        "sessions STORE",
        "show SESSION",
        "tail SESSION",
        "tail SESSION --from 2 --follow",
        "stats SESSION",
        "stats FORK --json",
        "state SESSION --at 5",
        "diff SESSION 1 9",
        "verify STORE",
        "verify SESSION FORK",
        "replay SESSION --thorough",
        "replay FORK --thorough",
        "export SESSION --format snapshot-json",
        "export FORK --at 3 --format jsonl",
    ] {
        assert_eq!(fixture.run(command).code, 0, "{command}");
        assert!(before == contents(fixture.directory.path()), "`foldlog {command}` changed something");
    }
    let other = tempfile::tempdir().unwrap();
    for example in reading_examples() {
        let command = example.replace("report.html", other.path().join("report.html").to_str().unwrap());
        let ran = fixture.run(&command);
        assert!(!ran.stderr.contains("Usage:"), "{command}: {}", ran.stderr);
        assert!(before == contents(fixture.directory.path()), "`foldlog {command}` changed something");
    }
    // The verbs do not create a missing store either.
    let none = fixture.directory.path().join("none");
    for verb in ["sessions", "verify", "show", "tail", "stats", "replay"] {
        assert_eq!(foldlog([verb.as_ref(), none.as_os_str()]).code, 2, "{verb}");
    }
    assert!(before == contents(fixture.directory.path()));
}

#[test]
fn a_url_is_refused_by_verbs_that_need_a_directory() {
    let url = format!("file:///nothing/sessions/{}", uuid::Uuid::from_u128(9));
    for listed in foldlog_cli::commands().iter().filter(|one| one.metadata.target != Target::Nothing) {
        let words = listed.metadata.example.split(' ').skip(1);
        let ran = foldlog(words.map(|word| if ["SESSION", "STORE"].contains(&word) { &url } else { word }));
        let is_refused = ran.stderr.contains("is a URL, and this command needs a directory");
        let needs_directory = matches!(listed.metadata.urls, Urls::Refused | Urls::Separate);
        assert_eq!((ran.code, is_refused), (2, needs_directory), "{}: {}", listed.name, ran.stderr);
    }
}

#[test]
fn wrong_usage_exits_with_2_and_help_with_0() {
    for wrong in [
        &[] as &[&str],
        &["nothing"],
        &["show"],
        &["verify"],
        &["state", "/tmp", "--at", "x"],
        &["tail", "/tmp", "--lines", "3", "--from", "5"],
        &["stats"],
        &["export", "/tmp", "--format", "yaml"],
        &["import", "tau-bench", "file"],
        &["import", "swe-agent", "--store", "/tmp"],
        &["completions", "none"],
    ] {
        let ran = foldlog(wrong);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{wrong:?}");
        assert!(ran.stderr.contains("Usage") || ran.stderr.contains("error:"), "{wrong:?}: {}", ran.stderr);
    }
    let help = foldlog(["--help"]);
    assert_eq!((help.code, help.stderr.as_str()), (0, ""));
    insta::assert_snapshot!(help.stdout);
    assert_eq!(foldlog(["show", "--help"]).code, 0);
    assert_eq!(foldlog(["--version"]).code, 0);
    for shell in ["bash", "zsh", "fish"] {
        let ran = foldlog(["completions", shell]);
        assert_eq!(ran.code, 0);
        assert!(
            ["tau-bench", "thorough", "follow", "stats"].iter().all(|word| ran.stdout.contains(word)),
            "{shell}"
        );
    }
}

/// A reader that has closed its end.
struct ClosedPipe;

impl std::io::Write for ClosedPipe {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Err(std::io::ErrorKind::BrokenPipe.into())
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let fixture = fixture();
    let session = fixture.session.to_str().unwrap();
    let commands: [&[&str]; 8] = [
        &["show", session],
        &["tail", session],
        &["tail", session, "--follow", "--json"],
        &["stats", session],
        &["show", session, "--json"],
        &["state", session, "--json"],
        &["verify", session],
        &["completions", "bash"],
    ];
    for command in commands {
        let child = |_: &Path, _| Err(std::io::Error::other("no child"));
        let (mut stdout, mut stderr) = (ClosedPipe, Vec::new());
        let mut output = Output::new(&mut stdout, &mut stderr, &child);
        output.pause = &|_| Ok(true);
        let arguments = std::iter::once(&"foldlog").chain(command).map(|word: &&str| word.into());
        assert_eq!(foldlog_cli::run(arguments, &mut output), 0, "{command:?}");
        assert_eq!(stderr, b"", "{command:?}");
    }
}

#[test]
fn malformed_runs_are_named_and_leave_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("store");
    let good = r#"{"task_id": 1, "trial": 0, "traj": [{"role": "user", "content": "hi"}]}"#;
    let import = |which: &str, text: &str| {
        let file = directory.path().join("runs.json");
        fs::write(&file, text).unwrap();
        let ran = foldlog(["import", which, file.to_str().unwrap(), "--store", store.to_str().unwrap()]);
        assert!(ran.code == 0 || !store.exists(), "something of a bad file stayed");
        normal(&format!("{}\n{}--- exit {}\n\n", text, ran.stderr, ran.code), directory.path())
    };
    let mut transcript = String::new();
    for (which, text) in [
        ("tau-bench", "[1, 2"),
        ("tau-bench", "{}"),
        ("tau-bench", &format!(r#"[{good}, {{"task_id": 1, "trial": 1}}]"#)),
        ("tau-bench", &format!(r#"[{good}, {{"trial": 1, "traj": []}}]"#)),
        ("tau-bench", r#"[{"task_id": [], "trial": 1, "traj": []}]"#),
        ("tau-bench", r#"[{"task_id": 1, "trial": 1, "traj": [{"content": "hi"}]}]"#),
        ("tau-bench", r#"[{"task_id": 1, "trial": 1, "traj": [{"role": "tool", "content": "hi"}]}]"#),
        (
            "tau-bench",
            r#"[{"task_id": 1, "trial": 1, "traj": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}]"#,
        ),
        ("swe-agent", "[]"),
        ("swe-agent", r#"{"history": [{"role": "tool"}]}"#),
    ] {
        transcript.push_str(&import(which, text));
    }
    let missing = directory.path().join("missing.json");
    let ran = foldlog(["import", "tau-bench", missing.to_str().unwrap(), "--store", store.to_str().unwrap()]);
    transcript.push_str(&normal(&format!("{}--- exit {}\n", ran.stderr, ran.code), directory.path()));
    insta::assert_snapshot!(transcript);
    // A run with two concurrent calls, whose results arrive in order; the second one fails.
    let two = r#"[{"task_id": "t", "trial": 0, "traj": [
        {"role": "assistant", "tool_calls": [
            {"id": "same", "function": {"name": "look", "arguments": "1"}},
            {"id": "same", "function": {"name": "look", "arguments": "2"}}]},
        {"role": "tool", "tool_call_id": "same", "content": "found"},
        {"role": "tool", "tool_call_id": "same", "content": "Error: lost"}]}]"#;
    import("tau-bench", two);
    let listed = foldlog(["sessions", store.to_str().unwrap(), "--json"]).stdout;
    let id = Json::parse(&listed).get("session").and_then(Json::as_str).unwrap().to_owned();
    let session = store.join("sessions").join(id);
    let state = foldlog(["state", session.to_str().unwrap(), "--json"]).stdout;
    // Only the durations of the calls vary from run to run.
    let mut parts =
        state.split("\"elapsed_us\":").map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()));
    let head = parts.next().unwrap_or_default().to_owned();
    insta::assert_snapshot!(parts.fold(head, |state, part| format!("{state}\"elapsed_us\":0{part}")));
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_the_demos_child() {
    let Ok(argument) = std::env::var(DEMO_CHILD) else { return };
    let (id, store) = argument.split_once(' ').unwrap();
    let child = |_: &Path, _| Err(std::io::Error::other("a child runs no child"));
    let (mut stdout, mut stderr) = (std::io::stdout(), std::io::stderr());
    let mut output = Output::new(&mut stdout, &mut stderr, &child);
    foldlog_cli::run(["foldlog", "demo-child", store, id].map(Into::into), &mut output);
}

fn demo(arguments: &[&str]) -> Ran {
    foldlog_with(arguments, &|store: &Path, session| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([
            "--exact",
            "binary::part_of_the_demos_child",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ]);
        command.env(DEMO_CHILD, format!("{session} {}", store.display()));
        Ok(command)
    })
}

#[test]
fn the_demo_shows_what_it_promises() {
    let directory = tempfile::tempdir().unwrap();
    let kept = directory.path().join("kept");
    let ran = demo(&["demo", "--dir", kept.to_str().unwrap()]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
    for told in [
        "killed (SIGKILL)",
        "acknowledged before the kill: ",
        " and 1 answer\n",
        "the log was not closed",
        "interrupted: operation",
        "call left them: README.txt (23 bytes), moved.txt (12 bytes), src/zones.txt (14 bytes)",
        "rolls back the changes of operation",
        "here it counts as failed",
        "recovery: README.txt (23 bytes), notes.txt (12 bytes), src/zones.txt (17 bytes)",
        "no acknowledged record is lost",
        "answers: 3; 1 was requested by the killed process, 2 by this one",
        "the last answer: The zones have their offsets.",
        "error: 2 of 40 tests fail",
        "steps: 2 before the call, 2 after it",
        "notes: 1 before the call, 2 after it",
        "its parent, which is unchanged",
        "verify: 2 sessions with ",
        "every rollback gives the state of a fresh fold",
        "[3] tool `read_file` `notes`: they are not\n",
        "[4] tool `edit_files` `edit`, failed: The call did not do its work",
        "[5] tool `read_file` `readme`: a library of time zones\n",
        "[8] assistant: The zones have their offsets.\n",
        "by the demo: it was killed before it was done",
        "8 operations: 6 committed, 1 failed, 1 settled\n",
    ] {
        assert!(ran.stdout.contains(told), "{told:?} is not in\n{}", ran.stdout);
    }
    // Each heading starts a line and follows an empty one.
    assert!(ran.stdout.starts_with("1. An agent"), "{}", ran.stdout);
    for heading in [
        "2. A second process",
        "3. The session",
        "4. The conversation continues",
        "5. A tool",
        "6. A fork",
        "7. Both logs",
        "8. The conversation,",
        "9. The ledger",
    ] {
        assert!(ran.stdout.contains(&format!("\n\n{heading}")), "{heading:?} is not in\n{}", ran.stdout);
    }
    assert!(!ran.stdout.contains("  | "), "{}", ran.stdout);
    // The command that the demo prints takes session and files back to before the conversation.
    let rewind = ran.stdout.lines().last().unwrap().trim().strip_prefix("foldlog ").unwrap();
    let rewind = foldlog(shlex::split(rewind).unwrap().iter().map(String::as_str));
    assert_eq!(rewind.code, 0, "{}", rewind.stderr);
    assert_eq!(std::fs::read_to_string(kept.join("workspace/src/zones.txt")).unwrap(), "all zones are UTC");
    // The store remains, is valid, and is not overwritten.
    let verified = foldlog(["verify", kept.to_str().unwrap(), "--json"]);
    assert_eq!(verified.code, 0);
    assert_eq!(Json::parse(&verified.stdout).get("sessions"), Some(&Json::Scalar(2.into())));
    assert_eq!(demo(&["demo", "--dir", kept.to_str().unwrap()]).code, 2);

    let summary = Json::parse(&demo(&["demo", "--json"]).stdout);
    assert_eq!(summary.get("verify"), Some(&Json::Scalar(true.into())));
    assert_eq!(summary.get("replay"), Some(&Json::Scalar(true.into())));
    for (field, number) in [("answers", 3), ("asked_before", 1), ("asked_after", 2)] {
        assert_eq!(summary.get(field), Some(&Json::Scalar(number.into())), "{field}");
    }
    assert_eq!(summary.get("store"), Some(&Json::Scalar(serde_json::Value::Null)));
}

//! Shell completions: the output of `candidates`, and the commands that bash completes.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use foldlog::{SessionOptions, SnapshotOptions, Store};
use foldlog_test_support::host::types;
use foldlog_tests::verbs::foldlog;

use super::terminal::{BEGIN, has_terminals};
use super::{options, step};

/// Tags that a shell would run, split, expand or take for an option, each with the prefix that is
/// typed.
const HOSTILE: [(&str, &str); 9] = [
    ("a$(touch PWNED)", "a"),
    ("b`touch PWNED`", "b"),
    ("c; touch PWNED #", "c"),
    ("d 'one' \"two\" * ~", "d"),
    ("e&&touch PWNED|x>PWNED", "e"),
    ("f!!\\${IFS}", "f"),
    ("g:one=two", "g"),
    ("ünïcode", "ü"),
    ("tag:12", "tag"),
];

struct Place {
    directory: tempfile::TempDir,
    session: PathBuf,
}

fn place() -> Place {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path().join("runs"), options()).unwrap();
    let named = SessionOptions::default().tag("task", "$(touch PWNED) x").tag("two\nlines", "left out");
    let session = store.create_with(&types(), named).unwrap();
    for (tag, _) in HOSTILE.iter().filter(|(tag, _)| *tag != "tag:12") {
        session.dispatch(step("a step", 1)).unwrap();
        session.snapshot(SnapshotOptions::with_tag(*tag)).unwrap();
    }
    for tag in ["12", "two\nlines", "right\u{202e}left", "escape\u{1b}[2J"] {
        session.snapshot(SnapshotOptions::with_tag(tag)).unwrap();
    }
    let dir = session.dir().to_owned();
    session.close().unwrap();
    Place { directory, session: dir }
}

fn candidates(kind: &str, path: &Path, prefix: &str) -> Vec<String> {
    let ran =
        foldlog(["candidates".as_ref(), kind.as_ref(), "--".as_ref(), path.as_os_str(), prefix.as_ref()]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{kind} of {path:?}");
    ran.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn candidates_are_listed_as_they_stand_and_nothing_is_said_of_errors() {
    let place = place();
    let (store, session) = (place.directory.path().join("runs"), &place.session);
    let id = session.file_name().unwrap().to_str().unwrap();
    assert_eq!(candidates("sessions", &store, ""), [id]);
    assert_eq!(candidates("sessions", &store, &id[..5]), [id]);
    assert_eq!(candidates("sessions", &store, "-x"), [] as [&str; 0]);
    assert_eq!(candidates("tags", &store, ""), ["task=$(touch PWNED) x"]);
    let mut tags: Vec<&str> = HOSTILE.iter().map(|(tag, _)| *tag).collect();
    tags.sort_unstable();
    assert_eq!(candidates("tags", session, ""), tags);
    assert_eq!(candidates("tags", session, "g:"), ["g:one=two"]);
    // A path that is no store, is missing, or is damaged from its start has no candidates.
    let nothing = place.directory.path().join("nothing");
    let damaged = tempfile::tempdir().unwrap();
    fs::write(damaged.path().join("0000000000.seg"), "no log").unwrap();
    for path in [&nothing, &session.join("objects"), damaged.path()] as [&Path; 3] {
        for kind in ["sessions", "tags"] {
            assert_eq!(candidates(kind, path, ""), [] as [&str; 0], "{kind} of {path:?}");
        }
    }
    let help = foldlog(["--help"]).stdout;
    assert!(!help.contains("candidates"), "{help}");
}

/// Writes the startup file of an interactive bash: the completions, and a `foldlog` that records
/// its arguments.
fn begin(directory: &Path) -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let binary = directory.join("foldlog");
    let part = "--exact binary::terminal::part_that_is_the_binary --ignored --nocapture --test-threads=1";
    let script = format!(
        "#!/bin/sh\nFOLDLOG_TEST_CHILD=\"$(printf '%s\\n' \"$@\")\" '{}' {part} | sed '1,/{BEGIN}$/d'\n",
        this.to_str().unwrap()
    );
    fs::write(&binary, script).unwrap();
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(directory.join("completions"), foldlog(["completions", "bash"]).stdout).unwrap();
    let begin = directory.join("begin");
    let text = "PS1= PS2=\nset +o history\nbind 'set bell-style none'\nsource ./completions\nfoldlog() {\n\
                if [[ $1 == candidates ]]; then ./foldlog \"$@\"; else printf '%s\\0' \"$@\" >> typed; fi\n}\n";
    fs::write(&begin, text).unwrap();
    begin
}

fn typed(directory: &Path, lines: &str) -> Vec<String> {
    let begin = begin(directory);
    let bash = format!("bash --noprofile --rcfile '{}' -i", begin.to_str().unwrap());
    let mut script = Command::new("script");
    script
        .args(["-qec", &bash, "/dev/null"])
        .current_dir(directory)
        .env("TERM", "xterm")
        .env("LC_ALL", "C.UTF-8");
    script.env("SHELL", "/bin/sh").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = script.spawn().unwrap();
    process.stdin.take().unwrap().write_all(format!("{lines}exit 0\n").as_bytes()).unwrap();
    let output = process.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let typed = fs::read_to_string(directory.join("typed")).unwrap_or_else(|error| panic!("{error}: {said}"));
    typed.split_terminator('\0').map(str::to_owned).collect()
}

#[test]
fn bash_completes_ids_and_tags_and_runs_none_of_them() {
    if !has_terminals() {
        return;
    }
    let place = place();
    let id = place.session.file_name().unwrap().to_str().unwrap();
    let session = format!("runs/sessions/{id}");
    let mut lines =
        format!("foldlog show runs\t\nfoldlog --color never verify runs/sessions/{}\t\n", &id[..3]);
    let mut expected: Vec<&str> = vec!["show", &session, "--color", "never", "verify", &session];
    for (tag, begin) in HOSTILE {
        lines.push_str(&format!("foldlog rewind {session} {begin}\t\nfoldlog diff {session} 0 {begin}\t\n"));
        lines.push_str(&format!("foldlog state {session} --at {begin}\t\n"));
        expected
            .extend(["rewind", &session, tag, "diff", &session, "0", tag, "state", &session, "--at", tag]);
    }
    lines.push_str(&format!("foldlog state {session} --at=g:o\t\nfoldlog sessions runs --tag task=\t\n"));
    expected.extend([
        "state",
        &session,
        "--at=g:one=two",
        "sessions",
        "runs",
        "--tag",
        "task=$(touch PWNED) x",
    ]);
    // Verbs of two words take a session too.
    lines.push_str(&format!("foldlog task list runs\t\nfoldlog task list {session} --at g:o\t\n"));
    expected.extend(["task", "list", &session, "task", "list", &session, "--at", "g:one=two"]);
    // Verbs and options are still completed.
    lines.push_str(&format!("foldlog sho\t{session} --payl\t\nfoldlog task che\t{session}\n"));
    expected.extend(["show", &session, "--payload", "task", "checkpoints", &session]);
    assert_eq!(typed(place.directory.path(), &lines), expected);
    assert!(!place.directory.path().join("PWNED").exists(), "a tag was run");
}

#[test]
fn each_shell_asks_for_what_there_is() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = foldlog(["completions", shell]);
        assert_eq!(ran.code, 0);
        assert!(!ran.stdout.contains("demo-child"), "{shell}: hidden verbs are not offered");
        assert!(
            ran.stdout.contains("candidates sessions") || ran.stdout.contains("candidates \"$kind\""),
            "{shell}"
        );
        // Each installed shell reads the script without errors.
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &ran.stdout).unwrap();
        let Ok(checked) = Command::new(shell).arg("-n").arg(file.path()).output() else { continue };
        assert!(checked.status.success(), "{shell}: {}", String::from_utf8_lossy(&checked.stderr));
    }
    let zsh = foldlog(["completions", "zsh"]).stdout;
    for asks in [":_foldlog_sessions_now'", ":POSITION:_foldlog_tags_now'", ":TAG:_foldlog_tags_now'"] {
        assert!(zsh.contains(asks), "{asks}");
    }
}

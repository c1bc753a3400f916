//! `foldlog rewind`: rewinds a session and its files together without their host, and undoes that.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog::filesystem::{HostFilesystem, HostFilesystemOptions};
use foldlog::tools::{ExecuteOptions, ToolCall, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{ExecutionState, ResourceRegistry, Session, SnapshotOptions, Store};
use foldlog_test_support::host::{StepAdded, types};
use foldlog_tests::verbs::{Ran, foldlog};

use super::options;

/// A session with a workspace, whose host has ended.
struct Left {
    directory: tempfile::TempDir,
    session: PathBuf,
}

fn runner(directory: &Path, session: &Session) -> ToolRunner {
    let store = session.dir().join("workspace");
    let files =
        HostFilesystem::open(directory.join("work"), store, HostFilesystemOptions::default()).unwrap();
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
    ToolRunner::new(ExecutionState::new(session.clone(), resources), ToolRegistry::new())
}

fn write(directory: &Path, files: &[(&str, &[u8])]) {
    files.iter().for_each(|(name, text)| fs::write(directory.join("work").join(name), text).unwrap());
}

/// Makes a call that writes files and adds a step to the plan.
fn call(directory: &Path, runner: &ToolRunner, title: &str, files: &[(&str, &[u8])]) {
    let operation = runner.begin(&ToolCall::new("edit\u{1b}[31m", "{}"), &ExecuteOptions::default()).unwrap();
    operation.context().session().dispatch(StepAdded { title: title.to_owned(), part: 0 }).unwrap();
    write(directory, files);
    operation.end(ToolResult::ok("done", ())).unwrap();
}

impl Left {
    fn new() -> Left {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        fs::create_dir(at.join("work")).unwrap();
        let session = Store::open_with(at.join("store"), options()).unwrap().create(&types()).unwrap();
        let runner = runner(at, &session);
        call(at, &runner, "first", &[("page", b"one\n"), ("picture", b"\0\x01")]);
        session.snapshot(SnapshotOptions::with_tag("then")).unwrap();
        call(
            at,
            &runner,
            "second \u{1b}[31m",
            &[("page", b"two\x1b[31m\n"), ("picture", b"\0\x02"), ("new", b"new\n")],
        );
        session.snapshot(SnapshotOptions::with_tag("later")).unwrap();
        write(at, &[("notes\u{1b}", b"mine\n")]);
        drop(runner);
        let session = {
            let dir = session.dir().to_owned();
            session.close().unwrap();
            dir
        };
        Left { directory, session }
    }

    fn rewind(&self, words: &[&str]) -> Ran {
        let work = format!("workspace={}", self.directory.path().join("work").display());
        let dir = self.session.to_str().unwrap();
        let words = ["rewind", dir].into_iter().chain(words.iter().copied()).map(str::to_owned);
        let ran = foldlog(words.chain(["--workspace".to_owned(), work]));
        assert!(!ran.stdout.contains('\u{1b}') && !ran.stderr.contains('\u{1b}'), "{ran:?}");
        ran
    }

    fn file(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.directory.path().join("work").join(name)).ok()
    }

    /// Returns the bytes of the log.
    fn log(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let paths = fs::read_dir(&self.session).unwrap().map(|entry| entry.unwrap().path());
        let mut segments: Vec<_> =
            paths.filter(|path| path.extension().is_some_and(|name| name == "seg")).collect();
        segments.sort();
        segments.into_iter().map(|path| (path.clone(), fs::read(&path).unwrap())).collect()
    }
}

const BY: [&str; 4] = ["--by", "ada", "--reason", "it went wrong"];

fn with<'a>(words: &[&'a str]) -> Vec<&'a str> {
    words.iter().copied().chain(BY).collect()
}

#[test]
fn a_session_and_its_files_go_back_to_a_tag_and_come_again() {
    let left = Left::new();
    let log = left.log();
    let ran = left.rewind(&["then", "--preview"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    for line in [
        "  modified page: 9 to 4 bytes\n    @@ -1 +1 @@\n    -two\\u{1b}[31m\n    +one\n",
        "  modified picture: 2 to 2 bytes, binary\n",
        "  removed new: 4 bytes\n",
        "  kept notes\\x1b: created by hand\n",
        "slice plan: 2 to 1 item; 1 removed, 0 added\n",
        "tag `later` at ",
        "(`edit\\u{1b}[31m`, manual) may have had external effects, which remain\n",
    ] {
        assert!(ran.stdout.contains(line), "{line:?} in {ran:?}");
    }
    assert_eq!(left.log(), log, "a preview writes nothing into the log");
    assert_eq!(left.file("page").unwrap(), "two\u{1b}[31m\n");
    let ran = left.rewind(&["then", "--preview", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(told["resources"][0]["kept"][0]["by_hand"], "created", "{ran:?}");
    let of_plan = |list: &str, name: &str| {
        told[list].as_array().unwrap().iter().find(|one| one[name] == "plan").unwrap().clone()
    };
    assert_eq!(of_plan("differences", "slice")["change"], "removed", "{ran:?}");
    assert_eq!(of_plan("slices", "name")["items_after"], 1, "{ran:?}");

    let ran = left.rewind(&with(&["then"]));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("  0 files created, 2 modified, 1 removed\n  kept notes"), "{ran:?}");
    assert_eq!((left.file("page").as_deref(), left.file("new")), (Some("one\n"), None));
    assert_eq!(left.file("notes\u{1b}").as_deref(), Some("mine\n"));
    let ran = foldlog(["ledger", left.session.to_str().unwrap(), "--json"]);
    assert!(ran.stdout.contains("foldlog.restore"), "{ran:?}");

    let ran = left.rewind(&with(&["--undo", "--json"]));
    assert_eq!(ran.code, 0, "{ran:?}");
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert!(report["undoes"].is_number() && report["resources"][0]["created"] == 1, "{ran:?}");
    assert_eq!(left.file("page").as_deref(), Some("two\u{1b}[31m\n"));
    let ran = left.rewind(&with(&["then", "--overwrite"]));
    assert_eq!((ran.code, left.file("notes\u{1b}")), (0, None), "{ran:?}");
}

#[test]
fn a_rewind_is_refused_where_it_cannot_be() {
    let left = Left::new();
    for (words, code, said) in [
        (vec!["then"], 2, "--by <WHO>"),
        (with(&["nowhere"]), 2, "no snapshot has the tag `nowhere`"),
        (with(&["999"]), 2, "there is no position 999"),
        (
            with(&["2"]),
            2,
            "lies within operation 2, half of whose changes would remain\n  next: rewind to 1, before that call, or to 5, after it",
        ),
        (
            vec![],
            2,
            "foldlog rewind [OPTIONS] <SESSION> --undo --workspace <NAME=DIR> --by <WHO> --reason <WHY>",
        ),
        (with(&["--undo"]), 2, "has no rewind and no rollback to undo"),
        (vec!["--undo", "--preview"], 2, "has no rewind and no rollback to undo"),
    ] {
        let ran = left.rewind(&words);
        assert_eq!((ran.code, ran.stderr.contains(said)), (code, true), "{words:?}: {ran:?}");
    }
    let dir = left.session.to_str().unwrap();
    let ran = foldlog(["rewind", dir, "then", "--preview"]);
    assert!(ran.code == 2 && ran.stderr.contains("give its directory: --workspace workspace=/"), "{ran:?}");
    // A directory other than the one of the captures.
    let other = left.directory.path().join("other");
    fs::create_dir(&other).unwrap();
    let ran = foldlog(["rewind", dir, "then", "--preview", "--workspace", other.to_str().unwrap()]);
    assert!(ran.code == 2 && ran.stderr.contains("error: "), "{ran:?}");
    // While the session is open elsewhere, and after an interruption there.
    let at = left.directory.path();
    let id = left.session.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let session = Store::open_with(at.join("store"), options()).unwrap().open_session(id, &types()).unwrap();
    let ran = left.rewind(&with(&["then"]));
    assert!(ran.code == 2 && ran.stderr.contains("already open for writing"), "{ran:?}");
    let runner = runner(at, &session);
    let call = runner.begin(&ToolCall::new("cut short", "{}"), &ExecuteOptions::default()).unwrap();
    session.sync().unwrap();
    // As a killed process leaves it: a log without the end of its call.
    let copy = at.join("copy");
    fs::create_dir_all(copy.join("sessions")).unwrap();
    let copied = copy.join("sessions").join(left.session.file_name().unwrap());
    let status = std::process::Command::new("cp").arg("-r").args([&left.session, &copied]).status().unwrap();
    assert!(status.success());
    call.abort("over").unwrap();
    drop(runner);
    session.close().unwrap();
    let work = format!("workspace={}", at.join("work").display());
    let words = ["rewind", copied.to_str().unwrap(), "then", "--workspace", &work].into_iter().chain(BY);
    let ran = foldlog(words.map(str::to_owned));
    let recovery = format!("`foldlog recover {} --workspace {work}`", copied.display());
    assert!(ran.code == 2 && ran.stderr.contains(&recovery), "{ran:?}");
    // A damaged log cannot be rewound.
    let (segment, mut bytes) = left.log().remove(0);
    bytes[200] ^= 1;
    fs::write(segment, bytes).unwrap();
    let ran = left.rewind(&with(&["then"]));
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
    assert_eq!(left.file("page").as_deref(), Some("two\u{1b}[31m\n"));
}

/// A preview of an interrupted session was refused: a person who wanted to see the effect of a
/// rewind had to recover first.
#[test]
fn a_preview_of_an_interrupted_session_tells_what_comes_behind_its_recovery() {
    let left = Left::new();
    let at = left.directory.path();
    let id = left.session.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let session = Store::open_with(at.join("store"), options()).unwrap().open_session(id, &types()).unwrap();
    let runner = runner(at, &session);
    let open = runner.begin(&ToolCall::new("cut short", "{}"), &ExecuteOptions::default()).unwrap();
    let operation = open.id();
    open.context().session().dispatch(StepAdded { title: "half done".to_owned(), part: 0 }).unwrap();
    session.close().unwrap();
    drop((open, runner));
    // As a killed process leaves it.
    write(at, &[("page", b"half done\n"), ("another", b"half done\n")]);

    let log = left.log();
    let ran = left.rewind(&["then", "--preview"]);
    assert!(ran.code == 0 && !ran.stderr.contains("error: "), "{ran:?}");
    let work = format!("workspace={}", at.join("work").display());
    for line in [
        format!(
            "the session was interrupted within operation {operation}: it must be recovered before a rewind\n"
        ),
        format!("`foldlog recover {} --workspace {work}`", left.session.display()),
        "  modified page: 9 to 4 bytes\n".to_owned(),
        "  removed new: 4 bytes\n".to_owned(),
        "  removed notes\\x1b: 5 bytes\n".to_owned(),
        "slice plan: 2 to 1 item; 1 removed, 0 added\n".to_owned(),
    ] {
        assert!(ran.stdout.contains(&line), "{line:?} in {}", ran.stdout);
    }
    // The recovery undoes the call's half-done work.
    assert!(!ran.stdout.contains("another") && !ran.stdout.contains("half done"), "{ran:?}");
    let json = left.rewind(&["then", "--preview", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(told["recover_first"], serde_json::json!([operation.get()]), "{json:?}");
    let within = left.rewind(&[&operation.to_string(), "--preview"]);
    assert!(within.code == 2 && within.stderr.contains("lies within operation"), "{within:?}");
    assert_eq!((left.log(), left.file("page").as_deref()), (log, Some("half done\n")), "nothing was written");

    // The recovery and the rewind do what the preview showed.
    let dir = left.session.to_str().unwrap();
    assert_eq!(foldlog(["recover", dir, "--workspace", &work]).code, 0);
    let after = left.rewind(&["then", "--preview"]);
    let behind = |text: &str| text.split_once("workspace `").unwrap().1.to_owned();
    assert_eq!(behind(&after.stdout), behind(&ran.stdout));
    assert_eq!(left.rewind(&with(&["then"])).code, 0);
    assert_eq!((left.file("page").as_deref(), left.file("another")), (Some("one\n"), None));
}

/// The captures of a workspace were only looked up in ended calls, so a session whose first call
/// was interrupted had none.
#[test]
fn a_preview_knows_the_workspace_of_a_first_call_that_was_interrupted() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    fs::create_dir(at.join("work")).unwrap();
    let session = Store::open_with(at.join("store"), options()).unwrap().create(&types()).unwrap();
    session.dispatch(StepAdded { title: "planned".to_owned(), part: 0 }).unwrap();
    let position = session.log().position().unwrap();
    write(at, &[("page", b"as it was\n")]);
    let runner = runner(at, &session);
    let open = runner.begin(&ToolCall::new("cut short", "{}"), &ExecuteOptions::default()).unwrap();
    let dir = session.dir().to_owned();
    session.close().unwrap();
    drop((open, runner));
    write(at, &[("page", b"half done\n")]);
    let left = Left { directory, session: dir };
    let ran = left.rewind(&[&position.to_string(), "--preview"]);
    assert_eq!(
        (ran.code, ran.stdout.contains("the session was interrupted within operation")),
        (0, true),
        "{ran:?}"
    );
    assert!(ran.stdout.contains("  no file changes\n"), "{ran:?}");
    // Without a preview, the verb names the required first step.
    let ran = left.rewind(&with(&[&position.to_string()]));
    assert!(ran.code == 2 && ran.stderr.contains("foldlog recover "), "{ran:?}");
}

/// With another directory in place of the session's own, the origin of the existing files and of
/// those from the rewind was unknown: an undo kept all of them, and restored nothing.
#[test]
fn a_rewind_of_a_copy_on_a_directory_of_its_own_is_undone_and_done_again() {
    let left = Left::new();
    let at = left.directory.path();
    let copies = at.join("copies");
    let session = left.session.to_str().unwrap();
    assert_eq!(foldlog(["backup", session, "--to", copies.to_str().unwrap()]).code, 0);
    let copy = copies.join("sessions").join(left.session.file_name().unwrap());
    let fresh = at.join("fresh");
    fs::create_dir(&fresh).unwrap();
    fs::write(fresh.join("own"), "of the directory\n").unwrap();
    let directory = format!("workspace={}", fresh.display());
    let rewind = |words: &[&str]| {
        let words = ["rewind", copy.to_str().unwrap()].into_iter().chain(words.iter().copied()).chain(BY);
        let ran = foldlog(words.map(str::to_owned));
        assert_eq!(ran.code, 0, "{ran:?}");
        let mut files: Vec<(String, Vec<u8>)> = fs::read_dir(&fresh)
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
            .collect();
        files.sort();
        (files, ran.stdout)
    };
    let file = |name: &str, text: &[u8]| (name.to_owned(), text.to_owned());
    let own = vec![file("own", b"of the directory\n")];
    let later = vec![file("new", b"new\n"), file("page", b"two\x1b[31m\n"), file("picture", b"\0\x02")];
    let then = vec![file("page", b"one\n"), file("picture", b"\0\x01")];
    assert_eq!(rewind(&["later", "--rebind", &directory, "--overwrite"]).0, later);
    for _ in 0..2 {
        let (files, said) = rewind(&["--undo", "--workspace", &directory]);
        assert_eq!(files, own, "{said}");
        assert!(
            said.contains("  1 file created, 0 modified, 3 removed\n") && !said.contains("kept"),
            "{said}"
        );
        let (files, said) = rewind(&["--undo", "--workspace", &directory]);
        assert_eq!(files, later, "{said}");
    }
    // Files from the rewinds are known, so they are undone as in any directory; files that others
    // wrote stay.
    fs::write(fresh.join("mine"), "by hand\n").unwrap();
    let mine = |files: &[(String, Vec<u8>)]| {
        let mut files = files.to_vec();
        files.push(file("mine", b"by hand\n"));
        files.sort();
        files
    };
    let (files, said) = rewind(&["then", "--rebind", &directory]);
    assert_eq!(files, mine(&then), "{said}");
    assert!(said.contains("kept mine: created by hand"), "{said}");
    assert_eq!(rewind(&["--undo", "--workspace", &directory]).0, mine(&later));
    assert_eq!(rewind(&["--undo", "--workspace", &directory]).0, mine(&then));
    // A directory without earlier work is treated differently.
    let other = at.join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("page"), "one\n").unwrap();
    let (_, said) = rewind(&["later", "--rebind", &format!("workspace={}", other.display())]);
    assert!(said.contains("kept page: unknown whether a tool wrote it"), "{said}");
    assert_eq!(fs::read_to_string(other.join("page")).unwrap(), "one\n");
}

//! Links, pipes, sockets and devices that others put in place of a session's files.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use foldlog::filesystem::HostFilesystemOptions;
use foldlog::inspect::LogReader;
use foldlog::storage::EntryKind;
use foldlog::tools::{ExecuteOptions, ToolCall, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{Error, ExecutionState, ResourceRegistry, Session, Store};
use foldlog_test_support::host::types;
use foldlog_tests::verbs::{Ran, foldlog};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::{options, step};

/// The time limit of a verb that should not wait for anything.
const WITHIN: Duration = Duration::from_secs(60);

/// Runs a verb that might wait forever.
fn bounded(arguments: Vec<OsString>) -> Ran {
    let (send, receive) = mpsc::channel();
    let shown = format!("{arguments:?}");
    std::thread::spawn(move || send.send(foldlog(arguments)));
    receive.recv_timeout(WITHIN).unwrap_or_else(|_| panic!("{shown} did not end"))
}

/// Creates a store with a session whose directory contains a segment and an object, and another
/// session.
fn made(root: &Path) -> (Store, PathBuf) {
    let store = Store::open_with(root.join("store"), options()).unwrap();
    let session = store.create(&types()).unwrap();
    session.dispatch(step("one", 1)).unwrap();
    session.dispatch(step(&"x".repeat(1 << 20), 2)).unwrap();
    let dir = session.dir().to_owned();
    session.close().unwrap();
    store.create(&types()).unwrap().close().unwrap();
    (store, dir)
}

/// Puts an entry of this kind at the path.
fn put(path: &Path, what: EntryKind, elsewhere: &Path) {
    match what {
        EntryKind::Link => symlink(elsewhere, path).unwrap(),
        EntryKind::Pipe => mkfifo(path, Mode::S_IRWXU).unwrap(),
        // The socket remains after its listener ends.
        EntryKind::Socket => {
            // A socket cannot be bound at a long path.
            let made = tempfile::tempdir().unwrap();
            drop(UnixListener::bind(made.path().join("socket")).unwrap());
            fs::rename(made.path().join("socket"), path).unwrap();
        }
        EntryKind::Directory => fs::create_dir(path).unwrap(),
        other => panic!("{other}"),
    }
}

fn words(words: &[&dyn AsRef<std::ffi::OsStr>]) -> Vec<OsString> {
    words.iter().map(|word| word.as_ref().to_owned()).collect()
}

/// `verify` of a store waited forever for a pipe with a segment's name, and `sessions` read half a
/// gibibyte through a link to an endless file.
#[test]
fn what_is_no_file_is_named_and_neither_read_nor_waited_for() {
    let endless = Path::new("/dev/zero");
    for (what, elsewhere) in [
        (EntryKind::Link, Some(endless)),
        (EntryKind::Link, Some(Path::new("/nowhere"))),
        (EntryKind::Link, None),
        (EntryKind::Pipe, None),
        (EntryKind::Socket, None),
        (EntryKind::Directory, None),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let (store, dir) = made(directory.path());
        let segment = dir.join("0000000000.seg");
        let aside = directory.path().join("aside");
        fs::rename(&segment, &aside).unwrap();
        put(&segment, what, elsewhere.unwrap_or(&aside));

        let opened = LogReader::open(&dir).unwrap_err();
        assert!(
            matches!(&opened, Error::NotAFile { path, found } if *path == segment && *found == what),
            "{opened}"
        );
        let said = format!("is {what}, not a regular file");
        for verb in ["show", "state", "verify", "replay", "stats", "ledger", "tail"] {
            let ran = bounded(words(&[&verb, &dir]));
            assert_eq!(ran.code, 2, "{verb}: {}{}", ran.stdout, ran.stderr);
            assert!(format!("{}{}", ran.stdout, ran.stderr).contains(&said), "{verb}: {}", ran.stderr);
        }
        let diff = bounded(words(&[&"diff", &dir, &"0", &"1"]));
        let export = bounded(words(&[&"export", &dir, &"--format", &"jsonl"]));
        let salvage = bounded(words(&[&"salvage", &dir, &"--to", &directory.path().join("salvaged")]));
        for ran in [diff, export, salvage] {
            assert_eq!(ran.code, 2, "{}{}", ran.stdout, ran.stderr);
            assert!(ran.stderr.contains(&said), "{}", ran.stderr);
        }
        // The other session is still listed and verified, and the row of this one gives the reason.
        let root = store.path();
        let listed = bounded(words(&[&"sessions", &root]));
        assert_eq!((listed.code, listed.stdout.lines().count()), (2, 3), "{}", listed.stdout);
        assert!(listed.stdout.contains(&said), "{}", listed.stdout);
        let verified = bounded(words(&[&"verify", &root, &"--json"]));
        assert_eq!(verified.code, 2, "{}", verified.stderr);
        assert!(verified.stdout.contains(&said), "{}", verified.stdout);
    }
}

/// A reader followed a link in place of an object's directory, to another user's files.
#[test]
fn objects_are_read_through_no_link_and_no_pipe() {
    let object = |dir: &Path| fs::read_dir(dir.join("objects")).unwrap().next().unwrap().unwrap().path();
    for what in [EntryKind::Link, EntryKind::Pipe] {
        let directory = tempfile::tempdir().unwrap();
        let (store, dir) = made(directory.path());
        let (path, aside) = (object(&dir), directory.path().join("aside"));
        fs::rename(&path, &aside).unwrap();
        put(&path, what, &aside);
        let ran = bounded(words(&[&"verify", &store.path()]));
        assert_ne!(ran.code, 0, "{what}: {}{}", ran.stdout, ran.stderr);
        let said = format!("{} is {what}", path.display());
        assert!(ran.stdout.contains(&said), "{what}: {}{}", ran.stdout, ran.stderr);
        let state = bounded(words(&[&"state", &dir]));
        assert_ne!(state.code, 0, "{what}: {}", state.stderr);
    }
    let directory = tempfile::tempdir().unwrap();
    let (store, dir) = made(directory.path());
    let aside = directory.path().join("aside");
    fs::rename(dir.join("objects"), &aside).unwrap();
    symlink(&aside, dir.join("objects")).unwrap();
    let ran = bounded(words(&[&"verify", &store.path()]));
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("objects: it is a symbolic link"), "{}", ran.stdout);
}

/// Adds a workspace to a session and makes a call that leaves captures.
fn with_captures(root: &Path, session: &Session) -> ToolRunner {
    let work = root.join("work");
    fs::create_dir_all(&work).unwrap();
    let files = session.open_workspace(&work, HostFilesystemOptions::default()).unwrap();
    let resources = ResourceRegistry::builder().filesystem(std::sync::Arc::new(files)).build().unwrap();
    let runner = ToolRunner::new(ExecutionState::new(session.clone(), resources), ToolRegistry::new());
    let call = runner.begin(&ToolCall::new("edit", "{}"), &ExecuteOptions::default()).unwrap();
    fs::write(work.join("page"), "one").unwrap();
    call.end(ToolResult::ok("done", ())).unwrap();
    runner
}

fn object_in(captures: &Path) -> PathBuf {
    let directories = fs::read_dir(captures.join("objects")).unwrap().map(|entry| entry.unwrap().path());
    let mut directories: Vec<PathBuf> =
        directories.filter(|path| path.file_name().is_some_and(|name| name.len() == 2)).collect();
    directories.sort();
    fs::read_dir(&directories[0]).unwrap().next().unwrap().unwrap().path()
}

/// A pipe in place of a file of the captures made `rewind` and `recover` wait forever.
#[test]
fn a_store_of_captures_with_something_else_in_a_files_place_holds_nobody_up() {
    let by = ["--by", "ada", "--reason", "it went wrong"];
    for what in [EntryKind::Pipe, EntryKind::Link, EntryKind::Socket, EntryKind::Directory] {
        for place in ["config", "HEAD", "objects", "refs", "OBJECT", "stat-cache", "collected"] {
            if what == EntryKind::Directory && ["objects", "refs"].contains(&place) {
                continue;
            }
            let directory = tempfile::tempdir().unwrap();
            let root = directory.path();
            let session = Store::open_with(root.join("store"), options()).unwrap().create(&types()).unwrap();
            let (id, dir) = (session.id(), session.dir().to_owned());
            let runner = with_captures(root, &session);
            let to = session.log().position().unwrap();
            let call = runner.begin(&ToolCall::new("edit", "{}"), &ExecuteOptions::default()).unwrap();
            fs::write(root.join("work/page"), "two").unwrap();
            // As a killed process leaves it: a log without the end of its call.
            session.sync().unwrap();
            let copy = root.join("killed/sessions").join(id.to_string());
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            let copied = std::process::Command::new("cp").arg("-r").args([&dir, &copy]).status().unwrap();
            assert!(copied.success());
            call.end(ToolResult::ok("done", ())).unwrap();
            drop(runner);
            session.close().unwrap();

            let work = format!("workspace={}", root.join("work").display());
            for (dir, verb) in [(&dir, "rewind"), (&copy, "recover")] {
                let captures = dir.join("files");
                let path = if place == "OBJECT" { object_in(&captures) } else { captures.join(place) };
                if fs::symlink_metadata(&path).is_ok() {
                    fs::rename(&path, root.join(format!("aside-{verb}"))).unwrap();
                }
                put(&path, what, Path::new("/dev/zero"));
                let position = to.to_string();
                let mut asked = words(&[&verb, dir, &"--workspace", &work]);
                if verb == "rewind" {
                    asked.extend(
                        words(&[&position, &"--overwrite"]).into_iter().chain(by.map(OsString::from)),
                    );
                }
                let ran = bounded(asked);
                let said = format!("{}{}", ran.stdout, ran.stderr);
                // These two are not needed, and the other objects may suffice.
                let is_needed = ["config", "HEAD", "objects", "refs"].contains(&place);
                let told =
                    said.contains(&format!("is {what}, not ")) && said.contains(&*path.to_string_lossy());
                assert!(ran.code == 0 || told, "{verb}, {what} as {place}: {}\n{said}", ran.code);
                assert!(told || !(is_needed && verb == "rewind"), "{verb}, {what} as {place}: {said}");
                let there = fs::symlink_metadata(&path).unwrap();
                assert!(!there.is_file(), "{verb}, {what} as {place}: it is left alone");
            }
        }
    }
}

/// Other entries in a session's directory are no reason to wait either.
#[test]
fn a_lock_an_image_or_a_spare_that_is_no_file_holds_nobody_up() {
    for what in [EntryKind::Link, EntryKind::Pipe] {
        let directory = tempfile::tempdir().unwrap();
        let (store, dir) = made(directory.path());
        fs::create_dir_all(dir.join("snapshots")).unwrap();
        let zeros = Path::new("/dev/zero");
        put(&dir.join("snapshots/00000000000000000003.image"), what, zeros);
        put(&dir.join("recovery.spare"), what, zeros);
        put(&dir.join("0000000009.seg.new"), what, zeros);
        for verb in ["verify", "stats", "state"] {
            let ran = bounded(words(&[&verb, &dir]));
            assert_eq!(ran.code, 0, "{verb}: {}{}", ran.stdout, ran.stderr);
        }
        fs::remove_file(store.path().join("writers.lock")).unwrap();
        put(&store.path().join("writers.lock"), what, zeros);
        let id = store.session_ids().unwrap()[0];
        let refused = store.open_session(id, &types()).unwrap_err();
        assert!(
            matches!(&refused, Error::NotAFile { path, found } if path.ends_with("writers.lock") && *found == what),
            "{refused}"
        );
        assert_eq!(bounded(words(&[&"verify", &store.path()])).code, 0);
    }
}

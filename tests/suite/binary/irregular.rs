//! Links, pipes, sockets and devices in the places of a session's files, put there by somebody else.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use foldlog::audit::LogReader;
use foldlog::storage::EntryKind;
use foldlog::{Error, Store};
use foldlog_tests::host::types;
use foldlog_tests::verbs::{Ran, foldlog};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::{options, step};

/// How long a verb may take that should not wait for anything.
const WITHIN: Duration = Duration::from_secs(60);

/// Runs a verb that might wait for ever.
fn bounded(arguments: Vec<OsString>) -> Ran {
    let (send, receive) = mpsc::channel();
    let shown = format!("{arguments:?}");
    std::thread::spawn(move || send.send(foldlog(arguments)));
    receive.recv_timeout(WITHIN).unwrap_or_else(|_| panic!("{shown} did not end"))
}

/// A store with a session whose folder holds a segment and an object, and another session.
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

/// All that can stand in a file's place, with what it is told to be.
fn put(path: &Path, what: EntryKind, elsewhere: &Path) {
    match what {
        EntryKind::Link => symlink(elsewhere, path).unwrap(),
        EntryKind::Pipe => mkfifo(path, Mode::S_IRWXU).unwrap(),
        // It stays when its listener goes.
        EntryKind::Socket => drop(UnixListener::bind(path).unwrap()),
        EntryKind::Folder => fs::create_dir(path).unwrap(),
        other => panic!("{other}"),
    }
}

fn words(words: &[&dyn AsRef<std::ffi::OsStr>]) -> Vec<OsString> {
    words.iter().map(|word| word.as_ref().to_owned()).collect()
}

/// `verify` of a store waited for ever for a pipe that had a segment's name, and `sessions` read half a gibibyte of an
/// endless file to which one was a link.
#[test]
fn what_is_no_file_is_named_and_neither_read_nor_waited_for() {
    let endless = Path::new("/dev/zero");
    for (what, elsewhere) in [
        (EntryKind::Link, Some(endless)),
        (EntryKind::Link, Some(Path::new("/nowhere"))),
        (EntryKind::Link, None),
        (EntryKind::Pipe, None),
        (EntryKind::Socket, None),
        (EntryKind::Folder, None),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (store, dir) = made(folder.path());
        let segment = dir.join("0000000000.seg");
        let aside = folder.path().join("aside");
        fs::rename(&segment, &aside).unwrap();
        put(&segment, what, elsewhere.unwrap_or(&aside));

        let opened = LogReader::open(&dir).unwrap_err();
        assert!(
            matches!(&opened, Error::NotAFile { path, found } if *path == segment && *found == what),
            "{opened}"
        );
        let said = format!("is {what}, where a regular file should be");
        for verb in ["show", "state", "verify", "replay", "stats", "ledger", "tail"] {
            let ran = bounded(words(&[&verb, &dir]));
            assert_eq!(ran.code, 2, "{verb}: {}{}", ran.stdout, ran.stderr);
            assert!(format!("{}{}", ran.stdout, ran.stderr).contains(&said), "{verb}: {}", ran.stderr);
        }
        let diff = bounded(words(&[&"diff", &dir, &"0", &"1"]));
        let export = bounded(words(&[&"export", &dir, &"--format", &"jsonl"]));
        let salvage = bounded(words(&[&"salvage", &dir, &"--to", &folder.path().join("salvaged")]));
        for ran in [diff, export, salvage] {
            assert_eq!(ran.code, 2, "{}{}", ran.stdout, ran.stderr);
            assert!(ran.stderr.contains(&said), "{}", ran.stderr);
        }
        // The other session is listed and verified all the same, and this one is a row that says why it is not.
        let root = store.path();
        let listed = bounded(words(&[&"sessions", &root]));
        assert_eq!((listed.code, listed.stdout.lines().count()), (2, 3), "{}", listed.stdout);
        assert!(listed.stdout.contains(&said), "{}", listed.stdout);
        let verified = bounded(words(&[&"verify", &root, &"--json"]));
        assert_eq!(verified.code, 2, "{}", verified.stderr);
        assert!(verified.stdout.contains(&said), "{}", verified.stdout);
    }
}

/// A reader went through a link in place of an object's folder, to files of somebody else's.
#[test]
fn objects_are_read_through_no_link_and_no_pipe() {
    let object = |dir: &Path| fs::read_dir(dir.join("objects")).unwrap().next().unwrap().unwrap().path();
    for what in [EntryKind::Link, EntryKind::Pipe] {
        let folder = tempfile::tempdir().unwrap();
        let (store, dir) = made(folder.path());
        let (path, aside) = (object(&dir), folder.path().join("aside"));
        fs::rename(&path, &aside).unwrap();
        put(&path, what, &aside);
        let ran = bounded(words(&[&"verify", &store.path()]));
        assert_ne!(ran.code, 0, "{what}: {}{}", ran.stdout, ran.stderr);
        let said = format!("{} is {what}", path.display());
        assert!(ran.stdout.contains(&said), "{what}: {}{}", ran.stdout, ran.stderr);
        let state = bounded(words(&[&"state", &dir]));
        assert_ne!(state.code, 0, "{what}: {}", state.stderr);
    }
    let folder = tempfile::tempdir().unwrap();
    let (store, dir) = made(folder.path());
    let aside = folder.path().join("aside");
    fs::rename(dir.join("objects"), &aside).unwrap();
    symlink(&aside, dir.join("objects")).unwrap();
    let ran = bounded(words(&[&"verify", &store.path()]));
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("objects: it is a symbolic link"), "{}", ran.stdout);
}

/// What stands beside a session's records is no reason to wait either.
#[test]
fn a_lock_an_image_or_a_spare_that_is_no_file_holds_nobody_up() {
    for what in [EntryKind::Link, EntryKind::Pipe] {
        let folder = tempfile::tempdir().unwrap();
        let (store, dir) = made(folder.path());
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

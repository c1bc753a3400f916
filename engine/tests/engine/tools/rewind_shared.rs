//! Rewinds of forks in their own directories, and of sessions that share a directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use foldlog::filesystem::{ChangeKind, HostFilesystem, HostFilesystemOptions, Rebind};
use foldlog::tools::{CaptureMoment, RewindOptions, RewindReport};
use foldlog::{CollectOptions, SequenceNumber, SessionOptions};
use foldlog_test_support::room::{Room, root, runner_in, store_in};

use super::*;

/// A fork of a session, which works in its own directory.
struct Fork {
    root: PathBuf,
    state: ExecutionState,
}

impl Fork {
    /// Forks a session at its present position.
    fn of(room: &Room, prepare: impl FnOnce(&Path), rebind: Option<Rebind>) -> Fork {
        let root = room.directory.path().join("own");
        fs::create_dir(&root).unwrap();
        prepare(&root);
        let store = store_in(room.directory.path());
        let session = store.fork(room.id, room.at(), &types(), SessionOptions::default()).unwrap();
        let captures = session.log().captures_dir();
        let files = HostFilesystem::open(&root, captures, HostFilesystemOptions::default()).unwrap();
        rebind.into_iter().for_each(|rebind| files.rebind(rebind).unwrap());
        let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
        Fork { root, state: ExecutionState::new(session, resources) }
    }

    /// Continues in another process, which knows only the fork's directory.
    fn again(self, room: &Room) -> Fork {
        let Fork { root, state } = self;
        let session = state.session().clone();
        let id = session.id();
        session.close().unwrap();
        drop(state);
        let session = store_in(room.directory.path()).open_session(id, &types()).unwrap();
        let captures = session.log().captures_dir();
        let files = HostFilesystem::open(&root, captures, HostFilesystemOptions::default()).unwrap();
        let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
        Fork { root, state: ExecutionState::new(session, resources) }
    }

    fn call(&self, file: &str) {
        let runner = ToolRunner::new(self.state.clone(), ToolRegistry::new());
        let operation = runner.begin(&ToolCall::new("writes", "{}"), &ExecuteOptions::default()).unwrap();
        fs::write(self.root.join(file), file).unwrap();
        operation.end(ToolResult::ok("done", ())).unwrap();
    }

    fn at(&self) -> SequenceNumber {
        self.state.session().log().position().unwrap()
    }

    fn rewind(&self, to: SequenceNumber) -> RewindReport {
        self.state.rewind(to, &RewindOptions::default()).unwrap()
    }

    fn files(&self) -> BTreeMap<String, String> {
        files_in(&self.root)
    }
}

fn files_in(root: &Path) -> BTreeMap<String, String> {
    let read = |entry: fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap())
    };
    fs::read_dir(root).unwrap().map(|entry| read(entry.unwrap())).collect()
}

fn held(files: &[(&str, &str)]) -> BTreeMap<String, String> {
    files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}

/// The captures that a fork shares with its parent are of the parent's directory. The rewind of a
/// fork was refused, or filled its directory with the parent's files.
#[test]
fn a_forks_own_directory_goes_back_to_what_it_held_itself() {
    let room = Room::new();
    let then = room.call("printf one > page");
    room.call("printf two > page; printf new > new");
    let fork = Fork::of(&room, |_| {}, None);
    let begun = fork.at();

    // No call of the fork has worked in the directory: it stays empty.
    let preview = fork.state.preview_rewind(then, &RewindOptions::default()).unwrap();
    let report = fork.rewind(then);
    assert_eq!(preview.left, report.left);
    assert!(report.resources.is_empty(), "{report:?}");
    let [left] = report.left.as_slice() else { panic!("{report:?}") };
    assert!(left.reason.contains("forked from"), "{left:?}");
    assert_eq!((fork.files(), fork.state.session().view::<Plan>().unwrap().len()), (held(&[]), 1));

    // After a call, it is restored to the call's start.
    fork.state.undo_rewind(&RewindOptions::default()).unwrap();
    fork.call("mine");
    fork.call("more");
    let report = fork.rewind(then);
    let [resource] = report.resources.as_slice() else { panic!("{report:?}") };
    assert_eq!((resource.capture.of, resource.removed), (CaptureMoment::CallBeganLater, 2));
    assert_eq!(fork.files(), held(&[]));
    fork.state.undo_rewind(&RewindOptions::default()).unwrap();
    assert_eq!(fork.files(), held(&[("mine", "mine"), ("more", "more")]));
    assert!(fork.at() > begun);
    assert_eq!(files_in(&root(room.directory.path())), held(&[("new", "new"), ("page", "two")]));
}

/// If a fork's directory replaces its parent's, the log does not tell where its files are from.
#[test]
fn files_of_which_nothing_is_known_are_kept_and_named() {
    let room = Room::new();
    let then = room.call("printf one > page");
    room.call("printf two > page; rm -f gone; printf two > other");
    let write = |root: &Path| fs::write(root.join("mine"), "mine").unwrap();
    let fork = Fork::of(&room, write, Some(Rebind::Overwrite));
    let preview = fork.state.preview_rewind(then, &RewindOptions::default()).unwrap();
    let told = |unknown: &[foldlog::filesystem::FileUnknown]| -> Vec<(String, ChangeKind)> {
        unknown.iter().map(|file| (file.path.clone(), file.otherwise)).collect()
    };
    let expected = vec![("mine".to_owned(), ChangeKind::Removed), ("page".to_owned(), ChangeKind::Created)];
    assert_eq!(told(&preview.resources[0].unknown), expected);
    let report = fork.rewind(then);
    assert_eq!(told(&report.resources[0].unknown), expected);
    assert!(report.resources[0].kept.is_empty(), "{report:?}");
    assert_eq!(fork.files(), held(&[("mine", "mine")]));

    let options = RewindOptions { overwrite: true, ..RewindOptions::default() };
    let report = fork.state.rewind(then, &options).unwrap();
    assert!(report.resources[0].unknown.is_empty(), "{report:?}");
    assert_eq!(fork.files(), held(&[("page", "one")]));
    fork.state.undo_rewind(&options).unwrap();
    assert_eq!(fork.files(), held(&[("mine", "mine")]));
}

/// A rewind brought files into a fork's directory from a capture of its parent's directory, which
/// an undo ignored: STATE came back, and no file.
#[test]
fn a_fork_that_was_brought_into_a_directory_is_brought_back_and_comes_again() {
    let room = Room::new();
    let then = room.call("printf one > page");
    room.call("printf two > page; printf new > new");
    let overwrite = RewindOptions { overwrite: true, ..RewindOptions::default() };
    let write = |root: &Path| fs::write(root.join("mine"), "mine").unwrap();
    let fork = Fork::of(&room, write, Some(Rebind::Overwrite));
    fork.state.rewind(then, &overwrite).unwrap();
    let mut fork = fork;
    let plan = |fork: &Fork| fork.state.session().view::<Plan>().unwrap().len();
    assert_eq!((fork.files(), plan(&fork)), (held(&[("page", "one")]), 1));
    for _ in 0..2 {
        fork = fork.again(&room);
        let preview = fork.state.preview_undo(&RewindOptions::default()).unwrap();
        assert_eq!((preview.left.len(), preview.resources[0].files.len()), (0, 2), "{preview:?}");
        let report = fork.state.undo_rewind(&RewindOptions::default()).unwrap();
        assert!(report.left.is_empty() && report.resources[0].kept.is_empty(), "{report:?}");
        assert_eq!((fork.files(), plan(&fork)), (held(&[("mine", "mine")]), 2));
        fork = fork.again(&room);
        fork.state.undo_rewind(&RewindOptions::default()).unwrap();
        assert_eq!((fork.files(), plan(&fork)), (held(&[("page", "one")]), 1));
    }
    // Files written by hand are distinguished from those of the rewinds.
    fs::write(fork.root.join("hand"), "hand").unwrap();
    let report = fork.state.undo_rewind(&RewindOptions::default()).unwrap();
    let kept: Vec<_> = report.resources[0].kept.iter().map(|kept| kept.path.as_str()).collect();
    assert_eq!((kept, fork.files()), (vec!["hand"], held(&[("hand", "hand"), ("mine", "mine")])));
    assert_eq!(files_in(&root(room.directory.path())), held(&[("new", "new"), ("page", "two")]));
}

/// A rewound fork has the files of its parent's capture, whose commit is then the same, but not its
/// metadata. A collection reported damage, and skipped the parent from then on.
#[test]
fn a_parent_is_collected_although_its_fork_captured_the_same_files() {
    let room = Room::new();
    let then = room.call("printf one > page");
    for n in 0..4 {
        room.call(&format!("printf {n} > page"));
    }
    let fork = Fork::of(&room, |_| {}, Some(Rebind::Overwrite));
    fork.state.rewind(then, &RewindOptions { overwrite: true, ..RewindOptions::default() }).unwrap();
    fork.call("mine");
    let (parent, forked) = (room.session().clone(), fork.state.session().clone());
    drop(fork);
    forked.close().unwrap();
    let Room { directory, runner, .. } = room;
    drop(runner);
    parent.close().unwrap();
    let store = store_in(directory.path());
    let options = CollectOptions { calls: 1, ..CollectOptions::default() };
    let report = store.collect(&options).unwrap();
    assert_eq!(report.skipped, BTreeMap::new());
    assert!(report.all.captures > 0, "{report:?}");
    assert!(store.collect(&options).unwrap().all.captures == 0, "all of it was collected at once");
}

/// An undo that leaves a directory alone changes nothing in it, whatever earlier calls had left.
#[test]
fn a_rewind_that_left_a_forks_directory_alone_says_nothing_of_its_files() {
    let room = Room::new();
    let then = room.call("printf one > page");
    room.call("printf two > page");
    let fork = Fork::of(&room, |root| fs::write(root.join("mine"), "mine").unwrap(), None);
    let left = fork.rewind(then);
    assert_eq!((left.left.len(), left.resources.len()), (1, 0), "{left:?}");
    fs::write(fork.root.join("hand"), "hand").unwrap();
    let report = fork.state.undo_rewind(&RewindOptions::default()).unwrap();
    assert!(report.left.is_empty(), "{report:?}");
    assert_eq!(fork.files(), held(&[("hand", "hand"), ("mine", "mine")]));
    fork.call("more");
    fork.rewind(then);
    assert_eq!(fork.files(), held(&[("mine", "mine")]), "as before the first begin of its own");
}

#[test]
fn what_another_session_committed_to_a_shared_directory_since_is_kept() {
    let room = Room::new();
    let store = store_in(room.directory.path());
    let sibling = runner_in(room.directory.path(), store.create(&types()).unwrap());
    let then = room.call("printf one > page");
    room.call("printf two > page; printf two > other");
    let call =
        ToolCall::new("shell", r#"{"script":"printf theirs > theirs; printf theirs > other","fails":false}"#);
    assert!(sibling.execute(&call, &ExecuteOptions::default()).unwrap().success);
    let report = room.rewind(then);
    let kept: Vec<_> = report.resources[0].kept.iter().map(|kept| kept.path.as_str()).collect();
    assert_eq!(kept, ["other", "theirs"]);
    let expected = held(&[("other", "theirs"), ("page", "one"), ("theirs", "theirs")]);
    assert_eq!(room.seen().1, expected);
    // The sibling finds its own files unchanged.
    assert!(sibling.execute(&call, &ExecuteOptions::default()).unwrap().success);
    room.undo();
    assert_eq!(room.file("theirs").as_deref(), Some("theirs"));
}

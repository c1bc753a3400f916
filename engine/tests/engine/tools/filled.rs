//! Directories that replace others are filled by one call, which leaves existing workspaces of the
//! session alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use foldlog::filesystem::{HostFilesystem, HostFilesystemOptions, WorkspaceNotice};
use foldlog::replay::Replay;
use foldlog::tools::{RewindOptions, RewindReport};
use foldlog::{CollectOptions, SequenceNumber, SessionOptions};

use super::*;

struct Machine(tempfile::TempDir);

struct Run {
    files: Arc<HostFilesystem>,
    state: ExecutionState,
}

impl Machine {
    fn new() -> Machine {
        let machine = Machine(tempfile::tempdir().unwrap());
        fs::create_dir(machine.work()).unwrap();
        machine
    }

    fn work(&self) -> PathBuf {
        self.0.path().join("work")
    }

    fn store(&self) -> Store {
        Store::open(self.0.path().join("store")).unwrap()
    }

    /// Returns another machine, with a copy of this one's store and an empty directory.
    fn moved(&self) -> Machine {
        let machine = Machine::new();
        copy(&self.0.path().join("store"), &machine.0.path().join("store"));
        machine
    }

    /// Works on a session in the machine's directory, as a new process does.
    fn run(&self, session: Session) -> Run {
        run_in(&self.work(), session)
    }

    fn open(&self, id: Uuid) -> Run {
        self.run(self.store().open_session(id, &types()).unwrap())
    }

    fn files(&self) -> BTreeMap<String, String> {
        files_in(&self.work())
    }
}

fn run_in(work: &Path, session: Session) -> Run {
    let files = Arc::new(session.open_workspace(work, HostFilesystemOptions::default()).unwrap());
    let resources = ResourceRegistry::builder().filesystem(Arc::clone(&files)).build().unwrap();
    Run { files, state: ExecutionState::new(session, resources) }
}

impl Run {
    /// Makes a call that writes a file, and runs `within` before it ends.
    fn call_while<T>(&self, file: &str, text: &str, within: impl FnOnce() -> T) -> T {
        let runner = ToolRunner::new(self.state.clone(), ToolRegistry::new());
        let operation = runner.begin(&ToolCall::new("writes", "{}"), &ExecuteOptions::default()).unwrap();
        fs::write(self.files.root().join(file), text).unwrap();
        let done = within();
        operation.end(ToolResult::ok("done", ())).unwrap();
        done
    }

    fn call(&self, file: &str, text: &str) {
        self.call_while(file, text, || ());
    }

    fn fill(&self) -> Result<Option<RewindReport>> {
        self.state.fill(&RewindOptions::default())
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        let to = to.join(entry.file_name().unwrap());
        match entry.is_dir() {
            true => copy(&entry, &to),
            false => drop(fs::copy(&entry, to).unwrap()),
        }
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

#[derive(Serialize, Deserialize, JsonSchema)]
struct Nothing {}

/// A read-only tool, left open by a copy of the store that is made meanwhile.
struct Looks(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Tool for Looks {
    const NAME: &'static str = "looks";
    type Parameters = Nothing;
    type Output = ();

    fn reads_only(&self) -> bool {
        true
    }

    fn call(&self, _: Nothing, _: &ToolContext) -> std::result::Result<ToolResult<()>, ToolError> {
        self.0.lock().unwrap().take().unwrap()();
        Ok(ToolResult::ok("seen", ()))
    }
}

#[test]
fn an_empty_directory_is_filled_whatever_was_open_and_one_that_the_session_works_in_stays_as_it_is() {
    let first = Machine::new();
    let run = first.run(first.store().create(&types()).unwrap());
    let id = run.state.session().id();
    // No call has captured anything yet.
    assert!(first.run(run.state.session().clone()).fill().unwrap().is_none());
    run.call("page", "one");
    run.call("more", "two");
    let before = first.files();
    let nothing_open = first.moved();
    let call_open = run.call_while("page", "half", || first.moved());
    run.call("page", "one");
    let (send, reads_open) = std::sync::mpsc::channel();
    let (store, looks) = (first.0.path().join("store"), Machine::new());
    let to = looks.0.path().join("store");
    let look = Looks(Mutex::new(Some(Box::new(move || {
        copy(&store, &to);
        send.send(looks).unwrap();
    }))));
    let runner = ToolRunner::new(run.state.clone(), ToolRegistry::new().with(look));
    assert!(runner.execute(&ToolCall::new("looks", "{}"), &ExecuteOptions::default()).unwrap().success);
    let reads_open = reads_open.recv().unwrap();

    for (machine, is_open) in [(nothing_open, false), (call_open, true), (reads_open, true)] {
        let run = machine.open(id);
        assert_eq!(run.state.session().calls().is_interrupted(), is_open);
        let filled = run.fill().unwrap().unwrap();
        assert_eq!(filled.resources.len(), 1);
        assert!(!run.state.session().calls().is_interrupted());
        assert_eq!(machine.files(), before);
        // There is nothing to fill a second time, in this process and in the next one, whatever was
        // changed by hand.
        fs::write(machine.work().join("page"), "by hand").unwrap();
        assert!(run.fill().unwrap().is_none());
        run.state.session().clone().close().unwrap();
        drop(run);
        let again = machine.open(id);
        assert!(again.fill().unwrap().is_none());
        assert_eq!(machine.files()["page"], "by hand");
        fs::write(machine.work().join("page"), "one").unwrap();
        again.call("new", "three");
        assert_eq!(again.files.take_notices(), []);
        again.state.session().clone().close().unwrap();
        drop(again);
        assert!(machine.open(id).fill().unwrap().is_none());
    }
    assert!(run.fill().unwrap().is_none());
    assert_eq!(first.files(), before);
}

#[test]
fn a_directory_that_is_not_empty_is_filled_by_whoever_says_so_and_what_was_there_comes_back() {
    let first = Machine::new();
    let run = first.run(first.store().create(&types()).unwrap());
    let id = run.state.session().id();
    run.call("page", "one");
    let other = first.moved();
    fs::write(other.work().join("mine"), "mine").unwrap();
    let run = other.open(id);
    let at = run.state.session().log().position();
    let refused = run.fill().unwrap_err().to_string();
    assert!(refused.contains("is not empty") && refused.contains("`Rebind::Overwrite`"), "{refused}");
    assert_eq!((other.files(), run.state.session().log().position()), (held(&[("mine", "mine")]), at));
    let overwrite = RewindOptions { overwrite: true, ..RewindOptions::default() };
    run.state.fill(&overwrite).unwrap().unwrap();
    assert_eq!(other.files(), held(&[("page", "one")]));
    run.state.undo_rewind(&overwrite).unwrap();
    assert_eq!(other.files(), held(&[("mine", "mine")]));
}

/// Only the process that had filled a directory knew that captures of the other one may be restored
/// into it. A later process was refused, or emptied a fork's directory when it rolled back to
/// before the fill.
#[test]
fn a_later_process_goes_back_to_before_a_fill_as_the_one_that_filled() {
    let machine = Machine::new();
    let session = machine.store().create(&types()).unwrap();
    let id = session.id();
    let run = machine.run(session.clone());
    run.call("a", "one");
    let one = session.log().position().unwrap();
    run.call("a", "two");
    let two = session.log().position().unwrap();
    let goes_back = |run: &Run, to: SequenceNumber| {
        run.state.rewind(to, &RewindOptions::default()).unwrap();
        files_in(run.files.root())
    };

    let work = tempfile::tempdir().unwrap();
    let fork = machine.store().fork(id, two, &types(), SessionOptions::default());
    let fork = fork.unwrap();
    let forked = fork.id();
    let run = run_in(work.path(), fork.clone());
    assert!(run.fill().unwrap().is_some());
    run.call("b", "three");
    let three = fork.log().position().unwrap();
    fork.close().unwrap();
    drop(run);
    let run = run_in(work.path(), machine.store().open_session(forked, &types()).unwrap());
    assert_eq!(goes_back(&run, two), held(&[("a", "two")]));
    assert_eq!(goes_back(&run, one), held(&[("a", "one")]));
    assert_eq!(goes_back(&run, three), held(&[("a", "two"), ("b", "three")]));

    let moved = machine.moved();
    let run = moved.open(id);
    assert!(run.fill().unwrap().is_some());
    run.call("b", "three");
    let three = run.state.session().log().position().unwrap();
    run.state.session().clone().close().unwrap();
    drop(run);
    let run = moved.open(id);
    let told = run.state.preview_rewind(one, &RewindOptions::default()).unwrap();
    assert!(!told.resources.is_empty(), "{told:?}");
    assert_eq!(goes_back(&run, one), held(&[("a", "one")]));
    assert_eq!(goes_back(&run, three), held(&[("a", "two"), ("b", "three")]));
}

#[test]
fn a_fork_says_at_its_first_call_that_its_directory_is_not_its_parents_unless_it_was_filled() {
    let machine = Machine::new();
    let run = machine.run(machine.store().create(&types()).unwrap());
    let parent = run.state.session().clone();
    run.call("page", "one");
    let fork = |name: &str| {
        let own = machine.0.path().join(name);
        fs::create_dir(&own).unwrap();
        let options = SessionOptions::default();
        let at = parent.log().position().unwrap();
        run_in(&own, machine.store().fork(parent.id(), at, &types(), options).unwrap())
    };
    let unfilled = fork("unfilled");
    unfilled.call("mine", "mine");
    let told = unfilled.files.take_notices();
    assert!(matches!(told[..], [WorkspaceNotice::Replaced { .. }]), "{told:?}");
    unfilled.call("mine", "again");
    assert_eq!(unfilled.files.take_notices(), []);
    // The session has worked there, so its files stay.
    assert!(unfilled.fill().unwrap().is_none());
    assert_eq!(files_in(unfilled.files.root()), held(&[("mine", "again")]));

    let filled = fork("filled");
    filled.fill().unwrap().unwrap();
    assert_eq!(files_in(filled.files.root()), held(&[("page", "one")]));
    filled.call("mine", "mine");
    assert_eq!(filled.files.take_notices(), []);
    // In its parent's directory there is nothing to fill, and nothing to report.
    let options = SessionOptions::default();
    let there =
        machine.store().fork(parent.id(), parent.log().position().unwrap(), &types(), options).unwrap();
    let there = machine.run(there);
    assert!(there.fill().unwrap().is_none());
    there.call("page", "two");
    assert_eq!(there.files.take_notices(), []);
}

/// Copies a store once, while the files are restored.
#[derive(Default)]
struct Spy(Mutex<Option<(PathBuf, PathBuf)>>);

impl Snapshotable for Spy {
    const NAME: &'static str = "spy";
    type Snapshot = ();

    fn snapshot(&self, _: &CaptureOptions) -> Result<()> {
        Ok(())
    }

    fn restore(&self, (): &()) -> Result<()> {
        if let Some((from, to)) = self.0.lock().unwrap().take() {
            copy(&from, &to);
        }
        Ok(())
    }

    fn record((): &()) -> Result<Option<Vec<u8>>> {
        Ok(Some(vec![0xc0]))
    }

    fn recall(_: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// Works on a session in a directory, with a spy that is restored after the files.
fn spied(work: &Path, session: Session, spy: Spy) -> Run {
    let files = Arc::new(session.open_workspace(work, HostFilesystemOptions::default()).unwrap());
    let resources = ResourceRegistry::builder().filesystem(Arc::clone(&files)).named("z spy", Arc::new(spy));
    Run { files, state: ExecutionState::new(session, resources.build().unwrap()) }
}

#[test]
fn a_process_that_is_killed_within_a_fill_has_the_next_one_fill_the_directory() {
    let first = Machine::new();
    let run = spied(&first.work(), first.store().create(&types()).unwrap(), Spy::default());
    let id = run.state.session().id();
    run.call("page", "one");
    let (other, killed) = (first.moved(), tempfile::tempdir().unwrap());
    let store = other.0.path().join("store");
    let spy = Spy(Mutex::new(Some((store.clone(), killed.path().join("store")))));
    let run = spied(&other.work(), other.store().open_session(id, &types()).unwrap(), spy);
    run.fill().unwrap().unwrap();
    run.state.session().clone().close().unwrap();
    drop(run);
    // The disk as it was in the middle of that: the files are there, and the log has the start
    // record alone.
    fs::remove_dir_all(&store).unwrap();
    copy(&killed.path().join("store"), &store);
    assert_eq!(other.files(), held(&[("page", "one")]));
    let run = spied(&other.work(), other.store().open_session(id, &types()).unwrap(), Spy::default());
    assert!(run.state.session().calls().is_interrupted());
    assert!(run.fill().unwrap().is_some());
    assert_eq!(other.files(), held(&[("page", "one")]));
    assert!(run.fill().unwrap().is_none());
    run.call("page", "two");
    assert_eq!(run.files.take_notices(), []);
}

#[test]
fn what_the_last_call_left_is_there_to_fill_a_directory_whatever_was_collected() {
    let first = Machine::new();
    let run = first.run(first.store().create(&types()).unwrap());
    let id = run.state.session().id();
    run.call("page", "one");
    run.state.session().clone().close().unwrap();
    drop(run);
    let none = CollectOptions { calls: 0, ..CollectOptions::default() };
    first.store().collect(&none).unwrap();
    let other = first.moved();
    let run = other.open(id);
    // The last call's captures are always kept.
    run.fill().unwrap().unwrap();
    assert_eq!(other.files(), held(&[("page", "one")]));
}

#[test]
fn a_fill_is_replayed_where_the_log_has_one() {
    let host = |work: &Path, session: &Session| -> Result<bool> {
        let run = run_in(work, session.clone());
        let filled = run.fill()?.is_some();
        session.dispatch(StepAdded { title: "a step".to_owned(), part: 0 })?;
        Ok(filled)
    };
    let first = Machine::new();
    let run = first.run(first.store().create(&types()).unwrap());
    let id = run.state.session().id();
    run.call("page", "one");
    let at = run.state.session().log().position().unwrap();
    // A fork is replayed from its own first record on.
    for (name, expected) in [("work", false), ("own", true)] {
        let work = first.0.path().join(name);
        fs::create_dir_all(&work).unwrap();
        let fork = first.store().fork(id, at, &types(), SessionOptions::default()).unwrap();
        assert_eq!(host(&work, &fork).unwrap(), expected, "{name}");
        let dir = fork.dir().to_owned();
        fork.close().unwrap();
        let log = LogReader::open(dir).unwrap();
        let (empty, mut again) = (Machine::new(), None);
        Replay::new(&log, &types())
            .run(|session| {
                again = Some(host(&empty.work(), &session)?);
                Ok::<(), Error>(())
            })
            .unwrap();
        assert_eq!(again, Some(expected), "{name}");
        assert_eq!(empty.files(), held(&[]), "nobody works in the directory of a replay");
    }
}

/// After a restore of a volume from a backup, file by file, the directory has the token and the
/// content, but another inode. It was refused until `--rebind ... --overwrite` was given.
#[test]
fn a_directory_that_bears_the_workspaces_token_and_content_takes_its_place() {
    let machine = Machine::new();
    let run = machine.run(machine.store().create(&types()).unwrap());
    run.call("page", "first");
    let first = run.state.session().log().position().unwrap();
    run.call("page", "second");
    let id = run.state.session().id();
    run.state.session().clone().close().unwrap();
    drop(run);
    if rustix::fs::lgetxattr(machine.work(), "user.foldlog.token", &mut [0; 64][..]).is_err() {
        // This file system stores no tokens, so directories cannot be identified.
        return;
    }
    let restored = |keeps: &str, change: &dyn Fn(&Path)| {
        let copy = machine.0.path().join("copy");
        let copied =
            std::process::Command::new("cp").args(["-r", keeps]).arg(machine.work()).arg(&copy).status();
        assert!(copied.unwrap().success());
        change(&copy);
        fs::remove_dir_all(machine.work()).unwrap();
        fs::rename(copy, machine.work()).unwrap();
    };
    let rewind = |to| machine.open(id).state.rewind(to, &RewindOptions::default());
    let is_refused = |rewound: Result<RewindReport>| {
        let error = rewound.unwrap_err();
        assert!(error.to_string().contains("is another directory"), "{error}");
        assert_eq!(machine.files(), held(&[("page", "edited")]));
    };

    // With the token, but changed since the session.
    restored("--preserve=all", &|copy| fs::write(copy.join("page"), "edited").unwrap());
    is_refused(rewind(first));
    // As the session left it.
    restored("--preserve=all", &|copy| fs::write(copy.join("page"), "second").unwrap());
    rewind(first).unwrap();
    assert_eq!(machine.files(), held(&[("page", "first")]));
    // The session has worked in it, so another process can also restore captures of the first
    // directory.
    machine.open(id).state.undo_rewind(&RewindOptions::default()).unwrap();
    assert_eq!(machine.files(), held(&[("page", "second")]));
    rewind(first).unwrap();
    assert_eq!(machine.files(), held(&[("page", "first")]));
    // Without the token.
    restored("--preserve=mode", &|copy| fs::write(copy.join("page"), "edited").unwrap());
    is_refused(rewind(first));
}

//! Kills a rewind and an undo at every step, with real files: either everything is as before, or
//! all of it is done.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use foldlog::filesystem::{FilesystemSnapshot, HostFilesystem, HostFilesystemOptions};
use foldlog::inspect::OperationStatus;
use foldlog::storage::Fault;
use foldlog::tools::RewindOptions;
use foldlog::tools::resources::{RewindRequest, Rewound};

use super::*;

/// A workspace whose process is killed after it was restored, or at the n-th later call to the
/// disk.
struct Mortal {
    files: HostFilesystem,
    disk: MemoryStorage,
    kill_at: Mutex<Option<u64>>,
    /// Whether the process is dead before a second restore, although its code still runs.
    is_doomed: bool,
    went_back: AtomicBool,
}

impl Snapshotable for Mortal {
    const NAME: &'static str = "workspace";
    type Snapshot = FilesystemSnapshot;

    fn snapshot(&self, _: &CaptureOptions) -> Result<FilesystemSnapshot> {
        Ok(self.files.snapshot(None, false)?)
    }

    fn restore(&self, snapshot: &FilesystemSnapshot) -> Result<()> {
        if self.is_doomed && self.went_back.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        match self.kill_at.lock().unwrap().take() {
            Some(0) => {
                // Half way through its own work.
                self.files.restore(snapshot)?;
                fs::remove_file(self.files.root().join("page")).unwrap();
                self.disk.crash(CrashKind::Process);
                return Ok(());
            }
            Some(nth) => self.disk.inject(Fault::Die { nth, bytes: 20 }),
            None => {}
        }
        Ok(self.files.restore(snapshot).map(drop)?)
    }

    fn record(snapshot: &FilesystemSnapshot) -> Result<Option<Vec<u8>>> {
        HostFilesystem::record(snapshot)
    }

    fn recall(recorded: &[u8]) -> Result<FilesystemSnapshot> {
        HostFilesystem::recall(recorded)
    }

    fn rewind(&self, asked: &RewindRequest<'_, FilesystemSnapshot>) -> Result<Rewound<FilesystemSnapshot>> {
        Snapshotable::rewind(&self.files, asked)
    }

    fn is_shared(&self) -> bool {
        false
    }
}

#[derive(Clone, Copy, Debug)]
enum At {
    /// At the n-th call to the disk, before any file is touched or after.
    Call(u64),
    /// At the n-th call to the disk after the restore of the files starts; within that restore if
    /// it is 0.
    Back(u64),
}

fn runner_in(directory: &Path, disk: &MemoryStorage, session: Session, at: Option<At>) -> ToolRunner {
    let (root, store) = (directory.join("workspace"), directory.join("captures"));
    let files = HostFilesystem::open(root, store, HostFilesystemOptions::default()).unwrap();
    let kill_at = Mutex::new(if let Some(At::Back(nth)) = at { Some(nth) } else { None });
    let (disk, is_doomed, went_back) = (disk.clone(), at.is_some(), AtomicBool::new(false));
    let mortal = Mortal { files, disk, kill_at, is_doomed, went_back };
    let resources = ResourceRegistry::builder().snapshotable(Arc::new(mortal)).build().unwrap();
    ToolRunner::new(ExecutionState::new(session, resources), ToolRegistry::new())
}

fn seen(directory: &Path, session: &Session) -> (Vec<String>, BTreeMap<String, String>) {
    let entries = fs::read_dir(directory.join("workspace")).unwrap().map(Result::unwrap);
    let named = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    let files = entries.map(|entry| (named(entry), String::new())).map(|(name, _)| {
        let text = fs::read_to_string(directory.join("workspace").join(&name)).unwrap();
        (name, text)
    });
    (plan(session), files.collect())
}

/// Kills a rewind or an undo, and recovers in the next process. Returns whether it was done all the
/// same.
fn killed(at: At, undo: bool, again: Option<u64>) -> bool {
    let told = format!("{at:?}, undo: {undo}, recovery killed: {again:?}");
    let directory = tempfile::tempdir().unwrap();
    let (directory, disk) = (directory.path(), MemoryStorage::new());
    fs::create_dir(directory.join("workspace")).unwrap();
    let write = |name: &str, text: &str| fs::write(directory.join("workspace").join(name), text).unwrap();
    let session = store_of(&disk).create(&types()).unwrap();
    let id = session.id();
    let runner = runner_in(directory, &disk, session.clone(), None);
    let call = |title: &str, work: &dyn Fn()| {
        let operation = runner.begin(&ToolCall::new("other", "{}"), &ExecuteOptions::default()).unwrap();
        operation.context().session().dispatch(StepAdded { title: title.to_owned(), part: 0 }).unwrap();
        work();
        operation.end(ToolResult::ok("done", ())).unwrap();
        session.log().position().unwrap()
    };
    let then = call("then", &|| write("page", "then"));
    call("since", &|| {
        write("page", "since");
        write("new", "new");
    });
    write("notes", "by hand");
    if undo {
        runner.state().rewind(then, &RewindOptions { overwrite: true, ..RewindOptions::default() }).unwrap();
    }
    session.sync().unwrap();
    let before = seen(directory, &session);
    drop(runner);

    let doomed = runner_in(directory, &disk, session.clone(), Some(at));
    if let At::Call(nth) = at {
        disk.inject(Fault::Die { nth, bytes: 20 });
    }
    let options = RewindOptions::default();
    let done = match undo {
        true => doomed.state().undo_rewind(&options).is_ok(),
        false => doomed.state().rewind(then, &options).is_ok(),
    };
    disk.clear_faults();
    disk.crash(CrashKind::Process);
    drop((doomed, session));

    let reopen = || {
        let session = store_of(&disk).open_session(id, &types()).unwrap();
        runner_in(directory, &disk, session, None)
    };
    let mut runner = reopen();
    if let Some(nth) = again {
        disk.inject(Fault::Die { nth, bytes: 20 });
        let _ = runner.recover(&ExecuteOptions::default());
        disk.clear_faults();
        disk.crash(CrashKind::Process);
        runner = reopen();
    }
    let session = runner.state().session().clone();
    assert!(!session.calls().is_interrupted() || !done, "{told}: what was answered stays");
    if session.calls().is_interrupted() {
        let refused = runner.state().rewind(then, &options);
        assert!(matches!(refused, Err(Error::Interrupted { .. })), "{told}: {refused:?}");
    }
    assert!(runner.recover(&ExecuteOptions::default()).unwrap().is_empty(), "{told}: nobody has to decide");
    assert!(
        session.calls().unsettled_operations().is_empty() && session.calls().open_operations().is_empty(),
        "{told}"
    );
    let ledger = LogReader::open_on(Arc::new(disk.clone()), session.dir()).unwrap().ledger().unwrap();
    let fate = ledger.iter().filter(|entry| entry.tool == "foldlog.restore").nth(usize::from(undo));
    let found = seen(directory, &session);
    let came_back = match fate.map(|entry| (entry.outcome, entry.cause)) {
        Some((OperationStatus::Committed, None)) => true,
        Some((OperationStatus::Failed, Some(Cause::Dropped))) | None => {
            assert!(!done, "{told}");
            false
        }
        other => panic!("{told}: {other:?}"),
    };
    let text = |text: &str| text.to_owned();
    let after = match undo {
        true => (
            vec![text("then"), text("since")],
            BTreeMap::from(
                [("new", "new"), ("notes", "by hand"), ("page", "since")].map(|(a, b)| (text(a), text(b))),
            ),
        ),
        false => (
            vec![text("then")],
            BTreeMap::from([("notes", "by hand"), ("page", "then")].map(|(a, b)| (text(a), text(b)))),
        ),
    };
    assert_eq!(found, if came_back { after } else { before }, "{told}");
    super::regressions::audit_of(&disk, &session);
    came_back
}

#[test]
fn a_rewind_or_an_undo_whose_process_is_killed_at_any_step_is_done_or_taken_back_whole() {
    let (mut done, mut taken_back) = (0, 0);
    for undo in [false, true] {
        for (number, at) in (1..16).map(At::Call).chain((0..12).map(At::Back)).enumerate() {
            let again = (number % 2 == 0).then_some(2);
            *(if killed(at, undo, again) { &mut done } else { &mut taken_back }) += 1;
        }
    }
    println!("{done} done, {taken_back} taken back");
    assert!(done > 8 && taken_back > 8, "{done} done, {taken_back} taken back");
}

//! The captures that a record names are durable before the record is.

use std::path::Path;

use foldlog::Durability;
use foldlog::storage::Op;

use super::*;

/// A resource whose captures are synced on request.
#[derive(Clone)]
struct Kept {
    disk: MemoryStorage,
    taken: Arc<Mutex<Vec<bool>>>,
    /// For each sync, the number of unsynced captures, and whether the log was synced before them.
    synced: Arc<Mutex<Vec<(usize, bool)>>>,
    /// Captures of earlier processes to be synced, and whether the log was synced before them.
    earlier: Arc<Mutex<(Vec<u64>, bool)>>,
    broken: Arc<Mutex<bool>>,
}

impl Snapshotable for Kept {
    const NAME: &'static str = "kept";
    type Snapshot = u64;

    fn snapshot(&self, options: &CaptureOptions) -> Result<u64> {
        let mut taken = self.taken.lock().unwrap();
        taken.push(options.durable);
        Ok(taken.len() as u64)
    }

    fn restore(&self, _: &u64) -> Result<()> {
        Ok(())
    }

    fn record(snapshot: &u64) -> Result<Option<Vec<u8>>> {
        Ok(Some(rmp_serde::to_vec(snapshot).unwrap()))
    }

    fn recall(recorded: &[u8]) -> Result<u64> {
        Ok(rmp_serde::from_slice(recorded).unwrap())
    }

    fn sync_captures(&self, earlier: &[u64]) -> Result<()> {
        if *self.broken.lock().unwrap() {
            return Err(Error::Resource {
                resource: Self::NAME.to_owned(),
                reason: "a shelf broke".to_owned(),
            });
        }
        if !earlier.is_empty() {
            *self.earlier.lock().unwrap() = (earlier.to_vec(), log_synced(&self.disk));
            return Ok(());
        }
        let taken = std::mem::take(&mut *self.taken.lock().unwrap());
        self.synced.lock().unwrap().push((taken.len(), log_synced(&self.disk)));
        Ok(())
    }
}

/// Whether a segment was synced since the last query.
fn log_synced(disk: &MemoryStorage) -> bool {
    let trace = disk.take_trace();
    // A recovery's segment has another name until it is synced.
    let is_segment = |path: &Path| path.extension().is_some_and(|name| name == "seg" || name == "new");
    trace.iter().any(|(op, path)| *op == Op::SyncData && is_segment(path))
}

struct Rest;

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

impl Tool for Rest {
    const NAME: &'static str = "rest";
    type Parameters = Nothing;
    type Output = ();

    fn call(&self, _: Nothing, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        Ok(ToolResult::ok("rested", ()))
    }
}

fn store(disk: &MemoryStorage, durability: Durability) -> Store {
    let storage = Arc::new(disk.clone());
    let options =
        StoreOptions { storage, durability, background: BackgroundSync::Inline, ..StoreOptions::default() };
    Store::open_with("/store", options).unwrap()
}

fn kept_on(disk: MemoryStorage, session: Session) -> (Kept, ToolRunner) {
    let kept = Kept {
        disk,
        taken: Arc::default(),
        synced: Arc::default(),
        earlier: Arc::default(),
        broken: Arc::default(),
    };
    (kept.clone(), runner(&kept, session))
}

fn runner(kept: &Kept, session: Session) -> ToolRunner {
    let resources = ResourceRegistry::builder().snapshotable(Arc::new(kept.clone())).build().unwrap();
    ToolRunner::new(ExecutionState::new(session, resources), ToolRegistry::new().with(Rest))
}

fn kept(durability: Durability) -> (Kept, ToolRunner) {
    let disk = MemoryStorage::new();
    let session = store(&disk, durability).create(&types()).unwrap();
    kept_on(disk, session)
}

fn call(runner: &ToolRunner) {
    assert!(runner.execute(&ToolCall::new("rest", "{}"), &ExecuteOptions::default()).unwrap().success);
}

/// At `Durability::Process` a call's captures were never synced, but the records that name them
/// were, after a second or 4 MiB. After a power cut a session had to be recovered from missing
/// captures.
#[test]
fn captures_are_durable_before_the_records_that_name_them() {
    let (kept, runner) = kept(Durability::Process);
    let session = runner.state().session().clone();
    call(&runner);
    call(&runner);
    assert!(kept.synced.lock().unwrap().is_empty(), "a call at this level waits for no disk");
    let captures = kept.taken.lock().unwrap().len();
    assert!(captures >= 2 && kept.taken.lock().unwrap().iter().all(|durable| !durable));
    log_synced(&kept.disk);
    session.sync().unwrap();
    assert_eq!(*kept.synced.lock().unwrap(), [(captures, false)], "ahead of the log, and all of them");
    assert!(log_synced(&kept.disk));
    // Nothing was captured since, so no sync is requested.
    session.dispatch(StepAdded { title: "on".to_owned(), part: 0 }).unwrap();
    session.sync().unwrap();
    assert_eq!(kept.synced.lock().unwrap().len(), 1);
    // Background syncs have the same order.
    call(&runner);
    log_synced(&kept.disk);
    for _ in 0..5 {
        session.dispatch(StepAdded { title: "x".repeat(1 << 20), part: 0 }).unwrap();
        session.dispatch(Noted { text: "y".repeat(60 << 10) }).unwrap();
    }
    let many = |session: &Session| {
        while kept.synced.lock().unwrap().len() < 2 && session.log().bytes() < 16 << 20 {
            session.dispatch(Noted { text: "z".repeat(60 << 10) }).unwrap();
        }
    };
    many(&session);
    assert!(matches!(kept.synced.lock().unwrap()[..], [_, (1.., false)]), "{:?}", kept.synced);
    // So has the sync at closing.
    call(&runner);
    log_synced(&kept.disk);
    session.close().unwrap();
    assert!(matches!(kept.synced.lock().unwrap()[..], [_, _, (1.., false)]), "{:?}", kept.synced);
}

#[test]
fn where_a_capture_may_be_lost_no_record_that_names_it_is_promised() {
    let (kept, runner) = kept(Durability::Process);
    let session = runner.state().session().clone();
    call(&runner);
    *kept.broken.lock().unwrap() = true;
    log_synced(&kept.disk);
    assert!(matches!(session.sync(), Err(Error::DurabilityUnknown { .. })));
    assert!(!log_synced(&kept.disk));
    let refused = session.dispatch(StepAdded { title: "on".to_owned(), part: 0 });
    assert!(matches!(refused, Err(Error::Poisoned { .. })), "{refused:?}");
}

/// At the other durabilities a capture is durable before its record is written.
#[test]
fn a_capture_of_a_call_whose_begin_is_durable_is_durable_when_it_is_taken() {
    let (kept, runner) = kept(Durability::Boundary);
    call(&runner);
    assert!(kept.taken.lock().unwrap().iter().all(|durable| *durable));
    assert!(kept.synced.lock().unwrap().is_empty());
}

/// The captures of a killed process were not synced, but the next process made its records durable
/// first. After a power cut the session named missing captures.
#[test]
fn captures_of_a_killed_process_are_durable_before_its_records_are() {
    let disk = MemoryStorage::new();
    let store = store(&disk, Durability::Process);
    let (_, first) = kept_on(disk.clone(), store.create(&types()).unwrap());
    let id = first.state().session().id();
    call(&first);
    let position = first.state().session().log().position();
    disk.crash(CrashKind::Process);
    drop(first);

    // A run with the resources syncs the captures that earlier records name.
    let session = store.open_session(id, &types()).unwrap();
    log_synced(&disk);
    let (kept, second) = kept_on(disk.clone(), session.clone());
    assert_eq!(*kept.earlier.lock().unwrap(), (vec![1, 2], false), "ahead of the log");
    session.dispatch(StepAdded { title: "on".to_owned(), part: 0 }).unwrap();
    assert!(log_synced(&disk), "what was there is durable now");
    // Nothing of it is left to sync.
    *kept.earlier.lock().unwrap() = Default::default();
    drop(runner(&kept, session.clone()));
    assert!(kept.earlier.lock().unwrap().0.is_empty());
    disk.crash(CrashKind::PowerLosingAll);
    drop((second, session));
    let session = store.open_session(id, &types()).unwrap();
    assert!(session.log().position() >= position);
    drop(session);

    // If the captures may be lost, earlier records are not made durable.
    disk.crash(CrashKind::Process);
    let session = store.open_session(id, &types()).unwrap();
    call(&runner(&kept, session.clone()));
    disk.crash(CrashKind::Process);
    drop(session);
    let session = store.open_session(id, &types()).unwrap();
    *kept.broken.lock().unwrap() = true;
    log_synced(&disk);
    drop(runner(&kept, session.clone()));
    let refused = session.dispatch(StepAdded { title: "on".to_owned(), part: 0 });
    assert!(matches!(refused, Err(Error::Poisoned { .. })), "{refused:?}");
    assert!(!log_synced(&disk));
}

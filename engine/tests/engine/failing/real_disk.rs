//! A real disk that is really full: an ext4 of 16 MiB. Skipped, with the reason printed, if the
//! machine cannot mount one.

use std::path::Path;
use std::sync::Arc;

use foldlog::log::SegmentSizes;
use foldlog::storage::{FileStorage, Storage};
use foldlog::tools::{ExecuteOptions, Operation, ToolCall, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{
    Durability, Error, ExecutionState, ResourceRegistry, Result, SequenceNumber, Session, Store, StoreOptions,
};
use foldlog_test_support::child;
use foldlog_test_support::host::{Noted, Notes, Plan, StepAdded, types};
use foldlog_test_support::loop_disk::LoopDisk;

use super::{LEVELS, step};

const DISK_BYTES: u64 = 16 << 20;

fn disk() -> Option<LoopDisk> {
    LoopDisk::mounted(DISK_BYTES)
        .inspect_err(|reason| foldlog_test_support::skipped(format_args!("no disk of its own: {reason}")))
        .ok()
}

fn store_on(root: &Path, durability: Durability, storage: Arc<dyn Storage>) -> Store {
    let segments = SegmentSizes { first_bytes: 16 << 10, max_bytes: 256 << 10, ahead_bytes_min: 64 << 10 };
    let options = StoreOptions {
        storage,
        durability,
        segments,
        object_bytes_min: 32 << 10,
        image_bytes_min: 64 << 10,
        ..StoreOptions::default()
    };
    Store::open_with(root.join("store"), options).unwrap()
}

/// An event by its place: mostly notes, now and then a step, and a note that is an object.
#[derive(Clone, Debug)]
enum Written {
    Note(Noted),
    Step(StepAdded),
}

fn written(n: u64) -> Written {
    match n % 40 {
        0..=29 => Written::Note(Noted { text: format!("note {n} {}", "x".repeat(2000)) }),
        39 => Written::Note(Noted { text: format!("large note {n} {}", "y".repeat(60_000)) }),
        _ => Written::Step(StepAdded { title: format!("step {n} {}", "z".repeat(100)), part: (n % 3) as u8 }),
    }
}

impl Written {
    fn dispatch(&self, handle: &Session) -> Result<SequenceNumber> {
        match self.clone() {
            Written::Note(note) => handle.dispatch(note),
            Written::Step(step) => handle.dispatch(step),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    plan: Vec<StepAdded>,
    notes: Vec<Noted>,
}

impl Model {
    fn take(&mut self, written: Written) {
        match written {
            Written::Note(note) => self.notes.push(note),
            Written::Step(step) => self.plan.push(step),
        }
    }

    fn check(&self, session: &Session, what: &str) {
        let plan: Vec<StepAdded> = session.view::<Plan>().unwrap().iter().cloned().collect();
        let notes: Vec<Noted> =
            session.log().slice::<Notes>().unwrap().iter().map(|note| (*note.unwrap()).clone()).collect();
        let lens = [plan.len(), self.plan.len(), notes.len(), self.notes.len()];
        assert!(plan == self.plan && notes == self.notes, "{what}: found and expected: {lens:?}");
    }
}

/// A session that is written until the disk is full, and its expected content.
struct Filled {
    session: Session,
    model: Model,
    n: u64,
}

impl Filled {
    fn new(session: Session) -> Filled {
        Filled { session, model: Model::default(), n: 0 }
    }

    /// Writes through a handle until the log has this many bytes, or a call is refused.
    fn write(&mut self, handle: &Session, log_bytes: u64) -> Option<Error> {
        while self.session.log().bytes() < log_bytes {
            let next = written(self.n);
            match next.dispatch(handle) {
                Ok(_) => self.model.take(next),
                Err(error) => return Some(error),
            }
            self.n += 1;
        }
        None
    }

    /// Writes until neither a large nor a small record fits.
    fn fill(&mut self, handle: &Session) {
        let full = self.write(handle, u64::MAX).unwrap();
        assert!(matches!(full, Error::Full { .. }), "{full}");
        loop {
            let small = Written::Step(StepAdded { title: "small".to_owned(), part: 1 });
            match small.dispatch(handle) {
                Ok(_) => self.model.take(small),
                Err(Error::Full { .. }) => return,
                Err(other) => panic!("{other}"),
            }
        }
    }

    fn check(&self, session: &Session) {
        self.model.check(session, &format!("after {} changes", self.n));
    }
}

fn runner(session: &Session) -> ToolRunner {
    let resources = ResourceRegistry::builder().build().unwrap();
    ToolRunner::new(ExecutionState::new(session.clone(), resources), ToolRegistry::new())
}

fn begin(session: &Session) -> Operation {
    runner(session).begin(&ToolCall::new("write", "{}"), &ExecuteOptions::default()).unwrap()
}

/// Returns a session that only takes up space: more than is written after its deletion.
fn ballast(store: &Store) -> Session {
    let mut ballast = Filled::new(store.create(&types()).unwrap());
    let session = ballast.session.clone();
    assert!(ballast.write(&session, 2 << 20).is_none());
    session.sync().unwrap();
    session
}

/// Fills the disk at each durability, by mapped and by plain writes, while a call is open.
#[test]
fn a_disk_that_is_really_full_refuses_and_loses_nothing_and_a_begun_call_ends() {
    let storages: [(&str, Arc<dyn Storage>); 2] = [
        ("mapped", Arc::new(FileStorage::new())),
        ("positioned", Arc::new(FileStorage::with_positioned_writes())),
    ];
    let all = storages.iter().flat_map(|storage| LEVELS.map(|durability| (storage, durability)));
    for ((way, storage), durability) in all.step_by(step(2)) {
        let Some(disk) = disk() else { return };
        let store = store_on(&disk.root(), durability, Arc::clone(storage));
        let spare = ballast(&store);
        let mut filled = Filled::new(store.create(&types()).unwrap());
        let session = filled.session.clone();
        assert!(filled.write(&session, 1 << 20).is_none());
        let operation = begin(&session);
        filled.fill(&operation.context().session().clone());
        let mut rest = vec![disk.fill("the last block")];

        // Calls that need space are refused with the same error, and all others succeed. If the
        // system releases preallocated space late, a session may fit once more, and the disk is
        // full again after it.
        let refused = (0..10).find_map(|nth| {
            let refused = store.create(&types()).err();
            rest.push(disk.fill(&format!("the last block but {nth}")));
            refused
        });
        assert!(matches!(refused, Some(Error::Full { .. })), "{way}, {durability:?}: {refused:?}");
        let report = operation.end(ToolResult::ok("done", 1)).unwrap();
        assert!(report.success, "{way}, {durability:?}: {}", report.message);
        filled.fill(&session);
        session.sync().unwrap();
        filled.check(&session);
        let id = session.id();
        filled.check(&store.open_read_only(id, &types()).unwrap());
        let forked =
            store.fork(id, session.log().position().unwrap(), &types(), foldlog::SessionOptions::default());
        assert!(matches!(forked, Err(Error::Full { .. })), "{way}, {durability:?}: {forked:?}");
        let position = session.log().position();
        drop(session);
        filled.session.clone().close().unwrap();

        // The session opens on the full disk, can be read, and reports that there is no space.
        let other = store_on(&disk.root(), durability, Arc::clone(storage));
        filled.session = other.open_session(id, &types()).unwrap();
        assert_eq!(filled.session.log().position(), position);
        filled.check(&filled.session);
        let session = filled.session.clone();
        filled.fill(&session);
        drop(session);

        // Deleting a session frees space, and writing continues, in this process and the next.
        let spared = spare.id();
        spare.close().unwrap();
        store.delete(spared).unwrap();
        rest.iter().for_each(|rest| std::fs::remove_file(rest).unwrap());
        let session = filled.session.clone();
        let log_bytes = session.log().bytes();
        let refused = filled.write(&session, log_bytes + (1 << 19));
        assert!(refused.is_none(), "{way}, {durability:?}: {refused:?}");
        drop(session);
        filled.session.clone().close().unwrap();
        filled.session = other.open_session(id, &types()).unwrap();
        filled.check(&filled.session);
        assert!(filled.session.log().recovery().closed);
        let session = filled.session.clone();
        let refused = filled.write(&session, log_bytes + (1 << 19) + 4096);
        assert!(refused.is_none(), "{way}, {durability:?}, opened again: {refused:?}");
    }
}

/// The child: fills the disk while a call is open, reports what was acknowledged, and waits to be
/// killed.
#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_fills_the_disk() {
    let Some(argument) = child::argument() else { return };
    let (root, durability) = argument.split_once(' ').unwrap();
    let store = store_on(Path::new(root), level_named(durability), Arc::new(FileStorage::new()));
    let mut filled = Filled::new(store.create(&types()).unwrap());
    let session = filled.session.clone();
    child::tell("session", session.id());
    assert!(filled.write(&session, 1 << 20).is_none());
    child::tell("before", filled.n);
    let operation = begin(&session);
    let inside = operation.context().session().clone();
    let refused = filled.write(&inside, u64::MAX).unwrap();
    assert!(matches!(refused, Error::Full { .. }), "{refused}");
    child::tell("full", filled.n);
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

fn level_named(name: &str) -> Durability {
    *LEVELS.iter().find(|durability| format!("{durability:?}") == name).unwrap()
}

/// The next process opens and reads the session of a killed one on a full disk. Its recovery once
/// had to wait for space: a start record now reserves the space that recovery needs.
#[test]
fn a_process_killed_on_a_full_disk_within_a_call_leaves_a_session_that_is_read_and_recovered_there() {
    for durability in LEVELS {
        let Some(disk) = disk() else { return };
        let store = store_on(&disk.root(), durability, Arc::new(FileStorage::new()));
        let others = disk.root().join("of others");
        std::fs::write(&others, vec![7; 5 << 20]).unwrap();
        let argument = format!("{} {durability:?}", disk.root().display());
        let mut process = child::start("failing::real_disk::part_of_a_child_that_fills_the_disk", &argument);
        let id = process.hear("session").unwrap().parse().unwrap();
        let before: u64 = process.hear("before").unwrap().parse().unwrap();
        let full: u64 = process.hear("full").unwrap().parse().unwrap();
        process.kill();
        let rest = disk.fill("the last block");

        // The call's changes of STATE are rolled back; its notes are LOG.
        let mut model = Model::default();
        (0..before).for_each(|n| model.take(written(n)));
        let plan = model.plan.clone();
        (before..full).for_each(|n| model.take(written(n)));
        model.plan = plan;
        let session = store.open_session(id, &types()).unwrap();
        assert!(session.calls().is_interrupted() && session.log().recovery().interrupted.len() == 1);
        model.check(&session, &format!("{durability:?}"));
        let recovered = runner(&session).recover(&ExecuteOptions::default());
        let recovered = recovered.unwrap_or_else(|error| panic!("{durability:?}: {error}"));
        assert!(recovered.len() == 1 && !session.calls().is_interrupted(), "{durability:?}");
        session.close().unwrap();

        std::fs::remove_file(rest).unwrap();
        std::fs::remove_file(others).unwrap();
        let session = store.open_session(id, &types()).unwrap();
        assert!(runner(&session).recover(&ExecuteOptions::default()).unwrap().len() <= 1);
        model.check(&session, &format!("{durability:?}"));
        let mut filled = Filled { session: session.clone(), model, n: full };
        assert!(filled.write(&session, session.log().bytes() + (1 << 18)).is_none());
        session.close().unwrap();
        filled.check(&store.open_session(id, &types()).unwrap());
    }
}

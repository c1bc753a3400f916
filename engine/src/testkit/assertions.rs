//! Assertions that are valid for every history.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog_codec::body::Policy;
use foldlog_codec::msgpack::Value;
use foldlog_codec::{RecordKind, SequenceNumber};
use proptest::sample::Index;

use super::history::{Action, History, HistoryStep};
use crate::clock::FixedClock;
use crate::error::{Error, Result};
use crate::inspect::{LogReader, ReplayReducers};
use crate::log::SegmentSizes;
use crate::options::{BackgroundSync, SessionOptions, StoreOptions};
use crate::session::{Session, Snapshot, SnapshotOptions, State};
use crate::storage::{CrashKind, MemoryStorage};
use crate::store::Store;
use crate::types::SessionTypes;

/// Start time of every history: 2026-01-01T00:00:00Z, in microseconds since 1970.
const BEGIN_US: i64 = 1_767_225_600_000_000;

/// Time between two steps, in microseconds.
const STEP_US: i64 = 1_000;

/// Size in bytes from which payloads become objects: small, so that histories have some.
const OBJECT_BYTES_MIN: u64 = 512;

/// Asserts the guarantees of the engine for every session, after each step of a history and at its
/// end:
///
/// - after a rollback, STATE is that of the rollback's target, CACHE is empty, and LOG is
///   unchanged;
/// - STATE at each position equals a fold of the records on the path that was live there, and a
///   view of each position shows the same as the session showed then;
/// - when opened again, after a close, a kill or a fork, the session shows the same as before, read
///   with the host's types and without;
/// - each reducer is pure: when run again over events and items that are decoded from the records,
///   it resolves the recorded effects;
/// - an event that a reducer refuses leaves no trace.
///
/// An event from [`dispatch`](super::dispatch) must also be the same when read back from its bytes,
/// as far as its `Debug` form shows.
///
/// # Panics
///
/// Panics if one of these is violated, or if an action fails with anything but a refusal.
#[track_caller]
pub fn assert_rollback_equivalence(types: &SessionTypes, history: &History) {
    let mut life = Life::begin(types);
    for step in &history.steps {
        life.step(step);
        life.note();
    }
    life.check_positions();
    for position in SequenceNumber::MIN.through(life.position()) {
        life.roll_back(position);
    }
    life.reopen(false);
    life.check_positions();
    life.check_reducers();
}

/// Asserts that a history gives the same records each time that it is run with the same clock and
/// seed, even if the session is closed and opened again after every step.
///
/// This detects reducers that read a clock, draw random numbers from other sources than their
/// context, or depend on the order of a hash map. It also detects events and items that change when
/// read back.
///
/// # Panics
///
/// Panics at the first record that differs, or if an action fails with anything but a refusal.
#[track_caller]
pub fn assert_deterministic(types: &SessionTypes, history: &History) {
    let live = |reopening: bool| {
        let mut life = Life::begin(types);
        for step in &history.steps {
            life.step(step);
            if reopening {
                life.reopen(false);
            }
        }
        life.content()
    };
    let once = live(false);
    for (again, how) in
        [(live(false), "the history runs again"), (live(true), "the session is opened again after each step")]
    {
        for (once, again) in once.iter().zip(&again) {
            assert_eq!(
                readable_record(once),
                readable_record(again),
                "record {} differs when {how}",
                once.sequence
            );
        }
        assert_eq!(once.len(), again.len(), "the number of records differs when {how}");
    }
}

/// The parts of a record that must be the same in two runs.
struct RecordContent {
    sequence: SequenceNumber,
    kind: RecordKind,
    time_us: i64,
    body: Vec<u8>,
}

/// Returns a record in a readable form, for comparisons. Leaves out the body of a fork's first
/// record: it contains the checksum of a frame of the parent, which depends on when the parent was
/// synced.
fn readable_record(record: &RecordContent) -> (RecordKind, i64, String) {
    if record.kind == RecordKind::Opened {
        return (record.kind, record.time_us, String::new());
    }
    let value = Value::decode(&record.body).ok().and_then(|body| serde_json::to_string(&body).ok());
    (record.kind, record.time_us, value.unwrap_or_else(|| format!("{:?}", record.body)))
}

struct Life<'a> {
    types: &'a SessionTypes,
    disk: MemoryStorage,
    clock: Arc<FixedClock>,
    store: Store,
    session: Session,
    snapshots: Vec<Snapshot>,
    /// State that the session showed at each position.
    shown: BTreeMap<SequenceNumber, State>,
    sessions: u64,
}

impl<'a> Life<'a> {
    fn begin(types: &'a SessionTypes) -> Life<'a> {
        let disk = MemoryStorage::new();
        let clock = Arc::new(FixedClock::new(BEGIN_US));
        let store = store(&disk, &clock);
        let session = expect_ok(store.create_with(types, seeded_options(1)));
        let (snapshots, shown) = (Vec::new(), BTreeMap::new());
        let mut life = Life { types, disk, clock, store, session, snapshots, shown, sessions: 1 };
        life.note();
        life
    }

    fn state(&self) -> State {
        expect_ok(self.session.dynamic().state())
    }

    fn state_at(&self, position: SequenceNumber) -> State {
        expect_ok(self.session.dynamic().state_at(position))
    }

    fn reader(&self) -> LogReader {
        expect_ok(LogReader::open_on(Arc::new(self.disk.clone()), self.session.dir()))
    }

    fn position(&self) -> SequenceNumber {
        self.session.log().position().unwrap_or_default()
    }

    fn note(&mut self) {
        self.shown.insert(self.position(), self.state());
    }

    fn at(&self, index: &Index) -> SequenceNumber {
        let records = usize::try_from(self.position().get() + 1).unwrap_or(usize::MAX);
        SequenceNumber::new(index.index(records) as u64)
    }

    fn step(&mut self, step: &HistoryStep) {
        self.clock.advance_us(STEP_US);
        match step {
            HistoryStep::Act(action) => self.act(action),
            HistoryStep::Snapshot => {
                self.snapshots.push(expect_ok(self.session.snapshot(SnapshotOptions::default())));
            }
            HistoryStep::RollBack(at) => self.roll_back(self.at(at)),
            HistoryStep::RollBackToSnapshot(at) => {
                if !self.snapshots.is_empty() {
                    let position = at.get(&self.snapshots).position;
                    self.roll_back(position);
                }
            }
            HistoryStep::Reopen => self.reopen(false),
            HistoryStep::Kill => self.reopen(true),
            HistoryStep::Fork(at) => self.fork(self.at(at)),
        }
    }

    fn act(&self, action: &Action) {
        let (state, position) = (self.state(), self.session.log().position());
        match action.act(&self.session) {
            Ok(()) => {}
            // An action with several calls may have done some of them.
            Err(Error::Refused { .. } | Error::ReducerPanicked { .. } | Error::LogOnlyGrows { .. }) => {
                if self.session.log().position() == position {
                    assert_eq!(self.state(), state, "{action:?} was refused but left a trace");
                }
            }
            Err(error) => fail(&format!("{action:?}: {error}")),
        }
    }

    fn roll_back(&mut self, to: SequenceNumber) {
        let before = self.state();
        let rolled = expect_ok(self.session.rollback_to(to));
        let (now, then) = (self.state(), self.state_at(to));
        assert_eq!(
            slices_of_policy(&now, Policy::State),
            slices_of_policy(&then, Policy::State),
            "STATE after a rollback to {to}"
        );
        assert_eq!(
            slices_of_policy(&now, Policy::Log),
            slices_of_policy(&before, Policy::Log),
            "LOG after a rollback to {to}"
        );
        assert!(slices_of_policy(&now, Policy::Cache).is_empty(), "CACHE after a rollback to {to}");
        assert_eq!(rolled.sequence, self.position(), "position of the rollback");
        self.note();
    }

    fn reopen(&mut self, killed: bool) {
        let (id, live) = (self.session.id(), self.state());
        if killed {
            self.disk.crash(CrashKind::Process);
            self.store = store(&self.disk, &self.clock);
        } else {
            expect_ok(self.session.clone().close());
        }
        self.session = expect_ok(self.store.open_session(id, self.types));
        assert_eq!(self.state(), live, "state after the session is opened again");
    }

    fn fork(&mut self, at: SequenceNumber) {
        self.check_reducers();
        let shared = self.state_at(at);
        self.sessions += 1;
        let fork =
            expect_ok(self.store.fork(self.session.id(), at, self.types, seeded_options(self.sessions)));
        assert_eq!(expect_ok(fork.dynamic().state()).slices, shared.slices, "state of a fork at {at}");
        self.session = fork;
        self.shown.retain(|position, _| *position <= at);
        self.snapshots.retain(|snapshot| snapshot.position <= at);
    }

    /// Checks every position, read from the log without the host's code.
    fn check_positions(&self) {
        let reader = self.reader();
        assert_eq!(expect_ok(reader.state()), self.state(), "state read without types");
        for position in SequenceNumber::MIN.through(self.position()) {
            let at = expect_ok(reader.state_at(position));
            let along = expect_ok(reader.state_along(position));
            let (state, path) =
                (slices_of_policy(&at, Policy::State), slices_of_policy(&along, Policy::State));
            assert_eq!(state, path, "STATE at {position} against a fold along its path");
            if let Some(shown) = self.shown.get(&position) {
                assert_eq!(&at, shown, "state that the session showed at {position}");
            }
        }
        for (sequence, record) in (0..).zip(self.content()) {
            assert_eq!(record.sequence, sequence, "sequence numbers have no gaps");
        }
    }

    /// Runs the reducers again over the contents of the log. State that they keep only in memory is
    /// missing there.
    fn check_reducers(&self) {
        let reader = self.reader();
        let replayed = expect_ok(reader.replay_reducers(self.types, &ReplayReducers::default()));
        assert!(replayed.holds(), "the reducers produce another result when they run again: {replayed}");
    }

    fn content(&self) -> Vec<RecordContent> {
        let mut content = Vec::new();
        expect_ok(self.session.log().records(0, u64::MAX, |record| {
            let (sequence, kind, time_us) = (record.sequence, record.kind, record.time_us);
            content.push(RecordContent { sequence, kind, time_us, body: record.body.to_vec() });
            Ok(())
        }));
        content
    }
}

fn seeded_options(seed: u64) -> SessionOptions {
    SessionOptions { seed: Some(seed), ..SessionOptions::default() }
}

fn store(disk: &MemoryStorage, clock: &Arc<FixedClock>) -> Store {
    expect_ok(Store::open_with(
        "/testkit",
        StoreOptions {
            storage: Arc::new(disk.process()),
            clock: Arc::clone(clock) as _,
            seed: Some(1),
            // The smallest size that a segment can have, so that histories have several.
            segments: SegmentSizes { first_bytes: 1, max_bytes: 4096, ahead_bytes_min: 0 },
            object_bytes_min: OBJECT_BYTES_MIN,
            image_bytes_min: 1,
            background: BackgroundSync::Inline,
            ..StoreOptions::default()
        },
    ))
}

/// Returns the slices of a policy that have items: by name, the version and stored bytes of each
/// item.
fn slices_of_policy(state: &State, policy: Policy) -> BTreeMap<&str, Vec<(u32, &[u8])>> {
    let slices = state.slices.iter().filter(|(_, slice)| slice.policy == policy && !slice.items.is_empty());
    slices
        .map(|(name, slice)| {
            let items = slice.items.iter().map(|item| (item.version, item.bytes.as_ref()));
            (name.as_str(), items.collect())
        })
        .collect()
}

/// Unwraps the result of a call that does not fail on a disk in memory.
#[track_caller]
fn expect_ok<T>(result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => fail(&error.to_string()),
    }
}

#[track_caller]
#[expect(clippy::panic, reason = "an assertion of a test has no other way to fail")]
fn fail(message: &str) -> ! {
    panic!("{message}")
}

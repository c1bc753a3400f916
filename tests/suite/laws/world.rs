//! A session and its model, compared after each step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldlog::inspect::{CompactedRange, LogReader};
use foldlog::log::SegmentSizes;
use foldlog::replication::Replication;
use foldlog::testkit::rollback_discarding_logs;
use foldlog::{
    CollectOptions, CompactOptions, Durability, Error, Event, Export, FixedClock, ImportOptions,
    KeptSnapshots, Policy, RecordKind, Result, SequenceNumber, Session, SessionOptions, SessionTypes, Slice,
    Snapshot, SnapshotOptions, State, Store, StoreOptions,
};
use foldlog_codec::body::Dropped;
use foldlog_remote::object_store::memory::InMemory;
use foldlog_remote::{ObjectReplicator, Retries};
use foldlog_test_support::host::*;
use foldlog_test_support::model::{Change, Cleared, Model, Slices};
use foldlog_test_support::named_host;
use futures_lite::future::block_on;
use serde::Serialize;
use uuid::Uuid;

use super::actions::{Action, History, Hosts, How};
use super::ground::{Disk, Ground};

/// Larger payloads become objects, so that histories contain both kinds.
pub(super) const OBJECT_BYTES_MIN: u64 = 600;

/// A session, its model, and the sessions that the history has left.
pub(super) struct World {
    pub(super) disk: Disk,
    ground: Ground,
    clock: Arc<FixedClock>,
    durability: Durability,
    pub(super) hosts: Hosts,
    awaits: bool,
    opened: usize,
    store: Store,
    session: Option<Session>,
    pub(super) model: Model,
    snapshots: Vec<Snapshot>,
    /// The live session after each record, in stored bytes.
    pub(super) shown: BTreeMap<u64, State>,
    left: Vec<(Uuid, Model)>,
    made: u64,
    /// Positions whose slices a compaction has dropped.
    pub(super) gone: BTreeSet<u64>,
    /// The bucket of a replicated session.
    bucket: Option<Bucket>,
}

/// A bucket in memory, and the number of the machine that writes to it.
#[derive(Clone)]
struct Bucket {
    held: Arc<InMemory>,
    machine: u64,
}

impl Bucket {
    fn replication(&self) -> Replication {
        let (bucket, name) = (Arc::clone(&self.held), format!("machine {}", self.machine));
        let replicator = ObjectReplicator::new(bucket, "laws", &name, Retries::default()).unwrap();
        Replication::new(Arc::new(replicator))
    }
}

impl World {
    pub(super) fn new(ground: Ground, durability: Durability, hosts: Hosts) -> World {
        World::over(None, ground, durability, hosts)
    }

    fn over(bucket: Option<Bucket>, ground: Ground, durability: Durability, hosts: Hosts) -> World {
        let disk = Disk::new(ground);
        let clock = Arc::new(FixedClock::with_step(1_767_322_800_000_000, 250_001));
        let replication = bucket.as_ref().map(Bucket::replication);
        let options_of = options(&disk, ground, &clock, durability);
        let store = store(&disk, StoreOptions { replication, ..options_of });
        let mut model = Model::new(1, BTreeMap::new());
        if bucket.is_some() {
            model.replicate();
        }
        let options = SessionOptions { seed: Some(1), ..SessionOptions::default() };
        let session = Some(store.create_with(&types_of(hosts, 0), options).unwrap());
        let mut world = World {
            disk,
            ground,
            clock,
            durability,
            hosts,
            awaits: false,
            opened: 0,
            store,
            session,
            model,
            snapshots: Vec::new(),
            shown: BTreeMap::new(),
            left: Vec::new(),
            made: 1,
            gone: BTreeSet::new(),
            bucket,
        };
        world.check_live();
        world
    }

    /// Runs a history and compares with the model after each step.
    pub(super) fn through(history: &History) -> World {
        let mut world =
            World { awaits: history.awaits, ..World::new(history.ground, history.durability, history.hosts) };
        for action in &history.actions {
            world.live_on(action);
        }
        world
    }

    /// Runs a history of a replicated session.
    pub(super) fn moving_through(history: &History) -> World {
        let bucket = Bucket { held: Arc::new(InMemory::new()), machine: 0 };
        let world = World::over(Some(bucket), history.ground, history.durability, history.hosts);
        let mut world = World { awaits: history.awaits, ..world };
        for action in &history.actions {
            world.live_on(action);
        }
        world
    }

    /// Performs one more step and compares with the model.
    pub(super) fn live_on(&mut self, action: &Action) {
        self.act(action);
        self.check_live();
    }

    /// Returns the same session on a copied disk and at another time, to diverge from this one.
    pub(super) fn diverged(&self) -> World {
        let (disk, clock) =
            (self.disk.copied(), Arc::new(FixedClock::with_step(1_800_000_000_000_000, 250_001)));
        let store = store(&disk, options(&disk, self.ground, &clock, self.durability));
        World {
            session: Some(store.open_session(self.session().id(), &self.types()).unwrap()),
            disk,
            ground: self.ground,
            clock,
            durability: self.durability,
            hosts: self.hosts,
            awaits: self.awaits,
            opened: self.opened,
            store,
            model: self.model.clone(),
            snapshots: self.snapshots.clone(),
            shown: self.shown.clone(),
            left: self.left.clone(),
            made: self.made,
            gone: self.gone.clone(),
            bucket: None,
        }
    }

    pub(super) fn session(&self) -> &Session {
        self.session.as_ref().unwrap()
    }

    pub(super) fn options(&self) -> StoreOptions {
        let replication = self.bucket.as_ref().map(Bucket::replication);
        StoreOptions { replication, ..options(&self.disk, self.ground, &self.clock, self.durability) }
    }

    pub(super) fn dir(&self) -> std::path::PathBuf {
        self.session().dir().to_owned()
    }

    pub(super) fn reader(&self) -> LogReader {
        LogReader::open_on(self.disk.storage(), self.dir()).unwrap()
    }

    fn is_named(&self) -> bool {
        self.hosts.is_named(self.opened)
    }

    pub(super) fn types(&self) -> SessionTypes {
        types_of(self.hosts, self.opened)
    }

    fn act(&mut self, action: &Action) {
        match action {
            Action::Change(change) => self.change(change),
            Action::Snapshot => {
                let options = SnapshotOptions::default();
                let snapshot = match self.awaits {
                    true => block_on(self.session().snapshot_async(options)),
                    false => self.session().snapshot(options),
                };
                let snapshot = snapshot.unwrap();
                assert_eq!(snapshot.position, self.model.snapshot());
                self.snapshots.push(snapshot);
            }
            Action::RollBack(at) => {
                let to = at.index(self.model.past.len()) as u64;
                if !self.is_gone(to) {
                    self.roll_back(to);
                }
            }
            Action::RollBackToSnapshot(at) => {
                if !self.snapshots.is_empty() {
                    let snapshot = self.snapshots[at.index(self.snapshots.len())].clone();
                    if self.is_gone(snapshot.position.get()) {
                        return;
                    }
                    let done = match self.awaits {
                        true => block_on(self.session().rollback_async(&snapshot)),
                        false => self.session().rollback(&snapshot),
                    };
                    let done = done.unwrap();
                    let (sequence, abandoned) = self.model.roll_back(snapshot.position.get());
                    assert_eq!((done.sequence, flat(&done.abandoned)), (sequence.into(), abandoned));
                }
            }
            Action::RollBackLogsToo(at) => {
                let to = at.index(self.model.past.len()) as u64;
                if self.is_gone(to) {
                    return;
                }
                let done = rollback_discarding_logs(self.session(), to).unwrap();
                let (sequence, abandoned) = self.model.roll_back_logs_too(to);
                assert_eq!((done.sequence, flat(&done.abandoned)), (sequence.into(), abandoned));
            }
            Action::Reopen(how) => self.reopen(*how),
            Action::Fork { at, follow } => {
                let at = at.index(self.model.past.len()) as u64;
                if !self.is_gone(at) {
                    self.fork(at, *follow);
                }
            }
            Action::Import => self.import(),
            Action::Compact(kept) => self.compact(*kept),
        }
    }

    fn change(&mut self, change: &Change) {
        let before = self.session().dynamic().state().unwrap();
        match (self.dispatch(self.session(), change), self.model.change(change)) {
            (Ok(sequence), Some(expected)) => assert_eq!(sequence, expected, "sequence numbers have no gaps"),
            (Err(error), None) => {
                assert!(
                    matches!(
                        error,
                        Error::Refused { .. } | Error::LogOnlyGrows { .. } | Error::NoSuchSlice { .. }
                    ),
                    "{error}"
                );
                assert_eq!(
                    self.session().dynamic().state().unwrap(),
                    before,
                    "what is refused leaves no trace"
                );
            }
            (done, expected) => panic!("{change:?}: {done:?}, and the model says {expected:?}"),
        }
    }

    /// Dispatches a change through the API of the present host.
    fn dispatch(&self, session: &Session, change: &Change) -> Result<SequenceNumber> {
        match (self.is_named(), self.awaits) {
            (true, true) => named_host::dispatch_by(session, change, |session, event, value| {
                block_on(session.dynamic().dispatch_async(event, value))
            }),
            (true, false) => named_host::dispatch(session, change),
            (false, awaits) => dispatch(session, change, awaits),
        }
    }

    pub(super) fn roll_back(&mut self, to: u64) {
        let done = match self.awaits {
            true => block_on(self.session().rollback_to_async(to)),
            false => self.session().rollback_to(to),
        };
        let done = done.unwrap();
        let (sequence, abandoned) = self.model.roll_back(to);
        assert_eq!((done.sequence, done.to), (sequence.into(), to.into()));
        assert_eq!(flat(&done.abandoned), abandoned, "abandoned by going back to {to}");
    }

    fn reopen(&mut self, how: How) {
        let id = self.session().id();
        match how {
            How::Closed => self.session.take().unwrap().close().unwrap(),
            How::Dropped => drop(self.session.take()),
            How::Killed => {
                self.disk = self.disk.killed();
                drop(self.session.take());
                self.store = store(&self.disk, self.options());
            }
            How::TakenOver => return self.take_over(id),
        }
        self.opened += 1;
        self.session = Some(self.store.open_session(id, &self.types()).unwrap());
    }

    /// Continues the session on another machine once the bucket contains all of it. The earlier
    /// machine does not notice until it is refused.
    fn take_over(&mut self, id: Uuid) {
        let old = self.session.take().unwrap();
        old.sync().unwrap();
        self.bucket.as_mut().unwrap().machine += 1;
        let old_disk = std::mem::replace(&mut self.disk, Disk::new(self.ground));
        let new_store = store(&self.disk, self.options());
        let old_store = std::mem::replace(&mut self.store, new_store);
        self.opened += 1;
        self.session = Some(self.store.take_over(id, &self.types()).unwrap());
        let refused = old.set_tag("late", "x").and_then(|_| old.sync()).unwrap_err();
        assert!(is_fenced(&refused), "{refused}");
        drop((old, old_store, old_disk));
    }

    /// Returns whether a compaction has dropped the slices at a position, and checks that reading
    /// them is refused.
    fn is_gone(&self, position: u64) -> bool {
        let refused = |error| matches!(error, Error::Compacted { position: at, earliest } if at == position && earliest > at);
        let gone = self.gone.contains(&position);
        if gone {
            assert!(refused(self.session().rollback_to(position).unwrap_err()));
            assert!(refused(self.session().dynamic().state_at(position).unwrap_err()));
            assert!(refused(self.reader().state_at(position).unwrap_err()));
            assert!(refused(self.reader().state_along(position).unwrap_err()));
            let fork =
                self.store.fork(self.session().id(), position, &self.types(), SessionOptions::default());
            assert!(refused(fork.unwrap_err()));
        }
        gone
    }

    fn compact(&mut self, kept: KeptSnapshots) {
        let before = self.reader().digest_through(self.model.position()).unwrap();
        let id = self.session().id();
        self.session.take().unwrap().close().unwrap();
        let report =
            self.store.compact(id, &CompactOptions { snapshots: kept, ..CompactOptions::default() }).unwrap();
        // Collecting unreferenced objects must not lose the data of any position.
        let collected = self.store.collect(&CollectOptions::default()).unwrap();
        assert!(!collected.skipped.contains_key(&id), "{collected:?}");
        self.opened += 1;
        self.session = Some(self.store.open_session(id, &self.types()).unwrap());
        let last = self.model.position();
        assert_eq!(self.reader().digest_through(last).unwrap(), before, "hashes of what was dropped stay");
        // Finishing the last segment adds a record.
        if self.session().log().position() > Some(last.into()) {
            self.model.observe();
        }
        let snapshots = self.snapshots.iter().map(|snapshot| snapshot.position);
        let ours =
            snapshots.filter(|position| kept == KeptSnapshots::All && !self.gone.contains(&position.get()));
        let ours: BTreeSet<_> = ours.collect();
        self.gone.clear();
        for CompactedRange { from, through, known, .. } in self.reader().compacted_ranges() {
            assert!(known.is_empty() || known.last() == Some(&through), "{known:?}");
            let unknown =
                (from.get()..=through.get()).filter(|position| !known.contains(&(*position).into()));
            self.gone.extend(unknown);
        }
        assert!(
            report.kept.iter().chain(&ours).all(|position| !self.gone.contains(&position.get())),
            "{report:?}"
        );
    }

    fn identity(&mut self) -> (SessionOptions, BTreeMap<String, String>) {
        self.made += 1;
        let tags = BTreeMap::from([("made".to_owned(), self.made.to_string())]);
        let options =
            SessionOptions { seed: Some(self.made), tags: tags.clone(), ..SessionOptions::default() };
        (options, tags)
    }

    fn fork(&mut self, at: u64, follow: bool) {
        let (options, tags) = self.identity();
        let fork = self.store.fork(self.session().id(), at, &self.types(), options).unwrap();
        let mut model = self.model.fork(at, self.made, &tags);
        if follow {
            let parent = self.session.replace(fork).unwrap();
            self.left.push((parent.id(), std::mem::replace(&mut self.model, model)));
            self.snapshots.clear();
            self.gone.retain(|position| *position <= at);
            self.shown.retain(|position, _| *position <= at);
        } else {
            // The parent continues and may write into the very file that it shares with the fork.
            let aside = Change::Note("aside".to_owned());
            assert_eq!(self.dispatch(&fork, &aside).unwrap(), model.change(&aside).unwrap());
            self.left.push((fork.id(), model));
        }
    }

    fn import(&mut self) {
        let (session, tags) = self.identity();
        let text = self.session().log().export().unwrap().to_json().unwrap();
        let export = Export::from_json(&text).unwrap();
        let options = ImportOptions { session, keep_unknown: true };
        let import = self.store.import(&export, &self.types(), options).unwrap();
        let model = self.model.import(self.made, &tags);
        let exported = self.session.replace(import).unwrap();
        self.left.push((exported.id(), std::mem::replace(&mut self.model, model)));
        self.snapshots.clear();
        self.shown.clear();
        self.gone.clear();
    }

    /// Compares the live session with the model, as stored values and as the host's types.
    fn check_live(&mut self) {
        let session = self.session();
        let (state, now) = (session.dynamic().state().unwrap(), self.model.now());
        assert_eq!(session.log().position(), Some(self.model.position().into()));
        assert_eq!(values(&state), now.slices);
        assert_eq!(state.tags, now.tags);
        match self.is_named() {
            true => check_values(session, &now.slices),
            false => check_typed(session, &now.slices),
        }
        if self.model.position() > 0 {
            self.shown.insert(self.model.position(), state);
        }
    }

    /// Compares all sessions on the disk with the model: this one and those that were left.
    pub(super) fn check_whole(self) {
        let World { disk, store, session, model, left, hosts, opened, .. } = self;
        let session = session.unwrap();
        let (id, live) = (session.id(), session.dynamic().state().unwrap());
        let writing = LogReader::open_on(disk.storage(), session.dir()).unwrap();
        assert_eq!(writing.state().unwrap(), live, "the untyped fold, while the writer is there");
        session.close().unwrap();
        // Either kind of host reads the session, whichever kind wrote it.
        for named in [hosts.is_named(opened), !hosts.is_named(opened)] {
            let types = if named { named_host::types() } else { types() };
            let again = store.open_session(id, &types).unwrap();
            assert_eq!(again.dynamic().state().unwrap(), live, "a fresh fold");
            check_values(&again, &model.now().slices);
            if !named {
                check_typed(&again, &model.now().slices);
            }
        }
        for (id, model) in left.iter().chain([&(id, model)]) {
            let reader = LogReader::open_on(disk.storage(), store.session_dir(*id)).unwrap();
            let state = reader.state().unwrap();
            assert_eq!(values(&state), model.now().slices, "{id}");
            assert_eq!(state.tags, model.now().tags);
            assert_eq!(reader.records_len(), model.past.len() as u64);
            let mut kinds = Vec::new();
            let visited = reader.records(0, u64::MAX, |record| {
                assert_eq!(record.sequence, kinds.len() as u64, "sequence numbers have no gaps");
                let dropped =
                    (record.kind == RecordKind::Dropped).then(|| Dropped::decode(record.body).unwrap().kind);
                kinds.push(dropped.unwrap_or(record.kind).name().to_owned());
                Ok(())
            });
            visited.unwrap();
            assert_eq!(kinds, model.kinds);
            reader.check_seals().unwrap();
            assert_reduced_again(&reader, &types_of(hosts, opened));
        }
    }
}

fn is_fenced(error: &Error) -> bool {
    match error {
        Error::Poisoned { cause } | Error::DurabilityUnknown { cause, .. } => is_fenced(cause),
        error => matches!(error, Error::Fenced { .. }),
    }
}

fn types_of(hosts: Hosts, opened: usize) -> SessionTypes {
    if hosts.is_named(opened) { named_host::types() } else { types() }
}

fn store(disk: &Disk, options: StoreOptions) -> Store {
    Store::open_with(disk.root().join("store"), options).unwrap()
}

fn options(disk: &Disk, ground: Ground, clock: &Arc<FixedClock>, durability: Durability) -> StoreOptions {
    StoreOptions {
        storage: disk.process(),
        clock: Arc::clone(clock) as _,
        seed: Some(7),
        durability,
        // The smallest possible segments, so that histories need several.
        segments: SegmentSizes { first_bytes: 1, max_bytes: 4096, ahead_bytes_min: 0 },
        object_bytes_min: OBJECT_BYTES_MIN,
        image_bytes_min: ground.image_bytes_min(),
        background: ground.background(),
        ..StoreOptions::default()
    }
}

/// Makes a session dispatch a change, through blocking methods or futures.
pub(super) fn dispatch(session: &Session, change: &Change, awaits: bool) -> Result<SequenceNumber> {
    fn event<E: Event>(session: &Session, event: E, awaits: bool) -> Result<SequenceNumber> {
        if awaits { block_on(session.dispatch_async(event)) } else { session.dispatch(event) }
    }
    match change.clone() {
        Change::Step(step) => event(session, step, awaits),
        Change::Note(text) => event(session, Noted { text }, awaits),
        Change::Edit(place, line) => event(session, DraftEdited { place, line }, awaits),
        Change::Paste(lines) => event(session, LinesPasted { lines }, awaits),
        Change::Turn(by) => event(session, DraftTurned { by }, awaits),
        Change::Strike(holding) => event(session, LinesStruck { holding }, awaits),
        Change::Doubt(good) => event(session, Doubted { good }, awaits),
        Change::Undeclared(value) => event(session, Undeclared { value }, awaits),
        Change::SeedPlan(steps) => session.seed::<Plan>(steps),
        Change::SeedDraft(lines) => session.seed::<Draft>(lines),
        Change::SeedPreview(steps) => session.seed::<Preview>(steps),
        Change::SeedNotes(notes) => session.seed::<Notes>(notes),
        Change::Clear(Cleared::Plan) => session.clear::<Plan>(),
        Change::Clear(Cleared::StepOfPart) => session.clear::<StepOfPart>(),
        Change::Clear(Cleared::Draft) => session.clear::<Draft>(),
        Change::Clear(Cleared::Preview) => session.clear::<Preview>(),
        Change::Clear(Cleared::Notes) => session.clear::<Notes>(),
        Change::Clear(Cleared::Undeclared) => session.clear::<foldlog::EventSlice<Undeclared>>(),
        Change::ClearPart(part) => session.clear_where::<Plan>(move |step| step.part == part),
        Change::Reset => session.reset(),
        Change::Tag(key, Some(value)) => session.set_tag(key, value),
        Change::Tag(key, None) => session.remove_tag(key),
    }
}

/// Converts the slices of a state to the values of the model.
pub(super) fn values(state: &State) -> Slices {
    let slices = state.slices.iter().map(|(name, slice)| {
        let items = slice.items.iter().map(|item| serde_json::to_value(item.value().unwrap()).unwrap());
        (name.clone(), (slice.policy.name(), items.collect()))
    });
    slices.collect()
}

/// Returns the non-empty STATE slices in stored bytes, without the names of positions.
pub(super) fn state_bytes(state: &State) -> BTreeMap<String, Vec<(u32, Vec<u8>)>> {
    let full = state.slices.iter().filter(|(_, s)| s.policy == Policy::State && !s.items.is_empty());
    full.map(|(name, slice)| {
        let items = slice.items.iter().map(|item| (item.version, item.bytes.to_vec()));
        (name.clone(), items.collect())
    })
    .collect()
}

/// Checks the slices through the host's types.
fn check_typed(session: &Session, slices: &Slices) {
    check_view::<Plan>(session, slices);
    check_view::<CurrentStep>(session, slices);
    check_view::<StepOfPart>(session, slices);
    check_view::<Preview>(session, slices);
    check_view::<Draft>(session, slices);
    check_view::<Doubts>(session, slices);
    check_view::<foldlog::EventSlice<Undeclared>>(session, slices);
    check_log::<Notes>(session, slices);
    check_log::<NoteSizes>(session, slices);
    check_log::<GoodOnes>(session, slices);
}

/// Checks the slices as values, by their names.
fn check_values(session: &Session, slices: &Slices) {
    for (name, (policy, wanted)) in slices {
        let items: Vec<serde_json::Value> = match *policy {
            "log" => session.dynamic().log(name).unwrap().iter().map(|item| json(&*item.unwrap())).collect(),
            _ => session.dynamic().view(name).unwrap().iter().map(json).collect(),
        };
        assert_eq!(&items, wanted, "{name}");
        assert_eq!(session.dynamic().latest(name).unwrap().as_deref().map(json).as_ref(), items.last());
    }
}

fn expected<S: Slice>(slices: &Slices) -> Vec<serde_json::Value> {
    slices.get(S::NAME).map(|(_, items)| items.clone()).unwrap_or_default()
}

fn json(item: &impl Serialize) -> serde_json::Value {
    serde_json::to_value(item).unwrap()
}

fn check_view<S: Slice>(session: &Session, slices: &Slices) {
    let view = session.view::<S>().unwrap();
    let items: Vec<_> = view.iter().map(json).collect();
    assert_eq!(items, expected::<S>(slices), "{}", S::NAME);
    assert_eq!(view.len(), items.len() as u64);
    assert_eq!(view.latest().map(json).as_ref(), items.last());
}

fn check_log<S: Slice>(session: &Session, slices: &Slices) {
    let log = session.log().slice::<S>().unwrap();
    let items: Vec<_> = log.iter().map(|item| json(&*item.unwrap())).collect();
    assert_eq!(items, expected::<S>(slices), "{}", S::NAME);
    assert_eq!(log.len(), items.len() as u64);
    let tail: Vec<_> = log.tail(2).unwrap().iter().map(|item| json(&**item)).collect();
    assert_eq!(tail, items[items.len().saturating_sub(2)..]);
}

pub(super) fn flat(ranges: &[std::ops::RangeInclusive<SequenceNumber>]) -> BTreeSet<u64> {
    ranges.iter().flat_map(|range| range.start().get()..=range.end().get()).collect()
}

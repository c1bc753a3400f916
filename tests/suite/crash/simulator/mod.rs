//! Successive lives of a store on a disk in memory, all drawn from one seed.
//!
//! Each life creates, writes, syncs, forks, closes, reopens and deletes a few sessions, and calls
//! tools, until the power or the process fails during some call to the storage. Then everything is
//! opened again and compared with the promises, interrupted calls are recovered, and the next life
//! starts.

mod calls;
mod compacting;
mod tools;
mod waiting;

use foldlog::SequenceNumber;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use foldlog::inspect::LogReader;
use foldlog::log::SegmentSizes;
use foldlog::storage::{CrashKind, Fault, FileStorage, MemoryStorage, Op, Storage};
use foldlog::{
    BackgroundSync, Clock as _, Durability, Error, FixedClock, Session, SessionOptions, Store, StoreOptions,
};
use foldlog_test_support::crash::{
    Act, Chance, Change, DAY_US, End, Lost, OpenCall, Promise, SessionMemory, Slices, Twin,
};
use foldlog_test_support::host::{assert_reduced_again, types};
use tempfile::TempDir;
use uuid::Uuid;

use self::tools::{Opened, Told};

/// Lives of each seed before the last check.
const LIVES: u64 = 5;
/// The most steps in a life.
const STEPS_MAX: u64 = 60;
const SESSIONS_MAX: usize = 4;
const OBJECT_BYTES_MIN: u64 = 600;
const LARGE_BYTES: u64 = 3000;
const LEVELS: [Durability; 3] = [Durability::Process, Durability::Boundary, Durability::Every];

pub(super) fn run(seed: u64, files: Files, aloud: bool) {
    let named = Named(seed, files);
    let mut world = World::new(seed, files, aloud);
    for _ in 0..LIVES {
        let lost = world.live_until_the_crash();
        world.look_again(lost);
    }
    world.last_look();
    drop(named);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Files {
    InMemory,
    /// Real files with mapped segments, from which a crash cuts its image.
    Mapped,
}

/// Prints the seed if a check fails.
struct Named(u64, Files);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let variable = match self.1 {
                Files::InMemory => "FOLDLOG_CRASH_SEED",
                Files::Mapped => "FOLDLOG_CRASH_MAPPED_SEED",
            };
            eprintln!("the crash simulator failed: run it again with {variable}={}", self.0);
        }
    }
}

/// Whether a session is known to exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Being {
    Sure,
    /// The process or the disk failed while it was being created.
    Begun,
    /// The process or the disk failed while it was being deleted.
    Ending,
}

struct Known {
    memory: SessionMemory,
    being: Being,
    durability: Durability,
    /// A forked session is whole or does not exist at all.
    forked: bool,
    /// Whether anything was written since it was opened.
    wrote: bool,
    open: Option<Opened>,
    /// The coins that its tools pay with; they outlive every process.
    coins: Arc<Mutex<i64>>,
    /// Whether, since the last power cut, each start record was durable before its tool ran. Then
    /// no power cut makes the purse differ from the log.
    is_purse_sure: bool,
}

impl Known {
    fn begun(memory: SessionMemory, durability: Durability, forked: bool) -> Known {
        let coins = Arc::new(Mutex::new(memory.now().purse_shown()));
        let (being, wrote, is_purse_sure) = (Being::Begun, !forked, durability != Durability::Process);
        Known { memory, being, durability, forked, wrote, open: None, coins, is_purse_sure }
    }

    fn opened(&mut self, session: Session, disk: &MemoryStorage) {
        self.is_purse_sure &= self.durability != Durability::Process;
        self.open = Some(Opened::new(session, &self.coins, disk.process()));
    }

    /// Checks that the purse agrees with the log, unless an open call other than a read-only one is
    /// still to be rolled back by a recovery.
    fn check_purse(&mut self, lost: Lost) {
        let now = self.memory.now();
        let mut coins = self.coins.lock().unwrap();
        if now.open.iter().all(OpenCall::only_asks) && lost == Lost::Power && !self.is_purse_sure {
            *coins = now.purse;
        }
        assert!(
            !now.open.iter().all(OpenCall::only_asks) || *coins == now.purse,
            "{}: {coins} coins, not {}",
            self.memory.id,
            now.purse
        );
        self.is_purse_sure |= lost == Lost::Power;
    }

    fn session(&self) -> &Session {
        &self.open.as_ref().expect("it is open").session
    }
}

struct World {
    chance: Chance,
    aloud: bool,
    disk: MemoryStorage,
    /// The directory of the real files, if any.
    real: Option<TempDir>,
    store: Store,
    clock: Arc<FixedClock>,
    known: BTreeMap<Uuid, Known>,
    /// Sessions that were deleted permanently.
    gone: Vec<Uuid>,
    ids: u128,
    /// Whether most changes replace earlier ones, so that there is much to compact.
    edits: bool,
    /// Faults injected in this life.
    broken: u32,
}

/// `images` states whether images are written as often as possible, or never.
fn store_on(
    disk: &MemoryStorage,
    real: Option<&TempDir>,
    clock: &Arc<FixedClock>,
    images: bool,
) -> foldlog::Result<Store> {
    let storage: Arc<dyn Storage> = match real {
        Some(_) => Arc::new(Twin::new(disk.process())),
        None => Arc::new(disk.process()),
    };
    let options = StoreOptions {
        storage,
        clock: Arc::clone(clock) as Arc<dyn foldlog::Clock>,
        seed: Some(1),
        segments: SegmentSizes { first_bytes: 4096, max_bytes: 8192, ahead_bytes_min: 0 },
        object_bytes_min: OBJECT_BYTES_MIN,
        image_bytes_min: if images { 1 } else { u64::MAX },
        background: BackgroundSync::Inline,
        ..StoreOptions::default()
    };
    Store::open_with(real.map_or("/home".as_ref(), TempDir::path).join("store"), options)
}

impl World {
    fn new(seed: u64, files: Files, aloud: bool) -> World {
        let mut chance = Chance::new(seed);
        let disk = MemoryStorage::new();
        // With slow clocks, calls sync overdue records.
        let clock = Arc::new(FixedClock::with_step(1_000_000, *chance.pick(&[10, 10_000, 150_000])));
        let real = (files == Files::Mapped).then(|| tempfile::tempdir().expect("there is room for files"));
        if let Some(real) = &real {
            // The parent directories are not part of the run.
            disk.write_file(real.path().join("made"), "").expect("the disk is sound");
            Twin::refill(real.path(), &disk).expect("there is room for files");
        }
        let store =
            store_on(&disk, real.as_ref(), &clock, chance.percent(50)).expect("a new disk takes a store");
        let edits = chance.percent(50);
        World {
            chance,
            aloud,
            disk,
            real,
            store,
            clock,
            known: BTreeMap::new(),
            gone: Vec::new(),
            ids: 0,
            edits,
            broken: 0,
        }
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.aloud {
            eprintln!("{}", what());
        }
    }

    /// Whether the process of this life has died. No fault counts this read of the disk.
    fn is_dead(&self) -> bool {
        self.store.session_ids().is_err()
    }

    fn live_until_the_crash(&mut self) -> Lost {
        let within = *self.chance.pick(&[5, 30, 100, 250]);
        let nth = 1 + self.chance.below(within);
        let bytes = if self.chance.percent(50) { self.chance.below(200) as usize } else { 0 };
        self.say(|| format!("-- a life that ends at change {nth} of the disk, {bytes} bytes into a write"));
        self.disk.inject(Fault::Die { nth, bytes });
        for _ in 0..STEPS_MAX {
            self.step();
            if self.is_dead() {
                break;
            }
            if self.chance.percent(10) {
                let seed = self.chance.number();
                self.disk.write_back(seed);
            }
        }
        let lost = match self.chance.below(10) {
            0..=3 => self.end(CrashKind::Process, Lost::Process),
            4 => self.end(CrashKind::PowerLosingAll, Lost::Power),
            // The process may end some time before the power does.
            _ => {
                let seed = self.chance.number();
                self.end(CrashKind::Power { seed }, Lost::Power)
            }
        };
        self.disk.clear_faults();
        self.broken = 0;
        lost
    }

    /// The storage as an auditor reads it; it survives all crashes.
    fn for_reading(&self) -> Arc<dyn Storage> {
        match self.real {
            Some(_) => Arc::new(FileStorage::new()),
            None => Arc::new(self.disk.clone()),
        }
    }

    fn end(&mut self, kind: CrashKind, lost: Lost) -> Lost {
        self.say(|| format!("-- the end: {kind:?}"));
        self.disk.crash(kind);
        for known in self.known.values_mut() {
            known.open = None;
        }
        lost
    }

    fn step(&mut self) {
        let open: Vec<Uuid> = self.ids_where(|known| known.open.is_some());
        let closed: Vec<Uuid> = self.ids_where(|known| {
            known.open.is_none() && known.being == Being::Sure && !known.memory.is_empty()
        });
        let what = self.chance.below(100);
        let mut pick = |ids: Vec<Uuid>| *self.chance.pick(&ids);
        match what {
            0..=5 if self.known.len() < SESSIONS_MAX => self.create(),
            6..=9 if self.known.len() < SESSIONS_MAX && !self.known.is_empty() => self.fork(),
            10 if !closed.is_empty() => {
                let id = pick(closed);
                self.delete(id);
            }
            11..=17 if !closed.is_empty() => {
                let id = pick(closed);
                self.open(id);
            }
            18..=20 if !open.is_empty() => {
                let id = pick(open);
                self.close(id);
            }
            21..=24 if !open.is_empty() => {
                let id = pick(open);
                self.sync(id);
            }
            25 if self.broken < 2 => self.break_something(),
            26..=37 if !open.is_empty() => {
                let id = pick(open);
                match self.chance.below(100) {
                    0..=39 if self.decide(id) => {}
                    40..=54 if self.call_again(id) => {}
                    55..=59 => self.recover(id),
                    _ => self.call(id),
                }
            }
            38 => self.let_days_pass(),
            39..=48 if !closed.is_empty() => {
                let id = pick(closed);
                self.compact(id);
            }
            49..=51 if !open.is_empty() => {
                let id = pick(open);
                self.compact_an_open_one(id);
            }
            _ if !open.is_empty() => {
                let id = pick(open);
                self.change(id);
            }
            _ if !closed.is_empty() => {
                let id = pick(closed);
                self.open(id);
            }
            _ if self.known.len() < SESSIONS_MAX => self.create(),
            _ => {}
        }
    }

    fn ids_where(&self, wanted: impl Fn(&Known) -> bool) -> Vec<Uuid> {
        self.known.iter().filter(|(_, known)| wanted(known)).map(|(id, _)| *id).collect()
    }

    /// Checks that a failed call has a reason; the session is dropped until it is opened again.
    fn failed(&mut self, id: Uuid, error: &Error) {
        self.say(|| format!("   {id}: {error}"));
        assert!(self.broken > 0 || self.is_dead(), "{id}: nothing was broken, and yet: {error}");
        let is_dead = self.is_dead();
        let Some(known) = self.known.get_mut(&id) else { return };
        let Some(opened) = known.open.take() else { return };
        let session = &opened.session;
        let is_poisoned = matches!(error, Error::DurabilityUnknown { .. } | Error::Poisoned { .. });
        if opened.operation.is_some() && !is_poisoned && !is_dead {
            // Nothing was written, and dropping the session ends its open call.
            known.memory.pending = [Act::End(End::Failed)].into();
        }
        if matches!(error, Error::DurabilityUnknown { .. } | Error::Poisoned { .. }) {
            let again = session.reset().expect_err("a session whose sync failed takes no more writes");
            assert!(matches!(again, Error::Poisoned { .. }), "{id}: after {error}: {again}");
        }
    }

    /// Lets more time pass than waiting calls have.
    fn let_days_pass(&mut self) {
        self.say(|| "   two days pass".to_owned());
        self.clock.advance_us(2 * DAY_US as i64);
    }

    fn break_something(&mut self) {
        let op = *self.chance.pick(&[Op::SyncData, Op::SyncData, Op::SyncData, Op::Write, Op::SyncDir]);
        let nth = 1 + self.chance.below(3);
        self.say(|| format!("   the next {op:?} but {} will fail", nth - 1));
        self.disk.inject(Fault::FailNth { op, nth, error: ErrorKind::Other });
        self.broken += 1;
    }

    fn create(&mut self) {
        self.ids += 1;
        let id = Uuid::from_u128(self.ids);
        let durability = *self.chance.pick(&LEVELS);
        let options =
            SessionOptions { id: Some(id), durability: Some(durability), ..SessionOptions::default() };
        self.say(|| format!("   {id}: created at {durability:?}"));
        let slices = Slices::tagged(BTreeMap::from([("n".to_owned(), "1".to_owned())]));
        let made = self.store.create_with(&types(), options.tag("n", "1"));
        let memory = SessionMemory::begun(id, slices);
        self.known.insert(id, Known::begun(memory, durability, false));
        match made {
            Ok(session) => {
                let promise =
                    if durability == Durability::Every { Promise::Durable } else { Promise::Written };
                self.is_there(id, session, promise);
            }
            Err(error) => self.failed(id, &error),
        }
    }

    fn is_there(&mut self, id: Uuid, session: Session, promise: Promise) {
        let known = self.known.get_mut(&id).expect("it was just made");
        known.being = Being::Sure;
        known.memory.told(session.log().position().expect("it has a record"), promise);
        let _ = known.memory.learn(&session);
        known.opened(session, &self.disk);
    }

    fn fork(&mut self) {
        let parents: Vec<Uuid> =
            self.ids_where(|known| known.being == Being::Sure && !known.memory.is_empty());
        if parents.is_empty() {
            return;
        }
        let parent = *self.chance.pick(&parents);
        self.ids += 1;
        let id = Uuid::from_u128(self.ids);
        let durability = *self.chance.pick(&LEVELS);
        let options =
            SessionOptions { id: Some(id), durability: Some(durability), ..SessionOptions::default() };
        let shared = &self.known[&parent].memory;
        let position = self.chance.below(shared.len());
        let then = &shared.after[position as usize];
        if !then.open.is_empty() {
            let refused = self.store.fork(parent, position, &types(), options).map(drop);
            let refused = refused.expect_err("no fork begins within a call");
            if !matches!(refused, Error::InsideTransaction { .. } | Error::Compacted { .. }) {
                self.failed(parent, &refused);
            }
            return;
        }
        if shared.compactions.took(position) {
            let refused = self.store.fork(parent, position, &types(), options).map(drop);
            return self.is_gone(
                parent,
                position,
                &refused.expect_err("no fork begins where nothing is known"),
            );
        }
        let slices = then.slices.with_tag("fork", &id.to_string());
        let mut memory = SessionMemory::begun(id, slices.clone());
        memory.take_over(shared, position);
        memory.pending = [Act::Fork(Rc::new(slices))].into();
        self.say(|| format!("   {id}: forked from {parent} at {position}, {durability:?}"));
        let made = self.store.fork(parent, position, &types(), options.tag("fork", id.to_string()));
        self.known.insert(id, Known::begun(memory, durability, true));
        match made {
            Ok(session) => self.is_there(id, session, Promise::Durable),
            Err(error) => self.failed(id, &error),
        }
    }

    fn delete(&mut self, id: Uuid) {
        self.say(|| format!("   {id}: deleted"));
        match self.store.delete(id) {
            Ok(()) => {
                self.known.remove(&id);
                self.gone.push(id);
            }
            Err(error) => {
                self.known.get_mut(&id).expect("it is known").being = Being::Ending;
                self.failed(id, &error);
            }
        }
    }

    /// Opens a session that no crash has touched since its records were last read.
    fn open(&mut self, id: Uuid) {
        let durability = *self.chance.pick(&LEVELS);
        self.say(|| format!("   {id}: opened at {durability:?}"));
        match self.store.open_session_at(id, &types(), durability) {
            Ok(session) => {
                let known = self.known.get_mut(&id).expect("it is known");
                known.durability = durability;
                known.wrote = false;
                known.memory.begins_at(self.clock.steady_us());
                let checked = known.memory.check_after(&session, Lost::Process);
                match checked.and_then(|()| known.memory.check_waiting(&session)) {
                    Ok(()) => {
                        known.opened(session, &self.disk);
                        self.recover(id);
                    }
                    Err(error) => self.failed(id, &error),
                }
            }
            Err(error) => self.failed(id, &error),
        }
    }

    fn close(&mut self, id: Uuid) {
        self.end_call(id);
        let known = self.known.get_mut(&id).expect("it is known");
        // A call that could not be ended was dropped.
        let Some(opened) = known.open.take() else { return };
        let session = opened.session.clone();
        drop(opened);
        if self.chance.percent(30) {
            self.say(|| format!("   {id}: dropped"));
            drop(session);
            return;
        }
        // A session without writes has nothing to sync at its close.
        let wrote = std::mem::take(&mut known.wrote);
        let len = known.memory.len();
        self.say(|| format!("   {id}: closed"));
        match session.close() {
            Ok(()) if wrote => self.known.get_mut(&id).expect("it is known").memory.told_durable(len),
            Ok(()) => {}
            Err(error) => return self.failed(id, &error),
        }
        if self.chance.percent(60) {
            self.compact(id);
        }
    }

    fn sync(&mut self, id: Uuid) {
        let known = self.known.get_mut(&id).expect("it is known");
        // Every second sync also closes the file; the next write opens it again.
        let rests = known.memory.len().is_multiple_of(2);
        let synced = match rests {
            true => known.session().rest().map(drop),
            false => known.session().sync(),
        };
        self.say(|| format!("   {id}: {}", if rests { "rests" } else { "synced" }));
        let known = self.known.get_mut(&id).expect("it is known");
        match synced {
            Ok(()) => {
                let len = known.memory.len();
                known.memory.told_durable(len);
            }
            Err(error) => self.failed(id, &error),
        }
    }

    fn change(&mut self, id: Uuid) {
        let known = self.known.get_mut(&id).expect("it is known");
        let change = match self.edits && self.chance.percent(60) {
            true => Change::draw_edit(&mut self.chance),
            false => Change::draw(&mut self.chance, &known.memory.after, LARGE_BYTES),
        };
        if self.aloud {
            let mut text = format!("{change:?}");
            text.truncate(90);
            eprintln!("   {id}: {} {text}", known.memory.len());
        }
        let known = self.known.get_mut(&id).expect("it is known");
        if let Change::Rollback(to, _) = &change
            && known.memory.compactions.took(*to)
        {
            let refused = change.perform(known.open.as_ref().expect("it is open").handle());
            return self.is_gone(id, *to, &refused.expect_err("nothing is known of what was there"));
        }
        let slices = known.memory.now().slices.after(&change);
        known.memory.pending.push_back(match &change {
            Change::Rollback(to, _) => {
                let then = &known.memory.after[*to as usize];
                Act::Rollback(Rc::new(slices), then.live.clone())
            }
            Change::Snapshot | Change::TaggedSnapshot => {
                Act::Snapshot(Rc::new(slices), matches!(change, Change::TaggedSnapshot))
            }
            _ => Act::Change(Rc::new(slices)),
        });
        let promise = SessionMemory::promise(known.durability, &change);
        let done = change.perform(known.open.as_ref().expect("it is open").handle());
        self.wrote(id, done.map(|sequence| Some((sequence, promise))));
    }

    /// Takes in the records of a call, and the last acknowledged record with its promise, if there
    /// is one.
    fn wrote(&mut self, id: Uuid, done: foldlog::Result<Option<(SequenceNumber, Promise)>>) {
        let known = self.known.get_mut(&id).expect("it is known");
        let Some(opened) = &known.open else { return };
        let Told { begins, dispatches } = opened.take_told();
        let at = |durable: bool| if durable { Promise::Durable } else { Promise::Written };
        begins.iter().for_each(|begin| {
            known.memory.told(SequenceNumber::new(*begin), at(known.durability != Durability::Process))
        });
        dispatches.iter().for_each(|sequence| {
            known.memory.told(SequenceNumber::new(*sequence), at(known.durability == Durability::Every))
        });
        let done = match done {
            Ok(told) => {
                let len = known.memory.len();
                if let Some((sequence, promise)) = told {
                    known.memory.told(sequence, promise);
                }
                // If a fault struck after the acknowledgement, no records can be read.
                let read = known.memory.learn(&opened.session);
                known.wrote |= read.is_err() || known.memory.len() > len;
                known.memory.told_durable(opened.session.log().synced_end().get());
                read
            }
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            self.failed(id, &error);
        }
    }

    /// Opens everything after a crash and compares it with the promises.
    fn look_again(&mut self, lost: Lost) {
        self.disk.take_trace();
        let images = self.chance.percent(50);
        if let Some(real) = &self.real {
            Twin::refill(real.path(), &self.disk).expect("there is room for files");
        }
        self.store = match store_on(&self.disk, self.real.as_ref(), &self.clock, images) {
            Ok(store) => store,
            Err(error) => panic!("the store does not open: {error}"),
        };
        let listed = self.store.session_ids().expect("the disk is sound");
        for id in &self.gone {
            assert!(!listed.contains(id), "{id}: it was deleted, and is back");
        }
        for id in self.known.keys().copied().collect::<Vec<_>>() {
            self.look_at(id, lost);
        }
    }

    fn look_at(&mut self, id: Uuid, lost: Lost) {
        let durability = *self.chance.pick(&LEVELS);
        self.disk.take_trace();
        let sessions = self.store.path().join("sessions");
        let storage = self.for_reading();
        let opened = self.store.open_session_at(id, &types(), durability);
        let known = self.known.get_mut(&id).expect("it is known");
        let required = known.memory.required(lost);
        let session = match opened {
            Ok(session) => session,
            Err(error) => {
                let may_be_gone = match known.being {
                    Being::Sure => required == 0,
                    Being::Begun => true,
                    Being::Ending => required == 0 || matches!(error, Error::NoSuchSession { .. }),
                };
                let says_so = matches!(error, Error::NoSuchSession { .. })
                    || matches!(error, Error::NotASession { .. }) && !known.forked;
                assert!(may_be_gone && says_so, "{id}: {required} records were promised: {error}");
                if self.aloud {
                    eprintln!("   {id}: {error}");
                }
                self.known.remove(&id);
                self.gone_or_never_there(id, &error);
                return;
            }
        };
        let changes: Vec<(Op, PathBuf)> = self.disk.take_trace();
        let in_sessions = changes.iter().filter(|(op, path)| op.changes() && path.starts_with(&sessions));
        assert_eq!(in_sessions.count(), 0, "{id}: opening writes nothing: {changes:?}");
        if self.aloud {
            eprintln!("   {id}: {:?} {:?}", session.log().position(), session.log().recovery());
        }
        let whole = known.memory.len() + 1;
        let records = session.log().recovery().records;
        if known.forked && known.being == Being::Begun {
            assert_eq!(records, whole, "{id}: a fork is whole");
        }
        known.wrote = false;
        known.being = Being::Sure;
        let checked = known.memory.check_after(&session, lost);
        known.memory.begins_at(self.clock.steady_us());
        if let Err(error) = checked.and_then(|()| known.memory.check_waiting(&session)) {
            panic!("{id}: {error}");
        }
        known.check_purse(lost);
        known.durability = durability;
        let audit = LogReader::open_on(storage, session.dir())
            .unwrap_or_else(|error| panic!("{id}: the auditor says {error}"));
        assert_eq!(audit.records_len(), known.memory.len(), "{id}: the auditor counts otherwise");
        // For an interrupted call, an auditor shows STATE as of within that call.
        if !session.calls().is_interrupted() {
            assert_eq!(
                audit.state().unwrap(),
                session.dynamic().state().unwrap(),
                "{id}: the auditor folds otherwise"
            );
        }
        let ledger = known.memory.check_ledger(&session, &audit);
        let compacted = ledger.and_then(|()| known.memory.check_compacted(&audit, &mut self.chance));
        compacted.and_then(|()| audit.check_seals()).unwrap_or_else(|error| panic!("{id}: {error}"));
        assert_reduced_again(&audit, &types());
        if self.chance.percent(60) {
            known.opened(session, &self.disk);
            self.recover(id);
        }
    }

    fn gone_or_never_there(&mut self, id: Uuid, error: &Error) {
        if matches!(error, Error::NoSuchSession { .. }) && self.chance.percent(50) {
            return;
        }
        // The remains of an incomplete creation are a session for no reader.
        assert!(self.store.summary(id).is_err(), "{id}: {error}, and yet it has a summary");
    }

    /// Closes all sessions; then nothing may be lost, however little had reached the disk before.
    fn last_look(&mut self) {
        for id in self.ids_where(|known| known.open.is_none()) {
            self.open(id);
        }
        for id in self.ids_where(|known| known.open.is_some()) {
            self.end_call(id);
            let known = self.known.get_mut(&id).expect("it is known");
            let session = known.session().clone();
            known.open = None;
            known.memory.tries(known.memory.now().slices.with_tag("last", "1"));
            let sequence = session.set_tag("last", "1").and_then(|sequence| {
                session.clone().close()?;
                Ok(sequence)
            });
            known.memory.told(sequence.expect("nothing is broken"), Promise::Durable);
        }
        let lost = self.end(CrashKind::PowerLosingAll, Lost::Power);
        self.look_again(lost);
        let storage = self.for_reading();
        for known in self.known.values() {
            let dir = self.store.session_dir(known.memory.id);
            let walked = foldlog::inspect::walk_on(&storage, &dir, &mut |_| Ok(()));
            let walked = walked.unwrap_or_else(|error| panic!("{}: {error}", known.memory.id));
            assert_eq!(walked.records, known.memory.len());
        }
    }
}

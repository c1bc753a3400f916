//! A log without a session, for measurements.

use std::path::Path;
use std::sync::Arc;

use foldlog_codec::body::Declare;
use foldlog_codec::{RecordKind, SequenceNumber};
use parking_lot::{Mutex, MutexGuard};
use uuid::Uuid;

use crate::background::{Background, RemainingWork};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::log::partial_creation::PartialCreation;
use crate::log::publish::SyncGate;
use crate::log::writer::{AppendBody, AppendContext, LogEnvironment, LogIdentity, LogWriter, SyncPlan};
use crate::options::{BackgroundSync, Durability, StoreOptions};
use crate::session::{SyncRequests, SyncSteps, poison_on_error, promises_sync, sync_in_time, sync_through};

/// Appends records to a log without events and slices, with the same code as sessions.
///
/// An append takes one lock, reads the clock once, writes the frame, and runs the syncs that its
/// durability promises or that are due. The type is for measurements: its directory contains valid
/// frames, but no session.
#[derive(Debug)]
pub struct RawLog {
    shared: Arc<RawLogInner>,
}

#[derive(Debug)]
struct RawLogInner {
    id: Uuid,
    ground: LogEnvironment,
    clock: Arc<dyn Clock>,
    seed: u64,
    state: Mutex<State>,
    gate: SyncGate<Error>,
}

#[derive(Debug)]
struct State {
    log: LogWriter,
    sync_requests: SyncRequests,
    closed: bool,
}

impl RawLog {
    /// Creates a log in the directory `dir`, and the directory if it does not exist. Of `options`,
    /// only storage, clock, segment sizes, background and seed are used.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the directory cannot be created.
    pub fn create(dir: impl AsRef<Path>, options: &StoreOptions) -> Result<RawLog> {
        let background = match options.background {
            BackgroundSync::Thread => Background::thread(),
            BackgroundSync::Inline => Background::Inline,
        };
        let storage = Arc::clone(&options.storage);
        let ground = LogEnvironment { storage, sizes: options.segments, background };
        RawLog::on(ground, Arc::clone(&options.clock), options.seed.unwrap_or_default(), dir.as_ref())
    }

    /// Creates a log in the directory `dir` that shares storage, clock and background thread with
    /// this log, like the sessions of one store.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the directory cannot be created.
    pub fn create_beside(&self, dir: impl AsRef<Path>) -> Result<RawLog> {
        let RawLogInner { ground, clock, seed, .. } = &*self.shared;
        RawLog::on(ground.clone(), Arc::clone(clock), *seed, dir.as_ref())
    }

    fn on(ground: LogEnvironment, clock: Arc<dyn Clock>, seed: u64, dir: &Path) -> Result<RawLog> {
        ground.storage.create_dir_all(dir).map_err(|error| Error::io("create", dir, error))?;
        #[expect(clippy::disallowed_methods, reason = "no test names the session of a bare log")]
        let id = Uuid::new_v4();
        let identity = LogIdentity { session: id, seed };
        let log = LogWriter::create(&ground, dir, identity, PartialCreation::default(), Vec::new());
        let state = State { log, sync_requests: SyncRequests::default(), closed: false };
        let (state, gate) = (Mutex::new(state), SyncGate::new(SequenceNumber::MIN));
        Ok(RawLog { shared: Arc::new(RawLogInner { id, ground, clock, seed, state, gate }) })
    }

    /// Appends a record with this body, which may be any bytes, and returns its sequence number. If
    /// `durability` promises that events are durable, returns after the record is.
    ///
    /// # Errors
    ///
    /// The errors of [`Session::dispatch`](crate::Session::dispatch) other than those of reducers
    /// and encoding.
    pub fn append(&self, body: &[u8], durability: Durability) -> Result<SequenceNumber> {
        let (shared, kind) = (&self.shared, RecordKind::Dispatch);
        let mut state = shared.sound()?;
        if state.closed {
            return Err(Error::Closed { session: shared.id });
        }
        let time_us = shared.clock.now_us();
        let State { log, sync_requests, .. } = &mut *state;
        let context = AppendContext { synced: shared.gate.synced_end(), declared: &Declare::default };
        let sequence = log
            .append(kind, time_us, AppendBody::Alone(body), &context)
            .map_err(|error| poison_on_error(&shared.gate, error))?;
        let background = &shared.ground.background;
        let due = sync_requests.due(log, background, shared.clock.as_ref());
        drop(state);
        if promises_sync(durability, kind) {
            shared.sync_through(sequence + 1)?;
            return Ok(sequence);
        }
        let task = || {
            let shared = Arc::downgrade(shared);
            move || {
                if let Some(shared) = shared.upgrade() {
                    // A failure poisons the log, and the next call on it returns that failure.
                    let _ = shared.sync();
                }
                RemainingWork::Nothing
            }
        };
        let sync_now = || shared.sync_through(sequence + 1);
        sync_in_time(background, shared.id, due, sync_now, task)?;
        Ok(sequence)
    }

    /// Returns the sequence number below which every record is known to be durable.
    pub fn synced_end(&self) -> SequenceNumber {
        self.shared.gate.synced_end()
    }

    /// Ends the background tasks of the log, and makes every record durable.
    pub fn close(self) -> Result<()> {
        let shared = &self.shared;
        {
            let mut state = shared.sound()?;
            state.closed = true;
            state.log.finish().map_err(|error| poison_on_error(&shared.gate, error))?;
        }
        let synced = shared.sync();
        if let Background::Thread(worker) = &shared.ground.background {
            worker.forget(shared.id);
        }
        synced
    }
}

impl RawLogInner {
    /// Locks the log. Fails if a write or sync has failed.
    fn sound(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state.lock();
        match self.gate.failure() {
            Some(cause) => Err(Error::Poisoned { cause }),
            None => Ok(state),
        }
    }

    fn sync(&self) -> Result<()> {
        let next = self.sound()?.log.next_sequence();
        self.sync_through(next)
    }

    fn sync_through(&self, target: SequenceNumber) -> Result<()> {
        let steps = SyncSteps {
            plan: &|| self.plan(),
            put_back: &|plan| self.state.lock().log.put_back(plan),
            sync_references: &|| Ok(()),
            attest: &|| self.attest(),
        };
        sync_through(&self.gate, self.ground.storage.as_ref(), &self.ground.background, target, steps)
    }

    fn plan(&self) -> SyncPlan {
        let mut state = self.state.lock();
        let State { log, sync_requests, .. } = &mut *state;
        sync_requests.take_plan(log)
    }

    /// Appends a `Synced` frame after a sync. Writes nothing to a log that has failed in the
    /// meantime.
    fn attest(&self) -> Result<()> {
        match self.sound() {
            Ok(mut state) => {
                state.log.attest(self.gate.synced_end()).map_err(|error| poison_on_error(&self.gate, error))
            }
            Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;
    use crate::inspect;
    use crate::log::SegmentSizes;
    use crate::options::BackgroundSync;
    use crate::storage::{Fault, MemoryStorage, Op};

    fn log_on(disk: &MemoryStorage) -> RawLog {
        let storage = Arc::new(disk.clone());
        let background = BackgroundSync::Inline;
        RawLog::create("/log", &StoreOptions { storage, background, ..StoreOptions::default() }).unwrap()
    }

    fn write_fails(nth: u64) -> Fault {
        Fault::FailNth { op: Op::Write, nth, error: ErrorKind::Other }
    }

    fn writes(disk: &MemoryStorage) -> usize {
        disk.take_trace().iter().filter(|(op, _)| *op == Op::Write).count()
    }

    /// A record stays durable even if writing its attesting frame fails; but nothing may follow
    /// half a frame.
    #[test]
    fn a_record_is_kept_although_the_frame_that_attests_it_failed_and_nothing_follows_that() {
        // The record is written first.
        for fault in [write_fails(2), Fault::ShortWrite { nth: 2, bytes: 9 }] {
            let disk = MemoryStorage::new();
            let log = log_on(&disk);
            log.append(&[7; 10], Durability::Every).unwrap();
            disk.inject(fault);
            assert_eq!(log.append(&[7; 10], Durability::Every).unwrap(), 1);
            assert_eq!((log.synced_end(), log.shared.state.lock().log.watermark()), (2.into(), 1.into()));
            disk.take_trace();
            for durability in [Durability::Process, Durability::Every] {
                let refused = log.append(&[7; 10], durability);
                assert!(matches!(refused, Err(Error::Poisoned { .. })), "{refused:?}");
            }
            assert!(matches!(log.close(), Err(Error::Poisoned { .. })));
            assert_eq!(writes(&disk), 0);
        }
    }

    /// A record of another thread failed while a sync ran: the synced records stay acknowledged,
    /// and no attesting frame is written after the half of the failed record.
    #[test]
    fn a_log_that_failed_while_it_was_synced_is_not_written_to_say_that_it_was() {
        let disk = MemoryStorage::new();
        let log = log_on(&disk);
        log.append(&[7; 10], Durability::Process).unwrap();
        let shared = &log.shared;
        let plan = || {
            let plan = shared.plan();
            disk.inject(Fault::ShortWrite { nth: 1, bytes: 9 });
            assert!(matches!(log.append(&[7; 10], Durability::Process), Err(Error::Io { op: "write", .. })));
            disk.take_trace();
            plan
        };
        let steps = SyncSteps {
            plan: &plan,
            put_back: &|plan| panic!("{plan:?} ran"),
            sync_references: &|| Ok(()),
            attest: &|| shared.attest(),
        };
        let ground = &shared.ground;
        sync_through(&shared.gate, ground.storage.as_ref(), &ground.background, 1.into(), steps).unwrap();
        assert_eq!((log.synced_end(), shared.state.lock().log.watermark()), (1.into(), 0.into()));
        assert_eq!(writes(&disk), 0);
        assert!(matches!(log.close(), Err(Error::Poisoned { .. })));
    }

    /// A background sync that ended just after the last record was written to a full disk once took
    /// the room that closing needs to attest everything. The next process took the log for one that
    /// was not closed, and had no room to recover it.
    #[test]
    fn a_log_that_is_closed_on_a_full_disk_says_that_all_of_it_is_durable() {
        for body_len in 100..200 {
            let disk = MemoryStorage::new();
            let options = StoreOptions {
                storage: Arc::new(disk.clone()),
                segments: SegmentSizes { first_bytes: 4096, max_bytes: 4096, ahead_bytes_min: u64::MAX },
                background: BackgroundSync::Inline,
                ..StoreOptions::default()
            };
            let log = RawLog::create("/log", &options).unwrap();
            log.append(&[7; 10], Durability::Process).unwrap();
            disk.inject(Fault::DiskFull { capacity_bytes: disk.used_bytes() });
            let body = vec![7; body_len];
            let full =
                std::iter::repeat_with(|| log.append(&body, Durability::Process)).find_map(Result::err);
            assert!(matches!(full, Some(Error::Full { .. })));
            let shared = Arc::clone(&log.shared);
            // This sync began before the last records were written.
            shared.state.lock().log.attest(1.into()).unwrap();
            log.close().unwrap();
            let log = &shared.state.lock().log;
            assert_eq!(log.watermark(), log.next_sequence(), "{body_len}");
        }
    }

    #[test]
    fn a_level_is_kept_and_closing_makes_all_durable_and_seals_it() {
        let directory = tempfile::tempdir().unwrap();
        let segments = SegmentSizes { first_bytes: 4096, max_bytes: 8192, ..SegmentSizes::default() };
        let options = StoreOptions { segments, ..StoreOptions::default() };
        let log = RawLog::create(directory.path().join("log"), &options).unwrap();
        for sequence in 0..100 {
            assert_eq!(log.append(&[7; 256], Durability::Process).unwrap(), sequence);
        }
        assert_eq!(log.append(&[7; 256], Durability::Every).unwrap(), 100);
        assert_eq!(log.synced_end(), 101);
        log.append(&[7; 256], Durability::Process).unwrap();
        let shared = Arc::clone(&log.shared);
        log.close().unwrap();
        assert_eq!(shared.gate.synced_end(), 102);
        // The frames are valid, but no record states their session.
        let walked = inspect::walk(&directory.path().join("log"), &mut |_| Ok(()));
        assert!(walked.is_err());
    }
}

//! Syncs: makes records durable, for calls that wait and in the background, rests idle sessions,
//! and closes sessions.
//!
//! A session rests if it is idle: it closes the file that its log is written to, so that an open
//! session uses a single file handle: the lock of its directory. After each sync the background
//! checks the session a second later. The session rests if there were no writes between two checks
//! and everything is durable; otherwise the background checks again.

use std::sync::Arc;

use foldlog_codec::{RecordKind, SequenceNumber};
use uuid::Uuid;

use super::{SessionInner, WriterState, operations};
use crate::background::{Background, Rank, RemainingWork};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::fold::record_kinds::RecordRules;
use crate::log::publish::{NotSynced, SyncGate};
use crate::log::writer::{LogWriter, SyncPlan};
use crate::options::Durability;
use crate::storage::Storage;

/// Unsynced bytes at which a background sync is started.
const UNSYNCED_BYTES_MAX: u64 = 4 << 20;

/// Unsynced time at which a background sync is started, in microseconds of the monotonic clock.
const UNSYNCED_US_MAX: i64 = 1_000_000;

/// Unsynced segments, each of which keeps its file open, at which a background sync is started.
const UNSYNCED_FILES_MAX: usize = 64;

/// Unsynced segments at which the writer syncs itself, even if the background was asked to: the
/// number of descriptors of a process is limited.
const OPEN_FILES_MAX: usize = 256;

/// Returns whether a durability promises that a record of this kind is durable when the call
/// returns.
pub(crate) fn promises_sync(durability: Durability, kind: RecordKind) -> bool {
    match durability {
        Durability::Process => false,
        Durability::Boundary => RecordRules::of(kind).synced_at_boundary,
        Durability::Every => true,
    }
}

/// Action of a writer for a sync that no call waits for, in the order of urgency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// None: the sync is not due, or was requested already.
    #[default]
    Nothing,
    /// Requests a background sync within a second.
    AskLater,
    /// Requests a background sync at once.
    AskAtOnce,
    /// Syncs itself, since there is no background thread or the limit of unsynced files is reached.
    Sync,
}

/// Requests of one log to the background since its last sync.
#[derive(Debug, Default)]
pub(crate) struct SyncRequests {
    /// Most urgent request since the last sync.
    asked: Due,
    /// First time at which records were seen to be unsynced, on the monotonic clock.
    first_unsynced_us: Option<i64>,
    /// Whether a check for idleness is pending.
    asked_to_rest: bool,
}

impl SyncRequests {
    /// Returns the action for a sync after a record was written into `log`. Reads the clock only if
    /// there is no background thread.
    #[inline]
    pub(crate) fn due(&mut self, log: &LogWriter, background: &Background, clock: &dyn Clock) -> Due {
        let files = log.unsynced_files();
        if files >= OPEN_FILES_MAX {
            return Due::Sync;
        }
        let is_overdue = log.unsynced_bytes >= UNSYNCED_BYTES_MAX || files >= UNSYNCED_FILES_MAX;
        let before = self.asked;
        self.asked = if is_overdue { Due::AskAtOnce } else { before.max(Due::AskLater) };
        match background {
            Background::Inline if is_overdue || self.is_late(clock.steady_us()) => Due::Sync,
            Background::Thread(_) if before < self.asked => self.asked,
            _ => Due::Nothing,
        }
    }

    /// Returns whether the time limit of unsynced records is over.
    fn is_late(&mut self, now_us: i64) -> bool {
        // A test may move its clock back.
        let first_us = now_us.min(self.first_unsynced_us.unwrap_or(now_us));
        self.first_unsynced_us = Some(first_us);
        now_us.saturating_sub(first_us) >= UNSYNCED_US_MAX
    }

    /// Removes the work of a sync from `log`.
    pub(crate) fn take_plan(&mut self, log: &mut LogWriter) -> SyncPlan {
        (self.first_unsynced_us, self.asked) = (None, Due::Nothing);
        log.sync_plan()
    }
}

/// Syncs records that no call waits for, within the time limit: by `sync_now` if the writer syncs
/// itself, and otherwise by the task that `sync` returns, if one is needed.
pub(crate) fn sync_in_time<T: FnMut() -> RemainingWork + Send + 'static>(
    background: &Background,
    session: Uuid,
    due: Due,
    sync_now: impl FnOnce() -> Result<()>,
    sync: impl FnOnce() -> T,
) -> Result<()> {
    match (due, background) {
        (Due::Nothing, _) => {}
        (Due::AskAtOnce, background) => background.offer(Rank::Sync, sync()),
        (Due::AskLater, Background::Thread(worker)) => worker.offer_later(Rank::Sync, session, sync()),
        (Due::Sync, _) | (Due::AskLater, Background::Inline) => sync_now()?,
    }
    Ok(())
}

/// Poisons the log, except for errors without side effects.
pub(crate) fn poison_on_error(gate: &SyncGate<Error>, error: Error) -> Error {
    let is_whole = matches!(
        error,
        Error::Full { .. } | Error::NoHandle { .. } | Error::ReadOnly { .. } | Error::TooLarge { .. }
    );
    if !is_whole {
        gate.fail(Arc::new(error.clone()));
    }
    error
}

/// Steps of a sync that depend on the log.
pub(crate) struct SyncSteps<'a> {
    /// Removes the work of a sync from the log.
    pub(crate) plan: &'a dyn Fn() -> SyncPlan,
    /// Returns that work to the log if no file handle is left for it.
    pub(crate) put_back: &'a dyn Fn(SyncPlan),
    /// Makes durable the data outside of the log that its records refer to.
    pub(crate) sync_references: &'a dyn Fn() -> Result<()>,
    /// Writes the frame that attests the sync.
    pub(crate) attest: &'a dyn Fn() -> Result<()>,
}

/// Returns once every record below `target` is durable. The background lets more urgent work pass.
pub(crate) fn sync_through(
    gate: &SyncGate<Error>,
    storage: &dyn Storage,
    background: &Background,
    target: SequenceNumber,
    steps: SyncSteps<'_>,
) -> Result<()> {
    let SyncSteps { plan, put_back, sync_references, attest } = steps;
    let led = gate.wait(target, || {
        let plan = plan();
        sync_references().map_err(|error| NotSynced::Failed(Arc::new(error)))?;
        match plan.run(storage, &|| background.let_pass(Rank::Sync)) {
            Ok(()) => Ok(plan.through),
            Err(error @ Error::NoHandle { .. }) => {
                put_back(plan);
                Err(NotSynced::Refused(Arc::new(error)))
            }
            Err(error) => Err(NotSynced::Failed(Arc::new(error))),
        }
    });
    match led {
        Ok(false) => Ok(()),
        Ok(true) => {
            // The records are durable even if the attesting frame cannot be written; but no write
            // may follow a failed one.
            if let Err(error) = attest() {
                gate.fail(Arc::new(error));
            }
            Ok(())
        }
        Err(cause) => Err(Error::DurabilityUnknown { sequence: target.saturating_sub(1), cause }),
    }
}

impl SessionInner {
    /// Returns the action for a sync after a record was written.
    #[inline]
    pub(super) fn due(&self, state: &mut WriterState) -> Due {
        let WriterState { log, sync_requests, .. } = state;
        sync_requests.due(log, &self.store.background, self.store.options.clock.as_ref())
    }

    pub(crate) fn sync(self: &Arc<Self>) -> Result<()> {
        let next = self.sync_here()?;
        self.hold_through(next)
    }

    /// Makes every record durable locally, and wakes the replicator without waiting for it.
    fn sync_locally(self: &Arc<Self>) -> Result<()> {
        self.sync_here()?;
        self.wake_replica();
        Ok(())
    }

    /// Makes every record durable locally, and returns the sequence number after the last one.
    fn sync_here(self: &Arc<Self>) -> Result<SequenceNumber> {
        let next = self.settle_unattested()?;
        match self.sync_through(next) {
            // No sync has failed, and a later one covers the same records.
            Err(Error::DurabilityUnknown { cause, .. }) if matches!(*cause, Error::NoHandle { .. }) => {
                Err(Error::clone(&cause))
            }
            synced => synced.map(|()| next),
        }
    }

    fn wake_replica(&self) {
        if let Some(replica) = &self.replica {
            replica.wake();
        }
    }

    /// Ends the session for all handles, and attests the close if this process wrote records.
    pub(super) fn close(self: &Arc<Self>) -> Result<()> {
        // A forked process has nothing to close.
        self.check_process()?;
        // Abandoned operations are rolled back here, so that the next process need not recover
        // them.
        operations::end_abandoned(self);
        operations::await_abandoned(self);
        let (writing, stuck) = {
            let mut state = self.state.lock();
            let before = std::mem::replace(&mut state.closed, true);
            let stuck =
                state.running_calls.stuck_operations(self.store.options.grace).next().filter(|_| !before);
            (!before && (state.log.is_writing() || state.log.is_resting()), stuck)
        };
        let result = match writing {
            true => self.finish().and_then(|()| self.sync_to_close()),
            // Records of an earlier process may be durable locally and not replicated yet.
            false if self.gate.failure().is_none() => self.hold_through(self.gate.synced_end()),
            false => Ok(()),
        };
        if writing && result.is_ok() {
            self.image_at_closing();
        }
        // Waits for an image that the background is writing.
        drop(self.imaging.lock());
        // Released here, because the process may have ended before the last thread drops the
        // session.
        if let Some(replica) = &self.replica {
            replica.release();
        }
        if let Some(lock) = self.lock.lock().take() {
            // Forgotten before unlocking: afterwards this might forget the next writer.
            self.store.writers.forget(self.id);
            if let Background::Thread(worker) = &self.store.background {
                worker.forget(self.id);
            }
            drop(lock);
        }
        self.subscribers.end();
        result.and(stuck.map_or(Ok(()), |operation| Err(Error::Stuck { operation })))
    }

    /// Makes every record durable, and attests in the log that the session was closed after the
    /// last one.
    pub(super) fn sync_to_close(self: &Arc<Self>) -> Result<()> {
        self.sync()?;
        let mut state = self.state.lock();
        if self.gate.failure().is_some() {
            return Ok(());
        }
        state.log.attest_close(self.gate.synced_end()).map_err(|error| self.poison_on_error(error))?;
        state.log.give_back_room();
        Ok(())
    }

    /// Completes the background work for the log.
    pub(super) fn finish(&self) -> Result<()> {
        let mut state = self.sound()?;
        if state.log.is_resting() {
            // The frame that attests the close is written like a record.
            self.prepare(&mut state, |log, context| log.begin(self.now_us(), context))?;
        }
        state.log.finish().map_err(|error| self.poison_on_error(error))
    }

    /// Syncs records that no call waits for, within the time limit.
    pub(super) fn sync_in_background(self: &Arc<Self>, due: Due, target: SequenceNumber) -> Result<()> {
        let task = || {
            let session = Arc::downgrade(self);
            move || {
                if let Some(session) = session.upgrade() {
                    // A failure poisons the session, and its next call reports it. If no handle was
                    // left, no other request for the sync comes before the next record.
                    if let Err(Error::NoHandle { .. }) = session.sync_locally() {
                        let _ = session.sync_in_background(Due::AskLater, target);
                    }
                }
                RemainingWork::Nothing
            }
        };
        let sync_now = || {
            self.sync_through(target)?;
            self.wake_replica();
            Ok(())
        };
        sync_in_time(&self.store.background, self.id, due, sync_now, task)
    }

    /// Writes the records that opening found after the watermark again, so that a sync covers them:
    /// they are in the files of an earlier process, which a sync of this process's log does not
    /// touch. Returns the next sequence number.
    fn settle_unattested(&self) -> Result<SequenceNumber> {
        let mut state = self.sound()?;
        let next = state.log.next_sequence();
        if state.log.is_writing() || self.gate.synced_end() >= next {
            return Ok(next);
        }
        if let Some(reason) = &self.read_only {
            return Err(Error::ReadOnly { session: self.id, reason: reason.clone() });
        }
        if state.closed {
            return Err(Error::Closed { session: self.id });
        }
        self.prepare(&mut state, |log, context| log.begin(self.now_us(), context))?;
        Ok(next)
    }

    /// Returns once every record below `target` is durable.
    pub(super) fn sync_through(self: &Arc<Self>, target: SequenceNumber) -> Result<()> {
        let plan = || {
            let mut state = self.state.lock();
            let WriterState { log, sync_requests, .. } = &mut *state;
            sync_requests.take_plan(log)
        };
        // A session that has failed is not written any more. A failure here is noted under the
        // lock, so that no thread overwrites its remains.
        let attest = || {
            let Ok(mut state) = self.sound() else { return Ok(()) };
            let attested = match state.closed {
                true => state.log.attest_close(self.gate.synced_end()),
                false => state.log.attest(self.gate.synced_end()),
            };
            attested.map_err(|error| self.poison_on_error(error))?;
            self.ask_to_rest(&mut state);
            Ok(())
        };
        // A resource is registered after its capture and before the record that names it, and one
        // sync runs at a time, so this covers the captures of all records to sync.
        let sync_references = || {
            self.lock.lock().as_ref().map_or(Ok(()), |lock| lock.check(self.id))?;
            let captured = std::mem::take(&mut *self.captured.lock());
            captured.iter().try_for_each(|resource| resource.sync_captures(&[]))
        };
        let storage = self.store.options.storage.as_ref();
        let steps = SyncSteps {
            plan: &plan,
            put_back: &|plan| self.state.lock().log.put_back(plan),
            sync_references: &sync_references,
            attest: &attest,
        };
        sync_through(&self.gate, storage, &self.store.background, target, steps)
    }

    /// Closes the files of a session if all its records are durable. Returns whether there were
    /// any.
    pub(super) fn rest(&self, state: &mut WriterState) -> Result<bool> {
        if !self.is_durable(state) {
            return Ok(false);
        }
        state.log.rest().map_err(|error| self.poison_on_error(error))
    }

    /// Requests, once, that the background rests the session after its last write.
    fn ask_to_rest(self: &Arc<Self>, state: &mut WriterState) {
        if !state.sync_requests.asked_to_rest && !state.closed && state.log.is_writing() {
            state.sync_requests.asked_to_rest = true;
            self.look_later(None);
        }
    }

    /// Schedules a check of the session in a second. `seen` is the number of bytes written at the
    /// last check.
    fn look_later(self: &Arc<Self>, seen: Option<u64>) {
        let Background::Thread(worker) = &self.store.background else { return };
        let session = Arc::downgrade(self);
        worker.offer_later(Rank::Rest, self.id, move || {
            if let Some(session) = session.upgrade() {
                session.look(seen);
            }
            RemainingWork::Nothing
        });
    }

    /// Rests the session if there were no writes since the last check.
    fn look(self: &Arc<Self>, seen: Option<u64>) {
        // The holder of the lock is writing, and must not be delayed.
        let Some(mut state) = self.state.try_lock() else { return self.look_later(seen) };
        state.sync_requests.asked_to_rest = false;
        if state.closed || self.gate.failure().is_some() {
            return;
        }
        let written = state.log.written_bytes();
        let is_idle = seen == Some(written) && self.is_durable(&state);
        // A failure poisons the session, and its next call reports it.
        let again = !is_idle || matches!(self.rest(&mut state), Err(Error::NoHandle { .. }));
        if again && state.log.is_writing() {
            state.sync_requests.asked_to_rest = true;
            self.look_later(Some(written));
        }
    }

    fn is_durable(&self, state: &WriterState) -> bool {
        self.gate.synced_end() >= state.log.next_sequence()
    }
}

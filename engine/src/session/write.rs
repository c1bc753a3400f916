//! Writes records: locks the writer, appends, applies, syncs, notifies.

use std::sync::Arc;

use foldlog_codec::body::Declare;
use foldlog_codec::{RecordKind, SequenceNumber};
use parking_lot::MutexGuard;
use smol_str::SmolStr;
use uuid::Uuid;

use super::lag::ReplicaLag;
use super::mode::AppendedRecord;
use super::schedule::inside;
use super::subscribers::RecordNotification;
use super::{SessionInner, WriterState};
use crate::background::{Background, Rank, RemainingWork};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::fold::live::{FoldSources, LiveState};
use crate::fold::projection::DecodedValues;
use crate::fold::record_kinds::{RecordBody, RecordRules};
use crate::items::AnyValue;
use crate::log::publish::{NotSynced, SyncGate};
use crate::log::writer::{AppendBody, AppendContext, LogWriter, ReservationKind, SyncPlan};
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

/// Request to the background thread since the last sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SyncRequest {
    #[default]
    Nothing,
    /// A sync within a second.
    Later,
    /// A sync at once.
    AtOnce,
}

pub(super) struct PendingRecord<'a> {
    pub(super) kind: RecordKind,
    pub(super) body: &'a [u8],
    /// The content that the body encodes.
    pub(super) content: RecordBody<'a>,
    /// Values that need not be decoded again.
    pub(super) decoded_values: DecodedValues<'a>,
    /// The event for subscribers, if the record dispatches one.
    pub(super) event: Option<PendingEvent>,
}

pub(super) struct PendingEvent {
    pub(super) name: SmolStr,
    pub(super) version: u32,
    /// The event's value, if there are subscribers.
    pub(super) value: Option<AnyValue>,
}

impl<'a> PendingRecord<'a> {
    pub(super) fn new(kind: RecordKind, body: &'a [u8], content: RecordBody<'a>) -> PendingRecord<'a> {
        PendingRecord { kind, body, content, decoded_values: DecodedValues::Nothing, event: None }
    }

    /// Creates the record of a declaration with the encoded body `body`.
    pub(super) fn declare(declare: Declare, body: &'a [u8]) -> PendingRecord<'a> {
        PendingRecord::new(RecordKind::Declare, body, RecordBody::Declare(declare))
    }
}

/// Returns whether a durability promises that a record of this kind is durable when the call
/// returns.
pub(crate) fn promises_sync(durability: Durability, kind: RecordKind) -> bool {
    match durability {
        Durability::Process => false,
        Durability::Boundary => RecordRules::of(kind).synced_at_boundary,
        Durability::Every => true,
    }
}

/// Reason why a session accepts no record. Small, since each write checks it;
/// [`SessionInner::refusal_error`] makes the full error.
pub(super) enum WriteRefusal {
    Untyped,
    Poisoned(Arc<Error>),
    ReadOnly,
    Closed,
    /// Sequence number and kind of the record that this version cannot fold.
    UnsupportedKind(SequenceNumber, RecordKind),
    Interrupted,
    ReplicaBehind(ReplicaLag),
}

/// Action of a writer for a sync that no call waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// None: the sync is not due, or was requested already.
    Nothing,
    /// Syncs itself, since there is no background thread or the limit of unsynced files is reached.
    Sync,
    /// Requests a background sync within a second.
    AskLater,
    /// Requests a background sync at once.
    AskAtOnce,
}

impl WriterState {
    /// Returns the action for a sync after a record was written.
    #[inline]
    pub(super) fn due(&mut self, background: &Background, clock: &dyn Clock) -> Due {
        let (bytes, files) = (self.log.unsynced_bytes, self.log.unsynced_files());
        due(background, &mut self.first_unsynced_us, bytes, files, &mut self.asked, clock)
    }
}

/// Returns the action for a sync after a record was written into a log, given the unsynced bytes
/// and files, and the time since they are unsynced. Reads the clock only if there is no background
/// thread.
#[inline]
pub(crate) fn due(
    background: &Background,
    first_unsynced_us: &mut Option<i64>,
    unsynced_bytes: u64,
    unsynced_files: usize,
    asked: &mut SyncRequest,
    clock: &dyn Clock,
) -> Due {
    if unsynced_files >= OPEN_FILES_MAX {
        return Due::Sync;
    }
    let many_files = unsynced_files >= UNSYNCED_FILES_MAX;
    let is_overdue = unsynced_bytes >= UNSYNCED_BYTES_MAX || many_files;
    let before = *asked;
    *asked = if is_overdue { SyncRequest::AtOnce } else { before.max(SyncRequest::Later) };
    match background {
        Background::Inline if is_overdue || is_late(first_unsynced_us, now_us(clock)) => Due::Sync,
        Background::Thread(_) if before < *asked => {
            if is_overdue {
                Due::AskAtOnce
            } else {
                Due::AskLater
            }
        }
        _ => Due::Nothing,
    }
}

/// Reads the monotonic clock, in microseconds.
fn now_us(clock: &dyn Clock) -> i64 {
    clock.steady_us()
}

/// Returns whether the time limit of unsynced records is over.
fn is_late(first_unsynced_us: &mut Option<i64>, now_us: i64) -> bool {
    // A test may move its clock back.
    let first_us = now_us.min(first_unsynced_us.unwrap_or(now_us));
    *first_unsynced_us = Some(first_us);
    now_us.saturating_sub(first_us) >= UNSYNCED_US_MAX
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
        (Due::AskLater, Background::Thread(worker)) => worker.offer_later(session, sync()),
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
pub(crate) struct SyncSteps<Plan, PutBack, SyncReferences, Attest>
where
    Plan: Fn() -> SyncPlan,
    PutBack: Fn(SyncPlan),
    SyncReferences: Fn() -> Result<()>,
    Attest: FnOnce() -> Result<()>,
{
    /// Removes the work of a sync from the log.
    pub(crate) plan: Plan,
    /// Returns that work to the log if no file handle is left for it.
    pub(crate) put_back: PutBack,
    /// Makes durable the data outside of the log that its records refer to.
    pub(crate) sync_references: SyncReferences,
    /// Writes the frame that attests the sync.
    pub(crate) attest: Attest,
}

/// Returns once every record below `target` is durable. The background lets more urgent work pass.
pub(crate) fn sync_through<Plan, PutBack, SyncReferences, Attest>(
    gate: &SyncGate<Error>,
    storage: &dyn Storage,
    background: &Background,
    target: SequenceNumber,
    steps: SyncSteps<Plan, PutBack, SyncReferences, Attest>,
) -> Result<()>
where
    Plan: Fn() -> SyncPlan,
    PutBack: Fn(SyncPlan),
    SyncReferences: Fn() -> Result<()>,
    Attest: FnOnce() -> Result<()>,
{
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
    /// Completes the background work for the log.
    pub(super) fn finish(&self) -> Result<()> {
        let mut state = self.sound()?;
        if state.log.is_resting() {
            // The frame that attests the close is written like a record.
            self.prepare(&mut state, |log, context| log.begin(self.now_us(), context))?;
        }
        state.log.finish().map_err(|error| self.poison_on_error(error))
    }

    /// Locks the writer's state for a write.
    #[inline(always)]
    pub(super) fn writable(&self) -> Result<MutexGuard<'_, WriterState>> {
        self.check_process()?;
        let state = self.state.lock();
        let recovered = !state.interrupted;
        let untyped = self.types.is_none().then_some(WriteRefusal::Untyped);
        let interrupted = || (!recovered).then_some(WriteRefusal::Interrupted);
        let refusal = untyped.or_else(|| self.refusal(&state)).or_else(interrupted);
        let refusal = refusal.or_else(|| self.check_replica_lag().map(WriteRefusal::ReplicaBehind));
        self.unless(refusal, state)
    }

    /// Locks the writer's state for a record that needs no types and that an interrupted session
    /// accepts: the end of an operation, or a settlement.
    pub(super) fn settleable(&self) -> Result<MutexGuard<'_, WriterState>> {
        self.check_process()?;
        let state = self.state.lock();
        self.unless(self.refusal(&state), state)
    }

    /// Locks the writer's state, unless a write or sync has failed. Writes fail under that lock, so
    /// this checks under it: a thread that gets the lock afterwards must not overwrite the remains
    /// of a failed write.
    pub(super) fn sound(&self) -> Result<MutexGuard<'_, WriterState>> {
        self.check_process()?;
        let state = self.state.lock();
        self.unless(self.poison_refusal(), state)
    }

    #[inline(always)]
    fn poison_refusal(&self) -> Option<WriteRefusal> {
        self.gate.failure().map(WriteRefusal::Poisoned)
    }

    /// Returns the reason why no record can be written, regardless of its content.
    #[inline(always)]
    pub(super) fn refusal(&self, state: &WriterState) -> Option<WriteRefusal> {
        if let poisoned @ Some(_) = self.poison_refusal() {
            return poisoned;
        }
        if self.read_only.is_some() {
            return Some(WriteRefusal::ReadOnly);
        }
        if state.closed {
            return Some(WriteRefusal::Closed);
        }
        state
            .live
            .projection
            .unsupported
            .map(|(sequence, kind)| WriteRefusal::UnsupportedKind(sequence, kind))
    }

    #[inline(always)]
    pub(super) fn unless<'a>(
        &self,
        refusal: Option<WriteRefusal>,
        state: MutexGuard<'a, WriterState>,
    ) -> Result<MutexGuard<'a, WriterState>> {
        match refusal {
            None => Ok(state),
            Some(refusal) => Err(self.refusal_error(refusal, &state)),
        }
    }

    pub(super) fn interrupted_error(&self, state: &WriterState) -> Error {
        self.refusal_error(WriteRefusal::Interrupted, state)
    }

    #[cold]
    pub(super) fn refusal_error(&self, refusal: WriteRefusal, state: &WriterState) -> Error {
        let session = self.id;
        match refusal {
            WriteRefusal::Untyped => Error::Untyped { session },
            WriteRefusal::Poisoned(cause) => Error::Poisoned { cause },
            WriteRefusal::ReadOnly => {
                Error::ReadOnly { session, reason: self.read_only.clone().unwrap_or_default() }
            }
            WriteRefusal::Closed => Error::Closed { session },
            WriteRefusal::ReplicaBehind(ReplicaLag { records, bytes, time }) => {
                Error::ReplicaBehind { session, records, bytes, time }
            }
            WriteRefusal::UnsupportedKind(sequence, kind) => Error::UnsupportedKind { sequence, kind },
            WriteRefusal::Interrupted => Error::Interrupted {
                session,
                operations: state.live.projection.operations.open().cloned().collect(),
            },
        }
    }

    /// Writes a record after the declarations that it requires; otherwise as
    /// [`write`](SessionInner::write).
    pub(super) fn write_declared(
        self: &Arc<Self>,
        state: MutexGuard<'_, WriterState>,
        time_us: i64,
        declare: Option<Declare>,
        pending: PendingRecord<'_>,
    ) -> Result<SequenceNumber> {
        match declare {
            None => self.write(state, time_us, [pending]),
            Some(declare) => {
                let body = declare.encode();
                self.write(state, time_us, [PendingRecord::declare(declare, &body), pending])
            }
        }
    }

    /// Writes records one after the other, syncs as the durability promises, and notifies the
    /// subscribers. Returns the sequence number of the last record.
    pub(super) fn write<'a>(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, WriterState>,
        time_us: i64,
        records: impl AsRef<[PendingRecord<'a>]> + IntoIterator<Item = PendingRecord<'a>>,
    ) -> Result<SequenceNumber> {
        if let several @ [_, _, ..] = records.as_ref() {
            self.reserve(
                &mut state,
                time_us,
                several.iter().map(|pending| pending.body),
                ReservationKind::Records,
            )?;
        }
        let mut last = None;
        for pending in records {
            let kind = pending.kind;
            last = Some((
                self.write_pending(&mut state, time_us, pending, promises_sync(self.durability, kind))?,
                kind,
            ));
        }
        let Some((sequence, kind)) = last else {
            return Err(Error::NoSuchPosition { position: SequenceNumber::MIN, last: None });
        };
        self.finish_write(state, sequence, promises_sync(self.durability, kind))
    }

    /// Writes one record, without the sync that its durability promises.
    pub(super) fn write_pending(
        &self,
        state: &mut MutexGuard<'_, WriterState>,
        time_us: i64,
        pending: PendingRecord<'_>,
        promised: bool,
    ) -> Result<SequenceNumber> {
        let PendingRecord { kind, body, content, decoded_values, event } = pending;
        let AppendedRecord { sequence, is_news } =
            self.append(state, time_us, kind, AppendBody::Alone(body), |live, sequence, sources| {
                live.apply(sequence, content, decoded_values, sources)
            })?;
        if is_news {
            self.notify(sequence, time_us, kind, promised, || event);
        }
        Ok(sequence)
    }

    /// Queues a notification of a record, if there are subscribers.
    pub(super) fn notify(
        &self,
        sequence: SequenceNumber,
        time_us: i64,
        kind: RecordKind,
        promised: bool,
        event: impl FnOnce() -> Option<PendingEvent>,
    ) {
        let durable_first = if promised { sequence + 1 } else { SequenceNumber::MIN };
        self.subscribers.queue(durable_first, || RecordNotification::new(sequence, time_us, kind, event()));
    }

    /// Syncs the last written record if its durability promises that, and notifies the subscribers.
    #[inline(always)]
    pub(super) fn finish_write(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, WriterState>,
        sequence: SequenceNumber,
        promised: bool,
    ) -> Result<SequenceNumber> {
        let due = state.due(&self.store.background, self.store.options.clock.as_ref());
        let promised = self.falls_behind(&state, sequence) || promised;
        let asks = promised || due != Due::Nothing || state.imaged.rolled_over || self.subscribers.listen();
        if asks { self.see_to_write(state, sequence, promised, due, || ()) } else { Ok(sequence) }
    }

    /// Does the rest of [`finish_write`](SessionInner::finish_write) if more than unlocking is
    /// needed. Calls `unlocked` as soon as the state is unlocked.
    pub(super) fn see_to_write(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, WriterState>,
        sequence: SequenceNumber,
        promised: bool,
        due: Due,
        unlocked: impl FnOnce(),
    ) -> Result<SequenceNumber> {
        let image = self.image_at_rollover(&mut state);
        let within = self.told_within(&state);
        drop(state);
        unlocked();
        if promised {
            self.sync_through(sequence + 1)?;
            self.hold_through(sequence + 1)?;
        } else {
            self.sync_in_background(due, sequence + 1)?;
        }
        if let Some(write) = image {
            write();
        }
        let tell = || self.subscribers.tell(&|| self.acknowledged_end());
        match within {
            // A subscriber that waited for an operation might wait for the very call that notifies
            // it.
            Some((ticket, operation)) => inside(self.id, ticket, operation, tell),
            None => tell(),
        }
        Ok(sequence)
    }

    /// Syncs records that no call waits for, within the time limit.
    fn sync_in_background(self: &Arc<Self>, due: Due, target: SequenceNumber) -> Result<()> {
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

    /// Makes the log prepare for a write, including the work before the first append.
    pub(super) fn prepare(
        &self,
        state: &mut WriterState,
        prepare: impl FnOnce(&mut LogWriter, &AppendContext<'_>) -> Result<()>,
    ) -> Result<()> {
        let WriterState { log, live, .. } = state;
        let names = &live.projection.names;
        let context = AppendContext { synced: self.gate.synced_end(), declared: &|| names.all() };
        prepare(log, &context).map_err(|error| self.poison_on_error(error))?;
        self.gate.raise(log.recovered_end());
        Ok(())
    }

    /// Appends a record to the log and applies it. If an appended record cannot be applied, the session is poisoned, since later records could
    /// not be trusted.
    #[inline]
    pub(super) fn append_live(
        &self,
        state: &mut MutexGuard<'_, WriterState>,
        time_us: i64,
        kind: RecordKind,
        body: AppendBody<'_>,
        apply: impl FnOnce(&mut LiveState, SequenceNumber, FoldSources<'_>) -> Result<()>,
    ) -> Result<SequenceNumber> {
        let WriterState { log, live, imaged, .. } = &mut **state;
        let segments = log.places.segments.len();
        let names = &live.projection.names;
        let context = AppendContext { synced: self.gate.synced_end(), declared: &|| names.all() };
        let begins = !log.is_writing();
        let sequence =
            log.append(kind, time_us, body, &context).map_err(|error| self.poison_on_error(error))?;
        if begins {
            self.gate.raise(log.recovered_end());
        }
        imaged.rolled_over |= segments != log.places.segments.len();
        let sources = FoldSources { objects: log.objects.as_ref(), types: self.types.as_ref() };
        apply(live, sequence, sources).map_err(|error| self.poison_on_error(error))?;
        Ok(sequence)
    }

    /// Poisons the session, except for errors without side effects.
    pub(super) fn poison_on_error(&self, error: Error) -> Error {
        poison_on_error(&self.gate, error)
    }

    /// Writes the records that opening found after the watermark again, so that a sync covers them:
    /// they are in the files of an earlier process, which a sync of this process's log does not
    /// touch. Returns the next sequence number.
    pub(super) fn settle_unattested(&self) -> Result<SequenceNumber> {
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

    pub(super) fn roll_over(&self, state: &mut WriterState) -> Result<()> {
        self.prepare(state, |log, context| log.roll_over(self.now_us(), 0, context))
    }

    /// Returns once every record below `target` is durable.
    pub(super) fn sync_through(self: &Arc<Self>, target: SequenceNumber) -> Result<()> {
        let plan = || {
            let mut state = self.state.lock();
            state.first_unsynced_us = None;
            state.asked = SyncRequest::Nothing;
            state.log.sync_plan()
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
        let put_back = |plan| self.state.lock().log.put_back(plan);
        let storage = self.store.options.storage.as_ref();
        let steps = SyncSteps { plan, put_back, sync_references, attest };
        sync_through(&self.gate, storage, &self.store.background, target, steps)
    }
}

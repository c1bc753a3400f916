//! Writes records: locks the writer, takes the turn, appends, applies, syncs, notifies. Stores
//! large payloads as objects; the record contains references to them.
//!
//! A session is live or a replay. That is chosen once, when it is opened ([`Mode`]). The steps of a
//! write that differ are here and in the schedule:
//!
//! | step | live | [replay](super::replay) |
//! |---|---|---|
//! | operation | is admitted by the [schedule](super::schedule) | starts when its record is next |
//! | turn | when the [schedule](super::schedule) allows the write | when the recorded log has a record of this lane next |
//! | large payload | becomes an object | is retained for the comparison |
//! | record | is appended and applied | is compared; the recorded one is applied |

use std::sync::Arc;

use foldlog_codec::body::{Declare, ObjectId, Payload};
use foldlog_codec::{OperationId, RecordKind, SequenceNumber};
use parking_lot::MutexGuard;
use smol_str::SmolStr;

use super::replay::{ReplayCursor, SessionReplay};
use super::subscribers::RecordNotification;
use super::sync::{Due, poison_on_error, promises_sync};
use super::wait::inside;
use super::{SessionInner, WriterState};
use crate::error::{Error, Result};
use crate::fold::live::{FoldSources, LiveState};
use crate::fold::projection::DecodedValues;
use crate::fold::record_kinds::RecordBody;
use crate::items::AnyValue;
use crate::log::writer::{AppendBody, AppendContext, LogWriter, ReservationKind};

/// Source of a session's records.
pub(super) enum Mode {
    /// The host, whose records are appended to the log.
    Live,
    /// The log, with whose records those of the host are compared.
    Replay(Box<ReplayCursor>),
}

/// A record that a write produced.
#[derive(Clone, Copy)]
pub(super) struct AppendedRecord {
    pub(super) sequence: SequenceNumber,
    /// Whether subscribers are still to be notified of it.
    pub(super) is_news: bool,
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

#[derive(Clone)]
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

impl SessionInner {
    /// Locks the writer's state for a write.
    #[inline(always)]
    pub(super) fn writable(&self) -> Result<MutexGuard<'_, WriterState>> {
        self.check_process()?;
        let state = self.state.lock();
        self.types()?;
        self.check_accepting(&state)?;
        if state.interrupted {
            return Err(self.interrupted_error(&state));
        }
        self.check_replica_lag()?;
        Ok(state)
    }

    /// Locks the writer's state for a record that needs no types and that an interrupted session
    /// accepts: the end of an operation, or a settlement.
    pub(super) fn settleable(&self) -> Result<MutexGuard<'_, WriterState>> {
        self.check_process()?;
        let state = self.state.lock();
        self.check_accepting(&state)?;
        Ok(state)
    }

    /// Locks the writer's state, unless a write or sync has failed. Writes fail under that lock, so
    /// this checks under it: a thread that gets the lock afterwards must not overwrite the remains
    /// of a failed write.
    pub(super) fn sound(&self) -> Result<MutexGuard<'_, WriterState>> {
        self.check_process()?;
        let state = self.state.lock();
        self.check_sound()?;
        Ok(state)
    }

    #[inline(always)]
    fn check_sound(&self) -> Result<()> {
        self.gate.failure().map_or(Ok(()), |cause| Err(Error::Poisoned { cause }))
    }

    /// Fails if no record can be written, regardless of its content.
    #[inline(always)]
    pub(super) fn check_accepting(&self, state: &WriterState) -> Result<()> {
        self.check_sound()?;
        if let Some(reason) = &self.read_only {
            return Err(Error::ReadOnly { session: self.id, reason: reason.clone() });
        }
        if state.closed {
            return Err(Error::Closed { session: self.id });
        }
        let unsupported = state.live.projection.unsupported;
        unsupported.map_or(Ok(()), |(sequence, kind)| Err(Error::UnsupportedKind { sequence, kind }))
    }

    #[cold]
    pub(super) fn interrupted_error(&self, state: &WriterState) -> Error {
        let operations = state.live.projection.operations.open().cloned().collect();
        Error::Interrupted { session: self.id, operations }
    }

    /// Writes one record at the present time; otherwise as [`write`](SessionInner::write).
    pub(super) fn write_now(
        self: &Arc<Self>,
        state: MutexGuard<'_, WriterState>,
        kind: RecordKind,
        body: &[u8],
        content: RecordBody<'_>,
    ) -> Result<SequenceNumber> {
        self.write(state, self.now_us(), [PendingRecord::new(kind, body, content)])
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
        let notification = || RecordNotification { sequence, time_us, kind, event: event() };
        self.subscribers.queue(durable_first, notification);
    }

    /// Syncs the last written record if its durability promises that, and notifies the subscribers.
    #[inline(always)]
    pub(super) fn finish_write(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, WriterState>,
        sequence: SequenceNumber,
        promised: bool,
    ) -> Result<SequenceNumber> {
        let due = self.due(&mut state);
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

    /// Appends a record to the log and applies it. If an appended record cannot be applied, the
    /// session is poisoned, since later records could not be trusted.
    #[inline]
    fn append_live(
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

    pub(super) fn roll_over(&self, state: &mut WriterState) -> Result<()> {
        self.prepare(state, |log, context| log.roll_over(self.now_us(), 0, context))
    }

    /// Returns the replay of this session; `None` for a live session.
    #[inline]
    pub(super) fn replay(&self) -> Option<SessionReplay<'_>> {
        match &self.mode {
            Mode::Live => None,
            Mode::Replay(cursor) => Some(SessionReplay { inner: self, cursor }),
        }
    }

    /// Reserves space for all records: a record that does not fit is refused together with its
    /// declaration.
    pub(super) fn reserve<'b>(
        &self,
        state: &mut WriterState,
        time_us: i64,
        bodies: impl Iterator<Item = &'b [u8]>,
        room: ReservationKind,
    ) -> Result<()> {
        match &self.mode {
            Mode::Live => self.prepare(state, |log, context| log.reserve(time_us, bodies, room, context)),
            Mode::Replay(_) => Ok(()),
        }
    }

    /// Stores a large payload as an object.
    pub(super) fn put_object(&self, state: &WriterState, bytes: &[u8]) -> Result<ObjectId> {
        match &self.mode {
            Mode::Live => state.log.put_object(bytes).map_err(|error| self.poison_on_error(error)),
            Mode::Replay(cursor) => Ok(cursor.put_object(bytes)),
        }
    }

    /// Adds a record to the log and applies it, or compares it with the recorded one. The log grows
    /// and slices change in no other way.
    #[inline]
    pub(super) fn append(
        &self,
        state: &mut MutexGuard<'_, WriterState>,
        time_us: i64,
        kind: RecordKind,
        body: AppendBody<'_>,
        apply: impl FnOnce(&mut LiveState, SequenceNumber, FoldSources<'_>) -> Result<()>,
    ) -> Result<AppendedRecord> {
        match &self.mode {
            Mode::Live => {
                let sequence = self.append_live(state, time_us, kind, body, apply)?;
                Ok(AppendedRecord { sequence, is_news: true })
            }
            Mode::Replay(cursor) => SessionReplay { inner: self, cursor }.append(state, kind, body, apply),
        }
    }

    /// Returns an operation that a subscriber must not wait for.
    pub(super) fn told_within(&self, state: &WriterState) -> Option<(u64, OperationId)> {
        state.running_calls.told_within().or_else(|| self.replay()?.told_within(state))
    }

    pub(super) fn is_large(&self, bytes: &[u8]) -> bool {
        bytes.len() as u64 > self.store.options.object_bytes_min
    }

    /// Stores the large payloads of a record, and returns a reference for each, in order.
    pub(super) fn references<'p, 'a: 'p>(
        &self,
        state: &WriterState,
        payloads: impl Iterator<Item = &'p mut Payload<'a>>,
    ) -> Result<Vec<Vec<u8>>> {
        let mut references = Vec::new();
        // Large payloads are rare; collecting a result for each payload would waste moves.
        for payload in payloads.filter(|payload| self.is_large(payload.bytes())) {
            references.extend(self.store_if_large(state, payload.bytes())?);
        }
        Ok(references)
    }

    /// Replaces the large payloads by the references that [`references`](SessionInner::references)
    /// returned for them.
    pub(super) fn refer<'p, 'a: 'p>(
        &self,
        payloads: impl Iterator<Item = &'p mut Payload<'a>>,
        references: &'a [Vec<u8>],
    ) {
        let large = payloads.filter(|payload| self.is_large(payload.bytes()));
        large.zip(references).for_each(|(payload, reference)| *payload = Payload::new(reference));
    }

    /// Stores large bytes as an object, and returns the reference.
    pub(super) fn store_if_large(&self, state: &WriterState, bytes: &[u8]) -> Result<Option<Vec<u8>>> {
        if !self.is_large(bytes) {
            return Ok(None);
        }
        Ok(Some(self.put_object(state, bytes)?.reference()))
    }
}

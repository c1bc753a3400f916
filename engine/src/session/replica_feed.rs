//! Feeds a session's records to the store's replicator, after the local sync.
//! [`crate::replication`] describes times and order.
//!
//! The records are read back from the log, starting after the last replicated one, so an append
//! does not depend on all this. One thread feeds at a time, for all calls that wait, as one thread
//! syncs for all ([`SyncGate`]). Records that no call waits for are fed by a thread of the session,
//! so that a slow replicator delays neither writers nor the store's background.

use std::ops::ControlFlow;
#[cfg(feature = "host-filesystem")]
use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;

use foldlog_codec::body::{Dropped, DroppedBodies, ObjectId, Observed, Payload, Replicated, SessionOpening};
use foldlog_codec::msgpack::Value;
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use parking_lot::Mutex;
use uuid::Uuid;

use super::fetch::ReplicaExtent;
use super::held_captures::{AppendedPacks, CaptureSources, ReplicatedCaptures};
use super::lag::{Lag, Quiet, ReplicaLag, WrittenRecord};
use super::replica_comparison::ComparedReplica;
use super::write::PendingRecord;
use super::{SessionInner, WriterState};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::fold::record_kinds::RecordBody;
use crate::log::dropped_ranges::Compaction;
use crate::log::fence::{self, SessionFence};
#[cfg(feature = "host-filesystem")]
use crate::log::objects::Objects;
use crate::log::publish::{NotSynced, SyncGate};
use crate::log::reader::RecordLocator;
use crate::replication::{CapturePacks, ReplicaError, Replication, Replicator, TAKEN_OVER, WhenBehind};

/// Number of bytes of bodies at which one append to the replicator is full.
const APPEND_BYTES: usize = 1 << 20;

/// Number of records at which one append to the replicator is full.
const APPEND_RECORDS: usize = 4_096;

/// Feed of one session: the claim, and the progress of the replicator.
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) replication: Replication,
    session: Uuid,
    pub(super) epoch: u64,
    /// Everything below its end is replicated. Fails with the replicator, which ends acknowledgement.
    pub(super) gate: SyncGate<Error>,
    /// Wakes the thread that feeds the records that no call waits for, once it has started.
    feeder: OnceLock<SyncSender<()>>,
    /// Records written since.
    lag: Mutex<Lag>,
    quiet: Quiet,
    /// First record of the range with replicated captures at opening.
    #[cfg(feature = "host-filesystem")]
    captures_from: SequenceNumber,
    /// Replicated captures; locked by the one thread that feeds.
    captures: Mutex<ReplicatedCaptures>,
    /// Compaction whose known positions of slices are replicated, with the first record that it
    /// dropped and that was fed after it.
    compaction: Mutex<Option<Arc<Compaction>>>,
    pub(super) dropped: Mutex<DroppedBodiesNotice>,
}

/// State of the records that list dropped bodies for the replicator.
#[derive(Debug, Default)]
pub(super) struct DroppedBodiesNotice {
    /// The newest such record in the log.
    pub(super) said: Option<Arc<DroppedBodies>>,
    /// Whether the replica has bodies that were dropped, and no record lists them.
    pub(super) is_to_say: bool,
}

/// A claim of a session by this process.
#[derive(Clone, Debug)]
pub(crate) struct ReplicaClaim {
    pub(crate) epoch: u64,
    pub(crate) extent: ReplicaExtent,
}

impl Replica {
    /// Claims the session in the directory `dir`. `compared` is the extent of the replica; the
    /// local log must contain at least that.
    pub(super) fn claim(
        replication: &Replication,
        session: Uuid,
        dir: &Path,
        compared: &ComparedReplica,
    ) -> Result<Replica> {
        let epoch = replication.replicator.claim(session, compared.held.next);
        let epoch = epoch.map_err(|error| replica_error(session, error))?;
        let claimed = ReplicaClaim { epoch, extent: compared.extent.clone() };
        let replica = Replica::from_claim(replication, session, dir, claimed);
        replica.dropped.lock().is_to_say = compared.is_to_say;
        Ok(replica)
    }

    /// Feeds under an existing claim.
    pub(super) fn from_claim(
        replication: &Replication,
        session: Uuid,
        dir: &Path,
        claimed: ReplicaClaim,
    ) -> Replica {
        let ReplicaClaim { epoch, extent: ReplicaExtent { next, captures_from, said_dropped } } = claimed;
        Replica {
            replication: replication.clone(),
            session,
            epoch,
            gate: SyncGate::new(next),
            feeder: OnceLock::new(),
            lag: Mutex::default(),
            quiet: Quiet::default(),
            #[cfg(feature = "host-filesystem")]
            captures_from,
            captures: Mutex::new(ReplicatedCaptures::new(dir, captures_from)),
            compaction: Mutex::default(),
            dropped: Mutex::new(DroppedBodiesNotice { said: said_dropped, is_to_say: false }),
        }
    }

    /// Returns the log's record about the replica of the session.
    pub(super) fn note(&self) -> Replicated {
        let replicator = &self.replication.replicator;
        Replicated { at: replicator.place(), by: replicator.name(), epoch: self.epoch }
    }

    /// Returns the sequence number below which everything is replicated.
    pub(super) fn replicated_end(&self) -> SequenceNumber {
        self.gate.synced_end()
    }

    /// Notes that a record was written. Returns whether that write has to wait because the lag
    /// exceeds its limits.
    fn note_written(&self, written: WrittenRecord, clock: &dyn Clock) -> bool {
        let WrittenRecord { sequence, log_bytes, .. } = written;
        let now_us = clock.steady_us();
        let mut lag = self.lag.lock();
        lag.note(sequence, log_bytes, now_us);
        let behind = lag.measure_lag(self.replicated_end(), now_us);
        drop(lag);
        // If writes are refused, each one is noted, since the next one needs the lag.
        if self.replication.when_behind != WhenBehind::Wait {
            return false;
        }
        let Replication { records_behind_max, bytes_behind_max, .. } = self.replication;
        self.quiet.note(written, behind, records_behind_max, bytes_behind_max);
        behind.is_too_far(&self.replication)
    }

    /// Returns the known positions of slices to replicate with a record whose body a compaction has
    /// dropped. `None` if they are already replicated with an earlier one, and for any other
    /// record.
    fn known_beside(&self, record: &Record<'_>, places: &RecordLocator) -> Option<(Vec<u8>, ObjectId)> {
        if record.kind != RecordKind::Dropped {
            return None;
        }
        let compaction = places.compaction.as_ref()?;
        let mut fed = self.compaction.lock();
        if fed.as_ref().is_some_and(|fed| Arc::ptr_eq(fed, compaction)) {
            return None;
        }
        *fed = Some(Arc::clone(compaction));
        let bytes = compaction.known_from(record.sequence).encode();
        let object = ObjectId::from_content(&bytes);
        Some((bytes, object))
    }

    /// Notifies the replicator that appending has ended. Idempotent.
    pub(super) fn release(&self) {
        self.replication.replicator.release(self.session, self.epoch);
    }

    /// Wakes the session's thread to feed the durable records.
    pub(super) fn wake(&self) {
        // If it is full, the thread is about to feed anyway.
        let _ = self.feeder.get().map(|feeder| feeder.try_send(()));
    }

    /// Starts the session's thread. Without one, records that no call waits for are fed by the next
    /// call that waits.
    pub(super) fn start(&self, session: Weak<SessionInner>) {
        let (feeder, asked) = mpsc::sync_channel(1);
        let _ = self.feeder.set(feeder);
        let feed = move || {
            // Ends with the replica, which owns the sender.
            while asked.recv().is_ok() {
                let Some(session) = session.upgrade() else { return };
                // A failure poisons the session, and its next call reports it.
                let _ = session.hold_through(session.gate.synced_end());
            }
        };
        let _ = thread::Builder::new().name("foldlog-feed".to_owned()).spawn(feed);
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.release();
    }
}

impl SessionInner {
    /// Records that the session is replicated, if no record states that yet, and makes the record
    /// durable. From then on no process writes the session by accident without its replicator. Does
    /// nothing if the session accepts no records.
    pub(super) fn note_replica(self: &Arc<Self>) -> Result<()> {
        let Some(replica) = &self.replica else { return Ok(()) };
        // The claim covers the whole local log, so no other writer's fence applies any more.
        fence::forget(self.store.options.storage.as_ref(), &self.store.root, self.id);
        let mut state = self.state.lock();
        if state.live.projection.replicated.is_some() || self.check_accepting(&state).is_err() {
            return Ok(());
        }
        let (note, time_us) = (replica.note(), self.now_us());
        let body = note.encode();
        let pending = PendingRecord::new(RecordKind::Replicated, &body, RecordBody::Replicated(note));
        let sequence = self.write_pending(&mut state, time_us, pending, true)?;
        self.finish_write(state, sequence, false)?;
        self.sync_through(sequence + 1)
    }

    /// Records that a person took the session over, and the reason, and returns once that is
    /// replicated.
    pub(super) fn note_takeover(self: &Arc<Self>, by: &str, reason: &str) -> Result<()> {
        let text = |text: &str| Value::Str(text.to_owned());
        let epoch = self.replica.as_ref().map_or(Value::Nil, |replica| Value::from(replica.epoch));
        let data = [("by", text(by)), ("reason", text(reason)), ("epoch", epoch)];
        let data = Value::Map(data.into_iter().map(|(name, value)| (Value::from(name), value)).collect());
        let data = data.encode();
        let body = Observed { name: TAKEN_OVER.to_owned(), data: Payload::new(&data) }.encode();
        let mut state = self.settleable()?;
        let pending = PendingRecord::new(RecordKind::Observed, &body, RecordBody::NoEffect);
        let sequence = self.write_pending(&mut state, self.now_us(), pending, true)?;
        self.finish_write(state, sequence, true).map(drop)
    }

    /// Returns once everything below `target`, which is durable locally, is replicated, if the
    /// store has a replicator.
    pub(super) fn hold_through(&self, target: SequenceNumber) -> Result<()> {
        let Some(replica) = &self.replica else { return Ok(()) };
        if replica.replicated_end() >= target {
            return Ok(());
        }
        self.check_process()?;
        let failed = |error| NotSynced::Failed(Arc::new(error));
        match replica.gate.wait(target, || self.feed(replica).map_err(failed)) {
            Ok(_) => Ok(()),
            Err(cause) => Err(self.stop_for(&cause)),
        }
    }

    /// Stops writes to the session, since the replicator failed for `cause`, and returns the cause.
    pub(super) fn stop_for(&self, cause: &Arc<Error>) -> Error {
        self.gate.fail(Arc::clone(cause));
        if matches!(**cause, Error::Fenced { .. }) {
            self.stop_running_calls();
        }
        Error::clone(cause)
    }

    /// Notes a record that was written. Returns whether its write has to wait because the lag
    /// exceeds its limits.
    #[inline]
    pub(super) fn falls_behind(&self, state: &WriterState, sequence: SequenceNumber) -> bool {
        let Some(replica) = &self.replica else { return false };
        let (log_bytes, time_us) = (state.log.used_bytes(), state.log.last_time_us());
        let written = WrittenRecord { sequence, log_bytes, time_us };
        !replica.quiet.holds(written) && replica.note_written(written, self.store.options.clock.as_ref())
    }

    /// Fails if writes are refused because of the lag of the replicator, and wakes the feed then.
    #[inline]
    pub(super) fn check_replica_lag(&self) -> Result<()> {
        let Some(replica) = &self.replica else { return Ok(()) };
        if replica.replication.when_behind == WhenBehind::Wait {
            return Ok(());
        }
        let now_us = self.store.options.clock.steady_us();
        let behind = replica.lag.lock().measure_lag(replica.replicated_end(), now_us);
        if !behind.is_too_far(&replica.replication) {
            return Ok(());
        }
        replica.wake();
        let ReplicaLag { records, bytes, time } = behind;
        Err(Error::ReplicaBehind { session: self.id, records, bytes, time })
    }

    /// Returns the sequence number below which subscribers may be notified of records that were
    /// promised to be durable.
    pub(super) fn acknowledged_end(&self) -> SequenceNumber {
        let synced = self.gate.synced_end();
        self.replica.as_ref().map_or(synced, |replica| replica.replicated_end().min(synced))
    }

    /// Returns the places of the session's records, and the range that is replicated with captures;
    /// `None` without a replicator.
    #[cfg(feature = "host-filesystem")]
    pub(super) fn held_with_captures(&self) -> Option<(RecordLocator, Arc<Objects>, Range<SequenceNumber>)> {
        let replica = self.replica.as_ref()?;
        let held = replica.captures_from..replica.replicated_end();
        let state = self.state.lock();
        Some((state.log.places.clone(), Arc::clone(&state.log.objects), held))
    }

    /// Returns whether the store's replicator stores the files that captures need.
    #[cfg(feature = "host-filesystem")]
    pub(super) fn holds_captures(&self) -> bool {
        self.replica.as_ref().is_some_and(|replica| replica.replication.replicator.holds_captures())
    }

    pub(super) fn opening_record(&self) -> SessionOpening {
        self.state.lock().opening_record()
    }

    /// Feeds all records that are durable and not replicated yet, and returns the new end.
    fn feed(&self, replica: &Replica) -> Result<SequenceNumber> {
        let (places, objects, end) = {
            let state = self.state.lock();
            let end = self.gate.synced_end().min(state.log.next_sequence());
            (state.log.places.clone(), Arc::clone(&state.log.objects), end)
        };
        let (session, epoch, replicator) = (replica.session, replica.epoch, &replica.replication.replicator);
        let mut next = replica.replicated_end();
        while next < end {
            let mut batch = ReplicaBatch::default();
            let mut known = None;
            places.read_until(&self.store.options.storage, next, end.saturating_sub(1), &mut |record| {
                match replica.known_beside(&record, &places) {
                    Some((bytes, object)) => {
                        let body = Dropped::decode(record.body).map_err(Error::unread(record.sequence))?;
                        batch.take(&Record { body: &body.encode_held(object), ..record });
                        known = Some((bytes, object));
                    }
                    None => batch.take(&record),
                }
                Ok(if batch.is_full() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
            let records = batch.records();
            let Some(last) = records.last() else {
                return Err(Error::NoSuchPosition { position: next, last: end.checked_sub(1) });
            };
            let put = |object, bytes: &[u8]| {
                replicator.put_object(session, object, bytes).map_err(|error| replica_error(session, error))
            };
            known.iter().try_for_each(|(bytes, object)| put(*object, bytes))?;
            for object in records.iter().flat_map(Record::objects) {
                put(object, &objects.get(&object)?)?;
            }
            let storage = &self.store.options.storage;
            let sources = CaptureSources { storage, places: &places, objects: &objects, session: self };
            let packed = replica.captures.lock().put(session, replicator.as_ref(), sources, &records)?;
            let captures = packed.as_ref().map(|AppendedPacks { packs, inlined }| CapturePacks {
                packs: packs.as_slice(),
                inlined: inlined.as_slice(),
            });
            replicator.append(session, epoch, captures, &records).map_err(|error| {
                if let ReplicaError::Fenced { epoch, by } = &error {
                    self.note_fenced(SessionFence { from: next, epoch: *epoch, by: by.clone() });
                }
                replica_error(session, error)
            })?;
            next = last.sequence + 1;
        }
        Ok(next)
    }

    /// Leaves a note of the unacknowledged records, for later readers of this log.
    pub(super) fn note_fenced(&self, fenced: SessionFence) {
        let (storage, root) = (&self.store.options.storage, &self.store.root);
        fence::note(storage, root, self.id, &fenced);
    }

    /// Orders every running call to stop, since its effects are not acknowledged any more.
    fn stop_running_calls(&self) {
        let begun: Vec<_> = {
            let state = self.state.lock();
            state.running_calls.begun().cloned().collect()
        };
        begun.iter().for_each(|within| self.cancel(self.state.lock(), within));
    }
}

/// Reads an object from a replicator, and checks its bytes.
pub(super) fn read_object(replicator: &dyn Replicator, session: Uuid, object: ObjectId) -> Result<Vec<u8>> {
    let bytes = replicator.get_object(session, object).map_err(|error| replica_error(session, error))?;
    if ObjectId::from_content(&bytes) != object {
        let reason = format!("the bytes of object {} do not match its name", object.file_name());
        return Err(Error::ReplicaFailed { session, reason });
    }
    Ok(bytes)
}

pub(crate) fn replica_error(session: Uuid, error: ReplicaError) -> Error {
    match error {
        ReplicaError::Fenced { epoch, by } => Error::Fenced { session, epoch, by },
        ReplicaError::Unknown { reason } => Error::ReplicaUnknown { session, reason },
        ReplicaError::Failed { reason } => Error::ReplicaFailed { session, reason },
    }
}

#[derive(Default)]
struct ReplicaBatch {
    bodies: Vec<u8>,
    /// Sequence number, kind, time and length of the body of each.
    records: Vec<(SequenceNumber, RecordKind, i64, usize)>,
}

impl ReplicaBatch {
    fn take(&mut self, record: &Record<'_>) {
        self.bodies.extend_from_slice(record.body);
        self.records.push((record.sequence, record.kind, record.time_us, record.body.len()));
    }

    fn is_full(&self) -> bool {
        self.bodies.len() >= APPEND_BYTES || self.records.len() >= APPEND_RECORDS
    }

    fn records(&self) -> Vec<Record<'_>> {
        let mut rest = self.bodies.as_slice();
        let records = self.records.iter().map(|(sequence, kind, time_us, len)| {
            let (body, behind) = rest.split_at_checked(*len).unwrap_or((rest, &[]));
            rest = behind;
            Record { sequence: *sequence, kind: *kind, time_us: *time_us, body }
        });
        records.collect()
    }
}

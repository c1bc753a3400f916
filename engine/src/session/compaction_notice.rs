//! Records which bodies a compaction of a replicated session dropped, for the replica.
//!
//! A compaction drops bodies from the local log. The replica still has them if they were replicated
//! before. It must not drop them by itself, because a different writer could go back to a position
//! that needs them. So the session's writer records the dropped bodies ([`DroppedBodies`]): when
//! the session is opened for writing and the replica has bodies that the log lacks, and when an
//! open session is compacted. Every writer that claims the session later has that record.
//!
//! 1. No writer after that record goes back to a position that it hides ([`DroppedBodies::hides`]),
//!    even if its log has all bodies: after a takeover, or in an older copy of the log. A store
//!    without its replicator ([`StoreOptions::unreplicated`](crate::StoreOptions::unreplicated))
//!    finds the record in the log.
//! 2. A record hides everything that an earlier one hides, and includes the bodies that the earlier
//!    one lists as dropped ([`DroppedBodies::merge_earlier`]).
//! 3. So a replica may drop the bodies in the newest record at any time.
//! 4. A record of a parent does not apply to a fork. The fork has separate ones, even for the
//!    records of the parent.

use std::borrow::Cow;
use std::sync::Arc;

use foldlog_codec::body::{DROPPED_BODIES, DroppedBodies, Observed, Payload};
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use uuid::Uuid;

use super::replica_feed::{DroppedBodiesNotice, read_object};
use super::write::PendingRecord;
use super::{SessionInner, WriterState};
use crate::error::{Error, Result};
use crate::fold::record_kinds::RecordBody;
use crate::replication::Replicator;

/// Follows the records of dropped bodies among replicated records.
#[derive(Debug, Default)]
pub(super) struct SaidDropped {
    newest: Option<(SequenceNumber, Vec<u8>)>,
}

impl SaidDropped {
    pub(super) fn see(&mut self, record: &Record<'_>) {
        if record.kind == RecordKind::Opened {
            self.newest = None;
        } else if let Some(data) = DroppedBodies::observed_in(record) {
            self.newest = Some((record.sequence, data.bytes().to_vec()));
        }
    }

    /// Returns the newest record of dropped bodies, with its payload from the replica; `None` if
    /// there is none.
    pub(super) fn read(
        &self,
        session: Uuid,
        replicator: &dyn Replicator,
    ) -> Result<Option<Arc<DroppedBodies>>> {
        self.decode(|payload| {
            let Some(object) = payload.object() else { return Ok(Cow::Borrowed(payload.bytes())) };
            read_object(replicator, session, object).map(Cow::Owned)
        })
    }

    fn decode(
        &self,
        resolve: impl FnOnce(Payload<'_>) -> Result<Cow<'_, [u8]>>,
    ) -> Result<Option<Arc<DroppedBodies>>> {
        let Some((sequence, data)) = &self.newest else { return Ok(None) };
        let dropped = DroppedBodies::decode(&resolve(Payload::new(data))?);
        dropped.map(|dropped| Some(Arc::new(dropped))).map_err(Error::unread(*sequence))
    }
}

impl SessionInner {
    /// Records which bodies compactions have dropped, if the replica has any of them and no record
    /// lists them. Does nothing if the session accepts no records.
    pub(super) fn note_dropped(self: &Arc<Self>) -> Result<()> {
        let Some(replica) = self.replica.as_ref().filter(|replica| replica.dropped.lock().is_to_say) else {
            return Ok(());
        };
        let places = self.state.lock().log.places.clone();
        let Some(compaction) = places.compaction.as_ref() else { return Ok(()) };
        let Some(last) = compaction.ranges().last().map(|range| *range.end()) else { return Ok(()) };
        let mut dropped =
            DroppedBodies { known: compaction.known_from(SequenceNumber::MIN), runs: Vec::new() };
        places.read(&self.store.options.storage, SequenceNumber::MIN, last, &mut |record| {
            if record.kind == RecordKind::Dropped {
                dropped.push(record.sequence);
            }
            Ok(())
        })?;
        // The log of a different worker may have been compacted elsewhere, or further.
        let before = replica.dropped.lock().said.clone();
        if let Some(before) = before {
            dropped = dropped.merge_earlier(&before);
        }
        let (data, time_us) = (dropped.encode(), self.now_us());
        let mut state = self.state.lock();
        if self.check_accepting(&state).is_err() {
            return Ok(());
        }
        let reference = self.store_if_large(&state, &data)?;
        let data = Payload::new(reference.as_deref().unwrap_or(&data));
        let body = Observed { name: DROPPED_BODIES.to_owned(), data }.encode();
        let pending = PendingRecord::new(RecordKind::Observed, &body, RecordBody::NoEffect);
        let sequence = self.write_pending(&mut state, time_us, pending, true)?;
        *replica.dropped.lock() = DroppedBodiesNotice { said: Some(Arc::new(dropped)), is_to_say: false };
        self.finish_write(state, sequence, false).map(drop)
    }

    /// Fails with [`Error::Compacted`] if going back to a position is forbidden, since a replica
    /// may have dropped bodies that it needs.
    pub(super) fn check_held(&self, state: &WriterState, position: SequenceNumber) -> Result<()> {
        let said = match &self.replica {
            Some(replica) => replica.dropped.lock().said.clone(),
            None => self.said_in_log(state)?,
        };
        match said.filter(|said| said.hides(position)) {
            Some(said) => Err(Error::Compacted { position, earliest: said.through().unwrap_or(position) }),
            None => Ok(()),
        }
    }

    /// Returns the record of dropped bodies in the log of a replicated session that is written
    /// without its replicator. The log is read once: no writer without a replicator adds such a
    /// record.
    fn said_in_log(&self, state: &WriterState) -> Result<Option<Arc<DroppedBodies>>> {
        // A replay may go back where its records went back, before the drop was recorded.
        if state.live.projection.replicated.is_none() || self.replay().is_some() {
            return Ok(None);
        }
        if let Some(said) = self.said_dropped.get() {
            return Ok(said.clone());
        }
        let (source, mut said) = (self.log_source(state), SaidDropped::default());
        source.places.read(&source.storage, SequenceNumber::MIN, SequenceNumber::MAX, &mut |record| {
            said.see(&record);
            Ok(())
        })?;
        let said = said.decode(|payload| source.objects.resolve(payload))?;
        Ok(self.said_dropped.get_or_init(|| said).clone())
    }
}

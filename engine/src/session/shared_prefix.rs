//! The records that a fork shares with its parent.

use std::collections::BTreeMap;
use std::path::Path as FilePath;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{Rollback, SessionOpening};

use super::load::{LoadedSession, ReadGround, open_read};
use super::{SessionInner, WriterState};
use crate::error::Result;
use crate::fold::history::History;
use crate::fold::projection::{LogSlices, Projection};
use crate::log::objects::Objects;
use crate::log::reader::{FrameLocation, RecordLocator};
use crate::storage::Storage;
use crate::types::SessionTypes;

pub(crate) struct SharedPrefix {
    /// Places of the records, up to the last shared one.
    pub(crate) places: RecordLocator,
    /// Location of the last shared record.
    pub(crate) located: FrameLocation,
    /// Sequence number below which every record is known to be durable.
    pub(crate) watermark: SequenceNumber,
    /// Number of times that the log was opened for writing, openings after the shared records
    /// included.
    pub(crate) epoch: u64,
    pub(crate) openings: Vec<(SequenceNumber, SessionOpening)>,
    pub(crate) rollbacks: BTreeMap<SequenceNumber, Rollback>,
    pub(crate) projection: Projection,
}

impl SharedPrefix {
    /// Collects the records of the session in `dir` through `position`. `writer` is the session, if
    /// it is open for writing in this store: it syncs the records. If its types are `types` and
    /// `position` is its last one or a retained snapshot, this needs no reading or folding.
    pub(crate) fn new(
        ground: ReadGround<'_>,
        dir: &FilePath,
        writer: Option<&Arc<SessionInner>>,
        position: SequenceNumber,
        types: &SessionTypes,
    ) -> Result<SharedPrefix> {
        if let Some(writer) = writer {
            writer.sync()?;
            let state = writer.state.lock();
            if writer.types.as_ref().is_some_and(|own| own.is_same(types)) {
                return writer.shared_prefix(&state, position);
            }
        }
        let storage = ground.storage;
        let read = open_read(ground, dir, Some(types), LogSlices::InLog)?;
        let (places, located) = cut(storage, read.places(), position)?;
        let LoadedSession { scan, folded, .. } = read;
        let mut rollbacks = scan.rollbacks;
        rollbacks.split_off(&(position + 1));
        let mut projection = folded.projection;
        if projection.next_sequence() != position + 1 {
            let objects = Objects::new(Arc::clone(storage), dir);
            let limit = (dir, ground.memory);
            let history =
                History { storage, places: &places, objects: &objects, rollbacks: &rollbacks, limit };
            let folded = history.fold(position + 1, Some(types), LogSlices::InLog, &mut |_, _| Ok(()))?;
            projection = folded.projection;
        }
        let openings = shared(position, &scan.openings);
        let (watermark, epoch) = (scan.watermark, scan.epoch);
        Ok(SharedPrefix { places, located, watermark, epoch, openings, rollbacks, projection })
    }
}

impl SessionInner {
    fn shared_prefix(&self, state: &WriterState, position: SequenceNumber) -> Result<SharedPrefix> {
        let (places, located) = cut(&self.store.options.storage, state.log.places.clone(), position)?;
        let mut projection = self.frozen_at(state, position)?.projection.clone().behind_ranges();
        projection.conversations = state.live.projection.conversations.through(position);
        let rollbacks =
            state.live.rollbacks.range(..=position).map(|(at, rollback)| (*at, *rollback)).collect();
        let openings = shared(position, &state.openings);
        let (watermark, epoch) = (self.gate.synced_end(), state.log.epoch());
        Ok(SharedPrefix { places, located, watermark, epoch, openings, rollbacks, projection })
    }
}

/// Returns the places of a log's records through `position`, and the location of the last.
pub(crate) fn cut(
    storage: &Arc<dyn Storage>,
    mut places: RecordLocator,
    position: SequenceNumber,
) -> Result<(RecordLocator, FrameLocation)> {
    places.check_position(position)?;
    let located = places.locate(storage, position)?;
    places.index.cut_at(position + 1);
    places.next_sequence = position + 1;
    places.compaction = places.compaction.and_then(|compaction| compaction.part_below(position + 1));
    let segments = Arc::make_mut(&mut places.segments);
    segments.truncate(located.segment + 1);
    if let Some(last) = segments.last_mut() {
        last.end = Some(located.end);
    }
    Ok((places, located))
}

fn shared(
    position: SequenceNumber,
    openings: &[(SequenceNumber, SessionOpening)],
) -> Vec<(SequenceNumber, SessionOpening)> {
    openings.iter().filter(|(sequence, _)| *sequence <= position).cloned().collect()
}

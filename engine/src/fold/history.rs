//! Folding a stretch of a log.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use foldlog_codec::body::Rollback;
use foldlog_codec::{Kind, Record, SequenceNumber};

use super::live::{LiveState, Sources};
use super::memory::Watch;
use super::path::Path;
use super::projection::{DecodedValues, Folding, LogSlices, Projection};
use super::record_body::RecordBody;
use crate::error::Result;
use crate::log::objects::Objects;
use crate::log::reader::Places;
use crate::log::scan::Location;
use crate::storage::Storage;
use crate::types::SessionTypes;

/// A log that can be read: its places, its objects and its rollbacks.
pub(crate) struct History<'a> {
    pub(crate) storage: &'a Arc<dyn Storage>,
    pub(crate) places: &'a Places,
    pub(crate) objects: &'a Objects,
    pub(crate) rollbacks: &'a BTreeMap<SequenceNumber, Rollback>,
}

impl History<'_> {
    /// Folds the records below `end`. `visit` sees each record after it was applied.
    pub(crate) fn fold(
        &self,
        end: SequenceNumber,
        types: Option<&SessionTypes>,
        log_slices: LogSlices,
        visit: &mut dyn FnMut(&Record<'_>, &Projection) -> Result<()>,
    ) -> Result<LiveState> {
        self.fold_within(end, types, (log_slices, None), visit)
    }

    /// Folds the records below `end`, and ends where the watch says that this takes too much memory.
    pub(crate) fn fold_within(
        &self,
        end: SequenceNumber,
        types: Option<&SessionTypes>,
        (log_slices, watch): (LogSlices, Option<Watch>),
        visit: &mut dyn FnMut(&Record<'_>, &Projection) -> Result<()>,
    ) -> Result<LiveState> {
        let folded = LiveState { watch, ..LiveState::new(log_slices) };
        self.fold_behind(folded, end, types, visit)
    }

    /// Goes on with a fold, through the records below `end`. Where one of them goes back to a position before those, and
    /// no operation began there that is still open, the fold fails.
    pub(crate) fn fold_behind(
        &self,
        mut folded: LiveState,
        end: SequenceNumber,
        types: Option<&SessionTypes>,
        visit: &mut dyn FnMut(&Record<'_>, &Projection) -> Result<()>,
    ) -> Result<LiveState> {
        let sources = Sources { objects: self.objects, types };
        let next = folded.projection.next_sequence();
        if next >= end {
            return Ok(folded);
        }
        self.rollbacks.range(next..end).for_each(|(_, rollback)| folded.positions.expect_target(rollback.to));
        if let Some(last) = next.checked_sub(1) {
            folded.keep_target(last);
        }
        self.places.read(self.storage, next, end - 1, &mut |record| {
            folded.apply_record(&record, sources)?;
            visit(&record, &folded.projection)
        })?;
        Ok(folded)
    }
}

impl History<'_> {
    /// Folds the records that were live when `position` was written, and no others. Rollbacks on that path
    /// have been taken into account by the path, so STATE passes them unchanged.
    pub(crate) fn fold_along(&self, path: &Path, position: SequenceNumber) -> Result<Projection> {
        let mut projection = Projection::new(LogSlices::Unread);
        self.fold_on(&mut projection, &path.live_at(position), position, &mut None)?;
        Ok(projection)
    }

    /// Goes on with such a fold, through `position`, whose live ranges are given in ascending order. `at` is where the
    /// next record stands, where that is known.
    pub(crate) fn fold_on(
        &self,
        projection: &mut Projection,
        live: &[RangeInclusive<SequenceNumber>],
        position: SequenceNumber,
        at: &mut Option<(SequenceNumber, Location)>,
    ) -> Result<()> {
        let next = projection.next_sequence();
        if next > position {
            return Ok(());
        }
        self.places.read_on(self.storage, (next, position), at, &mut |record| {
            let at = live.partition_point(|range| *range.end() < record.sequence);
            let on_path = live.get(at).is_some_and(|range| range.contains(&record.sequence));
            if !on_path || record.kind == Kind::ROLLBACK {
                return projection.pass_over(&record);
            }
            let folding = Folding { objects: self.objects, types: None, frozen: &|_| None };
            match RecordBody::of(&record)? {
                // Operations do not go back with STATE, so they are not a path's: a begin may stand on it without its end.
                RecordBody::ToolBegin(_) | RecordBody::Settle(_) => projection.pass_over(&record),
                RecordBody::ToolEnd(end) => projection.apply_end_along(record.sequence, &end, &folding),
                content => projection.apply(record.sequence, content, DecodedValues::Nothing, &folding),
            }
        })
    }
}

//! Folds a part of a log: up to a position, after an image, or along a live path.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path as FilePath;
use std::sync::Arc;

use foldlog_codec::body::Rollback;
use foldlog_codec::{Record, RecordKind, SequenceNumber};

use super::live::{FoldSources, LiveState};
use super::memory::Watch;
use super::projection::{DecodedValues, FoldContext, LogSlices, Projection};
use super::record_kinds::RecordBody;
use crate::error::Result;
use crate::log::objects::Objects;
use crate::log::reader::RecordLocator;
use crate::log::scan::Location;
use crate::options::MemoryLimit;
use crate::storage::Storage;
use crate::types::SessionTypes;

/// A log that can be read: its places, its objects and its rollbacks.
pub(crate) struct History<'a> {
    pub(crate) storage: &'a Arc<dyn Storage>,
    pub(crate) places: &'a RecordLocator,
    pub(crate) objects: &'a Objects,
    pub(crate) rollbacks: &'a BTreeMap<SequenceNumber, Rollback>,
    /// Directory of the log, and the memory limit for a fold of it.
    pub(crate) limit: (&'a FilePath, MemoryLimit),
}

impl History<'_> {
    /// Returns the memory counter of a fold, if its memory is limited.
    pub(crate) fn watch(&self) -> Option<Watch> {
        let (dir, limit) = self.limit;
        Watch::from_limit(dir, limit)
    }

    /// Folds the records below `end`. `visit` gets each record after it was applied. Fails with
    /// [`Error::OverBudget`](crate::Error::OverBudget) if the fold exceeds the history's memory
    /// limit.
    pub(crate) fn fold(
        &self,
        end: SequenceNumber,
        types: Option<&SessionTypes>,
        log_slices: LogSlices,
        visit: &mut dyn FnMut(&Record<'_>, &Projection) -> Result<()>,
    ) -> Result<LiveState> {
        let mut unvisited = SequenceNumber::MIN;
        self.places.retry_if_replaced(self.storage, |places| {
            // A fold without items does not need the bodies.
            let compaction = places.compaction.as_ref().filter(|_| log_slices != LogSlices::Outline);
            if let (Some(compaction), Some(last)) = (compaction, end.checked_sub(1)) {
                compaction.check(last)?;
            }
            let projection = Projection::new(log_slices).over(compaction);
            let folded = LiveState { watch: self.watch(), projection, ..LiveState::default() };
            History { places, ..*self }.fold_behind(folded, end, types, &mut |record, projection| {
                if record.sequence >= unvisited {
                    visit(record, projection)?;
                    unvisited = record.sequence + 1;
                }
                Ok(())
            })
        })
    }

    /// Continues a fold through the records below `end`. Fails if one of them rolls back to a
    /// position before `folded`, unless that is the start of an operation that is still open.
    pub(crate) fn fold_behind(
        &self,
        mut folded: LiveState,
        end: SequenceNumber,
        types: Option<&SessionTypes>,
        visit: &mut dyn FnMut(&Record<'_>, &Projection) -> Result<()>,
    ) -> Result<LiveState> {
        let next = folded.projection.next_sequence();
        let coming = self.rollbacks.range(next..end.max(next));
        coming.for_each(|(_, rollback)| folded.positions.expect_target(rollback.to));
        self.fold_expected(folded, end, types, visit)
    }

    /// Continues a fold through the records below `end`. Retains only positions that were expected
    /// before.
    pub(crate) fn fold_expected(
        &self,
        mut folded: LiveState,
        end: SequenceNumber,
        types: Option<&SessionTypes>,
        visit: &mut dyn FnMut(&Record<'_>, &Projection) -> Result<()>,
    ) -> Result<LiveState> {
        let sources = FoldSources { objects: self.objects, types };
        let next = folded.projection.next_sequence();
        if next >= end {
            return Ok(folded);
        }
        if let Some(last) = next.checked_sub(1) {
            folded.keep_target(last);
        }
        self.places.read_on(self.storage, next, end - 1, &mut None, &mut |record| {
            folded.apply_record(&record, sources)?;
            visit(&record, &folded.projection)
        })?;
        Ok(folded)
    }

    pub(crate) fn new_projection(&self) -> Projection {
        Projection::new(LogSlices::Unread).over(self.places.compaction.as_ref())
    }

    /// Continues a fold along live ranges, given in ascending order, through `position`. `at` is
    /// the location of the next record, if it is known. `watch` has counted the memory in use.
    pub(crate) fn fold_on(
        &self,
        projection: &mut Projection,
        live: &[RangeInclusive<SequenceNumber>],
        position: SequenceNumber,
        at: &mut Option<(SequenceNumber, Location)>,
        watch: &mut Option<Watch>,
    ) -> Result<()> {
        let next = projection.next_sequence();
        if next > position {
            return Ok(());
        }
        self.places.check_known(position)?;
        self.places.read_on(self.storage, next, position, at, &mut |record| {
            let at = live.partition_point(|range| *range.end() < record.sequence);
            let on_path = live.get(at).is_some_and(|range| range.contains(&record.sequence));
            if !on_path {
                return projection.pass_over(&record);
            }
            if record.kind == RecordKind::Rollback {
                return projection.pass_on_path(&record);
            }
            if let Some(watch) = watch {
                watch.before(&record, projection)?;
            }
            self.apply_along(projection, &record)?;
            match watch {
                Some(watch) => watch.count_applied(record.sequence, record.body.len(), projection),
                None => Ok(()),
            }
        })
    }

    fn apply_along(&self, projection: &mut Projection, record: &Record<'_>) -> Result<()> {
        let folding = FoldContext { objects: self.objects, types: None, frozen: &|_| None };
        match RecordBody::decode(record)? {
            // Operations are not rolled back with STATE, so a fold along a path has none: a start
            // record may be on the path without its end record.
            RecordBody::ToolBegin(_) | RecordBody::Settle(_) => projection.pass_on_path(record),
            RecordBody::ToolEnd(end) => projection.apply_end_along(record.sequence, &end, &folding),
            content => projection.apply(record.sequence, content, DecodedValues::Nothing, &folding),
        }
    }
}

//! Folding a stretch of a log.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use foldlog_codec::body::{Dispatch, Opened, Payload, Rollback};
use foldlog_codec::{Kind, Record};

use super::content::Content;
use super::memory::Watch;
use super::path::Path;
use super::positions::Positions;
use super::projection::{AtHand, Folding, LogSlices, Projection};
use crate::error::Result;
use crate::log::objects::Objects;
use crate::log::reader::Places;
use crate::log::scan::Location;
use crate::log::storage::Storage;
use crate::types::{AnyValue, SessionTypes};

/// A log that can be read: its places, its objects and its rollbacks.
pub(crate) struct History<'a> {
    pub(crate) storage: &'a Arc<dyn Storage>,
    pub(crate) places: &'a Places,
    pub(crate) objects: &'a Objects,
    pub(crate) rollbacks: &'a BTreeMap<u64, Rollback>,
}

/// What a fold came to.
#[derive(Default)]
pub(crate) struct Folded {
    pub(crate) projection: Projection,
    pub(crate) positions: Positions,
    /// Where it may take only so much memory.
    pub(crate) watch: Option<Watch>,
}

impl History<'_> {
    /// Folds the records below `end`. `visit` sees each record after it was applied.
    pub(crate) fn fold(
        &self,
        end: u64,
        types: Option<&SessionTypes>,
        log_slices: LogSlices,
        visit: &mut dyn FnMut(&Record<'_>, &Projection) -> Result<()>,
    ) -> Result<Folded> {
        self.fold_within(end, types, (log_slices, None), visit)
    }

    /// As [`fold`](History::fold), in as much memory as it may take.
    pub(crate) fn fold_within(
        &self,
        end: u64,
        types: Option<&SessionTypes>,
        (log_slices, watch): (LogSlices, Option<Watch>),
        visit: &mut dyn FnMut(&Record<'_>, &Projection) -> Result<()>,
    ) -> Result<Folded> {
        let folded = Folded { watch, ..Folded::new(log_slices, Positions::default()) };
        self.fold_behind(folded, end, types, visit)
    }

    /// Goes on with a fold, through the records below `end`. Where one of them goes back to a position before those, and
    /// no operation began there that is still open, the fold fails.
    pub(crate) fn fold_behind(
        &self,
        mut folded: Folded,
        end: u64,
        types: Option<&SessionTypes>,
        visit: &mut dyn FnMut(&Record<'_>, &Projection) -> Result<()>,
    ) -> Result<Folded> {
        let next = folded.projection.next_sequence();
        if next >= end {
            return Ok(folded);
        }
        self.rollbacks.range(next..end).for_each(|(_, rollback)| folded.positions.expect_target(rollback.to));
        if let Some(last) = next.checked_sub(1) {
            folded.keep_target(last);
        }
        self.places.read(self.storage, next, end - 1, &mut |record| {
            folded.apply(&record, self.objects, types)?;
            visit(&record, &folded.projection)
        })?;
        Ok(folded)
    }
}

impl History<'_> {
    /// Folds the records that were live when `position` was written, and no others. Rollbacks on that path
    /// have been taken into account by the path, so STATE passes them unchanged.
    pub(crate) fn fold_along(&self, path: &Path, position: u64) -> Result<Projection> {
        let mut projection = Projection::new(LogSlices::Unread);
        self.fold_on(&mut projection, &path.live_at(position), position, &mut None)?;
        Ok(projection)
    }

    /// Goes on with such a fold, through `position`, whose live ranges are given in ascending order. `at` is where the
    /// next record stands, where that is known.
    pub(crate) fn fold_on(
        &self,
        projection: &mut Projection,
        live: &[RangeInclusive<u64>],
        position: u64,
        at: &mut Option<(u64, Location)>,
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
            match Content::of(&record)? {
                // Operations do not go back with STATE, so they are not a path's: a begin may stand on it without its end.
                Content::ToolBegin(_) | Content::Settle(_) => projection.pass_over(&record),
                Content::ToolEnd(end) => projection.apply_end_along(record.sequence, &end, &folding),
                content => projection.apply(record.sequence, content, AtHand::Nothing, &folding),
            }
        })
    }
}

impl Folded {
    pub(crate) fn new(log_slices: LogSlices, positions: Positions) -> Folded {
        Folded { projection: Projection::new(log_slices), positions, watch: None }
    }

    /// Applies a session's own first record.
    pub(crate) fn begin(&mut self, sequence: u64, opened: Opened, objects: &Objects) -> Result<()> {
        let folding = Folding { objects, types: None, frozen: &|_| None };
        self.projection.apply(sequence, Content::Opened(opened), AtHand::Nothing, &folding)
    }

    /// Applies one record of a log and keeps the positions that later rollbacks need.
    pub(crate) fn apply(
        &mut self,
        record: &Record<'_>,
        objects: &Objects,
        types: Option<&SessionTypes>,
    ) -> Result<()> {
        self.apply_unwatched(record, objects, types)?;
        match &mut self.watch {
            Some(watch) => watch.applied(record, &self.projection),
            None => Ok(()),
        }
    }

    fn apply_unwatched(
        &mut self,
        record: &Record<'_>,
        objects: &Objects,
        types: Option<&SessionTypes>,
    ) -> Result<()> {
        let log_slices = self.projection.log_slices();
        if record.kind == Kind::DISPATCH
            && let Some((event, data)) = Dispatch::plain_event(record.body)
        {
            return match log_slices {
                LogSlices::Outline => self.projection.pass_over_event(record.sequence),
                _ => self.apply_event(record.sequence, (event, data, None), objects, types),
            };
        }
        let content = Content::of(record)?;
        let done = content.rollback().map(|rollback| rollback.to);
        let ended = if let Content::ToolEnd(end) = &content { Some(end.begin) } else { None };
        let begins = matches!(&content, Content::ToolBegin(begin) if !begin.reads_only);
        let positions = &self.positions;
        let folding = Folding { objects, types, frozen: &|to| positions.get(to) };
        self.projection.apply(record.sequence, content, AtHand::Nothing, &folding)?;
        if log_slices == LogSlices::Outline {
            return Ok(());
        }
        if let Some(to) = done {
            let is_last = self.positions.done(to);
            if let Some(watch) = self.watch.as_mut().filter(|_| is_last) {
                watch.let_go(to);
            }
        }
        self.keep_target(record.sequence);
        // An audit knows all positions that are gone back to.
        if log_slices != LogSlices::InLog {
            return Ok(());
        }
        if begins {
            self.positions.begin(record.sequence, Some(Arc::new(self.projection.freeze())));
        }
        if let Some(begin) = ended {
            self.positions.end(begin);
        }
        if record.kind == Kind::SNAPSHOT {
            self.positions.keep_snapshot(record.sequence, Arc::new(self.projection.freeze()));
        }
        Ok(())
    }

    /// Applies a record that holds no more than an event that does as declared; its value may be at hand.
    #[inline]
    pub(crate) fn apply_event(
        &mut self,
        sequence: u64,
        event: (u32, Payload<'_>, Option<AnyValue>),
        objects: &Objects,
        types: Option<&SessionTypes>,
    ) -> Result<()> {
        let folding = Folding { objects, types, frozen: &|_| None };
        self.projection.apply_event(sequence, event, &folding)?;
        self.keep_target(sequence);
        Ok(())
    }

    fn keep_target(&mut self, sequence: u64) {
        if self.positions.wants(sequence) {
            self.positions.keep_target(sequence, Arc::new(self.projection.freeze()));
            if let Some(watch) = &mut self.watch {
                watch.keep(sequence, &self.projection);
            }
        }
    }
}

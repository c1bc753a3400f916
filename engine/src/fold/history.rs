//! Folding a stretch of a log.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use foldlog_codec::body::Rollback;
use foldlog_codec::{Kind, Record};

use super::path::Path;
use super::positions::Positions;
use super::projection::{Folding, Projection};
use crate::error::Result;
use crate::log::objects::Objects;
use crate::log::reader::Places;
use crate::log::storage::Storage;
use crate::types::SessionTypes;

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
}

impl History<'_> {
    /// Folds the records below `end`. `visit` sees each record after it was applied.
    pub(crate) fn fold(
        &self,
        end: u64,
        types: Option<&SessionTypes>,
        visit: &mut dyn FnMut(&Record<'_>, &Projection) -> Result<()>,
    ) -> Result<Folded> {
        let targets = self.rollbacks.range(..end).map(|(_, rollback)| rollback.to);
        let mut folded =
            Folded { projection: Projection::default(), positions: Positions::for_targets(targets) };
        let Some(last) = end.checked_sub(1) else { return Ok(folded) };
        self.places.read(self.storage, 0, last, &mut |record| {
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
        let mut projection = Projection::default();
        self.fold_on(&mut projection, &path.live_at(position), position)?;
        Ok(projection)
    }

    /// Goes on with such a fold, through `position`, whose live ranges are given in ascending order.
    pub(crate) fn fold_on(
        &self,
        projection: &mut Projection,
        live: &[RangeInclusive<u64>],
        position: u64,
    ) -> Result<()> {
        let next = projection.next_sequence();
        if next > position {
            return Ok(());
        }
        self.places.read(self.storage, next, position, &mut |record| {
            let at = live.partition_point(|range| *range.end() < record.sequence);
            let on_path = live.get(at).is_some_and(|range| range.contains(&record.sequence));
            if !on_path || record.kind == Kind::ROLLBACK {
                return projection.pass_over(&record);
            }
            projection.apply(
                &record,
                &Folding { payloads: self.objects, types: None, at_hand: &|_, _| None, frozen: &|_| None },
            )
        })
    }
}

impl Folded {
    /// Applies one record of a log and keeps the positions that later rollbacks need.
    fn apply(&mut self, record: &Record<'_>, objects: &Objects, types: Option<&SessionTypes>) -> Result<()> {
        let positions = &self.positions;
        self.projection.apply(
            record,
            &Folding { payloads: objects, types, at_hand: &|_, _| None, frozen: &|to| positions.get(to) },
        )?;
        if record.kind == Kind::ROLLBACK
            && let Ok(rollback) = Rollback::decode(record.body)
        {
            self.positions.done(rollback.to);
        }
        if self.positions.wants(record.sequence) {
            self.positions.keep_target(record.sequence, Arc::new(self.projection.freeze()));
        }
        if record.kind == Kind::SNAPSHOT {
            self.positions.keep_snapshot(record.sequence, Arc::new(self.projection.freeze()));
        }
        Ok(())
    }
}

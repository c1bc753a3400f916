//! Folds a compacted range of a log, in which bodies are missing.
//!
//! In such a range, STATE and CACHE slices are not folded. All of their items in the range's
//! records are gathered, and none is removed. A rollback only adds the items that it restores from
//! before the range. A base then selects the items that it names, in its order. The gathered items
//! stay in memory separately, since the range may continue after the base.
//!
//! # Invariants
//!
//! 1. After a record with a base, and after the range, the slices are those that they would be
//!    without missing bodies.
//! 2. An item that a base names and no record contains is an error.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{BaseSlice, ItemId, Policy};

use super::{FrozenProjection, Projection};
use crate::error::{Error, Result};
use crate::items::SliceItems;
use crate::items::row::SliceRow;
use crate::items::rows::Rows;
use crate::log::dropped_ranges::Compaction;

/// The state of a fold for the compacted ranges that it has not passed.
#[derive(Clone, Debug)]
pub(super) struct CompactedRangeFold {
    compaction: Arc<Compaction>,
    /// Whether the record that is being applied is in a range.
    within: bool,
    /// The gathered items, by slice id, while the slices are those of a base.
    aside: Option<BTreeMap<usize, Rows>>,
    /// Items that rollbacks restored from before the range.
    brought: BTreeMap<(usize, ItemId), SliceRow>,
}

impl Projection {
    /// Makes an empty projection one of a compacted log.
    pub(crate) fn over(mut self, compaction: Option<&Arc<Compaction>>) -> Projection {
        self.gathering = compaction.map(|compaction| {
            Box::new(CompactedRangeFold {
                compaction: Arc::clone(compaction),
                within: false,
                aside: None,
                brought: BTreeMap::new(),
            })
        });
        self
    }

    /// Ends the handling of ranges: no later record is in one, as in a fork that continues after a
    /// base.
    pub(crate) fn behind_ranges(self) -> Projection {
        Projection { gathering: None, ..self }
    }

    /// Returns whether the slices are those of the projection's position.
    pub(crate) fn is_exact(&self) -> bool {
        let Some(gathering) = &self.gathering else { return true };
        self.next_sequence.checked_sub(1).is_none_or(|last| gathering.compaction.knows(last))
    }

    #[inline]
    pub(super) fn gathers(&self) -> bool {
        self.gathering.as_ref().is_some_and(|gathering| gathering.within)
    }

    /// Begins a record before the end of the last range.
    #[cold]
    pub(super) fn begin_gathering(&mut self, sequence: SequenceNumber) {
        let Some(gathering) = &mut self.gathering else { return };
        gathering.within = gathering.compaction.covers(sequence);
        match gathering.within {
            true => {
                for (id, rows) in gathering.aside.take().into_iter().flatten() {
                    if let Some(present) = self.held_rows_mut(id) {
                        *present = rows;
                    }
                }
            }
            false => {
                (gathering.aside, gathering.brought) = (None, BTreeMap::new());
                if !gathering.compaction.reaches(sequence) {
                    self.gathering = None;
                }
            }
        }
    }

    /// Ends a record: selects the items that a base at its position names.
    pub(super) fn end_gathering(&mut self, sequence: SequenceNumber) -> Result<()> {
        let Some(gathering) = self.gathering.as_ref().filter(|gathering| gathering.within) else {
            return Ok(());
        };
        let Some(base) = gathering.compaction.base(sequence) else { return Ok(()) };
        let mut aside = BTreeMap::new();
        for (id, rows) in self.pick(sequence, base, &gathering.brought)? {
            aside.extend(self.held_rows_mut(id).map(|present| (id, std::mem::replace(present, rows))));
        }
        if let Some(gathering) = &mut self.gathering {
            gathering.aside = Some(aside);
        }
        Ok(())
    }

    fn held_rows_mut(&mut self, id: usize) -> Option<&mut Rows> {
        match &mut self.slices.get_mut(id)?.items {
            SliceItems::Held(rows) => Some(rows),
            _ => None,
        }
    }

    fn pick(
        &self,
        sequence: SequenceNumber,
        base: &[BaseSlice],
        brought: &BTreeMap<(usize, ItemId), SliceRow>,
    ) -> Result<Vec<(usize, Rows)>> {
        let bad = |reason: String| Error::Inconsistent { sequence, reason };
        if let Some(unknown) = base.iter().find(|slice| slice.slice as usize >= self.slices.len()) {
            return Err(bad(format!("its base names slice {}, which was never declared", unknown.slice)));
        }
        let held = self.slices.iter().enumerate().filter(|(_, slice)| slice.policy != Policy::Log);
        held.filter_map(|(id, slice)| Some((id, slice.items.held_rows()?)))
            .map(|(id, gathered)| {
                let named = base.iter().find(|slice| slice.slice as usize == id);
                let names = || named.into_iter().flat_map(|slice| &slice.items).flat_map(|run| run.ids());
                if gathered.iter().map(|row| row.id).eq(names()) {
                    return Ok((id, gathered.clone()));
                }
                let mut by_name: BTreeMap<ItemId, SliceRow> = BTreeMap::new();
                // In an invalid log, there may be many more names than items.
                for row in gathered.iter() {
                    by_name.insert(row.id, row.to_row());
                }
                let mut rows = Vec::new();
                for name in names() {
                    let row = by_name.remove(&name).or_else(|| brought.get(&(id, name)).cloned());
                    rows.push(row.ok_or_else(|| {
                        let (at, ordinal) = (name.sequence, name.ordinal);
                        bad(format!(
                            "its base names item {at}.{ordinal} of slice {id}, which no record contains"
                        ))
                    })?);
                }
                let row = |row: &SliceRow| Ok(row.clone());
                let append = |all: &mut Rows, one: &SliceRow| row(one).map(|one| all.push(one));
                Ok((id, gathered.empty_copy().with_unordered(&rows, |row| row.id, append, row)?))
            })
            .collect()
    }

    /// Gathers the items that a rollback restores from a position before the range.
    pub(super) fn gather_from(&mut self, then: &FrozenProjection) {
        let Some(gathering) = &mut self.gathering else { return };
        let slices = self.slices.iter().zip(&then.projection.slices).enumerate();
        for (id, (now, then)) in slices.filter(|(_, (now, _))| now.policy == Policy::State) {
            let (Some(now), Some(then)) = (now.items.held_rows(), then.items.held_rows()) else { continue };
            for row in then.iter().filter(|row| !now.contains(row.id)) {
                gathering.brought.entry((id, row.id)).or_insert_with(|| row.to_row());
            }
        }
    }

    /// Estimates the bytes of the items that are stored in addition to those of the slices.
    pub(in crate::fold) fn gathered_bytes(&self) -> u64 {
        let Some(gathering) = &self.gathering else { return 0 };
        let aside = gathering.aside.iter().flatten().map(|(_, rows)| rows.unread_bytes()).sum::<u64>();
        aside + gathering.brought.len() as u64 * 256
    }
}

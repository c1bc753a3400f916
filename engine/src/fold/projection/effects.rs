//! Effects of events that are not plain, and imported items: checked first, then carried out.

use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{AddedItems, Effect, Import, ItemId, Payload, Policy, RemovedItems};

use super::slice_state::new_rows;
use super::{DecodedValues, FoldContext, Projection};
use crate::error::{Error, Result};
use crate::items::SliceItems;
use crate::items::row::SliceRow;

/// The change of one slice by a record, checked and with its items decoded.
pub(super) struct SliceChange {
    slice: usize,
    removed: RemovedItems,
    added: Vec<SliceRow>,
    before: Option<ItemId>,
}

impl Projection {
    pub(super) fn check_effect(
        &self,
        sequence: SequenceNumber,
        effect: Effect<'_>,
        event: Option<(Payload<'_>, u32)>,
        decoded_values: &DecodedValues<'_>,
        folding: &FoldContext<'_>,
    ) -> Result<SliceChange> {
        let bad = |reason: String| Error::Inconsistent { sequence, reason };
        let slice = self
            .slices
            .get(effect.slice as usize)
            .ok_or_else(|| bad(format!("slice {} was never declared", effect.slice)))?;
        let id = effect.slice;
        let name = || self.names.slice_name(id);
        if slice.policy == Policy::Log && (effect.removed != RemovedItems::None || effect.before.is_some()) {
            return Err(bad(format!("LOG slice `{}` only grows", name())));
        }
        let rows = slice.items.rows_in_memory();
        // Items that were removed in a compacted range may never have been gathered.
        let gathers = self.gathers() && slice.policy != Policy::Log;
        let effect = match gathers {
            true => Effect { removed: RemovedItems::None, before: None, ..effect },
            false => effect,
        };
        if let RemovedItems::Items(ids) = &effect.removed {
            let mut seen = std::collections::BTreeSet::new();
            // Nearly always there is only one.
            let mut is_new = |id: ItemId| ids.len() == 1 || seen.insert(id);
            if let Some(id) = ids.iter().find(|id| !rows.contains(**id) || !is_new(**id)) {
                let (at, ordinal) = (id.sequence, id.ordinal);
                return Err(bad(format!("`{}` has no item {at}.{ordinal} to remove", name())));
            }
        }
        let gone = |id: &ItemId| match &effect.removed {
            RemovedItems::None => false,
            RemovedItems::All => true,
            RemovedItems::Items(ids) => ids.contains(id),
        };
        if let Some(id) = effect.before.filter(|id| !rows.contains(*id) || gone(id)) {
            let (at, ordinal) = (id.sequence, id.ordinal);
            return Err(bad(format!("`{}` has no item {at}.{ordinal} to insert before", name())));
        }
        let added = match effect.added {
            AddedItems::Event => new_rows(slice, effect.slice, sequence, event, decoded_values, folding)?,
            AddedItems::Items { items, version } => new_rows(
                slice,
                effect.slice,
                sequence,
                items.into_iter().map(|item| (item, version)),
                decoded_values,
                folding,
            )?,
        };
        Ok(SliceChange {
            slice: effect.slice as usize,
            removed: effect.removed,
            added,
            before: effect.before,
        })
    }

    pub(super) fn carry_out(&mut self, changes: Vec<SliceChange>) {
        for change in changes {
            let Some(slice) = self.slices.get_mut(change.slice) else { continue };
            let SliceItems::Held(rows) = &mut slice.items else {
                // A LOG slice only grows, as was checked.
                change.added.into_iter().for_each(|row| slice.items.push(row));
                continue;
            };
            let SliceChange { removed, mut added, before, .. } = change;
            // The effect of an upsert.
            if let (RemovedItems::Items(ids), None, 1) = (&removed, before, added.len())
                && let [id] = ids.as_slice()
                && let Some(row) = added.pop()
            {
                rows.exchange(*id, row);
                continue;
            }
            match removed {
                RemovedItems::None => {}
                RemovedItems::All => rows.clear(),
                RemovedItems::Items(ids) => ids.into_iter().for_each(|id| rows.remove(id)),
            }
            match before {
                Some(anchor) => rows.insert_before(anchor, added),
                None => added.into_iter().for_each(|row| rows.push(row)),
            }
        }
    }

    pub(super) fn import(
        &mut self,
        sequence: SequenceNumber,
        import: Import<'_>,
        folding: &FoldContext<'_>,
    ) -> Result<()> {
        let mut changes = Vec::new();
        for imported in import.slices {
            let Some(slice) = self.slices.get(imported.slice as usize) else {
                let reason = format!("slice {} was never declared", imported.slice);
                return Err(Error::Inconsistent { sequence, reason });
            };
            let added =
                new_rows(slice, imported.slice, sequence, imported.items, &DecodedValues::Nothing, folding)?;
            let slice = imported.slice as usize;
            changes.push(SliceChange { slice, removed: RemovedItems::None, added, before: None });
        }
        Arc::make_mut(&mut self.tags).extend(import.tags);
        self.carry_out(changes);
        Ok(())
    }
}

//! Compares two states of a slice.
//!
//! Two folds of one log may store the same items in different slots of the map, since the ends of
//! runs depend on when views were taken. So changes are reported item by item, whatever slots they
//! are in.

use std::iter::Peekable;
use std::ops::ControlFlow;

use super::{Key, RowRef, Rows, Slot, natural_key, rows_of};

/// Describes an item that was added, removed or moved.
pub(crate) struct RowChange<'a> {
    /// Determines the item's place in the slice.
    pub(crate) key: Key,
    pub(crate) item: RowRef<'a>,
    /// Whether the item was added, not removed.
    pub(crate) is_new: bool,
}

/// Returns whether two items have the same name, version and recorded bytes. If the bytes are in
/// the log, compares only name and version.
fn is_same(one: &RowRef<'_>, other: &RowRef<'_>) -> bool {
    one.id == other.id && one.version == other.version && one.bytes() == other.bytes()
}

impl RowChange<'_> {
    /// Returns whether both are the same change.
    fn is_same(&self, other: &RowChange<'_>) -> bool {
        self.key == other.key && self.is_new == other.is_new && is_same(&self.item, &other.item)
    }
}

type KeyedRow<'a> = (Key, RowRef<'a>);

/// Returns the items of the slot that is under `key`.
fn keyed_rows(key: Key, slot: &Slot) -> impl Iterator<Item = KeyedRow<'_>> {
    // In a run each item has the key of its own name.
    let is_run = matches!(slot, Slot::Run(_));
    slot.rows().map(move |row| (if is_run { natural_key(row.id) } else { key }, row))
}

impl Rows {
    /// Returns the changes since `before`, in the order of keys. If this slice was derived from
    /// `before`, takes time in proportion to the changes. The items must be those of an audit,
    /// which are equal if their names are.
    pub(crate) fn changes_since<'a>(&'a self, before: &'a Rows) -> RowChanges<'a> {
        let (mut now, mut then) = (Vec::new(), Vec::new());
        let _ = self.by_key.differences(&before.by_key, &mut |key, slot_now, slot_then| {
            now.extend(slot_now.into_iter().flat_map(|slot| keyed_rows(*key, slot)));
            then.extend(slot_then.into_iter().flat_map(|slot| keyed_rows(*key, slot)));
            ControlFlow::Continue(())
        });
        now.extend(self.in_open());
        then.extend(before.in_open());
        // They are in order except for a run that was split on one side only.
        for keyed in [&mut now, &mut then] {
            keyed.sort_by_key(|(key, _)| *key);
        }
        let looked_at = (now.len() + then.len()) as u64;
        RowChanges { now: now.into_iter().peekable(), then: then.into_iter().peekable(), looked_at }
    }

    /// Returns the items of the open run, which are a few at most.
    fn in_open(&self) -> impl Iterator<Item = KeyedRow<'_>> {
        let rows = self.open.as_deref().into_iter().flat_map(rows_of);
        rows.map(|row| (natural_key(row.id), row))
    }

    /// Returns whether this is `before` with items appended, as a LOG slice grows, and the number
    /// of items that were visited.
    pub(crate) fn only_grew_since(&self, before: &Rows) -> (bool, u64) {
        let mut changes = self.changes_since(before);
        let looked_at = changes.looked_at;
        let grew = match before.last_key() {
            Some(last) => changes.all(|changed| changed.is_new && changed.key > last),
            None => changes.all(|changed| changed.is_new),
        };
        (grew, looked_at)
    }

    fn last_key(&self) -> Option<Key> {
        let open = self.open.as_deref().and_then(|run| rows_of(run).next_back());
        let closed = || self.by_key.last().map(|(key, slot)| super::last_key(*key, slot));
        open.map(|row| natural_key(row.id)).or_else(closed)
    }
}

/// The changed items, in the order of their keys. Under one key the old one comes first.
pub(crate) struct RowChanges<'a> {
    now: Peekable<std::vec::IntoIter<KeyedRow<'a>>>,
    then: Peekable<std::vec::IntoIter<KeyedRow<'a>>>,
    /// Number of items that were visited to find the changes.
    pub(crate) looked_at: u64,
}

impl RowChanges<'_> {
    /// Returns whether both are the same changes.
    pub(crate) fn are_same(mut self, mut other: RowChanges<'_>) -> bool {
        loop {
            match (self.next(), other.next()) {
                (Some(one), Some(other)) if one.is_same(&other) => {}
                (one, other) => return one.is_none() && other.is_none(),
            }
        }
    }
}

impl<'a> Iterator for RowChanges<'a> {
    type Item = RowChange<'a>;

    fn next(&mut self) -> Option<RowChange<'a>> {
        loop {
            let is_new = match (self.now.peek(), self.then.peek()) {
                (Some((now, new)), Some((then, old))) if now == then && is_same(new, old) => {
                    self.now.next();
                    self.then.next();
                    continue;
                }
                (Some((now, _)), Some((then, _))) => now < then,
                (Some(_), None) => true,
                (None, _) => false,
            };
            let (key, item) = if is_new { self.now.next()? } else { self.then.next()? };
            return Some(RowChange { key, item, is_new });
        }
    }
}

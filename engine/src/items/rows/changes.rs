//! What changed between two states of a slice.
//!
//! Two folds of one log come to stand in different slots of the map although they hold the same items, since where a run
//! ends depends on who looked when. So what changed is told item by item, whatever slots they stand in.

use std::iter::Peekable;
use std::ops::ControlFlow;

use super::{Key, RowRef, Rows, Slot, natural_key, rows_of};

/// An item that stands where it did not, or no longer stands where it did.
pub(crate) struct Changed<'a> {
    key: Key,
    item: RowRef<'a>,
    is_new: bool,
}

/// Whether two items have the same name, version and recorded bytes. Where these stay in the log, the name tells.
fn is_same(one: &RowRef<'_>, other: &RowRef<'_>) -> bool {
    one.id == other.id && one.version == other.version && one.bytes() == other.bytes()
}

impl Changed<'_> {
    /// Whether both are the same change.
    fn is_same(&self, other: &Changed<'_>) -> bool {
        self.key == other.key && self.is_new == other.is_new && is_same(&self.item, &other.item)
    }
}

type Keyed<'a> = (Key, RowRef<'a>);

/// The items of the slot that stands under `key`.
fn keyed(key: Key, slot: &Slot) -> impl Iterator<Item = Keyed<'_>> {
    // In a run each has the key of its own name.
    let is_run = matches!(slot, Slot::Run(_));
    slot.rows().map(move |row| (if is_run { natural_key(row.id) } else { key }, row))
}

impl Rows {
    /// What changed since `before`, in the order of keys. Takes time that depends on how much that is where this was made
    /// from it, of the rows of an audit, whose items say the same where they have the same names.
    pub(crate) fn changes_since<'a>(&'a self, before: &'a Rows) -> Changes<'a> {
        let (mut now, mut then) = (Vec::new(), Vec::new());
        let _ = self.by_key.differences(&before.by_key, &mut |key, slot_now, slot_then| {
            now.extend(slot_now.into_iter().flat_map(|slot| keyed(*key, slot)));
            then.extend(slot_then.into_iter().flat_map(|slot| keyed(*key, slot)));
            ControlFlow::Continue(())
        });
        now.extend(self.in_open());
        then.extend(before.in_open());
        // Nearly always they are in order: a run that was taken apart on one side only is not.
        for keyed in [&mut now, &mut then] {
            keyed.sort_by_key(|(key, _)| *key);
        }
        let looked_at = (now.len() + then.len()) as u64;
        Changes { now: now.into_iter().peekable(), then: then.into_iter().peekable(), looked_at }
    }

    /// The items of the open run, which are a few at most.
    fn in_open(&self) -> impl Iterator<Item = Keyed<'_>> {
        let rows = self.open.as_deref().into_iter().flat_map(rows_of);
        rows.map(|row| (natural_key(row.id), row))
    }

    /// Whether this is `before` with more items behind it, as a LOG slice grows; and how many items were looked at.
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

/// The items that changed, in the order of their keys; under one key the old one first.
pub(crate) struct Changes<'a> {
    now: Peekable<std::vec::IntoIter<Keyed<'a>>>,
    then: Peekable<std::vec::IntoIter<Keyed<'a>>>,
    /// How many items were looked at for that.
    pub(crate) looked_at: u64,
}

impl Changes<'_> {
    /// Whether both are the same changes.
    pub(crate) fn are_same(mut self, mut other: Changes<'_>) -> bool {
        loop {
            match (self.next(), other.next()) {
                (Some(one), Some(other)) if one.is_same(&other) => {}
                (one, other) => return one.is_none() && other.is_none(),
            }
        }
    }
}

impl<'a> Iterator for Changes<'a> {
    type Item = Changed<'a>;

    fn next(&mut self) -> Option<Changed<'a>> {
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
            return Some(Changed { key, item, is_new });
        }
    }
}

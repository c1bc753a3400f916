//! The items of one slice.
//!
//! The items are stored in a persistent ordered map. A clone of it costs the same at ten items and
//! at ten million, and shares unchanged parts. Keys of appended items are derived from the items'
//! own names, which only grow, so they are in order of insertion. Items that a reducer inserted
//! before others take keys in the [gap](gaps) between their neighbours; these few are found by name
//! in a second map.
//!
//! Dispatched values are stored in [runs](super::runs) as long as nothing is shared and no item is
//! looked up by value. A run takes one slot of the map, under its first item's key. The last run,
//! the *open run*, comes after the map. A run is split into rows if one of its items is removed or
//! an item is inserted before one of them.
//!
//! # Invariants
//!
//! 1. Keys ascend: from slot to slot, within a run, and from the map's last key to the keys of the
//!    open run.
//! 2. Items in runs have the keys of their own names, and none is in `displaced`.
//! 3. `len` is the number of items.

use std::any::Any;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::ItemId;

use super::index::KeyIndex;
use super::row::{ItemRef, RowItem, RowRef, SliceRow};
use super::runs::{self, AnyRun};
use super::tree::{CowTree, Weigh};
use crate::items::AnyValue;

mod changes;
mod gaps;
#[cfg(test)]
mod tests;

/// Key of an item in the map: items are in the order of their keys.
pub(crate) type Key = u128;

// Small blocks: a row contains two reference-counted pointers, and a change to a leaf that a view
// shares counts all of its pointers again.
type ByKey = CowTree<Key, Slot, 8, 8>;
/// Keys of items that were inserted before others or moved, by their names.
type DisplacedKeys = CowTree<ItemId, Key, 8, 8>;

#[derive(Clone)]
enum Slot {
    Row(SliceRow),
    /// A run, under the key of its first item.
    Run(Arc<dyn AnyRun>),
}

impl Weigh for Slot {
    fn weight(&self) -> usize {
        match self {
            Slot::Row(_) => 1,
            Slot::Run(run) => run.len(),
        }
    }
}

impl Slot {
    fn rows(&self) -> impl DoubleEndedIterator<Item = RowRef<'_>> {
        let (row, run) = match self {
            Slot::Row(row) => (Some(row.borrow()), None),
            Slot::Run(run) => (None, Some(run.as_ref())),
        };
        row.into_iter().chain(run.into_iter().flat_map(rows_of))
    }
}

fn rows_of<'a>(run: &'a (dyn AnyRun + 'static)) -> impl DoubleEndedIterator<Item = RowRef<'a>> {
    let row = move |at| RowRef { id: run.id(at), version: run.version(), item: ItemRef::InRun(run, at) };
    (0..run.len()).map(row)
}

/// The items of one slice, in order.
#[derive(Clone, Default)]
pub(crate) struct Rows {
    by_key: ByKey,
    displaced: DisplacedKeys,
    /// The last run, to which dispatched values are appended.
    open: Option<Box<dyn AnyRun>>,
    len: usize,
    /// Index by the host's key, for `upsert_by` and `keyed_by`. Views share it until one changes.
    index: Option<Arc<dyn KeyIndex>>,
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Returns the key of an appended item. Ordinals leave 2^32 keys between two neighbours.
fn natural_key(id: ItemId) -> Key {
    (Key::from(id.sequence.get()) << 64) | (Key::from(id.ordinal) << 32)
}

/// Returns which items are in the order of insertion: every item after such an item was inserted
/// later.
fn in_order(ids: impl DoubleEndedIterator<Item = ItemId>) -> Vec<bool> {
    let mut least: Option<ItemId> = None;
    let mut in_order: Vec<bool> = ids
        .rev()
        .map(|id| {
            let in_order = least.is_none_or(|least| id < least);
            least = Some(least.map_or(id, |least| least.min(id)));
            in_order
        })
        .collect();
    in_order.reverse();
    in_order
}

impl Rows {
    pub(crate) fn with_index(index: Option<Box<dyn KeyIndex>>) -> Rows {
        Rows { index: index.map(Arc::from), ..Rows::default() }
    }

    /// Creates an empty slice with the same kind of index.
    pub(crate) fn empty_copy(&self) -> Rows {
        Rows::with_index(self.index.as_ref().map(|index| index.empty_copy()))
    }

    /// Returns the names of the items with the key of `value`. `None` if there is no index.
    pub(crate) fn alike(&self, value: &AnyValue) -> Option<Vec<ItemId>> {
        self.index.as_ref()?.find(value.as_ref())
    }

    /// Returns the name of the last item with a key, `Some(None)` if there is none. `None` if there
    /// is no index, or its keys are of another type.
    pub(crate) fn with_key(&self, key: &dyn Any) -> Option<Option<ItemId>> {
        self.index.as_ref()?.find_key(key)
    }

    /// Applies a change to the index, and drops the index if that fails.
    fn tell_index(&mut self, change: impl FnOnce(&mut dyn KeyIndex) -> bool) {
        let Some(mut index) = self.index.take() else { return };
        if Arc::get_mut(&mut index).is_none() {
            index = Arc::from(index.boxed_clone());
        }
        if let Some(own) = Arc::get_mut(&mut index)
            && change(own)
        {
            self.index = Some(index);
        }
    }

    fn place(&mut self, key: Key, row: SliceRow) {
        self.tell_index(|index| index.insert(row.borrow()));
        self.by_key.insert(key, Slot::Row(row));
        self.len += 1;
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Estimates the bytes of the items when only their names are in memory.
    pub(crate) fn unread_bytes(&self) -> u64 {
        // A slot's share of its block, which may be half full, and of a run.
        const SLOT_BYTES: u64 = 112;
        self.by_key.len() as u64 * SLOT_BYTES
            + self.displaced.len() as u64 * SLOT_BYTES
            + self.len as u64 * 16
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the slot in which an item is, or would be.
    fn slot(&self, id: ItemId) -> Option<(Key, &Slot)> {
        let key = self.displaced.get(&id).copied().unwrap_or_else(|| natural_key(id));
        match self.by_key.get(&key) {
            Some(slot) => Some((key, slot)),
            None => self.by_key.before(&key).map(|(key, slot)| (*key, slot)),
        }
    }

    pub(crate) fn contains(&self, id: ItemId) -> bool {
        match self.slot(id) {
            Some((_, Slot::Row(row))) if row.id == id => true,
            Some((_, Slot::Run(run))) if runs::find(run.as_ref(), id).is_some() => true,
            _ => self.is_in_open(id),
        }
    }

    /// Returns the item of this name. Requires a slice with an index, which has no runs.
    pub(crate) fn indexed_row(&self, id: ItemId) -> Option<RowRef<'_>> {
        match self.slot(id)? {
            (_, Slot::Row(row)) => Some(row.borrow()).filter(|row| row.id == id),
            (_, Slot::Run(_)) => None,
        }
    }

    fn is_in_open(&self, id: ItemId) -> bool {
        self.open.as_deref().is_some_and(|open| runs::find(open, id).is_some())
    }

    /// Splits the run of an item into rows, and returns the item's key.
    fn loosen(&mut self, id: ItemId) -> Option<Key> {
        if self.is_in_open(id) {
            self.seal();
        }
        let run = match self.slot(id)? {
            (key, Slot::Row(row)) => return (row.id == id).then_some(key),
            (_, Slot::Run(run)) => {
                runs::find(run.as_ref(), id)?;
                Arc::clone(run)
            }
        };
        // The first row replaces the run.
        for at in 0..run.len() {
            let (id, version) = (run.id(at), run.version());
            let item = RowItem::InRun(Arc::clone(&run), at);
            self.by_key.insert(natural_key(id), Slot::Row(SliceRow { id, version, item }));
        }
        Some(natural_key(id))
    }

    /// Closes the open run: nothing more is appended to it.
    fn seal(&mut self) {
        if let Some(run) = self.open.take() {
            self.by_key.insert(natural_key(run.id(0)), Slot::Run(Arc::from(run)));
        }
    }

    pub(crate) fn remove(&mut self, id: ItemId) {
        let Some(key) = self.loosen(id) else { return };
        if let Some(Slot::Row(row)) = self.by_key.remove(&key) {
            self.tell_index(|index| index.remove(row.borrow()));
            self.len -= 1;
        }
        if !self.displaced.is_empty() {
            self.displaced.remove(&id);
        }
    }

    /// Removes an item and appends a new one. Its name must be higher than all before.
    pub(crate) fn exchange(&mut self, id: ItemId, row: SliceRow) {
        let removed = self.loosen(id).and_then(|key| self.by_key.remove(&key));
        self.seal();
        match removed {
            Some(Slot::Row(old)) => self.tell_index(|index| index.exchange(old.borrow(), row.borrow())),
            _ => {
                self.tell_index(|index| index.insert(row.borrow()));
                self.len += 1;
            }
        }
        self.by_key.insert(natural_key(row.id), Slot::Row(row));
        if !self.displaced.is_empty() {
            self.displaced.remove(&id);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = self.empty_copy();
    }

    /// Appends an item. Its name must be higher than all before.
    pub(crate) fn push(&mut self, row: SliceRow) {
        self.seal();
        self.place(natural_key(row.id), row);
    }

    /// Appends the value in `value` as the first item of its record. Its name must be higher than
    /// all before. Does nothing if `value` is `None`.
    #[inline]
    pub(crate) fn push_value<T: Send + Sync + 'static>(
        &mut self,
        sequence: SequenceNumber,
        version: u32,
        value: &mut Option<T>,
    ) {
        match self.open.as_deref_mut().and_then(|open| runs::room(open, version)) {
            Some(room) => {
                let Some(value) = value.take() else { return };
                room.push(sequence, value);
                self.len += 1;
            }
            None => {
                let Some(value) = value.take() else { return };
                self.push_value_elsewhere(sequence, version, value);
            }
        }
    }

    /// Appends a value that the open run does not take. If a view shares that run, the next one
    /// starts only after a block of rows: if this happens repeatedly, runs of one item would cost
    /// more than rows.
    #[cold]
    fn push_value_elsewhere<T: Send + Sync + 'static>(
        &mut self,
        sequence: SequenceNumber,
        version: u32,
        value: T,
    ) {
        let many = self.open.as_ref().is_some_and(|open| open.is_only());
        self.seal();
        let is_due = many || self.by_key.is_empty() || self.by_key.is_tail_full();
        if self.index.is_none() && runs::is_for::<T>() && is_due {
            self.open = Some(runs::begin(sequence, version, value, many));
            self.len += 1;
            return;
        }
        let id = ItemId { sequence, ordinal: 0 };
        self.place(natural_key(id), SliceRow { id, version, item: RowItem::Typed(Arc::new(value)) });
    }

    /// Appends a shared value. Its name must be higher than all before. The row is written in its
    /// place directly from registers: a processor that reads bytes that it has just written in
    /// smaller pieces has to wait until all of them are written out.
    #[inline]
    pub(crate) fn push_shared(&mut self, id: ItemId, version: u32, value: AnyValue) {
        let key = natural_key(id);
        let is_plain = self.index.is_none() && self.open.is_none();
        match if is_plain { self.by_key.room_behind(&key) } else { None } {
            Some(room) => {
                room.push(key, Slot::Row(SliceRow { id, version, item: RowItem::Typed(value) }));
                self.len += 1;
            }
            None => self.push(SliceRow { id, version, item: RowItem::Typed(value) }),
        }
    }

    /// Keeps only this item. Reuses the memory of the item before if no view shares it.
    pub(crate) fn hold_only(&mut self, row: SliceRow) {
        if self.index.is_some() || !self.displaced.is_empty() {
            self.clear();
            self.push(row);
            return;
        }
        self.open = None;
        self.by_key.hold_only(natural_key(row.id), Slot::Row(row));
        self.len = 1;
    }

    /// Appends items in any order to an empty slice. Items that a reducer once inserted before
    /// older ones get their keys from the items that they precede, as they did then.
    pub(crate) fn with_unordered<T>(
        mut self,
        items: &[T],
        id: impl Fn(&T) -> ItemId,
        mut append: impl FnMut(&mut Rows, &T) -> crate::error::Result<()>,
        row: impl Fn(&T) -> crate::error::Result<SliceRow>,
    ) -> crate::error::Result<Rows> {
        let in_order = in_order(items.iter().map(&id));
        for (item, _) in items.iter().zip(&in_order).filter(|(_, in_order)| **in_order) {
            append(&mut self, item)?;
        }
        let mut before = Vec::new();
        for (item, in_order) in items.iter().zip(in_order) {
            match in_order {
                true if before.is_empty() => {}
                true => self.insert_before(id(item), std::mem::take(&mut before)),
                false => before.push(row(item)?),
            }
        }
        Ok(self)
    }

    /// Returns the same items in the same order. Replaces items outside of runs by the results of
    /// `make`.
    pub(crate) fn map<E>(&self, make: impl Fn(RowRef<'_>) -> Result<SliceRow, E>) -> Result<Rows, E> {
        let mut by_key = CowTree::default();
        for (key, slot) in self.by_key.iter() {
            let slot = match slot {
                Slot::Row(row) => Slot::Row(make(row.borrow())?),
                Slot::Run(run) => Slot::Run(Arc::clone(run)),
            };
            by_key.insert(*key, slot);
        }
        Ok(Rows { by_key, ..self.clone() })
    }

    /// Returns items of the same names in the same order, each replaced by the result of `make`,
    /// without an index.
    pub(crate) fn remade<E>(&self, make: impl Fn(RowRef<'_>) -> Result<SliceRow, E>) -> Result<Rows, E> {
        let mut by_key = CowTree::default();
        for (key, slot) in self.by_key.iter() {
            for row in slot.rows() {
                let key = if matches!(slot, Slot::Run(_)) { natural_key(row.id) } else { *key };
                by_key.insert(key, Slot::Row(make(row)?));
            }
        }
        for row in self.open.as_deref().into_iter().flat_map(rows_of) {
            by_key.insert(natural_key(row.id), Slot::Row(make(row)?));
        }
        Ok(Rows { by_key, displaced: self.displaced.clone(), open: None, len: self.len, index: None })
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = RowRef<'_>> {
        let closed = self.by_key.iter().flat_map(|(_, slot)| slot.rows());
        closed.chain(self.open.as_deref().into_iter().flat_map(rows_of))
    }

    /// Returns the item at `place`, counted from 0. Takes time proportional to the logarithm of the
    /// number of items.
    pub(crate) fn nth(&self, place: usize) -> Option<RowRef<'_>> {
        let open = self.open.as_deref().filter(|_| place < self.len);
        let in_open = open.and_then(|open| Some((open, place.checked_sub(self.len - open.len())?)));
        if let Some((open, at)) = in_open {
            return rows_of(open).nth(at);
        }
        let (slot, at) = self.by_key.nth(place)?;
        match slot {
            Slot::Row(row) => Some(row.borrow()),
            Slot::Run(run) => rows_of(run.as_ref()).nth(at),
        }
    }

    pub(crate) fn last(&self) -> Option<RowRef<'_>> {
        self.iter().next_back()
    }

    /// Returns the last `count` items.
    pub(crate) fn tail(&self, count: usize) -> Rows {
        let mut tail = Rows::default();
        // Appended in order, since appending is fastest.
        let rows: Vec<RowRef<'_>> = self.iter().rev().take(count).collect();
        for row in rows.into_iter().rev() {
            let displaced = self.displaced.get(&row.id).copied();
            if let Some(key) = displaced {
                tail.displaced.insert(row.id, key);
            }
            tail.place(displaced.unwrap_or_else(|| natural_key(row.id)), row.to_row());
        }
        tail
    }
}

/// The value of an event that is being folded.
pub(crate) trait NewValue {
    /// Appends the value as the first item of its record. Its name must be higher than all before.
    fn push(self, rows: &mut Rows, id: ItemId, version: u32);
    /// Returns the value in a reference-counted handle.
    fn shared(self) -> Option<AnyValue>;
}

impl NewValue for AnyValue {
    #[inline]
    fn push(self, rows: &mut Rows, id: ItemId, version: u32) {
        rows.push_shared(id, version, self);
    }

    fn shared(self) -> Option<AnyValue> {
        Some(self)
    }
}

/// Owns the value, so that a run can store it. The value is taken out only when its place is known:
/// otherwise it would move from call to call, and be read each time before it is written out.
pub(crate) struct OwnedValue<'a, T>(pub(crate) &'a mut Option<T>);

impl<T: Send + Sync + 'static> NewValue for OwnedValue<'_, T> {
    #[inline]
    fn push(self, rows: &mut Rows, id: ItemId, version: u32) {
        rows.push_value(id.sequence, version, self.0);
    }

    fn shared(self) -> Option<AnyValue> {
        Some(Arc::new(self.0.take()?))
    }
}

/// Returns the key of the last item of a slot that is under `key`.
fn last_key(key: Key, slot: &Slot) -> Key {
    match slot {
        Slot::Row(_) => key,
        Slot::Run(run) => natural_key(run.id(run.len().saturating_sub(1))),
    }
}

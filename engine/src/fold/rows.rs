//! The items of one slice.
//!
//! A persistent ordered map, so that a clone costs the same at ten items and at ten million and shares what
//! did not change. Items appended take a key from their own name, which only grows, and so stand in order of
//! insertion. Items that a reducer put before others take keys in the gap between their neighbours; these few
//! are remembered by name in a second map.

use std::sync::Arc;

use foldlog_codec::body::ItemId;

use super::index::KeyIndex;
use super::tree::Tree;
use crate::types::AnyValue;

type Key = u128;

// Small blocks: a row holds two counted pointers, and a change next to a view counts all those of a leaf.
type ByKey = Tree<Key, Row, 8, 8>;
type Displaced = Tree<ItemId, Key, 8, 8>;

/// One item.
#[derive(Clone)]
pub(crate) struct Row {
    pub(crate) id: ItemId,
    /// The version that the bytes were recorded at.
    pub(crate) version: u32,
    pub(crate) item: RowItem,
}

/// What is held of an item.
#[derive(Clone)]
pub(crate) enum RowItem {
    /// Its own MessagePack, where its type is not known.
    Bytes(Arc<[u8]>),
    /// The host's value. Its MessagePack is read from the log when it is asked for, which is seldom.
    Typed(AnyValue),
}

impl Row {
    pub(crate) fn bytes(&self) -> Option<&Arc<[u8]>> {
        match &self.item {
            RowItem::Bytes(bytes) => Some(bytes),
            RowItem::Typed(_) => None,
        }
    }

    pub(crate) fn typed(&self) -> Option<&AnyValue> {
        match &self.item {
            RowItem::Bytes(_) => None,
            RowItem::Typed(value) => Some(value),
        }
    }
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.id.sequence, self.id.ordinal)
    }
}

/// The items of one slice, in order.
pub(crate) struct Rows {
    by_key: ByKey,
    displaced: Displaced,
    /// By the host's key, where an `upsert_by` asks for it. Shared with the views until one changes.
    index: Option<Arc<dyn KeyIndex>>,
}

impl Default for Rows {
    fn default() -> Self {
        Rows::indexed(None)
    }
}

impl Clone for Rows {
    fn clone(&self) -> Self {
        Rows { by_key: self.by_key.clone(), displaced: self.displaced.clone(), index: self.index.clone() }
    }
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The key of an item that was appended. Ordinals leave 2^32 keys between two neighbours.
fn natural_key(id: ItemId) -> Key {
    (Key::from(id.sequence) << 64) | (Key::from(id.ordinal) << 32)
}

impl Rows {
    /// No items, with an index that will take them in.
    pub(crate) fn indexed(index: Option<Box<dyn KeyIndex>>) -> Rows {
        Rows { by_key: Tree::default(), displaced: Tree::default(), index: index.map(Arc::from) }
    }

    /// No items, indexed as these are.
    pub(crate) fn emptied(&self) -> Rows {
        Rows::indexed(self.index.as_ref().map(|index| index.emptied()))
    }

    /// The names of the items whose key is that of `value`; `None` where there is no index to ask.
    pub(crate) fn alike(&self, value: &AnyValue) -> Option<Vec<ItemId>> {
        self.index.as_ref()?.find(value)
    }

    /// Has the index take part in a change. One that cannot is given up.
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

    fn place(&mut self, key: Key, row: Row) {
        self.tell_index(|index| index.insert(&row));
        self.by_key.insert(key, row);
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    fn key(&self, id: ItemId) -> Option<Key> {
        let key = self.displaced.get(&id).copied().unwrap_or_else(|| natural_key(id));
        self.by_key.get(&key).filter(|row| row.id == id).map(|_| key)
    }

    pub(crate) fn contains(&self, id: ItemId) -> bool {
        self.key(id).is_some()
    }

    pub(crate) fn remove(&mut self, id: ItemId) {
        let Some(key) = self.key(id) else { return };
        if let Some(row) = self.by_key.remove(&key) {
            self.tell_index(|index| index.remove(&row));
        }
        if !self.displaced.is_empty() {
            self.displaced.remove(&id);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = self.emptied();
    }

    /// Appends an item, whose name must be behind all names before.
    pub(crate) fn push(&mut self, row: Row) {
        self.place(natural_key(row.id), row);
    }

    /// As [`push`](Rows::push), of a host's value. The row is made where it is to stand, out of what is in registers:
    /// a processor that reads what it has just written, but in larger pieces, waits until all that it wrote before is
    /// written out.
    #[inline]
    pub(crate) fn push_value(&mut self, id: ItemId, version: u32, value: AnyValue) {
        let key = natural_key(id);
        let room = if self.index.is_none() { self.by_key.room_behind(&key) } else { None };
        match room {
            Some(room) => room.push(key, Row { id, version, item: RowItem::Typed(value) }),
            None => self.push(Row { id, version, item: RowItem::Typed(value) }),
        }
    }

    /// Holds one item and no other, in the memory of the one before where no view shares it.
    pub(crate) fn hold_only(&mut self, row: Row) {
        if self.index.is_some() || !self.displaced.is_empty() {
            self.clear();
            self.push(row);
            return;
        }
        self.by_key.hold_only(natural_key(row.id), row);
    }

    /// Puts items before the item `anchor`.
    pub(crate) fn insert_before(&mut self, anchor: ItemId, rows: Vec<Row>) {
        let room = |rows_len: usize, below: Key, above: Key| (above - below) / (rows_len as Key + 1);
        let Some(mut above) = self.key(anchor) else { return };
        let mut below = self.below(above);
        if room(rows.len(), below, above) == 0 {
            self.spread();
            above = self.key(anchor).unwrap_or(above);
            below = self.below(above);
        }
        let step = room(rows.len(), below, above);
        let mut key = below;
        for row in rows {
            key += step;
            self.displaced.insert(row.id, key);
            self.place(key, row);
        }
    }

    fn below(&self, key: Key) -> Key {
        self.by_key.before(&key).map_or(0, |(below, _)| *below)
    }

    /// Gives all items keys that stand evenly apart, where insertions have used up a gap. The last key stays,
    /// so that what is appended later still stands behind.
    fn spread(&mut self) {
        let last = self.by_key.last().map_or(0, |(key, _)| *key);
        let step = last / (self.by_key.len() as Key).max(1);
        let mut spread = Rows::default();
        let mut key = last - step * (self.by_key.len() as Key).saturating_sub(1);
        for row in self.iter() {
            spread.displaced.insert(row.id, key);
            spread.by_key.insert(key, row.clone());
            key += step;
        }
        // The same items by the same names, so the index stays as it is.
        spread.index = self.index.take();
        *self = spread;
    }

    /// The same items in the same order, each made anew.
    pub(crate) fn map<E>(&self, make: impl Fn(&Row) -> Result<Row, E>) -> Result<Rows, E> {
        let mut by_key = Tree::default();
        for (key, row) in self.by_key.iter() {
            by_key.insert(*key, make(row)?);
        }
        Ok(Rows { by_key, ..self.clone() })
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Row> {
        self.by_key.iter().map(|(_, row)| row)
    }

    pub(crate) fn last(&self) -> Option<&Row> {
        self.by_key.last().map(|(_, row)| row)
    }

    /// The last `count` items.
    pub(crate) fn tail(&self, count: usize) -> Rows {
        let mut tail = Rows::default();
        // Put in as they stand, since what comes behind all others is put in fastest.
        let entries: Vec<(&Key, &Row)> = self.by_key.iter().rev().take(count).collect();
        for (key, row) in entries.into_iter().rev() {
            if natural_key(row.id) != *key {
                tail.displaced.insert(row.id, *key);
            }
            tail.by_key.insert(*key, row.clone());
        }
        tail
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::Generator;

    fn row(sequence: u64, ordinal: u32) -> Row {
        Row { id: ItemId { sequence, ordinal }, version: 1, item: RowItem::Bytes(Arc::from([])) }
    }

    fn ids(rows: &Rows) -> Vec<(u64, u32)> {
        rows.iter().map(|row| (row.id.sequence, row.id.ordinal)).collect()
    }

    #[test]
    fn items_stand_in_order_and_views_stay_as_they_were() {
        let mut rows = Rows::default();
        for sequence in 1..=4 {
            rows.push(row(sequence, 0));
        }
        let view = rows.clone();
        rows.remove(ItemId { sequence: 2, ordinal: 0 });
        rows.insert_before(ItemId { sequence: 3, ordinal: 0 }, vec![row(5, 0), row(5, 1)]);
        rows.push(row(6, 0));
        assert_eq!(ids(&rows), [(1, 0), (5, 0), (5, 1), (3, 0), (4, 0), (6, 0)]);
        assert_eq!(ids(&view), [(1, 0), (2, 0), (3, 0), (4, 0)]);
        assert_eq!(ids(&rows.tail(2)), [(4, 0), (6, 0)]);
    }

    #[test]
    fn a_gap_that_is_used_up_is_made_anew() {
        let mut rows = Rows::default();
        rows.push(row(1, 0));
        rows.push(row(2, 0));
        let mut wanted = vec![(1, 0), (2, 0)];
        let mut anchor = ItemId { sequence: 2, ordinal: 0 };
        // Always before the item put in last: the gap halves each time.
        for sequence in 3..400 {
            rows.insert_before(anchor, vec![row(sequence, 0)]);
            wanted.insert(1, (sequence, 0));
            anchor = ItemId { sequence, ordinal: 0 };
        }
        rows.push(row(400, 0));
        wanted.push((400, 0));
        assert_eq!(ids(&rows), wanted);
        for (sequence, ordinal) in wanted {
            assert!(rows.contains(ItemId { sequence, ordinal }));
            rows.remove(ItemId { sequence, ordinal });
        }
        assert!(rows.is_empty());
    }

    #[test]
    fn rows_are_the_list_that_they_stand_for() {
        for seed in 0..30 {
            let mut numbers = Generator::from_seed(seed);
            let mut rows = Rows::default();
            let mut wanted: Vec<(u64, u32)> = Vec::new();
            let mut views = Vec::new();
            for sequence in 1..400 {
                let at = numbers.below(wanted.len() as u64) as usize;
                match (numbers.below(10), wanted.get(at).copied()) {
                    (0..4, Some((anchor, ordinal))) => {
                        // Often before the same item, so that gaps are used up.
                        let added = 1 + numbers.below(3) as u32;
                        let new: Vec<Row> = (0..added).map(|ordinal| row(sequence, ordinal)).collect();
                        rows.insert_before(ItemId { sequence: anchor, ordinal }, new);
                        wanted.splice(at..at, (0..added).map(|ordinal| (sequence, ordinal)));
                    }
                    (4..7, Some((sequence, ordinal))) => {
                        rows.remove(ItemId { sequence, ordinal });
                        assert!(!rows.contains(ItemId { sequence, ordinal }));
                        wanted.remove(at);
                    }
                    _ => {
                        rows.push(row(sequence, 0));
                        wanted.push((sequence, 0));
                    }
                }
                if numbers.below(20) == 0 {
                    views.push((rows.clone(), wanted.clone()));
                }
                assert_eq!(ids(&rows), wanted);
                assert_eq!(rows.len(), wanted.len());
                assert_eq!(rows.last().map(|row| (row.id.sequence, row.id.ordinal)), wanted.last().copied());
                assert_eq!(ids(&rows.tail(5)), wanted[wanted.len().saturating_sub(5)..]);
            }
            views.iter().for_each(|(view, wanted)| assert_eq!(ids(view), *wanted));
        }
    }
}

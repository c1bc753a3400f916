//! Inserts items before others, with keys from the gaps between their neighbours.
//!
//! A new key is taken from one end of the gap between its neighbours: from the end of the newer
//! one, since the next item is most often inserted next to the last one. So a list that keeps the
//! newest item first, or one that grows in front of a last item, uses up a gap only after millions
//! of items. When a gap is used up, the keys around it are spread evenly again. For that, ranges
//! around the gap are tried, each twice as large as the one before, until one is so sparse that
//! each half of it takes many more items before it is too full again. So only a few items move for
//! each insertion, in any order.

use foldlog_codec::body::ItemId;

use super::{Key, Rows, SliceRow, Slot, last_key};

/// Share of a gap that new items take, as a right shift.
const SHARE: u32 = 16;

/// Factor by which the maximum number of items grows when a range doubles: 4/3. With 2, all ranges
/// could be equally full.
const DENSITY: (u128, u128) = (4, 3);

/// A range of keys, with its items.
struct KeyRange {
    low: Key,
    /// Number of keys in the range.
    keys: Key,
    rows: Vec<(Key, SliceRow)>,
}

impl Rows {
    /// Inserts items before the item `anchor`.
    pub(crate) fn insert_before(&mut self, anchor: ItemId, rows: Vec<SliceRow>) {
        let Some(above) = self.loosen(anchor) else { return };
        let below = self.by_key.before(&above);
        let newest = below.and_then(|(_, slot)| slot.rows().next_back()).map(|row| row.id);
        let below = below.map_or(0, |(key, slot)| last_key(*key, slot));
        let (gap, count) = (above - below, rows.len() as Key);
        if gap <= count {
            return self.spread_with(above, rows);
        }
        let step = ((gap >> SHARE) / count.max(1)).max(1);
        let mut key = match newest {
            Some(id) if id > anchor => below + step,
            _ => above - step * count,
        };
        for row in rows {
            self.displaced.insert(row.id, key);
            self.place(key, row);
            key += step;
        }
    }

    /// Inserts items before the one at `at`, which does not have enough keys before it, by
    /// spreading the keys around it.
    fn spread_with(&mut self, at: Key, mut new: Vec<SliceRow>) {
        let KeyRange { low, keys, rows } = self.range_around(at, new.len());
        let behind = rows.partition_point(|(key, _)| *key < at);
        for (key, _) in &rows {
            self.by_key.remove(key);
        }
        let new_ids: Vec<ItemId> = new.iter().map(|row| row.id).collect();
        for row in &new {
            self.tell_index(|index| index.insert(row.borrow()));
        }
        self.len += new_ids.len();
        let mut all: Vec<SliceRow> = rows.into_iter().map(|(_, row)| row).collect();
        all.splice(behind..behind, new.drain(..));
        let step = (keys / (all.len() as Key + 1)).max(1);
        let mut key = low;
        for row in all {
            key += step;
            self.displaced.insert(row.id, key);
            self.by_key.insert(key, Slot::Row(row));
        }
    }

    /// Returns the smallest range of keys around `at` that is not too full after `more` items are
    /// inserted.
    fn range_around(&mut self, at: Key, more: usize) -> KeyRange {
        self.seal();
        // Items that are appended later must come after all keys that are assigned now.
        let last = self.by_key.last().map_or(0, |(key, slot)| last_key(*key, slot));
        // For a range of one key, in units of 2^-32 items.
        let mut most: u128 = 1 << 32;
        for durability in 1..Key::BITS {
            most = most / DENSITY.1 * DENSITY.0;
            let low = at >> durability << durability;
            let high = low.saturating_add((1 << durability) - 1).min(last);
            let keys = high - low + 1;
            // A range that ends at the last key counts with its own size, not with that of its
            // whole power of two.
            let allowed = if keys >> durability == 0 { most_of(keys) } else { most >> 32 };
            if allowed > more as Key
                && let Some(rows) = self.rows_within(low, high, (allowed - more as Key) as usize)
            {
                return KeyRange { low, keys, rows };
            }
        }
        let rows = self.rows_within(0, last, usize::MAX).unwrap_or_default();
        KeyRange { low: 0, keys: last, rows }
    }

    /// Returns the items whose keys are in a range, and splits all runs in it. `None` if there are
    /// more than `most` items.
    fn rows_within(&mut self, low: Key, high: Key, most: usize) -> Option<Vec<(Key, SliceRow)>> {
        let mut rows = Vec::new();
        let mut end = high.saturating_add(1);
        while let Some((key, slot)) = self.by_key.before(&end) {
            match slot {
                Slot::Row(_) if *key < low => break,
                Slot::Row(row) => {
                    rows.push((*key, row.clone()));
                    end = *key;
                    if rows.len() > most {
                        return None;
                    }
                }
                Slot::Run(_) if last_key(*key, slot) < low => break,
                Slot::Run(run) => {
                    let first = run.id(0);
                    self.loosen(first);
                }
            }
        }
        rows.reverse();
        Some(rows)
    }
}

/// Returns the maximum number of items in a range of `keys` keys.
fn most_of(keys: Key) -> Key {
    let mut most: u128 = 1 << 32;
    for _ in 0..keys.ilog2() {
        most = most / DENSITY.1 * DENSITY.0;
    }
    most >> 32
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{RowItem, RowRef, natural_key};
    use super::*;
    use crate::generator::Generator;

    fn row(sequence: u64) -> SliceRow {
        SliceRow { id: id(sequence), version: 1, item: RowItem::Bytes(Arc::from([])) }
    }

    fn id(sequence: u64) -> ItemId {
        ItemId { sequence: sequence.into(), ordinal: 0 }
    }

    /// Returns the number of items with changed keys.
    fn moved(before: &Rows, after: &Rows) -> u64 {
        let mut moved = 0;
        let _ = after.by_key.differences(&before.by_key, &mut |_, now, then| {
            moved += u64::from(now.is_some() && then.is_none());
            std::ops::ControlFlow::Continue(())
        });
        moved
    }

    /// Inserts items, each before the anchor that `place` returns, and returns the number of
    /// assigned keys per item.
    fn keys_given(count: u64, place: impl Fn(u64, &Rows) -> u64) -> f64 {
        let mut rows = Rows::default();
        (1..=4).for_each(|sequence| rows.push(row(sequence)));
        let mut given = 0;
        for sequence in 5..5 + count {
            let before = rows.clone();
            let anchor = place(sequence, &rows);
            rows.insert_before(id(anchor), vec![row(sequence)]);
            given += moved(&before, &rows);
        }
        assert_eq!(rows.len() as u64, 4 + count);
        given as f64 / count as f64
    }

    /// Newest-first lists took time with the square of their length: all keys were spread again
    /// each time that 80 items had been inserted in front.
    #[test]
    fn an_item_that_is_put_before_others_moves_few_of_them() {
        let first = |rows: &Rows| rows.iter().next().map_or(0, |row| row.id.sequence.get());
        assert_eq!(keys_given(20_000, |_, rows| first(rows)), 1.0, "the newest first");
        assert_eq!(keys_given(20_000, |_, _| 4), 1.0, "before the last");
        assert_eq!(keys_given(20_000, |_, _| 3), 1.0, "before one in the middle");
        // Alternately at both sides of a gap, which is the worst case.
        let both = keys_given(20_000, |sequence, _| match sequence {
            5 => 3,
            sequence if sequence % 2 == 0 => 3,
            sequence => sequence - 2,
        });
        assert!(both < 20.0, "{both}");
    }

    #[test]
    fn any_order_of_insertions_is_the_list_that_it_stands_for_and_moves_few_items() {
        for seed in 0..4 {
            let mut numbers = Generator::from_seed(seed);
            let mut rows = Rows::default();
            rows.push(row(1));
            let (mut wanted, mut given) = (vec![1_u64], 0);
            for sequence in 2..3_000 {
                // Mostly around a few places.
                let at = match numbers.next_below(4) {
                    0 => numbers.next_below(wanted.len() as u64) as usize,
                    _ => (wanted.len() / 2).saturating_sub(numbers.next_below(3) as usize),
                };
                let before = rows.clone();
                rows.insert_before(id(wanted[at]), vec![row(sequence)]);
                given += moved(&before, &rows);
                wanted.insert(at, sequence);
            }
            rows.push(row(3_000));
            wanted.push(3_000);
            assert!(rows.iter().map(|row: RowRef<'_>| row.id.sequence).eq(wanted.iter().copied()));
            assert!(given < 3_000 * 20, "{given} keys for 3,000 items");
        }
    }

    #[test]
    fn more_items_than_a_gap_has_keys_are_put_in_at_once() {
        let mut rows = Rows::default();
        (1..=200).for_each(|sequence| rows.push_value(sequence.into(), 1, &mut Some(sequence)));
        rows.insert_before(ItemId { sequence: 100.into(), ordinal: 0 }, vec![row(300)]);
        // Two neighbours with no keys between them.
        let key = natural_key(id(100));
        let at = rows.displaced.get(&id(300)).copied().unwrap();
        rows.by_key.remove(&at);
        rows.by_key.insert(key - 1, Slot::Row(row(300)));
        rows.displaced.insert(id(300), key - 1);
        rows.insert_before(id(100), (400..500).map(row).collect());
        let wanted = (1..100).chain([300]).chain(400..500).chain(100..=200);
        assert!(rows.iter().map(|row| row.id.sequence).eq(wanted));
        assert_eq!(rows.len(), 301);
        assert!((1..=200).chain([300]).chain(400..500).all(|sequence| rows.contains(id(sequence))));
    }
}

//! Key indexes: maps from keys to the items of a slice, for `upsert_by` and `keyed_by`.

use std::any::Any;
use std::borrow::Borrow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use foldlog_codec::body::ItemId;

use super::row::RowRef;
use super::runs::Value;
use super::tree::{CowTree, Weigh};

/// Indexes the items of one slice by a key that the host computes. Views share it as they share the
/// items.
///
/// A panic in the key function makes the index useless, but the fold continues: the methods then
/// return `None` or `false`, and the slice drops the index.
pub(crate) trait KeyIndex: Send + Sync {
    /// Returns the names of the items with the key of `value`, in ascending order.
    fn find(&self, value: &Value) -> Option<Vec<ItemId>>;
    /// Returns the last of the items with a key, `Some(None)` if there is none. `None` if the keys
    /// are of another type.
    fn find_key(&self, key: &dyn Any) -> Option<Option<ItemId>>;
    /// Adds an item. Returns `false` if it has no key.
    fn insert(&mut self, row: RowRef<'_>) -> bool;
    /// Removes an item. Returns `false` if it has no key.
    fn remove(&mut self, row: RowRef<'_>) -> bool;
    /// Replaces an item by a new one. This is faster than two steps if they have the same key.
    /// Returns `false` if one of them has no key.
    fn exchange(&mut self, old: RowRef<'_>, new: RowRef<'_>) -> bool;
    /// Creates an empty index with the same key function.
    fn empty_copy(&self) -> Box<dyn KeyIndex>;
    fn boxed_clone(&self) -> Box<dyn KeyIndex>;
}

pub(crate) type KeyFn<T, K> = Arc<dyn Fn(&T) -> K + Send + Sync>;

pub(crate) struct Keys<T, K: Ord> {
    key_of: KeyFn<T, K>,
    ids: CowTree<IndexKey<K>, ItemIds, 16, 8>,
}

/// A key in the tree. Cloning a block clones many keys, so keys that own memory are
/// reference-counted. All keys of one type are of one variant, so the derived order is that of `K`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum IndexKey<K> {
    Plain(K),
    Counted(Arc<K>),
}

impl<K> IndexKey<K> {
    fn new(key: K) -> IndexKey<K> {
        if std::mem::needs_drop::<K>() { IndexKey::Counted(Arc::new(key)) } else { IndexKey::Plain(key) }
    }
}

impl<K> Borrow<K> for IndexKey<K> {
    fn borrow(&self) -> &K {
        match self {
            IndexKey::Plain(key) => key,
            IndexKey::Counted(key) => key,
        }
    }
}

/// The items of one key. There is rarely more than one, and one item needs no allocation.
#[derive(Clone)]
enum ItemIds {
    One(ItemId),
    Many(Arc<[ItemId]>),
}

impl Weigh for ItemIds {}

impl ItemIds {
    fn as_slice(&self) -> &[ItemId] {
        match self {
            ItemIds::One(id) => std::slice::from_ref(id),
            ItemIds::Many(ids) => ids,
        }
    }

    fn from_ids(ids: impl Iterator<Item = ItemId>) -> Option<ItemIds> {
        let mut ids: Vec<ItemId> = ids.collect();
        ids.sort_unstable();
        match ids.as_slice() {
            [] => None,
            [id] => Some(ItemIds::One(*id)),
            ids => Some(ItemIds::Many(Arc::from(ids))),
        }
    }

    fn with(&self, id: ItemId) -> Option<ItemIds> {
        ItemIds::from_ids(self.as_slice().iter().copied().chain([id]))
    }

    fn without(&self, id: ItemId) -> Option<ItemIds> {
        match self {
            ItemIds::One(only) if *only == id => None,
            ids => ItemIds::from_ids(ids.as_slice().iter().copied().filter(|present| *present != id)),
        }
    }
}

impl<T: 'static, K: Ord + Clone + Send + Sync + 'static> Keys<T, K> {
    pub(crate) fn new(key_of: KeyFn<T, K>) -> Keys<T, K> {
        Keys { key_of, ids: CowTree::default() }
    }

    fn key(&self, value: &Value) -> Option<K> {
        let value = value.downcast_ref()?;
        catch_unwind(AssertUnwindSafe(|| (self.key_of)(value))).ok()
    }

    fn ids_of(&self, key: &K) -> &[ItemId] {
        self.ids.get(key).map(ItemIds::as_slice).unwrap_or_default()
    }

    fn key_of_row(&self, row: RowRef<'_>) -> Option<K> {
        self.key(row.typed_value()?)
    }
}

impl<T: 'static, K: Ord + Clone + Send + Sync + 'static> KeyIndex for Keys<T, K> {
    fn find(&self, value: &Value) -> Option<Vec<ItemId>> {
        Some(self.ids_of(&self.key(value)?).to_vec())
    }

    fn find_key(&self, key: &dyn Any) -> Option<Option<ItemId>> {
        Some(self.ids_of(key.downcast_ref::<K>()?).last().copied())
    }

    fn insert(&mut self, row: RowRef<'_>) -> bool {
        let Some(key) = self.key_of_row(row).map(IndexKey::new) else { return false };
        if let Some(ids) = self.ids.insert(key.clone(), ItemIds::One(row.id)).and_then(|ids| ids.with(row.id))
        {
            self.ids.insert(key, ids);
        }
        true
    }

    fn remove(&mut self, row: RowRef<'_>) -> bool {
        let Some(key) = self.key_of_row(row) else { return false };
        if let Some(ids) = self.ids.remove(&key).and_then(|ids| ids.without(row.id)) {
            self.ids.insert(IndexKey::new(key), ids);
        }
        true
    }

    fn exchange(&mut self, old: RowRef<'_>, new: RowRef<'_>) -> bool {
        let (Some(before), Some(after)) = (self.key_of_row(old), self.key_of_row(new)) else { return false };
        if before == after
            && let Some(ItemIds::One(only)) = self.ids.get_mut(&after)
            && *only == old.id
        {
            *only = new.id;
            return true;
        }
        self.remove(old) && self.insert(new)
    }

    fn empty_copy(&self) -> Box<dyn KeyIndex> {
        Box::new(Keys::new(Arc::clone(&self.key_of)))
    }

    fn boxed_clone(&self) -> Box<dyn KeyIndex> {
        Box::new(Keys { key_of: Arc::clone(&self.key_of), ids: self.ids.clone() })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::row::{RowItem, SliceRow};
    use super::super::rows::Rows;
    use super::*;
    use crate::generator::Generator;
    use crate::items::AnyValue;

    fn row(sequence: u64, value: u64) -> SliceRow {
        let id = ItemId { sequence: sequence.into(), ordinal: 0 };
        SliceRow { id, version: 1, item: RowItem::Typed(Arc::new(value)) }
    }

    /// Upserts alternate with plain items, and some items share a key.
    fn run<K: Ord + Clone + Send + Sync + 'static>(key_of: fn(&u64) -> K) {
        let mut numbers = Generator::from_seed(3);
        let mut rows = Rows::with_index(Some(Box::new(Keys::new(Arc::new(key_of)))));
        let mut wanted: BTreeMap<u64, Vec<ItemId>> = BTreeMap::new();
        let mut views = Vec::new();
        let alike = |rows: &Rows, value: u64| rows.alike(&(Arc::new(value) as AnyValue));
        for sequence in 1..2_000 {
            let value = numbers.next_below(150);
            let named = wanted.entry(value).or_default();
            if numbers.next_below(3) == 0 && !named.is_empty() {
                rows.remove(named.swap_remove(0));
                named.sort_unstable();
            } else if let ([only], true) = (named.as_slice(), numbers.next_below(2) == 0) {
                rows.exchange(*only, row(sequence, value));
                *named = vec![ItemId { sequence: sequence.into(), ordinal: 0 }];
                continue;
            } else if numbers.next_below(3) > 0 {
                alike(&rows, value).into_iter().flatten().for_each(|id| rows.remove(id));
                named.clear();
            }
            rows.push(row(sequence, value));
            named.push(ItemId { sequence: sequence.into(), ordinal: 0 });
            if sequence % 100 == 0 {
                views.push((rows.clone(), wanted.clone()));
            }
        }
        views.push((rows, wanted));
        for (view, wanted) in &views {
            for value in 0..151 {
                let ids = wanted.get(&value).cloned().unwrap_or_default();
                assert_eq!(alike(view, value), Some(ids), "items alike {value}");
            }
            assert_eq!(view.len(), wanted.values().map(Vec::len).sum::<usize>());
            assert_eq!(alike(&view.empty_copy(), 1), Some(Vec::new()));
        }
    }

    #[test]
    fn an_index_names_the_items_of_each_key_in_every_view() {
        run(|value| *value);
        run(|value| value.to_string());
    }

    #[test]
    fn a_key_function_that_panics_costs_the_index_and_a_view_keeps_its_own() {
        let key_of: KeyFn<u64, u64> = Arc::new(|value| if *value == 13 { panic!("no key") } else { *value });
        let mut rows = Rows::with_index(Some(Box::new(Keys::new(key_of))));
        rows.push(row(1, 1));
        let view = rows.clone();
        rows.push(row(2, 13));
        let one: AnyValue = Arc::new(1_u64);
        assert_eq!(rows.len(), 2);
        assert_eq!(rows.alike(&one), None);
        assert_eq!(view.alike(&one), Some(vec![ItemId { sequence: 1.into(), ordinal: 0 }]));
    }
}

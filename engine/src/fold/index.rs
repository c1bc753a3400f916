//! Which items of a slice have which key, for `upsert_by`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use foldlog_codec::body::ItemId;
use rpds::RedBlackTreeMapSync;

use super::rows::Row;
use crate::types::AnyValue;

/// The items of one slice by a key that the host computes. Shared between views as the items are.
///
/// A key function that panics makes the index useless, never the fold: the calls then answer `None` or
/// `false`, and the slice does without.
pub(crate) trait KeyIndex: Send + Sync {
    /// The names of the items whose key is that of `value`, in ascending order.
    fn find(&self, value: &AnyValue) -> Option<Vec<ItemId>>;
    /// Takes an item in; false where it has no key.
    fn insert(&mut self, row: &Row) -> bool;
    /// Takes an item out; false where it has no key.
    fn remove(&mut self, row: &Row) -> bool;
    /// The index of no items.
    fn emptied(&self) -> Box<dyn KeyIndex>;
    /// The same index once more.
    fn boxed_clone(&self) -> Box<dyn KeyIndex>;
}

/// The function that a host computes keys with.
pub(crate) type KeyOf<T, K> = Arc<dyn Fn(&T) -> K + Send + Sync>;

/// The index over items of type `T` by keys of type `K`.
pub(crate) struct Keys<T, K: Ord> {
    key_of: KeyOf<T, K>,
    ids: RedBlackTreeMapSync<K, Arc<[ItemId]>>,
}

impl<T: 'static, K: Ord + Clone + Send + Sync + 'static> Keys<T, K> {
    pub(crate) fn new(key_of: KeyOf<T, K>) -> Keys<T, K> {
        Keys { key_of, ids: RedBlackTreeMapSync::new_sync() }
    }

    fn key(&self, value: &AnyValue) -> Option<K> {
        let value = value.downcast_ref()?;
        catch_unwind(AssertUnwindSafe(|| (self.key_of)(value))).ok()
    }
}

impl<T: 'static, K: Ord + Clone + Send + Sync + 'static> KeyIndex for Keys<T, K> {
    fn find(&self, value: &AnyValue) -> Option<Vec<ItemId>> {
        let key = self.key(value)?;
        Some(self.ids.get(&key).map(|ids| ids.to_vec()).unwrap_or_default())
    }

    fn insert(&mut self, row: &Row) -> bool {
        let Some(key) = row.typed.as_ref().and_then(|value| self.key(value)) else { return false };
        let ids: Arc<[ItemId]> = match self.ids.get(&key) {
            None => Arc::from([row.id]),
            Some(before) => {
                let mut ids = before.to_vec();
                ids.push(row.id);
                ids.sort_unstable();
                Arc::from(ids)
            }
        };
        self.ids.insert_mut(key, ids);
        true
    }

    fn remove(&mut self, row: &Row) -> bool {
        let Some(key) = row.typed.as_ref().and_then(|value| self.key(value)) else { return false };
        let left: Vec<ItemId> = match self.ids.get(&key) {
            None => return true,
            Some(before) => before.iter().copied().filter(|id| *id != row.id).collect(),
        };
        if left.is_empty() {
            self.ids.remove_mut(&key);
        } else {
            self.ids.insert_mut(key, Arc::from(left));
        }
        true
    }

    fn emptied(&self) -> Box<dyn KeyIndex> {
        Box::new(Keys::new(Arc::clone(&self.key_of)))
    }

    fn boxed_clone(&self) -> Box<dyn KeyIndex> {
        Box::new(Keys { key_of: Arc::clone(&self.key_of), ids: self.ids.clone() })
    }
}

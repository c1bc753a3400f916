//! Blocks of the tree: keys in ascending order, and a slot for each. Leaves and inner blocks both
//! consist of them.

use std::borrow::Borrow;

use arrayvec::ArrayVec;
use foldlog_codec::SequenceNumber;
use smol_str::SmolStr;

/// Number of items that a value of the tree counts for. It never changes while the value is in a
/// tree.
pub(crate) trait Weigh {
    fn weight(&self) -> usize {
        1
    }
}

impl<T: ?Sized> Weigh for std::sync::Arc<T> {}
impl Weigh for () {}
impl Weigh for u32 {}
impl Weigh for u64 {}
impl Weigh for u128 {}
impl Weigh for SmolStr {}
impl Weigh for SequenceNumber {}

/// Returns the minimum number of slots of a block with a maximum of `most`. Less than half, so that
/// a removal next to an insertion does not join blocks that the next insertion splits.
pub(super) const fn least(most: usize) -> usize {
    most / 4 + 1
}

#[derive(Clone)]
pub(super) struct TreeBlock<K, S, const MOST: usize> {
    pub(super) keys: ArrayVec<K, MOST>,
    pub(super) slots: ArrayVec<S, MOST>,
}

impl<K: Ord + Clone, S: Clone, const MOST: usize> TreeBlock<K, S, MOST> {
    pub(super) fn new() -> Self {
        TreeBlock { keys: ArrayVec::new(), slots: ArrayVec::new() }
    }

    pub(super) fn from_entries(entries: impl IntoIterator<Item = (K, S)>) -> Self {
        let mut block = TreeBlock::new();
        entries.into_iter().for_each(|(key, slot)| block.push(key, slot));
        block
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.slots.is_full()
    }

    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.slots.clear();
    }

    /// Appends an entry. The block must not be full.
    #[inline]
    pub(super) fn push(&mut self, key: K, slot: S) {
        // The error, which cannot occur, is forgotten and not dropped: dropping needs the entry in
        // memory, and every push would write it there first, read it again and write it here.
        match self.keys.try_push(key) {
            // As long as the keys, so there is room here too.
            Ok(()) => self.slots.try_push(slot).unwrap_or_else(std::mem::forget),
            Err(full) => std::mem::forget((full, slot)),
        }
    }

    pub(super) fn take(&mut self, at: usize) -> Option<(K, S)> {
        self.keys.pop_at(at).zip(self.slots.pop_at(at))
    }

    /// Inserts an entry at place `at`. A full block keeps the lower half and returns the upper one.
    pub(super) fn insert(&mut self, at: usize, key: K, slot: S) -> Option<Self> {
        if !self.is_full() {
            if self.keys.try_insert(at, key).is_ok() {
                let _ = self.slots.try_insert(at, slot);
            }
            return None;
        }
        let half = MOST / 2;
        let mut upper = TreeBlock::new();
        self.keys.drain(half..).zip(self.slots.drain(half..)).for_each(|(key, slot)| upper.push(key, slot));
        let _ = if at <= half { self.insert(at, key, slot) } else { upper.insert(at - half, key, slot) };
        Some(upper)
    }

    /// Joins the right neighbour to this block. If both together have too many entries, shares them
    /// evenly and returns the right half.
    pub(super) fn join(&mut self, right: Self) -> Option<Self> {
        let total = self.len() + right.len();
        let left = std::mem::replace(self, TreeBlock::new());
        let mut all = left.into_entries().chain(right.into_entries());
        *self = TreeBlock::from_entries(all.by_ref().take(if total <= MOST { total } else { total / 2 }));
        (total > MOST).then(|| TreeBlock::from_entries(all))
    }

    fn into_entries(self) -> impl Iterator<Item = (K, S)> {
        self.keys.into_iter().zip(self.slots)
    }

    /// Returns the slot for a key, in a block whose slots are ranges.
    pub(super) fn range_of<Q: Ord>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        self.keys.partition_point(|low| low.borrow() <= key).saturating_sub(1)
    }

    /// Returns the place of a key, in a block whose slots are values.
    pub(super) fn place_of<Q: Ord>(&self, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        self.keys.binary_search_by(|present| present.borrow().cmp(key)).ok()
    }
}

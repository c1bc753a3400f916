//! A persistent B+-tree: the ordered map in which slices and their indexes store their entries.
//!
//! A clone shares everything. A change copies the blocks on its path that a clone still shares, and
//! changes the others in place. Blocks are small, because copying a block increments the reference
//! counts of all its slots. Most changes of a log append an entry after all others. Such entries go
//! into a separate block, the tail, without a descent through the tree.
//!
//! Blocks are counted by `triomphe`'s `Arc`, which has no weak handles. So checking for exclusive
//! ownership is a plain read, and not the locked instruction of the standard library's `Arc`, once
//! for each inserted entry.
//!
//! ```text
//!            root                        tail
//!      ┌──────┴──────┐                    │
//!    inner         inner               entries     all after those of the root
//!   ┌──┴──┐       ┌──┴──┐
//!  leaf  leaf    leaf  leaf     entries in order
//! ```
//!
//! # Invariants
//!
//! 1. Keys ascend: within a leaf, from leaf to leaf, and from the root's last to the tail's first.
//! 2. All leaves are equally deep. No block is empty, and none has more than `LEAF` or `FAN` slots.
//! 3. A block has at least [`least`] slots, unless it is the root, the tail, or the last of its
//!    level: blocks on the right edge start with a single slot and are filled by later entries.
//! 4. An inner block's key is not above any key of its slot's entries, and above all entries of the
//!    slot before.
//! 5. `len` is the number of entries. An inner block's weight is that of all values below it, which
//!    locates the value with the item at a given place.
//! 6. A shared block is never written: all writing goes through [`Arc::make_mut`].
//! 7. Keys are compared before anything is changed, so that after a panic in a host's `Ord` the
//!    other invariants still apply.

use std::borrow::Borrow;
use std::ops::{Deref, DerefMut, RangeInclusive};

use block::{TreeBlock, least};
use iter::{Iter, TreeRange};
use triomphe::Arc;

mod block;
mod differences;
mod iter;
#[cfg(test)]
mod tests;

pub(crate) use block::Weigh;

type Leaf<K, V, const LEAF: usize> = TreeBlock<K, V, LEAF>;

/// An inner block, and the weight of everything below it.
#[derive(Clone)]
struct InnerNode<K, V, const LEAF: usize, const FAN: usize> {
    block: TreeBlock<K, Node<K, V, LEAF, FAN>, FAN>,
    weight: usize,
}

impl<K, V, const LEAF: usize, const FAN: usize> Deref for InnerNode<K, V, LEAF, FAN> {
    type Target = TreeBlock<K, Node<K, V, LEAF, FAN>, FAN>;

    fn deref(&self) -> &Self::Target {
        &self.block
    }
}

impl<K, V, const LEAF: usize, const FAN: usize> DerefMut for InnerNode<K, V, LEAF, FAN> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.block
    }
}

#[derive(Clone)]
enum Node<K, V, const LEAF: usize, const FAN: usize> {
    Leaf(Arc<Leaf<K, V, LEAF>>),
    Inner(Arc<InnerNode<K, V, LEAF, FAN>>),
}

/// Maps keys to values, in order. Clones share unchanged parts.
#[derive(Clone)]
pub(crate) struct CowTree<K, V, const LEAF: usize, const FAN: usize> {
    root: Option<Node<K, V, LEAF, FAN>>,
    tail: Option<Arc<Leaf<K, V, LEAF>>>,
    len: usize,
}

/// Room for one entry after all others.
pub(crate) struct VacantTailEntry<'a, K, V, const LEAF: usize> {
    tail: &'a mut Leaf<K, V, LEAF>,
    len: &'a mut usize,
}

impl<K: Ord + Clone, V: Clone, const LEAF: usize> VacantTailEntry<'_, K, V, LEAF> {
    #[inline]
    pub(crate) fn push(self, key: K, value: V) {
        self.tail.push(key, value);
        *self.len += 1;
    }
}

/// Result of an insertion into a node: the replaced value, and the node's new right neighbour.
struct NodeInsertion<K, V, const LEAF: usize, const FAN: usize> {
    before: Option<V>,
    neighbour: Option<(K, Node<K, V, LEAF, FAN>)>,
}

impl<K: Ord + Clone, V: Clone + Weigh, const LEAF: usize, const FAN: usize> Node<K, V, LEAF, FAN> {
    fn len(&self) -> usize {
        match self {
            Node::Leaf(leaf) => leaf.len(),
            Node::Inner(inner) => inner.len(),
        }
    }

    /// Returns the weight of all values in the node.
    fn weight(&self) -> usize {
        match self {
            Node::Leaf(leaf) => leaf.slots.iter().map(Weigh::weight).sum(),
            Node::Inner(inner) => inner.weight,
        }
    }

    /// Returns the value with the item at `place`, and the item's place in it.
    fn nth(&self, mut place: usize) -> Option<(&V, usize)> {
        let mut node = self;
        loop {
            match node {
                Node::Leaf(leaf) => return nth_in(&leaf.slots, place),
                Node::Inner(inner) => {
                    node = inner.slots.iter().find(|slot| {
                        let weight = slot.weight();
                        let is_in = place < weight;
                        place -= if is_in { 0 } else { weight };
                        is_in
                    })?;
                }
            }
        }
    }

    fn is_scarce(&self) -> bool {
        match self {
            Node::Leaf(leaf) => leaf.len() < least(LEAF),
            Node::Inner(inner) => inner.len() < least(FAN),
        }
    }

    /// Returns a key that is not above any in the node.
    fn low(&self) -> Option<&K> {
        match self {
            Node::Leaf(leaf) => leaf.keys.first(),
            Node::Inner(inner) => inner.keys.first(),
        }
    }

    fn last(&self) -> Option<(&K, &V)> {
        let mut node = self;
        loop {
            match node {
                Node::Leaf(leaf) => return leaf.keys.last().zip(leaf.slots.last()),
                Node::Inner(inner) => node = inner.slots.last()?,
            }
        }
    }

    fn get<Q: Ord>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let mut node = self;
        loop {
            match node {
                Node::Leaf(leaf) => return leaf.slots.get(leaf.place_of(key)?),
                Node::Inner(inner) => node = inner.slots.get(inner.range_of(key))?,
            }
        }
    }

    fn get_mut<Q: Ord>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let mut node = self;
        loop {
            match node {
                Node::Leaf(leaf) => {
                    let at = leaf.place_of(key)?;
                    return Arc::make_mut(leaf).slots.get_mut(at);
                }
                Node::Inner(inner) => {
                    let at = inner.range_of(key);
                    node = Arc::make_mut(inner).slots.get_mut(at)?;
                }
            }
        }
    }

    /// Returns the last entry before a key. If the slot for the key has none, it is the last entry
    /// of the slot before.
    fn before(&self, key: &K) -> Option<(&K, &V)> {
        match self {
            Node::Leaf(leaf) => {
                let at = leaf.keys.partition_point(|present| present < key).checked_sub(1)?;
                leaf.keys.get(at).zip(leaf.slots.get(at))
            }
            Node::Inner(inner) => {
                let end = inner.range_of(key) + 1;
                inner.slots.iter().take(end).rev().find_map(|slot| slot.before(key))
            }
        }
    }

    fn insert(&mut self, key: K, value: V) -> NodeInsertion<K, V, LEAF, FAN> {
        match self {
            Node::Leaf(leaf) => {
                let leaf = Arc::make_mut(leaf);
                match leaf.keys.binary_search(&key) {
                    Ok(at) => {
                        let before = leaf.slots.get_mut(at).map(|slot| std::mem::replace(slot, value));
                        NodeInsertion { before, neighbour: None }
                    }
                    Err(at) => {
                        let upper = leaf.insert(at, key, value).map(|upper| Node::Leaf(Arc::new(upper)));
                        NodeInsertion { before: None, neighbour: upper.and_then(Node::with_low) }
                    }
                }
            }
            Node::Inner(inner) => {
                let inner = Arc::make_mut(inner);
                let at = inner.range_of(&key);
                if let Some(low) = inner.keys.first_mut().filter(|low| key < **low) {
                    *low = key.clone();
                }
                let weight = value.weight();
                let Some(slot) = inner.slots.get_mut(at) else {
                    return NodeInsertion { before: None, neighbour: None };
                };
                let NodeInsertion { before, neighbour } = slot.insert(key, value);
                inner.weight = inner.weight + weight - before.as_ref().map_or(0, Weigh::weight);
                let upper =
                    neighbour.and_then(|(low, node)| inner.insert(at + 1, low, node)).map(InnerNode::of);
                inner.weight -= upper.as_ref().map_or(0, |upper| upper.weight);
                let neighbour = upper.map(|upper| Node::Inner(Arc::new(upper))).and_then(Node::with_low);
                NodeInsertion { before, neighbour }
            }
        }
    }

    fn with_low(self) -> Option<(K, Self)> {
        Some((self.low()?.clone(), self))
    }

    /// Appends a leaf. Returns the node to add next to this one: the leaf, or a node that contains
    /// it.
    fn append(&mut self, leaf: Node<K, V, LEAF, FAN>) -> Option<Self> {
        let Node::Inner(inner) = self else { return Some(leaf) };
        let weight = leaf.weight();
        let inner = Arc::make_mut(inner);
        let Some(neighbour) = inner.slots.last_mut()?.append(leaf) else {
            inner.weight += weight;
            return None;
        };
        let (low, neighbour) = neighbour.with_low()?;
        if inner.is_full() {
            return Some(Node::Inner(Arc::new(InnerNode {
                block: TreeBlock::from_entries([(low, neighbour)]),
                weight,
            })));
        }
        inner.push(low, neighbour);
        inner.weight += weight;
        inner.mend_last_but_one();
        None
    }

    fn remove<Q: Ord>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        match self {
            Node::Leaf(leaf) => {
                let at = leaf.place_of(key)?;
                Arc::make_mut(leaf).take(at).map(|(_, value)| value)
            }
            Node::Inner(inner) => {
                let inner = Arc::make_mut(inner);
                let at = inner.range_of(key);
                let slot = inner.slots.get_mut(at)?;
                let value = slot.remove(key)?;
                inner.weight -= value.weight();
                let slot = inner.slots.get(at)?;
                if slot.is_scarce() {
                    inner.mend(at);
                }
                Some(value)
            }
        }
    }

    /// Joins the right neighbour to this node, or shares the slots evenly with it.
    fn join(&mut self, right: Self) -> Option<Self> {
        match (self, right) {
            (Node::Leaf(left), Node::Leaf(right)) => {
                let rest = Arc::make_mut(left).join(Arc::unwrap_or_clone(right));
                rest.map(|rest| Node::Leaf(Arc::new(rest)))
            }
            (Node::Inner(left), Node::Inner(right)) => {
                let (left, right) = (Arc::make_mut(left), Arc::unwrap_or_clone(right));
                let rest = left.join(right.block).map(InnerNode::of);
                left.weight = left.weight + right.weight - rest.as_ref().map_or(0, |rest| rest.weight);
                rest.map(|rest| Node::Inner(Arc::new(rest)))
            }
            // Neighbours are equally deep.
            (_, right) => Some(right),
        }
    }
}

impl<K: Ord + Clone, V: Clone + Weigh, const LEAF: usize, const FAN: usize> InnerNode<K, V, LEAF, FAN> {
    fn of(block: TreeBlock<K, Node<K, V, LEAF, FAN>, FAN>) -> Self {
        let weight = block.slots.iter().map(Node::weight).sum();
        InnerNode { block, weight }
    }

    /// Repairs a slot with too few entries: removes it, or joins it with a neighbour.
    fn mend(&mut self, at: usize) {
        if self.slots.get(at).is_some_and(|slot| slot.len() == 0) {
            self.take(at);
            return;
        }
        let left = at.saturating_sub(1);
        let Some((_, right)) = self.take(left + 1) else { return };
        let Some(rest) = self.slots.get_mut(left).and_then(|slot| slot.join(right)) else { return };
        if let Some((low, rest)) = rest.with_low() {
            self.insert(left + 1, low, rest);
        }
    }

    /// Repairs the last slot but one: it may have too few entries if it was last, without a
    /// neighbour to join.
    fn mend_last_but_one(&mut self) {
        let Some(at) = self.len().checked_sub(2) else { return };
        if self.slots.get(at).is_some_and(Node::is_scarce) {
            self.mend(at);
        }
    }
}

/// Returns that of these values with the item at `place`, and the item's place in it.
fn nth_in<V: Weigh>(values: &[V], mut place: usize) -> Option<(&V, usize)> {
    for value in values {
        match place.checked_sub(value.weight()) {
            None => return Some((value, place)),
            Some(rest) => place = rest,
        }
    }
    None
}

impl<K, V, const LEAF: usize, const FAN: usize> Default for CowTree<K, V, LEAF, FAN> {
    fn default() -> Self {
        CowTree { root: None, tail: None, len: 0 }
    }
}

impl<K: Ord + Clone, V: Clone + Weigh, const LEAF: usize, const FAN: usize> CowTree<K, V, LEAF, FAN> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the tail, unless the key is before it.
    fn tail_of<Q: Ord>(&self, key: &Q) -> Option<&Leaf<K, V, LEAF>>
    where
        K: Borrow<Q>,
    {
        self.tail.as_deref().filter(|tail| tail.keys.first().is_some_and(|first| first.borrow() <= key))
    }

    pub(crate) fn get<Q: Ord>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        match self.tail_of(key) {
            Some(tail) => tail.slots.get(tail.place_of(key)?),
            None => self.root.as_ref()?.get(key),
        }
    }

    /// Returns the value at a key, to be changed. Copies shared blocks on the path even if there is
    /// no such key.
    pub(crate) fn get_mut<Q: Ord>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        if self.tail_of(key).is_none() {
            return self.root.as_mut()?.get_mut(key);
        }
        let tail = self.tail.as_mut()?;
        let at = tail.place_of(key)?;
        Arc::make_mut(tail).slots.get_mut(at)
    }

    pub(crate) fn last(&self) -> Option<(&K, &V)> {
        match &self.tail {
            Some(tail) => tail.keys.last().zip(tail.slots.last()),
            None => self.root.as_ref()?.last(),
        }
    }

    /// Returns the value with the item at `place`, and the item's place in it. Takes time
    /// proportional to the tree's depth.
    pub(crate) fn nth(&self, place: usize) -> Option<(&V, usize)> {
        let in_root = self.root.as_ref().map_or(0, Node::weight);
        match place.checked_sub(in_root) {
            None => self.root.as_ref()?.nth(place),
            Some(rest) => nth_in(&self.tail.as_ref()?.slots, rest),
        }
    }

    pub(crate) fn before(&self, key: &K) -> Option<(&K, &V)> {
        let in_tail = self.tail.as_deref().and_then(|tail| {
            let at = tail.keys.partition_point(|present| present < key).checked_sub(1)?;
            tail.keys.get(at).zip(tail.slots.get(at))
        });
        in_tail.or_else(|| self.root.as_ref()?.before(key))
    }

    /// Inserts a value at a key, and returns the replaced one.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.room_behind(&key) {
            Some(room) => {
                room.push(key, value);
                None
            }
            None => self.insert_anywhere(key, value),
        }
    }

    /// Returns room for an entry after all others, if the tail has any.
    #[inline]
    pub(crate) fn room_behind(&mut self, key: &K) -> Option<VacantTailEntry<'_, K, V, LEAF>> {
        let tail = self.tail.as_mut()?;
        if tail.is_full() || tail.keys.last().is_none_or(|last| key <= last) {
            return None;
        }
        Some(VacantTailEntry { tail: Arc::make_mut(tail), len: &mut self.len })
    }

    /// Returns whether appending an entry starts a new block.
    pub(crate) fn is_tail_full(&self) -> bool {
        self.tail.as_ref().is_some_and(|tail| tail.is_full())
    }

    /// Keeps only this entry. Reuses the block of the last one if no clone shares it.
    pub(crate) fn hold_only(&mut self, key: K, value: V) {
        let mut tail = self.tail.take();
        let only = match tail.as_mut().and_then(Arc::get_mut) {
            Some(own) => {
                own.clear();
                own.push(key, value);
                tail
            }
            None => Some(Arc::new(TreeBlock::from_entries([(key, value)]))),
        };
        *self = CowTree { root: None, tail: only, len: 1 };
    }

    fn insert_anywhere(&mut self, key: K, value: V) -> Option<V> {
        let before = if self.root.is_none() || self.tail_of(&key).is_some() {
            self.insert_in_tail(key, value)
        } else if self.tail.is_none() && self.last().is_none_or(|(last, _)| *last < key) {
            self.tail = Some(Arc::new(TreeBlock::from_entries([(key, value)])));
            None
        } else {
            let root = self.root.as_mut()?;
            let NodeInsertion { before, neighbour } = root.insert(key, value);
            if let Some((_, neighbour)) = neighbour {
                self.grow(neighbour);
            }
            before
        };
        self.len += usize::from(before.is_none());
        before
    }

    fn insert_in_tail(&mut self, key: K, value: V) -> Option<V> {
        let shared = self.tail.get_or_insert_with(|| Arc::new(TreeBlock::new()));
        let full = shared.is_full();
        let at = match shared.keys.binary_search(&key) {
            Ok(at) => {
                let tail = Arc::make_mut(shared);
                return tail.slots.get_mut(at).map(|slot| std::mem::replace(slot, value));
            }
            Err(at) => at,
        };
        // An entry after a full tail starts the next tail, and nothing is copied. An entry within a
        // full tail splits it.
        let next = if full && at == shared.len() {
            Some(TreeBlock::from_entries([(key, value)]))
        } else {
            Arc::make_mut(shared).insert(at, key, value)
        };
        if let Some(done) = next.and_then(|next| self.tail.replace(Arc::new(next))) {
            self.append(done);
        }
        None
    }

    fn append(&mut self, leaf: Arc<Leaf<K, V, LEAF>>) {
        match &mut self.root {
            None => self.root = Some(Node::Leaf(leaf)),
            Some(root) => {
                if let Some(neighbour) = root.append(Node::Leaf(leaf)) {
                    self.grow(neighbour);
                }
            }
        }
    }

    /// Adds a root above the current one and its right neighbour.
    fn grow(&mut self, neighbour: Node<K, V, LEAF, FAN>) {
        let both = [self.root.take(), Some(neighbour)];
        let mut inner =
            InnerNode::of(TreeBlock::from_entries(both.into_iter().flatten().filter_map(Node::with_low)));
        inner.mend_last_but_one();
        self.root = Some(Node::Inner(Arc::new(inner)));
        self.shrink();
    }

    /// Removes a key and returns its value. Copies the blocks on the path even if there is no such
    /// key.
    pub(crate) fn remove<Q: Ord>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let value = if self.tail_of(key).is_some() {
            let tail = self.tail.as_mut()?;
            let at = tail.place_of(key)?;
            let (_, value) = Arc::make_mut(tail).take(at)?;
            if tail.len() == 0 {
                self.tail = None;
            }
            value
        } else {
            let value = self.root.as_mut()?.remove(key)?;
            self.shrink();
            value
        };
        self.len -= 1;
        Some(value)
    }

    /// Removes roots with only one node, and an empty root.
    fn shrink(&mut self) {
        while let Some(Node::Inner(inner)) = &self.root
            && inner.len() == 1
        {
            self.root = inner.slots.first().cloned();
        }
        if self.root.as_ref().is_some_and(|root| root.len() == 0) {
            self.root = None;
        }
    }

    pub(crate) fn iter(&self) -> Iter<'_, K, V, LEAF, FAN> {
        Iter::new(self)
    }

    pub(crate) fn range(&self, keys: RangeInclusive<K>) -> TreeRange<'_, K, V, LEAF, FAN, true> {
        TreeRange::new(self, keys)
    }

    /// Returns the entries of a range of keys, the last one first.
    pub(crate) fn range_back(&self, keys: RangeInclusive<K>) -> TreeRange<'_, K, V, LEAF, FAN, false> {
        TreeRange::new(self, keys)
    }
}

//! Iterates over a tree from both ends.

use std::iter::Zip;
use std::ops::RangeInclusive;
use std::slice;

use super::{CowTree, Leaf, Node, Weigh};

/// State of one end of an iterator, with the entries of the current leaf.
struct Way<'a, K, V, const LEAF: usize, const FAN: usize> {
    entries: Zip<slice::Iter<'a, K>, slice::Iter<'a, V>>,
    /// The remaining slots of the inner blocks on the way down.
    stack: Vec<slice::Iter<'a, Node<K, V, LEAF, FAN>>>,
    root: Option<&'a Node<K, V, LEAF, FAN>>,
    tail: Option<&'a Leaf<K, V, LEAF>>,
}

impl<'a, K, V, const LEAF: usize, const FAN: usize> Way<'a, K, V, LEAF, FAN> {
    fn new(tree: &'a CowTree<K, V, LEAF, FAN>) -> Self {
        let entries = [].iter().zip([].iter());
        Way { entries, stack: Vec::new(), root: tree.root.as_ref(), tail: tree.tail.as_deref() }
    }

    /// Returns the next leaf in the direction of `step`.
    fn leaf(
        &mut self,
        step: impl Fn(&mut slice::Iter<'a, Node<K, V, LEAF, FAN>>) -> Option<&'a Node<K, V, LEAF, FAN>>,
    ) -> Option<&'a Leaf<K, V, LEAF>> {
        let mut node = match self.root.take() {
            Some(root) => root,
            None => loop {
                match step(self.stack.last_mut()?) {
                    Some(node) => break node,
                    None => self.stack.pop(),
                };
            },
        };
        loop {
            match node {
                Node::Leaf(leaf) => return Some(leaf),
                Node::Inner(inner) => {
                    let mut slots = inner.slots.iter();
                    node = step(&mut slots)?;
                    self.stack.push(slots);
                }
            }
        }
    }

    fn forth(&mut self) -> Option<()> {
        let leaf = match self.leaf(|slots| slots.next()) {
            Some(leaf) => leaf,
            None => self.tail.take()?,
        };
        self.entries = leaf.keys.iter().zip(leaf.slots.iter());
        Some(())
    }

    fn back(&mut self) -> Option<()> {
        let leaf = match self.tail.take() {
            Some(tail) => tail,
            None => self.leaf(|slots| slots.next_back())?,
        };
        self.entries = leaf.keys.iter().zip(leaf.slots.iter());
        Some(())
    }
}

/// Iterates over the entries of a tree, from both ends. The ends do not know each other's place,
/// only the number of entries left between them.
pub(crate) struct Iter<'a, K, V, const LEAF: usize, const FAN: usize> {
    front: Way<'a, K, V, LEAF, FAN>,
    back: Way<'a, K, V, LEAF, FAN>,
    left: usize,
}

impl<'a, K, V, const LEAF: usize, const FAN: usize> Iter<'a, K, V, LEAF, FAN> {
    pub(super) fn new(tree: &'a CowTree<K, V, LEAF, FAN>) -> Self {
        Iter { front: Way::new(tree), back: Way::new(tree), left: tree.len }
    }
}

impl<'a, K, V, const LEAF: usize, const FAN: usize> Iterator for Iter<'a, K, V, LEAF, FAN> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        loop {
            if let Some(entry) = self.front.entries.next() {
                return Some(entry);
            }
            self.front.forth()?;
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<K, V, const LEAF: usize, const FAN: usize> DoubleEndedIterator for Iter<'_, K, V, LEAF, FAN> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        loop {
            if let Some(entry) = self.back.entries.next_back() {
                return Some(entry);
            }
            self.back.back()?;
        }
    }
}

/// Iterates over the entries of a range of keys, in one direction.
pub(crate) struct TreeRange<'a, K, V, const LEAF: usize, const FAN: usize, const FORTH: bool> {
    way: Way<'a, K, V, LEAF, FAN>,
    until: K,
}

impl<'a, K: Ord + Clone, V: Clone + Weigh, const LEAF: usize, const FAN: usize, const FORTH: bool>
    TreeRange<'a, K, V, LEAF, FAN, FORTH>
{
    pub(super) fn new(tree: &'a CowTree<K, V, LEAF, FAN>, range: RangeInclusive<K>) -> Self {
        let (first, last) = range.into_inner();
        let (start, until) = if FORTH { (first, last) } else { (last, first) };
        let mut way = Way::new(tree);
        let within = |leaf: &'a Leaf<K, V, LEAF>| {
            let at = leaf.keys.partition_point(|key| if FORTH { *key < start } else { *key <= start });
            let of = if FORTH { at..leaf.len() } else { 0..at };
            let keys = leaf.keys.get(of.clone()).unwrap_or_default();
            keys.iter().zip(leaf.slots.get(of).unwrap_or_default().iter())
        };
        if let Some(tail) = tree.tail_of(&start) {
            way.entries = within(tail);
            way.tail = None;
            way.root = way.root.filter(|_| !FORTH);
            return TreeRange { way, until };
        }
        way.tail = way.tail.filter(|_| FORTH);
        let mut next = way.root.take();
        while let Some(node) = next.take() {
            match node {
                Node::Leaf(leaf) => way.entries = within(leaf),
                Node::Inner(inner) => {
                    let at = inner.range_of(&start);
                    let rest = if FORTH { at + 1..inner.len() } else { 0..at };
                    way.stack.push(inner.slots.get(rest).unwrap_or_default().iter());
                    next = inner.slots.get(at);
                }
            }
        }
        TreeRange { way, until }
    }
}

impl<'a, K: Ord, V, const LEAF: usize, const FAN: usize, const FORTH: bool> Iterator
    for TreeRange<'a, K, V, LEAF, FAN, FORTH>
{
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let entries = &mut self.way.entries;
            if let Some((key, value)) = if FORTH { entries.next() } else { entries.next_back() } {
                let is_within = if FORTH { *key <= self.until } else { *key >= self.until };
                return is_within.then_some((key, value));
            }
            if FORTH { self.way.forth()? } else { self.way.back()? }
        }
    }
}

impl<K, V, const LEAF: usize, const FAN: usize> ExactSizeIterator for Iter<'_, K, V, LEAF, FAN> {}

//! Iterates over a tree from both ends.

use std::iter::Zip;
use std::slice;

use super::{Leaf, Node, Tree};

/// Holds the entries that one end of an iterator has reached.
struct Way<'a, K, V, const LEAF: usize, const FAN: usize> {
    entries: Zip<slice::Iter<'a, K>, slice::Iter<'a, V>>,
    /// What is left of the inner blocks on the way down.
    stack: Vec<slice::Iter<'a, Node<K, V, LEAF, FAN>>>,
    root: Option<&'a Node<K, V, LEAF, FAN>>,
    tail: Option<&'a Leaf<K, V, LEAF>>,
}

impl<'a, K, V, const LEAF: usize, const FAN: usize> Way<'a, K, V, LEAF, FAN> {
    fn new(tree: &'a Tree<K, V, LEAF, FAN>) -> Self {
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

/// Iterates over the entries of a tree, from both ends. The ends do not know each other's place, but how many
/// entries are left between them.
pub(crate) struct Iter<'a, K, V, const LEAF: usize, const FAN: usize> {
    front: Way<'a, K, V, LEAF, FAN>,
    back: Way<'a, K, V, LEAF, FAN>,
    left: usize,
}

impl<'a, K, V, const LEAF: usize, const FAN: usize> Iter<'a, K, V, LEAF, FAN> {
    pub(super) fn new(tree: &'a Tree<K, V, LEAF, FAN>) -> Self {
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

impl<K, V, const LEAF: usize, const FAN: usize> ExactSizeIterator for Iter<'_, K, V, LEAF, FAN> {}

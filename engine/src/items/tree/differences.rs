//! Finds the differences between two trees, without visiting shared blocks.
//!
//! Both trees are walked in the order of their keys. A block that both walks reach is skipped: if
//! one tree was derived from the other by a few changes, they share all other blocks.

use std::ops::ControlFlow;

use triomphe::Arc;

use super::{CowTree, InnerNode, Leaf, Node, Weigh};

/// Next part of a walk.
enum PendingSubtree<'a, K, V, const LEAF: usize, const FAN: usize> {
    /// An inner block, with the depth of the blocks below it: 1 if they are leaves.
    Inner(&'a Arc<InnerNode<K, V, LEAF, FAN>>, usize),
    Leaf(&'a Arc<Leaf<K, V, LEAF>>),
    Entries(&'a [K], &'a [V]),
}

/// Walk over a tree: a stack of the parts still to visit, the next one on top.
struct TreeWalk<'a, K, V, const LEAF: usize, const FAN: usize>(Vec<PendingSubtree<'a, K, V, LEAF, FAN>>);

impl<'a, K: Ord + Clone, V: Clone + Weigh, const LEAF: usize, const FAN: usize>
    TreeWalk<'a, K, V, LEAF, FAN>
{
    fn from_tree(tree: &'a CowTree<K, V, LEAF, FAN>) -> Self {
        let mut depth = 0;
        let mut node = tree.root.as_ref();
        while let Some(Node::Inner(inner)) = node {
            depth += 1;
            node = inner.slots.first();
        }
        let tail = tree.tail.as_ref().map(PendingSubtree::Leaf);
        TreeWalk(tail.into_iter().chain(tree.root.as_ref().map(|root| ahead(root, depth))).collect())
    }

    /// Returns the depth of the next part; 0 for leaves and their entries.
    fn depth(&self) -> usize {
        match self.0.last() {
            Some(PendingSubtree::Inner(_, depth)) => *depth,
            _ => 0,
        }
    }

    /// Returns a key that is not above any key of the next part.
    fn low(&self) -> Option<&'a K> {
        match self.0.last()? {
            PendingSubtree::Inner(inner, _) => inner.keys.first(),
            PendingSubtree::Leaf(leaf) => leaf.keys.first(),
            PendingSubtree::Entries(keys, _) => keys.first(),
        }
    }

    /// Replaces the next block by its contents.
    fn descend(&mut self) {
        match self.0.pop() {
            Some(PendingSubtree::Inner(inner, depth)) => {
                self.0.extend(inner.slots.iter().rev().map(|node| ahead(node, depth - 1)));
            }
            Some(PendingSubtree::Leaf(leaf)) => self.0.push(PendingSubtree::Entries(&leaf.keys, &leaf.slots)),
            entries => self.0.extend(entries),
        }
    }

    fn take_entry(&mut self) -> Option<(&'a K, &'a V)> {
        let Some(PendingSubtree::Entries(keys, slots)) = self.0.last_mut() else { return None };
        let (Some((key, keys_left)), Some((slot, slots_left))) = (keys.split_first(), slots.split_first())
        else {
            return None;
        };
        (*keys, *slots) = (keys_left, slots_left);
        if keys.is_empty() {
            self.0.pop();
        }
        Some((key, slot))
    }
}

fn ahead<K, V, const LEAF: usize, const FAN: usize>(
    node: &Node<K, V, LEAF, FAN>,
    depth: usize,
) -> PendingSubtree<'_, K, V, LEAF, FAN> {
    match node {
        Node::Inner(inner) => PendingSubtree::Inner(inner, depth),
        Node::Leaf(leaf) => PendingSubtree::Leaf(leaf),
    }
}

/// Returns whether both walks have the same block next.
fn is_shared<K, V, const LEAF: usize, const FAN: usize>(
    left: &TreeWalk<'_, K, V, LEAF, FAN>,
    right: &TreeWalk<'_, K, V, LEAF, FAN>,
) -> bool {
    match (left.0.last(), right.0.last()) {
        (Some(PendingSubtree::Inner(left, _)), Some(PendingSubtree::Inner(right, _))) => {
            Arc::ptr_eq(left, right)
        }
        (Some(PendingSubtree::Leaf(left)), Some(PendingSubtree::Leaf(right))) => Arc::ptr_eq(left, right),
        _ => false,
    }
}

impl<K: Ord + Clone, V: Clone + Weigh, const LEAF: usize, const FAN: usize> CowTree<K, V, LEAF, FAN> {
    /// Passes every key at which the two trees may differ to `visit`, in order, with its values in
    /// this tree and in the other, until it breaks. Skips blocks that both share. `visit` has to
    /// compare values that both have in blocks that are not shared. Takes time proportional to the
    /// blocks that are not shared.
    pub(crate) fn differences<'a>(
        &'a self,
        other: &'a Self,
        visit: &mut dyn FnMut(&'a K, Option<&'a V>, Option<&'a V>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (mut left, mut right) = (TreeWalk::from_tree(self), TreeWalk::from_tree(other));
        loop {
            if is_shared(&left, &right) {
                left.0.pop();
                right.0.pop();
                continue;
            }
            let order = match (left.low(), right.low()) {
                (None, None) => return ControlFlow::Continue(()),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(left), Some(right)) => left.cmp(right),
            };
            let whole = |walk: &TreeWalk<'_, K, V, LEAF, FAN>| {
                !matches!(walk.0.last(), Some(PendingSubtree::Entries(..)))
            };
            let (left_whole, right_whole) = (whole(&left), whole(&right));
            // Blocks are opened from the higher one down, so that both walks reach the blocks that
            // they share.
            match order {
                _ if left_whole && right_whole && left.depth() != right.depth() => {
                    if left.depth() > right.depth() { left.descend() } else { right.descend() }
                }
                std::cmp::Ordering::Less if left_whole => left.descend(),
                std::cmp::Ordering::Greater if right_whole => right.descend(),
                std::cmp::Ordering::Equal if left_whole || right_whole => {
                    left.descend();
                    right.descend();
                }
                std::cmp::Ordering::Less => {
                    if let Some((key, value)) = left.take_entry() {
                        visit(key, Some(value), None)?;
                    }
                }
                std::cmp::Ordering::Greater => {
                    if let Some((key, value)) = right.take_entry() {
                        visit(key, None, Some(value))?;
                    }
                }
                std::cmp::Ordering::Equal => {
                    if let (Some((key, left)), Some((_, right))) = (left.take_entry(), right.take_entry()) {
                        visit(key, Some(left), Some(right))?;
                    }
                }
            }
        }
    }
}

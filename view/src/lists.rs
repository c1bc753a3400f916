//! A list of items at every position of a log, by structural sharing.
//!
//! A list is a binary tree with one item per node, in the order of the items' places. A number
//! derived from the item alone decides which node is above which (a treap). The tree's shape is
//! therefore independent of the order of changes, and its depth grows with the logarithm of its
//! length. A node never changes once a position refers to it: a change creates new nodes on the
//! path to it and shares all others.
//!
//! A *version* of the list is a prefix of a tree: the tree and a number of items. A list that only
//! grows is therefore one tree, and each position refers to a prefix of it. A rollback to an
//! earlier position refers to a shorter prefix.
//!
//! # Bytes
//!
//! [`ListHistory::encode`] writes unsigned integers of 32 bits, little-endian:
//!
//! | part | count | each |
//! |---|---|---|
//! | counts | 3 | number of versions, of trees, of nodes |
//! | positions | versions | distance from the previous position; the list at a position is the version of the last position at or before it |
//! | trees | versions | index of the tree, counted from 0 |
//! | lengths | versions | number of the tree's first items that belong to the list |
//! | roots | trees | node of the root, counted from 1; 0 for none |
//! | items | nodes | item, as difference to that of the node before, wrapping |
//! | left, right | nodes each | distance back to the child's node; 0 for none |

use foldlog::SequenceNumber;

/// Marks a missing node.
const NONE: u32 = 0;

#[derive(Clone, Copy, Debug)]
struct Node<P> {
    place: P,
    item: u32,
    left: u32,
    right: u32,
    /// Number of items in this subtree, including this node.
    size: u32,
}

/// One version: the position from which it is current, its tree, and its number of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ListVersion {
    position: SequenceNumber,
    tree: u32,
    len: u32,
}

/// Collects the versions of one list, position after position. `P` orders the items.
#[derive(Debug)]
pub(crate) struct ListHistory<P> {
    nodes: Vec<Node<P>>,
    /// First node to which no finished tree refers. Nodes from here on are changed in place.
    fresh: u32,
    root: u32,
    /// Length of the current list: the number of the tree's items that count.
    len: u32,
    roots: Vec<u32>,
    versions: Vec<ListVersion>,
}

impl<P> Default for ListHistory<P> {
    fn default() -> ListHistory<P> {
        ListHistory {
            nodes: Vec::new(),
            fresh: 1,
            root: NONE,
            len: 0,
            roots: Vec::new(),
            versions: Vec::new(),
        }
    }
}

/// Returns an item's rank; nodes of higher rank are above those of lower rank.
fn rank(item: u32) -> u64 {
    // The finalizer of SplitMix64: it maps consecutive numbers to unrelated ones.
    let mut x = u64::from(item).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl<P: Ord + Copy> ListHistory<P> {
    /// Notes that the list exists from `position` on, if it did not.
    pub(crate) fn begin(&mut self, position: SequenceNumber) {
        if self.versions.is_empty() {
            self.note(position);
        }
    }

    /// Notes the changes of the list by the record at `position`: the removed items, and the added
    /// items with their numbers. Both must be in the order of their places. Positions must ascend.
    pub(crate) fn change(&mut self, position: SequenceNumber, removed: &[P], added: &[(P, u32)]) {
        let last = self.nth(self.len.wrapping_sub(1));
        let grows = removed.is_empty()
            && added.first().is_none_or(|(place, _)| last.is_none_or(|last| last < *place));
        let gone = removed.len() as u32;
        let is_end = |first: &P| self.count_before(*first) + gone == self.len;
        if added.is_empty() && gone <= self.len && removed.first().is_some_and(is_end) {
            self.len -= gone;
            self.note(position);
            return;
        }
        if !grows || self.len < self.size(self.root) {
            self.finish_tree();
            self.root = self.first(self.root, self.len);
        }
        for place in removed {
            self.root = self.without(self.root, *place);
        }
        for (place, item) in added {
            let node = self.add(Node { place: *place, item: *item, left: NONE, right: NONE, size: 1 });
            self.root = self.with(self.root, node);
        }
        self.len = self.size(self.root);
        self.note(position);
    }

    fn note(&mut self, position: SequenceNumber) {
        let version = ListVersion { position, tree: self.roots.len() as u32, len: self.len };
        match self.versions.last_mut().filter(|last| last.position == position) {
            Some(last) => *last = version,
            None => self.versions.push(version),
        }
    }

    /// Finishes the tree: from now on, its nodes are copied before they are changed.
    fn finish_tree(&mut self) {
        self.roots.push(self.root);
        self.fresh = self.nodes.len() as u32 + 1;
    }

    fn node(&self, id: u32) -> Option<&Node<P>> {
        self.nodes.get(id.checked_sub(1)? as usize)
    }

    fn size(&self, id: u32) -> u32 {
        self.node(id).map_or(0, |node| node.size)
    }

    fn rank(&self, id: u32) -> u64 {
        self.node(id).map_or(0, |node| rank(node.item))
    }

    fn add(&mut self, node: Node<P>) -> u32 {
        self.nodes.push(node);
        self.nodes.len() as u32
    }

    /// Returns the node with other children: the node itself, or a copy if a finished tree refers
    /// to it.
    fn with_children(&mut self, id: u32, left: u32, right: u32) -> u32 {
        let size = 1 + self.size(left) + self.size(right);
        let Some(at) = id.checked_sub(1) else { return NONE };
        let Some(node) = self.nodes.get_mut(at as usize) else { return NONE };
        let joined = Node { left, right, size, ..*node };
        if id >= self.fresh {
            *node = joined;
            return id;
        }
        self.add(joined)
    }

    /// Returns the place of an item by its number in the list.
    fn nth(&self, mut number: u32) -> Option<P> {
        let mut at = self.node(self.root)?;
        loop {
            let left = self.size(at.left);
            at = match number.cmp(&left) {
                std::cmp::Ordering::Less => self.node(at.left)?,
                std::cmp::Ordering::Equal => return Some(at.place),
                std::cmp::Ordering::Greater => {
                    number -= left + 1;
                    self.node(at.right)?
                }
            };
        }
    }

    /// Returns the number of the tree's items before a place.
    fn count_before(&self, place: P) -> u32 {
        let (mut at, mut below) = (self.root, 0);
        while let Some(node) = self.node(at) {
            if node.place < place {
                below += self.size(node.left) + 1;
                at = node.right;
            } else {
                at = node.left;
            }
        }
        below
    }

    /// Returns the tree of a tree's first `count` items.
    fn first(&mut self, id: u32, count: u32) -> u32 {
        let Some(Node { left, right, size, .. }) = self.node(id).copied() else { return NONE };
        if count >= size {
            return id;
        }
        match count.checked_sub(self.size(left) + 1) {
            None => self.first(left, count),
            Some(rest) => {
                let right = self.first(right, rest);
                self.with_children(id, left, right)
            }
        }
    }

    /// Splits a tree into the items before a place, and the rest.
    fn split(&mut self, id: u32, place: P) -> (u32, u32) {
        let Some(Node { place: own, left, right, .. }) = self.node(id).copied() else { return (NONE, NONE) };
        if own < place {
            let (before, behind) = self.split(right, place);
            (self.with_children(id, left, before), behind)
        } else {
            let (before, behind) = self.split(left, place);
            (before, self.with_children(id, behind, right))
        }
    }

    /// Merges two trees; all items of the first come before those of the second.
    fn merge(&mut self, one: u32, other: u32) -> u32 {
        let (Some(first), Some(second)) = (self.node(one).copied(), self.node(other).copied()) else {
            return if one == NONE { other } else { one };
        };
        if self.rank(one) > self.rank(other) {
            let right = self.merge(first.right, other);
            self.with_children(one, first.left, right)
        } else {
            let left = self.merge(one, second.left);
            self.with_children(other, left, second.right)
        }
    }

    /// Returns the tree with one more node.
    fn with(&mut self, id: u32, new: u32) -> u32 {
        let (Some(node), Some(Node { place, .. })) = (self.node(id).copied(), self.node(new).copied()) else {
            return new;
        };
        if self.rank(new) > self.rank(id) {
            let (left, right) = self.split(id, place);
            return self.with_children(new, left, right);
        }
        if place < node.place {
            let left = self.with(node.left, new);
            self.with_children(id, left, node.right)
        } else {
            let right = self.with(node.right, new);
            self.with_children(id, node.left, right)
        }
    }

    /// Returns the tree without the item at a place.
    fn without(&mut self, id: u32, place: P) -> u32 {
        let Some(node) = self.node(id).copied() else { return NONE };
        match place.cmp(&node.place) {
            std::cmp::Ordering::Equal => self.merge(node.left, node.right),
            std::cmp::Ordering::Less => {
                let left = self.without(node.left, place);
                self.with_children(id, left, node.right)
            }
            std::cmp::Ordering::Greater => {
                let right = self.without(node.right, place);
                self.with_children(id, node.left, right)
            }
        }
    }

    /// Returns the length of the list at a position, and up to `count` of its items, starting at
    /// place `from`. `None` if the list did not exist yet.
    #[cfg(feature = "server")]
    pub(crate) fn window(&self, position: SequenceNumber, from: u32, count: u32) -> Option<(u32, Vec<u32>)> {
        let version = self.versions.partition_point(|version| version.position <= position).checked_sub(1)?;
        let version = self.versions.get(version)?;
        let root = self.roots.get(version.tree as usize).copied().unwrap_or(self.root);
        let end = from.saturating_add(count).min(version.len);
        let mut items = Vec::new();
        // Nodes on the path down, each with the place of its item.
        let mut stack: Vec<(u32, u32)> = Vec::new();
        let (mut at, mut before) = (root, 0);
        loop {
            while let Some(node) = self.node(at) {
                let place = before + self.size(node.left);
                if place >= from {
                    stack.push((at, place));
                    at = node.left;
                } else {
                    (before, at) = (place + 1, node.right);
                }
            }
            let Some((top, place)) = stack.pop().filter(|(_, place)| *place < end) else { break };
            let Some(node) = self.node(top) else { break };
            items.push(node.item);
            (before, at) = (place + 1, node.right);
        }
        Some((version.len, items))
    }

    /// Encodes all versions, with the nodes to which a version refers.
    pub(crate) fn encode(mut self) -> Vec<u8> {
        self.finish_tree();
        let mut numbers = vec![NONE; self.nodes.len() + 1];
        let mut order: Vec<u32> = Vec::new();
        for root in &self.roots {
            self.number_below(*root, &mut numbers, &mut order);
        }
        let number = |id: u32| numbers.get(id as usize).copied().unwrap_or(NONE);
        let mut out = Vec::new();
        let mut put = |number: u32| out.extend_from_slice(&number.to_le_bytes());
        put(self.versions.len() as u32);
        put(self.roots.len() as u32);
        put(order.len() as u32);
        let mut before = 0;
        for version in &self.versions {
            let position = version.position.get() as u32;
            put(position.wrapping_sub(before));
            before = position;
        }
        self.versions.iter().for_each(|version| put(version.tree));
        self.versions.iter().for_each(|version| put(version.len));
        self.roots.iter().for_each(|root| put(number(*root)));
        let nodes = || order.iter().filter_map(|id| Some((number(*id), self.node(*id)?)));
        let mut before = 0_u32;
        for (_, node) in nodes() {
            put(node.item.wrapping_sub(before));
            before = node.item;
        }
        let back = |own: u32, child: u32| if child == NONE { 0 } else { own - number(child) };
        nodes().for_each(|(own, node)| put(back(own, node.left)));
        nodes().for_each(|(own, node)| put(back(own, node.right)));
        out
    }

    /// Numbers the unnumbered nodes of a tree, children before their parents.
    fn number_below(&self, root: u32, numbers: &mut [u32], order: &mut Vec<u32>) {
        let mut stack = vec![(root, false)];
        while let Some((id, below_done)) = stack.pop() {
            let Some(node) = self.node(id) else { continue };
            let Some(number) = numbers.get_mut(id as usize).filter(|number| **number == NONE) else {
                continue;
            };
            if below_done {
                order.push(id);
                *number = order.len() as u32;
            } else {
                stack.extend([(id, true), (node.right, false), (node.left, false)]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the list at a position from the bytes, by the table in the module's docs.
    fn list_at(bytes: &[u8], position: u32) -> Option<Vec<u32>> {
        let words: Vec<u32> =
            bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        let (versions, trees, nodes) = (words[0] as usize, words[1] as usize, words[2] as usize);
        let mut at = 3;
        let mut part = |len: usize| {
            at += len;
            words[at - len..at].to_vec()
        };
        let (positions, tree_of, lens) = (part(versions), part(versions), part(versions));
        let (roots, items, left, right) = (part(trees), part(nodes), part(nodes), part(nodes));
        let summed = |deltas: &[u32]| -> Vec<u32> {
            let sum = |sum: &mut u32, delta: &u32| {
                *sum = sum.wrapping_add(*delta);
                Some(*sum)
            };
            deltas.iter().scan(0, sum).collect()
        };
        let (positions, items) = (summed(&positions), summed(&items));
        let version = positions.iter().rposition(|from| *from <= position)?;
        fn walk(node: u32, items: &[u32], left: &[u32], right: &[u32], list: &mut Vec<u32>) {
            if node == 0 {
                return;
            }
            let at = node as usize - 1;
            let child = |back: u32| if back == 0 { 0 } else { node - back };
            walk(child(left[at]), items, left, right, list);
            list.push(items[at]);
            walk(child(right[at]), items, left, right, list);
        }
        let mut list = Vec::new();
        walk(roots[tree_of[version] as usize], &items, &left, &right, &mut list);
        list.truncate(lens[version] as usize);
        Some(list)
    }

    #[test]
    fn every_position_has_its_list_whatever_the_changes_were() {
        let mut state = 7_u64;
        let mut below = |end: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % end.max(1)
        };
        for _ in 0..20 {
            let mut history = ListHistory::default();
            history.begin(3.into());
            let mut list: Vec<(u64, u32)> = Vec::new();
            let mut lists: Vec<Vec<(u64, u32)>> = vec![list.clone()];
            for (next, position) in (0..).zip(4..300_u64) {
                let before = list.clone();
                match below(5) {
                    0 | 1 => list.push((list.last().map_or(0, |(place, _)| place + 1000), next)),
                    2 => {
                        let place = below(list.last().map_or(1, |(place, _)| place + 1));
                        if !list.iter().any(|(other, _)| *other == place) {
                            list.push((place, next));
                            list.sort_unstable();
                        }
                    }
                    3 => {
                        let at = below(list.len() as u64) as usize;
                        if at < list.len() {
                            list.remove(at);
                            list.push((list.last().map_or(0, |(place, _)| place + 1000), next));
                        }
                    }
                    _ => list = lists[below(lists.len() as u64) as usize].clone(),
                }
                let removed: Vec<u64> =
                    before.iter().filter(|item| !list.contains(item)).map(|(place, _)| *place).collect();
                let added: Vec<(u64, u32)> =
                    list.iter().filter(|item| !before.contains(item)).copied().collect();
                if !removed.is_empty() || !added.is_empty() {
                    history.change(position.into(), &removed, &added);
                }
                lists.push(list.clone());
            }
            #[cfg(feature = "server")]
            for (position, list) in (3_u64..).zip(&lists) {
                let (len, from) = (list.len() as u32, position as u32 % (list.len() as u32 + 1));
                let wanted: Vec<u32> =
                    list.iter().map(|(_, item)| *item).skip(from as usize).take(5).collect();
                assert_eq!(
                    history.window(position.into(), from, 5),
                    Some((len, wanted)),
                    "position {position}"
                );
            }
            let bytes = history.encode();
            assert_eq!(list_at(&bytes, 2), None);
            for (position, list) in (3..).zip(&lists) {
                let wanted: Vec<u32> = list.iter().map(|(_, item)| *item).collect();
                assert_eq!(list_at(&bytes, position), Some(wanted), "position {position}");
            }
        }
    }

    #[test]
    fn a_list_that_grows_is_rolled_back_and_grows_again_takes_a_node_for_each_item() {
        let mut history = ListHistory::default();
        for item in 0..1000_u32 {
            history.change(u64::from(item).into(), &[], &[(item, item)]);
        }
        history.change(1000.into(), &(900..1000).collect::<Vec<_>>(), &[]);
        history.change(1001.into(), &[], &[(1001, 1000)]);
        let bytes = history.encode();
        let nodes = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
        assert!((1001..1100).contains(&nodes), "{nodes} nodes");
    }
}

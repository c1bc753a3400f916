use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::ops::ControlFlow;

use super::*;
use crate::generator::Generator;

impl Weigh for Arc<()> {}

struct NodeShape<K> {
    depth: usize,
    first: K,
    last: K,
}

impl<K: Ord + Clone + Debug, V: Clone + Weigh, const LEAF: usize, const FAN: usize> Node<K, V, LEAF, FAN> {
    /// Checks invariants 1 to 4 below one node.
    fn check_shape(&self, is_root: bool, on_right_edge: bool) -> NodeShape<K> {
        let spared = is_root || on_right_edge;
        assert!(self.len() > 0, "an empty block");
        assert!(spared || !self.is_scarce(), "a block of {}", self.len());
        match self {
            Node::Leaf(leaf) => {
                assert_eq!(leaf.keys.len(), leaf.slots.len());
                assert!(leaf.keys.is_sorted_by(|a, b| a < b), "keys of a leaf: {:?}", leaf.keys);
                let (first, last) = (leaf.keys[0].clone(), leaf.keys[leaf.len() - 1].clone());
                NodeShape { depth: 1, first, last }
            }
            Node::Inner(inner) => {
                assert_eq!(inner.keys.len(), inner.slots.len());
                assert_eq!(inner.weight, inner.slots.iter().map(Node::weight).sum::<usize>());
                let end = inner.len() - 1;
                let below: Vec<NodeShape<K>> = (0..=end)
                    .map(|at| inner.slots[at].check_shape(false, on_right_edge && at == end))
                    .collect();
                for (at, slot) in below.iter().enumerate() {
                    assert_eq!(slot.depth, below[0].depth, "leaves that are not equally deep");
                    assert!(inner.keys[at] <= slot.first, "a key above its slot's entries");
                    assert!(at == 0 || below[at - 1].last < inner.keys[at], "a key below the slot before");
                }
                let first = below[0].first.clone();
                NodeShape { depth: below[0].depth + 1, first, last: below[end].last.clone() }
            }
        }
    }

    fn blocks(&self) -> usize {
        match self {
            Node::Leaf(_) => 1,
            Node::Inner(inner) => 1 + inner.slots.iter().map(Node::blocks).sum::<usize>(),
        }
    }
}

impl<K: Ord + Clone + Debug, V: Clone + Weigh + PartialEq + Debug, const LEAF: usize, const FAN: usize>
    CowTree<K, V, LEAF, FAN>
{
    /// Checks all invariants, and that the tree has these entries.
    fn check(&self, wanted: &BTreeMap<K, V>) {
        let root = self.root.as_ref().map(|root| root.check_shape(true, true));
        if let Some(Node::Inner(inner)) = &self.root {
            assert!(inner.len() > 1, "a root above a single node");
        }
        if let Some(tail) = &self.tail {
            assert!(tail.len() > 0, "an empty tail");
            assert!(tail.keys.is_sorted_by(|a, b| a < b), "keys of the tail: {:?}", tail.keys);
            assert!(root.is_none_or(|root| root.last < tail.keys[0]), "a tail before the root's last");
        }
        assert_eq!(self.len(), wanted.len());
        assert!(self.iter().eq(wanted.iter()), "{:?}", self.iter().collect::<Vec<_>>());
        assert!(self.iter().rev().eq(wanted.iter().rev()));
        assert_eq!(self.last(), wanted.last_key_value());
    }
}

/// Runs changes and reads of all kinds, and checks that earlier versions stay unchanged. `bound` is
/// the number of keys; of 100 changes, `lean` are removals.
fn run<const LEAF: usize, const FAN: usize>(seed: u64, steps: u64, bound: u64, lean: impl Fn(u64) -> u64) {
    let mut numbers = Generator::from_seed(seed);
    let mut tree: CowTree<u64, u64, LEAF, FAN> = CowTree::default();
    let mut wanted = BTreeMap::new();
    let mut kept = Vec::new();
    for step in 0..steps {
        let key = numbers.next_below(bound);
        if numbers.next_below(100) < lean(step) {
            // Half of them at an existing key, some of these at an end.
            let present = match numbers.next_below(8) {
                0..4 => None,
                4 => wanted.first_key_value(),
                5 => wanted.last_key_value(),
                _ => wanted.range(key..).next(),
            };
            let key = present.map_or(key, |(key, _)| *key);
            assert_eq!(tree.remove(&key), wanted.remove(&key));
        } else {
            let behind = wanted.last_key_value().map_or(0, |(last, _)| last + 1 + numbers.next_below(3));
            let key = if numbers.next_below(2) == 0 { behind } else { key };
            assert_eq!(tree.insert(key, step), wanted.insert(key, step));
        }
        let key = numbers.next_below(bound * 2);
        assert_eq!(tree.get(&key), wanted.get(&key));
        assert_eq!(tree.before(&key), wanted.range(..key).next_back());
        let until = key + numbers.next_below(bound);
        assert!(tree.range(key..=until).eq(wanted.range(key..=until)));
        assert!(tree.range_back(key..=until).eq(wanted.range(key..=until).rev()));
        match numbers.next_below(40) {
            0 => kept.push((tree.clone(), wanted.clone())),
            1 if !kept.is_empty() => {
                let at = numbers.next_below(kept.len() as u64) as usize;
                let (earlier, was): (CowTree<_, _, LEAF, FAN>, _) = kept.swap_remove(at);
                earlier.check(&was);
                check_differences(&tree, &wanted, &earlier, &was);
                // Sometimes the run continues with the earlier version.
                if numbers.next_below(2) == 0 {
                    (tree, wanted) = (earlier, was);
                }
            }
            _ => {}
        }
        tree.check(&wanted);
    }
    kept.iter().for_each(|(earlier, was)| earlier.check(was));
}

/// Checks that the differences of two trees, without keys at which both values are equal, match the
/// two maps.
fn check_differences<const LEAF: usize, const FAN: usize>(
    left: &CowTree<u64, u64, LEAF, FAN>,
    left_map: &BTreeMap<u64, u64>,
    right: &CowTree<u64, u64, LEAF, FAN>,
    right_map: &BTreeMap<u64, u64>,
) {
    let keys: BTreeSet<u64> = left_map.keys().chain(right_map.keys()).copied().collect();
    let entry = |key: u64| (key, left_map.get(&key).copied(), right_map.get(&key).copied());
    let wanted: Vec<_> = keys.into_iter().map(entry).filter(|(_, left, right)| left != right).collect();
    let mut found = Vec::new();
    let _ = left.differences(right, &mut |key, left, right| {
        found.push((*key, left.copied(), right.copied()));
        ControlFlow::Continue(())
    });
    assert!(found.is_sorted_by(|one, next| one.0 < next.0), "each key once, in order");
    found.retain(|(_, left, right)| left != right);
    assert_eq!(found, wanted);
}

#[test]
fn what_two_trees_share_is_not_looked_at() {
    let mut tree: CowTree<u64, u64, 8, 8> = CowTree::default();
    (0..100_000).for_each(|key| assert_eq!(tree.insert(2 * key, key), None));
    let before = tree.clone();
    let changes: [fn(&mut CowTree<u64, u64, 8, 8>); 4] = [
        |tree| {
            let _ = tree.insert(200_001, 0);
        },
        |tree| {
            let _ = tree.insert(77_777, 0);
        },
        |tree| {
            let _ = tree.remove(&55_554);
        },
        |tree| {
            let _ = tree.insert(0, 1);
        },
    ];
    for change in changes {
        change(&mut tree);
        let mut looked_at = 0;
        let _ = tree.differences(&before, &mut |_, _, _| {
            looked_at += 1;
            ControlFlow::Continue(())
        });
        assert!((1..200).contains(&looked_at), "{looked_at} entries");
    }
}

#[test]
fn a_tree_is_the_map_that_it_stands_for_and_its_clones_stay_as_they_were() {
    for seed in 0..60 {
        run::<4, 4>(seed, 400, 200, |_| 45);
        run::<8, 8>(seed, 400, 300, |_| 40);
    }
    // Alternately growing and shrinking, down to nothing and to several levels.
    for seed in 0..8 {
        run::<4, 4>(seed, 3_000, 2_000, |step| if step / 500 % 2 == 0 { 15 } else { 85 });
        run::<5, 6>(seed, 3_000, 2_000, |step| if step / 500 % 2 == 0 { 15 } else { 85 });
    }
}

#[test]
fn a_leaf_that_was_left_with_little_is_mended_when_another_comes_behind_it() {
    // When a level has just been started, the right edge is a chain of blocks with a single slot.
    // It takes a removal for each to repair them.
    for len in (1..200).chain(1_020..1_040).chain(4_090..4_110) {
        let mut tree: CowTree<u64, u64, 4, 4> = CowTree::default();
        let mut wanted = BTreeMap::new();
        for key in 0..len {
            tree.insert(key, key);
            wanted.insert(key, key);
        }
        // All but one of the last leaf under the root.
        let tail = tree.tail.as_ref().map_or(0, |tail| tail.keys[0]);
        for key in tail.saturating_sub(3)..tail {
            assert_eq!(tree.remove(&key), wanted.remove(&key));
            tree.check(&wanted);
        }
        for key in len..len + 20 {
            tree.insert(key, key);
            wanted.insert(key, key);
            tree.check(&wanted);
        }
    }
}

#[test]
fn both_ends_of_an_iterator_meet() {
    let mut tree: CowTree<u64, u64, 4, 4> = CowTree::default();
    (0..300).for_each(|key| assert_eq!(tree.insert(key, key), None));
    for from_the_front in 0..=300 {
        let mut iter = tree.iter();
        let mut front: Vec<u64> = iter.by_ref().take(from_the_front).map(|(key, _)| *key).collect();
        let back: Vec<u64> = iter.rev().map(|(key, _)| *key).collect();
        front.extend(back.iter().rev());
        assert!(front.iter().copied().eq(0..300));
    }
}

#[test]
fn a_window_of_keys_that_moves_on_forever_takes_no_more_memory() {
    let mut numbers = Generator::from_seed(7);
    let mut tree: CowTree<u64, u64, 8, 8> = CowTree::default();
    let mut live: Vec<u64> = (0..1_000).collect();
    live.iter().for_each(|key| assert_eq!(tree.insert(*key, 0), None));
    let mut view = tree.clone();
    for key in 1_000..200_000 {
        let at = numbers.next_below(1_000) as usize;
        assert_eq!(tree.remove(&live[at]), Some(0));
        tree.insert(key, 0);
        live[at] = key;
        if key % 100 == 0 {
            view = tree.clone();
        }
    }
    assert_eq!(view.len(), 1_000);
    // A leaf has at least three entries, so there are no more than 334 leaves, and half as many
    // blocks above them.
    let blocks = tree.root.as_ref().map_or(0, Node::blocks);
    assert!(blocks < 501, "{blocks} blocks");
    tree.check(&live.into_iter().map(|key| (key, 0)).collect());
}

#[test]
fn what_is_put_behind_a_clone_copies_one_leaf() {
    let mut tree: CowTree<u64, Arc<()>, 8, 8> = CowTree::default();
    let value = Arc::new(());
    (0..10_003).for_each(|key| assert_eq!(tree.insert(key, Arc::clone(&value)), None));
    let view = tree.clone();
    assert_eq!(Arc::strong_count(&value), 10_004);
    tree.insert(10_003, Arc::clone(&value));
    // Three were in the tail.
    assert_eq!(Arc::strong_count(&value), 10_004 + 3 + 1);
    tree.remove(&5_000);
    assert_eq!(Arc::strong_count(&value), 10_004 + 3 + 1 + 7);
    drop(tree);
    assert_eq!(Arc::strong_count(&value), 10_004);
    assert_eq!(view.len(), 10_003);
}

#[test]
fn one_entry_takes_the_place_of_all_and_views_stay_as_they_were() {
    for len in 0..40 {
        for is_shared in [false, true] {
            let (mut tree, mut wanted) = (CowTree::<u64, u64, 4, 4>::default(), BTreeMap::new());
            for key in 0..len {
                tree.insert(key, key);
                wanted.insert(key, key);
            }
            let view = is_shared.then(|| tree.clone());
            // Below the previous entries, and after the one before.
            for key in [0, 7] {
                tree.hold_only(key, len);
                tree.check(&BTreeMap::from([(key, len)]));
            }
            if let Some(view) = view {
                view.check(&wanted);
            }
            tree.insert(9, len);
            tree.check(&BTreeMap::from([(7, len), (9, len)]));
        }
    }
}

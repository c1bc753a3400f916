//! Comparing slices at two positions by what changed: they share their items with the fold.

use foldlog_codec::body::Policy;

use super::StateReader;
use crate::items::rows::Rows;

impl StateReader {
    /// The ids of the slices of a policy.
    fn ids(&self, policy: Policy) -> impl Iterator<Item = u32> {
        let slices = self.projection().names.slices().iter();
        slices.filter(move |slice| slice.policy == policy).map(|slice| slice.id)
    }

    fn rows(&self, slice: u32) -> Option<&Rows> {
        Some(self.projection().items(slice)?.1.held())
    }
}

/// Compares STATE of two folds of one log that go on side by side. What was found to be the same is not looked at again: where both
/// have changed alike since then, they are the same still.
#[derive(Debug, Default)]
pub struct Comparison {
    /// STATE by slice, where both were the same last; empty where they were not.
    same: Vec<(Rows, Rows)>,
    items: u64,
}

impl Comparison {
    /// How many items were looked at so far.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Whether each LOG slice is that of `earlier` with more items behind it. Looks at no more than what the two do not
    /// share.
    pub fn logs_grew(&mut self, earlier: &StateReader, later: &StateReader) -> bool {
        let empty = Rows::default();
        later.ids(Policy::Log).chain(earlier.ids(Policy::Log)).all(|slice| {
            let before = earlier.rows(slice).unwrap_or(&empty);
            let (grew, items) = later.rows(slice).unwrap_or(&empty).only_grew_since(before);
            self.items += items;
            grew
        })
    }

    /// Whether STATE of both is the same, by the names of the items. Says `false` also where items that
    /// were put before others are not kept alike, which the slices themselves then tell from a difference.
    pub fn is_same(&mut self, one: &StateReader, other: &StateReader) -> bool {
        let empty = Rows::default();
        let len = one.projection().names.slices().len().max(other.projection().names.slices().len());
        self.same.resize_with(len, Default::default);
        let mut all = true;
        let slices: Vec<u32> = one.ids(Policy::State).chain(other.ids(Policy::State)).collect();
        for slice in slices {
            let Some((one_then, other_then)) = self.same.get_mut(slice as usize) else { continue };
            let now = [one.rows(slice), other.rows(slice)].map(|rows| rows.unwrap_or(&empty));
            let (one, other) = (now[0].changes_since(one_then), now[1].changes_since(other_then));
            self.items += one.looked_at + other.looked_at;
            let same = one.are_same(other);
            (*one_then, *other_then) =
                if same { (now[0].clone(), now[1].clone()) } else { Default::default() };
            all &= same;
        }
        all
    }
}

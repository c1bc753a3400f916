//! Compares slices of two folds by their changes, without visiting shared items.

use foldlog_codec::body::Policy;

use super::StateReader;
use crate::items::rows::Rows;

impl StateReader {
    fn ids(&self, policy: Policy) -> impl Iterator<Item = u32> {
        let slices = self.projection.names.slices().iter();
        slices.filter(move |slice| slice.policy == policy).map(|slice| slice.id)
    }

    pub(super) fn rows(&self, slice: u32) -> Option<&Rows> {
        Some(self.projection.items(slice)?.1.rows_in_memory())
    }
}

/// Compares the slices of two folds of one log that advance in parallel. Items that were found
/// equal are not visited again: they stay equal as long as both folds change them in the same way.
#[derive(Debug, Default)]
pub struct FoldComparison {
    /// Items of each STATE slice when both folds last had the same ones. Empty if they differed.
    same: Vec<(Rows, Rows)>,
    items: u64,
}

impl FoldComparison {
    /// Returns the number of items that were visited so far.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Returns whether each LOG slice of `later` is that of `earlier` with items appended. Visits
    /// only items that the two do not share.
    pub fn logs_grew(&mut self, earlier: &StateReader, later: &StateReader) -> bool {
        let empty = Rows::default();
        later.ids(Policy::Log).chain(earlier.ids(Policy::Log)).all(|slice| {
            let before = earlier.rows(slice).unwrap_or(&empty);
            let (grew, items) = later.rows(slice).unwrap_or(&empty).only_grew_since(before);
            self.items += items;
            grew
        })
    }

    /// Returns whether both have the same STATE, by the names of the items. May return `false` for
    /// equal slices whose items were inserted before others; the caller must compare these in full.
    pub fn is_same(&mut self, one: &StateReader, other: &StateReader) -> bool {
        let empty = Rows::default();
        let len = one.projection.names.slices().len().max(other.projection.names.slices().len());
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

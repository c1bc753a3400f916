//! Which records are live.
//!
//! A rollback record at `r` with target `n` says: STATE as it was at `n`. The path that is live at a position
//! `p` is therefore: the records behind the last rollback at or before `p`, that rollback itself, and before
//! it the path that was live at the rollback's target.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The rollbacks of a log: from each rollback's sequence number to its target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path {
    rollbacks: BTreeMap<u64, u64>,
}

impl Path {
    /// The path of a log with these rollbacks, each with its target, which must be below it.
    pub fn new(rollbacks: impl IntoIterator<Item = (u64, u64)>) -> Path {
        Path { rollbacks: rollbacks.into_iter().filter(|(at, to)| to < at).collect() }
    }

    /// Takes in one more rollback.
    pub fn add(&mut self, at: u64, to: u64) {
        if to < at {
            self.rollbacks.insert(at, to);
        }
    }

    /// The ranges of records that were live when `position` was written, in ascending order.
    pub fn live_at(&self, position: u64) -> Vec<RangeInclusive<u64>> {
        let mut ranges = Vec::new();
        let mut end = position;
        loop {
            match self.rollbacks.range(..=end).next_back() {
                Some((at, to)) => {
                    ranges.push(*at..=end);
                    end = *to;
                }
                None => {
                    ranges.push(0..=end);
                    break;
                }
            }
        }
        ranges.reverse();
        ranges
    }

    /// The ranges of records that are live before record `next` is written and would not be after it, if it
    /// were a rollback to `to`.
    pub fn abandoned_by(&self, next: u64, to: u64) -> Vec<RangeInclusive<u64>> {
        let Some(last) = next.checked_sub(1) else { return Vec::new() };
        let kept = self.live_at(to);
        let mut abandoned = Vec::new();
        for range in self.live_at(last) {
            // Live ranges of one log that overlap begin alike, since each begins with a rollback or with 0.
            match kept.iter().find(|kept| kept.start() == range.start()) {
                None => abandoned.push(range),
                Some(kept) if kept.end() < range.end() => abandoned.push(kept.end() + 1..=*range.end()),
                Some(_) => {}
            }
        }
        abandoned
    }

    /// Whether a record was live when `position` was written.
    pub fn is_live(&self, sequence: u64, position: u64) -> bool {
        self.live_at(position).iter().any(|range| range.contains(&sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_and_repeated_rollbacks_leave_the_path_that_was_live_at_their_target() {
        // 0 1 2 3 [4: back to 1] 5 6 [7: back to 3, which 4 had abandoned] 8
        let path = Path::new([(4, 1), (7, 3)]);
        assert_eq!(path.live_at(3), [0..=3]);
        assert_eq!(path.live_at(6), [0..=1, 4..=6]);
        assert_eq!(path.live_at(8), [0..=3, 7..=8]);
        assert!(!path.is_live(5, 8));
        assert!(path.is_live(2, 8));
        assert_eq!(path.abandoned_by(9, 2), [3..=3, 7..=8]);
        assert_eq!(path.abandoned_by(9, 8), []);
    }
}

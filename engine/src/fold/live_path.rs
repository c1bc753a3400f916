//! Live paths: the live records at a position.
//!
//! A rollback record at `r` with target `n` restores STATE as it was at `n`. The path that is live
//! at a position `p` therefore consists of the path that was live at the target of the last
//! rollback at or before `p`, that rollback itself, and the records after it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use foldlog_codec::SequenceNumber;

/// The rollbacks of a log: the target of each by its own sequence number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LivePath {
    rollbacks: BTreeMap<SequenceNumber, SequenceNumber>,
}

impl LivePath {
    /// Creates the path of a log with these rollbacks: sequence number and target, which must be
    /// lower.
    pub fn new<A: Into<SequenceNumber>, T: Into<SequenceNumber>>(
        rollbacks: impl IntoIterator<Item = (A, T)>,
    ) -> LivePath {
        let rollbacks = rollbacks.into_iter().map(|(at, to)| (at.into(), to.into()));
        LivePath { rollbacks: rollbacks.filter(|(at, to)| to < at).collect() }
    }

    /// Adds a rollback to the path.
    pub fn add(&mut self, at: impl Into<SequenceNumber>, to: impl Into<SequenceNumber>) {
        let (at, to) = (at.into(), to.into());
        if to < at {
            self.rollbacks.insert(at, to);
        }
    }

    /// Returns the ranges of records that were live when `position` was written, in ascending
    /// order.
    pub fn live_at(&self, position: impl Into<SequenceNumber>) -> Vec<RangeInclusive<SequenceNumber>> {
        let position = position.into();
        let mut ranges: Vec<_> = self.down_from(position).collect();
        ranges.reverse();
        ranges
    }

    /// Returns the ranges of live records in descending order, lazily.
    pub(crate) fn down_from(
        &self,
        position: SequenceNumber,
    ) -> impl Iterator<Item = RangeInclusive<SequenceNumber>> {
        let mut end = Some(position);
        std::iter::from_fn(move || {
            let last = end?;
            let rollback = self.rollbacks.range(..=last).next_back();
            end = rollback.map(|(_, to)| *to);
            Some(rollback.map_or(SequenceNumber::MIN, |(at, _)| *at)..=last)
        })
    }

    /// Returns the ranges of records that a rollback to `to`, written as record `next`, would
    /// abandon, in ascending order. The time is proportional to the abandoned ranges, not to the
    /// log.
    pub fn abandoned_by(
        &self,
        next: impl Into<SequenceNumber>,
        to: impl Into<SequenceNumber>,
    ) -> Vec<RangeInclusive<SequenceNumber>> {
        let (next, to) = (next.into(), to.into());
        let Some(last) = next.checked_sub(1) else { return Vec::new() };
        let mut kept = self.down_from(to).peekable();
        let mut abandoned = Vec::new();
        for range in self.down_from(last) {
            while kept.next_if(|kept| kept.start() > range.start()).is_some() {}
            // If the ranges of two paths start at the same record, it is the same rollback, or 0:
            // the paths are identical below them.
            match kept.peek().filter(|kept| kept.start() == range.start()) {
                None => abandoned.push(range),
                Some(kept) => {
                    if kept.end() < range.end() {
                        abandoned.push(*kept.end() + 1..=*range.end());
                    }
                    break;
                }
            }
        }
        abandoned.reverse();
        abandoned
    }

    /// Returns whether the record `sequence` was live when `position` was written.
    pub fn is_live(&self, sequence: impl Into<SequenceNumber>, position: impl Into<SequenceNumber>) -> bool {
        let (sequence, position) = (sequence.into(), position.into());
        let mut down = self.down_from(position).take_while(|range| sequence <= *range.end());
        down.any(|range| range.contains(&sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_and_repeated_rollbacks_leave_the_path_that_was_live_at_their_target() {
        // 0 1 2 3 [4: rolls back to 1] 5 6 [7: rolls back to 3, which 4 had abandoned] 8
        let range = |first, last| SequenceNumber::new(first)..=SequenceNumber::new(last);
        let path = LivePath::new([(4, 1), (7, 3)]);
        assert_eq!(path.live_at(3), [range(0, 3)]);
        assert_eq!(path.live_at(6), [range(0, 1), range(4, 6)]);
        assert_eq!(path.live_at(8), [range(0, 3), range(7, 8)]);
        assert!(!path.is_live(5, 8));
        assert!(path.is_live(2, 8));
        assert_eq!(path.abandoned_by(9, 2), [range(3, 3), range(7, 8)]);
        assert_eq!(path.abandoned_by(9, 8), []);
    }
}

//! The items of a LOG slice, which stay in the log.
//!
//! A LOG slice only grows and may be of any length. In memory are its length, its last items, as
//! many as its reducers see, and *marks*: the records that contain the items at some places. The
//! other items are found by walking the log from a mark
//! ([`LogSource`](crate::fold::log_source::LogSource)).

use std::ops::RangeInclusive;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;

use super::row::SliceRow;
use super::rows::Rows;

/// Maximum number of items between two marks.
const MARK_ITEMS: u64 = 256;

/// Maximum number of records between an item and the mark before it.
const MARK_RECORDS: u64 = 4096;

/// Locates an item: its place in the slice, and the record that inserted it as its first item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ItemMark {
    pub(crate) place: u64,
    pub(crate) sequence: SequenceNumber,
}

/// The part of a LOG slice that is in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogItems {
    len: u64,
    /// The last items, at most `tail_max`.
    pub(crate) tail: Rows,
    pub(crate) tail_max: usize,
    pub(crate) marks: Arc<Vec<ItemMark>>,
    /// Ranges of records whose items were rolled back, which only tests can do.
    pub(crate) rolled_back: Arc<Vec<RangeInclusive<SequenceNumber>>>,
}

impl LogItems {
    /// Creates an empty slice that will keep the last `tail_max` items in memory.
    pub(crate) fn new(tail_max: usize) -> LogItems {
        LogItems { tail_max: tail_max.max(1), ..LogItems::default() }
    }

    /// Creates a slice of `len` items with these marks. Its last items have yet to be read.
    pub(crate) fn from_marks(
        len: u64,
        marks: Vec<ItemMark>,
        rolled_back: Vec<RangeInclusive<SequenceNumber>>,
        tail_max: usize,
    ) -> LogItems {
        LogItems {
            len,
            marks: Arc::new(marks),
            rolled_back: Arc::new(rolled_back),
            ..LogItems::new(tail_max)
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn push(&mut self, row: SliceRow) {
        let sequence = row.id.sequence;
        let near = |mark: &ItemMark| {
            mark.sequence == sequence
                || (self.len < mark.place + MARK_ITEMS && sequence < mark.sequence + MARK_RECORDS)
        };
        // Only the first item of a record can be marked: a walk from a later one would miss the
        // items before it.
        if row.id.ordinal == 0 && !self.marks.last().is_some_and(near) {
            Arc::make_mut(&mut self.marks).push(ItemMark { place: self.len, sequence });
        }
        self.len += 1;
        if self.tail_max == 1 {
            self.tail.hold_only(row);
            return;
        }
        if self.tail.len() >= self.tail_max {
            self.tail = self.tail.tail(self.tail_max - 1);
        }
        self.tail.push(row);
    }

    /// Rolls the slice back to `then`, its state after record `to`. `at` is the rollback's record.
    pub(crate) fn roll_back(&mut self, then: &LogItems, to: SequenceNumber, at: SequenceNumber) {
        let mut rolled_back = (*then.rolled_back).clone();
        rolled_back.push(to + 1..=at);
        *self = LogItems { rolled_back: Arc::new(rolled_back), ..then.clone() };
    }

    /// Returns a place such that no item of a record after `sequence` comes before it. Returns the
    /// slice's length if there are no such items.
    pub(crate) fn place_behind(&self, sequence: SequenceNumber) -> u64 {
        if self.tail.last().is_some_and(|last| last.id.sequence <= sequence) {
            return self.len;
        }
        let after = self.marks.partition_point(|mark| mark.sequence <= sequence);
        after.checked_sub(1).and_then(|at| self.marks.get(at)).map_or(0, |mark| mark.place)
    }

    /// Returns the last mark at or before a place.
    pub(crate) fn mark(&self, place: u64) -> Option<ItemMark> {
        let after = self.marks.partition_point(|mark| mark.place <= place);
        self.marks.get(after.checked_sub(1)?).copied()
    }
}

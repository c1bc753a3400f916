//! Defines the numbers that identify records and operations.
//!
//! | type | identifies | value |
//! |---|---|---|
//! | [`SequenceNumber`] | a record, and the position after that record | 0 for a log's first record, one more for each that follows |
//! | [`OperationId`] | an operation | the sequence number of the operation's first `tool_begin` |
//!
//! Lengths, offsets, counts, ordinals, versions and times are plain numbers.

use std::fmt;
use std::num::ParseIntError;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::msgpack::Value;

/// Numbers a record of a log: 0 for the first, and one more for each that follows.
///
/// A sequence number also names a position: the state of the log once the record with that number
/// is applied. In a snapshot, a rollback and a fork it means that position. A rollback frees no
/// number: its own record has the next one. A fork continues with the number after the last record
/// that it shares with its parent.
///
/// ```
/// use foldlog_codec::SequenceNumber;
///
/// let first = SequenceNumber::new(41);
/// assert_eq!(first.next(), SequenceNumber::new(42));
/// assert_eq!(first + 9 - first, 9);
/// assert!(first < first + 1);
/// assert_eq!(first.to_string(), "41");
/// assert_eq!(u64::from(first), 41);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(transparent)]
#[serde(transparent)]
pub struct SequenceNumber(u64);

/// Identifies an operation by the sequence number of its first `tool_begin`.
///
/// An operation that runs again after an interruption gets another `tool_begin`, but its id does
/// not change.
///
/// ```
/// use foldlog_codec::{OperationId, SequenceNumber};
///
/// let begin = SequenceNumber::new(7);
/// let operation = OperationId::from(begin);
/// assert_eq!(operation, OperationId::new(7));
/// assert_eq!(operation.sequence(), begin);
/// assert_eq!(operation.to_string(), "7");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(transparent)]
#[serde(transparent)]
pub struct OperationId(u64);

macro_rules! number {
    ($name:ident, $noun:literal) => {
        impl $name {
            #[doc = concat!("Makes ", $noun, " of a plain number.")]
            #[must_use]
            #[inline]
            pub const fn new(number: u64) -> $name {
                $name(number)
            }

            #[doc = concat!("Returns ", $noun, " as a plain number.")]
            #[must_use]
            #[inline]
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl From<u64> for $name {
            #[inline]
            fn from(number: u64) -> $name {
                $name(number)
            }
        }

        impl From<$name> for u64 {
            #[inline]
            fn from(number: $name) -> u64 {
                number.0
            }
        }

        impl From<$name> for Value {
            #[inline]
            fn from(number: $name) -> Value {
                Value::Unsigned(number.0)
            }
        }

        impl FromStr for $name {
            type Err = ParseIntError;

            #[inline]
            fn from_str(text: &str) -> Result<$name, ParseIntError> {
                text.parse().map($name)
            }
        }

        impl fmt::Display for $name {
            #[inline]
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl PartialEq<u64> for $name {
            #[inline]
            fn eq(&self, number: &u64) -> bool {
                self.0 == *number
            }
        }

        impl PartialEq<$name> for u64 {
            #[inline]
            fn eq(&self, number: &$name) -> bool {
                *self == number.0
            }
        }
    };
}

number!(SequenceNumber, "a sequence number");
number!(OperationId, "an operation id");

impl SequenceNumber {
    /// Sequence number of a log's first record.
    pub const MIN: SequenceNumber = SequenceNumber(0);

    /// Greatest sequence number, which no log reaches. As the end of a range it means the log's
    /// end.
    pub const MAX: SequenceNumber = SequenceNumber(u64::MAX);

    /// Returns the sequence number of the next record; [`MAX`](SequenceNumber::MAX) is followed by
    /// itself.
    #[must_use]
    #[inline]
    pub const fn next(self) -> SequenceNumber {
        self.saturating_add(1)
    }

    /// Returns the sequence number `records` later, at most [`MAX`](SequenceNumber::MAX).
    #[must_use]
    #[inline]
    pub const fn saturating_add(self, records: u64) -> SequenceNumber {
        SequenceNumber(self.0.saturating_add(records))
    }

    /// Returns the sequence number `records` earlier, at least [`MIN`](SequenceNumber::MIN).
    #[must_use]
    #[inline]
    pub const fn saturating_sub(self, records: u64) -> SequenceNumber {
        SequenceNumber(self.0.saturating_sub(records))
    }

    /// Returns the sequence number `records` later, or `None` on overflow.
    #[must_use]
    #[inline]
    pub fn checked_add(self, records: u64) -> Option<SequenceNumber> {
        self.0.checked_add(records).map(SequenceNumber)
    }

    /// Returns the sequence number `records` earlier, or `None` if it would be below 0.
    #[must_use]
    #[inline]
    pub fn checked_sub(self, records: u64) -> Option<SequenceNumber> {
        self.0.checked_sub(records).map(SequenceNumber)
    }

    /// Returns the number of records from `earlier` up to, but excluding, this one; 0 if `earlier`
    /// is the later one.
    #[must_use]
    #[inline]
    pub const fn since(self, earlier: SequenceNumber) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the number of records from `earlier` up to, but excluding, this one; `None` if
    /// `earlier` is the later one.
    #[must_use]
    #[inline]
    pub const fn checked_since(self, earlier: SequenceNumber) -> Option<u64> {
        self.0.checked_sub(earlier.0)
    }

    /// Returns the sequence numbers from this one through `last`, in order; none if `last` is
    /// before this one.
    ///
    /// ```
    /// use foldlog_codec::SequenceNumber;
    ///
    /// let positions: Vec<u64> = SequenceNumber::new(3).through(SequenceNumber::new(5)).map(u64::from).collect();
    /// assert_eq!(positions, [3, 4, 5]);
    /// ```
    #[inline]
    pub fn through(self, last: SequenceNumber) -> impl DoubleEndedIterator<Item = SequenceNumber> + Clone {
        (self.0..=last.0).map(SequenceNumber)
    }

    /// Returns the eight bytes of the sequence number, the least significant first.
    #[must_use]
    #[inline]
    pub const fn to_le_bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }

    /// Creates a sequence number from its eight bytes, the least significant first.
    #[must_use]
    #[inline]
    pub const fn from_le_bytes(bytes: [u8; 8]) -> SequenceNumber {
        SequenceNumber(u64::from_le_bytes(bytes))
    }
}

impl Add<u64> for SequenceNumber {
    type Output = SequenceNumber;

    #[inline]
    fn add(self, records: u64) -> SequenceNumber {
        SequenceNumber(self.0 + records)
    }
}

impl AddAssign<u64> for SequenceNumber {
    #[inline]
    fn add_assign(&mut self, records: u64) {
        self.0 += records;
    }
}

impl Sub<u64> for SequenceNumber {
    type Output = SequenceNumber;

    #[inline]
    fn sub(self, records: u64) -> SequenceNumber {
        SequenceNumber(self.0 - records)
    }
}

impl Sub<SequenceNumber> for SequenceNumber {
    type Output = u64;

    #[inline]
    fn sub(self, earlier: SequenceNumber) -> u64 {
        self.0 - earlier.0
    }
}

impl OperationId {
    /// Returns the sequence number of the operation's first `tool_begin`.
    #[must_use]
    #[inline]
    pub const fn sequence(self) -> SequenceNumber {
        SequenceNumber(self.0)
    }
}

impl From<SequenceNumber> for OperationId {
    #[inline]
    fn from(begin: SequenceNumber) -> OperationId {
        OperationId(begin.0)
    }
}

impl From<OperationId> for SequenceNumber {
    #[inline]
    fn from(operation: OperationId) -> SequenceNumber {
        operation.sequence()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::msgpack;

    #[test]
    fn a_number_is_written_as_the_plain_number_is() {
        for number in [0, 127, 128, 1 << 40, u64::MAX] {
            assert_eq!(
                msgpack::to_vec(&(SequenceNumber::new(number), OperationId::new(number))).unwrap(),
                msgpack::to_vec(&(number, number)).unwrap(),
            );
            assert_eq!(serde_json::to_value(SequenceNumber::new(number)).unwrap(), number);
            assert_eq!(serde_json::from_value::<OperationId>(number.into()).unwrap(), number);
            assert_eq!(format!("{:>22}", SequenceNumber::new(number)), format!("{number:>22}"));
            assert_eq!(number.to_string().parse(), Ok(OperationId::new(number)));
        }
        assert_eq!(size_of::<SequenceNumber>(), size_of::<u64>());
    }

    #[test]
    fn arithmetic_stays_within_the_numbers() {
        let (two, max) = (SequenceNumber::new(2), SequenceNumber::MAX);
        assert_eq!((max.next(), max.saturating_add(7)), (max, max));
        assert_eq!(two.saturating_sub(3), SequenceNumber::MIN);
        assert_eq!((max.checked_add(1), two.checked_sub(3)), (None, None));
        assert_eq!((two.since(max), two.checked_since(max)), (0, None));
        assert_eq!((max.since(two), max.checked_since(two)), (u64::MAX - 2, Some(u64::MAX - 2)));
    }
}

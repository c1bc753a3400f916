//! How far the store's replicator is behind the log: in records, in bytes of the log, and in time.
//!
//! What was written is marked now and then, so bytes and time are told to within [`MARK_BYTES`] and [`MARK_US`], and never too low. What
//! the log held when it was opened counts as records alone.

use std::collections::VecDeque;
use std::time::Duration;

use foldlog_codec::SequenceNumber;

use crate::replication::Replication;

/// Number of bytes of the log behind which there is another mark.
const MARK_BYTES: u64 = 64 << 10;

/// Number of microseconds after which there is another mark.
const MARK_US: i64 = 100_000;

/// Says where the log stood at one moment.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// First record of those that the mark is for.
    first: SequenceNumber,
    /// Bytes of the log before it.
    bytes: u64,
    /// When it was written.
    since_us: i64,
}

/// Follows what was written and is not held.
#[derive(Debug, Default)]
pub(super) struct Lag {
    marks: VecDeque<Mark>,
    /// Sequence number behind the last record.
    end: SequenceNumber,
    /// Bytes of the log up to there.
    bytes: u64,
}

/// Says how far a replicator is behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Behind {
    pub(super) records: u64,
    pub(super) bytes: u64,
    pub(super) time: Duration,
}

impl Behind {
    /// Returns whether that is further than it may be.
    pub(super) fn is_too_far(&self, replication: &Replication) -> bool {
        self.records > replication.records_behind_max
            || self.bytes > replication.bytes_behind_max
            || self.time > replication.time_behind_max
    }
}

impl Lag {
    /// Notes a record that was written, behind which the log has so many bytes.
    pub(super) fn note(&mut self, sequence: SequenceNumber, bytes: u64, now_us: i64) {
        let is_marked = self.marks.back().is_some_and(|last| {
            self.bytes.saturating_sub(last.bytes) < MARK_BYTES
                && now_us.saturating_sub(last.since_us) < MARK_US
        });
        if !is_marked {
            let before = if self.bytes == 0 { bytes } else { self.bytes };
            self.marks.push_back(Mark { first: sequence, bytes: before, since_us: now_us });
        }
        (self.end, self.bytes) = (sequence + 1, bytes);
    }

    /// Returns how far a replicator is behind that holds the records below `held`.
    pub(super) fn behind(&mut self, held: SequenceNumber, now_us: i64) -> Behind {
        while self.marks.get(1).is_some_and(|next| next.first <= held) {
            self.marks.pop_front();
        }
        if self.end <= held {
            self.marks.clear();
        }
        let Some(first) = self.marks.front() else { return Behind::default() };
        let time_us = now_us.saturating_sub(first.since_us);
        Behind {
            records: self.end.since(held.min(self.end)),
            bytes: self.bytes.saturating_sub(first.bytes),
            time: Duration::from_micros(u64::try_from(time_us).unwrap_or(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_behind_no_longer_and_bytes_and_time_are_never_told_too_low() {
        let mut lag = Lag::default();
        assert_eq!(lag.behind(0.into(), 5), Behind::default());
        for n in 0..1_000_u64 {
            lag.note(n.into(), (n + 1) * 1_000, i64::try_from(n).unwrap() * 1_000);
        }
        for held in (0..1_000_u64).step_by(7) {
            let behind = lag.behind(held.into(), 2_000_000);
            let time_us = u64::try_from(behind.time.as_micros()).unwrap();
            assert_eq!(behind.records, 1_000 - held);
            // The first record's own bytes are not known.
            let bytes = (1_000 - held) * 1_000;
            assert!(
                (bytes - 1_000..=bytes + MARK_BYTES + 1_000).contains(&behind.bytes),
                "{held}: {behind:?}"
            );
            let since_us = 2_000_000 - held * 1_000;
            assert!((since_us..=since_us + 100_000).contains(&time_us), "{held}: {behind:?}");
        }
        assert_eq!(lag.behind(1_000.into(), 9_000_000), Behind::default());
        // Whoever writes again begins anew.
        lag.note(1_000.into(), 1_001_000, 9_000_000);
        let behind = lag.behind(1_000.into(), 9_000_010);
        assert_eq!(behind, Behind { records: 1, bytes: 1_000, time: Duration::from_micros(10) });
    }
}

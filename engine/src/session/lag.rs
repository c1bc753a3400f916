//! How far the store's replicator is behind the log: in records, in bytes of the log, and in time.
//!
//! What was written is marked now and then, so bytes and time are told to within [`MARK_BYTES`] and [`MARK_US`], and never too low. What
//! the log held when it was opened counts as records alone.
//!
//! A write looks at all this only where it may matter: not where it follows the last look within a millisecond, and nothing can have come to
//! its bound since ([`Quiet`]).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use foldlog_codec::SequenceNumber;

use crate::replication::Replication;

/// Number of bytes of the log behind which there is another mark.
const MARK_BYTES: u64 = 64 << 10;

/// Number of microseconds after which there is another mark.
const MARK_US: i64 = 100_000;

/// Number of records that follow each other at most without a look.
const QUIET_RECORDS: u64 = 64;

/// Number of bytes of the log behind which there is a look.
const QUIET_BYTES: u64 = 32 << 10;

/// Number of microseconds, between the times of two records, within which there may be none.
const QUIET_US: u64 = 1_000;

/// Says which writes need no look at how far the replicator is behind. Writers, of which there is one at a time, set it.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    /// First record that needs one.
    sequence: AtomicU64,
    /// Length of the log behind a record that needs one.
    bytes: AtomicU64,
    /// Time of the record of the last look.
    time_us: AtomicI64,
}

/// Describes a record that was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct WrittenRecord {
    pub(super) sequence: SequenceNumber,
    /// Bytes of the log up to the end of the record.
    pub(super) log_bytes: u64,
    pub(super) time_us: i64,
}

impl Quiet {
    /// Returns whether a record needs no look.
    #[inline]
    pub(super) fn holds(&self, written: WrittenRecord) -> bool {
        let WrittenRecord { sequence, log_bytes, time_us } = written;
        let since_us = time_us.wrapping_sub(self.time_us.load(Ordering::Relaxed));
        sequence.get() < self.sequence.load(Ordering::Relaxed)
            && log_bytes < self.bytes.load(Ordering::Relaxed)
            && since_us.cast_unsigned() < QUIET_US
    }

    /// Notes what a look at a record has come to.
    pub(super) fn note(&self, written: WrittenRecord, behind: ReplicaLag, records_max: u64, bytes_max: u64) {
        let WrittenRecord { sequence, log_bytes, time_us } = written;
        // Halfway to the bound there is another look.
        let records = records_max.saturating_sub(behind.records) / 2;
        let more = bytes_max.saturating_sub(behind.bytes) / 2;
        self.sequence.store(sequence.get() + 1 + records.min(QUIET_RECORDS), Ordering::Relaxed);
        self.bytes.store(log_bytes.saturating_add(more.min(QUIET_BYTES)), Ordering::Relaxed);
        self.time_us.store(time_us, Ordering::Relaxed);
    }
}

/// Says where the log stood at one moment.
#[derive(Clone, Copy, Debug)]
struct LagMark {
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
    marks: VecDeque<LagMark>,
    /// Sequence number behind the last record.
    end: SequenceNumber,
    /// Bytes of the log up to there.
    bytes: u64,
    /// When that was noted.
    noted_us: i64,
}

/// Says how far a replicator is behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReplicaLag {
    pub(super) records: u64,
    pub(super) bytes: u64,
    pub(super) time: Duration,
}

impl ReplicaLag {
    /// Returns whether that is further than it may be.
    pub(super) fn is_too_far(&self, replication: &Replication) -> bool {
        self.records > replication.records_behind_max
            || self.bytes > replication.bytes_behind_max
            || self.time > replication.time_behind_max
    }
}

impl Lag {
    /// Notes a record that was written, behind which the log has so many bytes. Those before it that were not noted were written right behind
    /// the last one that was.
    pub(super) fn note(&mut self, sequence: SequenceNumber, bytes: u64, now_us: i64) {
        if self.marks.is_empty() && self.end < sequence && self.bytes > 0 {
            self.marks.push_back(LagMark { first: self.end, bytes: self.bytes, since_us: self.noted_us });
        }
        let is_marked = self.marks.back().is_some_and(|last| {
            self.bytes.saturating_sub(last.bytes) < MARK_BYTES
                && now_us.saturating_sub(last.since_us) < MARK_US
        });
        if !is_marked {
            let before = if self.bytes == 0 { bytes } else { self.bytes };
            self.marks.push_back(LagMark { first: sequence, bytes: before, since_us: now_us });
        }
        (self.end, self.bytes, self.noted_us) = (sequence + 1, bytes, now_us);
    }

    /// Returns how far a replicator is behind that holds the records below `held`.
    pub(super) fn measure_lag(&mut self, held: SequenceNumber, now_us: i64) -> ReplicaLag {
        while self.marks.get(1).is_some_and(|next| next.first <= held) {
            self.marks.pop_front();
        }
        if self.end <= held {
            self.marks.clear();
        }
        let Some(first) = self.marks.front() else { return ReplicaLag::default() };
        let time_us = now_us.saturating_sub(first.since_us);
        ReplicaLag {
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
        assert_eq!(lag.measure_lag(0.into(), 5), ReplicaLag::default());
        for n in 0..1_000_u64 {
            lag.note(n.into(), (n + 1) * 1_000, i64::try_from(n).unwrap() * 1_000);
        }
        for held in (0..1_000_u64).step_by(7) {
            let behind = lag.measure_lag(held.into(), 2_000_000);
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
        assert_eq!(lag.measure_lag(1_000.into(), 9_000_000), ReplicaLag::default());
        // Whoever writes again begins anew.
        lag.note(1_000.into(), 1_001_000, 9_000_000);
        let behind = lag.measure_lag(1_000.into(), 9_000_010);
        assert_eq!(behind, ReplicaLag { records: 1, bytes: 1_000, time: Duration::from_micros(10) });
    }

    #[test]
    fn records_without_a_look_are_as_old_as_the_last_one_that_had_one() {
        let mut lag = Lag::default();
        lag.note(0.into(), 1_000, 5);
        assert_eq!(lag.measure_lag(1.into(), 6), ReplicaLag::default());
        // Three had none, and nothing was written for a second.
        lag.note(4.into(), 5_000, 1_000_005);
        let behind = lag.measure_lag(1.into(), 1_000_005);
        let time = Duration::from_secs(1);
        assert_eq!(behind, ReplicaLag { records: 4, bytes: 4_000, time });
        assert_eq!(lag.measure_lag(4.into(), 1_000_005).records, 1);
    }

    #[test]
    fn there_is_a_look_before_anything_can_come_to_its_bound() {
        let quiet = Quiet::default();
        let record = |sequence, log_bytes, time_us| WrittenRecord {
            sequence: SequenceNumber::new(sequence),
            log_bytes,
            time_us,
        };
        let note = |behind| quiet.note(record(9, 500, 70), behind, 1_000, 1 << 20);
        assert!(!quiet.holds(record(0, 10, 0)));
        let behind = |records, bytes| ReplicaLag { records, bytes, time: Duration::ZERO };
        note(behind(10, 500));
        assert!(quiet.holds(record(10, 600, 70)) && quiet.holds(record(73, 600, 1_069)));
        assert!(!quiet.holds(record(74, 600, 70)), "64 records had none");
        assert!(!quiet.holds(record(10, 500 + QUIET_BYTES, 70)), "many bytes have come");
        assert!(!quiet.holds(record(10, 600, 1_070)) && !quiet.holds(record(10, 600, 69)), "time has passed");
        for (records, near) in [(990, 5), (999, 0), (1_000, 0)] {
            note(behind(records, 500));
            assert!(!quiet.holds(record(10 + near, 600, 70)), "{records}");
        }
        note(behind(10, (1 << 20) - 100));
        assert!(quiet.holds(record(10, 549, 70)) && !quiet.holds(record(10, 550, 70)));
    }
}

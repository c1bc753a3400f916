//! Measures how far the store's replicator is behind the log: in records, in bytes of the log, and
//! in time.
//!
//! Written records are marked now and then, so bytes and time are accurate to within [`MARK_BYTES`]
//! and [`MARK_US`], and never too low. Records from before the opening count as records only.
//!
//! A write skips the measurement if it follows the last one within a millisecond, and no limit can
//! have been reached since ([`Quiet`]).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use foldlog_codec::SequenceNumber;

use crate::replication::Replication;

/// Bytes of the log between two marks.
const MARK_BYTES: u64 = 64 << 10;

/// Microseconds between two marks.
const MARK_US: i64 = 100_000;

/// Maximum number of consecutive records without a measurement.
const QUIET_RECORDS: u64 = 64;

/// Bytes of the log after which the lag is measured.
const QUIET_BYTES: u64 = 32 << 10;

/// Maximum microseconds, between the times of two records, without a measurement.
const QUIET_US: u64 = 1_000;

/// Decides which writes need no measurement of the lag. Writers set it, one at a time.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    /// First record that needs a measurement.
    sequence: AtomicU64,
    /// Length of the log from which on a record needs a measurement.
    bytes: AtomicU64,
    /// Time of the record at the last measurement.
    time_us: AtomicI64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct WrittenRecord {
    pub(super) sequence: SequenceNumber,
    /// Bytes of the log up to the end of the record.
    pub(super) log_bytes: u64,
    pub(super) time_us: i64,
}

impl Quiet {
    /// Returns whether a record needs no measurement.
    #[inline]
    pub(super) fn holds(&self, written: WrittenRecord) -> bool {
        let WrittenRecord { sequence, log_bytes, time_us } = written;
        let since_us = time_us.wrapping_sub(self.time_us.load(Ordering::Relaxed));
        sequence.get() < self.sequence.load(Ordering::Relaxed)
            && log_bytes < self.bytes.load(Ordering::Relaxed)
            && since_us.cast_unsigned() < QUIET_US
    }

    /// Notes the result of a measurement at a record.
    pub(super) fn note(&self, written: WrittenRecord, behind: ReplicaLag, records_max: u64, bytes_max: u64) {
        let WrittenRecord { sequence, log_bytes, time_us } = written;
        // The next measurement is due halfway to the limit.
        let records = records_max.saturating_sub(behind.records) / 2;
        let more = bytes_max.saturating_sub(behind.bytes) / 2;
        self.sequence.store(sequence.get() + 1 + records.min(QUIET_RECORDS), Ordering::Relaxed);
        self.bytes.store(log_bytes.saturating_add(more.min(QUIET_BYTES)), Ordering::Relaxed);
        self.time_us.store(time_us, Ordering::Relaxed);
    }
}

/// State of the log at one moment.
#[derive(Clone, Copy, Debug)]
struct LagMark {
    /// First record after the mark.
    first: SequenceNumber,
    /// Bytes of the log before it.
    bytes: u64,
    /// Time at which it was written.
    since_us: i64,
}

/// Tracks written records that are not replicated.
#[derive(Debug, Default)]
pub(super) struct Lag {
    marks: VecDeque<LagMark>,
    /// Sequence number after the last record.
    end: SequenceNumber,
    /// Bytes of the log up to there.
    bytes: u64,
    /// Time at which that was noted.
    noted_us: i64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReplicaLag {
    pub(super) records: u64,
    pub(super) bytes: u64,
    pub(super) time: Duration,
}

impl ReplicaLag {
    /// Returns whether the lag exceeds its limits.
    pub(super) fn is_too_far(&self, replication: &Replication) -> bool {
        self.records > replication.records_behind_max
            || self.bytes > replication.bytes_behind_max
            || self.time > replication.time_behind_max
    }
}

impl Lag {
    /// Notes a written record, with the bytes of the log up to its end. Records before it that were
    /// not noted count as written directly after the last noted one.
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

    /// Returns the lag of a replicator that has the records below `held`.
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
            // The size of the first record is unknown.
            let bytes = (1_000 - held) * 1_000;
            assert!(
                (bytes - 1_000..=bytes + MARK_BYTES + 1_000).contains(&behind.bytes),
                "{held}: {behind:?}"
            );
            let since_us = 2_000_000 - held * 1_000;
            assert!((since_us..=since_us + 100_000).contains(&time_us), "{held}: {behind:?}");
        }
        assert_eq!(lag.measure_lag(1_000.into(), 9_000_000), ReplicaLag::default());
        // The next write starts from zero.
        lag.note(1_000.into(), 1_001_000, 9_000_000);
        let behind = lag.measure_lag(1_000.into(), 9_000_010);
        assert_eq!(behind, ReplicaLag { records: 1, bytes: 1_000, time: Duration::from_micros(10) });
    }

    #[test]
    fn records_without_a_look_are_as_old_as_the_last_one_that_had_one() {
        let mut lag = Lag::default();
        lag.note(0.into(), 1_000, 5);
        assert_eq!(lag.measure_lag(1.into(), 6), ReplicaLag::default());
        // Three records were not noted, and no write happened for a second.
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

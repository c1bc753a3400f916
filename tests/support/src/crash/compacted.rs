//! The positions that compactions of a session have dropped, and those that they may have dropped.

use std::collections::BTreeSet;

use foldlog::inspect::LogReader;
use foldlog::{CompactOptions, CompactReport, Compression, KeptSnapshots, Record, RecordKind};
use foldlog_codec::body::Dropped;
use foldlog_codec::digest::SegmentDigest;
use uuid::Uuid;

use super::{Chance, Remembered, SessionMemory};

/// The known compactions of a session.
#[derive(Clone, Debug, Default)]
pub struct Compactions {
    /// Whether one was attempted.
    tried: bool,
    /// The attempts since the last check: a failed one may have dropped positions.
    unseen: u32,
    /// Positions that the attempted ones may have dropped.
    may_go: BTreeSet<u64>,
    /// Positions that the last check found dropped.
    gone: BTreeSet<u64>,
    /// Those that no crash restores.
    surely: BTreeSet<u64>,
}

/// Draws the options of a compaction of a session with this many records, created at a time.
pub fn draw_options(chance: &mut Chance, len: u64, since_us: i64, now_us: i64) -> CompactOptions {
    let age = |chance: &mut Chance| {
        let lived = now_us.saturating_sub(since_us).unsigned_abs();
        std::time::Duration::from_micros(chance.below(lived.max(1)))
    };
    CompactOptions {
        snapshots: *chance.pick(&[KeptSnapshots::Tagged, KeptSnapshots::All, KeptSnapshots::None]),
        positions: (0..chance.below(3)).map(|_| chance.below(len).into()).collect(),
        younger_than: chance.percent(30).then(|| age(chance)),
        compression: chance
            .percent(40)
            .then(|| *chance.pick(&[Compression::Zstd, Compression::Lz4, Compression::None])),
        compress_bytes_min: Some(chance.below(4096)),
        keep_bodies: chance.percent(10),
        dry_run: false,
    }
}

impl Compactions {
    pub fn were_tried(&self) -> bool {
        self.tried
    }

    /// Whether the last check found the slices at a position dropped.
    pub fn took(&self, position: u64) -> bool {
        self.gone.contains(&position)
    }

    /// Returns the part of them for a fork that continues after a position.
    pub(super) fn through(&self, position: u64) -> Compactions {
        let through = |positions: &BTreeSet<u64>| positions.range(..=position).copied().collect();
        let gone: BTreeSet<u64> = through(&self.gone);
        // The fork names the current files.
        Compactions {
            tried: self.tried,
            unseen: self.unseen,
            may_go: through(&self.may_go),
            surely: gone.clone(),
            gone,
        }
    }
}

impl SessionMemory {
    /// Records the attempt of a compaction, which was over by this time.
    pub fn compacted(&mut self, options: &CompactOptions, now_us: i64) {
        self.compactions.tried = true;
        self.compactions.unseen += 1;
        let age_us = options.younger_than.map(|age| age.as_micros() as i64);
        let is_young = |record: &Remembered| age_us.is_some_and(|age_us| record.time_us > now_us - age_us);
        let old = self.records.iter().take_while(|record| !is_young(record)).count() as u64;
        let is_kept = |position: u64| {
            let snapshot = self.records[position as usize].kind == RecordKind::Snapshot
                && match options.snapshots {
                    KeptSnapshots::All => true,
                    KeptSnapshots::Tagged => self.tagged.contains(&position),
                    KeptSnapshots::None => false,
                };
            snapshot || options.positions.contains(&position.into())
        };
        // The last position that the options allow stays.
        let may_go = (0..old.saturating_sub(1)).filter(|position| !is_kept(*position));
        self.compactions.may_go.extend(may_go);
    }

    /// Records a successful compaction with its report.
    ///
    /// # Panics
    ///
    /// If the report differs from the log.
    pub fn compacted_well(&mut self, report: &CompactReport, audit: &LogReader) {
        let id = self.id;
        // The positions dropped before this one; unknown if an attempt has failed since the last
        // check.
        let before = (self.compactions.unseen == 1).then(|| self.compactions.gone.clone());
        self.look_for_gone(audit);
        let compactions = &mut self.compactions;
        if report.through.is_some() {
            // A compaction that drops nothing writes no file, and syncs no name.
            compactions.surely.clone_from(&compactions.gone);
        }
        match report.through {
            None => assert!(
                before.is_none_or(|before| before == compactions.gone),
                "{id}: nothing was dropped, and yet positions went: {:?}",
                compactions.gone
            ),
            Some(through) => {
                let last = compactions.gone.last().copied();
                assert!(
                    last.is_none_or(|last| last < through.get()),
                    "{id}: {last:?} is gone, behind {through}"
                );
                let kept = report.kept.iter().find(|kept| compactions.took(kept.get()));
                assert_eq!(kept, None, "{id}: {report:?}");
                self.told_durable(through.get() + 1);
            }
        }
    }

    /// Takes in the dropped positions.
    ///
    /// # Panics
    ///
    /// If a position is dropped that no compaction may have dropped, or one is back that a
    /// compaction dropped permanently.
    pub fn look_for_gone(&mut self, audit: &LogReader) {
        let id = self.id;
        let mut gone = BTreeSet::new();
        for range in audit.compacted_ranges() {
            let all = range.from.get()..=range.through.get();
            gone.extend(all.filter(|position| !range.known.contains(&(*position).into())));
        }
        let compactions = &mut self.compactions;
        let wrongly = gone.difference(&compactions.may_go).next();
        assert_eq!(wrongly, None, "{id}: a position is gone that was to be kept");
        let back = compactions.surely.difference(&gone).next();
        assert_eq!(back, None, "{id}: a position is back that was gone for good");
        compactions.gone = gone;
        compactions.unseen = 0;
    }

    /// Checks an auditor's view of a log that may be compacted: digests, and the slices at some
    /// positions.
    ///
    /// # Panics
    ///
    /// If it differs from the known content.
    pub fn check_compacted(&mut self, audit: &LogReader, chance: &mut Chance) -> foldlog::Result<()> {
        if !self.compactions.tried {
            return Ok(());
        }
        let id = self.id;
        self.look_for_gone(audit);
        let mut digest = SegmentDigest::new();
        for (sequence, record) in self.records.iter().enumerate() {
            digest.update(&Record {
                sequence: (sequence as u64).into(),
                kind: record.kind,
                time_us: record.time_us,
                body: &record.body,
            });
        }
        assert_eq!(audit.digest_through(audit.last_position())?, digest.finish(), "{id}: the digest");
        for _ in 0..3 {
            let position = chance.below(self.len());
            match (super::Slices::at(audit, position), self.compactions.took(position)) {
                (Err(foldlog::Error::Compacted { position: at, earliest }), true) => {
                    assert!(at == position && earliest > at, "{id}: {at} is gone until {earliest}");
                }
                (Err(error), _) => return Err(error),
                (Ok(_), true) => panic!("{id}: position {position} is gone, and yet is known"),
                (Ok(slices), false) => {
                    let then = self.after[position as usize].slices.in_an_audit();
                    assert_eq!(slices, then, "{id}: the slices at {position}");
                }
            }
        }
        Ok(())
    }
}

impl Remembered {
    /// Checks that a record reads the same again, or as a compaction has left it.
    pub(super) fn check(&self, record: &Record<'_>, compactions: &Compactions, id: Uuid) {
        let sequence = record.sequence;
        assert_eq!(record.time_us, self.time_us, "{id}: record {sequence}");
        if record.kind == RecordKind::Dropped && compactions.tried {
            let dropped = Dropped::decode(record.body).expect("it says what was there");
            assert_eq!(self.kind, RecordKind::Dispatch, "{id}: record {sequence} was dropped");
            assert_eq!(dropped.kind, self.kind, "{id}: record {sequence}");
            assert_eq!(dropped.len, self.body.len() as u64, "{id}: record {sequence}");
            assert_eq!(dropped.hash, *blake3::hash(&self.body).as_bytes(), "{id}: record {sequence}");
            return;
        }
        assert_eq!(record.kind, self.kind, "{id}: record {sequence}");
        assert_eq!(record.body, self.body, "{id}: record {sequence}");
    }
}

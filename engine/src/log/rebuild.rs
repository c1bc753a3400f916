//! Building a log from records that are stored elsewhere, if it is more than a plain sequence of
//! records.
//!
//! # Data that the records do not contain
//!
//! | kind of session | data that a local log needs | created by |
//! |---|---|---|
//! | forked or salvaged | the fork's first segment follows a frame with the checksum that its `opened` record names | a segment that ends with the last shared record and is marked as compacted; it replaces one that ended with that checksum, and has lost nothing |
//! | compacted before its records were replicated | the contents of the slices at some positions of the compacted range | heads of compacted segments, with the bases that a replica stores with the first `dropped` record ([`KnownPositions`]) |
//!
//! # Steps
//!
//! 1. The records are appended in their order, in plain segments. A new segment begins with the
//!    first `dropped` record, after a compacted range, and with each fork's `opened` record.
//! 2. Once all are durable, each segment that needs it is rewritten as by a compaction, the later
//!    ones first.
//!
//! # Rules
//!
//! 1. A compacted range begins with the first dropped record that was replicated, and ends at the
//!    end of that range in the original log.
//! 2. A dropped record with bases invalidates the bases of earlier dropped records at and after its
//!    position: there was another compaction in between, which may have dropped the bodies that
//!    they name.
//! 3. A log that ends within a range is refused: the contents of its slices are unknown.
//!
//! The caller handles a kill before the last step; its directory has a temporary name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::body::{BaseSlice, Dropped, KnownPositions, Parent, SessionOpening};
use foldlog_codec::frame::HEADER_LEN as FRAME_HEADER_LEN;
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use uuid::Uuid;

use super::dropped_ranges::extend_base;
use super::reader::FrameLocation;
use super::segment_replacement::SegmentRewrite;
use super::writer::{AppendBody, AppendContext, LogEnvironment, LogIdentity, LogWriter};
use crate::error::Result;

pub(crate) type RebuildRefusal = &'static str;

const UNKNOWN: RebuildRefusal = "bodies of its records were dropped before they were replicated, and no replicated \
                          record contains the state of the session: an earlier version of foldlog replicated it";
const IN_PART: RebuildRefusal =
    "it contains only part of a compacted session: the session's state after its last record is unknown";
const NO_BASE: RebuildRefusal = "its records of a compacted session contradict each other";
const NO_FORK: RebuildRefusal = "a record starts a session that does not continue the records before it";

/// Tracks the dropped bodies of the records so far.
#[derive(Debug, Default)]
struct Ranges {
    /// First record and last position of each.
    ranges: Vec<(SequenceNumber, SequenceNumber)>,
    /// Whether the last range is not passed yet.
    is_open: bool,
    ends: Vec<SequenceNumber>,
    bases: BTreeMap<SequenceNumber, Vec<BaseSlice>>,
}

impl Ranges {
    /// Adds the data that accompanied the dropped record `from`.
    fn learn(&mut self, from: SequenceNumber, known: KnownPositions) {
        self.ends.retain(|end| *end < from);
        drop(self.bases.split_off(&from));
        // An end without a base is ignored: the range continues to the next one.
        let is_known = |end: &SequenceNumber| known.bases.iter().any(|base| base.position == *end);
        self.ends.extend(known.ends.iter().copied().filter(|end| *end >= from && is_known(end)));
        for base in known.bases.into_iter().filter(|base| base.position >= from) {
            extend_base(self.bases.entry(base.position).or_default(), base.slices);
        }
    }

    /// Begins a range with a dropped record, or extends the present one to its known end. Returns
    /// whether it is a new one.
    fn take(&mut self, sequence: SequenceNumber) -> Result<bool, RebuildRefusal> {
        let end = self.ends.iter().copied().find(|end| *end >= sequence).ok_or(UNKNOWN)?;
        match self.ranges.last_mut().filter(|_| self.is_open) {
            Some((_, known)) => *known = end,
            None => self.ranges.push((sequence, end)),
        }
        Ok(!std::mem::replace(&mut self.is_open, true))
    }

    /// Ends the range if the record `sequence` is after it. Returns whether it did.
    fn pass(&mut self, sequence: SequenceNumber) -> bool {
        self.is_behind(sequence) && std::mem::take(&mut self.is_open)
    }

    fn is_behind(&self, sequence: SequenceNumber) -> bool {
        self.ranges.last().is_some_and(|(_, end)| *end < sequence)
    }

    /// Checks that the contents of the slices are known at the end of each range, and after the
    /// last record, which is the one before `next`.
    fn check(&self, next: SequenceNumber) -> Result<(), RebuildRefusal> {
        if self.is_open && !self.is_behind(next) {
            return Err(IN_PART);
        }
        match self.ranges.iter().all(|(_, end)| self.bases.contains_key(end)) {
            true => Ok(()),
            false => Err(NO_BASE),
        }
    }

    fn range_of(&self, sequence: SequenceNumber) -> Option<(SequenceNumber, SequenceNumber)> {
        self.ranges.iter().copied().find(|(from, end)| (*from..=*end).contains(&sequence))
    }
}

/// A log that is built from records that are stored elsewhere.
#[derive(Debug)]
pub(crate) struct RemadeLog {
    pub(crate) log: LogWriter,
    dir: PathBuf,
    /// Environment of new logs, and the session of the last one; `None` if the log existed before.
    ground: Option<(LogEnvironment, Uuid)>,
    dropped: Ranges,
    /// Checksums that later segments name as those of the last frames of these segments, by
    /// ordinal.
    chains: BTreeMap<u32, u32>,
}

impl RemadeLog {
    /// Begins the log of a new session in the directory `dir`.
    pub(crate) fn new(ground: &LogEnvironment, dir: &Path, opened: &SessionOpening) -> RemadeLog {
        let identity = LogIdentity::from_opening(opened);
        let log = LogWriter::create(ground, dir, identity, Default::default(), Vec::new());
        RemadeLog { ground: Some((ground.clone(), opened.session)), ..RemadeLog::from_log(log, dir) }
    }

    /// Continues an existing log, to which only plain records can be appended.
    pub(crate) fn from_log(log: LogWriter, dir: &Path) -> RemadeLog {
        let (dropped, chains) = (Ranges::default(), BTreeMap::new());
        RemadeLog { log, dir: dir.to_owned(), ground: None, dropped, chains }
    }

    pub(crate) fn is_new(&self) -> bool {
        self.ground.is_some()
    }

    /// Returns the session of a new log; `None` for one that existed before.
    pub(crate) fn session(&self) -> Option<Uuid> {
        self.ground.as_ref().map(|(_, session)| *session)
    }

    /// Appends a record. `known` is the data that accompanied a dropped body. The inner error
    /// states why no log can be built.
    pub(crate) fn append(
        &mut self,
        record: &Record<'_>,
        known: Option<KnownPositions>,
        context: &AppendContext<'_>,
    ) -> Result<Result<(), RebuildRefusal>> {
        let sequence = record.sequence;
        let mut begins = self.dropped.pass(sequence);
        let dropped;
        let mut body = record.body;
        if record.kind == RecordKind::Opened && sequence > SequenceNumber::MIN {
            if let Err(refusal) = self.begin_fork(record)? {
                return Ok(Err(refusal));
            }
            begins = false;
        } else if record.kind == RecordKind::Dropped {
            if let Some(known) = known {
                self.dropped.learn(sequence, known);
            }
            match self.dropped.take(sequence) {
                Ok(is_new) => begins |= is_new,
                Err(refusal) => return Ok(Err(refusal)),
            }
            dropped = Dropped::decode(body)?.encode();
            body = &dropped;
        }
        if begins {
            self.begin_segment(record.body.len(), record.time_us, context)?;
        }
        self.log.append(record.kind, record.time_us, AppendBody::Alone(body), context)?;
        Ok(Ok(()))
    }

    /// Makes the next record, with a body of `len` bytes and this time, the first one of a segment.
    pub(crate) fn begin_segment(
        &mut self,
        len: usize,
        time_us: i64,
        context: &AppendContext<'_>,
    ) -> Result<()> {
        // A declaration needs its room twice.
        let len = 2 * (FRAME_HEADER_LEN + len) as u64;
        let first = self.log.places.segments.last().map(|segment| segment.header.first_sequence);
        match first.is_some_and(|first| first < self.log.next_sequence()) {
            true => self.log.roll_over(time_us, len, context),
            false => Ok(()),
        }
    }

    /// Switches to the log of a fork, before its first record.
    fn begin_fork(&mut self, record: &Record<'_>) -> Result<Result<(), RebuildRefusal>> {
        let opened = SessionOpening::decode(record.body)?;
        let Some(Parent::Fork { position, chain, .. }) = opened.parent else { return Ok(Err(NO_FORK)) };
        let last = self.log.last_frame().filter(|_| position.checked_add(1) == Some(record.sequence));
        let (Some((ground, session)), Some(last)) = (&mut self.ground, last) else { return Ok(Err(NO_FORK)) };
        let (places, epoch, time_us) = (self.log.places.clone(), self.log.epoch(), self.log.last_time_us());
        let segment = places.segments.len().saturating_sub(1);
        let located = FrameLocation { segment, offset: last.offset, time_us, crc: chain, end: last.end };
        self.log.finish()?;
        self.log.sync_plan().run(ground.storage.as_ref(), &|| ())?;
        self.log =
            LogWriter::fork(ground, &self.dir, LogIdentity::from_opening(&opened), places, located, epoch);
        *session = opened.session;
        self.chains.insert(last.ordinal, chain);
        Ok(Ok(()))
    }

    /// Returns the reason why no log can be built from the records so far, if there is one.
    pub(crate) fn check(&self) -> Result<(), RebuildRefusal> {
        self.dropped.check(self.log.next_sequence())
    }

    /// Returns whether no segment needs to be rewritten.
    fn is_plain(&self) -> bool {
        self.dropped.ranges.is_empty() && self.chains.is_empty()
    }

    /// Rewrites the segments that need it, and returns the log, which must have been
    /// [checked](RemadeLog::check). The segments of a plain log are not sealed yet.
    pub(crate) fn finish(mut self, context: &AppendContext<'_>) -> Result<LogWriter> {
        let next = self.log.next_sequence();
        if self.dropped.ranges.last().is_some_and(|(_, end)| *end + 1 == next) {
            // A segment is rewritten only if another one follows it.
            self.begin_segment(0, self.log.last_time_us(), context)?;
        }
        if self.is_plain() {
            self.log.finish_but_seals()?;
            return Ok(self.log);
        }
        self.log.finish()?;
        let Some((ground, _)) = &self.ground else { return Ok(self.log) };
        self.log.sync_plan().run(ground.storage.as_ref(), &|| ())?;
        let segments = Arc::clone(&self.log.places.segments);
        for pair in segments.windows(2).rev() {
            let [segment, next] = pair else { continue };
            let (first, chain) =
                (segment.header.first_sequence, self.chains.get(&segment.header.ordinal).copied());
            let range = self.dropped.range_of(first);
            if first == next.header.first_sequence || range.is_none() && chain.is_none() {
                continue;
            }
            let last = next.header.first_sequence.saturating_sub(1);
            let (through, bases) = match range {
                Some((_, end)) => {
                    let bases = self.dropped.bases.range(first..=last);
                    (end, bases.map(|(position, base)| (*position, base.clone())).collect())
                }
                // It has lost nothing.
                None => (first.saturating_sub(1), Vec::new()),
            };
            let storage = ground.storage.as_ref();
            let segment = super::chain::Segment { replaced_crc: chain, ..segment.clone() };
            let (next, drops) = (&next.header, &|_| false);
            SegmentRewrite {
                storage,
                dir: &self.dir,
                segment: &segment,
                next,
                through,
                bases: &bases,
                drops,
            }
            .run()?;
        }
        Ok(self.log)
    }
}

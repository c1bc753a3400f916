//! Writing a log anew from records that are held elsewhere, where it is more than a plain sequence of records.
//!
//! # What the records do not say
//!
//! | of a session | a local log needs | made by |
//! |---|---|---|
//! | that was forked or salvaged | that the fork's first segment follows a frame with the checksum that its `opened` record names | a segment that ends with the last shared record and bears the mark of a compacted one, which stands for one that ended with that checksum; it has lost nothing |
//! | that was compacted before its records were held | what the slices held at some positions of the compacted range | heads of compacted segments, with the bases that a replica holds beside the first `dropped` record ([`KnownPositions`]) |
//!
//! # Steps
//!
//! 1. The records are appended as they come, in plain segments. A new segment begins with the first `dropped` record, behind a
//!    compacted range, and with each fork's `opened` record.
//! 2. Once all are durable, each segment that needs it is written anew, as a compaction does, the later ones first.
//!
//! # Rules
//!
//! 1. A compacted range begins with the first dropped record that is held, and ends where the log's did from which it was held.
//! 2. Of the bases that came with earlier dropped records, those at and behind a later one that brings bases of its own count no
//!    more: a compaction came in between, which may have dropped what they name.
//! 3. A log that ends within a range is refused: nobody knows what its slices hold.
//!
//! A kill before the last step is the caller's matter, whose directory has a temporary name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::body::{BaseSlice, Dropped, KnownPositions, Parent, SessionOpening};
use foldlog_codec::frame::HEADER_LEN as FRAME_HEADER_LEN;
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use uuid::Uuid;

use super::compact::SegmentRewrite;
use super::compaction::go_on;
use super::reader::FrameLocation;
use super::writer::{AppendBody, AppendContext, LogEnvironment, LogIdentity, LogWriter};
use crate::error::Result;

/// Says why no log can be made of the records.
pub(crate) type RebuildRefusal = &'static str;

const UNKNOWN: RebuildRefusal = "bodies of it were dropped before they were held, and nothing that is held says what \
                          the session knew: an earlier version held it";
const IN_PART: RebuildRefusal =
    "it holds a compacted session in part only: where its records end, nobody knows what the session knew";
const NO_BASE: RebuildRefusal = "what it holds of a compacted session contradicts itself";
const NO_FORK: RebuildRefusal = "a record begins a session that does not follow those before it";

/// Follows what was dropped of the records so far.
#[derive(Debug, Default)]
struct Ranges {
    /// First record and last position of each.
    ranges: Vec<(SequenceNumber, SequenceNumber)>,
    /// Whether the last one is not passed yet.
    is_open: bool,
    ends: Vec<SequenceNumber>,
    bases: BTreeMap<SequenceNumber, Vec<BaseSlice>>,
}

impl Ranges {
    /// Takes in what came with the dropped record `from`.
    fn learn(&mut self, from: SequenceNumber, known: KnownPositions) {
        self.ends.retain(|end| *end < from);
        drop(self.bases.split_off(&from));
        // An end of which nothing is known is none: the range goes on to the next one.
        let is_known = |end: &SequenceNumber| known.bases.iter().any(|base| base.position == *end);
        self.ends.extend(known.ends.iter().copied().filter(|end| *end >= from && is_known(end)));
        for base in known.bases.into_iter().filter(|base| base.position >= from) {
            go_on(self.bases.entry(base.position).or_default(), base.slices);
        }
    }

    /// Begins a range with a dropped record, or lets the one that it is in reach as far as is known. Returns whether it is a new one.
    fn take(&mut self, sequence: SequenceNumber) -> Result<bool, RebuildRefusal> {
        let end = self.ends.iter().copied().find(|end| *end >= sequence).ok_or(UNKNOWN)?;
        match self.ranges.last_mut().filter(|_| self.is_open) {
            Some((_, known)) => *known = end,
            None => self.ranges.push((sequence, end)),
        }
        Ok(!std::mem::replace(&mut self.is_open, true))
    }

    /// Ends the range if the record `sequence` is behind it. Returns whether it did.
    fn pass(&mut self, sequence: SequenceNumber) -> bool {
        self.is_behind(sequence) && std::mem::take(&mut self.is_open)
    }

    fn is_behind(&self, sequence: SequenceNumber) -> bool {
        self.ranges.last().is_some_and(|(_, end)| *end < sequence)
    }

    /// Checks that what the slices hold is known where each range ends, and behind the last record, which is the one before `next`.
    fn check(&self, next: SequenceNumber) -> Result<(), RebuildRefusal> {
        if self.is_open && !self.is_behind(next) {
            return Err(IN_PART);
        }
        match self.ranges.iter().all(|(_, end)| self.bases.contains_key(end)) {
            true => Ok(()),
            false => Err(NO_BASE),
        }
    }

    /// Returns the range that the record is in.
    fn range_of(&self, sequence: SequenceNumber) -> Option<(SequenceNumber, SequenceNumber)> {
        self.ranges.iter().copied().find(|(from, end)| (*from..=*end).contains(&sequence))
    }
}

/// Holds a log that is made of records which are held elsewhere.
#[derive(Debug)]
pub(crate) struct RemadeLog {
    pub(crate) log: LogWriter,
    dir: PathBuf,
    /// What new logs stand on, and the session of the last one; `None` if the log was there before.
    ground: Option<(LogEnvironment, Uuid)>,
    dropped: Ranges,
    /// Checksums that the segments behind these, by their ordinals, name as their last frames'.
    chains: BTreeMap<u32, u32>,
}

impl RemadeLog {
    /// Begins the log of a new session in the directory `dir`.
    pub(crate) fn new(ground: &LogEnvironment, dir: &Path, opened: &SessionOpening) -> RemadeLog {
        let identity = LogIdentity::from_opening(opened);
        let log = LogWriter::create(ground, dir, identity, Default::default(), Vec::new());
        RemadeLog { ground: Some((ground.clone(), opened.session)), ..RemadeLog::from_log(log, dir) }
    }

    /// Goes on with a log that is there, behind which nothing but plain records can be appended.
    pub(crate) fn from_log(log: LogWriter, dir: &Path) -> RemadeLog {
        let (dropped, chains) = (Ranges::default(), BTreeMap::new());
        RemadeLog { log, dir: dir.to_owned(), ground: None, dropped, chains }
    }

    /// Returns whether the log is a new one.
    pub(crate) fn is_new(&self) -> bool {
        self.ground.is_some()
    }

    /// Returns the session whose records a new log has; `None` for one that was there before.
    pub(crate) fn session(&self) -> Option<Uuid> {
        self.ground.as_ref().map(|(_, session)| *session)
    }

    /// Appends a record. `known` is what came with one whose body was dropped. The inner error says why no log can be made of it.
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
        if record.kind == RecordKind::OPENED && sequence > SequenceNumber::MIN {
            if let Err(refusal) = self.begin_fork(record)? {
                return Ok(Err(refusal));
            }
            begins = false;
        } else if record.kind == RecordKind::DROPPED {
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

    /// Lets the next record, of so many bytes and that time, be the first one of a segment.
    pub(crate) fn begin_segment(
        &mut self,
        len: usize,
        time_us: i64,
        context: &AppendContext<'_>,
    ) -> Result<()> {
        // A declaration takes its room twice.
        let len = 2 * (FRAME_HEADER_LEN + len) as u64;
        let first = self.log.places.segments.last().map(|segment| segment.header.first_sequence);
        match first.is_some_and(|first| first < self.log.next_sequence()) {
            true => self.log.roll_over(time_us, len, context),
            false => Ok(()),
        }
    }

    /// Goes over to the log of a fork, whose first record comes next.
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

    /// Says why no log can be made of the records so far.
    pub(crate) fn check(&self) -> Result<(), RebuildRefusal> {
        self.dropped.check(self.log.next_sequence())
    }

    /// Returns whether no segment needs to be written anew.
    fn is_plain(&self) -> bool {
        self.dropped.ranges.is_empty() && self.chains.is_empty()
    }

    /// Writes the segments anew that need it, and returns the log, which was [checked](RemadeLog::check). Segments of one that needs none
    /// are not sealed yet.
    pub(crate) fn finish(mut self, context: &AppendContext<'_>) -> Result<LogWriter> {
        let next = self.log.next_sequence();
        if self.dropped.ranges.last().is_some_and(|(_, end)| *end + 1 == next) {
            // A segment is written anew only where another one follows it.
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

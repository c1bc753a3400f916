//! Walking a log frame by frame, and distinguishing damage from a torn tail.
//!
//! # Meaning of a bad frame
//!
//! A frame is bad if its bytes are invalid, if it names a predecessor other than the preceding
//! frame, or if its sequence number is not the next. Let `q` be the expected sequence number. Every
//! valid frame after it, in this segment or a later one, is evidence:
//!
//! | evidence after the bad frame | boot | meaning |
//! |---|---|---|
//! | a watermark above `q` | any | **corrupt**: the bytes were known to be durable |
//! | any valid frame | the one under which the tail was written | **corrupt**: there was no power cut, so nothing can be torn out of order |
//! | any valid frame | another, or unknown | torn: pages reached the disk out of order |
//! | none | any | torn: excluded and reported; an all-zero rest is a plain end |
//!
//! A segment may be corrupt by this table only because it is older than the data after it. It gets
//! a separate error ([`Error::OlderThanSuccessor`]). Such a segment ends before the end that its
//! successor names, or a page of it ends in zeros. Segments in a copy that was taken while the
//! session was written look like that.
//!
//! # While another process writes
//!
//! | found | meaning |
//! |---|---|
//! | a frame that is corrupt or torn | the scan reads it again, three times, before it counts: its writer may have written half of it |
//! | a file without a valid header after the chain, whose header is valid when read again | the writer continued in it after the directory was listed: the walk ends before it, without an error |
//! | a file after the chain that no longer exists | its writer had preallocated it and did not need it |
//!
//! # Invariants
//!
//! 1. Scanning writes nothing.
//! 2. Sequence numbers come in order and without gaps, and each valid frame exactly once.
//! 3. The search for evidence never gives up, and its time is linear in the number of bytes,
//!    whatever their content ([`search`](mod@search)). Bytes that no frame attests are a torn tail,
//!    however long it is.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::body::{Parent, Resumed, Rollback, Seal, SessionOpening};
use foldlog_codec::frame::Frame;
use foldlog_codec::segment::HEADER_LEN as SEGMENT_HEADER_LEN;
use foldlog_codec::{Error as CodecError, Record, RecordKind, SequenceNumber};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::chain::{self, Chain, Flaw, Segment};
use super::compressed;
use super::copy::Spot;
use super::dropped_ranges::Compaction;
use super::layout;
use super::reader::{Index, RecordLocator};
use crate::error::{Error, Result};
use crate::storage::Storage;

mod from_image;
pub(crate) mod salvage;
mod search;
pub(crate) mod sound;
mod stale;
pub(crate) mod survey;
mod verdict;

pub(super) use verdict::{BadSpot, describe, judge, out_of_chain};

/// How often a bad frame is read again before it counts.
pub(super) const READ_AGAIN_MAX: u32 = 3;

/// Locates a frame: the place of its segment in the chain, and its offset in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) segment: usize,
    pub(crate) offset: u64,
}

/// Describes bytes at the log's end that were excluded: they are invalid, and were never
/// acknowledged as durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TornTail {
    /// Path of the segment in which the valid part ends.
    #[serde(serialize_with = "foldlog_codec::escape::serialize_path")]
    pub segment: PathBuf,
    /// Offset in that segment at which the valid part ends, in bytes.
    pub offset: u64,
    /// Sequence number of the first excluded record.
    pub sequence: SequenceNumber,
    /// Number of excluded bytes, including those of later segments.
    pub bytes: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct LogScan {
    pub(crate) segments: Arc<Vec<Segment>>,
    /// The result of compactions of the log, if there were any.
    pub(crate) compaction: Option<Arc<Compaction>>,
    pub(crate) ordinal_max: u32,
    pub(crate) session: Uuid,
    /// The session's own `SessionOpening` record; `opened_sequence` separates its records from
    /// those it shares with its parent.
    pub(crate) opened: SessionOpening,
    pub(crate) opened_sequence: SequenceNumber,
    /// The `SessionOpening` records of the session and its ancestors, each with its sequence
    /// number.
    pub(crate) openings: Vec<(SequenceNumber, SessionOpening)>,
    pub(crate) next_sequence: SequenceNumber,
    pub(crate) watermark: SequenceNumber,
    /// Sequence number below which everything is durable, including the names of the segments. It
    /// is less than the watermark if the log ends with the frame by which a recovery attests its
    /// own segment: the recovery may have ended there, before the name of its segment was durable.
    pub(crate) durable: SequenceNumber,
    pub(crate) last_crc: u32,
    /// Offset of the last frame in the last segment; `None` if that segment has none.
    pub(crate) last_offset: Option<u64>,
    pub(crate) last_time_us: i64,
    /// Offset at which the valid part of the last segment ends.
    pub(crate) end: u64,
    pub(crate) epoch: u64,
    pub(crate) rollbacks: BTreeMap<SequenceNumber, Rollback>,
    pub(crate) index: Index,
    pub(crate) torn: Option<TornTail>,
    /// Files after the chain that a crash left without a header.
    pub(crate) leftovers: Vec<PathBuf>,
    /// Ordinal of the segment after the last one, if the last one has a seal that names it. A power
    /// cut may have destroyed its header, but never its file.
    pub(crate) sealed_next: Option<u32>,
    /// Whether a writer can continue in the last segment, as after a close: its last frame attests
    /// everything, a record precedes that frame in the same segment, and nothing follows it. If the
    /// last record is in an earlier segment, bytes after that record may not be durable, and a
    /// writer that continued in the last segment would never sync them.
    pub(crate) clean: bool,
    /// Whether the log is clean and its last writer recorded that it closed the session.
    pub(crate) closed: bool,
    /// Number of bytes of all segments that belong to the log.
    pub(crate) used_bytes: u64,
    /// Whether the machine has not been restarted since the log's end was written.
    pub(crate) same_boot: bool,
    /// Boot id of the machine when it wrote the log's end; `None` if it is not known.
    pub(crate) boot_id: Option<Uuid>,
}

impl LogScan {
    pub(crate) fn places(&self) -> RecordLocator {
        RecordLocator {
            segments: Arc::clone(&self.segments),
            index: self.index.clone(),
            next_sequence: self.next_sequence,
            compaction: self.compaction.clone(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameAt<'a> {
    pub(crate) frame: Frame<'a>,
    pub(crate) segment: &'a Segment,
    pub(crate) offset: u64,
}

impl<'a> FrameAt<'a> {
    pub(crate) fn record(&self) -> Record<'a> {
        self.frame.record()
    }
}

/// Maximum number of times that a read is repeated because a compaction replaced a segment.
const REPLACED_MAX: usize = 1000;

/// Reads a log, and reads it again whenever a compaction has replaced a segment during the read.
pub(crate) fn retry_if_replaced<T>(mut read: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..REPLACED_MAX {
        match read() {
            Err(Error::CompactedMeanwhile { .. }) => {}
            read => return read,
        }
    }
    read()
}

/// Converts the error of a fold of all records below `end`, where the slices were known when the
/// log was scanned. If they no longer are, a compaction has continued past that end, and the log
/// must be read again.
pub(crate) fn begins_anew(error: Error, end: SequenceNumber, dir: &Path) -> Error {
    match error {
        Error::Compacted { position, .. } if position + 1 == end => {
            Error::CompactedMeanwhile { path: dir.to_owned() }
        }
        error => error,
    }
}

/// Walks the log in `dir`, and passes each valid frame to `visit` in order.
pub(crate) fn scan(
    storage: &dyn Storage,
    dir: &Path,
    visit: &mut dyn FnMut(FrameAt<'_>) -> Result<()>,
) -> Result<LogScan> {
    Scanner::new(storage, dir)?.run(visit)
}

/// A log with known segments that is about to be walked.
#[derive(Clone)]
pub(crate) struct Scanner<'a> {
    walk: ChainWalk<'a>,
    /// Start of the walk: the place of a segment in the chain, and an offset in it.
    start: (usize, u64),
}

impl<'a> Scanner<'a> {
    /// Finds the segments of the log in `dir`, for a walk that begins with the first.
    pub(crate) fn new(storage: &'a dyn Storage, dir: &'a Path) -> Result<Scanner<'a>> {
        let chain = chain::discover(storage, dir)?;
        Ok(Scanner { walk: ChainWalk::new(storage, dir, chain), start: (0, SEGMENT_HEADER_LEN as u64) })
    }

    /// Returns the result of compactions of the log, if there were any.
    pub(crate) fn compaction(&self) -> Result<Option<Arc<Compaction>>> {
        Compaction::read(self.walk.storage, &self.walk.chain.segments)
    }

    /// Returns the number of bytes to be walked, without the last segment, which may be long and
    /// nearly empty.
    pub(crate) fn finished_bytes(&self) -> u64 {
        let (first, from) = self.start;
        let ends = self.walk.chain.segments.iter().skip(first).filter_map(|segment| segment.end);
        ends.sum::<u64>().saturating_sub(from)
    }

    /// Walks the log, and passes each valid frame to `visit` in order.
    pub(crate) fn run(mut self, visit: &mut dyn FnMut(FrameAt<'_>) -> Result<()>) -> Result<LogScan> {
        let walk = &mut self.walk;
        if walk.chain.segments.is_empty() {
            // If the records after the lost headers were attested, this was a session.
            walk.judge_lost_headers()?;
            return Err(Error::not_a_session(walk.dir, "no segment in it has an intact header"));
        }
        let (mut index, mut from) = self.start;
        while index < walk.chain.segments.len() {
            if walk.segment(index, from, visit)?.is_break() {
                break;
            }
            (index, from) = (index + 1, SEGMENT_HEADER_LEN as u64);
        }
        self.walk.finish()
    }
}

#[derive(Clone)]
struct ChainWalk<'a> {
    storage: &'a dyn Storage,
    dir: &'a Path,
    chain: Chain,
    /// What was found so far.
    scan: LogScan,
    /// The recovery that began the last segment, as long as no frame follows those that it wrote.
    recovery: Option<Recovery>,
    /// Whether the last segment is compressed and thus has lost its successor; no writer may
    /// continue in it.
    last_compressed: bool,
    last_kind: Option<RecordKind>,
    last_seal: Option<(u32, Seal)>,
    /// Whether the session's own first record may be after the end of the walk, as in a fork of
    /// which damage leaves only the shared part.
    shared_alone: bool,
}

/// The data that a recovery wrote at the head of its segment.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    /// Sequence number below which the recovery attests everything.
    through: SequenceNumber,
    /// Sequence number below which everything was attested before the recovery.
    below: SequenceNumber,
    /// Whether the attesting frame was read. The recovery wrote nothing after that frame before the
    /// segment had its final name.
    attested: bool,
}

impl Recovery {
    /// Returns the recovery that began its segment with this frame, if the frame is of a recovery.
    fn new(resumed: &Resumed, segment: &Segment) -> Option<Recovery> {
        let below = segment.header.watermark;
        resumed.recovered.map(|through| Recovery { through, below, attested: false })
    }
}

impl<'a> ChainWalk<'a> {
    fn new(storage: &'a dyn Storage, dir: &'a Path, chain: Chain) -> ChainWalk<'a> {
        ChainWalk {
            storage,
            dir,
            chain,
            scan: LogScan::default(),
            recovery: None,
            last_compressed: false,
            last_kind: None,
            last_seal: None,
            shared_alone: false,
        }
    }

    /// Walks one segment from an offset on. Breaks if the log ends in this segment although more
    /// segments follow.
    fn segment(
        &mut self,
        index: usize,
        from: u64,
        visit: &mut dyn FnMut(FrameAt<'_>) -> Result<()>,
    ) -> Result<ControlFlow<()>> {
        let Some(segment) = self.chain.segments.get(index).cloned() else {
            return Ok(ControlFlow::Break(()));
        };
        let whole = from == SEGMENT_HEADER_LEN as u64;
        if whole {
            let end = Spot {
                offset: self.scan.end,
                last_crc: self.scan.last_crc,
                next_sequence: self.scan.next_sequence,
            };
            end.followed_by(&segment).map_err(|flaw| self.corrupt(&segment.path, 0, flaw))?;
            // The close of the previous segment does not apply to this one.
            (self.last_kind, self.scan.last_offset) = (None, None);
        }
        self.last_compressed =
            segment.end.is_none() && compressed::is_compressed(self.storage, &segment.path)?;
        let mut window = segment.window(self.storage)?;
        let context = segment.context();
        let mut offset = from;
        self.scan.watermark = self.scan.watermark.max(segment.header.watermark);
        self.scan.end = offset;
        let (mut torn_again, mut corrupt_again) = (0, 0);
        let mut ends_here = false;
        loop {
            if segment.end.is_some_and(|end| offset >= end) {
                break;
            }
            let flaw = match window.frame(context, offset)? {
                Err(error) => describe(&error),
                Ok(frame) => match out_of_chain(&frame.header, self.scan.last_crc, self.scan.next_sequence) {
                    Some(flaw) => flaw,
                    None => {
                        (torn_again, corrupt_again) = (0, 0);
                        let at = FrameAt { frame, segment: &segment, offset };
                        self.take(index, &at)?;
                        visit(at)?;
                        offset += frame.len() as u64;
                        self.scan.end = offset;
                        continue;
                    }
                },
            };
            let verdict = self.judge(&BadSpot { segment: index, offset, flaw });
            // At a plain end no segment was replaced, unless the walk begins after the present end
            // of the file.
            if !matches!(verdict, Ok(None)) || from > window.end() {
                segment.check_not_replaced(self.storage)?;
            }
            // Each verdict has its own count: the proof of damage may have been written while the
            // frame looked torn.
            let again = match &verdict {
                Ok(None) => None,
                Ok(Some(_)) => Some(&mut torn_again),
                Err(_) => Some(&mut corrupt_again),
            };
            if let Some(again) = again.filter(|again| **again < READ_AGAIN_MAX) {
                *again += 1;
                window.forget();
                continue;
            }
            self.scan.torn = verdict?;
            self.chain.segments.truncate(index + 1);
            ends_here = true;
            break;
        }
        if !ends_here {
            self.scan.last_crc = segment.exit_crc(self.scan.last_crc);
            // The segment was durable before it had its name, and no cut may shorten it: its last
            // position has a base.
            if segment.compacted.is_some() {
                self.scan.watermark = self.scan.watermark.max(self.scan.next_sequence);
            }
        }
        let seal = if ends_here { 0 } else { segment.seal_len(self.storage)? };
        // If an image covers the start of a segment, those bytes count too.
        self.scan.used_bytes += offset + seal - if whole { 0 } else { from };
        self.lineage(&segment, index)?;
        Ok(if ends_here { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// Collects a valid frame's data about the log.
    fn take(&mut self, segment: usize, at: &FrameAt<'_>) -> Result<()> {
        let header = &at.frame.header;
        if !header.kind.is_envelope() {
            self.scan.index.note(header.sequence, Location { segment, offset: at.offset });
        }
        self.scan.watermark = self.scan.watermark.max(header.watermark.min(header.sequence));
        (self.scan.last_crc, self.scan.last_offset) = (header.crc, Some(at.offset));
        self.last_kind = Some(header.kind);
        self.recovery = self.recovery.filter(|recovery| !recovery.attested).map(|recovery| Recovery {
            attested: header.kind == RecordKind::Synced && header.sequence == recovery.through,
            ..recovery
        });
        let body = |error: CodecError| {
            let reason = format!("the frame's body does not decode: {error}");
            self.corrupt(&at.segment.path, at.offset, reason)
        };
        match header.kind {
            RecordKind::Resumed => {
                let resumed = Resumed::decode(at.frame.body).map_err(body)?;
                self.scan.epoch = self.scan.epoch.max(resumed.epoch);
                self.scan.boot_id = resumed.boot_id;
                self.recovery = Recovery::new(&resumed, at.segment);
            }
            RecordKind::Seal => {
                let seal = Seal::decode(at.frame.body).map_err(body)?;
                self.last_seal = Some((at.segment.header.ordinal, seal));
            }
            RecordKind::Opened => {
                let opened = SessionOpening::decode(at.frame.body).map_err(body)?;
                self.scan.openings.push((header.sequence, opened));
            }
            _ => {
                let rollback = at.record().rollback().map_err(body)?;
                self.scan.rollbacks.extend(rollback.map(|rollback| (header.sequence, rollback)));
            }
        }
        if !header.kind.is_envelope() {
            self.scan.next_sequence += 1;
            self.scan.last_time_us = header.time_us;
        }
        Ok(())
    }

    /// Checks that a segment belongs to the session of the records before it, unless it begins with
    /// a fork of them.
    fn lineage(&self, segment: &Segment, index: usize) -> Result<()> {
        let session = segment.header.session;
        let wrong = |expected| Error::WrongSession { path: segment.path.clone(), expected, found: session };
        let before = index.checked_sub(1).and_then(|index| self.chain.segments.get(index));
        match (before, self.scan.openings.last()) {
            (_, Some((_, opened))) if opened.session != session => Err(wrong(opened.session)),
            (Some(before), Some((sequence, opened))) if before.header.session != session => {
                match opened.parent {
                    // The parent may itself be a fork that shares only records of its own parent.
                    // The segments before may therefore have an older session's id: the chain
                    // proves that they belong here.
                    Some(Parent::Fork { position, chain, .. })
                        if position.checked_add(1) == Some(*sequence)
                            && *sequence == segment.header.first_sequence
                            && chain == segment.first_predecessor_crc() =>
                    {
                        Ok(())
                    }
                    _ => Err(wrong(before.header.session)),
                }
            }
            _ => Ok(()),
        }
    }

    fn corrupt(&self, segment: &Path, offset: u64, flaw: impl Into<Flaw>) -> Error {
        let session = self.chain.segments.last().map(|segment| segment.header.session);
        chain::corrupt(session, segment, offset, self.scan.next_sequence, flaw)
    }

    /// Returns what was found so far, without the index: a copy of it would make it expensive to
    /// extend.
    fn savepoint(&self) -> LogScan {
        LogScan { index: Index::default(), ..self.scan.clone() }
    }

    /// Goes back to a savepoint.
    fn restore(&mut self, before: LogScan) {
        self.scan = LogScan { index: std::mem::take(&mut self.scan.index), ..before };
        self.forget_later_records();
    }

    fn forget_later_records(&mut self) {
        self.scan.rollbacks.split_off(&self.scan.next_sequence);
        self.scan.index.cut_at(self.scan.next_sequence);
    }

    fn finish(mut self) -> Result<LogScan> {
        if self.scan.torn.is_none() && !self.chain.beyond.is_empty() {
            self.judge_lost_headers()?;
        }
        let last_ordinal = self.chain.segments.last().map(|last| last.header.ordinal);
        let of_last = self.last_seal.as_ref().filter(|(ordinal, _)| Some(*ordinal) == last_ordinal);
        let sealed_next = of_last.map(|(_, seal)| seal.next);
        if let Some(next) = sealed_next {
            let path = layout::segment_file(self.dir, next);
            if self.storage.look_up(&path)?.is_none() {
                return Err(self.missing_segment(next));
            }
        }
        let Some((opened_sequence, opened)) = self.scan.openings.last().cloned() else {
            return Err(Error::not_a_session(self.dir, "its first record was never written"));
        };
        let named = layout::session_of(self.dir).filter(|_| !self.shared_alone);
        if let Some(expected) = named.filter(|expected| *expected != opened.session) {
            let path = self.dir.to_owned();
            return Err(Error::WrongSession { path, expected, found: opened.session });
        }
        let same_boot = self.same_boot();
        let unnamed = self.recovery.filter(|recovery| recovery.attested);
        let Chain { segments, beyond, mut half_built, ordinal_max, .. } = self.chain;
        let mut scan = self.scan;
        let clean = scan.torn.is_none()
            && beyond.is_empty()
            && !self.last_compressed
            && matches!(self.last_kind, Some(RecordKind::Synced | RecordKind::Closed))
            && segments.last().is_some_and(|last| last.header.first_sequence < scan.next_sequence)
            && scan.watermark == scan.next_sequence;
        scan.leftovers = beyond.into_iter().map(|file| file.path).collect();
        scan.leftovers.append(&mut half_built);
        let below = unnamed.map_or(scan.watermark, |recovery| recovery.below);
        Ok(LogScan {
            compaction: Compaction::read(self.storage, &segments)?,
            ordinal_max,
            segments: Arc::new(segments),
            session: opened.session,
            opened,
            opened_sequence,
            durable: below.min(scan.next_sequence),
            sealed_next,
            clean,
            closed: clean && self.last_kind == Some(RecordKind::Closed),
            same_boot,
            ..scan
        })
    }

    fn missing_segment(&self, ordinal: u32) -> Error {
        let of_beyond = self.chain.beyond.iter().filter_map(|file| file.header);
        let headers = self.chain.segments.iter().map(|segment| segment.header).chain(of_beyond);
        let session = headers.map(|header| header.session).next_back().unwrap_or_default();
        Error::MissingSegment { session, ordinal, path: layout::segment_file(self.dir, ordinal) }
    }
}

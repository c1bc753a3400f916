//! Walking a log frame by frame, and telling damage from a torn tail.
//!
//! # What a bad frame means
//!
//! A frame is bad when its bytes do not check, when it names another predecessor than the frame before it, or
//! when its sequence number is not the next. Let `q` be the sequence number that should stand there. Every
//! sound frame behind it, in this segment or a later one, is evidence:
//!
//! | evidence behind the bad frame | boot | meaning |
//! |---|---|---|
//! | a watermark above `q` | any | **corrupt**: the bytes were known to be durable |
//! | some sound frame | the one under which the tail was written | **corrupt**: no power was cut, so nothing can be torn out of order |
//! | some sound frame | another, or not known | torn: pages reached the disk out of order |
//! | none | any | torn: left out and reported; an all-zero rest is a plain end |
//!
//! A segment that is corrupt by the table, but only in that it ends before the end that its successor names, is told from
//! other damage ([`Error::OlderThanSuccessor`]): so it is in a copy that was taken while the session was written.
//!
//! # While another process writes
//!
//! | found | meaning |
//! |---|---|
//! | a frame that is corrupt or torn | it is read again, three times, before it counts: it may have been half written |
//! | a file without a sound header behind the chain, which has one when it is looked at again | the writer went on into it after the folder was listed: the walk ends before it, and nothing is wrong |
//! | a file behind the chain that is gone | its writer had made it ahead and did not need it |
//!
//! # Invariants
//!
//! 1. Scanning writes nothing.
//! 2. Sequence numbers are given out in order and without gaps, and each sound frame exactly once.
//! 3. The search for evidence never gives up, and takes time that grows with the bytes that there are, whatever they
//!    look like ([`search`]): what no frame attests is a torn tail, however much of it there is.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::body::{Opened, Parent, Resumed, Rollback, Seal, ToolEnd};
use foldlog_codec::frame::{Context, Frame, Header};
use foldlog_codec::segment::HEADER_LEN as SEGMENT_HEADER_LEN;
use foldlog_codec::{Error as CodecError, Kind, Record, SequenceNumber};
use uuid::Uuid;

use super::chain::{self, Chain, Segment};
use super::layout;
use super::reader::Index;
use super::window::Window;
use crate::error::{Corruption, Error, Result};
use crate::sabotage::{self, Breakage};
use crate::storage::Storage;

mod resume;
pub(crate) mod salvage;
mod search;
mod stale;

use search::search;

/// How often what is bad is read again before it counts; never where the engine is broken like this on purpose.
pub(super) fn read_again_max(once: Breakage) -> u32 {
    if sabotage::is(once) { 0 } else { 3 }
}

/// Where a frame stands: the segment's place in the chain, and the byte in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) segment: usize,
    pub(crate) offset: u64,
}

/// Bytes at the log's end that were left out, since they were never acknowledged as durable and do not check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// The segment in which the sound part ends.
    pub segment: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// The sequence number of the first record that is not there.
    pub sequence: SequenceNumber,
    /// How many bytes were left out, later segments included.
    pub bytes: u64,
}

/// What a walk over a log found.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) segments: Arc<Vec<Segment>>,
    pub(crate) ordinal_max: u32,
    pub(crate) session: Uuid,
    /// The session's own `Opened` record, and where sequence numbers stand for those it shares.
    pub(crate) opened: Opened,
    pub(crate) opened_sequence: SequenceNumber,
    /// The `Opened` records of the session and its ancestors, each with its sequence number.
    pub(crate) openings: Vec<(SequenceNumber, Opened)>,
    pub(crate) next_sequence: SequenceNumber,
    pub(crate) watermark: SequenceNumber,
    /// Everything below is durable, and the names of its segments are. Less than the watermark where the log ends with
    /// what a recovery attests of its own segment: it may have gone no further, and that name may not be durable.
    pub(crate) durable: SequenceNumber,
    pub(crate) last_crc: u32,
    pub(crate) last_time_us: i64,
    /// Where the sound part of the last segment ends.
    pub(crate) end: u64,
    pub(crate) epoch: u64,
    pub(crate) rollbacks: BTreeMap<SequenceNumber, Rollback>,
    pub(crate) index: Index,
    pub(crate) torn: Option<TornTail>,
    /// Files behind the chain that a crash left without a header.
    pub(crate) leftovers: Vec<PathBuf>,
    /// Whether the last writer closed the log: the last frame of the last segment attests all, a record stands
    /// before it there, and nothing follows. What stands in an earlier segment behind the last record may itself
    /// not be durable, and a writer that went on in the last segment would never sync it.
    pub(crate) clean: bool,
    /// Bytes of all segments that belong to the log.
    pub(crate) used_bytes: u64,
    /// Whether the machine has not been restarted since the log's end was written.
    pub(crate) same_boot: bool,
}

/// A sound frame and where it stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameAt<'a> {
    pub(crate) frame: Frame<'a>,
    pub(crate) segment: &'a Segment,
    pub(crate) offset: u64,
}

impl<'a> FrameAt<'a> {
    /// What the frame holds, as a record.
    pub(crate) fn record(&self) -> Record<'a> {
        let Header { sequence, kind, time_us, .. } = self.frame.header;
        Record { sequence, kind, time_us, body: self.frame.body }
    }
}

/// Walks the log in `dir`, handing each sound frame to `visit` in order.
pub(crate) fn scan(
    storage: &dyn Storage,
    dir: &Path,
    visit: &mut dyn FnMut(FrameAt<'_>) -> Result<()>,
) -> Result<Scan> {
    Scanner::new(storage, dir)?.run(visit)
}

/// A log whose segments are known and which is about to be walked.
#[derive(Clone)]
pub(crate) struct Scanner<'a> {
    walk: Walk<'a>,
    /// Where the walk begins: a segment's place in the chain, and a byte in it.
    start: (usize, u64),
}

impl<'a> Scanner<'a> {
    /// Finds the segments of the log in `dir`; the walk is to begin with the first.
    pub(crate) fn new(storage: &'a dyn Storage, dir: &'a Path) -> Result<Scanner<'a>> {
        let chain = chain::discover(storage, dir)?;
        Ok(Scanner { walk: Walk::new(storage, dir, chain), start: (0, SEGMENT_HEADER_LEN as u64) })
    }

    /// How many bytes are to be walked, those of the last segment left out: it may be long and nearly empty.
    pub(crate) fn finished_bytes(&self) -> u64 {
        let (first, from) = self.start;
        let ends = self.walk.chain.segments.iter().skip(first).filter_map(|segment| segment.end);
        ends.sum::<u64>().saturating_sub(from)
    }

    /// Walks the log, handing each sound frame to `visit` in order.
    pub(crate) fn run(mut self, visit: &mut dyn FnMut(FrameAt<'_>) -> Result<()>) -> Result<Scan> {
        let walk = &mut self.walk;
        if walk.chain.segments.is_empty() {
            // Where what stands behind the lost headers was known to be durable, this was a session.
            walk.judge_lost_headers()?;
            let reason = "no segment in it has a sound header".to_owned();
            return Err(Error::NotASession { path: walk.dir.to_owned(), reason });
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
struct Walk<'a> {
    storage: &'a dyn Storage,
    dir: &'a Path,
    chain: Chain,
    boot_id: Option<Uuid>,
    openings: Vec<(SequenceNumber, Opened)>,
    next_sequence: SequenceNumber,
    watermark: SequenceNumber,
    /// The recovery that began the last segment, as long as nothing stands behind what it wrote.
    recovery: Option<Recovery>,
    last_crc: u32,
    last_time_us: i64,
    end: u64,
    epoch: Option<u64>,
    rollbacks: BTreeMap<SequenceNumber, Rollback>,
    index: Index,
    torn: Option<TornTail>,
    last_kind: Option<Kind>,
    last_seal: Option<(u32, Seal)>,
    used_bytes: u64,
}

/// What a recovery wrote at the head of its segment.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    /// What it attests.
    through: SequenceNumber,
    /// What was attested before it.
    below: SequenceNumber,
    /// Whether its attestation was read, behind which it wrote nothing before the segment had its name for good.
    attested: bool,
}

/// What is known of a bad spot before it is judged.
pub(super) struct BadSpot {
    /// The segment's place in the chain.
    pub(super) segment: usize,
    pub(super) offset: u64,
    pub(super) expected_crc: Option<u32>,
    pub(super) found_crc: Option<u32>,
    pub(super) reason: String,
}

/// Judges a bad spot that a walk other than a whole scan has come to, as a scan would: `next_sequence` should
/// stand there, and what is before was written under the boot `boot_id`, where that is known.
pub(super) fn judge(
    storage: &dyn Storage,
    dir: &Path,
    chain: Chain,
    (next_sequence, boot_id): (SequenceNumber, Option<Uuid>),
    spot: &BadSpot,
) -> Result<Option<TornTail>> {
    let mut walk = Walk { next_sequence, boot_id, ..Walk::new(storage, dir, chain) };
    walk.torn = walk.judge(spot)?;
    if walk.torn.is_none() && !walk.chain.beyond.is_empty() {
        walk.judge_lost_headers()?;
    }
    Ok(walk.torn)
}

#[derive(Default)]
struct Evidence {
    watermark: SequenceNumber,
    any: bool,
}

impl<'a> Walk<'a> {
    fn new(storage: &'a dyn Storage, dir: &'a Path, chain: Chain) -> Walk<'a> {
        Walk {
            storage,
            dir,
            chain,
            boot_id: None,
            openings: Vec::new(),
            next_sequence: SequenceNumber::MIN,
            watermark: SequenceNumber::MIN,
            recovery: None,
            last_crc: 0,
            last_time_us: 0,
            end: 0,
            epoch: None,
            rollbacks: BTreeMap::new(),
            index: Index::default(),
            torn: None,
            last_kind: None,
            last_seal: None,
            used_bytes: 0,
        }
    }

    /// Walks one segment from a byte on; breaks where the log ends in it although more segments follow.
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
            self.begins_where_the_last_ended(&segment)?;
            // What closed the segment before says nothing about this one.
            self.last_kind = None;
        }
        let io = |error| Error::io("read", &segment.path, error);
        let file = segment.open(self.storage)?;
        let mut window = Window::new(file, segment.end).map_err(io)?;
        let context = segment.context();
        let mut offset = from;
        self.watermark = self.watermark.max(segment.header.watermark);
        self.end = offset;
        let (mut torn_again, mut corrupt_again) = (0, 0);
        let mut ends_here = false;
        loop {
            if segment.end.is_some_and(|end| offset >= end) {
                break;
            }
            let problem = match window.frame(context, offset).map_err(io)? {
                Err(error) => describe(&error),
                Ok(frame) => match out_of_chain(&frame.header, self.last_crc, self.next_sequence) {
                    Some(problem) => problem,
                    None => {
                        (torn_again, corrupt_again) = (0, 0);
                        let at = FrameAt { frame, segment: &segment, offset };
                        self.take(index, &at)?;
                        visit(at)?;
                        offset += frame.len() as u64;
                        self.end = offset;
                        continue;
                    }
                },
            };
            let (expected_crc, found_crc, reason) = problem;
            let verdict = self.judge(&BadSpot { segment: index, offset, expected_crc, found_crc, reason });
            // Each for itself: what proves damage may have come while the frame passed for torn.
            let again = match &verdict {
                Ok(None) => None,
                Ok(Some(_)) => Some(&mut torn_again),
                Err(_) => Some(&mut corrupt_again),
            };
            if let Some(again) = again.filter(|again| **again < read_again_max(Breakage::ReaderReadsOnce)) {
                *again += 1;
                window.forget();
                continue;
            }
            self.torn = verdict?;
            self.chain.segments.truncate(index + 1);
            ends_here = true;
            break;
        }
        let seal = if ends_here { None } else { segment.seal(self.storage)? };
        // What an image covers of a segment is counted in it.
        self.used_bytes += offset + seal.map_or(0, |(_, len)| len) - if whole { 0 } else { from };
        self.lineage(&segment, index)?;
        Ok(if ends_here { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    fn begins_where_the_last_ended(&self, segment: &Segment) -> Result<()> {
        let header = &segment.header;
        let reason = if header.first_sequence != self.next_sequence {
            format!("it begins at record {}, but {} is next", header.first_sequence, self.next_sequence)
        } else if segment.first_predecessor_crc() != self.last_crc {
            "it does not follow the segment that it names as the one before it".to_owned()
        } else {
            return Ok(());
        };
        Err(self.corrupt(
            &segment.path,
            0,
            Some(self.last_crc),
            Some(segment.first_predecessor_crc()),
            reason,
        ))
    }

    /// Takes in what a sound frame says about the log.
    fn take(&mut self, segment: usize, at: &FrameAt<'_>) -> Result<()> {
        let header = &at.frame.header;
        if !header.kind.is_envelope() {
            self.index.note(header.sequence, Location { segment, offset: at.offset });
        }
        self.watermark = self.watermark.max(header.watermark.min(header.sequence));
        self.last_crc = header.crc;
        self.last_kind = Some(header.kind);
        self.recovery = self.recovery.filter(|recovery| !recovery.attested).map(|recovery| Recovery {
            attested: header.kind == Kind::SYNCED && header.sequence == recovery.through,
            ..recovery
        });
        let body = |error: CodecError| {
            self.corrupt(&at.segment.path, at.offset, None, None, format!("its body does not read: {error}"))
        };
        match header.kind {
            Kind::RESUMED => {
                let resumed = Resumed::decode(at.frame.body).map_err(body)?;
                self.epoch = self.epoch.max(Some(resumed.epoch));
                self.boot_id = resumed.boot_id;
                let below = at.segment.header.watermark;
                self.recovery = resumed.recovered.map(|through| Recovery { through, below, attested: false });
            }
            Kind::SEAL => {
                let seal = Seal::decode(at.frame.body).map_err(body)?;
                self.last_seal = Some((at.segment.header.ordinal, seal));
            }
            Kind::OPENED => {
                let opened = Opened::decode(at.frame.body).map_err(body)?;
                self.openings.push((header.sequence, opened));
            }
            Kind::ROLLBACK => {
                let rollback = Rollback::decode(at.frame.body).map_err(body)?;
                self.rollbacks.insert(header.sequence, rollback);
            }
            Kind::TOOL_END => {
                // A tool's end that takes back what the tool did is a rollback to its begin.
                let end = ToolEnd::decode(at.frame.body).map_err(body)?;
                let rollback = end.rolled_back_to().map(|to| Rollback { to, preserve_logs: true });
                self.rollbacks.extend(rollback.map(|rollback| (header.sequence, rollback)));
            }
            _ => {}
        }
        if !header.kind.is_envelope() {
            self.next_sequence += 1;
            self.last_time_us = header.time_us;
        }
        Ok(())
    }

    /// A segment's session is that of the records before it, unless it begins with a fork of them.
    fn lineage(&self, segment: &Segment, index: usize) -> Result<()> {
        let session = segment.header.session;
        let wrong = |expected| Error::WrongSession { path: segment.path.clone(), expected, found: session };
        let before = index.checked_sub(1).and_then(|index| self.chain.segments.get(index));
        match (before, self.openings.last()) {
            (_, Some((_, opened))) if opened.session != session => Err(wrong(opened.session)),
            (Some(before), Some((sequence, opened))) if before.header.session != session => {
                match opened.parent {
                    // The parent may be a fork itself and share only what it shares with its own parent, so
                    // the segments before may bear an older session's name: the chain says that they belong.
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

    /// Judges a bad spot: corrupt is an error, a plain end is nothing.
    fn judge(&self, spot: &BadSpot) -> Result<Option<TornTail>> {
        let Some(segment) = self.chain.segments.get(spot.segment) else { return Ok(None) };
        let mut evidence = Evidence::default();
        let mut torn_bytes = 0;
        let q = self.next_sequence;
        let used =
            self.gather(&segment.path, spot.offset, segment.end, &[segment.context()], &mut evidence)?;
        torn_bytes += used - spot.offset;
        let later = self.chain.segments.get(spot.segment + 1..).unwrap_or_default();
        if torn_bytes == 0 && later.is_empty() {
            // The chain ends here, and ends well. What a lost header behind it says is judged at that header,
            // which is where the damage is.
            return Ok(None);
        }
        for segment in later {
            evidence.any = true;
            evidence.watermark = evidence.watermark.max(segment.header.watermark);
            let from = SEGMENT_HEADER_LEN as u64;
            torn_bytes +=
                self.gather(&segment.path, from, segment.end, &[segment.context()], &mut evidence)?;
        }
        torn_bytes += self.gather_beyond(&mut evidence)?;
        if let Some(proof) = self.proof(&evidence) {
            if let Some(error) = stale::judge(self.storage, &self.chain.segments, spot, q)? {
                return Err(error);
            }
            let reason = format!("{}; {proof}", spot.reason);
            return Err(self.corrupt(&segment.path, spot.offset, spot.expected_crc, spot.found_crc, reason));
        }
        let (segment, offset) = (segment.path.clone(), spot.offset);
        Ok(Some(TornTail { segment, offset, sequence: q, bytes: torn_bytes }))
    }

    fn gather_beyond(&self, evidence: &mut Evidence) -> Result<u64> {
        let mut bytes = 0;
        for file in &self.chain.beyond {
            let contexts: Vec<Context> = match file.header {
                Some(header) => {
                    evidence.any = true;
                    evidence.watermark = evidence.watermark.max(header.watermark);
                    vec![Context::new(header.salt, header.first_sequence)]
                }
                // A lost header began, as far as anyone can tell, at the next record.
                None => file.salts.iter().map(|salt| Context::new(*salt, self.next_sequence)).collect(),
            };
            bytes += match self.gather(&file.path, 0, None, &contexts, evidence) {
                // What its writer made ahead and did not need, it takes away when it closes the session.
                Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => 0,
                gathered => gathered?,
            };
        }
        Ok(bytes)
    }

    /// Why the evidence proves damage, if it does.
    fn proof(&self, evidence: &Evidence) -> Option<String> {
        if sabotage::is(Breakage::TailLeftOutUnexamined) {
            return None;
        }
        let q = self.next_sequence;
        if evidence.watermark > q {
            return Some(format!(
                "a later frame attests that records below {} were durable",
                evidence.watermark
            ));
        }
        (self.same_boot() && evidence.any)
            .then(|| "sound frames follow, and the machine has not been restarted since".to_owned())
    }

    fn same_boot(&self) -> bool {
        let same = self.boot_id.is_some() && self.boot_id == self.storage.boot_id();
        same && !sabotage::is(Breakage::BootIgnored)
    }

    /// Searches a file from `from` on for sound frames, and returns where its last byte that is not 0 ends.
    fn gather(
        &self,
        path: &Path,
        from: u64,
        end: Option<u64>,
        contexts: &[Context],
        evidence: &mut Evidence,
    ) -> Result<u64> {
        search(self.storage, (path, from, end), contexts, self.next_sequence, &mut |_, frame| {
            evidence.any = true;
            evidence.watermark = evidence.watermark.max(frame.header.watermark);
        })
    }

    fn corrupt(
        &self,
        segment: &Path,
        offset: u64,
        expected_crc: Option<u32>,
        found_crc: Option<u32>,
        reason: String,
    ) -> Error {
        Error::Corrupt(Box::new(Corruption {
            session: self.chain.segments.last().map(|segment| segment.header.session),
            segment: segment.to_owned(),
            offset,
            sequence: self.next_sequence,
            expected_crc,
            found_crc,
            reason,
        }))
    }

    fn finish(mut self) -> Result<Scan> {
        if self.torn.is_none() && !self.chain.beyond.is_empty() {
            self.judge_lost_headers()?;
        }
        if let Some((ordinal, seal)) = self.last_seal {
            let last = self.chain.segments.last().is_some_and(|last| last.header.ordinal == ordinal);
            let path = layout::segment_file(self.dir, seal.next);
            if last
                && self.storage.entry(&path).map_err(|error| Error::io("look up", &path, error))?.is_none()
            {
                return Err(self.missing_segment(seal.next));
            }
        }
        let Some((opened_sequence, opened)) = self.openings.last().cloned() else {
            let reason = "its first record was never written".to_owned();
            return Err(Error::NotASession { path: self.dir.to_owned(), reason });
        };
        if let Some(expected) = layout::session_of(self.dir).filter(|expected| *expected != opened.session) {
            let path = self.dir.to_owned();
            return Err(Error::WrongSession { path, expected, found: opened.session });
        }
        let same_boot = self.same_boot();
        let unnamed = self.recovery.filter(|recovery| recovery.attested);
        let unnamed = unnamed.filter(|_| !sabotage::is(Breakage::RecoveryNameTrusted));
        let clean = self.torn.is_none()
            && self.chain.beyond.is_empty()
            && self.last_kind == Some(Kind::SYNCED)
            && self.chain.segments.last().is_some_and(|last| last.header.first_sequence < self.next_sequence)
            && self.watermark == self.next_sequence;
        let mut leftovers: Vec<PathBuf> = self.chain.beyond.iter().map(|file| file.path.clone()).collect();
        leftovers.append(&mut self.chain.half_built);
        Ok(Scan {
            ordinal_max: self.chain.ordinal_max,
            segments: Arc::new(self.chain.segments),
            session: opened.session,
            openings: self.openings,
            opened,
            opened_sequence,
            next_sequence: self.next_sequence,
            watermark: self.watermark,
            durable: unnamed.map_or(self.watermark, |recovery| recovery.below).min(self.next_sequence),
            last_crc: self.last_crc,
            last_time_us: self.last_time_us,
            end: self.end,
            epoch: self.epoch.unwrap_or(0),
            rollbacks: self.rollbacks,
            index: self.index,
            torn: self.torn,
            leftovers,
            clean,
            used_bytes: self.used_bytes,
            same_boot,
        })
    }

    fn missing_segment(&self, ordinal: u32) -> Error {
        let of_beyond = self.chain.beyond.iter().filter_map(|file| file.header);
        let headers = self.chain.segments.iter().map(|segment| segment.header).chain(of_beyond);
        let session = headers.map(|header| header.session).next_back().unwrap_or_default();
        Error::MissingSegment { session, ordinal, path: layout::segment_file(self.dir, ordinal) }
    }

    /// Whether the chain was cut off only by what its writer had not yet written when the folder was listed.
    fn is_overtaken(&self) -> Result<bool> {
        let missing = self.chain.missing.map(|ordinal| (layout::segment_file(self.dir, ordinal), ordinal));
        let unsound = self.chain.beyond.iter().filter(|file| file.header.is_none());
        for (path, ordinal) in missing.into_iter().chain(unsound.map(|file| (file.path.clone(), file.named)))
        {
            for _ in 0..read_again_max(Breakage::ReaderReadsOnce) {
                let found = chain::read_header(self.storage, path.clone(), ordinal)?;
                if found.is_some_and(|file| file.header.is_some()) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The chain ended soundly, but files without a sound header stand behind it.
    fn judge_lost_headers(&mut self) -> Result<()> {
        let mut evidence = Evidence::default();
        let bytes = self.gather_beyond(&mut evidence)?;
        let proof = self.proof(&evidence);
        if (proof.is_some() || bytes > 0) && self.is_overtaken()? {
            self.chain.beyond.clear();
            // Whatever the last frame says, the log was not closed with it.
            self.last_kind = None;
            return Ok(());
        }
        let Some(first) = self.chain.beyond.first() else { return Ok(()) };
        if let Some(proof) = proof {
            if let Some(ordinal) = self.chain.missing {
                return Err(self.missing_segment(ordinal));
            }
            if let Some(error) = stale::judge_header(self.storage, &self.chain.beyond, self.next_sequence)? {
                return Err(error);
            }
            let reason = format!("the segment's header does not check; {proof}");
            return Err(self.corrupt(&first.path, 0, None, None, reason));
        }
        if bytes > 0 {
            let (segment, sequence) = (first.path.clone(), self.next_sequence);
            self.torn = Some(TornTail { segment, offset: 0, sequence, bytes });
        }
        Ok(())
    }
}

/// Why a frame whose bytes check does not belong behind the one before: the checksums expected and found, where it is
/// they, and what to say of it.
pub(super) fn out_of_chain(
    header: &Header,
    last_crc: u32,
    next_sequence: SequenceNumber,
) -> Option<(Option<u32>, Option<u32>, String)> {
    if header.predecessor_crc != last_crc && !sabotage::is(Breakage::PredecessorIgnored) {
        let reason = "the frame names another predecessor than the one before it".to_owned();
        return Some((Some(last_crc), Some(header.predecessor_crc), reason));
    }
    (header.sequence != next_sequence)
        .then(|| (None, None, format!("the frame is record {}", header.sequence)))
}

pub(super) fn describe(error: &CodecError) -> (Option<u32>, Option<u32>, String) {
    match error {
        CodecError::Checksum { expected, found } => {
            (Some(*expected), Some(*found), "the frame's checksum does not match".to_owned())
        }
        other => (None, None, format!("no frame stands there: {other}")),
    }
}

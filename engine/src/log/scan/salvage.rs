//! Reading the intact part of a damaged log.
//!
//! A scan ends with an error at the first damage. A salvage treats the damage as the log's end, and
//! counts the data after it. A record is intact if an unbroken chain of checksums leads to it from
//! the first record: nothing else proves that it followed the record before it. A salvage therefore
//! takes only the chain. It continues the chain across damage in three cases, in which the lost
//! bytes can be recomputed and the next valid frame names the same checksum:
//!
//! | damaged | computed from | proved by |
//! |---|---|---|
//! | an envelope frame, in its header | the preceding frame, the possible watermarks, and its body, which contains its own length; a `Synced` frame has no body | the next frame, or the next segment's header, names its checksum, and has the matching sequence number |
//! | an envelope frame, in one byte of its body or watermark | its checksum, which is in it and in the frame after it: one byte can be replaced so that the checksum matches | the same |
//! | a segment's header | its salt, which is stored twice in it; the segment before | the first frame is valid with that salt, and names the last frame of the segment before |
//!
//! An envelope frame has no sequence number of its own, so the next frame shows whether a record is
//! missing in between. If more than one byte of a `Resumed` or `Declared` body is wrong, the body
//! cannot be recovered, and the next frame names a checksum that nothing else has. To continue the
//! chain past it, all later frames would have to be rewritten, with checksums that no fork, image
//! or copy of the session knows. In a record no byte is ever corrected. A byte that makes the
//! checksum match does not prove that no other byte is wrong, and here the byte would be content.
//!
//! A frame after any other damage may be valid in itself, but its predecessor is unknown: a salvage
//! counts it and does not take it. The headers determine which file is which segment, not the
//! files' names, so segments with exchanged files are put right. A header that does not match the
//! segment that it names belongs to another log, or to another history of this one. A salvage
//! searches for the chain without it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::body::{self, Rollback, SessionOpening};
use foldlog_codec::frame::{self, Context, Header};
use foldlog_codec::segment::{HEADER_LEN as SEGMENT_HEADER_LEN, Previous, SegmentHeader};
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use uuid::Uuid;

use super::search::{SearchRange, search};
use super::{ChainWalk, FrameAt, LogScan, out_of_chain};
use crate::error::Result;
use crate::log::chain::{self, Segment, SegmentFile, SegmentFiles};
use crate::log::compressed;
use crate::log::dropped_ranges::Compaction;
use crate::log::layout;
use crate::log::reader::RecordLocator;
use crate::log::window::Window;
use crate::storage::Storage;

mod envelopes;

const RANGES_MAX: usize = 64;

/// Lost bytes that could be recomputed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentPatch {
    pub(crate) path: PathBuf,
    /// Ordinal of the segment in that file.
    pub(crate) ordinal: u32,
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
}

/// The records of a log to which an unbroken chain leads from the first, and their locations.
pub(crate) struct IntactChain {
    /// Segments up to the last record, each with the end of its part of the chain. Mended headers
    /// are mended only here, not in their files.
    pub(crate) places: RecordLocator,
    /// The segments of `places`, followed by those with only envelope frames.
    walked: Vec<Segment>,
    mends: Vec<SegmentPatch>,
    pub(crate) openings: Vec<(SequenceNumber, SessionOpening)>,
    pub(crate) rollbacks: BTreeMap<SequenceNumber, Rollback>,
    pub(crate) epoch: u64,
    /// Session of a segment that follows the intact part by its header but has no valid record: the
    /// session of a fork with a damaged first record.
    pub(crate) followed_by: Option<Uuid>,
    /// Session in the directory's name.
    named: Option<Uuid>,
    files: SegmentFiles,
}

/// Describes the content of a file after the intact part.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnsoundPart {
    pub(crate) path: PathBuf,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) records: u64,
    pub(crate) ranges: Vec<(SequenceNumber, SequenceNumber)>,
    /// Whether the file contains more ranges or records than are listed.
    pub(crate) more: bool,
    pub(crate) session: Option<Uuid>,
    pub(crate) openings: Vec<SessionOpening>,
}

#[derive(Clone, Copy)]
struct Boundary {
    segment: usize,
    end: u64,
    crc: u32,
    next_sequence: SequenceNumber,
    time_us: i64,
    /// Offset at which the last record before the place ends; `None` if that record is in another
    /// segment.
    last_record: Option<u64>,
}

enum SegmentWalkEnd {
    ToNext,
    Ended,
    /// At the last valid frame; the segment with the next ordinal does not follow it.
    Stranger(u32),
    /// At the segment's head: the segment belongs to another session than the records before it.
    Back,
}

/// Reads the intact part of the log in `dir`.
///
/// # Errors
///
/// [`Error::NotASession`] if there are no segments, [`Error::NotAFile`] if none is a regular file,
/// [`Error::FutureFormat`], [`Error::Io`].
pub(crate) fn sound_part(storage: &dyn Storage, dir: &Path) -> Result<IntactChain> {
    let mut files = chain::segment_files(storage, dir)?;
    loop {
        let mut reading = SalvageReader::new(storage, dir, files)?;
        let Some(stranger) = reading.run()? else { return reading.finish() };
        files = reading.files;
        if let Some(file) = files.sound.remove(&stranger) {
            files.others.push(file);
        }
    }
}

struct SalvageReader<'a> {
    walk: ChainWalk<'a>,
    files: SegmentFiles,
    mends: Vec<SegmentPatch>,
    /// Place in the chain of the last record's segment, and the offset at which that record ends.
    last_record: (usize, u64),
    followed_by: Option<Uuid>,
}

impl<'a> SalvageReader<'a> {
    fn new(storage: &'a dyn Storage, dir: &'a Path, files: SegmentFiles) -> Result<SalvageReader<'a>> {
        let walk = ChainWalk::new(storage, dir, chain::follow_sound(&files)?);
        Ok(SalvageReader { walk, files, mends: Vec::new(), last_record: (0, 0), followed_by: None })
    }

    /// Walks the chain as far as possible. Returns the ordinal of a file that does not belong to
    /// the chain; without this file the chain may continue further.
    fn run(&mut self) -> Result<Option<u32>> {
        let mut index = 0;
        loop {
            if index >= self.walk.chain.segments.len() {
                match self.adopt()? {
                    Some(adopted) => index = adopted,
                    None => return Ok(None),
                }
            }
            match self.segment(index)? {
                SegmentWalkEnd::ToNext => {}
                SegmentWalkEnd::Stranger(ordinal) => return Ok(Some(ordinal)),
                SegmentWalkEnd::Back => {
                    let followed_by = self.walk.chain.segments.get(index).filter(|_| index > 0);
                    self.followed_by = followed_by.map(|segment| segment.header.session);
                    self.walk.chain.segments.truncate(index);
                    return Ok(None);
                }
                SegmentWalkEnd::Ended => {
                    self.walk.chain.segments.truncate(index + 1);
                    let end = self.walk.scan.end;
                    if let Some(last) = self.walk.chain.segments.last_mut() {
                        last.end = Some(end);
                    }
                }
            }
            index += 1;
        }
    }

    fn segment(&mut self, index: usize) -> Result<SegmentWalkEnd> {
        let Some(segment) = self.walk.chain.segments.get(index).cloned() else {
            return Ok(SegmentWalkEnd::Ended);
        };
        let next = self.walk.chain.segments.get(index + 1).map(|next| next.header);
        let before = self.walk.savepoint();
        let (mends, last_record) = (self.mends.len(), self.last_record);
        let mut window = Window::new(&segment.path, segment.open(self.walk.storage)?, None)?;
        let context = segment.context();
        let mut offset = SEGMENT_HEADER_LEN as u64;
        let went = loop {
            self.walk.scan.end = offset;
            if next.is_some_and(|next| self.leads_to(&segment, offset, &next)) {
                self.walk.scan.last_crc = segment.exit_crc(self.walk.scan.last_crc);
                break SegmentWalkEnd::ToNext;
            }
            let (last_crc, next_sequence) = (self.walk.scan.last_crc, self.walk.scan.next_sequence);
            let sound = window.frame(context, offset)?.is_ok_and(|frame| {
                out_of_chain(&frame.header, last_crc, next_sequence).is_none()
                    // A segment's seal is never followed by a frame of the chain.
                    && frame.header.kind != RecordKind::Seal
            });
            let mended = match sound {
                true => None,
                false => self.lost_envelope(&mut window, &segment, offset, next.as_ref())?,
            };
            let frame = match &mended {
                Some(bytes) => frame::decode(context, bytes),
                None => window.frame(context, offset)?,
            };
            let Some(frame) = frame.ok().filter(|_| sound || mended.is_some()) else {
                break self.judge_end(&segment, offset, next.as_ref());
            };
            let len = frame.len() as u64;
            let at = FrameAt { frame, segment: &segment, offset };
            let record = at.record();
            if body::check(record.kind, record.body).is_err() {
                break self.judge_end(&segment, offset, next.as_ref());
            }
            self.walk.take(index, &at)?;
            if let Some(bytes) = mended {
                let (path, ordinal) = (segment.path.clone(), segment.header.ordinal);
                self.mends.push(SegmentPatch { path, ordinal, offset, bytes });
            }
            offset += len;
            if self.walk.scan.next_sequence != next_sequence {
                self.last_record = (index, offset);
            }
        };
        if self.walk.lineage(&segment, index).is_err() {
            self.walk.restore(before);
            self.mends.truncate(mends);
            self.last_record = last_record;
            return Ok(SegmentWalkEnd::Back);
        }
        Ok(went)
    }

    /// Returns whether the next segment begins after the part of this one that was read, which ends
    /// at `offset`.
    fn leads_to(&self, segment: &Segment, offset: u64, next: &SegmentHeader) -> bool {
        let Some(previous) = next.previous else { return false };
        let ended = segment.clone().ended_at(Some(previous));
        let here = (segment.header.ordinal, Some(offset), ended.exit_crc(self.walk.scan.last_crc));
        here == (previous.ordinal, ended.end, previous.crc)
            && next.first_sequence == self.walk.scan.next_sequence
    }

    /// Judges the end of a segment's valid frames at `offset`, although `next` may follow.
    fn judge_end(&self, segment: &Segment, offset: u64, next: Option<&SegmentHeader>) -> SegmentWalkEnd {
        let Some((next, previous)) = next.and_then(|next| Some((next, next.previous?))) else {
            return SegmentWalkEnd::Ended;
        };
        let between = segment.header.ordinal + 1..next.ordinal;
        let skips = !between.is_empty() && self.files.sound.range(between).next().is_some();
        if offset >= segment.end_named_by(previous) || skips {
            SegmentWalkEnd::Stranger(next.ordinal)
        } else {
            SegmentWalkEnd::Ended
        }
    }

    /// Continues with a file whose header is lost but whose first frame follows the part read, and
    /// then with the segments that follow the file by their headers.
    fn adopt(&mut self) -> Result<Option<usize>> {
        let last = self.walk.chain.segments.last().map(|last| last.header.ordinal);
        let lost = self.files.others.iter().filter(|file| {
            file.header.is_none() && last.is_none_or(|last| file.named > last) && file.named < u32::MAX
        });
        for file in lost {
            let Some((header, boundary)) = self.mended_header(file)? else { continue };
            let (path, mut above) = (file.path.clone(), file.named);
            if let Some(boundary) = boundary {
                self.go_back(&boundary);
            }
            let bytes = header.encode().to_vec();
            self.mends.push(SegmentPatch { path: path.clone(), ordinal: above, offset: 0, bytes });
            let segments = &mut self.walk.chain.segments;
            let index = segments.len();
            segments.push(Segment::new(path, header, None));
            while let Some(next) = self.files.sound.values().rev().find_map(|file| {
                let header = file.header?;
                let follows = header.previous.is_some_and(|previous| previous.ordinal == above);
                follows.then_some((file, header))
            }) {
                let (file, header) = next;
                if let (Some(last), Some(previous)) = (segments.last_mut(), header.previous) {
                    last.end_at(previous);
                }
                segments.push(Segment::new(file.path.clone(), header, file.compacted));
                above = header.ordinal;
            }
            return Ok(Some(index));
        }
        Ok(None)
    }

    /// Returns the original header of a file whose first frame follows the part read. The boundary
    /// is the place that it follows, unless that is the end of the part read: a recovery writes the
    /// last records again.
    fn mended_header(&self, file: &SegmentFile) -> Result<Option<(SegmentHeader, Option<Boundary>)>> {
        let storage = self.walk.storage;
        let opened = compressed::open(storage, &file.path)?;
        let mut window = Window::new(&file.path, opened, None)?;
        let first_offset = SEGMENT_HEADER_LEN as u64;
        for salt in &file.salts {
            let Ok(first) = window.frame(Context::new(*salt, SequenceNumber::MIN), first_offset)? else {
                continue;
            };
            let (predecessor_crc, relative) = (first.header.predecessor_crc, first.header.sequence);
            let boundary = match predecessor_crc == self.walk.scan.last_crc {
                true => None,
                false => match self.boundary(predecessor_crc)? {
                    Some(boundary) => Some(boundary),
                    None => continue,
                },
            };
            if relative != 0 {
                continue;
            }
            let first_sequence =
                boundary.map_or(self.walk.scan.next_sequence, |boundary| boundary.next_sequence);
            let own = self.walk.scan.openings.iter().rfind(|(sequence, _)| *sequence < first_sequence);
            let mut session = own.map(|(_, opened)| opened.session);
            let (context, mut offset) = (Context::new(*salt, first_sequence), first_offset);
            // A fork's own part begins with its `SessionOpening` record, after envelope frames.
            while let Ok(frame) = window.frame(context, offset)? {
                if frame.header.kind == RecordKind::Opened
                    && let Ok(opened) = SessionOpening::decode(frame.body)
                {
                    session = Some(opened.session);
                }
                if !frame.header.kind.is_envelope() {
                    break;
                }
                offset += frame.len() as u64;
            }
            let Some(session) = session else { continue };
            let last = boundary.map_or(self.walk.chain.segments.last(), |boundary| {
                self.walk.chain.segments.get(boundary.segment)
            });
            let end = boundary.map_or(self.walk.scan.end, |boundary| boundary.end);
            let previous =
                last.map(|last| Previous { ordinal: last.header.ordinal, end, crc: predecessor_crc });
            let watermark = self.walk.scan.watermark.min(first_sequence);
            let (ordinal, salt) = (file.named, *salt);
            let header = SegmentHeader { ordinal, session, first_sequence, watermark, salt, previous };
            return Ok(Some((header, boundary)));
        }
        Ok(None)
    }

    /// Returns the place in the chain after the last frame with that checksum.
    fn boundary(&self, crc: u32) -> Result<Option<Boundary>> {
        for (index, segment) in self.walk.chain.segments.iter().enumerate().rev() {
            let mut window = segment.window(self.walk.storage)?;
            let (context, mut offset) = (segment.context(), SEGMENT_HEADER_LEN as u64);
            let mut last_record = None;
            while offset < window.end() {
                let Ok(frame) = window.frame(context, offset)? else { break };
                let header = frame.header;
                offset += frame.len() as u64;
                let next_sequence = header.sequence + u64::from(!header.kind.is_envelope());
                last_record = if header.kind.is_envelope() { last_record } else { Some(offset) };
                if header.crc == crc {
                    let (end, time_us) = (offset, header.time_us);
                    let segment = index;
                    return Ok(Some(Boundary { segment, end, crc, next_sequence, time_us, last_record }));
                }
            }
        }
        Ok(None)
    }

    /// Discards the data that was read after a place in the chain.
    fn go_back(&mut self, boundary: &Boundary) {
        let walk = &mut self.walk;
        let Boundary { segment, end, crc, next_sequence, time_us, last_record } = *boundary;
        walk.chain.segments.truncate(segment + 1);
        if let Some(last) = walk.chain.segments.last_mut() {
            last.end = Some(end);
        }
        (walk.scan.end, walk.scan.last_crc, walk.scan.next_sequence, walk.scan.last_time_us) =
            (end, crc, next_sequence, time_us);
        walk.scan.openings.retain(|(sequence, _)| *sequence < next_sequence);
        walk.forget_later_records();
        self.last_record = match (last_record, segment.checked_sub(1)) {
            (None, Some(before)) => {
                let end = walk.chain.segments.get(before).and_then(|segment| segment.end);
                (before, end.unwrap_or(SEGMENT_HEADER_LEN as u64))
            }
            (last_record, _) => (segment, last_record.unwrap_or(SEGMENT_HEADER_LEN as u64)),
        };
    }

    fn finish(self) -> Result<IntactChain> {
        let compaction = Compaction::read(self.walk.storage, &self.walk.chain.segments)?;
        let compaction =
            compaction.and_then(|compaction| compaction.part_below(self.walk.scan.next_sequence));
        let ChainWalk { dir, chain, scan, .. } = self.walk;
        let LogScan { index, next_sequence, openings, rollbacks, epoch, .. } = scan;
        let walked = chain.segments;
        let (last, end) = self.last_record;
        let mut segments = walked.clone();
        segments.truncate(if next_sequence == 0 { 0 } else { last + 1 });
        if let Some(last) = segments.last_mut() {
            last.end = Some(end);
        }
        Ok(IntactChain {
            places: RecordLocator { compaction, segments: Arc::new(segments), index, next_sequence },
            walked,
            mends: self.mends,
            openings,
            rollbacks,
            epoch,
            followed_by: self.followed_by,
            named: layout::session_of(dir),
            files: self.files,
        })
    }
}

impl IntactChain {
    /// Returns the mends within `places`.
    pub(crate) fn mends(&self, places: &RecordLocator) -> impl Iterator<Item = &SegmentPatch> {
        let ends: BTreeMap<u32, u64> = places
            .segments
            .iter()
            .map(|segment| (segment.header.ordinal, segment.end.unwrap_or(0)))
            .collect();
        self.mends.iter().filter(move |mend| ends.get(&mend.ordinal).is_some_and(|end| mend.offset < *end))
    }

    /// Returns the content of each file after `places`. `places` is the intact part, or the start
    /// of it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub(crate) fn find_unsound_parts(
        &self,
        storage: &dyn Storage,
        places: &RecordLocator,
    ) -> Result<Vec<UnsoundPart>> {
        let mut all = Vec::new();
        let q = places.next_sequence;
        let whole = q == self.places.next_sequence;
        let taken = if whole { self.walked.as_slice() } else { places.segments.as_slice() };
        let mut from_segment = |segment: &Segment, from: u64| -> Result<()> {
            let end = self.end_of(segment.header.ordinal).map(|end| end.max(from));
            let range = SearchRange { path: &segment.path, from, end };
            all.push(read_unsound_part(storage, range, &[segment.context()], Some(&segment.header), q)?);
            Ok(())
        };
        if let Some(last) = taken.last() {
            // A seal is outside the chain, and is not a loss.
            let end = last.end.unwrap_or(SEGMENT_HEADER_LEN as u64);
            from_segment(last, end + last.seal_len(storage)?)?;
        }
        for segment in self.walked.iter().skip(taken.len()) {
            from_segment(segment, SEGMENT_HEADER_LEN as u64)?;
        }
        let is_known = |path: &Path| self.walked.iter().any(|segment| segment.path == *path);
        let last = taken.last().map(|last| last.header.ordinal);
        // Segments with lower ordinals that do not belong to the chain were regularly left out by
        // recoveries.
        let sound = self.files.sound.iter().filter(|(ordinal, _)| last.is_none_or(|last| **ordinal > last));
        let others = self.files.others.iter();
        for file in sound.map(|(_, file)| file).chain(others).filter(|file| !is_known(&file.path)) {
            // The sequence numbers of another log have no meaning for this one.
            let own = file.header.filter(|header| self.is_own(header.session));
            let (from, end) = match file.header {
                Some(_) => (SEGMENT_HEADER_LEN as u64, own.and_then(|own| self.end_of(own.ordinal))),
                None => (0, None),
            };
            let q = if own.is_some() || file.header.is_none() { q } else { SequenceNumber::MIN };
            let range = SearchRange { path: &file.path, from, end };
            all.push(read_unsound_part(storage, range, &file.contexts(q), file.header.as_ref(), q)?);
        }
        let irregular = self.files.irregular.iter();
        all.extend(irregular.map(|path| UnsoundPart {
            path: path.clone(),
            more: true,
            ..UnsoundPart::default()
        }));
        all.retain(|behind| behind.bytes > 0 || behind.more);
        Ok(all)
    }

    /// Returns the end of a segment's part of the chain, if the latest segment that follows it
    /// states it: bytes that a recovery cut off do not count.
    fn end_of(&self, ordinal: u32) -> Option<u64> {
        let walked = self.walked.iter().map(|segment| segment.header);
        let headers = walked.chain(self.files.sound.values().filter_map(|file| file.header));
        let follows = headers.filter(|header| self.is_own(header.session));
        let follows = follows.filter_map(|header| {
            header
                .previous
                .filter(|previous| previous.ordinal == ordinal)
                .map(|previous| (header.ordinal, previous.end))
        });
        follows.max_by_key(|(ordinal, _)| *ordinal).map(|(_, end)| end)
    }

    /// Returns whether a session is known to be the log's own, or one of its ancestors.
    fn is_own(&self, session: Uuid) -> bool {
        self.named == Some(session) || self.openings.iter().any(|(_, opened)| opened.session == session)
    }
}

fn read_unsound_part(
    storage: &dyn Storage,
    range: SearchRange<'_>,
    contexts: &[Context],
    header: Option<&SegmentHeader>,
    q: SequenceNumber,
) -> Result<UnsoundPart> {
    let session = header.map(|header| header.session);
    let mut found =
        UnsoundPart { path: range.path.to_owned(), offset: range.from, session, ..UnsoundPart::default() };
    let used = search(storage, range, contexts, q, &mut |_, frame| {
        let Header { sequence, kind, time_us, .. } = frame.header;
        if kind.is_envelope() {
            return;
        }
        found.records += 1;
        let record = Record { sequence, kind, time_us, body: frame.body };
        if kind == RecordKind::Opened
            && let Ok(opened) = SessionOpening::decode(record.body)
        {
            found.openings.push(opened);
        }
        // Without a header the first sequence number of the segment is unknown.
        if header.is_none() {
            return;
        }
        let told = found.ranges.len();
        match found.ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(sequence) => *last = sequence,
            _ if told == RANGES_MAX => found.more = true,
            _ => found.ranges.push((sequence, sequence)),
        }
    })?;
    found.bytes = used.saturating_sub(range.from);
    Ok(found)
}

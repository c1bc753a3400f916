//! Finding every damaged place of a log, and the valid frames between them.
//!
//! A scan ends at the first damage. A survey continues after it: it takes the files that the
//! headers link to a chain, and in each of them every valid frame, at any position. A place is
//! damaged
//!
//! | where | reported place |
//! |---|---|
//! | valid frames end, and others follow in the same file, or the next header says that the file continues | the end of the valid frames |
//! | a frame is valid and does not follow the preceding one | the frame |
//! | a body does not decode | the frame; later ones still follow it |
//! | a header is invalid, names another segment than its file, belongs to another session, or does not follow the segment before | the start of the file |
//! | a segment is named by the next header and does not exist | the file, without an offset |
//!
//! The end of the last file, without a valid frame after it, is not a damaged place: it is a torn
//! tail or a plain end, unless a scan judges otherwise.
//!
//! An unbroken chain of checksums leads from the first record to each frame before the first
//! damaged place. A frame after a damaged place is valid in itself, but nothing proves its
//! predecessor.

use std::path::{Path, PathBuf};

use foldlog_codec::body::Seal;
use foldlog_codec::frame::Frame;
use foldlog_codec::segment::{HEADER_LEN as SEGMENT_HEADER_LEN, Previous, SegmentHeader};
use foldlog_codec::{RecordKind, SequenceNumber, body};

use super::search::{SearchRange, search};
use super::{describe, out_of_chain, stale};
use crate::error::Result;
use crate::log::chain::{self, Segment, SegmentFile, SegmentFiles};
use crate::log::compressed;
use crate::log::copy::Spot;
use crate::log::layout;
use crate::storage::Storage;

/// Describes a damaged place of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedPlace {
    /// Path of the damaged or missing file.
    pub segment: PathBuf,
    /// Offset of the place in the file, in bytes. `None` if the file is missing.
    pub offset: Option<u64>,
    /// Record that is wrong or missing there. `None` if that is not known.
    pub sequence: Option<SequenceNumber>,
    /// Description of the damage.
    pub reason: String,
    /// Whether the only fault is that the file is older there than the data that follows, as in a
    /// copy that was taken while the session was written
    /// ([`Error::OlderThanSuccessor`](crate::Error::OlderThanSuccessor)).
    pub is_older: bool,
    /// Intact frames between this place and the next one. `None` if there are none.
    pub follows: Option<SoundStretch>,
}

/// Describes intact frames after a damaged place. Each frame names the one before it as its
/// predecessor.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct SoundStretch {
    /// Path of the file with the first of them.
    #[serde(serialize_with = "foldlog_codec::escape::serialize_path")]
    pub segment: PathBuf,
    /// Offset of the first of them in that file, in bytes.
    pub offset: u64,
    /// Number of records. Other frames are the log's own notes.
    pub records: u64,
    /// First and last record. `None` if there is no record, or if the segment's header is lost and
    /// with it the number of the segment's first record.
    pub sequences: Option<(SequenceNumber, SequenceNumber)>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SurveyedFrame<'a> {
    pub(crate) path: &'a Path,
    pub(crate) offset: u64,
    pub(crate) frame: Frame<'a>,
}

/// Takes each valid frame with a known sequence number whose body decodes.
type SurveyVisitor<'a> = dyn FnMut(&SurveyedFrame<'_>) -> Result<()> + 'a;

/// Finds every damaged place of the log in `dir`, and passes each valid frame to `visit`, in the
/// order of the segments.
pub(crate) fn survey(
    storage: &dyn Storage,
    dir: &Path,
    visit: &mut SurveyVisitor<'_>,
) -> Result<Vec<DamagedPlace>> {
    let files = chain::segment_files(storage, dir)?;
    let mut surveyor = Surveyor {
        storage,
        visit,
        places: Vec::new(),
        crc: Some(0),
        next: Some(SequenceNumber::MIN),
        sealed: None,
    };
    for part in parts(dir, &files) {
        match part {
            Part::Segment(segment) => surveyor.segment(&segment)?,
            Part::Foreign(file) => {
                let session = file.header.map(|header| header.session).unwrap_or_default();
                surveyor.place(&file.path, Some(0), format!("the segment belongs to session {session}"));
            }
            Part::Lost(file, end) => surveyor.survey_lost(file, end)?,
            Part::Behind(file) => surveyor.survey_unnamed(file)?,
            Part::Missing(path) => {
                surveyor.place(&path, None, "the segment is missing".to_owned());
                (surveyor.crc, surveyor.next) = (None, None);
            }
        }
    }
    if let Some(next) = surveyor.sealed {
        let path = layout::segment_file(dir, next);
        let is_there = files.sound.contains_key(&next) || files.others.iter().any(|file| file.named == next);
        if !is_there {
            surveyor.place(&path, None, "the segment is missing".to_owned());
        }
    }
    Ok(surveyor.places)
}

enum Part<'a> {
    Segment(Segment),
    Foreign(&'a SegmentFile),
    /// A file that lacks the header of a segment of the chain, and the segment's end according to
    /// the next header.
    Lost(&'a SegmentFile, Option<u64>),
    /// A file without a valid header that no header names.
    Behind(&'a SegmentFile),
    Missing(PathBuf),
}

/// Follows the headers from the highest ordinal back. If one is lost or missing, continues with the
/// next one below it.
fn parts<'a>(dir: &Path, files: &'a SegmentFiles) -> Vec<Part<'a>> {
    let named = layout::session_of(dir);
    let is_own = |file: &SegmentFile| {
        file.header.is_some_and(|header| named.is_none_or(|session| header.session == session))
    };
    let top = files.sound.iter().rfind(|(_, file)| is_own(file)).or(files.sound.iter().next_back());
    let top = top.map(|(ordinal, _)| *ordinal);
    let mut parts: Vec<Part<'_>> = Vec::new();
    let mut behind: Vec<&SegmentFile> =
        files.others.iter().filter(|file| top.is_none_or(|top| file.named > top)).collect();
    behind.sort_by_key(|file| std::cmp::Reverse(file.named));
    parts.extend(behind.into_iter().map(Part::Behind));
    let above = files.sound.iter().rev().filter(|(ordinal, _)| top.is_some_and(|top| **ordinal > top));
    parts.extend(above.map(|(_, file)| Part::Foreign(file)));
    let mut at: Option<(u32, Option<Previous>)> = top.map(|top| (top, None));
    while let Some((ordinal, previous)) = at {
        let found = files.sound.get(&ordinal);
        let Some((file, header)) = found.and_then(|file| Some((file, file.header?))) else {
            let lost = files.others.iter().find(|file| file.named == ordinal);
            parts.push(match lost {
                Some(file) => Part::Lost(file, previous.map(|previous| previous.end)),
                None => Part::Missing(layout::segment_file(dir, ordinal)),
            });
            let below = files.sound.range(..ordinal).next_back().map(|(below, _)| *below);
            // No header names the files in between any more, so they are examined.
            let mut between: Vec<&SegmentFile> = files.others.iter().collect();
            between.retain(|file| file.named < ordinal && below.is_none_or(|below| file.named > below));
            between.sort_by_key(|file| std::cmp::Reverse(file.named));
            parts.extend(between.into_iter().map(Part::Behind));
            at = below.map(|below| (below, None));
            continue;
        };
        let segment = Segment::new(file.path.clone(), header, file.compacted);
        parts.push(Part::Segment(segment.ended_at(previous)));
        // An ordinal that does not decrease would form a cycle; such headers count as lost.
        at = header.previous.map(|previous| (previous.ordinal, Some(previous)));
    }
    parts.reverse();
    parts
}

struct Surveyor<'a, 'v> {
    storage: &'a dyn Storage,
    visit: &'a mut SurveyVisitor<'v>,
    places: Vec<DamagedPlace>,
    /// Checksum of the preceding frame, if known.
    crc: Option<u32>,
    /// Sequence number of the next record, if known.
    next: Option<SequenceNumber>,
    /// Ordinal of the segment that must follow the last one, according to its seal.
    sealed: Option<u32>,
}

/// Returns the reason why a frame at `offset` does not follow a place; `None` if it does. The inner
/// reason is `None` if the frame is at another offset.
fn breaks(at: &Spot, offset: u64, frame: &Frame<'_>) -> Option<Option<String>> {
    if offset != at.offset {
        return Some(None);
    }
    out_of_chain(&frame.header, at.last_crc, at.next_sequence).map(|flaw| Some(flaw.reason))
}

impl Surveyor<'_, '_> {
    fn place(&mut self, path: &Path, offset: Option<u64>, reason: String) {
        let reason = match offset {
            Some(offset) => compressed::explained(self.storage, path, offset, reason),
            None => reason,
        };
        let sequence = self.next;
        let (segment, is_older) = (path.to_owned(), false);
        self.places.push(DamagedPlace { segment, offset, sequence, reason, is_older, follows: None });
    }

    fn segment(&mut self, segment: &Segment) -> Result<()> {
        let SegmentHeader { first_sequence, .. } = segment.header;
        let crc = segment.first_predecessor_crc();
        if self.crc.is_some_and(|before| before != crc)
            || self.next.is_some_and(|next| next != first_sequence)
        {
            let reason = "the segment does not follow the one before it".to_owned();
            self.place(&segment.path, Some(0), reason);
        }
        self.next = Some(first_sequence);
        self.sealed = None;
        let mut at = Spot::head_of(segment);
        let bad = self.walk(segment, &mut at)?;
        if let Some(reason) = bad {
            let before = self.places.len();
            self.resume(segment, &mut at, reason)?;
            for place in self.places.iter_mut().skip(before) {
                let lacks_to = |offset| stale::lacks_to(self.storage, segment, offset);
                place.is_older = place.offset.map(lacks_to).transpose()?.flatten().is_some();
            }
        }
        let whole = segment.end.is_none_or(|end| at.offset >= end);
        let crc = segment.exit_crc(at.last_crc);
        (self.crc, self.next) = if whole { (Some(crc), Some(at.next_sequence)) } else { (None, None) };
        Ok(())
    }

    /// Walks a segment as long as its frames follow each other. Returns the reason if the walk
    /// ended before the segment's end.
    fn walk(&mut self, segment: &Segment, at: &mut Spot) -> Result<Option<String>> {
        let mut window = segment.window(self.storage)?;
        let context = segment.context();
        let mut read_again = false;
        while segment.end.is_none_or(|end| at.offset < end) {
            let reason = match window.frame(context, at.offset)? {
                Ok(frame) if segment.end.is_none() && frame.header.kind == RecordKind::Seal => {
                    self.sealed = Seal::decode(frame.body).ok().map(|seal| seal.next);
                    return Ok(None);
                }
                Ok(frame) => match breaks(at, at.offset, &frame) {
                    None => {
                        let offset = at.offset;
                        *at = Spot::behind(offset, &frame);
                        self.frame(&segment.path, offset, frame)?;
                        read_again = false;
                        continue;
                    }
                    Some(reason) => reason.unwrap_or_default(),
                },
                Err(error) => describe(&error).reason,
            };
            if read_again {
                return Ok(Some(reason));
            }
            // Its writer may have written half of the frame when it was read.
            read_again = true;
            window.forget();
        }
        Ok(None)
    }

    /// Continues after a place at which a segment's valid frames end, for `reason`.
    fn resume(&mut self, segment: &Segment, at: &mut Spot, reason: String) -> Result<()> {
        let (path, mut reason) = (segment.path.as_path(), Some(reason));
        let (storage, range) = (self.storage, SearchRange { path, from: at.offset, end: segment.end });
        let (mut failed, mut sealed) = (None, false);
        let is_last = segment.end.is_none();
        search(storage, range, &[segment.context()], at.next_sequence, &mut |offset, frame| {
            // A seal comes after the frames of the chain.
            if is_last && frame.header.kind == RecordKind::Seal {
                sealed = true;
                self.sealed = Seal::decode(frame.body).ok().map(|seal| seal.next);
            }
            if sealed || failed.is_some() {
                return;
            }
            let broken = match reason.take() {
                Some(reason) => Some(Some(reason)),
                None => breaks(at, offset, &frame),
            };
            if let Some(why) = broken {
                self.next = Some(at.next_sequence);
                self.place(path, Some(at.offset), why.unwrap_or_else(no_frame));
            }
            *at = Spot::behind(offset, &frame);
            failed = self.frame(path, offset, frame).err();
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        if segment.end.is_some_and(|end| at.offset < end) {
            self.next = Some(at.next_sequence);
            self.place(path, Some(at.offset), reason.unwrap_or_else(no_frame));
        }
        Ok(())
    }

    /// Surveys a file that should contain a segment of the chain, but has another header or none.
    fn survey_lost(&mut self, file: &SegmentFile, end: Option<u64>) -> Result<()> {
        let reason = match file.header {
            Some(header) if header.ordinal != file.named => {
                format!(
                    "its header says segment {}, but its file name says segment {}",
                    header.ordinal, file.named
                )
            }
            _ => "the segment's header is damaged".to_owned(),
        };
        self.place(&file.path, Some(0), reason);
        match file.header {
            // The content of the other segment does not belong to this one.
            Some(_) => (self.crc, self.next) = (None, None),
            None => self.headless(file, end)?,
        }
        Ok(())
    }

    /// Surveys a file without a valid header that no header names. Files that a crash left are
    /// empty.
    fn survey_unnamed(&mut self, file: &SegmentFile) -> Result<()> {
        let (contexts, mut found) = (file.contexts(SequenceNumber::MIN), false);
        let range = SearchRange { path: &file.path, from: SEGMENT_HEADER_LEN as u64, end: None };
        search(self.storage, range, &contexts, SequenceNumber::MIN, &mut |_, _| found = true)?;
        if found { self.survey_lost(file, None) } else { Ok(()) }
    }

    /// Surveys the frames of a file that has lost its header. Their sequence numbers are counted
    /// from the segment's first one, which is known only if the first frame follows the preceding
    /// one.
    fn headless(&mut self, file: &SegmentFile, end: Option<u64>) -> Result<()> {
        let (first_offset, known) = (SEGMENT_HEADER_LEN as u64, self.next.zip(self.crc));
        let first = known.map_or(SequenceNumber::MIN, |(next, _)| next);
        let contexts = file.contexts(first);
        let (mut at, mut follows, mut failed) = (None, false, None);
        let path = file.path.as_path();
        let range = SearchRange { path, from: first_offset, end };
        search(self.storage, range, &contexts, first, &mut |offset, frame| {
            if failed.is_some() || frame.header.kind == RecordKind::Seal {
                return;
            }
            match at {
                None => {
                    follows = offset == first_offset
                        && known.is_some_and(|(_, crc)| frame.header.predecessor_crc == crc);
                }
                Some(at) => {
                    let at: Spot = at;
                    if let Some(why) = breaks(&at, offset, &frame) {
                        self.next = follows.then_some(at.next_sequence);
                        self.place(path, Some(at.offset), why.unwrap_or_else(no_frame));
                    }
                }
            }
            at = Some(Spot::behind(offset, &frame));
            if follows {
                failed = self.frame(path, offset, frame).err();
            } else {
                self.count(path, offset, &frame, None);
            }
        })?;
        if let Some(at) = at.filter(|at| failed.is_none() && end.is_some_and(|end| at.offset < end)) {
            // According to the next header, frames after these are lost too.
            self.next = follows.then_some(at.next_sequence);
            self.place(path, Some(at.offset), no_frame());
            (self.crc, self.next) = (None, None);
            return Ok(());
        }
        (self.crc, self.next) = match at {
            Some(at) if follows => (Some(at.last_crc), Some(at.next_sequence)),
            Some(at) => (Some(at.last_crc), None),
            None => (None, None),
        };
        failed.map_or(Ok(()), Err)
    }

    /// Takes a valid frame, and passes it to `visit` if its body decodes.
    fn frame(&mut self, path: &Path, offset: u64, frame: Frame<'_>) -> Result<()> {
        let (kind, sequence) = (frame.header.kind, frame.header.sequence);
        if let Err(error) = body::check(kind, frame.body) {
            self.next = Some(sequence);
            self.place(path, Some(offset), error.to_string());
            return Ok(());
        }
        self.count(path, offset, &frame, Some(sequence));
        (self.visit)(&SurveyedFrame { path, offset, frame })
    }

    /// Adds a valid frame to those after the last damaged place.
    fn count(&mut self, path: &Path, offset: u64, frame: &Frame<'_>, sequence: Option<SequenceNumber>) {
        let Some(place) = self.places.last_mut() else { return };
        let stretch = place.follows.get_or_insert_with(|| SoundStretch {
            segment: path.to_owned(),
            offset,
            records: 0,
            sequences: None,
        });
        if frame.header.kind.is_envelope() {
            return;
        }
        stretch.records += 1;
        if let Some(sequence) = sequence {
            let first = stretch.sequences.map_or(sequence, |(first, _)| first);
            stretch.sequences = Some((first, sequence));
        }
    }
}

fn no_frame() -> String {
    "there is no intact frame".to_owned()
}

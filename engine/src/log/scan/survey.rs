//! Finding every damaged place of a log, and the sound frames between them.
//!
//! A scan ends at the first damage. A survey goes on behind it: it takes the files that the headers link to a chain, and in
//! each of them every sound frame, wherever it begins. A place is damaged
//!
//! | where | what is reported |
//! |---|---|
//! | sound frames end, and others follow in the same file, or the next header says that the file goes on | the end of the sound frames |
//! | a frame is sound and does not follow the one before it | the frame |
//! | a body does not decode | the frame; those behind it still follow it |
//! | a header does not check, names another segment than its file, belongs to another session, or does not follow the segment before | the beginning of the file |
//! | a segment is named by the next header and is not there | the file, without an offset |
//!
//! What ends the last file without a sound frame behind it is no place: it is a torn tail or a plain end, unless a scan
//! says otherwise.
//!
//! To a frame before the first place an unbroken chain of checksums leads from the first record. A frame behind a damaged
//! place is sound in itself, and nothing proves what it followed.

use std::path::{Path, PathBuf};

use foldlog_codec::body::Seal;
use foldlog_codec::frame::{Context, Frame};
use foldlog_codec::segment::{HEADER_LEN as SEGMENT_HEADER_LEN, Previous, SegmentHeader};
use foldlog_codec::{RecordKind, SequenceNumber, body};

use super::search::{SearchRange, search};
use super::{describe, out_of_chain, stale};
use crate::error::Result;
use crate::log::chain::{self, Segment, SegmentFile, SegmentFiles};
use crate::log::compressed;
use crate::log::layout;
use crate::log::window::Window;
use crate::storage::Storage;

/// Describes a damaged place of a log.
#[derive(Clone, Debug)]
pub(crate) struct DamageSite {
    pub(crate) path: PathBuf,
    /// `None` if the file is missing.
    pub(crate) offset: Option<u64>,
    /// Record that is wrong or should stand there, if that is known.
    pub(crate) sequence: Option<SequenceNumber>,
    pub(crate) reason: String,
    /// Whether the file is merely older there than what follows.
    pub(crate) is_older: bool,
    /// Sound frames between this place and the next one.
    pub(crate) follows: Option<Stretch>,
}

/// Describes sound frames that follow each other.
#[derive(Clone, Debug)]
pub(crate) struct Stretch {
    pub(crate) path: PathBuf,
    pub(crate) offset: u64,
    pub(crate) records: u64,
    /// First and last record; `None` where nobody can say at which number the segment begins.
    pub(crate) sequences: Option<(SequenceNumber, SequenceNumber)>,
}

/// Holds a sound frame that a survey found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SurveyedFrame<'a> {
    pub(crate) path: &'a Path,
    pub(crate) offset: u64,
    pub(crate) frame: Frame<'a>,
}

/// Takes each sound frame whose sequence number is known and whose body decodes.
type SurveyVisitor<'a> = dyn FnMut(&SurveyedFrame<'_>) -> Result<()> + 'a;

/// Finds every damaged place of the log in `dir`, and hands each sound frame to `visit`, in the order of the segments.
pub(crate) fn survey(
    storage: &dyn Storage,
    dir: &Path,
    visit: &mut SurveyVisitor<'_>,
) -> Result<Vec<DamageSite>> {
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

/// Names a part of a log, in order.
enum Part<'a> {
    Segment(Segment),
    /// A file with another session's header.
    Foreign(&'a SegmentFile),
    /// A file in which the header of a segment of the chain is not, and where the next header says that the segment ends.
    Lost(&'a SegmentFile, Option<u64>),
    /// A file without a sound header that no header names.
    Behind(&'a SegmentFile),
    Missing(PathBuf),
}

/// Follows the headers from the highest ordinal back. Where one is lost or missing, goes on with the next one below it.
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
            // Nothing names the files between any more, so they are looked into.
            let mut between: Vec<&SegmentFile> = files.others.iter().collect();
            between.retain(|file| file.named < ordinal && below.is_none_or(|below| file.named > below));
            between.sort_by_key(|file| std::cmp::Reverse(file.named));
            parts.extend(between.into_iter().map(Part::Behind));
            at = below.map(|below| (below, None));
            continue;
        };
        let segment = Segment::new(file.path.clone(), header, file.compacted);
        parts.push(Part::Segment(segment.ended_at(previous)));
        // An ordinal that does not go down would lead around in a circle; such headers count as lost.
        at = header.previous.map(|previous| (previous.ordinal, Some(previous)));
    }
    parts.reverse();
    parts
}

struct Surveyor<'a, 'v> {
    storage: &'a dyn Storage,
    visit: &'a mut SurveyVisitor<'v>,
    places: Vec<DamageSite>,
    /// Checksum of the frame before, where that is known.
    crc: Option<u32>,
    /// Sequence number of the next record, where that is known.
    next: Option<SequenceNumber>,
    /// Ordinal of the segment that has to follow the last one, whose seal says so.
    sealed: Option<u32>,
}

/// Marks a place between two frames of a segment.
#[derive(Clone, Copy)]
struct FrameBoundary {
    offset: u64,
    crc: u32,
    next: SequenceNumber,
}

impl FrameBoundary {
    fn after_frame(offset: u64, frame: &Frame<'_>) -> FrameBoundary {
        let next = frame.header.sequence + u64::from(!frame.header.kind.is_envelope());
        FrameBoundary { offset: offset + frame.len() as u64, crc: frame.header.crc, next }
    }

    /// Returns why a frame at `offset` does not follow what stands before; `None` if it does. The reason is `None` if the
    /// frame stands elsewhere.
    fn breaks(&self, offset: u64, frame: &Frame<'_>) -> Option<Option<String>> {
        if offset != self.offset {
            return Some(None);
        }
        out_of_chain(&frame.header, self.crc, self.next).map(|(_, _, reason)| Some(reason))
    }
}

impl Surveyor<'_, '_> {
    fn place(&mut self, path: &Path, offset: Option<u64>, reason: String) {
        let reason = match offset {
            Some(offset) => compressed::explained(self.storage, path, offset, reason),
            None => reason,
        };
        let sequence = self.next;
        let (path, is_older) = (path.to_owned(), false);
        self.places.push(DamageSite { path, offset, sequence, reason, is_older, follows: None });
    }

    /// Surveys a segment with a sound header.
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
        let mut at = FrameBoundary { offset: SEGMENT_HEADER_LEN as u64, crc, next: first_sequence };
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
        let crc = segment.exit_crc(at.crc);
        (self.crc, self.next) = if whole { (Some(crc), Some(at.next)) } else { (None, None) };
        Ok(())
    }

    /// Walks a segment as far as its frames follow each other. Returns why the walk ended before the segment's end.
    fn walk(&mut self, segment: &Segment, at: &mut FrameBoundary) -> Result<Option<String>> {
        let io = |error| crate::error::Error::io("read", &segment.path, error);
        let mut window = Window::new(segment.open(self.storage)?, segment.end).map_err(io)?;
        let context = segment.context();
        let mut read_again = false;
        while segment.end.is_none_or(|end| at.offset < end) {
            let reason = match window.frame(context, at.offset).map_err(io)? {
                Ok(frame) if segment.end.is_none() && frame.header.kind == RecordKind::SEAL => {
                    self.sealed = Seal::decode(frame.body).ok().map(|seal| seal.next);
                    return Ok(None);
                }
                Ok(frame) => match at.breaks(at.offset, &frame) {
                    None => {
                        let offset = at.offset;
                        *at = FrameBoundary::after_frame(offset, &frame);
                        self.frame(&segment.path, offset, frame)?;
                        read_again = false;
                        continue;
                    }
                    Some(reason) => reason.unwrap_or_default(),
                },
                Err(error) => describe(&error).2,
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

    /// Goes on behind a place at which a segment's sound frames end, for `reason`.
    fn resume(&mut self, segment: &Segment, at: &mut FrameBoundary, reason: String) -> Result<()> {
        let (path, mut reason) = (segment.path.as_path(), Some(reason));
        let (storage, range) = (self.storage, SearchRange { path, from: at.offset, end: segment.end });
        let (mut failed, mut sealed) = (None, false);
        let is_last = segment.end.is_none();
        search(storage, range, &[segment.context()], at.next, &mut |offset, frame| {
            // A seal stands behind the frames of the chain.
            if is_last && frame.header.kind == RecordKind::SEAL {
                sealed = true;
                self.sealed = Seal::decode(frame.body).ok().map(|seal| seal.next);
            }
            if sealed || failed.is_some() {
                return;
            }
            let broken = match reason.take() {
                Some(reason) => Some(Some(reason)),
                None => at.breaks(offset, &frame),
            };
            if let Some(why) = broken {
                self.next = Some(at.next);
                self.place(path, Some(at.offset), why.unwrap_or_else(no_frame));
            }
            *at = FrameBoundary::after_frame(offset, &frame);
            failed = self.frame(path, offset, frame).err();
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        if segment.end.is_some_and(|end| at.offset < end) {
            self.next = Some(at.next);
            self.place(path, Some(at.offset), reason.unwrap_or_else(no_frame));
        }
        Ok(())
    }

    /// Surveys a file that should hold a segment of the chain, and whose header says something else or nothing.
    fn survey_lost(&mut self, file: &SegmentFile, end: Option<u64>) -> Result<()> {
        let reason = match file.header {
            Some(header) if header.ordinal != file.named => {
                format!(
                    "its header says segment {}, and its file name segment {}",
                    header.ordinal, file.named
                )
            }
            _ => "the segment's header does not check".to_owned(),
        };
        self.place(&file.path, Some(0), reason);
        match file.header {
            // What the other segment holds is no part of this one.
            Some(_) => (self.crc, self.next) = (None, None),
            None => self.headless(file, end)?,
        }
        Ok(())
    }

    /// Surveys a file without a sound header that no header names. Files that a crash left hold nothing.
    fn survey_unnamed(&mut self, file: &SegmentFile) -> Result<()> {
        let (contexts, mut found) = (contexts(file, SequenceNumber::MIN), false);
        let range = SearchRange { path: &file.path, from: SEGMENT_HEADER_LEN as u64, end: None };
        search(self.storage, range, &contexts, SequenceNumber::MIN, &mut |_, _| found = true)?;
        if found { self.survey_lost(file, None) } else { Ok(()) }
    }

    /// Surveys the frames of a file that has lost its header. Their sequence numbers are counted from the segment's first,
    /// which is known only where the first frame follows the one before it.
    fn headless(&mut self, file: &SegmentFile, end: Option<u64>) -> Result<()> {
        let (first_offset, known) = (SEGMENT_HEADER_LEN as u64, self.next.zip(self.crc));
        let contexts = contexts(file, known.map_or(SequenceNumber::MIN, |(next, _)| next));
        let first = known.map_or(SequenceNumber::MIN, |(next, _)| next);
        let (mut at, mut follows, mut failed) = (None, false, None);
        let path = file.path.as_path();
        let range = SearchRange { path, from: first_offset, end };
        search(self.storage, range, &contexts, first, &mut |offset, frame| {
            if failed.is_some() || frame.header.kind == RecordKind::SEAL {
                return;
            }
            match at {
                None => {
                    follows = offset == first_offset
                        && known.is_some_and(|(_, crc)| frame.header.predecessor_crc == crc);
                }
                Some(at) => {
                    let at: FrameBoundary = at;
                    if let Some(why) = at.breaks(offset, &frame) {
                        self.next = follows.then_some(at.next);
                        self.place(path, Some(at.offset), why.unwrap_or_else(no_frame));
                    }
                }
            }
            at = Some(FrameBoundary::after_frame(offset, &frame));
            if follows {
                failed = self.frame(path, offset, frame).err();
            } else {
                self.count(path, offset, &frame, None);
            }
        })?;
        if let Some(at) = at.filter(|at| failed.is_none() && end.is_some_and(|end| at.offset < end)) {
            // What the next header says stood behind these frames is gone too.
            self.next = follows.then_some(at.next);
            self.place(path, Some(at.offset), no_frame());
            (self.crc, self.next) = (None, None);
            return Ok(());
        }
        (self.crc, self.next) = match at {
            Some(at) if follows => (Some(at.crc), Some(at.next)),
            Some(at) => (Some(at.crc), None),
            None => (None, None),
        };
        failed.map_or(Ok(()), Err)
    }

    /// Takes a sound frame, and hands it on if its body decodes.
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

    /// Counts a sound frame to those behind the last place.
    fn count(&mut self, path: &Path, offset: u64, frame: &Frame<'_>, sequence: Option<SequenceNumber>) {
        let Some(place) = self.places.last_mut() else { return };
        let stretch = place.follows.get_or_insert_with(|| Stretch {
            path: path.to_owned(),
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

fn contexts(file: &SegmentFile, first: SequenceNumber) -> Vec<Context> {
    file.salts.iter().map(|salt| Context::new(*salt, first)).collect()
}

fn no_frame() -> String {
    "no sound frame stands there".to_owned()
}

//! Copying a log while it is being written: finding its present end, checking that an older copy is
//! a prefix of it, and validating the copied data.
//!
//! A log's files only grow: the bytes of a frame never change once they are written. A recovery may
//! cut off frames that were never attested, and states that in the header of its own segment. The
//! bytes of a chain up to a valid frame, copied file by file, are therefore the log as it was when
//! that frame was written. If another program has changed the files, the copy is invalid, and is
//! not used.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use foldlog_codec::digest::SegmentDigest;
use foldlog_codec::frame::Frame;
use foldlog_codec::segment::{HEADER_LEN, SegmentHeader};
use foldlog_codec::{Record, SequenceNumber};

use super::chain::{self, Flaw, Segment};
use super::follow::Cursor;
use super::{compressed, scan};
use crate::error::{Error, Result};
use crate::storage::{Access, Storage, StorageFile};

/// Number of bytes that are copied at a time: more do not stay in the processor's cache between
/// reading and writing.
const PIECE_BYTES: usize = 256 << 10;

const COMPARED_BYTES: usize = 128 << 10;

/// Number of new segments that the walk to a log's end may enter, that is, segments that did not
/// exist when it started. With a fast writer, the walk ends with the last of them.
const ENTERED_MAX: usize = 3;

/// Number of times that a log is walked if recoveries cut it during the walk.
const TRIES: usize = 4;

/// A log as it was at one moment: its segments, each with its end.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    pub(crate) segments: Vec<Segment>,
    pub(crate) next_sequence: SequenceNumber,
    pub(crate) sought: Option<Spot>,
}

/// A place between two frames of a segment, from which a walk can continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// Offset in the segment's file, in bytes.
    pub(crate) offset: u64,
    pub(crate) last_crc: u32,
    pub(crate) next_sequence: SequenceNumber,
}

impl Spot {
    pub(crate) fn head_of(segment: &Segment) -> Spot {
        Spot {
            offset: HEADER_LEN as u64,
            last_crc: segment.first_predecessor_crc(),
            next_sequence: segment.header.first_sequence,
        }
    }

    /// Returns the spot after a frame that starts at `offset`.
    pub(crate) fn behind(offset: u64, frame: &Frame<'_>) -> Spot {
        let offset = offset + frame.len() as u64;
        Spot { offset, last_crc: frame.header.crc, next_sequence: frame.header.next_sequence() }
    }

    /// Returns the place of the first frame of `segment`. Fails with the flaw if that segment does
    /// not follow this place.
    pub(crate) fn followed_by(self, segment: &Segment) -> Result<Spot, Flaw> {
        let head = Spot::head_of(segment);
        let reason = if head.next_sequence != self.next_sequence {
            let (first, next) = (head.next_sequence, self.next_sequence);
            format!("the segment starts at record {first}, but record {next} is expected")
        } else if head.last_crc != self.last_crc {
            "the segment does not follow the one that its header names as its predecessor".to_owned()
        } else {
            return Ok(head);
        };
        let (expected_crc, found_crc) = (Some(self.last_crc), Some(head.last_crc));
        Err(Flaw { expected_crc, found_crc, reason })
    }
}

/// Returns the log in `dir` up to its last valid frame. Walks only the part that no segment's
/// header attests. Also records whether a frame ends at the offset `sought` of the segment with
/// that header.
///
/// # Errors
///
/// The errors of [`Cursor::open`] and of [`Cursor::step`].
pub(crate) fn extent(
    storage: &Arc<dyn Storage>,
    dir: &Path,
    sought: Option<(SegmentHeader, u64)>,
) -> Result<Extent> {
    for _ in 0..TRIES {
        if let Some(extent) = try_extent(storage, dir, sought)? {
            return Ok(extent);
        }
    }
    Err(Error::not_a_session(dir, "its segments changed again and again while they were read"))
}

/// Returns `None` if a recovery cut the log during the walk.
fn try_extent(
    storage: &Arc<dyn Storage>,
    dir: &Path,
    sought: Option<(SegmentHeader, u64)>,
) -> Result<Option<Extent>> {
    let mut cursor = Cursor::open(storage, dir, SequenceNumber::MAX)?;
    let there = chain::discover(storage.as_ref(), dir)?.ordinal_max;
    let mut end: Option<(SegmentHeader, u64)> = None;
    let (mut entered, mut enough, mut spot) = (0, false, None);
    let walked = cursor.step(&mut |at| {
        if end.is_none_or(|(header, _)| header != at.segment.header) {
            entered += usize::from(at.segment.header.ordinal > there);
            enough = entered > ENTERED_MAX;
        }
        if enough {
            // This ends the walk; the error is discarded.
            return Err(Error::Export(String::new()));
        }
        let reached = (at.segment.header, at.offset + at.frame.len() as u64);
        end = Some(reached);
        if sought == end {
            spot = Some(Spot::behind(at.offset, &at.frame));
        }
        Ok(())
    });
    match walked {
        Err(_) if enough => {}
        walked => drop(walked?),
    }
    let next_sequence = cursor.next_sequence();
    let mut segments = chain::discover(storage.as_ref(), dir)?.segments;
    match end {
        Some((header, end)) => {
            let at = segments.iter().position(|segment| segment.header == header);
            let Some(last) = at.and_then(|at| segments.get_mut(at)) else { return Ok(None) };
            if last.end.is_some_and(|cut| cut < end) {
                return Ok(None);
            }
            last.end = Some(end);
            segments.truncate(at.map_or(0, |at| at + 1));
        }
        // The walk began in a segment without a frame, so the preceding one is the last.
        None => {
            let before = |segment: &Segment| segment.header.first_sequence <= next_sequence;
            while segments.last().is_some_and(|segment| segment.end.is_none() || !before(segment)) {
                segments.pop();
            }
        }
    }
    Ok((!segments.is_empty()).then_some(Extent { segments, next_sequence, sought: spot }))
}

/// Walks a segment from the place `from` to its end, and passes each frame to `visit`. Checks that
/// each frame is valid, that each follows the preceding one, and that one ends at the segment's
/// end. Returns that place.
///
/// # Errors
///
/// [`Error::Corrupt`] for the first invalid place, [`Error::Io`], the errors of `visit`.
pub(crate) fn check(
    storage: &dyn Storage,
    segment: &Segment,
    from: Spot,
    visit: &mut dyn FnMut(&Frame<'_>) -> Result<()>,
) -> Result<Spot> {
    let mut window = segment.window(storage)?;
    let end = segment.end.unwrap_or_else(|| window.end());
    let (context, mut at) = (segment.context(), from);
    while at.offset < end {
        let bad = |reason: String| {
            let reason = compressed::explained(storage, &segment.path, at.offset, reason);
            segment.corrupt(at.offset, at.next_sequence, reason)
        };
        let frame = window.frame(context, at.offset)?;
        let frame = frame.map_err(|error| bad(scan::describe(&error).reason))?;
        if let Some(flaw) = scan::out_of_chain(&frame.header, at.last_crc, at.next_sequence) {
            return Err(bad(flaw.reason));
        }
        visit(&frame)?;
        at = Spot::behind(at.offset, &frame);
    }
    match at.offset > end {
        true => Err(segment.corrupt(end, at.next_sequence, "a frame crosses the end of the segment")),
        false => Ok(Spot { last_crc: segment.exit_crc(at.last_crc), ..at }),
    }
}

/// Returns the record of a frame; `None` for an envelope frame.
pub(crate) fn record_of<'a>(frame: &Frame<'a>) -> Option<Record<'a>> {
    (!frame.header.kind.is_envelope()).then(|| frame.record())
}

/// Returns the first record below `below` that differs between two logs, among those from the first
/// of `left` on. The segments of both begin at the same record.
pub(crate) fn first_difference(
    storage: &dyn Storage,
    left: &[Segment],
    right: &[Segment],
    below: SequenceNumber,
) -> Result<Option<SequenceNumber>> {
    let digest_of = |segments: &[Segment]| -> Result<[u8; 32]> {
        let mut digest = SegmentDigest::new();
        each_below(storage, segments, below, &mut |record| digest.update(record))?;
        Ok(digest.finish())
    };
    if digest_of(left)? == digest_of(right)? {
        return Ok(None);
    }
    let each_of = |segments: &[Segment]| -> Result<Vec<(SequenceNumber, [u8; 32])>> {
        let mut digests = Vec::new();
        each_below(storage, segments, below, &mut |record| {
            let mut digest = SegmentDigest::new();
            digest.update(record);
            digests.push((record.sequence, digest.finish()));
        })?;
        Ok(digests)
    };
    let (left, right) = (each_of(left)?, each_of(right)?);
    let unlike =
        left.iter().zip(&right).find(|(left, right)| left != right).map(|((sequence, _), _)| *sequence);
    Ok(unlike.or_else(|| left.iter().chain(&right).map(|(sequence, _)| *sequence).max()))
}

fn each_below(
    storage: &dyn Storage,
    segments: &[Segment],
    below: SequenceNumber,
    visit: &mut dyn FnMut(&Record<'_>),
) -> Result<()> {
    let mut end: Option<Spot> = None;
    for segment in segments {
        let head = match end {
            Some(end) => {
                end.followed_by(segment).map_err(|flaw| segment.corrupt(0, end.next_sequence, flaw))?
            }
            None => Spot::head_of(segment),
        };
        end = Some(check(storage, segment, head, &mut |frame| {
            if let Some(record) = record_of(frame).filter(|record| record.sequence < below) {
                visit(&record);
            }
            Ok(())
        })?);
    }
    Ok(())
}

pub(crate) fn same_bytes(storage: &dyn Storage, left: &Path, right: &Path, len: u64) -> Result<bool> {
    let (left_file, right_file) =
        (compressed::as_it_stands(storage, left)?, compressed::as_it_stands(storage, right)?);
    same(left_file.as_ref(), left, right_file.as_ref(), right, len)
}

pub(crate) fn same_segments(storage: &dyn Storage, left: &Path, right: &Path, len: u64) -> Result<bool> {
    let (left_file, right_file) = (compressed::open(storage, left)?, compressed::open(storage, right)?);
    same(left_file.as_ref(), left, right_file.as_ref(), right, len)
}

pub(super) fn same(
    left: &dyn StorageFile,
    left_path: &Path,
    right: &dyn StorageFile,
    right_path: &Path,
    len: u64,
) -> Result<bool> {
    let (mut one, mut other) = (vec![0; COMPARED_BYTES], vec![0; COMPARED_BYTES]);
    let mut offset = 0;
    while offset < len {
        let wanted = COMPARED_BYTES.min(usize::try_from(len - offset).unwrap_or(COMPARED_BYTES));
        let (one, other) =
            (one.get_mut(..wanted).unwrap_or_default(), other.get_mut(..wanted).unwrap_or_default());
        let read = left.read_at(one, offset).map_err(|error| Error::io("read", left_path, error))?;
        let also = right.read_at(other, offset).map_err(|error| Error::io("read", right_path, error))?;
        if read != wanted || also != wanted || one != other {
            return Ok(false);
        }
        offset += wanted as u64;
    }
    Ok(true)
}

/// Copies the first `len` bytes of a file into a new one, and makes them durable. Passes each piece
/// to `visit`. Returns the number of bytes copied.
///
/// The bytes are read and written, not shared by the file system: writing to a mapped segment with
/// shared blocks takes room that the disk may not have.
pub(crate) fn copy_bytes(
    storage: &dyn Storage,
    from: &Path,
    to: &Path,
    len: u64,
    visit: &mut dyn FnMut(&[u8]),
) -> Result<u64> {
    let source = compressed::as_it_stands(storage, from)?;
    let copy = storage.create(to, len).map_err(|error| Error::unmade("create", to, len, error))?;
    transfer(source.as_ref(), from, copy.as_ref(), to, 0..len, visit)
}

/// Copies the first `len` plain bytes of a segment into a new plain segment file, and makes them
/// durable. Returns the number of bytes copied.
pub(crate) fn copy_plain(storage: &dyn Storage, segment: &Segment, to: &Path, len: u64) -> Result<u64> {
    let source = segment.open(storage)?;
    let copy = storage.create(to, len).map_err(|error| Error::unmade("create", to, len, error))?;
    transfer(source.as_ref(), &segment.path, copy.as_ref(), to, 0..len, &mut |_| {})
}

/// Copies the plain bytes `range` of a segment to the same offset of another one, which ends there
/// or before, and makes them durable. Returns the number of bytes copied.
pub(crate) fn append_bytes(storage: &dyn Storage, from: &Path, to: &Path, range: Range<u64>) -> Result<u64> {
    let source = compressed::open(storage, from)?;
    let copy =
        storage.open(to, Access::Write).map_err(|error| Error::access_failed("open", storage, to, error))?;
    let bytes = range.end - range.start;
    copy.allocate(range.end).map_err(|error| Error::unmade("allocate", to, bytes, error))?;
    transfer(source.as_ref(), from, copy.as_ref(), to, range, &mut |_| {})
}

fn transfer(
    source: &dyn StorageFile,
    from: &Path,
    copy: &dyn StorageFile,
    to: &Path,
    range: Range<u64>,
    visit: &mut dyn FnMut(&[u8]),
) -> Result<u64> {
    let (start, len) = (range.start, range.end.saturating_sub(range.start));
    let end = each_piece(source, from, range, PIECE_BYTES, &mut |offset, bytes| {
        visit(bytes);
        copy.write_at(bytes, offset).map_err(|error| Error::unmade("write", to, len, error))
    })?;
    copy.sync_data().map_err(|error| Error::io("sync", to, error))?;
    Ok(end - start)
}

/// Reads a range in pieces of `piece_bytes`, up to the end of the file if that comes first. Returns
/// the offset after the last byte that was read.
pub(super) fn each_piece(
    file: &dyn StorageFile,
    path: &Path,
    range: Range<u64>,
    piece_bytes: usize,
    visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<u64> {
    let wanted = |offset| usize::try_from(range.end.saturating_sub(offset)).unwrap_or(usize::MAX);
    let mut piece = vec![0; piece_bytes.min(wanted(range.start))];
    let mut offset = range.start;
    while offset < range.end {
        let room = piece.get_mut(..piece_bytes.min(wanted(offset))).unwrap_or_default();
        let read = file.read_at(room, offset).map_err(|error| Error::io("read", path, error))?;
        let bytes = room.get(..read).unwrap_or_default();
        if bytes.is_empty() {
            break;
        }
        visit(offset, bytes)?;
        offset += read as u64;
    }
    Ok(offset)
}

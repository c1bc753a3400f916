//! Distinguishing damage from a copy that was taken while its session was written.
//!
//! A program may copy a directory file by file, oldest file first, while a writer continues. It
//! gets a segment as it was before its successor was begun, and the successor in a later state. The
//! successor names the final end of the segment, and the copy of the segment ends before it: in
//! zeros, or in a frame that was just being written. If the segment was copied before its first
//! record, its copy is empty, without even a header.
//!
//! Within one segment too, later data may be younger. A page is read while its writer is in the
//! middle of it, and the pages after it later, so that zeros reach to the end of the page.
//!
//! Such a copy is incomplete but not wrong. A disk that lost the bytes leaves the same state, and
//! the error says so.

use foldlog_codec::SequenceNumber;
use foldlog_codec::frame::{HEADER_LEN, claimed_len};
use foldlog_codec::segment::HEADER_LEN as SEGMENT_HEADER_LEN;

use super::BadSpot;
use crate::error::{Error, Result};
use crate::log::chain::{Segment, SegmentFile};
use crate::log::compressed;
use crate::log::window::Window;
use crate::storage::Storage;

/// Minimum number of zeros at the end of a page that indicate a copy: a frame may itself end in
/// some zeros.
const ZEROS_MIN: u64 = 8;
/// A kernel returns the content of a file in pages of this many bytes, or in multiples of it.
const PAGE_BYTES: u64 = 4096;

/// Returns the error of a segment that is older at a bad spot than the data after it. Returns
/// `None` if the bad spot has another cause. The record `sequence` is expected at the spot.
pub(super) fn judge(
    storage: &dyn Storage,
    segments: &[Segment],
    spot: &BadSpot,
    sequence: SequenceNumber,
) -> Result<Option<Error>> {
    let Some(segment) = segments.get(spot.segment) else { return Ok(None) };
    let Some(end) = lacks_to(storage, segment, spot.offset)? else { return Ok(None) };
    // If the segment does not end before the end that its successor states, the frames that follow
    // are its own.
    let next = segments.get(spot.segment + 1).filter(|_| segment.end == Some(end)).unwrap_or(segment);
    Ok(Some(Error::OlderThanSuccessor {
        session: segment.header.session,
        segment: segment.path.clone(),
        offset: spot.offset,
        sequence,
        successor: next.path.clone(),
        end,
    }))
}

/// Returns the offset up to which a segment is older than the data after it. There is no valid
/// frame at `offset`, where the older part begins. Returns `None` if the damage has another cause.
pub(super) fn lacks_to(storage: &dyn Storage, segment: &Segment, offset: u64) -> Result<Option<u64>> {
    // A compressed segment was complete when it was written.
    if compressed::damage_at(storage, &segment.path, offset).is_some() {
        return Ok(None);
    }
    let mut window = Window::new(&segment.path, segment.open(storage)?, None)?;
    let used = window.used_end(offset)?;
    let frame_end = offset + claimed_len(window.bytes(offset, HEADER_LEN as u64)?) as u64;
    if let Some(end) = segment.end {
        // Bytes after the end that the successor names are younger than the missing ones; no
        // copy has these.
        let begun = used <= frame_end && frame_end < end;
        if used == offset || begun {
            return Ok(Some(end));
        }
    }
    page_with_zeros(&mut window, offset, frame_end, used)
}

/// Returns the end of the first page, among those of the frame from `offset` to `frame_end`, that
/// ends in zeros and is followed by used bytes. Returns `None` if there is none.
fn page_with_zeros(window: &mut Window<'_>, offset: u64, frame_end: u64, used: u64) -> Result<Option<u64>> {
    let mut page_end = offset;
    while page_end < frame_end.min(used) {
        page_end = (page_end / PAGE_BYTES + 1) * PAGE_BYTES;
        let from = frame_end.min(page_end - ZEROS_MIN).max(offset);
        let len = usize::try_from(page_end - from).unwrap_or(usize::MAX);
        // More bytes may be returned than requested.
        let is_empty = window.bytes(from, page_end - from)?.iter().take(len).all(|byte| *byte == 0);
        if page_end < used && is_empty {
            return Ok(Some(page_end));
        }
    }
    Ok(None)
}

/// Returns the error of a copy whose chain is cut at a segment without a header, like [`judge`] for
/// a bad spot.
pub(super) fn judge_header(
    storage: &dyn Storage,
    beyond: &[SegmentFile],
    sequence: SequenceNumber,
) -> Result<Option<Error>> {
    let named = |file: &SegmentFile| file.header.and_then(|header| Some((header, header.previous?)));
    let Some((next, (header, previous))) = beyond.iter().find_map(|file| Some((file, named(file)?))) else {
        return Ok(None);
    };
    let lost = beyond.iter().find(|file| file.named == previous.ordinal && file.header.is_none());
    let Some(lost) = lost else { return Ok(None) };
    let mut window = Window::new(&lost.path, compressed::open(storage, &lost.path)?, None)?;
    // A segment has its length before it has a header.
    if window.end() <= SEGMENT_HEADER_LEN as u64 || window.used_end(0)? != 0 {
        return Ok(None);
    }
    Ok(Some(Error::OlderThanSuccessor {
        session: header.session,
        segment: lost.path.clone(),
        offset: 0,
        sequence,
        successor: next.path.clone(),
        end: previous.end,
    }))
}

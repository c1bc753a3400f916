//! Telling a copy that was taken while its session was written from damage.
//!
//! A program that copies a folder file by file while a writer goes on, the oldest file first, gets a segment as it was
//! before its successor was begun, and the successor as it was later. The successor names the end that the segment came
//! to, and the copy of the segment ends before that end: in zeros, or in a frame that was just being written. Where the
//! segment was copied before its first record, its copy holds nothing at all, and not even a header. Nothing in such a
//! copy is wrong but that it is too short. A disk that lost the end of a segment leaves the same, and the error says
//! so.

use crate::sabotage::{self, Breakage};
use foldlog_codec::SequenceNumber;
use foldlog_codec::frame::{HEADER_LEN, claimed_len};
use foldlog_codec::segment::HEADER_LEN as SEGMENT_HEADER_LEN;

use super::BadSpot;
use crate::error::{Error, Result};
use crate::log::chain::{Beyond, Segment};
use crate::log::compressed;
use crate::log::window::Window;
use crate::storage::Storage;

/// Returns the error of a segment that is older than its successor expects. `None` where the bad spot is anything else.
/// The record `sequence` should stand at the spot.
pub(super) fn judge(
    storage: &dyn Storage,
    segments: &[Segment],
    spot: &BadSpot,
    sequence: SequenceNumber,
) -> Result<Option<Error>> {
    let next = spot.segment.checked_add(1).and_then(|next| segments.get(next));
    let (Some(segment), Some(next)) = (segments.get(spot.segment), next) else { return Ok(None) };
    let Some(end) = segment.end.filter(|_| !sabotage::is(Breakage::CopyCalledDamage)) else {
        return Ok(None);
    };
    let io = |error| Error::io("read", &segment.path, error);
    // A compressed segment was whole when it was written.
    if compressed::damage_at(storage, &segment.path, spot.offset).is_some() {
        return Ok(None);
    }
    // Bytes behind the end that the successor names are younger than what is missing, which no copy has.
    let mut window = Window::new(segment.open(storage)?, None).map_err(io)?;
    let used = window.used_end(spot.offset).map_err(io)?;
    let frame_end =
        spot.offset + claimed_len(window.bytes(spot.offset, HEADER_LEN as u64).map_err(io)?) as u64;
    let begun = used <= frame_end && frame_end < end;
    if used != spot.offset && !begun {
        return Ok(None);
    }
    Ok(Some(Error::OlderThanSuccessor {
        session: next.header.session,
        segment: segment.path.clone(),
        offset: spot.offset,
        sequence,
        successor: next.path.clone(),
        end,
    }))
}

/// Returns the error of a copy whose chain is cut at a segment without a header, as [`judge`] does for a bad spot.
pub(super) fn judge_header(
    storage: &dyn Storage,
    beyond: &[Beyond],
    sequence: SequenceNumber,
) -> Result<Option<Error>> {
    let named = |file: &Beyond| file.header.and_then(|header| Some((header, header.previous?)));
    let Some((next, (header, previous))) = beyond.iter().find_map(|file| Some((file, named(file)?))) else {
        return Ok(None);
    };
    let lost = beyond.iter().find(|file| file.named == previous.ordinal && file.header.is_none());
    let Some(lost) = lost.filter(|_| !sabotage::is(Breakage::CopyCalledDamage)) else { return Ok(None) };
    let io = |error| Error::io("read", &lost.path, error);
    let mut window = Window::new(compressed::open(storage, &lost.path)?, None).map_err(io)?;
    // A segment has its length before it has a header.
    if window.end() <= SEGMENT_HEADER_LEN as u64 || window.used_end(0).map_err(io)? != 0 {
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

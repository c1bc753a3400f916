//! Starting a walk after the records that an image covers.
//!
//! | part of the log | check |
//! |---|---|
//! | the frame that the image names | the frame is at the image's offset, with that checksum; through the checksums of its predecessors it proves everything before it |
//! | a segment before that one | its seal: the successor that it names, the number of records, and that the successor follows the frame before the seal. If a crash preceded the seal, the segment's frames are walked |
//! | such a segment without a seal that the image lists as walked before | its salt, and that its file is as long as its successor states. Its frames were durable before the image was written; every later read checks them again |
//! | whether a compaction wrote that segment | the image names this segment, by its salt, or the segment is not compacted and the image names none |
//! | the part of the frame's own segment that the image covers | nothing: an audit reads those bodies |
//!
//! If anything differs, the image belongs to another log, and the walk begins with the first
//! record.
//!
//! If this process walked a log to its end, it continues the walk in the same way, with the data of
//! an image of that end.

use std::sync::Arc;

use foldlog_codec::body::Resumed;
use foldlog_codec::frame::{self, HEADER_LEN as FRAME_HEADER_LEN};
use foldlog_codec::image::{Image, LastFrame};
use foldlog_codec::segment::HEADER_LEN as SEGMENT_HEADER_LEN;
use foldlog_codec::{RecordKind, SequenceNumber};

use super::{ChainWalk, Location, LogScan, Recovery, Scanner};
use crate::error::{Error, Result};
use crate::log::chain::{SealFrame, Segment};
use crate::log::copy::{Spot, check};
use crate::log::dropped_ranges::Compaction;
use crate::log::reader::{Index, RecordLocator};
use crate::log::window::Window;

impl Scanner<'_> {
    /// Makes the walk begin after the records that `image` covers, and returns the locator of these
    /// records. Returns `None` if the image belongs to another log; then the walk is unchanged.
    pub(crate) fn go_on_from(&mut self, image: &Image<'_>) -> Result<Option<RecordLocator>> {
        let segments = &self.walk.chain.segments;
        let last = image.last;
        let found = segments.iter().position(|segment| {
            segment.header.ordinal == last.ordinal
                && segment.header.salt == last.salt
                && segment.end.is_none_or(|end| end >= last.end)
        });
        let Some(at) = found else { return Ok(None) };
        let Some((kind, recovery)) = self.walk.names_a_frame(at, image)? else { return Ok(None) };
        let mut used_bytes = last.end;
        for index in 0..at {
            let Some(bytes) = self.walk.held_bytes(index, image)? else { return Ok(None) };
            used_bytes += bytes;
        }
        let mut index = Index::default();
        for place in &image.index {
            let found = segments.binary_search_by_key(&place.ordinal, |segment| segment.header.ordinal);
            let Ok(segment) = found else { return Ok(None) };
            index.note(place.sequence, Location { segment, offset: place.offset });
        }
        let segments: Vec<Segment> = segments.iter().take(at + 1).cloned().collect();
        let places = RecordLocator {
            compaction: Compaction::read(self.walk.storage, &segments)?,
            segments: Arc::new(segments),
            index: index.clone(),
            next_sequence: image.next_sequence,
        };
        let walk = &mut self.walk;
        walk.scan.index = index;
        walk.scan.openings.clone_from(&image.openings);
        walk.scan.rollbacks = image.rollbacks.iter().copied().collect();
        walk.scan.next_sequence = image.next_sequence;
        walk.scan.watermark = image.watermark.max(compacted_through(&places.segments));
        (walk.scan.last_crc, walk.scan.last_offset) = (last.crc, Some(last.offset));
        walk.scan.last_time_us = image.time_us;
        walk.last_kind = Some(kind);
        walk.recovery = recovery;
        walk.scan.epoch = image.epoch;
        walk.scan.boot_id = image.boot_id;
        walk.scan.used_bytes = used_bytes;
        self.start = (at, last.end);
        Ok(Some(places))
    }
}

/// Returns the sequence number below which everything is durable because earlier segments were
/// compacted. A full walk would find this number, and an image may be older than the compaction.
fn compacted_through(segments: &[Segment]) -> SequenceNumber {
    let follow = segments.iter().skip(1).map(|segment| segment.header.first_sequence);
    let compacted = segments.iter().zip(follow).rev().find(|(segment, _)| segment.compacted.is_some());
    match compacted {
        Some((_, next)) => next,
        _ => SequenceNumber::MIN,
    }
}

impl LogScan {
    /// Returns the image of the walked records with only the log's own data, without a projection.
    /// Returns `None` if the last segment has no frame.
    pub(crate) fn passed_image(&self) -> Option<Image<'static>> {
        let segment = self.segments.last()?;
        let ((ordinal, salt), offset) = (segment.ordinal_and_salt(), self.last_offset?);
        let places = self.places();
        Some(Image {
            next_sequence: self.next_sequence,
            last: LastFrame { ordinal, salt, offset, end: self.end, crc: self.last_crc },
            time_us: self.last_time_us,
            epoch: self.epoch,
            boot_id: self.boot_id,
            watermark: self.watermark,
            openings: self.openings.clone(),
            rollbacks: self.rollbacks.iter().map(|(at, rollback)| (*at, *rollback)).collect(),
            index: places.indexed_locations(),
            compacted: places.compacted_segments(),
            ..Image::default()
        })
    }
}

impl Scanner<'_> {
    /// Returns the number of bytes of the log that the walk skips because it begins after an image.
    pub(crate) fn passed_bytes(&self) -> u64 {
        self.walk.scan.used_bytes
    }
}

impl Recovery {
    /// Reads the recovery that began a segment, if one did.
    fn read(segment: &Segment, window: &mut Window<'_>) -> Result<Option<Recovery>> {
        let (context, start) = (segment.context(), SEGMENT_HEADER_LEN as u64);
        // The first frame of another segment may be large, and is not read.
        let header = frame::peek(context, window.bytes(start, FRAME_HEADER_LEN as u64)?);
        if !header.is_ok_and(|header| header.kind == RecordKind::Resumed) {
            return Ok(None);
        }
        let resumed = window.frame(context, start)?.ok().and_then(|first| Resumed::decode(first.body).ok());
        Ok(resumed.and_then(|resumed| Recovery::new(&resumed, segment)))
    }
}

impl ChainWalk<'_> {
    /// Returns the kind of the frame that the image names, and the recovery that ends with the next
    /// frame, if there is one. Returns `None` if the segment has no such frame.
    fn names_a_frame(
        &self,
        index: usize,
        image: &Image<'_>,
    ) -> Result<Option<(RecordKind, Option<Recovery>)>> {
        let Some(segment) = self.chain.segments.get(index) else { return Ok(None) };
        let mut window = segment.window(self.storage)?;
        let Ok(frame) = window.frame(segment.context(), image.last.offset)? else {
            return Ok(None);
        };
        let header = frame.header;
        let same = header.crc == image.last.crc
            && image.last.offset + frame.len() as u64 == image.last.end
            && header.next_sequence() == image.next_sequence;
        if !same {
            return Ok(None);
        }
        // The frame that attests a recovery follows its last record.
        let ends_next =
            |recovery: &Recovery| recovery.through == image.next_sequence && !header.kind.is_envelope();
        Ok(Some((header.kind, Recovery::read(segment, &mut window)?.filter(ends_next))))
    }

    /// Returns the number of bytes of a segment before the image's. Returns `None` if neither its
    /// seal nor its frames prove that it is the segment that the image covers.
    fn held_bytes(&self, index: usize, image: &Image<'_>) -> Result<Option<u64>> {
        let (Some(segment), Some(next)) =
            (self.chain.segments.get(index), self.chain.segments.get(index + 1))
        else {
            return Ok(None);
        };
        // The places of an image are valid only for those bytes. A power cut may restore the file
        // that a compaction replaced.
        let (ordinal, salt) = segment.ordinal_and_salt();
        if segment.compacted.map(|_| salt) != salt_in(&image.compacted, ordinal) {
            return Ok(None);
        }
        let of_image = image.openings.iter().any(|(_, opened)| opened.session == segment.header.session);
        let Some(records) = next.header.first_sequence.checked_since(segment.header.first_sequence) else {
            return Ok(None);
        };
        if of_image && salt_in(&image.unsealed, ordinal) == Some(salt) && self.is_as_long_as_said(segment)? {
            return Ok(segment.end);
        }
        let seal = segment.seal(self.storage)?;
        let seals = |frame: &SealFrame| {
            segment.exit_crc(frame.predecessor_crc) == next.first_predecessor_crc()
                && frame.seal.next == next.header.ordinal
                && frame.seal.records == records
        };
        let held = seal.as_ref().is_some_and(seals) || self.frames_hold(segment, next)?;
        let bytes = segment.end.unwrap_or(0) + seal.map_or(0, |seal| seal.len);
        Ok((of_image && held).then_some(bytes))
    }

    /// Returns whether a segment's file reaches the end that its successor states.
    fn is_as_long_as_said(&self, segment: &Segment) -> Result<bool> {
        let entry = self.storage.look_up(&segment.path)?;
        Ok(entry.is_some_and(|entry| segment.end.is_some_and(|end| entry.len >= end)))
    }

    /// Returns whether the frames of a segment lead from its header to its successor's.
    fn frames_hold(&self, segment: &Segment, next: &Segment) -> Result<bool> {
        match check(self.storage, segment, Spot::head_of(segment), &mut |_| Ok(())) {
            Err(Error::Corrupt(_)) => Ok(false),
            walked => Ok(walked?.followed_by(next).is_ok()),
        }
    }
}

/// Returns the salt of a segment in an image's list, which is in the order of the log.
fn salt_in(list: &[(u32, u64)], ordinal: u32) -> Option<u64> {
    let at = list.binary_search_by_key(&ordinal, |(of, _)| *of).ok()?;
    list.get(at).map(|(_, salt)| *salt)
}

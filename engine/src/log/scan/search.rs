//! Searching for valid frames at unknown positions.
//!
//! Any byte may begin a frame, and a frame may claim any length. Checking each place separately
//! would take time proportional to the number of bytes times the largest frame. The search
//! therefore makes two passes over a file. The first finds the places with a possible frame header,
//! each with the expected checksum of all bytes up to the end of that frame. The second compares
//! these checksums. The search never gives up: its time is linear in the number of bytes, whatever
//! their content, and it skips holes.
//!
//! Its memory is bounded: if there are more possible places than fit, the search processes them in
//! parts.

use std::path::Path;

use foldlog_codec::frame::{self, Context, Frame, HEADER_LEN as FRAME_HEADER_LEN, Header, UNCOVERED_LEN};
use foldlog_codec::{SequenceNumber, crc};

use crate::error::Result;
use crate::log::compressed;
use crate::log::window::{Span, Window};
use crate::storage::Storage;

const PLACES_MAX: usize = 1 << 20;

const HEADER_BYTES: u64 = FRAME_HEADER_LEN as u64;

#[derive(Clone, Copy)]
struct FrameCandidate {
    offset: u64,
    len: u32,
    /// Expected checksum at the frame's end, if there is a frame.
    at_end: u32,
}

impl FrameCandidate {
    fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }
}

/// The checksum of all bytes from the start of a search up to one place.
#[derive(Clone, Copy)]
struct Prefix {
    offset: u64,
    crc: u32,
}

impl Prefix {
    fn take(&mut self, bytes: &[u8]) {
        (self.crc, self.offset) = (crc::with_bytes(self.crc, bytes), self.offset + bytes.len() as u64);
    }

    fn take_zeros(&mut self, to: u64) {
        if let Some(zeros) = to.checked_sub(self.offset).filter(|zeros| *zeros > 0) {
            (self.crc, self.offset) = (crc::with_zeros(self.crc, zeros), to);
        }
    }

    fn go_to(&mut self, window: &mut Window<'_>, to: u64) -> Result<()> {
        while self.offset < to {
            match window.span(self.offset, 1)? {
                Span::Hole { end } => self.take_zeros(end.min(to)),
                Span::Bytes(bytes) => {
                    let wanted = usize::try_from(to - self.offset).unwrap_or(usize::MAX);
                    let bytes = bytes.get(..wanted).unwrap_or(bytes);
                    if bytes.is_empty() {
                        return Ok(());
                    }
                    self.take(bytes);
                }
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
pub(super) struct SearchRange<'a> {
    pub(super) path: &'a Path,
    pub(super) from: u64,
    /// `None` for the end of the file.
    pub(super) end: Option<u64>,
}

/// Searches a part of a file for valid frames that may come after the record `q`, and passes them
/// with their offsets to `found`, in order. A frame within another one does not count. Returns the
/// offset after the last byte that is not 0.
pub(super) fn search(
    storage: &dyn Storage,
    range: SearchRange<'_>,
    contexts: &[Context],
    q: SequenceNumber,
    found: &mut dyn FnMut(u64, Frame<'_>),
) -> Result<u64> {
    let SearchRange { path, from, end } = range;
    let mut window = Window::new(path, compressed::open(storage, path)?, end)?;
    let used = window.used_end(from)?;
    let mut at = Prefix { offset: from, crc: 0 };
    let mut next = from;
    let mut behind = from;
    while next < used {
        let begun = at;
        let mut places = Vec::new();
        next = gather(&mut window, next, used, &mut at, contexts, q, &mut places)?;
        for place in sound(&mut window, begun, places)? {
            if place.offset < behind {
                continue;
            }
            let bytes = window.bytes(place.offset, u64::from(place.len))?;
            if let Some(frame) = contexts.iter().find_map(|context| frame::decode(*context, bytes).ok()) {
                behind = place.offset + frame.len() as u64;
                found(place.offset, frame);
            }
        }
    }
    Ok(used)
}

/// Collects the places from `from` up to `used` at which a frame may begin, and returns the offset
/// at which to continue.
fn gather(
    window: &mut Window<'_>,
    from: u64,
    used: u64,
    at: &mut Prefix,
    contexts: &[Context],
    q: SequenceNumber,
    places: &mut Vec<FrameCandidate>,
) -> Result<u64> {
    let end = window.end();
    let mut offset = from;
    while offset < used && places.len() < PLACES_MAX {
        if let Span::Hole { end: hole_end } = window.span(offset, HEADER_BYTES)? {
            // A header is never all 0, so the last byte of the first possible header is after the
            // hole.
            let next = hole_end.saturating_sub(HEADER_BYTES - 1);
            if next > offset {
                at.take_zeros(next);
                offset = next;
                continue;
            }
        }
        let base = offset;
        let bytes = window.bytes(base, HEADER_BYTES)?;
        // Headers at the very end of the bytes read are examined when more bytes are read.
        let heads = bytes.windows(FRAME_HEADER_LEN).take(usize::try_from(used - base).unwrap_or(usize::MAX));
        let mut looked_at = 0;
        for head in heads {
            let here = base + looked_at as u64;
            looked_at += 1;
            let contexts =
                contexts.iter().filter_map(|context| Some((context, plausible(*context, head, q)?)));
            for (context, header) in contexts {
                let len = HEADER_BYTES + u64::from(header.body_len);
                if here + len > end {
                    continue;
                }
                let covered = usize::try_from(here + UNCOVERED_LEN - base).unwrap_or(usize::MAX);
                let taken = usize::try_from(at.offset.saturating_sub(base)).unwrap_or(usize::MAX);
                at.take(bytes.get(taken..covered).unwrap_or_default());
                let at_end = frame::checksum_at_end(*context, &header, at.crc);
                places.push(FrameCandidate { offset: here, len: len as u32, at_end });
            }
            if places.len() >= PLACES_MAX {
                break;
            }
        }
        if looked_at == 0 {
            // Fewer bytes are left than the length of a header.
            return Ok(used);
        }
        offset = base + looked_at as u64;
        let taken = usize::try_from(at.offset.saturating_sub(base)).unwrap_or(usize::MAX);
        at.take(bytes.get(taken..looked_at).unwrap_or_default());
    }
    Ok(offset)
}

/// Returns those of the places that have a valid frame, in order. `begun` is the checksum up to the
/// first of them.
fn sound(
    window: &mut Window<'_>,
    begun: Prefix,
    mut places: Vec<FrameCandidate>,
) -> Result<Vec<FrameCandidate>> {
    let mut at = begun;
    places.sort_unstable_by_key(FrameCandidate::end);
    let mut sound = Vec::new();
    for place in places {
        at.go_to(window, place.end())?;
        if at.offset == place.end() && at.crc == place.at_end {
            sound.push(place);
        }
    }
    sound.sort_unstable_by_key(|place| place.offset);
    Ok(sound)
}

/// Returns a header that may come after the record `q`. This is a cheap test before any other work
/// on the place.
fn plausible(context: Context, bytes: &[u8], q: SequenceNumber) -> Option<Header> {
    let header = frame::peek(context, bytes).ok()?;
    let near = header.sequence >= q && header.sequence - q <= u64::from(u32::MAX);
    (near && header.watermark <= header.sequence).then_some(header)
}

//! Checking the seals of finished segments against their records.
//!
//! A segment that was never compacted may lack its seal. After its end there may be an incomplete
//! seal from a power cut, frames that a recovery has cut off, or frames that the parent of a fork
//! wrote later: there only a valid seal counts. A compacted segment gets its name once its seal is
//! durable, and is not written to afterwards. Its end is followed by the seal or, as in a copy that
//! waits for its next backup, by nothing; anything else is damage.

use foldlog_codec::body::Seal;
use foldlog_codec::digest::SegmentDigest;
use foldlog_codec::frame::Frame;

use super::chain::{self, SealFrame, Segment};
use super::compressed;
use super::copy::{Spot, check};
use super::window::Window;
use crate::error::{Error, Result};
use crate::storage::Storage;

/// Checks the seal of a compacted segment, and that nothing follows it.
///
/// # Errors
///
/// [`Error::Corrupt`] if the seal does not match the records or other bytes follow it,
/// [`Error::Io`] if the segment cannot be read.
pub(crate) fn check_compacted(storage: &dyn Storage, segment: &Segment) -> Result<()> {
    compare(storage, segment)?.unwrap_or(Ok(()))
}

/// Compares the records of a finished segment with its seal. The result is [`Error::Corrupt`] if
/// they differ, if other bytes follow the end of a compacted segment, or if a compressed segment's
/// file is damaged in bytes that no frame needs. Returns `None` if the segment has no seal.
pub(crate) fn compare(storage: &dyn Storage, segment: &Segment) -> Result<Option<Result<()>>> {
    // The bytes before the segment's end are checked by a walk over its frames.
    let damage = || compressed::damage(storage, &segment.path, segment.end.unwrap_or(0));
    let Some(mut sealed) = SealVerifier::from_segment(storage, segment)? else {
        let damage = damage()?;
        let damage = if damage.is_none() { damage_behind(storage, segment, 0)? } else { damage };
        return Ok(damage.map(Err));
    };
    let seal_len = sealed.len;
    let end = check(storage, segment, Spot::head_of(segment), &mut |frame| {
        sealed.add(frame);
        Ok(())
    })?;
    Ok(Some(match damage()? {
        Some(damage) => Err(damage),
        None => match sealed.check(segment, end) {
            Ok(()) => damage_behind(storage, segment, seal_len)?.map_or(Ok(()), Err),
            differs => differs,
        },
    }))
}

/// Returns the damage after the end of a compacted segment, if any byte there is not zero, with the
/// offset after its seal. `seal_len` is the length of its valid seal in bytes, 0 if it has none.
/// Returns `None` for a segment that is not compacted, or that was cut before its own end.
fn damage_behind(storage: &dyn Storage, segment: &Segment, seal_len: u64) -> Result<Option<Error>> {
    let Some(end) = segment.end.filter(|end| segment.compacted.is_some_and(|it| it.end == *end)) else {
        return Ok(None);
    };
    let offset = end + seal_len;
    if Window::new(&segment.path, segment.open(storage)?, None)?.used_end(offset)? == offset {
        return Ok(None);
    }
    let reason = match seal_len {
        0 => "the bytes after its records are not an intact seal of a compacted segment",
        _ => "there are bytes after the seal of a compacted segment",
    };
    Ok(Some(corrupt(
        segment,
        Spot { offset, ..check(storage, segment, Spot::head_of(segment), &mut |_| Ok(()))? },
        reason,
    )))
}

fn corrupt(segment: &Segment, at: Spot, reason: impl Into<String>) -> Error {
    chain::corrupt(None, &segment.path, at.offset, at.next_sequence, reason)
}

/// Compares the records of a finished segment with its seal, during a walk over them.
pub(crate) struct SealVerifier {
    seal: Seal,
    /// Length of the seal's frame in bytes.
    len: u64,
    digest: SegmentDigest,
}

impl SealVerifier {
    /// Starts before the first frame of a segment; `None` if the segment has no seal.
    pub(crate) fn from_segment(storage: &dyn Storage, segment: &Segment) -> Result<Option<SealVerifier>> {
        let digest = SegmentDigest::new();
        Ok(segment.seal(storage)?.map(|SealFrame { seal, len, .. }| SealVerifier { seal, len, digest }))
    }

    pub(crate) fn add(&mut self, frame: &Frame<'_>) {
        self.digest.update(&frame.record());
    }

    /// Fails with [`Error::Corrupt`] if the frames up to the segment's `end` do not match the seal.
    pub(crate) fn check(self, segment: &Segment, end: Spot) -> Result<()> {
        let SealVerifier { seal, digest, .. } = self;
        // A recovery or a fork may have cut the segment before the end that was sealed.
        if digest.records() != seal.records || digest.finish() == seal.hash {
            return Ok(());
        }
        let reason = format!("the {} records before the seal do not match it", seal.records);
        Err(corrupt(segment, end, reason))
    }
}

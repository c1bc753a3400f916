//! Seals of finished segments, checked against their records.

use std::path::Path;

use foldlog_codec::body::Seal;
use foldlog_codec::digest::SegmentDigest;
use foldlog_codec::frame::Frame;

use super::LogReader;
use crate::error::{Corruption, Error, Result};
use crate::log::chain::{self, Segment};
use crate::log::compressed;
use crate::log::copying::{Spot, check};
use crate::storage::{FileStorage, Storage};

/// Returns an [`Error::Corrupt`] for each seal of a finished segment in the folder `dir` that does not match its records, and for
/// each compressed segment that is damaged where no frame needs it. The
/// log need not fold for that. Passes over segments in which a frame is damaged, which [`damaged_places`](super::damaged_places)
/// finds.
///
/// # Errors
///
/// [`Error::NotASession`] if `dir` holds no segments, [`Error::NotAFile`] if one of them is no regular file,
/// [`Error::Corrupt`] if the headers of the segments contradict each other, [`Error::FutureFormat`] if a later version wrote
/// them, [`Error::Io`] if a file cannot be read.
pub fn damaged_seals(dir: &Path) -> Result<Vec<Error>> {
    let storage = FileStorage::new();
    let segments = chain::discover(&storage, dir)?.segments;
    let mut damaged = Vec::new();
    let finished = segments.len().saturating_sub(1);
    for segment in segments.iter().take(finished) {
        match mismatch(&storage, segment) {
            Ok(Some(Err(error))) => damaged.push(error),
            Err(error) if !error.is_damage() => return Err(error),
            _ => {}
        }
    }
    Ok(damaged)
}

impl LogReader {
    /// Checks the seals of finished segments against their records, and returns how many were checked.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] for the first seal that does not match its records, or the first frame that does not check,
    /// [`Error::Io`] if a segment cannot be read.
    pub fn check_seals(&self) -> Result<u64> {
        let segments = &self.places.segments;
        let finished = segments.len().saturating_sub(1);
        let mut checked = 0;
        for segment in segments.iter().take(finished) {
            if let Some(seal) = mismatch(self.storage.as_ref(), segment)? {
                seal?;
                checked += 1;
            }
        }
        Ok(checked)
    }
}

/// Compares the records of a finished segment with its seal: [`Error::Corrupt`] if they are others, or if the file is a compressed
/// segment and damaged where no frame needs it. Returns `None` if the segment has no seal.
fn mismatch(storage: &dyn Storage, segment: &Segment) -> Result<Option<Result<()>>> {
    // What stands before the segment's end is read by whoever walks its frames.
    let damage = || compressed::damage(storage, &segment.path, segment.end.unwrap_or(0));
    let Some(mut sealed) = Sealed::of(storage, segment)? else { return Ok(damage()?.map(Err)) };
    let end = check(storage, segment, Spot::head_of(segment), &mut |frame| {
        sealed.add(frame);
        Ok(())
    })?;
    Ok(Some(match damage()? {
        Some(damage) => Err(damage),
        None => sealed.check(segment, end),
    }))
}

/// Compares the records of a finished segment with its seal, while somebody walks them.
pub(crate) struct Sealed {
    seal: Seal,
    digest: SegmentDigest,
}

impl Sealed {
    /// Begins before the first frame of a segment; `None` if the segment has no seal.
    pub(crate) fn of(storage: &dyn Storage, segment: &Segment) -> Result<Option<Sealed>> {
        let seal = if segment.end.is_some() { segment.seal(storage)? } else { None };
        Ok(seal.map(|(seal, _)| Sealed { seal, digest: SegmentDigest::new() }))
    }

    /// Adds the next frame of the segment.
    pub(crate) fn add(&mut self, frame: &Frame<'_>) {
        let header = frame.header;
        if !header.kind.is_envelope() {
            self.digest.update(header.sequence, header.kind, header.time_us, frame.body);
        }
    }

    /// Fails with [`Error::Corrupt`] if the frames up to the segment's `end` are not those that the seal is of.
    pub(crate) fn check(self, segment: &Segment, end: Spot) -> Result<()> {
        let Sealed { seal, digest } = self;
        // A recovery or a fork may have cut the segment short of what was sealed.
        if digest.records() != seal.records || digest.finish() == seal.hash {
            return Ok(());
        }
        Err(Error::Corrupt(Box::new(Corruption {
            session: None,
            segment: segment.path.clone(),
            offset: end.offset,
            sequence: end.next_sequence,
            expected_crc: None,
            found_crc: None,
            reason: format!("the {} records before it are not those that it seals", seal.records),
        })))
    }
}

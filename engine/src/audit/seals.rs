//! Seals of finished segments, checked against their records.

use std::path::Path;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::Seal;
use foldlog_codec::digest::SegmentDigest;

use super::LogReader;
use crate::error::{Corruption, Error, Result};
use crate::log::chain::{self, Segment};
use crate::log::copying::{Spot, check};
use crate::storage::{FileStorage, Storage};

/// Returns an [`Error::Corrupt`] for each seal of a finished segment in the folder `dir` that does not match its records. The
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
    for (segment, next) in segments.iter().zip(segments.iter().skip(1)) {
        match mismatch(&storage, segment, next) {
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
        let mut checked = 0;
        for (segment, next) in segments.iter().zip(segments.iter().skip(1)) {
            if let Some(seal) = mismatch(self.storage.as_ref(), segment, next)? {
                seal?;
                checked += 1;
            }
        }
        Ok(checked)
    }
}

/// Compares the records of a finished segment with its seal: [`Error::Corrupt`] if they are others. Returns `None` if the
/// segment has no seal.
fn mismatch(storage: &dyn Storage, segment: &Segment, next: &Segment) -> Result<Option<Result<()>>> {
    let (Some(end), Some((seal, _))) = (segment.end, segment.seal(storage)?) else { return Ok(None) };
    let mut digest = SegmentDigest::new();
    check(storage, segment, Spot::head_of(segment), &mut |frame| {
        let header = frame.header;
        if !header.kind.is_envelope() {
            digest.update(header.sequence, header.kind, header.time_us, frame.body);
        }
        Ok(())
    })?;
    // A recovery or a fork may have cut the segment short of what was sealed.
    let others = digest.records() == seal.records && digest.finish() != seal.hash;
    let error = || seal_mismatch(&segment.path, end, next.header.first_sequence, &seal);
    Ok(Some(if others { Err(error()) } else { Ok(()) }))
}

fn seal_mismatch(segment: &Path, offset: u64, sequence: SequenceNumber, seal: &Seal) -> Error {
    Error::Corrupt(Box::new(Corruption {
        session: None,
        segment: segment.to_owned(),
        offset,
        sequence,
        expected_crc: None,
        found_crc: None,
        reason: format!("the {} records before it are not those that it seals", seal.records),
    }))
}

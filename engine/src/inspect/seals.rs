//! Checks the seals of finished segments against their records: see `log::seal_check`.

use std::path::Path;

use super::LogReader;
use crate::error::{Error, Result};
use crate::log::chain;
use crate::log::seal_check::compare;
use crate::storage::FileStorage;

/// Checks the finished segments in the directory `dir`. Returns an [`Error::Corrupt`] for each seal
/// that does not match its records, for each compacted segment with a damaged seal or with other
/// bytes after its end, and for each compressed segment with damage outside of its frames. The log
/// need not be foldable. Skips segments with damaged frames, which
/// [`damaged_places`](super::damaged_places) finds, and segments that a compaction replaces in the
/// meantime.
///
/// # Errors
///
/// [`Error::NotASession`] if `dir` contains no segments, [`Error::NotAFile`] if one of them is not
/// a regular file, [`Error::Corrupt`] if the headers of the segments contradict each other,
/// [`Error::FutureFormat`] if a later version wrote them, [`Error::Io`] if a file cannot be read.
pub fn damaged_seals(dir: &Path) -> Result<Vec<Error>> {
    let storage = FileStorage::new();
    let segments = chain::discover(&storage, dir)?.segments;
    let mut damaged = Vec::new();
    let finished = segments.len().saturating_sub(1);
    for segment in segments.iter().take(finished) {
        match compare(&storage, segment) {
            // A segment that a compaction has replaced in the meantime is not the one that was
            // checked.
            Ok(Some(Err(error))) if segment.check_not_replaced(&storage).is_ok() => damaged.push(error),
            Err(error) if !error.is_damage() => return Err(error),
            _ => {}
        }
    }
    Ok(damaged)
}

impl LogReader {
    /// Checks the seals of finished segments against their records, and returns the number of
    /// checked seals.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] for the first seal that does not match its records, for a compacted
    /// segment with a damaged seal, or for the first frame that fails its check,
    /// [`Error::CompactedMeanwhile`] if a compaction has replaced that segment since the log was
    /// opened, [`Error::Io`] if a segment cannot be read.
    pub fn check_seals(&self) -> Result<u64> {
        let segments = &self.places.segments;
        let finished = segments.len().saturating_sub(1);
        let mut checked = 0;
        for segment in segments.iter().take(finished) {
            match compare(self.storage.as_ref(), segment) {
                Ok(None) => {}
                Ok(Some(Ok(()))) => checked += 1,
                Ok(Some(Err(error))) | Err(error) => {
                    segment.check_not_replaced(self.storage.as_ref())?;
                    return Err(error);
                }
            }
        }
        Ok(checked)
    }
}

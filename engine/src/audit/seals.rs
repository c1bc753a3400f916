//! Seals of finished segments, checked against their records.

use std::path::Path;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::Seal;
use foldlog_codec::digest::SegmentDigest;

use super::LogReader;
use crate::error::{Corruption, Error, Result};

impl LogReader {
    /// Checks the seals of finished segments against their records, and returns how many were checked.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] for the first seal that does not match its records, [`Error::Io`] if a segment
    /// cannot be read.
    pub fn check_seals(&self) -> Result<u64> {
        self.each_seal(&mut Err)
    }

    /// Returns an [`Error::Corrupt`] for each seal of a finished segment that does not match its records.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a segment cannot be read.
    pub fn damaged_seals(&self) -> Result<Vec<Error>> {
        let mut damaged = Vec::new();
        self.each_seal(&mut |error| {
            damaged.push(error);
            Ok(())
        })?;
        Ok(damaged)
    }

    fn each_seal(&self, mismatch: &mut dyn FnMut(Error) -> Result<()>) -> Result<u64> {
        let mut checked = 0;
        for (segment, next) in self.places.segments.iter().zip(self.places.segments.iter().skip(1)) {
            let Some(end) = segment.end else { continue };
            let Some((seal, _)) = segment.seal(self.storage.as_ref())? else { continue };
            let mut digest = SegmentDigest::new();
            if let Some(last) = next.header.first_sequence.checked_sub(1) {
                self.records(segment.header.first_sequence, last, |record| {
                    digest.update(record.sequence, record.kind, record.time_us, record.body);
                    Ok(())
                })?;
            }
            // A recovery or a fork may have cut the segment short of what was sealed.
            if digest.records() == seal.records && digest.finish() != seal.hash {
                mismatch(seal_mismatch(&segment.path, end, next.header.first_sequence, &seal))?;
            }
            checked += 1;
        }
        Ok(checked)
    }
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

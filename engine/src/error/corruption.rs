use std::fmt;
use std::path::PathBuf;

use foldlog_codec::{SequenceNumber, escape};
use uuid::Uuid;

/// Describes the place of damage in a log, and the evidence for it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Corruption {
    /// Session that the log belongs to; `None` if no intact header names it.
    pub session: Option<Uuid>,
    /// Path of the segment file.
    pub segment: PathBuf,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Sequence number of the record expected there.
    pub sequence: SequenceNumber,
    /// Checksum expected for the bytes there; `None` if none could be computed.
    pub expected_crc: Option<u32>,
    /// Checksum found in the bytes; `None` if they contain none.
    pub found_crc: Option<u32>,
    /// Kind of the damage, and the evidence that it is not a torn tail.
    pub reason: String,
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let segment = escape::path(&self.segment);
        write!(f, "{segment} is damaged at byte {}, record {}", self.offset, self.sequence)?;
        if let (Some(expected), Some(found)) = (self.expected_crc, self.found_crc) {
            write!(f, " (checksum {found:#010x}, expected {expected:#010x})")?;
        }
        write!(f, ": {}", escape::text(&self.reason))
    }
}

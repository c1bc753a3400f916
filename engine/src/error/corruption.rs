use std::fmt;
use std::path::PathBuf;

use foldlog_codec::{SequenceNumber, escape};
use uuid::Uuid;

/// Describes where damage was found, and how it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Corruption {
    /// Session that the log belongs to; `None` where no sound header says so.
    pub session: Option<Uuid>,
    /// Path of the segment file.
    pub segment: PathBuf,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Sequence number of the record that should stand there.
    pub sequence: SequenceNumber,
    /// Checksum that the bytes there should carry; `None` where none could be computed.
    pub expected_crc: Option<u32>,
    /// Checksum that the bytes carry; `None` where they carry none.
    pub found_crc: Option<u32>,
    /// What is wrong, and how it is known not to be a torn tail.
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

use crate::escape;

/// Why bytes could not be read as what they should be.
///
/// Offsets count from the start of the bytes that were handed in; the caller knows the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Fewer bytes than the thing needs.
    #[error("truncated at byte {offset}: {needed} bytes needed, {available} there")]
    Truncated {
        /// Where the missing bytes should begin.
        offset: usize,
        /// How many bytes were needed from there.
        needed: u64,
        /// How many bytes there were.
        available: u64,
    },
    /// A checksum does not match its bytes.
    #[error("checksum mismatch: expected {expected:#010x}, found {found:#010x}")]
    Checksum {
        /// The checksum of the bytes.
        expected: u32,
        /// The checksum that stands there.
        found: u32,
    },
    /// The bytes are no MessagePack.
    #[error("not MessagePack at byte {offset}: {reason}")]
    Malformed {
        /// Where reading stopped.
        offset: usize,
        /// What is wrong there.
        reason: &'static str,
    },
    /// A limit of the pre-scan was passed.
    #[error("limit passed at byte {offset}: {limit} is over {max}")]
    Limit {
        /// Where the limit was passed.
        offset: usize,
        /// Which limit.
        limit: &'static str,
        /// Its value.
        max: u64,
    },
    /// The body of a record is well-formed but not what its kind says.
    #[error("{kind} body: {}", escape::shown(reason))]
    Body {
        /// The kind of the record.
        kind: &'static str,
        /// What is missing or wrong.
        reason: String,
    },
    /// The file is no segment.
    #[error("not a foldlog segment: the first bytes are {found:02x?}")]
    Magic {
        /// The first eight bytes.
        found: [u8; 8],
    },
    /// The file was written by a later version.
    #[error("format version {found} is newer than {supported}, the newest that this version reads")]
    Version {
        /// The version in the file.
        found: u16,
        /// The newest version that can be read.
        supported: u16,
    },
    /// The host's type could not be written or read.
    #[error("{}", escape::shown(.0))]
    Value(String),
}

use crate::escape;

/// Describes why bytes or values could not be decoded or encoded.
///
/// Offsets count from the start of the bytes that the caller passed in. The error does not name the
/// file, which only the caller knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input ends before the value or frame does.
    #[error("truncated at byte {offset}: {needed} bytes needed, {available} available")]
    Truncated {
        /// Offset, in bytes, at which the needed bytes start.
        offset: usize,
        /// Number of bytes needed from `offset` on.
        needed: u64,
        /// Number of bytes available from `offset` on.
        available: u64,
    },
    /// A checksum does not match the bytes that it covers.
    #[error("checksum mismatch: expected {expected:#010x}, found {found:#010x}")]
    Checksum {
        /// Checksum computed from the bytes.
        expected: u32,
        /// Checksum stored in the frame or header.
        found: u32,
    },
    /// The bytes are not valid MessagePack, or not a valid frame or header.
    #[error("malformed at byte {offset}: {reason}")]
    Malformed {
        /// Offset, in bytes, at which decoding stopped.
        offset: usize,
        /// What is wrong at `offset`.
        reason: &'static str,
    },
    /// A value exceeds a limit that writers and readers both enforce.
    #[error("limit exceeded at byte {offset}: {limit} (at most {max})")]
    Limit {
        /// Offset, in bytes, at which the limit was exceeded; 0 if no byte corresponds to it.
        offset: usize,
        /// Name of the limit.
        limit: &'static str,
        /// Greatest value that the limit allows.
        max: u64,
    },
    /// The body of a record does not decode as a body of its kind.
    #[error("{kind} body: {}", escape::display(reason))]
    Body {
        /// Name of the record's kind.
        kind: &'static str,
        /// What is missing or wrong in the body.
        reason: String,
    },
    /// The file does not start with the magic bytes of a segment or an image.
    #[error("not a foldlog segment: the first bytes are {found:02x?}")]
    Magic {
        /// First eight bytes of the file.
        found: [u8; 8],
    },
    /// A later version of foldlog wrote the segment.
    #[error("format version {found} is newer than {supported}, the newest that this version reads")]
    Version {
        /// Format version in the segment's header.
        found: u16,
        /// Newest format version that this crate reads.
        supported: u16,
    },
    /// A host's type could not be serialized to MessagePack or deserialized from it. The text gives
    /// the cause.
    #[error("{}", escape::display(.0))]
    Value(String),
}

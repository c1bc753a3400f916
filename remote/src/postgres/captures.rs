//! The data that captures of workspaces add for the records of one append, as stored in a column of
//! the first of these.
//!
//! Sequence number after the append (8 bytes), number of packs (4), each pack's hash (32) and
//! length (8), and the bytes of one more pack, which is the rest. All integers are little-endian.

use foldlog::replication::{CapturePacks, INLINED_BYTES_MAX};
use foldlog_codec::SequenceNumber;
use foldlog_codec::body::ObjectId;

use crate::chunk::PACKS_MAX;
use crate::error::{Result, check_len};

/// Maximum length of such a column in bytes.
pub(super) const COLUMN_BYTES_MAX: usize = 12 + PACKS_MAX * 40 + INLINED_BYTES_MAX;

/// The data that an append's captures add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AppendCaptures {
    /// Sequence number after the append.
    pub(super) next: SequenceNumber,
    pub(super) packs: Vec<ObjectId>,
    pub(super) inlined: Vec<u8>,
}

impl AppendCaptures {
    /// Returns a view in the engine's form.
    pub(super) fn packs(&self) -> CapturePacks<'_> {
        CapturePacks { packs: &self.packs, inlined: &self.inlined }
    }

    /// Encodes the captures of an append that ends before the record `next`.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`](crate::Error::TooLarge).
    pub(super) fn encode(next: SequenceNumber, captures: CapturePacks<'_>) -> Result<Vec<u8>> {
        let CapturePacks { packs, inlined } = captures;
        check_len("list of packs", packs.len(), PACKS_MAX)?;
        check_len("pack of captures", inlined.len(), INLINED_BYTES_MAX)?;
        let mut column = next.to_le_bytes().to_vec();
        column.extend_from_slice(&(packs.len() as u32).to_le_bytes());
        for pack in packs {
            column.extend_from_slice(&pack.hash);
            column.extend_from_slice(&pack.len.to_le_bytes());
        }
        column.extend_from_slice(inlined);
        Ok(column)
    }

    /// Returns `None` if it is no such column.
    pub(super) fn decode(column: &[u8]) -> Option<AppendCaptures> {
        let (next, rest) = column.split_first_chunk::<8>()?;
        let (count, mut rest) = rest.split_first_chunk::<4>()?;
        let mut packs = Vec::new();
        for _ in 0..u32::from_le_bytes(*count) {
            let (hash, behind) = rest.split_first_chunk::<32>()?;
            let (len, behind) = behind.split_first_chunk::<8>()?;
            packs.push(ObjectId { hash: *hash, len: u64::from_le_bytes(*len) });
            rest = behind;
        }
        let next = u64::from_le_bytes(*next).into();
        Some(AppendCaptures { next, packs, inlined: rest.to_vec() })
    }
}

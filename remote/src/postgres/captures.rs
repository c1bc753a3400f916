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
use crate::fields::FieldReader;

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
        let mut fields = FieldReader { bytes: column };
        let (next, count) = (fields.u64()?.into(), fields.u32()?);
        let pack = |_| Some(ObjectId { hash: fields.take()?, len: fields.u64()? });
        let packs = (0..count).map(pack).collect::<Option<_>>()?;
        Some(AppendCaptures { next, packs, inlined: fields.bytes.to_vec() })
    }
}

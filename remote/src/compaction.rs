//! Encodes and decodes the bytes of a compaction: which compacted volumes replace which chunks of a
//! session.
//!
//! A compaction of the local log drops bodies of STATE, and records that
//! ([`DroppedBodies`](foldlog_codec::body::DroppedBodies)). A collection then writes *compacted
//! volumes*, which lack these bodies. Last, it writes one small object, the *compaction*, with the
//! next number from 1 on. Byte offset, length in bytes, and field:
//!
//! ```text
//!   0  8  magic "FOLDCMP\n"
//!   8  2  format version
//!  10  2  length of the head in bytes (80), which is the offset of the first volume
//!  12 16  session id
//!  28  8  number of the compaction, also in its key
//!  36  8  sequence number of the record that lists the dropped bodies
//!  44 32  hash of the object with the known positions of the slices
//!  76  4  number of compacted volumes
//!   …  …  of each, in ascending order: number of its first chunk (8), number of chunks (4),
//!         length in bytes (8), BLAKE3 of all its bytes (32)
//! end-32 32  hash of the compaction: BLAKE3 of all bytes before it
//! ```
//!
//! All integers are little-endian.
//!
//! # Invariants
//!
//! 1. Decoding panics on no input, and takes memory in proportion to the actual bytes.
//! 2. Every wrong byte is detected, here and in the volumes, whose hashes are part of the
//!    compaction.
//! 3. A compaction is put with create-if-absent, after the previous one, once each of its volumes
//!    was put, read back and taken by the rules of [`chain`](crate::chain). So it counts as a whole
//!    or not at all, and of two that run concurrently one fails.
//! 4. The newest compaction counts. It contains every chunk of the previous one.
//! 5. A compacted volume contains only chunks that were [collected](crate::Remote::collect), so
//!    that their range has its mark, or whose range has had a bare volume for a day: that range
//!    gets its mark before anything of it is removed.

use uuid::Uuid;

use crate::error::{Error, Result};
use crate::fields::FieldReader;
use crate::numbered_objects::NumberedObjectFormat;
use crate::volume::{Extent, VOLUME_BYTES_MAX};

/// Newest format version of compactions, the only one so far.
pub const FORMAT_VERSION: u16 = 1;

/// Maximum length of a compaction in bytes.
pub const COMPACTION_BYTES_MAX: usize = 8 << 20;

const FORM: NumberedObjectFormat = NumberedObjectFormat {
    magic: *b"FOLDCMP\n",
    version: FORMAT_VERSION,
    head_len: 80,
    bytes_max: COMPACTION_BYTES_MAX,
    what: "compaction",
    begins_otherwise: "it does not start like a compaction",
    other_number: "its key and its bytes name different numbers",
};
const HASH_LEN: usize = 32;
const FACTS_LEN: usize = 8 + HASH_LEN + 4;
const VOLUME_LEN: usize = 8 + 4 + 8 + HASH_LEN;

/// Identifies a compacted volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactedVolume {
    /// Chunks in the volume.
    pub extent: Extent,
    /// Its length in bytes.
    pub len: u64,
    /// BLAKE3 of all its bytes.
    pub hash: [u8; HASH_LEN],
}

/// Lists the compacted volumes, and the chunks that each replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compaction {
    /// Session that was compacted.
    pub session: Uuid,
    /// Number of the compaction, from 1 on.
    pub number: u64,
    /// Sequence number of the record that lists the dropped bodies.
    pub said_at: u64,
    /// Hash of the object with the known positions of the slices.
    pub known: [u8; HASH_LEN],
    /// Compacted volumes, in ascending order. No chunk is in two of them.
    pub volumes: Vec<CompactedVolume>,
}

impl Compaction {
    /// Returns the volume that contains the chunk with this number.
    pub fn around(&self, number: u64) -> Option<&CompactedVolume> {
        let behind = self.volumes.partition_point(|volume| volume.extent.first <= number);
        let volume = self.volumes.get(behind.checked_sub(1)?)?;
        volume.extent.holds(number).then_some(volume)
    }

    /// Returns whether any of these chunks is in a volume.
    pub fn touches(&self, extent: Extent) -> bool {
        let reaches = |volume: &CompactedVolume| volume.extent.last() >= extent.first;
        let at = self.volumes.partition_point(|volume| !reaches(volume));
        self.volumes.get(at).is_some_and(|volume| volume.extent.first <= extent.last())
    }

    /// Encodes the compaction.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] if it would be longer than [`COMPACTION_BYTES_MAX`].
    pub fn encode(&self) -> Result<Vec<u8>> {
        FORM.encode(self.session, self.number, FACTS_LEN + self.volumes.len() * VOLUME_LEN, |out| {
            out.extend_from_slice(&self.said_at.to_le_bytes());
            out.extend_from_slice(&self.known);
            out.extend_from_slice(&(self.volumes.len() as u32).to_le_bytes());
            for CompactedVolume { extent, len, hash } in &self.volumes {
                out.extend_from_slice(&extent.first.to_le_bytes());
                out.extend_from_slice(&(extent.count as u32).to_le_bytes());
                out.extend_from_slice(&len.to_le_bytes());
                out.extend_from_slice(hash);
            }
        })
    }

    /// Decodes and verifies the compaction with this number of a session.
    ///
    /// # Errors
    ///
    /// [`Error::Compaction`] if the bytes do not have the hash at their end, are no compaction, or
    /// are a different one.
    pub fn decode(bytes: &[u8], session: Uuid, number: u64) -> Result<Compaction> {
        let said = FORM.decode(bytes, session, number, |fields| {
            Some((fields.u64()?, fields.take()?, fields.volumes()?))
        });
        let (said_at, known, volumes) = said.map_err(|reason| Error::Compaction { number, reason })?;
        Ok(Compaction { session, number, said_at, known, volumes })
    }
}

impl FieldReader<'_> {
    /// Takes the compacted volumes, which must be all remaining bytes.
    fn volumes(&mut self) -> Option<Vec<CompactedVolume>> {
        let count = self.u32()? as usize;
        if count.checked_mul(VOLUME_LEN)? != self.bytes.len() {
            return None;
        }
        let mut volumes = Vec::with_capacity(count);
        let mut next = 0;
        for _ in 0..count {
            let extent = Extent { first: self.u64()?, count: u64::from(self.u32()?) };
            let (len, hash) = (self.u64()?, self.take()?);
            let end = extent.first.checked_add(extent.count)?;
            let fits = extent.count > 0 && extent.first >= next && len <= VOLUME_BYTES_MAX as u64;
            fits.then_some(())?;
            volumes.push(CompactedVolume { extent, len, hash });
            next = end;
        }
        Some(volumes)
    }
}

//! Digests over content.
//!
//! A digest covers (sequence number, kind, time, hash of the body) of each record in order, and nothing of
//! its frame: salts, watermarks, checksums and envelope frames are not content, so a recovery that rewrites
//! frames leaves every digest as it was. BLAKE3.

use crate::Kind;

/// A running digest over records.
#[derive(Clone, Debug, Default)]
pub struct SegmentDigest {
    hasher: blake3::Hasher,
    records: u64,
}

impl SegmentDigest {
    /// The digest of no records.
    pub fn new() -> SegmentDigest {
        SegmentDigest::default()
    }

    /// Takes one record in.
    pub fn update(&mut self, sequence: u64, kind: Kind, time_us: i64, body: &[u8]) {
        self.records += 1;
        self.hasher.update(&sequence.to_le_bytes());
        self.hasher.update(&[kind.byte()]);
        self.hasher.update(&time_us.to_le_bytes());
        self.hasher.update(blake3::hash(body).as_bytes());
    }

    /// How many records were taken in.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// The digest so far.
    pub fn finish(&self) -> [u8; 32] {
        *self.hasher.finalize().as_bytes()
    }
}

//! Digests over content.
//!
//! A digest covers (sequence number, kind, time, hash of the body) of each record in order, and nothing of
//! its frame: salts, watermarks, checksums and envelope frames are not content, so a recovery that rewrites
//! frames leaves every digest as it was. BLAKE3.

use crate::{Kind, SequenceNumber};

/// A hasher takes many bytes at once several times as fast as it takes few: so much is gathered first.
const GATHERED_BYTES: usize = 16 << 10;

/// A running digest over records.
#[derive(Clone, Debug, Default)]
pub struct SegmentDigest {
    hasher: blake3::Hasher,
    /// What the hasher is still to be given.
    gathered: Vec<u8>,
    records: u64,
}

impl SegmentDigest {
    /// The digest of no records.
    pub fn new() -> SegmentDigest {
        SegmentDigest::default()
    }

    /// Takes one record in.
    pub fn update(&mut self, sequence: SequenceNumber, kind: Kind, time_us: i64, body: &[u8]) {
        self.records += 1;
        self.gathered.extend_from_slice(&sequence.to_le_bytes());
        self.gathered.push(kind.byte());
        self.gathered.extend_from_slice(&time_us.to_le_bytes());
        self.gathered.extend_from_slice(blake3::hash(body).as_bytes());
        if self.gathered.len() >= GATHERED_BYTES {
            self.hasher.update(&self.gathered);
            self.gathered.clear();
        }
    }

    /// How many records were taken in.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// The digest so far.
    pub fn finish(&self) -> [u8; 32] {
        *self.hasher.clone().update(&self.gathered).finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gathering is nobody's matter: the digest is that of all the bytes in one piece, at any number of records.
    #[test]
    fn a_digest_is_that_of_its_records_in_one_piece() {
        let mut digest = SegmentDigest::new();
        let mut bytes = Vec::new();
        for sequence in 0..1_500_u64 {
            let (time_us, body) = (-5 - sequence as i64, sequence.to_string().repeat(9));
            digest.update(sequence.into(), Kind::DISPATCH, time_us, body.as_bytes());
            bytes.extend_from_slice(&sequence.to_le_bytes());
            bytes.push(Kind::DISPATCH.byte());
            bytes.extend_from_slice(&time_us.to_le_bytes());
            bytes.extend_from_slice(blake3::hash(body.as_bytes()).as_bytes());
            assert_eq!(digest.finish(), *blake3::hash(&bytes).as_bytes(), "{sequence}");
        }
        assert!(bytes.len() > 4 * GATHERED_BYTES);
        assert_eq!(digest.records(), 1_500);
    }
}

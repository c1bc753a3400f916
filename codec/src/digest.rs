//! Computes BLAKE3 digests over the content of records, not over their frames.
//!
//! A digest covers the sequence number, kind, time and body hash of each record, in order. Salts,
//! watermarks, checksums and envelope frames are not content, so a recovery that rewrites frames
//! changes no digest.
//!
//! For each record, the input of the hasher is the sequence number (`u64`), the kind byte, the time
//! in microseconds (`i64`) and the BLAKE3 of the body (32 bytes), all little-endian. If a
//! compaction has dropped a record's body, the input is the original kind and BLAKE3, which the
//! compaction preserves, so it changes no digest.

use crate::body::Dropped;
use crate::{Record, RecordKind};

/// Number of bytes to collect before they are hashed. Hashing one large piece is several times as
/// fast as hashing many small ones.
const GATHERED_BYTES: usize = 16 << 10;

/// Accumulates the digest over a segment's records, one after the other.
#[derive(Clone, Debug, Default)]
pub struct SegmentDigest {
    hasher: blake3::Hasher,
    /// Bytes that are not hashed yet.
    gathered: Vec<u8>,
    records: u64,
}

impl SegmentDigest {
    /// Creates the digest of no records.
    pub fn new() -> SegmentDigest {
        SegmentDigest::default()
    }

    /// Adds the next record. Does nothing for an envelope frame, which is not content.
    pub fn update(&mut self, record: &Record<'_>) {
        let Record { sequence, kind, time_us, body } = *record;
        if kind.is_envelope() {
            return;
        }
        self.records += 1;
        let dropped = (kind == RecordKind::Dropped).then(|| Dropped::decode(body).ok()).flatten();
        let (kind, hash) = match dropped {
            Some(dropped) => (dropped.kind, dropped.hash),
            None => (kind, *blake3::hash(body).as_bytes()),
        };
        self.gathered.extend_from_slice(&sequence.to_le_bytes());
        self.gathered.push(kind.byte());
        self.gathered.extend_from_slice(&time_us.to_le_bytes());
        self.gathered.extend_from_slice(&hash);
        if self.gathered.len() >= GATHERED_BYTES {
            self.hasher.update(&self.gathered);
            self.gathered.clear();
        }
    }

    /// Returns the number of records added.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Returns the digest of the records added so far. More records may be added afterwards.
    pub fn finish(&self) -> [u8; 32] {
        *self.hasher.clone().update(&self.gathered).finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Buffering has no effect on the digest: it equals that of all bytes in one piece, for any
    /// number of records.
    #[test]
    fn a_digest_is_that_of_its_records_in_one_piece() {
        let mut digest = SegmentDigest::new();
        let mut bytes = Vec::new();
        for sequence in 0..1_500_u64 {
            let (time_us, body) = (-5 - sequence as i64, sequence.to_string().repeat(9));
            let (sequence_number, kind) = (sequence.into(), RecordKind::Dispatch);
            digest.update(&Record { sequence: sequence_number, kind, time_us, body: body.as_bytes() });
            bytes.extend_from_slice(&sequence.to_le_bytes());
            bytes.push(RecordKind::Dispatch.byte());
            bytes.extend_from_slice(&time_us.to_le_bytes());
            bytes.extend_from_slice(blake3::hash(body.as_bytes()).as_bytes());
            assert_eq!(digest.finish(), *blake3::hash(&bytes).as_bytes(), "{sequence}");
        }
        assert!(bytes.len() > 4 * GATHERED_BYTES);
        assert_eq!(digest.records(), 1_500);
    }
}

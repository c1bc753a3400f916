//! Encodes and decodes the envelope frame that ends a segment.

use super::Body;
use super::fields::{encode_fields, walk};
use super::json::{NameBudget, Object, hex};
use crate::Error;

/// Envelope: ends a segment. The writer appends it after the next segment exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seal {
    /// Ordinal of the next segment.
    pub next: u32,
    /// Number of records in the segment, without envelope frames.
    pub records: u64,
    /// Digest of the segment's records: see [`SegmentDigest`](crate::digest::SegmentDigest).
    pub hash: [u8; 32],
}

impl Seal {
    /// Encodes the body of a seal as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        encode_fields(0, |fields| {
            fields.set("next", self.next);
            fields.set("records", self.records);
            fields.set("hash", self.hash);
        })
    }

    /// Decodes the body of a seal.
    pub fn decode(bytes: &[u8]) -> Result<Seal, Error> {
        let mut seal = Seal::default();
        walk("seal", &["next", "records", "hash"], bytes, |name, value| match name {
            "next" => value.read_into(&mut seal.next),
            "records" => value.read_into(&mut seal.records),
            "hash" => value.read_into(&mut seal.hash),
            _ => Ok(()),
        })?;
        Ok(seal)
    }
}

impl<'a> Body<'a> for Seal {
    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("next", self.next);
        object.set("records", self.records);
        object.set("hash", hex(self.hash));
        Ok(())
    }
}

//! Encodes and decodes the envelope frame that ends a segment.

use super::Body;
use super::fields::{decode, encode, map_fields};
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

map_fields! { impl<'a> Seal {
    "next" => next [required],
    "records" => records [required],
    "hash" => hash [required],
}}

impl Seal {
    /// Encodes the body of a seal as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        encode(0, self)
    }

    /// Decodes the body of a seal.
    pub fn decode(bytes: &[u8]) -> Result<Seal, Error> {
        decode("seal", bytes)
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

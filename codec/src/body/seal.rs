//! Encodes and decodes the envelope frame that ends a segment.

use std::iter;

use super::fields::{fixed, require_field, walk};
use super::json::{NameBudget, Object, hex};
use super::{Body, Payload};
use crate::Error;
use crate::msgpack::{MsgpackWriter, Value};

/// Envelope: ends a segment. The writer appends it after the next segment exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        let mut writer = MsgpackWriter::new();
        writer.map(3).str("next").unsigned(u64::from(self.next));
        writer.str("records").unsigned(self.records).str("hash").bin(&self.hash);
        writer.finish()
    }

    /// Decodes the body of a seal.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, or if a field is missing or malformed.
    pub fn decode(bytes: &[u8]) -> Result<Seal, Error> {
        let (mut next, mut records, mut hash) = (None, None, None);
        walk("seal", bytes, |name, value| {
            match name {
                "next" => next = Some(value.unsigned32()?),
                "records" => records = Some(value.unsigned()?),
                "hash" => hash = Some(fixed(value)?),
                _ => {}
            }
            Ok(())
        })?;
        Ok(Seal {
            next: require_field("seal", "next", next)?,
            records: require_field("seal", "records", records)?,
            hash: require_field("seal", "hash", hash)?,
        })
    }
}

impl<'a> Body<'a> for Seal {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        iter::empty()
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("next", Value::from(u64::from(self.next)));
        object.set("records", Value::from(self.records));
        object.set("hash", Value::from(hex(&self.hash)));
        Ok(())
    }
}

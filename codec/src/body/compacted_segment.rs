//! Encodes and decodes the head of a compacted segment.

use std::iter;

use super::fields::{require_field, walk};
use super::json::{NameBudget, Object};
use super::{Body, Payload};
use crate::msgpack::Value;
use crate::{Error, SequenceNumber};

/// Envelope: starts a compacted segment, which replaces another one with the same ordinal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// Position through which bodies of STATE may be missing. A base lists the items of the slices
    /// there.
    pub through: SequenceNumber,
    /// Offset, in bytes, after the last frame of this segment.
    pub end: u64,
    /// Offset, in bytes, after the last frame of the replaced segment, which the next segment's
    /// header names.
    pub replaced_end: u64,
    /// Checksum of the last frame of the replaced segment, which the next segment's header names.
    pub replaced_crc: u32,
}

impl Compacted {
    /// Length in bytes of every encoded body. It is constant because the offset after the last
    /// frame has to be known before the first is written.
    pub const LEN: usize = 1 + (5 + 9) + (4 + 9) + (4 + 9) + (4 + 9);

    /// Encodes the body of a `compacted` frame as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        let packed = |value: u64| value.to_be_bytes();
        let mut out = Vec::with_capacity(Compacted::LEN);
        out.push(0x84);
        let fields = [
            ("upto", self.through.get()),
            ("end", self.end),
            ("was", self.replaced_end),
            ("crc", u64::from(self.replaced_crc)),
        ];
        for (name, value) in fields {
            out.push(0xa0 | name.len() as u8);
            out.extend_from_slice(name.as_bytes());
            // Always nine bytes.
            out.push(0xcf);
            out.extend_from_slice(&packed(value));
        }
        out
    }

    /// Decodes the body of a `compacted` frame.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, or if a field is missing or malformed.
    pub fn decode(bytes: &[u8]) -> Result<Compacted, Error> {
        const KIND: &str = "compacted";
        let (mut through, mut end, mut was, mut crc) = (None, None, None, None);
        walk(KIND, bytes, |name, value| {
            match name {
                "upto" => through = Some(value.unsigned()?.into()),
                "end" => end = Some(value.unsigned()?),
                "was" => was = Some(value.unsigned()?),
                "crc" => crc = Some(value.unsigned32()?),
                _ => {}
            }
            Ok(())
        })?;
        Ok(Compacted {
            through: require_field(KIND, "upto", through)?,
            end: require_field(KIND, "end", end)?,
            replaced_end: require_field(KIND, "was", was)?,
            replaced_crc: require_field(KIND, "crc", crc)?,
        })
    }
}

impl<'a> Body<'a> for Compacted {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        iter::empty()
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("through", Value::from(self.through));
        object.set("end", Value::from(self.end));
        object.set("replaced_end", Value::from(self.replaced_end));
        object.set("replaced_crc", Value::from(u64::from(self.replaced_crc)));
        Ok(())
    }
}

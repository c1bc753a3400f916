//! Encodes and decodes the head of a compacted segment.

use super::Body;
use super::fields::walk;
use super::json::{NameBudget, Object};
use crate::{Error, SequenceNumber};

/// Envelope: starts a compacted segment, which replaces another one with the same ordinal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
            out.extend_from_slice(&value.to_be_bytes());
        }
        out
    }

    /// Decodes the body of a `compacted` frame.
    pub fn decode(bytes: &[u8]) -> Result<Compacted, Error> {
        let mut compacted = Compacted::default();
        walk("compacted", &["upto", "end", "was", "crc"], bytes, |place, value| match place.field {
            "upto" => value.read_into(place, &mut compacted.through),
            "end" => value.read_into(place, &mut compacted.end),
            "was" => value.read_into(place, &mut compacted.replaced_end),
            "crc" => value.read_into(place, &mut compacted.replaced_crc),
            _ => Ok(()),
        })?;
        Ok(compacted)
    }
}

impl<'a> Body<'a> for Compacted {
    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("through", self.through);
        object.set("end", self.end);
        object.set("replaced_end", self.replaced_end);
        object.set("replaced_crc", self.replaced_crc);
        Ok(())
    }
}

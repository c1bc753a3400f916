//! Encodes and decodes the placeholder of a record whose body a compaction has dropped.

use super::fields::{FieldWriter, bad, encode_fields, require_field, walk};
use super::json::{NameBudget, Object, hex};
use super::{Body, ObjectId, Payload};
use crate::{Error, RecordKind};

const KIND: &str = "dropped";

/// Replaces a record whose body a compaction has dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Kind of the record.
    pub kind: RecordKind,
    /// Length of the body in bytes.
    pub len: u64,
    /// BLAKE3 of the body, so that any remaining copy can be verified against the dropped one.
    pub hash: [u8; 32],
}

impl Dropped {
    /// Describes the body of a record that is about to be dropped.
    pub fn from_body(kind: RecordKind, body: &[u8]) -> Dropped {
        Dropped { kind, len: body.len() as u64, hash: *blake3::hash(body).as_bytes() }
    }

    /// Encodes the body of a `dropped` record as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        encode_fields(64, |fields| self.write(fields))
    }

    /// Encodes the body of the record in a replica: the body in the log, plus the id of an object
    /// with [`KnownPositions`](super::KnownPositions).
    pub fn encode_held(&self, known: ObjectId) -> Vec<u8> {
        encode_fields(128, |fields| {
            self.write(fields);
            fields.field("known").raw(&known.reference());
        })
    }

    fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.set("k", &u32::from(self.kind.byte()));
        fields.set("len", &self.len);
        fields.set("hash", &self.hash);
    }

    /// Returns the id of the object with [`KnownPositions`](super::KnownPositions) from the body of
    /// a record in a replica, or `None` if the body has none.
    pub fn decode_known(bytes: &[u8]) -> Result<Option<ObjectId>, Error> {
        let mut known = None;
        walk(KIND, &[], bytes, |place, value| {
            if place.field == "known" {
                let object = Payload::new(value.value()?).object();
                known = Some(object.ok_or_else(|| bad(KIND, "`known` is not a reference to an object"))?);
            }
            Ok(())
        })?;
        Ok(known)
    }

    /// Decodes the body of a `dropped` record.
    pub fn decode(bytes: &[u8]) -> Result<Dropped, Error> {
        let (mut kind, mut len, mut hash) = (None, None, None);
        walk(KIND, &[], bytes, |place, value| match place.field {
            "k" => {
                kind = u8::try_from(value.unsigned()?).ok().and_then(RecordKind::from_byte);
                Ok(())
            }
            "len" => value.read_into(place, &mut len),
            "hash" => value.read_into(place, &mut hash),
            _ => Ok(()),
        })?;
        let kind = require_field(KIND, "k", kind)?;
        if kind.is_envelope() || kind == RecordKind::Dropped {
            return Err(bad(KIND, format!("a body of kind {kind} is never dropped")));
        }
        Ok(Dropped { kind, len: require_field(KIND, "len", len)?, hash: require_field(KIND, "hash", hash)? })
    }
}

impl<'a> Body<'a> for Dropped {
    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("of", self.kind.to_string());
        object.set("len", self.len);
        object.set("hash", hex(self.hash));
        Ok(())
    }
}

//! Encodes and decodes the placeholder of a record whose body a compaction has dropped.

use std::iter;

use super::fields::{bad, fixed, require_field, walk};
use super::json::{NameBudget, Object, hex};
use super::{Body, ObjectId, Payload};
use crate::msgpack::{MsgpackWriter, Value};
use crate::{Error, RecordKind};

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
        let mut writer = MsgpackWriter::with_capacity(64);
        writer.map(3).str("k").unsigned(self.kind.byte().into());
        writer.str("len").unsigned(self.len).str("hash").bin(&self.hash);
        writer.finish()
    }

    /// Encodes the body of the record in a replica: the body in the log, plus the id of an object
    /// with [`KnownPositions`](super::KnownPositions).
    pub fn encode_held(&self, known: ObjectId) -> Vec<u8> {
        let mut writer = MsgpackWriter::with_capacity(128);
        writer.map(4).str("k").unsigned(self.kind.byte().into());
        writer.str("len").unsigned(self.len).str("hash").bin(&self.hash);
        writer.str("known").raw(&known.reference());
        writer.finish()
    }

    /// Returns the id of the object with [`KnownPositions`](super::KnownPositions) from the body of
    /// a record in a replica, or `None` if the body has none.
    ///
    /// # Errors
    ///
    /// The errors of [`decode`](Dropped::decode).
    pub fn decode_known(bytes: &[u8]) -> Result<Option<ObjectId>, Error> {
        const KIND: &str = "dropped";
        let mut known = None;
        walk(KIND, bytes, |name, value| {
            if name == "known" {
                let object = Payload::new(value.value()?).object();
                known = Some(object.ok_or_else(|| bad(KIND, "`known` is not a reference to an object"))?);
            }
            Ok(())
        })?;
        Ok(known)
    }

    /// Decodes the body of a `dropped` record.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, or if a field is missing or malformed.
    pub fn decode(bytes: &[u8]) -> Result<Dropped, Error> {
        const KIND: &str = "dropped";
        let (mut kind, mut len, mut hash) = (None, None, None);
        walk(KIND, bytes, |name, value| {
            match name {
                "k" => kind = u8::try_from(value.unsigned()?).ok().and_then(RecordKind::from_byte),
                "len" => len = Some(value.unsigned()?),
                "hash" => hash = Some(fixed(value)?),
                _ => {}
            }
            Ok(())
        })?;
        let kind = require_field(KIND, "k", kind)?;
        if kind.is_envelope() || kind == RecordKind::Dropped {
            return Err(bad(KIND, format!("a body of kind {kind} is never dropped")));
        }
        Ok(Dropped { kind, len: require_field(KIND, "len", len)?, hash: require_field(KIND, "hash", hash)? })
    }
}

impl<'a> Body<'a> for Dropped {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        iter::empty()
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("of", Value::from(self.kind.to_string()));
        object.set("len", Value::from(self.len));
        object.set("hash", Value::from(hex(&self.hash)));
        Ok(())
    }
}

//! Encodes and decodes the record that a session is replicated.

use std::iter;

use super::fields::{FieldWriter, require_field, walk};
use super::json::{NameBudget, Object};
use super::{Body, Payload};
use crate::Error;
use crate::msgpack::Value;

const REPLICATED: &str = "replicated";

/// Records that a replica contains the session's records from here on, so that no process may write
/// the session without it. It applies until another session's `opened` record, and no rollback
/// abandons it. It changes no slice.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Replicated {
    /// Location of the replica, in a form for people. It contains no password.
    pub at: String,
    /// Name of the writer that claimed the session there.
    pub by: String,
    /// Epoch of its claim.
    pub epoch: u64,
}

impl Replicated {
    /// Encodes the body as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        let mut fields = FieldWriter::with_capacity(24 + self.at.len() + self.by.len());
        fields.text("at", Some(&self.at));
        fields.text("by", Some(&self.by));
        fields.number("epoch", Some(self.epoch));
        fields.finish()
    }

    /// Decodes the body of a `replicated` record.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, or if a field is missing or malformed.
    pub fn decode(bytes: &[u8]) -> Result<Replicated, Error> {
        let (mut at, mut by, mut epoch) = (None, None, None);
        walk(REPLICATED, bytes, |name, value| {
            match name {
                "at" => at = Some(value.str()?.to_owned()),
                "by" => by = Some(value.str()?.to_owned()),
                "epoch" => epoch = Some(value.unsigned()?),
                _ => {}
            }
            Ok(())
        })?;
        Ok(Replicated {
            at: require_field(REPLICATED, "at", at)?,
            by: require_field(REPLICATED, "by", by)?,
            epoch: require_field(REPLICATED, "epoch", epoch)?,
        })
    }
}

impl<'a> Body<'a> for Replicated {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        iter::empty()
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("at", Value::from(self.at));
        object.set("by", Value::from(self.by));
        object.set("epoch", Value::from(self.epoch));
        Ok(())
    }
}

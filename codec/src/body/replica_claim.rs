//! Encodes and decodes the record that a session is replicated.

use super::Body;
use super::fields::{encode_fields, walk};
use super::json::{NameBudget, Object};
use crate::Error;

/// Records that a replica contains the session's records from here on, so that no process may write
/// the session without it. It applies until another session's `opened` record, and no rollback
/// abandons it. It changes no slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
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
        encode_fields(24 + self.at.len() + self.by.len(), |fields| {
            fields.set("at", &self.at);
            fields.set("by", &self.by);
            fields.set("epoch", self.epoch);
        })
    }

    /// Decodes the body of a `replicated` record.
    pub fn decode(bytes: &[u8]) -> Result<Replicated, Error> {
        let mut replicated = Replicated::default();
        walk("replicated", &["at", "by", "epoch"], bytes, |name, value| match name {
            "at" => value.read_into(&mut replicated.at),
            "by" => value.read_into(&mut replicated.by),
            "epoch" => value.read_into(&mut replicated.epoch),
            _ => Ok(()),
        })?;
        Ok(replicated)
    }
}

impl<'a> Body<'a> for Replicated {
    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("at", self.at);
        object.set("by", self.by);
        object.set("epoch", self.epoch);
        Ok(())
    }
}

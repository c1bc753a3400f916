//! Encodes and decodes the record that a session is replicated.

use super::Body;
use super::fields::{decode, encode, map_fields};
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

map_fields! { impl<'a> Replicated {
    "at" => at [required],
    "by" => by [required],
    "epoch" => epoch [required],
}}

impl Replicated {
    /// Encodes the body as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        encode(24 + self.at.len() + self.by.len(), self)
    }

    /// Decodes the body of a `replicated` record.
    pub fn decode(bytes: &[u8]) -> Result<Replicated, Error> {
        decode("replicated", bytes)
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

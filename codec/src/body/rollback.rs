//! Encodes and decodes a rollback.

use super::fields::{encode_fields, walk};
use super::json::{NameBudget, Object};
use super::{Body, Lane};
use crate::{Error, SequenceNumber};

/// Rolls STATE back to an earlier position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollback {
    /// Target: the sequence number of the last record whose changes are preserved.
    pub to: SequenceNumber,
    /// Whether LOG is unchanged. Only tests also roll LOG back.
    pub preserve_logs: bool,
}

impl Rollback {
    /// Encodes the body of a rollback as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        encode_fields(0, |fields| {
            fields.set("to", &self.to);
            fields.unless("logs", &self.preserve_logs, &true);
        })
    }

    /// Decodes the body of a rollback.
    pub fn decode(bytes: &[u8]) -> Result<Rollback, Error> {
        let mut rollback = Rollback { to: SequenceNumber::MIN, preserve_logs: true };
        walk("rollback", &["to"], bytes, |place, value| match place.field {
            "to" => value.read_into(place, &mut rollback.to),
            "logs" => value.read_into(place, &mut rollback.preserve_logs),
            _ => Lane::check(place, value),
        })?;
        Ok(rollback)
    }
}

impl<'a> Body<'a> for Rollback {
    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("to", self.to);
        object.set("preserve_logs", self.preserve_logs);
        Ok(())
    }
}

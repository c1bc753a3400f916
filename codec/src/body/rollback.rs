//! Encodes and decodes a rollback.

use std::iter;

use super::fields::{require_field, walk};
use super::json::{NameBudget, Object};
use super::{Body, Lane, Payload};
use crate::msgpack::{MsgpackWriter, Value};
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
        let mut writer = MsgpackWriter::new();
        writer.map(1 + usize::from(!self.preserve_logs)).str("to").unsigned(self.to.get());
        if !self.preserve_logs {
            writer.str("logs").bool(false);
        }
        writer.finish()
    }

    /// Decodes the body of a rollback.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, or if a field is missing or malformed.
    pub fn decode(bytes: &[u8]) -> Result<Rollback, Error> {
        let (mut to, mut preserve_logs) = (None, true);
        walk("rollback", bytes, |name, value| {
            match name {
                "to" => to = Some(value.unsigned()?.into()),
                "logs" => preserve_logs = value.bool()?,
                _ => Lane::check(name, value)?,
            }
            Ok(())
        })?;
        Ok(Rollback { to: require_field("rollback", "to", to)?, preserve_logs })
    }
}

impl<'a> Body<'a> for Rollback {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        iter::empty()
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("to", Value::from(self.to));
        object.set("preserve_logs", Value::from(self.preserve_logs));
        Ok(())
    }
}

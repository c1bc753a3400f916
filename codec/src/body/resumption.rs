//! Encodes and decodes the envelope frame of an opening for writing.

use std::iter;

use uuid::Uuid;

use super::fields::{fixed, list, require_field, walk};
use super::json::{NameBudget, Object};
use super::{Body, Payload};
use crate::msgpack::{MsgpackWriter, Value};
use crate::record::time_text;
use crate::{Error, SequenceNumber};

/// Envelope: states that the session was opened for writing. The writer appends it before its first
/// record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// Number of earlier times that the session was opened for writing.
    pub epoch: u64,
    /// Boot id of the machine, or `None` if it is unknown. Until the machine restarts, no write is
    /// lost or reordered, so a wrong byte is corruption and not a torn tail.
    pub boot_id: Option<Uuid>,
    /// The session's clock at the first append, in microseconds since 1970-01-01 UTC.
    pub clock_us: i64,
    /// Sequence number after the last record that a recovery rewrote into the segment; `None` if
    /// the segment was not started by a recovery. The recovery's `SYNCED` frame at that number
    /// became durable with the segment, before the segment's name did.
    pub recovered: Option<SequenceNumber>,
    /// Sequence numbers at which earlier openings for writing started to write, in order. They
    /// belong to records that the recovery rewrote without their own `resumed` frames. Empty except
    /// after a recovery.
    pub began: Vec<SequenceNumber>,
}

impl Resumed {
    /// Encodes the body of a `resumed` frame as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = MsgpackWriter::new();
        let optional = usize::from(self.boot_id.is_some())
            + usize::from(self.recovered.is_some())
            + usize::from(!self.began.is_empty());
        writer.map(2 + optional).str("epoch").unsigned(self.epoch);
        if let Some(boot_id) = self.boot_id {
            writer.str("boot").bin(boot_id.as_bytes());
        }
        writer.str("clock").signed(self.clock_us);
        if let Some(recovered) = self.recovered {
            writer.str("recovered").unsigned(recovered.get());
        }
        if !self.began.is_empty() {
            writer.str("began").array(self.began.len());
            for began in &self.began {
                writer.unsigned(began.get());
            }
        }
        writer.finish()
    }

    /// Decodes the body of a `resumed` frame.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, or if a field is missing or malformed.
    pub fn decode(bytes: &[u8]) -> Result<Resumed, Error> {
        let (mut epoch, mut boot_id, mut clock_us, mut recovered) = (None, None, 0, None);
        let mut began = Vec::new();
        walk("resumed", bytes, |name, value| {
            match name {
                "epoch" => epoch = Some(value.unsigned()?),
                "boot" => boot_id = Some(Uuid::from_bytes(fixed(value)?)),
                "clock" => clock_us = value.signed()?,
                "recovered" => recovered = Some(value.unsigned()?.into()),
                "began" => began = list(value, |began| Ok(began.unsigned()?.into()))?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(Resumed { epoch: require_field("resumed", "epoch", epoch)?, boot_id, clock_us, recovered, began })
    }
}

impl<'a> Body<'a> for Resumed {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        iter::empty()
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("epoch", Value::from(self.epoch));
        object.set("boot_id", self.boot_id.map_or(Value::Nil, |id| Value::from(id.to_string())));
        object.set("clock", Value::from(time_text(self.clock_us)));
        if let Some(recovered) = self.recovered {
            object.set("recovered", Value::from(recovered));
        }
        if !self.began.is_empty() {
            object.set("began", Value::Array(self.began.into_iter().map(Value::from).collect()));
        }
        Ok(())
    }
}

//! Encodes and decodes the envelope frame of an opening for writing.

use uuid::Uuid;

use super::Body;
use super::fields::{decode, encode, map_fields};
use super::json::{NameBudget, Object};
use crate::record::time_text;
use crate::{Error, SequenceNumber};

/// Envelope: states that the session was opened for writing. The writer appends it before its first
/// record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

map_fields! { impl<'a> Resumed {
    "epoch" => epoch [required],
    "boot" => boot_id,
    "clock" => clock_us [always],
    "recovered" => recovered,
    "began" => began,
}}

impl Resumed {
    /// Encodes the body of a `resumed` frame as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        encode(0, self)
    }

    /// Decodes the body of a `resumed` frame.
    pub fn decode(bytes: &[u8]) -> Result<Resumed, Error> {
        decode("resumed", bytes)
    }
}

impl<'a> Body<'a> for Resumed {
    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("epoch", self.epoch);
        object.set("boot_id", self.boot_id.map(|id| id.to_string()));
        object.set("clock", time_text(self.clock_us));
        object.some("recovered", self.recovered);
        object.some("began", (!self.began.is_empty()).then_some(self.began));
        Ok(())
    }
}

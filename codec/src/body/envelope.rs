use uuid::Uuid;

use super::fields::{fixed, required, walk};
use crate::msgpack::Writer;
use crate::{Error, SequenceNumber};

/// Envelope: the session was opened for writing, and the first append followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// How often the session was opened for writing before.
    pub epoch: u64,
    /// The machine's boot: while it lasts, nothing written can be torn out of order.
    pub boot_id: Option<Uuid>,
    /// The session's clock at that append, in microseconds since 1970-01-01 UTC.
    pub clock_us: i64,
    /// Where a recovery began the segment: the sequence number behind the last record that it wrote into it. Its
    /// `Synced` frame at that number became durable with the segment, and before the segment's name did.
    pub recovered: Option<SequenceNumber>,
}

impl Resumed {
    /// The body's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        let optional = usize::from(self.boot_id.is_some()) + usize::from(self.recovered.is_some());
        writer.map(2 + optional).str("epoch").unsigned(self.epoch);
        if let Some(boot_id) = self.boot_id {
            writer.str("boot").bin(boot_id.as_bytes());
        }
        writer.str("clock").signed(self.clock_us);
        if let Some(recovered) = self.recovered {
            writer.str("recovered").unsigned(recovered.get());
        }
        writer.finish()
    }

    /// Reads a body.
    ///
    /// # Errors
    ///
    /// [`Error::Body`], or what the pre-scan says.
    pub fn decode(bytes: &[u8]) -> Result<Resumed, Error> {
        let (mut epoch, mut boot_id, mut clock_us, mut recovered) = (None, None, 0, None);
        walk("resumed", bytes, |name, value| {
            match name {
                "epoch" => epoch = Some(value.unsigned()?),
                "boot" => boot_id = Some(Uuid::from_bytes(fixed(value)?)),
                "clock" => clock_us = value.signed()?,
                "recovered" => recovered = Some(value.unsigned()?.into()),
                _ => {}
            }
            Ok(())
        })?;
        Ok(Resumed { epoch: required("resumed", "epoch", epoch)?, boot_id, clock_us, recovered })
    }
}

/// Envelope: a segment is finished. Its successor existed before this was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The successor's ordinal.
    pub next: u32,
    /// How many records the segment holds, envelope frames left out.
    pub records: u64,
    /// The digest of those records: [`SegmentDigest`](crate::digest::SegmentDigest).
    pub hash: [u8; 32],
}

impl Seal {
    /// The body's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.map(3).str("next").unsigned(u64::from(self.next));
        writer.str("records").unsigned(self.records).str("hash").bin(&self.hash);
        writer.finish()
    }

    /// Reads a body.
    ///
    /// # Errors
    ///
    /// [`Error::Body`], or what the pre-scan says.
    pub fn decode(bytes: &[u8]) -> Result<Seal, Error> {
        let (mut next, mut records, mut hash) = (None, None, None);
        walk("seal", bytes, |name, value| {
            match name {
                "next" => next = Some(value.unsigned32()?),
                "records" => records = Some(value.unsigned()?),
                "hash" => hash = Some(fixed(value)?),
                _ => {}
            }
            Ok(())
        })?;
        Ok(Seal {
            next: required("seal", "next", next)?,
            records: required("seal", "records", records)?,
            hash: required("seal", "hash", hash)?,
        })
    }
}

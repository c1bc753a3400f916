//! Encodes and decodes a decision about an interrupted operation.

use super::fields::{required, walk};
use super::operation::{Decision, read_named};
use super::{Lane, Payload};
use crate::msgpack::Writer;
use crate::{Error, OperationId};

const SETTLE: &str = "settle";

/// Records what somebody decided about an interrupted operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Settle<'a> {
    /// Id of the interrupted operation.
    pub operation: OperationId,
    /// What was decided.
    pub decision: Decision,
    /// Result of the operation; set for [`Decision::Committed`].
    pub result: Option<Payload<'a>>,
    /// Name of whoever decided.
    pub by: String,
    /// Reason of the decision.
    pub reason: String,
}

impl<'a> Settle<'a> {
    /// Encodes the body of a decision as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.map(4 + usize::from(self.result.is_some()));
        writer.str("op").unsigned(self.operation.get()).str("is").str(self.decision.name());
        writer.str("by").str(&self.by).str("why").str(&self.reason);
        if let Some(result) = &self.result {
            writer.str("result");
            result.write(&mut writer);
        }
        writer.finish()
    }

    /// Decodes the body of a decision.
    ///
    /// # Errors
    ///
    /// [`Error::Body`] if the bytes are not one MessagePack map within the default limits, if its version is newer than
    /// this crate reads, or if a field is missing or malformed.
    pub fn decode(bytes: &'a [u8]) -> Result<Settle<'a>, Error> {
        let (mut operation, mut decision, mut result) = (None, None, None);
        let (mut by, mut reason) = (String::new(), String::new());
        walk(SETTLE, bytes, |name, value| {
            match name {
                "op" => operation = Some(value.unsigned()?.into()),
                "is" => decision = Some(read_named(SETTLE, name, value, Decision::from_name)?),
                "by" => by = value.str()?.to_owned(),
                "why" => reason = value.str()?.to_owned(),
                "result" => result = Some(Payload::new(value.rest())),
                _ => Lane::check(name, value)?,
            }
            Ok(())
        })?;
        let operation = required(SETTLE, "op", operation)?;
        Ok(Settle { operation, decision: required(SETTLE, "is", decision)?, result, by, reason })
    }
}

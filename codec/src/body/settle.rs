//! Encodes and decodes a decision about an interrupted or suspended operation.

use super::fields::{FieldWriter, fixed, require_field, walk};
use super::json::{NameBudget, Object, hex, optional};
use super::operation::{Decision, read_named};
use super::{Body, Lane, Payload};
use crate::msgpack::Value;
use crate::{Error, OperationId};

const SETTLE: &str = "settle";

/// Records a decision about an interrupted or suspended operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Settle<'a> {
    /// Id of the operation.
    pub operation: OperationId,
    /// The decision.
    pub decision: Decision,
    /// Result of the operation; set for [`Decision::Committed`].
    pub result: Option<Payload<'a>>,
    /// Text that the model reads, as one MessagePack string. If it is `None`, the model reads a
    /// text derived from the result.
    pub shown: Option<Payload<'a>>,
    /// BLAKE3 of the arguments that an approval names; set if the decision approves a suspended
    /// operation.
    pub arguments: Option<[u8; 32]>,
    /// Time, in microseconds since 1970-01-01 UTC, from which on an approval is no longer valid.
    pub until_us: Option<i64>,
    /// Name of the person or program that decided.
    pub by: String,
    /// Reason of the decision.
    pub reason: String,
}

impl<'a> Settle<'a> {
    /// Creates a decision without a result, a text or a limit.
    pub fn new(operation: OperationId, decision: Decision, by: &str, reason: &str) -> Settle<'a> {
        let (result, shown, arguments, until_us) = (None, None, None, None);
        let (by, reason) = (by.to_owned(), reason.to_owned());
        Settle { operation, decision, result, shown, arguments, until_us, by, reason }
    }

    /// Returns the [name](Decision::shown_name) of the decision for people and JSON.
    pub fn decision_name(&self) -> &'static str {
        self.decision.shown_name(self.arguments.is_some())
    }

    /// Returns all payloads of the record for modification, so that a writer can replace large ones
    /// by references.
    pub fn payloads_mut(&mut self) -> impl Iterator<Item = &mut Payload<'a>> {
        self.result.iter_mut().chain(&mut self.shown)
    }

    /// Encodes the body of a decision as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        let payloads = [self.result, self.shown];
        let payloads: usize = payloads.iter().flatten().map(|payload| payload.bytes().len()).sum();
        let mut fields = FieldWriter::with_capacity(96 + payloads);
        fields.number("op", Some(self.operation.get()));
        fields.text("is", Some(self.decision.name()));
        fields.text("by", Some(&self.by));
        fields.text("why", Some(&self.reason));
        fields.payload("result", self.result);
        fields.payload("shown", self.shown);
        fields.bytes("args", self.arguments.as_ref().map(<[u8; 32]>::as_slice));
        if let Some(until_us) = self.until_us {
            fields.field("until").signed(until_us);
        }
        fields.finish()
    }

    /// Decodes the body of a decision.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, or if a field is missing or malformed.
    pub fn decode(bytes: &'a [u8]) -> Result<Settle<'a>, Error> {
        let (mut operation, mut decision) = (None, None);
        // Optional fields are decoded in place. Required ones are checked after all fields are
        // read.
        let mut settle = Settle::new(OperationId::default(), Decision::Failed, "", "");
        walk(SETTLE, bytes, |name, value| {
            match name {
                "op" => operation = Some(value.unsigned()?.into()),
                "is" => decision = Some(read_named(SETTLE, name, value, Decision::from_name)?),
                "by" => settle.by = value.str()?.to_owned(),
                "why" => settle.reason = value.str()?.to_owned(),
                "result" => settle.result = Some(Payload::new(value.rest())),
                "shown" => settle.shown = Some(Payload::new(value.rest())),
                "args" => settle.arguments = Some(fixed(value)?),
                "until" => settle.until_us = Some(value.signed()?),
                _ => Lane::check(name, value)?,
            }
            Ok(())
        })?;
        let operation = require_field(SETTLE, "op", operation)?;
        Ok(Settle { operation, decision: require_field(SETTLE, "is", decision)?, ..settle })
    }
}

impl<'a> Body<'a> for Settle<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        self.payloads_mut().map(|payload| *payload)
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("operation", Value::from(self.operation));
        object.set("decision", Value::from(self.decision_name()));
        object.set("by", Value::from(self.by));
        object.set("reason", Value::from(self.reason));
        object.set("result", optional(self.result)?);
        if let Some(shown) = self.shown {
            object.set("shown", optional(Some(shown))?);
        }
        if let Some(arguments) = self.arguments {
            object.set("arguments", Value::from(hex(&arguments)));
        }
        if let Some(until_us) = self.until_us {
            object.set("until_us", Value::from(until_us));
        }
        Ok(())
    }
}

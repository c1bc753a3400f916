//! Encodes and decodes a decision about an interrupted or suspended operation.

use super::fields::{decode, encode, map_fields};
use super::json::{NameBudget, Object, hex, optional};
use super::operation::{Decision, payload_len};
use super::{Body, Lane, Payload};
use crate::{Error, OperationId};

/// Records a decision about an interrupted or suspended operation.
#[derive(Clone, Debug, Default, PartialEq)]
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

map_fields! { impl<'a> Settle<'a> {
    "op" => operation [required],
    "is" => decision [required],
    "by" => by [always],
    "why" => reason [always],
    "result" => result,
    "shown" => shown,
    "args" => arguments,
    "until" => until_us,
    _ => Lane::check,
}}

impl<'a> Settle<'a> {
    /// Creates a decision without a result, a text or a limit.
    pub fn new(operation: OperationId, decision: Decision, by: &str, reason: &str) -> Settle<'a> {
        Settle { operation, decision, by: by.to_owned(), reason: reason.to_owned(), ..Settle::default() }
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
        encode(96 + payload_len(self.result) + payload_len(self.shown), self)
    }

    /// Decodes the body of a decision.
    pub fn decode(bytes: &'a [u8]) -> Result<Settle<'a>, Error> {
        decode("settle", bytes)
    }
}

impl<'a> Body<'a> for Settle<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        self.payloads_mut().map(|payload| *payload)
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("operation", self.operation);
        object.set("decision", self.decision_name());
        object.set("by", self.by);
        object.set("reason", self.reason);
        object.set("result", optional(self.result)?);
        if let Some(shown) = self.shown {
            object.set("shown", optional(Some(shown))?);
        }
        object.some("arguments", self.arguments.map(hex));
        object.some("until_us", self.until_us);
        Ok(())
    }
}

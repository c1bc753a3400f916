//! Encodes and decodes the end of a turn.

use super::{ConversationScope, conversation_fields};
use crate::body::Body;
use crate::body::fields::{decode, encode};
use crate::body::json::{NameBudget, Object};
use crate::{Error, SequenceNumber};

/// Records that an answer and all its tool calls are finished, and lists the records of the turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn<'a> {
    /// Evaluation, lane and imported original of the record.
    pub scope: ConversationScope<'a>,
    /// Number of the turn within its evaluation, counted from 1.
    pub number: u64,
    /// Inputs that were sent since the previous turn, in their order.
    pub inputs: Vec<SequenceNumber>,
    /// Sequence number of the answer.
    pub answer: SequenceNumber,
    /// Records that closed the answer's calls, by ordinal.
    pub ends: Vec<SequenceNumber>,
    /// Whether this turn completes the evaluation.
    pub complete: bool,
}

conversation_fields! { impl<'a> Turn<'a> {
    "n" => number [required],
    "a" => answer [required],
    "i" => inputs,
    "e" => ends,
    "done" => complete,
}}

impl<'a> Turn<'a> {
    /// Encodes the body of a `turn` record as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        encode(self.scope.room() + 9 * (self.inputs.len() + self.ends.len()), self)
    }

    /// Decodes the body of a `turn` record.
    pub fn decode(bytes: &'a [u8]) -> Result<Turn<'a>, Error> {
        decode("turn", bytes)
    }
}

impl<'a> Body<'a> for Turn<'a> {
    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        self.scope.set_json(object);
        object.set("number", self.number);
        object.set("inputs", self.inputs);
        object.set("answer", self.answer);
        object.set("ends", self.ends);
        object.set("complete", self.complete);
        Ok(())
    }
}

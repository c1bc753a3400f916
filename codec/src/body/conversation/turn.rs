//! Encodes and decodes the end of a turn.

use super::ConversationScope;
use crate::body::Body;
use crate::body::fields::{ReadField, list, store, walk};
use crate::body::json::{NameBudget, Object};
use crate::{Error, SequenceNumber};

const TURN: &str = "turn";

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

impl<'a> Turn<'a> {
    /// Encodes the body of a `turn` record as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        self.scope.encode(9 * (self.inputs.len() + self.ends.len()), |fields| {
            fields.set("n", self.number);
            fields.set("a", self.answer);
            fields.list("i", &self.inputs);
            fields.list("e", &self.ends);
            fields.flag("done", self.complete);
        })
    }

    /// Decodes the body of a `turn` record.
    pub fn decode(bytes: &'a [u8]) -> Result<Turn<'a>, Error> {
        let mut turn = Turn::default();
        walk(TURN, &["n", "a", "ev"], bytes, |name, value| match name {
            "n" => value.read_into(&mut turn.number),
            "a" => value.read_into(&mut turn.answer),
            "i" => store(&mut turn.inputs, list(value, SequenceNumber::read)),
            "e" => store(&mut turn.ends, list(value, SequenceNumber::read)),
            "done" => value.read_into(&mut turn.complete),
            _ => turn.scope.take(name, value),
        })?;
        Ok(turn)
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

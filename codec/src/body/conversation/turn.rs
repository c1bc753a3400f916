//! Encodes and decodes the end of a turn.

use std::iter;

use super::{ConversationScope, ScopeFields, sequences};
use crate::body::fields::{require_field, walk};
use crate::body::json::{NameBudget, Object};
use crate::body::{Body, Payload};
use crate::msgpack::Value;
use crate::{Error, SequenceNumber};

const TURN: &str = "turn";

/// Records that an answer and all its tool calls are finished, and lists the records of the turn.
#[derive(Clone, Debug, PartialEq, Eq)]
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
        let mut fields = self.scope.begin(9 * (self.inputs.len() + self.ends.len()));
        fields.number("n", Some(self.number));
        fields.sequence("a", Some(self.answer));
        for (name, list) in [("i", &self.inputs), ("e", &self.ends)] {
            if !list.is_empty() {
                let writer = fields.field(name).array(list.len());
                list.iter().for_each(|sequence| {
                    writer.unsigned(sequence.get());
                });
            }
        }
        fields.flag("done", self.complete);
        fields.finish()
    }

    /// Decodes the body of a `turn` record.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, or if a field is missing or malformed.
    pub fn decode(bytes: &'a [u8]) -> Result<Turn<'a>, Error> {
        let mut scope = ScopeFields::default();
        let (mut number, mut answer, mut complete) = (None, None, false);
        let (mut inputs, mut ends) = (Vec::new(), Vec::new());
        walk(TURN, bytes, |name, value| {
            match name {
                "n" => number = Some(value.unsigned()?),
                "a" => answer = Some(value.unsigned()?.into()),
                "i" => inputs = sequences(value)?,
                "e" => ends = sequences(value)?,
                "done" => complete = value.bool()?,
                _ => {
                    scope.take(name, value)?;
                }
            }
            Ok(())
        })?;
        let (number, answer) = (require_field(TURN, "n", number)?, require_field(TURN, "a", answer)?);
        Ok(Turn { scope: scope.finish(TURN)?, number, inputs, answer, ends, complete })
    }
}

impl<'a> Body<'a> for Turn<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        iter::empty()
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        self.scope.set_json(object);
        object.set("number", Value::from(self.number));
        object.set("inputs", sequences_json(self.inputs));
        object.set("answer", Value::from(self.answer));
        object.set("ends", sequences_json(self.ends));
        object.set("complete", Value::from(self.complete));
        Ok(())
    }
}

fn sequences_json(sequences: Vec<SequenceNumber>) -> Value {
    let mut values = Vec::with_capacity(sequences.len());
    values.extend(sequences.into_iter().map(Value::from));
    Value::Array(values)
}

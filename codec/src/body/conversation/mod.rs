//! Encodes and decodes the records of a conversation with a provider's model, and the captured
//! state of an adapter.
//!
//! # Terms
//!
//! An *evaluation* is one run of a prompt up to its output. Each record of a conversation names its
//! evaluation. An *input* is a message that the host adds. A *request* is sent to the provider to
//! get an answer. An *answer* is recorded once it is complete, and its *ordinals* number the tool
//! calls that it requests, from 0. A *turn* is an answer with the ends of all its calls.
//!
//! # Invariants
//!
//! 1. A text that a provider wrote or will read is one MessagePack string, byte for byte as it was
//!    received.
//! 2. [`Blocks`] contain the provider's own form of a message if role, text and calls do not
//!    express all of it.
//! 3. No record repeats the content of another one: a turn refers to its parts by their sequence
//!    numbers.

mod adapter_state;
mod answer;
mod input;
mod prompt;
mod request;
mod shortened_messages;
mod turn;

use crate::body::fields::{Place, ReadField, WriteField, map_fields, walk_part};
use crate::body::json::{Object, Part, hex, payload};
use crate::msgpack::{MsgpackReader, MsgpackWriter, Value};
use crate::record::time_text;
use std::borrow::Cow;

pub use adapter_state::AdapterState;
pub use answer::{AnswerBody, AnsweredCall, TokenUsage};
pub use input::{Input, Role};
pub use prompt::{PromptAccepted, PromptIdentity};
pub use request::{Request, RequestFailure};
pub use shortened_messages::{Shortened, ShortenedMessage};
pub use turn::Turn;

use super::{Lane, Payload};
use crate::Error;

/// Identifies the evaluation, the lane and the imported original of a record of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConversationScope<'a> {
    /// Id of the evaluation.
    pub evaluation: Cow<'a, str>,
    /// Lane of the host that wrote the record. If it is within a run of a tool that does not
    /// commit, the record no longer counts.
    pub lane: Lane<'a>,
    /// Message elsewhere from which an input or an answer was imported.
    pub original: Option<Original>,
}

/// Identifies the message elsewhere from which a message was imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Original {
    /// Id of the message.
    pub id: [u8; 16],
    /// Time of the message, in microseconds UTC.
    pub time_us: i64,
    /// Id and time of the conversation's state, with the first imported message.
    pub state: Option<([u8; 16], i64)>,
}

impl WriteField for Original {
    fn write(&self, writer: &mut MsgpackWriter) {
        writer.fields(|fields| {
            fields.set("id", &self.id);
            fields.set("t", &self.time_us);
            if let Some((id, time_us)) = &self.state {
                fields.set("sid", id);
                fields.set("st", time_us);
            }
        });
    }
}

impl ReadField<'_> for Original {
    fn read(place: Place<'_>, reader: &mut MsgpackReader<'_>) -> Result<Original, Error> {
        let (mut original, mut state, mut state_us) = (Original::default(), None, 0);
        walk_part(place, &[], reader, |place, value| match place.field {
            "id" => value.read_into(place, &mut original.id),
            "t" => value.read_into(place, &mut original.time_us),
            "sid" => value.read_into(place, &mut state),
            "st" => value.read_into(place, &mut state_us),
            _ => Ok(()),
        })?;
        Ok(Original { state: state.map(|id| (id, state_us)), ..original })
    }
}

/// Implements [`MapFields`](crate::body::fields::MapFields) for a record of a conversation, whose
/// scope comes first.
macro_rules! conversation_fields {
    (impl<$life:lifetime> $type:ty { $($fields:tt)* }) => {
        $crate::body::fields::map_fields! { impl<$life> $type {
            "ev" => scope.evaluation [required],
            "in" => scope.lane.within,
            "lane" => scope.lane.name,
            "orig" => scope.original,
            $($fields)*
        }}
    };
}

use conversation_fields;

impl<'a> ConversationScope<'a> {
    /// Creates the scope of records that the host writes for an evaluation, in the main lane.
    pub fn new(evaluation: impl Into<Cow<'a, str>>) -> ConversationScope<'a> {
        ConversationScope { evaluation: evaluation.into(), ..ConversationScope::default() }
    }

    /// Returns room for the fields of the scope and for the short ones of its record, in bytes.
    fn room(&self) -> usize {
        self.evaluation.len() + 96
    }
}

/// Contains a message in the form of one provider, byte for byte: content blocks such as images,
/// thinking with its signature, citations, and those of later versions of the provider's API.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Blocks<'a> {
    /// Name of the form, such as `anthropic` or `openai`.
    pub format: Cow<'a, str>,
    /// JSON of the content, as one MessagePack string.
    pub json: Payload<'a>,
}

map_fields! { impl<'a> Blocks<'a> {
    "f" => format [required],
    "j" => json [required],
}}

impl ConversationScope<'_> {
    fn set_json(self, object: &mut Object<'_>) {
        object.set("evaluation_id", self.evaluation);
        object.set("within", self.lane.within);
        object.set("lane", self.lane.name);
        if let Some(original) = self.original {
            let mut object_of = Object::with_capacity(2);
            object_of.set("message_id", hex(original.id));
            object_of.set("created_at", time_text(original.time_us));
            object.set("imported_from", object_of.into_part());
        }
    }
}

fn blocks_json(blocks: Option<Blocks<'_>>) -> Result<Part<'_>, Error> {
    let Some(blocks) = blocks else { return Ok(Part::Value(Value::Nil)) };
    let mut object = Object::with_capacity(2);
    object.set("format", blocks.format);
    object.set("json", payload(blocks.json)?);
    Ok(object.into_part())
}

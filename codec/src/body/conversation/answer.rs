//! Encodes and decodes a provider's answer.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Blocks, ConversationScope, blocks_json, conversation_fields};
use crate::body::fields::{Place, ReadField, WriteField, decode, encode, map_fields};
use crate::body::json::{NameBudget, Object, Part, array, optional, payload};
use crate::body::operation::payload_len;
use crate::body::{Body, Payload};
use crate::msgpack::{MsgpackReader, MsgpackWriter, Value};
use crate::{Error, SequenceNumber};

/// Records a provider's answer, once it is complete and before any of its tool calls runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnswerBody<'a> {
    /// Evaluation, lane and imported original of the record.
    pub scope: ConversationScope<'a>,
    /// Sequence number of the request; `None` if this log has no request for the answer.
    pub request: Option<SequenceNumber>,
    /// Text of the answer, as one MessagePack string; `None` if it has none.
    pub content: Option<Payload<'a>>,
    /// Tool calls that the answer requests, by ordinal.
    pub calls: Vec<AnsweredCall<'a>>,
    /// Answer in the form of one provider, if text and calls do not express all of it.
    pub blocks: Option<Blocks<'a>>,
    /// The provider's reason for ending the answer.
    pub stop: Option<Cow<'a, str>>,
    /// Whether another request with the unchanged answer follows, although the answer has no calls.
    pub continues: bool,
    /// Model that answered.
    pub model: Option<Cow<'a, str>>,
    /// The provider's id of the request.
    pub request_id: Option<Cow<'a, str>>,
    /// Tokens that the request used.
    pub usage: Option<TokenUsage>,
    /// Headers of the reply that state how many requests are allowed.
    pub rate_limits: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// Other data of the adapter about the answer: JSON, as one MessagePack string.
    pub payload: Option<Payload<'a>>,
}

/// Contains one tool call of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnsweredCall<'a> {
    /// The provider's id of the call. A provider may use one id for different calls.
    pub id: Cow<'a, str>,
    /// Name of the tool.
    pub name: Cow<'a, str>,
    /// Arguments, byte for byte: JSON, as one MessagePack string.
    pub arguments: Payload<'a>,
    /// Whether the answer ended before the arguments did, so that the call cannot run.
    pub incomplete: bool,
}

/// Counts the tokens of one request, as the provider reported them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUsage {
    /// Tokens of the messages that were sent, without those that the provider read from or wrote to
    /// its cache.
    pub input: u64,
    /// Tokens of the answer, including reasoning.
    pub output: u64,
    /// Tokens that the provider read from its cache.
    pub cache_read: u64,
    /// Tokens that the provider wrote into its cache.
    pub cache_write: u64,
    /// Tokens of the answer that were reasoning.
    pub reasoning: u64,
}

impl TokenUsage {
    /// Returns the sum of two counts, saturating at the maximum.
    #[must_use]
    pub fn plus(self, other: TokenUsage) -> TokenUsage {
        self.each(other, u64::saturating_add)
    }

    /// Returns the difference of two counts, saturating at 0.
    #[must_use]
    pub fn minus(self, other: TokenUsage) -> TokenUsage {
        self.each(other, u64::saturating_sub)
    }

    fn each(self, other: TokenUsage, of: impl Fn(u64, u64) -> u64) -> TokenUsage {
        TokenUsage {
            input: of(self.input, other.input),
            output: of(self.output, other.output),
            cache_read: of(self.cache_read, other.cache_read),
            cache_write: of(self.cache_write, other.cache_write),
            reasoning: of(self.reasoning, other.reasoning),
        }
    }
}

map_fields! { impl<'a> TokenUsage {
    "in" => input,
    "out" => output,
    "cr" => cache_read,
    "cw" => cache_write,
    "re" => reasoning,
}}

map_fields! { impl<'a> AnsweredCall<'a> {
    "id" => id [required],
    "n" => name [required],
    "a" => arguments [required],
    "cut" => incomplete,
}}

type Pairs<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

/// Names and values are one array, alternately.
impl WriteField for Pairs<'_> {
    fn write(&self, writer: &mut MsgpackWriter) {
        writer.array(2 * self.len());
        for (name, value) in self {
            writer.str(name).str(value);
        }
    }
}

impl<'a> ReadField<'a> for Pairs<'a> {
    fn read(place: Place<'_>, reader: &mut MsgpackReader<'a>) -> Result<Pairs<'a>, Error> {
        let len = reader.array()? as usize;
        if !len.is_multiple_of(2) {
            return Err(place.bad("`rate` contains a name without a value"));
        }
        // The pre-scan has verified that there are as many texts, each of at least one byte.
        let mut pairs = Vec::with_capacity(len / 2);
        for _ in 0..len / 2 {
            pairs.push((Cow::Borrowed(reader.str()?), Cow::Borrowed(reader.str()?)));
        }
        Ok(pairs)
    }
}

conversation_fields! { impl<'a> AnswerBody<'a> {
    "to" => request,
    "c" => content,
    "calls" => calls,
    "blocks" => blocks,
    "stop" => stop,
    "more" => continues,
    "m" => model,
    "rid" => request_id,
    "use" => usage,
    "rate" => rate_limits,
    "pp" => payload,
}}

impl<'a> AnswerBody<'a> {
    /// Creates an answer with a text and no calls, with all other fields empty.
    pub fn new(scope: ConversationScope<'a>, content: Option<Payload<'a>>) -> AnswerBody<'a> {
        AnswerBody { scope, content, ..AnswerBody::default() }
    }

    /// Returns all payloads of the record for modification, so that a writer can replace large ones
    /// by references.
    pub fn payloads_mut(&mut self) -> impl Iterator<Item = &mut Payload<'a>> {
        let calls = self.calls.iter_mut().map(|call| &mut call.arguments);
        let blocks = self.blocks.as_mut().map(|blocks| &mut blocks.json);
        self.content.as_mut().into_iter().chain(calls).chain(blocks).chain(self.payload.as_mut())
    }

    /// Encodes the body of an `answer` record as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        let blocks = self.blocks.as_ref().map(|blocks| blocks.json);
        let payloads: usize = [self.content, blocks, self.payload].into_iter().map(payload_len).sum();
        let call_len = |call: &AnsweredCall<'_>| {
            payload_len(Some(call.arguments)) + call.id.len() + call.name.len() + 24
        };
        let calls: usize = self.calls.iter().map(call_len).sum();
        encode(self.scope.room() + payloads + calls + 96, self)
    }

    /// Decodes the body of an `answer` record.
    pub fn decode(bytes: &'a [u8]) -> Result<AnswerBody<'a>, Error> {
        decode("answer", bytes)
    }
}

impl<'a> Body<'a> for AnswerBody<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        self.payloads_mut().map(|payload| *payload)
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        self.scope.set_json(object);
        object.set("request", self.request);
        object.set("content", optional(self.content)?);
        let calls = array(self.calls.into_iter(), |call| {
            let mut object = Object::with_capacity(3 + usize::from(call.incomplete));
            object.set("id", call.id);
            object.set("name", call.name);
            object.set("arguments", payload(call.arguments)?);
            object.flag("incomplete", call.incomplete);
            Ok(object.into_part())
        });
        object.set("tool_calls", calls?);
        object.set("blocks", blocks_json(self.blocks)?);
        object.set("stop_reason", self.stop);
        object.set("continues", self.continues);
        object.set("model", self.model);
        object.set("request_id", self.request_id);
        object.set("usage", usage_json(self.usage));
        object.set("rate_limits", Part::Texts(self.rate_limits));
        object.set("provider_payload", optional(self.payload)?);
        Ok(())
    }
}

pub(super) fn usage_json<'a>(usage: Option<TokenUsage>) -> Part<'a> {
    let Some(usage) = usage else { return Part::Value(Value::Nil) };
    let mut object = Object::with_capacity(5);
    object.set("input_tokens", usage.input);
    object.set("output_tokens", usage.output);
    object.set("cache_read_tokens", usage.cache_read);
    object.set("cache_write_tokens", usage.cache_write);
    object.set("reasoning_tokens", usage.reasoning);
    object.into_part()
}

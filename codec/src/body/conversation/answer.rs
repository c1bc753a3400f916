//! Encodes and decodes a provider's answer.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Blocks, ConversationScope, ScopeFields, blocks_json, len};
use crate::body::fields::{FieldWriter, bad, list, require_field, walk, walk_map};
use crate::body::json::{
    NameBudget, Object, Part, array, optional, optional_sequence, optional_text, payload,
};
use crate::body::{Body, Payload};
use crate::msgpack::{MsgpackReader, MsgpackWriter, Value};
use crate::{Error, SequenceNumber};

const ANSWER: &str = "answer";

/// Records a provider's answer, once it is complete and before any of its tool calls runs.
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq)]
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

    fn fields(&self) -> [(&'static str, u64); 5] {
        let TokenUsage { input, output, cache_read, cache_write, reasoning } = *self;
        [("in", input), ("out", output), ("cr", cache_read), ("cw", cache_write), ("re", reasoning)]
    }

    pub(super) fn write(&self, writer: &mut MsgpackWriter) {
        let fields = self.fields();
        writer.map(fields.iter().filter(|(_, tokens)| *tokens > 0).count());
        for (name, tokens) in fields.into_iter().filter(|(_, tokens)| *tokens > 0) {
            writer.str(name).unsigned(tokens);
        }
    }

    pub(super) fn read(reader: &mut MsgpackReader<'_>) -> Result<TokenUsage, Error> {
        let mut usage = TokenUsage::default();
        walk_map(reader, |name, value| {
            match name {
                "in" => usage.input = value.unsigned()?,
                "out" => usage.output = value.unsigned()?,
                "cr" => usage.cache_read = value.unsigned()?,
                "cw" => usage.cache_write = value.unsigned()?,
                "re" => usage.reasoning = value.unsigned()?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(usage)
    }
}

impl<'a> AnsweredCall<'a> {
    fn write(&self, writer: &mut MsgpackWriter) {
        let mut fields =
            FieldWriter::with_capacity(self.id.len() + self.name.len() + len(Some(&self.arguments)) + 24);
        fields.text("id", Some(&self.id));
        fields.text("n", Some(&self.name));
        fields.payload("a", Some(self.arguments));
        fields.flag("cut", self.incomplete);
        fields.into_map(writer);
    }

    fn read(reader: &mut MsgpackReader<'a>) -> Result<AnsweredCall<'a>, Error> {
        let (mut id, mut tool, mut arguments, mut incomplete) = (None, None, None, false);
        walk_map(reader, |name, value| {
            match name {
                "id" => id = Some(Cow::Borrowed(value.str()?)),
                "n" => tool = Some(Cow::Borrowed(value.str()?)),
                "a" => arguments = Some(Payload::new(value.rest())),
                "cut" => incomplete = value.bool()?,
                _ => {}
            }
            Ok(())
        })?;
        let (id, name) = (require_field(ANSWER, "calls.id", id)?, require_field(ANSWER, "calls.n", tool)?);
        Ok(AnsweredCall { id, name, arguments: require_field(ANSWER, "calls.a", arguments)?, incomplete })
    }
}

pub(super) type Pairs<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

/// Writes names and values alternately, as one array.
pub(super) fn write_pairs(writer: &mut MsgpackWriter, pairs: &[(Cow<'_, str>, Cow<'_, str>)]) {
    writer.array(2 * pairs.len());
    for (name, value) in pairs {
        writer.str(name).str(value);
    }
}

/// Decodes names with their values.
///
/// # Errors
///
/// [`Error::Body`] of a record of kind `kind` if a name has no value.
pub(super) fn read_pairs<'a>(kind: &'static str, reader: &mut MsgpackReader<'a>) -> Result<Pairs<'a>, Error> {
    let len = reader.array()? as usize;
    if !len.is_multiple_of(2) {
        return Err(bad(kind, "`rate` contains a name without a value"));
    }
    // The pre-scan has verified that there are as many texts, each of at least one byte.
    let mut pairs = Vec::with_capacity(len / 2);
    for _ in 0..len / 2 {
        pairs.push((Cow::Borrowed(reader.str()?), Cow::Borrowed(reader.str()?)));
    }
    Ok(pairs)
}

impl<'a> AnswerBody<'a> {
    /// Creates an answer with a text and no calls, with all other fields empty.
    pub fn new(scope: ConversationScope<'a>, content: Option<Payload<'a>>) -> AnswerBody<'a> {
        AnswerBody {
            scope,
            request: None,
            content,
            calls: Vec::new(),
            blocks: None,
            stop: None,
            continues: false,
            model: None,
            request_id: None,
            usage: None,
            rate_limits: Vec::new(),
            payload: None,
        }
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
        let blocks = self.blocks.as_ref().map(|blocks| &blocks.json);
        let payloads = [self.content.as_ref(), blocks, self.payload.as_ref()];
        let calls =
            self.calls.iter().map(|call| len(Some(&call.arguments)) + call.id.len() + call.name.len() + 24);
        let bytes = payloads.into_iter().map(len).sum::<usize>() + calls.sum::<usize>();
        let mut fields = self.scope.begin(bytes + 96);
        fields.sequence("to", self.request);
        fields.payload("c", self.content);
        if !self.calls.is_empty() {
            let writer = fields.field("calls").array(self.calls.len());
            self.calls.iter().for_each(|call| call.write(writer));
        }
        if let Some(blocks) = &self.blocks {
            blocks.write(fields.field("blocks"));
        }
        fields.text("stop", self.stop.as_deref());
        fields.flag("more", self.continues);
        fields.text("m", self.model.as_deref());
        fields.text("rid", self.request_id.as_deref());
        if let Some(usage) = &self.usage {
            usage.write(fields.field("use"));
        }
        if !self.rate_limits.is_empty() {
            write_pairs(fields.field("rate"), &self.rate_limits);
        }
        fields.payload("pp", self.payload);
        fields.finish()
    }

    /// Decodes the body of an `answer` record.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, or if a field is missing or malformed.
    pub fn decode(bytes: &'a [u8]) -> Result<AnswerBody<'a>, Error> {
        let mut scope = ScopeFields::default();
        let mut answer = AnswerBody::new(ConversationScope::default(), None);
        walk(ANSWER, bytes, |name, value| {
            match name {
                "to" => answer.request = Some(value.unsigned()?.into()),
                "c" => answer.content = Some(Payload::new(value.rest())),
                "calls" => answer.calls = list(value, AnsweredCall::read)?,
                "blocks" => answer.blocks = Some(Blocks::read(ANSWER, value)?),
                "stop" => answer.stop = Some(Cow::Borrowed(value.str()?)),
                "more" => answer.continues = value.bool()?,
                "m" => answer.model = Some(Cow::Borrowed(value.str()?)),
                "rid" => answer.request_id = Some(Cow::Borrowed(value.str()?)),
                "use" => answer.usage = Some(TokenUsage::read(value)?),
                "rate" => answer.rate_limits = read_pairs(ANSWER, value)?,
                "pp" => answer.payload = Some(Payload::new(value.rest())),
                _ => {
                    scope.take(name, value)?;
                }
            }
            Ok(())
        })?;
        answer.scope = scope.finish(ANSWER)?;
        Ok(answer)
    }
}

impl<'a> Body<'a> for AnswerBody<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        self.payloads_mut().map(|payload| *payload)
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        self.scope.set_json(object);
        object.set("request", optional_sequence(self.request));
        object.set("content", optional(self.content)?);
        let calls = array(self.calls.into_iter(), |call| {
            let mut object = Object::with_capacity(3 + usize::from(call.incomplete));
            object.set("id", Value::from(call.id.into_owned()));
            object.set("name", Value::from(call.name.into_owned()));
            object.set("arguments", payload(call.arguments)?);
            if call.incomplete {
                object.set("incomplete", Value::from(true));
            }
            Ok(object.into_part())
        });
        object.set("tool_calls", calls?);
        object.set("blocks", blocks_json(self.blocks)?);
        object.set("stop_reason", optional_text(self.stop));
        object.set("continues", Value::from(self.continues));
        object.set("model", optional_text(self.model));
        object.set("request_id", optional_text(self.request_id));
        object.set("usage", usage_json(self.usage));
        object.set("rate_limits", Part::Texts(self.rate_limits));
        object.set("provider_payload", optional(self.payload)?);
        Ok(())
    }
}

pub(super) fn usage_json<'a>(usage: Option<TokenUsage>) -> Part<'a> {
    let Some(usage) = usage else { return Part::Value(Value::Nil) };
    let mut object = Object::with_capacity(5);
    object.set("input_tokens", Value::from(usage.input));
    object.set("output_tokens", Value::from(usage.output));
    object.set("cache_read_tokens", Value::from(usage.cache_read));
    object.set("cache_write_tokens", Value::from(usage.cache_write));
    object.set("reasoning_tokens", Value::from(usage.reasoning));
    object.into_part()
}

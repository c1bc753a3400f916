//! Encodes and decodes a request to a provider, and the failure of one.

use std::borrow::Cow;

use super::answer::{read_pairs, usage_json, write_pairs};
use super::{ConversationScope, TokenUsage};
use crate::body::fields::{ReadField, WriteField, store, walk, walk_part};
use crate::body::json::{NameBudget, Object, Part, hex, optional};
use crate::body::operation::payload_len;
use crate::body::{Body, Payload};
use crate::msgpack::{MsgpackReader, MsgpackWriter, Value};
use crate::{Error, SequenceNumber};

const REQUEST: &str = "request";

/// Records that a request to a provider is about to be sent, or that it failed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request<'a> {
    /// Evaluation, lane and imported original of the record.
    pub scope: ConversationScope<'a>,
    /// Number of the attempt to get this answer, counted from 1.
    pub attempt: u64,
    /// BLAKE3 of the prompt's template, tools and output schema; see
    /// [`PromptIdentity`](super::PromptIdentity).
    pub prompt: Option<[u8; 32]>,
    /// Name of the model.
    pub model: Option<Cow<'a, str>>,
    /// Parameters of the request, such as the temperature: JSON, as one MessagePack string.
    pub parameters: Option<Payload<'a>>,
    /// BLAKE3 of the body that is sent.
    pub sent: Option<[u8; 32]>,
    /// Failure of an earlier request, which this record reports. If it is set, the record is not a
    /// request itself.
    pub failure: Option<RequestFailure<'a>>,
}

/// Describes why a request got no answer, and its cost as far as it is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestFailure<'a> {
    /// Sequence number of the request.
    pub request: SequenceNumber,
    /// Name of the cause, such as `cut` or `throttled`. A reader preserves unknown names.
    pub cause: Cow<'a, str>,
    /// Description for people.
    pub message: Cow<'a, str>,
    /// Status of the provider's reply.
    pub status: Option<u32>,
    /// Text that had arrived, as one MessagePack string.
    pub arrived: Option<Payload<'a>>,
    /// The provider's id of the request.
    pub request_id: Option<Cow<'a, str>>,
    /// Tokens that the request used, as far as the provider reported them.
    pub usage: Option<TokenUsage>,
    /// Headers of the reply that state how many requests are allowed.
    pub rate_limits: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> RequestFailure<'a> {
    /// Creates a failure of which only cause and message are known.
    pub fn new(
        request: SequenceNumber,
        cause: impl Into<Cow<'a, str>>,
        message: impl Into<Cow<'a, str>>,
    ) -> RequestFailure<'a> {
        let (cause, message) = (cause.into(), message.into());
        RequestFailure { request, cause, message, ..RequestFailure::default() }
    }
}

impl WriteField for RequestFailure<'_> {
    fn write(&self, writer: &mut MsgpackWriter) {
        writer.fields(|fields| {
            fields.set("of", self.request);
            fields.set("why", &self.cause);
            fields.set("m", &self.message);
            fields.some("st", self.status);
            fields.some("c", self.arrived);
            fields.some("rid", self.request_id.as_ref());
            fields.some("use", self.usage);
            write_pairs(fields, &self.rate_limits);
        });
    }
}

impl<'a> ReadField<'a> for RequestFailure<'a> {
    fn read(reader: &mut MsgpackReader<'a>) -> Result<RequestFailure<'a>, Error> {
        let mut failure = RequestFailure::default();
        walk_part(REQUEST, &["fail.of"], reader, |name, value| match name {
            "of" => value.read_into(&mut failure.request),
            "why" => value.read_into(&mut failure.cause),
            "m" => value.read_into(&mut failure.message),
            "st" => value.read_into(&mut failure.status),
            "c" => value.read_into(&mut failure.arrived),
            "rid" => value.read_into(&mut failure.request_id),
            "use" => value.read_into(&mut failure.usage),
            "rate" => store(&mut failure.rate_limits, read_pairs(REQUEST, value)),
            _ => Ok(()),
        })?;
        Ok(failure)
    }
}

impl<'a> Request<'a> {
    /// Creates a request with all other fields empty.
    pub fn new(scope: ConversationScope<'a>, attempt: u64) -> Request<'a> {
        Request { scope, attempt, ..Request::default() }
    }

    /// Returns all payloads of the record for modification, so that a writer can replace large ones
    /// by references.
    pub fn payloads_mut(&mut self) -> impl Iterator<Item = &mut Payload<'a>> {
        let arrived = self.failure.as_mut().and_then(|failure| failure.arrived.as_mut());
        self.parameters.as_mut().into_iter().chain(arrived)
    }

    /// Encodes the body of a `request` record as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        let arrived = self.failure.as_ref().and_then(|failure| failure.arrived);
        self.scope.encode(payload_len(self.parameters) + payload_len(arrived) + 96, |fields| {
            fields.some("n", (self.attempt != 1).then_some(self.attempt));
            fields.some("p", self.prompt);
            fields.some("m", self.model.as_ref());
            fields.some("par", self.parameters);
            fields.some("sent", self.sent);
            fields.some("fail", self.failure.as_ref());
        })
    }

    /// Decodes the body of a `request` record.
    pub fn decode(bytes: &'a [u8]) -> Result<Request<'a>, Error> {
        let mut request = Request { attempt: 1, ..Request::default() };
        walk(REQUEST, &["ev"], bytes, |name, value| match name {
            "n" => value.read_into(&mut request.attempt),
            "p" => value.read_into(&mut request.prompt),
            "m" => value.read_into(&mut request.model),
            "par" => value.read_into(&mut request.parameters),
            "sent" => value.read_into(&mut request.sent),
            "fail" => value.read_into(&mut request.failure),
            _ => request.scope.take(name, value),
        })?;
        Ok(request)
    }
}

impl<'a> Body<'a> for Request<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        self.payloads_mut().map(|payload| *payload)
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        self.scope.set_json(object);
        object.set("attempt", self.attempt);
        object.set("model", self.model);
        object.set("prompt_digest", self.prompt.map(hex));
        object.set("parameters", optional(self.parameters)?);
        object.set("sent_digest", self.sent.map(hex));
        object.set("failure", self.failure.map_or(Ok(Part::Value(Value::Nil)), failure)?);
        Ok(())
    }
}

fn failure(failure: RequestFailure<'_>) -> Result<Part<'_>, Error> {
    let mut object = Object::with_capacity(8);
    object.set("request", failure.request);
    object.set("cause", failure.cause);
    object.set("message", failure.message);
    object.set("status", failure.status);
    object.set("arrived", optional(failure.arrived)?);
    object.set("request_id", failure.request_id);
    object.set("usage", usage_json(failure.usage));
    object.set("rate_limits", Part::Texts(failure.rate_limits));
    Ok(object.into_part())
}

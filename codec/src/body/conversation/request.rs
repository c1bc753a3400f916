//! Encodes and decodes a request to a provider, and the failure of one.

use std::borrow::Cow;

use super::answer::usage_json;
use super::{ConversationScope, TokenUsage, conversation_fields};
use crate::body::fields::{decode, encode, map_fields};
use crate::body::json::{NameBudget, Object, Part, hex, optional};
use crate::body::operation::payload_len;
use crate::body::{Body, Payload};
use crate::msgpack::Value;
use crate::{Error, SequenceNumber};

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

map_fields! { impl<'a> RequestFailure<'a> {
    "of" => request [required],
    "why" => cause [always],
    "m" => message [always],
    "st" => status,
    "c" => arrived,
    "rid" => request_id,
    "use" => usage,
    "rate" => rate_limits,
}}

conversation_fields! { impl<'a> Request<'a> {
    "n" => attempt [or 1],
    "p" => prompt,
    "m" => model,
    "par" => parameters,
    "sent" => sent,
    "fail" => failure,
}}

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
        encode(self.scope.room() + payload_len(self.parameters) + payload_len(arrived) + 96, self)
    }

    /// Decodes the body of a `request` record.
    pub fn decode(bytes: &'a [u8]) -> Result<Request<'a>, Error> {
        decode("request", bytes)
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

//! Encodes and decodes a request to a provider, and the failure of one.

use std::borrow::Cow;

use super::answer::{read_pairs, usage_json, write_pairs};
use super::{ConversationScope, ScopeFields, TokenUsage, len};
use crate::body::fields::{FieldWriter, fixed, require_field, walk, walk_map};
use crate::body::json::{NameBudget, Object, Part, optional, optional_digest, optional_text};
use crate::body::{Body, Payload};
use crate::msgpack::{MsgpackReader, MsgpackWriter, Value};
use crate::{Error, SequenceNumber};

const REQUEST: &str = "request";

/// Records that a request to a provider is about to be sent, or that it failed.
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq)]
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
        let (status, arrived, request_id, usage, rate_limits) = (None, None, None, None, Vec::new());
        let (cause, message) = (cause.into(), message.into());
        RequestFailure { request, cause, message, status, arrived, request_id, usage, rate_limits }
    }

    fn write(&self, writer: &mut MsgpackWriter) {
        let mut fields = FieldWriter::with_capacity(64 + self.message.len() + len(self.arrived.as_ref()));
        fields.sequence("of", Some(self.request));
        fields.text("why", Some(&self.cause));
        fields.text("m", Some(&self.message));
        fields.number("st", self.status.map(u64::from));
        fields.payload("c", self.arrived);
        fields.text("rid", self.request_id.as_deref());
        if let Some(usage) = &self.usage {
            usage.write(fields.field("use"));
        }
        if !self.rate_limits.is_empty() {
            write_pairs(fields.field("rate"), &self.rate_limits);
        }
        fields.into_map(writer);
    }

    fn read(reader: &mut MsgpackReader<'a>) -> Result<RequestFailure<'a>, Error> {
        let mut request = None;
        let mut failure = RequestFailure::new(SequenceNumber::MIN, "", "");
        walk_map(reader, |name, value| {
            match name {
                "of" => request = Some(value.unsigned()?.into()),
                "why" => failure.cause = Cow::Borrowed(value.str()?),
                "m" => failure.message = Cow::Borrowed(value.str()?),
                "st" => failure.status = Some(value.unsigned32()?),
                "c" => failure.arrived = Some(Payload::new(value.rest())),
                "rid" => failure.request_id = Some(Cow::Borrowed(value.str()?)),
                "use" => failure.usage = Some(TokenUsage::read(value)?),
                "rate" => failure.rate_limits = read_pairs(REQUEST, value)?,
                _ => {}
            }
            Ok(())
        })?;
        failure.request = require_field(REQUEST, "fail.of", request)?;
        Ok(failure)
    }
}

impl<'a> Request<'a> {
    /// Creates a request with all other fields empty.
    pub fn new(scope: ConversationScope<'a>, attempt: u64) -> Request<'a> {
        let (prompt, model, parameters, sent, failure) = (None, None, None, None, None);
        Request { scope, attempt, prompt, model, parameters, sent, failure }
    }

    /// Returns all payloads of the record for modification, so that a writer can replace large ones
    /// by references.
    pub fn payloads_mut(&mut self) -> impl Iterator<Item = &mut Payload<'a>> {
        let arrived = self.failure.as_mut().and_then(|failure| failure.arrived.as_mut());
        self.parameters.as_mut().into_iter().chain(arrived)
    }

    /// Encodes the body of a `request` record as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        let arrived = self.failure.as_ref().and_then(|failure| failure.arrived.as_ref());
        let mut fields = self.scope.begin(len(self.parameters.as_ref()) + len(arrived) + 96);
        fields.number("n", (self.attempt != 1).then_some(self.attempt));
        fields.bytes("p", self.prompt.as_ref().map(<[u8; 32]>::as_slice));
        fields.text("m", self.model.as_deref());
        fields.payload("par", self.parameters);
        fields.bytes("sent", self.sent.as_ref().map(<[u8; 32]>::as_slice));
        if let Some(failure) = &self.failure {
            failure.write(fields.field("fail"));
        }
        fields.finish()
    }

    /// Decodes the body of a `request` record.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, or if a field is missing or malformed.
    pub fn decode(bytes: &'a [u8]) -> Result<Request<'a>, Error> {
        let mut scope = ScopeFields::default();
        let mut request = Request::new(ConversationScope::default(), 1);
        walk(REQUEST, bytes, |name, value| {
            match name {
                "n" => request.attempt = value.unsigned()?,
                "p" => request.prompt = Some(fixed(value)?),
                "m" => request.model = Some(Cow::Borrowed(value.str()?)),
                "par" => request.parameters = Some(Payload::new(value.rest())),
                "sent" => request.sent = Some(fixed(value)?),
                "fail" => request.failure = Some(RequestFailure::read(value)?),
                _ => {
                    scope.take(name, value)?;
                }
            }
            Ok(())
        })?;
        request.scope = scope.finish(REQUEST)?;
        Ok(request)
    }
}

impl<'a> Body<'a> for Request<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        self.payloads_mut().map(|payload| *payload)
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        self.scope.set_json(object);
        object.set("attempt", Value::from(self.attempt));
        object.set("model", optional_text(self.model));
        object.set("prompt_digest", optional_digest(self.prompt));
        object.set("parameters", optional(self.parameters)?);
        object.set("sent_digest", optional_digest(self.sent));
        object.set("failure", self.failure.map_or(Ok(Part::Value(Value::Nil)), failure)?);
        Ok(())
    }
}

fn failure(failure: RequestFailure<'_>) -> Result<Part<'_>, Error> {
    let mut object = Object::with_capacity(8);
    object.set("request", Value::from(failure.request));
    object.set("cause", Value::from(failure.cause.into_owned()));
    object.set("message", Value::from(failure.message.into_owned()));
    object.set("status", failure.status.map_or(Value::Nil, |status| Value::from(u64::from(status))));
    object.set("arrived", optional(failure.arrived)?);
    object.set("request_id", optional_text(failure.request_id));
    object.set("usage", usage_json(failure.usage));
    object.set("rate_limits", Part::Texts(failure.rate_limits));
    Ok(object.into_part())
}

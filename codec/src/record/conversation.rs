//! Builds the JSON forms of the records of conversations and of adapters' states.
//!
//! Texts stay strings, even if they contain JSON, so that the form preserves all of their bytes.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::operation::asked_by;
use super::{Object, Part, array, hex, optional, payload, time_text};
use crate::body::{
    AdapterState, AnswerBody, Blocks, ConversationScope, Input, ObjectId, Payload, PromptAccepted,
    PromptIdentity, Request, RequestFailure, Shortened, TokenUsage, Turn,
};
use crate::msgpack::Value;
use crate::{Error, RecordKind, SequenceNumber};

/// Returns the objects to which a record of one of these kinds refers; none if its body does not
/// decode.
pub(super) fn objects(kind: RecordKind, body: &[u8]) -> BTreeSet<ObjectId> {
    fn collect_objects<'a, 'p>(payloads: impl Iterator<Item = &'p mut Payload<'a>>) -> BTreeSet<ObjectId>
    where
        'a: 'p,
    {
        payloads.filter_map(|payload| payload.object()).collect()
    }
    let objects = match kind {
        RecordKind::Input => Input::decode(body).map(|mut input| collect_objects(input.payloads_mut())),
        RecordKind::Request => {
            Request::decode(body).map(|mut request| collect_objects(request.payloads_mut()))
        }
        RecordKind::Answer => {
            AnswerBody::decode(body).map(|mut answer| collect_objects(answer.payloads_mut()))
        }
        RecordKind::Shortened => {
            Shortened::decode(body).map(|mut shortened| collect_objects(shortened.payloads_mut()))
        }
        RecordKind::AdapterState => {
            AdapterState::decode(body).map(|mut state| collect_objects(state.payloads_mut()))
        }
        _ => Ok(BTreeSet::new()),
    };
    objects.unwrap_or_default()
}

pub(super) fn input<'a>(object: &mut Object<'a>, input: Input<'a>) -> Result<(), Error> {
    scope(object, input.scope);
    object.set("role", Value::from(input.role.name()));
    object.set("content", optional(input.content)?);
    object.set("blocks", blocks(input.blocks)?);
    object.set("id", text(input.id));
    // A listing uses `name` for the name of the record itself.
    object.set("speaker", text(input.name));
    object.set("prompt", input.prompt.map_or(Part::Value(Value::Nil), prompt));
    object.set("call_id", text(input.call_id));
    object.set("asked_by", asked_by(input.origin));
    if input.is_error {
        object.set("is_error", Value::from(true));
    }
    object.set("provider_payload", optional(input.payload)?);
    Ok(())
}

pub(super) fn request<'a>(object: &mut Object<'a>, request: Request<'a>) -> Result<(), Error> {
    scope(object, request.scope);
    object.set("attempt", Value::from(request.attempt));
    object.set("model", text(request.model));
    object.set("prompt_digest", digest(request.prompt));
    object.set("parameters", optional(request.parameters)?);
    object.set("sent_digest", digest(request.sent));
    object.set("failure", request.failure.map_or(Ok(Part::Value(Value::Nil)), failure)?);
    Ok(())
}

fn failure(failure: RequestFailure<'_>) -> Result<Part<'_>, Error> {
    let mut object = Object::with_capacity(8);
    object.set("request", Value::from(failure.request));
    object.set("cause", Value::from(failure.cause.into_owned()));
    object.set("message", Value::from(failure.message.into_owned()));
    object.set("status", failure.status.map_or(Value::Nil, |status| Value::from(u64::from(status))));
    object.set("arrived", optional(failure.arrived)?);
    object.set("request_id", text(failure.request_id));
    object.set("usage", usage(failure.usage));
    object.set("rate_limits", Part::Texts(failure.rate_limits));
    Ok(object.into_part())
}

pub(super) fn answer<'a>(object: &mut Object<'a>, answer: AnswerBody<'a>) -> Result<(), Error> {
    scope(object, answer.scope);
    object.set("request", sequence(answer.request));
    object.set("content", optional(answer.content)?);
    let calls = array(answer.calls.into_iter(), |call| {
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
    object.set("blocks", blocks(answer.blocks)?);
    object.set("stop_reason", text(answer.stop));
    object.set("continues", Value::from(answer.continues));
    object.set("model", text(answer.model));
    object.set("request_id", text(answer.request_id));
    object.set("usage", usage(answer.usage));
    object.set("rate_limits", Part::Texts(answer.rate_limits));
    object.set("provider_payload", optional(answer.payload)?);
    Ok(())
}

pub(super) fn turn(object: &mut Object<'_>, turn: Turn<'_>) {
    scope(object, turn.scope);
    object.set("number", Value::from(turn.number));
    object.set("inputs", sequences(turn.inputs));
    object.set("answer", Value::from(turn.answer));
    object.set("ends", sequences(turn.ends));
    object.set("complete", Value::from(turn.complete));
}

pub(super) fn set_shortening<'a>(object: &mut Object<'a>, shortened: Shortened<'a>) -> Result<(), Error> {
    scope(object, shortened.scope);
    object.set("from", Value::from(shortened.from));
    object.set("to", Value::from(shortened.to));
    let messages = array(shortened.messages.into_iter(), |message| {
        let mut object = Object::with_capacity(2);
        object.set("role", Value::from(message.role.name()));
        object.set("content", payload(message.content)?);
        Ok(object.into_part())
    });
    object.set("messages", messages?);
    object.set("reason", Value::from(shortened.reason.into_owned()));
    Ok(())
}

pub(super) fn prompt_accepted(object: &mut Object<'_>, accepted: PromptAccepted<'_>) {
    scope(object, accepted.scope);
    object.set("was", prompt(accepted.was));
    object.set("now", prompt(accepted.now));
    object.set("by", Value::from(accepted.by.into_owned()));
    object.set("reason", Value::from(accepted.reason.into_owned()));
}

pub(super) fn adapter_state<'a>(object: &mut Object<'a>, state: AdapterState<'a>) -> Result<(), Error> {
    scope(object, state.scope);
    object.set("adapter", Value::from(state.adapter.into_owned()));
    object.set("resumable", Value::from(state.resumable));
    object.set("state", payload(state.state)?);
    object.set("supersedes", sequence(state.supersedes));
    object.set("entry", text(state.entry));
    object.set("occasion", Value::from(state.occasion.into_owned()));
    Ok(())
}

fn scope(object: &mut Object<'_>, scope: ConversationScope<'_>) {
    object.set("evaluation_id", Value::from(scope.evaluation.into_owned()));
    object.set("within", sequence(scope.lane.within));
    object.set("lane", text(scope.lane.name));
    if let Some(original) = scope.original {
        let mut object_of = Object::with_capacity(2);
        object_of.set("message_id", Value::from(hex(&original.id)));
        object_of.set("created_at", Value::from(time_text(original.time_us)));
        object.set("imported_from", object_of.into_part());
    }
}

fn text(text: Option<Cow<'_, str>>) -> Value {
    text.map_or(Value::Nil, |text| Value::from(text.into_owned()))
}

fn sequence(sequence: Option<SequenceNumber>) -> Value {
    sequence.map_or(Value::Nil, Value::from)
}

fn sequences(sequences: Vec<SequenceNumber>) -> Value {
    let mut values = Vec::with_capacity(sequences.len());
    values.extend(sequences.into_iter().map(Value::from));
    Value::Array(values)
}

fn digest(digest: Option<[u8; 32]>) -> Value {
    digest.map_or(Value::Nil, |digest| Value::from(hex(&digest)))
}

fn blocks(blocks: Option<Blocks<'_>>) -> Result<Part<'_>, Error> {
    let Some(blocks) = blocks else { return Ok(Part::Value(Value::Nil)) };
    let mut object = Object::with_capacity(2);
    object.set("format", Value::from(blocks.format.into_owned()));
    object.set("json", payload(blocks.json)?);
    Ok(object.into_part())
}

fn prompt<'a>(prompt: PromptIdentity<'_>) -> Part<'a> {
    let mut object = Object::with_capacity(3);
    object.set("namespace", Value::from(prompt.namespace.into_owned()));
    object.set("key", Value::from(prompt.key.into_owned()));
    object.set("digest", digest(Some(prompt.digest)));
    object.into_part()
}

fn usage<'a>(usage: Option<TokenUsage>) -> Part<'a> {
    let Some(usage) = usage else { return Part::Value(Value::Nil) };
    let mut object = Object::with_capacity(5);
    object.set("input_tokens", Value::from(usage.input));
    object.set("output_tokens", Value::from(usage.output));
    object.set("cache_read_tokens", Value::from(usage.cache_read));
    object.set("cache_write_tokens", Value::from(usage.cache_write));
    object.set("reasoning_tokens", Value::from(usage.reasoning));
    object.into_part()
}

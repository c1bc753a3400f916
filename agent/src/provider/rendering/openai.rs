//! Renders messages for OpenAI's chat completions.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::pairing::MessageFormat;
use foldlog::conversation::{ConversationMessage, Role, ToolCallRecord};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::ids::WireCallIds;
use super::{sent_name, text_of_blocks};

/// Format of the messages.
const FORMAT: MessageFormat = MessageFormat::OpenAi;

#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum OpenAiMessage<'a> {
    /// A message in the provider's own form.
    Raw(&'a RawValue),
    /// A message in the provider's own form with some fields replaced.
    Altered(RawFields<'a>),
    /// A message that was generated from role, content and calls.
    Made(OpenAiTypedMessage<'a>),
}

/// Contains the fields of a message, in the order in which they are written.
#[derive(Serialize)]
pub(crate) struct OpenAiTypedMessage<'a> {
    role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    content: OpenAiContent<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<OpenAiToolCall<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum OpenAiContent<'a> {
    Null(()),
    Text(Cow<'a, str>),
    Raw(&'a RawValue),
}

#[derive(Serialize)]
struct OpenAiToolCall<'a> {
    id: Cow<'a, str>,
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: Cow<'a, str>,
    arguments: &'a str,
}

/// Renders messages as they are sent. Tool names that are not in `known` are adapted to the API.
pub(crate) fn messages<'a>(messages: &'a [ConversationMessage], known: &[&str]) -> Vec<OpenAiMessage<'a>> {
    let ids =
        WireCallIds::new(messages, |message, id| !id.is_empty() && whole_message(message).is_some(), clean);
    let rendered = messages.iter().enumerate().map(|(number, message)| {
        let own = ids.calls(number);
        if let Some(fit) = whole_message(message).and_then(|raw| fit(raw, message, own, known)) {
            return fit;
        }
        let calls = message.tool_calls.iter().zip(own);
        let calls = calls.map(|(call, id)| tool_call(call, id.clone(), sent_name(&call.name, known, FORMAT)));
        let content = match content(message) {
            OpenAiContent::Null(()) if message.tool_calls.is_empty() => OpenAiContent::Text("".into()),
            content => content,
        };
        OpenAiMessage::Made(OpenAiTypedMessage {
            role: message.role.name(),
            tool_call_id: ids.result_target(number).map(|call| call.id.clone().into()),
            name: message.name.as_deref().filter(|name| message.role != Role::Tool && is_speaker(name)),
            content,
            tool_calls: calls.collect(),
        })
    });
    rendered.collect()
}

fn tool_call<'a>(
    call: &'a ToolCallRecord,
    id: impl Into<Cow<'a, str>>,
    name: Cow<'a, str>,
) -> OpenAiToolCall<'a> {
    OpenAiToolCall {
        id: id.into(),
        r#type: "function",
        function: Function { name, arguments: &call.arguments },
    }
}

pub(super) fn render_recorded(messages: &[ConversationMessage]) -> Vec<OpenAiMessage<'_>> {
    let call = |call| tool_call(call, &*call.call_id, call.name.as_str().into());
    let rendered = messages.iter().map(|message| match whole_message(message) {
        Some(raw) => OpenAiMessage::Raw(raw),
        None => OpenAiMessage::Made(OpenAiTypedMessage {
            role: message.role.name(),
            tool_call_id: message.tool_call_id.as_deref().map(Cow::Borrowed),
            name: message.name.as_deref(),
            content: content(message),
            tool_calls: message.tool_calls.iter().map(call).collect(),
        }),
    });
    rendered.collect()
}

/// Shortens an id to the length that OpenAI accepts. A digest keeps two long ids distinct.
fn clean(id: &str) -> String {
    const LONGEST: usize = 40;
    if id.is_empty() {
        return "call".to_owned();
    }
    if id.chars().count() <= LONGEST {
        return id.to_owned();
    }
    let digest = blake3::hash(id.as_bytes()).to_hex();
    let beginning = id.chars().take(LONGEST - 17).collect::<String>();
    format!("{beginning}_{}", digest.get(..12).unwrap_or_default())
}

/// Returns whether OpenAI accepts the name of a speaker.
fn is_speaker(name: &str) -> bool {
    let fits = |c: char| !c.is_whitespace() && !c.is_control() && !"<|\\/>".contains(c);
    !name.is_empty() && name.len() <= 64 && name.chars().all(fits)
}

fn own_blocks(message: &ConversationMessage) -> Option<&RawValue> {
    serde_json::from_str(FORMAT.own_blocks(message)?).ok()
}

/// Returns content blocks that are a whole message, with more fields than its content.
fn whole_message(message: &ConversationMessage) -> Option<&RawValue> {
    own_blocks(message).filter(|raw| raw.get().starts_with('{'))
}

fn content(message: &ConversationMessage) -> OpenAiContent<'_> {
    if let Some(raw) = own_blocks(message).filter(|raw| !raw.get().starts_with('{')) {
        return OpenAiContent::Raw(raw);
    }
    match (message.blocks.as_ref().and_then(text_of_blocks), &message.content) {
        (Some(text), _) if !text.is_empty() => OpenAiContent::Text(text.into()),
        (_, Some(text)) => OpenAiContent::Text(text.into()),
        (_, None) => OpenAiContent::Null(()),
    }
}

/// Contains the calls of a whole message.
#[derive(Deserialize)]
struct Peek {
    #[serde(default)]
    tool_calls: Option<Vec<CallPeek>>,
}

#[derive(Deserialize)]
struct CallPeek {
    #[serde(default)]
    id: String,
    function: FunctionPeek,
}

#[derive(Deserialize)]
struct FunctionPeek {
    name: String,
}

/// Replaces ids and names of calls in a message in the provider's own form, if they differ from
/// those to be sent; `None` if the message has other calls than were recorded.
fn fit<'a>(
    raw: &'a RawValue,
    message: &ConversationMessage,
    ids: &[String],
    known: &[&str],
) -> Option<OpenAiMessage<'a>> {
    // An answer without text and calls, such as one with only reasoning, is refused by the API.
    let says_nothing =
        message.content.as_deref().unwrap_or_default().is_empty() && message.tool_calls.is_empty();
    if message.role == Role::Assistant && says_nothing {
        return None;
    }
    let own = serde_json::from_str::<Peek>(raw.get()).ok()?.tool_calls.unwrap_or_default();
    let names = message.tool_calls.iter().map(|call| sent_name(&call.name, known, FORMAT));
    let sent: Vec<_> = ids.iter().zip(names).collect();
    if own.len() != sent.len() {
        return None;
    }
    if own.iter().zip(&sent).all(|(own, (id, name))| own.id == **id && own.function.name == *name) {
        return Some(OpenAiMessage::Raw(raw));
    }
    let sent: Vec<_> = sent.iter().map(|(id, name)| (id.as_str(), &**name)).collect();
    replace_call_ids(raw, &sent).map(OpenAiMessage::Altered)
}

type RawFields<'a> = BTreeMap<&'a str, Cow<'a, RawValue>>;

fn fields(raw: &RawValue) -> Option<RawFields<'_>> {
    let fields: BTreeMap<&str, &RawValue> = serde_json::from_str(raw.get()).ok()?;
    Some(fields.into_iter().map(|(name, value)| (name, Cow::Borrowed(value))).collect())
}

/// Returns the fields of a message, with these ids and names of its calls.
fn replace_call_ids<'a>(raw: &'a RawValue, sent: &[(&str, &str)]) -> Option<RawFields<'a>> {
    let mut message = fields(raw)?;
    let calls: Vec<&RawValue> = serde_json::from_str(message.get("tool_calls")?.get()).ok()?;
    let mut altered = Vec::with_capacity(calls.len());
    for (call, (id, name)) in calls.into_iter().zip(sent) {
        let mut call = fields(call)?;
        let mut function = fields(call.get("function")?)?;
        function.insert("name", Cow::Owned(to_raw_value(name).ok()?));
        let function = to_raw_value(&function).ok()?;
        call.insert("id", Cow::Owned(to_raw_value(id).ok()?));
        call.insert("function", Cow::Owned(function));
        altered.push(to_raw_value(&call).ok()?);
    }
    message.insert("tool_calls", Cow::Owned(to_raw_value(&altered).ok()?));
    Some(message)
}

//! Renders messages for Anthropic's Messages API.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::pairing::{MessageFormat, word};
#[cfg(feature = "anthropic")]
use foldlog::conversation::ToolCallRecord;
use foldlog::conversation::{ConversationMessage, Role};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::ids::WireCallIds;
use super::{sent_name, text_of_blocks};

/// Format of the messages.
const FORMAT: MessageFormat = MessageFormat::Anthropic;
/// Text of the user's message that is inserted at the start of a conversation without one. The API
/// requires a user's message there.
const BEGINNING: &str = "Begin.";
/// Text of a failed result without text. The API requires content for a failure.
const FAILED: &str = "The call failed.";

/// Contains a conversation in the form of the Messages API.
#[derive(Serialize)]
pub(crate) struct AnthropicConversation<'a> {
    /// Prompt, which is not a message in this API.
    pub(crate) system: Option<AnthropicContent<'a>>,
    /// Messages with alternating roles; the first is the user's.
    pub(crate) messages: Vec<AnthropicMessage<'a>>,
}

/// Merges consecutive messages of the same role.
#[derive(Serialize)]
pub(crate) struct AnthropicMessage<'a> {
    role: &'static str,
    content: AnthropicContent<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum AnthropicContent<'a> {
    Text(Cow<'a, str>),
    /// Content in the provider's own form.
    Raw(&'a RawValue),
    Blocks(Vec<AnthropicBlock<'a>>),
}

#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum AnthropicBlock<'a> {
    /// A block in the provider's own form.
    Raw(Cow<'a, RawValue>),
    /// A block that was generated.
    Made(AnthropicTypedBlock<'a>),
}

/// Contains a block that was generated from a message's fields.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum AnthropicTypedBlock<'a> {
    Text {
        /// The text, with at least one visible character.
        text: Cow<'a, str>,
    },
    ToolUse {
        id: Cow<'a, str>,
        name: Cow<'a, str>,
        /// Arguments: a JSON object.
        input: Cow<'a, RawValue>,
    },
    ToolResult {
        tool_use_id: Cow<'a, str>,
        /// Result of the tool.
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<AnthropicContent<'a>>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
}

/// Collects consecutive contents of one role.
struct RoleGroup<'a> {
    role: &'static str,
    /// Content that is sent unchanged if no other content is joined to it.
    whole: Option<&'a RawValue>,
    blocks: Vec<AnthropicBlock<'a>>,
}

impl<'a> AnthropicConversation<'a> {
    /// Renders messages as they are sent. Tool names that are not in `known` are adapted to the
    /// API.
    pub(crate) fn new(messages: &'a [ConversationMessage], known: &[&str]) -> AnthropicConversation<'a> {
        let pinned = |message: &ConversationMessage, id: &str| {
            message.role == Role::Assistant && clean(id) == id && own_blocks(message).is_some()
        };
        let ids = WireCallIds::new(messages, pinned, clean);
        let mut system = Vec::new();
        let mut parts: Vec<RoleGroup<'a>> = Vec::new();
        let mut results: Vec<(usize, AnthropicBlock<'a>)> = Vec::new();
        for (number, message) in messages.iter().enumerate() {
            if let Some(call) = ids.result_target(number) {
                results.push((call.ordinal, result(message, call.id.clone())));
                continue;
            }
            flush(&mut parts, &mut results);
            match message.role {
                Role::System => system.push(message),
                Role::Assistant => {
                    let (whole, blocks) = answer(message, ids.calls(number), known);
                    join(&mut parts, RoleGroup { role: "assistant", whole, blocks });
                }
                _ => {
                    let (whole, blocks) = message_blocks(message);
                    join(&mut parts, RoleGroup { role: "user", whole, blocks });
                }
            }
        }
        flush(&mut parts, &mut results);
        let mut parts = without_trailing_thoughts(parts);
        if parts.first().is_none_or(|first| first.role != "user") {
            let begin = RoleGroup { role: "user", whole: None, blocks: vec![text(BEGINNING)] };
            parts.insert(0, begin);
        }
        if let Some(last) = parts.last_mut().filter(|last| last.role == "assistant") {
            trim_end(last);
        }
        let messages =
            parts.into_iter().map(|part| AnthropicMessage { role: part.role, content: part.content() });
        AnthropicConversation { system: prompt(&system), messages: messages.collect() }
    }
}

impl<'a> RoleGroup<'a> {
    fn content(self) -> AnthropicContent<'a> {
        self.whole.map_or_else(|| content_of(self.blocks), AnthropicContent::Raw)
    }
}

fn content_of(mut blocks: Vec<AnthropicBlock<'_>>) -> AnthropicContent<'_> {
    match (blocks.pop(), blocks.is_empty()) {
        (Some(AnthropicBlock::Made(AnthropicTypedBlock::Text { text })), true) => {
            AnthropicContent::Text(text)
        }
        (last, _) => {
            blocks.extend(last);
            AnthropicContent::Blocks(blocks)
        }
    }
}

/// Adds the results of one answer, by ordinal.
fn flush<'a>(parts: &mut Vec<RoleGroup<'a>>, results: &mut Vec<(usize, AnthropicBlock<'a>)>) {
    results.sort_by_key(|(ordinal, _)| *ordinal);
    let blocks = results.drain(..).map(|(_, block)| block).collect();
    join(parts, RoleGroup { role: "user", whole: None, blocks });
}

/// Adds a content, to the message before it if that has the same role.
fn join<'a>(parts: &mut Vec<RoleGroup<'a>>, part: RoleGroup<'a>) {
    if part.blocks.is_empty() {
        return;
    }
    match parts.last_mut().filter(|last| last.role == part.role) {
        Some(last) => {
            last.whole = None;
            last.blocks.extend(part.blocks);
        }
        None => parts.push(part),
    }
}

fn text<'a>(text: impl Into<Cow<'a, str>>) -> AnthropicBlock<'a> {
    AnthropicBlock::Made(AnthropicTypedBlock::Text { text: text.into() })
}

fn visible<'a>(content: impl Into<Cow<'a, str>>) -> Option<AnthropicBlock<'a>> {
    let content = content.into();
    (!content.trim().is_empty()).then(|| text(content))
}

/// Returns a message's content in the provider's own form, and its blocks.
fn message_blocks(message: &ConversationMessage) -> (Option<&RawValue>, Vec<AnthropicBlock<'_>>) {
    if let Some((raw, blocks)) = own_blocks(message) {
        return without_empty_texts(raw, blocks);
    }
    (None, spoken(message).into_iter().collect())
}

/// Returns a message's text for the case that its content is not sent in the API's own form.
fn spoken(message: &ConversationMessage) -> Option<AnthropicBlock<'_>> {
    let reduced = message.blocks.as_ref().and_then(text_of_blocks).and_then(visible);
    reduced.or_else(|| message.content.as_deref().and_then(visible))
}

fn answer<'a>(
    message: &'a ConversationMessage,
    ids: &[String],
    known: &[&str],
) -> (Option<&'a RawValue>, Vec<AnthropicBlock<'a>>) {
    let calls = message.tool_calls.iter().zip(ids);
    let sent: Vec<_> = calls.map(|(call, id)| (call, id, sent_name(&call.name, known, FORMAT))).collect();
    if let Some((raw, blocks)) = own_blocks(message)
        && blocks.iter().filter(|block| is_call(block)).count() == sent.len()
    {
        let pairs: Vec<_> = sent.iter().map(|(_, id, name)| (id.as_str(), &**name)).collect();
        return replace_call_ids(&blocks, &pairs)
            .map_or_else(|| without_empty_texts(raw, blocks), |blocks| (None, blocks));
    }
    let mut blocks: Vec<_> = spoken(message).into_iter().collect();
    blocks.extend(sent.into_iter().map(|(call, id, name)| {
        AnthropicBlock::Made(AnthropicTypedBlock::ToolUse {
            id: id.clone().into(),
            name,
            input: input(&call.arguments),
        })
    }));
    (None, blocks)
}

/// Returns the content blocks for a text and calls whose ids need no replacement.
#[cfg(feature = "anthropic")]
pub(in crate::provider) fn made_blocks(content: Option<&str>, calls: &[ToolCallRecord]) -> String {
    let calls = calls.iter().map(|call| {
        let (id, name) = (call.call_id.as_str().into(), call.name.as_str().into());
        AnthropicBlock::Made(AnthropicTypedBlock::ToolUse { id, name, input: input(&call.arguments) })
    });
    super::json(&content.map(text).into_iter().chain(calls).collect::<Vec<_>>())
}

fn result(message: &ConversationMessage, id: String) -> AnthropicBlock<'_> {
    let (raw, blocks) = message_blocks(message);
    let content = match (raw, blocks.is_empty()) {
        (Some(raw), _) => Some(AnthropicContent::Raw(raw)),
        (None, false) => Some(content_of(blocks)),
        (None, true) => message.is_error.then(|| AnthropicContent::Text(FAILED.into())),
    };
    AnthropicBlock::Made(AnthropicTypedBlock::ToolResult {
        tool_use_id: id.into(),
        content,
        is_error: message.is_error,
    })
}

/// Returns arguments as the object that the API requires. If they are not an object, their text
/// becomes the field `invalid_arguments` of one.
pub(in crate::provider) fn input(arguments: &str) -> Cow<'_, RawValue> {
    if let Some(raw) =
        serde_json::from_str::<&RawValue>(arguments).ok().filter(|raw| raw.get().starts_with('{'))
    {
        return Cow::Borrowed(raw);
    }
    let mut fields = BTreeMap::new();
    if !arguments.trim().is_empty() {
        fields.insert("invalid_arguments", arguments);
    }
    // A map of texts can always be encoded; `null` is a formality.
    Cow::Owned(to_raw_value(&fields).unwrap_or_else(|_| RawValue::NULL.to_owned()))
}

/// Replaces the characters of an id that the API refuses.
fn clean(id: &str) -> String {
    word(id, usize::MAX, "call")
}

/// Contains the fields of a block that decide whether it can be sent.
#[derive(Default, Deserialize)]
struct Peek<'a> {
    #[serde(default, borrow)]
    r#type: Cow<'a, str>,
    #[serde(default, borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    id: Cow<'a, str>,
    #[serde(default, borrow)]
    name: Cow<'a, str>,
}

fn peek(block: &RawValue) -> Option<Peek<'_>> {
    serde_json::from_str(block.get()).ok()
}

/// Returns content blocks in the API's own form, as a whole and one by one; `None` if the message
/// has none.
fn own_blocks(message: &ConversationMessage) -> Option<(&RawValue, Vec<&RawValue>)> {
    let raw: &RawValue = serde_json::from_str(FORMAT.own_blocks(message)?).ok()?;
    Some((raw, serde_json::from_str(raw.get()).ok()?))
}

/// Removes the blocks that the API refuses. If there are none, the content is sent unchanged.
fn without_empty_texts<'a>(
    raw: &'a RawValue,
    blocks: Vec<&'a RawValue>,
) -> (Option<&'a RawValue>, Vec<AnthropicBlock<'a>>) {
    let count = blocks.len();
    let kept: Vec<_> = blocks.into_iter().filter(|block| !is_empty_text(block)).collect();
    let raw = (kept.len() == count && count > 0).then_some(raw);
    (raw, kept.into_iter().map(|block| AnthropicBlock::Raw(Cow::Borrowed(block))).collect())
}

fn is_empty_text(block: &RawValue) -> bool {
    peek(block)
        .is_some_and(|peek| peek.r#type == "text" && peek.text.is_none_or(|text| text.trim().is_empty()))
}

fn is_call(block: &RawValue) -> bool {
    peek(block).is_some_and(|peek| peek.r#type == "tool_use")
}

/// Replaces ids and names of the calls among blocks, by ordinal; `None` if they already match.
fn replace_call_ids<'a>(blocks: &[&'a RawValue], sent: &[(&str, &str)]) -> Option<Vec<AnthropicBlock<'a>>> {
    let (mut sent, mut differs) = (sent.iter(), false);
    let mut all = Vec::with_capacity(blocks.len());
    for &block in blocks.iter().filter(|block| !is_empty_text(block)) {
        let call = if is_call(block) { sent.next() } else { None };
        let own = peek(block).unwrap_or_default();
        let altered = call.filter(|(id, name)| own.id != *id || own.name != *name).and_then(|(id, name)| {
            let mut fields: BTreeMap<&str, &RawValue> = serde_json::from_str(block.get()).ok()?;
            let (id, name) = (to_raw_value(id).ok()?, to_raw_value(name).ok()?);
            fields.extend([("id", &*id), ("name", &*name)]);
            to_raw_value(&fields).ok()
        });
        differs |= altered.is_some();
        all.push(AnthropicBlock::Raw(altered.map_or(Cow::Borrowed(block), Cow::Owned)));
    }
    differs.then_some(all)
}

/// Removes thinking from the end of each answer, because the API refuses such answers. An answer
/// that consists only of thinking is removed, and the user's messages around it are merged.
fn without_trailing_thoughts(parts: Vec<RoleGroup<'_>>) -> Vec<RoleGroup<'_>> {
    let mut kept = Vec::with_capacity(parts.len());
    for mut part in parts {
        while part.role == "assistant" && part.blocks.last().is_some_and(is_thought) {
            part.blocks.pop();
            part.whole = None;
        }
        join(&mut kept, part);
    }
    kept
}

fn is_thought(block: &AnthropicBlock<'_>) -> bool {
    let AnthropicBlock::Raw(raw) = block else { return false };
    peek(raw).is_some_and(|peek| matches!(&*peek.r#type, "thinking" | "redacted_thinking"))
}

/// Removes white space from the end of an answer that the model continues, because the API refuses
/// it there.
fn trim_end(part: &mut RoleGroup<'_>) {
    let Some(AnthropicBlock::Made(AnthropicTypedBlock::Text { text })) = part.blocks.last_mut() else {
        return;
    };
    let end = text.trim_end().len();
    if end < text.len() {
        text.to_mut().truncate(end);
    }
}

/// Returns the prompt: the texts of all system messages, separated by blank lines, or their blocks
/// if one has blocks.
fn prompt<'a>(messages: &[&'a ConversationMessage]) -> Option<AnthropicContent<'a>> {
    let mut blocks: Vec<AnthropicBlock<'a>> =
        messages.iter().flat_map(|message| message_blocks(message).1).collect();
    let texts: Vec<&str> = blocks
        .iter()
        .filter_map(|block| match block {
            AnthropicBlock::Made(AnthropicTypedBlock::Text { text }) => Some(&**text),
            _ => None,
        })
        .collect();
    match (texts.len() == blocks.len(), blocks.len()) {
        (_, 0) => None,
        (true, 1) => Some(content_of(std::mem::take(&mut blocks))),
        (true, _) => Some(AnthropicContent::Text(texts.join("\n\n").into())),
        (false, _) => Some(AnthropicContent::Blocks(blocks)),
    }
}

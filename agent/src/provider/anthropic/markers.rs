//! Marks the parts of a request that the API should cache.

use std::collections::BTreeMap;

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

/// Returns a request with markers at the end of its prompt, which covers the tools, and of its last
/// message; `None` if it has neither.
pub(super) fn add(body: &[u8]) -> Option<Vec<u8>> {
    let mut fields: BTreeMap<&str, &RawValue> = serde_json::from_slice(body).ok()?;
    let system = fields.get("system").and_then(|system| mark(system));
    let messages = fields.get("messages").and_then(|messages| mark_last(messages));
    if system.is_none() && messages.is_none() {
        return None;
    }
    fields.extend(system.as_deref().map(|system| ("system", system)));
    fields.extend(messages.as_deref().map(|messages| ("messages", messages)));
    serde_json::to_vec(&fields).ok()
}

/// Marks the content of the last message.
fn mark_last(messages: &RawValue) -> Option<Box<RawValue>> {
    let mut messages: Vec<&RawValue> = serde_json::from_str(messages.get()).ok()?;
    let mut last: BTreeMap<&str, &RawValue> = serde_json::from_str(messages.pop()?.get()).ok()?;
    let content = mark(last.get("content")?)?;
    last.insert("content", &content);
    let last = to_raw_value(&last).ok()?;
    messages.push(&last);
    to_raw_value(&messages).ok()
}

/// Marks the last block of a content. Thinking cannot have a marker.
fn mark(content: &RawValue) -> Option<Box<RawValue>> {
    let marker = json!({ "type": "ephemeral" });
    if content.get().starts_with('"') {
        let text: Value = serde_json::from_str(content.get()).ok()?;
        return to_raw_value(&json!([{ "type": "text", "text": text, "cache_control": marker }])).ok();
    }
    let mut blocks: Vec<&RawValue> = serde_json::from_str(content.get()).ok()?;
    let mut last: BTreeMap<&str, &RawValue> = serde_json::from_str(blocks.pop()?.get()).ok()?;
    if last.get("type").is_some_and(|kind| kind.get().contains("thinking")) {
        return None;
    }
    let marker = to_raw_value(&marker).ok()?;
    last.insert("cache_control", &marker);
    let last = to_raw_value(&last).ok()?;
    blocks.push(&last);
    to_raw_value(&blocks).ok()
}

//! Parses a streamed message of the Messages API.

use std::collections::BTreeMap;

use foldlog::conversation::{TokenUsage, ToolCallRecord};
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use super::answer::{AnthropicAnswerContent, AnthropicAnswerHead, AnthropicUsage, finish};
use crate::provider::http::{Reply, StreamedAnswer, count, merge};
use crate::provider::rendering::input;
use crate::provider::{ProviderAnswer, ProviderErrorKind, Result};

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum AnthropicStreamEvent {
    MessageStart {
        message: AnthropicAnswerHead,
    },
    ContentBlockStart {
        index: u64,
        content_block: Map<String, Value>,
    },
    ContentBlockDelta {
        index: u64,
        delta: Map<String, Value>,
    },
    ContentBlockStop {},
    MessageDelta {
        #[serde(default)]
        delta: AnthropicAnswerHead,
        usage: Option<AnthropicUsage>,
    },
    MessageStop {},
    Ping {},
    Error {
        error: Value,
    },
    /// An event of a later version, which is ignored.
    #[serde(other)]
    Other,
}

/// Contains the received part of one block.
#[derive(Default)]
struct PartialBlock {
    fields: Map<String, Value>,
    /// Arguments of a call, byte for byte.
    input: String,
}

/// Contains the received part of an answer.
#[derive(Default)]
pub struct AnthropicStream {
    head: AnthropicAnswerHead,
    blocks: BTreeMap<u64, PartialBlock>,
    /// Number of values in memory.
    kept: usize,
}

impl StreamedAnswer for AnthropicStream {
    fn take(&mut self, data: &str, reply: &Reply<'_>, show: &mut dyn FnMut(&str)) -> Result<bool> {
        let mut show = |fields: &Map<String, Value>| {
            show(fields.get("text").and_then(Value::as_str).unwrap_or_default());
        };
        let said = foldlog::escape::read_json(data).map_err(|error| reply.not_json_event(&error))?;
        match said {
            AnthropicStreamEvent::MessageStart { message } => self.head = message,
            AnthropicStreamEvent::ContentBlockStart { index, content_block } => {
                let block = PartialBlock { fields: content_block, input: String::new() };
                show(&block.fields);
                self.kept += 1 + block.fields.values().map(count).sum::<usize>();
                self.blocks.insert(index, block);
            }
            AnthropicStreamEvent::ContentBlockDelta { index, delta } => {
                show(&delta);
                let known = self.blocks.get_mut(&index);
                let block = known.ok_or_else(|| {
                    reply.error(ProviderErrorKind::InvalidAnswer, "a piece belongs to no block of the stream")
                })?;
                self.kept += block.add(delta);
            }
            AnthropicStreamEvent::MessageDelta { delta, usage } => {
                self.head.stop_reason = delta.stop_reason.or(self.head.stop_reason.take());
                let later = usage.or(delta.usage).unwrap_or_default();
                self.head.usage = Some(self.head.usage.unwrap_or_default().update(later));
            }
            AnthropicStreamEvent::MessageStop {} => return Ok(true),
            AnthropicStreamEvent::Error { error } => {
                // The reply's status was sent before the failure, and does not describe it.
                return Err(reply.refusal_error(400, &serde_json::json!({ "error": error })));
            }
            AnthropicStreamEvent::ContentBlockStop {}
            | AnthropicStreamEvent::Ping {}
            | AnthropicStreamEvent::Other => {}
        }
        Ok(false)
    }

    fn text(&self) -> String {
        self.texts().concat()
    }

    fn usage(&self) -> Option<TokenUsage> {
        self.head.usage.map(AnthropicUsage::tokens)
    }

    fn kept(&self) -> usize {
        self.kept
    }

    fn finish(self, reply: &Reply<'_>) -> Result<ProviderAnswer> {
        let content = self.content().map_err(|what| reply.error(ProviderErrorKind::InvalidAnswer, what))?;
        finish(reply, self.head, content)
    }
}

impl AnthropicStream {
    /// Returns the received texts.
    fn texts(&self) -> Vec<&str> {
        self.blocks.values().filter(|block| block.is("text")).map(|block| block.text("text")).collect()
    }

    /// Assembles the content.
    fn content(&self) -> Result<AnthropicAnswerContent, &'static str> {
        let texts = self.texts();
        let text = (!texts.is_empty()).then(|| texts.concat());
        let mut content =
            AnthropicAnswerContent { text, is_plain: true, ..AnthropicAnswerContent::default() };
        let mut json = Vec::with_capacity(self.blocks.len());
        for (place, block) in self.blocks.values().enumerate() {
            let is_first_text = block.is("text") && place == 0 && texts.len() == 1;
            content.is_plain &= (is_first_text && block.has_only(&["type", "text"]))
                || (block.is("tool_use") && block.has_only(&["type", "id", "name", "input"]));
            content.ends_with_open_call = false;
            if block.is("tool_use") {
                if block.text("name").is_empty() {
                    return Err("a tool call names no tool");
                }
                let arguments = block.arguments();
                // A call without arguments sends no pieces of them, and neither does one that was
                // cut before the first.
                content.ends_with_open_call =
                    block.input.is_empty() || serde_json::from_str::<Map<String, Value>>(&arguments).is_err();
                let (call_id, name) = (block.text("id").to_owned(), block.text("name").to_owned());
                content.calls.push(ToolCallRecord { call_id, name, arguments });
            }
            json.push(block.json().ok_or("a block has no JSON")?);
        }
        content.json = serde_json::to_string(&json).map_err(|_| "the content has no JSON")?;
        Ok(content)
    }
}

impl PartialBlock {
    fn text(&self, name: &str) -> &str {
        self.fields.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    fn is(&self, kind: &str) -> bool {
        self.text("type") == kind
    }

    fn has_only(&self, names: &[&str]) -> bool {
        self.fields.keys().all(|name| names.contains(&name.as_str()))
    }

    /// Merges a piece, and returns the number of added values.
    fn add(&mut self, delta: Map<String, Value>) -> usize {
        let mut added = 0;
        for (name, piece) in delta {
            match (name.as_str(), piece) {
                ("type", _) => {}
                ("partial_json", Value::String(piece)) => self.input.push_str(&piece),
                ("citation", piece) => {
                    let citations = self.fields.entry("citations").or_insert(Value::Null);
                    if citations.is_null() {
                        *citations = Value::Array(Vec::new());
                    }
                    added += merge(citations, Value::Array(vec![piece]));
                }
                (_, piece) => {
                    added += usize::from(!self.fields.contains_key(&name));
                    added += merge(self.fields.entry(name).or_insert(Value::Null), piece);
                }
            }
        }
        added
    }

    /// Returns the arguments of a call as they arrived.
    fn arguments(&self) -> String {
        match self.fields.get("input") {
            _ if !self.input.is_empty() => self.input.clone(),
            Some(whole) if !whole.is_null() => whole.to_string(),
            _ => "{}".to_owned(),
        }
    }

    fn json(&self) -> Option<Box<RawValue>> {
        let mut fields = BTreeMap::new();
        for (name, value) in &self.fields {
            fields.insert(name.as_str(), to_raw_value(value).ok()?);
        }
        if self.fields.contains_key("input") || !self.input.is_empty() {
            fields.insert("input", input(&self.arguments()).into_owned());
        }
        to_raw_value(&fields).ok()
    }
}

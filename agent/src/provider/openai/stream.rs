//! Parses a streamed chat completion.

use std::collections::BTreeMap;

use foldlog::conversation::TokenUsage;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answer::{OpenAiAnswer, OpenAiUsage};
use crate::provider::http::{Reply, StreamedAnswer, merge_fields};
use crate::provider::{ProviderAnswer, ProviderErrorKind, Result};

/// Data of the event that ends a stream.
const DONE: &str = "[DONE]";

#[derive(Deserialize)]
struct CompletionChunk {
    model: Option<String>,
    #[serde(default)]
    choices: Vec<ChunkChoice>,
    usage: Option<OpenAiUsage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct ChunkChoice {
    #[serde(default)]
    index: u64,
    #[serde(default)]
    delta: Option<Map<String, Value>>,
    finish_reason: Option<String>,
}

/// Contains the received part of an answer.
#[derive(Default)]
pub struct OpenAiStream {
    fields: Map<String, Value>,
    calls: BTreeMap<u64, Map<String, Value>>,
    stop: Option<String>,
    model: Option<String>,
    usage: Option<TokenUsage>,
    /// Number of values in memory.
    kept: usize,
}

impl StreamedAnswer for OpenAiStream {
    fn take(&mut self, data: &str, reply: &Reply<'_>, show: &mut dyn FnMut(&str)) -> Result<bool> {
        if data.trim() == DONE {
            return Ok(true);
        }
        let chunk: CompletionChunk =
            foldlog::escape::read_json(data).map_err(|error| reply.not_json_event(&error))?;
        if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
            return Err(reply.refusal_error(reply.status, &json!({ "error": error })));
        }
        self.usage = chunk.usage.map(OpenAiUsage::tokens).or(self.usage);
        self.model = self.model.take().or(chunk.model);
        for choice in chunk.choices.into_iter().filter(|choice| choice.index == 0) {
            self.stop = choice.finish_reason.or(self.stop.take());
            if let Some(delta) = choice.delta {
                self.add(delta, show);
            }
        }
        Ok(false)
    }

    fn text(&self) -> String {
        self.fields.get("content").and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    fn usage(&self) -> Option<TokenUsage> {
        self.usage
    }

    fn kept(&self) -> usize {
        self.kept
    }

    fn finish(mut self, reply: &Reply<'_>) -> Result<ProviderAnswer> {
        if self.stop.is_none() {
            let message = "the stream ended without a reason: the answer may not be complete";
            return Err(reply.error(ProviderErrorKind::Cut, message));
        }
        // A stream starts its text with an empty piece, even if there is no text.
        if self.fields.get("content").and_then(Value::as_str) == Some("") {
            self.fields.insert("content".to_owned(), Value::Null);
        }
        if !self.calls.is_empty() {
            let calls = self.calls.into_values().map(Value::Object).collect();
            self.fields.insert("tool_calls".to_owned(), calls);
        }
        self.fields.entry("role").or_insert_with(|| "assistant".into());
        let message = OpenAiAnswer { fields: self.fields, raw: None };
        message.answer(reply, self.stop, self.model, self.usage)
    }
}

impl OpenAiStream {
    fn add(&mut self, mut delta: Map<String, Value>, show: &mut dyn FnMut(&str)) {
        // Some servers repeat the role in every piece.
        if self.fields.contains_key("role") {
            delta.remove("role");
        }
        show(delta.get("content").and_then(Value::as_str).unwrap_or_default());
        if let Some(Value::Array(calls)) = delta.remove("tool_calls") {
            for call in calls {
                self.add_call(call);
            }
        }
        self.kept += merge_fields(&mut self.fields, delta);
    }

    fn add_call(&mut self, call: Value) {
        let Value::Object(mut call) = call else { return };
        let last = self.calls.last_key_value().map(|(index, _)| *index);
        let is_new = call.get("id").and_then(Value::as_str).is_some_and(|id| !id.is_empty());
        // Some servers omit the index; then a piece with an id starts a call.
        let index = call.remove("index").and_then(|index| index.as_u64()).unwrap_or(match last {
            Some(last) if is_new => last.saturating_add(1),
            last => last.unwrap_or(0),
        });
        self.kept += usize::from(!self.calls.contains_key(&index));
        let known = self.calls.entry(index).or_default();
        // Id and type are complete in their first piece, and some servers repeat them.
        for name in ["id", "type"] {
            if known.contains_key(name) {
                call.remove(name);
            }
        }
        if let (Some(Value::Object(function)), true) =
            (call.get_mut("function"), known.contains_key("function"))
        {
            function.remove("name");
        }
        self.kept += merge_fields(known, call);
    }
}

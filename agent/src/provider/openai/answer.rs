//! Parses a chat completion.

use crate::pairing::MessageFormat;
use foldlog::conversation::{ContentBlocks, TokenUsage, ToolCallRecord};
use foldlog::escape;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::provider::http::Reply;
use crate::provider::rendering::text_of_blocks;
use crate::provider::{ProviderAnswer, ProviderErrorKind, Result, is_cut};

#[derive(Deserialize)]
struct Completion<'a> {
    model: Option<String>,
    #[serde(borrow, default)]
    choices: Vec<CompletionChoice<'a>>,
    usage: Option<OpenAiUsage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct CompletionChoice<'a> {
    #[serde(borrow)]
    message: &'a RawValue,
    finish_reason: Option<String>,
}

/// Counts the tokens of a request as the protocol does.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct OpenAiUsage {
    prompt_tokens: u64,
    completion_tokens: u64,
    prompt_tokens_details: Option<TokenDetails>,
    completion_tokens_details: Option<TokenDetails>,
}

/// Counts those tokens of a prompt or of an answer that are counted separately.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct TokenDetails {
    cached_tokens: Option<u64>,
    reasoning_tokens: Option<u64>,
}

impl OpenAiUsage {
    /// Returns the tokens as records count them: tokens from the cache separately, which OpenAI
    /// includes in the prompt.
    pub(super) fn tokens(self) -> TokenUsage {
        let cached = self.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0);
        let reasoning = self.completion_tokens_details.and_then(|details| details.reasoning_tokens);
        TokenUsage {
            input: self.prompt_tokens.saturating_sub(cached),
            output: self.completion_tokens,
            cache_read: cached,
            cache_write: 0,
            reasoning: reasoning.unwrap_or(0),
        }
    }
}

/// Parses the body of a reply that is not streamed.
pub(super) fn read(reply: &Reply<'_>, body: &[u8]) -> Result<ProviderAnswer> {
    let completion: Completion<'_> = serde_json::from_slice(body).map_err(|error| reply.not_json(&error))?;
    if let Some(error) = completion.error.filter(|error| !error.is_null()) {
        return Err(reply.refusal_error(reply.status, &serde_json::json!({ "error": error })));
    }
    let usage = completion.usage.map(OpenAiUsage::tokens);
    let invalid =
        |what: &str| reply.error_after(reply.error(ProviderErrorKind::InvalidAnswer, what), "", usage);
    let choice = completion.choices.first().ok_or_else(|| invalid("the reply holds no choice"))?;
    let fields: Map<String, Value> =
        escape::read_json(choice.message.get()).map_err(|_| invalid("the message is no object"))?;
    let message = OpenAiAnswer { fields, raw: Some(choice.message.get()) };
    message.answer(reply, choice.finish_reason.clone(), completion.model, usage)
}

/// Contains a complete message of the model.
pub(super) struct OpenAiAnswer<'a> {
    pub(super) fields: Map<String, Value>,
    /// JSON of the message, as it arrived; `None` if it arrived in pieces.
    pub(super) raw: Option<&'a str>,
}

impl OpenAiAnswer<'_> {
    /// Converts the message into the answer or failure that it represents.
    pub(super) fn answer(
        self,
        reply: &Reply<'_>,
        stop: Option<String>,
        model: Option<String>,
        usage: Option<TokenUsage>,
    ) -> Result<ProviderAnswer> {
        let text = self.fields.get("content").and_then(Value::as_str).unwrap_or_default();
        let failed = |kind, message: String| Err(reply.error_after(reply.error(kind, message), text, usage));
        let refusal = self.fields.get("refusal").and_then(Value::as_str).unwrap_or_default();
        if !refusal.is_empty() {
            return failed(
                ProviderErrorKind::Refused,
                format!("the model refused: {}", reply.client.sanitize(refusal)),
            );
        }
        if stop.as_deref() == Some("content_filter") {
            return failed(ProviderErrorKind::ContentFilter, "a filter held the answer back".to_owned());
        }
        let calls = match self.calls() {
            Ok(calls) => calls,
            Err(what) => return failed(ProviderErrorKind::InvalidAnswer, what.to_owned()),
        };
        let last_is_whole = calls
            .last()
            .is_none_or(|call| serde_json::from_str::<Map<String, Value>>(&call.arguments).is_ok());
        let blocks = self.blocks();
        let reduced = |blocks: &ContentBlocks| text_of_blocks(blocks).filter(|text| !text.is_empty());
        let content = match self.fields.get("content") {
            Some(Value::String(text)) => Some(text.clone()),
            _ => blocks.as_ref().and_then(reduced),
        };
        Ok(ProviderAnswer {
            content,
            last_call_incomplete: is_cut(stop.as_deref()) && !last_is_whole,
            calls,
            blocks,
            stop,
            model,
            usage,
            ..ProviderAnswer::default()
        })
    }

    fn calls(&self) -> Result<Vec<ToolCallRecord>, &'static str> {
        let calls = match self.fields.get("tool_calls") {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Array(calls)) => calls,
            Some(_) => return Err("the tool calls are no list"),
        };
        let record = |call: &Value| {
            let function = call.get("function").ok_or("a tool call names no function")?;
            let name = function.get("name").and_then(Value::as_str).ok_or("a tool call names no function")?;
            let arguments = match function.get("arguments") {
                Some(Value::String(arguments)) => arguments.clone(),
                None | Some(Value::Null) => String::new(),
                Some(other) => other.to_string(),
            };
            let call_id = call.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
            Ok(ToolCallRecord { call_id, name: name.to_owned(), arguments })
        };
        calls.iter().map(record).collect()
    }

    /// Returns the whole message, if it contains more than a text and calls.
    fn blocks(&self) -> Option<ContentBlocks> {
        let is_plain = self.fields.iter().all(|(name, value)| match name.as_str() {
            "role" => true,
            "content" => value.is_null() || value.is_string(),
            "tool_calls" => value.as_array().is_none_or(|calls| calls.iter().all(is_plain_call)),
            _ => is_empty(value),
        });
        if is_plain {
            return None;
        }
        let json = match self.raw {
            Some(raw) => raw.to_owned(),
            None => serde_json::to_string(&self.fields).ok()?,
        };
        Some(ContentBlocks { format: MessageFormat::OpenAi.name().to_owned(), json })
    }
}

fn is_plain_call(call: &Value) -> bool {
    call.as_object().is_some_and(|fields| {
        fields.iter().all(|(name, value)| match name.as_str() {
            "id" | "type" | "index" => true,
            "function" => value.as_object().is_some_and(|function| {
                function.iter().all(|(name, value)| {
                    (name == "name" || name == "arguments") && value.is_string() || is_empty(value)
                })
            }),
            _ => is_empty(value),
        })
    })
}

/// Returns whether a field is empty.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

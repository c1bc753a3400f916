//! Parses a message of the Messages API.

use std::collections::BTreeMap;

use crate::pairing::MessageFormat;
use foldlog::conversation::{ContentBlocks, TokenUsage, ToolCallRecord};
use foldlog::escape;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::provider::http::Reply;
use crate::provider::rendering::made_blocks;
use crate::provider::{ProviderAnswer, ProviderErrorKind, Result, is_cut};

/// Contains the fields of a message other than its content.
#[derive(Default, Deserialize)]
pub(super) struct AnthropicAnswerHead {
    pub(super) model: Option<String>,
    pub(super) stop_reason: Option<String>,
    pub(super) usage: Option<AnthropicUsage>,
}

/// Counts the tokens of a request as the API does. A stream reports them in parts: a field that is
/// `None` was not reported yet.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct AnthropicUsage {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
}

impl AnthropicUsage {
    /// Applies a later report, whose numbers replace the earlier ones.
    pub(super) fn update(self, later: AnthropicUsage) -> AnthropicUsage {
        AnthropicUsage {
            input_tokens: later.input_tokens.or(self.input_tokens),
            output_tokens: later.output_tokens.or(self.output_tokens),
            cache_creation_input_tokens: later
                .cache_creation_input_tokens
                .or(self.cache_creation_input_tokens),
            cache_read_input_tokens: later.cache_read_input_tokens.or(self.cache_read_input_tokens),
        }
    }

    pub(super) fn tokens(self) -> TokenUsage {
        TokenUsage {
            input: self.input_tokens.unwrap_or(0),
            output: self.output_tokens.unwrap_or(0),
            cache_read: self.cache_read_input_tokens.unwrap_or(0),
            cache_write: self.cache_creation_input_tokens.unwrap_or(0),
            reasoning: 0,
        }
    }
}

/// Contains the complete content of a message.
#[derive(Default)]
pub(super) struct AnthropicAnswerContent {
    /// All texts, concatenated; `None` if there is none.
    pub(super) text: Option<String>,
    /// Calls, by ordinal.
    pub(super) calls: Vec<ToolCallRecord>,
    /// Whether the content ends with a call whose arguments may be incomplete.
    pub(super) ends_with_open_call: bool,
    /// JSON of the content.
    pub(super) json: String,
    /// Whether text and calls reproduce the content exactly.
    pub(super) is_plain: bool,
}

/// Parses the body of a reply that is not streamed.
pub(super) fn read(reply: &Reply<'_>, body: &[u8]) -> Result<ProviderAnswer> {
    let fields: BTreeMap<&str, &RawValue> =
        serde_json::from_slice(body).map_err(|error| reply.not_json(&error))?;
    let kind = fields.get("type").map_or("", |kind| kind.get());
    if kind == "\"error\"" {
        let said: Value = serde_json::from_slice(body).map_err(|error| reply.not_json(&error))?;
        return Err(reply.refusal_error(reply.status, &said));
    }
    let part = |name: &str| fields.get(name).map_or("null", |value| value.get());
    let text = |name: &str| escape::read_json::<Option<String>>(part(name)).unwrap_or_default();
    let usage = serde_json::from_str::<Option<AnthropicUsage>>(part("usage")).unwrap_or_default();
    let head = AnthropicAnswerHead { model: text("model"), stop_reason: text("stop_reason"), usage };
    let tokens = usage.map(AnthropicUsage::tokens);
    let content =
        fields.get("content").ok_or("the reply holds no content").and_then(|raw| parse_content(raw));
    match content {
        Ok(content) => finish(reply, head, content),
        Err(what) => Err(reply.error_after(reply.error(ProviderErrorKind::InvalidAnswer, what), "", tokens)),
    }
}

/// Parses a content that arrived in one piece.
fn parse_content(raw: &RawValue) -> Result<AnthropicAnswerContent, &'static str> {
    let blocks: Vec<BTreeMap<String, Box<RawValue>>> =
        serde_json::from_str(raw.get()).map_err(|_| "the content is no list of blocks")?;
    let mut content =
        AnthropicAnswerContent { json: raw.get().to_owned(), ..AnthropicAnswerContent::default() };
    for block in &blocks {
        let text =
            |name: &str| block.get(name).and_then(|value| escape::read_json::<String>(value.get()).ok());
        content.ends_with_open_call = false;
        match text("type").as_deref() {
            Some("text") => content.text.get_or_insert_default().push_str(&text("text").unwrap_or_default()),
            Some("tool_use") => {
                let (call_id, name) = (text("id").unwrap_or_default(), text("name"));
                let name = name.ok_or("a tool call names no tool")?;
                let arguments = block.get("input").map_or("{}", |input| input.get()).to_owned();
                content.calls.push(ToolCallRecord { call_id, name, arguments });
                content.ends_with_open_call = true;
            }
            _ => {}
        }
    }
    content.is_plain = made_blocks(content.text.as_deref(), &content.calls) == content.json;
    Ok(content)
}

/// Converts a message into the answer or failure that it represents.
pub(super) fn finish(
    reply: &Reply<'_>,
    head: AnthropicAnswerHead,
    content: AnthropicAnswerContent,
) -> Result<ProviderAnswer> {
    let usage = head.usage.map(AnthropicUsage::tokens);
    let stop = head.stop_reason;
    if stop.as_deref() == Some("refusal") {
        let text = content.text.unwrap_or_default();
        let message = match text.trim() {
            "" => "the model refused".to_owned(),
            said => format!("the model refused: {}", reply.client.sanitize(said)),
        };
        return Err(reply.error_after(reply.error(ProviderErrorKind::Refused, message), &text, usage));
    }
    let at_length = is_cut(stop.as_deref());
    let blocks = (!content.is_plain)
        .then(|| ContentBlocks { format: MessageFormat::Anthropic.name().to_owned(), json: content.json });
    Ok(ProviderAnswer {
        content: content.text,
        last_call_incomplete: at_length && content.ends_with_open_call,
        calls: content.calls,
        blocks,
        continues: stop.as_deref() == Some("pause_turn"),
        stop,
        model: head.model,
        usage,
        ..ProviderAnswer::default()
    })
}

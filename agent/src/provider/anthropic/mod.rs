//! Sends requests to Anthropic's Messages API.

mod answer;
mod markers;
mod stream;

use std::borrow::Cow;

use serde_json::{Value, json};

use super::http::{Client, Dialect, HttpProvider, Parameters, Reply, names, unsupported_error};
use super::rendering::AnthropicConversation;
use super::{LlmConfig, ProviderAnswer, ProviderRequest, Result, ToolChoice, ToolSpec};

/// Version of the API.
const VERSION: &str = "2023-06-01";
/// Default limit for the tokens of an answer. The API requires a limit.
const MAX_TOKENS: u32 = 8192;

/// Sends requests to one model of Anthropic's Messages API. Requests go to `/v1/messages` below the
/// base URL, such as `https://api.anthropic.com`.
///
/// An answer that contains more than a text and calls, such as thinking with its signature, is
/// stored as [`ContentBlocks`](foldlog::conversation::ContentBlocks) and sent back unchanged.
pub type AnthropicProvider = HttpProvider<AnthropicDialect>;

/// The protocol of the Messages API.
#[derive(Debug)]
pub struct AnthropicDialect {
    cache: bool,
}

impl HttpProvider<AnthropicDialect> {
    /// Sets whether requests ask the API to cache the tools, the prompt and the messages so far.
    /// The default is `false`.
    ///
    /// The markers are added when the request is sent: they are neither in the prepared body nor in
    /// its digest.
    pub fn with_cache(mut self, cache: bool) -> AnthropicProvider {
        self.dialect.cache = cache;
        self
    }
}

fn tool(tool: &ToolSpec) -> Value {
    json!({ "name": tool.name, "description": tool.description, "input_schema": tool.parameters })
}

fn tool_choice(config: &LlmConfig) -> Option<Value> {
    let mut choice = match &config.tool_choice {
        ToolChoice::Auto if config.parallel_tool_calls.is_none() => return None,
        ToolChoice::Auto => json!({ "type": "auto" }),
        ToolChoice::None => return Some(json!({ "type": "none" })),
        ToolChoice::Required => json!({ "type": "any" }),
        ToolChoice::Tool(name) => json!({ "type": "tool", "name": name }),
    };
    if let (Some(parallel), Some(fields)) = (config.parallel_tool_calls, choice.as_object_mut()) {
        fields.insert("disable_parallel_tool_use".to_owned(), (!parallel).into());
    }
    Some(choice)
}

impl Dialect for AnthropicDialect {
    const NAME: &'static str = "anthropic";
    const PATH: &'static str = "/v1/messages";
    type Stream = stream::AnthropicStream;

    fn of_client(client: &mut Client) -> Result<AnthropicDialect> {
        client.set_key_header("x-api-key", "")?;
        client.add_header("anthropic-version", VERSION)?;
        Ok(AnthropicDialect { cache: false })
    }

    fn write_request(&self, request: &ProviderRequest<'_>, parameters: &mut Parameters) -> Result<()> {
        let config = request.config;
        if config.seed.is_some() {
            let message = "the Messages API takes no seed: leave it out";
            return Err(unsupported_error(message));
        }
        parameters.set("max_tokens", Some(config.max_tokens.unwrap_or(MAX_TOKENS)));
        parameters.set("temperature", config.temperature);
        parameters.set("top_p", config.top_p);
        parameters.set("stop_sequences", (!config.stop.is_empty()).then(|| config.stop.clone()));
        parameters.set("stream", config.stream.then_some(true));
        if !request.tools.is_empty() {
            parameters.set("tool_choice", tool_choice(config));
        }
        let format = |schema: &Value| json!({ "format": { "type": "json_schema", "schema": schema } });
        parameters.set("output_config", request.output.map(|output| format(&output.schema)));
        let conversation = AnthropicConversation::new(request.messages, &names(request.tools));
        if !request.tools.is_empty() {
            parameters.part("tools", &request.tools.iter().map(tool).collect::<Vec<_>>())?;
        }
        if let Some(system) = &conversation.system {
            parameters.part("system", system)?;
        }
        parameters.part("messages", &conversation.messages)
    }

    fn sent_body<'a>(&self, prepared: &'a [u8]) -> Cow<'a, [u8]> {
        let marked = self.cache.then(|| markers::add(prepared)).flatten();
        marked.map_or(Cow::Borrowed(prepared), Cow::Owned)
    }

    fn read_answer(reply: &Reply<'_>, body: &[u8]) -> Result<ProviderAnswer> {
        answer::read(reply, body)
    }
}

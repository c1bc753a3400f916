//! Sends requests to OpenAI's chat completions, or to a server with the same protocol.

mod answer;
mod stream;

use serde_json::{Value, json};

use super::http::{Client, Dialect, HttpProvider, Parameters, Reply, names};
use super::rendering::{openai_messages, sent_name};
use super::{OutputSpec, ProviderAnswer, ProviderRequest, Result, ToolChoice, ToolSpec};
use crate::pairing::MessageFormat;

/// Sends requests to one model of OpenAI's chat completions, or of a server with the same protocol.
/// Requests go to `/chat/completions` below the base URL, such as `https://api.openai.com/v1`.
///
/// An answer that contains more than a text and calls, such as reasoning that the server expects
/// back, is stored as [`ContentBlocks`](foldlog::conversation::ContentBlocks) and sent back
/// unchanged.
pub type OpenAiProvider = HttpProvider<OpenAiDialect>;

/// The protocol of chat completions.
#[derive(Debug)]
pub struct OpenAiDialect {
    /// Name of the parameter that limits an answer's length.
    max_tokens: &'static str,
    strict: bool,
}

impl HttpProvider<OpenAiDialect> {
    /// Sets whether the server enforces the schema of outputs, which it must then support
    /// completely. The default is `false`.
    pub fn with_strict_output(mut self, strict: bool) -> OpenAiProvider {
        self.dialect.strict = strict;
        self
    }
}

impl OpenAiDialect {
    fn response_format(&self, output: &OutputSpec) -> Value {
        let name = sent_name(&output.name, &[], MessageFormat::OpenAi);
        json!({
            "type": "json_schema",
            "json_schema": { "name": name, "schema": output.schema, "strict": self.strict },
        })
    }
}

fn tool(tool: &ToolSpec) -> Value {
    json!({
        "type": "function",
        "function": { "name": tool.name, "description": tool.description, "parameters": tool.parameters },
    })
}

fn tool_choice(choice: &ToolChoice) -> Option<Value> {
    match choice {
        ToolChoice::Auto => None,
        ToolChoice::None => Some("none".into()),
        ToolChoice::Required => Some("required".into()),
        ToolChoice::Tool(name) => Some(json!({ "type": "function", "function": { "name": name } })),
    }
}

impl Dialect for OpenAiDialect {
    const NAME: &'static str = "openai";
    const PATH: &'static str = "/chat/completions";
    type Stream = stream::OpenAiStream;

    fn of_client(client: &mut Client) -> Result<OpenAiDialect> {
        client.set_key_header("authorization", "Bearer ")?;
        let max_tokens =
            if client.host.ends_with("openai.com") { "max_completion_tokens" } else { "max_tokens" };
        Ok(OpenAiDialect { max_tokens, strict: false })
    }

    fn write_request(&self, request: &ProviderRequest<'_>, parameters: &mut Parameters) -> Result<()> {
        let config = request.config;
        parameters.set("temperature", config.temperature);
        parameters.set(self.max_tokens, config.max_tokens);
        parameters.set("top_p", config.top_p);
        parameters.set("seed", config.seed);
        parameters.set("stop", (!config.stop.is_empty()).then(|| config.stop.clone()));
        if config.stream {
            parameters.set("stream", Some(true));
            parameters.set("stream_options", Some(json!({ "include_usage": true })));
        }
        if !request.tools.is_empty() {
            parameters.set("tool_choice", tool_choice(&config.tool_choice));
            parameters.set("parallel_tool_calls", config.parallel_tool_calls);
        }
        parameters.set("response_format", request.output.map(|output| self.response_format(output)));
        parameters.part("messages", &openai_messages(request.messages, &names(request.tools)))?;
        if !request.tools.is_empty() {
            parameters.part("tools", &request.tools.iter().map(tool).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    fn read_answer(reply: &Reply<'_>, body: &[u8]) -> Result<ProviderAnswer> {
        answer::read(reply, body)
    }
}

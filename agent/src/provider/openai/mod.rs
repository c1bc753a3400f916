//! Asks OpenAI's chat completions, or a server that speaks the same protocol.

mod answer;
mod stream;

use crate::pairing::MessageFormat;
use serde_json::{Value, json};

use super::http::{Client, Timeouts};
use super::parameters::{Parameters, names};
use super::rendering::{openai_messages, sent_name};
use super::{
    ApiKey, OutputSpec, PreparedRequest, Provider, ProviderAnswer, ProviderError, ProviderRequest,
    SendOptions, ToolChoice, ToolSpec,
};

const NAME: &str = "openai";

/// Asks one model of OpenAI's chat completions, or of a server that speaks the same protocol.
///
/// An answer that holds more than a text and calls, such as reasoning that the server wants to see again, is kept as
/// [`ContentBlocks`](foldlog::conversation::ContentBlocks) and sent back as it was. It connects anew for each request.
#[derive(Debug)]
pub struct OpenAiProvider {
    client: Client,
    model: String,
    name: String,
    chosen: Vec<(String, Value)>,
    max_tokens: &'static str,
    strict: bool,
}

impl OpenAiProvider {
    /// Makes a provider from the URL that `/chat/completions` stands below, such as `https://api.openai.com/v1`.
    ///
    /// # Errors
    ///
    /// [`ProviderErrorKind::Unsupported`](super::ProviderErrorKind::Unsupported) if the URL cannot be used.
    pub fn new(
        base_url: &str,
        key: Option<ApiKey>,
        model: impl Into<String>,
    ) -> Result<OpenAiProvider, Box<ProviderError>> {
        let mut client = Client::new(NAME, base_url, "/chat/completions", key)?;
        client.set_key_header("authorization", "Bearer ")?;
        let max_tokens =
            if client.host().ends_with("openai.com") { "max_completion_tokens" } else { "max_tokens" };
        let (model, name) = (model.into(), NAME.to_owned());
        Ok(OpenAiProvider { client, model, name, chosen: Vec::new(), max_tokens, strict: false })
    }

    /// Sets the provider's name, `openai` unless set.
    pub fn with_name(mut self, name: impl Into<String>) -> OpenAiProvider {
        self.name = name.into();
        self
    }

    /// Sets how long the phases of a request may take.
    pub fn with_timeouts(mut self, timeouts: Timeouts) -> OpenAiProvider {
        self.client.set_timeouts(timeouts);
        self
    }

    /// Sends requests through a proxy, such as `http://host:port`. No proxy is taken from the environment.
    ///
    /// # Errors
    ///
    /// [`ProviderErrorKind::Unsupported`](super::ProviderErrorKind::Unsupported) if the URL cannot be used.
    pub fn with_proxy(mut self, url: &str) -> Result<OpenAiProvider, Box<ProviderError>> {
        self.client.set_proxy(url)?;
        Ok(self)
    }

    /// Adds a header to each request. Its value is not shown, and not recorded.
    ///
    /// # Errors
    ///
    /// [`ProviderErrorKind::Unsupported`](super::ProviderErrorKind::Unsupported) if it is no header.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<OpenAiProvider, Box<ProviderError>> {
        self.client.add_header(name, value)?;
        Ok(self)
    }

    /// Sets a parameter of each request by its name, such as `reasoning_effort`. It is recorded, and replaces one that
    /// the configuration of a request sets.
    pub fn with_parameter(mut self, name: impl Into<String>, value: impl Into<Value>) -> OpenAiProvider {
        self.chosen.push((name.into(), value.into()));
        self
    }

    /// Sets whether the server itself holds outputs to their schema, which it then must support in full. By default it does
    /// not.
    pub fn with_strict_output(mut self, strict: bool) -> OpenAiProvider {
        self.strict = strict;
        self
    }

    fn response_format(&self, output: &OutputSpec) -> Value {
        let name = sent_name(&output.name, &[], 64);
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

impl Provider for OpenAiProvider {
    fn name(&self) -> &str {
        &self.name
    }

    fn limited_as(&self) -> &str {
        self.client.limited_as()
    }

    fn message_format(&self) -> MessageFormat {
        MessageFormat::OpenAi
    }

    fn prepare(&self, request: &ProviderRequest<'_>) -> Result<PreparedRequest, Box<ProviderError>> {
        let config = request.config;
        let mut parameters = Parameters::default();
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
        parameters.extend(&self.chosen);
        parameters.part("messages", &openai_messages(request.messages, &names(request.tools)))?;
        if !request.tools.is_empty() {
            parameters.part("tools", &request.tools.iter().map(tool).collect::<Vec<_>>())?;
        }
        parameters.prepare(&self.model, config.stream)
    }

    fn send(
        &self,
        prepared: &PreparedRequest,
        options: &mut SendOptions<'_>,
    ) -> Result<ProviderAnswer, Box<ProviderError>> {
        let accept = if prepared.stream { "text/event-stream" } else { "application/json" };
        let mut reply = self.client.post(&prepared.body, accept, options)?;
        if prepared.stream && reply.is_stream() {
            return stream::read(&mut reply, options);
        }
        let body = reply.read_all()?;
        answer::read(&reply, &body)
    }
}

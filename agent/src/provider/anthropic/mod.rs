//! Asks Anthropic's Messages API.

mod answer;
mod markers;
mod stream;

use crate::pairing::MessageFormat;
use serde_json::{Value, json};

use super::http::{Client, Timeouts};
use super::parameters::{Parameters, names};
use super::rendering::AnthropicConversation;
use super::{
    ApiKey, LlmConfig, PreparedRequest, Provider, ProviderAnswer, ProviderError, ProviderErrorKind,
    ProviderRequest, SendOptions, ToolChoice, ToolSpec,
};

const NAME: &str = "anthropic";
/// Version of the API that this module speaks.
const VERSION: &str = "2023-06-01";
/// Greatest number of tokens of an answer where the host sets none: the API asks for one.
const MAX_TOKENS: u32 = 8192;

/// Asks one model of Anthropic's Messages API.
///
/// An answer that holds more than a text and calls, such as thinking with its signature, is kept as
/// [`ContentBlocks`](foldlog::conversation::ContentBlocks) and sent back as it was. It connects anew for each request.
#[derive(Debug)]
pub struct AnthropicProvider {
    client: Client,
    model: String,
    name: String,
    chosen: Vec<(String, Value)>,
    cache: bool,
}

impl AnthropicProvider {
    /// Makes a provider from the URL that `/v1/messages` stands below, such as `https://api.anthropic.com`.
    ///
    /// # Errors
    ///
    /// [`ProviderErrorKind::Unsupported`] if the URL cannot be used.
    pub fn new(
        base_url: &str,
        key: Option<ApiKey>,
        model: impl Into<String>,
    ) -> Result<AnthropicProvider, Box<ProviderError>> {
        let mut client = Client::new(NAME, base_url, "/v1/messages", key)?;
        client.set_key_header("x-api-key", "")?;
        client.add_header("anthropic-version", VERSION)?;
        let (model, name) = (model.into(), NAME.to_owned());
        Ok(AnthropicProvider { client, model, name, chosen: Vec::new(), cache: false })
    }

    /// Sets the provider's name, `anthropic` unless set.
    pub fn with_name(mut self, name: impl Into<String>) -> AnthropicProvider {
        self.name = name.into();
        self
    }

    /// Sets how long the phases of a request may take.
    pub fn with_timeouts(mut self, timeouts: Timeouts) -> AnthropicProvider {
        self.client.set_timeouts(timeouts);
        self
    }

    /// Sends requests through a proxy, such as `http://host:port`. No proxy is taken from the environment.
    ///
    /// # Errors
    ///
    /// [`ProviderErrorKind::Unsupported`] if the URL cannot be used.
    pub fn with_proxy(mut self, url: &str) -> Result<AnthropicProvider, Box<ProviderError>> {
        self.client.set_proxy(url)?;
        Ok(self)
    }

    /// Adds a header to each request, such as `anthropic-beta`. Its value is not shown, and not recorded.
    ///
    /// # Errors
    ///
    /// [`ProviderErrorKind::Unsupported`] if it is no header.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<AnthropicProvider, Box<ProviderError>> {
        self.client.add_header(name, value)?;
        Ok(self)
    }

    /// Sets a parameter of each request by its name, such as `thinking`. It is recorded, and replaces one that the
    /// configuration of a request sets.
    pub fn with_parameter(mut self, name: impl Into<String>, value: impl Into<Value>) -> AnthropicProvider {
        self.chosen.push((name.into(), value.into()));
        self
    }

    /// Sets whether requests ask the API to cache the tools, the prompt and the messages so far. By default they do not.
    ///
    /// Sending adds the markers that ask for it: they are not in the body that was prepared, nor in its digest.
    pub fn with_cache(mut self, cache: bool) -> AnthropicProvider {
        self.cache = cache;
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

impl Provider for AnthropicProvider {
    fn name(&self) -> &str {
        &self.name
    }

    fn limited_as(&self) -> &str {
        self.client.limited_as()
    }

    fn message_format(&self) -> MessageFormat {
        MessageFormat::Anthropic
    }

    fn prepare(&self, request: &ProviderRequest<'_>) -> Result<PreparedRequest, Box<ProviderError>> {
        let config = request.config;
        if config.seed.is_some() {
            let message = "the Messages API takes no seed: leave it out";
            return Err(Box::new(ProviderError::new(ProviderErrorKind::Unsupported, message)));
        }
        let mut parameters = Parameters::default();
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
        parameters.extend(&self.chosen);
        let conversation = AnthropicConversation::new(request.messages, &names(request.tools));
        if !request.tools.is_empty() {
            parameters.part("tools", &request.tools.iter().map(tool).collect::<Vec<_>>())?;
        }
        if let Some(system) = &conversation.system {
            parameters.part("system", system)?;
        }
        parameters.part("messages", &conversation.messages)?;
        parameters.prepare(&self.model, config.stream)
    }

    fn send(
        &self,
        prepared: &PreparedRequest,
        options: &mut SendOptions<'_>,
    ) -> Result<ProviderAnswer, Box<ProviderError>> {
        let marked = self.cache.then(|| markers::add(&prepared.body)).flatten();
        let body = marked.as_deref().unwrap_or(&prepared.body);
        let accept = if prepared.stream { "text/event-stream" } else { "application/json" };
        let mut reply = self.client.post(body, accept, options)?;
        if prepared.stream && reply.is_stream() {
            return stream::read(&mut reply, options);
        }
        let body = reply.read_all()?;
        answer::read(&reply, &body)
    }
}

//! Defines what a provider of a model is to the loop that drives it.
//!
//! A [`Provider`] *prepares* a request, so that the loop can record what is about to be sent, and then *sends* it. An
//! answer arrives whole or not at all: while it streams, its text is shown to whoever asks for it, and is discarded if
//! the stream breaks. An [`AsyncProvider`] sends as a future (feature `async`), over whichever HTTP client its host has.

#[cfg(feature = "anthropic")]
pub mod anthropic;
#[cfg(any(feature = "openai", feature = "anthropic"))]
mod api_key;
#[cfg(feature = "async")]
mod futures;
#[cfg(any(feature = "openai", feature = "anthropic"))]
mod http;
#[cfg(any(feature = "openai", feature = "anthropic"))]
mod merge;
#[cfg(feature = "openai")]
pub mod openai;
#[cfg(any(feature = "openai", feature = "anthropic"))]
mod parameters;
pub mod rendering;
pub mod retry;
pub mod scripted;
#[cfg(any(feature = "openai", feature = "anthropic"))]
mod sse;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::pairing::MessageFormat;
#[cfg(any(feature = "openai", feature = "anthropic"))]
pub use api_key::ApiKey;
use foldlog::conversation::{ContentBlocks, ConversationMessage, TokenUsage, ToolCallRecord};
#[cfg(feature = "async")]
pub use futures::{AsyncProvider, AsyncSendOptions, BlockingProvider};
#[cfg(any(feature = "openai", feature = "anthropic"))]
pub use http::{HttpProvider, Timeouts};

/// Describes a tool to a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// Name by which the model calls the tool.
    pub name: String,
    /// What the tool does.
    pub description: String,
    /// JSON schema of the tool's parameters.
    pub parameters: serde_json::Value,
}

/// Describes the output that a model has to give.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputSpec {
    /// Name of the output's type.
    pub name: String,
    /// JSON schema of the output.
    pub schema: serde_json::Value,
}

/// Says whether the model may, must or must not call tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// The model calls no tool.
    None,
    /// The model calls at least one tool.
    Required,
    /// The model calls this tool.
    Tool(String),
}

/// Sets how a model is asked. What is `None` is left to the provider.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LlmConfig {
    /// Temperature of the sampling.
    pub temperature: Option<f64>,
    /// Greatest number of tokens of an answer.
    pub max_tokens: Option<u32>,
    /// Probability mass that the sampling considers.
    pub top_p: Option<f64>,
    /// Seed of the sampling.
    pub seed: Option<u64>,
    /// Texts at which an answer ends.
    pub stop: Vec<String>,
    /// Whether and which tools the model calls.
    pub tool_choice: ToolChoice,
    /// Whether one answer may hold several tool calls.
    pub parallel_tool_calls: Option<bool>,
    /// Whether the answer is streamed. It is in any case if somebody is told what arrives
    /// ([`EvaluateOptions::on_delta`](crate::EvaluateOptions::on_delta)).
    pub stream: bool,
}

/// Holds one request, in no provider's form.
#[derive(Clone, Copy, Debug)]
pub struct ProviderRequest<'a> {
    /// Messages, valid for every provider: each call has its result directly behind its answer.
    pub messages: &'a [ConversationMessage],
    /// Tools that the model may call.
    pub tools: &'a [ToolSpec],
    /// Output that the model has to give, if it is structured.
    pub output: Option<&'a OutputSpec>,
    /// How the model is asked.
    pub config: &'a LlmConfig,
}

/// Holds a request in the provider's form, ready to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedRequest {
    /// Model that is asked.
    pub model: String,
    /// Parameters beside messages and tools, for the record: JSON.
    pub parameters: serde_json::Value,
    /// Body of the request.
    pub body: Vec<u8>,
    /// Whether the answer is streamed.
    pub stream: bool,
}

/// Holds what a request may take, who may cancel it, and who sees its text meanwhile.
#[derive(Default)]
pub struct SendOptions<'a> {
    /// Moment at which the request is given up.
    pub deadline: Option<Instant>,
    /// Cancels the request when it is set.
    pub cancel: CancelToken,
    /// Is told what arrives, before anything of it is recorded.
    pub on_delta: Option<&'a mut dyn FnMut(Delta<'_>)>,
}

impl fmt::Debug for SendOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendOptions").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl SendOptions<'_> {
    /// Tells that the text shown so far is discarded, if any was `shown`.
    fn discard(&mut self, shown: bool) {
        if let Some(on_delta) = self.on_delta.as_mut().filter(|_| shown) {
            on_delta(Delta::Discarded);
        }
    }
}

/// Tells what arrives of an answer that is not recorded yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delta<'a> {
    /// Text of the answer.
    Text(&'a str),
    /// What was shown of this answer is discarded: the request failed, or is sent again.
    Discarded,
}

/// Cancels an evaluation from another thread. Clones are the same token.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<CancelState>);

/// Holds whether a token was set.
#[derive(Debug, Default)]
struct CancelState {
    is_set: AtomicBool,
    /// Is notified when the token is set.
    #[cfg(feature = "async")]
    futures: event_listener::Event,
    /// Token that sets this one too.
    #[cfg(feature = "async")]
    around: Option<CancelToken>,
}

impl CancelToken {
    /// Makes a token that nobody has set.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Cancels whatever the token was given to.
    pub fn cancel(&self) {
        self.0.is_set.store(true, Ordering::Release);
        #[cfg(feature = "async")]
        self.0.futures.notify(usize::MAX);
    }

    /// Returns whether the token was set.
    pub fn is_cancelled(&self) -> bool {
        #[cfg(feature = "async")]
        if self.0.around.as_ref().is_some_and(CancelToken::is_cancelled) {
            return true;
        }
        self.0.is_set.load(Ordering::Acquire)
    }
}

/// Holds a complete answer of a provider.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProviderAnswer {
    /// Text of the answer; `None` if it has none.
    pub content: Option<String>,
    /// Tool calls that the answer asks for, by ordinal.
    pub calls: Vec<ToolCallRecord>,
    /// Whether the last call's arguments are incomplete, since the answer reached its length.
    pub last_call_incomplete: bool,
    /// Answer in the provider's own form, where text and calls do not reproduce it byte for byte.
    pub blocks: Option<ContentBlocks>,
    /// Reason that the provider gave for ending the answer.
    pub stop: Option<String>,
    /// Whether the provider wants to be asked again with the answer as it is.
    pub continues: bool,
    /// Model that answered.
    pub model: Option<String>,
    /// Id that the provider gave the request.
    pub request_id: Option<String>,
    /// What the request used.
    pub usage: Option<TokenUsage>,
    /// Headers of the reply that say how many requests are allowed.
    pub rate_limits: Vec<(String, String)>,
    /// Whatever else is to be kept of the answer.
    pub payload: Option<serde_json::Value>,
}

/// Names why a provider gives no answer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleKind {
    /// Too many requests or tokens in a time.
    RateLimit,
    /// A quota is used up.
    QuotaExhausted,
    /// The request or the connection took too long.
    Timeout,
    /// The provider has no capacity now, or failed by itself.
    Overloaded,
    /// Something else that may pass.
    Unknown,
}

impl ProviderAnswer {
    /// Returns whether a reason for ending an answer, as a provider gives it, says that the answer reached its greatest
    /// length: `length` of OpenAI, and `max_tokens` and `model_context_window_exceeded` of Anthropic.
    pub fn is_cut(stop: Option<&str>) -> bool {
        matches!(stop, Some("length" | "max_tokens" | "model_context_window_exceeded"))
    }
}

/// Says what is known of a provider that gives no answer now.
#[derive(Clone, Debug, PartialEq)]
pub struct ThrottleDetails {
    /// Why there is no answer.
    pub kind: ThrottleKind,
    /// Time after which the provider wants to be asked again.
    pub retry_after: Option<Duration>,
    /// How often the request was sent. A provider says 1; the loop counts its attempts to get the answer. 0 where nobody knows.
    pub attempts: u32,
    /// Whether sending the request again cannot do harm.
    pub retry_safe: bool,
    /// What the provider said, as far as it can be shown.
    pub provider_payload: Option<serde_json::Value>,
}

/// Reports why a request got no answer.
#[derive(Clone, Debug, PartialEq)]
pub struct ProviderError {
    /// What went wrong.
    pub kind: ProviderErrorKind,
    /// What happened, for people. Holds no key, and nothing unescaped from outside.
    pub message: String,
    /// Status of the reply, if there was one.
    pub status: Option<u16>,
    /// Text that had arrived of a stream that broke.
    pub arrived: Option<String>,
    /// Id that the provider gave the request.
    pub request_id: Option<String>,
    /// What the request used, as far as the provider said.
    pub usage: Option<TokenUsage>,
    /// Headers of the reply that say how many requests are allowed.
    pub rate_limits: Vec<(String, String)>,
}

/// Names what went wrong with a request.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ProviderErrorKind {
    /// The provider gives no answer now, but may later.
    Throttled(ThrottleDetails),
    /// The connection or the stream broke before the answer was complete.
    Cut,
    /// The model refused.
    Refused,
    /// A filter held the answer back.
    ContentFilter,
    /// The messages are longer than the model takes.
    ContextOverflow,
    /// The provider refused the key.
    Unauthorized,
    /// The provider refused the request as it is.
    BadRequest,
    /// What arrived is no answer of this protocol.
    InvalidAnswer,
    /// The deadline passed.
    Deadline,
    /// Somebody cancelled the request.
    Cancelled,
    /// Nothing was sent, since the request cannot be made.
    Unsupported,
}

impl ProviderErrorKind {
    /// Returns the name of the kind in records.
    pub fn name(&self) -> &'static str {
        match self {
            ProviderErrorKind::Throttled(_) => "throttled",
            ProviderErrorKind::Cut => "cut",
            ProviderErrorKind::Refused => "refused",
            ProviderErrorKind::ContentFilter => "content_filter",
            ProviderErrorKind::ContextOverflow => "context_overflow",
            ProviderErrorKind::Unauthorized => "unauthorized",
            ProviderErrorKind::BadRequest => "bad_request",
            ProviderErrorKind::InvalidAnswer => "invalid_answer",
            ProviderErrorKind::Deadline => "deadline",
            ProviderErrorKind::Cancelled => "cancelled",
            ProviderErrorKind::Unsupported => "unsupported",
        }
    }

    /// Returns the kind that a record names. Of a provider that gave no answer then, the record says no more, but whether it
    /// was asked again.
    pub(crate) fn from_recorded_name(name: &str, asked_again: bool) -> ProviderErrorKind {
        match name {
            "throttled" => ProviderErrorKind::Throttled(ThrottleDetails {
                kind: ThrottleKind::Unknown,
                retry_after: None,
                attempts: 1,
                retry_safe: asked_again,
                provider_payload: None,
            }),
            "cut" => ProviderErrorKind::Cut,
            "refused" => ProviderErrorKind::Refused,
            "content_filter" => ProviderErrorKind::ContentFilter,
            "context_overflow" => ProviderErrorKind::ContextOverflow,
            "unauthorized" => ProviderErrorKind::Unauthorized,
            "bad_request" => ProviderErrorKind::BadRequest,
            "deadline" => ProviderErrorKind::Deadline,
            "cancelled" => ProviderErrorKind::Cancelled,
            "unsupported" => ProviderErrorKind::Unsupported,
            _ => ProviderErrorKind::InvalidAnswer,
        }
    }
}

impl ProviderError {
    /// Makes an error of which nothing else is known.
    pub fn new(kind: ProviderErrorKind, message: impl Into<String>) -> ProviderError {
        ProviderError {
            kind,
            message: message.into(),
            status: None,
            arrived: None,
            request_id: None,
            usage: None,
            rate_limits: Vec::new(),
        }
    }
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ProviderError {}

/// Asks a model.
pub trait Provider: Send + Sync {
    /// Returns the provider's name, for records and errors.
    fn name(&self) -> &str;

    /// Returns the name under which the [`RateLimiter`](retry::RateLimiter) of the process knows the provider: requests
    /// under one name wait for each other. By default that is the provider's own name. One that is asked at several
    /// addresses or with several keys has a name for each, since each has limits of its own.
    fn limited_as(&self) -> &str {
        self.name()
    }

    /// Returns the rules that the provider has for messages.
    fn message_format(&self) -> MessageFormat;

    /// Makes the request's body. Sends nothing.
    ///
    /// # Errors
    ///
    /// A [`ProviderError`] if the request cannot be made for this provider.
    fn prepare(&self, request: &ProviderRequest<'_>) -> Result<PreparedRequest, Box<ProviderError>>;

    /// Sends a request once, and returns its answer when that is complete. The caller decides about sending it again.
    ///
    /// If it fails after it has shown text, it tells that the text is discarded before it returns.
    ///
    /// # Errors
    ///
    /// A [`ProviderError`] if there is no complete answer.
    fn send(
        &self,
        prepared: &PreparedRequest,
        options: &mut SendOptions<'_>,
    ) -> Result<ProviderAnswer, Box<ProviderError>>;
}

impl<P: Provider + ?Sized> Provider for Box<P> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn limited_as(&self) -> &str {
        (**self).limited_as()
    }

    fn message_format(&self) -> MessageFormat {
        (**self).message_format()
    }

    fn prepare(&self, request: &ProviderRequest<'_>) -> Result<PreparedRequest, Box<ProviderError>> {
        (**self).prepare(request)
    }

    fn send(
        &self,
        prepared: &PreparedRequest,
        options: &mut SendOptions<'_>,
    ) -> Result<ProviderAnswer, Box<ProviderError>> {
        (**self).send(prepared, options)
    }
}

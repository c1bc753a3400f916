//! Defines the interface between the loop and a model's provider.
//!
//! A [`Provider`] first *prepares* a request, so that the loop can record it, and then *sends* it.
//! An answer arrives completely or not at all. While it streams, its text can be shown; if the
//! stream breaks, the text is discarded. An [`AsyncProvider`] sends as a future (feature `async`),
//! with any HTTP client of its host.

#[cfg(feature = "anthropic")]
pub mod anthropic;
#[cfg(feature = "async")]
mod futures;
#[cfg(any(feature = "openai", feature = "anthropic"))]
mod http;
#[cfg(feature = "openai")]
pub mod openai;
pub mod rendering;
pub mod retry;
pub mod scripted;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Answer of a provider, complete or not at all. The loop sets `evaluation_id`, `request` and
/// `original`, and a provider none of them.
pub use foldlog::conversation::NewAnswer as ProviderAnswer;
use foldlog::conversation::{ConversationMessage, TokenUsage};
#[cfg(feature = "async")]
pub use futures::{AsyncProvider, BlockingProvider};
#[cfg(any(feature = "openai", feature = "anthropic"))]
pub use http::{ApiKey, HttpProvider, Timeouts};

/// Result of a provider's functions.
pub type Result<T, E = Box<ProviderError>> = std::result::Result<T, E>;

/// Describes a tool to a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// Name by which the model calls the tool.
    pub name: String,
    /// Purpose of the tool.
    pub description: String,
    /// JSON schema of the tool's parameters.
    pub parameters: serde_json::Value,
}

/// Describes the output expected from a model.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputSpec {
    /// Name of the output's type.
    pub name: String,
    /// JSON schema of the output.
    pub schema: serde_json::Value,
}

/// Selects whether the model may, must or must not call tools.
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

/// Sets the parameters of requests. A field that is `None` is left to the provider.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LlmConfig {
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Greatest number of tokens of an answer.
    pub max_tokens: Option<u32>,
    /// Probability mass considered in sampling.
    pub top_p: Option<f64>,
    /// Sampling seed.
    pub seed: Option<u64>,
    /// Stop sequences.
    pub stop: Vec<String>,
    /// Whether and which tools the model calls.
    pub tool_choice: ToolChoice,
    /// Whether one answer may contain several tool calls.
    pub parallel_tool_calls: Option<bool>,
    /// Whether the answer is streamed. It is always streamed if there is a receiver for its parts
    /// ([`EvaluateOptions::on_delta`](crate::EvaluateOptions::on_delta)).
    pub stream: bool,
}

/// Contains a request independent of any provider's format.
#[derive(Clone, Copy, Debug)]
pub struct ProviderRequest<'a> {
    /// Messages, valid for every provider: each call has its result directly after its answer.
    pub messages: &'a [ConversationMessage],
    /// Tools that the model may call.
    pub tools: &'a [ToolSpec],
    /// Expected output, if it is structured.
    pub output: Option<&'a OutputSpec>,
    /// Parameters of the request.
    pub config: &'a LlmConfig,
}

/// Contains a request in the provider's format, ready to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedRequest {
    /// Model of the request.
    pub model: String,
    /// Parameters other than messages and tools, as JSON for the record.
    pub parameters: serde_json::Value,
    /// Body of the request.
    pub body: Vec<u8>,
    /// Whether the answer is streamed.
    pub stream: bool,
}

/// Contains the limits of a request, and the receiver of its text.
#[derive(Default)]
pub struct SendOptions<'a> {
    /// Moment at which the request is given up.
    pub deadline: Option<Instant>,
    /// Token that cancels the request.
    pub cancel: CancelToken,
    /// Receives text as it arrives, before it is recorded.
    pub on_delta: Option<&'a mut (dyn FnMut(Delta<'_>) + Send)>,
}

impl SendOptions<'_> {
    /// Reports that the text is discarded, if any was `shown`.
    fn discard(&mut self, shown: bool) {
        if let Some(on_delta) = self.on_delta.as_mut().filter(|_| shown) {
            on_delta(Delta::Discarded);
        }
    }
}

/// Reports a part of an answer that is not recorded yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delta<'a> {
    /// Text of the answer.
    Text(&'a str),
    /// The text shown so far is discarded, because the request failed or is retried.
    Discarded,
}

/// Cancels an evaluation from another thread. Clones share one token.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<CancelState>);

#[derive(Debug, Default)]
struct CancelState {
    is_set: AtomicBool,
    /// Notified when the token is cancelled.
    #[cfg(feature = "async")]
    futures: event_listener::Event,
    /// Parent token, whose cancellation also cancels this one.
    #[cfg(feature = "async")]
    around: Option<CancelToken>,
}

impl CancelToken {
    /// Creates a token that is not cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Cancels everything that uses the token.
    pub fn cancel(&self) {
        self.0.is_set.store(true, Ordering::Release);
        #[cfg(feature = "async")]
        self.0.futures.notify(usize::MAX);
    }

    /// Returns whether the token was cancelled.
    pub fn is_cancelled(&self) -> bool {
        #[cfg(feature = "async")]
        if self.0.around.as_ref().is_some_and(CancelToken::is_cancelled) {
            return true;
        }
        self.0.is_set.load(Ordering::Acquire)
    }
}

/// Describes why a provider cannot answer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleKind {
    /// Too many requests or tokens within a period.
    RateLimit,
    /// A quota is used up.
    QuotaExhausted,
    /// The request or the connection took too long.
    Timeout,
    /// The provider has no capacity now, or had an internal failure.
    Overloaded,
    /// Another cause that may be temporary.
    Unknown,
}

/// Returns whether a provider's reason for ending an answer means that the answer reached its
/// greatest length: `length` of OpenAI, and `max_tokens` and `model_context_window_exceeded` of
/// Anthropic.
pub(crate) fn is_cut(stop: Option<&str>) -> bool {
    matches!(stop, Some("length" | "max_tokens" | "model_context_window_exceeded"))
}

/// Contains the details of a provider that cannot answer now.
#[derive(Clone, Debug, PartialEq)]
pub struct ThrottleDetails {
    /// Reason.
    pub kind: ThrottleKind,
    /// Time after which the provider accepts another request.
    pub retry_after: Option<Duration>,
    /// Number of times that the request was sent. A provider reports 1; the loop counts its
    /// attempts. 0 if unknown.
    pub attempts: u32,
    /// Whether a retry is harmless.
    pub retry_safe: bool,
    /// Body of the provider's error, as far as it can be shown.
    pub provider_payload: Option<serde_json::Value>,
}

impl ThrottleDetails {
    /// Creates the details of a request that was sent once. Its retry is harmless unless a quota is
    /// used up.
    pub fn new(kind: ThrottleKind) -> ThrottleDetails {
        let retry_safe = kind != ThrottleKind::QuotaExhausted;
        ThrottleDetails { kind, retry_after: None, attempts: 1, retry_safe, provider_payload: None }
    }
}

/// Reports why a request got no answer.
#[derive(Clone, Debug, PartialEq)]
pub struct ProviderError {
    /// Kind of the failure.
    pub kind: ProviderErrorKind,
    /// Description for people. It contains no key, and nothing unescaped from outside.
    pub message: String,
    /// Status of the reply, if there was one.
    pub status: Option<u16>,
    /// Text that arrived before the stream broke.
    pub arrived: Option<String>,
    /// Id of the request, assigned by the provider.
    pub request_id: Option<String>,
    /// Tokens that the request used, as far as the provider reported them.
    pub usage: Option<TokenUsage>,
    /// Headers of the reply that state rate limits.
    pub rate_limits: Vec<(String, String)>,
}

/// Classifies the failure of a request.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ProviderErrorKind {
    /// The provider cannot answer now, but may be able to later.
    Throttled(ThrottleDetails),
    /// The connection or the stream broke before the answer was complete.
    Cut,
    /// The model refused.
    Refused,
    /// A filter blocked the answer.
    ContentFilter,
    /// The messages exceed the model's context.
    ContextOverflow,
    /// The provider refused the key.
    Unauthorized,
    /// The provider refused the request.
    BadRequest,
    /// The reply is not an answer of this protocol.
    InvalidAnswer,
    /// The deadline passed.
    Deadline,
    /// The request was cancelled.
    Cancelled,
    /// Nothing was sent, because this provider does not support the request.
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

    /// Returns the kind that a record names. For a throttled request, the record contains no
    /// details except whether it was retried.
    pub(crate) fn from_recorded_name(name: &str, asked_again: bool) -> ProviderErrorKind {
        match name {
            "throttled" => {
                let details = ThrottleDetails::new(ThrottleKind::Unknown);
                ProviderErrorKind::Throttled(ThrottleDetails { retry_safe: asked_again, ..details })
            }
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
    /// Creates an error without further details.
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

/// Sends requests to a model.
pub trait Provider: Send + Sync {
    /// Returns the provider's name, for records and errors.
    fn name(&self) -> &str;

    /// Returns the provider's name in the [`RateLimiter`](retry::RateLimiter) of the process:
    /// requests with the same name wait for each other. The default is the provider's own name. A
    /// provider with several addresses or keys needs a name for each, because each has its own
    /// limits.
    fn limited_as(&self) -> &str {
        self.name()
    }

    /// Builds the request's body. Sends nothing.
    ///
    /// # Errors
    ///
    /// A [`ProviderError`] if this provider does not support the request.
    fn prepare(&self, request: &ProviderRequest<'_>) -> Result<PreparedRequest>;

    /// Sends a request once, and returns its complete answer. The caller decides about retries.
    ///
    /// If the request fails after text was shown, reports that the text is discarded before it
    /// returns.
    ///
    /// # Errors
    ///
    /// A [`ProviderError`] if there is no complete answer.
    fn send(&self, prepared: &PreparedRequest, options: &mut SendOptions<'_>) -> Result<ProviderAnswer>;
}

impl<P: Provider + ?Sized> Provider for Box<P> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn limited_as(&self) -> &str {
        (**self).limited_as()
    }

    fn prepare(&self, request: &ProviderRequest<'_>) -> Result<PreparedRequest> {
        (**self).prepare(request)
    }

    fn send(&self, prepared: &PreparedRequest, options: &mut SendOptions<'_>) -> Result<ProviderAnswer> {
        (**self).send(prepared, options)
    }
}

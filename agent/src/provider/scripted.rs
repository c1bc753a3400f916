//! Answers from a script instead of a model: for tests, demonstrations and replays.

use std::collections::VecDeque;
use std::fmt;
use std::time::Instant;

use chrono::DateTime;
use foldlog::conversation::{ConversationMessage, TokenUsage, ToolCallRecord};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    Delta, LlmConfig, PreparedRequest, Provider, ProviderAnswer, ProviderError, ProviderErrorKind,
    ProviderRequest, Result, SendOptions,
};

/// Name of the scripted provider and of its model.
const MODEL: &str = "scripted";

/// Describes one reply of a script.
#[derive(Clone, Debug, PartialEq)]
pub enum ScriptedReply {
    /// A complete answer.
    Answer(ProviderAnswer),
    /// A failure. Its `arrived` text is shown, and then discarded.
    Fail(ProviderError),
}

impl From<ProviderAnswer> for ScriptedReply {
    fn from(answer: ProviderAnswer) -> ScriptedReply {
        ScriptedReply::Answer(answer)
    }
}

impl From<ProviderError> for ScriptedReply {
    fn from(error: ProviderError) -> ScriptedReply {
        ScriptedReply::Fail(error)
    }
}

impl ScriptedReply {
    /// Creates an answer with a text and no calls.
    pub fn text(text: impl Into<String>) -> ScriptedReply {
        ScriptedReply::Answer(make_answer(Some(text.into()), Vec::new(), "stop"))
    }

    /// Creates an answer with tool calls, each given as id, name and arguments.
    pub fn calls<'a>(calls: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>) -> ScriptedReply {
        let record = |(id, name, arguments): (&str, &str, &str)| ToolCallRecord {
            call_id: id.to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        };
        ScriptedReply::Answer(make_answer(None, calls.into_iter().map(record).collect(), "tool_calls"))
    }

    /// Creates a failure.
    pub fn fail(kind: ProviderErrorKind, message: impl Into<String>) -> ScriptedReply {
        ScriptedReply::Fail(ProviderError::new(kind, message))
    }

    /// Creates a stream that breaks after a text has arrived.
    pub fn cut(arrived: impl Into<String>) -> ScriptedReply {
        let mut error = ProviderError::new(ProviderErrorKind::Cut, "the stream broke");
        error.arrived = Some(arrived.into());
        ScriptedReply::Fail(error)
    }
}

fn make_answer(content: Option<String>, calls: Vec<ToolCallRecord>, stop: &str) -> ProviderAnswer {
    ProviderAnswer {
        content,
        calls,
        stop: Some(stop.to_owned()),
        model: Some(MODEL.to_owned()),
        usage: Some(TokenUsage { input: 1, output: 1, ..TokenUsage::default() }),
        ..ProviderAnswer::default()
    }
}

/// Describes a request that a script answers. Its JSON is the body of the request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScriptedRequest {
    /// Number of the request, counted from 1.
    #[serde(skip)]
    pub number: u64,
    /// Name of the model.
    pub model: String,
    /// Messages, with the time 0 and nil ids.
    pub messages: Vec<ConversationMessage>,
    /// Names of the available tools.
    pub tools: Vec<String>,
    /// Name of the expected output; `None` for a text.
    pub output: Option<String>,
    /// Whether the answer is streamed.
    pub stream: bool,
}

impl ScriptedRequest {
    /// Returns the text of the last message; empty if there is none.
    pub fn last_text(&self) -> &str {
        self.messages.last().and_then(|message| message.content.as_deref()).unwrap_or_default()
    }
}

type Answerer = dyn Fn(&ScriptedRequest) -> ScriptedReply + Send + Sync;

/// Answers requests from a script, and counts them.
///
/// Its requests are JSON of the messages, in a format of its own and without times and ids. So
/// every process sends the same bytes for the same conversation.
pub struct ScriptedProvider {
    reply: Box<Answerer>,
    seen: Mutex<Vec<ScriptedRequest>>,
}

impl fmt::Debug for ScriptedProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedProvider").field("requests", &self.requests()).finish_non_exhaustive()
    }
}

impl ScriptedProvider {
    /// Creates a provider that returns these replies, one per request. Further requests fail.
    pub fn new<R: Into<ScriptedReply>>(replies: impl IntoIterator<Item = R>) -> ScriptedProvider {
        let replies: VecDeque<ScriptedReply> = replies.into_iter().map(Into::into).collect();
        let replies = Mutex::new(replies);
        ScriptedProvider::from_fn(move |request| {
            replies.lock().pop_front().unwrap_or_else(|| {
                let message = format!("the script has no reply to request number {}", request.number);
                ScriptedReply::fail(ProviderErrorKind::BadRequest, message)
            })
        })
    }

    /// Creates a provider that calls a function for each reply.
    pub fn from_fn(
        reply: impl Fn(&ScriptedRequest) -> ScriptedReply + Send + Sync + 'static,
    ) -> ScriptedProvider {
        ScriptedProvider { reply: Box::new(reply), seen: Mutex::new(Vec::new()) }
    }

    /// Returns the number of requests sent, including failed ones.
    pub fn requests(&self) -> u64 {
        self.seen.lock().len() as u64
    }

    /// Returns the requests sent, in order.
    pub fn seen_requests(&self) -> Vec<ScriptedRequest> {
        self.seen.lock().clone()
    }
}

/// Returns those parameters of a request that are set, for its record.
fn parameters(config: &LlmConfig) -> serde_json::Value {
    let LlmConfig { temperature, max_tokens, top_p, seed, stream, .. } = config;
    let mut parameters = serde_json::json!({
        "temperature": temperature, "max_tokens": max_tokens, "top_p": top_p, "seed": seed, "stream": stream,
    });
    if let Some(fields) = parameters.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    parameters
}

impl Provider for ScriptedProvider {
    fn name(&self) -> &str {
        MODEL
    }

    fn prepare(&self, request: &ProviderRequest<'_>) -> Result<PreparedRequest> {
        let timeless = |message: &ConversationMessage| {
            let mut message = message.clone();
            (message.created_at, message.message_id) = (DateTime::UNIX_EPOCH, Uuid::nil());
            message
        };
        let body = ScriptedRequest {
            number: 0,
            model: MODEL.to_owned(),
            messages: request.messages.iter().map(timeless).collect(),
            tools: request.tools.iter().map(|tool| tool.name.clone()).collect(),
            output: request.output.map(|output| output.name.clone()),
            stream: request.config.stream,
        };
        let body = serde_json::to_vec(&body)
            .map_err(|error| ProviderError::new(ProviderErrorKind::Unsupported, error.to_string()))?;
        let parameters = parameters(request.config);
        Ok(PreparedRequest { model: MODEL.to_owned(), parameters, body, stream: request.config.stream })
    }

    fn send(&self, prepared: &PreparedRequest, options: &mut SendOptions<'_>) -> Result<ProviderAnswer> {
        let request: ScriptedRequest = serde_json::from_slice(&prepared.body)
            .map_err(|error| ProviderError::new(ProviderErrorKind::Unsupported, error.to_string()))?;
        check(options)?;
        let request = {
            let mut seen = self.seen.lock();
            let request = ScriptedRequest { number: seen.len() as u64 + 1, ..request };
            seen.push(request.clone());
            request
        };
        match (self.reply)(&request) {
            ScriptedReply::Answer(answer) => {
                show(options, answer.content.as_deref())?;
                Ok(answer)
            }
            ScriptedReply::Fail(error) => {
                show(options, error.arrived.as_deref())?;
                options.discard(error.arrived.is_some());
                Err(Box::new(error))
            }
        }
    }
}

/// Fails if the request was cancelled or its deadline has passed.
fn check(options: &SendOptions<'_>) -> Result<()> {
    if options.cancel.is_cancelled() {
        return Err(Box::new(ProviderError::new(ProviderErrorKind::Cancelled, "the request was cancelled")));
    }
    if options.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
        let message = "the deadline of the request passed";
        return Err(Box::new(ProviderError::new(ProviderErrorKind::Deadline, message)));
    }
    Ok(())
}

/// Shows a text word by word.
fn show(options: &mut SendOptions<'_>, text: Option<&str>) -> Result<()> {
    let text = text.unwrap_or_default();
    let mut shown = 0;
    for word in text.split_inclusive(char::is_whitespace) {
        if let Err(mut error) = check(options) {
            error.arrived = text.get(..shown).filter(|text| !text.is_empty()).map(str::to_owned);
            options.discard(shown > 0);
            return Err(error);
        }
        if let Some(on_delta) = &mut options.on_delta {
            on_delta(Delta::Text(word));
        }
        shown += word.len();
    }
    Ok(())
}

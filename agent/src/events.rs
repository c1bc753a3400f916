//! Events that describe an evaluation to people. They survive every rollback.
//!
//! Text that a record of the conversation contains is not recorded twice: the event names that
//! record.
//!
//! A host does not have to declare these events: [`default_policy`](foldlog::default_policy) makes
//! them LOG. [Declared](declare) slices can also be read before their first event, and their events
//! are recorded in a store that refuses undeclared ones.

use foldlog::conversation::PromptIdentity;
use foldlog::{Event, Policy, SequenceNumber, Session, SessionTypesBuilder, Slice};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::prompt::{RenderedPrompt, VisibilityOverrides};

/// Records that a prompt was rendered: once at the start of an evaluation, and once per visibility
/// expansion. A resumed evaluation renders nothing, and records no such event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PromptRendered {
    /// Id of the evaluation.
    pub evaluation_id: String,
    /// Namespace of the prompt.
    pub prompt_ns: String,
    /// Key of the prompt within its namespace.
    pub prompt_key: String,
    /// Digest of the prompt before rendering, in hexadecimal digits.
    pub prompt_digest: String,
    /// Name of the provider for which the prompt was rendered.
    pub adapter: String,
    /// Record that contains the rendered text; `None` if the conversation is not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<SequenceNumber>,
    /// Rendered text, if no record contains it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Names of the tools that the model may call.
    pub tools: Vec<String>,
    /// Name of the output's type; `None` for a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Sections shown with a visibility other than their own.
    #[serde(default, skip_serializing_if = "VisibilityOverrides::is_empty")]
    pub visibility_overrides: VisibilityOverrides,
}

/// Records that an evaluation returned its output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PromptExecuted {
    /// Id of the evaluation.
    pub evaluation_id: String,
    /// Namespace of the prompt.
    pub prompt_ns: String,
    /// Key of the prompt within its namespace.
    pub prompt_key: String,
    /// Name of the provider that answered.
    pub adapter: String,
    /// Model of the last answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Record of the last answer; `None` if the conversation is not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<SequenceNumber>,
    /// Text of the last answer, if no record contains it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Number of requests sent, by all processes that worked on the evaluation.
    pub requests: u64,
    /// Number of tool calls in the answers.
    pub tool_calls: u64,
    /// Tokens sent, without those that the provider read from its cache or wrote into it.
    pub input_tokens: u64,
    /// Tokens returned by the model.
    pub output_tokens: u64,
    /// Tokens read from the provider's cache.
    #[serde(default)]
    pub cache_read_tokens: u64,
    /// Cost in millionths of the host's currency, if the provider reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<u64>,
    /// Time for which this process worked on the evaluation, in microseconds.
    pub elapsed_us: u64,
    /// Whether this process resumed the evaluation.
    #[serde(default)]
    pub is_resume: bool,
}

impl Event for PromptRendered {
    const NAME: &'static str = "prompt_rendered";
}

impl Event for PromptExecuted {
    const NAME: &'static str = "prompt_executed";
    const NOT_COMPARED: &'static [&'static str] = &["$.event.elapsed_us"];
}

/// Marks the LOG slice of all rendered prompts, `prompt_rendered`.
#[derive(Debug)]
pub struct PromptRenderings;

impl Slice for PromptRenderings {
    const NAME: &'static str = "prompt_rendered";
    type Item = PromptRendered;
}

/// Marks the LOG slice of all evaluations that returned their output, `prompt_executed`.
#[derive(Debug)]
pub struct PromptExecutions;

impl Slice for PromptExecutions {
    const NAME: &'static str = "prompt_executed";
    type Item = PromptExecuted;
}

/// Records an event. Does nothing if the store refuses the event because the host has not declared
/// it, or if the host uses its name otherwise.
pub(crate) fn record<E: Event>(session: &Session, event: E) -> Result<()> {
    use foldlog::Error::{DeclaredTwice, NoSuchSlice, UndeclaredEvent};
    match session.dispatch(event) {
        Ok(_) | Err(UndeclaredEvent { .. } | NoSuchSlice { .. } | DeclaredTwice { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Records that a prompt was rendered for the named provider.
pub fn record_rendered(
    session: &Session,
    evaluation: &str,
    adapter: &str,
    prompt: &PromptIdentity,
    rendered: &RenderedPrompt,
    input: Option<SequenceNumber>,
    overrides: VisibilityOverrides,
) -> Result<()> {
    let event = PromptRendered {
        evaluation_id: evaluation.to_owned(),
        prompt_ns: prompt.namespace.clone(),
        prompt_key: prompt.key.clone(),
        prompt_digest: blake3::Hash::from_bytes(prompt.digest).to_hex().to_string(),
        adapter: adapter.to_owned(),
        input,
        text: input.is_none().then(|| rendered.text.clone()),
        tools: rendered.tools.iter().map(|tool| tool.name.clone()).collect(),
        output: rendered.output.as_ref().map(|output| output.name.clone()),
        visibility_overrides: overrides,
    };
    record(session, event)
}

/// Declares the events of this module and their LOG slices. A session opened once with these
/// declarations must always be opened with them.
pub fn declare(builder: SessionTypesBuilder) -> SessionTypesBuilder {
    builder
        .slice_with::<PromptRenderings>(Policy::Log)
        .append_all::<PromptRenderings>()
        .slice_with::<PromptExecutions>(Policy::Log)
        .append_all::<PromptExecutions>()
}

//! Events that say for people what an evaluation did. They stay in the log through every rollback.
//!
//! A text that a record of the conversation holds is not recorded again: the event names the record.
//!
//! A host does not have to declare these events: they are LOG by [`default_policy`](foldlog::default_policy). What has been
//! [declared](declare) is read before the first of them too, and is recorded in a store that refuses undeclared events.

use foldlog::conversation::PromptIdentity;
use foldlog::{Event, Policy, SequenceNumber, Session, SessionTypesBuilder, Slice};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::prompt::{RenderedPrompt, VisibilityOverrides};

/// Says that a prompt was rendered: once at the beginning of an evaluation, and once for each visibility expansion. A
/// resumed evaluation renders nothing, and has no such event.
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
    /// Name of the provider that the prompt was rendered for.
    pub adapter: String,
    /// Record that holds the rendered text; `None` if the conversation is not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<SequenceNumber>,
    /// Rendered text, where no record holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Names of the tools that the model may call.
    pub tools: Vec<String>,
    /// Name of the output's type; `None` for a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Sections that were shown otherwise than they say themselves.
    #[serde(default, skip_serializing_if = "VisibilityOverrides::is_empty")]
    pub visibility_overrides: VisibilityOverrides,
}

/// Says that an evaluation gave its output.
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
    /// Model that gave the last answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Record of the last answer; `None` if the conversation is not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<SequenceNumber>,
    /// Text of the last answer, where no record holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Number of requests that were sent, by every process that worked on the evaluation.
    pub requests: u64,
    /// Number of tool calls that the answers asked for.
    pub tool_calls: u64,
    /// Tokens that were sent, those that the provider read from its cache or wrote into it left out.
    pub input_tokens: u64,
    /// Tokens that the model returned.
    pub output_tokens: u64,
    /// Tokens that the provider read from its cache.
    #[serde(default)]
    pub cache_read_tokens: u64,
    /// Cost in millionths of the host's currency, where the provider says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<u64>,
    /// Time that this process worked on the evaluation, in microseconds.
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

/// Marks the LOG slice of all evaluations that gave their output, `prompt_executed`.
#[derive(Debug)]
pub struct PromptExecutions;

impl Slice for PromptExecutions {
    const NAME: &'static str = "prompt_executed";
    type Item = PromptExecuted;
}

/// Records an event, unless the store refuses it because the host does not declare it, or the host has another use for its name.
pub(crate) fn record<E: Event>(session: &Session, event: E) -> Result<()> {
    use foldlog::Error::{DeclaredTwice, NoSuchSlice, UndeclaredEvent};
    match session.dispatch(event) {
        Ok(_) | Err(UndeclaredEvent { .. } | NoSuchSlice { .. } | DeclaredTwice { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Records that a prompt was rendered for a provider of this name.
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
        prompt_digest: prompt.digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        adapter: adapter.to_owned(),
        input,
        text: input.is_none().then(|| rendered.text.clone()),
        tools: rendered.tools.iter().map(|tool| tool.name.clone()).collect(),
        output: rendered.output.as_ref().map(|output| output.name.clone()),
        visibility_overrides: overrides,
    };
    record(session, event)
}

/// Declares the events of this module and their LOG slices. A session that was opened with types that were declared with this
/// is always opened with such.
pub fn declare(builder: SessionTypesBuilder) -> SessionTypesBuilder {
    builder
        .slice_with::<PromptRenderings>(Policy::Log)
        .append_all::<PromptRenderings>()
        .slice_with::<PromptExecutions>(Policy::Log)
        .append_all::<PromptExecutions>()
}

//! What a host hands over to be recorded of a conversation.

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{CallOrigin, Role, TokenUsage};

use super::model::{ContentBlocks, OriginalMessage, PromptIdentity, ToolCallRecord};

/// Describes a message that the host adds to a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct NewInput {
    /// Id of the evaluation.
    pub evaluation_id: String,
    /// Who speaks.
    pub role: Role,
    /// Text; `None` if the message has none.
    pub content: Option<String>,
    /// Message in the form of one provider, where the text does not say all of it.
    pub blocks: Option<ContentBlocks>,
    /// Id of the host for the message. A message whose id the conversation holds already is not recorded again.
    pub id: Option<String>,
    /// Name of the speaker, or of the tool.
    pub name: Option<String>,
    /// Prompt that the message renders; set for the role `system`.
    pub prompt: Option<PromptIdentity>,
    /// Id that the provider gave the call whose result the message is.
    pub call_id: Option<String>,
    /// Call whose result the message is, for one that ran elsewhere. The record closes the call.
    pub origin: Option<CallOrigin>,
    /// Whether the call whose result the message is failed.
    pub is_error: bool,
    /// Whatever else is to be kept of the message.
    pub payload: Option<serde_json::Value>,
    /// Message that this one is imported from, whose id and time it keeps.
    pub original: Option<OriginalMessage>,
}

impl NewInput {
    /// Describes a message with a text and nothing else.
    pub fn new(evaluation_id: impl Into<String>, role: Role, content: impl Into<String>) -> NewInput {
        NewInput {
            evaluation_id: evaluation_id.into(),
            role,
            content: Some(content.into()),
            blocks: None,
            id: None,
            name: None,
            prompt: None,
            call_id: None,
            origin: None,
            is_error: false,
            payload: None,
            original: None,
        }
    }

    /// Describes what a user says.
    pub fn user(evaluation_id: impl Into<String>, content: impl Into<String>) -> NewInput {
        NewInput::new(evaluation_id, Role::User, content)
    }

    /// Describes a rendered prompt.
    pub fn system(
        evaluation_id: impl Into<String>,
        content: impl Into<String>,
        prompt: PromptIdentity,
    ) -> NewInput {
        NewInput { prompt: Some(prompt), ..NewInput::new(evaluation_id, Role::System, content) }
    }

    /// Describes the result of a call that ran elsewhere.
    pub fn tool_result(
        evaluation_id: impl Into<String>,
        origin: CallOrigin,
        call_id: impl Into<String>,
        content: impl Into<String>,
    ) -> NewInput {
        let (origin, call_id) = (Some(origin), Some(call_id.into()));
        NewInput { origin, call_id, ..NewInput::new(evaluation_id, Role::Tool, content) }
    }

    /// Sets the id of the host for the message.
    #[must_use]
    pub fn with_id(self, id: impl Into<String>) -> NewInput {
        NewInput { id: Some(id.into()), ..self }
    }
}

/// Describes a request that is about to be sent to a provider.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewRequest {
    /// Id of the evaluation.
    pub evaluation_id: String,
    /// Number of the attempt to get this answer, counted from 1.
    pub attempt: u64,
    /// Digest of the prompt; see [`PromptIdentity`].
    pub prompt: Option<[u8; 32]>,
    /// Model that is asked.
    pub model: Option<String>,
    /// Parameters beside messages and tools.
    pub parameters: Option<serde_json::Value>,
    /// BLAKE3 of the body that is sent.
    pub sent: Option<[u8; 32]>,
}

/// Describes why a request got no answer.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRequestFailure {
    /// Id of the evaluation.
    pub evaluation_id: String,
    /// Record of the request.
    pub request: SequenceNumber,
    /// Number of the attempt that failed, counted from 1.
    pub attempt: u64,
    /// Name of the cause, such as `cut` or `throttled`.
    pub cause: String,
    /// What happened, for people.
    pub message: String,
    /// Status of the provider's reply.
    pub status: Option<u16>,
    /// Text that had arrived.
    pub arrived: Option<String>,
    /// Id that the provider gave the request.
    pub request_id: Option<String>,
    /// What the request used, as far as the provider said.
    pub usage: Option<TokenUsage>,
    /// Headers of the reply that say how many requests are allowed.
    pub rate_limits: Vec<(String, String)>,
}

impl NewRequestFailure {
    /// Describes a failure of which only cause and message are known.
    pub fn new(
        evaluation_id: impl Into<String>,
        request: SequenceNumber,
        cause: impl Into<String>,
        message: impl Into<String>,
    ) -> NewRequestFailure {
        NewRequestFailure {
            evaluation_id: evaluation_id.into(),
            request,
            attempt: 1,
            cause: cause.into(),
            message: message.into(),
            status: None,
            arrived: None,
            request_id: None,
            usage: None,
            rate_limits: Vec::new(),
        }
    }
}

/// Describes a complete answer of a provider.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewAnswer {
    /// Id of the evaluation.
    pub evaluation_id: String,
    /// Record of the request; `None` if the answer was not asked for in this log.
    pub request: Option<SequenceNumber>,
    /// Text; `None` if the answer has none.
    pub content: Option<String>,
    /// Tool calls that the answer asks for, by ordinal.
    pub calls: Vec<ToolCallRecord>,
    /// Whether the answer ended before the arguments of its last call did.
    pub last_call_incomplete: bool,
    /// Answer in the form of one provider, where text and calls do not say all of it.
    pub blocks: Option<ContentBlocks>,
    /// Reason that the provider gave for ending the answer.
    pub stop: Option<String>,
    /// Whether the provider is to be asked again with the answer as it is.
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
    /// Message that the answer is imported from, whose id and time it keeps.
    pub original: Option<OriginalMessage>,
}

/// Describes the state of an adapter, to be recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct NewAdapterState {
    /// Id of the evaluation.
    pub evaluation_id: String,
    /// Name of the adapter's type.
    pub adapter: String,
    /// Whether the provider's session can be resumed from this state.
    pub resumable: bool,
    /// State in the adapter's own form.
    pub state: serde_json::Value,
    /// Record of the state that this one replaces.
    pub supersedes: Option<SequenceNumber>,
    /// Last entry of the provider's session that the state covers, by the provider's own id.
    pub entry: Option<String>,
    /// What made the adapter capture its state, such as `init`, `tool` or `complete`.
    pub occasion: String,
}

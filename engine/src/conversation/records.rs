//! Data of a conversation that a host passes to be recorded.

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{CallOrigin, Role, TokenUsage};

use super::model::{ContentBlocks, OriginalMessage, PromptIdentity, ToolCallRecord};

/// Describes a message that the host adds to a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct NewInput {
    /// Id of the evaluation.
    pub evaluation_id: String,
    /// Role of the speaker.
    pub role: Role,
    /// Text; `None` if the message has none.
    pub content: Option<String>,
    /// Message in the format of one provider, if the text does not express all of it.
    pub blocks: Option<ContentBlocks>,
    /// The host's id for the message. A message with an id that the conversation already contains
    /// is not recorded again.
    pub id: Option<String>,
    /// Name of the speaker, or of the tool.
    pub name: Option<String>,
    /// Prompt that the message renders; set for the role `system`.
    pub prompt: Option<PromptIdentity>,
    /// The provider's id for the call that produced the message as its result.
    pub call_id: Option<String>,
    /// Call that produced the message as its result, if it ran elsewhere. The record closes the
    /// call.
    pub origin: Option<CallOrigin>,
    /// Whether the message is the result of a failed call.
    pub is_error: bool,
    /// Other data of the message to record.
    pub payload: Option<serde_json::Value>,
    /// Message that this one is imported from. Its id and time are retained.
    pub original: Option<OriginalMessage>,
}

impl NewInput {
    /// Describes a message with only a text.
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

    /// Describes a user's message.
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

    /// Sets the host's id for the message.
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
    /// Requested model.
    pub model: Option<String>,
    /// Parameters other than messages and tools.
    pub parameters: Option<serde_json::Value>,
    /// BLAKE3 of the body that is sent.
    pub sent: Option<[u8; 32]>,
}

/// Describes the failure of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewRequestFailure {
    /// Id of the evaluation.
    pub evaluation_id: String,
    /// Record of the request.
    pub request: SequenceNumber,
    /// Number of the attempt that failed, counted from 1.
    pub attempt: u64,
    /// Name of the cause, such as `cut` or `throttled`.
    pub cause: String,
    /// Error message for people.
    pub message: String,
    /// Status of the provider's reply.
    pub status: Option<u16>,
    /// Text received before the failure.
    pub arrived: Option<String>,
    /// The provider's id for the request.
    pub request_id: Option<String>,
    /// Token usage of the request, if the provider reported it.
    pub usage: Option<TokenUsage>,
    /// Rate limit headers of the reply.
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
            ..NewRequestFailure::default()
        }
    }
}

/// Describes a complete answer of a provider.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewAnswer {
    /// Id of the evaluation.
    pub evaluation_id: String,
    /// Record of the request; `None` if this log contains no request for the answer.
    pub request: Option<SequenceNumber>,
    /// Text; `None` if the answer has none.
    pub content: Option<String>,
    /// Tool calls that the answer requests, by ordinal.
    pub calls: Vec<ToolCallRecord>,
    /// Whether the answer ended before the arguments of its last call were complete.
    pub last_call_incomplete: bool,
    /// Answer in the format of one provider, if text and calls do not express all of it.
    pub blocks: Option<ContentBlocks>,
    /// The provider's reason for ending the answer.
    pub stop: Option<String>,
    /// Whether the answer is to be sent to the provider again, unchanged, to be continued.
    pub continues: bool,
    /// Model that answered.
    pub model: Option<String>,
    /// The provider's id for the request.
    pub request_id: Option<String>,
    /// Token usage of the request.
    pub usage: Option<TokenUsage>,
    /// Rate limit headers of the reply.
    pub rate_limits: Vec<(String, String)>,
    /// Other data of the answer to record.
    pub payload: Option<serde_json::Value>,
    /// Message that the answer is imported from. Its id and time are retained.
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
    /// State in the adapter's own format.
    pub state: serde_json::Value,
    /// Record of the state that this one replaces.
    pub supersedes: Option<SequenceNumber>,
    /// Last entry of the provider's session that the state covers, by the provider's id.
    pub entry: Option<String>,
    /// Occasion of the capture, such as `init`, `tool` or `complete`.
    pub occasion: String,
}

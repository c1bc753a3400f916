//! Messages, calls, turns, and the state of a conversation.

use std::fmt;

use chrono::{DateTime, Utc};
use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{Original, Role};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Contains a message in the format of one provider, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentBlocks {
    /// Name of the format: `openai`, `anthropic`, or one that this version does not know.
    pub format: String,
    /// Content as JSON.
    pub json: String,
}

/// A tool call in an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCallRecord {
    /// The provider's id for the call. A provider may use one id for different calls.
    pub call_id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments as received, byte for byte: JSON.
    pub arguments: String,
}

/// A message of a conversation, independent of any provider's format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConversationMessage {
    /// Role of the speaker.
    pub role: Role,
    /// Text; `None` if the message has none.
    pub content: Option<String>,
    /// Tool calls that the message requests, by ordinal. Only assistant messages have some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCallRecord>,
    /// Id of the call that produced the message as its result; set for the role `tool`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Name of the tool, for the role `tool`; otherwise of the speaker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Time of the message's record.
    pub created_at: DateTime<Utc>,
    /// Id of the message. For a message of the log, it is derived from the ids of its session and
    /// record.
    pub message_id: Uuid,
    /// Content in the format of one provider, if text and calls do not express all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<ContentBlocks>,
    /// Whether the message is the result of a failed call.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
}

impl ConversationMessage {
    /// Creates a message with only a text, at the time 0 and with the nil id.
    pub fn new(role: Role, content: impl Into<String>) -> ConversationMessage {
        ConversationMessage {
            role,
            content: Some(content.into()),
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
            created_at: DateTime::UNIX_EPOCH,
            message_id: Uuid::nil(),
            blocks: None,
            is_error: false,
        }
    }
}

/// Identifies an imported message within the conversation that it is imported from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginalMessage {
    /// Id of the message.
    pub message_id: Uuid,
    /// Time of the message.
    pub created_at: DateTime<Utc>,
    /// Id and time of the conversation's [state](ConversationState), for the first imported
    /// message.
    pub state: Option<(Uuid, DateTime<Utc>)>,
}

impl OriginalMessage {
    /// Identifies an imported message. Returns `None` if the message has the nil id, and thus
    /// belongs to no conversation. The first other message takes the id and time out of `state`.
    pub fn from_message(
        message: &ConversationMessage,
        state: &mut Option<(Uuid, DateTime<Utc>)>,
    ) -> Option<OriginalMessage> {
        let (message_id, created_at) = (message.message_id, message.created_at);
        (!message_id.is_nil()).then(|| OriginalMessage { message_id, created_at, state: state.take() })
    }

    pub(crate) fn into_original(self) -> Original {
        let state = self.state.map(|(id, time)| (id.into_bytes(), time.timestamp_micros()));
        Original { id: self.message_id.into_bytes(), time_us: self.created_at.timestamp_micros(), state }
    }
}

/// A turn: the messages to the model, its answer, and the results of the answer's calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConversationTurn {
    /// Number of the turn, counted from 1.
    pub turn_number: u64,
    /// Messages that were sent since the previous turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input_messages: Vec<ConversationMessage>,
    /// Answer of the model.
    pub assistant_message: ConversationMessage,
    /// Results of the answer's calls, by ordinal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_messages: Vec<ConversationMessage>,
    /// Other data of the answer that the adapter recorded.
    #[serde(default)]
    pub provider_payload: Option<serde_json::Value>,
    /// Id of the evaluation.
    pub evaluation_id: String,
    /// Time of the turn's answer.
    pub created_at: DateTime<Utc>,
}

impl ConversationTurn {
    /// Returns the result of each call by ordinal, and the results that belong to no call. If
    /// several calls share one id, results with that id are assigned to them in order.
    pub fn paired_results(&self) -> (Vec<Option<&ConversationMessage>>, Vec<&ConversationMessage>) {
        let mut left: Vec<&ConversationMessage> = self.tool_messages.iter().collect();
        let calls = self.assistant_message.tool_calls.iter();
        let results = calls.map(|call| {
            let own = |result: &&ConversationMessage| result.tool_call_id.as_ref() == Some(&call.call_id);
            left.iter().position(own).map(|place| left.remove(place))
        });
        let results = results.collect();
        (results, left)
    }
}

/// The whole history of one evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConversationState {
    /// Id of the evaluation.
    pub evaluation_id: String,
    /// Namespace of the prompt.
    pub prompt_ns: String,
    /// Key of the prompt within its namespace.
    pub prompt_key: String,
    /// The rendered prompt.
    pub system_message: ConversationMessage,
    /// Turns in order.
    #[serde(default)]
    pub turns: Vec<ConversationTurn>,
    /// Time of the first record.
    pub created_at: DateTime<Utc>,
    /// Id of the state.
    pub state_id: Uuid,
}

impl ConversationState {
    /// Returns the messages of the history in the order in which they are sent to a provider: the
    /// rendered prompt, and for each turn its inputs, the answer, and the results of its calls. A
    /// system message without content is omitted.
    pub fn messages(&self) -> Vec<ConversationMessage> {
        let system = Some(&self.system_message).filter(|system| system.content.is_some());
        let turns = self.turns.iter().flat_map(|turn| {
            let said = turn.input_messages.iter().filter(|message| message.role != Role::System);
            said.chain(std::iter::once(&turn.assistant_message)).chain(&turn.tool_messages)
        });
        system.into_iter().chain(turns).cloned().collect()
    }
}

/// Identifies a prompt by its names, and by a digest of its definition before rendering.
#[derive(Clone, PartialEq, Eq)]
pub struct PromptIdentity {
    /// Namespace of the prompt.
    pub namespace: String,
    /// Key of the prompt within its namespace.
    pub key: String,
    /// BLAKE3 of the prompt's template, tools and output schema. Zeros if unknown, as for a
    /// conversation that another program exported.
    pub digest: [u8; 32],
}

impl PromptIdentity {
    /// Returns whether this identifies the given prompt. If the digest is unknown, the names
    /// decide.
    pub fn is_of(&self, given: &PromptIdentity) -> bool {
        let has_names = (&self.namespace, &self.key) == (&given.namespace, &given.key);
        has_names && (self.digest == given.digest || self.digest == [0; 32])
    }
}

impl fmt::Display for PromptIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} ", self.namespace.escape_debug(), self.key.escape_debug())?;
        self.digest.iter().take(8).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PromptIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The recorded state of an adapter.
///
/// It can also be deserialized from JSON of another program, whose objects have the fields `state`,
/// `captured_at`, `evaluation_id` and optionally `supersedes`. The name of the adapter is then the
/// field `adapter_type` of the state; by default it is `claude_agent_sdk`, the only adapter of that
/// program. Unless the JSON specifies it, a state is resumable if it names a `session_id` and is
/// not `is_complete`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "ReadSnapshot")]
pub struct AdapterStateSnapshot {
    /// Sequence number of the record; 0 if the state was read from JSON without one.
    pub sequence: SequenceNumber,
    /// Name of the adapter's type.
    pub adapter: String,
    /// Whether the provider's session can be resumed from this state.
    pub resumable: bool,
    /// State in the adapter's own format.
    pub state: serde_json::Value,
    /// Time of the record.
    pub captured_at: DateTime<Utc>,
    /// Id of the evaluation.
    pub evaluation_id: String,
    /// Record of the state that this one replaces.
    pub supersedes: Option<SequenceNumber>,
    /// Last entry of the provider's session that the state covers, by the provider's id.
    pub entry: Option<String>,
    /// Occasion of the capture.
    pub occasion: String,
    /// Whether the record is on the live path; `false` if a rollback has abandoned it.
    pub is_live: bool,
}

/// JSON form of an adapter's state, written by this library or another program.
#[derive(Deserialize)]
struct ReadSnapshot {
    state: serde_json::Value,
    captured_at: DateTime<Utc>,
    evaluation_id: String,
    #[serde(default)]
    sequence: SequenceNumber,
    adapter: Option<String>,
    resumable: Option<bool>,
    supersedes: Option<serde_json::Value>,
    entry: Option<String>,
    #[serde(default)]
    occasion: String,
    is_live: Option<bool>,
}

/// Name of the adapter for states without a name.
const UNNAMED: &str = "claude_agent_sdk";

impl From<ReadSnapshot> for AdapterStateSnapshot {
    fn from(read: ReadSnapshot) -> AdapterStateSnapshot {
        let ReadSnapshot { state, captured_at, evaluation_id, sequence, entry, occasion, .. } = read;
        let text = |field: &str| state.get(field).and_then(serde_json::Value::as_str);
        let flag = |field: &str| state.get(field).and_then(serde_json::Value::as_bool);
        let adapter = read.adapter.or_else(|| text("adapter_type").map(str::to_owned));
        let names_a_session = text("session_id").is_some_and(|id| !id.is_empty());
        let can_be = || names_a_session && flag("is_complete") != Some(true);
        AdapterStateSnapshot {
            adapter: adapter.unwrap_or_else(|| UNNAMED.to_owned()),
            resumable: read.resumable.or_else(|| flag("resumable")).unwrap_or_else(can_be),
            // A string is another program's id of a capture.
            supersedes: read.supersedes.and_then(|one| one.as_u64()).map(SequenceNumber::new),
            is_live: read.is_live.unwrap_or(true),
            sequence,
            state,
            captured_at,
            evaluation_id,
            entry,
            occasion,
        }
    }
}

//! The transcript of an evaluation, in addition to its session and its resources.

use foldlog::conversation::{Conversation, ConversationMessage, EntryContent};
use serde::{Deserialize, Serialize};

/// Contains the messages of an evaluation as they would be sent to a provider, and the adapter's
/// additional data on the last answer. Reading it leaves the log unchanged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TranscriptState {
    /// Messages in the order in which they would be sent.
    pub messages: Vec<ConversationMessage>,
    /// Additional data of the adapter on the last answer.
    #[serde(default)]
    pub provider_payload: Option<serde_json::Value>,
}

impl TranscriptState {
    /// Returns the transcript of a conversation in its present state.
    pub fn from_conversation(conversation: &Conversation) -> TranscriptState {
        let payload = conversation.entries().iter().rev().find_map(|entry| match &entry.content {
            EntryContent::Answer { payload, .. } => Some(payload.as_deref()),
            _ => None,
        });
        // The text was written from a value, so it parses.
        let provider_payload = payload.flatten().and_then(|payload| serde_json::from_str(payload).ok());
        TranscriptState { messages: conversation.sent_messages(), provider_payload }
    }
}

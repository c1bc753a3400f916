//! The transcript of an evaluation, beside its session and its resources.

use foldlog::conversation::{Conversation, ConversationMessage, EntryContent};
use serde::{Deserialize, Serialize};

/// Holds the messages of an evaluation as they would be sent to a provider, and what else the provider's adapter keeps
/// of the last answer. It is read from the log, and changes nothing there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TranscriptState {
    /// Messages in the order in which they would be sent.
    pub messages: Vec<ConversationMessage>,
    /// Whatever else the adapter kept of the last answer.
    #[serde(default)]
    pub provider_payload: Option<serde_json::Value>,
}

impl TranscriptState {
    /// Returns the transcript of a conversation as it is now.
    pub fn from_conversation(conversation: &Conversation) -> TranscriptState {
        let payload = conversation.entries().iter().rev().find_map(|entry| match &entry.content {
            EntryContent::Answer { payload, .. } => Some(payload.as_deref()),
            _ => None,
        });
        // The text was written from a value, so it reads back.
        let provider_payload = payload.flatten().and_then(|payload| serde_json::from_str(payload).ok());
        TranscriptState { messages: conversation.sent_messages(), provider_payload }
    }
}

//! The transcript of an evaluation, beside its session and its resources.

use foldlog::conversation::ConversationMessage;
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

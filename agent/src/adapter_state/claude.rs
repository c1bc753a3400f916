use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{AdapterState, AdapterStateType};

/// Contains the data needed to resume a session of the Claude Agent SDK. The SDK stores the
/// conversation: the state only refers to it, and contains no message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaudeAgentSDKState {
    /// Id that the SDK gave the session; its option `resume` takes it.
    pub session_id: String,
    /// Start time of the session.
    pub created_at: DateTime<Utc>,
    /// Time of the last message.
    pub last_activity_at: DateTime<Utc>,
    /// Directory in which the SDK ran.
    #[serde(default)]
    pub workspace_path: Option<String>,
    /// Name of the prompt that started the session.
    pub prompt_name: String,
    /// Number of messages of the session.
    #[serde(default)]
    pub message_count: u64,
    /// Whether the session finished, as opposed to being interrupted.
    #[serde(default)]
    pub is_complete: bool,
}

impl ClaudeAgentSDKState {
    /// Creates the state of a session started at `created_at`: without messages, not complete,
    /// without a directory.
    pub fn new(
        session_id: impl Into<String>,
        prompt_name: impl Into<String>,
        created_at: DateTime<Utc>,
    ) -> ClaudeAgentSDKState {
        ClaudeAgentSDKState {
            session_id: session_id.into(),
            created_at,
            last_activity_at: created_at,
            workspace_path: None,
            prompt_name: prompt_name.into(),
            message_count: 0,
            is_complete: false,
        }
    }

    /// Returns the session's id from a message of the SDK whose `subtype` is `init`: its field
    /// `session_id`, else `session_id` within `data`. Returns `None` for any other message.
    pub fn session_id_of(message: &Value) -> Option<&str> {
        if message.get("subtype")?.as_str()? != "init" {
            return None;
        }
        let ids = [message.get("session_id"), message.get("data").and_then(|data| data.get("session_id"))];
        ids.into_iter().flatten().filter_map(Value::as_str).find(|id| !id.is_empty())
    }
}

impl AdapterState for ClaudeAgentSDKState {
    fn adapter_type(&self) -> &str {
        Self::ADAPTER_TYPE
    }

    fn resumable(&self) -> bool {
        !self.session_id.is_empty() && !self.is_complete
    }
}

impl AdapterStateType for ClaudeAgentSDKState {
    const ADAPTER_TYPE: &'static str = "claude_agent_sdk";
}

//! The conversations of a session, with their usage, limits and model.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use foldlog::SequenceNumber;
use foldlog::conversation::{
    AdapterStateSnapshot, Conversation, ConversationMessage, EntryContent, TokenUsage,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Summarizes the conversations of a session. All of it is read from their records; no copy exists
/// that could differ.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClaudeContextState {
    /// Provider's id of its latest captured session; `None` if no adapter captured one.
    pub session_id: Option<String>,
    /// Messages of all conversations.
    pub conversation_history: ConversationHistory,
    /// For each conversation, the messages that the provider would be sent.
    pub context_windows: Vec<ContextWindow>,
    /// Limits that the provider reported.
    pub rate_limit_state: RateLimitState,
    /// Parameters of the last request.
    pub model_configuration: ModelConfiguration,
    /// Tokens that were used.
    pub usage_tracking: UsageTracking,
}

/// Contains the conversations of a session in the order of their first records.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConversationHistory {
    /// The conversations.
    pub conversations: Vec<RecordedConversation>,
}

impl ConversationHistory {
    /// Returns the number of messages in all conversations.
    pub fn messages_len(&self) -> u64 {
        self.conversations.iter().map(|one| one.messages.len() as u64).sum()
    }
}

/// Contains one conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedConversation {
    /// Id of the evaluation.
    pub evaluation_id: String,
    /// Names of the prompt that it follows: namespace and key.
    pub prompt: Option<(String, String)>,
    /// Messages in the order of their records.
    pub messages: Vec<ConversationMessage>,
    /// Number of turns that have ended.
    pub turns: u64,
    /// Whether the last turn marks the evaluation as complete.
    pub is_complete: bool,
}

/// Describes the messages of a conversation that a provider would be sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextWindow {
    /// Id of the evaluation.
    pub evaluation_id: String,
    /// Ids of the messages in the order in which they would be sent.
    pub messages: Vec<Uuid>,
    /// Number of parts of the conversation with a shorter replacement.
    pub shortened: u64,
    /// Tokens of the last answer's request, including those from the provider's cache.
    pub tokens: Option<u64>,
}

/// Describes the limits that providers reported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimitState {
    /// Headers of the last answer that had some, by name.
    pub current: BTreeMap<String, String>,
    /// Record of that answer.
    pub told_by: Option<SequenceNumber>,
    /// Requests that were refused because too many were made, in the order of their records.
    pub refused: Vec<RefusedRequest>,
}

/// Describes a request that a provider refused because of its limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRequest {
    /// Record of the failure.
    pub sequence: SequenceNumber,
    /// Time of the record.
    pub at: DateTime<Utc>,
    /// Status of the reply.
    pub status: u32,
    /// Message of the provider.
    pub message: String,
}

/// Contains the model and parameters of the last request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelConfiguration {
    /// Name of the model.
    pub model: Option<String>,
    /// Parameters other than messages and tools: JSON.
    pub parameters: Option<String>,
}

/// Counts the tokens that were used. Abandoned records count too: their tokens were paid for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageTracking {
    /// Sums by model. Requests without a model count under the empty name.
    pub by_model: BTreeMap<String, TokenUsage>,
    /// Tokens of each answer and each failed request, in the order of their records.
    pub history: Vec<UsedTokens>,
}

impl UsageTracking {
    /// Returns the sums of the history by model.
    pub(crate) fn sums(&self) -> BTreeMap<String, TokenUsage> {
        let mut sums: BTreeMap<String, TokenUsage> = BTreeMap::new();
        for used in &self.history {
            let sum = sums.entry(used.model.clone().unwrap_or_default()).or_default();
            *sum = sum.plus(used.usage);
        }
        sums
    }
}

/// Describes the tokens of one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedTokens {
    /// Record of the answer or failure.
    pub sequence: SequenceNumber,
    /// Time of the record.
    pub at: DateTime<Utc>,
    /// Model that answered.
    pub model: Option<String>,
    /// Tokens.
    pub usage: TokenUsage,
}

/// HTTP status of a reply that refuses a request because too many were made.
const TOO_MANY_REQUESTS: u32 = 429;

impl ClaudeContextState {
    /// Summarizes conversations and the states that adapters captured.
    pub(super) fn from_conversations(
        conversations: &[Conversation],
        captured: &[AdapterStateSnapshot],
    ) -> ClaudeContextState {
        let mut state = ClaudeContextState::default();
        let mut asked = None;
        conversations.iter().for_each(|conversation| state.add(conversation, &mut asked));
        state.rate_limit_state.refused.sort_by_key(|one| one.sequence);
        state.usage_tracking.history.sort_by_key(|one| one.sequence);
        let live = captured.iter().rev().filter(|one| one.is_live);
        state.session_id = live.filter_map(|one| provider_session(&one.state)).next();
        state
    }

    /// Adds a conversation. `asked` is the record of the last request so far.
    fn add(&mut self, conversation: &Conversation, asked: &mut Option<SequenceNumber>) {
        let evaluation_id = conversation.evaluation_id().to_owned();
        let (mut turns, mut is_complete, mut shortened, mut tokens) = (0, false, 0, None);
        for entry in conversation.entries() {
            match &entry.content {
                EntryContent::Turn { complete, .. } => (turns, is_complete) = (turns + 1, *complete),
                EntryContent::Shortened { .. } => shortened += 1,
                EntryContent::Answer { usage, rate_limits, .. } => {
                    is_complete = false;
                    tokens = usage.map(|usage| usage.input + usage.cache_read + usage.cache_write).or(tokens);
                    let limits = &mut self.rate_limit_state;
                    if !rate_limits.is_empty() && limits.told_by < Some(entry.sequence) {
                        limits.current = rate_limits.iter().cloned().collect();
                        limits.told_by = Some(entry.sequence);
                    }
                }
                EntryContent::Request { model, parameters, .. } if *asked < Some(entry.sequence) => {
                    *asked = Some(entry.sequence);
                    let (model, parameters) = (model.clone(), parameters.clone());
                    self.model_configuration = ModelConfiguration { model, parameters };
                }
                _ => {}
            }
        }
        for entry in conversation.entries().iter().chain(conversation.abandoned_entries()) {
            self.count(entry.sequence, entry.time, &entry.content);
        }
        if conversation.entries().is_empty() {
            return;
        }
        self.context_windows.push(ContextWindow {
            evaluation_id: evaluation_id.clone(),
            messages: conversation.sent_messages().iter().map(|message| message.message_id).collect(),
            shortened,
            tokens,
        });
        let prompt = conversation.prompt().map(|prompt| (prompt.namespace.clone(), prompt.key.clone()));
        let messages = conversation.messages();
        let conversation = RecordedConversation { evaluation_id, prompt, messages, turns, is_complete };
        self.conversation_history.conversations.push(conversation);
    }

    /// Counts the tokens and limits of a record.
    fn count(&mut self, sequence: SequenceNumber, at: DateTime<Utc>, content: &EntryContent) {
        let (model, usage) = match content {
            EntryContent::Answer { model, usage, .. } => (model.clone(), *usage),
            EntryContent::RequestFailed { status, message, usage, .. } => {
                if let Some(status) = status.filter(|status| *status == TOO_MANY_REQUESTS) {
                    let refused = RefusedRequest { sequence, at, status, message: message.clone() };
                    self.rate_limit_state.refused.push(refused);
                }
                (None, *usage)
            }
            _ => return,
        };
        let Some(usage) = usage else { return };
        let sum = self.usage_tracking.by_model.entry(model.clone().unwrap_or_default()).or_default();
        *sum = sum.plus(usage);
        self.usage_tracking.history.push(UsedTokens { sequence, at, model, usage });
    }
}

/// Returns the id of the provider's session in an adapter's state.
fn provider_session(state: &serde_json::Value) -> Option<String> {
    state.get("session_id").and_then(|id| id.as_str()).map(str::to_owned)
}

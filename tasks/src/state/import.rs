//! The history of a session before its import, as far as the records of the new session do not
//! contain it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use chrono::{DateTime, Utc};
use foldlog::conversation::ConversationMessage;
use foldlog::{Policy, SequenceNumber, SessionTypesBuilder};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    ClaudeContextState, ExecutionLogState, FileModification, ModelConfiguration, NotCompared,
    ResourceUsageState, SessionState, WorkspaceSnapshot,
};
use crate::checkpoint::Checkpoint;

/// Describes the history of an imported session. Later records are added to it.
///
/// Tasks, configuration, artifacts, dependencies and the user's repository are slices, and
/// conversations are records; an [import](foldlog::Store::import) brings them with it. They are
/// left out here, except for the ids and times of messages. Sequence numbers are those of the
/// exported session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateImported {
    /// Session that was exported.
    pub session_id: Uuid,
    /// Position of the export.
    pub position: Option<SequenceNumber>,
    /// Time of its first record.
    pub created_at: DateTime<Utc>,
    /// Time of its latest update.
    pub last_checkpoint: DateTime<Utc>,
    /// Conversations, with their usage, limits and model.
    pub claude_context: ClaudeContextState,
    /// Latest captures of its workspaces.
    pub workspace_snapshot: BTreeMap<String, WorkspaceSnapshot>,
    /// Changes of files in them.
    pub file_modifications: Vec<FileModification>,
    /// Captures that were not compared.
    pub not_compared: Vec<NotCompared>,
    /// Its history.
    pub execution_logs: ExecutionLogState,
    /// Its costs.
    pub resource_usage: ResourceUsageState,
    /// Its checkpoints. They are history, since they are positions of its log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<Checkpoint>,
}

events! { StateImported = "state_imported" }

slices! {
    /// Marks the LOG slice of imports, `imported_states`.
    ImportedStates = "imported_states" of StateImported,
}

pub(super) fn declare(types: SessionTypesBuilder) -> SessionTypesBuilder {
    types.slice_with::<ImportedStates>(Policy::Log).append_all::<ImportedStates>()
}

impl StateImported {
    /// Extracts the parts of a state that neither a slice nor a record of conversations contains.
    pub fn from_state(state: &SessionState, position: Option<SequenceNumber>) -> StateImported {
        // The slice of recovery actions is imported.
        let execution_logs =
            ExecutionLogState { recovery_actions: Vec::new(), ..state.execution_logs.clone() };
        StateImported {
            session_id: state.session_id,
            position,
            created_at: state.created_at,
            last_checkpoint: state.last_checkpoint,
            claude_context: state.claude_context.clone(),
            workspace_snapshot: state.file_system.workspace_snapshot.clone(),
            file_modifications: state.file_system.file_modifications.clone(),
            not_compared: state.file_system.not_compared.clone(),
            execution_logs,
            resource_usage: state.resource_usage,
            checkpoints: Vec::new(),
        }
    }
}

impl ClaudeContextState {
    /// Prepends the context before the import to the context since. The import ended at the record
    /// `end`.
    pub(super) fn follow(&mut self, before: &ClaudeContextState, end: SequenceNumber) {
        self.session_id = self.session_id.take().or_else(|| before.session_id.clone());
        if self.model_configuration == ModelConfiguration::default() {
            self.model_configuration = before.model_configuration.clone();
        }
        let limits = &mut self.rate_limit_state;
        if limits.told_by <= Some(end) {
            limits.current.clone_from(&before.rate_limit_state.current);
            limits.told_by = before.rate_limit_state.told_by;
        }
        limits.refused = [before.rate_limit_state.refused.as_slice(), &limits.refused].concat();
        let usage = &mut self.usage_tracking;
        for (model, spent) in &before.usage_tracking.by_model {
            let sum = usage.by_model.entry(model.clone()).or_default();
            *sum = sum.plus(*spent);
        }
        usage.history = [before.usage_tracking.history.as_slice(), &usage.history].concat();
        let ids = self.take_messages(before);
        let windows: BTreeMap<&str, _> =
            before.context_windows.iter().map(|window| (window.evaluation_id.as_str(), window)).collect();
        for window in &mut self.context_windows {
            for id in &mut window.messages {
                *id = ids.get(id).copied().unwrap_or(*id);
            }
            let before = windows.get(window.evaluation_id.as_str());
            window.tokens = window.tokens.or(before.and_then(|before| before.tokens));
        }
    }

    /// Takes over the ids, times and order of the messages before the import; returns the earlier
    /// ids by the new ones. An import brings a conversation turn by turn, the system's message
    /// first, regardless of their recorded order.
    fn take_messages(&mut self, before: &ClaudeContextState) -> BTreeMap<Uuid, Uuid> {
        let mut ids = BTreeMap::new();
        let known: BTreeMap<&str, _> = before
            .conversation_history
            .conversations
            .iter()
            .map(|one| (one.evaluation_id.as_str(), &one.messages))
            .collect();
        for conversation in &mut self.conversation_history.conversations {
            let Some(earlier) = known.get(conversation.evaluation_id.as_str()) else { continue };
            let mut places: HashMap<String, VecDeque<usize>> = HashMap::new();
            for (place, message) in conversation.messages.iter().enumerate() {
                places.entry(content_key(message)).or_default().push_back(place);
            }
            let mut found: Vec<Option<usize>> = vec![None; conversation.messages.len()];
            for (number, message) in earlier.iter().enumerate() {
                let place = places.get_mut(&content_key(message)).and_then(VecDeque::pop_front);
                if let Some(found) = place.and_then(|place| found.get_mut(place)) {
                    *found = Some(number);
                }
            }
            let mut messages: Vec<(usize, ConversationMessage)> = Vec::with_capacity(found.len());
            for (mut message, found) in conversation.messages.drain(..).zip(found) {
                if let Some(earlier) = found.and_then(|number| earlier.get(number)) {
                    ids.insert(message.message_id, earlier.message_id);
                    (message.message_id, message.created_at) = (earlier.message_id, earlier.created_at);
                }
                messages.push((found.unwrap_or(usize::MAX), message));
            }
            // Later messages keep their order, after the earlier ones.
            messages.sort_by_key(|(number, _)| *number);
            conversation.messages = messages.into_iter().map(|(_, message)| message).collect();
        }
        ids
    }
}

/// Returns a message's content without id and time, for comparison.
fn content_key(message: &ConversationMessage) -> String {
    let (message_id, created_at) = (Uuid::nil(), DateTime::UNIX_EPOCH);
    let message = ConversationMessage { message_id, created_at, ..message.clone() };
    serde_json::to_string(&message).unwrap_or_default()
}

impl ExecutionLogState {
    /// Prepends the history before the import to the history since. The import ended at the record
    /// `end`.
    pub(super) fn follow(&mut self, before: &ExecutionLogState, end: SequenceNumber) {
        for (task, entries) in &before.tasks {
            self.tasks.entry(task.clone()).or_default().splice(0..0, entries.iter().cloned());
        }
        self.system_events.splice(0..0, before.system_events.iter().cloned());
        self.errors.splice(0..0, before.errors.iter().cloned());
        self.interactions.retain(|one| one.sequence > end);
        self.interactions.splice(0..0, before.interactions.iter().cloned());
    }
}

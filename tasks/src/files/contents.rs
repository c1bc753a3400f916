//! The contents of a tree's files, as far as the state has no types for them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use foldlog::conversation::ConversationMessage;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    BuildArtifact, DependencyResolution, ErrorEntry, FileModification, Interaction, LogEntry,
    ModelConfiguration, NotCompared, ResourceUsageState, SessionConfiguration, SessionState, StateUpdate,
    Task, TaskId, UpdateOperation, WorkspaceSnapshot,
};

/// Identifies the session of a state, with its times: the part
/// [`Session`](crate::StateComponent::Session).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionIdentity {
    /// Id of the session.
    pub session_id: Uuid,
    /// Time of its first record.
    pub created_at: DateTime<Utc>,
    /// Time of the latest update that counts; of the first record if there is none.
    pub last_checkpoint: DateTime<Utc>,
}

impl SessionIdentity {
    /// Returns the identity in a state.
    pub fn from_state(state: &SessionState) -> SessionIdentity {
        let SessionState { session_id, created_at, last_checkpoint, .. } = *state;
        SessionIdentity { session_id, created_at, last_checkpoint }
    }
}

/// `meta/session.json`. A tree that was written part by part may lack some parts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct SessionFile {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<SessionIdentity>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) configuration: Option<SessionConfiguration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) resource_usage: Option<ResourceUsageState>,
}

/// `meta/recovery_info.json`: for people, derived from the other files.
#[derive(Serialize)]
pub(super) struct RecoveryInfo<'a> {
    pub(super) session: Option<SessionIdentity>,
    pub(super) requires_validation: bool,
    pub(super) validation_reason: Option<&'a str>,
    pub(super) instructions: &'static [&'static str],
}

/// `state/task_tree.json`.
#[derive(Serialize, Deserialize)]
pub(super) struct TaskTreeFile<'a> {
    pub(super) tasks: Cow<'a, BTreeMap<TaskId, Task>>,
    pub(super) root_tasks: Cow<'a, [TaskId]>,
    /// `None` in a tree that was written before parts were listed.
    #[serde(default)]
    pub(super) children: Option<Cow<'a, BTreeMap<TaskId, BTreeSet<TaskId>>>>,
    pub(super) active_task: Cow<'a, Option<TaskId>>,
    pub(super) task_counter: u64,
}

/// `claude/session_config.json`.
#[derive(Serialize, Deserialize)]
pub(super) struct ClaudeConfigFile<'a> {
    pub(super) session_id: Cow<'a, Option<String>>,
    pub(super) model_configuration: Cow<'a, ModelConfiguration>,
}

/// `claude/conversation/messages_NNN.json`: successive messages of one conversation.
#[derive(Deserialize)]
pub(super) struct MessagesFile {
    pub(super) evaluation_id: String,
    pub(super) messages: Vec<ConversationMessage>,
}

/// `claude/conversation/current.json`: all conversations, and the last messages of each.
#[derive(Serialize, Deserialize)]
pub(super) struct CurrentFile<'a> {
    pub(super) conversations: Vec<CurrentConversation<'a>>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct CurrentConversation<'a> {
    pub(super) evaluation_id: Cow<'a, str>,
    pub(super) prompt: Cow<'a, Option<(String, String)>>,
    pub(super) turns: u64,
    pub(super) is_complete: bool,
    /// Numbers of the files with the earlier messages.
    pub(super) chunks: Vec<u64>,
    pub(super) messages: Cow<'a, [ConversationMessage]>,
}

/// `filesystem/workspace_snapshot.json`.
#[derive(Serialize, Deserialize)]
pub(super) struct WorkspacesFile<'a> {
    pub(super) workspaces: Cow<'a, BTreeMap<String, WorkspaceSnapshot>>,
    pub(super) not_compared: Cow<'a, [NotCompared]>,
    pub(super) dependency_resolution: Cow<'a, DependencyResolution>,
}

/// `filesystem/build_artifacts/*.json`.
#[derive(Serialize, Deserialize)]
pub(super) struct ArtifactsFile<'a> {
    pub(super) results: BTreeMap<Cow<'a, str>, Cow<'a, BuildArtifact>>,
}

/// An item of `filesystem/modifications/changes_NNN.json`: an update, or a modification that is in
/// no update of the tree.
#[derive(Serialize, Deserialize)]
pub(super) struct ChangeItem<'a> {
    /// The update. It omits messages that the conversation contains; `message_ids` lists them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) update: Option<Cow<'a, StateUpdate>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) message_ids: Vec<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) modification: Option<Cow<'a, FileModification>>,
}

impl<'a> ChangeItem<'a> {
    pub(super) fn of_modification(modification: &'a FileModification) -> ChangeItem<'a> {
        let modification = Some(Cow::Borrowed(modification));
        ChangeItem { update: None, message_ids: Vec::new(), modification }
    }

    /// Returns the modification in the change.
    pub(super) fn file_modification(&self) -> Option<&FileModification> {
        let told = self.update.as_ref().and_then(|update| match &update.operation {
            UpdateOperation::FileModified { modification } => Some(modification),
            _ => None,
        });
        self.modification.as_deref().or(told)
    }
}

#[derive(Deserialize)]
pub(super) struct ChangesFile {
    pub(super) changes: Vec<ChangeItem<'static>>,
}

/// An item of `logs/claude_interactions/*.json`, with its place among requests and responses.
#[derive(Serialize, Deserialize)]
pub(super) struct PlacedInteraction<'a> {
    pub(super) place: u64,
    pub(super) interaction: Cow<'a, Interaction>,
    /// Number of the conversation's messages before `messages`, which a request sent again. For
    /// people, like `messages`.
    #[serde(default, skip_serializing_if = "Option::is_none", skip_deserializing)]
    pub(super) messages_before: Option<usize>,
    /// Messages that a request sent for the first time, or the message of an answer.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty", skip_deserializing)]
    pub(super) messages: &'a [ConversationMessage],
}

#[derive(Deserialize)]
pub(super) struct InteractionsFile {
    pub(super) interactions: Vec<PlacedInteraction<'static>>,
}

#[derive(Deserialize)]
pub(super) struct ErrorsFile {
    pub(super) errors: Vec<ErrorEntry>,
}

/// `logs/execution/*.json`.
#[derive(Serialize, Deserialize)]
pub(super) struct LogFile<'a> {
    pub(super) entries: Cow<'a, [LogEntry]>,
}

//! The history of a session, for people who look for causes.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use foldlog::{OperationId, Outcome, Policy, SequenceNumber, SessionTypesBuilder};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{TaskId, TaskStatus};

/// Contains the history of a session. A rollback removes nothing of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutionLogState {
    /// Entries about each task, and those recorded while it was in progress, by its id.
    pub tasks: BTreeMap<TaskId, Vec<LogEntry>>,
    /// Entries that belong to no task.
    pub system_events: Vec<LogEntry>,
    /// Requests to providers and their replies.
    pub interactions: Vec<Interaction>,
    /// Failures: of calls and of requests, and errors that a host logged.
    pub errors: Vec<ErrorEntry>,
    /// Actions that brought the session back after a failure.
    pub recovery_actions: Vec<RecoveryAction>,
}

/// Contains one entry of an execution log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// Record of the entry.
    pub sequence: SequenceNumber,
    /// Time of the record.
    pub at: DateTime<Utc>,
    /// Whether the record counts; `false` if a rollback has abandoned it since.
    pub is_live: bool,
    /// The event.
    pub what: ExecutionEvent,
}

/// Describes an event of an execution log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum ExecutionEvent {
    /// The host logged a message.
    Message {
        /// Severity.
        level: LogLevel,
        /// The message.
        message: String,
    },
    /// A task was created.
    Created,
    /// A task changed its state.
    StatusChanged {
        /// State before.
        old_status: TaskStatus,
        /// State after.
        new_status: TaskStatus,
        /// Reason.
        reason: Option<String>,
    },
    /// A tool's run ended.
    ToolEnded {
        /// Name of the tool.
        tool: String,
        /// Its operation.
        operation: OperationId,
        /// How the run ended.
        outcome: Outcome,
        /// Duration in microseconds.
        elapsed_us: u64,
    },
}

/// Lists the severities of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Details for finding a defect.
    Debug,
    /// Progress.
    #[default]
    Info,
    /// A possible problem.
    Warning,
    /// A failure.
    Error,
}

/// Describes a request to a provider or its reply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interaction {
    /// Record of the request, the answer or the failure.
    pub sequence: SequenceNumber,
    /// Time of the record.
    pub at: DateTime<Utc>,
    /// Id of the evaluation.
    pub evaluation_id: String,
    /// Kind of interaction.
    pub kind: InteractionKind,
    /// Request of the reply.
    pub request: Option<SequenceNumber>,
    /// Model of the request or the answer.
    pub model: Option<String>,
    /// Provider's id of the request.
    pub request_id: Option<String>,
    /// Why the provider stopped, or how the request failed.
    pub outcome: Option<String>,
    /// Id of the answer's message. It is recorded as a text, so that the JSON of an export can be
    /// parsed again.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "uuid::serde::hyphenated::option")]
    pub message_id: Option<Uuid>,
    /// Parameters of the request other than messages and tools: JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<String>,
    /// Text that had arrived when the request failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrived: Option<String>,
}

/// Lists the kinds of interactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InteractionKind {
    /// A request was sent to the provider.
    #[default]
    Request,
    /// The provider answered.
    Answer,
    /// The request failed.
    Failure,
}

/// Describes a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorEntry {
    /// Record of the failure.
    pub sequence: SequenceNumber,
    /// Time of the record.
    pub at: DateTime<Utc>,
    /// Task that was in progress.
    pub task: Option<TaskId>,
    /// Tool that failed; `None` for other failures.
    pub tool: Option<String>,
    /// Kind of failure, if the record has one: the name of a cause.
    pub cause: Option<String>,
    /// Description of the failure.
    pub message: String,
}

/// Records an action that brought a session back after a failure. The event is the item of the
/// slice [`RecoveryActions`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryAction {
    /// The action: the name of a strategy, `restore`, `repair` or a word of the host.
    pub action: String,
    /// Person or program that acted.
    pub by: String,
    /// Reason.
    pub reason: String,
    /// Position, checkpoint, rule or file that the action concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Losses and steps that failed, one entry each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
}

/// Records a message for people. The event is the item of the slice [`ExecutionLog`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutionLogged {
    /// Task that the message concerns. `None`: no task in particular.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    /// Severity.
    #[serde(default)]
    pub level: LogLevel,
    /// The message.
    pub message: String,
}

events! {
    RecoveryAction = "recovery_action",
    ExecutionLogged = "execution_logged",
}

slices! {
    /// Marks the LOG slice of the host's messages, `execution_log`.
    ExecutionLog = "execution_log" of ExecutionLogged,
    /// Marks the LOG slice of actions after failures, `recovery_actions`.
    RecoveryActions = "recovery_actions" of RecoveryAction,
}

pub(super) fn declare(types: SessionTypesBuilder) -> SessionTypesBuilder {
    types
        .slice_with::<ExecutionLog>(Policy::Log)
        .append_all::<ExecutionLog>()
        .slice_with::<RecoveryActions>(Policy::Log)
        .append_all::<RecoveryActions>()
}

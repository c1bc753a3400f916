//! What happened in a session, for people who look for why.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use foldlog::{Cause, Event, OperationId, Outcome, Policy, SequenceNumber, SessionTypesBuilder, Slice};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{TaskId, TaskStatus};

/// Holds what happened in a session. A rollback takes nothing of it back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutionLogState {
    /// What happened while a task was being worked on, and to the task, by its id.
    pub tasks: BTreeMap<TaskId, Vec<LogEntry>>,
    /// What belongs to no task.
    pub system_events: Vec<LogEntry>,
    /// Requests to providers and their replies.
    pub interactions: Vec<Interaction>,
    /// What went wrong: calls and requests that failed, and errors that a host logged.
    pub errors: Vec<ErrorEntry>,
    /// What was done to bring the session back after a failure.
    pub recovery_actions: Vec<RecoveryAction>,
}

/// Holds one entry of an execution log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// Record that says so.
    pub sequence: SequenceNumber,
    /// Time of the record.
    pub at: DateTime<Utc>,
    /// Whether the record counts; `false` if a rollback has abandoned it since.
    pub is_live: bool,
    /// What happened.
    pub what: ExecutionEvent,
}

/// Says what happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum ExecutionEvent {
    /// The host said something.
    Message {
        /// How much it matters.
        level: LogLevel,
        /// What it said.
        message: String,
    },
    /// A task was created.
    Created,
    /// A task changed its state.
    StatusChanged {
        /// State that it was in.
        old_status: TaskStatus,
        /// State that it is in since.
        new_status: TaskStatus,
        /// Why.
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

/// Says how much a message matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// For whoever looks for a defect.
    Debug,
    /// For whoever wants to know how far it is.
    #[default]
    Info,
    /// Something that may matter.
    Warning,
    /// Something went wrong.
    Error,
}

/// Describes a request to a provider or its reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interaction {
    /// Record of the request, the answer or the failure.
    pub sequence: SequenceNumber,
    /// Time of the record.
    pub at: DateTime<Utc>,
    /// Id of the evaluation.
    pub evaluation_id: String,
    /// Which of the three it is.
    pub kind: InteractionKind,
    /// Request that is replied to.
    pub request: Option<SequenceNumber>,
    /// Model that was asked or answered.
    pub model: Option<String>,
    /// Id that the provider gave the request.
    pub request_id: Option<String>,
    /// Why the provider stopped, or what went wrong.
    pub outcome: Option<String>,
    /// Id of the message that the answer brought. Recorded as a text, so that an export's JSON reads back.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "uuid::serde::hyphenated::option")]
    pub message_id: Option<Uuid>,
    /// Parameters of the request beside messages and tools: JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<String>,
    /// Text that had arrived when the request failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrived: Option<String>,
}

/// Kinds of interactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InteractionKind {
    /// The provider was asked.
    Request,
    /// The provider answered.
    Answer,
    /// The request failed.
    Failure,
}

/// Describes something that went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorEntry {
    /// Record that says so.
    pub sequence: SequenceNumber,
    /// Time of the record.
    pub at: DateTime<Utc>,
    /// Task that was being worked on.
    pub task: Option<TaskId>,
    /// Tool that failed; `None` if it was something else.
    pub tool: Option<String>,
    /// Kind of failure, where the record has one: the name of a cause.
    pub cause: Option<String>,
    /// What went wrong.
    pub message: String,
}

impl ErrorEntry {
    /// Names the cause of a tool's failure.
    pub(super) fn cause_of(cause: Option<Cause>) -> Option<String> {
        cause.map(|cause| cause.name().to_owned())
    }
}

/// Says what somebody did to bring a session back after a failure. The event is the item of the slice [`RecoveryActions`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryAction {
    /// What was done: the name of a strategy, `restore`, `repair` or a word of the host.
    pub action: String,
    /// Who did it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Position, checkpoint, rule or file that it was about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// What was lost or could not be done, one entry each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
}

/// Says something for people. The event is the item of the slice [`ExecutionLog`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutionLogged {
    /// Task that it is about. `None`: none in particular.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    /// How much it matters.
    #[serde(default)]
    pub level: LogLevel,
    /// What is said.
    pub message: String,
}

impl Event for RecoveryAction {
    const NAME: &'static str = "recovery_action";
}

impl Event for ExecutionLogged {
    const NAME: &'static str = "execution_logged";
}

/// Marks the LOG slice of what a host said, `execution_log`.
#[derive(Debug)]
pub struct ExecutionLog;

impl Slice for ExecutionLog {
    const NAME: &'static str = "execution_log";
    type Item = ExecutionLogged;
}

/// Marks the LOG slice of what was done after failures, `recovery_actions`.
#[derive(Debug)]
pub struct RecoveryActions;

impl Slice for RecoveryActions {
    const NAME: &'static str = "recovery_actions";
    type Item = RecoveryAction;
}

pub(super) fn declare(types: SessionTypesBuilder) -> SessionTypesBuilder {
    types
        .slice_with::<ExecutionLog>(Policy::Log)
        .append_all::<ExecutionLog>()
        .slice_with::<RecoveryActions>(Policy::Log)
        .append_all::<RecoveryActions>()
}

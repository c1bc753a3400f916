//! The changes of a session, update by update. Updates are a view: only the records store them.

use chrono::{DateTime, Utc};
use foldlog::SequenceNumber;
use foldlog::conversation::ConversationMessage;
use foldlog::inspect::{LogReader, RecordedEvent};
use serde::{Deserialize, Serialize};

use super::state::SessionStateBuilder;
use super::{
    DependencyAdded, DependencyRemoved, FileModification, StateComponent, TaskCreated, TaskModified,
    TaskRenumbered, TaskStatusChanged, WorkspaceStores,
};

/// Describes one change of a session's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateUpdate {
    /// Time of its record.
    pub timestamp: DateTime<Utc>,
    /// Part of the state that it changes.
    pub component: StateComponent,
    /// The change.
    pub operation: UpdateOperation,
    /// Number of the update among those that count, starting from 1 and without gaps. A rollback
    /// frees numbers.
    pub sequence_number: u64,
    /// Record of the update. The end record of a tool's run may contain several updates.
    pub position: SequenceNumber,
    /// BLAKE3 of the record's number, kind, time and body, in hexadecimal digits.
    pub checksum: String,
}

/// Describes the change of an update.
///
/// Updates of tasks are events that a host dispatches; the last two are mostly repairs. The others
/// are views of a tool's changes in a workspace and of the records of conversations. Only those
/// records can create them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "operation")]
pub enum UpdateOperation {
    /// A task was created.
    TaskCreated(TaskCreated),
    /// A task changed its state.
    TaskStatusChanged(TaskStatusChanged),
    /// A task was changed otherwise.
    TaskModified(TaskModified),
    /// A file of a workspace was changed.
    FileModified {
        /// The change.
        modification: FileModification,
    },
    /// Messages were added to a conversation.
    ConversationExtended {
        /// Id of the evaluation.
        evaluation_id: String,
        /// The messages.
        messages: Vec<ConversationMessage>,
    },
    /// A dependency was added.
    DependencyAdded(DependencyAdded),
    /// A dependency was removed.
    DependencyRemoved(DependencyRemoved),
    /// A task got a new place in the order of creation.
    TaskRenumbered(TaskRenumbered),
}

impl UpdateOperation {
    /// Reads an event of tasks. Returns `None` for other events.
    pub fn of_event(event: &RecordedEvent) -> foldlog::Result<Option<UpdateOperation>> {
        Ok(if let Some(event) = event.read()? {
            Some(UpdateOperation::TaskCreated(event))
        } else if let Some(event) = event.read()? {
            Some(UpdateOperation::TaskStatusChanged(event))
        } else if let Some(event) = event.read()? {
            Some(UpdateOperation::TaskModified(event))
        } else if let Some(event) = event.read()? {
            Some(UpdateOperation::DependencyAdded(event))
        } else if let Some(event) = event.read()? {
            Some(UpdateOperation::DependencyRemoved(event))
        } else {
            event.read()?.map(UpdateOperation::TaskRenumbered)
        })
    }

    /// Returns the part of the state that the update changes.
    pub fn component(&self) -> StateComponent {
        match self {
            UpdateOperation::FileModified { .. } => StateComponent::FileSystem,
            UpdateOperation::ConversationExtended { .. } => StateComponent::ClaudeContext,
            _ => StateComponent::TaskTree,
        }
    }
}

impl StateUpdate {
    /// Lists the updates that count at a position, in order.
    ///
    /// # Errors
    ///
    /// [`NoSuchPosition`](foldlog::Error::NoSuchPosition) if the log has no such record,
    /// [`Decode`](foldlog::Error::Decode) if an event or a capture cannot be read, and the errors
    /// of reading a log.
    pub fn list(
        log: &LogReader,
        position: impl Into<SequenceNumber>,
        stores: &WorkspaceStores,
    ) -> foldlog::Result<Vec<StateUpdate>> {
        let found = SessionStateBuilder::read(log, position.into(), stores, true)?;
        Ok(found.updates.unwrap_or_default())
    }
}

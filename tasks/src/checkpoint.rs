//! Checkpoints: their ids, occasions and contents.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use foldlog::filesystem::FilesystemSnapshot;
use foldlog::{SequenceNumber, escape};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{CompressionAlgorithm, TaskId};

/// Numbers the checkpoints of a log in the order of their creation, starting from 1. Neither a
/// rollback nor a removal frees a number. A fork continues after the numbers that it shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CheckpointId(pub u64);

impl CheckpointId {
    pub(super) fn next(self) -> CheckpointId {
        CheckpointId(self.0.saturating_add(1))
    }
}

impl fmt::Display for CheckpointId {
    /// Writes `checkpoint_` and at least three digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "checkpoint_{:03}", self.0)
    }
}

/// Reports a text that is no id of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not the id of a checkpoint, such as checkpoint_003 or 3", escape::text(.0))]
pub struct InvalidCheckpointId(
    /// The text, at most its first 100 characters.
    pub String,
);

impl FromStr for CheckpointId {
    type Err = InvalidCheckpointId;

    /// Parses a number, or the form that [`Display`](fmt::Display) writes.
    fn from_str(text: &str) -> Result<CheckpointId, InvalidCheckpointId> {
        let digits = text.strip_prefix("checkpoint_").unwrap_or(text);
        let number = Some(digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        let number = number.and_then(|digits| digits.parse().ok()).filter(|number| *number > 0);
        number.map(CheckpointId).ok_or_else(|| InvalidCheckpointId(text.chars().take(100).collect()))
    }
}

/// Describes why a checkpoint was created.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Occasion {
    /// A person or the host requested it.
    #[default]
    Manual,
    /// [`CheckpointPolicy::every`](super::CheckpointPolicy::every) had elapsed since the previous
    /// checkpoint.
    PeriodicByTime,
    /// [`CheckpointPolicy::every_updates`](super::CheckpointPolicy::every_updates) had been
    /// recorded since the previous checkpoint.
    PeriodicByUpdates,
    /// The records since the previous checkpoint had
    /// [`CheckpointPolicy::every_bytes`](super::CheckpointPolicy::every_bytes).
    PeriodicByBytes,
    /// The task was about to start.
    BeforeTask(TaskId),
    /// Work on the task had ended.
    AfterTask(TaskId),
    /// The session was about to be restored to this checkpoint.
    BeforeRestore(CheckpointId),
    /// The host was about to exit.
    Shutdown,
}

impl fmt::Display for Occasion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Occasion::Manual => f.write_str("manual"),
            Occasion::PeriodicByTime => f.write_str("periodic by time"),
            Occasion::PeriodicByUpdates => f.write_str("periodic by updates"),
            Occasion::PeriodicByBytes => f.write_str("periodic by bytes"),
            Occasion::BeforeTask(task) => write!(f, "before task {task}"),
            Occasion::AfterTask(task) => write!(f, "after task {task}"),
            Occasion::BeforeRestore(id) => write!(f, "before the restore of {id}"),
            Occasion::Shutdown => f.write_str("shutdown"),
        }
    }
}

/// Counts the contents of a session at a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointManifest {
    /// Number of tasks.
    pub total_tasks: u64,
    /// Number of completed tasks.
    pub completed_tasks: u64,
    /// Tasks in progress, in ascending order of their ids.
    pub active_tasks: Vec<TaskId>,
    /// Number of file changes that counted, as far as captures could be compared.
    pub file_modifications_count: u64,
    /// Number of messages in all conversations.
    pub conversation_messages_count: u64,
    /// Length of the records through the position, in bytes, as
    /// [`ResourceUsageState::log_bytes`](crate::ResourceUsageState::log_bytes) counts it. The
    /// additional space of the log on a disk is excluded, because it depends on when the log was
    /// synced.
    pub storage_size_bytes: u64,
    /// Dependencies of the project, each as `name version`, in ascending order.
    pub dependencies: Vec<String>,
}

/// Describes the [export](foldlog::Export) of a checkpoint's snapshot in compressed form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompressedSnapshot {
    /// Algorithm.
    pub algorithm: CompressionAlgorithm,
    /// Requested level of the algorithm.
    pub level: u32,
    /// Length of the export's JSON, in bytes.
    pub bytes: u64,
    /// Length of the compressed JSON, in bytes.
    pub compressed_bytes: u64,
}

/// Describes a position to which a session can be restored, and its contents there.
///
/// No state is copied: the position determines all of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Id of the checkpoint.
    pub id: CheckpointId,
    /// Time of its creation.
    pub created_at: DateTime<Utc>,
    /// Session that created it. It is recorded as a text, so that the JSON of an export can be
    /// parsed again.
    #[serde(with = "uuid::serde::hyphenated")]
    pub session_id: Uuid,
    /// Sequence number of the snapshot's record. A restore returns to this position.
    pub position: SequenceNumber,
    /// Name given by the creator. Retention never removes a checkpoint with a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Why it was created.
    pub occasion: Occasion,
    /// Contents of the session.
    pub manifest: CheckpointManifest,
    /// Latest capture of each workspace that a tool's run recorded before the position.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub workspaces: BTreeMap<String, FilesystemSnapshot>,
    /// Captures of all resources at the position, as the JSON of a
    /// [`CompositeSnapshot`](foldlog::tools::CompositeSnapshot). `None` if only the session was
    /// captured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<String>,
    /// Size of its compressed snapshot. `None` if the manager does not
    /// [compress](super::CheckpointManager::with_compression) snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<CompressedSnapshot>,
    /// BLAKE3 of the records through the position, in hexadecimal digits, as the
    /// [specification](super#hash) defines it.
    pub validation_hash: String,
}

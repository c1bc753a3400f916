//! What a checkpoint is.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use foldlog::filesystem::FilesystemSnapshot;
use foldlog::{SequenceNumber, escape};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{CompressionAlgorithm, TaskId};

/// Numbers the checkpoints of a log in the order of their creation, from 1 on. Neither a rollback nor a removal frees a
/// number. A fork goes on behind the numbers that it shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CheckpointId(pub u64);

impl CheckpointId {
    /// Returns the id of the checkpoint that is created after this one.
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

/// Says that a text is no id of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no id of a checkpoint, such as checkpoint_003 or 3", escape::text(.0))]
pub struct InvalidCheckpointId(
    /// The text, at most its first 100 characters.
    pub String,
);

impl FromStr for CheckpointId {
    type Err = InvalidCheckpointId;

    /// Reads a number, or what [`Display`](fmt::Display) writes.
    fn from_str(text: &str) -> Result<CheckpointId, InvalidCheckpointId> {
        let digits = text.strip_prefix("checkpoint_").unwrap_or(text);
        let number = Some(digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        let number = number.and_then(|digits| digits.parse().ok()).filter(|number| *number > 0);
        number.map(CheckpointId).ok_or_else(|| InvalidCheckpointId(text.chars().take(100).collect()))
    }
}

/// Says why a checkpoint was created.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Occasion {
    /// Somebody asked for it.
    #[default]
    Manual,
    /// [`CheckpointPolicy::every`](super::CheckpointPolicy::every) had passed since the checkpoint before.
    PeriodicByTime,
    /// [`CheckpointPolicy::every_updates`](super::CheckpointPolicy::every_updates) had been recorded since the checkpoint before.
    PeriodicByUpdates,
    /// The records since the checkpoint before held [`CheckpointPolicy::every_bytes`](super::CheckpointPolicy::every_bytes).
    PeriodicByBytes,
    /// The task was about to be started.
    BeforeTask(TaskId),
    /// The task was no longer being worked on.
    AfterTask(TaskId),
    /// The session was about to be restored to this checkpoint.
    BeforeRestore(CheckpointId),
    /// The host was about to end.
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

/// Counts what a session held at a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointManifest {
    /// Number of tasks.
    pub total_tasks: u64,
    /// Number of tasks that were completed.
    pub completed_tasks: u64,
    /// Tasks that were being worked on, in ascending order of their ids.
    pub active_tasks: Vec<TaskId>,
    /// Number of changes of files that counted, as far as captures could be compared.
    pub file_modifications_count: u64,
    /// Number of messages of all conversations.
    pub conversation_messages_count: u64,
    /// Length of what the records through the position hold, in bytes, as
    /// [`ResourceUsageState::log_bytes`](crate::ResourceUsageState::log_bytes) counts it. What the log takes on a
    /// disk beside that depends on when it was synced, and not on what was done.
    pub storage_size_bytes: u64,
    /// Dependencies of what is built, each as `name version`, in ascending order.
    pub dependencies: Vec<String>,
}

/// Describes what the engine [exports](foldlog::Export) of a checkpoint's snapshot, as it was compressed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompressedSnapshot {
    /// Algorithm.
    pub algorithm: CompressionAlgorithm,
    /// Level that the algorithm was asked for.
    pub level: u32,
    /// Length of the export's JSON, in bytes.
    pub bytes: u64,
    /// Length of the compressed JSON, in bytes.
    pub compressed_bytes: u64,
}

/// Names a position of a session to which it can be restored, with what it held there.
///
/// No state is copied: the position says all of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Id of the checkpoint.
    pub id: CheckpointId,
    /// Time of its creation.
    pub created_at: DateTime<Utc>,
    /// Session that created it. Recorded as a text, so that an export's JSON reads back.
    #[serde(with = "uuid::serde::hyphenated")]
    pub session_id: Uuid,
    /// Sequence number of the snapshot's record, which is the position that a restore goes back to.
    pub position: SequenceNumber,
    /// Name that somebody gave it. A checkpoint with a name is never removed by retention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Why it was created.
    pub occasion: Occasion,
    /// What the session held.
    pub manifest: CheckpointManifest,
    /// Latest capture of each workspace that a tool's run recorded before the position.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub workspaces: BTreeMap<String, FilesystemSnapshot>,
    /// Captures of all resources at the position, as the JSON of a
    /// [`CompositeSnapshot`](foldlog::tools::CompositeSnapshot). `None` if the session was captured alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<String>,
    /// Size of its compressed snapshot. `None` if the manager was not asked to [compress](super::CheckpointManager::with_compression)
    /// any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<CompressedSnapshot>,
    /// BLAKE3 of the records through the position, in hexadecimal digits, as the [specification](super#hash) says.
    pub validation_hash: String,
}

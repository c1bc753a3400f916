//! What can go wrong in long-running work.

use foldlog::SequenceNumber;

use super::checkpoints::CheckpointId;

/// Says what went wrong with checkpoints, files or recoveries of long-running work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine reported an error.
    #[error(transparent)]
    Engine(#[from] foldlog::Error),
    /// The session has no such checkpoint.
    #[error("the session has no {id}: it has {known} checkpoints")]
    NoSuchCheckpoint {
        /// The checkpoint that was asked for.
        id: CheckpointId,
        /// Number of checkpoints that the session has.
        known: usize,
    },
    /// The session has no checkpoint to go back to.
    #[error("the session has no checkpoint to go back to")]
    NoCheckpoint,
    /// The checkpoint was removed by retention.
    #[error("{id} was removed, since it was kept no longer by {reason}")]
    CheckpointRemoved {
        /// The checkpoint that was asked for.
        id: CheckpointId,
        /// Limit by which it was removed.
        reason: super::checkpoints::RemovalReason,
    },
    /// The records up to a checkpoint are not those from which its hash was made.
    #[error(
        "{id} cannot be trusted: the records through {position} have the hash {found}, it says {expected}"
    )]
    CheckpointMismatch {
        /// First checkpoint whose hash does not fit.
        id: CheckpointId,
        /// Its position.
        position: SequenceNumber,
        /// Hash that the checkpoint says.
        expected: String,
        /// Hash that was made of the records.
        found: String,
    },
    /// The checkpoint holds no captures of resources, or the manager has no run to restore them with.
    #[error("{id} cannot be restored with its resources: {reason}")]
    NoResources {
        /// The checkpoint that was asked for.
        id: CheckpointId,
        /// What is missing.
        reason: &'static str,
    },
}

/// Result of long-running work.
pub type Result<T, E = Error> = std::result::Result<T, E>;

//! Checkpoints: positions to which a session can be restored, with counts of its contents there.
//!
//! A checkpoint is a snapshot record of the log, followed by a [`CheckpointCreated`]. No state is
//! copied: the cost of a checkpoint depends on the records since the last one, and not on the size
//! of the session. The slice [`Checkpoints`] is LOG: no rollback removes a checkpoint.
//!
//! | module | contains |
//! |---|---|
//! | `checkpoint` | [`Checkpoint`], its manifest and its occasion |
//! | `events` | [`CheckpointCreated`], [`CheckpointsRemoved`], and when they are refused |
//! | `history` | [`CheckpointHistory`]: the checkpoints of a log |
//! | `counts` | the contents of a session, counted from the previous checkpoint |
//! | `hash` | computing and verifying hashes |
//! | `policy` | [`CheckpointPolicy`] and [`RetentionPolicy`] |
//! | `create` | [`CheckpointManager`]: creating, listing, removing |
//! | `restore` | [`CheckpointManager::restore_from_checkpoint`] |
//!
//! # Hash
//!
//! The hash of a checkpoint covers every record through its position, including those that
//! rollbacks have abandoned. It consists of the 64 hexadecimal digits of
//!
//! ```text
//! BLAKE3( previous ‖ digest(r1) ‖ digest(r2) ‖ … ‖ digest(rn) )
//! ```
//!
//! where `r1` to `rn` are, in order, the records after the position of the previously created
//! checkpoint of this log, through its own position; `digest` is the 32 bytes of
//! [`DecodedRecord::digest`](foldlog::inspect::DecodedRecord::digest); and `previous` is the 32
//! bytes of that checkpoint's hash. For the first checkpoint of a log, `r1` is record 0, and
//! `previous` is
//!
//! ```text
//! BLAKE3( "foldlog.checkpoint.1" ‖ id )
//! ```
//!
//! with the 16 bytes of the id of the session that created it. The previous checkpoint may have
//! been removed since: its record remains. A fork continues the hashes that it shares.
//!
//! # A kill
//!
//! | between | leaves |
//! |---|---|
//! | the snapshot and [`CheckpointCreated`] | a snapshot that is no checkpoint |
//! | [`CheckpointCreated`] and [`CheckpointsRemoved`], with an observation of the forks before it | the new checkpoint and all earlier ones; the next creation removes them |
//! | the steps of a restore | see [`restore_from_checkpoint`](CheckpointManager::restore_from_checkpoint) |
//!
//! # Invariants
//!
//! 1. Checkpoints are numbered without gaps.
//! 2. The checkpoint that was created last is never removed.
//! 3. Counts equal those of the whole session at the position.
//! 4. Creations and removals follow from the records, including recorded observations. So a
//!    [replay](foldlog::replay) of the host creates and removes the same checkpoints.

mod counts;
mod create;
mod events;
mod hash;
mod history;
mod policy;
mod restore;

pub use crate::checkpoint::{
    Checkpoint, CheckpointId, CheckpointManifest, CompressedSnapshot, InvalidCheckpointId, Occasion,
};
pub use create::CheckpointManager;
pub(super) use events::declare;
pub use events::{CheckpointCreated, CheckpointEntry, Checkpoints, CheckpointsRemoved, RemovalReason};
pub use history::CheckpointHistory;
pub use policy::{CheckpointPolicy, RetentionPolicy};
pub(super) use restore::dispatch as dispatch_update;
pub use restore::{RefusedUpdate, RestoreOptions, RestoreReport};

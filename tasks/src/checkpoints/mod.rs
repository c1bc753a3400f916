//! Checkpoints: positions of a session that it can be restored to, with what it held there.
//!
//! A checkpoint is a snapshot record of the log, and a [`CheckpointCreated`] behind it. No state is copied, so that creating
//! one costs what was recorded since the last one, however much the session holds. The slice [`Checkpoints`] is LOG: no
//! rollback takes a checkpoint back.
//!
//! | module | holds |
//! |---|---|
//! | `checkpoint` | [`Checkpoint`], its manifest and its occasion |
//! | `events` | [`CheckpointCreated`], [`CheckpointsRemoved`], and when they are refused |
//! | `history` | [`CheckpointHistory`]: the checkpoints of a log |
//! | `records` | where records are read: in a session, or in a log |
//! | `counts` | what a session held, counted from the checkpoint before |
//! | `hash` | hashes, made and checked |
//! | `policy` | [`CheckpointPolicy`] and [`RetentionPolicy`] |
//! | `create` | [`CheckpointManager`]: creating, listing, removing |
//! | `restore` | [`CheckpointManager::restore_from_checkpoint`] |
//!
//! # Hash
//!
//! The hash of a checkpoint covers every record through its position, those that rollbacks have abandoned included. It is 64
//! hexadecimal digits of
//!
//! ```text
//! BLAKE3( previous ‖ digest(r1) ‖ digest(r2) ‖ … ‖ digest(rn) )
//! ```
//!
//! where `r1` to `rn` are the records behind the position of the checkpoint that was created before it in this log, through
//! its own position, in order; `digest` is the 32 bytes of [`DecodedRecord::digest`](foldlog::inspect::DecodedRecord::digest); and
//! `previous` is the 32 bytes of that checkpoint's hash. For the first checkpoint of a log, `r1` is record 0, and `previous` is
//!
//! ```text
//! BLAKE3( "foldlog.checkpoint.1" ‖ id )
//! ```
//!
//! with the 16 bytes of the id of the session that created it. The checkpoint that was created before may have been removed
//! since: its record stays. A fork goes on with the hashes that it shares.
//!
//! # A kill
//!
//! | between | leaves |
//! |---|---|
//! | the snapshot and [`CheckpointCreated`] | a snapshot that is no checkpoint |
//! | [`CheckpointCreated`] and [`CheckpointsRemoved`], with an observation of the forks before it | the new checkpoint and all earlier ones; the next one that is created removes them |
//! | the steps of a restore | see [`restore_from_checkpoint`](CheckpointManager::restore_from_checkpoint) |
//!
//! # Invariants
//!
//! 1. Checkpoints are numbered without gaps.
//! 2. The checkpoint that was created last is never removed.
//! 3. Counts are what counting the whole session at the position gives.
//! 4. What is created and removed follows from the records, those of what was observed included, so that a
//!    [replay](foldlog::replay) of the host creates and removes the same.

mod counts;
mod create;
mod events;
mod hash;
mod history;
mod policy;
mod records;
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

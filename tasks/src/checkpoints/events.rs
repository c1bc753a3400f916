//! What is recorded of checkpoints: two events, and the LOG slice that holds both.

use std::fmt;

use foldlog::{Event, Policy, ReducerContext, SessionTypesBuilder, Slice, SliceOp, View};
use serde::{Deserialize, Serialize};

use super::{Checkpoint, CheckpointId};

/// Says that a checkpoint was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointCreated {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
}

/// Says that checkpoints are kept no longer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointsRemoved {
    /// The checkpoints, in ascending order.
    pub ids: Vec<CheckpointId>,
    /// Limit by which they were removed.
    pub reason: RemovalReason,
    /// Checkpoint that was created last. It is none of those that were removed.
    pub latest: CheckpointId,
}

/// Limits of a [`RetentionPolicy`](super::RetentionPolicy).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemovalReason {
    /// There were more checkpoints than are kept.
    Count,
    /// The checkpoint was older than checkpoints are kept.
    Age,
    /// The records since held more bytes than checkpoints are kept for.
    Bytes,
}

impl fmt::Display for RemovalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RemovalReason::Count => "count",
            RemovalReason::Age => "age",
            RemovalReason::Bytes => "bytes",
        })
    }
}

impl Event for CheckpointCreated {
    const NAME: &'static str = "checkpoint_created";

    /// Captures of resources are no part of a replay, which shows recorded ones. What a snapshot compresses to depends on the
    /// version of the codec.
    const NOT_COMPARED: &'static [&'static str] = &[
        "$.event.checkpoint.resources",
        "$.added[*].created.resources",
        "$.event.checkpoint.snapshot",
        "$.added[*].created.snapshot",
    ];
}

impl Event for CheckpointsRemoved {
    const NAME: &'static str = "checkpoints_removed";
}

/// Says what happened to checkpoints: an item of the slice [`Checkpoints`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointEntry {
    /// One was created.
    Created(Box<Checkpoint>),
    /// Some were removed.
    Removed(CheckpointsRemoved),
}

/// Marks the LOG slice of what happened to checkpoints, `checkpoints`.
#[derive(Debug)]
pub struct Checkpoints;

impl Slice for Checkpoints {
    const NAME: &'static str = "checkpoints";
    type Item = CheckpointEntry;
}

/// Declares checkpoints.
pub(crate) fn declare(types: SessionTypesBuilder) -> SessionTypesBuilder {
    types
        .slice_with::<Checkpoints>(Policy::Log)
        .reducer::<Checkpoints, CheckpointCreated>(reduce_created)
        .reducer::<Checkpoints, CheckpointsRemoved>(reduce_removed)
}

type CheckpointReduction = Result<SliceOp<CheckpointEntry>, String>;

/// Returns the checkpoint that was created last.
fn latest(entries: &View<CheckpointEntry>) -> Option<CheckpointId> {
    entries.latest().map(|entry| match entry {
        CheckpointEntry::Created(checkpoint) => checkpoint.id,
        CheckpointEntry::Removed(removed) => removed.latest,
    })
}

fn reduce_created(
    entries: &View<CheckpointEntry>,
    event: &CheckpointCreated,
    _: &ReducerContext,
) -> CheckpointReduction {
    let (id, next) = (event.checkpoint.id, latest(entries).unwrap_or(CheckpointId(0)).next());
    match id == next {
        true => Ok(SliceOp::Append(CheckpointEntry::Created(Box::new(event.checkpoint.clone())))),
        false => Err(format!("the next checkpoint is {next}, not {id}")),
    }
}

fn reduce_removed(
    entries: &View<CheckpointEntry>,
    event: &CheckpointsRemoved,
    _: &ReducerContext,
) -> CheckpointReduction {
    let CheckpointsRemoved { ids, latest: said, .. } = event;
    match latest(entries) {
        Some(latest) if latest != *said => Err(format!("the latest checkpoint is {latest}, not {said}")),
        Some(latest) if ids.iter().any(|id| *id >= latest || id.0 == 0) => {
            Err(format!("only checkpoints before {latest} can be removed"))
        }
        Some(_) => Ok(SliceOp::Append(CheckpointEntry::Removed(event.clone()))),
        None => Err("there is no checkpoint".to_owned()),
    }
}

//! The records of checkpoints: two events, and the LOG slice that contains both.

use foldlog::{Event, Policy, ReducerContext, SessionTypesBuilder, SliceOp, View};
use serde::{Deserialize, Serialize};

use super::{Checkpoint, CheckpointId};

/// Records that a checkpoint was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointCreated {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
}

/// Records that checkpoints were removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointsRemoved {
    /// The checkpoints, in ascending order.
    pub ids: Vec<CheckpointId>,
    /// Limit by which they were removed.
    pub reason: RemovalReason,
    /// Checkpoint that was created last. It is not among those that were removed.
    pub latest: CheckpointId,
}

/// Lists the limits of a [`RetentionPolicy`](super::RetentionPolicy).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemovalReason {
    /// There were more checkpoints than the limit.
    Count,
    /// The checkpoint was older than the limit.
    Age,
    /// The later records had more bytes than the limit.
    Bytes,
}

display_json_names!(RemovalReason);

impl Event for CheckpointCreated {
    const NAME: &'static str = "checkpoint_created";

    /// A replay takes captures of resources from the records, so they are not compared. The
    /// compressed size of a snapshot depends on the version of the codec.
    const NOT_COMPARED: &'static [&'static str] = &[
        "$.event.checkpoint.resources",
        "$.added[*].created.resources",
        "$.event.checkpoint.snapshot",
        "$.added[*].created.snapshot",
    ];
}

events! { CheckpointsRemoved = "checkpoints_removed" }

/// Describes a creation or a removal of checkpoints: an item of the slice [`Checkpoints`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointEntry {
    /// A checkpoint was created.
    Created(Box<Checkpoint>),
    /// Checkpoints were removed.
    Removed(CheckpointsRemoved),
}

slices! {
    /// Marks the LOG slice of creations and removals, `checkpoints`.
    Checkpoints = "checkpoints" of CheckpointEntry,
}

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

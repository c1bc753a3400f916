//! Tools as transactions: a call that fails leaves no trace in state, files or memory, and a truthful one in the log.
//!
//! Each module uses only those above it in this table.
//!
//! | module | holds |
//! |---|---|
//! | [`resources`] | what a tool works on beside the session: registry, captures of one resource, budget, leases, marks |
//! | `captures` | [`CompositeSnapshot`]: a position of the session, and what each resource was then |
//! | `checkpoints` | [`CheckpointStore`]: positions before and after tool calls |
//! | `execution` | [`ExecutionState`]: one run, its session and its resources |
//! | `call` | one call: [`Tool`], [`ToolContext`], [`ToolCommand`], [`Operation`], [`ToolReport`] |
//! | `restoring` | rolling back to a composite snapshot, as an operation of its own |
//! | `runner` | [`ToolRunner`]: begins a call, runs its handler, ends it |
//! | `known` | what the log says of a call that was begun for the same model answer before |
//! | `recovery` | what becomes of calls that a process left open |
//! | `execute` | [`ToolRunner::execute`]: the one path that every call takes |
//!
//! # The order of a call
//!
//! 1. The call gets its turn, and the lease of each resource that others share, unless another session left one of them
//!    half done.
//! 2. The resources are captured, durably where the level asks for it; then the begin is recorded.
//! 3. The tool runs. No lock of the engine's is held.
//! 4. Its handle is no longer good, and the programs that it started are ended.
//! 5. Where it had success, the resources are captured as they are now; else they are restored.
//! 6. The end is recorded. Of a call that failed the same record takes STATE back.
//!
//! # A call that cannot be brought to its end
//!
//! Where a resource cannot be restored, or the end cannot be recorded, the call is left open as by a process that was
//! killed within it: the log has no end, STATE is shown as it was before, and the session takes no writes until
//! [`ToolRunner::recover`] has restored the resources and recorded the end. A run that recovers its own call knows what
//! they were, also of those that do not outlive the process.

mod call;
mod captures;
mod checkpoints;
mod execute;
mod execution;
mod known;
mod recovery;
pub mod resources;
mod restoring;
mod runner;

pub use call::{
    ExecuteOptions, Operation, Tool, ToolCall, ToolCommand, ToolContext, ToolError, ToolRegistry, ToolReport,
    ToolResult,
};
pub use captures::{CompositeSnapshot, Phase, SnapshotMetadata};
pub use checkpoints::{CHECKPOINTS_MAX, CheckpointStore, ToolCheckpoint};
pub use execution::{ExecutionState, ExecutionStateBuilder};
pub use recovery::{Recovered, Recovery};
pub use runner::ToolRunner;

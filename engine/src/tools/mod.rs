//! Runs tools as transactions: a call that fails leaves no trace in STATE, files or memory, and a truthful
//! one in the log.
//!
//! A *call* executes a tool once. An *operation* is a call and its repetitions: if a process ends within the
//! call, a recovery may run the tool again under the same operation id. A *run* ([`ExecutionState`]) is a
//! session with the resources that its tools work on.
//!
//! Each module uses only those above it in this table.
//!
//! | module | holds |
//! |---|---|
//! | [`resources`] | what a tool works on beside the session: registry, captures of one resource, budget, leases, marks |
//! | `captures` | [`CompositeSnapshot`]: a position of the session, and a capture of each resource at that position |
//! | `checkpoints` | [`CheckpointStore`]: snapshots before and after tool calls |
//! | `execution` | [`ExecutionState`]: one run, its session and its resources |
//! | `call` | one call: [`Tool`], [`ToolContext`], [`ToolCommand`], [`Operation`], [`ToolReport`] |
//! | `restoring` | rolling back to a composite snapshot, as an operation of its own |
//! | `runner` | [`ToolRunner`]: begins a call, runs its handler, ends it |
//! | `known` | what the log says of an earlier call with the same origin |
//! | `recovery` | ending calls that a process left open, and running them again |
//! | `execute` | [`ToolRunner::execute`]: the one path that every call takes |
//! | `several` | what an answer with several calls needs: running some together, and closing some without running them |
//!
//! # The order of a call
//!
//! 1. The runner waits until the schedule admits the call, and takes the lease of each resource that other
//!    sessions may work on. It refuses the call if another session left one of these resources half done.
//! 2. The runner captures the resources, durably if the session's durability asks for it, and then records
//!    the begin.
//! 3. The tool runs. The engine holds no lock meanwhile.
//! 4. The runner revokes the call's handle and ends the programs that the tool started.
//! 5. If the tool succeeded, the runner captures the resources as they are now; if it failed, it restores
//!    them.
//! 6. The runner records the end. If the call failed, the same record rolls STATE back.
//!
//! # A call that cannot be ended
//!
//! If a resource cannot be restored, or the end cannot be recorded, the call is left open, as by a process
//! that is killed within the call: the log holds no end, the session shows STATE as it was before the call,
//! and the session takes no writes until [`ToolRunner::recover`] has restored the resources and recorded the
//! end. A run that recovers its own call can also restore those resources whose captures do not outlive the
//! process.

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
mod several;

pub use call::{
    ExecuteOptions, Operation, Tool, ToolCall, ToolCommand, ToolContext, ToolError, ToolRegistry, ToolReport,
    ToolResult,
};
pub use captures::{CompositeSnapshot, Phase, SnapshotMetadata};
pub use checkpoints::{CHECKPOINTS_MAX, CheckpointStore, ToolCheckpoint};
pub use execution::{ExecutionState, ExecutionStateBuilder};
pub use recovery::{Recovered, Recovery};
pub use runner::ToolRunner;
pub use several::TOGETHER_MAX;

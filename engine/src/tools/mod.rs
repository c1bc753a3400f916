//! Runs tools as transactions: a failed call leaves STATE, files and memory unchanged, and is
//! recorded in the log.
//!
//! A *call* executes a tool once. An *operation* is a call and its repetitions: if a process ends
//! within the call, a recovery may run the tool again under the same operation id. A *run*
//! ([`ExecutionState`]) is a session with the resources that its tools work on.
//!
//! Each module uses only those above it in this table. `runner` also calls `recovery` and
//! `suspension`, which run calls again through it.
//!
//! | module | contents |
//! |---|---|
//! | [`resources`] | resources of a run besides the session: registry, captures of one resource, budget, leases, marks |
//! | `captures` | captures of all resources of a run, and their restore |
//! | `composite` | [`CompositeSnapshot`]: a position of the session, and a capture of each resource at that position |
//! | `checkpoints` | [`CheckpointStore`]: snapshots before and after tool calls |
//! | `children` | [`ChildReport`]: where the child sessions of an operation stopped, and the possible decisions; the children of a running call |
//! | `execution` | [`ExecutionState`]: one run, its session and its resources |
//! | `call` | one call: [`Tool`], [`ToolContext`], [`ToolCommand`], [`Operation`], [`ToolReport`] |
//! | `replay` | calls in a session that replays: their effects and results come from the log |
//! | `scratch` | copies that a run of such a session uses in place of its resources |
//! | `rollback` | captures the present content before a call is rolled back |
//! | `runner` | [`ToolRunner`]: finds an earlier call of the same origin, starts a call, runs its handler, ends it |
//! | `restore` | rollback to a composite snapshot, as a separate operation |
//! | `rewind` | [`ExecutionState::rewind`]: returns to any position and preserves changes by hand; undoing a rewind |
//! | `recovery` | ends calls that a process left open, and runs them again |
//! | `child_run` | [`ToolContext::child`]: a child session as a run on the resources of its parent's call |
//! | `suspension` | suspended calls: the outcome when one is requested again |
//! | `futures` | [`ToolRunner::execute_async`] and the other methods for async hosts (feature `async`) |
//! | `state_futures` | [`ExecutionState::snapshot_async`], [`ExecutionState::rewind_async`] and similar methods (feature `async`) |
//! | `parallel_calls` | answers with several calls: running some together, and closing some without running them |
//!
//! # The order of a call
//!
//! 1. The runner waits until the schedule admits the call, and takes the lease of each resource
//!    that is shared with other sessions. If one of these resources was left half changed by
//!    another session, the call is refused.
//! 2. The runner captures the resources, durably if the session's durability requires it, and then
//!    writes the start record.
//! 3. The tool runs. The engine holds no lock during this time.
//! 4. The runner revokes the call's handle and ends the programs that the tool started.
//! 5. The runner captures the current resources. If the tool failed, it then restores them to the
//!    captures from before the call. [`RecoveredOperation::replaced`] and [`ToolReport::replaced`]
//!    list the replaced contents.
//! 6. The runner writes the end record. If the call failed, the same record rolls STATE back.
//!
//! # A call that cannot be ended
//!
//! If a resource cannot be restored, or the end record cannot be written, the call is left open, as
//! if the process had been killed within the call. The log then has no end record, and the session
//! shows STATE as it was before the call. The session rejects writes until [`ToolRunner::recover`]
//! has restored the resources and written the end record. A run that recovers its own call can also
//! restore resources whose captures do not outlive the process.
//!
//! # A child session
//!
//! A tool that drives a sub-agent may give it its own session: [`ToolContext::child`] opens a
//! *child session* on the resources of the call, under the call's leases. The two logs name each
//! other: the child's first record names parent and operation, and a record in the parent's log
//! announces the child before the child exists. The captures of the child's calls are in the stores
//! of the parent's resources, so a [collection](foldlog_filesystem) of unneeded captures also keeps
//! the captures that the children's logs name.
//!
//! 1. Only the call, its nested calls and its children work on the resources of a call, and one at
//!    a time if the work may change them.
//! 2. The calls of its children end before the call captures or restores its resources. If one was
//!    left open, the call cannot commit.
//! 3. When the call is rolled back, its children's committed changes of the resources are rolled
//!    back too. The child's records remain; both ledgers list its operations as abandoned.
//! 4. A call that runs again finds the same children, as long as it gives them the same numbers.
//!    Their committed calls do not run again.
//! 5. Before a child first changes the resources in a run of the call, or continues after another
//!    child changed them, a record in the parent's log names the children whose changes the
//!    resources contain then. With [`Durability::Boundary`](crate::Durability::Boundary) and
//!    [`Durability::Every`](crate::Durability::Every) it is durable before the child's own records
//!    are. A restore to the state after one child therefore never loses changes of another: the
//!    call is refused instead.
//!
//! | the process ends | consequence |
//! |---|---|
//! | before the child has a record | the call that runs again creates it |
//! | within a call of the child | other sessions cannot use the resources, because the parent's call is open. The recovery of the parent ends the child's programs, restores the resources to the start of the parent's call, ends the child's open calls as interrupted, and then its own |
//! | after a call of the child, within the parent's | the same, without an open call in the child |
//! | within that recovery | the next one repeats it |
//!
//! After the recovery, the parent's operation runs again, or waits to be settled, as its tool
//! declares. [`RecoveredOperation::children`] and
//! [`SessionCalls::children_of`](crate::SessionCalls::children_of) report where each child stopped,
//! and [`ChildReport::choices`] lists the possible decisions. If the operation runs again and opens
//! the child, the resources are restored to the child's last end, and
//! [`SessionConversation::resume`](crate::SessionConversation::resume) continues the child's
//! conversation. If the operation is settled otherwise, its children are abandoned.
//!
//! A call cannot run within a call of another session in any other way. A conversation in the
//! session of a running call would wait for that call; it is refused with
//! [`Error::InsideOperation`](crate::Error::InsideOperation).

mod call;
mod captures;
mod checkpoints;
mod child_run;
mod children;
mod composite;
mod execution;
#[cfg(feature = "async")]
mod futures;
mod parallel_calls;
mod recovery;
mod replay;
pub mod resources;
mod restore;
mod rewind;
mod rollback;
mod runner;
mod scratch;
#[cfg(feature = "async")]
mod state_futures;
mod suspension;

#[cfg(feature = "async")]
pub use call::AsyncTool;
pub use call::{
    Approval, CallVerification, DynTool, ExecuteOptions, FencingToken, InterruptedCall, Operation,
    ProgramOutput, ProgramStream, Question, Tool, ToolCall, ToolCommand, ToolContext, ToolError,
    ToolRegistry, ToolReport, ToolResult,
};
pub use checkpoints::{CHECKPOINTS_MAX, CheckpointStore, ToolCheckpoint};
pub use children::{ChildChoice, ChildReport, ChildStop};
pub use composite::{CompositeSnapshot, SnapshotMetadata, SnapshotPhase};
pub use execution::INHERITED;
pub use execution::{ExecutionState, ExecutionStateBuilder};
pub use parallel_calls::TOGETHER_MAX;
pub use recovery::{RecoveredOperation, Recovery};
pub use rewind::{
    CaptureMoment, CaptureTaken, ConversationRewound, OutsideCall, ResourcePreview, ResourceRewound,
    RewindOptions, RewindPreview, RewindReport, SkippedResource, SliceRewound, TagAbandoned,
};
pub use runner::ToolRunner;

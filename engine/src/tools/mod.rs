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
//! | `previous_process` | what earlier processes spent, and left of the resources |
//! | `call` | one call: [`Tool`], [`ToolContext`], [`ToolCommand`], [`Operation`], [`ToolReport`] |
//! | `replay` | calls in a session that replays: what they did and answered comes from the log |
//! | `scratch` | the copies that a run of such a session shows in the place of its resources |
//! | `restore` | rolling back to a composite snapshot, as an operation of its own |
//! | `rewind` | [`ExecutionState::rewind`]: going back to any position, with what was changed by hand kept; undoing that |
//! | `runner` | [`ToolRunner`]: begins a call, runs its handler, ends it |
//! | `recorded_call` | what the log says of an earlier call with the same origin |
//! | `children` | [`ChildReport`]: where the child sessions of an operation stopped, and what may be done |
//! | `recovery` | ending calls that a process left open, and running them again |
//! | `child_run` | [`ToolContext::child`]: a child session as a run on the resources of the call that it works for |
//! | `suspension` | calls that wait for somebody: what becomes of one when it is asked for again |
//! | `execute` | [`ToolRunner::execute`]: the one path that every call takes |
//! | `futures` | [`ToolRunner::execute_async`] and the other forms for async hosts (feature `async`) |
//! | `state_futures` | [`ExecutionState::snapshot_async`], [`ExecutionState::rewind_async`] and their like (feature `async`) |
//! | `parallel_calls` | what an answer with several calls needs: running some together, and closing some without running them |
//!
//! # The order of a call
//!
//! 1. The runner waits until the schedule admits the call, and takes the lease of each resource that other
//!    sessions may work on. It refuses the call if another session left one of these resources half done.
//! 2. The runner captures the resources, durably if the session's durability asks for it, and then records
//!    the begin.
//! 3. The tool runs. The engine holds no lock meanwhile.
//! 4. The runner revokes the call's handle and ends the programs that the tool started.
//! 5. The runner captures the resources as they are now. If the tool failed, it then restores them to the captures from before the
//!    call: see [`RecoveredOperation::replaced`] and [`ToolReport::replaced`] for what that replaces.
//! 6. The runner records the end. If the call failed, the same record rolls STATE back.
//!
//! # A call that cannot be ended
//!
//! If a resource cannot be restored, or the end cannot be recorded, the call is left open, as by a process
//! that is killed within the call: the log holds no end, the session shows STATE as it was before the call,
//! and the session takes no writes until [`ToolRunner::recover`] has restored the resources and recorded the
//! end. A run that recovers its own call can also restore those resources whose captures do not outlive the
//! process.
//!
//! # A child session
//!
//! A tool that drives a sub-agent may give it a session of its own: [`ToolContext::child`] opens a *child session* on the
//! resources of the call, under the call's leases. The two logs name each other: the child's first record holds parent
//! and operation, and a record in the parent's log announces the child before the child exists. The captures of the child's
//! calls are in the stores of the parent's resources, so whoever [collects](foldlog_filesystem) what no snapshot needs keeps
//! those that the children's logs name too.
//!
//! 1. Nothing works on the resources of a call but the call, what is nested in it, and its children, one at a time where
//!    something may change.
//! 2. The calls of its children end before the call captures or restores its resources. If one was left open, the call
//!    cannot commit.
//! 3. What a child committed is rolled back in the resources with the call. The child's records stay; both ledgers call
//!    its operations abandoned.
//! 4. A call that runs again finds the same children, as long as it gives them the same numbers. What they committed does
//!    not run again.
//! 5. Before a child begins to change the resources in a run of the call, or goes on after another child did, a record in
//!    the parent's log says whose changes the resources hold then. It is durable before the child's own records are, with
//!    [`Durability::Boundary`](crate::Durability::Boundary) and [`Durability::Every`](crate::Durability::Every). So a
//!    restore to what one child left never loses what another one did: the call is refused instead.
//!
//! | the process ends | what follows |
//! |---|---|
//! | before the child has a record | the call that runs again creates it |
//! | within a call of the child | other sessions are refused the resources, since the parent's call is open. The recovery of the parent ends the child's programs, restores the resources to the begin of the parent's call, ends the child's open calls as interrupted, and then its own |
//! | behind a call of the child, within the parent's | the same, without an open call in the child |
//! | within that recovery | the next one does it again |
//!
//! After the recovery, the parent's operation runs again, or waits to be settled, as its tool declares;
//! [`RecoveredOperation::children`] and [`Session::children_of`](crate::Session::children_of) say where each child stopped, and
//! [`ChildReport::choices`] what may be done. Where the operation runs again and opens the child, the resources are restored
//! to what they were at the child's last end, and the child's conversation goes on with
//! [`Session::resume`](crate::Session::resume). Where the operation is settled otherwise, its children are abandoned.
//!
//! A call cannot be run within a call of another session in any other way, and a conversation cannot be held in the session
//! of a call that runs: it would wait for that call, and is refused with
//! [`Error::InsideOperation`](crate::Error::InsideOperation).

mod call;
mod captures;
mod checkpoints;
mod child_run;
mod children;
mod execute;
mod execution;
#[cfg(feature = "async")]
mod futures;
mod previous_process;
mod recorded_call;
mod recovery;
mod replay;
pub mod resources;
mod restore;

mod parallel_calls;
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
pub use captures::{CompositeSnapshot, SnapshotMetadata, SnapshotPhase};
pub use checkpoints::{CHECKPOINTS_MAX, CheckpointStore, ToolCheckpoint};
pub use children::{ChildChoice, ChildReport, ChildStop};
pub use execution::INHERITED;
pub use execution::{ExecutionState, ExecutionStateBuilder};
pub use parallel_calls::TOGETHER_MAX;
pub use recovery::{RecoveredOperation, Recovery};
pub use rewind::{
    CaptureMoment, CaptureTaken, ConversationRewound, OutsideCall, ResourcePreview, ResourceRewound,
    RewindOptions, RewindPreview, RewindReport, SkippedResource, SliceRewound, TagAbandoned,
};
pub use runner::ToolRunner;

//! One tool call as a transaction: the request, the tool, its context, the programs that it starts,
//! and the operation from the call's start to its end.
//!
//! A *call* is one run of a tool, recorded by a start record and an end record; an *operation* is a
//! call with all its re-runs.
//!
//! | module | contents | uses |
//! |---|---|---|
//! | `info` | [`ToolCall`], [`ExecuteOptions`], and the facts that both start and end record contain | |
//! | `answer` | [`ToolResult`], [`ToolError`] | |
//! | `report` | [`ToolReport`] | |
//! | `outcome` | outcome of a call, before the end is recorded | `answer` |
//! | `program_owner` | a call as the owner of its programs, and their errors | `answer`, `process` |
//! | `run` | the state of a running call, shared by its operation and its tool | `info`, `program_owner` |
//! | `command` | [`ToolCommand`]: a program that a tool starts | `run` |
//! | `context` | [`ToolContext`]: the interface of a tool to its call; [`FencingToken`] | `command`, `run` |
//! | `interruption` | [`InterruptedCall`]: facts of the interrupted call that a tool undoes or verifies | |
//! | `verify` | [`CallVerification`]: a tool's finding about an interrupted call | `answer`, `report` |
//! | `tool` | [`Tool`], and [`ToolRegistry`] for tools of any type | `answer`, `context`, `interruption`, `verify` |
//! | `dynamic_tool` | [`DynTool`]: a tool that is created at run time | `tool` |
//! | `async_tool` | tools that are futures (feature `async`) | `answer`, `context`, `tool` |
//! | `operation` | [`Operation`]: one call from its start to its end | all but the tools |
//!
//! # Invariants
//!
//! 1. The start record of a call that may make changes is written after the resources are captured,
//!    and before the tool runs.
//! 2. The programs of a call are terminated before its resources are captured or restored at its
//!    end.
//! 3. A call whose resources cannot be restored, or whose end cannot be recorded, is left open: the
//!    session rejects writes until a recovery has ended the call.

mod answer;
#[cfg(feature = "async")]
mod async_tool;
mod command;
mod context;
mod dynamic_tool;
mod info;
mod interruption;
mod operation;
mod outcome;
mod program_owner;
mod report;
mod run;
mod tool;
mod verify;

pub use answer::{Question, ToolError, ToolResult};
#[cfg(feature = "async")]
pub use async_tool::AsyncTool;
pub use command::{ProgramOutput, ProgramStream, ToolCommand};
pub use context::{FencingToken, ToolContext};
pub use dynamic_tool::DynTool;
pub use info::{Approval, ExecuteOptions, ToolCall};
pub use interruption::InterruptedCall;
pub use operation::Operation;
pub use report::ToolReport;
pub use tool::{Tool, ToolRegistry};
pub use verify::CallVerification;

pub(super) use answer::EncodedToolResult;
#[cfg(feature = "async")]
pub(super) use async_tool::ToolFuture;
pub(super) use info::{CallInfo, RestoreScope};
pub(super) use outcome::CallEnd;
pub(super) use program_owner::recorded_groups;
pub(super) use tool::AnyTool;
pub(super) use verify::RecordedVerification;

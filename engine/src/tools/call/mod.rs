//! One tool call as a transaction: the request, the tool, the context that the tool gets, the programs that
//! it starts, and the operation that leads from the call's begin to its end.
//!
//! A *call* is one run of a tool, recorded by a begin and an end; an *operation* is a call with all its
//! re-runs.
//!
//! | module | holds | uses |
//! |---|---|---|
//! | `info` | [`ToolCall`], [`ExecuteOptions`], and the facts that begin and end both record | |
//! | `answer` | [`ToolResult`], [`ToolError`] | |
//! | `report` | [`ToolReport`] | |
//! | `end` | how a call ends, before the end is recorded | `answer` |
//! | `programs` | the programs of a call: how they are found and terminated when it ends | `answer`, `process` |
//! | `run` | the state of a running call, which its operation and its tool share | `info`, `programs` |
//! | `command` | [`ToolCommand`]: a program that a tool starts | `run` |
//! | `context` | [`ToolContext`]: what a tool gets to work with; [`FencingToken`] | `command`, `run` |
//! | `interruption` | [`InterruptedCall`]: facts of the interrupted call that a tool undoes or asks about | |
//! | `verify` | [`CallVerification`]: what a tool found out about an interrupted call | `answer`, `report` |
//! | `tool` | [`Tool`], and [`ToolRegistry`] for tools of any type | `answer`, `context`, `interruption`, `verify` |
//! | `dynamic_tool` | [`DynTool`]: a tool that is made at run time | `tool` |
//! | `async_tool` | tools that are futures (feature `async`) | `answer`, `context`, `tool` |
//! | `operation` | [`Operation`]: one call from its begin to its end | all but the tools |
//!
//! # Invariants
//!
//! 1. The begin of a call that may change something is recorded after the resources are captured, and before
//!    the tool runs.
//! 2. The programs of a call are terminated before its resources are captured or restored at its end.
//! 3. A call whose resources cannot be restored, or whose end cannot be recorded, is left open: the session
//!    takes no writes until a recovery has ended the call.

mod answer;
#[cfg(feature = "async")]
mod async_tool;
mod command;
mod context;
mod dynamic_tool;
mod end;
mod info;
mod interruption;
mod operation;
mod programs;
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
pub(super) use end::CallEnd;
pub(super) use info::{CallInfo, RestoreScope};
pub(super) use programs::recorded_groups;
pub(super) use tool::AnyTool;
pub(super) use verify::RecordedVerification;

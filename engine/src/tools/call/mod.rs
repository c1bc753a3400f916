//! One tool call as a transaction: the request, the tool, its context, the programs that it starts,
//! and the operation from the call's start to its end.
//!
//! A *call* is one run of a tool, recorded by a start record and an end record; an *operation* is a
//! call with all its re-runs.
//!
//! | module | contents | uses |
//! |---|---|---|
//! | `request` | [`ToolCall`], [`ExecuteOptions`] | |
//! | `answer` | [`ToolResult`], [`ToolError`] | |
//! | `report` | [`ToolReport`] | |
//! | `interruption` | [`InterruptedCall`]: facts of the interrupted call that a tool undoes or verifies | |
//! | `verify` | [`CallVerification`]: a tool's finding about an interrupted call | `answer`, `report` |
//! | `tool` | [`Tool`], and [`ToolRegistry`] for tools of any type | `answer`, `context`, `interruption`, `verify` |
//! | `dynamic_tool` | [`DynTool`]: a tool that is created at run time, and the form of every tool in a registry | `tool` |
//! | `async_tool` | tools that are futures (feature `async`) | `dynamic_tool`, `tool` |
//! | `programs` | the programs of a call | `answer`, `process` |
//! | `operation` | the description of a call that both of its records contain, the state of a running call, and its [`Operation`] | `finish`, `programs`, `request` |
//! | `command` | [`ToolCommand`]: a program that a tool starts | `operation` |
//! | `context` | [`ToolContext`]: the interface of a tool to its call; [`FencingToken`] | `command`, `operation` |
//! | `finish` | the end of a call: its outcome, restores, the end record, the report | all but the tools |
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
mod finish;
mod interruption;
mod operation;
mod programs;
mod report;
mod request;
mod tool;
mod verify;

pub use answer::{Question, ToolError, ToolResult};
#[cfg(feature = "async")]
pub use async_tool::AsyncTool;
pub use command::{ProgramOutput, ProgramStream, ToolCommand};
pub use context::{FencingToken, ToolContext};
pub use dynamic_tool::DynTool;
pub use interruption::InterruptedCall;
pub use operation::Operation;
pub use report::ToolReport;
pub use request::{Approval, ExecuteOptions, ToolCall};
pub use tool::{Tool, ToolRegistry};
pub use verify::CallVerification;

pub(super) use answer::EncodedToolResult;
#[cfg(feature = "async")]
pub(super) use async_tool::ToolFuture;
pub(super) use finish::CallEnd;
pub(super) use operation::{CallEndState, CallInfo, CallSource, Worker};
pub(super) use programs::{ProgramGroup, recorded_groups};
pub(super) use request::RestoreScope;

//! Tools as transactions: a call that fails leaves no trace in state, files or memory, and a truthful one in the log.
//!
//! | module | holds |
//! |---|---|
//! | `tool` | [`Tool`], what it answers, and tools of any type by their names |
//! | `context` | [`ToolContext`]: what a tool is given |
//! | `command` | programs that a tool starts, which do not outlive it |
//! | `operation` | [`Operation`]: one call from its begin to its end |
//! | `runner` | [`ToolRunner`]: the one path that every call takes |
//! | `recovery` | what becomes of calls that a process left open |
//! | `restoring` | going back to a composite snapshot, as an operation of its own |
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

mod command;
mod context;
mod operation;
mod recovery;
mod restoring;
mod runner;
mod tool;

pub use command::ToolCommand;
pub use context::ToolContext;
pub(crate) use operation::GoesBack;
pub use operation::{Operation, ToolReport};
pub use recovery::{Recovered, Recovery};
pub(crate) use restoring::go_back;
pub use runner::{ExecuteOptions, ToolCall, ToolRunner};
pub use tool::{Tool, ToolError, ToolRegistry, ToolResult};

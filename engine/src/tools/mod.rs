//! Tools as transactions: a call that fails leaves no trace in state, files or memory, and a truthful one in the log.
//!
//! | module | holds |
//! |---|---|
//! | `tool` | [`Tool`], what it answers, and tools of any type by their names |
//! | `context` | [`ToolContext`]: what a tool is given |
//! | `command` | a program that a tool starts |
//! | `programs` | the programs of a call, which do not outlive it: how they are known and ended |
//! | `cgroup` | a control group for them, where the system lets one be made |
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
//!
//! # A call that cannot be brought to its end
//!
//! Where a resource cannot be restored, or the end cannot be recorded, the call is left open as by a process that was
//! killed within it: the log has no end, STATE is shown as it was before, and the session takes no writes until
//! [`ToolRunner::recover`] has restored the resources and recorded the end. A run that recovers its own call knows what
//! they were, also of those that do not outlive the process.

mod cgroup;
mod command;
mod context;
mod operation;
mod programs;
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

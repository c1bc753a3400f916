//! One call: what is known of it, the tool, what the tool is given, the programs that it starts, and its way from begin to
//! end.
//!
//! | module | holds | uses |
//! |---|---|---|
//! | `info` | [`ToolCall`] and what a begin and an end say alike | |
//! | `answer` | [`ToolResult`], [`ToolError`] | |
//! | `report` | [`ToolReport`] | |
//! | `ending` | how a call is to end | `answer` |
//! | `cgroup`, `programs` | the programs of a call, which do not outlive it: how they are known and ended | `answer` |
//! | `running` | a call that runs, as its operation and its tool share it | `info`, `programs` |
//! | `command` | [`ToolCommand`]: a program that a tool starts | `running` |
//! | `context` | [`ToolContext`]: what a tool is given | `command`, `running` |
//! | `tool` | [`Tool`] and tools of any type by their names | `answer`, `context` |
//! | `operation` | [`Operation`]: one call from its begin to its end | all but `tool` |

mod answer;
mod cgroup;
mod command;
mod context;
mod ending;
mod info;
mod operation;
mod programs;
mod report;
mod running;
mod tool;

pub use answer::{ToolError, ToolResult};
pub use command::ToolCommand;
pub use context::ToolContext;
pub use info::{ExecuteOptions, ToolCall};
pub use operation::Operation;
pub use report::ToolReport;
pub use tool::{Tool, ToolRegistry};

pub(super) use answer::Answered;
pub(super) use ending::Ending;
pub(super) use info::{CallInfo, RestoreScope};
pub(super) use programs::Group;
pub(super) use tool::AnyTool;

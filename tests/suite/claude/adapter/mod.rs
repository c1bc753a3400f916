//! The adapter of the Claude Code program, over the stand-in. Each story runs, and is then replayed
//! over its log.

mod approvals;
mod bridge;
mod calls;
mod failing;
mod flow;
mod killed;
mod limits;
mod logs;
mod native;
mod options;
mod output;
mod parity;
mod recovery;
mod repeated_ids;
mod resuming;
mod stateful;
mod sub_agents;
mod transcripts;
pub(crate) mod world;

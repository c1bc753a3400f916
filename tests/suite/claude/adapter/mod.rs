//! The adapter of the Claude Code program, over the stand-in. Each story runs, and is then replayed over its log.

mod approvals;
mod bridge;
mod calls;
mod failing;
mod flow;
mod limits;
mod native;
mod options;
mod output;
mod recovery;
mod stateful;
mod transcripts;
pub(crate) mod world;

//! The adapter of the Claude Code program, over the stand-in. Each story runs, and is then replayed over its log.

mod bridge;
mod flow;
mod options;

pub(crate) mod world;

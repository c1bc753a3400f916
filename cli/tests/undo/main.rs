//! Calls of an agent that foldlog did not start: `foldlog hook event`, `log`, `diff`, `undo`,
//! `redo`, `oops` and `view`, with inputs as Claude Code writes them.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod agents;
mod builds;
mod conversation;
mod disks;
mod events;
mod kills;
mod project;
mod reports;
mod repositories;
mod sessions;
mod special_files;
mod viewing;

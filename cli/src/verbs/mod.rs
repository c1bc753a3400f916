//! The verbs, one file each, with their arguments. Every `run` prints its result and returns the
//! exit code, or fails with the error that ended it early.

pub mod backup;
pub mod candidates;
pub mod checkpoints;
pub mod compact;
pub mod completions;
pub mod demo;
pub mod diff;
pub mod export;
pub mod gc;
pub mod import;
pub mod ledger;
pub mod man;
pub mod pending;
pub mod recover;
pub mod replay;
pub mod replica;
pub mod report;
pub mod restore;
pub mod restore_targets;
pub mod rewind;
pub mod run;
pub mod salvage;
pub mod sessions;
pub mod settle;
pub mod show;
pub mod state;
pub mod stats;
pub mod strategies;
pub mod tail;
pub mod tasks;
pub mod transcript;
pub mod validate;
pub mod verify;
pub mod view;
mod workspaces;

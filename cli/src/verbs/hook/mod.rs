//! `foldlog hook`: the hooks by which an agent that foldlog did not start reports its tool calls.

pub mod allow;
pub mod event;
pub mod prepare;

use clap::ValueEnum;

use crate::command::commands;

commands! {
    /// Record the tool calls of an agent that you start yourself.
    HookVerb {
        Allow(allow::Args),
        Event(event::Args),
        Prepare(prepare::Args),
    }
}

/// A program whose hooks foldlog can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Agent {
    /// Claude Code.
    Claude,
}

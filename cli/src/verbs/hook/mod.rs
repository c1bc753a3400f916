//! `foldlog hook`: the hooks by which an agent that foldlog did not start reports its tool calls.
//!
//! | module | contains |
//! |---|---|
//! | [`install`], [`uninstall`], [`status`], [`allow`] | the commands for people |
//! | [`event`] | the command that the hooks run |
//! | [`prepare`] | background work at the start of a session |
//! | `program` | the command line of a hook, and how one of foldlog's is recognised |
//! | `prompt_command` | the command `/undo` at the prompt of a program |
//! | `settings` | the hooks in the text of a settings file |
//! | `json_text` | edits of JSON that leave all other bytes unchanged |
//! | `settings_file` | how settings files are read and written |
//! | `trust` | whether a program runs the hooks that it has found |
//! | `change` | showing, confirming and writing the change of a file |
//! | `process` | running another program with a deadline |

pub mod allow;
mod change;
pub mod event;
pub mod install;
mod json_text;
pub mod prepare;
mod process;
mod program;
mod prompt_command;
mod settings;
mod settings_file;
pub mod status;
mod trust;
pub mod uninstall;

pub use crate::agents::Agent;
use crate::agents::Scope;
use crate::command::commands;

commands! {
    /// Record the tool calls of an agent that you start yourself.
    ///
    /// The agent runs a hook of foldlog at each event, such as the start and the end of a tool call.
    HookVerb {
        Install(install::Args),
        Uninstall(uninstall::Args),
        Status(status::Args),
        Allow(allow::Args),
        Event(event::Args),
        Prepare(prepare::Args),
    }
}

/// The settings file that a command changes.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[group(multiple = false)]
pub struct ScopeArgs {
    /// Your settings for all projects: `~/.claude/settings.json`, `~/.codex/hooks.json` or
    /// `~/.gemini/settings.json` (default)
    #[arg(long)]
    pub user: bool,
    /// The settings for the project in this directory: `.claude/settings.local.json`,
    /// `.codex/hooks.json` or `.gemini/settings.json`. The latter two belong to all people of the
    /// project
    #[arg(long)]
    pub project: bool,
    /// The settings of the project in this directory that all its people share:
    /// `.claude/settings.json`, `.codex/hooks.json` or `.gemini/settings.json`. Its hooks do nothing
    /// where foldlog is not installed
    #[arg(long)]
    pub shared: bool,
}

impl ScopeArgs {
    fn scope(self) -> Scope {
        match self {
            ScopeArgs { shared: true, .. } => Scope::Shared,
            ScopeArgs { project: true, .. } => Scope::Project,
            _ => Scope::User,
        }
    }
}

//! `foldlog hook uninstall`: removes foldlog's hooks from the settings of an agent.

use std::path::Path;

use foldlog_codec::escape;
use foldlog_view::document;
use foldlog_view::text::count_text;

use super::ScopeArgs;
use super::change::{Change, ConfirmArgs, Outcome, apply};
use super::prompt_command::PromptCommand;
use super::settings::{facts, summary, without_hooks};
use super::settings_file::{SettingsFile, unusable};
use crate::agents::{Agent, AgentProgram, Scope};
use crate::command::{Command, Group, Target};
use crate::failure::{HOLDS, Result};
use crate::output::Output;
use crate::timelines::records::{Records, size_text};

/// Describes the fields of `hook uninstall --json`.
const UNINSTALL_JSON: &str = "\
A file that `foldlog hook install` has made, and that has no other content, is removed, and so are
directories that are empty then. Recorded calls remain.

With --json one object:
  agent         claude, codex or gemini
  scope         user, project or shared
  file          path of the settings file
  events        events that have a hook of foldlog
  diff          unified diff of the file; empty if it has no hooks of foldlog
  removes_file  whether nothing else is in the file
  written       whether the file was changed or removed";

/// Remove foldlog's hooks from an agent's settings.
///
/// Removes only what `foldlog hook install` has added; all other contents of the file remain as
/// they are. Describes the change and asks before it writes. Without a terminal, --yes is necessary.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = UNINSTALL_JSON)]
pub struct Args {
    /// Agent whose settings are changed
    #[arg(value_name = "claude|codex|gemini", hide_possible_values = true)]
    pub agent: Agent,
    /// Settings file.
    #[command(flatten)]
    pub scope: ScopeArgs,
    /// Whether to write.
    #[command(flatten)]
    pub confirm: ConfirmArgs,
}

impl Command for Args {
    const GROUP: Group = Group::Run;
    const TARGET: Target = Target::Nothing;
    const EXAMPLE: &'static str = "foldlog hook uninstall claude";

    /// Removes the hooks from the settings file.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if the file is not valid, or no terminal can
    ///   ask for consent.
    /// - [`Error::File`](foldlog_view::Error::File) if the file cannot be read or written.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let (agent, scope) = (self.agent.program(), self.scope.scope());
        let file = SettingsFile::read(agent.settings.path(scope)?)?;
        let (mut hooks, mut after) = (Vec::new(), None);
        if let Some(text) = &file.text {
            hooks = facts(text, agent).map_err(|error| unusable(&file.path, &error))?.hooks;
            after = without_hooks(text, agent).map_err(|error| unusable(&file.path, &error))?;
        }
        let removes_file = file.text.is_some() && after.is_none();
        let words = summary(file.text.as_deref(), after.as_deref(), agent);
        let words = words.map_err(|error| unusable(&file.path, &error))?;
        let mut changes = vec![Change::new(&file, after, words)];
        let commands = PromptCommand::read_all(agent, scope)?;
        changes.extend(commands.iter().filter_map(PromptCommand::removal));
        let outcome = apply(&changes, self.confirm, output)?;
        if outcome == Outcome::Written {
            remove_directories(agent, scope, &changes)?;
        }
        if output.json() {
            output.value(&document! {
                agent: agent.name,
                scope,
                file: escape::path(&file.path),
                events: hooks.into_iter().map(|hook| hook.event).collect::<Vec<_>>(),
                diff: changes.iter().map(|change| change.diff.as_str()).collect::<String>(),
                removes_file,
                written: outcome == Outcome::Written,
            })?;
            return Ok(HOLDS);
        }
        let (path, count) = (escape::path(&file.path), count_text(hooks.len() as u64, "hook"));
        let rest = if removes_file { ", and the file, which has no other content" } else { "" };
        output.line(match outcome {
            Outcome::Unchanged => format!("not installed: {path} has no hooks of foldlog"),
            Outcome::Shown => format!("would remove {count} from {path}{rest}"),
            Outcome::Declined => "nothing was written".to_owned(),
            Outcome::Written => format!("removed {count} from {path}{rest}"),
        })?;
        let is_over = [Outcome::Written, Outcome::Unchanged].contains(&outcome);
        if let Some(Records { directory, bytes }) = Records::find()?.filter(|_| is_over) {
            let (directory, size) = (escape::path(&directory), size_text(bytes));
            output.line(format_args!(
                "the records stay in {directory} ({size}); remove that directory to forget them"
            ))?;
        }
        Ok(HOLDS)
    }
}

/// Removes the directories of removed files that are empty now, except one that the user has named
/// by a variable.
fn remove_directories(agent: &AgentProgram, scope: Scope, changes: &[Change<'_>]) -> Result<()> {
    let settings = agent.settings.path(scope)?;
    let commands = changes.iter().map(|change| &change.file.path).filter(|path| **path != settings);
    let mut directories: Vec<&Path> = commands.filter_map(|path| path.parent()).collect();
    if scope != Scope::User || !agent.settings.is_named_by_variable() {
        directories.extend(settings.parent());
    }
    for directory in directories {
        // Others are not empty.
        let _ = std::fs::remove_dir(directory);
    }
    Ok(())
}

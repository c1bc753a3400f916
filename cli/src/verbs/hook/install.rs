//! `foldlog hook install`: adds foldlog's hooks to the settings of an agent.

use std::io;
use std::process::Command as Process;
use std::time::Duration;

use foldlog_codec::escape;
use foldlog_view::document;
use foldlog_view::text::count_text;

use super::change::{Change, ConfirmArgs, Outcome, apply};
use super::program::{hook_command, shared_command, this_program};
use super::prompt_command::PromptCommand;
use super::settings::{WantedHooks, facts, summary, with_hooks};
use super::settings_file::{SettingsFile, unusable};
use super::{ScopeArgs, process};
use crate::agents::{Agent, AgentEvent, AgentProgram, ProgramVersion, Scope};
use crate::command::{Command, Group, Target};
use crate::failure::{CommandError, HOLDS, Result};
use crate::output::Output;

/// Longest time in which a program has to print its version.
const VERSION_DEADLINE: Duration = Duration::from_secs(10);

/// Describes the fields of `hook install --json`.
const INSTALL_JSON: &str = "\
A settings file of Claude Code that names an unknown event can lose all of its hooks. So only events
are written that the installed version knows, as `claude --version`, `codex --version` or `gemini
--version` reports it. After an upgrade of the agent, install again: this adds new events. It also
replaces the path of a program that was moved.

Codex runs a hook only after you have trusted it: at its next start, it shows the new hooks, and
`Trust all and continue` accepts them.

With your own settings, the commands `/undo` and `/redo` are added to the prompts of Claude Code and
Gemini CLI, unless you have such commands. Otherwise newer versions of Claude Code take `/undo` for
`/rewind`, which does not see changes by commands. At the prompt of Codex, type `foldlog undo`.

With --json one object:
  agent          claude, codex or gemini
  scope          user, project or shared
  file           path of the settings file
  agent_version  installed version of the agent; null if unknown
  command        command of the hooks
  events         events with a hook
  left_out       events without one, which the installed version may not know
  diff           unified diff of the files; empty if it has these hooks already
  written        whether the file was changed";

/// Add foldlog's hooks to an agent's settings.
///
/// Describes the change of the settings file and asks before it writes. Without a terminal, --yes is
/// necessary. All other contents of the file remain as they are. `foldlog hook uninstall` removes
/// the hooks again.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = INSTALL_JSON)]
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
    const EXAMPLE: &'static str = "foldlog hook install claude";

    /// Adds the hooks to the settings file.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if the system is not Linux, the file is not
    ///   valid, or no terminal can ask for consent.
    /// - [`Error::File`](foldlog_view::Error::File) if the file cannot be read or written.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        if !cfg!(target_os = "linux") {
            let next = "nothing was written; on Windows, use foldlog and the agent in WSL";
            return Err(CommandError::usage("hooks of foldlog work on Linux only", next));
        }
        let (agent, scope) = (self.agent.program(), self.scope.scope());
        let command = match scope {
            Scope::Shared => shared_command(agent),
            Scope::User | Scope::Project => hook_command(&this_program()?, agent)?,
        };
        let file = SettingsFile::read(agent.settings.path(scope)?)?;
        let (version, unknown) = match program_version(agent) {
            Ok(version) => (Some(version), None),
            Err(reason) => (None, Some(reason)),
        };
        let wanted =
            WantedHooks { agent, command, events: agent.wanted_events(version, scope == Scope::Shared) };
        if wanted.events.is_empty() {
            let what = format!("the installed {} is older than {}", agent.title, agent.oldest);
            let next = format!("nothing was written; upgrade {}, and repeat", agent.title);
            return Err(CommandError::usage(what, next));
        }
        let after =
            with_hooks(file.text.as_deref(), &wanted).map_err(|error| unusable(&file.path, &error))?;
        let words = summary(file.text.as_deref(), Some(&after), agent);
        let words = words.map_err(|error| unusable(&file.path, &error))?;
        let mut changes = vec![Change::new(&file, Some(after), words)];
        let commands = PromptCommand::read_all(agent, scope)?;
        changes.extend(commands.iter().filter_map(PromptCommand::addition));
        let outcome = apply(&changes, self.confirm, output)?;
        let path = escape::path(&file.path);
        let document = document! {
            agent: agent.name,
            scope,
            file: &path,
            agent_version: version.map(|version| version.to_string()),
            command: &wanted.command,
            events: names(&wanted.events),
            left_out: names(&left_out(&wanted)),
            diff: changes.iter().map(|change| change.diff.as_str()).collect::<String>(),
            written: outcome == Outcome::Written,
        };
        output.print(&document, |output| {
            let count = count_text(wanted.events.len() as u64, "hook");
            output.line(match outcome {
                Outcome::Unchanged => format!("already installed: {count} in {path}"),
                Outcome::Shown => format!("would install {count} in {path}"),
                Outcome::Declined => "nothing was written".to_owned(),
                Outcome::Written => format!("installed {count} in {path}"),
            })
        })?;
        notes(scope, &wanted, version, unknown, output);
        if outcome != Outcome::Declined {
            commands.iter().filter_map(PromptCommand::note).for_each(|note| output.note(note));
            let rewind = agent.rewind_note.filter(|_| !commands.is_empty() && outcome != Outcome::Unchanged);
            rewind.into_iter().for_each(|note| output.note(note));
        }
        if outcome == Outcome::Written {
            output.note(next_step(agent));
        }
        Ok(HOLDS)
    }
}

fn next_step(agent: &AgentProgram) -> String {
    let trust = if agent.asks_for_trust { ", and choose `Trust all and continue`" } else { "" };
    let commands = match agent.prompt_prefix {
        "foldlog " => "`foldlog undo`, in a terminal or at its prompt,".to_owned(),
        prefix => format!("`foldlog undo`, or `{prefix}undo` at its prompt,"),
    };
    let name = agent.name;
    format!(
        "  next: start {name} again{trust}; then `foldlog log` lists its calls, and {commands} undoes one"
    )
}

/// Reports events that were left out, and hooks that other files add to the same sessions.
fn notes(
    scope: Scope,
    wanted: &WantedHooks,
    version: Option<ProgramVersion>,
    unknown: Option<String>,
    output: &mut Output<'_>,
) {
    let agent = wanted.agent;
    let (name, title) = (agent.name, agent.title);
    let known = agent.known_events(version);
    let unknown_events: Vec<AgentEvent> =
        left_out(wanted).into_iter().filter(|event| !known.contains(event)).collect();
    let missing = names(&unknown_events).join(", ");
    if let Some(reason) = unknown {
        output.note(format_args!("note: the version of {title} is unknown: {reason}"));
        if !missing.is_empty() {
            output.note(format_args!(
                "  left out, since older versions do not know them: {missing}; install again once `{name} --version` works"
            ));
        }
    } else if let Some(version) = version.filter(|_| !missing.is_empty()) {
        output.note(format_args!("note: {title} {version} does not know these events: {missing}"));
    }
    if scope == Scope::Shared
        && agent.shared_events_of.is_some()
        && let Some(since) = wanted.events.iter().map(|event| event.since).max()
    {
        output.note(format_args!(
            "note: a {title} older than {since} may ignore all hooks of this file; people who share it need {since} or newer"
        ));
    }
    let written = agent.settings.path(scope).ok();
    for other in agent.scopes().iter().copied() {
        // `status` reports files that cannot be read.
        let Ok(file) = agent.settings.path(other).and_then(SettingsFile::read) else { continue };
        if written.as_ref() == Some(&file.path) {
            continue;
        }
        let facts = file.text.as_deref().and_then(|text| facts(text, agent).ok());
        let hooks = facts.unwrap_or_default().hooks;
        if !hooks.is_empty() {
            output.note(format_args!(
                "note: {} has hooks of foldlog too, which does no harm: each call is recorded once; `foldlog hook uninstall {name} --{}` removes them",
                escape::path(&file.path),
                other.name()
            ));
        }
    }
}

fn names(events: &[AgentEvent]) -> Vec<&'static str> {
    events.iter().map(|event| event.name).collect()
}

fn left_out(wanted: &WantedHooks) -> Vec<AgentEvent> {
    wanted.agent.events.iter().copied().filter(|event| !wanted.events.contains(event)).collect()
}

/// Returns the version of the installed program, or the reason why it is unknown.
pub(super) fn program_version(agent: &AgentProgram) -> Result<ProgramVersion, String> {
    let name = agent.name;
    let mut command = Process::new(name);
    command.arg("--version");
    match process::run(command, "", VERSION_DEADLINE) {
        Ok(Some(ended)) if ended.status.success() => {
            let first = ended.stdout.lines().next().unwrap_or_default();
            ProgramVersion::from_output(first).ok_or_else(|| format!("`{name} --version` printed {first:?}"))
        }
        Ok(Some(ended)) => Err(format!("`{name} --version` failed: {}", ended.status)),
        Ok(None) => {
            Err(format!("`{name} --version` did not end within {} seconds", VERSION_DEADLINE.as_secs()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(format!("there is no program `{name}` on the search path"))
        }
        Err(error) => Err(format!("`{name} --version` cannot be run: {error}")),
    }
}

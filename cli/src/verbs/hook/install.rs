//! `foldlog hook install`: adds foldlog's hooks to the settings of an agent.

use std::io;
use std::process::Command as Process;
use std::time::Duration;

use foldlog_codec::escape;
use foldlog_view::text::count_text;
use serde::Serialize;

use super::change::{Change, ConfirmArgs, Outcome, apply};
use super::events::{ClaudeVersion, EVENTS, HookEvent, OLDEST, known_events};
use super::program::{SHARED_COMMAND, hook_command, this_program};
use super::prompt_command::PromptCommand;
use super::settings::{WantedHooks, WithoutHooks, facts, with_hooks};
use super::settings_file::{Scope, SettingsFile, unusable};
use super::{Agent, ScopeArgs, process};
use crate::command::{Command, Group, Target};
use crate::failure::{CommandError, HOLDS, Result};
use crate::output::Output;

/// Longest time of `claude --version`.
const VERSION_DEADLINE: Duration = Duration::from_secs(10);

/// Describes the fields of `hook install --json`.
const INSTALL_JSON: &str = "\
A settings file that names an unknown event can lose all of its hooks. So only events are written
that the installed version knows, as `claude --version` reports it. After an upgrade of Claude Code,
install again: this adds new events. It also replaces the path of a program that was moved.

With your own settings, the commands `/undo` and `/redo` are added to the prompt of Claude Code,
unless you have such commands. Otherwise newer versions take `/undo` for `/rewind`, which does not
see changes by commands.

With --json one object:
  scope           user, project or shared
  file            path of the settings file
  claude_version  installed version of Claude Code; null if unknown
  command         command of the hooks
  events          events with a hook
  left_out        events without one, which the installed version may not know
  diff            unified diff of the files; empty if it has these hooks already
  written         whether the file was changed";

/// Add foldlog's hooks to an agent's settings.
///
/// Shows the change of the settings file and asks before it writes. Without a terminal, --yes is
/// necessary. All other contents of the file remain as they are. `foldlog hook uninstall` removes
/// the hooks again.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = INSTALL_JSON)]
pub struct Args {
    /// Agent whose settings are changed
    pub agent: Agent,
    /// Settings file.
    #[command(flatten)]
    pub scope: ScopeArgs,
    /// Whether to write.
    #[command(flatten)]
    pub confirm: ConfirmArgs,
}

#[derive(Serialize)]
struct InstallDocument<'a> {
    scope: Scope,
    file: String,
    claude_version: Option<String>,
    command: &'a str,
    events: Vec<&'static str>,
    left_out: Vec<&'static str>,
    diff: &'a str,
    written: bool,
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
        let scope = self.scope.scope();
        let program = match scope {
            Scope::Shared => SHARED_COMMAND.to_owned(),
            Scope::User | Scope::Project => hook_command(&this_program()?)?,
        };
        let file = SettingsFile::read(scope.path()?)?;
        let (version, unknown) = match claude_version() {
            Ok(version) => (Some(version), None),
            Err(reason) => (None, Some(reason)),
        };
        let wanted = WantedHooks { command: program, events: known_events(version) };
        if wanted.events.is_empty() {
            let what = format!("the installed Claude Code is older than {OLDEST}");
            return Err(CommandError::usage(what, "nothing was written; upgrade Claude Code, and repeat"));
        }
        let after =
            with_hooks(file.text.as_deref(), &wanted).map_err(|error| unusable(&file.path, &error))?;
        let change = Change::new(&file, WithoutHooks::Text(after));
        let commands = PromptCommand::read_all(scope)?;
        let added: Vec<Change<'_>> = commands.iter().filter_map(PromptCommand::addition).collect();
        let changes: Vec<&Change<'_>> = [&change].into_iter().chain(&added).collect();
        let outcome = apply(&changes, self.confirm, output)?;
        if output.json() {
            let document = InstallDocument {
                scope,
                file: escape::path(&file.path),
                claude_version: version.map(|version| version.to_string()),
                command: &wanted.command,
                events: names(&wanted.events),
                left_out: names(&left_out(&wanted)),
                diff: &changes.iter().map(|change| change.diff.as_str()).collect::<String>(),
                written: outcome == Outcome::Written,
            };
            output.value(&document)?;
        } else {
            let (path, count) = (escape::path(&file.path), count_text(wanted.events.len() as u64, "hook"));
            output.line(match outcome {
                Outcome::Unchanged => format!("already installed: {count} in {path}"),
                Outcome::Shown => format!("would install {count} in {path}"),
                Outcome::Declined => "nothing was written".to_owned(),
                Outcome::Written => format!("installed {count} in {path}"),
            })?;
        }
        notes(scope, &wanted, version, unknown, output);
        if outcome == Outcome::Written {
            output.note("  next: start claude again; then `foldlog log` lists its calls, and `foldlog undo`, or `/undo` at its prompt, undoes one");
        }
        Ok(HOLDS)
    }
}

/// Reports events that were left out, and hooks that other files add to the same sessions.
fn notes(
    scope: Scope,
    wanted: &WantedHooks,
    version: Option<ClaudeVersion>,
    unknown: Option<String>,
    output: &mut Output<'_>,
) {
    let missing = names(&left_out(wanted)).join(", ");
    if let Some(reason) = unknown {
        output.note(format_args!("note: the version of Claude Code is unknown: {reason}"));
        output.note(format_args!(
            "  left out, since older versions do not know them: {missing}; install again once `claude --version` works"
        ));
    } else if let Some(version) = version.filter(|_| !missing.is_empty()) {
        output.note(format_args!("note: Claude Code {version} does not know these events: {missing}"));
    }
    if scope == Scope::Shared
        && let Some(since) = wanted.events.iter().map(|event| event.since).max()
    {
        output.note(format_args!(
            "note: a Claude Code older than {since} may ignore all hooks of this file; people who share it need {since} or newer"
        ));
    }
    for other in Scope::ALL.into_iter().filter(|other| *other != scope) {
        // `status` reports files that cannot be read.
        let Ok(file) = other.path().and_then(SettingsFile::read) else { continue };
        let hooks =
            file.text.as_deref().map(facts).and_then(std::result::Result::ok).unwrap_or_default().hooks;
        if hooks.iter().any(|hook| hook.command != wanted.command) {
            output.note(format_args!(
                "note: {} has hooks of foldlog too, so that each event is reported twice; `foldlog hook uninstall claude --{}` removes them",
                escape::path(&file.path),
                other.name()
            ));
        }
    }
}

fn names(events: &[HookEvent]) -> Vec<&'static str> {
    events.iter().map(|event| event.name).collect()
}

fn left_out(wanted: &WantedHooks) -> Vec<HookEvent> {
    EVENTS.into_iter().filter(|event| !wanted.events.contains(event)).collect()
}

/// Returns the version of the installed Claude Code, or the reason why it is unknown.
pub(super) fn claude_version() -> Result<ClaudeVersion, String> {
    let mut command = Process::new("claude");
    command.arg("--version");
    match process::run(command, "", VERSION_DEADLINE) {
        Ok(Some(ended)) if ended.status.success() => {
            let first = ended.stdout.lines().next().unwrap_or_default();
            ClaudeVersion::from_output(first).ok_or_else(|| format!("`claude --version` printed {first:?}"))
        }
        Ok(Some(ended)) => Err(format!("`claude --version` failed: {}", ended.status)),
        Ok(None) => {
            Err(format!("`claude --version` did not end within {} seconds", VERSION_DEADLINE.as_secs()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err("there is no program `claude` on the search path".to_owned())
        }
        Err(error) => Err(format!("`claude --version` cannot be run: {error}")),
    }
}

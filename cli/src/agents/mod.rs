//! The programs whose hooks foldlog can use: where their hooks are configured, and the forms of their
//! inputs and outputs.
//!
//! Each program is described by an [`AgentProgram`]. All other code handles the events that they have
//! in common ([`HookInput`]).
//!
//! | module | contains |
//! |---|---|
//! | `claude`, `codex`, `gemini` | one program each |
//! | `event` | [`HookEvent`]: events and replies, in the form that all other code handles |
//! | `input` | the input of a hook, in the form that the programs have in common |
//! | `reply` | the output of a hook |
//! | `version` | the version of a program |

mod claude;
mod codex;
mod event;
mod gemini;
mod input;
mod reply;
mod version;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Serialize;

use crate::failure::{CommandError, Result};

pub(crate) use codex::{HookTrust, TRUST_ARGUMENTS, trust_answer, trust_request};
pub(crate) use event::{HookEvent, HookInput, HookReply};
pub(crate) use version::ProgramVersion;

/// A program whose hooks foldlog can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Agent {
    /// Claude Code.
    Claude,
    /// Codex.
    Codex,
    /// Gemini CLI.
    Gemini,
}

impl Agent {
    pub(crate) fn program(self) -> &'static AgentProgram {
        match self {
            Agent::Claude => &claude::PROGRAM,
            Agent::Codex => &codex::PROGRAM,
            Agent::Gemini => &gemini::PROGRAM,
        }
    }
}

/// Description of a program.
#[derive(Debug)]
pub(crate) struct AgentProgram {
    /// Word in foldlog's commands and in lanes, and name of the executable.
    pub(crate) name: &'static str,
    /// Name for people.
    pub(crate) title: &'static str,
    /// Oldest version that was measured.
    pub(crate) oldest: ProgramVersion,
    /// Events with a hook, in the order in which a session has them.
    pub(crate) events: &'static [AgentEvent],
    /// For programs in which a file that names an unknown event loses all of its hooks: the version
    /// whose events are written into a file that several people use, maybe with older versions.
    pub(crate) shared_events_of: Option<ProgramVersion>,
    pub(crate) settings: SettingsPlaces,
    /// Property that disables all hooks: its path in the settings, and its value.
    pub(crate) disabled_by: (&'static [&'static str], bool),
    /// Units of a hook's time-out in a second.
    pub(crate) timeout_units: u32,
    /// Name of a hook, for programs that show it.
    pub(crate) hook_name: Option<&'static str>,
    /// Files of commands at the prompt, next to the user's settings.
    pub(crate) prompt_commands: &'static [(&'static str, &'static str)],
    /// Note about a command of the program's own that had the name of one of these.
    pub(crate) rewind_note: Option<&'static str>,
    /// What the user types at the prompt before `undo`.
    pub(crate) prompt_prefix: &'static str,
    /// Variable with the project's directory, in programs whose current directory changes.
    pub(crate) project_variable: Option<&'static str>,
    /// Variable with the number of the program's process.
    pub(crate) process_variable: Option<&'static str>,
    /// Whether the user has to trust hooks in the program before they run.
    pub(crate) asks_for_trust: bool,
    pub(crate) read: fn(&str, Option<u32>) -> serde_json::Result<HookInput>,
    /// Word by which the program is told that a prompt was answered.
    pub(crate) block_word: &'static str,
    /// Whether the program can be told to show the answer without the prompt.
    pub(crate) hides_prompt: bool,
}

/// An event for which a hook is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AgentEvent {
    /// Name in settings files and on standard input of the hook.
    pub(crate) name: &'static str,
    /// First measured version that knows it.
    pub(crate) since: ProgramVersion,
    /// Whether its hooks are selected by the name of a tool.
    pub(crate) has_matcher: bool,
    /// Time after which the program ends the hook, in seconds.
    pub(crate) timeout_seconds: u32,
    /// Example of its own fields on standard input, as JSON.
    pub(crate) sample: &'static str,
}

/// Time after which a program ends a hook, in seconds.
const TIMEOUT_SECONDS: u32 = 30;

impl AgentEvent {
    const fn new(name: &'static str, since: ProgramVersion, sample: &'static str) -> AgentEvent {
        AgentEvent { name, since, has_matcher: false, timeout_seconds: TIMEOUT_SECONDS, sample }
    }

    /// Returns an event about a tool.
    const fn of_tool(name: &'static str, since: ProgramVersion, sample: &'static str) -> AgentEvent {
        AgentEvent { has_matcher: true, ..AgentEvent::new(name, since, sample) }
    }
}

impl AgentProgram {
    /// Returns the events that a version knows; without a version, those that all measured versions
    /// know.
    pub(crate) fn known_events(&self, version: Option<ProgramVersion>) -> Vec<AgentEvent> {
        let version = version.unwrap_or(self.oldest);
        self.events.iter().copied().filter(|event| event.since <= version).collect()
    }

    /// Returns the events for the settings of one person, or for a file that several people use.
    pub(crate) fn wanted_events(&self, version: Option<ProgramVersion>, is_shared: bool) -> Vec<AgentEvent> {
        let greatest = self.shared_events_of.filter(|_| is_shared);
        self.known_events(version.map(|version| greatest.map_or(version, |greatest| version.min(greatest))))
    }

    /// Returns the scopes that have a file of their own.
    pub(crate) fn scopes(&self) -> &'static [Scope] {
        match self.settings.project == self.settings.shared {
            true => &[Scope::User, Scope::Shared],
            false => &[Scope::User, Scope::Project, Scope::Shared],
        }
    }
}

/// The paths of a program's settings files.
#[derive(Debug)]
pub(crate) struct SettingsPlaces {
    /// Variable with the directory of the user's settings.
    pub(crate) directory_variable: Option<&'static str>,
    /// Variables with the home directory; the first one that is set counts.
    pub(crate) home_variables: &'static [&'static str],
    /// Directory in a home directory or a project.
    pub(crate) directory: &'static str,
    pub(crate) user: &'static str,
    pub(crate) project: &'static str,
    pub(crate) shared: &'static str,
}

impl SettingsPlaces {
    /// Returns the path of the settings file of a scope.
    ///
    /// # Errors
    ///
    /// [`CommandError::usage`] if the home or the current directory is unknown.
    pub(crate) fn path(&self, scope: Scope) -> Result<PathBuf> {
        let path = match scope {
            Scope::User => self.user_directory()?.join(self.user),
            Scope::Project => Path::new(self.directory).join(self.project),
            Scope::Shared => Path::new(self.directory).join(self.shared),
        };
        std::path::absolute(&path).map_err(|error| CommandError::file(&path, error))
    }

    /// Returns whether the user has named the directory of the user's settings.
    pub(crate) fn is_named_by_variable(&self) -> bool {
        self.directory_variable.and_then(variable).is_some()
    }

    fn user_directory(&self) -> Result<PathBuf> {
        if let Some(directory) = self.directory_variable.and_then(variable) {
            return Ok(PathBuf::from(directory));
        }
        match self.home_variables.iter().find_map(|name| variable(name)) {
            Some(home) => Ok(PathBuf::from(home).join(self.directory)),
            None => {
                let more =
                    self.directory_variable.map(|name| format!(", or {name} to the directory of settings"));
                let next = format!("set HOME{}", more.unwrap_or_default());
                Err(CommandError::usage("the home directory is unknown", next))
            }
        }
    }
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// People and projects for which a settings file is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Scope {
    User,
    Project,
    Shared,
}

impl Scope {
    /// Returns the word for the scope, which is also its option without `--`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Scope::User => "user",
            Scope::Project => "project",
            Scope::Shared => "shared",
        }
    }
}

/// Words of a [`PromptCommand`] by which the user confirms it.
pub(crate) const CONSENT: [&str; 3] = ["yes", "--yes", "-y"];

/// A command that the user has typed at a program's prompt.
#[derive(Clone, Copy)]
pub(crate) struct PromptCommand<'a> {
    /// The command from its verb on: `undo`, `undo 4`, `redo yes`.
    pub(crate) words: &'a str,
    /// What precedes the verb in further commands of this user.
    pub(crate) prefix: &'static str,
}

impl<'a> PromptCommand<'a> {
    /// Returns the command in a prompt: `/undo`, which is a command of the user or of a plugin, or
    /// `foldlog undo`, for programs without such commands.
    pub(crate) fn of(prompt: &'a str) -> Option<PromptCommand<'a>> {
        let prompt = prompt.trim();
        let (words, prefix) = match (prompt.strip_prefix('/'), prompt.strip_prefix("foldlog ")) {
            (Some(command), _) => {
                // A text for the model may follow the first line.
                let command = command.lines().next().unwrap_or_default().trim();
                (command.strip_prefix("foldlog:").unwrap_or(command), "/")
            }
            (None, Some(command)) => (command.trim_start(), "foldlog "),
            (None, None) => return None,
        };
        let mut each = words.split_whitespace();
        let is_verb = each.next().is_some_and(|verb| ["undo", "redo"].contains(&verb));
        // A sentence may begin with `foldlog undo`, too.
        let is_whole =
            prefix == "/" || each.all(|word| CONSENT.contains(&word) || word.parse::<u64>().is_ok());
        (is_verb && is_whole).then_some(PromptCommand { words, prefix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(program: &AgentProgram, version: &str) -> Vec<&'static str> {
        let version = ProgramVersion::from_output(version).unwrap();
        program.known_events(Some(version)).iter().map(|event| event.name).collect()
    }

    #[test]
    fn an_older_version_gets_only_the_events_that_it_knows() {
        let claude = Agent::Claude.program();
        let all = claude.events.len();
        assert_eq!(names(claude, "2.1.332").len(), all);
        assert_eq!(names(claude, "9.0.0").len(), all);
        assert!(!names(claude, "2.0.55").contains(&"PostToolUseFailure"));
        assert!(names(claude, "2.0.55").contains(&"PermissionRequest"));
        assert!(!names(claude, "2.0.44").contains(&"PermissionRequest"));
        assert!(names(claude, "2.1.100").contains(&"CwdChanged"));
        assert!(!names(claude, "2.1.100").contains(&"DirectoryAdded"));
        assert_eq!(names(claude, "2.0.0").len(), all - 4);
        assert_eq!(claude.known_events(None).len(), all - 4);
        assert_eq!(names(claude, "1.0.100"), [""; 0]);
        let codex = Agent::Codex.program();
        assert_eq!(names(codex, "codex-cli 0.171.0").len(), codex.events.len());
        assert!(!names(codex, "0.140.0").contains(&"PreModelRequest"));
    }

    #[test]
    fn each_sample_is_an_event_of_its_program() {
        for agent in [Agent::Claude, Agent::Codex, Agent::Gemini] {
            let program = agent.program();
            for event in program.events {
                let mut input: serde_json::Value = serde_json::from_str(event.sample).unwrap();
                input["hook_event_name"] = event.name.into();
                input["session_id"] = "s".into();
                input["cwd"] = "/".into();
                let read = (program.read)(&input.to_string(), None).unwrap();
                assert_eq!((read.lane.program.as_str(), read.name.as_str()), (program.name, event.name));
            }
        }
    }

    #[test]
    fn of_a_long_command_the_beginning_is_looked_at() {
        for (agent, event) in
            [(Agent::Claude, "PreToolUse"), (Agent::Codex, "PreToolUse"), (Agent::Gemini, "BeforeTool")]
        {
            let input = serde_json::json!({
                "session_id": "s", "cwd": "/", "hook_event_name": event, "tool_name": "Bash",
                "tool_use_id": "1", "tool_input": {"command": "cd x;".repeat(100_000)},
            });
            let input = (agent.program().read)(&input.to_string(), None).unwrap();
            let HookEvent::CallBegins(call) = input.event else { panic!("{event}") };
            for text in [call.title, call.arguments, input.command.unwrap()] {
                assert!((60_000..66_000).contains(&text.len()), "{event}: {}", text.len());
            }
        }
    }

    #[test]
    fn commands_are_told_from_sentences() {
        let words = |prompt| PromptCommand::of(prompt).map(|command| (command.prefix, command.words));
        assert_eq!(words("/undo "), Some(("/", "undo")));
        assert_eq!(words("/foldlog:redo yes"), Some(("/", "redo yes")));
        assert_eq!(words("\n/undo 2 yes\n\nA text."), Some(("/", "undo 2 yes")));
        assert_eq!(words("foldlog undo 4 yes"), Some(("foldlog ", "undo 4 yes")));
        assert_eq!(words("foldlog undo 1 --yes"), Some(("foldlog ", "undo 1 --yes")));
        assert_eq!(words("foldlog redo -y"), Some(("foldlog ", "redo -y")));
        for other in ["undo", "/undone", "foldlog undo fails", "foldlog log", "foldlog", "please /undo", ""] {
            assert_eq!(words(other), None, "{other}");
        }
    }
}

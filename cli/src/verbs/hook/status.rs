//! `foldlog hook status`: reports installed hooks, and runs each of them once.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command as Process;
use std::time::Duration;

use clap::ValueEnum as _;
use foldlog_codec::escape;
use foldlog_view::document;
use foldlog_view::text::count_text;
use serde::Serialize;
use serde_json::json;

use super::install::program_version;
use super::process;
use super::program::{ProgramState, program_of};
use super::settings::{InstalledHook, SettingsFacts, facts};
use super::settings_file::{SettingsFile, unusable};
use super::trust::FoundHooks;
use crate::agents::{Agent, AgentProgram, ProgramVersion, Scope};
use crate::command::{Command, Group, Target};
use crate::failure::{CommandError, DOES_NOT_HOLD, HOLDS, Result};
use crate::output::Output;
use crate::style::{BAD, GOOD, HEADING, PLAIN};
use crate::timelines::records::{Records, size_text};

/// Longest time of a hook.
const HOOK_DEADLINE: Duration = Duration::from_secs(20);

/// Describes the fields of `hook status --json`.
const STATUS_JSON: &str = "\
Each hook runs once, in an empty temporary directory, with an event of its kind, and with its state
in another temporary directory. Codex is also asked whether it trusts the hooks. Exit code: 0 if
hooks are installed and nothing is wrong; otherwise 1.

With --json one object for each agent:
  agent          claude, codex or gemini
  agent_version  installed version of the agent; null if unknown
  is_well        whether hooks are installed, and no file has problems
  files          scope, file, and:
                 state     missing, not_installed, installed or unusable
                 programs  program, exists, is_executable, is_this: whether it is the running one
                 hooks     event, command, exit_code (null without one), milliseconds, error
                 problems  texts, empty if there are none";

/// Report installed hooks, and run each of them once.
///
/// Looks at the settings of the user, and at those of the project in this directory. Without an
/// agent, reports all three.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = STATUS_JSON)]
pub struct Args {
    /// Agent whose settings are read
    pub agent: Option<Agent>,
}

/// State of the hooks of an agent.
struct AgentStatus {
    agent: &'static AgentProgram,
    /// Installed version, or the reason why it is unknown.
    version: Result<ProgramVersion, String>,
    is_well: bool,
    /// Why it is unknown whether the agent trusts the hooks.
    unknown_trust: Option<String>,
    files: Vec<FileStatus>,
}

#[derive(Serialize)]
struct FileStatus {
    scope: Scope,
    file: String,
    state: FileState,
    programs: Vec<ProgramState>,
    hooks: Vec<HookRun>,
    problems: Vec<String>,
    /// Events without a hook that the installed version knows.
    #[serde(skip)]
    missing: Vec<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum FileState {
    Missing,
    NotInstalled,
    Installed,
    Unusable,
}

/// A run of a hook.
#[derive(Serialize)]
struct HookRun {
    event: String,
    command: String,
    exit_code: Option<i32>,
    milliseconds: Option<u64>,
    error: Option<String>,
}

impl Command for Args {
    const GROUP: Group = Group::Run;
    const TARGET: Target = Target::Nothing;
    const EXAMPLE: &'static str = "foldlog hook status claude";

    /// Reports the hooks of all settings files.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`](foldlog_view::Error::Usage) if the home directory is unknown.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let agents = self.agent.as_ref().map_or(Agent::value_variants(), std::slice::from_ref);
        let (mut is_installed, mut is_well) = (false, true);
        for agent in agents {
            let status = AgentStatus::of(agent.program())?;
            is_installed |= status.is_installed();
            is_well &= !status.is_installed() || status.is_well;
            status.print(self.agent.is_some(), output)?;
        }
        if let Some(Records { directory, bytes }) = Records::find()?.filter(|_| !output.json()) {
            let (directory, size) = (escape::path(&directory), size_text(bytes));
            output.line(format_args!("records: {directory} ({size})"))?;
        }
        if !is_installed && self.agent.is_none() {
            output.note("  next: `foldlog hook install claude`, `codex` or `gemini`");
        }
        Ok(if is_installed && is_well { HOLDS } else { DOES_NOT_HOLD })
    }
}

impl AgentStatus {
    fn of(agent: &'static AgentProgram) -> Result<AgentStatus> {
        let version = program_version(agent);
        let known = version.as_ref().ok().copied();
        let directory = std::env::current_dir().map_err(|error| CommandError::file(Path::new("."), error))?;
        let found = FoundHooks::of(agent, &directory);
        let trusted = found.as_ref().and_then(|found| found.as_ref().ok());
        let scopes = agent.scopes().iter();
        let files =
            scopes.map(|scope| file_status(agent, *scope, known, trusted)).collect::<Result<Vec<_>>>()?;
        let is_installed = files.iter().any(|file| file.state == FileState::Installed);
        Ok(AgentStatus {
            agent,
            is_well: is_installed && files.iter().all(|file| file.problems.is_empty()),
            version,
            unknown_trust: found.and_then(Result::err),
            files,
        })
    }

    fn is_installed(&self) -> bool {
        self.files.iter().any(|file| file.state == FileState::Installed)
    }

    /// Prints the status. Names the command that installs hooks if it `is_asked_for`, or if there
    /// are others.
    fn print(self, is_asked_for: bool, output: &mut Output<'_>) -> Result<()> {
        let (agent, is_installed) = (self.agent, self.is_installed());
        if let Some(reason) = self.unknown_trust.filter(|_| is_installed) {
            let title = agent.title;
            output.note(format_args!("note: it is unknown whether {title} trusts these hooks: {reason}"));
        }
        if output.json() {
            let agent_version = self.version.ok().map(|version| version.to_string());
            let AgentStatus { is_well, files, .. } = self;
            return output.value(&document! { agent: agent.name, agent_version, is_well, files });
        }
        let title = agent.title;
        match self.version {
            Ok(version) => output.line(format_args!("{title} {version}"))?,
            Err(reason) => output.line(format_args!("{title}: the version is unknown: {reason}"))?,
        }
        self.files.iter().try_for_each(|file| print(file, output))?;
        if is_asked_for || self.files.iter().any(|file| !file.problems.is_empty()) {
            next(agent, &self.files, output);
        }
        Ok(())
    }
}

/// Names the command that installs or repairs hooks.
fn next(agent: &AgentProgram, files: &[FileStatus], output: &mut Output<'_>) {
    let name = agent.name;
    let is = |state| files.iter().any(|file| file.state == state);
    let moved = files.iter().find(|file| file.programs.iter().any(|program| !program.exists));
    if is(FileState::Unusable) {
        output.note(format_args!("  next: correct the file, then `foldlog hook install {name}`"));
    } else if let Some(file) = moved {
        let scope = file.scope.name();
        output
            .note(format_args!("  next: `foldlog hook install {name} --{scope}` names this program instead"));
    } else if !is(FileState::Installed) {
        output.note(format_args!("  next: `foldlog hook install {name}`"));
    }
}

fn print(file: &FileStatus, output: &mut Output<'_>) -> Result<()> {
    let state = match file.state {
        FileState::Missing => "not installed (no such file)".to_owned(),
        FileState::NotInstalled => "not installed".to_owned(),
        FileState::Installed if !file.missing.is_empty() => {
            let unseen: BTreeSet<&str> = file.missing.iter().map(|event| subject(event)).collect();
            let unseen: Vec<&str> = unseen.into_iter().collect();
            format!("installed incompletely: foldlog does not learn of {}", unseen.join(", "))
        }
        FileState::Installed if !file.problems.is_empty() => {
            format!("installed, with {}", count_text(file.problems.len() as u64, "problem"))
        }
        FileState::Installed => "installed".to_owned(),
        FileState::Unusable => "unusable".to_owned(),
    };
    output.pieces(&[(HEADING, &file.scope.name()), (PLAIN, &format_args!("  {}: {state}", file.file))])?;
    for problem in &file.problems {
        output.styled_line(BAD, format_args!("  problem: {problem}"))?;
    }
    for program in &file.programs {
        let this = if program.is_this { ": this program" } else { ": another program than this one" };
        let this = if program.exists { this } else { "" };
        output.line(format_args!("  runs {}{this}", program.program))?;
    }
    for hook in &file.hooks {
        let (style, end) = match (hook.exit_code, hook.milliseconds) {
            (Some(0), Some(milliseconds)) => (GOOD, format!("ok, {milliseconds} ms")),
            (Some(code), Some(milliseconds)) => (BAD, format!("exit code {code}, {milliseconds} ms")),
            _ => (BAD, "failed".to_owned()),
        };
        output.pieces(&[(PLAIN, &format_args!("  {:<18} ", hook.event)), (style, &end)])?;
    }
    Ok(())
}

/// Returns what an event reports.
fn subject(event: &str) -> &'static str {
    match event {
        "PreToolUse" | "PostToolUse" | "BeforeTool" | "AfterTool" => "calls",
        "PostToolUseFailure" | "PreModelRequest" => "failed calls",
        "PermissionRequest" => "questions for permission",
        "CwdChanged" | "DirectoryAdded" => "other directories of a session",
        "UserPromptSubmit" | "BeforeAgent" => "`undo` at the prompt",
        "SessionStart" => "the start of sessions",
        // Stop, SubagentStop, SessionEnd, Interrupt, AfterAgent.
        _ => "interrupted calls",
    }
}

fn file_status(
    agent: &'static AgentProgram,
    scope: Scope,
    version: Option<ProgramVersion>,
    found: Option<&FoundHooks>,
) -> Result<FileStatus> {
    let path = agent.settings.path(scope)?;
    let mut status = FileStatus {
        scope,
        file: escape::path(&path),
        state: FileState::Missing,
        programs: Vec::new(),
        hooks: Vec::new(),
        problems: Vec::new(),
        missing: Vec::new(),
    };
    let read = SettingsFile::read(path.clone()).and_then(|file| {
        let read = file.text.as_deref().map(|text| facts(text, agent)).transpose();
        read.map_err(|error| unusable(&path, &error))
    });
    match read {
        Ok(None) => {}
        Ok(Some(facts)) if facts.hooks.is_empty() => status.state = FileState::NotInstalled,
        Ok(Some(facts)) => {
            status.state = FileState::Installed;
            inspect(agent, &facts, version, &mut status)?;
            status.problems.extend(found.into_iter().flat_map(|found| found.problems(agent, &path)));
        }
        Err(error) => {
            status.state = FileState::Unusable;
            status.problems.push(error.to_string());
        }
    }
    Ok(status)
}

/// Adds the programs and hooks of a file, and their problems.
fn inspect(
    agent: &'static AgentProgram,
    facts: &SettingsFacts,
    version: Option<ProgramVersion>,
    status: &mut FileStatus,
) -> Result<()> {
    let (name, title) = (agent.name, agent.title);
    let programs: BTreeSet<_> =
        facts.hooks.iter().filter_map(|hook| program_of(&hook.command, agent)).collect();
    status.programs = programs.iter().map(|program| ProgramState::of(program)).collect();
    let mut problems = Vec::new();
    for ProgramState { program, exists, is_executable, .. } in &status.programs {
        if !exists {
            problems.push(format!("{program} does not exist"));
        } else if !is_executable {
            problems.push(format!("{program} is not executable"));
        }
    }
    if facts.is_disabled {
        let (path, value) = agent.disabled_by;
        problems.push(format!("`{}` is {value}, so no hook runs", path.join(".")));
    }
    let installed: BTreeSet<&str> = facts.hooks.iter().map(|hook| hook.event.as_str()).collect();
    let known: BTreeSet<&str> = agent.known_events(version).iter().map(|event| event.name).collect();
    let wanted = agent.wanted_events(version, status.scope == Scope::Shared);
    let wanted: BTreeSet<&'static str> = wanted.iter().map(|event| event.name).collect();
    status.missing = wanted.into_iter().filter(|name| !installed.contains(name)).collect();
    if !status.missing.is_empty() {
        let (option, missing) = (status.scope.name(), status.missing.join(", "));
        problems.push(format!("no hook for {missing}; `foldlog hook install {name} --{option}` adds it"));
    }
    if let Some(version) = version.filter(|_| agent.shared_events_of.is_some()) {
        let events = agent.events.iter().map(|event| event.name);
        let unknown: Vec<&str> =
            events.filter(|name| installed.contains(name) && !known.contains(name)).collect();
        if !unknown.is_empty() {
            let unknown = unknown.join(", ");
            problems.push(format!("{title} {version} may ignore this file: it does not know {unknown}"));
        }
    }
    status.hooks = facts.hooks.iter().map(|hook| run_hook(agent, hook)).collect::<Result<_>>()?;
    for hook in &status.hooks {
        if let Some(error) = &hook.error {
            problems.push(format!("{}: {error}", hook.event));
        }
    }
    status.problems = problems;
    Ok(())
}

/// Runs a hook with an event that names only temporary directories.
fn run_hook(agent: &AgentProgram, hook: &InstalledHook) -> Result<HookRun> {
    let temporary = |error| CommandError::file(&std::env::temp_dir(), error);
    let (project, state) = (tempfile::tempdir().map_err(temporary)?, tempfile::tempdir().map_err(temporary)?);
    let mut command = Process::new("sh");
    command.args(["-c", &hook.command]).current_dir(project.path());
    command.envs(agent.project_variable.map(|name| (name, project.path())));
    command.env("XDG_STATE_HOME", state.path());
    let ran = process::run(command, &event_input(agent, &hook.event, project.path()), HOOK_DEADLINE);
    let (exit_code, milliseconds, error) = match ran {
        Ok(Some(ended)) => {
            let reason = ended.stderr.lines().next().unwrap_or_default();
            let error = (!ended.status.success()).then(|| format!("{}: {reason}", ended.status));
            (ended.status.code(), u64::try_from(ended.elapsed.as_millis()).ok(), error)
        }
        Ok(None) => (None, None, Some(format!("did not end within {} seconds", HOOK_DEADLINE.as_secs()))),
        Err(error) => (None, None, Some(format!("cannot be run: {error}"))),
    };
    let (event, command) = (hook.event.clone(), hook.command.clone());
    Ok(HookRun { event, command, exit_code, milliseconds, error })
}

/// Returns what the program writes to the standard input of a hook.
fn event_input(agent: &AgentProgram, event: &str, project: &Path) -> String {
    let mut input = json!({
        "session_id": "foldlog-hook-status",
        "transcript_path": project.join("transcript.jsonl"),
        "cwd": project,
        "hook_event_name": event,
    });
    let sample = agent.events.iter().find(|known| known.name == event).map_or("{}", |known| known.sample);
    let sample = serde_json::from_str(sample).unwrap_or_default();
    if let (Some(input), serde_json::Value::Object(sample)) = (input.as_object_mut(), sample) {
        input.extend(sample);
    }
    input.to_string()
}

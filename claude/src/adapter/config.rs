//! What a host chooses about the program and its model.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use foldlog::tools::Question;
use serde_json::{Map, Value, json};

use crate::{PermissionMode, SettingSource};
use foldlog_agent::error::{Error, EvaluationPhase, Result};
use foldlog_agent::provider::LlmConfig;

/// Model that the specification names as the default. Its provider retired it on 15 June 2026, so the adapter does not ask for it:
/// a configuration without a model leaves the choice to the program, whose default is a model that can be had.
pub const DEFAULT_MODEL: &str = "claude-sonnet-4-20250514";

/// Name under which the choice of the program is recorded. The program takes it for its own default too.
const PROGRAMS_MODEL: &str = "default";

/// Configures the program.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaudeAgentSDKClientConfig {
    /// What the program asks before it runs a tool. Whatever it is, no tool runs that the adapter does not allow.
    pub permission_mode: PermissionMode,
    /// Working directory of the program, mostly the directory of the run's workspace. `None` is an empty directory of the run.
    pub cwd: Option<PathBuf>,
    /// Directories beside the working directory that tools may use. A rollback restores them only if they are resources of the run.
    pub add_dirs: Vec<PathBuf>,
    /// Variables that the program is given beside the few that it is passed in any case, such as `ANTHROPIC_API_KEY`.
    pub env: BTreeMap<OsString, OsString>,
    /// Files of settings that the program reads: by default none. With [`SettingSource::Project`] it also reads the `CLAUDE.md` files of
    /// the working directory, and runs the hooks of the settings outside of any transaction.
    pub setting_sources: Vec<SettingSource>,
    /// Whether the program starts the servers that the working directory's `.mcp.json` names, which needs [`SettingSource::Project`]. Their
    /// tools run if [`RunOptions::native_tools`] names them, such as `mcp__files__read`, as transactions like any other tool of the
    /// program.
    pub project_servers: bool,
    /// How the program confines its commands; `None` if it does not.
    pub sandbox: Option<SandboxSettings>,
}

impl Default for ClaudeAgentSDKClientConfig {
    fn default() -> ClaudeAgentSDKClientConfig {
        ClaudeAgentSDKClientConfig {
            permission_mode: PermissionMode::BypassPermissions,
            cwd: None,
            add_dirs: Vec::new(),
            env: BTreeMap::new(),
            setting_sources: Vec::new(),
            project_servers: false,
            sandbox: None,
        }
    }
}

/// Configures how the program confines the commands that it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxSettings {
    /// Commands that are not confined.
    pub exclude_commands: Vec<String>,
    /// Whether commands may listen on local ports.
    pub allow_local_binding: bool,
    /// Whether commands may use Unix sockets.
    pub allow_unix_sockets: bool,
}

impl SandboxSettings {
    /// Returns the settings in the program's form.
    pub fn to_settings(&self) -> Map<String, Value> {
        let network = json!({
            "allowLocalBinding": self.allow_local_binding,
            "allowAllUnixSockets": self.allow_unix_sockets,
        });
        let sandbox = json!({"enabled": true, "excludedCommands": self.exclude_commands, "network": network});
        Map::from_iter([("sandbox".to_owned(), sandbox)])
    }
}

/// Configures the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaudeAgentSDKModelConfig {
    /// Name of the model; `None` leaves it to the program.
    pub model: Option<String>,
    /// Model that is asked while the other one is overloaded.
    pub fallback_model: Option<String>,
    /// Greatest number of tokens of an answer.
    pub max_tokens: Option<u32>,
    /// Temperature. The program takes none: a configuration that sets it is refused.
    pub temperature: Option<f64>,
    /// Probability mass. The program takes none: a configuration that sets it is refused.
    pub top_p: Option<f64>,
}

impl ClaudeAgentSDKModelConfig {
    /// Takes over what a host chose for any provider.
    #[must_use]
    pub fn with_llm_config(self, config: &LlmConfig) -> ClaudeAgentSDKModelConfig {
        ClaudeAgentSDKModelConfig {
            max_tokens: config.max_tokens.or(self.max_tokens),
            temperature: config.temperature.or(self.temperature),
            top_p: config.top_p.or(self.top_p),
            ..self
        }
    }

    /// Returns the name under which the model is recorded before it has answered.
    pub(super) fn name(&self) -> &str {
        self.model.as_deref().unwrap_or(PROGRAMS_MODEL)
    }

    /// Refuses by name what the program cannot be told.
    pub(super) fn check(&self, prompt: &str) -> Result<()> {
        let set = [("temperature", self.temperature.is_some()), ("top_p", self.top_p.is_some())];
        let names: Vec<&str> = set.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect();
        if names.is_empty() {
            return Ok(());
        }
        let names = names.join(" and ");
        let reason =
            format!("the program takes no {names}: leave it out, or ask the model with another provider");
        Err(Error::evaluation(EvaluationPhase::Request, prompt, reason))
    }
}

/// Says where the program keeps its own files: the transcript of its session, above all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProgramHome {
    /// In the session's directory, from which they are removed after the run. The transcript is in the log too, and a later run writes it
    /// back from there: the session's directory alone resumes, on any machine. Outputs that were too large for the model, of which it was
    /// told the file, stay as long as the session. What else the program keeps, such as file checkpoints of its own, is lost with the
    /// run.
    #[default]
    FromLog,
    /// In this directory, which the host keeps (`CLAUDE_CONFIG_DIR`, mode 0700). A transcript that is missing there is written
    /// back from the log.
    Kept(PathBuf),
    /// Where the program keeps them for this machine's user. The run sees that user's credentials and sessions, and another
    /// user's or another machine's run finds no transcript: nothing is written back. The provider keeps no session, whatever
    /// the name of this way may suggest elsewhere.
    Users,
}

/// Says how a structured output is asked for. A prompt for a text asks for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputBy {
    /// By the program's own check against a JSON schema: it asks the model again until the output passes. A run without an
    /// output fails with [`Error::OutputMissing`].
    #[default]
    JsonSchema,
    /// By a tool `respond`, which the model is told to call with its final answer. The system prompt holds the schema, and
    /// fields that the output does not have are ignored. If the model never calls it, the response has no
    /// [output](foldlog_agent::PromptResponse::output), and its text is what the model said.
    RespondTool,
}

/// Says what follows if a call failed and not all of its changes could be rolled back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLeftover {
    /// The model is told what the call left, and the run goes on.
    #[default]
    Continue,
    /// The run ends with [`Error::NotUndone`].
    Stop,
}

/// Says which of the program's own tools run, and how long things may take.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOptions {
    /// Names of the program's own tools that may run, such as `Read`, `Write` and `Bash`. By default none. `Task` means `Agent`. A run
    /// that names a tool which the installed program does not offer fails, and says so.
    pub native_tools: Vec<String>,
    /// Those of them that run only once a person has approved the call, by name, each with the question that is put. The
    /// [pending](foldlog::Session::pending) question holds the arguments beside it. By default none.
    pub asks: BTreeMap<String, Question>,
    /// Whether a command of `Bash` that exits with another code than 0 is a failed call, whose changes are rolled back. By default
    /// the changes of a command that ended are kept, and the end of its call records the exit code. Calls that were stopped, and
    /// tools that fail otherwise, such as `Edit`, are rolled back in any case.
    pub roll_back_failed: bool,
    /// What follows if a call failed and not all of its changes could be rolled back.
    pub on_leftover: OnLeftover,
    /// Number of the model's answers after which the program ends the run; `None` for no limit.
    pub max_turns: Option<u32>,
    /// Cost after which the program ends the run, in US dollars; `None` for no limit.
    pub max_budget_usd: Option<f64>,
    /// How a structured output is asked for.
    pub output_by: OutputBy,
    /// Time before the deadline at which the run is interrupted, so that its usage and state are still told.
    pub interrupt_before: Duration,
    /// Time that an interrupted run has to tell its result.
    pub result_within: Duration,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        RunOptions {
            native_tools: Vec::new(),
            asks: BTreeMap::new(),
            roll_back_failed: false,
            on_leftover: OnLeftover::default(),
            max_turns: None,
            max_budget_usd: None,
            output_by: OutputBy::default(),
            interrupt_before: Duration::from_secs(2),
            result_within: Duration::from_secs(2),
        }
    }
}

impl RunOptions {
    /// Returns whether a tool of the program's own may run.
    pub(super) fn allows(&self, tool: &str) -> bool {
        self.native_tools.iter().any(|native| canonical(native) == canonical(tool))
    }

    /// Returns the question that a person answers before a tool runs; `None` if nobody is asked.
    pub(super) fn question(&self, tool: &str) -> Option<&Question> {
        self.asks.get(tool).or_else(|| {
            self.asks
                .iter()
                .find(|(asking, _)| canonical(asking) == canonical(tool))
                .map(|(_, question)| question)
        })
    }

    /// Returns which of the tools that may run are missing in those that the program offers. Servers of the project may not have told
    /// their tools yet, so these are left out.
    pub(super) fn not_offered(&self, offered: &[String]) -> Vec<&str> {
        let is_missing = |name: &&str| !is_of_server(name) && !offers(offered, name);
        self.native_tools.iter().map(String::as_str).filter(is_missing).collect()
    }

    /// Refuses a tool of the host that has the name of one of the program's own: in the log, nobody could tell their calls
    /// apart.
    pub(super) fn check(&self, prompt: &str, hosts: &[&str]) -> Result<()> {
        let Some(name) = self.native_tools.iter().find(|native| hosts.contains(&native.as_str())) else {
            return Ok(());
        };
        let name = foldlog::escape::text(name);
        let reason =
            format!("the host's tool `{name}` has the name of a tool of the program that may run: rename it");
        Err(Error::evaluation(EvaluationPhase::Request, prompt, reason))
    }
}

/// Returns the name of a tool of the program by which hooks and the model call it: `Agent` for `Task`, as older versions named the tool
/// that starts sub-agents.
pub(super) fn canonical(tool: &str) -> &str {
    if tool == "Task" { "Agent" } else { tool }
}

/// Returns whether a tool belongs to a server, and so is no tool of the program itself.
pub(super) fn is_of_server(tool: &str) -> bool {
    tool.starts_with("mcp__")
}

/// Returns whether a tool is among those that the program offers.
pub(super) fn offers(offered: &[String], tool: &str) -> bool {
    offered.iter().any(|offered| canonical(offered) == canonical(tool))
}

//! A host's configuration of the program and its model.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use foldlog::tools::Question;
use serde_json::{Map, Value, json};

use crate::{PermissionMode, SettingSource};
use foldlog_agent::error::{Error, EvaluationPhase, Result};
use foldlog_agent::provider::LlmConfig;

/// Model that the specification names as the default. Its provider retired it on 15 June 2026, so
/// the adapter does not use it: a configuration without a model leaves the choice to the program,
/// whose default is available.
pub const DEFAULT_MODEL: &str = "claude-sonnet-4-20250514";

/// Name under which the program's choice is recorded. The program also uses it for its own default.
const PROGRAMS_MODEL: &str = "default";

/// Configures the program.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaudeAgentSDKClientConfig {
    /// Permission mode of the program. In every mode, only tools that the adapter allows run.
    pub permission_mode: PermissionMode,
    /// Working directory of the program, usually the directory of the run's workspace. `None` is an
    /// empty directory of the run.
    pub cwd: Option<PathBuf>,
    /// Additional directories that tools may use. A rollback restores them only if they are
    /// resources of the run.
    pub add_dirs: Vec<PathBuf>,
    /// Additional variables of the program, such as `ANTHROPIC_API_KEY`.
    pub env: BTreeMap<OsString, OsString>,
    /// Settings files that the program reads; none by default. With [`SettingSource::Project`] it
    /// also reads the `CLAUDE.md` files of the working directory, and runs the hooks of the
    /// settings outside of any transaction.
    pub setting_sources: Vec<SettingSource>,
    /// Whether the program starts the servers in the working directory's `.mcp.json`, which
    /// requires [`SettingSource::Project`]. Their tools run if [`RunOptions::native_tools`] names
    /// them, such as `mcp__files__read`, as transactions like any other tool of the program.
    pub project_servers: bool,
    /// Sandbox for the program's commands; `None` for no sandbox.
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

/// Configures the sandbox for the commands that the program runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxSettings {
    /// Commands outside of the sandbox.
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
    /// Model to use while the other one is overloaded.
    pub fallback_model: Option<String>,
    /// Greatest number of tokens of an answer.
    pub max_tokens: Option<u32>,
    /// Sampling temperature. The program does not support it: a configuration that sets it is
    /// refused.
    pub temperature: Option<f64>,
    /// Probability mass considered in sampling. The program does not support it: a configuration
    /// that sets it is refused.
    pub top_p: Option<f64>,
}

impl ClaudeAgentSDKModelConfig {
    /// Adopts the parameters that a host chose for any provider.
    #[must_use]
    pub fn with_llm_config(self, config: &LlmConfig) -> ClaudeAgentSDKModelConfig {
        ClaudeAgentSDKModelConfig {
            max_tokens: config.max_tokens.or(self.max_tokens),
            temperature: config.temperature.or(self.temperature),
            top_p: config.top_p.or(self.top_p),
            ..self
        }
    }

    /// Returns the name under which the model is recorded before its first answer.
    pub(super) fn name(&self) -> &str {
        self.model.as_deref().unwrap_or(PROGRAMS_MODEL)
    }

    /// Refuses parameters that the program does not support, by name.
    pub(super) fn check(&self, prompt: &str) -> Result<()> {
        let set = [("temperature", self.temperature.is_some()), ("top_p", self.top_p.is_some())];
        let names: Vec<&str> = set.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect();
        if names.is_empty() {
            return Ok(());
        }
        let names = names.join(" and ");
        let reason = format!("the program does not support {names}: leave it out, or use another provider");
        Err(Error::evaluation(EvaluationPhase::Request, prompt, reason))
    }
}

/// Selects the place of the program's own files, in particular of the transcript of its session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProgramHome {
    /// In the session's directory, from which they are removed after the run. The transcript is
    /// also in the log, and a later run restores it from there, so the session's directory is
    /// sufficient to resume on any machine. Outputs that were too large for the model, which knows
    /// their files, remain as long as the session. Other files of the program, such as its own file
    /// checkpoints, are lost with the run.
    #[default]
    FromLog,
    /// In this directory of the host (`CLAUDE_CONFIG_DIR`, mode 0700). A missing transcript is
    /// restored from the log.
    Kept(PathBuf),
    /// In the directory of this machine's user. The run can access that user's credentials and
    /// sessions. A run of another user or on another machine finds no transcript, because none is
    /// restored.
    Users,
}

/// Selects the way in which a structured output is obtained. It does not apply to a prompt for a
/// text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputBy {
    /// With the program's own check against a JSON schema, which repeats until an output passes. A
    /// run without an output fails with [`Error::OutputMissing`].
    #[default]
    JsonSchema,
    /// With a tool `respond`, which the model is instructed to call with its final answer. The
    /// system prompt contains the schema. Fields that the output does not have are ignored. If the
    /// model never calls the tool, the response has no
    /// [output](foldlog_agent::PromptResponse::output), and its text is the model's last text.
    RespondTool,
}

/// Decides what happens if a call failed and some of its changes could not be rolled back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLeftover {
    /// The model receives a list of the remaining changes, and the run continues.
    #[default]
    Continue,
    /// The run ends with [`Error::NotUndone`].
    Stop,
}

/// Selects the tools of the program's own that may run, and limits of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOptions {
    /// Names of the program's own tools that may run, such as `Read`, `Write` and `Bash`. None by
    /// default. `Task` means `Agent`. If the installed program does not offer a named tool, the run
    /// fails and reports this.
    pub native_tools: Vec<String>,
    /// Those of them that run only after a person has approved the call, by name, each with its
    /// question. The [pending](foldlog::SessionCalls::pending_questions) question also contains the
    /// arguments. None by default.
    pub asks: BTreeMap<String, Question>,
    /// Whether a command of `Bash` that exits with another code than 0 is a failed call, whose
    /// changes are rolled back. By default the changes of a command that ended remain, and the end
    /// record of its call contains the exit code. Calls that were stopped, and failures of other
    /// tools such as `Edit`, are always rolled back.
    pub roll_back_failed: bool,
    /// Reaction to a failed call whose changes could not all be rolled back.
    pub on_leftover: OnLeftover,
    /// Number of the model's answers after which the program ends the run; `None` for no limit.
    pub max_turns: Option<u32>,
    /// Cost after which the program ends the run, in US dollars; `None` for no limit.
    pub max_budget_usd: Option<f64>,
    /// Way in which a structured output is obtained.
    pub output_by: OutputBy,
    /// Time before the deadline at which the run is interrupted, so that its usage and state can
    /// still be reported.
    pub interrupt_before: Duration,
    /// Time for an interrupted run to report its result.
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
    pub(super) fn allows(&self, tool: &str) -> bool {
        self.native_tools.iter().any(|native| canonical(native) == canonical(tool))
    }

    /// Returns the question for a person before a tool runs; `None` if the tool does not ask.
    pub(super) fn question(&self, tool: &str) -> Option<&Question> {
        let asks = |asking: &str| canonical(asking) == canonical(tool);
        self.asks.iter().find(|(asking, _)| asks(asking)).map(|(_, question)| question)
    }

    /// Returns those tools that may run but are missing in the program's offer. Tools of the
    /// project's servers are left out, because these may not have listed them yet.
    pub(super) fn not_offered(&self, offered: &[String]) -> Vec<&str> {
        let is_missing = |name: &&str| !is_of_server(name) && !offers(offered, name);
        self.native_tools.iter().map(String::as_str).filter(is_missing).collect()
    }

    /// Refuses a tool of the host with the name of one of the program's own: the log could not
    /// distinguish their calls.
    pub(super) fn check(&self, prompt: &str, hosts: &[&str]) -> Result<()> {
        let Some(name) = self.native_tools.iter().find(|native| hosts.contains(&native.as_str())) else {
            return Ok(());
        };
        let name = foldlog::escape::text(name);
        let reason = format!(
            "the host's tool `{name}` has the same name as an enabled tool of the program: rename it"
        );
        Err(Error::evaluation(EvaluationPhase::Request, prompt, reason))
    }
}

/// Returns the name by which hooks and the model call a tool of the program: `Agent` for `Task`,
/// the name in older versions of the tool that starts sub-agents.
pub(super) fn canonical(tool: &str) -> &str {
    if tool == "Task" { "Agent" } else { tool }
}

/// Returns whether a tool belongs to a server, and not to the program itself.
pub(super) fn is_of_server(tool: &str) -> bool {
    tool.starts_with("mcp__")
}

pub(super) fn offers(offered: &[String], tool: &str) -> bool {
    offered.iter().any(|offered| canonical(offered) == canonical(tool))
}

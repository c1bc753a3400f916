//! Evaluates prompts with the Claude Code program, which itself runs the loop between the model and
//! the tools.
//!
//! | module | contents |
//! |---|---|
//! | `config` | a host's configuration of the program and its model |
//! | `arrival` | the inputs of a run from the program, in their order, each recorded |
//! | `conversation` | records the exchange as a conversation |
//! | `asked_calls` | assigns the program's ids to the calls of the last answer |
//! | `calls` | runs the calls of tools as transactions of the engine |
//! | `own_tools` | runs the calls of the program's own tools |
//! | `sub_agents` | ends the open work of an earlier process's sub-agents |
//! | `tool_outcome` | decides from the program's report of a call whether its tool ended |
//! | `approvals` | calls that a person has to approve before they run |
//! | `run` | one run, from the prompt to its result |
//! | `evaluate` | the nine steps of an evaluation |
//! | `start_or_resume` | the start of an evaluation: in a fresh session of the program, or in a resumed one |
//! | `transcript` | restores the program's transcript from the log |
//! | `recovery` | recovers from an earlier process: its program, and the open calls |
//! | `home` | the directories of a run |
//! | `inspect` | inspects the installed program before a run |
//! | `logs` | log lines for a host's logger |
//! | `failure` | converts failures into the errors of an evaluation |
//!
//! # The order of an evaluation
//!
//! 1. The prompt is rendered, with its visibility overrides.
//! 2. Its text becomes the system prompt.
//! 3. Its tools become tools of the bridged server `wink`.
//! 4. A structured output is obtained as the option [`RunOptions::output_by`] selects: with the
//!    program's JSON schema, or with a tool `respond`.
//! 5. The options of the program follow from the configuration. The session's id is chosen, and
//!    recorded as an incomplete adapter state, before the program starts.
//! 6. The program runs. Its messages are recorded, and its tools run as transactions.
//! 7. The output is read and checked again.
//! 8. `PromptExecuted` is recorded, and the adapter state a last time.
//! 9. The response is returned.
//!
//! # Where an evaluation continues
//!
//! | state in the log | action |
//! |---|---|
//! | complete, without a later message | the recorded output is returned, and no program starts |
//! | a session of the program, which [`ResumeFrom::Adapter`](foldlog_agent::ResumeFrom::Adapter) gives, or which [`plan_resume`](foldlog_agent::adapter_state::plan_resume) finds if the host enables [automatic resumes](AdapterStateOptions::auto_resume) | its transcript is restored if it is missing, and the program resumes it, in a copy unless the host chose otherwise |
//! | a conversation, and no session to resume | a fresh session gets the conversation as text |
//! | nothing | a fresh session starts |
//!
//! A process that ended within a call of a tool is [recovered](ClaudeAgentSDKAdapter::recover)
//! before all this.
//!
//! # Invariants
//!
//! 1. The session of the program is in the log before the program starts.
//! 2. No committed call runs again: a restored transcript contains its result.
//! 3. In a replay no program starts: all its actions are in the log.

mod approvals;
mod arrival;
mod asked_calls;
mod calls;
mod config;
mod conversation;
mod evaluate;
mod failure;
mod home;
mod inspect;
mod logs;
mod observer;
mod own_tools;
mod recovery;
mod run;
mod start_or_resume;
mod sub_agents;
mod tool_outcome;
mod transcript;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use foldlog::SequenceNumber;
use foldlog::tools::ToolRunner;
use parking_lot::Mutex;
use serde_json::Value;
use uuid::Uuid;

pub use self::config::{
    ClaudeAgentSDKClientConfig, ClaudeAgentSDKModelConfig, DEFAULT_MODEL, OnLeftover, OutputBy, ProgramHome,
    RunOptions, SandboxSettings,
};

pub use self::arrival::ProgramRuns;
pub use self::failure::{ProgramExit, TurnFailure};
pub use self::observer::CallObserver;
pub use self::recovery::{ProgramRecovery, RUN_VARIABLE, end_programs};
pub use self::tool_outcome::is_unclear;

use self::arrival::{POST_TOOL_USE, POST_TOOL_USE_FAILURE, PRE_TOOL_USE};
use self::calls::{RESPOND, SERVER, STRUCTURED_OUTPUT};
use self::config::{canonical, is_of_server};
use self::home::Directories;
use self::recovery::OrphanSearchProgress;
use self::start_or_resume::ProgramSession;
use crate::{BridgedTool, ClientOptions, EnvironmentVariables, HookMatcher, PermissionMode, SystemPrompt};
use foldlog_agent::adapter_state::AdapterStateOptions;
use foldlog_agent::deadline::Deadline;
use foldlog_agent::prompt::{Prompt, RenderedPrompt};

/// Returns the instruction for a prompt whose structured output is given with the tool `respond`.
fn respond_instruction(schema: &Value) -> String {
    let schema = serde_json::to_string_pretty(schema).unwrap_or_default();
    format!(
        "\n\n## Response Format\n\nYou MUST provide your final answer by calling the `respond` tool with a JSON\nobject \
         matching the required schema. Do not provide your answer as plain text.\n\nRequired output schema:\n```json\n\
         {schema}\n```\n"
    )
}

/// Returns a schema without its dialect: the program silently omits its check if it does not know
/// the dialect.
fn without_dialect(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(object) = schema.as_object_mut() {
        object.remove("$schema");
    }
    schema
}

const RESPOND_DESCRIPTION: &str = "Provide your final structured response. You MUST use this tool to answer.";

/// Evaluates prompts with the Claude Code program. Evaluations of different sessions may run
/// concurrently.
///
/// The working directory of the program is usually the directory of a workspace that is a resource
/// of the run. Changes of its tools there are rolled back when a call fails. Changes elsewhere are
/// not.
#[derive(Debug)]
pub struct ClaudeAgentSDKAdapter {
    program: PathBuf,
    leading_arguments: Vec<OsString>,
    client: ClaudeAgentSDKClientConfig,
    model: ClaudeAgentSDKModelConfig,
    options: RunOptions,
    home: ProgramHome,
    states: AdapterStateOptions,
    is_stateful: bool,
    /// Session with which a stateful adapter continues.
    kept: Mutex<Option<StatefulSession>>,
    searched: OrphanSearchProgress,
    observer: Option<Arc<dyn CallObserver>>,
    workspace: Option<String>,
    /// Version of the program in its last run.
    version: Mutex<Option<String>>,
}

/// Contains the program's session with which a stateful adapter continues.
#[derive(Clone, Debug)]
struct StatefulSession {
    session: Uuid,
    /// Last record of `session` when this was stored.
    position: Option<SequenceNumber>,
    id: String,
    /// Id of the copy in which the next evaluation continues.
    fork: Option<String>,
}

impl Default for ClaudeAgentSDKAdapter {
    fn default() -> ClaudeAgentSDKAdapter {
        ClaudeAgentSDKAdapter::new()
    }
}

impl ClaudeAgentSDKAdapter {
    /// Creates an adapter of the program `claude` in the host's `PATH`, with the default
    /// configuration: none of the program's own tools may run, and each evaluation has its own
    /// session of the program. A repeated evaluation continues in a fresh session, which gets the
    /// conversation as text, unless [`auto_resume`](AdapterStateOptions::auto_resume) is set.
    pub fn new() -> ClaudeAgentSDKAdapter {
        ClaudeAgentSDKAdapter {
            program: PathBuf::from("claude"),
            leading_arguments: Vec::new(),
            client: ClaudeAgentSDKClientConfig::default(),
            model: ClaudeAgentSDKModelConfig::default(),
            options: RunOptions::default(),
            home: ProgramHome::default(),
            states: AdapterStateOptions::default(),
            is_stateful: false,
            kept: Mutex::new(None),
            searched: OrphanSearchProgress::default(),
            observer: None,
            workspace: None,
            version: Mutex::new(None),
        }
    }

    /// Sets the program, and arguments before all others, such as the script for an interpreter.
    #[must_use]
    pub fn with_program(
        self,
        program: impl Into<PathBuf>,
        leading_arguments: impl IntoIterator<Item = OsString>,
    ) -> ClaudeAgentSDKAdapter {
        let leading_arguments = leading_arguments.into_iter().collect();
        ClaudeAgentSDKAdapter { program: program.into(), leading_arguments, ..self }
    }

    /// Sets the configuration of the program.
    #[must_use]
    pub fn with_client_config(self, client: ClaudeAgentSDKClientConfig) -> ClaudeAgentSDKAdapter {
        let workspace = client.cwd.as_ref().map(|cwd| cwd.to_string_lossy().into_owned());
        ClaudeAgentSDKAdapter { client, workspace, ..self }
    }

    /// Sets the configuration of the model.
    #[must_use]
    pub fn with_model_config(self, model: ClaudeAgentSDKModelConfig) -> ClaudeAgentSDKAdapter {
        ClaudeAgentSDKAdapter { model, ..self }
    }

    /// Selects the program's own tools that may run, and sets limits of a run.
    #[must_use]
    pub fn with_options(self, options: RunOptions) -> ClaudeAgentSDKAdapter {
        ClaudeAgentSDKAdapter { options, ..self }
    }

    /// Sets the place of the program's own files.
    #[must_use]
    pub fn with_home(self, home: ProgramHome) -> ClaudeAgentSDKAdapter {
        ClaudeAgentSDKAdapter { home, ..self }
    }

    /// Configures the records of the program's sessions, and their resumes.
    #[must_use]
    pub fn with_state_options(self, states: AdapterStateOptions) -> ClaudeAgentSDKAdapter {
        ClaudeAgentSDKAdapter { states, ..self }
    }

    /// Sets an observer of the calls of the program's own tools.
    #[must_use]
    pub fn with_call_observer(self, observer: Arc<dyn CallObserver>) -> ClaudeAgentSDKAdapter {
        ClaudeAgentSDKAdapter { observer: Some(observer), ..self }
    }

    /// Makes the adapter stateful: evaluations of one session continue in one session of the
    /// program, and the model remembers the earlier ones. A session that
    /// [`auto_resume`](AdapterStateOptions::auto_resume) finds in the log has priority.
    #[must_use]
    pub fn stateful(self) -> ClaudeAgentSDKAdapter {
        ClaudeAgentSDKAdapter { is_stateful: true, ..self }
    }

    /// Returns the id of the program's session with which a stateful adapter continues; `None`
    /// before its first evaluation.
    pub fn session_id(&self) -> Option<String> {
        self.kept.lock().as_ref().map(|kept| kept.fork.clone().unwrap_or_else(|| kept.id.clone()))
    }

    /// Forgets the program's session: the next evaluation starts a fresh one.
    pub fn reset_session(&self) {
        *self.kept.lock() = None;
    }

    /// Makes the next evaluation continue in a copy of the program's session. The session itself is
    /// unchanged, and the log retains both. Returns the id of the copy, which is the same until
    /// that evaluation; `None` if there is no session to copy.
    pub fn fork_session(&self) -> Option<String> {
        let mut kept = self.kept.lock();
        let kept = kept.as_mut()?;
        let copy = start_or_resume::derived_id(kept.session, kept.position, &kept.id);
        Some(kept.fork.insert(copy).clone())
    }

    fn bridged_tools<O>(&self, prompt: &Prompt<O>, runner: &ToolRunner) -> Vec<BridgedTool> {
        let tool = |tool: &foldlog_agent::provider::ToolSpec| BridgedTool {
            read_only: runner.reads_only(&tool.name),
            ..BridgedTool::new(SERVER, &tool.name, &tool.description, tool.parameters.clone())
        };
        let mut tools: Vec<BridgedTool> = prompt.tool_specs().map(tool).collect();
        if let Some(spec) = prompt.output_spec().filter(|_| self.options.output_by == OutputBy::RespondTool) {
            tools.push(BridgedTool::new(SERVER, RESPOND, RESPOND_DESCRIPTION, spec.schema.clone()));
        }
        tools
    }

    /// Returns the options with which the program is started.
    fn client_options<O>(
        &self,
        prompt: &Prompt<O>,
        rendered: &RenderedPrompt,
        provided: &ProgramSession,
        directories: &Directories,
        tools: &[BridgedTool],
        deadline: Deadline,
    ) -> ClientOptions {
        let by_respond = self.options.output_by == OutputBy::RespondTool;
        let output = prompt.output_spec();
        let mut system = rendered.text.clone();
        if let Some(spec) = output.filter(|_| by_respond) {
            system += &respond_instruction(&spec.schema);
        }
        let bypasses = self.client.permission_mode == PermissionMode::BypassPermissions;
        let structured = output.filter(|_| !by_respond).map(|_| STRUCTURED_OUTPUT.to_owned());
        let own: Vec<String> = self
            .options
            .native_tools
            .iter()
            .map(|name| canonical(name).to_owned())
            .chain(structured)
            .collect();
        let allowed = tools.iter().map(BridgedTool::full_name).chain(own.clone());
        let own = own.into_iter().filter(|name| !is_of_server(name)).collect();
        let hook =
            |event: &str| HookMatcher { timeout: Some(WAITS_FOR_HOST), ..HookMatcher::new(event, event) };
        let defaults = ClientOptions::new(&self.program, &directories.cwd);
        ClientOptions {
            leading_arguments: self.leading_arguments.clone(),
            model: self.model.model.clone(),
            fallback_model: self.model.fallback_model.clone(),
            system_prompt: SystemPrompt::Text(system),
            allowed_tools: allowed.collect(),
            tools: Some(own),
            permission_mode: Some(self.client.permission_mode),
            max_turns: self.options.max_turns,
            max_budget_usd: self.options.max_budget_usd,
            session_id: provided.begins.clone(),
            resume: provided.resumes.clone(),
            fork_session: provided.resumes.is_some() && provided.begins.is_some(),
            resume_session_at: provided.at_entry.clone(),
            session_mirror: true,
            settings: self.client.sandbox.as_ref().map(SandboxSettings::to_settings),
            add_dirs: self.client.add_dirs.clone(),
            setting_sources: self.client.setting_sources.clone(),
            strict_mcp_config: !self.client.project_servers,
            json_schema: output.filter(|_| !by_respond).map(|spec| without_dialect(&spec.schema)),
            bridged_servers: if tools.is_empty() { Vec::new() } else { vec![SERVER.to_owned()] },
            hooks: vec![hook(PRE_TOOL_USE), hook(POST_TOOL_USE), hook(POST_TOOL_USE_FAILURE)],
            can_use_tool: !bypasses,
            system_prompt_snapshot: Some(false),
            variables: self.variables(deadline),
            home: directories.home.clone(),
            tmpdir: Some(directories.tmpdir.clone()),
            config_dir: directories.config.clone(),
            initialize_timeout: deadline.remaining().min(defaults.initialize_timeout),
            ..defaults
        }
    }

    fn variables(&self, deadline: Deadline) -> EnvironmentVariables {
        let own = [
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
            ("DISABLE_AUTOUPDATER", "1".to_owned()),
            ("DISABLE_TELEMETRY", "1".to_owned()),
            ("DISABLE_ERROR_REPORTING", "1".to_owned()),
            ("MCP_TOOL_TIMEOUT", WAITS_FOR_HOST.as_millis().to_string()),
        ];
        let tokens = self.model.max_tokens.map(|max| ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", max.to_string()));
        // By default the program retries ten times, with growing delays.
        let retries =
            deadline.instant().map(|_| ("CLAUDE_CODE_MAX_RETRIES", RETRIES_BEFORE_A_DEADLINE.to_string()));
        let own = own
            .into_iter()
            .chain(tokens)
            .chain(retries)
            .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        // A task that continues after the end of its call is outside of any transaction, so the
        // host cannot allow it. Sub-agents for the background then run in the foreground.
        let foreground = (OsString::from("CLAUDE_CODE_DISABLE_BACKGROUND_TASKS"), OsString::from("1"));
        own.chain(self.client.env.clone()).chain([foreground]).collect()
    }
}

/// Number of retries of the program's requests to its provider, if there is a deadline.
const RETRIES_BEFORE_A_DEADLINE: u32 = 2;

/// Timeout of the program for a tool or a hook of the host. It is longer than any run, because the
/// program runs a tool after its hook timed out. The program's timers are limited to 2^31 ms.
const WAITS_FOR_HOST: Duration = Duration::from_secs(20 * 24 * 60 * 60);

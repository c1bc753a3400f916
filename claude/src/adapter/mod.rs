//! Evaluates prompts with the Claude Code program, which runs the loop between the model and the tools itself.
//!
//! | module | holds |
//! |---|---|
//! | `config` | what a host chooses about the program and its model |
//! | `arrival` | what a run takes from the program, one after the other, each recorded |
//! | `conversation` | records what is said as a conversation |
//! | `asked_calls` | which call of the last answer the program means by an id |
//! | `calls` | runs the calls of tools as the engine's transactions |
//! | `own_tools` | runs the calls of the program's own tools |
//! | `sub_agents` | ends what sub-agents of an earlier process left open |
//! | `tool_outcome` | decides from what the program says of a call whether its tool ended |
//! | `approvals` | calls that a person has to approve before they run |
//! | `run` | one run, from the prompt to its result |
//! | `evaluate` | the nine steps of an evaluation |
//! | `begin` | where an evaluation begins: in a fresh session of the program, or in one that goes on |
//! | `transcript` | writes the program's transcript back from the log |
//! | `recovery` | recovers what an earlier process left behind: its program, and the calls that were open |
//! | `home` | directories of a run |
//! | `inspect` | what the installed program says of itself before a run |
//! | `logs` | what a host's logger is told |
//! | `failure` | turns what goes wrong into the errors of an evaluation |
//!
//! # The order of an evaluation
//!
//! 1. The prompt is rendered, with its visibility overrides.
//! 2. Its text becomes the system prompt.
//! 3. Its tools become tools of the bridged server `wink`.
//! 4. A structured output is asked for as the option [`RunOptions::output_by`] says: by the program's JSON schema, or by a tool
//!    `respond`.
//! 5. The options of the program follow from the configuration. The session's id is chosen, and recorded as an adapter state
//!    that is not complete, before the program starts.
//! 6. The program runs. What it says is recorded, and its tools run as transactions.
//! 7. The output is taken and checked again.
//! 8. `PromptExecuted` is recorded, and the adapter state a last time.
//! 9. The response is returned.
//!
//! # Where an evaluation goes on
//!
//! | the log says | what happens |
//! |---|---|
//! | complete, and nothing was said since | the recorded output is returned, and no program starts |
//! | a session of the program, which [`ResumeFrom::Adapter`](foldlog_agent::ResumeFrom::Adapter) gives, or which [`plan_resume`](foldlog_agent::adapter_state::plan_resume) finds if the host wants sessions to be [resumed](AdapterStateOptions::auto_resume) | its transcript is written back where it is missing, and the program resumes it, in a copy unless the host chose otherwise |
//! | a conversation, and no session that is resumed | a fresh session is told the conversation |
//! | nothing | a fresh session begins |
//!
//! A process that ended within a call of a tool is [recovered](ClaudeAgentSDKAdapter::recover) before all this.
//!
//! # Invariants
//!
//! 1. The session of the program is in the log before the program starts.
//! 2. No call that committed runs again: a transcript that is written back holds its result.
//! 3. In a replay no program starts: all that it did is in the log.

mod approvals;
mod arrival;
mod asked_calls;
mod begin;
mod calls;
mod config;
mod conversation;
mod evaluate;
mod failure;
mod home;
mod inspect;
mod logs;
mod own_tools;
mod recovery;
mod run;
mod sub_agents;
mod tool_outcome;
mod transcript;

use std::ffi::OsString;
use std::path::PathBuf;
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
pub use self::recovery::{ProgramRecovery, end_programs};
pub use self::tool_outcome::is_unclear;

use self::arrival::{POST_TOOL_USE, POST_TOOL_USE_FAILURE, PRE_TOOL_USE};
use self::begin::ProgramSession;
use self::calls::{RESPOND, SERVER, STRUCTURED_OUTPUT};
use self::config::{canonical, is_of_server};
use self::home::Directories;
use self::recovery::OrphanSearchProgress;
use crate::{BridgedTool, ClientOptions, EnvironmentVariables, HookMatcher, PermissionMode, SystemPrompt};
use foldlog_agent::adapter_state::AdapterStateOptions;
use foldlog_agent::deadline::Deadline;
use foldlog_agent::prompt::{Prompt, RenderedPrompt};

/// Instruction that a prompt with a structured output gets where the tool `respond` gives the output.
fn respond_instruction(schema: &Value) -> String {
    let schema = serde_json::to_string_pretty(schema).unwrap_or_default();
    format!(
        "\n\n## Response Format\n\nYou MUST provide your final answer by calling the `respond` tool with a JSON\nobject \
         matching the required schema. Do not provide your answer as plain text.\n\nRequired output schema:\n```json\n\
         {schema}\n```\n"
    )
}

/// Returns a schema that does not name its dialect: the program drops its check without a word where it does not know that.
fn without_dialect(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(object) = schema.as_object_mut() {
        object.remove("$schema");
    }
    schema
}

/// Description of the tool `respond`.
const RESPOND_DESCRIPTION: &str = "Provide your final structured response. You MUST use this tool to answer.";

/// Evaluates prompts with the Claude Code program. Evaluations of different sessions may run at the same time.
///
/// The working directory of the program is mostly the directory of a workspace that is a resource of the run: what its tools
/// change there is rolled back when a call fails. What they change elsewhere is not.
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
    /// What a stateful adapter goes on with, by the session that it belongs to.
    kept: Mutex<Option<StatefulSession>>,
    searched: OrphanSearchProgress,
    workspace: Option<String>,
    /// Version of the program that ran last.
    version: Mutex<Option<String>>,
}

/// Holds the program's session that a stateful adapter goes on with.
#[derive(Clone, Debug)]
struct StatefulSession {
    session: Uuid,
    /// Last record of that session when this was kept.
    position: Option<SequenceNumber>,
    id: String,
    /// Id of the copy in which the next evaluation goes on.
    fork: Option<String>,
}

impl Default for ClaudeAgentSDKAdapter {
    fn default() -> ClaudeAgentSDKAdapter {
        ClaudeAgentSDKAdapter::new()
    }
}

impl ClaudeAgentSDKAdapter {
    /// Makes an adapter of the program `claude` in the host's `PATH`, with the default configuration: no tool of the
    /// program's own may run, and each evaluation has a session of the program's of its own. One that is evaluated again goes on in
    /// a fresh session, which is told the conversation, unless [`auto_resume`](AdapterStateOptions::auto_resume) is set.
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
            workspace: None,
            version: Mutex::new(None),
        }
    }

    /// Sets the program, and arguments before all others, such as the script that an interpreter runs.
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

    /// Sets which of the program's own tools run, and how long things may take.
    #[must_use]
    pub fn with_options(self, options: RunOptions) -> ClaudeAgentSDKAdapter {
        ClaudeAgentSDKAdapter { options, ..self }
    }

    /// Sets where the program keeps its own files.
    #[must_use]
    pub fn with_home(self, home: ProgramHome) -> ClaudeAgentSDKAdapter {
        ClaudeAgentSDKAdapter { home, ..self }
    }

    /// Sets what is recorded of the program's sessions, and when they are resumed.
    #[must_use]
    pub fn with_state_options(self, states: AdapterStateOptions) -> ClaudeAgentSDKAdapter {
        ClaudeAgentSDKAdapter { states, ..self }
    }

    /// Makes the adapter stateful: evaluations of one session go on in one session of the program, and the model remembers
    /// those before. A session that [`auto_resume`](AdapterStateOptions::auto_resume) finds in the log goes before it.
    #[must_use]
    pub fn stateful(self) -> ClaudeAgentSDKAdapter {
        ClaudeAgentSDKAdapter { is_stateful: true, ..self }
    }

    /// Returns the id of the program's session that a stateful adapter goes on with; `None` before its first evaluation.
    pub fn session_id(&self) -> Option<String> {
        self.kept.lock().as_ref().map(|kept| kept.fork.clone().unwrap_or_else(|| kept.id.clone()))
    }

    /// Lets go of the program's session: the next evaluation begins a fresh one.
    pub fn reset_session(&self) {
        *self.kept.lock() = None;
    }

    /// Makes the next evaluation go on in a copy of the program's session. The session itself stays as it is, and the log
    /// keeps both. Returns the id of the copy, the same until that evaluation; `None` if there is no session to be copied.
    pub fn fork_session(&self) -> Option<String> {
        let mut kept = self.kept.lock();
        let kept = kept.as_mut()?;
        let copy = begin::derived_id(kept.session, kept.position, &kept.id);
        Some(kept.fork.insert(copy).clone())
    }

    /// Returns the tools of the bridged server.
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

    /// Returns what the program is started with.
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
        // By itself the program tries ten times, and waits longer each time.
        let retries =
            deadline.instant().map(|_| ("CLAUDE_CODE_MAX_RETRIES", RETRIES_BEFORE_A_DEADLINE.to_string()));
        let own = own
            .into_iter()
            .chain(tokens)
            .chain(retries)
            .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        // What runs on behind the end of its call is in no transaction, so the host cannot allow it. Sub-agents that are to run in
        // the background run in the foreground then.
        let foreground = (OsString::from("CLAUDE_CODE_DISABLE_BACKGROUND_TASKS"), OsString::from("1"));
        own.chain(self.client.env.clone()).chain([foreground]).collect()
    }
}

/// Number of times that the program asks its provider again where there is a deadline.
const RETRIES_BEFORE_A_DEADLINE: u32 = 2;

/// Time that the program waits for a tool or a hook of the host: longer than any run lasts, since behind a hook that timed out
/// it runs the tool. Its timers hold no more than 2^31 ms.
const WAITS_FOR_HOST: Duration = Duration::from_secs(20 * 24 * 60 * 60);

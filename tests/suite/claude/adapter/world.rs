//! A session with a workspace, a prompt with tools, and the adapter over the stand-in.
//!
//! A test is written as a closure that takes a [`Host`]: [`World::run`] runs it, and then replays
//! it over its log. The replay starts no program, so each assertion is checked twice, the second
//! time from the log alone.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use foldlog::conversation::{Role, ToolCallRecord};
use foldlog::filesystem::{Filesystem, HostFilesystem, HostFilesystemOptions};
use foldlog::inspect::LogReader;
use foldlog::tools::{ExecuteOptions, Tool, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{Event, ExecutionState, ResourceRegistry, Session, SessionTypes, Slice, Store, StoreOptions};
use foldlog_agent::adapter_state::{
    AdapterStateOptions, AdapterStateSnapshot, ResumeValidation, StatefulAdapter,
};
use foldlog_agent::{Error, EvaluateOptions, MarkdownSection, Prompt, PromptResponse, UserMessage};
use foldlog_claude::{ClaudeAgentSDKAdapter, ClaudeAgentSDKClientConfig, PermissionMode, RunOptions};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::claude::stand_in::StandIn;

/// The id of the evaluation, unless a test names another one.
pub(crate) const EVALUATION: &str = "run";

/// The lines that the tool `add` has added: STATE.
pub(crate) struct Page;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Line {
    pub(crate) text: String,
}

impl Event for Line {
    const NAME: &'static str = "line";
}

impl Slice for Page {
    const NAME: &'static str = "page";
    type Item = Line;
}

/// The session's types: the page, and the events of evaluations.
pub(crate) fn types() -> SessionTypes {
    let builder = SessionTypes::builder().slice::<Page>().append_all::<Page>();
    foldlog_agent::events::declare(builder).build().unwrap()
}

/// Adds a line to STATE and to the file `page` of the workspace. Then it fails for the text
/// `break`, and panics for `panic`.
pub(crate) struct Add;

impl Tool for Add {
    const NAME: &'static str = "add";
    const DESCRIPTION: &'static str = "Adds a line to the page.";
    type Parameters = Line;
    type Output = ();

    fn call(&self, line: Line, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let files = context.resources().get::<dyn Filesystem>().ok_or(ToolError::failed("no workspace"))?;
        let before = match files.exists("page")? {
            true => files.read("page")?,
            false => Vec::new(),
        };
        files.write("page", &[&before, line.text.as_bytes(), b"\n"].concat())?;
        let text = line.text.clone();
        context.session().dispatch(line)?;
        match text.as_str() {
            "break" => Err(ToolError::failed("it broke")),
            "panic" => panic!("planned"),
            _ => Ok(ToolResult::ok(format!("added {text}"), ())),
        }
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct City {
    city: String,
}

/// Reports the weather, which changes nothing.
pub(crate) struct Weather;

impl Tool for Weather {
    const NAME: &'static str = "weather";
    const DESCRIPTION: &'static str = "Says how the weather is.";
    type Parameters = City;
    type Output = String;

    fn reads_only(&self) -> bool {
        true
    }

    fn call(&self, at: City, _: &ToolContext) -> Result<ToolResult<String>, ToolError> {
        match at.city.as_str() {
            "Oslo" => Ok(ToolResult::ok("snow", at.city)),
            _ => Err(ToolError::failed("no such city")),
        }
    }
}

pub(crate) fn tools() -> ToolRegistry {
    ToolRegistry::new().with(Add).with(Weather)
}

pub(crate) fn prompt() -> Prompt {
    Prompt::text("tests", "page")
        .with_section(MarkdownSection::new("task", "Write the page."))
        .with_tools(tools())
}

/// The structured output.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
pub(crate) struct Forecast {
    pub(crate) snow: bool,
}

pub(crate) fn forecast() -> Prompt<Forecast> {
    Prompt::structured("tests", "forecast")
        .with_section(MarkdownSection::new("task", "Say whether it snows."))
        .with_tools(tools())
}

/// Returns options of an evaluation with this text of the user.
pub(crate) fn asking(text: &str) -> EvaluateOptions<'static> {
    let messages = vec![UserMessage { id: text.to_owned(), text: text.to_owned() }];
    EvaluateOptions { evaluation_id: Some(EVALUATION.to_owned()), messages, ..EvaluateOptions::default() }
}

/// Returns run options that allow these tools of the program, with short time limits.
pub(crate) fn native(tools: &[&str]) -> RunOptions {
    RunOptions {
        native_tools: tools.iter().map(|tool| (*tool).to_owned()).collect(),
        interrupt_before: Duration::ZERO,
        ..RunOptions::default()
    }
}

/// Opens a run over a session whose workspace is a directory.
pub(crate) fn state_of(session: Session, workspace: &Path) -> ExecutionState {
    fs::create_dir_all(workspace).unwrap();
    let captures = session.dir().join("files");
    let files = HostFilesystem::open(workspace, captures, HostFilesystemOptions::default()).unwrap();
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
    ExecutionState::new(session, resources)
}

/// Returns state options that always continue a repeated evaluation in its session of the program.
pub(crate) fn resuming() -> AdapterStateOptions {
    AdapterStateOptions {
        auto_resume: true,
        resume_validation: ResumeValidation::None,
        ..AdapterStateOptions::default()
    }
}

/// Returns an adapter of the stand-in that plays a script, in a working directory. Repeated
/// evaluations are resumed.
pub(crate) fn adapter_of(script: &Path, cwd: &Path) -> ClaudeAgentSDKAdapter {
    ClaudeAgentSDKAdapter::new()
        .with_program(env!("CARGO_BIN_EXE_claude-stand-in"), [])
        .with_client_config(config_of(script, cwd))
        .with_options(native(&[]))
        .with_state_options(resuming())
}

/// The configuration of the program that plays a script, in a working directory.
pub(crate) fn config_of(script: &Path, cwd: &Path) -> ClaudeAgentSDKClientConfig {
    ClaudeAgentSDKClientConfig {
        permission_mode: PermissionMode::DontAsk,
        cwd: Some(cwd.to_owned()),
        env: [(OsString::from("STAND_IN_SCRIPT"), script.as_os_str().to_owned())].into(),
        ..ClaudeAgentSDKClientConfig::default()
    }
}

/// One process's view of a session; a replay has another directory as its workspace.
pub(crate) struct Host {
    pub(crate) state: ExecutionState,
    script: PathBuf,
    /// The working directory of the program: the live workspace, also in a replay, since records
    /// name it.
    cwd: PathBuf,
}

impl Host {
    pub(crate) fn session(&self) -> &Session {
        self.state.session()
    }

    /// Returns an adapter that allows no tool of the program.
    pub(crate) fn adapter(&self) -> ClaudeAgentSDKAdapter {
        adapter_of(&self.script, &self.cwd)
    }

    pub(crate) fn config(&self) -> ClaudeAgentSDKClientConfig {
        config_of(&self.script, &self.cwd)
    }

    /// Evaluates the prompt for a text, without tools of the program.
    pub(crate) fn ask(&self, text: &str) -> Result<PromptResponse<String>, Error> {
        self.ask_with(&self.adapter(), text)
    }

    pub(crate) fn ask_with(
        &self,
        adapter: &ClaudeAgentSDKAdapter,
        text: &str,
    ) -> Result<PromptResponse<String>, Error> {
        adapter.evaluate(&prompt(), &self.state, asking(text))
    }

    pub(crate) fn forecast_with(
        &self,
        adapter: &ClaudeAgentSDKAdapter,
    ) -> Result<PromptResponse<Forecast>, Error> {
        adapter.evaluate(&forecast(), &self.state, asking("Oslo?"))
    }

    /// Recovers the session after an earlier process.
    pub(crate) fn recover(&self) -> foldlog::Result<()> {
        ToolRunner::new(self.state.clone(), tools()).recover(&ExecuteOptions::default()).map(drop)
    }

    pub(crate) fn page(&self) -> Vec<String> {
        self.session().view::<Page>().unwrap().iter().map(|line| line.text.clone()).collect()
    }

    /// Returns roles and texts in the conversation of the evaluation, without the prompt.
    pub(crate) fn said(&self) -> Vec<(Role, String)> {
        let conversation = self.session().conversation().read(EVALUATION).unwrap().unwrap();
        let of = |one: foldlog::conversation::ConversationMessage| {
            (one.role != Role::System).then(|| (one.role, one.content.unwrap_or_default()))
        };
        conversation.sent_messages().into_iter().filter_map(of).collect()
    }

    /// Returns the calls that the conversation of the evaluation requests.
    pub(crate) fn calls(&self) -> Vec<ToolCallRecord> {
        let conversation = self.session().conversation().read(EVALUATION).unwrap().unwrap();
        conversation.sent_messages().into_iter().flat_map(|one| one.tool_calls).collect()
    }

    pub(crate) fn states(&self) -> Vec<AdapterStateSnapshot> {
        self.session()
            .conversation()
            .adapter_states()
            .unwrap()
            .into_iter()
            .map(AdapterStateSnapshot::from)
            .collect()
    }
}

/// A session in a store, a workspace, and the script of the stand-in.
pub(crate) struct World {
    pub(crate) stand_in: StandIn,
    pub(crate) store: Store,
    id: uuid::Uuid,
    has_run: AtomicBool,
}

impl World {
    /// Creates an empty session, for a program that plays these steps.
    pub(crate) fn new(steps: &Value) -> World {
        World::with_options(steps, StoreOptions::default())
    }

    pub(crate) fn with_options(steps: &Value, options: StoreOptions) -> World {
        let stand_in = StandIn::new(steps);
        let store = Store::open_with(stand_in.path("store"), options).unwrap();
        let session = store.create(&types()).unwrap();
        let id = session.id();
        session.close().unwrap();
        World { stand_in, store, id, has_run: AtomicBool::new(false) }
    }

    /// Returns the workspace, which is the program's working directory.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.stand_in.path("work")
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.store.session_dir(self.id)
    }

    fn host(&self, session: Session, workspace: &Path) -> Host {
        let state = state_of(session, workspace);
        Host { state, script: self.stand_in.path("script"), cwd: self.workspace() }
    }

    /// Runs a story, closes the session, and replays the story over the log. Only for the first
    /// story of a world.
    pub(crate) fn run<T>(&self, story: impl Fn(&Host) -> T) -> T {
        assert!(!self.has_run.load(Ordering::SeqCst), "the log holds another story already");
        let told = self.run_unreplayed(&story);
        self.replay(story);
        told
    }

    /// Runs a story and closes the session: for stories whose end the log cannot repeat, or that
    /// continue another one.
    pub(crate) fn run_unreplayed<T>(&self, story: impl Fn(&Host) -> T) -> T {
        self.has_run.store(true, Ordering::SeqCst);
        let session = self.store.open_session(self.id, &types()).unwrap();
        let told = story(&self.host(session.clone(), &self.workspace()));
        session.close().unwrap();
        told
    }

    /// Replays a story over the log: each record has to match, and no program may start.
    pub(crate) fn replay<T>(&self, story: impl Fn(&Host) -> T) {
        let (elsewhere, starts) = (tempfile::tempdir().unwrap(), self.starts().len());
        let workspace = elsewhere.path().join("work");
        foldlog_replay::assert_host_replays(self.dir(), &types(), |session| {
            drop(story(&self.host(session, &workspace)));
        });
        assert_eq!(self.starts().len(), starts, "a replay started a program");
    }

    /// Returns how each program was started, and an empty list if none was.
    pub(crate) fn starts(&self) -> Vec<Value> {
        match self.stand_in.path("script.starts").exists() {
            true => self.stand_in.starts(),
            false => Vec::new(),
        }
    }

    /// Returns the arguments of the last started program.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let starts = self.starts();
        let arguments = starts.last().unwrap()["arguments"].as_array().unwrap().clone();
        arguments.iter().map(|argument| argument.as_str().unwrap().to_owned()).collect()
    }

    /// Returns the value of a flag of the last started program; `None` if it was not given.
    pub(crate) fn argument(&self, flag: &str) -> Option<String> {
        let is_it = |argument: &String| argument.strip_prefix(flag)?.strip_prefix('=').map(str::to_owned);
        self.arguments().iter().find_map(is_it)
    }

    /// Returns each call of the session with its outcome.
    pub(crate) fn ledger(&self) -> Vec<(String, String)> {
        let log = LogReader::open(self.dir()).unwrap();
        let ended = |entry: foldlog::inspect::LedgerEntry| (entry.tool, entry.outcome.name().to_owned());
        log.ledger().unwrap().into_iter().map(ended).collect()
    }

    /// Returns the text of a file of the workspace; `None` if it does not exist.
    pub(crate) fn file(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.workspace().join(path)).ok()
    }

    /// Returns the host's replies to the program about calls: the text, and whether the call
    /// failed.
    pub(crate) fn replies(&self) -> Vec<(String, bool)> {
        let heard = self.stand_in.heard();
        let result = |line: &Value| {
            let result = line["response"]["response"]["mcp_response"]["result"].clone();
            let text = result["content"][0]["text"].as_str()?.to_owned();
            assert_eq!(result["content"], json!([{"type": "text", "text": text}]));
            Some((text, result["isError"] == true))
        };
        heard.iter().filter_map(result).collect()
    }
}

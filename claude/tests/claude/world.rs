//! A session with a workspace, and the program that works in it.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog::filesystem::{HostFilesystem, HostFilesystemOptions};
use foldlog::tools::{Tool, ToolContext, ToolError, ToolRegistry, ToolResult};
use foldlog::{ExecutionState, ResourceRegistry, Session, SessionTypes};
use foldlog_agent::adapter_state::{AdapterStateOptions, ResumeValidation};
use foldlog_agent::{EvaluateOptions, MarkdownSection, Prompt, UserMessage};
use foldlog_claude::{ClaudeAgentSDKAdapter, ClaudeAgentSDKClientConfig, PermissionMode, RunOptions};

use crate::api::Api;

pub(crate) use foldlog::Store;

/// Returns the program's file, an executable or a script. Without one, reports that and returns
/// `None`.
pub(crate) fn cli() -> Option<PathBuf> {
    let found = std::env::var_os("FOLDLOG_CLAUDE_CLI").map(PathBuf::from).filter(|path| path.is_file());
    if found.is_none() {
        skipped("FOLDLOG_CLAUDE_CLI names no Claude Code program");
    }
    found
}

/// Returns the command that starts the program: `node` runs a script.
pub(crate) fn command(cli: &Path) -> (OsString, Vec<OsString>) {
    match cli.extension().is_some_and(|extension| extension == "js") {
        true => ("node".into(), vec![cli.into()]),
        false => (cli.into(), Vec::new()),
    }
}

/// Reports why the test of this thread is skipped, also in the file that `FOLDLOG_SKIPPED` names.
pub(crate) fn skipped(reason: &str) {
    println!("skipped: {reason}");
    let Some(path) = std::env::var_os("FOLDLOG_SKIPPED") else { return };
    let thread = std::thread::current();
    let line = format!("{}: {reason}\n", thread.name().unwrap_or("a test"));
    let file = fs::File::options().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes())).unwrap();
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
pub(crate) struct City {
    city: String,
}

/// Returns a city's weather, and fails for an unknown city.
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

pub(crate) struct World {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) session: Session,
    pub(crate) state: ExecutionState,
}

impl World {
    pub(crate) fn new() -> World {
        let directory = tempfile::tempdir().unwrap();
        let types = SessionTypes::builder().build().unwrap();
        let session = Store::open(directory.path().join("store")).unwrap().create(&types).unwrap();
        World::of(directory, session)
    }

    pub(crate) fn of(directory: tempfile::TempDir, session: Session) -> World {
        let (state, _) = World::at(directory.path(), session.clone());
        World { directory, session, state }
    }

    /// Makes a run over a session in a directory, and the prompt.
    pub(crate) fn at(directory: &std::path::Path, session: Session) -> (ExecutionState, Prompt) {
        let workspace = directory.join("workspace");
        fs::create_dir_all(&workspace).unwrap();
        let captures = session.dir().join("files");
        let files = HostFilesystem::open(workspace, captures, HostFilesystemOptions::default()).unwrap();
        let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
        (ExecutionState::new(session, resources), prompt())
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.directory.path().join("workspace")
    }

    pub(crate) fn adapter(
        &self,
        cli: &std::path::Path,
        api: &Api,
        options: RunOptions,
    ) -> ClaudeAgentSDKAdapter {
        let (program, leading) = command(cli);
        ClaudeAgentSDKAdapter::new()
            .with_program(program, leading)
            .with_client_config(config(&self.workspace(), &api.url()))
            .with_options(options)
            .with_state_options(resuming())
    }

    pub(crate) fn prompt(&self) -> Prompt {
        prompt()
    }

    pub(crate) fn asking(&self, text: &str) -> EvaluateOptions<'static> {
        let messages = vec![UserMessage { id: text.to_owned(), text: text.to_owned() }];
        EvaluateOptions { evaluation_id: Some("run".to_owned()), messages, ..EvaluateOptions::default() }
    }
}

/// State options with which a repeated evaluation always continues in its session of the program,
/// without validation.
pub(crate) fn resuming() -> AdapterStateOptions {
    AdapterStateOptions {
        auto_resume: true,
        resume_validation: ResumeValidation::None,
        ..AdapterStateOptions::default()
    }
}

/// Configures a program that works in a directory and asks the API at `url`.
pub(crate) fn config(workspace: &Path, url: &str) -> ClaudeAgentSDKClientConfig {
    let env = [("ANTHROPIC_BASE_URL", url), ("ANTHROPIC_API_KEY", "none"), ("CLAUDE_CODE_MAX_RETRIES", "1")];
    ClaudeAgentSDKClientConfig {
        permission_mode: PermissionMode::DontAsk,
        cwd: Some(workspace.to_owned()),
        env: env.into_iter().map(|(name, value)| (OsString::from(name), OsString::from(value))).collect(),
        ..ClaudeAgentSDKClientConfig::default()
    }
}

fn prompt() -> Prompt {
    Prompt::text("tests", "weather")
        .with_section(MarkdownSection::new("task", "Say how the weather is."))
        .with_tools(ToolRegistry::new().with(Weather))
}

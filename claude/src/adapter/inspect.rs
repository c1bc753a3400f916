//! Inspects the installed program and its tools before a run.
//!
//! The program describes itself only at the start of a turn. So it gets a prompt, and a hook that
//! ends the turn before the request to the model. It has an empty home, and a provider address
//! without a server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::ClaudeAgentSDKAdapter;
use super::arrival::ClientFailure;
use super::config::{ProgramHome, canonical};
use super::failure;
use super::home::Directories;
use crate::{
    Callbacks, ClaudeMessageBody, Client, ClientError, ClientOptions, ErrorKind, HookCall, HookMatcher,
    HookReply, Init, Stage,
};
use foldlog_agent::deadline::Deadline;
use foldlog_agent::error::Result;

/// Timeout for the program's description.
const WITHIN: Duration = Duration::from_secs(60);

/// Event before a prompt is sent to the model.
const BEFORE_PROMPT: &str = "UserPromptSubmit";

/// Address without a server: the port of the discard service.
const NOWHERE: &str = "http://127.0.0.1:9";

/// Ends each turn before the request to the model.
struct EndsTurns;

impl Callbacks for EndsTurns {
    fn hook(&self, _: HookCall) -> HookReply {
        HookReply { block: Some("inspected".to_owned()), ..HookReply::stop("inspected") }
    }
}

impl ClaudeAgentSDKAdapter {
    /// Starts the program, returns its description of itself, and ends it. There is no request to
    /// the model. The description contains those of `tools` that the program offers; `default`
    /// stands for all that it offers by default. It calls `Agent` `Task`.
    ///
    /// # Errors
    ///
    /// [`Error::PromptEvaluation`](foldlog_agent::Error::PromptEvaluation) and
    /// [`Error::Throttled`](foldlog_agent::Error::Throttled) if the program does not start or does
    /// not describe itself.
    pub fn inspect(&self, tools: &[String]) -> Result<Init> {
        #[expect(clippy::disallowed_methods, reason = "it names a temporary directory")]
        let mark = format!("inspect-{}", Uuid::new_v4().simple());
        let directories = Directories::make(&ProgramHome::FromLog, None, None, &mark, "inspect")?;
        let mut variables = self.variables(Deadline::never());
        variables.set("ANTHROPIC_BASE_URL", NOWHERE);
        let options = ClientOptions {
            leading_arguments: self.leading_arguments.clone(),
            tools: Some(tools.iter().map(|tool| canonical(tool).to_owned()).collect()),
            hooks: vec![HookMatcher::new(BEFORE_PROMPT, BEFORE_PROMPT)],
            variables,
            home: directories.home.clone(),
            tmpdir: Some(directories.tmpdir.clone()),
            config_dir: directories.config.clone(),
            ..ClientOptions::new(&self.program, &directories.cwd)
        };
        query_init(&options)
            .map_err(|error| failure::of_client(&ClientFailure::from_error(&error), "inspect", ""))
    }

    /// Returns the version that the program reported in its last run; `None` before the first run
    /// of this adapter.
    pub fn program_version(&self) -> Option<String> {
        self.version.lock().clone()
    }

    /// Checks a condition that the program would refuse at its start: running as root without
    /// permission requests, outside of a sandbox. A run checks it too, but only after it has
    /// created a session.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::RootRefused`] in that case.
    pub fn check_root(&self) -> Result<(), ClientError> {
        let options = ClientOptions {
            permission_mode: Some(self.client.permission_mode),
            variables: self.variables(Deadline::never()),
            ..ClientOptions::new(&self.program, "/")
        };
        let environment = options.environment(std::env::vars_os());
        options.check_root(&environment, rustix::process::getuid().is_root())
    }
}

/// Starts the program, and returns its description of itself.
fn query_init(options: &ClientOptions) -> Result<Init, ClientError> {
    let until = Instant::now() + WITHIN;
    let client = Client::start(options, Arc::new(EndsTurns))?;
    client.query("Name your tools.")?;
    while let Some(message) = client.next_message(Some(until))? {
        if let ClaudeMessageBody::Init(init) = message.body {
            return Ok(init);
        }
    }
    Err(ClientError::new(ErrorKind::Exited, Stage::Response, "the program did not describe itself"))
}

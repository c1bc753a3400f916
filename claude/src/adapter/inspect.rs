//! Asks the installed program what it is and which tools it offers, before a run.
//!
//! The program describes itself at the begin of a turn alone. So it is given a prompt, and a hook that ends the turn before the model is
//! asked. It has an empty home and an address that nobody answers at.

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

/// Time that the program has to describe itself.
const WITHIN: Duration = Duration::from_secs(60);

/// Event before a prompt is sent to the model.
const BEFORE_PROMPT: &str = "UserPromptSubmit";

/// Address that nobody answers at: the port of the service that discards.
const NOWHERE: &str = "http://127.0.0.1:9";

/// Ends each turn before the model is asked.
struct EndsTurns;

impl Callbacks for EndsTurns {
    fn hook(&self, _: HookCall) -> HookReply {
        HookReply { block: Some("inspected".to_owned()), ..HookReply::stop("inspected") }
    }
}

impl ClaudeAgentSDKAdapter {
    /// Starts the program, takes how it describes itself, and ends it. The model is not asked. Of `tools`, the description names those that
    /// the program offers; `default` stands for all that it offers unasked. It calls `Agent` `Task`.
    ///
    /// # Errors
    ///
    /// [`Error::PromptEvaluation`](foldlog_agent::Error::PromptEvaluation) and [`Error::Throttled`](foldlog_agent::Error::Throttled) if the program
    /// does not start or does not describe itself.
    pub fn inspect(&self, tools: &[String]) -> Result<Init> {
        #[expect(clippy::disallowed_methods, reason = "it names a temporary folder")]
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

    /// Returns the version of the program that ran last, as it told it; `None` before the first run of this adapter.
    pub fn program_version(&self) -> Option<String> {
        self.version.lock().clone()
    }

    /// Checks what the program would refuse as it starts: to ask no permission as root outside of a sandbox. A run checks it too, but has
    /// a session by then.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::RootRefused`].
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

/// Starts the program, and returns how it describes itself.
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

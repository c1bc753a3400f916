//! Command-line options of a run.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::TypedValueParser;
use foldlog::inspect;
use foldlog_agent::Deadline;
use foldlog_agent::adapter_state::{AdapterStateOptions, ResumeValidation};
use foldlog_claude::{
    ClaudeAgentSDKAdapter, ClaudeAgentSDKClientConfig, ClaudeAgentSDKModelConfig, OnLeftover, PermissionMode,
    RunOptions, SettingSource,
};
use foldlog_codec::escape;
use uuid::Uuid;

use super::program::Program;
use super::tools;
use crate::failure::{CommandError, Result};
use crate::readers::WriteArgs;
use crate::value_parsers::words;

/// Variables of this process that the program receives in addition to those that every program
/// needs, such as `PATH`.
const PASSED: [&str; 8] = [
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_CUSTOM_HEADERS",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_MAX_RETRIES",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX",
];

/// Names the program of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Adapter {
    /// Claude Code, installed by `npm install -g @anthropic-ai/claude-code`
    Claude,
}

/// Parses what follows if a failed call left something behind.
fn on_leftover() -> impl TypedValueParser<Value = OnLeftover> {
    words([
        ("continue", "Report it to the model and the user, and continue", OnLeftover::Continue),
        ("stop", "End the run, which can be resumed", OnLeftover::Stop),
    ])
}

/// Describes the data that a run passes on, and the fields of `run --json`.
const RUN_JSON: &str = "\
The program receives only these variables of this process: PATH, HTTPS_PROXY and the like, those
given by --env, and:
  ANTHROPIC_API_KEY, ANTHROPIC_AUTH_TOKEN, ANTHROPIC_BASE_URL, ANTHROPIC_CUSTOM_HEADERS,
  CLAUDE_CODE_OAUTH_TOKEN, CLAUDE_CODE_MAX_RETRIES, CLAUDE_CODE_USE_BEDROCK, CLAUDE_CODE_USE_VERTEX
It uses neither the login nor the settings of this user. It reads the workspace's CLAUDE.md and
settings only with --project-settings, and its .mcp.json only with --project-servers. Of the
program's own files, only outputs that are too large for the model are kept, in the session's
directory. A resume needs no other files.

Exit codes: 0 the run gave an answer; 1 the session's log is damaged; 2 wrong usage, or no answer.

With --json one object:
  session, dir    id and directory of the session
  recorded        whether the answer came from the log, and no program ran
  text, stop      the answer, and the reason why it ended
  requests, tool_calls, input_tokens, output_tokens, cache_read_tokens
  usage_partial   whether more tokens were used: a run of the program ended without reporting them,
                  for example because it was killed
  cost_usd        cost of the session's runs, as far as the program reported it; otherwise null
  cost_partial    whether the cost is higher: a run ended without an answer or did not report it
If there is no answer, one object:
  session, dir    null if no session was created or opened
  error, next     what happened, and the next step or null
  phase           part of the run that failed: request, response, tool, budget, deadline or
                  prompt_render; otherwise null
  exit_code";

/// Run Claude Code, each tool call as a transaction.
///
/// Every message and call is recorded before anything follows from it. A run that was cut
/// short is resumed by the same command with --resume.
#[derive(Debug, clap::Args)]
#[command(after_help = RUN_JSON)]
pub struct Args {
    /// Program of the agent
    #[arg(long, value_enum)]
    pub adapter: Adapter,
    /// File with the user's message, in UTF-8; `-` is standard input
    ///
    /// It is optional with --resume. A message that the session already contains is not sent again;
    /// a new message continues the conversation.
    #[arg(long, value_name = "FILE", required_unless_present = "resume")]
    pub prompt: Option<PathBuf>,
    /// Directory in which the agent works
    ///
    /// A call that is killed, stopped or denied, or whose tool fails, leaves no changes in it.
    #[arg(long, value_name = "DIR")]
    pub workspace: PathBuf,
    /// Directory of the store, outside of the workspace, created if it does not exist
    #[arg(long, value_name = "STORE")]
    pub store: PathBuf,
    /// Continue the session with this id, or the latest incomplete one
    ///
    /// Without an id, sessions that another process has open are skipped. If all sessions are
    /// complete, the latest one answers from its log, unless --prompt contains a new message.
    #[arg(long, value_name = "SESSION", num_args = 0..=1, conflicts_with = "session", value_parser = id)]
    pub resume: Option<Option<Uuid>>,
    /// Id of the new session, a UUID [default: a random one]
    #[arg(long, value_name = "ID", value_parser = new_id)]
    pub session: Option<Uuid>,
    /// System prompt; a resumed session keeps its own
    #[arg(long, value_name = "TEXT", conflicts_with = "system_file", allow_hyphen_values = true)]
    pub system: Option<String>,
    /// File with the system prompt, in UTF-8
    #[arg(long, value_name = "FILE")]
    pub system_file: Option<PathBuf>,
    /// Tools of the program that may run, separated by commas, or `none`
    ///
    /// No other tool runs, in any permission mode. `Bash` allows all commands; their effects outside
    /// of the workspace are not rolled back. A tool that the installed program does not offer is
    /// refused. With --project-servers, tools of servers can be named too: mcp__SERVER__TOOL.
    #[arg(
        long = "tool",
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "Read,Glob,Grep,Edit,Write"
    )]
    pub tools: Vec<String>,
    /// Model, such as sonnet, opus or haiku [default: the program's own default]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Permission mode: default, acceptEdits, plan, bypassPermissions, dontAsk or auto
    ///
    /// It determines what the program asks before it runs a tool. A run has no user who could answer:
    /// dontAsk refuses what is not allowed.
    #[arg(long, value_name = "MODE", default_value = "dontAsk", value_parser = permission_mode)]
    pub permission_mode: PermissionMode,
    /// Maximum number of the model's answers in this run, at least 1 [default: no limit]
    #[arg(long, value_name = "N", value_parser = answers, allow_hyphen_values = true)]
    pub max_turns: Option<u32>,
    /// Maximum cost of this run, in US dollars [default: no limit]
    #[arg(long, value_name = "USD", value_parser = dollars, allow_hyphen_values = true)]
    pub max_budget_usd: Option<f64>,
    /// Time limit of this run, such as 90s, 10m or 2h [default: no limit]
    ///
    /// The run is interrupted 2 seconds before the limit, or after three quarters of a limit below 8
    /// seconds, so that the program can still report its cost.
    #[arg(long, value_name = "TIME", value_parser = duration, allow_hyphen_values = true)]
    pub deadline: Option<Duration>,
    /// Program to run: a name in PATH, a path, or a .js script for `node`
    #[arg(long, value_name = "PATH", default_value = "claude")]
    pub program: PathBuf,
    /// Let the program read the workspace's CLAUDE.md and .claude/settings files
    ///
    /// These are .claude/settings.json and .claude/settings.local.json. Hooks in them run outside of
    /// any transaction. They cannot allow a tool that --tool does not name.
    #[arg(long)]
    pub project_settings: bool,
    /// Let the program start the servers in .mcp.json; implies --project-settings
    #[arg(long)]
    pub project_servers: bool,
    /// Variable for the program, with the value given here or in this process; may be repeated
    ///
    /// A value is neither recorded nor printed.
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub env: Vec<String>,
    /// Roll back commands that exit with a code other than 0
    ///
    /// Without this option they keep their changes, and the ledger shows their exit codes. Calls that
    /// were stopped, denied or timed out are always rolled back.
    #[arg(long)]
    pub roll_back_failed: bool,
    /// Continue even if files of a failed call can neither be captured nor moved aside
    ///
    /// These files are then lost in the rollback. The cause can be a full disk, for example. Without
    /// this option the run ends, and nothing is changed.
    #[arg(long)]
    pub without_capture: bool,
    /// Pattern of paths to leave out of captures, as in .gitignore; may be repeated
    ///
    /// Rollbacks do not change these paths.
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    pub leave_out: Vec<String>,
    /// Leave paths out of captures that the workspace's .gitignore files name
    #[arg(long)]
    pub gitignore: bool,
    /// Action if the rollback of a failed call could not undo everything
    ///
    /// For example, a commit of the call is kept under refs/foldlog/lost.
    #[arg(long, value_parser = on_leftover(), value_name = "WHAT", default_value = "continue")]
    pub on_leftover: OnLeftover,
    /// Whether a replicated session continues.
    #[command(flatten)]
    pub writing: WriteArgs,
}

/// Parses the id of a session to resume.
fn id(text: &str) -> Result<Uuid, String> {
    let next = "give the id of a session, a UUID, as `foldlog sessions STORE` lists it, or --resume alone";
    Uuid::try_parse(text).map_err(|_| next.to_owned())
}

/// Parses the id of a new session.
fn new_id(text: &str) -> Result<Uuid, String> {
    let next = "give a UUID, such as 426a8a5e-a355-4151-82b0-2911e6b56a51, or leave it out for a random one";
    Uuid::try_parse(text).map_err(|_| next.to_owned())
}

fn permission_mode(name: &str) -> Result<PermissionMode, String> {
    name.parse().map_err(|error: foldlog_claude::ClientError| error.reason().to_owned())
}

fn answers(text: &str) -> Result<u32, String> {
    let most: Option<u32> = text.parse().ok().filter(|most| *most > 0);
    most.ok_or_else(|| "give a whole number of 1 or more".to_owned())
}

fn dollars(text: &str) -> Result<f64, String> {
    let amount: Option<f64> = text.parse().ok().filter(|usd: &f64| usd.is_finite() && *usd > 0.0);
    amount.ok_or_else(|| "give an amount above 0, such as 0.50".to_owned())
}

/// Parses a duration: a number of seconds, or a number followed by `s`, `m` or `h`.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "" | "s" => Some(1),
        "m" => Some(60),
        "h" => Some(3600),
        _ => None,
    };
    let Some(seconds) = seconds.filter(|_| digits > 0) else {
        return Err("give a whole number of seconds, or as 90s, 10m or 2h".to_owned());
    };
    let number: Option<u64> = number.parse().ok();
    match number.and_then(|number| number.checked_mul(seconds)) {
        Some(0) => Err("give a time above 0".to_owned()),
        Some(seconds) => Ok(Duration::from_secs(seconds)),
        None => Err("the time is too long; leave out --deadline for no limit".to_owned()),
    }
}

pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the real path of a directory that may not exist yet.
fn real(path: &Path) -> PathBuf {
    let absolute = absolute(path);
    let mut there = absolute.ancestors();
    let found = there.find_map(|above| Some((above, above.canonicalize().ok()?)));
    found.map_or(absolute.clone(), |(above, real)| match absolute.strip_prefix(above) {
        Ok(rest) if !rest.as_os_str().is_empty() => real.join(rest),
        _ => real,
    })
}

/// Reads a text from a file. `-` is standard input.
fn text_of(path: &Path, option: &str) -> Result<String> {
    let is_stdin = path == Path::new("-");
    let mut bytes = Vec::new();
    let read = match is_stdin {
        true => std::io::stdin().read_to_end(&mut bytes).map(drop),
        false => std::fs::read(path).map(|read| bytes = read),
    };
    let name = if is_stdin { "standard input".to_owned() } else { escape::path(path) };
    read.map_err(|error| {
        let what = format!("{option} {name} cannot be read: {}", escape::display(error));
        CommandError::usage(what, "check the path and its permissions")
    })?;
    let next = format!("give a file with text in UTF-8: {option} FILE");
    let text = String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        let byte = error.as_bytes().get(offset).copied().unwrap_or_default();
        CommandError::usage(format!("{name} is not UTF-8 text: byte {offset} is 0x{byte:02x}"), next.clone())
    })?;
    match text.trim() {
        "" => Err(CommandError::usage(format!("{name} contains no text"), next)),
        text => Ok(text.to_owned()),
    }
}

impl Args {
    /// Checks conditions that the parser of the command line does not.
    pub(super) fn check(&self) -> Result<()> {
        self.tools()?;
        if self.model.as_ref().is_some_and(|model| model.trim().is_empty()) {
            return Err(CommandError::usage("--model is empty", "name a model, or leave the option out"));
        }
        self.check_directories()?;
        self.env.iter().try_for_each(|one| check_variable(one))
    }

    fn check_directories(&self) -> Result<()> {
        let (store, workspace) = (escape::path(&self.store), escape::path(&self.workspace));
        let next = "give the directory in which the agent works: --workspace DIR";
        if !self.workspace.exists() {
            return Err(CommandError::usage(format!("the workspace {workspace} does not exist"), next));
        }
        if !self.workspace.is_dir() {
            return Err(CommandError::usage(format!("{workspace} is not a directory"), next));
        }
        if self.store.exists() && !self.store.is_dir() {
            let what = format!("{store} is not a directory");
            return Err(CommandError::usage(
                what,
                "give the directory of a store, which may be new: --store DIR",
            ));
        }
        if real(&self.store).starts_with(real(&self.workspace)) {
            let what = format!("the store {store} is within the workspace {workspace}");
            return Err(CommandError::usage(what, "give a directory outside of it: --store DIR"));
        }
        if inspect::is_within_store(&self.workspace, &self.store) {
            let what = format!("the workspace {workspace} is among the sessions of the store {store}");
            return Err(CommandError::usage(what, "give a directory outside of them: --workspace DIR"));
        }
        Ok(())
    }

    /// Returns the program's own tools that may run.
    pub(super) fn tools(&self) -> Result<Vec<String>> {
        tools::parse_tools(&self.tools, self.project_servers)
    }

    /// Returns the user's text; `None` if the command line gives none.
    pub(super) fn prompt(&self) -> Result<Option<String>> {
        self.prompt.as_deref().map(|path| text_of(path, "--prompt")).transpose()
    }

    /// Returns the system prompt of the command line, if there is one.
    pub(super) fn given_system(&self) -> Result<Option<String>> {
        let given = match &self.system_file {
            Some(path) => Some(text_of(path, "--system-file")?),
            None => self.system.clone(),
        };
        let next = "give another text, or leave the option out";
        match given.as_deref() {
            Some(text) if text.trim().is_empty() => {
                Err(CommandError::usage("--system contains no text", next))
            }
            // The text becomes an argument of the program.
            Some(text) if text.contains('\0') => Err(CommandError::usage(
                "the system prompt contains a NUL byte, which an argument cannot contain",
                next,
            )),
            _ => Ok(given),
        }
    }

    pub(super) fn deadline(&self) -> Deadline {
        self.deadline.map_or_else(Deadline::never, Deadline::after)
    }

    /// Returns how long before the deadline the run is interrupted, so that most of a short time
    /// remains for the run.
    fn interrupt_before(&self) -> Duration {
        let usual = RunOptions::default().interrupt_before;
        self.deadline.map_or(usual, |time| usual.min(time / 4))
    }

    pub(super) fn claude(&self) -> Result<ClaudeAgentSDKAdapter> {
        let Program { file, leading } = Program::from_path(&self.program);
        let options = RunOptions {
            native_tools: self.tools()?,
            on_leftover: self.on_leftover,
            max_turns: self.max_turns,
            max_budget_usd: self.max_budget_usd,
            roll_back_failed: self.roll_back_failed,
            interrupt_before: self.interrupt_before(),
            ..RunOptions::default()
        };
        let config = ClaudeAgentSDKClientConfig {
            permission_mode: self.permission_mode,
            cwd: Some(absolute(&self.workspace)),
            env: self.variables().into_iter().collect(),
            setting_sources: self.setting_sources(),
            project_servers: self.project_servers,
            ..ClaudeAgentSDKClientConfig::default()
        };
        let adapter = ClaudeAgentSDKAdapter::new()
            .with_program(file, leading)
            .with_client_config(config)
            .with_model_config(ClaudeAgentSDKModelConfig {
                model: self.model.clone(),
                ..ClaudeAgentSDKModelConfig::default()
            })
            .with_options(options)
            .with_state_options(AdapterStateOptions {
                auto_resume: true,
                // A resumed run names its session explicitly, so it continues even if its workspace
                // moved and however it ended.
                resume_validation: ResumeValidation::None,
                ..AdapterStateOptions::default()
            });
        Ok(adapter)
    }

    /// Returns the files of settings that the program reads.
    fn setting_sources(&self) -> Vec<SettingSource> {
        match self.project_settings || self.project_servers {
            true => vec![SettingSource::Project, SettingSource::Local],
            false => Vec::new(),
        }
    }

    /// Returns the variables that the program receives.
    fn variables(&self) -> Vec<(OsString, OsString)> {
        let of_host = |name: &str| Some((OsString::from(name), std::env::var_os(name)?));
        let given = self.env.iter().filter_map(|one| match one.split_once('=') {
            Some((name, value)) => Some((OsString::from(name), OsString::from(value))),
            None => of_host(one),
        });
        PASSED.into_iter().filter_map(of_host).chain(given).collect()
    }
}

fn check_variable(given: &str) -> Result<()> {
    let (name, value) = given.split_once('=').map_or((given, None), |(name, value)| (name, Some(value)));
    let shown = escape::text(name);
    let next = "give a variable that is set, or one with its value: --env NAME=VALUE";
    if name.is_empty() {
        return Err(CommandError::usage("--env names no variable", next));
    }
    if given.contains('\0') {
        return Err(CommandError::usage(
            format!("--env {shown}: a variable cannot contain a NUL byte"),
            next,
        ));
    }
    match value.is_none() && std::env::var_os(name).is_none() {
        true => Err(CommandError::usage(
            format!("the environment variable {shown} is not set"),
            "set it, or give its value: --env NAME=VALUE",
        )),
        false => Ok(()),
    }
}

//! What the command line asks of a run.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use foldlog_agent::Deadline;
use foldlog_agent::claude::{
    ClaudeAgentSDKAdapter, ClaudeAgentSDKClientConfig, ClaudeAgentSDKModelConfig, PermissionMode, RunOptions,
};
use foldlog_codec::escape;
use uuid::Uuid;

use crate::failure::{Failure, Result};

/// System prompt where none is given.
const SYSTEM: &str = "You are an agent that works in the current folder, with the tools that you are given. Do what the \
                      user asks for, and say at the end what you did.";

/// Variables of this process that the program is given beside those that any program needs, such as `PATH`.
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
    /// Claude Code, which its user installs: `npm install -g @anthropic-ai/claude-code`.
    Claude,
}

/// Holds what the command line asks of a run.
#[derive(Debug, Args)]
pub struct Asked {
    /// The agent's program.
    #[arg(long, value_enum)]
    pub adapter: Adapter,
    /// The file with what the user says; `-` is standard input. With --resume it may be left out; a text that the session
    /// holds already is not said again, and another one goes on with the conversation.
    #[arg(long, value_name = "FILE", required_unless_present = "resume")]
    pub prompt: Option<PathBuf>,
    /// The folder that the agent works in. A call of a tool that fails leaves no trace in it.
    #[arg(long, value_name = "DIR")]
    pub workspace: PathBuf,
    /// The store of the session; it is created if it does not exist. It must not be within the workspace.
    #[arg(long, value_name = "STORE")]
    pub store: PathBuf,
    /// Go on with a session, by its id: by default the latest one of the store that is not complete, or else the latest.
    #[arg(long, value_name = "SESSION", num_args = 0..=1, conflicts_with = "session")]
    pub resume: Option<Option<Uuid>>,
    /// The id of the new session, a UUID [default: a random one].
    #[arg(long, value_name = "ID")]
    pub session: Option<Uuid>,
    /// The system prompt. A session that goes on keeps its own.
    #[arg(long, value_name = "TEXT", conflicts_with = "system_file")]
    pub system: Option<String>,
    /// The file with the system prompt.
    #[arg(long, value_name = "FILE")]
    pub system_file: Option<PathBuf>,
    /// The program's own tools that may run; no other one does, in any permission mode. Name `Bash` for any command: what a
    /// command does outside of the workspace is not rolled back.
    #[arg(
        long = "tool",
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "Read,Glob,Grep,Edit,Write"
    )]
    pub tools: Vec<String>,
    /// The model [default: claude-sonnet-4-20250514].
    #[arg(long)]
    pub model: Option<String>,
    /// What the program asks before it runs a tool: default, acceptEdits, plan, bypassPermissions, dontAsk, auto. Nobody is
    /// there to answer, so that dontAsk refuses what is not allowed.
    #[arg(long, value_name = "MODE", default_value = "dontAsk", value_parser = permission_mode)]
    pub permission_mode: PermissionMode,
    /// The greatest number of the model's answers in this run.
    #[arg(long, value_name = "N")]
    pub max_turns: Option<u32>,
    /// The greatest cost of this run, in US dollars.
    #[arg(long, value_name = "USD", value_parser = dollars)]
    pub max_budget_usd: Option<f64>,
    /// The time after which the run is interrupted: seconds, or as 90s, 10m or 2h.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub deadline: Option<Duration>,
    /// The program: a name, a path, or a script for `node` whose name ends in .js.
    #[arg(long, value_name = "PATH", default_value = "claude")]
    pub program: PathBuf,
    /// A variable that the program is given: that of this process, or the value that is given here.
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub env: Vec<String>,
    /// A pattern of paths that are not captured, as a line of a .gitignore. A rollback leaves them as they are.
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    pub leave_out: Vec<String>,
    /// Leave out what the workspace's .gitignore files leave out.
    #[arg(long)]
    pub gitignore: bool,
}

fn permission_mode(name: &str) -> Result<PermissionMode, String> {
    name.parse().map_err(|error: foldlog_agent::claude::Error| error.reason().to_owned())
}

fn dollars(text: &str) -> Result<f64, String> {
    let amount: Option<f64> = text.parse().ok().filter(|usd: &f64| usd.is_finite() && *usd > 0.0);
    amount.ok_or_else(|| "give an amount above 0, such as 0.50".to_owned())
}

/// Reads a time: a number of seconds, or a number with `s`, `m` or `h` behind it.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err("give a number of seconds, or as 90s, 10m or 2h".to_owned()),
    };
    let number: u64 = number.parse().map_err(|error| format!("{error}"))?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(|| "the time is too long".to_owned())
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the real path of a folder that may not be there yet.
fn real(path: &Path) -> PathBuf {
    let absolute = absolute(path);
    let mut there = absolute.ancestors();
    let found = there.find_map(|above| Some((above, above.canonicalize().ok()?)));
    found.map_or(absolute.clone(), |(above, real)| match absolute.strip_prefix(above) {
        Ok(rest) if !rest.as_os_str().is_empty() => real.join(rest),
        _ => real,
    })
}

/// Reads a text from a file.
fn text_of(path: &Path, option: &str) -> Result<String> {
    let mut bytes = Vec::new();
    let read = match path == Path::new("-") {
        true => std::io::stdin().read_to_end(&mut bytes).map(drop),
        false => std::fs::read(path).map(|read| bytes = read),
    };
    read.map_err(|source| Failure::File { path: path.to_owned(), source })?;
    let text =
        String::from_utf8(bytes).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    text.ok_or_else(|| {
        let what = format!("{} holds no text", escape::path(path));
        Failure::usage(what, format!("give a file with text in UTF-8: {option} FILE"))
    })
}

impl Asked {
    /// Checks what the parser of the command line does not.
    pub(super) fn check(&self) -> Result<()> {
        if !self.workspace.is_dir() {
            let what = format!("there is no folder {}", escape::path(&self.workspace));
            return Err(Failure::usage(what, "give the folder that the agent works in: --workspace DIR"));
        }
        if real(&self.store).starts_with(real(&self.workspace)) {
            let (store, workspace) = (escape::path(&self.store), escape::path(&self.workspace));
            let what = format!("the store {store} is within the workspace {workspace}");
            return Err(Failure::usage(what, "give a folder outside of it: --store DIR"));
        }
        let unset = self.env.iter().find(|one| !one.contains('=') && std::env::var_os(one).is_none());
        match unset {
            Some(name) => {
                let what = format!("the variable {} is not set", escape::text(name));
                Err(Failure::usage(what, "set it, or give its value: --env NAME=VALUE"))
            }
            None => Ok(()),
        }
    }

    /// Returns what the user says; `None` if the command line says nothing.
    pub(super) fn prompt(&self) -> Result<Option<String>> {
        self.prompt.as_deref().map(|path| text_of(path, "--prompt")).transpose()
    }

    /// Returns the system prompt of a session that holds `recorded`.
    pub(super) fn system(&self, recorded: Option<&str>) -> Result<String> {
        let given = match &self.system_file {
            Some(path) => Some(text_of(path, "--system-file")?),
            None => self.system.clone(),
        };
        match (given, recorded) {
            (Some(given), Some(recorded)) if given.trim() != recorded.trim() => {
                let what = "the session was begun with another system prompt";
                Err(Failure::usage(what, "leave out --system and --system-file, or begin a new session"))
            }
            (_, Some(recorded)) => Ok(recorded.to_owned()),
            (given, None) => Ok(given.unwrap_or_else(|| SYSTEM.to_owned())),
        }
    }

    pub(super) fn deadline(&self) -> Deadline {
        self.deadline.map_or_else(Deadline::never, Deadline::after)
    }

    /// Makes the adapter.
    pub(super) fn claude(&self) -> ClaudeAgentSDKAdapter {
        let is_script = self.program.extension().is_some_and(|extension| extension == "js");
        // The program runs in the workspace, and a path is one of this process's folder. A bare name is looked up in `PATH`.
        let is_path = is_script || self.program.components().count() > 1;
        let program = if is_path { absolute(&self.program) } else { self.program.clone() };
        let (program, leading) = match is_script {
            true => (PathBuf::from("node"), vec![program.into_os_string()]),
            false => (program, Vec::new()),
        };
        let model = ClaudeAgentSDKModelConfig::default();
        let options = RunOptions {
            native_tools: self.tools.clone(),
            max_turns: self.max_turns,
            max_budget_usd: self.max_budget_usd,
            ..RunOptions::default()
        };
        let config = ClaudeAgentSDKClientConfig {
            permission_mode: self.permission_mode,
            cwd: Some(absolute(&self.workspace)),
            env: self.variables().into_iter().collect(),
            ..ClaudeAgentSDKClientConfig::default()
        };
        ClaudeAgentSDKAdapter::new()
            .with_program(program, leading)
            .with_client_config(config)
            .with_model_config(ClaudeAgentSDKModelConfig {
                model: self.model.clone().unwrap_or(model.model.clone()),
                ..model
            })
            .with_options(options)
    }

    /// Returns the variables that the program is given.
    fn variables(&self) -> Vec<(OsString, OsString)> {
        let of_host = |name: &str| Some((OsString::from(name), std::env::var_os(name)?));
        let given = self.env.iter().filter_map(|one| match one.split_once('=') {
            Some((name, value)) => Some((OsString::from(name), OsString::from(value))),
            None => of_host(one),
        });
        PASSED.into_iter().filter_map(of_host).chain(given).collect()
    }

    /// Returns the command that goes on with a session, for a shell. Values of variables are left out of it.
    pub(super) fn again(&self, session: Uuid) -> String {
        let mut words: Vec<OsString> = ["foldlog", "run", "--adapter", "claude"].map(Into::into).into();
        let mut option = |name: &str, value: &OsStr| words.extend([name.into(), value.to_owned()]);
        option("--workspace", self.workspace.as_os_str());
        option("--store", self.store.as_os_str());
        option("--tool", OsStr::new(&self.tools.join(",")));
        option("--permission-mode", OsStr::new(self.permission_mode.name()));
        self.model.iter().for_each(|model| option("--model", OsStr::new(model)));
        option("--program", self.program.as_os_str());
        for one in &self.env {
            let name = one.split_once('=').map_or(one.as_str(), |(name, _)| name);
            option("--env", OsStr::new(name));
        }
        self.leave_out.iter().for_each(|pattern| option("--leave-out", OsStr::new(pattern)));
        if self.gitignore {
            words.push("--gitignore".into());
        }
        words.extend(["--resume".into(), session.to_string().into()]);
        words.iter().map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
    }
}

/// Quotes a word for a shell, if it needs that.
fn quoted(word: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "_-./,:=+@%".contains(character);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

//! Options of a client: what the program is started with, and how long is waited for it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Map, Value};

use super::error::{ClientError, ErrorKind, Stage};

/// Names of the variables of the host that the program is given by default. None of them holds a key: a host names the
/// variables of its credentials itself.
pub const PASSED_VARIABLES: [&str; 21] = [
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "NODE_EXTRA_CA_CERTS",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "LD_LIBRARY_PATH",
    "NIX_LD",
    "NIX_LD_LIBRARY_PATH",
];

/// Says what the program asks before it runs a tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PermissionMode {
    /// Asks, unless the tool is allowed.
    #[default]
    Default,
    /// As the default, but edits of files are allowed.
    AcceptEdits,
    /// Plans, and changes nothing.
    Plan,
    /// Asks nothing. As root, only in a sandbox.
    BypassPermissions,
    /// Refuses what is not allowed, and asks nothing.
    DontAsk,
    /// The program decides.
    Auto,
}

impl PermissionMode {
    /// Returns the mode's name on the wire, such as `acceptEdits`.
    pub fn name(self) -> &'static str {
        match self {
            PermissionMode::Default => "default",
            PermissionMode::AcceptEdits => "acceptEdits",
            PermissionMode::Plan => "plan",
            PermissionMode::BypassPermissions => "bypassPermissions",
            PermissionMode::DontAsk => "dontAsk",
            PermissionMode::Auto => "auto",
        }
    }
}

impl fmt::Display for PermissionMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PermissionMode {
    type Err = ClientError;

    /// Reads a mode's name on the wire.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Options`] if no mode has the name.
    fn from_str(name: &str) -> Result<PermissionMode, ClientError> {
        use PermissionMode::{AcceptEdits, Auto, BypassPermissions, Default, DontAsk, Plan};
        let modes = [Default, AcceptEdits, Plan, BypassPermissions, DontAsk, Auto];
        let found = modes.into_iter().find(|mode| mode.name() == name);
        found.ok_or_else(|| no_such("permission mode", name, &modes.map(PermissionMode::name)))
    }
}

/// Names a file of settings that the program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SettingSource {
    /// That of the user, below `HOME` or `CLAUDE_CONFIG_DIR`.
    User,
    /// That of the project, below the working directory, and its `CLAUDE.md`.
    Project,
    /// That of this machine alone, below the working directory.
    Local,
}

impl SettingSource {
    /// Returns the source's name on the wire: `user`, `project` or `local`.
    pub fn name(self) -> &'static str {
        match self {
            SettingSource::User => "user",
            SettingSource::Project => "project",
            SettingSource::Local => "local",
        }
    }
}

impl FromStr for SettingSource {
    type Err = ClientError;

    /// Reads a source's name on the wire.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Options`] if no source has the name.
    fn from_str(name: &str) -> Result<SettingSource, ClientError> {
        let sources = [SettingSource::User, SettingSource::Project, SettingSource::Local];
        let found = sources.into_iter().find(|source| source.name() == name);
        found.ok_or_else(|| no_such("setting source", name, &sources.map(SettingSource::name)))
    }
}

/// Returns the error for a name that is none of `names`.
fn no_such(what: &str, name: &str, names: &[&str]) -> ClientError {
    let reason = format!("there is no {what} `{name}`: use one of {}", names.join(", "));
    ClientError::new(ErrorKind::Options, Stage::Spawn, reason)
}

/// Says which system prompt the program sends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SystemPrompt {
    /// None at all.
    #[default]
    Empty,
    /// This text. One that is too long for an argument is handed over in a file, which the client makes and removes.
    Text(String),
    /// The text of a file.
    File(PathBuf),
    /// The program's own, and this text after it. Too long a text is handed over in a file.
    Append(String),
    /// The program's own, and the text of a file after it.
    AppendFile(PathBuf),
    /// The program's own.
    Own,
}

/// Asks the program to call back at an event of some tools.
#[derive(Clone, Debug, PartialEq)]
pub struct HookMatcher {
    /// Name of the event, such as `PreToolUse`, `PostToolUse` or `Stop`. After a call that fails comes
    /// `PostToolUseFailure`, and no `PostToolUse`; after one that is refused or interrupted, neither.
    pub event: String,
    /// Pattern of the tools' names, such as `Read|Write`; `None` for all of them.
    pub matcher: Option<String>,
    /// Ids that the callback is called with, one call for each.
    pub callback_ids: Vec<String>,
    /// How long the program waits for the callback, in whole seconds; `None` leaves it to the program (60 s).
    pub timeout: Option<Duration>,
}

impl HookMatcher {
    /// Asks for one callback at an event of all tools. The program waits an hour for it, since a callback may run a
    /// transaction.
    pub fn new(event: impl Into<String>, callback_id: impl Into<String>) -> HookMatcher {
        let callback_ids = vec![callback_id.into()];
        HookMatcher {
            event: event.into(),
            matcher: None,
            callback_ids,
            timeout: Some(Duration::from_secs(3600)),
        }
    }
}

/// Holds environment variables. Their values may be secret: `Debug` shows the names alone.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EnvironmentVariables(BTreeMap<OsString, OsString>);

impl EnvironmentVariables {
    /// Sets a variable, in place of an earlier value.
    pub fn set(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) {
        self.0.insert(name.into(), value.into());
    }

    /// Returns the value of a variable.
    pub fn get(&self, name: impl AsRef<OsStr>) -> Option<&OsStr> {
        self.0.get(name.as_ref()).map(OsString::as_os_str)
    }

    /// Returns the variables, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }
}

impl<N: Into<OsString>, V: Into<OsString>> FromIterator<(N, V)> for EnvironmentVariables {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> EnvironmentVariables {
        EnvironmentVariables(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl fmt::Debug for EnvironmentVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Sets what the program is started with, what it is told in `initialize`, and how long the client waits for it.
///
/// ```
/// use foldlog_claude::{ClientOptions, SystemPrompt};
///
/// let options = ClientOptions {
///     model: Some("claude-sonnet-4-20250514".into()),
///     system_prompt: SystemPrompt::Text("You review code.".into()),
///     ..ClientOptions::new("claude", "/tmp")
/// };
/// assert!(options.arguments().unwrap().contains(&"--model=claude-sonnet-4-20250514".into()));
/// ```
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The program: a path, or a name that is looked up in the host's `PATH`.
    pub program: PathBuf,
    /// Arguments before all others, such as the script that an interpreter is to run.
    pub leading_arguments: Vec<OsString>,
    /// Working directory of the program. It must exist.
    pub cwd: PathBuf,
    /// Model; `None` leaves it to the program.
    pub model: Option<String>,
    /// Model that is asked while the other one is overloaded.
    pub fallback_model: Option<String>,
    /// System prompt.
    pub system_prompt: SystemPrompt,
    /// The program's own tools that the model may see; `None` is all of them, an empty list none.
    pub tools: Option<Vec<String>>,
    /// Tools that need no permission, such as `mcp__wink__search` or `Bash(git log:*)`.
    pub allowed_tools: Vec<String>,
    /// Tools that are refused.
    pub disallowed_tools: Vec<String>,
    /// What the program asks before it runs a tool; `None` leaves it to the settings.
    pub permission_mode: Option<PermissionMode>,
    /// Greatest number of the model's answers for a prompt.
    pub max_turns: Option<u32>,
    /// Greatest cost of a prompt, in US dollars.
    pub max_budget_usd: Option<f64>,
    /// Id of the session, a UUID that the host chooses. With `resume`, only together with `fork_session`.
    pub session_id: Option<String>,
    /// Id of a session that is resumed.
    pub resume: Option<String>,
    /// Whether the resumed session goes on under an id of its own, and the old one stays as it is.
    pub fork_session: bool,
    /// UUID of the message after which the resumed session goes on.
    pub resume_session_at: Option<String>,
    /// Whether the program sends [what it adds to the session's file](super::ClaudeMessageBody::TranscriptMirror).
    pub session_mirror: bool,
    /// Settings, as the program's settings files hold them.
    pub settings: Option<Map<String, Value>>,
    /// Directories beside the working directory that tools may use.
    pub add_dirs: Vec<PathBuf>,
    /// Files of settings that the program reads; by default none.
    pub setting_sources: Vec<SettingSource>,
    /// Whether the program reaches the bridged servers alone: `true` by default. Otherwise it also starts those of the project's
    /// `.mcp.json`, if [`SettingSource::Project`] is read.
    pub strict_mcp_config: bool,
    /// JSON schema of the output that the model has to give.
    pub json_schema: Option<Value>,
    /// Whether the program sends the pieces of an answer while it streams.
    pub include_partial_messages: bool,
    /// Names of the servers whose tools [`Callbacks::tools`](super::Callbacks::tools) names.
    pub bridged_servers: Vec<String>,
    /// Events at which the program calls [`Callbacks::hook`](super::Callbacks::hook).
    pub hooks: Vec<HookMatcher>,
    /// Whether the program asks [`Callbacks::can_use_tool`](super::Callbacks::can_use_tool) for permissions.
    pub can_use_tool: bool,
    /// Sub-agents by name, as `initialize` takes them.
    pub agents: Option<Map<String, Value>>,
    /// Skills, as `initialize` takes them; `None` leaves them to the program.
    pub skills: Option<Vec<Value>>,
    /// Whether a resumed session keeps the system prompt that it recorded; `Some(false)` sends the given one. `None`
    /// leaves it to the program, which keeps it from 2.1.330 on.
    pub system_prompt_snapshot: Option<bool>,
    /// Names of the host's variables that the program is given; all others are not. [`PASSED_VARIABLES`] by default.
    pub pass_variables: Vec<OsString>,
    /// Variables that the program is given beside those, and in place of those that the client sets.
    pub variables: EnvironmentVariables,
    /// `HOME` of the program; `None` passes the host's on.
    pub home: Option<PathBuf>,
    /// `TMPDIR` of the program, which also takes the file of a long system prompt.
    pub tmpdir: Option<PathBuf>,
    /// `CLAUDE_CONFIG_DIR` of the program, below which it keeps its sessions.
    pub config_dir: Option<PathBuf>,
    /// Greatest length of a line of the program, in bytes: 64 MiB by default.
    pub line_limit: usize,
    /// Greatest size of all messages that nobody has taken yet, in bytes, before the client stops reading: 256 MiB by
    /// default.
    pub unread_limit: usize,
    /// Time in which the program has to answer `initialize`: 60 s by default.
    pub initialize_timeout: Duration,
    /// Time in which the program has to answer any other request of the host: 30 s by default.
    pub control_timeout: Duration,
    /// Time that the program has to end after its input was closed, and again after SIGTERM: 5 s by default.
    pub stop_grace: Duration,
    /// Number of bytes that are kept of the end of what the program writes to its standard error: 64 KiB by default.
    pub stderr_limit: usize,
    /// Greatest number of callbacks that run at the same time: 64 by default. Others wait.
    pub callback_threads: usize,
    /// Whether a callback waits until the host has asked for the message after all those that came before the
    /// callback: `true` by default. So the host has dealt with an answer before a tool of it runs.
    pub callbacks_in_order: bool,
}

impl ClientOptions {
    /// Makes options with nothing chosen: no system prompt, no settings, no tools of the host.
    pub fn new(program: impl Into<PathBuf>, cwd: impl Into<PathBuf>) -> ClientOptions {
        ClientOptions {
            program: program.into(),
            leading_arguments: Vec::new(),
            cwd: cwd.into(),
            model: None,
            fallback_model: None,
            system_prompt: SystemPrompt::Empty,
            tools: None,
            allowed_tools: Vec::new(),
            disallowed_tools: Vec::new(),
            permission_mode: None,
            max_turns: None,
            max_budget_usd: None,
            session_id: None,
            resume: None,
            fork_session: false,
            resume_session_at: None,
            session_mirror: false,
            settings: None,
            add_dirs: Vec::new(),
            setting_sources: Vec::new(),
            strict_mcp_config: true,
            json_schema: None,
            include_partial_messages: false,
            bridged_servers: Vec::new(),
            hooks: Vec::new(),
            can_use_tool: false,
            agents: None,
            skills: None,
            system_prompt_snapshot: None,
            pass_variables: PASSED_VARIABLES.iter().map(OsString::from).collect(),
            variables: EnvironmentVariables::default(),
            home: None,
            tmpdir: None,
            config_dir: None,
            line_limit: 64 << 20,
            unread_limit: 256 << 20,
            initialize_timeout: Duration::from_secs(60),
            control_timeout: Duration::from_secs(30),
            stop_grace: Duration::from_secs(5),
            stderr_limit: 64 << 10,
            callback_threads: 64,
            callbacks_in_order: true,
        }
    }

    /// Returns the request `initialize` that the client begins with.
    pub fn initialize_request(&self) -> Value {
        let mut hooks = Map::new();
        for hook in &self.hooks {
            let mut entry = Map::new();
            entry.insert("matcher".into(), hook.matcher.clone().into());
            entry.insert("hookCallbackIds".into(), hook.callback_ids.clone().into());
            if let Some(timeout) = hook.timeout {
                entry.insert("timeout".into(), timeout.as_secs().max(1).into());
            }
            let entries = hooks.entry(hook.event.clone()).or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(entries) = entries {
                entries.push(Value::Object(entry));
            }
        }
        let mut request = Map::new();
        request.insert("subtype".into(), "initialize".into());
        let hooks = if hooks.is_empty() { Value::Null } else { Value::Object(hooks) };
        request.insert("hooks".into(), hooks);
        if let Some(agents) = &self.agents {
            request.insert("agents".into(), Value::Object(agents.clone()));
        }
        if let Some(skills) = &self.skills {
            request.insert("skills".into(), skills.clone().into());
        }
        if let Some(keeps) = self.system_prompt_snapshot {
            request.insert("systemPromptSnapshot".into(), keeps.into());
        }
        Value::Object(request)
    }
}

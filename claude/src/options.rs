//! Options of a client: the start of the program, and timeouts.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Map, Value, json};

use foldlog_agent::named;

use super::callbacks::given;
use super::error::{ClientError, ErrorKind, Stage};

/// Names of the host's variables that the program gets by default. None of them contains a key: a
/// host names the variables of its credentials itself.
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

named! {
    /// Selects when the program requests a permission before it runs a tool.
    #[derive(Default)]
    #[non_exhaustive]
    PermissionMode {
        /// Requests a permission, unless the tool is allowed.
        #[default]
        Default = "default",
        /// As the default, but allows edits of files.
        AcceptEdits = "acceptEdits",
        /// Only plans, and changes nothing.
        Plan = "plan",
        /// Requests no permission. As root, only in a sandbox.
        BypassPermissions = "bypassPermissions",
        /// Refuses every tool that is not allowed, without a request.
        DontAsk = "dontAsk",
        /// The program decides.
        Auto = "auto",
    }
}

impl FromStr for PermissionMode {
    type Err = ClientError;

    /// Parses a mode's name on the wire.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Options`] if no mode has the name.
    fn from_str(name: &str) -> Result<PermissionMode, ClientError> {
        use PermissionMode::{AcceptEdits, Auto, BypassPermissions, Default, DontAsk, Plan};
        let modes = [Default, AcceptEdits, Plan, BypassPermissions, DontAsk, Auto];
        let found = modes.into_iter().find(|mode| mode.name() == name);
        found.ok_or_else(|| {
            let names = modes.map(PermissionMode::name).join(", ");
            let reason = format!("unknown permission mode `{name}`: use one of {names}");
            ClientError::new(ErrorKind::Options, Stage::Spawn, reason)
        })
    }
}

named! {
    /// Identifies a settings file that the program reads.
    SettingSource {
        /// The user's, below `HOME` or `CLAUDE_CONFIG_DIR`.
        User = "user",
        /// The project's, below the working directory, and its `CLAUDE.md`.
        Project = "project",
        /// That of this machine only, below the working directory.
        Local = "local",
    }
}

/// Selects the system prompt of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SystemPrompt {
    /// No system prompt.
    #[default]
    Empty,
    /// This text. If it is too long for an argument, the client passes it in a file, which it
    /// creates and removes.
    Text(String),
    /// The text of a file.
    File(PathBuf),
    /// The program's own, followed by this text. If it is too long, it is passed in a file.
    Append(String),
    /// The program's own, followed by the text of a file.
    AppendFile(PathBuf),
    /// The program's own.
    Own,
}

/// Requests callbacks of the program at an event of some tools.
#[derive(Clone, Debug, PartialEq)]
pub struct HookMatcher {
    /// Name of the event, such as `PreToolUse`, `PostToolUse` or `Stop`. A failed call is followed
    /// by `PostToolUseFailure` instead of `PostToolUse`; a refused or interrupted call by neither.
    pub event: String,
    /// Pattern of the tools' names, such as `Read|Write`; `None` for all of them.
    pub matcher: Option<String>,
    /// Ids of the callbacks. Each event leads to one call with each id.
    pub callback_ids: Vec<String>,
    /// Timeout of the callback, in whole seconds; `None` leaves it to the program (60 s).
    pub timeout: Option<Duration>,
}

impl HookMatcher {
    /// Creates a matcher for one callback at an event of all tools. Its timeout is an hour, because
    /// a callback may run a transaction.
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

/// Contains environment variables. Their values may be secret: `Debug` shows only the names.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EnvironmentVariables(BTreeMap<OsString, OsString>);

impl EnvironmentVariables {
    /// Sets a variable, and replaces an earlier value.
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

/// Configures the start of the program, the contents of `initialize`, and the timeouts of the
/// client.
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
    /// The program: a path, or a name to look up in the host's `PATH`.
    pub program: PathBuf,
    /// Arguments before all others, such as the script for an interpreter.
    pub leading_arguments: Vec<OsString>,
    /// Working directory of the program. It must exist.
    pub cwd: PathBuf,
    /// Model; `None` leaves it to the program.
    pub model: Option<String>,
    /// Model to use while the other one is overloaded.
    pub fallback_model: Option<String>,
    /// System prompt.
    pub system_prompt: SystemPrompt,
    /// The program's own tools that the model may see; `None` for all of them, an empty list for
    /// none.
    pub tools: Option<Vec<String>>,
    /// Tools that need no permission, such as `mcp__wink__search` or `Bash(git log:*)`.
    pub allowed_tools: Vec<String>,
    /// Tools that are refused.
    pub disallowed_tools: Vec<String>,
    /// Permission mode of tools; `None` leaves it to the settings.
    pub permission_mode: Option<PermissionMode>,
    /// Greatest number of answers of the model per prompt.
    pub max_turns: Option<u32>,
    /// Greatest cost per prompt, in US dollars.
    pub max_budget_usd: Option<f64>,
    /// Id of the session, a UUID chosen by the host. With `resume`, only together with
    /// `fork_session`.
    pub session_id: Option<String>,
    /// Id of the session to resume.
    pub resume: Option<String>,
    /// Whether the resumed session continues under its own new id, and the old one is unchanged.
    pub fork_session: bool,
    /// UUID of the message after which the resumed session continues.
    pub resume_session_at: Option<String>,
    /// Whether the program sends [the lines that it adds to the session's
    /// file](super::ClaudeMessageBody::TranscriptMirror).
    pub session_mirror: bool,
    /// Settings, in the form of the program's settings files.
    pub settings: Option<Map<String, Value>>,
    /// Additional directories that tools may use.
    pub add_dirs: Vec<PathBuf>,
    /// Settings files that the program reads; none by default.
    pub setting_sources: Vec<SettingSource>,
    /// Whether the program contacts only the bridged servers: `true` by default. Otherwise it also
    /// starts those of the project's `.mcp.json`, if [`SettingSource::Project`] is read.
    pub strict_mcp_config: bool,
    /// JSON schema of the expected output.
    pub json_schema: Option<Value>,
    /// Whether the program sends the pieces of a streamed answer.
    pub include_partial_messages: bool,
    /// Names of the servers that provide the tools of
    /// [`Callbacks::tools`](super::Callbacks::tools).
    pub bridged_servers: Vec<String>,
    /// Events at which the program calls [`Callbacks::hook`](super::Callbacks::hook).
    pub hooks: Vec<HookMatcher>,
    /// Whether the program calls [`Callbacks::can_use_tool`](super::Callbacks::can_use_tool) for
    /// permissions.
    pub can_use_tool: bool,
    /// Sub-agents by name, in the form of `initialize`.
    pub agents: Option<Map<String, Value>>,
    /// Skills, in the form of `initialize`; `None` leaves them to the program.
    pub skills: Option<Vec<Value>>,
    /// Whether a resumed session keeps its recorded system prompt; `Some(false)` sends the given
    /// one. `None` leaves it to the program, which keeps it from version 2.1.330 on.
    pub system_prompt_snapshot: Option<bool>,
    /// Names of the only host variables that the program gets. [`PASSED_VARIABLES`] by default.
    pub pass_variables: Vec<OsString>,
    /// Additional variables of the program. They override those that the client sets.
    pub variables: EnvironmentVariables,
    /// `HOME` of the program; `None` passes the host's.
    pub home: Option<PathBuf>,
    /// `TMPDIR` of the program, and the directory for the file of a long system prompt.
    pub tmpdir: Option<PathBuf>,
    /// `CLAUDE_CONFIG_DIR` of the program, below which it stores its sessions.
    pub config_dir: Option<PathBuf>,
    /// Longest line of the program, in bytes: 64 MiB by default.
    pub line_limit: usize,
    /// Greatest size of all messages not taken yet, in bytes, before the client stops reading: 256
    /// MiB by default.
    pub unread_limit: usize,
    /// Timeout for the program's answer to `initialize`: 60 s by default.
    pub initialize_timeout: Duration,
    /// Timeout for the program's answer to any other request: 30 s by default.
    pub control_timeout: Duration,
    /// Time for the program to end after its input was closed, and again after SIGTERM: 5 s by
    /// default.
    pub stop_grace: Duration,
    /// Number of bytes stored from the end of the program's standard error: 64 KiB by default.
    pub stderr_limit: usize,
    /// Greatest number of concurrent callbacks: 64 by default. Further ones wait.
    pub callback_threads: usize,
}

impl ClientOptions {
    /// Creates options with defaults: no system prompt, no settings, no tools of the host.
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
        }
    }

    /// Returns the request `initialize` with which the client starts.
    pub fn initialize_request(&self) -> Value {
        let mut hooks: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for hook in &self.hooks {
            let mut entry = json!({"matcher": hook.matcher, "hookCallbackIds": hook.callback_ids});
            if let Some(timeout) = hook.timeout {
                entry["timeout"] = timeout.as_secs().max(1).into();
            }
            hooks.entry(&hook.event).or_default().push(entry);
        }
        Value::Object(given([
            ("subtype", Some("initialize".into())),
            ("hooks", Some(if hooks.is_empty() { Value::Null } else { json!(hooks) })),
            ("agents", self.agents.clone().map(Value::Object)),
            ("skills", self.skills.clone().map(Value::Array)),
            ("systemPromptSnapshot", self.system_prompt_snapshot.map(Value::Bool)),
        ]))
    }
}

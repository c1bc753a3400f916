//! Builds the program's arguments and environment from the options.
//!
//! Each value follows `=` in the same argument as its flag. So a value that starts with a dash
//! cannot be taken for a flag, and a flag with many values cannot take the arguments after it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use serde_json::{Map, Value, json};

use super::error::{ClientError, ErrorKind, Stage};
use super::options::{ClientOptions, EnvironmentVariables, PermissionMode, SystemPrompt};

/// Longest argument, in bytes: Linux accepts 128 KiB including the terminating byte.
pub const ARGUMENT_MAX: usize = (128 << 10) - 1;

/// Values that the program considers true.
const TRUE: [&str; 4] = ["1", "true", "yes", "on"];

struct ArgumentList(Vec<OsString>);

impl ArgumentList {
    fn flag(&mut self, flag: &str, is_set: bool) {
        if is_set {
            self.0.push(flag.into());
        }
    }

    fn value(&mut self, flag: &str, value: impl AsRef<OsStr>) {
        let mut argument = OsString::from(flag);
        argument.push("=");
        argument.push(value);
        self.0.push(argument);
    }

    fn optional(&mut self, flag: &str, value: Option<impl AsRef<OsStr>>) {
        if let Some(value) = value {
            self.value(flag, value);
        }
    }

    /// Adds a flag with comma-separated names, if there are any.
    fn names(&mut self, flag: &str, names: &[String]) {
        if !names.is_empty() {
            self.value(flag, names.join(","));
        }
    }
}

fn options_error(reason: String) -> ClientError {
    ClientError::new(ErrorKind::Options, Stage::Spawn, reason)
}

impl ClientOptions {
    /// Returns the arguments of the program, without its name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Options`] if an argument is longer than [`ARGUMENT_MAX`] or contains a NUL, if
    /// a session id is given for a session that is resumed and not forked, or if a fork or a
    /// message to continue after is set without a session to resume. A long system prompt is
    /// refused here too; [`Client::start`](super::Client::start) writes it to a file.
    pub fn arguments(&self) -> Result<Vec<OsString>, ClientError> {
        self.check_session()?;
        let mut to = ArgumentList(self.leading_arguments.clone());
        to.value("--output-format", "stream-json");
        to.flag("--verbose", true);
        match &self.system_prompt {
            SystemPrompt::Empty => to.value("--system-prompt", ""),
            SystemPrompt::Text(text) => to.value("--system-prompt", text),
            SystemPrompt::File(path) => to.value("--system-prompt-file", path),
            SystemPrompt::Append(text) => to.value("--append-system-prompt", text),
            SystemPrompt::AppendFile(path) => to.value("--append-system-prompt-file", path),
            SystemPrompt::Own => {}
        }
        to.optional("--tools", self.tools.as_ref().map(|tools| tools.join(",")));
        to.names("--allowedTools", &self.allowed_tools);
        to.optional("--max-turns", self.max_turns.map(|most| most.to_string()));
        to.optional("--max-budget-usd", self.max_budget_usd.map(|most| most.to_string()));
        to.names("--disallowedTools", &self.disallowed_tools);
        to.optional("--model", self.model.as_ref());
        to.optional("--fallback-model", self.fallback_model.as_ref());
        to.optional("--permission-prompt-tool", self.can_use_tool.then_some("stdio"));
        to.optional("--permission-mode", self.permission_mode.map(PermissionMode::name));
        to.optional("--resume", self.resume.as_ref());
        to.optional("--session-id", self.session_id.as_ref());
        to.optional("--settings", self.settings.as_ref().map(|settings| json!(settings).to_string()));
        for directory in &self.add_dirs {
            to.value("--add-dir", directory);
        }
        to.optional("--mcp-config", self.server_configuration());
        to.flag("--include-partial-messages", self.include_partial_messages);
        to.flag("--strict-mcp-config", self.strict_mcp_config);
        to.flag("--fork-session", self.fork_session);
        to.optional("--resume-session-at", self.resume_session_at.as_ref());
        to.flag("--session-mirror", self.session_mirror);
        let sources: Vec<&str> = self.setting_sources.iter().map(|source| source.name()).collect();
        to.value("--setting-sources", sources.join(","));
        to.optional("--json-schema", self.json_schema.as_ref().map(Value::to_string));
        to.value("--input-format", "stream-json");
        to.0.iter().try_for_each(check_argument)?;
        Ok(to.0)
    }

    /// Returns the configuration of the bridged servers, or `None` if there are none.
    fn server_configuration(&self) -> Option<String> {
        if self.bridged_servers.is_empty() {
            return None;
        }
        let server = |name: &String| (name.clone(), json!({"type": "sdk", "name": name}));
        let servers: Map<String, Value> = self.bridged_servers.iter().map(server).collect();
        Some(json!({ "mcpServers": servers }).to_string())
    }

    /// Checks that the options about the session are compatible.
    fn check_session(&self) -> Result<(), ClientError> {
        if self.resume.is_some() && self.session_id.is_some() && !self.fork_session {
            return Err(options_error(
                "a resumed session keeps its id: leave out `session_id`, or fork the session".to_owned(),
            ));
        }
        if self.resume.is_none() && (self.fork_session || self.resume_session_at.is_some()) {
            return Err(options_error(
                "`fork_session` and `resume_session_at` need the id of a session: set `resume`".to_owned(),
            ));
        }
        Ok(())
    }

    /// Returns the environment of the program: the variables passed from the host, overridden by
    /// those that the client sets, and then by those in the options.
    ///
    /// `CLAUDECODE` is never passed. The client turns off telemetry, error reports and updates, and
    /// requests reports of the session's state.
    pub fn environment(&self, host: impl IntoIterator<Item = (OsString, OsString)>) -> EnvironmentVariables {
        let is_passed = |name: &OsString| {
            let is_home = name == "HOME" && self.home.is_none();
            (is_home || self.pass_variables.contains(name)) && name != "CLAUDECODE"
        };
        let mut variables: EnvironmentVariables =
            host.into_iter().filter(|(name, _)| is_passed(name)).collect();
        for name in [
            "DISABLE_TELEMETRY",
            "DISABLE_ERROR_REPORTING",
            "DISABLE_AUTOUPDATER",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
            "CLAUDE_CODE_SDK_READS_SESSION_STATE",
        ] {
            variables.set(name, "1");
        }
        variables.set("CLAUDE_CODE_ENTRYPOINT", "foldlog");
        variables.set("PWD", &self.cwd);
        let directories =
            [("HOME", &self.home), ("TMPDIR", &self.tmpdir), ("CLAUDE_CONFIG_DIR", &self.config_dir)];
        for (name, directory) in directories {
            if let Some(directory) = directory {
                variables.set(name, directory);
            }
        }
        for (name, value) in self.variables.iter() {
            variables.set(name, value);
        }
        variables
    }

    /// Checks a condition that the program would refuse at its start: running as root without
    /// permission requests, outside of a sandbox.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::RootRefused`] in that case.
    pub(super) fn check_root(
        &self,
        environment: &EnvironmentVariables,
        is_root: bool,
    ) -> Result<(), ClientError> {
        if self.permission_mode != Some(PermissionMode::BypassPermissions) || !is_root {
            return Ok(());
        }
        let is_true = |value: &OsStr| {
            value.to_str().is_some_and(|value| TRUE.contains(&value.trim().to_lowercase().as_str()))
        };
        let is_sandbox = environment.get("IS_SANDBOX") == Some(OsStr::new("1"))
            || environment.get("CLAUDE_CODE_BUBBLEWRAP").is_some_and(is_true);
        if is_sandbox {
            return Ok(());
        }
        Err(ClientError::root_refused())
    }
}

/// Checks that the system accepts an argument.
fn check_argument(argument: &OsString) -> Result<(), ClientError> {
    let bytes = argument.as_bytes();
    let name: String = argument.to_string_lossy().chars().take_while(|char| *char != '=').take(40).collect();
    if bytes.contains(&0) {
        return Err(options_error(format!(
            "the value of `{name}` contains a NUL, which an argument cannot \
             contain"
        )));
    }
    if bytes.len() > ARGUMENT_MAX {
        return Err(options_error(format!(
            "the value of `{name}` makes an argument of {} bytes, and the system allows {ARGUMENT_MAX}: pass \
             it in a file",
            bytes.len()
        )));
    }
    Ok(())
}

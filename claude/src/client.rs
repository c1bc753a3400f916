//! The client: starts the program, and is the interface for its host.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use foldlog::process::ProcessIdentity;
use serde_json::{Value, json};
use uuid::Uuid;

use super::arguments::ARGUMENT_MAX;
use super::bridge::Bridge;
use super::callbacks::{BridgedTool, Callbacks, NoCallbacks};
use super::channel::{Channel, ChannelEvent, InboxPoll, Reply};
use super::error::{ClientError, ErrorKind, Stage};
use super::message::ClaudeMessage;
use super::options::{ClientOptions, PermissionMode, SystemPrompt};
use super::process::{Process, PromptFile};
use super::result::FailureKind;
use super::server::RequestServer;
use super::version::ClaudeVersion;
use foldlog_agent::provider::CancelToken;

/// Longest wait between two checks whether the program has ended without closing its output.
const LOOK: Duration = Duration::from_millis(200);

/// Time for the end of the output to arrive after the program has ended.
const END_WITHIN: Duration = Duration::from_secs(1);

/// Longest wait without a deadline.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Contains a prompt of the host to the model.
#[derive(Clone, Debug, PartialEq)]
pub struct UserInput {
    /// A text, or a list of content blocks.
    pub content: Value,
    /// Id of the message, a UUID.
    pub uuid: Option<String>,
    /// Whether the text is literal: `true` by default. Otherwise a text that starts with `/` is a
    /// command of the program, and `@path` stands for a file's contents. Versions before 2.1.248 do
    /// not support this: for them a space is added before the `/`, and they always expand `@path`.
    pub client_composed: bool,
}

impl UserInput {
    /// Creates a prompt from the form on the wire: a text or a list of content blocks.
    pub fn new(content: impl Into<Value>) -> UserInput {
        UserInput { content: content.into(), uuid: None, client_composed: true }
    }

    /// Adds a space before a text that an older version would take for a command: a single text, or
    /// the last one of a list.
    fn for_older_version(mut self) -> UserInput {
        let text = match &mut self.content {
            Value::Array(blocks) => blocks.last_mut().and_then(|block| block.get_mut("text")),
            content => Some(content),
        };
        if let Some(Value::String(text)) = text.filter(|_| self.client_composed)
            && text.starts_with('/')
        {
            text.insert(0, ' ');
        }
        self
    }

    fn to_json(&self) -> Value {
        let message = json!({"role": "user", "content": self.content});
        let mut line =
            json!({"type": "user", "session_id": "", "message": message, "parent_tool_use_id": null});
        if let Value::Object(line) = &mut line {
            if let Some(uuid) = &self.uuid {
                line.insert("uuid".into(), uuid.clone().into());
            }
            if self.client_composed {
                line.insert("client_composed".into(), true.into());
            }
        }
        line
    }
}

impl<T: Into<Value>> From<T> for UserInput {
    fn from(content: T) -> UserInput {
        UserInput::new(content)
    }
}

/// Controls one process of the program. Several threads may use it: one that waits for messages,
/// and another one that interrupts.
///
/// Dropping the client kills the program and the rest of its process group;
/// [`close`](Client::close) lets it end by itself.
pub struct Client {
    process: Arc<Process>,
    channel: Arc<Channel>,
    serving: Arc<RequestServer>,
    initialized: Value,
    control_timeout: Duration,
    stop_grace: Duration,
    /// Whether a prompt was sent.
    is_asked: AtomicBool,
    /// Whether a result arrived since the last prompt.
    is_settled: AtomicBool,
}

impl Client {
    /// Starts the program, and waits until it has answered `initialize`. The program may already
    /// contact the bridged servers during this time.
    ///
    /// # Errors
    ///
    /// | kind | condition |
    /// |---|---|
    /// | [`Options`](ErrorKind::Options) | the options contradict each other, or a tool belongs to no bridged server or is a duplicate |
    /// | [`RootRefused`](ErrorKind::RootRefused) | permissions are bypassed as root, outside of a sandbox |
    /// | [`DirectoryNotFound`](ErrorKind::DirectoryNotFound), [`ProgramNotFound`](ErrorKind::ProgramNotFound), [`Spawn`](ErrorKind::Spawn) | the program cannot be started |
    /// | [`SessionNotFound`](ErrorKind::SessionNotFound), [`SessionInUse`](ErrorKind::SessionInUse) | the program reports this about its session, and has ended |
    /// | [`Exited`](ErrorKind::Exited) | it ended for another reason |
    /// | [`InitializeTimeout`](ErrorKind::InitializeTimeout) | it did not answer in time, and was killed |
    /// | [`Refused`](ErrorKind::Refused) | it refused `initialize`, and was killed |
    /// | [`MalformedLine`](ErrorKind::MalformedLine), [`LineTooLong`](ErrorKind::LineTooLong) | its output cannot be read, and it was killed |
    pub fn start(options: &ClientOptions, callbacks: Arc<dyn Callbacks>) -> Result<Client, ClientError> {
        Client::start_with(options, callbacks.tools(), callbacks, &CancelToken::new())
    }

    /// Starts the program for a host that takes requests in sequence, with
    /// [`next_event`](Client::next_event). The start ends early if `cancel` is set.
    ///
    /// # Errors
    ///
    /// Those of [`start`](Client::start), and [`ErrorKind::Cancelled`] once `cancel` is set; the
    /// program was killed then.
    pub(super) fn start_in_turn(
        options: &ClientOptions,
        tools: Vec<BridgedTool>,
        cancel: &CancelToken,
    ) -> Result<Client, ClientError> {
        Client::start_with(options, tools, Arc::new(NoCallbacks), cancel)
    }

    fn start_with(
        options: &ClientOptions,
        tools: Vec<BridgedTool>,
        callbacks: Arc<dyn Callbacks>,
        cancel: &CancelToken,
    ) -> Result<Client, ClientError> {
        let environment = options.environment(std::env::vars_os());
        options.check_root(&environment, rustix::process::getuid().is_root())?;
        check_tools(&options.bridged_servers, &tools)?;
        let (options, prompt) = with_prompt_in_file(options.clone())?;
        let (process, pipes) = Process::start(&options, &environment, prompt)?;
        let process = Arc::new(process);
        let bridge = Bridge::new(options.bridged_servers.clone(), tools);
        let started = Client::serve(&options, callbacks, bridge, Arc::clone(&process), pipes);
        let mut client = started.inspect_err(|_| {
            process.kill();
        })?;
        client.initialized = client.initialize(&options, cancel)?;
        Ok(client)
    }

    /// Starts the threads.
    fn serve(
        options: &ClientOptions,
        callbacks: Arc<dyn Callbacks>,
        bridge: Bridge,
        process: Arc<Process>,
        pipes: super::process::Pipes,
    ) -> Result<Client, ClientError> {
        let failed = |error: io::Error| {
            ClientError::new(ErrorKind::Spawn, Stage::Spawn, "no thread can be started").because(error)
        };
        let channel = Arc::new(Channel::new(pipes.stdin, options.unread_limit).map_err(failed)?);
        let serving =
            Arc::new(RequestServer::new(callbacks, options.callback_threads, bridge, Arc::clone(&channel)));
        let reader = (Arc::clone(&serving), Arc::clone(&process), options.line_limit);
        thread::Builder::new()
            .name("foldlog-claude-read".to_owned())
            .spawn(move || reader.0.read(pipes.stdout, reader.2, &reader.1))
            .map_err(failed)?;
        Ok(Client {
            process,
            channel,
            serving,
            initialized: Value::Null,
            control_timeout: options.control_timeout,
            stop_grace: options.stop_grace,
            is_asked: AtomicBool::new(false),
            is_settled: AtomicBool::new(false),
        })
    }

    /// Sends `initialize`, and returns the program's answer.
    fn initialize(&self, options: &ClientOptions, cancel: &CancelToken) -> Result<Value, ClientError> {
        let sent = self.channel.request(&options.initialize_request());
        let Ok((id, replied)) = sent else { return Err(self.not_started()) };
        let until = after(options.initialize_timeout);
        match self.reply(&replied, until, Some(cancel)) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(text)) => {
                let reason = format!("the program refused to start: {text}");
                Err(ClientError::new(ErrorKind::Refused, Stage::Initialize, reason))
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.not_started()),
            Err(RecvTimeoutError::Timeout) => {
                self.channel.forget(&id);
                let exit = self.process.kill();
                let waited = options.initialize_timeout.as_secs_f64();
                let (kind, reason) = match cancel.is_cancelled() {
                    true => {
                        (ErrorKind::Cancelled, "the start was cancelled, and the program killed".to_owned())
                    }
                    false => {
                        let reason = format!("the program did not answer within {waited} s, and was killed");
                        (ErrorKind::InitializeTimeout, reason)
                    }
                };
                Err(self.error(kind, Stage::Initialize, reason, exit))
            }
        }
    }

    /// Returns an error about a program that ended with this status, if it is known.
    fn error(
        &self,
        kind: ErrorKind,
        stage: Stage,
        reason: impl Into<String>,
        exit: Option<ExitStatus>,
    ) -> ClientError {
        ClientError::new(kind, stage, reason).with_exit(exit).with_stderr(self.process.stderr())
    }

    /// Waits for an answer, until `until` or `cancel`. If the program has ended while another
    /// process still has its output open, there is no answer.
    fn reply(
        &self,
        replied: &Receiver<Reply>,
        until: Instant,
        cancel: Option<&CancelToken>,
    ) -> Result<Reply, RecvTimeoutError> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let is_cancelled = cancel.is_some_and(CancelToken::is_cancelled);
            match replied.recv_timeout(left.min(LOOK)) {
                Err(RecvTimeoutError::Timeout) if left > LOOK && !is_cancelled => self.look(),
                other => return other,
            }
        }
    }

    /// Ends the output of a program that has ended, if another process still has it open.
    fn look(&self) {
        if self.process.exit().is_none() {
            return;
        }
        self.process.kill();
        self.channel.inbox.wait_over(after(END_WITHIN));
        self.channel.end(None);
    }

    /// Returns the reason why the program ended before it answered `initialize`.
    fn not_started(&self) -> ClientError {
        let exit = self.process.wait(after(self.stop_grace)).or_else(|| self.process.kill());
        self.channel.inbox.wait_over(after(END_WITHIN));
        if let Some(Some(error)) = self.channel.inbox.output_end() {
            return error.at(Stage::Initialize);
        }
        let stderr = self.process.stderr();
        let unknown = self.channel.inbox.find(|message| {
            let result = message.result()?;
            (result.failure() == Some(FailureKind::SessionNotFound)).then(|| result.failure_text())
        });
        let (kind, reason) = if let Some(text) = unknown {
            (ErrorKind::SessionNotFound, format!("the program does not know this session: {text}"))
        } else if stderr.contains("is already in use") {
            (ErrorKind::SessionInUse, "the id of the session is in use: choose another one".to_owned())
        } else if stderr.contains("cannot be used with root") {
            return ClientError::root_refused().at(Stage::Initialize).with_exit(exit).with_stderr(stderr);
        } else {
            (ErrorKind::Exited, "the program ended before it answered".to_owned())
        };
        ClientError::new(kind, Stage::Initialize, reason).with_exit(exit).with_stderr(stderr)
    }

    /// Returns whether the program supports [`UserInput::client_composed`]. A version that does not
    /// report its number is an older one.
    fn knows_composed(&self) -> bool {
        let version = self.initialized.get("claude_code_version").and_then(Value::as_str);
        version.and_then(ClaudeVersion::parse).is_some_and(|version| version >= ClaudeVersion::KNOWS_COMPOSED)
    }

    /// Returns the program's answer to `initialize`: commands, models, the account and others.
    pub fn initialize_reply(&self) -> &Value {
        &self.initialized
    }

    /// Returns the identity of the program's process. If it is recorded, the process can be found
    /// again after the host's death.
    pub fn identity(&self) -> &ProcessIdentity {
        self.process.identity()
    }

    /// Returns the exit status of the program, or `None` while it runs.
    pub fn exit(&self) -> Option<ExitStatus> {
        self.process.exit()
    }

    /// Returns the last part of the program's standard error so far, unescaped.
    pub fn stderr(&self) -> String {
        self.process.stderr()
    }

    /// Sends a prompt to the model: a text, or a list of content blocks. Returns before the program
    /// has read it. Messages report the progress, up to a
    /// [result](super::ClaudeMessageBody::Result). Prompts sent before that result may share one
    /// turn, and one result.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Disconnected`] if the program no longer reads, [`ErrorKind::Closed`] after
    /// [`close`](Client::close).
    pub fn query(&self, input: impl Into<UserInput>) -> Result<(), ClientError> {
        self.is_asked.store(true, Ordering::Relaxed);
        self.is_settled.store(false, Ordering::Relaxed);
        let input = input.into();
        let input = if self.knows_composed() { input } else { input.for_older_version() };
        self.send(&input.to_json())
    }

    /// Sends the program a line of any form.
    pub fn send(&self, line: &Value) -> Result<(), ClientError> {
        self.check_alive()?;
        self.channel.send(line).map_err(|error| self.with_end(error))
    }

    /// Returns the next message, or `None` if the program has ended normally: after a result, or
    /// after [`close`](Client::close). Blocks until a message arrives, or until `deadline` if there
    /// is one. Meanwhile it starts the callbacks that the program requests.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`] if the deadline passes; the client remains usable.
    /// [`ErrorKind::Exited`] if the program ends without a result of the last prompt.
    /// [`ErrorKind::MalformedLine`], [`ErrorKind::LineTooLong`] or [`ErrorKind::Disconnected`] if
    /// its output cannot be read; it was killed then.
    pub fn next_message(&self, deadline: Option<Instant>) -> Result<Option<ClaudeMessage>, ClientError> {
        loop {
            match self.next_event(deadline)? {
                Some(ChannelEvent::Message(message)) => return Ok(Some(message)),
                Some(ChannelEvent::Asked(asked, pending)) => self.serving.call_back(asked, pending),
                None => return Ok(None),
            }
        }
    }

    /// Returns the next message, or the next request of the program that is not cancelled. Otherwise
    /// as [`next_message`](Client::next_message).
    pub(super) fn next_event(&self, deadline: Option<Instant>) -> Result<Option<ChannelEvent>, ClientError> {
        let deadline = deadline.unwrap_or_else(|| after(FOREVER));
        loop {
            match self.channel.inbox.take(deadline.min(after(LOOK))) {
                InboxPoll::Event(ChannelEvent::Asked(_, pending)) if pending.is_cancelled() => {}
                InboxPoll::Event(event) => {
                    if matches!(&event, ChannelEvent::Message(message) if message.result().is_some()) {
                        self.is_settled.store(true, Ordering::Relaxed);
                    }
                    return Ok(Some(event));
                }
                InboxPoll::End(Some(error)) => return Err(error),
                InboxPoll::End(None) => return self.exit_error().map_or(Ok(None), Err),
                InboxPoll::Nothing => {
                    self.look();
                    if Instant::now() >= deadline {
                        let reason = "no message came before the deadline";
                        return Err(ClientError::new(ErrorKind::TimedOut, Stage::Response, reason));
                    }
                }
            }
        }
    }

    /// Returns the error for a program that has ended, or `None` if it ended normally.
    fn exit_error(&self) -> Option<ClientError> {
        if self.channel.inbox.is_closing() {
            return None;
        }
        // A program that continues without an output is killed, because its host cannot hear it.
        let exit = self.process.wait(after(self.stop_grace)).or_else(|| self.process.kill());
        let is_asked = self.is_asked.load(Ordering::Relaxed);
        let is_settled = self.is_settled.load(Ordering::Relaxed);
        if is_settled || (!is_asked && exit.is_some_and(|exit| exit.success())) {
            return None;
        }
        Some(self.error(ErrorKind::Exited, Stage::Response, "the program ended without a result", exit))
    }

    /// Returns an error if the program has ended, which its pipe may not show yet.
    fn check_alive(&self) -> Result<(), ClientError> {
        let exit = self.process.exit();
        if exit.is_none() || self.channel.inbox.is_closing() {
            return Ok(());
        }
        Err(self.error(ErrorKind::Disconnected, Stage::Request, "the program has ended", exit))
    }

    /// Adds the program's exit status to the error of a line that it did not read.
    fn with_end(&self, error: ClientError) -> ClientError {
        if error.kind() != ErrorKind::Disconnected {
            return error;
        }
        let exit = self.process.wait(after(END_WITHIN));
        error.with_exit(exit).with_stderr(self.process.stderr())
    }

    /// Sends a control request, such as `{"subtype":"mcp_status"}`, and returns the program's
    /// answer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Refused`] if the program refuses it, [`ErrorKind::TimedOut`] if it does not
    /// answer within [`control_timeout`](ClientOptions::control_timeout), [`ErrorKind::Exited`] if
    /// it ends before it answers, [`ErrorKind::Disconnected`] if it no longer reads,
    /// [`ErrorKind::Closed`] after [`close`](Client::close).
    pub fn control(&self, request: &Value) -> Result<Value, ClientError> {
        let name = request.get("subtype").and_then(Value::as_str).unwrap_or("without a subtype");
        self.check_alive()?;
        let (id, replied) = self.channel.request(request).map_err(|error| self.with_end(error))?;
        match self.reply(&replied, after(self.control_timeout), None) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(text)) => {
                let reason = format!("the program refused the request `{name}`: {text}");
                Err(ClientError::new(ErrorKind::Refused, Stage::Request, reason))
            }
            Err(RecvTimeoutError::Timeout) => {
                self.channel.forget(&id);
                let waited = self.control_timeout.as_secs_f64();
                let reason = format!("the program did not answer the request `{name}` within {waited} s");
                Err(ClientError::new(ErrorKind::TimedOut, Stage::Request, reason))
            }
            Err(RecvTimeoutError::Disconnected) => {
                let exit = self.process.wait(after(self.stop_grace));
                let reason = format!("the program ended before it answered the request `{name}`");
                Err(self.error(ErrorKind::Exited, Stage::Request, reason, exit))
            }
        }
    }

    /// Interrupts the turn. The turn ends with a result of its own, and the client can be used for
    /// another turn.
    pub fn interrupt(&self) -> Result<(), ClientError> {
        self.control(&json!({"subtype": "interrupt"})).map(drop)
    }

    /// Sets the model for the next turns; `None` leaves it to the program.
    pub fn set_model(&self, model: Option<&str>) -> Result<(), ClientError> {
        self.control(&json!({"subtype": "set_model", "model": model})).map(drop)
    }

    /// Sets the permission mode of tools.
    pub fn set_permission_mode(&self, mode: PermissionMode) -> Result<(), ClientError> {
        self.control(&json!({"subtype": "set_permission_mode", "mode": mode.name()})).map(drop)
    }

    /// Ends the program and returns its exit status. Cancels callbacks, closes its input, waits up
    /// to [`stop_grace`](ClientOptions::stop_grace), sends SIGTERM, waits again, and kills it with
    /// the rest of its process group. Then waits, up to the same time, until no callback is
    /// running.
    ///
    /// Messages that arrived until then can still be taken: the last lines of the session's file
    /// are mirrored when the program ends.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Disconnected`] if the system does not report the exit status.
    pub fn close(&self) -> Result<ExitStatus, ClientError> {
        self.channel.inbox.close();
        self.serving.cancel_all();
        self.channel.close_input();
        if self.process.wait(after(self.stop_grace)).is_none() {
            self.process.terminate();
            self.process.wait(after(self.stop_grace));
        }
        let exit = self.process.kill();
        self.serving.wait_idle(after(self.stop_grace));
        let unknown = || {
            let reason = "the exit status of the program is unknown";
            ClientError::new(ErrorKind::Disconnected, Stage::Stop, reason)
        };
        exit.ok_or_else(unknown)
    }

    /// Kills the program with the rest of its process group, at once. Messages that arrived until
    /// then can still be taken.
    pub fn kill(&self) {
        self.channel.inbox.close();
        self.serving.cancel_all();
        self.channel.close_input();
        self.process.kill();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.kill();
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("identity", self.identity()).finish_non_exhaustive()
    }
}

/// Returns the moment `wait` from now.
fn after(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait.min(FOREVER)).unwrap_or(now)
}

/// Checks that each tool belongs to a bridged server and is unique.
fn check_tools(servers: &[String], tools: &[BridgedTool]) -> Result<(), ClientError> {
    for (at, tool) in tools.iter().enumerate() {
        let is_bridged = servers.contains(&tool.server);
        let earlier = tools.iter().take(at);
        let is_twice = earlier.clone().any(|other| other.full_name() == tool.full_name());
        let what = match (is_bridged, is_twice) {
            (false, _) => "belongs to a server that is not in `bridged_servers`",
            (_, true) => "is given twice",
            _ => continue,
        };
        let reason = format!("the tool `{}` {what}", tool.full_name());
        return Err(ClientError::new(ErrorKind::Options, Stage::Spawn, reason));
    }
    Ok(())
}

/// Writes a system prompt that is too long for an argument to a file.
fn with_prompt_in_file(
    mut options: ClientOptions,
) -> Result<(ClientOptions, Option<PromptFile>), ClientError> {
    // Reserves space for the flag.
    let is_long = |text: &String| text.len() + 64 > ARGUMENT_MAX;
    let text = match &options.system_prompt {
        SystemPrompt::Text(text) | SystemPrompt::Append(text) if is_long(text) => text,
        _ => return Ok((options, None)),
    };
    let directory = options.tmpdir.clone().unwrap_or_else(std::env::temp_dir);
    #[expect(clippy::disallowed_methods, reason = "it names a temporary file")]
    let path = directory.join(format!("foldlog-system-prompt-{}", Uuid::new_v4().simple()));
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let failed = |error| {
        let reason = format!("the system prompt cannot be written to {}", path.display());
        ClientError::new(ErrorKind::Spawn, Stage::Spawn, reason).because(error)
    };
    let mut file = created.map_err(failed)?;
    let prompt = PromptFile(path.clone());
    file.write_all(text.as_bytes()).map_err(failed)?;
    options.system_prompt = match options.system_prompt {
        SystemPrompt::Append(_) => SystemPrompt::AppendFile(path),
        _ => SystemPrompt::File(path),
    };
    Ok((options, Some(prompt)))
}

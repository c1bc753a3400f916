//! The process of the program: its start in a group that dies with this process, its standard
//! error, and its end.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use foldlog::process::{ProcessGroup, ProcessIdentity};
use parking_lot::Mutex;

use super::error::{ClientError, ErrorKind, Stage};
use super::options::{ClientOptions, EnvironmentVariables};

/// Longest pause between two checks whether the program has ended.
const LOOK: Duration = Duration::from_millis(5);

/// Time for the rest of the standard error to arrive after the program has ended: a process that it
/// started may still have the pipe open.
const STDERR_WITHIN: Duration = Duration::from_millis(500);

/// Advice for a missing program.
const INSTALL: &str =
    "install it with `npm install -g @anthropic-ai/claude-code`, or set `program` to its path";

/// Contains the pipes of a started program.
pub(super) struct Pipes {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
}

/// Owns the program, from its start until it was waited for.
pub(super) struct Process {
    state: Mutex<State>,
    identity: ProcessIdentity,
    stderr: Arc<Mutex<VecDeque<u8>>>,
    stderr_end: Mutex<Receiver<()>>,
}

struct State {
    child: Child,
    group: ProcessGroup,
    exit: Option<ExitStatus>,
    /// File of a long system prompt, removed after the program has ended.
    prompt: Option<PromptFile>,
}

/// Removes a file when dropped.
pub(super) struct PromptFile(pub(super) PathBuf);

impl Drop for PromptFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Process {
    /// Starts the program.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Options`], [`ErrorKind::DirectoryNotFound`], [`ErrorKind::ProgramNotFound`] or
    /// [`ErrorKind::Spawn`].
    pub(super) fn start(
        options: &ClientOptions,
        environment: &EnvironmentVariables,
        prompt: Option<PromptFile>,
    ) -> Result<(Process, Pipes), ClientError> {
        let mut command = Command::new(&options.program);
        command.args(options.arguments()?).current_dir(&options.cwd).env_clear().envs(environment.iter());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if !options.cwd.is_dir() {
            let reason = format!("the working directory {} does not exist", options.cwd.display());
            return Err(ClientError::new(ErrorKind::DirectoryNotFound, Stage::Spawn, reason));
        }
        let spawn = |what: &'static str| {
            move |error: io::Error| ClientError::new(ErrorKind::Spawn, Stage::Spawn, what).because(error)
        };
        let group =
            ProcessGroup::start().map_err(spawn("the process group of the program cannot be started"))?;
        let mut child = group.spawn(&mut command).map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                let reason = format!("the program `{}` does not exist: {INSTALL}", options.program.display());
                return ClientError::new(ErrorKind::ProgramNotFound, Stage::Spawn, reason).because(error);
            }
            spawn("the program cannot be started")(error)
        })?;
        let pipes = child.stdin.take().zip(child.stdout.take()).zip(child.stderr.take());
        let identity = ProcessIdentity::from_pid(child.id());
        let mut state = State { child, group, exit: None, prompt };
        let (Some(((stdin, stdout), stderr)), Some(identity)) = (pipes, identity) else {
            state.kill();
            let reason = "the program does not appear in /proc";
            return Err(ClientError::new(ErrorKind::Spawn, Stage::Spawn, reason));
        };
        match keep_end(stderr, options.stderr_limit) {
            Ok((stderr, end)) => {
                let (state, stderr_end) = (Mutex::new(state), Mutex::new(end));
                let process = Process { state, identity, stderr, stderr_end };
                Ok((process, Pipes { stdin, stdout }))
            }
            Err(error) => {
                state.kill();
                Err(spawn("no thread can be started")(error))
            }
        }
    }

    pub(super) fn identity(&self) -> &ProcessIdentity {
        &self.identity
    }

    pub(super) fn exit(&self) -> Option<ExitStatus> {
        self.state.lock().exit()
    }

    /// Waits until the program has ended or `until` has passed.
    pub(super) fn wait(&self, until: Instant) -> Option<ExitStatus> {
        let mut pause = Duration::from_micros(200);
        loop {
            let exit = self.exit();
            if exit.is_some() || Instant::now() >= until {
                return exit;
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LOOK);
        }
    }

    /// Sends SIGTERM to the program.
    pub(super) fn terminate(&self) {
        self.identity.terminate();
    }

    /// Kills the program and the rest of its group, and waits for it.
    pub(super) fn kill(&self) -> Option<ExitStatus> {
        let mut state = self.state.lock();
        state.kill();
        state.exit()
    }

    /// Returns the last part of the program's standard error. If the program has ended, waits
    /// briefly for the rest.
    pub(super) fn stderr(&self) -> String {
        if self.exit().is_some() {
            let _ = self.stderr_end.lock().recv_timeout(STDERR_WITHIN);
        }
        let kept: Vec<u8> = self.stderr.lock().iter().copied().collect();
        String::from_utf8_lossy(&kept).into_owned()
    }
}

impl State {
    fn exit(&mut self) -> Option<ExitStatus> {
        if self.exit.is_none() {
            self.exit = self.child.try_wait().ok().flatten();
        }
        if self.exit.is_some() {
            self.prompt = None;
        }
        self.exit
    }

    fn kill(&mut self) {
        if self.exit().is_none() {
            let _ = self.child.kill();
        }
        self.group.kill();
        if self.exit.is_none() {
            self.exit = self.child.wait().ok();
        }
        self.prompt = None;
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Stores the last bytes of a pipe, on its own thread. The receiver is disconnected when the pipe
/// has ended.
#[expect(clippy::type_complexity, reason = "it is taken apart at once")]
fn keep_end(mut pipe: ChildStderr, limit: usize) -> io::Result<(Arc<Mutex<VecDeque<u8>>>, Receiver<()>)> {
    let kept = Arc::new(Mutex::new(VecDeque::new()));
    let (end, ended) = channel();
    let to = Arc::clone(&kept);
    thread::Builder::new().name("foldlog-claude-stderr".to_owned()).spawn(move || {
        let mut buffer = vec![0; 8 << 10];
        loop {
            let read = match pipe.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            let mut kept = to.lock();
            kept.extend(buffer.iter().take(read));
            let over = kept.len().saturating_sub(limit);
            kept.drain(..over);
        }
        // The end of the channel informs a waiting receiver.
        drop(end);
    })?;
    Ok((kept, ended))
}

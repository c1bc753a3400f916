use std::ffi::OsStr;
use std::fmt;
use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;

use super::answer::ToolError;
use super::programs::poll;
use super::running::RunningCall;
use crate::clock;

/// How long what a program printed is waited for once it has ended: what it started may hold its output open.
const PRINTED_WITHIN: Duration = Duration::from_millis(200);

/// A program that a tool runs. It and all that it starts end with the call, with its time, and with this process, however
/// that ends: they are one process group, stand in a control group of the call where one can be made, and bear the
/// variable `FOLDLOG_CALL` in their environment. What leaves the process group, by `setsid` or as a daemon does, ends with
/// the call still; where this process is killed it runs on until the session is recovered, unless there is a control
/// group. What is in no control group of the call and has cleared its environment is beyond that.
#[must_use]
pub struct ToolCommand {
    command: Command,
    call: Arc<RunningCall>,
}

impl fmt::Debug for ToolCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.command.fmt(f)
    }
}

impl ToolCommand {
    pub(in crate::tools) fn new(program: &OsStr, call: Arc<RunningCall>) -> ToolCommand {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        ToolCommand { command, call }
    }

    /// One more argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// More arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(args);
        self
    }

    /// A variable of its environment.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// The folder that it runs in.
    pub fn current_dir(mut self, folder: impl AsRef<Path>) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// Runs it to its end, and answers with its status and what it printed.
    ///
    /// # Errors
    ///
    /// Where it cannot be started; [`ToolError::Cancelled`], or the deadline's error, where the call is to stop before
    /// it ends, and then it was ended.
    pub fn output(mut self) -> Result<Output, ToolError> {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.call.programs.spawn(&self.call.begun, &mut self.command)?;
        let stdout = child.stdout.take().map(Printed::read);
        let stderr = child.stderr.take().map(Printed::read);
        let status = self.call.programs.wait(&self.call.begun, &mut child)?;
        let printed = |printed: Option<Printed>| printed.map(Printed::take).unwrap_or_default();
        Ok(Output { status, stdout: printed(stdout), stderr: printed(stderr) })
    }

    /// Runs it to its end without reading what it prints.
    ///
    /// # Errors
    ///
    /// As [`output`](ToolCommand::output).
    pub fn status(mut self) -> Result<ExitStatus, ToolError> {
        self.command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = self.call.programs.spawn(&self.call.begun, &mut self.command)?;
        self.call.programs.wait(&self.call.begun, &mut child)
    }

    /// Starts it and lets it run beside the tool, until the call ends.
    ///
    /// # Errors
    ///
    /// Where it cannot be started.
    pub fn start(mut self) -> Result<(), ToolError> {
        self.command.stdout(Stdio::null()).stderr(Stdio::null());
        self.call.programs.start_beside(&self.call.begun, &mut self.command)
    }
}

/// What a program prints, read by a thread of its own so that it never waits for its reader.
struct Printed {
    bytes: Arc<Mutex<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl Printed {
    fn read(mut from: impl Read + Send + 'static) -> Printed {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&bytes);
        let read = move || {
            let mut piece = [0; 8192];
            while let Ok(len @ 1..) = from.read(&mut piece) {
                into.lock().extend_from_slice(piece.get(..len).unwrap_or_default());
            }
        };
        let thread = thread::Builder::new().name("foldlog-output".to_owned()).spawn(read).ok();
        Printed { bytes, thread }
    }

    fn take(self) -> Vec<u8> {
        let until = clock::after(PRINTED_WITHIN);
        if let Some(thread) = self.thread {
            poll(|| thread.is_finished() || clock::is_past(until));
        }
        std::mem::take(&mut *self.bytes.lock())
    }
}

//! Programs that a tool runs, and what they print.
//!
//! How the programs of a call are found and terminated is the matter of [`programs`](super::programs).

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
use super::running::RunningCall;
use crate::clock;
use crate::process::poll;

/// Time for which the output of a program is read after the program has ended. What the program started may
/// hold its output open.
const PRINTED_WITHIN: Duration = Duration::from_millis(200);

/// Describes a program that a tool runs, with its arguments, environment and folder. Its standard input is
/// empty.
///
/// The engine terminates the program and all that it starts when the call ends, when this process ends, and,
/// while the tool waits for a program of the call, as soon as the call is cancelled or its deadline passes.
/// The engine finds them in three ways: they are one process group, they stand in a control group of the call if the
/// system lets this process make one, and their environment has the variable `FOLDLOG_CALL`.
///
/// - A program that leaves the process group, by `setsid` or as a daemon does, is terminated when the call
///   ends all the same. If this process is killed, such a program is terminated at once if the call has a
///   control group, and otherwise when the session is recovered.
/// - A program that is in no control group of the call and has cleared its environment is not found, and runs
///   on.
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
    /// Describes `program` without arguments, as a program of `call`.
    pub(in crate::tools) fn new(program: &OsStr, call: Arc<RunningCall>) -> ToolCommand {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        ToolCommand { command, call }
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// Adds arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(args);
        self
    }

    /// Sets a variable of the program's environment, which else is that of this process. The engine sets
    /// `FOLDLOG_CALL` itself.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Sets the folder in which the program runs. By default that is this process's.
    pub fn current_dir(mut self, folder: impl AsRef<Path>) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// Runs the program to its end, and returns its status and what it printed. A status other than 0 is not
    /// an error.
    ///
    /// # Errors
    ///
    /// [`ToolError::Failed`] if the program cannot be started. [`ToolError::Cancelled`] if the call is
    /// cancelled or over, and [`ToolError::Engine`] with
    /// [`Error::DeadlineExceeded`](crate::Error::DeadlineExceeded) if its deadline passes, before the program
    /// ends: the program is terminated then. [`ToolError::Engine`] if the log cannot record the programs of
    /// the call, which it does before the first of them starts.
    pub fn output(mut self) -> Result<Output, ToolError> {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.call.programs.spawn(&self.call.begun, &mut self.command)?;
        let stdout = child.stdout.take().map(Printed::read);
        let stderr = child.stderr.take().map(Printed::read);
        let status = self.call.programs.wait(&self.call.begun, &mut child)?;
        let printed = |printed: Option<Printed>| printed.map(Printed::take).unwrap_or_default();
        Ok(Output { status, stdout: printed(stdout), stderr: printed(stderr) })
    }

    /// Runs the program to its end, and returns its status. What the program prints is discarded.
    ///
    /// # Errors
    ///
    /// Those of [`output`](ToolCommand::output).
    pub fn status(mut self) -> Result<ExitStatus, ToolError> {
        self.command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = self.call.programs.spawn(&self.call.begun, &mut self.command)?;
        self.call.programs.wait(&self.call.begun, &mut child)
    }

    /// Starts the program and returns at once. The program runs beside the tool until the call ends, and what
    /// it prints is discarded.
    ///
    /// # Errors
    ///
    /// [`ToolError::Failed`] if the program cannot be started. [`ToolError::Cancelled`] if the call is
    /// cancelled or over, and [`ToolError::Engine`] with
    /// [`Error::DeadlineExceeded`](crate::Error::DeadlineExceeded) if its deadline has passed.
    /// [`ToolError::Engine`] if the log cannot record the programs of the call.
    pub fn start(mut self) -> Result<(), ToolError> {
        self.command.stdout(Stdio::null()).stderr(Stdio::null());
        self.call.programs.start_beside(&self.call.begun, &mut self.command)
    }
}

/// Collects what a program prints. A thread of its own reads the output, so that the program never waits for
/// its reader.
struct Printed {
    bytes: Arc<Mutex<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl Printed {
    /// Starts to read `from`. If no thread can be started, nothing is read.
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

    /// Returns what the program printed, once its output is closed or [`PRINTED_WITHIN`] has passed.
    fn take(self) -> Vec<u8> {
        let until = clock::after(PRINTED_WITHIN);
        if let Some(thread) = self.thread {
            poll(|| thread.is_finished() || clock::is_past(until));
        }
        std::mem::take(&mut *self.bytes.lock())
    }
}

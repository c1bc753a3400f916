//! Programs that a tool runs, and their output.
//!
//! [`programs`](super::programs) finds and terminates the programs of a call.

use std::ffi::OsStr;
use std::fmt;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::Duration;

use super::answer::ToolError;
use super::operation::RunningCall;
use crate::clock;
use crate::error::Error;

/// Time for which output is read after a program has ended. Its child programs may still have the
/// output open.
const PRINTED_WITHIN: Duration = Duration::from_millis(200);

/// Default number of bytes of each stream that [`ToolCommand::output`] keeps: 16 MiB.
const KEPT_MAX: usize = 16 << 20;

/// Maximum number of buffered pieces of output. A program that prints more is blocked.
const PIECES_MAX: usize = 64;

/// Length of a piece of output, in bytes.
const PIECE_LEN: usize = 8 << 10;

/// Interval between two polls of a program that prints nothing.
const LOOK: Duration = Duration::from_millis(2);

/// Describes a program that a tool runs, with its arguments, environment, input and directory.
///
/// The program inherits from this process:
///
/// | of this process | the program has |
/// |---|---|
/// | environment | the variables that the host [lets through](crate::tools::INHERITED), those that the tool [sets](ToolCommand::env), and `FOLDLOG_CALL`; no others, so that no key of the host reaches a program of the model |
/// | directory | the workspace, if the run has a [`HostFilesystem`](foldlog_filesystem) as a resource, else this process's; or the one that the tool [sets](ToolCommand::current_dir) |
/// | standard input | none of it: it is empty, or the tool's [input](ToolCommand::stdin) |
/// | standard output and error | none of it: the tool gets them, or they are discarded |
/// | user, limits, other open files that are not closed on exec | these |
///
/// The engine terminates the program and its descendants when the call ends, when this process
/// ends, and, while the tool waits for a program of the call, as soon as the call is cancelled or
/// its deadline passes. The engine finds them in three ways: they are one process group, they are
/// in a control group of the call if the system lets this process create one, and their environment
/// has the variable `FOLDLOG_CALL`.
///
/// - A program that leaves the process group, by `setsid` or like a daemon, is still terminated
///   when the call ends. If this process is killed, such a program is terminated at once if the
///   call has a control group, and otherwise when the session is recovered.
/// - A program that is in no control group of the call and has cleared its environment is not
///   found, and continues to run.
#[must_use]
pub struct ToolCommand {
    command: Command,
    call: Arc<RunningCall>,
    stdin: Vec<u8>,
    kept_max: usize,
}

impl fmt::Debug for ToolCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.command.fmt(f)
    }
}

/// Names an output stream of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProgramStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Contains the output of a program, and its exit status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramOutput {
    /// Exit status of the program.
    pub status: ExitStatus,
    /// Standard output, up to the limit.
    pub stdout: Vec<u8>,
    /// Standard error, up to the limit.
    pub stderr: Vec<u8>,
    /// Number of bytes of both that were discarded.
    pub left_out: u64,
}

impl ProgramOutput {
    fn take(&mut self, stream: ProgramStream, piece: &[u8], kept_max: usize) {
        let to = match stream {
            ProgramStream::Stdout => &mut self.stdout,
            ProgramStream::Stderr => &mut self.stderr,
        };
        let kept = piece.get(..kept_max.saturating_sub(to.len())).unwrap_or(piece);
        to.extend_from_slice(kept);
        self.left_out += piece.len().saturating_sub(kept.len()) as u64;
    }
}

impl ToolCommand {
    /// Describes `program` without arguments, as a program of `call`.
    pub(in crate::tools) fn new(program: &OsStr, call: Arc<RunningCall>) -> ToolCommand {
        let mut command = Command::new(program);
        command.env_clear();
        let inherited = call.state.inner.inherited.iter();
        command.envs(inherited.filter_map(|name| Some((name, std::env::var_os(name)?))));
        #[cfg(feature = "host-filesystem")]
        if let Some(workspace) = call.state.resources().get::<foldlog_filesystem::HostFilesystem>() {
            command.current_dir(workspace.root());
        }
        ToolCommand { command, call, stdin: Vec::new(), kept_max: KEPT_MAX }
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

    /// Sets an environment variable of the program. The engine sets `FOLDLOG_CALL` itself.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Sets the working directory of the program, in place of the workspace.
    pub fn current_dir(mut self, directory: impl AsRef<Path>) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// Sets the program's standard input, which ends after these bytes.
    pub fn stdin(self, bytes: impl Into<Vec<u8>>) -> Self {
        ToolCommand { stdin: bytes.into(), ..self }
    }

    /// Sets how many bytes of each stream [`output`](ToolCommand::output) keeps, from the start.
    /// Further output is read, so that the program continues, and counted. By default 16 MiB.
    pub fn keeping_at_most(self, bytes: usize) -> Self {
        ToolCommand { kept_max: bytes, ..self }
    }

    /// Returns the names of the program's environment variables except `FOLDLOG_CALL`, in ascending
    /// order.
    pub fn environment(&self) -> impl Iterator<Item = &OsStr> {
        self.command.get_envs().filter_map(|(name, value)| value.map(|_| name))
    }

    /// Runs the program to its end, and returns its status and output. A status other than 0 is not
    /// an error.
    ///
    /// # Errors
    ///
    /// [`ToolError::Failed`] if the program cannot be started. [`ToolError::Cancelled`] if the call
    /// is cancelled or over before the program ends, and [`ToolError::Engine`] with
    /// [`Error::DeadlineExceeded`](crate::Error::DeadlineExceeded) if its deadline passes before
    /// that: the program is terminated then. [`ToolError::Engine`] if the programs of the call
    /// cannot be recorded, which happens before the first of them starts.
    pub fn output(self) -> Result<ProgramOutput, ToolError> {
        let kept_max = self.kept_max;
        let mut output = ProgramOutput::default();
        output.status = self.stream(|stream, piece| output.take(stream, piece, kept_max))?;
        Ok(output)
    }

    /// Runs the program to its end, and passes its output to `printed` as it arrives, on this
    /// thread. Returns the program's status. A program that prints faster than `printed` processes
    /// is blocked.
    pub fn stream(mut self, mut printed: impl FnMut(ProgramStream, &[u8])) -> Result<ExitStatus, ToolError> {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.spawn()?;
        let (tells, told) = mpsc::sync_channel(PIECES_MAX);
        if let Some(stdout) = child.stdout.take() {
            read(ProgramStream::Stdout, stdout, tells.clone());
        }
        if let Some(stderr) = child.stderr.take() {
            read(ProgramStream::Stderr, stderr, tells);
        }
        // While it prints, the program is polled at the same interval.
        let mut wait = |at_most: Duration| {
            let until = clock::after(at_most);
            loop {
                match told.recv_timeout(until.saturating_duration_since(clock::now())) {
                    Ok(Piece { stream, bytes }) => printed(stream, &bytes),
                    Err(RecvTimeoutError::Timeout) => return true,
                    Err(RecvTimeoutError::Disconnected) => return false,
                }
                if clock::is_past(until) {
                    return true;
                }
            }
        };
        let status = self.call.programs.wait(&self.call.begun, &mut child, || {
            if !wait(LOOK) {
                thread::sleep(LOOK);
            }
        })?;
        // The time that the tool spends in `printed` does not count.
        let mut waited = Duration::ZERO;
        while waited < PRINTED_WITHIN && !self.call.begun.within.is_cancelled() {
            let since = clock::now();
            let heard = told.recv_timeout(PRINTED_WITHIN.saturating_sub(waited));
            waited += since.elapsed();
            match heard {
                Ok(Piece { stream, bytes }) => printed(stream, &bytes),
                Err(_) => break,
            }
        }
        Ok(status)
    }

    /// Runs the program to its end, and returns its status. Its output is discarded.
    pub fn status(mut self) -> Result<ExitStatus, ToolError> {
        self.command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = self.spawn()?;
        self.call.programs.wait(&self.call.begun, &mut child, || thread::sleep(LOOK))
    }

    /// Starts the program and returns at once. The program runs in parallel with the tool until the
    /// call ends, and its output is discarded. Its standard input is empty.
    ///
    /// # Errors
    ///
    /// [`ToolError::Failed`] if the program cannot be started. [`ToolError::Cancelled`] if the call
    /// is cancelled or over, and [`ToolError::Engine`] with
    /// [`Error::DeadlineExceeded`](crate::Error::DeadlineExceeded) if its deadline has passed.
    /// [`ToolError::Engine`] if the programs of the call cannot be recorded.
    pub fn start(mut self) -> Result<(), ToolError> {
        self.check()?;
        self.command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.call.programs.start_in_background(&self.call.begun, &mut self.command)
    }

    /// Fails for a tool that acts only outside, because the changes of a program cannot be
    /// determined.
    fn check(&self) -> Result<(), ToolError> {
        if !self.call.info.outside_only {
            return Ok(());
        }
        let operation = self.call.begun.within.operation();
        Err(ToolError::Engine(Error::ReadsOnly { operation, tried: "start a program" }))
    }

    /// Starts the program, and a thread that writes its input.
    fn spawn(&mut self) -> Result<Child, ToolError> {
        self.check()?;
        let input = std::mem::take(&mut self.stdin);
        self.command.stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() });
        let mut child = self.call.programs.spawn(&self.call.begun, &mut self.command)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that ends without reading its input is not an error. If no thread can be
            // started, the input is empty.
            let write = move || drop(stdin.write_all(&input));
            drop(thread::Builder::new().name("foldlog-input".to_owned()).spawn(write));
        }
        Ok(child)
    }
}

struct Piece {
    stream: ProgramStream,
    bytes: Vec<u8>,
}

/// Reads the output of a program in a separate thread, until the receiver is dropped. If no thread
/// can be started, nothing is read.
fn read(stream: ProgramStream, mut from: impl Read + Send + 'static, tells: SyncSender<Piece>) {
    let read = move || {
        let mut piece = vec![0; PIECE_LEN];
        while let Ok(len @ 1..) = from.read(&mut piece) {
            let bytes = piece.get(..len).unwrap_or_default().to_vec();
            if tells.send(Piece { stream, bytes }).is_err() {
                return;
            }
        }
    };
    drop(thread::Builder::new().name("foldlog-output".to_owned()).spawn(read));
}

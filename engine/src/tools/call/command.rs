//! Programs that a tool runs, and what they print.
//!
//! How the programs of a call are found and terminated is the matter of [`programs`](super::programs).

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
use super::run::RunningCall;
use crate::clock;
use crate::error::Error;
use crate::sabotage::{self, Breakage};

/// Time for which the output of a program is read after the program has ended. What the program started may
/// hold its output open.
const PRINTED_WITHIN: Duration = Duration::from_millis(200);

/// Greatest number of bytes that [`ToolCommand::output`] keeps of each stream, unless the tool says otherwise: 16 MiB.
const KEPT_MAX: usize = 16 << 20;

/// Greatest number of pieces of output that wait for the tool. A program that prints more waits for it.
const PIECES_MAX: usize = 64;

/// Length of a piece of output, in bytes.
const PIECE_LEN: usize = 8 << 10;

/// Pause between two looks at a program that prints nothing.
const LOOK: Duration = Duration::from_millis(2);

/// Describes a program that a tool runs, with its arguments, environment, input and directory.
///
/// What the program inherits of this process:
///
/// | of this process | the program has |
/// |---|---|
/// | environment | the variables that the host [lets through](crate::tools::INHERITED), what the tool [sets](ToolCommand::env), and `FOLDLOG_CALL`; nothing else, so that no key of the host reaches a program of the model's |
/// | directory | the workspace, if the run has a [`HostFilesystem`](foldlog_filesystem) as a resource, else this process's; or what the tool [says](ToolCommand::current_dir) |
/// | standard input | none of it: it is empty, or what the tool [gives](ToolCommand::stdin) |
/// | standard output and error | none of it: the tool gets them, or they are discarded |
/// | user, limits, other open files that are not closed on exec | these |
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
    stdin: Vec<u8>,
    kept_max: usize,
}

impl fmt::Debug for ToolCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.command.fmt(f)
    }
}

/// Names a stream to which a program prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProgramStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Holds what a program printed, and how it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramOutput {
    /// Status with which the program ended.
    pub status: ExitStatus,
    /// Standard output, as much of it as was to be kept.
    pub stdout: Vec<u8>,
    /// Standard error, as much of it as was to be kept.
    pub stderr: Vec<u8>,
    /// Number of bytes of both that were not kept.
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
        if !sabotage::is(Breakage::EnvironmentInherited) {
            command.env_clear();
        }
        let inherited = call.state.inherited_variables().iter();
        command.envs(inherited.filter_map(|name| Some((name, std::env::var_os(name)?))));
        #[cfg(feature = "host-filesystem")]
        if let Some(workspace) = call.resources().get::<foldlog_filesystem::HostFilesystem>() {
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

    /// Sets a variable of the program's environment. The engine sets `FOLDLOG_CALL` itself.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Sets the directory in which the program runs, in place of the workspace.
    pub fn current_dir(mut self, directory: impl AsRef<Path>) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// Sets what the program reads from its standard input, which ends behind it.
    pub fn stdin(self, bytes: impl Into<Vec<u8>>) -> Self {
        ToolCommand { stdin: bytes.into(), ..self }
    }

    /// Sets how many bytes of each stream [`output`](ToolCommand::output) keeps: the first ones. The rest is read, so that the
    /// program goes on, and counted. By default 16 MiB.
    pub fn keeping_at_most(self, bytes: usize) -> Self {
        ToolCommand { kept_max: bytes, ..self }
    }

    /// Returns the names of the variables that the program's environment has beside `FOLDLOG_CALL`, in ascending order.
    pub fn environment(&self) -> impl Iterator<Item = &OsStr> {
        self.command.get_envs().filter_map(|(name, value)| value.map(|_| name))
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
    pub fn output(self) -> Result<ProgramOutput, ToolError> {
        let kept_max = self.kept_max;
        let mut output = ProgramOutput::default();
        output.status = self.stream(|stream, piece| output.take(stream, piece, kept_max))?;
        Ok(output)
    }

    /// Runs the program to its end, and hands what it prints to `printed` as it comes, on this thread. Returns the program's
    /// status. A program that prints faster than `printed` takes it waits.
    ///
    /// # Errors
    ///
    /// Those of [`output`](ToolCommand::output).
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
        // The program is looked at as often while it prints.
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
        let status = self.call.wait_for_program(&mut child, || {
            if !wait(LOOK) {
                thread::sleep(LOOK);
            }
        })?;
        // The time that the tool takes for what it hears does not count.
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

    /// Runs the program to its end, and returns its status. What the program prints is discarded.
    ///
    /// # Errors
    ///
    /// Those of [`output`](ToolCommand::output).
    pub fn status(mut self) -> Result<ExitStatus, ToolError> {
        self.command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = self.spawn()?;
        self.call.wait_for_program(&mut child, || thread::sleep(LOOK))
    }

    /// Starts the program and returns at once. The program runs beside the tool until the call ends, and what
    /// it prints is discarded. Its standard input is empty.
    ///
    /// # Errors
    ///
    /// [`ToolError::Failed`] if the program cannot be started. [`ToolError::Cancelled`] if the call is
    /// cancelled or over, and [`ToolError::Engine`] with
    /// [`Error::DeadlineExceeded`](crate::Error::DeadlineExceeded) if its deadline has passed.
    /// [`ToolError::Engine`] if the log cannot record the programs of the call.
    pub fn start(mut self) -> Result<(), ToolError> {
        self.check()?;
        self.command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.call.start_background_program(&mut self.command)
    }

    /// Fails for a tool that acts outside only: nobody could tell what a program changes.
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
        let mut child = self.call.spawn_program(&mut self.command)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that ends without reading its input is no error. If no thread can be started, it reads none.
            let write = move || drop(stdin.write_all(&input));
            drop(thread::Builder::new().name("foldlog-input".to_owned()).spawn(write));
        }
        Ok(child)
    }
}

/// Holds a piece of what a program prints.
struct Piece {
    stream: ProgramStream,
    bytes: Vec<u8>,
}

/// Reads what a program prints in a thread of its own, until nobody wants it any more. If no thread can be started, nothing is
/// read.
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

//! Errors between a client and the program, each with a remedy.
//!
//! A turn that the program itself reports as failed is not a [`ClientError`]: see
//! [`failure`](super::TurnResult::failure) of its [`TurnResult`](super::TurnResult).

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;

use foldlog::escape;

use foldlog_agent::error::EvaluationPhase;
use foldlog_agent::named;

/// Number of bytes of the program's standard error that an error displays; [`ClientError::stderr`]
/// returns all that was stored.
const SHOWN: usize = 2 << 10;

named! {
    /// Identifies the activity of the client that failed.
    #[non_exhaustive]
    Stage {
        /// Starting the program.
        Spawn = "spawn",
        /// Waiting for the program's answer to `initialize`.
        Initialize = "initialize",
        /// Sending a prompt or a control request, or waiting for the answer to the request.
        Request = "request",
        /// Reading messages.
        Response = "response",
        /// Ending the program.
        Stop = "stop",
    }
}

/// Classifies an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The program is not installed, or not at the path in the options.
    ProgramNotFound,
    /// The working directory does not exist, or is not a directory.
    DirectoryNotFound,
    /// The options contradict each other, or contain a value that cannot be an argument.
    Options,
    /// The program refuses to run as root without permission requests.
    RootRefused,
    /// The system cannot start the program.
    Spawn,
    /// The program no longer reads its input, or its output cannot be read.
    Disconnected,
    /// The program did not answer `initialize` in time.
    InitializeTimeout,
    /// A message, or the answer to a control request, did not arrive in time. The client can still
    /// be used.
    TimedOut,
    /// The program ended without a result of the turn.
    Exited,
    /// A line of the program starts as an object but is not one.
    MalformedLine {
        /// Number of the line, from 1.
        line: u64,
        /// Offset of the line in the stream, in bytes.
        offset: u64,
    },
    /// A line of the program is longer than the limit.
    LineTooLong {
        /// Number of the line, from 1.
        line: u64,
        /// Offset of the line in the stream, in bytes.
        offset: u64,
    },
    /// The program refused a control request.
    Refused,
    /// The program does not know the session to be resumed.
    SessionNotFound,
    /// The chosen id of the session is in use.
    SessionInUse,
    /// The client was closed.
    Closed,
    /// The start was cancelled.
    Cancelled,
}

/// Reports an error between a client and the program. Text of the program is escaped when
/// displayed.
#[derive(Clone)]
pub struct ClientError(Box<Detail>);

#[derive(Clone)]
struct Detail {
    kind: ErrorKind,
    stage: Stage,
    reason: String,
    exit: Option<ExitStatus>,
    stderr: String,
    source: Option<Arc<io::Error>>,
}

impl ClientError {
    /// Creates an error. `reason` contains the cause and the remedy.
    pub(super) fn new(kind: ErrorKind, stage: Stage, reason: impl Into<String>) -> ClientError {
        let (reason, stderr) = (reason.into(), String::new());
        ClientError(Box::new(Detail { kind, stage, reason, exit: None, stderr, source: None }))
    }

    /// Creates the error for a program that must not run as root.
    pub(super) fn root_refused() -> ClientError {
        ClientError::new(
            ErrorKind::RootRefused,
            Stage::Spawn,
            "the program refuses `bypassPermissions` as root: run as another user, or choose `dontAsk` with \
             `allowed_tools`; in a sandbox, set the variable IS_SANDBOX=1 or CLAUDE_CODE_BUBBLEWRAP=1",
        )
    }

    /// Adds the system's error, to the reason too.
    pub(super) fn because(mut self, source: io::Error) -> ClientError {
        self.0.reason = format!("{}: {source}", self.0.reason);
        self.0.source = Some(Arc::new(source));
        self
    }

    pub(super) fn with_exit(mut self, exit: Option<ExitStatus>) -> ClientError {
        self.0.exit = exit;
        self
    }

    pub(super) fn with_stderr(mut self, stderr: String) -> ClientError {
        self.0.stderr = stderr;
        self
    }

    /// Sets the stage.
    pub(super) fn at(mut self, stage: Stage) -> ClientError {
        self.0.stage = stage;
        self
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the activity that failed.
    pub fn stage(&self) -> Stage {
        self.0.stage
    }

    /// Returns the part of an evaluation that failed: the response for a line that cannot be read,
    /// the request for everything else.
    pub fn phase(&self) -> EvaluationPhase {
        match self.0.kind {
            ErrorKind::MalformedLine { .. } | ErrorKind::LineTooLong { .. } => EvaluationPhase::Response,
            _ => EvaluationPhase::Request,
        }
    }

    /// Returns the cause and the remedy, unescaped and without the stage, the exit status and the
    /// standard error.
    pub fn reason(&self) -> &str {
        &self.0.reason
    }

    /// Returns the exit status of the program, if it has ended.
    pub fn exit(&self) -> Option<ExitStatus> {
        self.0.exit
    }

    /// Returns the exit code of the program.
    pub fn exit_code(&self) -> Option<i32> {
        self.0.exit?.code()
    }

    /// Returns the number of the signal that ended the program.
    pub fn signal(&self) -> Option<i32> {
        self.0.exit?.signal()
    }

    /// Returns the last part of the program's standard error, unescaped; invalid UTF-8 is replaced.
    /// Empty if nothing was written.
    pub fn stderr(&self) -> &str {
        &self.0.stderr
    }

    /// Returns whether a retry may succeed: the program did not start or did not answer in time, or
    /// its pipe broke.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.0.kind,
            ErrorKind::Spawn | ErrorKind::Disconnected | ErrorKind::InitializeTimeout | ErrorKind::TimedOut
        )
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let detail = &*self.0;
        write!(f, "{} failed: {}", detail.stage, escape::text(&detail.reason))?;
        if let Some(exit) = &detail.exit {
            match (exit.code(), exit.signal()) {
                (Some(code), _) => write!(f, "; exit code {code}")?,
                (None, Some(signal)) => write!(f, "; killed by signal {signal}")?,
                (None, None) => {}
            }
        }
        let stderr = detail.stderr.trim_end();
        if !stderr.is_empty() {
            let from = stderr.ceil_char_boundary(stderr.len().saturating_sub(SHOWN));
            let shown = stderr.get(from..).unwrap_or_default();
            write!(f, "; it wrote to standard error:\n  | {}", escape::lines(shown))?;
        }
        Ok(())
    }
}

impl fmt::Debug for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({self})", self.0.kind)
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| &**source as _)
    }
}

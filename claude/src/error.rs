//! What goes wrong between a client and the program, and what to do then.
//!
//! A turn that fails in the program's own words is no [`ClientError`]: its [`TurnResult`](super::TurnResult) tells by
//! [`failure`](super::TurnResult::failure) why.

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;

use foldlog::escape;

use foldlog_agent::error::EvaluationPhase;

/// Number of bytes of the program's standard error that an error displays; [`ClientError::stderr`] returns all that was kept.
const SHOWN: usize = 2 << 10;

/// Names what the client did when something went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// Starting the program.
    Spawn,
    /// Waiting for the program's answer to `initialize`.
    Initialize,
    /// Sending a prompt or a control request, or waiting for the answer to the request.
    Request,
    /// Reading messages.
    Response,
    /// Ending the program.
    Stop,
}

impl Stage {
    /// Returns the stage's name: `spawn`, `initialize`, `request`, `response` or `stop`.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Spawn => "spawn",
            Stage::Initialize => "initialize",
            Stage::Request => "request",
            Stage::Response => "response",
            Stage::Stop => "stop",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Says what went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The program is not installed, or not where the options say.
    ProgramNotFound,
    /// The working directory does not exist, or is no directory.
    DirectoryNotFound,
    /// The options contradict each other, or hold what no argument can.
    Options,
    /// The program does not run as root without permissions.
    RootRefused,
    /// The system does not start the program.
    Spawn,
    /// The program no longer reads its input, or its output cannot be read.
    Disconnected,
    /// The program did not answer `initialize` in time.
    InitializeTimeout,
    /// No message, or no answer to a control request, came in time. The client can still be used.
    TimedOut,
    /// The program ended without a result of the turn.
    Exited,
    /// A line of the program begins as an object and is none.
    MalformedLine {
        /// Number of the line, from 1.
        line: u64,
        /// Where the line begins, in bytes from the beginning of the stream.
        offset: u64,
    },
    /// A line of the program is longer than the limit.
    LineTooLong {
        /// Number of the line, from 1.
        line: u64,
        /// Where the line begins, in bytes from the beginning of the stream.
        offset: u64,
    },
    /// The program refused a control request.
    Refused,
    /// The program knows no session of the id that was to be resumed.
    SessionNotFound,
    /// The id that was chosen for the session is in use.
    SessionInUse,
    /// The client was closed.
    Closed,
    /// The start was cancelled.
    Cancelled,
}

/// Reports what went wrong between a client and the program. Displayed, what the program said is escaped.
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
    /// Makes an error. `reason` says what happened, and what to do.
    pub(super) fn new(kind: ErrorKind, stage: Stage, reason: impl Into<String>) -> ClientError {
        let (reason, stderr) = (reason.into(), String::new());
        ClientError(Box::new(Detail { kind, stage, reason, exit: None, stderr, source: None }))
    }

    /// Makes the error for a program that must not run as root.
    pub(super) fn root_refused() -> ClientError {
        ClientError::new(
            ErrorKind::RootRefused,
            Stage::Spawn,
            "the program refuses `bypassPermissions` as root: run as another user, or choose `dontAsk` with \
             `allowed_tools`; in a sandbox, set the variable IS_SANDBOX=1 or CLAUDE_CODE_BUBBLEWRAP=1",
        )
    }

    /// Adds what the system says, to the reason too.
    pub(super) fn because(mut self, source: io::Error) -> ClientError {
        self.0.reason = format!("{}: {source}", self.0.reason);
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Adds how the program ended.
    pub(super) fn with_exit(mut self, exit: Option<ExitStatus>) -> ClientError {
        self.0.exit = exit;
        self
    }

    /// Adds the end of what the program wrote to its standard error.
    pub(super) fn with_stderr(mut self, stderr: String) -> ClientError {
        self.0.stderr = stderr;
        self
    }

    /// Sets when it went wrong.
    pub(super) fn at(mut self, stage: Stage) -> ClientError {
        self.0.stage = stage;
        self
    }

    /// Returns what went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns what the client did then.
    pub fn stage(&self) -> Stage {
        self.0.stage
    }

    /// Returns the part of an evaluation that failed: the response for a line that cannot be read, the request for all
    /// else.
    pub fn phase(&self) -> EvaluationPhase {
        match self.0.kind {
            ErrorKind::MalformedLine { .. } | ErrorKind::LineTooLong { .. } => EvaluationPhase::Response,
            _ => EvaluationPhase::Request,
        }
    }

    /// Returns what happened and what to do, unescaped and without the stage, the exit and the standard error.
    pub fn reason(&self) -> &str {
        &self.0.reason
    }

    /// Returns how the program ended, where it has.
    pub fn exit(&self) -> Option<ExitStatus> {
        self.0.exit
    }

    /// Returns the code that the program exited with.
    pub fn exit_code(&self) -> Option<i32> {
        self.0.exit?.code()
    }

    /// Returns the number of the signal that ended the program.
    pub fn signal(&self) -> Option<i32> {
        self.0.exit?.signal()
    }

    /// Returns the end of what the program wrote to its standard error, unescaped; bytes that are not UTF-8 are
    /// replaced. Empty where nothing was written.
    pub fn stderr(&self) -> &str {
        &self.0.stderr
    }

    /// Returns whether the same attempt may succeed when it is made again: the program did not start or did not answer
    /// in time, or its pipe broke.
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

//! Why a verb ends early, its exit code, and what to do next.

use std::io;
use std::path::PathBuf;

use foldlog::{Error, filesystem};
use foldlog_codec::escape;

/// A result of a verb.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// The exit code where what was asked holds.
pub const HOLDS: u8 = 0;
/// The exit code where a log is corrupt or diverged.
pub const DOES_NOT_HOLD: u8 = 1;
/// The exit code for wrong usage and for what cannot be read.
pub const UNUSABLE: u8 = 2;

/// Why a verb ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The engine could not do what it was asked to.
    #[error(transparent)]
    Engine(#[from] Error),
    /// The output could not be written.
    #[error("the output could not be written: {0}")]
    Output(io::Error),
    /// A log does not hold; the result says where.
    #[error("{0}")]
    DoesNotHold(String),
    /// The arguments do not fit what they are about.
    #[error("{what}")]
    Usage {
        /// What does not fit.
        what: String,
        /// What to do next.
        next: String,
    },
    /// The session was deleted while it was read.
    #[error("{}: the session was deleted meanwhile", escape::path(path))]
    Deleted {
        /// Its folder.
        path: PathBuf,
    },
    /// The process could not wait for what is to come.
    #[error("waiting for records: {0}")]
    Wait(io::Error),
    /// A file could not be read.
    #[error("{}: {source}", escape::path(path))]
    File {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// A file to import is not what it should be.
    #[error("{}{}: {reason}", escape::path(path), run.map(|run| format!(", run {run}")).unwrap_or_default())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The run in it, counted from 0.
        run: Option<usize>,
        /// What is wrong.
        reason: String,
    },
    /// The demo's child process could not be run.
    #[error("the demo's child process: {0}")]
    Child(io::Error),
}

impl From<filesystem::Error> for Failure {
    fn from(error: filesystem::Error) -> Failure {
        Failure::Engine(error.into())
    }
}

impl From<io::Error> for Failure {
    /// Errors of the output; other files have a variant that names them.
    fn from(error: io::Error) -> Failure {
        Failure::Output(error)
    }
}

impl Failure {
    /// A wrong use, with what to do next.
    pub fn usage(what: impl Into<String>, next: impl Into<String>) -> Failure {
        Failure::Usage { what: what.into(), next: next.into() }
    }

    /// Whether the reader of the output went away, which is no error.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::DoesNotHold(_) => DOES_NOT_HOLD,
            Failure::Engine(error) if error.is_damage() => DOES_NOT_HOLD,
            failure if failure.is_closed_pipe() => HOLDS,
            _ => UNUSABLE,
        }
    }

    /// What to do next, where there is something to say.
    pub fn next(&self) -> Option<String> {
        let next = match self {
            Failure::Engine(error) => return next_after(error),
            Failure::Usage { next, .. } => return Some(next.clone()),
            Failure::Output(_) | Failure::Wait(_) => return None,
            Failure::Deleted { .. } => "`foldlog sessions STORE` lists what is there",
            Failure::DoesNotHold(_) => {
                "nothing was changed; keep the folder as it is and take the session from a copy, or what is sound of it by \
                 `foldlog salvage SESSION --to DIR`"
            }
            Failure::File { .. } => "check the path and whether the file can be read",
            Failure::Malformed { .. } => "nothing was imported; correct the file and import again",
            Failure::Child(_) => "run the demo where processes can be started",
        };
        Some(next.to_owned())
    }
}

fn is_replaced(error: &Error) -> bool {
    matches!(error, Error::Filesystem(filesystem::Error::Replaced { .. }))
}

fn next_after(error: &Error) -> Option<String> {
    let next = match error {
        Error::Corrupt(_) | Error::Inconsistent { .. } => {
            "nothing was changed; `foldlog verify` lists all damage; take the session from a copy, or what is sound of it \
             by `foldlog salvage SESSION --to DIR`"
        }
        Error::OlderThanSuccessor { .. } => {
            "if this is a copy, copy the session again: its segments from the newest to the oldest, then its objects; else \
             take what is sound of it by `foldlog salvage SESSION --to DIR`"
        }
        Error::MissingSegment { .. } => {
            "put the segment file back from the session, or copy it again if this is a copy: the segments from the newest to \
             the oldest, then the objects; or take what is before it by `foldlog salvage SESSION --to DIR`"
        }
        Error::WrongSession { .. } => "the file or folder was exchanged or renamed: put it back where it was",
        Error::Object { .. } => "put the file back into the session's `objects` folder from a copy",
        Error::NotASession { path, .. } if path.join("sessions").is_dir() => {
            return Some(format!(
                "this is a store: `foldlog sessions {}` lists its sessions",
                escape::path(path)
            ));
        }
        Error::NotASession { .. } | Error::NoSuchSession { .. } => {
            "give the folder of a session: STORE/sessions/ID; `foldlog sessions STORE` lists them"
        }
        Error::NotAFile { .. } => {
            "it was not opened; put the file back in its place from the session, and let nobody else write into the store"
        }
        Error::FutureFormat { .. } => "read it with a newer version of foldlog",
        Error::NoSuchPosition { .. } => "`foldlog show` lists the positions",
        Error::NoSuchOperation { reason, .. } if reason.contains("recover the session") => {
            "its host recovers it, or `foldlog recover SESSION --workspace NAME=DIR` does"
        }
        Error::Filesystem(filesystem::Error::Replaced { .. }) => {
            "nothing was changed; give the folder that the call worked on, or have another one take its place: `foldlog \
             recover SESSION --rebind NAME=DIR`, where DIR is empty, or may be emptied by --overwrite"
        }
        Error::ResourceDirty { session_dir, .. } | Error::ResourceMaybeDirty { session_dir, .. } => {
            return Some(format!(
                "recover {} before; where its mark on the workspace is not true, `foldlog recover SESSION --workspace DIR \
                 --force` removes it",
                session_dir.display()
            ));
        }
        Error::RestoreFailed { failed, .. } if failed.iter().any(|(_, error)| is_replaced(error)) => {
            return failed.iter().find_map(|(_, error)| next_after(error));
        }
        Error::RestoreFailed { .. } | Error::SnapshotMismatch(_) => {
            "nothing is ended; see to what it names and recover again, by the host where it is no workspace"
        }
        Error::NoSuchOperation { .. } => {
            "`foldlog ledger SESSION` lists the operations and what became of them"
        }
        Error::WithinSession { .. } => "give the folder of another store",
        Error::Locked { .. } => "wait for the other process, or close the session there",
        Error::OverBudget { .. } => "allow more by `--memory BYTES`, if the log is to be trusted",
        Error::Full { .. } => "make space and try again",
        Error::Io { .. } => "check the path and its permissions",
        _ => return None,
    };
    Some(next.to_owned())
}

//! Errors of documents, reports and the server, each with the next step for a person.

use std::io;
use std::path::PathBuf;

use foldlog::{Error as EngineError, filesystem, inspect};
use foldlog_codec::escape;

use crate::bucket::bucket_at;
use crate::shell::quote_word;

/// Result with the [`Error`] of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of a document, a report or an answer of the server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine reported an error.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The output could not be written.
    #[error("the output cannot be written: {0}")]
    Output(io::Error),
    /// A log is corrupt or diverged. The text contains the place.
    #[error("{0}")]
    DoesNotHold(String),
    /// An argument names something that does not exist or has another type.
    #[error("{what}")]
    Usage {
        /// The wrong argument, and the reason.
        what: String,
        /// The next step.
        next: String,
    },
    /// The session was deleted while it was read.
    #[error("session {} was deleted while it was read", escape::path(path))]
    Deleted {
        /// Directory of the session.
        path: PathBuf,
    },
    /// A file or directory could not be used.
    #[error("{}: {source}", escape::path(path))]
    File {
        /// The file or directory.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl From<filesystem::Error> for Error {
    fn from(error: filesystem::Error) -> Error {
        Error::Engine(error.into())
    }
}

impl From<io::Error> for Error {
    /// Converts an error of the output. Errors of other files are [`Error::File`], which names the
    /// file.
    fn from(error: io::Error) -> Error {
        Error::Output(error)
    }
}

impl Error {
    /// Creates an [`Error::Usage`]: `what` is wrong, and `next` is the next step.
    pub fn usage(what: impl Into<String>, next: impl Into<String>) -> Error {
        Error::Usage { what: what.into(), next: next.into() }
    }

    /// Returns whether a log is intact but exceeds its reader's memory limit.
    #[cfg(feature = "server")]
    pub(crate) fn is_over_budget(&self) -> bool {
        matches!(self, Error::Engine(EngineError::OverBudget { .. }))
    }

    /// Returns the error's text, followed by the next step.
    #[cfg(feature = "server")]
    pub(crate) fn with_next(&self) -> String {
        self.next().map_or_else(|| self.to_string(), |next| format!("{self}; {next}"))
    }

    /// Returns the next step; `None` if there is none.
    pub fn next(&self) -> Option<String> {
        let next = match self {
            Error::Engine(error) => return next_after(error),
            Error::Usage { next, .. } => return Some(next.clone()),
            Error::Output(_) => return None,
            Error::Deleted { .. } => "`foldlog sessions STORE` lists the existing sessions",
            Error::DoesNotHold(_) => {
                "nothing was changed; leave the directory unchanged, and use a backup of the session, or copy \
                 its intact part: `foldlog salvage SESSION --to STORE`"
            }
            Error::File { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => {
                "give another path, or replace the existing file with --force"
            }
            Error::File { .. } => "check the path and its permissions",
        };
        Some(next.to_owned())
    }
}

/// Advice for a session whose newest parts are missing.
pub const COPY_AGAIN: &str = "if this is a copy, make another with `foldlog backup ORIGINAL --to STORE`, \
     which works while the session is written; otherwise copy its intact part: `foldlog salvage SESSION --to \
     STORE`";

fn is_replaced(error: &EngineError) -> bool {
    matches!(error, EngineError::Filesystem(filesystem::Error::Replaced { .. }))
}

fn is_damaged_object(error: &EngineError) -> bool {
    matches!(error, EngineError::Filesystem(filesystem::Error::Object { .. }))
}

/// Returns the next step after an error of the engine; `None` if there is none.
pub fn next_after(error: &EngineError) -> Option<String> {
    let next = match error {
        // The damaged session may differ from the one on the command line.
        EngineError::Corrupt(corruption) => {
            let dir = corruption.segment.parent().map(|dir| quote_word(dir.as_os_str()));
            let dir = dir.unwrap_or_else(|| "SESSION".to_owned());
            return Some(format!(
                "nothing was changed; `foldlog verify {dir}` lists all damage; use a backup of the session, \
                 or copy its intact part: `foldlog salvage {dir} --to STORE`"
            ));
        }
        EngineError::Inconsistent { .. } => {
            "nothing was changed; `foldlog verify SESSION` lists all damage; use a backup of the session, or \
             copy its intact part: `foldlog salvage SESSION --to STORE`"
        }
        EngineError::NotACopy { .. } => {
            "nothing was changed; keep the existing copy, and copy into another directory; `foldlog diff \
             SESSION --with OTHER` shows where the two diverge"
        }
        EngineError::OlderThanSuccessor { .. } => COPY_AGAIN,
        EngineError::MissingSegment { .. } => {
            "if this is a copy, copy the session again: its segments from the newest to the oldest, then its \
             objects; otherwise restore the segment from a backup, or copy the records before it: `foldlog \
             salvage SESSION --to STORE`"
        }
        EngineError::WrongSession { .. } => {
            "move the file or directory back to its place: it was exchanged or renamed"
        }
        EngineError::Object { .. } => {
            "restore the file in the session's `objects` directory from a backup; if this is a copy, make \
             another: `foldlog backup ORIGINAL --to STORE`"
        }
        EngineError::NotASession { path, .. } if let Some(url) = bucket_at(path) => {
            return Some(format!(
                "this directory contains a bucket; give its URL: {}",
                quote_word(url.as_ref())
            ));
        }
        EngineError::NotASession { path, .. } if inspect::is_store(path) => {
            return Some(format!(
                "this is a store: `foldlog sessions {}` lists its sessions",
                quote_word(path.as_os_str())
            ));
        }
        EngineError::NotASession { .. } | EngineError::NoSuchSession { .. } => {
            "give the directory of a session: STORE/sessions/ID; `foldlog sessions STORE` lists them"
        }
        EngineError::NotAFile { .. } => {
            "it was not opened; restore the session's own file, and deny other users write access to the store"
        }
        EngineError::FutureFormat { .. } | EngineError::FutureCompression { .. } => {
            "read the session with a newer version of foldlog"
        }
        EngineError::CompressionUnavailable { .. } => {
            "build foldlog with the feature `compression`, or decompress the segments with a foldlog that has \
             it: `foldlog compact SESSION --keep all --compress none`"
        }
        EngineError::InsideTransaction { .. } => {
            "`foldlog ledger SESSION` shows the start and end records of the operation: give the position \
             before the start, or that of the end"
        }
        EngineError::Compacted { .. } => {
            "`foldlog compact` keeps the positions of tagged snapshots, which `foldlog show SESSION --kind \
             snapshot` lists; forks and backups from before the compaction contain the others"
        }
        EngineError::Collected { .. } => {
            "`foldlog gc` keeps the captures of the latest calls and of tagged snapshots; backups from before the collection contain the others"
        }
        EngineError::NoSuchPosition { .. } => "`foldlog show SESSION` lists the positions",
        EngineError::NoRewind(_) => {
            "`foldlog ledger SESSION` lists the operations: only one named `foldlog.restore`, or one whose \
             rollback replaced files, can be undone"
        }
        EngineError::NoSuchOperation { reason, .. } if reason.contains("recover the session") => {
            "let its host recover it, or run `foldlog recover SESSION`, with `--workspace` for each of its directories"
        }
        EngineError::Filesystem(filesystem::Error::Replaced { .. }) => {
            "no file was changed; give the session's own directory, or a replacement with `--rebind` of \
             `foldlog recover`, `task restore` or `rewind`: it must be empty, or `--overwrite` removes its files"
        }
        EngineError::ResourceDirty { session_dir, .. }
        | EngineError::ResourceMaybeDirty { session_dir, .. } => {
            return Some(format!(
                "recover {} first; if its mark on the workspace is wrong, `foldlog recover {} --force` \
                 removes the mark, with `--workspace` for the directory",
                escape::path(session_dir),
                quote_word(session_dir.as_os_str())
            ));
        }
        EngineError::Uncaptured { .. } => {
            "the call remains open; free disk space, or fix the reported problem, and recover again; or \
             recover with `--without-capture`, which discards the changes since the start of the call"
        }
        EngineError::RestoreFailed { failed, .. } if failed.iter().any(|(_, error)| is_replaced(error)) => {
            return failed.iter().find_map(|(_, error)| next_after(error));
        }
        EngineError::RestoreFailed { failed, .. }
            if failed.iter().any(|(_, error)| is_damaged_object(error)) =>
        {
            "the call remains open; restore the file to its content before the call, or the object from a \
             backup of the store, then run `foldlog recover SESSION --workspace DIR`, or the same `foldlog \
             run` with `--resume` if `run` started it"
        }
        EngineError::RestoreFailed { .. } | EngineError::SnapshotMismatch(_) => {
            "the call remains open; remove the obstacle, then run `foldlog recover SESSION --workspace DIR`, \
             or the same `foldlog run` with `--resume` if `run` started it; only the host can restore a \
             resource that is not a directory"
        }
        EngineError::NoSuchOperation { .. } => {
            "`foldlog ledger SESSION` lists the operations and their outcomes"
        }
        EngineError::WithinSession { .. } => "give a directory outside of the session",
        EngineError::WithinStore { .. } => "give a directory outside of the store",
        EngineError::Replicated { .. } => {
            "let its host do this, with the replicator; or add --unreplicated: the new records then count \
             only if no other worker has continued the session"
        }
        EngineError::ReplicaElsewhere { .. } => {
            "give the place that the log names; or add --unreplicated to replicate the session to this place \
             from now on"
        }
        EngineError::Locked { .. } => "wait for the other process, or close the session there",
        EngineError::OverBudget { .. } => "allow more with `--memory BYTES`, if you trust the log",
        EngineError::Full { .. } => "free disk space, and try again",
        EngineError::NoHandle { .. } => {
            "close other files, or let the process open more (`ulimit -n`), and try again"
        }
        EngineError::Io { .. } => "check the path and its permissions",
        _ => return None,
    };
    Some(next.to_owned())
}

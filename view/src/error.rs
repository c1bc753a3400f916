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
            Error::Deleted { .. } => AFTER_DELETION,
            Error::DoesNotHold(_) => AFTER_DAMAGE,
            Error::File { source, .. } => next_after_file(source),
        };
        Some(next.to_owned())
    }
}

/// Advice for a session that was deleted while it was read.
pub const AFTER_DELETION: &str = "`foldlog sessions STORE` lists the sessions that are there";

/// Advice for a log that is corrupt or diverged.
pub const AFTER_DAMAGE: &str = "nothing was changed; keep the directory as it is, and take the session from a copy, or copy its sound part: \
                                `foldlog salvage SESSION --to STORE`";

/// Returns the next step after an error of a file or directory.
pub fn next_after_file(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AlreadyExists => "name another place, or replace what is there by --force",
        _ => "check the path and its permissions",
    }
}

/// Advice for a session whose newest parts are missing.
pub const COPY_AGAIN: &str = "if this is a copy, take another by `foldlog backup SESSION --to STORE`, which copies a session while it is \
                          written; if it is not, or as of an earlier moment, copy its sound part: `foldlog salvage SESSION --to STORE`";

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
                "nothing was changed; `foldlog verify {dir}` lists all damage; take the session from a copy, or copy its sound part: \
                 `foldlog salvage {dir} --to STORE`"
            ));
        }
        EngineError::Inconsistent { .. } => {
            "nothing was changed; `foldlog verify SESSION` lists all damage; take the session from a copy, or copy its \
             sound part: `foldlog salvage SESSION --to STORE`"
        }
        EngineError::NotACopy { .. } => {
            "nothing was changed; keep what is there, and copy into another directory; `foldlog diff SESSION --with OTHER` shows \
             where the two part"
        }
        EngineError::OlderThanSuccessor { .. } => COPY_AGAIN,
        EngineError::MissingSegment { .. } => {
            "if this is a copy, copy the session again: its segments from the newest to the oldest, then its objects; if \
             it is not, put the segment back from a copy, or copy what is before it: `foldlog salvage SESSION --to STORE`"
        }
        EngineError::WrongSession { .. } => {
            "put the file or directory back where it was: it was exchanged or renamed"
        }
        EngineError::Object { .. } => {
            "put the file back into the session's `objects` directory from a copy; if this is a copy itself, \
             `foldlog backup SESSION --to STORE` takes one while the session is written"
        }
        EngineError::NotASession { path, .. } if let Some(url) = bucket_at(path) => {
            return Some(format!(
                "a bucket is in that directory; give its URL: {}",
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
            "it was not opened; put the session's own file back in its place, and let nobody else write into the store"
        }
        EngineError::FutureFormat { .. } | EngineError::FutureCompression { .. } => {
            "read the session with a newer version of foldlog"
        }
        EngineError::CompressionUnavailable { .. } => {
            "build foldlog with its feature `compression`, or make the segments plain again with a foldlog that has it: `foldlog compact \
             SESSION --keep all --compress none`"
        }
        EngineError::InsideTransaction { .. } => {
            "`foldlog ledger SESSION` shows where its operation begins and ends: give the position before its begin, or that of its end"
        }
        EngineError::Compacted { .. } => {
            "`foldlog compact` keeps the positions of snapshots that have a tag, which `foldlog show SESSION --kind snapshot` lists; a fork or a \
             backup that was made before the compaction has the others"
        }
        EngineError::Collected { .. } => {
            "`foldlog gc` keeps the captures of the latest calls and of snapshots that have a tag; a backup made before it has the others"
        }
        EngineError::NoSuchPosition { .. } => "`foldlog show SESSION` lists the positions",
        EngineError::NoRewind(_) => {
            "`foldlog ledger SESSION` lists the operations; those named `foldlog.restore` go back, and of those that were rolled back it \
             names what that replaced"
        }
        EngineError::NoSuchOperation { reason, .. } if reason.contains("recover the session") => {
            "let its host recover it, or do so by `foldlog recover SESSION`, with `--workspace` for each directory that it works on"
        }
        EngineError::Filesystem(filesystem::Error::Replaced { .. }) => {
            "no file was changed; give the directory that the session worked on, or another one that takes its place, by `--rebind` \
             of `foldlog recover`, `restore` or `rewind`: that is empty, or `--overwrite` removes its files"
        }
        EngineError::ResourceDirty { session_dir, .. }
        | EngineError::ResourceMaybeDirty { session_dir, .. } => {
            return Some(format!(
                "recover {} first; if its mark on the workspace is not true, `foldlog recover {} --force` removes the mark, with \
                 `--workspace` for the directory",
                escape::path(session_dir),
                quote_word(session_dir.as_os_str())
            ));
        }
        EngineError::Uncaptured { .. } => {
            "the call stays open; make room, or what else is said to be missing, and recover again; or recover with `--without-capture`: what \
             is there now and was changed since the call began is lost then"
        }
        EngineError::RestoreFailed { failed, .. } if failed.iter().any(|(_, error)| is_replaced(error)) => {
            return failed.iter().find_map(|(_, error)| next_after(error));
        }
        EngineError::RestoreFailed { failed, .. }
            if failed.iter().any(|(_, error)| is_damaged_object(error)) =>
        {
            "the call stays open; write the file as it was before the call, or bring the object back from a copy of the store, then \
             `foldlog recover SESSION --workspace DIR`, or the same `foldlog run` with `--resume` if `run` began it"
        }
        EngineError::RestoreFailed { .. } | EngineError::SnapshotMismatch(_) => {
            "the call stays open; remove what is in the way, then `foldlog recover SESSION --workspace DIR`, or the same `foldlog run` with \
             `--resume` if `run` began it; a resource that is not a directory only the host can restore"
        }
        EngineError::NoSuchOperation { .. } => {
            "`foldlog ledger SESSION` lists the operations and what became of them"
        }
        EngineError::WithinSession { .. } => "give a directory outside of the session",
        EngineError::WithinStore { .. } => "give a directory outside of the store",
        EngineError::Replicated { .. } => {
            "let its host do it, with the replicator; or add --unreplicated: what is written then counts only if no other worker has gone on \
             with the session"
        }
        EngineError::ReplicaElsewhere { .. } => {
            "give the place that the log names; or add --unreplicated, and this one holds the session from now on"
        }
        EngineError::Locked { .. } => "wait for the other process, or close the session there",
        EngineError::OverBudget { .. } => "allow more by `--memory BYTES`, if you trust the log",
        EngineError::Full { .. } => "free disk space, and try again",
        EngineError::NoHandle { .. } => {
            "close other files, or let the process open more (`ulimit -n`), and try again"
        }
        EngineError::Io { .. } => "check the path and its permissions",
        _ => return None,
    };
    Some(next.to_owned())
}

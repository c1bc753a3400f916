//! Reasons for which a verb ends early, each with its exit code and what to do next.

use std::io;
use std::path::PathBuf;

use foldlog::{Error, filesystem, inspect};
use foldlog_codec::escape;
use foldlog_tasks::{DamagedFile, FileDamage};

use crate::remote;
use crate::verbs::run::quoted;

/// Holds what a verb came to, or why it ended early.
pub type Result<T, E = CommandError> = std::result::Result<T, E>;

/// Exit code if what was asked holds.
pub const HOLDS: u8 = 0;
/// Exit code if a log is corrupt or diverged.
pub const DOES_NOT_HOLD: u8 = 1;
/// Exit code for wrong usage, and for what cannot be read.
pub const UNUSABLE: u8 = 2;

/// Returns the worse of two exit codes: damage outranks what cannot be read.
pub(crate) fn worse(code: u8, other: u8) -> u8 {
    if code == DOES_NOT_HOLD { code } else { other }
}

/// Says why a verb ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The engine reported an error.
    #[error(transparent)]
    Engine(#[from] Error),
    /// The output could not be written.
    #[error("the output cannot be written: {0}")]
    Output(io::Error),
    /// A log is corrupt or diverged. The text says where; what was printed before says more.
    #[error("{0}")]
    DoesNotHold(String),
    /// Captures of workspaces are damaged, and no log is.
    #[error("{0}")]
    DamagedCaptures(String),
    /// A session lacks what was younger when it was copied, and nothing else is wrong.
    #[error("{0}, as in a copy that was taken while the session was written")]
    Incomplete(String),
    /// What a place holds of a session does not verify. The text says where.
    #[error("{0}")]
    Held(String),
    /// An argument names something that is not there, or is of another kind.
    #[error("{what}")]
    Usage {
        /// Which argument is wrong, and why.
        what: String,
        /// What to do next.
        next: String,
    },
    /// The session was deleted while it was read.
    #[error("session {} was deleted while it was read", escape::path(path))]
    Deleted {
        /// Folder of the session.
        path: PathBuf,
    },
    /// The process could not wait for further records.
    #[error("cannot wait for further records: {0}")]
    Wait(io::Error),
    /// A file or folder could not be used.
    #[error("{}: {source}", escape::path(path))]
    File {
        /// The file or folder.
        path: PathBuf,
        /// Answer of the system.
        source: io::Error,
    },
    /// A file to import holds something else than runs.
    #[error("{}{}: {reason}", escape::path(path), run.map(|run| format!(", run {run}")).unwrap_or_default())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The malformed run in it, counted from 0; `None` if the file as a whole is malformed.
        run: Option<usize>,
        /// What is wrong.
        reason: String,
    },
    /// A run of an agent gave no answer. It can be resumed.
    #[error("{}", crate::verbs::run::failure_text(error))]
    Run {
        /// What the run met.
        error: Box<foldlog_agent::Error>,
        /// What to do next, with the command that resumes the run.
        next: String,
    },
    /// A checkpoint, a recovery or a tree of files of long-running work is not as it should be.
    #[error(transparent)]
    Tasks(foldlog_tasks::Error),
    /// The demo's child process could not be run.
    #[error("the demo's child process cannot be run: {0}")]
    Child(io::Error),
}

impl From<filesystem::Error> for CommandError {
    fn from(error: filesystem::Error) -> CommandError {
        CommandError::Engine(error.into())
    }
}

/// What to do about a session that lacks what is younger than the rest.
const COPY_AGAIN: &str = "if this is a copy, take another by `foldlog backup SESSION --to STORE`, which copies a session while it is \
                          written; if it is not, or as of an earlier moment, copy its sound part: `foldlog salvage SESSION --to STORE`";

impl From<foldlog_tasks::Error> for CommandError {
    fn from(error: foldlog_tasks::Error) -> CommandError {
        match error {
            foldlog_tasks::Error::Engine(error) => CommandError::Engine(error),
            error => CommandError::Tasks(error),
        }
    }
}

impl From<io::Error> for CommandError {
    /// Reports an error of the output. Errors of other files are [`CommandError::File`], which names the file.
    fn from(error: io::Error) -> CommandError {
        CommandError::Output(error)
    }
}

impl CommandError {
    /// Reports wrong usage: `what` is wrong, and what to do `next`.
    pub fn usage(what: impl Into<String>, next: impl Into<String>) -> CommandError {
        CommandError::Usage { what: what.into(), next: next.into() }
    }

    /// Returns whether the reader of the output closed it early, which is no error.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, CommandError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Returns whether a log is sound, and takes more memory than its reader may.
    #[cfg(feature = "view")]
    pub(crate) fn is_over_budget(&self) -> bool {
        matches!(self, CommandError::Engine(Error::OverBudget { .. }))
    }

    /// Returns what happened, and behind it what to do next.
    #[cfg(feature = "view")]
    pub(crate) fn with_next(&self) -> String {
        self.next().map_or_else(|| self.to_string(), |next| format!("{self}; {next}"))
    }

    /// Returns the exit code of a verb that ended for this reason.
    pub fn exit_code(&self) -> u8 {
        match self {
            CommandError::DoesNotHold(_)
            | CommandError::DamagedCaptures(_)
            | CommandError::Incomplete(_)
            | CommandError::Held(_) => DOES_NOT_HOLD,
            CommandError::Engine(error) if error.is_damage() => DOES_NOT_HOLD,
            CommandError::Run { error, .. } if matches!(&**error, foldlog_agent::Error::Engine(error) if error.is_damage()) => {
                DOES_NOT_HOLD
            }
            CommandError::Tasks(
                foldlog_tasks::Error::Damaged { .. } | foldlog_tasks::Error::CheckpointMismatch { .. },
            ) => DOES_NOT_HOLD,
            failure if failure.is_closed_pipe() => HOLDS,
            _ => UNUSABLE,
        }
    }

    /// Returns what to do next, if there is something to be done.
    pub fn next(&self) -> Option<String> {
        let next = match self {
            CommandError::Engine(error) => return next_after(error),
            CommandError::Usage { next, .. } | CommandError::Run { next, .. } => return Some(next.clone()),
            CommandError::Output(_) | CommandError::Wait(_) => return None,
            CommandError::Deleted { .. } => "`foldlog sessions STORE` lists the sessions that are there",
            CommandError::DoesNotHold(_) => {
                "nothing was changed; keep the folder as it is, and take the session from a copy, or copy its sound part: \
                 `foldlog salvage SESSION --to STORE`"
            }
            CommandError::DamagedCaptures(_) => {
                "nothing was changed; the logs are sound: put these files back from a backup, which has them under the same names, or \
                 `foldlog backup SESSION --to STORE` copies the session with all captures that are sound; only what goes back to the \
                 others fails"
            }
            CommandError::Incomplete(_) => COPY_AGAIN,
            CommandError::Held(_) => {
                "nothing was changed; keep the place as it is: whoever wrote the session may have all of it in a store"
            }
            CommandError::File { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => {
                "name another place, or replace what is there by --force"
            }
            CommandError::File { .. } => "check the path and its permissions",
            CommandError::Tasks(error) => after_tasks(error),
            CommandError::Malformed { .. } => "nothing was imported; correct the file and import again",
            CommandError::Child(_) => "run the demo where processes can be started",
        };
        Some(next.to_owned())
    }
}

fn after_tasks(error: &foldlog_tasks::Error) -> &'static str {
    use foldlog_tasks::Error::{
        CheckpointMismatch, CheckpointRemoved, Damaged, Impossible, NoCheckpoint, NoSuchCheckpoint, NoTree,
    };
    match error {
        Damaged { files, .. } if files.iter().any(DamagedFile::is_manifest) => {
            "nothing was changed; nothing vouches for the other files: export the session again, or take the tree from a copy"
        }
        Damaged { files, .. }
            if files.iter().any(|file| matches!(file.damage, FileDamage::TooLong { .. })) =>
        {
            "nothing was changed; allow more by `--memory BYTES`, if you trust the tree: half of it may be files"
        }
        Damaged { .. } => {
            "nothing was changed; export the session again, or take the tree from a copy; `foldlog import aca DIR --store \
             STORE --partial` tells what its sound files yield"
        }
        NoCheckpoint | NoSuchCheckpoint { .. } | CheckpointRemoved { .. } => {
            "`foldlog checkpoints SESSION` lists them"
        }
        CheckpointMismatch { .. } | Impossible { .. } => {
            "nothing was changed; `foldlog recover SESSION --strategies` tells what can be brought back"
        }
        NoTree { .. } => {
            "give a folder that holds `.aca`, or the folder of a session in one: `.aca/sessions/ID`"
        }
        _ => "check the folder and its permissions",
    }
}

fn is_replaced(error: &Error) -> bool {
    matches!(error, Error::Filesystem(filesystem::Error::Replaced { .. }))
}

fn is_damaged_object(error: &Error) -> bool {
    matches!(error, Error::Filesystem(filesystem::Error::Object { .. }))
}

pub(crate) fn next_after(error: &Error) -> Option<String> {
    let next = match error {
        // The damaged session may be another one than that of the command line.
        Error::Corrupt(corruption) => {
            let dir = corruption.segment.parent().map(|dir| quoted(dir.as_os_str()));
            let dir = dir.unwrap_or_else(|| "SESSION".to_owned());
            return Some(format!(
                "nothing was changed; `foldlog verify {dir}` lists all damage; take the session from a copy, or copy its sound part: \
                 `foldlog salvage {dir} --to STORE`"
            ));
        }
        Error::Inconsistent { .. } => {
            "nothing was changed; `foldlog verify SESSION` lists all damage; take the session from a copy, or copy its \
             sound part: `foldlog salvage SESSION --to STORE`"
        }
        Error::NotACopy { .. } => {
            "nothing was changed; keep what is there, and copy into another folder; `foldlog diff SESSION --with OTHER` shows \
             where the two part"
        }
        Error::OlderThanSuccessor { .. } => COPY_AGAIN,
        Error::MissingSegment { .. } => {
            "if this is a copy, copy the session again: its segments from the newest to the oldest, then its objects; if \
             it is not, put the segment back from a copy, or copy what is before it: `foldlog salvage SESSION --to STORE`"
        }
        Error::WrongSession { .. } => "put the file or folder back where it was: it was exchanged or renamed",
        Error::Object { .. } => {
            "put the file back into the session's `objects` folder from a copy; if this is a copy itself, \
             `foldlog backup SESSION --to STORE` takes one while the session is written"
        }
        Error::NotASession { path, .. } if let Some(url) = remote::bucket_at(path) => {
            return Some(format!("a bucket is in that folder; give its URL: {}", quoted(url.as_ref())));
        }
        Error::NotASession { path, .. } if inspect::is_store(path) => {
            return Some(format!(
                "this is a store: `foldlog sessions {}` lists its sessions",
                quoted(path.as_os_str())
            ));
        }
        Error::NotASession { .. } | Error::NoSuchSession { .. } => {
            "give the folder of a session: STORE/sessions/ID; `foldlog sessions STORE` lists them"
        }
        Error::NotAFile { .. } => {
            "it was not opened; put the session's own file back in its place, and let nobody else write into the store"
        }
        Error::FutureFormat { .. } | Error::FutureCompression { .. } => {
            "read the session with a newer version of foldlog"
        }
        Error::CompressionUnavailable { .. } => {
            "build foldlog with its feature `compression`, or make the segments plain again with a foldlog that has it: `foldlog compact \
             SESSION --keep all --compress none`"
        }
        Error::InsideTransaction { .. } => {
            "`foldlog ledger SESSION` shows where its operation begins and ends: give the position before its begin, or that of its end"
        }
        Error::Compacted { .. } => {
            "`foldlog compact` keeps the positions of snapshots that have a tag, which `foldlog show SESSION --kind snapshot` lists; a fork or a \
             backup that was made before the compaction has the others"
        }
        Error::Collected { .. } => {
            "`foldlog gc` keeps the captures of the latest calls and of snapshots that have a tag; a backup made before it has the others"
        }
        Error::NoSuchPosition { .. } => "`foldlog show SESSION` lists the positions",
        Error::NoRewind(_) => {
            "`foldlog ledger SESSION` lists the operations; those named `foldlog.restore` go back, and of those that were rolled back it \
             names what that replaced"
        }
        Error::NoSuchOperation { reason, .. } if reason.contains("recover the session") => {
            "let its host recover it, or do so by `foldlog recover SESSION`, with `--workspace` for each folder that it works on"
        }
        Error::Filesystem(filesystem::Error::Replaced { .. }) => {
            "no file was changed; give the folder that the session worked on, or another one that takes its place, by `--rebind` \
             of `foldlog recover`, `restore` or `rewind`: that is empty, or `--overwrite` removes its files"
        }
        Error::ResourceDirty { session_dir, .. } | Error::ResourceMaybeDirty { session_dir, .. } => {
            return Some(format!(
                "recover {} first; if its mark on the workspace is not true, `foldlog recover {} --force` removes the mark, with \
                 `--workspace` for the folder",
                escape::path(session_dir),
                quoted(session_dir.as_os_str())
            ));
        }
        Error::Uncaptured { .. } => {
            "the call stays open; make room, or what else is said to be missing, and recover again; or recover with `--without-capture`: what \
             is there now and was changed since the call began is lost then"
        }
        Error::RestoreFailed { failed, .. } if failed.iter().any(|(_, error)| is_replaced(error)) => {
            return failed.iter().find_map(|(_, error)| next_after(error));
        }
        Error::RestoreFailed { failed, .. } if failed.iter().any(|(_, error)| is_damaged_object(error)) => {
            "the call stays open; write the file as it was before the call, or bring the object back from a copy of the store, then \
             `foldlog recover SESSION --workspace DIR`, or the same `foldlog run` with `--resume` if `run` began it"
        }
        Error::RestoreFailed { .. } | Error::SnapshotMismatch(_) => {
            "the call stays open; remove what is in the way, then `foldlog recover SESSION --workspace DIR`, or the same `foldlog run` with \
             `--resume` if `run` began it; a resource that is not a folder only the host can restore"
        }
        Error::NoSuchOperation { .. } => {
            "`foldlog ledger SESSION` lists the operations and what became of them"
        }
        Error::WithinSession { .. } => "give a folder outside of the session",
        Error::WithinStore { .. } => "give a folder outside of the store",
        Error::Replicated { .. } => {
            "let its host do it, with the replicator; or add --unreplicated: what is written then counts only if no other worker has gone on \
             with the session"
        }
        Error::ReplicaElsewhere { .. } => {
            "give the place that the log names; or add --unreplicated, and this one holds the session from now on"
        }
        Error::Locked { .. } => "wait for the other process, or close the session there",
        Error::OverBudget { .. } => "allow more by `--memory BYTES`, if you trust the log",
        Error::Full { .. } => "free disk space, and try again",
        Error::NoHandle { .. } => {
            "close other files, or let the process open more (`ulimit -n`), and try again"
        }
        Error::Io { .. } => "check the path and its permissions",
        _ => return None,
    };
    Some(next.to_owned())
}

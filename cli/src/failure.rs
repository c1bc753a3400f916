//! Errors that end a verb early, each with its exit code and the next step.

use std::io;
use std::path::PathBuf;

use foldlog::{Error, filesystem};
use foldlog_codec::escape;
use foldlog_tasks::{DamagedFile, FileDamage};
use foldlog_view::error::{AFTER_DAMAGE, AFTER_DELETION, COPY_AGAIN, next_after, next_after_file};

/// Result of a verb, or the error that ended it early.
pub type Result<T, E = CommandError> = std::result::Result<T, E>;

/// Exit code of success.
pub const HOLDS: u8 = 0;
/// Exit code if checked data does not hold: a log, captures of workspaces, a checkpoint, a tree of
/// files or the data of a place is damaged or incomplete, a replay diverges from its log, or
/// `task validate` finds a critical issue.
pub const DOES_NOT_HOLD: u8 = 1;
/// Exit code for wrong usage and unreadable input.
pub const UNUSABLE: u8 = 2;

/// Returns the worse of two exit codes: damage outranks unreadable input.
pub(crate) fn worse(code: u8, other: u8) -> u8 {
    if code == DOES_NOT_HOLD { code } else { other }
}

/// Error that ended a verb early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The engine reported an error.
    #[error(transparent)]
    Engine(#[from] Error),
    /// The output could not be written.
    #[error("the output cannot be written: {0}")]
    Output(io::Error),
    /// A log is corrupt or diverged. The text contains the place; the output before it has details.
    #[error("{0}")]
    DoesNotHold(String),
    /// Captures of workspaces are damaged, but no log is.
    #[error("{0}")]
    DamagedCaptures(String),
    /// A session lacks its newest parts, as in a copy that was taken while the session was written.
    /// Nothing else is wrong.
    #[error("{0}, as in a copy that was taken while the session was written")]
    Incomplete(String),
    /// A place's data of a session does not verify. The text contains the place.
    #[error("{0}")]
    Held(String),
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
    /// The process could not wait for further records.
    #[error("cannot wait for further records: {0}")]
    Wait(io::Error),
    /// A file or directory could not be used.
    #[error("{}: {source}", escape::path(path))]
    File {
        /// The file or directory.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file to import contains no valid runs.
    #[error("{}{}: {reason}", escape::path(path), run.map(|run| format!(", run {run}")).unwrap_or_default())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The malformed run in it, counted from 0; `None` if the file as a whole is malformed.
        run: Option<usize>,
        /// Reason why it is malformed.
        reason: String,
    },
    /// A run of an agent gave no answer. It can be resumed.
    #[error("{}", crate::run_failure::failure_text(error))]
    Run {
        /// Error of the run.
        error: Box<foldlog_agent::Error>,
        /// The next step, with the command that resumes the run.
        next: String,
    },
    /// A checkpoint, a recovery or a tree of files of long-running work is invalid.
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

impl From<foldlog_view::Error> for CommandError {
    fn from(error: foldlog_view::Error) -> CommandError {
        match error {
            foldlog_view::Error::Engine(error) => CommandError::Engine(error),
            foldlog_view::Error::Output(error) => CommandError::Output(error),
            foldlog_view::Error::DoesNotHold(text) => CommandError::DoesNotHold(text),
            foldlog_view::Error::Usage { what, next } => CommandError::Usage { what, next },
            foldlog_view::Error::Deleted { path } => CommandError::Deleted { path },
            foldlog_view::Error::File { path, source } => CommandError::File { path, source },
        }
    }
}

impl From<foldlog_tasks::Error> for CommandError {
    fn from(error: foldlog_tasks::Error) -> CommandError {
        match error {
            foldlog_tasks::Error::Engine(error) => CommandError::Engine(error),
            error => CommandError::Tasks(error),
        }
    }
}

impl From<io::Error> for CommandError {
    /// Converts an error of the output. Errors of other files are [`CommandError::File`], which
    /// names the file.
    fn from(error: io::Error) -> CommandError {
        CommandError::Output(error)
    }
}

impl CommandError {
    /// Creates a [`CommandError::Usage`]: `what` is wrong, and `next` is the next step.
    pub fn usage(what: impl Into<String>, next: impl Into<String>) -> CommandError {
        CommandError::Usage { what: what.into(), next: next.into() }
    }

    /// Returns whether the reader of the output closed it early, which is no error.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, CommandError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Returns the exit code for this error.
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

    /// Returns the next step; `None` if there is none.
    pub fn next(&self) -> Option<String> {
        let next = match self {
            CommandError::Engine(error) => return next_after(error),
            CommandError::Usage { next, .. } | CommandError::Run { next, .. } => return Some(next.clone()),
            CommandError::Output(_) | CommandError::Wait(_) => return None,
            CommandError::Deleted { .. } => AFTER_DELETION,
            CommandError::DoesNotHold(_) => AFTER_DAMAGE,
            CommandError::DamagedCaptures(_) => {
                "the logs are intact; restore these files from a backup, which contains them under the same names; `foldlog backup \
                 SESSION --to STORE` copies a session with all its intact captures: only restores from damaged captures fail there"
            }
            CommandError::Incomplete(_) => COPY_AGAIN,
            CommandError::Held(_) => {
                "nothing was changed; leave this data unchanged: the worker that wrote the session may have all of it in its store"
            }
            CommandError::File { source, .. } => next_after_file(source),
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
            "nothing was changed; without an intact manifest the other files cannot be checked: export the session again, or \
             take the tree from a copy"
        }
        Damaged { files, .. }
            if files.iter().any(|file| matches!(file.damage, FileDamage::TooLong { .. })) =>
        {
            "nothing was changed; if you trust the tree, raise the limit by `--memory BYTES`: half of it is available for files"
        }
        Damaged { .. } => {
            "nothing was changed; export the session again, or take the tree from a copy; `foldlog import aca DIR --store \
             STORE --partial` reports what its intact files contain"
        }
        NoCheckpoint | NoSuchCheckpoint { .. } | CheckpointRemoved { .. } => {
            "`foldlog task checkpoints SESSION` lists the checkpoints"
        }
        CheckpointMismatch { .. } | Impossible { .. } => {
            "nothing was changed; `foldlog recover SESSION --strategies` reports what can be recovered"
        }
        NoTree { .. } => {
            "give a directory that contains `.aca`, or the directory of a session in it: `.aca/sessions/ID`"
        }
        _ => "check the path and its permissions",
    }
}

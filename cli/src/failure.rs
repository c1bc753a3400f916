//! Errors that end a verb early, each with its exit code and the next step.

use std::io;
use std::path::{Path, PathBuf};

use foldlog::{Error, filesystem};
use foldlog_codec::escape;
use foldlog_tasks::{DamagedFile, FileDamage};
use foldlog_view::error::COPY_AGAIN;

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
    /// An error that pages report too.
    #[error(transparent)]
    View(#[from] foldlog_view::Error),
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
    /// The process could not wait for further records.
    #[error("cannot wait for further records: {0}")]
    Wait(io::Error),
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

impl From<Error> for CommandError {
    fn from(error: Error) -> CommandError {
        CommandError::View(error.into())
    }
}

impl From<filesystem::Error> for CommandError {
    fn from(error: filesystem::Error) -> CommandError {
        CommandError::View(error.into())
    }
}

impl From<foldlog_tasks::Error> for CommandError {
    fn from(error: foldlog_tasks::Error) -> CommandError {
        match error {
            foldlog_tasks::Error::Engine(error) => error.into(),
            error => CommandError::Tasks(error),
        }
    }
}

impl From<foldlog_timeline::Error> for CommandError {
    fn from(error: foldlog_timeline::Error) -> CommandError {
        use foldlog_timeline::Error as Timeline;
        let next = match error {
            Timeline::Engine(error) => return error.into(),
            Timeline::Filesystem(error) => return error.into(),
            Timeline::Io { path, source, .. } => return CommandError::file(&path, source),
            Timeline::Busy { .. } => "a hook may be capturing the files; try again in a few seconds",
            Timeline::NoTimeline { .. } => {
                "`foldlog hook install claude` records the calls of Claude Code from its next session on"
            }
            Timeline::NoStep { .. } | Timeline::NotUndoable { .. } | Timeline::NotPinnable { .. } => {
                "`foldlog log` lists the calls"
            }
            _ => "`foldlog log` lists the calls, and which of them are undone",
        };
        CommandError::usage(error.to_string(), next)
    }
}

impl From<io::Error> for CommandError {
    /// Converts an error of the output. For errors of other files, see [`CommandError::file`].
    fn from(error: io::Error) -> CommandError {
        CommandError::View(error.into())
    }
}

impl CommandError {
    /// Creates the error for wrong usage: `what` is wrong, and `next` is the next step.
    pub fn usage(what: impl Into<String>, next: impl Into<String>) -> CommandError {
        CommandError::View(foldlog_view::Error::usage(what, next))
    }

    /// Creates the error for a file or directory that could not be used.
    pub fn file(path: &Path, source: io::Error) -> CommandError {
        CommandError::View(foldlog_view::Error::File { path: path.to_owned(), source })
    }

    /// Returns whether the reader of the output closed it early, which is no error.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, CommandError::View(foldlog_view::Error::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Returns the exit code for this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            CommandError::View(foldlog_view::Error::DoesNotHold(_))
            | CommandError::DamagedCaptures(_)
            | CommandError::Incomplete(_)
            | CommandError::Held(_) => DOES_NOT_HOLD,
            CommandError::View(foldlog_view::Error::Engine(error)) if error.is_damage() => DOES_NOT_HOLD,
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
            CommandError::View(error) => return error.next(),
            CommandError::Run { next, .. } => return Some(next.clone()),
            CommandError::Wait(_) => return None,
            CommandError::DamagedCaptures(_) => {
                "the logs are intact; restore these files from a backup, which contains them under the same names; `foldlog backup \
                 SESSION --to STORE` copies a session with all its intact captures: only restores from damaged captures fail there"
            }
            CommandError::Incomplete(_) => COPY_AGAIN,
            CommandError::Held(_) => {
                "nothing was changed; leave this data unchanged: the worker that wrote the session may have all of it in its store"
            }
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

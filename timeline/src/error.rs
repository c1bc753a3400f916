use std::path::{Path, PathBuf};

/// An error of a timeline.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The log, or the store of its sessions, could not be read or written.
    #[error(transparent)]
    Engine(#[from] foldlog::Error),
    /// The root, or its captures, could not be read or written.
    #[error(transparent)]
    Filesystem(#[from] foldlog::filesystem::Error),
    /// A file of the timeline could not be read or written.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// Failed action, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Another process has had the timeline open for as long as the caller can wait.
    #[error("the timeline in {} is in use by another process", path.display())]
    Busy {
        /// Directory of the timeline.
        path: PathBuf,
    },
    /// The disk has too little free space for captures.
    #[error("only {} MB are free in {}", free_bytes / 1_000_000, path.display())]
    LowSpace {
        /// Directory of the timeline.
        path: PathBuf,
        /// Free space in bytes.
        free_bytes: u64,
    },
    /// No timeline contains the directory.
    #[error("no call of an agent is recorded for {}", path.display())]
    NoTimeline {
        /// The directory.
        path: PathBuf,
    },
    /// The root of the timeline was removed.
    #[error("{} does not exist any more", path.display())]
    RootRemoved {
        /// The root.
        path: PathBuf,
    },
    /// Something else is in the place of the root.
    #[error("{} is not a directory any more; first move it to another place, or remove it", path.display())]
    RootReplaced {
        /// The root.
        path: PathBuf,
    },
    /// The timeline has no step with this number.
    #[error("there is no call {number}")]
    NoStep {
        /// The number.
        number: u64,
    },
    /// The step cannot be undone.
    #[error("call {number} cannot be undone: {reason}")]
    NotUndoable {
        /// Number of the step.
        number: u64,
        /// The reason.
        reason: String,
    },
    /// The step cannot be pinned, since it is not captured.
    #[error("call {number} cannot be pinned: {reason}")]
    NotPinnable {
        /// Number of the step.
        number: u64,
        /// Reason why it is not captured.
        reason: String,
    },
    /// There is no step to undo, or no undo to reverse.
    #[error("{0}")]
    NothingToUndo(&'static str),
}

impl Error {
    /// Returns a function that makes the error of a failed action on a path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::Io { action, path: path.to_owned(), source }
    }

    /// Returns the error for a root that is not a directory.
    pub(crate) fn of_lost_root(root: &Path) -> Error {
        let path = root.to_owned();
        // A link to nowhere is in the way, too.
        match root.symlink_metadata() {
            Ok(_) => Error::RootReplaced { path },
            Err(_) => Error::RootRemoved { path },
        }
    }
}

/// A result with the error of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

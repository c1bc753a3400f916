use std::path::PathBuf;
use std::sync::Arc;

use foldlog_codec::escape;

use crate::{FolderIdentity, is_out_of_space};

/// A result of a workspace.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Says why a workspace could not be used, captured or restored.
///
/// No message holds a control character: what an error quotes of a path or the system is
/// [escaped](foldlog_codec::escape). The fields are as they were found.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call to the file system failed.
    #[error("{op} {}: {}", escape::path(path), escape::shown(source))]
    Io {
        /// What was tried.
        op: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system answered.
        source: Arc<std::io::Error>,
    },
    /// There is no space for a file that was to be made. It is not there, and all goes on once there is space.
    #[error("no space for {bytes} bytes at {}: {}", escape::path(path), escape::shown(source))]
    Full {
        /// The file that could not be made.
        path: PathBuf,
        /// How many bytes were asked for.
        bytes: u64,
        /// What the system answered.
        source: Arc<std::io::Error>,
    },
    /// An object of the store of snapshots is missing, damaged, or of a form that this version does not read.
    #[error("object {}: {}", escape::path(path), escape::text(reason))]
    Object {
        /// Its file, or the store's folder.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A path of a workspace, or a workspace itself, cannot be used in this way. Nothing was changed.
    #[error("workspace path `{}`: {}", escape::text(path), escape::text(reason))]
    Path {
        /// The path as it was given, or below the workspace's root; `.` is the root. Bytes that are no UTF-8 are
        /// shown as `\xNN`.
        path: String,
        /// Why not.
        reason: String,
    },
    /// A snapshot came to more bytes than the host lets it read (`HostFilesystemOptions::capture_bytes_max`). Nothing was
    /// changed.
    #[error(
        "the workspace holds more new content than a capture may read, {bytes_max} bytes: reached at `{}`",
        escape::text(path)
    )]
    CaptureTooLarge {
        /// Where it came to that.
        path: String,
        /// What the host allows.
        bytes_max: u64,
    },
    /// The folder at the workspace's path is not the one that the call, or the snapshot that is to be restored, is of.
    /// Nothing was changed. Have the path lead to that folder again, or, where another one is to take its place, ask for
    /// it by `HostFilesystem::rebind`.
    #[error(
        "workspace {} is not the folder that it was at the begin: {} was expected, and {} found; put that folder back, or \
         rebind the workspace to another one",
        escape::path(workspace),
        folder_text(expected.as_deref(), "no known folder"),
        folder_text(found.as_deref(), "nothing, since it is gone,")
    )]
    Replaced {
        /// The workspace's path.
        workspace: PathBuf,
        /// The folder that it was; `None` where the snapshot does not tell.
        expected: Option<Box<FolderIdentity>>,
        /// The folder that the path leads to; `None` where it leads to none.
        found: Option<Box<FolderIdentity>>,
    },
    /// A workspace was restored but for these paths. It can be restored again.
    #[error("not restored: {}", escape::text(&.0.iter().map(|left| format!("`{}` ({})", left.path, left.reason)).collect::<Vec<_>>().join(", ")))]
    NotRestored(Vec<Unrestored>),
    /// What was asked for took longer than it may. Nothing was changed.
    #[error("the deadline passed")]
    DeadlineExceeded,
}

/// Names a path of a workspace that is not as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unrestored {
    /// The path below the workspace's root; `.` is the root. Bytes that are no UTF-8 are shown as `\xNN`.
    pub path: String,
    /// What kept it from being restored.
    pub reason: String,
}

impl Unrestored {
    /// Names a path that was not restored, or not as it was, and why.
    pub fn new(path: impl Into<String>, reason: impl Into<String>) -> Unrestored {
        Unrestored { path: path.into(), reason: reason.into() }
    }
}

fn folder_text(folder: Option<&FolderIdentity>, none: &str) -> String {
    folder.map_or_else(|| none.to_owned(), ToString::to_string)
}

impl Error {
    pub(crate) fn io(op: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Error {
        Error::Io { op, path: path.into(), source: Arc::new(source) }
    }

    /// Says what kept something from being made that is not there now: a lack of space has its own error.
    #[cfg(feature = "host")]
    pub(crate) fn unmade(
        op: &'static str,
        path: impl Into<PathBuf>,
        bytes: u64,
        source: std::io::Error,
    ) -> Error {
        match is_out_of_space(&source) {
            true => Error::Full { path: path.into(), bytes, source: Arc::new(source) },
            false => Error::io(op, path, source),
        }
    }

    pub(crate) fn path(path: impl Into<String>, reason: impl Into<String>) -> Error {
        Error::Path { path: path.into(), reason: reason.into() }
    }

    /// Returns whether a lack of space is the reason.
    pub fn is_full(&self) -> bool {
        match self {
            Error::Full { .. } => true,
            Error::Io { source, .. } => is_out_of_space(source),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an error says holds no control character, whatever it quotes.
    #[test]
    fn no_message_holds_a_control_character_from_outside() {
        let hostile = "a\u{1b}[2J\u{7}\r\n\u{9b}\u{202e}\u{2028}\u{feff}z";
        let (text, path) = (|| hostile.to_owned(), || PathBuf::from(hostile));
        let source = Arc::new(std::io::Error::other(hostile));
        let errors = [
            Error::Io { op: "open", path: path(), source: Arc::clone(&source) },
            Error::Full { path: path(), bytes: 1, source },
            Error::Object { path: path(), reason: text() },
            Error::Path { path: text(), reason: text() },
            Error::CaptureTooLarge { path: text(), bytes_max: 1 },
            Error::Replaced { workspace: path(), expected: None, found: None },
            Error::NotRestored(vec![Unrestored::new(hostile, hostile)]),
        ];
        for error in errors {
            assert!(!error.to_string().contains(escape::is_escaped), "{error:?}");
        }
    }
}

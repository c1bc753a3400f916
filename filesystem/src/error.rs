use std::path::PathBuf;
use std::sync::Arc;

use foldlog_codec::escape;

use crate::{DirectoryIdentity, is_out_of_space};

/// The result of an operation on a workspace, with this crate's [`Error`] as the default error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Describes why an operation, a snapshot or a restore of a workspace failed.
///
/// No message contains a control character: quoted paths and texts of the system are
/// [escaped](foldlog_codec::escape). The fields contain the original.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file system refused an operation.
    #[error("{op} {}: {}", escape::path(path), escape::display(source))]
    Io {
        /// Operation that failed, as a verb: `read`, `rename to`.
        op: &'static str,
        /// Path of the file or directory.
        path: PathBuf,
        /// Error of the system.
        source: Arc<std::io::Error>,
    },
    /// The disk, or the quota of the files' owner, has no space for a file. The file was not
    /// created; the operation succeeds once there is space.
    #[error("no space for {bytes} bytes at {}: {}", escape::path(path), escape::display(source))]
    Full {
        /// Path of the file that was not created; for a restore, the workspace.
        path: PathBuf,
        /// Number of bytes that could not be written, as far as known; 0 for a mark.
        bytes: u64,
        /// Error of the system.
        source: Arc<std::io::Error>,
    },
    /// An object of the store of snapshots is missing, damaged, or of a form that this version
    /// cannot read.
    #[error("object {}: {}", escape::path(path), escape::text(reason))]
    Object {
        /// Path of the object's file, or of the store's directory.
        path: PathBuf,
        /// What is wrong with the object.
        reason: String,
    },
    /// The snapshot was collected, because it was no longer needed. Nothing was changed.
    #[error("the snapshot {} was removed from {} by a collection", escape::text(object), escape::path(store))]
    Collected {
        /// Directory of the store of snapshots.
        store: PathBuf,
        /// Id of the snapshot's commit, or of its metadata, in hexadecimal.
        object: String,
    },
    /// The operation cannot use a path of the workspace, or the workspace itself. Nothing was
    /// changed.
    #[error("workspace path `{}`: {}", escape::text(path), escape::text(reason))]
    Path {
        /// The path as the caller passed it, or relative to the workspace's root; `.` is the root.
        /// Bytes that are not UTF-8 appear as `\xNN`.
        path: String,
        /// Why the path is rejected.
        reason: String,
    },
    /// The workspace changed between its last capture and a restore that was to preserve such
    /// changes. Nothing was restored.
    #[error("the workspace {} changed after its last capture", escape::path(path))]
    Changed {
        /// Directory of the workspace.
        path: PathBuf,
    },
    /// A snapshot has to read more bytes than `HostFilesystemOptions::capture_bytes_max` allows. No
    /// snapshot was taken.
    #[error(
        "the new content of the workspace exceeds the limit of a capture, {bytes_max} bytes, at `{}`: leave paths out, or \
         raise `capture_bytes_max`",
        escape::text(path)
    )]
    CaptureTooLarge {
        /// Path of the file at which the limit was reached.
        path: String,
        /// Limit in bytes.
        bytes_max: u64,
    },
    /// The directory at the workspace's path is not the directory of the lease, or not the
    /// directory of which the snapshot was taken. Nothing was changed. Move that directory back to
    /// the path, or accept a different one with `HostFilesystem::rebind`.
    #[error(
        "workspace {} is {}: expected {}; move that directory back, or rebind the workspace to another one",
        escape::path(workspace),
        found.as_deref().map_or_else(|| "gone".to_owned(), |found| format!("another directory, {found}")),
        expected.as_deref().map_or_else(|| "a directory that the snapshot does not record".to_owned(), ToString::to_string)
    )]
    Replaced {
        /// Path of the workspace.
        workspace: PathBuf,
        /// Directory that was expected; `None` if the snapshot does not record it.
        expected: Option<Box<DirectoryIdentity>>,
        /// Directory at the path; `None` if there is none.
        found: Option<Box<DirectoryIdentity>>,
    },
    /// These paths could not be restored, each for its own reason. All other paths are as they were
    /// at the snapshot. The restore can be run again.
    #[error("not restored: {}", escape::text(&.0.iter().map(|left| format!("`{}` ({})", left.path, left.reason)).collect::<Vec<_>>().join(", ")))]
    NotRestored(Vec<UnrestoredPath>),
    /// The operation reached its deadline. Nothing was changed.
    #[error("the deadline passed")]
    DeadlineExceeded,
}

/// Identifies a path that a restore could not bring back to its state at the snapshot, with the
/// reason.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnrestoredPath {
    /// Path relative to the workspace's root; `.` is the root. Bytes that are not UTF-8 appear as
    /// `\xNN`.
    pub path: String,
    /// How the path differs, or which operation failed.
    pub reason: String,
}

impl UnrestoredPath {
    /// Creates the report for one path.
    pub fn new(path: impl Into<String>, reason: impl Into<String>) -> UnrestoredPath {
        UnrestoredPath { path: path.into(), reason: reason.into() }
    }
}

/// Adds the failed operation and its path to an error of the system.
pub(crate) trait IoContext<T> {
    /// `op` is a verb, as in [`Error::Io`].
    fn during(self, op: &'static str, path: impl Into<PathBuf>) -> Result<T>;
}

impl<T, E: Into<std::io::Error>> IoContext<T> for std::result::Result<T, E> {
    fn during(self, op: &'static str, path: impl Into<PathBuf>) -> Result<T> {
        self.map_err(|error| Error::io(op, path, error))
    }
}

impl Error {
    pub(crate) fn io(op: &'static str, path: impl Into<PathBuf>, source: impl Into<std::io::Error>) -> Error {
        Error::Io { op, path: path.into(), source: Arc::new(source.into()) }
    }

    /// Wraps the failure of a write of which nothing remains: [`Error::Full`] for a lack of space,
    /// otherwise [`Error::Io`].
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

    /// Returns whether the operation failed for lack of space, on the disk or in the owner's quota.
    pub fn is_full(&self) -> bool {
        match self {
            Error::Full { .. } => true,
            Error::Io { source, .. } => is_out_of_space(source),
            _ => false,
        }
    }

    /// Returns whether the failure means that an entry could not be [set
    /// aside](crate::HostFilesystem::set_aside), although a restore would not be refused.
    #[cfg(feature = "host")]
    pub fn is_not_set_aside(&self) -> bool {
        matches!(self, Error::Io { op, .. } if *op == crate::host::SET_ASIDE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Error messages contain no control character, not even in quoted text.
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
            Error::NotRestored(vec![UnrestoredPath::new(hostile, hostile)]),
        ];
        for error in errors {
            assert!(!error.to_string().contains(escape::is_escaped), "{error:?}");
        }
    }
}

//! Constructors of errors that several modules return.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_filesystem as filesystem;

use super::Error;
use crate::storage::{DirectoryEntry, EntryKind, Storage};

impl Error {
    pub(crate) fn io(op: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Error {
        Error::Io { op, path: path.into(), source: Arc::new(source) }
    }

    pub(crate) fn not_a_session(dir: &Path, reason: &str) -> Error {
        Error::NotASession { path: dir.to_owned(), reason: reason.to_owned() }
    }

    /// Returns the error of a failed access to a file: [`Error::NotAFile`] if it was refused
    /// because `path` is not a regular file, and [`Error::Io`] otherwise.
    pub(crate) fn access_failed(
        op: &'static str,
        storage: &dyn Storage,
        path: &Path,
        source: std::io::Error,
    ) -> Error {
        if source.kind() == ErrorKind::InvalidInput
            && let Ok(Some(DirectoryEntry { kind, .. })) = storage.entry(path)
            && kind != EntryKind::File
        {
            return Error::NotAFile { path: path.to_owned(), found: kind };
        }
        Error::io(op, path, source)
    }

    pub(crate) fn open_failed(storage: &dyn Storage, path: &Path, source: std::io::Error) -> Error {
        Error::access_failed("open", storage, path, source)
    }

    pub(crate) fn no_slice(slice: &str, reason: &'static str) -> Error {
        Error::NoSuchSlice { slice: slice.to_owned(), reason }
    }

    /// Maps the decoding error of a record's body to [`Error::Inconsistent`].
    pub(crate) fn unread(sequence: SequenceNumber) -> impl Fn(foldlog_codec::Error) -> Error + Copy {
        move |error| Error::Inconsistent { sequence, reason: error.to_string() }
    }

    /// Returns the error of a failed creation without side effects: [`Error::Full`] for `bytes`
    /// bytes if the disk has no space, [`Error::NoHandle`] if no file can be opened, and
    /// [`Error::Io`] otherwise.
    pub(crate) fn unmade(
        op: &'static str,
        path: impl Into<PathBuf>,
        bytes: u64,
        source: std::io::Error,
    ) -> Error {
        match source {
            _ if filesystem::is_out_of_space(&source) => {
                Error::Full { path: path.into(), bytes, source: Arc::new(source) }
            }
            _ if filesystem::is_out_of_handles(&source) => {
                Error::NoHandle { path: path.into(), source: Arc::new(source) }
            }
            _ => Error::io(op, path, source),
        }
    }

    /// Returns the error of a rollback that made no changes, since the present state of a resource
    /// can neither be captured nor be set aside. If the restore itself would be refused, returns
    /// that error instead.
    pub(crate) fn capture_failed(capture: &Error, aside: Error) -> Error {
        let Error::RestoreFailed { failed, .. } = &aside else { return aside };
        #[cfg(feature = "host-filesystem")]
        let is_not_set_aside =
            |error: &Error| matches!(error, Error::Filesystem(error) if error.is_not_set_aside());
        #[cfg(not(feature = "host-filesystem"))]
        let is_not_set_aside = |_: &Error| false;
        match failed.iter().find(|(_, error)| error.is_full() || is_not_set_aside(error)) {
            Some((_, aside)) => {
                Error::Uncaptured { capture: Arc::new(capture.clone()), aside: Arc::clone(aside) }
            }
            None => aside,
        }
    }

    /// Returns whether a lack of space caused the error.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            Error::Full { .. } => true,
            Error::Io { source, .. } => filesystem::is_out_of_space(source),
            Error::Filesystem(error) => error.is_full(),
            Error::RestoreFailed { failed, .. } => failed.iter().any(|(_, error)| error.is_full()),
            Error::Uncaptured { aside, .. } => aside.is_full(),
            _ => false,
        }
    }
}

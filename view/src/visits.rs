//! Walks over records whose visitor may fail with an error of its own.

use std::io;
use std::ops::{ControlFlow, RangeInclusive};
use std::path::PathBuf;
use std::sync::Arc;

use foldlog::inspect::{FrameInfo, LogReader};
use foldlog::{Error, Record, SequenceNumber};

/// The failure of a visitor with an error of its own, which ends a walk of the engine.
#[derive(Debug)]
pub struct FirstFailure<E>(Option<E>);

impl<E> Default for FirstFailure<E> {
    fn default() -> FirstFailure<E> {
        FirstFailure(None)
    }
}

impl<E: From<Error>> FirstFailure<E> {
    /// Returns the result of one visit to the walk. A failure ends the walk.
    ///
    /// # Errors
    ///
    /// An error that [`end`](FirstFailure::end) replaces.
    pub fn note<T>(&mut self, visited: Result<T, E>) -> Result<T, Error> {
        visited.map_err(|failure| {
            self.0 = Some(failure);
            stop_error()
        })
    }

    /// Tells the walk whether to continue after one visit. A failure ends the walk.
    pub fn flow(&mut self, visited: Result<(), E>) -> ControlFlow<()> {
        self.0 = visited.err();
        if self.0.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Returns the result of the whole walk.
    ///
    /// # Errors
    ///
    /// The failure of the visitor, or else the walk's own error.
    pub fn end<T>(self, walked: Result<T, Error>) -> Result<T, E> {
        self.0.map_or_else(|| Ok(walked?), Err)
    }
}

/// Passes the records of a range to `visit`, in order, until it fails.
///
/// # Errors
///
/// The error of `visit`, or the engine's error if a record cannot be read.
pub fn each_record<E: From<Error>>(
    reader: &LogReader,
    range: RangeInclusive<SequenceNumber>,
    mut visit: impl FnMut(&Record<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut failure = FirstFailure::default();
    let read = reader.records(*range.start(), *range.end(), |record| failure.note(visit(record)));
    failure.end(read)
}

/// Returns the error with which a visitor ends a walk. The caller replaces it before it is
/// reported.
pub fn stop_error() -> Error {
    let source = Arc::new(io::Error::from(io::ErrorKind::Interrupted));
    Error::Io { op: "read", path: PathBuf::new(), source }
}

/// Passes the intact records after damage to `visit`, until it fails.
///
/// # Errors
///
/// The error of `visit`, or the engine's error if the files cannot be read.
pub fn each_beyond<E: From<Error>>(
    reader: &LogReader,
    mut visit: impl FnMut(&FrameInfo<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut failure = FirstFailure::default();
    let read = reader.beyond_damage(|frame| failure.note(visit(frame)));
    failure.end(read)
}

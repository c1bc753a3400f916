//! Walks over records whose visitor may fail with an error of its own.

use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use foldlog::inspect::{FrameInfo, LogReader};
use foldlog::{Error, Record, SequenceNumber};

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
    let mut failure = None;
    let read = reader.records(*range.start(), *range.end(), |record| {
        visit(record).map_err(|error| {
            failure = Some(error);
            stop_error(reader.dir())
        })
    });
    match failure {
        Some(failure) => Err(failure),
        None => Ok(read?),
    }
}

/// Returns the error with which a visitor ends a walk. The caller replaces it before it is
/// reported.
pub fn stop_error(path: &Path) -> Error {
    let source = Arc::new(io::Error::from(io::ErrorKind::Interrupted));
    Error::Io { op: "read", path: path.to_owned(), source }
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
    let mut failure = None;
    let read = reader.beyond_damage(|frame| {
        visit(frame).map_err(|error| {
            failure = Some(error);
            stop_error(reader.dir())
        })
    });
    match failure {
        Some(failure) => Err(failure),
        None => Ok(read?),
    }
}

//! `foldlog export`: a session's slices or records for other tools.

use std::collections::BTreeSet;
use std::path::Path;

use clap::ValueEnum;
use foldlog::{Policy, SequenceNumber, Store};

use super::show::Timeline;
use crate::failure::{HOLDS, Result};
use crate::output::Output;
use crate::reading::{each_record, open_outline, open_session, position, store_of, written};

/// Names what an export prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// The slices, as one JSON document for other implementations of agent sessions.
    SnapshotJson,
    /// The records, one JSON object a line, as `show --json` prints them.
    Jsonl,
}

/// Prints the session as of position `at`, or of the last one. Snapshot JSON holds STATE and LOG slices; CACHE slices can be
/// computed again, and are left out. Children are those in the store of the session.
///
/// # Errors
///
/// - [`Failure::Usage`](crate::Failure::Usage) if the log has no such position.
/// - [`Failure::Engine`](crate::Failure::Engine) if the session is corrupt or cannot be read.
pub fn run(
    session: &Path,
    at: Option<SequenceNumber>,
    format: Format,
    output: &mut Output<'_>,
) -> Result<u8> {
    let reader = match format {
        Format::Jsonl => open_outline(session, output)?,
        Format::SnapshotJson => open_session(session, output)?,
    };
    let at = position(&reader, at)?;
    match format {
        Format::Jsonl => {
            let timeline = Timeline::of(&reader);
            each_record(&reader, SequenceNumber::MIN..=at, |record| output.value(&timeline.value(record)))?;
        }
        Format::SnapshotJson => {
            let policies = BTreeSet::from([Policy::State, Policy::Log]);
            let children = match store_of(session) {
                Some((store, id)) => Store::open(store)?.children(id)?,
                None => Vec::new(),
            };
            written(reader.write_export(at, &policies, children, &mut *output.stdout))?;
            writeln!(output.stdout)?;
        }
    }
    Ok(HOLDS)
}

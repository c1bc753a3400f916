//! `foldlog show`: the records of a session, one a line.

use std::ops::RangeInclusive;
use std::path::Path;

use foldlog::audit::LogReader;
use foldlog::{Kind, Record, SequenceNumber, Value};
use foldlog_codec::escape;
use foldlog_codec::record::{Names, RecordJson, time_text};

use crate::failure::{Failure, HOLDS, Result};
use crate::output::Output;
use crate::reading::{each_record, open_outline, position_of, record_name, shortened};

/// Number of characters of a name that a person is shown, so that the columns stay aligned.
const NAME_CHARS_MAX: usize = 36;

/// Width of the column of kinds.
const KIND_CHARS: usize = 10;

/// Lists the records from `from` through `to`, of one kind or of all.
///
/// # Errors
///
/// - [`Failure::Usage`] if there is no such kind or position.
/// - [`Failure::Engine`] if the session is corrupt or cannot be read.
pub fn run(
    session: &Path,
    from: SequenceNumber,
    to: Option<SequenceNumber>,
    kind: Option<&str>,
    output: &mut Output<'_>,
) -> Result<u8> {
    let kind = kind.map(known_kind).transpose()?;
    let reader = open_outline(session, output)?;
    let to = to.unwrap_or_else(|| reader.last_position());
    let from = position_of(reader.last_position(), Some(from))?;
    let timeline = Timeline::of(&reader);
    if !output.json() {
        output.line(Timeline::HEADINGS)?;
    }
    each_record(&reader, from..=to, |record| {
        if kind.is_some_and(|kind| kind != record.kind) {
            return Ok(());
        }
        if output.json() {
            return output.value(&timeline.value(record));
        }
        output.line(timeline.text(record))
    })?;
    Ok(HOLDS)
}

fn known_kind(name: &str) -> Result<Kind> {
    if let Some(kind) = Kind::from_name(name).filter(|kind| !kind.is_envelope()) {
        return Ok(kind);
    }
    let kinds = Kind::ALL.iter().filter(|kind| !kind.is_envelope()).map(|kind| kind.name());
    let next = format!("the kinds are {}", kinds.collect::<Vec<_>>().join(", "));
    Err(Failure::usage(format!("there is no kind of record called `{}`", escape::text(name)), next))
}

/// Lists the records of a log, each with its name and whether it is live.
#[derive(Debug)]
pub struct Timeline {
    names: Names,
    live: Vec<RangeInclusive<SequenceNumber>>,
}

impl Timeline {
    /// Headings of the columns that [`text`](Timeline::text) fills.
    pub const HEADINGS: &str = "sequence  time                              kind        name                                   bytes  path";

    /// Reads from a log what its last record leaves live, and the names that it declares.
    pub fn of(reader: &LogReader) -> Timeline {
        Timeline { names: reader.names(), live: reader.live_path().live_at(reader.last_position()) }
    }

    /// Returns whether the record of this sequence number is live, that is, not abandoned by a later rollback.
    pub fn is_live(&self, sequence: SequenceNumber) -> bool {
        self.live.iter().any(|range| range.contains(&sequence))
    }

    /// Writes a record as one line for a person.
    pub fn text(&self, record: &Record<'_>) -> String {
        line(record, &self.names, self.is_live(record.sequence))
    }

    /// Returns a record's JSON form, with its name and whether it is live.
    pub fn value<'a>(&self, record: &Record<'a>) -> RecordJson<'a> {
        value(record, &self.names, self.is_live(record.sequence))
    }
}

/// Writes a record as one line for a person.
pub(super) fn line(record: &Record<'_>, names: &Names, live: bool) -> String {
    let (time, name) = (time_text(record.time_us), record_name(record, names));
    let path = if live { "live" } else { "abandoned" };
    let (sequence, kind, bytes) = (record.sequence, record.kind.to_string(), record.body.len());
    // A kind with a long name takes what is over from the name, so that the columns behind it stay in line.
    let chars = NAME_CHARS_MAX.saturating_sub(kind.len().saturating_sub(KIND_CHARS));
    let name = shortened(&escape::text(&name), chars);
    format!("{sequence:>8}  {time:<32}  {kind:<KIND_CHARS$}  {name:<chars$} {bytes:>7}  {path}")
}

/// Returns a record's JSON form, with its name and whether it is live.
pub(super) fn value<'a>(record: &Record<'a>, names: &Names, live: bool) -> RecordJson<'a> {
    let mut value = record.to_json(names).unwrap_or_else(|error| {
        // A record without a JSON form of its own still has a sequence number, a time and a kind.
        let mut value = RecordJson::default();
        value.set("sequence", Value::from(record.sequence));
        value.set("time", Value::from(time_text(record.time_us)));
        value.set("kind", Value::from(record.kind.to_string()));
        value.set("bytes", Value::from(record.body.len() as u64));
        value.set("error", Value::from(error.to_string()));
        value
    });
    value.set("name", Value::from(record_name(record, names)));
    value.set("live", Value::from(live));
    value
}

//! The timeline of a log: each record's name, line, JSON form and path word.
//!
//! The *path word* of a record states whether the record is live: [`LIVE`], [`LOG_ONLY`],
//! [`ABANDONED`] or [`UNATTACHED`].

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use foldlog::inspect::{LogReader, record_title};
use foldlog::{Policy, Record, RecordKind, SequenceNumber, Value};
use foldlog_codec::body::{
    Action, AddedItems, BuiltIn, Declare, Dispatch, EventDeclaration, Import, ToolEnd,
};
use foldlog_codec::escape;
use foldlog_codec::record::{RecordJson, RecordNames, time_text};

use crate::text::shorten_text;

/// Maximum number of characters of a name in a line, so that the columns stay aligned.
const NAME_CHARS_MAX: usize = 36;

/// Width of the column of kinds.
const KIND_CHARS: usize = 10;

/// Determines the path words of records.
#[derive(Debug)]
pub struct RecordStanding {
    /// Ranges of records that no rollback has abandoned.
    live: Vec<RangeInclusive<SequenceNumber>>,
    /// LOG slices.
    logs: BTreeSet<u32>,
    /// Events that are added to a LOG slice unless a record states other effects.
    logged: BTreeSet<u32>,
}

impl RecordStanding {
    /// Combines the live ranges of a log with the declarations of its slices and events.
    pub fn new(live: Vec<RangeInclusive<SequenceNumber>>, declared: &Declare) -> RecordStanding {
        let logs = declared.slices.iter().filter(|slice| slice.policy == Policy::Log);
        let logs: BTreeSet<u32> = logs.map(|slice| slice.id).collect();
        let is_logged = |event: &&EventDeclaration| {
            let mut built_in = event.bindings.iter().filter(|binding| binding.built_in != BuiltIn::Explicit);
            built_in.any(|binding| logs.contains(&binding.slice))
        };
        let logged = declared.events.iter().filter(is_logged).map(|event| event.id).collect();
        RecordStanding { live, logs, logged }
    }

    /// Returns whether the record with this sequence number is live, that is, not abandoned by a
    /// later rollback.
    pub fn is_live(&self, sequence: SequenceNumber) -> bool {
        self.live.iter().any(|range| range.contains(&sequence))
    }

    /// Returns the path word of a record.
    pub fn path_of(&self, record: &Record<'_>) -> &'static str {
        match self.is_live(record.sequence) {
            true => LIVE,
            false if self.is_logged(record) => LOG_ONLY,
            false => ABANDONED,
        }
    }

    /// Returns whether a record has added an item to a LOG slice.
    fn is_logged(&self, record: &Record<'_>) -> bool {
        match record.kind {
            RecordKind::Dispatch => {
                Dispatch::decode(record.body).is_ok_and(|dispatch| match dispatch.effects {
                    Some(effects) => effects.iter().any(|effect| {
                        let adds =
                            !matches!(&effect.added, AddedItems::Items { items, .. } if items.is_empty());
                        adds && self.logs.contains(&effect.slice)
                    }),
                    None => {
                        matches!(dispatch.action, Action::Event { event, .. } if self.logged.contains(&event))
                    }
                })
            }
            RecordKind::Import => Import::decode(record.body).is_ok_and(|import| {
                import.slices.iter().any(|slice| !slice.items.is_empty() && self.logs.contains(&slice.slice))
            }),
            RecordKind::ToolEnd => {
                ToolEnd::decode(record.body).is_ok_and(|end| self.logs.contains(&end.slice))
            }
            _ => false,
        }
    }
}

/// Lists the records of a log, each with its name and path word.
#[derive(Debug)]
pub struct Timeline {
    /// Names that the log declares.
    pub names: RecordNames,
    /// Path words of the records.
    pub standing: RecordStanding,
}

impl Timeline {
    /// Headings of the columns that [`line()`] fills.
    pub const HEADINGS: &str = "sequence  time                              kind        name                                   bytes  path";

    /// Reads the live records at the log's end, and the names that the log declares.
    pub fn from_reader(reader: &LogReader) -> Timeline {
        let live = reader.live_path().live_at(reader.last_position());
        Timeline { names: reader.names(), standing: RecordStanding::new(live, &reader.declarations()) }
    }

    /// Returns a record's JSON form, with its name, its path word, and whether it is live.
    pub fn value<'a>(&self, record: &Record<'a>) -> RecordJson<'a> {
        value(record, &self.names, self.standing.path_of(record))
    }
}

/// Path word of a record that no rollback has abandoned.
pub const LIVE: &str = "live";

/// Path word of a record that a rollback has abandoned but whose item in a LOG slice remains.
pub const LOG_ONLY: &str = "log-only";

/// Path word of a record that a rollback has abandoned.
pub const ABANDONED: &str = "abandoned";

/// Path word of an intact record after damage: its predecessor is unknown.
pub const UNATTACHED: &str = "unattached";

/// Formats a record as one line for a person. `path` is its path word.
pub fn line(record: &Record<'_>, names: &RecordNames, path: &str) -> String {
    let (time, name) = (time_text(record.time_us), record_title(record, names));
    let (sequence, kind, bytes) = (record.sequence, record.kind.to_string(), record.body.len());
    // A long kind shortens the name, so that the columns after it stay aligned.
    let chars = NAME_CHARS_MAX.saturating_sub(kind.len().saturating_sub(KIND_CHARS));
    let name = shorten_text(&escape::text(&name), chars);
    format!("{sequence:>8}  {time:<32}  {kind:<KIND_CHARS$}  {name:<chars$} {bytes:>7}  {path}")
}

/// Returns a record's JSON form, with its name, its path word, and whether it is live.
pub fn value<'a>(record: &Record<'a>, names: &RecordNames, path: &str) -> RecordJson<'a> {
    let mut value = record.to_json(names).unwrap_or_else(|error| {
        // A record without its own JSON form still has a sequence number, a time and a kind.
        let mut value = RecordJson::default();
        value.set("sequence", Value::from(record.sequence));
        value.set("time", Value::from(time_text(record.time_us)));
        value.set("kind", Value::from(record.kind.to_string()));
        value.set("bytes", Value::from(record.body.len() as u64));
        value.set("error", Value::from(error.to_string()));
        value
    });
    value.set("name", Value::from(record_title(record, names)));
    value.set("live", Value::from(path == LIVE));
    value.set("path", Value::from(path));
    value
}

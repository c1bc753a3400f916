//! `foldlog show`: the records of a session, one a line.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use foldlog::inspect::{FrameInfo, LogReader};
use foldlog::{Policy, Record, RecordKind, SequenceNumber, Value};
use foldlog_codec::body::{
    Action, AddedItems, BuiltIn, Declare, Dispatch, EventDeclaration, Import, ToolEnd,
};
use foldlog_codec::escape;
use foldlog_codec::record::{RecordJson, RecordNames, time_text};

use crate::failure::{CommandError, Result};
use crate::output::Output;
use crate::payload;
use crate::readers::{
    Position, code_of, each_record, open_sound_outline, position_at, record_at, record_name, shortened,
    stopped,
};
use crate::style::{BAD, CAUTION, GONE, HEADING, PLAIN, Style};

/// Holds what the command line asks of `foldlog show`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The session's folder, or URL/sessions/ID of one that a place holds.
    pub session: PathBuf,
    /// The first record: its number, or a snapshot's tag [default: 0].
    #[arg(long, value_name = "POSITION")]
    pub from: Option<Position>,
    /// The last record: its number, or a snapshot's tag [default: the last one of the log].
    #[arg(long, value_name = "POSITION")]
    pub to: Option<Position>,
    /// Only records of this kind, such as `dispatch` or `rollback`.
    #[arg(long)]
    pub kind: Option<String>,
    /// Show what hosts and tools put into the records: values of events, arguments and results of calls.
    #[arg(long)]
    pub payload: bool,
    /// List the sound records behind damage too, as `unattached`: nobody knows what they followed.
    #[arg(long)]
    pub beyond_damage: bool,
}

impl Args {
    /// Runs the verb, and returns the exit code.
    ///
    /// # Errors
    ///
    /// Those of [`run`].
    pub fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let Args { session, from, to, kind, payload, beyond_damage } = self;
        let asked = ShowQuery { from, to, kind: kind.as_deref(), payload, beyond_damage };
        run(&session, &asked, output)
    }
}

/// Number of characters of a name that a person is shown, so that the columns stay aligned.
const NAME_CHARS_MAX: usize = 36;

/// Width of the column of kinds.
const KIND_CHARS: usize = 10;

/// Says which records are listed, and how.
#[derive(Clone, Debug, Default)]
pub struct ShowQuery<'a> {
    /// First record; `None` stands for the first one of the log.
    pub from: Option<Position>,
    /// Last record; `None` stands for the last one of the log.
    pub to: Option<Position>,
    /// Kind of the records; `None` stands for all kinds.
    pub kind: Option<&'a str>,
    /// Whether what hosts and tools put into the records is shown.
    pub payload: bool,
    /// Whether the sound records behind damage are listed too.
    pub beyond_damage: bool,
}

/// Lists records: of a damaged session those before its first damage, and if that is asked for the sound ones behind it, as
/// unattached.
///
/// # Errors
///
/// - [`CommandError::Usage`] if there is no such kind or position.
/// - [`CommandError::Engine`] if no such record is sound, or the session cannot be read.
pub fn run(session: &Path, asked: &ShowQuery<'_>, output: &mut Output<'_>) -> Result<u8> {
    let kind = asked.kind.map(known_kind).transpose()?;
    let reader = open_sound_outline(session, output)?;
    let end = reader.sound_end().filter(|_| asked.beyond_damage).map(|end| end.sequence);
    let first = record_at(&reader, asked.from.as_ref())?.unwrap_or_default();
    let last = record_at(&reader, asked.to.as_ref())?;
    let is_beyond = end.is_some_and(|end| first >= end);
    let from = if is_beyond { first } else { position_at(&reader, Some(first))? };
    let to = last.unwrap_or_else(|| reader.last_position());
    let timeline = Timeline::of(&reader);
    if !output.json() {
        output.styled(HEADING, Timeline::HEADINGS)?;
    }
    let is_wanted = |record: &Record<'_>| kind.is_none_or(|kind| kind == record.kind);
    let mut print = |record: &Record<'_>, (path, at): (&str, Option<&FrameInfo<'_>>)| {
        if !is_wanted(record) {
            return Ok(());
        }
        if !output.json() {
            output.styled(style_of(record, path), line(record, &timeline.names, path))?;
            let payloads = if asked.payload { payload::lines(&reader, record) } else { Vec::new() };
            return payloads.iter().try_for_each(|payload| output.line(payload));
        }
        let mut value = value(record, &timeline.names, path);
        if asked.payload {
            value.set("payload", payload::value(&reader, record));
        }
        if let Some(frame) = at {
            value.set("segment", Value::from(escape::path(frame.segment)));
            value.set("offset", Value::from(frame.offset));
        }
        output.value(&value)
    };
    if !is_beyond {
        each_record(&reader, from..=to, |record| print(record, (timeline.path_of(record), None)))?;
    }
    if end.is_some() {
        let within = from..=last.unwrap_or(SequenceNumber::MAX);
        each_beyond(&reader, |frame| match within.contains(&frame.record.sequence) {
            true => print(&frame.record, (UNATTACHED, Some(frame))),
            false => Ok(()),
        })?;
    }
    Ok(code_of(&reader, output))
}

/// Hands the sound records behind damage to `visit`, until it fails.
///
/// # Errors
///
/// That of `visit`, or the engine's error if the files cannot be read.
pub(crate) fn each_beyond(
    reader: &LogReader,
    mut visit: impl FnMut(&FrameInfo<'_>) -> Result<()>,
) -> Result<()> {
    let mut failure = None;
    let read = reader.beyond_damage(|frame| {
        visit(frame).map_err(|error| {
            failure = Some(error);
            stopped(reader.dir())
        })
    });
    match failure {
        Some(failure) => Err(failure),
        None => Ok(read?),
    }
}

fn known_kind(name: &str) -> Result<RecordKind> {
    if let Some(kind) = RecordKind::from_name(name).filter(|kind| !kind.is_envelope()) {
        return Ok(kind);
    }
    let kinds = RecordKind::ALL.iter().filter(|kind| !kind.is_envelope()).map(|kind| kind.name());
    let next = format!("the kinds are {}", kinds.collect::<Vec<_>>().join(", "));
    Err(CommandError::usage(format!("there is no kind of record called `{}`", escape::text(name)), next))
}

/// Tells the words for where records stand.
#[derive(Debug)]
pub(crate) struct RecordStanding {
    /// Ranges of records that no rollback has abandoned.
    pub(super) live: Vec<RangeInclusive<SequenceNumber>>,
    /// LOG slices.
    logs: BTreeSet<u32>,
    /// Events that are added to a LOG slice where a record says nothing else.
    logged: BTreeSet<u32>,
}

impl RecordStanding {
    pub(crate) fn new(live: Vec<RangeInclusive<SequenceNumber>>, declared: &Declare) -> RecordStanding {
        let logs = declared.slices.iter().filter(|slice| slice.policy == Policy::Log);
        let logs: BTreeSet<u32> = logs.map(|slice| slice.id).collect();
        let is_logged = |event: &&EventDeclaration| {
            let mut built_in = event.bindings.iter().filter(|binding| binding.built_in != BuiltIn::Explicit);
            built_in.any(|binding| logs.contains(&binding.slice))
        };
        let logged = declared.events.iter().filter(is_logged).map(|event| event.id).collect();
        RecordStanding { live, logs, logged }
    }

    fn is_live(&self, sequence: SequenceNumber) -> bool {
        self.live.iter().any(|range| range.contains(&sequence))
    }

    /// Returns the word for where a record stands.
    pub(crate) fn path_of(&self, record: &Record<'_>) -> &'static str {
        match self.is_live(record.sequence) {
            true => LIVE,
            false if self.is_logged(record) => LOG_ONLY,
            false => ABANDONED,
        }
    }

    /// Returns whether a record has added an item to a LOG slice.
    fn is_logged(&self, record: &Record<'_>) -> bool {
        match record.kind {
            RecordKind::DISPATCH => {
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
            RecordKind::IMPORT => Import::decode(record.body).is_ok_and(|import| {
                import.slices.iter().any(|slice| !slice.items.is_empty() && self.logs.contains(&slice.slice))
            }),
            RecordKind::TOOL_END => {
                ToolEnd::decode(record.body).is_ok_and(|end| self.logs.contains(&end.slice))
            }
            _ => false,
        }
    }
}

/// Lists the records of a log, each with its name and the word for where it stands.
#[derive(Debug)]
pub struct Timeline {
    names: RecordNames,
    standing: RecordStanding,
}

impl Timeline {
    /// Headings of the columns that [`text`](Timeline::text) fills.
    pub const HEADINGS: &str = "sequence  time                              kind        name                                   bytes  path";

    /// Reads from a log what its last record leaves live, and the names that it declares.
    pub fn of(reader: &LogReader) -> Timeline {
        let live = reader.live_path().live_at(reader.last_position());
        Timeline { names: reader.names(), standing: RecordStanding::new(live, &reader.declared()) }
    }

    /// Returns whether the record of this sequence number is live, that is, not abandoned by a later rollback.
    pub fn is_live(&self, sequence: SequenceNumber) -> bool {
        self.standing.is_live(sequence)
    }

    /// Returns the word for where a record stands.
    pub(crate) fn path_of(&self, record: &Record<'_>) -> &'static str {
        self.standing.path_of(record)
    }

    /// Returns the names that the log declares.
    pub(crate) fn names(&self) -> &RecordNames {
        &self.names
    }

    /// Writes a record as one line for a person.
    pub fn text(&self, record: &Record<'_>) -> String {
        line(record, &self.names, self.path_of(record))
    }

    /// Returns a record's JSON form, with its name, the word for where it stands, and whether it is live.
    pub fn value<'a>(&self, record: &Record<'a>) -> RecordJson<'a> {
        self.value_as(record, self.path_of(record))
    }

    /// Returns a record's JSON form with another word for where it stands.
    pub(crate) fn value_as<'a>(&self, record: &Record<'a>, path: &str) -> RecordJson<'a> {
        value(record, &self.names, path)
    }
}

/// Word for a record that no rollback has abandoned.
pub(crate) const LIVE: &str = "live";

/// Word for a record that a rollback has abandoned, and whose item in a LOG slice stays.
const LOG_ONLY: &str = "log-only";

/// Word for a record that a rollback has abandoned.
const ABANDONED: &str = "abandoned";

/// Word for a sound record behind damage: nobody knows what it followed.
pub(crate) const UNATTACHED: &str = "unattached";

/// Writes a record as one line for a person. `path` is the word for where it stands.
pub(crate) fn line(record: &Record<'_>, names: &RecordNames, path: &str) -> String {
    let (time, name) = (time_text(record.time_us), record_name(record, names));
    let (sequence, kind, bytes) = (record.sequence, record.kind.to_string(), record.body.len());
    // A kind with a long name takes what is over from the name, so that the columns behind it stay in line.
    let chars = NAME_CHARS_MAX.saturating_sub(kind.len().saturating_sub(KIND_CHARS));
    let name = shortened(&escape::text(&name), chars);
    format!("{sequence:>8}  {time:<32}  {kind:<KIND_CHARS$}  {name:<chars$} {bytes:>7}  {path}")
}

/// Returns the style of a record's line: what a rollback has abandoned steps back, and what rolls back stands out.
pub(super) fn style_of(record: &Record<'_>, path: &str) -> Style {
    match path {
        UNATTACHED => BAD,
        LOG_ONLY | ABANDONED => GONE,
        _ if record.kind == RecordKind::ROLLBACK => CAUTION,
        _ => PLAIN,
    }
}

/// Returns a record's JSON form, with its name, the word for where it stands, and whether it is live.
pub(crate) fn value<'a>(record: &Record<'a>, names: &RecordNames, path: &str) -> RecordJson<'a> {
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
    value.set("live", Value::from(path == LIVE));
    value.set("path", Value::from(path));
    value
}

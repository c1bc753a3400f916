//! `foldlog show`: the records of a session, one per line.

use std::path::PathBuf;

use foldlog::inspect::FrameInfo;
use foldlog::{Record, RecordKind, SequenceNumber, Value};
use foldlog_codec::escape;
use foldlog_view::documents::timeline::{ABANDONED, LOG_ONLY, Timeline, UNATTACHED, line, value};
use foldlog_view::payload;
use foldlog_view::positions::{Position, position_at, record_at};
use foldlog_view::visits::{each_beyond, each_record};

use crate::command::{Argument, Command, Group, Urls};
use crate::failure::{CommandError, Result};
use crate::output::Output;
use crate::readers::{code_of, code_with, open_sound_outline};
use crate::style::{BAD, CAUTION, GONE, HEADING, PLAIN, Style};

/// List the records of a session.
///
/// Each record is `live`, `abandoned` by a rollback, or `log-only`: abandoned, but its item
/// in a LOG slice remains.
///
/// If a session is damaged, the records before the first damage are listed, and the exit
/// code is 1. `tail` does not see damage before the segment of its first record.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Directory of the session, or URL/sessions/ID in a bucket or database
    pub session: PathBuf,
    /// First record to list: its number, or a snapshot's tag [default: 0]
    #[arg(long, value_name = "POSITION")]
    pub from: Option<Position>,
    /// Last record to list: its number, or a snapshot's tag [default: the last one]
    #[arg(long, value_name = "POSITION")]
    pub to: Option<Position>,
    /// List only records of this kind, such as `dispatch` or `rollback`
    #[arg(long)]
    pub kind: Option<String>,
    /// Show payloads: values of events, arguments and results of calls
    #[arg(long)]
    pub payload: bool,
    /// List the intact records after damage too, as `unattached`: what they followed is unknown
    #[arg(long)]
    pub beyond_damage: bool,
}

impl Command for Args {
    const GROUP: Group = Group::Look;
    const URLS: Urls = Urls::Copied;
    const IS_PAGED: bool = true;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.session);
    const EXAMPLE: &'static str = "foldlog show SESSION --payload";

    /// Lists records. Of a damaged session, lists those before the first damage and, if requested,
    /// the intact ones after it, as unattached.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if there is no such kind or position.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if none of these records is intact, or the
    ///   session cannot be read.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let kind = self.kind.as_deref().map(known_kind).transpose()?;
        let reader = open_sound_outline(&self.session, output)?;
        let end = reader.sound_end().filter(|_| self.beyond_damage).map(|end| end.sequence);
        let first = record_at(&reader, self.from.as_ref())?.unwrap_or_default();
        let last = record_at(&reader, self.to.as_ref())?;
        let is_beyond = end.is_some_and(|end| first >= end);
        let from = if is_beyond { first } else { position_at(&reader, Some(first))? };
        let to = last.unwrap_or_else(|| reader.last_position());
        let timeline = Timeline::from_reader(&reader);
        if !output.json() {
            output.styled_line(HEADING, Timeline::HEADINGS)?;
        }
        let is_wanted = |record: &Record<'_>| kind.is_none_or(|kind| kind == record.kind);
        let mut print = |record: &Record<'_>, (path, at): (&str, Option<&FrameInfo<'_>>)| {
            if !is_wanted(record) {
                return Ok(());
            }
            if !output.json() {
                output.styled_line(style_of(record, path), line(record, &timeline.names, path))?;
                let payloads = if self.payload { payload::lines(&reader, record) } else { Vec::new() };
                return payloads.iter().try_for_each(|payload| output.line(payload));
            }
            let mut value = value(record, &timeline.names, path);
            if self.payload {
                value.set("payload", payload::value(&reader, record));
            }
            if let Some(frame) = at {
                value.set("segment", Value::from(escape::path(frame.segment)));
                value.set("offset", Value::from(frame.offset));
            }
            output.value(&value)
        };
        if !is_beyond {
            each_record(&reader, from..=to, |record| {
                print(record, (timeline.standing.path_of(record), None))
            })?;
        }
        if end.is_some() {
            let within = from..=last.unwrap_or(SequenceNumber::MAX);
            each_beyond(&reader, |frame| match within.contains(&frame.record.sequence) {
                true => print(&frame.record, (UNATTACHED, Some(frame))),
                false => Ok(()),
            })?;
        }
        // The records after damage are listed already.
        Ok(if self.beyond_damage { code_with(&reader, "", output) } else { code_of(&reader, output) })
    }
}

fn known_kind(name: &str) -> Result<RecordKind> {
    if let Some(kind) = RecordKind::from_name(name).filter(|kind| !kind.is_envelope()) {
        return Ok(kind);
    }
    let kinds = RecordKind::ALL.iter().filter(|kind| !kind.is_envelope()).map(|kind| kind.name());
    let next = format!("the kinds are {}", kinds.collect::<Vec<_>>().join(", "));
    Err(CommandError::usage(format!("there is no kind of record `{}`", escape::text(name)), next))
}

/// Returns the style of a record's line: abandoned records are dimmed, rollbacks are highlighted.
fn style_of(record: &Record<'_>, path: &str) -> Style {
    match path {
        UNATTACHED => BAD,
        LOG_ONLY | ABANDONED => GONE,
        _ if record.kind == RecordKind::Rollback => CAUTION,
        _ => PLAIN,
    }
}

//! `foldlog sessions`: the sessions of a store, with the status of each.

mod narrow;
#[cfg(feature = "object-store")]
mod remote;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::path::PathBuf;

use chrono::{DateTime, TimeDelta, Utc};
use clap::ValueEnum;
use clap::builder::TypedValueParser;
use foldlog::Store;
use foldlog::inspect;
use foldlog_codec::escape;
use foldlog_view::clock::now;
use foldlog_view::documents::sessions::{
    Resumable, SessionListRow, SessionOperationRow, Status, Time, WriterProcess, is_nothing,
};
use foldlog_view::text::{count_text, or_dash};
use uuid::Uuid;

use crate::command::{Argument, Command, Group, Target, Urls};
use crate::failure::{CommandError, DOES_NOT_HOLD, HOLDS, Result, UNUSABLE, worse};
use crate::output::Output;
use crate::readers;
use crate::style::{BAD, CAUTION, GOOD, HEADING, PLAIN};
use crate::value_parsers::words;

/// Describes the fields of `sessions --json`.
const SESSIONS_JSON: &str = "\
With --json one object a line:
  session, status        the first status that applies: damaged, unreadable, running, interrupted,
                         unsettled, suspended, resumable, unclosed, closed
  records, log_bytes     of a damaged session, those before its damage
  objects, object_bytes  objects in its directory
  created_at, last_at    times of its own first record and of its last record; tags
  parent                 session, how: fork, child; position or operation
  replicated             at, by, epoch: where its records are replicated, and its first claim; left
                         out if the session is not replicated
  fenced                 from, epoch, by: another worker has claimed it, and records from `from` on
                         were never acknowledged
  running                pid, host, since, ended: the process that has it open, as far as known
  open                   calls that have started and not ended: operation, tool, since; workspaces:
                         their names and last paths
  unsettled, suspended   calls that were interrupted, and calls that wait for an answer: the same
                         fields
  resumable              conversations that stopped before their end, which their host resumes:
                         evaluation, next (provider, calls), calls (ordinals of calls to run), since
  damage                 end of its intact part: segment, offset, sequence
  error                  reason why it, or a part of it, cannot be read

With --json of a URL (`foldlog help pull` lists the kinds) one object a line:
  session                id; every log is read for the following fields
  epoch, by              last claim, and the worker that made it
  records, last_at       number of records, and time of the last one
  worker                 closed: there is no lease, since the session was closed or its worker uses
                         none; alive; ran_out: a takeover does not have to wait; unknown: a bucket
                         shows whether a worker is alive only to a reader that watches its lease for
                         the lease's whole length, as --wait does
  lease                  worker, length_ms, renewed_at by the clock of the bucket or database,
                         left_ms if it is known, 0 once the lease has run out; left out if there is
                         no lease
  error                  reason why it cannot be read";

/// List the sessions of a store, with their status.
///
/// Damaged and unreadable sessions are listed too, whatever tags and times are asked for.
/// Each session is read from its newest image on; `verify` finds damage before that.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = SESSIONS_JSON)]
pub struct Args {
    /// Directory of the store, or URL of a bucket or database
    #[arg(value_name = "STORE")]
    pub dir: PathBuf,
    /// List only sessions to which this status applies; may be repeated
    #[arg(long, value_parser = status_parser())]
    pub status: Vec<Status>,
    /// List only sessions with records since a time (2027-01-31T12:00:00Z) or age (30m, 12h, 7d)
    #[arg(long, value_name = "TIME")]
    pub since: Option<Since>,
    /// List only sessions with this tag, KEY or KEY=VALUE; may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// Order of the sessions
    #[arg(long, value_enum, default_value_t)]
    pub sort: Sort,
    /// With a URL, watch the leases until it is known which workers are alive
    #[arg(long)]
    pub wait: bool,
}

impl Command for Args {
    const GROUP: Group = Group::Look;
    const TARGET: Target = Target::Store;
    const URLS: Urls = Urls::Read;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.dir);
    const EXAMPLE: &'static str = "foldlog sessions STORE --status interrupted";

    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        #[cfg(feature = "object-store")]
        if let Some(url) = crate::remote::url(&self.dir) {
            return remote::list(url, &self, output);
        }
        if self.wait {
            let next = "leave out --wait: the statuses of a store are known at once";
            return Err(CommandError::usage("--wait applies only to a URL", next));
        }
        list(&self, output)
    }
}

/// Parses a status by the name that listings use.
fn status_parser() -> impl TypedValueParser<Value = Status> {
    let help = |status| match status {
        Status::Damaged => "Its log is damaged",
        Status::Unreadable => "It cannot be read, but no damage is known",
        Status::Running => "A process has it open for writing",
        Status::Interrupted => "A tool call has started and not ended, and no process has the session open",
        Status::Unsettled => "A call was interrupted, and has neither run again nor been settled",
        Status::Suspended => "A call waits for an answer",
        Status::Resumable => "A conversation stopped before its end, and its host can resume it",
        Status::Unclosed => "Its last writer ended without closing it, between two calls",
        Status::Closed => "Its last writer closed it",
    };
    words(Status::ALL.map(|status| (status.name(), help(status), status)))
}

/// Names what sessions are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// By id
    #[default]
    Id,
    /// By status, the worst first
    Status,
    /// By the time of the last record, the latest first
    Activity,
    /// By creation time, the latest first
    Created,
    /// By number of records, the most first
    Records,
    /// By bytes of logs and objects, the most first
    Bytes,
}

/// A point in time, given as such or as an age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since(i64);

#[cfg(feature = "object-store")]
impl Since {
    /// Returns whether a time is this one or a later one.
    pub(crate) fn is_at_most(self, time_us: i64) -> bool {
        self.0 <= time_us
    }
}

impl std::str::FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Since, String> {
        if let Ok(time) = text.parse::<DateTime<Utc>>() {
            return Ok(Since(time.timestamp_micros()));
        }
        let ago = text.char_indices().next_back().and_then(|(at, unit)| {
            let count: i64 = text.get(..at)?.parse().ok().filter(|count| *count >= 0)?;
            match unit {
                'm' => TimeDelta::try_minutes(count),
                'h' => TimeDelta::try_hours(count),
                'd' => TimeDelta::try_days(count),
                _ => None,
            }
        });
        let time = ago.and_then(|ago| now().checked_sub_signed(ago));
        time.map(|time| Since(time.timestamp_micros())).ok_or_else(|| {
            "give a time such as 2027-01-31T12:00:00Z, or how long ago: 30m, 12h, 7d".to_owned()
        })
    }
}

fn resumable_text(resumable: &Resumable) -> String {
    let next = match resumable.calls.len() {
        0 => "the provider is next".to_owned(),
        calls => format!("{} next", count_text(calls as u64, "call")),
    };
    format!("conversation `{}`, {next}", escape::text(&resumable.evaluation))
}

/// Lists the sessions of the store at `dir` that pass the query. A damaged or unreadable session is
/// listed as well, whatever tags and times are requested, and is reported on standard error. The
/// exit code is then 1 if any listed session is damaged, else 2. A directory in which a crash left
/// a session without records is noted on standard error, and is no failure.
///
/// A session is read from its newest image on. It is not read at all if it was closed at the last
/// listing and has not been written since ([`Store::overviews`]). Only `verify` finds damage in the
/// unread parts.
///
/// # Errors
///
/// [`Error::Usage`](foldlog_view::Error::Usage) if there is no store at `dir`,
/// [`Error::Engine`](foldlog_view::Error::Engine) if the store cannot be read.
fn list(asked: &Args, output: &mut Output<'_>) -> Result<u8> {
    let store = readers::open_store(&asked.dir, output)?;
    let ids = store.session_ids()?;
    note_exposed(&store, &ids, output);
    let mut running = inspect::running_sessions(store.path(), &ids)?;
    let mut progress = output.progress("reading sessions", ids.len() as u64);
    let found =
        store.overviews(now().timestamp_micros(), output.memory_bytes, &mut |done| progress.at(done))?;
    drop(progress);
    let mut rows = Vec::new();
    for (id, found) in found {
        let dir = store.session_dir(id);
        if is_nothing(&found, &dir) {
            readers::pass_over(&dir, output);
            continue;
        }
        rows.push(SessionListRow::from_overview(id, &dir, found, running.remove(&id)));
    }
    rows.retain(|row| is_asked(row, asked));
    sort(&mut rows, asked.sort);
    if !output.json() {
        match output.columns {
            Some(columns) => output.styled_line(HEADING, narrow::headings(columns))?,
            None => output.styled_line(HEADING, HEADINGS)?,
        }
    }
    let mut code = HOLDS;
    for row in rows {
        if let Some(error) = &row.error {
            output.error(error);
            code = worse(code, if row.is_damage { DOES_NOT_HOLD } else { UNUSABLE });
        }
        output.print(&row, |output| print(&row, output))?;
    }
    Ok(code)
}

/// Notes if other users may read a session of the store. One note is enough: the same command
/// protects all sessions.
fn note_exposed(store: &Store, ids: &[Uuid], output: &mut Output<'_>) {
    use std::os::unix::fs::PermissionsExt as _;
    let directory =
        ids.first().map(|id| store.session_dir(*id)).and_then(|dir| Some(dir.parent()?.to_owned()));
    let metadata = directory.and_then(|directory| directory.symlink_metadata().ok());
    // If other users cannot enter the directory of all sessions, none of them is exposed.
    if metadata.is_some_and(|found| found.is_dir() && found.permissions().mode() & 0o011 == 0) {
        return;
    }
    let exposed = ids.iter().find_map(|id| inspect::find_exposure(&store.session_dir(*id)));
    readers::note_exposed(exposed.as_ref(), output);
}

fn is_asked(row: &SessionListRow, asked: &Args) -> bool {
    let has = |tag: &String| match tag.split_once('=') {
        Some((key, value)) => row.tags.get(key).is_some_and(|found| found == value),
        None => row.tags.contains_key(tag),
    };
    let is_status = asked.status.is_empty() || asked.status.iter().any(|one| row.statuses.contains(one));
    let is_known = row.error.is_none();
    let is_since = asked.since.is_none_or(|Since(since)| row.last_at.is_some_and(|Time(last)| last >= since));
    is_status && (!is_known || (is_since && asked.tags.iter().all(has)))
}

/// Prints the row, with a colour for its status. On a terminal, limits its width.
fn print(row: &SessionListRow, output: &mut Output<'_>) -> Result<()> {
    let style = match row.status {
        Status::Damaged | Status::Unreadable => BAD,
        Status::Interrupted | Status::Unsettled | Status::Suspended | Status::Resumable => CAUTION,
        Status::Running => GOOD,
        Status::Unclosed | Status::Closed => PLAIN,
    };
    if let Some(columns) = output.columns {
        let (session, status, rest) = narrow::pieces(row, columns, now().timestamp_micros());
        return output.pieces(&[(PLAIN, &session), (style, &status), (PLAIN, &rest)]);
    }
    let (session, status) = (format!("{}  ", row.session), row.status.name());
    output.pieces(&[(PLAIN, &session), (style, &status), (PLAIN, &rest(row))])
}

/// Returns the part of a row after the status.
fn rest(row: &SessionListRow) -> String {
    let tags: Vec<String> = row.tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let tags: Vec<Cow<'_, str>> = tags.iter().map(|tag| escape::text(tag)).collect();
    let tags = or_dash((!tags.is_empty()).then(|| tags.join(",")));
    let parent = or_dash(row.parent.as_ref().map(|parent| match parent.position {
        Some(position) => format!("{}@{position}", parent.session),
        None => parent.session.to_string(),
    }));
    let (records, log_bytes) = (or_dash(row.records), or_dash(row.log_bytes));
    let SessionListRow { object_bytes, .. } = row;
    let (pad, last_at) = ("", or_dash(row.last_at));
    let width = STATUS_CHARS.saturating_sub(row.status.name().len());
    let row = format!(
        "{pad:<width$}  {last_at:<32}  {records:>8}  {log_bytes:>10}  {object_bytes:>12}  {tags:<24}  \
         {parent:<36}  {}",
        describe_row(row)
    );
    row.trim_end().to_owned()
}

/// Returns the most important facts about the session, and whether it is replicated, so that other
/// machines may continue it.
fn describe_row(row: &SessionListRow) -> String {
    let parts = [Some(detail(row)), replica_text(row)];
    parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

fn replica_text(row: &SessionListRow) -> Option<String> {
    let fenced = row.fenced.as_ref().map(|fenced| {
        format!("replicated, and fenced: records from {} on were never acknowledged", fenced.from)
    });
    row.replicated.is_some().then(|| fenced.unwrap_or_else(|| "replicated".to_owned()))
}

fn first_resumable_text(row: &SessionListRow) -> String {
    row.resumable.first().map(resumable_text).unwrap_or_default()
}

/// Returns the most important fact about the session's status.
fn detail(row: &SessionListRow) -> String {
    match row.status {
        Status::Damaged | Status::Unreadable => {
            let error = row.error.as_deref().unwrap_or_default();
            match &row.damage {
                Some(damage) => format!("from record {} on: {error}", damage.sequence),
                None => format!("cannot be read: {error}"),
            }
        }
        Status::Running => {
            let within =
                if row.open.is_empty() { String::new() } else { format!(", {}", operations_text(&row.open)) };
            let writer = row.running.as_ref();
            writer.map_or_else(String::new, |writer| format!("{}{within}", writer_text(writer)))
        }
        Status::Interrupted => operations_text(&row.open),
        Status::Unsettled => operations_text(&row.unsettled),
        Status::Suspended => operations_text(&row.suspended),
        Status::Resumable => {
            let since = row.resumable.first().map(|first| format!(" since {}", first.since));
            let (since, more) = (since.unwrap_or_default(), more(row.resumable.len(), ", and ", " more"));
            format!("{}{since}{more}", first_resumable_text(row))
        }
        Status::Unclosed | Status::Closed => String::new(),
    }
}

/// Width of the status column.
const STATUS_CHARS: usize = 11;

const HEADINGS: &str = "session                               status       last_activity                      records   log_bytes  object_bytes  tags                      parent                                what";

/// Returns the number of further items, if there are any.
fn more(all: usize, before: &str, behind: &str) -> String {
    match all.saturating_sub(1) {
        0 => String::new(),
        more => format!("{before}{more}{behind}"),
    }
}

/// Names the first operation, and the number of further ones.
fn operations_text(operations: &[SessionOperationRow]) -> String {
    let Some(first) = operations.first() else { return String::new() };
    let more = more(operations.len(), ", and ", " more");
    let (tool, paths) = (escape::text(&first.tool), paths(first));
    format!("`{tool}` (operation {}) since {}{paths}{more}", first.operation, first.since)
}

fn writer_text(writer: &WriterProcess) -> String {
    let WriterProcess { pid: Some(pid), host, since, ended } = writer else {
        return "an unknown process".to_owned();
    };
    let host = host.as_deref().map(|host| format!(" on {}", escape::text(host))).unwrap_or_default();
    let since = since.as_deref().map(|since| format!(" since {}", escape::text(since))).unwrap_or_default();
    let ended = if *ended { ", which has ended: a process forked from it has the lock" } else { "" };
    format!("pid {pid}{host}{since}{ended}")
}

/// Names the workspaces' paths.
fn paths(operation: &SessionOperationRow) -> String {
    let paths: Vec<Cow<'_, str>> = operation.workspaces.values().map(|path| escape::text(path)).collect();
    if paths.is_empty() { String::new() } else { format!(" in {}", paths.join(", ")) }
}

/// Sorts rows. Equal rows stay in the order of their ids.
fn sort(rows: &mut [SessionListRow], sort: Sort) {
    let bytes = |row: &SessionListRow| row.log_bytes.unwrap_or(0).saturating_add(row.object_bytes);
    match sort {
        Sort::Id => {}
        Sort::Status => rows.sort_by_key(|row| row.status),
        Sort::Activity => rows.sort_by_key(|row| Reverse(row.last_at)),
        Sort::Created => rows.sort_by_key(|row| Reverse(row.created_at)),
        Sort::Records => rows.sort_by_key(|row| Reverse(row.records)),
        Sort::Bytes => rows.sort_by_key(|row| Reverse(bytes(row))),
    }
}

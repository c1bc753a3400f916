//! `foldlog sessions`: the sessions of a store, and how each of them stands.

mod narrow;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use chrono::{DateTime, TimeDelta, Utc};
use clap::ValueEnum;
use foldlog::conversation::ResumePoint;
use foldlog::inspect::{self, ResumableConversation, SessionFence, SessionOverview, StandingOperation};
use foldlog::{Error, Holder, OperationId, Parent, Replicated, SequenceNumber, Store};
use foldlog_codec::escape;
use foldlog_codec::record::time_text;
use serde::Serialize;
use uuid::Uuid;

use super::pending::now;
use crate::failure::{CommandError, DOES_NOT_HOLD, HOLDS, Result, worse};
use crate::output::Output;
use crate::readers;
use crate::remote;
use crate::style::{BAD, CAUTION, GOOD, HEADING, PLAIN};

/// Describes the fields of `sessions --json`.
const SESSIONS_JSON: &str = "\
With --json one object a line:
  session, status        the first that is true: damaged, unreadable, running, interrupted, unsettled, suspended, resumable, unclosed, closed
  records, log_bytes     of a damaged session those before its damage
  objects, object_bytes  in its folder
  created_at, last_at    times of its own first record and of its last one; tags
  parent                 session, how: fork, child; position or operation
  replicated             at, by, epoch: a replica holds its records there, first claimed by whom; left out if none does
  fenced                 from, epoch, by: another worker has claimed it, and records from there on were never acknowledged
  running                pid, host, since, ended: the process that has it open, as far as that left a note
  open                   calls that have begun and not ended: operation, tool, since; workspaces: their names and the paths that they had
  unsettled, suspended   calls that were interrupted, and that wait for an answer: the same
  resumable              conversations that stopped before their end and that their host resumes: evaluation, next (provider, calls),
                         calls (ordinals of those that are to run), since
  damage                 where its sound part ends: segment, offset, sequence
  error                  why it cannot be read, or not all of it

Of a place (file://, s3://, gs://, az:// or postgres://, as `foldlog help pull` says) the id, and as its log says: epoch and by, the last claim and
who made it; records; last_at, the time of its last record; error. Every log is read for it. worker: closed, if nobody keeps a lease of it (it
was closed, or its worker keeps none), alive, ran_out (whoever takes it over waits for nobody) or unknown: a bucket tells whether a worker
lives only to whoever watches it for the length of its lease, as --wait does. lease, left out if nobody keeps one: worker, length_ms, renewed_at
by the place's clock, and left_ms where the place can tell: 0 once it has run out.";

/// Holds what the command line asks of `foldlog sessions`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = SESSIONS_JSON)]
pub struct Args {
    /// The store's folder, or the URL of a place that holds sessions.
    #[arg(value_name = "STORE")]
    pub dir: PathBuf,
    /// Only sessions of which this is true; may be given several times.
    #[arg(long, value_enum)]
    pub status: Vec<Status>,
    /// Only sessions with a record since this time, such as 2027-01-31T12:00:00Z, or since so long ago: 30m, 12h, 7d.
    #[arg(long, value_name = "TIME")]
    pub since: Option<Since>,
    /// Only sessions with this tag, KEY or KEY=VALUE; may be given several times.
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// The order.
    #[arg(long, value_enum, default_value_t)]
    pub sort: Sort,
    /// Of a bucket: watch which workers renew their leases, until it is known of each whether it lives.
    #[arg(long)]
    pub wait: bool,
}

impl Args {
    /// Runs the verb, and returns the exit code.
    ///
    /// # Errors
    ///
    /// Those of [`run`].
    pub fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let Args { dir, status, since, tags, sort, wait } = self;
        let asked = SessionsQuery { status, since, tags, sort, wait };
        match remote::url(&dir) {
            #[cfg(feature = "object-store")]
            Some(url) => remote::list(url, &asked, output),
            #[cfg(not(feature = "object-store"))]
            Some(_) => Err(remote::not_built()),
            None if wait => {
                let next = "a store knows at once: leave out --wait";
                Err(CommandError::usage("--wait is for the sessions of a place", next))
            }
            None => run(&dir, &asked, output),
        }
    }
}

/// Says how a session stands. A session of which several are true is listed with the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Its log is damaged.
    Damaged,
    /// The session cannot be read, and is not known to be damaged.
    Unreadable,
    /// A process has it open for writing.
    Running,
    /// A tool's call has begun and not ended, and no process has the session open.
    Interrupted,
    /// A call was interrupted, and has neither run again nor been settled.
    Unsettled,
    /// A call waits for somebody's answer.
    Suspended,
    /// A conversation stopped before its end: its host has to resume it.
    Resumable,
    /// Its last writer ended without closing it, between two calls.
    Unclosed,
    /// Its last writer closed it.
    Closed,
}

impl Status {
    /// Returns the name that listings and JSON use.
    pub fn name(self) -> &'static str {
        match self {
            Status::Damaged => "damaged",
            Status::Unreadable => "unreadable",
            Status::Running => "running",
            Status::Interrupted => "interrupted",
            Status::Unsettled => "unsettled",
            Status::Suspended => "suspended",
            Status::Resumable => "resumable",
            Status::Unclosed => "unclosed",
            Status::Closed => "closed",
        }
    }
}

/// Names what sessions are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Their ids.
    #[default]
    Id,
    /// Their status, the worst first.
    Status,
    /// Their last record's time, the latest first.
    Activity,
    /// The time of their creation, the latest first.
    Created,
    /// Their number of records, the greatest first.
    Records,
    /// The bytes of their logs and objects, the most first.
    Bytes,
}

/// Names a time: itself, or how long ago it was.
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

/// Says which sessions are listed, and in which order.
#[derive(Clone, Debug, Default)]
pub struct SessionsQuery {
    /// Sessions of which one of these is true; all if it is empty.
    pub status: Vec<Status>,
    /// Sessions with a record since then.
    pub since: Option<Since>,
    /// Sessions with all of these tags: a key, or a key and its value.
    pub tags: Vec<String>,
    /// Order.
    pub sort: Sort,
    /// Whether the leases of a place are watched.
    pub wait: bool,
}

/// Holds the row of a session. The fields are those of `sessions --json`.
#[derive(Debug, Serialize)]
pub(crate) struct SessionListRow {
    session: Uuid,
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    records: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    log_bytes: Option<u64>,
    objects: u64,
    object_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_at: Option<Time>,
    tags: BTreeMap<String, String>,
    parent: Option<ParentRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replicated: Option<ReplicatedRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fenced: Option<SessionFence>,
    #[serde(skip_serializing_if = "Option::is_none")]
    running: Option<WriterProcess>,
    open: Vec<SessionOperationRow>,
    unsettled: Vec<SessionOperationRow>,
    suspended: Vec<SessionOperationRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    resumable: Vec<Resumable>,
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<DamageRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// All that is true of the session.
    #[serde(skip)]
    statuses: Vec<Status>,
    /// What is reported of the session on standard error, and the exit code that it asks for.
    #[serde(skip)]
    failure: Option<(String, u8)>,
}

#[derive(Debug, Serialize)]
struct ParentRow {
    session: Uuid,
    how: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<SequenceNumber>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<OperationId>,
}

/// Is a time in microseconds since 1970, which is text where it is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Time(i64);

impl Serialize for Time {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&time_text(self.0))
    }
}

/// Says where a replica holds a session's records.
#[derive(Debug, Serialize)]
struct ReplicatedRow {
    at: String,
    by: String,
    epoch: u64,
}

/// Names the process that has a session open, as far as it left a note.
#[derive(Debug, Serialize)]
struct WriterProcess {
    pid: Option<u32>,
    host: Option<String>,
    since: Option<String>,
    ended: bool,
}

#[derive(Debug, Serialize)]
struct SessionOperationRow {
    operation: OperationId,
    tool: String,
    since: String,
    #[serde(skip)]
    since_us: i64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    workspaces: BTreeMap<String, String>,
}

/// Describes a conversation that its host has to resume.
#[derive(Debug, Serialize)]
struct Resumable {
    evaluation: String,
    next: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    calls: Vec<u32>,
    since: String,
    #[serde(skip)]
    since_us: i64,
}

impl Resumable {
    fn of(conversation: &ResumableConversation) -> Resumable {
        let ResumableConversation { evaluation_id, point, last_at_us } = conversation;
        let (next, calls) = match point {
            ResumePoint::RunTools(calls) => ("calls", calls.clone()),
            _ => ("provider", Vec::new()),
        };
        let (evaluation, since) = (evaluation_id.to_string(), time_text(*last_at_us));
        Resumable { evaluation, next, calls, since, since_us: *last_at_us }
    }

    /// Says where the conversation stopped.
    fn text(&self) -> String {
        let next = match self.calls.len() {
            0 => "the provider is next".to_owned(),
            calls => format!("{} next", readers::counted(calls as u64, "call")),
        };
        format!("conversation `{}`, {next}", escape::text(&self.evaluation))
    }
}

#[derive(Debug, Serialize)]
struct DamageRow {
    #[serde(serialize_with = "escape::serialize_path")]
    segment: PathBuf,
    offset: u64,
    sequence: SequenceNumber,
}

/// Returns whether a session's folder holds no records, and nothing that was made after a first one.
fn is_nothing(found: &Result<SessionOverview, Error>, dir: &Path) -> bool {
    matches!(found, Err(Error::NotASession { .. }))
        && readers::lost_segments(dir).is_none()
        && !readers::holds_anything(dir)
}

/// Lists the sessions of the store at `dir` that are asked for. A session that is damaged or cannot be read is a row as well,
/// and is reported on standard error; the exit code is then 1 if any listed session is damaged, else 2. Such a session is listed
/// whatever tags and times are asked for. A folder in which a crash left a session without records is noted on standard error,
/// and is no failure.
///
/// A session is read from its newest image on, or not at all if the last listing found it closed and nothing has written to it since
/// ([`Store::overviews`]). Damage in what is not read is found by `verify` alone.
///
/// # Errors
///
/// [`CommandError::Usage`] if there is no store at `dir`, [`CommandError::Engine`] if the store cannot be read.
pub fn run(dir: &Path, asked: &SessionsQuery, output: &mut Output<'_>) -> Result<u8> {
    let store = readers::open_store(dir, output)?;
    let ids = store.session_ids()?;
    note_exposed(&store, &ids, output);
    let mut running = inspect::running(store.path(), &ids)?;
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
        rows.push(SessionListRow::of(id, &dir, found, running.remove(&id)));
    }
    rows.retain(|row| row.is_asked(asked));
    sort(&mut rows, asked.sort);
    if !output.json() {
        match output.columns {
            Some(columns) => output.styled(HEADING, narrow::headings(columns))?,
            None => output.styled(HEADING, HEADINGS)?,
        }
    }
    let mut code = HOLDS;
    for row in rows {
        if let Some((error, its)) = &row.failure {
            output.error(error);
            code = worse(code, *its);
        }
        if output.json() {
            output.value(&row)?;
        } else {
            row.print(output)?;
        }
    }
    Ok(code)
}

/// Returns the rows of some sessions of a store, in their order. Folders that hold no records are passed over.
///
/// # Errors
///
/// [`CommandError::Engine`] if the store cannot be read.
#[cfg(feature = "view")]
pub(crate) fn rows_of(store: &Store, ids: &[Uuid], memory_bytes: Option<u64>) -> Result<Vec<SessionListRow>> {
    let mut running = inspect::running(store.path(), ids)?;
    let now_us = now().timestamp_micros();
    let rows = ids.iter().filter_map(|id| {
        let dir = store.session_dir(*id);
        let found = inspect::overview(&dir, now_us, memory_bytes);
        (!is_nothing(&found, &dir)).then(|| SessionListRow::of(*id, &dir, found, running.remove(id)))
    });
    Ok(rows.collect())
}

/// Notes that others may read a session of the store, if they may. One note is enough: the same command keeps them out of all.
fn note_exposed(store: &Store, ids: &[Uuid], output: &mut Output<'_>) {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = ids.first().map(|id| store.session_dir(*id)).and_then(|dir| Some(dir.parent()?.to_owned()));
    let metadata = folder.and_then(|folder| folder.symlink_metadata().ok());
    // Where nobody else may pass the folder of all sessions, none of them is exposed.
    if metadata.is_some_and(|found| found.is_dir() && found.permissions().mode() & 0o011 == 0) {
        return;
    }
    let exposed = ids.iter().find_map(|id| inspect::exposed(&store.session_dir(*id)));
    readers::note_exposed(exposed.as_ref(), output);
}

impl SessionListRow {
    fn of(
        session: Uuid,
        dir: &Path,
        found: Result<SessionOverview, Error>,
        holder: Option<Holder>,
    ) -> SessionListRow {
        let running = holder.map(|holder| {
            let Holder { pid, host, since, ended } = holder;
            WriterProcess { pid, host, since, ended }
        });
        let row = SessionListRow {
            session,
            status: Status::Unreadable,
            records: None,
            log_bytes: None,
            objects: 0,
            object_bytes: 0,
            created_at: None,
            last_at: None,
            tags: BTreeMap::new(),
            parent: None,
            replicated: None,
            fenced: inspect::fenced(dir),
            running,
            open: Vec::new(),
            unsettled: Vec::new(),
            suspended: Vec::new(),
            resumable: Vec::new(),
            damage: None,
            error: None,
            statuses: Vec::new(),
            failure: None,
        };
        match found {
            Ok(overview) => row.read(overview),
            Err(error) => row.unread(dir, error),
        }
    }

    /// Adds what was read of the session.
    fn read(mut self, overview: SessionOverview) -> SessionListRow {
        let SessionOverview { records, log_bytes, created_at_us, last_at_us, closed, .. } = overview;
        (self.records, self.log_bytes) = (Some(records), Some(log_bytes));
        (self.created_at, self.last_at) = (Some(Time(created_at_us)), Some(Time(last_at_us)));
        (self.objects, self.object_bytes) = (overview.objects, overview.object_bytes);
        self.tags = overview.tags;
        self.parent = overview.parent.map(ParentRow::of);
        self.replicated =
            overview.replicated.map(|Replicated { at, by, epoch }| ReplicatedRow { at, by, epoch });
        self.open = overview.open.iter().map(SessionOperationRow::of).collect();
        self.unsettled = overview.unsettled.iter().map(SessionOperationRow::of).collect();
        self.suspended = overview.suspended.iter().map(SessionOperationRow::of).collect();
        self.resumable = overview.resumable.iter().map(Resumable::of).collect();
        if let Some(end) = overview.sound_end {
            let failure = CommandError::from(end.damage);
            self.error = Some(failure.to_string());
            self.failure = Some((failure.to_string(), failure.exit_code()));
            self.damage =
                Some(DamageRow { segment: end.segment, offset: end.offset, sequence: end.sequence });
        }
        let is_running = self.running.is_some();
        let all = [
            (Status::Damaged, self.damage.is_some()),
            (Status::Running, is_running),
            (Status::Interrupted, !is_running && !self.open.is_empty()),
            (Status::Unsettled, !self.unsettled.is_empty()),
            (Status::Suspended, !self.suspended.is_empty()),
            (Status::Resumable, !is_running && !self.resumable.is_empty()),
            (Status::Closed, closed && !is_running),
        ];
        self.statuses = all.into_iter().filter(|(_, is_true)| *is_true).map(|(status, _)| status).collect();
        if self.statuses.is_empty() || (!closed && self.statuses.iter().all(|one| *one > Status::Interrupted))
        {
            self.statuses.push(Status::Unclosed);
        }
        self.statuses.sort_unstable();
        self.status = self.statuses.first().copied().unwrap_or(Status::Unclosed);
        self
    }

    /// Adds why the session cannot be read.
    fn unread(mut self, dir: &Path, error: Error) -> SessionListRow {
        // Of a folder that cannot be looked at, the error tells.
        (self.objects, self.object_bytes) = inspect::kept_objects(dir).unwrap_or_default();
        let lost = readers::lost_segments(dir).filter(|_| matches!(error, Error::NotASession { .. }));
        let (text, code) = match lost {
            Some(reason) => (format!("{}: {reason}", escape::path(dir)), DOES_NOT_HOLD),
            None => {
                let failure = CommandError::from(error);
                (failure.to_string(), failure.exit_code())
            }
        };
        self.status = if code == DOES_NOT_HOLD { Status::Damaged } else { Status::Unreadable };
        self.statuses = vec![self.status];
        if self.running.is_some() {
            self.statuses.push(Status::Running);
        }
        self.error = Some(text.clone());
        self.failure = Some((text, code));
        self
    }

    fn is_asked(&self, asked: &SessionsQuery) -> bool {
        let has = |tag: &String| match tag.split_once('=') {
            Some((key, value)) => self.tags.get(key).is_some_and(|found| found == value),
            None => self.tags.contains_key(tag),
        };
        let is_status = asked.status.is_empty() || asked.status.iter().any(|one| self.statuses.contains(one));
        let is_known = self.failure.is_none();
        let is_since =
            asked.since.is_none_or(|Since(since)| self.last_at.is_some_and(|Time(last)| last >= since));
        is_status && (!is_known || (is_since && asked.tags.iter().all(has)))
    }

    /// Prints the row, with a colour for its status, and on a terminal within its width.
    fn print(&self, output: &mut Output<'_>) -> Result<()> {
        let style = match self.status {
            Status::Damaged | Status::Unreadable => BAD,
            Status::Interrupted | Status::Unsettled | Status::Suspended | Status::Resumable => CAUTION,
            Status::Running => GOOD,
            Status::Unclosed | Status::Closed => PLAIN,
        };
        if let Some(columns) = output.columns {
            let (session, status, rest) = narrow::pieces(self, columns, now().timestamp_micros());
            return output.pieces(&[(PLAIN, &session), (style, &status), (PLAIN, &rest)]);
        }
        let (session, status) = (format!("{}  ", self.session), self.status.name());
        output.pieces(&[(PLAIN, &session), (style, &status), (PLAIN, &self.rest())])
    }

    /// Writes what a row says behind the status.
    fn rest(&self) -> String {
        let tags: Vec<String> = self.tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let tags: Vec<Cow<'_, str>> = tags.iter().map(|tag| escape::text(tag)).collect();
        let tags = if tags.is_empty() { "-".to_owned() } else { tags.join(",") };
        let parent = self.parent.as_ref().map_or_else(
            || "-".to_owned(),
            |parent| match parent.position {
                Some(position) => format!("{}@{position}", parent.session),
                None => parent.session.to_string(),
            },
        );
        let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let (records, log_bytes) = (number(self.records), number(self.log_bytes));
        let SessionListRow { object_bytes, .. } = self;
        let (pad, last_at) = ("", self.last_at.map_or_else(|| "-".to_owned(), |Time(last)| time_text(last)));
        let width = STATUS_CHARS.saturating_sub(self.status.name().len());
        let row = format!(
            "{pad:<width$}  {last_at:<32}  {records:>8}  {log_bytes:>10}  {object_bytes:>12}  {tags:<24}  \
             {parent:<36}  {}",
            self.what()
        );
        row.trim_end().to_owned()
    }

    /// Says what a person wants to know next, and whether other machines may go on with the session.
    fn what(&self) -> String {
        let parts = [Some(self.detail()), self.held()];
        parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
    }

    fn held(&self) -> Option<String> {
        let fenced = self.fenced.as_ref().map(|fenced| {
            format!("held by a replica, and fenced: records from {} on were never acknowledged", fenced.from)
        });
        self.replicated.is_some().then(|| fenced.unwrap_or_else(|| "held by a replica".to_owned()))
    }

    /// Says where the first conversation stopped that is to be resumed.
    fn stopped(&self) -> String {
        self.resumable.first().map(Resumable::text).unwrap_or_default()
    }

    /// Says what a person wants to know next of the session's status.
    fn detail(&self) -> String {
        match self.status {
            Status::Damaged | Status::Unreadable => {
                let error = self.error.as_deref().unwrap_or_default();
                match &self.damage {
                    Some(damage) => format!("from record {} on: {error}", damage.sequence),
                    None => format!("cannot be read: {error}"),
                }
            }
            Status::Running => {
                let within =
                    if self.open.is_empty() { String::new() } else { format!(", {}", named(&self.open)) };
                let writer = self.running.as_ref();
                writer.map_or_else(String::new, |writer| format!("{}{within}", writer.text()))
            }
            Status::Interrupted => named(&self.open),
            Status::Unsettled => named(&self.unsettled),
            Status::Suspended => named(&self.suspended),
            Status::Resumable => {
                let since = self.resumable.first().map(|first| first.since.as_str()).unwrap_or_default();
                format!("{} since {since}{}", self.stopped(), more(self.resumable.len(), ", and ", " more"))
            }
            Status::Unclosed | Status::Closed => String::new(),
        }
    }
}

/// Width of the column of status.
const STATUS_CHARS: usize = 11;

const HEADINGS: &str = "session                               status       last_activity                      records   log_bytes  object_bytes  tags                      parent                                what";

/// Says how many there are beside the first one, if there are any.
fn more(all: usize, before: &str, behind: &str) -> String {
    match all.saturating_sub(1) {
        0 => String::new(),
        more => format!("{before}{more}{behind}"),
    }
}

/// Names operations to a person: the first, and how many there are more.
fn named(operations: &[SessionOperationRow]) -> String {
    let Some(first) = operations.first() else { return String::new() };
    let more = more(operations.len(), ", and ", " more");
    let (tool, paths) = (escape::text(&first.tool), first.paths());
    format!("`{tool}` (operation {}) since {}{paths}{more}", first.operation, first.since)
}

impl WriterProcess {
    fn text(&self) -> String {
        let WriterProcess { pid: Some(pid), host, since, ended } = self else {
            return "a process that left no note".to_owned();
        };
        let host = host.as_deref().map(|host| format!(" on {}", escape::text(host))).unwrap_or_default();
        let since =
            since.as_deref().map(|since| format!(" since {}", escape::text(since))).unwrap_or_default();
        let ended = if *ended { ", which has ended: one that it forked holds the lock" } else { "" };
        format!("pid {pid}{host}{since}{ended}")
    }
}

impl SessionOperationRow {
    fn of(operation: &StandingOperation) -> SessionOperationRow {
        let StandingOperation { operation, tool, begun_at_us, workspaces } = operation;
        let (since, workspaces) = (time_text(*begun_at_us), workspaces.clone());
        SessionOperationRow {
            operation: *operation,
            tool: tool.to_string(),
            since,
            since_us: *begun_at_us,
            workspaces,
        }
    }

    /// Says where the workspaces were.
    fn paths(&self) -> String {
        let paths: Vec<Cow<'_, str>> = self.workspaces.values().map(|path| escape::text(path)).collect();
        if paths.is_empty() { String::new() } else { format!(" in {}", paths.join(", ")) }
    }
}

impl ParentRow {
    fn of(parent: Parent) -> ParentRow {
        match parent {
            Parent::Fork { session, position, .. } => {
                ParentRow { session, how: "fork", position: Some(position), operation: None }
            }
            Parent::Child { session, operation } => {
                ParentRow { session, how: "child", position: None, operation }
            }
        }
    }
}

/// Sorts rows. Those that are alike stay in the order of their ids.
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

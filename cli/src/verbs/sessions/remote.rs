//! `foldlog sessions URL`: the sessions of a place, and the worker of each.

use std::cmp::Reverse;
use std::time::Duration;

use foldlog_codec::escape;
use foldlog_codec::record::time_text;
use foldlog_remote::{
    LeasePacer, LeaseStanding, LeaseWatch, Place, SessionLease, SessionStanding, SteadyPacing,
};
use foldlog_view::text::or_dash;
use serde::Serialize;
use uuid::Uuid;

use super::{Args, Sort};
use crate::failure::{CommandError, HOLDS, Result, worse};
use crate::output::Output;
use crate::remote;
use crate::style::HEADING;

/// Row of a session. The fields are those of `sessions URL --json`.
#[derive(Debug, Default, Serialize)]
struct RemoteSessionRow {
    session: Uuid,
    epoch: Option<u64>,
    by: Option<String>,
    records: Option<u64>,
    last_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<LeaseRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip)]
    last_us: Option<i64>,
}

/// Returns the state of the worker that claimed a session last, according to its lease.
fn worker_state(standing: LeaseStanding) -> &'static str {
    match standing {
        // The session was closed, or its worker uses no lease.
        LeaseStanding::None => "closed",
        LeaseStanding::Watched { .. } => UNKNOWN,
        LeaseStanding::Alive { .. } => "alive",
        LeaseStanding::RanOut => "ran_out",
    }
}

/// State of a worker whose lease, in a bucket, has to be watched for the lease's length.
const UNKNOWN: &str = "unknown";

/// Watches the leases of all sessions with a possibly living worker concurrently.
struct LeaseMonitor {
    pacing: SteadyPacing,
    watches: Vec<(usize, Uuid, LeaseWatch)>,
    longest: Duration,
    /// Delay between two checks.
    pause: Duration,
}

/// Number of checks of a lease within its length.
const LOOKS: u32 = 6;

impl LeaseMonitor {
    fn new() -> LeaseMonitor {
        let (pacing, watches) = (SteadyPacing::new(), Vec::new());
        LeaseMonitor { pacing, watches, longest: Duration::ZERO, pause: Duration::MAX }
    }

    /// Starts to watch the lease of a session's last claim. `at` is the index of the session's row.
    fn begin(&mut self, at: usize, session: Uuid, lease: Option<&SessionLease>) -> &'static str {
        let (mut watch, now) = (LeaseWatch::new(), self.pacing.now());
        let worker = worker_state(watch.look(lease, now, now));
        if let Some(lease) = lease.filter(|_| worker == UNKNOWN) {
            self.watches.push((at, session, watch));
            self.longest = self.longest.max(lease.length);
            self.pause = self.pause.min(lease.length / LOOKS);
        }
        worker
    }

    /// Checks the leases until it is known for each session whether its worker is alive. Reports a
    /// lease that cannot be read, whose worker stays unknown. Returns the exit code.
    fn wait(mut self, place: &dyn Place, rows: &mut [RemoteSessionRow], output: &mut Output<'_>) -> u8 {
        let mut code = HOLDS;
        while !self.watches.is_empty() && self.pacing.pause(self.pause.max(Duration::from_millis(1))) {
            for (at, session, mut watch) in std::mem::take(&mut self.watches) {
                let asked = self.pacing.now();
                let lease = match place.lease(session) {
                    Ok(lease) => lease,
                    Err(error) => {
                        let failure = remote::failure(error);
                        output.error(format_args!("session {session}: {failure}"));
                        code = worse(code, failure.exit_code());
                        continue;
                    }
                };
                let standing = watch.look(lease.as_ref(), asked, self.pacing.now());
                let worker = worker_state(standing);
                if worker == UNKNOWN {
                    self.watches.push((at, session, watch));
                } else if let Some(row) = rows.get_mut(at) {
                    (row.worker, row.lease) = (Some(worker), lease.map(LeaseRow::from_lease));
                }
            }
        }
        code
    }
}

/// The place's record of the last claim's lease.
#[derive(Debug, Serialize)]
struct LeaseRow {
    worker: Uuid,
    length_ms: u64,
    renewed_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_ms: Option<u64>,
}

impl LeaseRow {
    fn from_lease(lease: SessionLease) -> LeaseRow {
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        LeaseRow {
            worker: lease.worker,
            length_ms: milliseconds(lease.length),
            renewed_at: lease.renewed_us.map(time_text),
            left_ms: lease.left.map(milliseconds),
        }
    }
}

/// Lists the sessions of a place, or the one that the URL names, each with the current state of its
/// log: the place's own list contains only ids. A session that cannot be read is listed as well,
/// and is reported on standard error. An empty place is noted there.
///
/// # Errors
///
/// [`Error::Usage`](foldlog_view::Error::Usage) if the place cannot be opened or listed, if it does
/// not contain the one session, or if the query needs data that only a store has.
pub(super) fn list(url: &str, asked: &Args, output: &mut Output<'_>) -> Result<u8> {
    let is_of_stores = matches!(asked.sort, Sort::Status | Sort::Created | Sort::Bytes);
    if !asked.status.is_empty() || !asked.tags.is_empty() || is_of_stores {
        return Err(CommandError::usage(
            "--status, --tag, and --sort by status, created or bytes apply only to a store, not to a URL",
            "copy the sessions into a store first: `foldlog pull URL --to STORE`",
        ));
    }
    let only = remote::HeldSession::parse(url);
    let (place, sessions) = remote::sessions_at(url)?;
    let (mut rows, watching, mut code) = read(place.as_ref(), sessions, output);
    match only {
        Some(held) if rows.is_empty() => return Err(remote::nothing_held(held.session)),
        None if rows.is_empty() => {
            output.note(format_args!("note: {}; {}", remote::NO_SESSION, remote::WHERE));
        }
        _ => {}
    }
    if asked.wait {
        if !watching.watches.is_empty() {
            output.note(format_args!(
                "note: watching for up to {} s which workers renew their leases",
                watching.longest.as_secs_f64()
            ));
        }
        code = worse(code, watching.wait(place.as_ref(), &mut rows, output));
    }
    rows.retain(|row| {
        row.error.is_some()
            || asked.since.is_none_or(|since| row.last_us.is_some_and(|last| since.is_at_most(last)))
    });
    match asked.sort {
        Sort::Activity => rows.sort_by_key(|row| Reverse(row.last_us)),
        Sort::Records => rows.sort_by_key(|row| Reverse(row.records)),
        _ => {}
    }
    if !output.json() {
        output.styled_line(HEADING, HEADINGS)?;
    }
    for row in rows {
        output.print(&row, |output| output.line(row.text()))?;
    }
    Ok(code)
}

/// Reads the rows of sessions, starts to watch their leases, and returns also the exit code.
fn read(
    place: &dyn Place,
    sessions: Vec<remote::HeldSession>,
    output: &mut Output<'_>,
) -> (Vec<RemoteSessionRow>, LeaseMonitor, u8) {
    let mut code = HOLDS;
    let (mut rows, mut watching) = (Vec::new(), LeaseMonitor::new());
    let mut progress = output.progress("reading sessions", sessions.len() as u64);
    for (done, id) in sessions.into_iter().map(|held| held.session).enumerate() {
        // The lease of an earlier claim is irrelevant.
        let lease = |standing: &SessionStanding| {
            place.lease(id).map(|lease| lease.filter(|lease| lease.epoch == standing.epoch))
        };
        let read = place.read_standing(id);
        match read.and_then(|standing| standing.map(|read| Ok((lease(&read)?, read))).transpose()) {
            Ok(Some((lease, standing))) => {
                let worker = watching.begin(rows.len(), id, lease.as_ref());
                rows.push(RemoteSessionRow::from_standing(
                    id,
                    standing,
                    worker,
                    lease.map(LeaseRow::from_lease),
                ));
            }
            // The session was not claimed: it has at most a probe or a payload.
            Ok(None) => {}
            Err(error) => {
                let failure = remote::failure(error);
                output.error(format_args!("session {id}: {failure}"));
                code = worse(code, failure.exit_code());
                rows.push(RemoteSessionRow::unread(id, failure.to_string()));
            }
        }
        progress.at(done as u64 + 1);
    }
    (rows, watching, code)
}

const HEADINGS: &str = "session                                epoch  last_activity                      records  worker   lease_renewed                     claimed_by";

impl RemoteSessionRow {
    fn from_standing(
        session: Uuid,
        standing: SessionStanding,
        worker: &'static str,
        lease: Option<LeaseRow>,
    ) -> RemoteSessionRow {
        let SessionStanding { next, epoch, name, last_time_us, .. } = standing;
        RemoteSessionRow {
            session,
            epoch: Some(epoch),
            by: Some(name),
            records: Some(next.get()),
            last_at: last_time_us.map(time_text),
            worker: Some(worker),
            lease,
            error: None,
            last_us: last_time_us,
        }
    }

    fn unread(session: Uuid, error: String) -> RemoteSessionRow {
        RemoteSessionRow { session, error: Some(error), ..RemoteSessionRow::default() }
    }

    fn text(&self) -> String {
        let (epoch, records) = (or_dash(self.epoch), or_dash(self.records));
        let last_at = or_dash(self.last_at.as_ref());
        let what = match &self.error {
            Some(error) => format!("cannot be read: {}", escape::text(error)),
            None => or_dash(self.by.as_deref().map(escape::text)),
        };
        let worker = self.worker.unwrap_or("-").replace('_', " ");
        let lease = or_dash(self.lease.as_ref().and_then(|lease| lease.renewed_at.as_ref()));
        format!("{}  {epoch:>6}  {last_at:<32}  {records:>8}  {worker:<7}  {lease:<32}  {what}", self.session)
    }
}

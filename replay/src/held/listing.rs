//! `foldlog sessions URL`: the sessions of a place, and who holds each of them.

use std::cmp::Reverse;
use std::time::Duration;

use foldlog_codec::escape;
use foldlog_codec::record::time_text;
use foldlog_remote::{SessionLease, Standing};
use serde::Serialize;
use uuid::Uuid;

use crate::failure::{Failure, HOLDS, Result, worse};
use crate::output::Output;
use crate::style::HEADING;
use crate::verbs::sessions::{Asked, Sort};

/// Holds the row of a session. The fields are those of `sessions URL --json`.
#[derive(Debug, Serialize)]
struct Row {
    session: Uuid,
    epoch: Option<u64>,
    by: Option<String>,
    records: Option<u64>,
    last_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<Lease>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip)]
    last_us: Option<i64>,
}

/// Holds what the place says of the lease of whoever claimed the session last.
#[derive(Debug, Serialize)]
struct Lease {
    worker: Uuid,
    length_ms: u64,
    renewed_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_ms: Option<u64>,
}

impl Lease {
    fn of(lease: SessionLease) -> Lease {
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Lease {
            worker: lease.worker,
            length_ms: milliseconds(lease.length),
            renewed_at: lease.renewed_us.map(time_text),
            left_ms: lease.left.map(milliseconds),
        }
    }

    fn text(&self) -> &str {
        match (self.left_ms, &self.renewed_at) {
            (Some(0), _) => "ran out",
            (_, Some(renewed_at)) => renewed_at,
            (_, None) => "-",
        }
    }
}

/// Lists the sessions that a place holds, each as its log says that it stands now: the list of the place finds ids alone. A session
/// that cannot be read is a row as well, and is reported on standard error.
///
/// # Errors
///
/// [`Failure::Usage`] if the place cannot be opened or listed, or something is asked that only a store tells.
pub(crate) fn list(url: &str, asked: &Asked, output: &mut Output<'_>) -> Result<u8> {
    let is_of_stores = matches!(asked.sort, Sort::Status | Sort::Created | Sort::Bytes);
    if !asked.status.is_empty() || !asked.tags.is_empty() || is_of_stores {
        return Err(Failure::usage(
            "a place tells of its sessions who claimed each, its records and the time of the last one, and no more",
            "copy them to ask for more: `foldlog pull URL --to STORE`",
        ));
    }
    let place = super::place(url)?;
    let ids = place.sessions().map_err(super::failure)?;
    let mut code = HOLDS;
    let mut rows = Vec::new();
    let mut progress = output.progress("reading sessions", ids.len() as u64);
    for (done, id) in ids.into_iter().enumerate() {
        // The lease of an earlier claim says nothing.
        let lease = |standing: &Standing| {
            place.lease(id).map(|lease| lease.filter(|lease| lease.epoch == standing.epoch))
        };
        let read = place.standing(id);
        match read.and_then(|standing| standing.map(|read| Ok((lease(&read)?, read))).transpose()) {
            Ok(Some((lease, standing))) => rows.push(Row::of(id, standing, lease.map(Lease::of))),
            // Whoever was to claim it has put a probe or a payload at most.
            Ok(None) => {}
            Err(error) => {
                let failure = super::failure(error);
                output.error(format_args!("session {id}: {failure}"));
                code = worse(code, failure.exit_code());
                rows.push(Row::unread(id, failure.to_string()));
            }
        }
        progress.at(done as u64 + 1);
    }
    drop(progress);
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
        output.styled(HEADING, HEADINGS)?;
    }
    for row in rows {
        if output.json() {
            output.value(&row)?;
        } else {
            output.line(row.text())?;
        }
    }
    Ok(code)
}

const HEADINGS: &str = "session                                epoch  last_activity                      records  lease_renewed                     claimed_by";

impl Row {
    fn of(session: Uuid, standing: Standing, lease: Option<Lease>) -> Row {
        let Standing { next, epoch, name, last_time_us, .. } = standing;
        Row {
            session,
            epoch: Some(epoch),
            by: Some(name),
            records: Some(next.get()),
            last_at: last_time_us.map(time_text),
            lease,
            error: None,
            last_us: last_time_us,
        }
    }

    fn unread(session: Uuid, error: String) -> Row {
        let error = Some(error);
        Row {
            session,
            epoch: None,
            by: None,
            records: None,
            last_at: None,
            lease: None,
            error,
            last_us: None,
        }
    }

    fn text(&self) -> String {
        let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let (epoch, records) = (number(self.epoch), number(self.records));
        let last_at = self.last_at.as_deref().unwrap_or("-");
        let what = match (&self.by, &self.error) {
            (_, Some(error)) => format!("cannot be read: {}", escape::text(error)),
            (Some(by), None) => escape::text(by).into_owned(),
            (None, None) => "-".to_owned(),
        };
        let lease = self.lease.as_ref().map_or("-", Lease::text);
        format!("{}  {epoch:>6}  {last_at:<32}  {records:>8}  {lease:<32}  {what}", self.session)
    }
}

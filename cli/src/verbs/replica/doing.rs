//! Implements the verbs, with the code that communicates with buckets.

use std::path::Path;
use std::sync::Arc;

use foldlog::inspect::{self, LogReader};
use foldlog::replication::{Replication, Replicator, TAKEN_OVER};
use foldlog::{RecordKind, Store, StoreOptions};
use foldlog_codec::body::Observed;
use foldlog_codec::escape;
use foldlog_codec::msgpack::Value;
use foldlog_remote::{LeaseWait, LeaseWaitOutcome, Place, SessionLease, SteadyPacing, wait_for_lease};
use foldlog_view::document;
use foldlog_view::documents::PathField;
use foldlog_view::text::count_text;
use uuid::Uuid;

use super::{Pull, Push, TakeOver};
use crate::failure::{CommandError, HOLDS, Result, worse};
use crate::output::Output;
use crate::readers::check_store;
use crate::remote::{NO_SESSION, WHERE, failure, place};

/// Claim name of a store whose host has none.
const PUSHES: &str = "foldlog push";

/// Name for a copy, which claims nothing.
const PULLS: &str = "foldlog pull";

pub(super) fn pull(asked: &Pull, output: &mut Output<'_>) -> Result<u8> {
    let place = place(&asked.url)?;
    let sessions = match asked.session {
        Some(session) => vec![session],
        None => list_sessions(place.as_ref())?,
    };
    let store = store(&asked.to, replicator(place.as_ref(), PULLS)?, false)?;
    each(&sessions, output, |session, output| {
        let report = store.pull(session)?;
        let (dir, records, new) = (store.session_dir(session), report.records, report.new);
        output.print(&document! { session, dir: PathField(&dir), records, new }, |output| {
            let records = count_text(records, "record");
            output.line(format_args!("{}: {records}, {new} new", escape::path(&dir)))
        })
    })
}

pub(super) fn push(asked: &Push, output: &mut Output<'_>) -> Result<u8> {
    check_store(&asked.store)?;
    let place = place(&asked.url)?;
    let plain = Store::open(&asked.store)?;
    let sessions = match asked.session {
        Some(session) => vec![session],
        None => plain.session_ids()?,
    };
    each(&sessions, output, |session, output| {
        let name = match &asked.name {
            Some(name) => name.clone(),
            None => name_of(place.as_ref(), session, &plain.session_dir(session))?,
        };
        let store = store(&asked.store, replicator(place.as_ref(), &name)?, asked.unreplicated)?;
        let pushed = store.open_to_recover(session)?;
        let synced = pushed.sync();
        let (records, epoch) =
            (pushed.log().position().map_or(0, |last| last.get() + 1), pushed.log().epoch());
        let closed = pushed.close();
        synced?;
        closed?;
        output.print(&document! { session, records, epoch }, |output| {
            let epoch = epoch.unwrap_or_default();
            let (records, name) = (count_text(records, "record"), escape::text(&name));
            output.line(format_args!("{session}: {records} replicated, epoch {epoch} of `{name}`"))
        })
    })
}

pub(super) fn take_over(asked: &TakeOver, output: &mut Output<'_>) -> Result<u8> {
    let place = place(&asked.url)?;
    let replicator = replicator(place.as_ref(), &asked.by)?;
    let session = match asked.session {
        Some(session) => session,
        None => match list_sessions(place.as_ref())?.as_slice() {
            [only] => *only,
            several => {
                let what = format!("there are {} sessions at this URL", several.len());
                return Err(CommandError::usage(
                    what,
                    "choose one: --session ID; `foldlog sessions URL` lists them",
                ));
            }
        },
    };
    if !asked.now {
        wait_for_its_worker(place.as_ref(), session, output)?;
    }
    let store = store(&asked.to, replicator, false)?;
    let taken = store.take_over_to_recover(session, &asked.by, &asked.reason)?;
    let (dir, epoch, open) = (taken.dir().to_owned(), taken.log().epoch(), taken.calls().open_operations());
    let records = taken.log().position().map_or(0, |last| last.get() + 1);
    taken.close()?;
    let rows = open.iter().map(|open| document! { operation: open.operation, tool: open.tool.as_str() });
    let document =
        document! { session, dir: PathField(&dir), epoch, records, open: rows.collect::<Vec<_>>() };
    output.print(&document, |output| {
        let (epoch, records) = (epoch.unwrap_or_default(), count_text(records, "record"));
        output.line(format_args!("taken over: {}: {records}, epoch {epoch}", escape::path(&dir)))?;
        for open in &open {
            output.line(format_args!(
                "operation {} (`{}`) was left open: the host recovers it, as after any crash",
                open.operation,
                escape::text(&open.tool)
            ))?;
        }
        output.note(format_args!(
            "note: the previous worker is fenced; to continue the session here, use a replicator with the name `{}`",
            escape::text(&asked.by)
        ));
        Ok(())
    })?;
    Ok(HOLDS)
}

/// Waits until the lease of a session has run out. Returns an error as soon as its worker is known
/// to be alive.
fn wait_for_its_worker(place: &dyn Place, session: Uuid, output: &mut Output<'_>) -> Result<()> {
    let Some(lease) = place.lease(session).map_err(failure)? else { return Ok(()) };
    if lease.left.is_none() {
        output.note(format_args!(
            "note: watching for {} s whether the worker `{}` renews its lease of the session; --now skips this",
            lease.length.as_secs_f64(),
            escape::text(&lease.name)
        ));
    }
    let pacing = SteadyPacing::new();
    // Twice the length is enough to see also another worker's lease run out, one that appears and
    // disappears meanwhile. The wait never takes longer.
    let wait = LeaseWait::new(lease.length.saturating_mul(2), &pacing).until_it_lives();
    match wait_for_lease(place, session, &wait).map_err(failure)? {
        LeaseWaitOutcome::Kept { lease, .. } => Err(lease_error(session, &lease)),
        _ => Ok(()),
    }
}

/// Error: the worker of a session is alive.
fn lease_error(session: Uuid, lease: &SessionLease) -> CommandError {
    let renewed = lease.renewed_us.map_or_else(String::new, |renewed_us| {
        format!(" at {} by the place's clock", foldlog_codec::record::time_text(renewed_us))
    });
    let what = format!(
        "session {session} is written by the worker `{}`, epoch {}, which renewed its lease of {} s{renewed}",
        escape::text(&lease.name),
        lease.epoch,
        lease.length.as_secs_f64()
    );
    CommandError::usage(
        what,
        "let it continue, or stop it and take the session over then; --now fences it anyway, and its open calls are recovered here",
    )
}

/// Opens a store whose sessions are replicated, or with `unreplicated` will be.
fn store(path: &Path, replicator: Arc<dyn Replicator>, unreplicated: bool) -> Result<Store> {
    let replication = Some(Replication::new(replicator));
    Ok(Store::open_with(path, StoreOptions { replication, unreplicated, ..StoreOptions::default() })?)
}

/// Returns a replicator for the place with this claim name. Its lease replaces that of the previous
/// worker, and ends with the verb.
fn replicator(place: &dyn Place, name: &str) -> Result<Arc<dyn Replicator>> {
    place.replicator(name).map_err(failure)
}

fn list_sessions(place: &dyn Place) -> Result<Vec<Uuid>> {
    let sessions = place.sessions().map_err(failure)?;
    if sessions.is_empty() {
        return Err(CommandError::usage(NO_SESSION, WHERE));
    }
    Ok(sessions)
}

/// Returns the claim name of a session's log. This is the last claim's name if the log states that
/// this worker took the session over, else the name of its first claim.
fn name_of(place: &dyn Place, session: Uuid, dir: &Path) -> Result<String> {
    let reader = LogReader::open(dir)?;
    let first =
        reader.replicated_record().map_or_else(|| PUSHES.to_owned(), |replicated| replicated.by.clone());
    let last = place.read_standing(session).map_err(failure)?.map(|standing| standing.name);
    let Some(last) = last.filter(|last| *last != first) else { return Ok(first) };
    let mut took_it_over = false;
    inspect::walk(dir, &mut |frame| {
        took_it_over |= frame.record.kind == RecordKind::Observed
            && Observed::decode(frame.record.body).is_ok_and(|observed| takes_over(&observed, &last));
        Ok(())
    })?;
    Ok(if took_it_over { last } else { first })
}

/// Returns whether an observation states that this name took the session over.
fn takes_over(observed: &Observed<'_>, by: &str) -> bool {
    observed.name == TAKEN_OVER
        && Value::decode(observed.data.bytes())
            .is_ok_and(|data| data.get("by").and_then(Value::as_str) == Some(by))
}

/// Runs `act` for each session. Reports a failed one and continues with the others.
fn each(
    sessions: &[Uuid],
    output: &mut Output<'_>,
    mut act: impl FnMut(Uuid, &mut Output<'_>) -> Result<()>,
) -> Result<u8> {
    let [only] = sessions else {
        let mut code = HOLDS;
        for session in sessions {
            match act(*session, output) {
                Err(failed) if !failed.is_closed_pipe() => {
                    output.error(format_args!("session {session}: {failed}"));
                    code = worse(code, failed.exit_code());
                }
                done => done?,
            }
        }
        return Ok(code);
    };
    act(*only, output).map(|()| HOLDS)
}

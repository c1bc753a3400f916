//! The session of a run: a new one, or one that goes on.

use foldlog::conversation::{ResumePoint, Role};
use foldlog::tools::Recovered;
use foldlog::{Error, NotUndone, Session, SessionOptions, SessionTypes, Store};
use foldlog_agent::claude::ProgramRecovery;
use foldlog_agent::events::{PromptExecuted, PromptExecutions, declare};
use foldlog_codec::escape;

use super::{Asked, EVALUATION};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::reading;

/// Tag of the sessions of `foldlog run`; its value names the adapter.
const TAG: &str = "foldlog.run";

/// Most bytes of memory that a session may take which is looked at to find the latest.
const MEMORY_BYTES: u64 = 64 << 20;

/// Holds the session of a run.
pub(super) struct Found {
    pub(super) session: Session,
    /// Whether an earlier process began it.
    pub(super) goes_on: bool,
}

fn types() -> Result<SessionTypes> {
    Ok(declare(SessionTypes::builder()).build()?)
}

/// Makes the session that is asked for, or opens the one that goes on.
pub(super) fn find(asked: &Asked, output: &mut Output<'_>) -> Result<Found> {
    let types = types()?;
    let session = match asked.resume {
        None => {
            let options = SessionOptions { id: asked.session, ..SessionOptions::default() };
            let session = Store::open(&asked.store)?.create_with(&types, options.tag(TAG, "claude"))?;
            return Ok(Found { session, goes_on: false });
        }
        Some(Some(id)) => reading::open_store(&asked.store)?.open_session(id, &types)?,
        Some(None) => latest(&reading::open_store(&asked.store)?, &types, output)?,
    };
    if !session.tags().contains_key(TAG) {
        let what = format!("{} was not begun by `foldlog run`", escape::path(session.dir()));
        return Err(Failure::usage(what, "let its own host resume it"));
    }
    Ok(Found { session, goes_on: true })
}

/// Opens the latest run of a store that is not complete, or else the latest. Those that another process works on are passed
/// over.
fn latest(store: &Store, types: &SessionTypes, output: &mut Output<'_>) -> Result<Session> {
    let memory_bytes = output.memory_bytes.unwrap_or(MEMORY_BYTES);
    let mut runs = Vec::new();
    for id in store.session_ids()? {
        match store.summary_within(id, memory_bytes) {
            Ok(summary) if summary.tags.contains_key(TAG) => runs.push((summary.created_at_us, id)),
            Ok(_) | Err(Error::NotASession { .. }) => {}
            Err(error) => output.note(format_args!("note: passed over session {id}: {error}")),
        }
    }
    runs.sort_unstable();
    let mut complete = None;
    for (_, id) in runs.into_iter().rev() {
        let session = match store.open_session(id, types) {
            Err(error @ Error::Locked { .. }) => {
                output.note(format_args!("note: passed over session {id}: {error}"));
                continue;
            }
            session => session?,
        };
        if session.is_interrupted() || session.resume(Some(EVALUATION))?.point != ResumePoint::Complete {
            return Ok(session);
        }
        complete.get_or_insert(session);
    }
    complete.ok_or_else(|| {
        let what = format!("{} holds no run that can go on", escape::path(store.path()));
        Failure::usage(what, "leave out --resume to begin one")
    })
}

/// Holds what a session has recorded of its conversation.
#[derive(Default)]
pub(super) struct Held {
    /// System prompt; `None` before the first request.
    pub(super) system: Option<String>,
    /// What the user said.
    pub(super) said: Vec<String>,
}

/// Reads what a session has recorded.
pub(super) fn held(session: &Session) -> Result<Held> {
    let Some(conversation) = session.conversation(EVALUATION)? else { return Ok(Held::default()) };
    let mut held = Held::default();
    for message in conversation.sent_messages() {
        match message.role {
            Role::System => held.system = message.content,
            Role::User => held.said.extend(message.content),
            _ => {}
        }
    }
    Ok(held)
}

/// Returns what is recorded of the runs of a session that gave an answer.
pub(super) fn executions(session: &Session) -> Result<Vec<PromptExecuted>> {
    let all = session.log::<PromptExecutions>()?;
    all.iter().map(|item| Ok(item.map(|item| PromptExecuted::clone(&item))?)).collect()
}

/// Notes what a recovery rolled back, and what it could not.
pub(super) fn note_recovery(report: &ProgramRecovery, output: &mut Output<'_>) {
    for Recovered { tool, .. } in &report.undone {
        output.note(format_args!("note: `{}` was interrupted: it is rolled back", escape::text(tool)));
    }
    let all = report.undone.iter().chain(&report.recovered);
    for NotUndone { path, reason, .. } in all.flat_map(|Recovered { not_undone, .. }| not_undone) {
        output.note(format_args!("note: not undone: {path}: {reason}"));
    }
}

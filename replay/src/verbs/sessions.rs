//! `foldlog sessions`: the sessions of a store.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use foldlog::{Error, OperationId, Parent, SequenceNumber, SessionSummary};
use foldlog_codec::escape;
use foldlog_codec::record::time_text;
use serde::Serialize;
use uuid::Uuid;

use crate::failure::{DOES_NOT_HOLD, Failure, HOLDS, Result};
use crate::output::Output;
use crate::reading;

/// Holds the row of a session.
#[derive(Debug, Serialize)]
struct Row {
    session: Uuid,
    records: u64,
    log_bytes: u64,
    created_at: String,
    tags: BTreeMap<String, String>,
    parent: Option<ParentRow>,
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

impl Row {
    fn of(summary: SessionSummary) -> Row {
        Row {
            session: summary.session,
            records: summary.records,
            log_bytes: summary.log_bytes,
            created_at: time_text(summary.created_at_us),
            tags: summary.tags,
            parent: summary.parent.map(|parent| match parent {
                Parent::Fork { session, position, .. } => {
                    ParentRow { session, how: "fork", position: Some(position), operation: None }
                }
                Parent::Child { session, operation } => {
                    ParentRow { session, how: "child", position: None, operation }
                }
            }),
        }
    }

    fn text(&self) -> String {
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
        let Row { session, records, log_bytes, created_at, .. } = self;
        format!("{session}  {records:>8}  {log_bytes:>10}  {created_at:<32}  {tags:<24}  {parent}")
    }
}

/// Most bytes of memory that a session may take if the command line says nothing.
const MEMORY_BYTES: u64 = 64 << 20;

/// Holds the row of a session that cannot be read.
#[derive(Debug, Serialize)]
struct UnreadRow {
    session: Uuid,
    error: String,
}

/// Lists a session that cannot be read as a row that says why, and reports the error.
fn unread(session: Uuid, error: String, output: &mut Output<'_>) -> Result<()> {
    output.note(format_args!("error: {error}"));
    if output.json() {
        return output.value(&UnreadRow { session, error });
    }
    output.line(format_args!("{session}  cannot be read: {error}"))
}

/// Lists the sessions of the store at `dir`. A session that cannot be read is listed with why, and reported on standard error;
/// the exit code is then 1 if any session is damaged, else 2. A folder in which a crash left a session without records is
/// noted on standard error, and is no failure.
///
/// # Errors
///
/// [`Failure::Usage`] if there is no store at `dir`, [`Failure::Engine`] if the store cannot be read.
pub fn run(dir: &Path, output: &mut Output<'_>) -> Result<u8> {
    let store = reading::open_store(dir)?;
    let ids = store.session_ids()?;
    if !output.json() {
        let columns = ["session", "records", "log_bytes", "created_at", "tags"];
        let [session, records, bytes, created_at, tags] = columns;
        output.line(format_args!(
            "{session:<36}  {records:>8}  {bytes:>10}  {created_at:<32}  {tags:<24}  parent"
        ))?;
    }
    let mut progress = output.progress("reading sessions", ids.len() as u64);
    let mut code = HOLDS;
    // One note is enough: the same command keeps others out of all sessions.
    let exposed = ids.iter().find_map(|id| foldlog::audit::exposed(&store.session_dir(*id)));
    reading::note_exposed(exposed.as_ref(), output);
    for (done, id) in (1..).zip(ids) {
        let memory_bytes = output.memory_bytes.unwrap_or(MEMORY_BYTES);
        match store.summary_within(id, memory_bytes) {
            Ok(summary) if output.json() => output.value(&Row::of(summary))?,
            Ok(summary) => output.line(Row::of(summary).text())?,
            Err(Error::NotASession { path, .. }) if reading::lost_segments(&path).is_some() => {
                let reason = reading::lost_segments(&path).unwrap_or_default();
                unread(id, format!("{}: {reason}", escape::path(&path)), output)?;
                code = DOES_NOT_HOLD;
            }
            Err(Error::NotASession { .. }) if !reading::holds_anything(&store.session_dir(id)) => {
                reading::pass_over(&store.session_dir(id), output);
            }
            Err(error) => {
                unread(id, error.to_string(), output)?;
                let failure = Failure::from(error);
                // Damage outranks what cannot be read.
                code = if code == DOES_NOT_HOLD { code } else { failure.exit_code() };
            }
        }
        progress.at(done);
    }
    Ok(code)
}

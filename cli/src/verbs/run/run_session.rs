//! The session of a run: a new one, or one that continues.

use std::path::Path;

use foldlog::conversation::{EntryContent, Role};
use foldlog::tools::RecoveredOperation;
use foldlog::{
    Error, Holder, NotUndone, OperationId, ReplacedContent, SequenceNumber, Session, SessionOptions,
    SessionTypes, Store, ToolInvocations,
};
use foldlog_agent::events::{PromptExecuted, PromptExecutions, declare};
use foldlog_claude::{ProgramRecovery, is_unclear};
use foldlog_codec::body::Outcome;
use foldlog_codec::escape;
use foldlog_view::shell::quote_word;
use uuid::Uuid;

use super::{Args, EVALUATION};
use crate::failure::{CommandError, Result};
use crate::output::Output;
use crate::readers;

/// Tag of the sessions of `foldlog run`; its value names the adapter.
const TAG: &str = "foldlog.run";

/// Default system prompt.
const SYSTEM: &str = "You are an agent that works in the current folder, with the tools that you are given. Do what the \
                      user asks for, and say at the end what you did.";

pub(super) struct RunSession {
    pub(super) session: Session,
    /// Whether an earlier process started it.
    pub(super) goes_on: bool,
}

fn types() -> Result<SessionTypes> {
    Ok(declare(SessionTypes::builder()).build()?)
}

/// Creates the requested session, or opens the one to continue. `said` is the user's text in this
/// run.
pub(super) fn find(asked: &Args, said: Option<&str>, output: &mut Output<'_>) -> Result<RunSession> {
    let types = types()?;
    let session = match asked.resume {
        None => {
            let options = SessionOptions { id: asked.session, ..SessionOptions::default() };
            let created = Store::open(&asked.store)?.create_with(&types, options.tag(TAG, "claude"));
            return Ok(RunSession {
                session: created.map_err(|error| explain_error(error, asked))?,
                goes_on: false,
            });
        }
        Some(Some(id)) => {
            let opened = open_existing(asked, output)?.open_session(id, &types);
            opened.map_err(|error| explain_error(error, asked))?
        }
        Some(None) => latest(&open_existing(asked, output)?, &types, said, output)?,
    };
    if !session.tags().contains_key(TAG) {
        let what = format!("{} was not created by `foldlog run`", escape::path(session.dir()));
        return Err(CommandError::usage(what, "let its own host resume it"));
    }
    Ok(RunSession { session, goes_on: true })
}

/// Opens the store of a session to continue.
fn open_existing(asked: &Args, output: &Output<'_>) -> Result<Store> {
    readers::check_store(&asked.store)?;
    asked.writing.open(&asked.store, output)
}

/// Converts an error of the store into the words of the command line.
fn explain_error(error: Error, asked: &Args) -> CommandError {
    let store = escape::path(&asked.store);
    match error {
        Error::Locked { session, holder } => is_run(session, &holder),
        Error::NoSuchSession { session, .. } => {
            let what = format!("the store {store} contains no session {session}");
            CommandError::usage(what, format!("`foldlog sessions {store}` lists its sessions"))
        }
        Error::SessionExists { session } => {
            let what = format!("the session {session} already exists in the store {store}");
            CommandError::usage(
                what,
                format!("continue it: --resume {session}; or start a new one with another id: --session ID"),
            )
        }
        error => error.into(),
    }
}

/// Error: a process works on a session.
fn is_run(session: Uuid, holder: &Holder) -> CommandError {
    let what = format!("session {session} is in use by another process: {holder}");
    let end = match holder.pid.filter(|_| !holder.ended) {
        Some(pid) => format!("wait until process {pid} ends, or end it by `kill {pid}`; then resume"),
        None => "wait until that process ends, or end it; then resume".to_owned(),
    };
    CommandError::usage(what, end)
}

/// Opens the latest incomplete run of a store on which no other process works. If all runs are
/// complete, opens the latest one, which the log answers. Fails in that case if `said` is a text
/// that the run has not received.
fn latest(
    store: &Store,
    types: &SessionTypes,
    said: Option<&str>,
    output: &mut Output<'_>,
) -> Result<Session> {
    let mut runs = Vec::new();
    for id in store.session_ids()? {
        match store.summary_within(id, output.memory_bytes) {
            Ok(summary) if summary.tags.contains_key(TAG) => runs.push((summary.created_at_us, id)),
            Ok(_) | Err(Error::NotASession { .. }) => {}
            Err(error) => output.note(format_args!("note: skipped session {id}: {error}")),
        }
    }
    runs.sort_unstable();
    let (mut complete, mut locked) = (None, None);
    for (_, id) in runs.into_iter().rev() {
        let session = match store.open_session(id, types) {
            Err(Error::Locked { holder, .. }) => {
                output.note(format_args!(
                    "note: skipped session {id}: it is in use by another process: {holder}"
                ));
                locked.get_or_insert((id, holder));
                continue;
            }
            session => session?,
        };
        if session.calls().is_interrupted() || !is_complete(&session)? {
            return Ok(session);
        }
        complete.get_or_insert(session);
    }
    if let Some((id, holder)) = locked {
        return Err(is_run(id, &holder));
    }
    let shown = escape::path(store.path());
    let Some(session) = complete else {
        let what = format!("{shown} contains no run that can be resumed");
        return Err(CommandError::usage(what, "leave out --resume to start one"));
    };
    match said {
        Some(said) if !read_recorded_prompts(&session)?.holds(said) => {
            let id = session.id();
            let what = format!(
                "every run in {shown} is complete, and the latest one does not contain the message of --prompt"
            );
            let next = format!(
                "leave out --resume to start a new run, or continue the conversation of the latest one: --resume {id}"
            );
            Err(CommandError::usage(what, next))
        }
        _ => Ok(session),
    }
}

/// Returns whether the log contains the answer of a session's run, so that no program is needed.
/// This is the case if the last turn is marked as the last one and no input follows. An answer
/// alone is not enough: the program writes one of its own if its provider fails.
pub(super) fn is_complete(session: &Session) -> Result<bool> {
    let Some(conversation) = session.conversation().read(EVALUATION)? else { return Ok(false) };
    let mut is_last = None;
    for entry in conversation.entries().iter().rev() {
        match &entry.content {
            EntryContent::Turn { complete, .. } => {
                is_last.get_or_insert(*complete);
            }
            EntryContent::Input { message, .. } if message.role == Role::User => return Ok(false),
            EntryContent::Answer { .. } => break,
            _ => {}
        }
    }
    Ok(is_last.unwrap_or_default())
}

/// Texts of the conversation that a session has recorded.
#[derive(Default)]
pub(super) struct RecordedPrompts {
    /// System prompt; `None` before the first request.
    pub(super) system: Option<String>,
    /// The user's texts.
    pub(super) said: Vec<String>,
}

impl RecordedPrompts {
    /// Returns whether the session contains a text of the user.
    pub(super) fn holds(&self, said: &str) -> bool {
        self.said.iter().any(|held| held == said)
    }

    /// Returns the system prompt of the session. `given` is the one of the command line.
    pub(super) fn system(&self, given: Option<String>) -> Result<String> {
        match (given, &self.system) {
            (Some(given), Some(held)) if given.trim() != held.trim() => {
                let what = "the session has a different system prompt";
                Err(CommandError::usage(what, "leave out --system and --system-file, or start a new session"))
            }
            (_, Some(held)) => Ok(held.clone()),
            (given, None) => Ok(given.unwrap_or_else(|| SYSTEM.to_owned())),
        }
    }
}

pub(super) fn read_recorded_prompts(session: &Session) -> Result<RecordedPrompts> {
    let Some(conversation) = session.conversation().read(EVALUATION)? else {
        return Ok(RecordedPrompts::default());
    };
    let mut held = RecordedPrompts::default();
    for message in conversation.sent_messages() {
        match message.role {
            Role::System => held.system = message.content,
            Role::User => held.said.extend(message.content),
            _ => {}
        }
    }
    Ok(held)
}

/// Returns the execution records of those runs of a session that gave an answer.
pub(super) fn executions(session: &Session) -> Result<Vec<PromptExecuted>> {
    let all = session.log().slice::<PromptExecutions>()?;
    all.iter().map(|item| Ok(item.map(|item| PromptExecuted::clone(&item))?)).collect()
}

/// Notes the files that rollbacks of calls after a position replaced or removed, and the calls
/// whose end is uncertain.
pub(super) fn note_calls(
    session: &Session,
    workspace: &Path,
    behind: Option<SequenceNumber>,
    output: &mut Output<'_>,
) -> Result<()> {
    let calls = session.log().slice::<ToolInvocations>()?;
    let mut undo = Vec::new();
    for call in calls.items_after(behind.unwrap_or_default()) {
        let call = call?;
        let Some((end, _)) = call.position() else { continue };
        if call.outcome == Outcome::Committed {
            if session.calls().result_at(end)?.0.is_some_and(|result| is_unclear(&result)) {
                output.note(format_args!(
                    "note: it is unknown whether operation {}, `{}`, ended; its changes were kept: check them before you continue",
                    call.operation,
                    escape::text(&call.tool)
                ));
            }
            continue;
        }
        if let Some(files) = ReplacedContent::text(&session.calls().replaced_by(end)?) {
            let (tool, files) = (escape::text(&call.tool), escape::text(&files));
            output
                .note(format_args!("note: operation {}, `{tool}`, was rolled back: {files}", call.operation));
            if session.calls().has_captured_rollback(end)? {
                undo.push(call.operation);
            }
        }
    }
    note_undo(session, workspace, &undo, output);
    Ok(())
}

/// Names the command that undoes the rollback of one of these calls.
fn note_undo(session: &Session, workspace: &Path, undo: &[OperationId], output: &mut Output<'_>) {
    let (of, operation) = match undo {
        [] => return,
        [one] => (one.to_string(), format!("operation {one}")),
        [many @ .., last] => {
            let many: Vec<String> = many.iter().map(ToString::to_string).collect();
            ("OPERATION".to_owned(), format!("one of the operations {} and {last}", many.join(", ")))
        }
    };
    let (dir, workspace) = (quote_word(session.dir().as_os_str()), quote_word(workspace.as_os_str()));
    output.note(format_args!(
        "note: `foldlog rewind {dir} --undo --of {of} --by WHO --reason WHY --workspace {workspace}` brings back the files that \
         the rollback of {operation} replaced"
    ));
}

/// Notes the changes that a recovery rolled back, and those that it could not.
pub(super) fn note_recovery(
    session: &Session,
    workspace: &Path,
    report: &ProgramRecovery,
    output: &mut Output<'_>,
) {
    let mut undo = Vec::new();
    for RecoveredOperation { operation, tool, replaced, not_undone, .. } in &report.undone {
        let files = ReplacedContent::text(replaced).map(|files| format!(": {}", escape::text(&files)));
        let files = files.unwrap_or_default();
        let tool = escape::text(tool);
        output.note(format_args!(
            "note: operation {operation}, `{tool}`, was interrupted and rolled back{files}"
        ));
        if !replaced.is_empty() && !not_undone.iter().any(NotUndone::is_uncaptured) {
            undo.push(*operation);
        }
    }
    note_undo(session, workspace, &undo, output);
    let all = report.undone.iter().chain(&report.recovered);
    for left in all.flat_map(|RecoveredOperation { not_undone, .. }| not_undone) {
        let NotUndone { path, reason, .. } = left;
        match left.is_uncaptured() {
            true => output.note(format_args!("note: {reason}")),
            false => output.note(format_args!("note: not undone: {path}: {reason}")),
        }
    }
}

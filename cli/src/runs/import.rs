//! Writes a run, or a file of messages, into a session.

use std::path::Path;

use foldlog::conversation::{ContentBlocks, NewAnswer, NewInput, Role};
use foldlog::log::SegmentSizes;
use foldlog::tools::{ExecuteOptions, ToolCall, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{
    BackgroundSync, CallOrigin, Durability, ExecutionState, ResourceRegistry, SequenceNumber, Session,
    SessionOptions, SessionTypes, SmolStr, Store, StoreOptions, Value,
};
use foldlog_agent::pairing::MessageFormat;

use super::openai::{self, ChatFileMessage};
use super::{AgentRun, RunStep, ToolCalled, ToolCounted, ToolCounts};
use crate::failure::Result;

/// Counts the imported data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ImportCounts {
    /// Number of sessions.
    pub sessions: u64,
    /// Number of messages.
    pub messages: u64,
    /// Number of records.
    pub records: u64,
    /// Number of calls that failed, whose ends are rollbacks.
    pub rollbacks: u64,
    /// Bytes that the logs use, without allocated but unused space.
    pub log_bytes: u64,
}

impl std::ops::AddAssign for ImportCounts {
    fn add_assign(&mut self, other: ImportCounts) {
        self.sessions += other.sessions;
        self.messages += other.messages;
        self.records += other.records;
        self.rollbacks += other.rollbacks;
        self.log_bytes += other.log_bytes;
    }
}

/// Upper bound of the bytes of a message and the end of its turn, without the payload.
const MESSAGE_BYTES: u64 = 256;

/// Upper bound of the bytes of a call, without its arguments and its result.
const CALL_BYTES: u64 = 512;

/// Upper bound of the bytes of a session's identity and declarations.
const HEAD_BYTES: u64 = 2048;

/// Bytes of a page; a segment's length is a multiple of it.
const PAGE_BYTES: u64 = 4096;

/// Returns the store's options for a log whose records have at most `bytes` bytes. Nothing has to
/// survive a power cut before the session is closed, which syncs it. The log has one segment of
/// that size: no seals, and no declarations repeated in further segments.
fn options(bytes: u64) -> StoreOptions {
    let defaults = StoreOptions::default();
    let bytes = (HEAD_BYTES + bytes).next_multiple_of(PAGE_BYTES);
    let segments = SegmentSizes { first_bytes: bytes.min(defaults.segments.max_bytes), ..defaults.segments };
    StoreOptions { durability: Durability::Process, background: BackgroundSync::Inline, segments, ..defaults }
}

/// Returns the upper bound of the bytes of a run's records.
fn bytes_of(run: &AgentRun) -> u64 {
    let object_bytes_min = StoreOptions::default().object_bytes_min;
    let payload =
        |bytes: usize| Some(bytes as u64).filter(|bytes| *bytes <= object_bytes_min).unwrap_or_default();
    let steps = run.steps.iter().map(|step| {
        let evaluation = (run.task_id.len() + run.trial.len()) as u64;
        let message = payload(step.message.encode().len()) + 2 * evaluation + MESSAGE_BYTES;
        let Some(call) = &step.call else { return message };
        message + payload(call.arguments_text().len()) + CALL_BYTES
    });
    steps.sum()
}

/// Writes a run into a new session in the store at `root`. If that fails, the session is deleted.
///
/// # Errors
///
/// The engine's error if the store or the session cannot be written.
pub fn run(root: &Path, types: &SessionTypes, run: &AgentRun) -> foldlog::Result<ImportCounts> {
    let store = Store::open_with(root, options(bytes_of(run)))?;
    let options = SessionOptions::default().tag("task_id", &run.task_id).tag("trial", &run.trial);
    let session = store.create_with(types, options)?;
    let id = session.id();
    let written = write(session, run);
    if written.is_err() {
        // The first error is returned. The session is already closed, so it can be deleted.
        let _ = store.delete(id);
    }
    written
}

fn write(session: Session, run: &AgentRun) -> foldlog::Result<ImportCounts> {
    let state = ExecutionState::new(session.clone(), ResourceRegistry::default());
    let runner = ToolRunner::new(state, ToolRegistry::new());
    let mut talk = ConversationWriter::new(&session, format!("{}/{}", run.task_id, run.trial));
    let mut rollbacks = 0;
    for step in &run.steps {
        match &step.call {
            None => talk.step(step)?,
            Some(call) => {
                rollbacks += u64::from(!tool_call(&runner, talk.answer, call)?);
                talk.close_call(call.ordinal)?;
            }
        }
    }
    drop(runner);
    let messages = run.steps.len() as u64;
    Ok(ImportCounts { messages, rollbacks, ..close_session(session)? })
}

/// Closes a session and counts its contents.
pub(super) fn close_session(session: Session) -> foldlog::Result<ImportCounts> {
    // A second handle remains usable after the session is closed, which writes the last bytes.
    let closed = session.clone();
    session.close()?;
    let records = closed.log().position().map_or(0, |last| last.get() + 1);
    Ok(ImportCounts { sessions: 1, records, log_bytes: closed.log().bytes(), ..ImportCounts::default() })
}

struct ConversationWriter<'a> {
    session: &'a Session,
    evaluation: String,
    /// Last answer.
    answer: Option<SequenceNumber>,
    /// Ids of that answer's calls, and whether each has its result.
    calls: Vec<(String, bool)>,
}

impl<'a> ConversationWriter<'a> {
    fn new(session: &'a Session, evaluation: String) -> ConversationWriter<'a> {
        ConversationWriter { session, evaluation, answer: None, calls: Vec::new() }
    }

    fn input(&self, role: Role) -> NewInput {
        NewInput { content: None, ..NewInput::new(&self.evaluation, role, "") }
    }

    fn answer(&self) -> NewAnswer {
        NewAnswer { evaluation_id: self.evaluation.clone(), ..NewAnswer::default() }
    }

    /// Writes an answer, and ends its turn if it makes no calls.
    fn write_answer(&mut self, answer: &NewAnswer) -> foldlog::Result<()> {
        self.answer = Some(self.session.conversation().record_answer(answer)?);
        self.calls = answer.calls.iter().map(|call| (call.call_id.clone(), false)).collect();
        self.end_turn()
    }

    /// Ends the turn if all calls of its answer have a result.
    fn end_turn(&mut self) -> foldlog::Result<()> {
        if self.calls.iter().all(|(_, closed)| *closed) {
            self.session.conversation().record_turn(&self.evaluation, false)?;
        }
        Ok(())
    }

    fn close_call(&mut self, ordinal: u32) -> foldlog::Result<()> {
        match self.calls.get_mut(ordinal as usize) {
            Some((_, closed)) => *closed = true,
            None => return Ok(()),
        }
        self.end_turn()
    }

    /// Writes a message of a run that is not a result.
    fn step(&mut self, step: &RunStep) -> foldlog::Result<()> {
        let message = &step.message;
        let (content, blocks) = content(message.get("content"));
        let payload = further_fields(message);
        let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
        if role == "assistant" {
            let calls = step.calls.clone();
            return self.write_answer(&NewAnswer { content, blocks, payload, calls, ..self.answer() });
        }
        let input = self.input(if role == "system" { Role::System } else { Role::User });
        let name = message.get("name").and_then(Value::as_str).map(str::to_owned);
        self.session
            .conversation()
            .record_input(&NewInput { content, blocks, payload, name, ..input })
            .map(drop)
    }

    /// Writes a message of an OpenAI file.
    fn write_message(&mut self, said: ChatFileMessage) -> foldlog::Result<()> {
        let ChatFileMessage { role, content, blocks, name, call_id, calls } = said;
        if role == Role::Assistant {
            return self.write_answer(&NewAnswer { content, blocks, calls, ..self.answer() });
        }
        let ordinal = call_id.as_ref().and_then(|id| {
            let ordinal = self.calls.iter().position(|(asked, closed)| asked == id && !closed)?;
            u32::try_from(ordinal).ok()
        });
        let origin = self.answer.zip(ordinal).map(|(answer, ordinal)| CallOrigin { answer, ordinal });
        let input = NewInput { content, blocks, name, call_id, origin, ..self.input(role) };
        self.session.conversation().record_input(&input)?;
        ordinal.map_or(Ok(()), |ordinal| self.close_call(ordinal))
    }
}

/// Returns a message's content: its text, or its JSON if it is an array of parts.
fn content(content: Option<&Value>) -> (Option<String>, Option<ContentBlocks>) {
    match content {
        None | Some(Value::Nil) => (None, None),
        Some(parts) if parts.as_array().is_some() => {
            let format = MessageFormat::OpenAi.name().to_owned();
            (None, Some(ContentBlocks { format, json: serde_json::to_string(parts).unwrap_or_default() }))
        }
        Some(content) => (Some(super::arguments_text(content)), None),
    }
}

/// Fields of a message that the records of a conversation have a place for.
const KNOWN_FIELDS: [&str; 4] = ["role", "content", "tool_calls", "name"];

/// Returns a message's fields that the records of a conversation have no place for.
fn further_fields(message: &Value) -> Option<serde_json::Value> {
    let Value::Map(fields) = message else { return None };
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    let known = Role::from_name(role).is_some();
    let further = fields.iter().filter_map(|(name, value)| {
        let name = name.as_str()?;
        let kept = !KNOWN_FIELDS.contains(&name) || (name == "role" && !known);
        Some((name.to_owned(), serde_json::to_value(value).ok()?)).filter(|_| kept)
    });
    let further: serde_json::Map<String, serde_json::Value> = further.collect();
    (!further.is_empty()).then_some(serde_json::Value::Object(further))
}

/// Writes a tool call as a transaction, and returns whether it was committed.
fn tool_call(
    runner: &ToolRunner,
    answer: Option<SequenceNumber>,
    call: &ToolCalled,
) -> foldlog::Result<bool> {
    let asked = ToolCall {
        call_id: call.call.as_deref().map(SmolStr::new),
        origin: answer.map(|answer| CallOrigin { answer, ordinal: call.ordinal }),
        ..ToolCall::new(&call.tool, call.arguments_text())
    };
    let operation = runner.begin(&asked, &ExecuteOptions::default())?;
    let session = operation.context().session();
    let counts = session.view::<ToolCounts>()?;
    let count = counts.iter().find(|counted| counted.name == call.tool).map_or(0, |counted| counted.count);
    session.dispatch(ToolCounted { name: call.tool.clone(), count: count + 1 })?;
    let text = call.result.as_str();
    let (message, value) = (text.unwrap_or_default().to_owned(), text.is_none().then(|| call.result.clone()));
    let result =
        ToolResult { success: !call.failed, message, value, outside: None, awaits: None, exit_code: None };
    Ok(operation.end(result)?.success)
}

/// Writes the messages of an OpenAI file into a new session in the store at `root`, as the
/// conversation of the evaluation `imported`. The session's tag `file` is `name`. If that fails,
/// the session is deleted.
///
/// # Errors
///
/// [`CommandError::Malformed`](crate::CommandError::Malformed) if the text is not a list of
/// messages, and [`Error::Engine`](foldlog_view::Error::Engine) if the store or the session
/// cannot be written.
pub fn messages(root: &Path, path: &Path, text: &str, name: Option<&str>) -> Result<ImportCounts> {
    // All messages are checked before the first one is written, so that a malformed file leaves no
    // session.
    let mut bytes = 0;
    openai::each(path, text, &mut |said| {
        let payloads = [said.content.as_deref(), said.blocks.as_ref().map(|blocks| blocks.json.as_str())];
        let calls =
            said.calls.iter().map(|call| call.call_id.len() + call.name.len() + call.arguments.len() + 24);
        let payload = payloads.into_iter().flatten().map(str::len).sum::<usize>() + calls.sum::<usize>();
        bytes += payload as u64 + MESSAGE_BYTES;
        Ok(())
    })?;
    if bytes == 0 {
        return Err(super::malformed_error(path, None, "the file contains no message"));
    }
    let store = Store::open_with(root, options(bytes))?;
    let options = SessionOptions::default();
    let options = name.map_or(options.clone(), |name| options.tag("file", name));
    let session = store.create_with(&SessionTypes::default(), options)?;
    let id = session.id();
    let written = write_messages(session, path, text);
    if written.is_err() {
        let _ = store.delete(id);
    }
    written
}

fn write_messages(session: Session, path: &Path, text: &str) -> Result<ImportCounts> {
    let mut talk = ConversationWriter::new(&session, "imported".to_owned());
    let mut messages = 0;
    openai::each(path, text, &mut |said| {
        messages += 1;
        Ok(talk.write_message(said)?)
    })?;
    Ok(ImportCounts { messages, ..close_session(session)? })
}

//! Writes a run into a session.

use std::path::Path;

use foldlog::log::SegmentSizes;
use foldlog::tools::{ExecuteOptions, ToolCall, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{
    BackgroundSync, Durability, ExecutionState, ResourceRegistry, Session, SessionOptions, SessionTypes,
    SmolStr, Store, StoreOptions,
};

use super::{Message, Run, Step, ToolCalled, ToolCounted, ToolCounts};

/// Counts what was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Number of sessions.
    pub sessions: u64,
    /// Number of records.
    pub records: u64,
    /// Number of calls that failed, whose ends are rollbacks.
    pub rollbacks: u64,
    /// Bytes that the logs use, without space that is allocated and unused.
    pub log_bytes: u64,
}

impl std::ops::AddAssign for Written {
    fn add_assign(&mut self, other: Written) {
        self.sessions += other.sessions;
        self.records += other.records;
        self.rollbacks += other.rollbacks;
        self.log_bytes += other.log_bytes;
    }
}

/// Upper bound of the bytes that a record takes beside its payload.
const RECORD_BYTES: u64 = 64;

/// Upper bound of the bytes that a call takes beside its arguments and its result.
const CALL_BYTES: u64 = 512;

/// Upper bound of the bytes that a session's identity and declarations take.
const HEAD_BYTES: u64 = 2048;

/// Bytes of a page; a segment's length is a multiple of it.
const PAGE_BYTES: u64 = 4096;

/// Chooses how the store is opened for a run. Nothing has to survive a power cut before the session is closed, which syncs it.
/// The run's length is known, so its log gets one segment of that size: no seals, and no declarations repeated at the heads of
/// further segments.
fn options(run: &Run) -> StoreOptions {
    let defaults = StoreOptions::default();
    let payload = |bytes: usize| match bytes as u64 {
        bytes if bytes > defaults.object_bytes_min => RECORD_BYTES,
        bytes => bytes + RECORD_BYTES,
    };
    let steps = run.steps.iter().map(|step| {
        let message = payload(step.message.encode().len());
        let Some(call) = &step.call else { return message };
        let result = foldlog_codec::msgpack::to_vec(&call.result).map_or(0, |bytes| bytes.len());
        // The count, and the other fields of a begin and an end, are short.
        message + payload(call.arguments_text().len()) + payload(result) + CALL_BYTES
    });
    let bytes = (HEAD_BYTES + steps.sum::<u64>()).next_multiple_of(PAGE_BYTES);
    let segments = SegmentSizes { first_bytes: bytes.min(defaults.segments.max_bytes), ..defaults.segments };
    StoreOptions { durability: Durability::Process, background: BackgroundSync::Inline, segments, ..defaults }
}

/// Writes a run into a session of its own, in the store at `root`. If that fails, the session is deleted.
///
/// # Errors
///
/// The engine's error if the store or the session cannot be written.
pub fn run(root: &Path, types: &SessionTypes, run: &Run) -> foldlog::Result<Written> {
    let store = Store::open_with(root, options(run))?;
    let options = SessionOptions::default().tag("task_id", &run.task_id).tag("trial", &run.trial);
    let session = store.create_with(types, options)?;
    let id = session.id();
    let written = write(session, run);
    if written.is_err() {
        // The first error is the one to report. The session is closed by now, so it can be deleted.
        let _ = store.delete(id);
    }
    written
}

fn write(session: Session, run: &Run) -> foldlog::Result<Written> {
    let state = ExecutionState::new(session.clone(), ResourceRegistry::default());
    let runner = ToolRunner::new(state, ToolRegistry::new());
    let mut rollbacks = 0;
    for step in &run.steps {
        match &step.call {
            None => {
                session.dispatch(Message(step.message.clone()))?;
            }
            Some(call) => rollbacks += u64::from(!tool_call(&runner, step, call)?),
        }
    }
    drop(runner);
    // A second handle outlives the closing, which writes the last bytes.
    let closed = session.clone();
    session.close()?;
    let records = closed.position().map_or(0, |last| last.get() + 1);
    Ok(Written { sessions: 1, records, rollbacks, log_bytes: closed.log_bytes() })
}

/// Writes a tool call as the transaction that it was, and returns whether it was committed.
fn tool_call(runner: &ToolRunner, step: &Step, call: &ToolCalled) -> foldlog::Result<bool> {
    let asked = ToolCall {
        call_id: call.call.as_deref().map(SmolStr::new),
        ..ToolCall::new(&call.tool, call.arguments_text())
    };
    let operation = runner.begin(&asked, &ExecuteOptions::default())?;
    let session = operation.context().session();
    let counts = session.view::<ToolCounts>()?;
    let count = counts.iter().find(|counted| counted.name == call.tool).map_or(0, |counted| counted.count);
    session.dispatch(ToolCounted { name: call.tool.clone(), count: count + 1 })?;
    session.dispatch(Message(step.message.clone()))?;
    let text = call.result.as_str();
    let (message, value) = (text.unwrap_or_default().to_owned(), text.is_none().then(|| call.result.clone()));
    let result = ToolResult { success: !call.failed, message, value, outside: None };
    Ok(operation.end(result)?.success)
}

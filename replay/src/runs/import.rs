//! From a run to a session.

use std::path::Path;

use foldlog::log::SegmentSizes;
use foldlog::tools::{ExecuteOptions, ToolCall, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{
    BackgroundSync, Durability, ExecutionState, ResourceRegistry, Session, SessionOptions, SessionTypes,
    SmolStr, Store, StoreOptions,
};

use super::{Message, Run, Step, ToolCalled, ToolCounted, ToolCounts};

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Sessions.
    pub sessions: u64,
    /// Records.
    pub records: u64,
    /// Rollbacks among them.
    pub rollbacks: u64,
    /// Bytes that the logs use, allocated but unused space not.
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

/// What a record takes beside its payload, generously.
const RECORD_BYTES: u64 = 64;

/// What a call takes beside its arguments and its result, generously.
const CALL_BYTES: u64 = 512;

/// What a session's identity and declarations take, generously.
const HEAD_BYTES: u64 = 2048;

/// Segments are made in whole pages.
const PAGE_BYTES: u64 = 4096;

/// How the store is opened for a run. Nothing has to survive a power cut before the session is closed, which
/// syncs it; and since the run has ended, its log is made as large as it needs to be: one segment, no seals
/// and no declarations repeated at the heads of others.
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
        // The count, and what a begin and an end hold beside, are short.
        message + payload(call.arguments_text().len()) + payload(result) + CALL_BYTES
    });
    let bytes = (HEAD_BYTES + steps.sum::<u64>()).next_multiple_of(PAGE_BYTES);
    let segments = SegmentSizes { first_bytes: bytes.min(defaults.segments.max_bytes), ..defaults.segments };
    StoreOptions { durability: Durability::Process, background: BackgroundSync::Inline, segments, ..defaults }
}

/// Writes a run into a session of its own, in the store at `root`. Where that fails, nothing of the session
/// stays.
///
/// # Errors
///
/// What the engine says.
pub fn run(root: &Path, types: &SessionTypes, run: &Run) -> foldlog::Result<Written> {
    let store = Store::open_with(root, options(run))?;
    let options = SessionOptions::default().tag("task_id", &run.task_id).tag("trial", &run.trial);
    let session = store.create_with(types, options)?;
    let id = session.id();
    let written = write(session, run);
    if written.is_err() {
        // The first error is the one to tell; the session is closed, so that it can be deleted.
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
    // A handle outlives the closing, by which the last bytes are written.
    let closed = session.clone();
    session.close()?;
    let records = closed.position().map_or(0, |last| last.get() + 1);
    Ok(Written { sessions: 1, records, rollbacks, log_bytes: closed.log_bytes() })
}

/// Writes a tool call as the transaction that it was; whether it was committed.
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

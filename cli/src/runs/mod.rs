//! Recorded runs of other tools' agents, and their conversion to sessions.
//!
//! A run becomes one session with one conversation. An assistant's message is recorded as an
//! answer; any other message that is not a result is recorded as an input. Fields that a
//! conversation has no place for are stored with the message. Two slices accompany the
//! conversation:
//!
//! | slice | policy | contains |
//! |---|---|---|
//! | `tool_counts` | STATE | the number of calls of each tool: `{name, count}` |
//! | `tool_invoked` | LOG | every call, as the engine records it |
//!
//! A tool call becomes a transaction: a start record with the arguments and the answer that made
//! the call; the count; and an end record with the result. If the result starts with `Error`, the
//! call failed: its end rolls back the count. The conversation keeps the result.
//!
//! A result belongs to the call of the same ordinal in the preceding assistant's message. Ids are
//! only data: in these files one id often names several calls.
//!
//! Transcripts of [`claude_code`] have their own slices, and preserve rewinds and sub-agents.
//!
//! The files of [`openai`] do not state whether calls succeeded, so results are recorded as inputs
//! that close their calls.

pub mod claude_code;
pub mod import;
pub mod openai;
mod swe_agent;
mod tau_bench;
mod types;

use std::collections::VecDeque;
use std::path::Path;

use foldlog::Value;
use foldlog::conversation::ToolCallRecord;
use foldlog_codec::escape;

use crate::failure::{CommandError, Result};

pub use swe_agent::read as read_swe_agent;
pub use tau_bench::read as read_tau_bench;
pub use types::{ToolCalled, ToolCounted, ToolCounts, types};

/// One run of an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentRun {
    /// Name of the task, which becomes the session's tag `task_id`.
    pub task_id: String,
    /// Name of the attempt, which becomes the session's tag `trial`.
    pub trial: String,
    /// Messages, in order.
    pub steps: Vec<RunStep>,
}

/// One message, the calls that it makes, and the call whose result it is.
#[derive(Clone, Debug, PartialEq)]
pub struct RunStep {
    /// The message object, as it is in the file.
    pub message: Value,
    /// Calls that the message makes, by ordinal.
    pub calls: Vec<ToolCallRecord>,
    /// The call whose result the message is; `None` for any other message.
    pub call: Option<ToolCalled>,
}

/// Returns the arguments as text: the text itself, or the JSON of any other value.
fn arguments_text(arguments: &Value) -> String {
    match arguments.as_str() {
        Some(text) => text.to_owned(),
        None => serde_json::to_string(arguments).unwrap_or_default(),
    }
}

/// Turns messages into steps, and pairs results with calls.
#[derive(Debug, Default)]
struct Pairing {
    open: VecDeque<ToolCalled>,
    steps: Vec<RunStep>,
}

impl Pairing {
    /// Adds a message that is not a tool's result. If it makes calls itself, calls that are still
    /// open received no result.
    fn message(&mut self, message: &Value, calls: Option<Vec<ToolCalled>>) {
        let records = calls.iter().flatten().map(ToolCalled::record).collect();
        if let Some(calls) = calls {
            self.open = calls.into();
        }
        self.steps.push(RunStep { message: message.clone(), calls: records, call: None });
    }

    /// Adds a message that is the result of the next open call.
    fn result(&mut self, message: &Value) -> Result<(), String> {
        let mut call = self.open.pop_front().ok_or("it is a tool's result, but no call waits for one")?;
        call.result = message.get("content").cloned().unwrap_or_default();
        call.failed = result_text(&call.result).is_some_and(|text| text.starts_with("Error"));
        self.steps.push(RunStep { message: message.clone(), calls: Vec::new(), call: Some(call) });
        Ok(())
    }
}

/// Returns the text of a result: the result itself, or the text of its first part.
fn result_text(result: &Value) -> Option<&str> {
    match result.as_array() {
        Some(parts) => parts.first()?.get("text")?.as_str(),
        None => result.as_str(),
    }
}

/// Returns the calls in a message's `tool_calls`, or `None` if there are none.
fn tool_calls(message: &Value) -> Result<Option<Vec<ToolCalled>>, String> {
    let calls = match message.get("tool_calls") {
        None | Some(Value::Nil) => return Ok(None),
        Some(calls) => calls.as_array().ok_or("`tool_calls` is not an array")?,
    };
    let calls: Result<Vec<ToolCalled>, String> = (0..)
        .zip(calls)
        .map(|(ordinal, call)| {
            let function = call.get("function").ok_or("a tool call has no `function`")?;
            let tool = function.get("name").and_then(Value::as_str).ok_or("a tool call has no name")?;
            Ok(ToolCalled {
                call: call.get("id").and_then(Value::as_str).map(str::to_owned),
                tool: tool.to_owned(),
                arguments: function.get("arguments").cloned().unwrap_or_default(),
                ordinal,
                ..ToolCalled::default()
            })
        })
        .collect();
    Ok(Some(calls?).filter(|calls| !calls.is_empty()))
}

fn read_json(path: &Path) -> Result<Value> {
    let text = std::fs::read(path).map_err(|source| CommandError::file(path, source))?;
    let text = String::from_utf8(text).map_err(|error| {
        malformed_error(path, None, format!("the file is not JSON: {}", error.utf8_error()))
    })?;
    escape::read_json(&text)
        .map_err(|error| malformed_error(path, None, format!("the file is not JSON: {error}")))
}

fn malformed_error(path: &Path, run: Option<usize>, reason: impl Into<String>) -> CommandError {
    CommandError::Malformed { path: path.to_owned(), run, reason: reason.into() }
}

//! Agent runs of other tools, and how they become sessions.
//!
//! A run becomes one session:
//!
//! | slice | policy | holds |
//! |---|---|---|
//! | `messages` | STATE | the run's message objects, unchanged |
//! | `last_message` | STATE | the last of them |
//! | `tool_counts` | STATE | how often each tool was called: `{name, count}` |
//! | `tool_invoked` | LOG | every call, as the engine itself keeps it |
//!
//! A tool call becomes a transaction: its begin, which holds the arguments, the count, the tool's message, and its end,
//! which holds the result. Where that begins with `Error` the call failed: the end takes count and message back, and the
//! LOG alone remembers it.
//!
//! A result belongs to the call of the same ordinal in the assistant's message before it. Ids are data: in
//! these files one id is often used again for another call.

pub mod import;
mod swe_agent;
mod tau_bench;
mod types;

use std::collections::VecDeque;
use std::path::Path;

use foldlog::Value;

use crate::failure::{Failure, Result};

pub use swe_agent::read as read_swe_agent;
pub use tau_bench::read as read_tau_bench;
pub use types::{LastMessage, Message, Messages, ToolCalled, ToolCounted, ToolCounts, types};

/// One run of an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// What the agent was to do.
    pub task_id: String,
    /// Which attempt this was.
    pub trial: String,
    /// What happened, in order.
    pub steps: Vec<Step>,
}

/// One message, with the call that it answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The message object, as it stands in the file.
    pub message: Value,
    /// The call, where the message is a tool's result.
    pub call: Option<ToolCalled>,
}

/// A call that an assistant's message makes.
#[derive(Clone, Debug, PartialEq)]
struct Call {
    id: Option<String>,
    tool: String,
    arguments: Value,
}

/// Turns messages into steps, pairing results with calls.
#[derive(Debug, Default)]
struct Pairing {
    open: VecDeque<Call>,
    steps: Vec<Step>,
}

impl Pairing {
    /// Takes a message that answers no call. Where it makes calls itself, those that are still open never got
    /// a result.
    fn message(&mut self, message: &Value, calls: Option<Vec<Call>>) {
        if let Some(calls) = calls {
            self.open = calls.into();
        }
        self.steps.push(Step { message: message.clone(), call: None });
    }

    /// Takes a message that answers the next open call.
    fn result(&mut self, message: &Value) -> Result<(), String> {
        let call = self.open.pop_front().ok_or("it is a tool's result, but no call before it is open")?;
        let result = message.get("content").cloned().unwrap_or_default();
        let failed = result_text(&result).is_some_and(|text| text.starts_with("Error"));
        let Call { id, tool, arguments } = call;
        let call = ToolCalled { call: id, tool, arguments, result, failed };
        self.steps.push(Step { message: message.clone(), call: Some(call) });
        Ok(())
    }
}

/// The text of a result: itself, or that of its first part.
fn result_text(result: &Value) -> Option<&str> {
    match result.as_array() {
        Some(parts) => parts.first()?.get("text")?.as_str(),
        None => result.as_str(),
    }
}

/// The calls in a message's `tool_calls`; `None` where there are none.
fn tool_calls(message: &Value) -> Result<Option<Vec<Call>>, String> {
    let calls = match message.get("tool_calls") {
        None | Some(Value::Nil) => return Ok(None),
        Some(calls) => calls.as_array().ok_or("`tool_calls` is no array")?,
    };
    let calls: Result<Vec<Call>, String> = calls
        .iter()
        .map(|call| {
            let function = call.get("function").ok_or("a tool call has no `function`")?;
            let tool = function.get("name").and_then(Value::as_str).ok_or("a tool call has no name")?;
            Ok(Call {
                id: call.get("id").and_then(Value::as_str).map(str::to_owned),
                tool: tool.to_owned(),
                arguments: function.get("arguments").cloned().unwrap_or_default(),
            })
        })
        .collect();
    Ok(Some(calls?).filter(|calls| !calls.is_empty()))
}

/// The JSON value that a file holds.
fn read_json(path: &Path) -> Result<Value> {
    let text = std::fs::read(path).map_err(|source| Failure::File { path: path.to_owned(), source })?;
    serde_json::from_slice(&text)
        .map_err(|error| malformed(path, None, format!("it is not the JSON of runs: {error}")))
}

fn malformed(path: &Path, run: Option<usize>, reason: impl Into<String>) -> Failure {
    Failure::Malformed { path: path.to_owned(), run, reason: reason.into() }
}

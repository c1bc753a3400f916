//! Trajectories of SWE-agent: a file is one run, whose messages are in `history`.
//!
//! The task is the file's name without its extension, the trial 0. If an assistant's message has
//! `tool_calls`, these are its calls, and messages of role `tool` are their results. Older files
//! have no such role. There, an assistant's message with a text in `action` is a call of the tool
//! named by the action's first word, with the whole action as its arguments. The next message of
//! type `observation` is its result. The last action often has no result.

use std::path::Path;

use foldlog::Value;

use super::{AgentRun, Pairing, ToolCalled, malformed_error, read_json, tool_calls};
use crate::failure::Result;

/// Reads the run of a file.
///
/// # Errors
///
/// [`Error::File`](foldlog_view::Error::File) if the file cannot be read,
/// [`CommandError::Malformed`](crate::CommandError::Malformed) if it is not a trajectory.
pub fn read(path: &Path) -> Result<AgentRun> {
    let file = read_json(path)?;
    let wrong = |reason: String| malformed_error(path, Some(0), reason);
    let Some(messages) = file.get("history").and_then(Value::as_array) else {
        return Err(wrong("it has no array `history`".to_owned()));
    };
    let Some(task_id) = path.file_stem().and_then(|stem| stem.to_str()) else {
        return Err(wrong("the file's name is not UTF-8, and cannot become a tag".to_owned()));
    };
    let mut pairing = Pairing::default();
    for (index, message) in messages.iter().enumerate() {
        take(&mut pairing, message).map_err(|reason| wrong(format!("message {index}: {reason}")))?;
    }
    Ok(AgentRun { task_id: task_id.to_owned(), trial: "0".to_owned(), steps: pairing.steps })
}

fn take(pairing: &mut Pairing, message: &Value) -> Result<(), String> {
    let role = message.get("role").and_then(Value::as_str).ok_or("it has no `role`")?;
    let observation = message.get("message_type").and_then(Value::as_str) == Some("observation");
    match role {
        "tool" => return pairing.result(message),
        "assistant" => {
            let calls = tool_calls(message)?.or_else(|| action(message).map(|call| vec![call]));
            pairing.message(message, calls);
        }
        _ if observation && !pairing.open.is_empty() => return pairing.result(message),
        _ => pairing.message(message, None),
    }
    Ok(())
}

/// Returns the call that an action represents.
fn action(message: &Value) -> Option<ToolCalled> {
    let action = message.get("action")?;
    let tool = action.as_str()?.split_whitespace().next()?;
    Some(ToolCalled { tool: tool.to_owned(), arguments: action.clone(), ..ToolCalled::default() })
}

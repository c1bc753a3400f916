//! Files of tau-bench: an array of runs, each with `task_id`, `trial` and the messages in `traj`.

use std::path::Path;

use foldlog::Value;

use super::{AgentRun, Pairing, malformed_error, read_json, tool_calls};
use crate::failure::Result;

/// Reads the runs of a file.
///
/// # Errors
///
/// [`Error::File`](foldlog_view::Error::File) if the file cannot be read,
/// [`CommandError::Malformed`](crate::CommandError::Malformed), with the index of the run, if its
/// contents are not such runs.
pub fn read(path: &Path) -> Result<Vec<AgentRun>> {
    let file = read_json(path)?;
    let Some(runs) = file.as_array() else {
        return Err(malformed_error(path, None, "the file does not contain an array of runs"));
    };
    let runs = runs.iter().enumerate();
    runs.map(|(index, value)| run(value).map_err(|reason| malformed_error(path, Some(index), reason)))
        .collect()
}

fn run(value: &Value) -> Result<AgentRun, String> {
    let task_id = tag(value, "task_id")?;
    let trial = tag(value, "trial")?;
    let messages = value.get("traj").and_then(Value::as_array).ok_or("it has no array `traj`")?;
    let mut pairing = Pairing::default();
    for (index, message) in messages.iter().enumerate() {
        take(&mut pairing, message).map_err(|reason| format!("message {index}: {reason}"))?;
    }
    Ok(AgentRun { task_id, trial, steps: pairing.steps })
}

fn take(pairing: &mut Pairing, message: &Value) -> Result<(), String> {
    match message.get("role").and_then(Value::as_str) {
        Some("tool") => pairing.result(message),
        Some("assistant") => {
            pairing.message(message, tool_calls(message)?);
            Ok(())
        }
        Some(_) => {
            pairing.message(message, None);
            Ok(())
        }
        None => Err("it has no `role`".to_owned()),
    }
}

/// Returns the text of a tag from a field that contains a number or a text.
fn tag(run: &Value, field: &str) -> Result<String, String> {
    match run.get(field) {
        Some(Value::Str(text)) => Ok(text.clone()),
        Some(Value::Unsigned(number)) => Ok(number.to_string()),
        Some(Value::Signed(number)) => Ok(number.to_string()),
        Some(_) => Err(format!("`{field}` is neither a number nor a string")),
        None => Err(format!("it has no `{field}`")),
    }
}

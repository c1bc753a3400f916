//! Input and output of the hooks of Claude Code.
//!
//! Measured with versions 2.1.100 and 2.1.332. Fields that are not named here are ignored.

use std::path::PathBuf;

use foldlog_timeline::{CallEnd, Lane, NewCall};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value as Json, json};

use super::hook::{HookEvent, HookInput, HookReply};

/// Name of the program in lanes.
pub(crate) const PROGRAM: &str = "claude";

/// Tools that change no files. A tool that is not listed may change any.
const READ_ONLY: [&str; 22] = [
    "AskUserQuestion",
    "CronCreate",
    "CronDelete",
    "CronList",
    "EnterPlanMode",
    "ExitPlanMode",
    "Glob",
    "Grep",
    "LS",
    "ListAgents",
    "Read",
    "ReportFindings",
    "ScheduleWakeup",
    "SendMessage",
    "TaskOutput",
    "TaskStop",
    "TodoRead",
    "TodoWrite",
    "ToolSearch",
    "WebFetch",
    "WebSearch",
    "StructuredOutput",
];

/// Tools that run a sub-agent. Hooks report each call of the sub-agent.
const SUB_AGENTS: [&str; 2] = ["Agent", "Task"];

#[derive(Deserialize)]
struct Input<'a> {
    session_id: String,
    #[serde(default)]
    agent_id: Option<String>,
    cwd: PathBuf,
    hook_event_name: String,
    #[serde(default)]
    prompt: Option<String>,
    #[serde(default)]
    tool_name: Option<String>,
    #[serde(default, borrow)]
    tool_input: Option<&'a RawValue>,
    #[serde(default, borrow)]
    tool_response: Option<&'a RawValue>,
    #[serde(default)]
    tool_use_id: Option<String>,
    #[serde(default)]
    duration_ms: Option<u64>,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    source: Option<String>,
}

/// Reads the input of a hook.
///
/// # Errors
///
/// The error of the JSON text.
pub(crate) fn read(input: &str, process: Option<u32>) -> Result<HookInput, serde_json::Error> {
    let input: Input<'_> = serde_json::from_str(input)?;
    let lane = Lane {
        program: PROGRAM.to_owned(),
        session: input.session_id.clone(),
        agent: input.agent_id.clone(),
    };
    let event = match input.hook_event_name.as_str() {
        "SessionStart" => HookEvent::SessionStarted {
            // Sub-agents continue during a compaction.
            is_new: input.source.as_deref() != Some("compact"),
        },
        "UserPromptSubmit" => HookEvent::Prompted {
            text: input.prompt.clone().filter(|prompt| !prompt.contains("<task-notification>")),
        },
        "PreToolUse" => match call(&input, &lane, process) {
            Some(call) => HookEvent::CallBegins(call),
            None => HookEvent::Other,
        },
        "PostToolUse" | "PostToolUseFailure" => match call(&input, &lane, process) {
            Some(call) => HookEvent::CallEnds(call, end(&input)),
            None => HookEvent::Other,
        },
        "PermissionRequest" => HookEvent::PermissionAsked,
        "Stop" | "StopFailure" => HookEvent::TurnEnded,
        "SessionEnd" => HookEvent::SessionEnded,
        _ => HookEvent::Other,
    };
    Ok(HookInput { lane, directory: input.cwd, name: input.hook_event_name, event })
}

/// Returns the call of a tool that may change files.
fn call(input: &Input<'_>, lane: &Lane, process: Option<u32>) -> Option<NewCall> {
    let (tool, id) = (input.tool_name.clone()?, input.tool_use_id.clone()?);
    if READ_ONLY.contains(&tool.as_str()) || SUB_AGENTS.contains(&tool.as_str()) {
        return None;
    }
    let text = input.tool_input.map_or("{}", RawValue::get);
    let arguments: Json = serde_json::from_str(text).unwrap_or_default();
    let field = |name: &str| arguments.get(name).and_then(Json::as_str).map(str::to_owned);
    let path = match tool.as_str() {
        "Edit" | "MultiEdit" | "Write" => field("file_path"),
        "NotebookEdit" => field("notebook_path"),
        _ => None,
    };
    let title = path.clone().or_else(|| field("command")).or_else(|| field("description"));
    Some(NewCall {
        lane: lane.clone(),
        id,
        tool,
        arguments: text.to_owned(),
        title: title.unwrap_or_default(),
        paths: path.map(|path| vec![PathBuf::from(path)]),
        process,
    })
}

fn end(input: &Input<'_>) -> CallEnd {
    let response: Json = input
        .tool_response
        .and_then(|response| serde_json::from_str(response.get()).ok())
        .unwrap_or_default();
    let is_shell = input.tool_name.as_deref() == Some("Bash");
    // The exit code of a failed command is only in the text of the error.
    let failed = input.error.as_deref().and_then(|error| error.strip_prefix("Exit code "));
    let failed = failed.and_then(|rest| rest.lines().next()?.trim().parse().ok());
    let succeeded = input.hook_event_name == "PostToolUse";
    CallEnd {
        succeeded,
        result: input.error.clone().or_else(|| input.tool_response.map(|response| response.get().to_owned())),
        exit_code: failed.or((succeeded && is_shell).then_some(0)),
        duration_ms: input.duration_ms,
        in_background: response.get("backgroundTaskId").is_some_and(|id| !id.is_null()),
    }
}

/// Returns the command that the user has typed at the prompt, without its slash: `undo`, `undo 4`,
/// `redo yes`. It is a command of the user, or of the plugin.
pub(crate) fn slash_command(prompt: &str) -> Option<&str> {
    let prompt = prompt.trim().strip_prefix('/')?;
    let command = prompt.strip_prefix("foldlog:").unwrap_or(prompt);
    let word = command.split_whitespace().next()?;
    ["undo", "redo"].contains(&word).then_some(command)
}

/// Returns the text for the hook's standard output; empty for an empty reply.
pub(crate) fn write(reply: &HookReply, event: &str) -> String {
    let mut answer = serde_json::Map::new();
    if let Some(answered) = &reply.answered_prompt {
        answer.insert("decision".to_owned(), json!("block"));
        answer.insert("reason".to_owned(), json!(answered));
        let output = json!({"hookEventName": event, "suppressOriginalPrompt": true});
        answer.insert("hookSpecificOutput".to_owned(), output);
    } else if let Some(context) = &reply.context {
        let output = json!({"hookEventName": event, "additionalContext": context});
        answer.insert("hookSpecificOutput".to_owned(), output);
    }
    if !reply.messages.is_empty() {
        answer.insert("systemMessage".to_owned(), json!(reply.messages.join("\n")));
    }
    if answer.is_empty() { String::new() } else { Json::Object(answer).to_string() }
}

//! Claude Code.
//!
//! Measured with versions 2.1.100 and 2.1.332. In version 2.1.100, a settings file that names an
//! unknown event loses all of its hooks. The versions of events were measured: the list of events was
//! read in the npm packages 2.0.0, 2.0.44 to 2.0.47, 2.0.50, 2.0.54 to 2.0.58, 2.0.60, 2.0.77, 2.1.0,
//! 2.1.100 and 2.1.332. 2.0.44 lacks `PermissionRequest`, and 2.0.55 `PostToolUseFailure`. 2.1.100 has
//! `CwdChanged`, and 2.1.332 `DirectoryAdded`; for these, versions before them were not examined. A
//! version that was not measured counts as knowing what an older one knows.
//!
//! `WorktreeCreate` must not be among the events: its hook creates the working tree in the place of
//! the program.

use foldlog_timeline::{CallEnd, Lane, NewCall};

use super::input::Input;
use super::{AgentEvent, AgentProgram, HookEvent, HookInput, ProgramVersion, SettingsPlaces};

const OLDEST: ProgramVersion = ProgramVersion(2, 0, 0);
const PERMISSION_REQUEST: ProgramVersion = ProgramVersion(2, 0, 45);
const POST_TOOL_USE_FAILURE: ProgramVersion = ProgramVersion(2, 0, 56);
const CWD_CHANGED: ProgramVersion = ProgramVersion(2, 1, 100);
const DIRECTORY_ADDED: ProgramVersion = ProgramVersion(2, 1, 332);

const CALL: &str = r#"{"permission_mode":"default","tool_name":"Bash","tool_input":{"command":"true"},"tool_use_id":"foldlog-hook-status","tool_response":{"stdout":"","stderr":""}}"#;
const STOP: &str = r#"{"stop_hook_active":false}"#;

pub(super) const PROGRAM: AgentProgram = AgentProgram {
    name: "claude",
    title: "Claude Code",
    oldest: OLDEST,
    events: &[
        AgentEvent::new("SessionStart", OLDEST, r#"{"source":"startup"}"#),
        AgentEvent::new("UserPromptSubmit", OLDEST, r#"{"prompt":"nothing"}"#),
        AgentEvent::of_tool("PreToolUse", OLDEST, CALL),
        AgentEvent::of_tool("PostToolUse", OLDEST, CALL),
        AgentEvent::of_tool("PostToolUseFailure", POST_TOOL_USE_FAILURE, CALL),
        AgentEvent::of_tool("PermissionRequest", PERMISSION_REQUEST, CALL),
        AgentEvent::new("CwdChanged", CWD_CHANGED, r#"{"old_cwd":"/","new_cwd":"/"}"#),
        AgentEvent::new("DirectoryAdded", DIRECTORY_ADDED, r#"{"directory":"/","source":"slash_command"}"#),
        AgentEvent::new("Stop", OLDEST, STOP),
        AgentEvent::new("SubagentStop", OLDEST, STOP),
        AgentEvent::new("SessionEnd", OLDEST, r#"{"reason":"other"}"#),
    ],
    shared_events_of: Some(POST_TOOL_USE_FAILURE),
    settings: SettingsPlaces {
        directory_variable: Some("CLAUDE_CONFIG_DIR"),
        home_variables: &["HOME"],
        directory: ".claude",
        user: "settings.json",
        project: "settings.local.json",
        shared: "settings.json",
    },
    disabled_by: (&["disableAllHooks"], true),
    timeout_units: 1,
    hook_name: None,
    // Version 2.1.332 takes `/undo` for its own `/rewind`, unless the user has a command of this name.
    prompt_commands: &[
        ("commands/undo.md", include_str!("../../plugin/claude/commands/undo.md")),
        ("commands/redo.md", include_str!("../../plugin/claude/commands/redo.md")),
    ],
    rewind_note: Some("note: `/undo` is foldlog's from now on; `/rewind` stays that of Claude Code"),
    prompt_prefix: "/",
    // A `cd` of the agent changes the current directory.
    project_variable: Some("CLAUDE_PROJECT_DIR"),
    process_variable: Some("CLAUDE_PID"),
    asks_for_trust: false,
    read,
    block_word: "block",
    hides_prompt: true,
};

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

fn read(input: &str, process: Option<u32>) -> serde_json::Result<HookInput> {
    let input: Input<'_> = serde_json::from_str(input)?;
    let lane = input.lane(&PROGRAM);
    let call = || call(&input, &lane, process);
    let event = match input.hook_event_name.as_str() {
        "SessionStart" => HookEvent::SessionStarted {
            // Sub-agents continue during a compaction.
            is_new: input.source.as_deref() != Some("compact"),
        },
        "UserPromptSubmit" => HookEvent::Prompted {
            text: input.prompt.clone().filter(|prompt| !prompt.contains("<task-notification>")),
        },
        "PreToolUse" => call().map_or(HookEvent::Other, HookEvent::CallBegins),
        "PostToolUse" | "PostToolUseFailure" => {
            call().map_or(HookEvent::Other, |call| HookEvent::CallEnds(call, end(&input)))
        }
        "PermissionRequest" => HookEvent::PermissionAsked,
        "Stop" | "StopFailure" => HookEvent::TurnEnded,
        "SessionEnd" => HookEvent::SessionEnded,
        "CwdChanged" => match &input.new_cwd {
            // The program resets a `cd` out of the directories that the user has allowed.
            Some(to) => HookEvent::DirectoryChanged { to: to.clone(), is_reset: *to != input.cwd },
            None => HookEvent::Other,
        },
        "DirectoryAdded" => input.directory.clone().map_or(HookEvent::Other, HookEvent::DirectoryAdded),
        _ => HookEvent::Other,
    };
    Ok(input.into_hook_input(lane, event))
}

/// Returns the call of a tool that may change files.
fn call(input: &Input<'_>, lane: &Lane, process: Option<u32>) -> Option<NewCall> {
    let (tool, id) = (input.tool_name.clone()?, input.tool_use_id.clone()?);
    if READ_ONLY.contains(&tool.as_str()) || SUB_AGENTS.contains(&tool.as_str()) {
        return None;
    }
    let path = match tool.as_str() {
        "Edit" | "MultiEdit" | "Write" => input.arguments().text("file_path"),
        "NotebookEdit" => input.arguments().text("notebook_path"),
        _ => None,
    };
    Some(input.call(lane.clone(), id, tool, path.map(|path| vec![path]), process))
}

fn end(input: &Input<'_>) -> CallEnd {
    let is_shell = input.tool_name.as_deref() == Some("Bash");
    // The exit code of a failed command is only in the text of the error.
    let failed = input.error.as_deref().and_then(|error| error.strip_prefix("Exit code "));
    let failed = failed.and_then(|rest| rest.lines().next()?.trim().parse().ok());
    let succeeded = input.hook_event_name == "PostToolUse";
    CallEnd {
        succeeded,
        result: input.error.clone().or_else(|| input.response_text()),
        exit_code: failed.or((succeeded && is_shell).then_some(0)),
        duration_ms: input.duration_ms,
        in_background: input.response().has("backgroundTaskId"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugin_has_a_hook_for_each_event_of_a_shared_file() {
        let hooks = include_str!("../../plugin/claude/hooks/hooks.json");
        let hooks: serde_json::Value = serde_json::from_str(hooks).unwrap();
        let hooks = hooks["hooks"].as_object().unwrap();
        let events = PROGRAM.wanted_events(ProgramVersion::from_output("9.0.0"), true);
        assert_eq!(hooks.len(), events.len());
        for event in events {
            let groups = hooks[event.name].as_array().unwrap();
            let command = "command -v foldlog >/dev/null || exit 0; foldlog hook event claude";
            let handler = serde_json::json!({ "type": "command", "command": command, "timeout": 30 });
            let mut group = serde_json::json!({ "hooks": [handler] });
            if event.has_matcher {
                group["matcher"] = "*".into();
            }
            assert_eq!(groups, &[group], "{}", event.name);
        }
    }
}

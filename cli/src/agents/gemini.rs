//! Gemini CLI.
//!
//! Measured with version 0.61.0; the names of events also with 0.24.0. It differs from the others:
//!
//! - Calls have no id, and a call of a sub-agent cannot be distinguished from one of its parent. Both
//!   run several calls at a time. So the id is derived from the tool and its arguments, which are
//!   the same in both events of a call.
//! - A call that is refused by a person or by a rule has no `AfterTool`. An interrupted one has.
//! - No event tells when a question of the program was answered, and no time is reported that a tool
//!   took. So changes during a question count as those of the call.
//! - `gemini --acp`, which editors use, runs no hooks of tools.

use foldlog_timeline::{CallEnd, Lane, NewCall};
use serde_json::value::RawValue;

use super::input::Input;
use super::{AgentEvent, AgentProgram, HookEvent, HookInput, ProgramVersion, SettingsPlaces};

const OLDEST: ProgramVersion = ProgramVersion(0, 24, 0);

const CALL: &str = r#"{"tool_name":"run_shell_command","tool_input":{"command":"true"},"tool_response":{"llmContent":"Output: (empty)","returnDisplay":""}}"#;

pub(super) const PROGRAM: AgentProgram = AgentProgram {
    name: "gemini",
    title: "Gemini CLI",
    oldest: OLDEST,
    events: &[
        AgentEvent::new("SessionStart", OLDEST, r#"{"source":"startup"}"#),
        AgentEvent::new("BeforeAgent", OLDEST, r#"{"prompt":"nothing"}"#),
        AgentEvent::of_tool("BeforeTool", OLDEST, CALL),
        AgentEvent::of_tool("AfterTool", OLDEST, CALL),
        AgentEvent::new(
            "AfterAgent",
            OLDEST,
            r#"{"prompt":"nothing","prompt_response":"","stop_hook_active":false}"#,
        ),
        AgentEvent::new("SessionEnd", OLDEST, r#"{"reason":"exit"}"#),
    ],
    shared_events_of: None,
    settings: SettingsPlaces {
        directory_variable: None,
        home_variables: &["GEMINI_CLI_HOME", "HOME"],
        directory: ".gemini",
        user: "settings.json",
        project: "settings.json",
        shared: "settings.json",
    },
    disabled_by: (&["hooksConfig", "enabled"], false),
    timeout_units: 1000,
    hook_name: Some("foldlog"),
    prompt_commands: &[
        ("commands/undo.toml", include_str!("../../plugin/gemini/commands/undo.toml")),
        ("commands/redo.toml", include_str!("../../plugin/gemini/commands/redo.toml")),
    ],
    rewind_note: None,
    prompt_prefix: "/",
    project_variable: Some("GEMINI_PROJECT_DIR"),
    process_variable: None,
    asks_for_trust: false,
    read,
    block_word: "deny",
    hides_prompt: false,
};

/// Tools that change no files. A tool that is not listed may change any.
const READ_ONLY: [&str; 20] = [
    "activate_skill",
    "ask_user",
    "complete_task",
    "enter_plan_mode",
    "exit_plan_mode",
    "get_internal_docs",
    "glob",
    "google_web_search",
    "grep_search",
    // It runs a sub-agent, whose calls are reported.
    "invoke_agent",
    "list_background_processes",
    "list_directory",
    "list_mcp_resources",
    "read_background_output",
    "read_file",
    "read_many_files",
    "search_file_content",
    "update_topic",
    "web_fetch",
    "write_todos",
];

/// Text about a command that the user has interrupted.
const CANCELLED: &str = "Command was cancelled by user before it could complete.";

/// Tool that runs a command.
const SHELL: &str = "run_shell_command";

fn read(input: &str, process: Option<u32>) -> serde_json::Result<HookInput> {
    let input: Input<'_> = serde_json::from_str(input)?;
    let lane = input.lane(&PROGRAM);
    let call = || call(&input, &lane, process);
    let event = match input.hook_event_name.as_str() {
        "SessionStart" => HookEvent::SessionStarted { is_new: true },
        "BeforeAgent" => HookEvent::Prompted { text: input.prompt.clone() },
        "BeforeTool" => call().map_or(HookEvent::Other, HookEvent::CallBegins),
        "AfterTool" => call().map_or(HookEvent::Other, |call| HookEvent::CallEnds(call, end(&input))),
        "AfterAgent" => HookEvent::TurnEnded,
        "SessionEnd" => HookEvent::SessionEnded,
        _ => HookEvent::Other,
    };
    Ok(HookInput { transcript: None, ..input.into_hook_input(lane, event) })
}

/// Returns the call of a tool that may change files.
fn call(input: &Input<'_>, lane: &Lane, process: Option<u32>) -> Option<NewCall> {
    let tool = input.tool_name.clone()?;
    if READ_ONLY.contains(&tool.as_str()) {
        return None;
    }
    let arguments = input.tool_input.map_or("", RawValue::get);
    let id = blake3::hash(format!("{tool}\0{arguments}").as_bytes()).to_hex();
    let path = match tool.as_str() {
        "replace" | "write_file" => input.arguments().text("file_path"),
        _ => None,
    };
    let call = input.call(lane.clone(), id[..16].to_owned(), tool, path.map(|path| vec![path]), process);
    Some(NewCall { may_overlap: true, ..call })
}

fn end(input: &Input<'_>) -> CallEnd {
    let response = input.response();
    let is_shell = input.tool_name.as_deref() == Some(SHELL);
    let content = response.text("llmContent").unwrap_or_default();
    let exit_code = if is_shell { exit_code(&content) } else { None };
    let was_cancelled = content.contains(CANCELLED);
    let has_error = was_cancelled || response.has("error");
    CallEnd {
        succeeded: !has_error && exit_code.is_none(),
        result: input.response_text(),
        exit_code: exit_code.or((is_shell && !has_error).then_some(0)),
        duration_ms: None,
        in_background: content.contains("Command moved to background"),
    }
}

/// Returns the exit code in the text about a command, which names only those other than 0. It
/// follows the command's output, among other facts.
fn exit_code(content: &str) -> Option<i64> {
    const FACTS: [&str; 5] =
        ["</untrusted_context>", "Process Group PGID: ", "Background PIDs: ", "Signal: ", "Error: "];
    let facts = |line: &&str| line.is_empty() || FACTS.iter().any(|fact| line.starts_with(fact));
    content.lines().rev().find(|line| !facts(line))?.strip_prefix("Exit Code: ")?.trim().parse().ok()
}

#[test]
fn an_exit_code_is_read_after_the_output_of_a_command() {
    let end = "Process Group PGID: 14729\n</untrusted_context>";
    assert_eq!(exit_code(&format!("<untrusted_context>\nOutput: part\nExit Code: 3\n{end}")), Some(3));
    assert_eq!(exit_code(&format!("Output: Exit Code: 3\nmore\n{end}")), None);
    assert_eq!(exit_code(""), None);
}

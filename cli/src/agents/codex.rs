//! Codex.
//!
//! Measured with version 0.171.0; the names of events also with 0.124.0 and 0.140.0. It differs from
//! Claude Code, whose forms it follows:
//!
//! - Several calls of an agent may run at a time.
//! - `PostToolUse` follows only a call that the tool completed. A patch that cannot be applied, and a
//!   refused call, have no end of their own; `PreModelRequest`, which follows each group of calls,
//!   ends them. A command that takes longer than the model waits for it runs on, and its
//!   `PostToolUse` comes when the model asks for the rest of its output.
//! - Exit codes and times are not in the input of a hook. They are in the transcript.
//! - The user has to trust a hook before it runs. Codex recognises it by its file, place and
//!   definition, so these never change between versions of foldlog.
//! - Hooks of `SessionEnd` and `Interrupt` have at most three seconds; longer times are reported as
//!   a mistake.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use foldlog::filesystem::open_regular_file;
use foldlog_timeline::{CallEnd, Lane, NewCall};
use foldlog_view::clock::now;
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::input::Input;
use super::{AgentEvent, AgentProgram, HookEvent, HookInput, ProgramVersion, SettingsPlaces};

const OLDEST: ProgramVersion = ProgramVersion(0, 124, 0);
const NEWEST: ProgramVersion = ProgramVersion(0, 171, 0);

/// Greatest time-out of some events, in seconds.
const SHORT_TIMEOUT_SECONDS: u32 = 3;

/// Bytes at the end of a transcript in which the end of a command is searched.
const TRANSCRIPT_BYTES_MAX: u64 = 1 << 20;

const CALL: &str = r#"{"turn_id":"t","permission_mode":"default","tool_name":"Bash","tool_input":{"command":"true"},"tool_use_id":"foldlog-hook-status","tool_response":""}"#;

pub(super) const PROGRAM: AgentProgram = AgentProgram {
    name: "codex",
    title: "Codex",
    oldest: OLDEST,
    events: &[
        AgentEvent::new("SessionStart", OLDEST, r#"{"source":"startup"}"#),
        AgentEvent::new("UserPromptSubmit", OLDEST, r#"{"turn_id":"t","prompt":"nothing"}"#),
        AgentEvent::new("PreModelRequest", NEWEST, r#"{"turn_id":"t","kind":"sampling"}"#),
        AgentEvent::of_tool("PreToolUse", OLDEST, CALL),
        AgentEvent::of_tool("PermissionRequest", OLDEST, CALL),
        AgentEvent::of_tool("PostToolUse", OLDEST, CALL),
        AgentEvent::new("Stop", OLDEST, r#"{"turn_id":"t","stop_hook_active":false}"#),
        short(AgentEvent::new("Interrupt", NEWEST, r#"{"turn_id":"t"}"#)),
        short(AgentEvent::new("SessionEnd", NEWEST, r#"{"reason":"other"}"#)),
    ],
    shared_events_of: None,
    settings: SettingsPlaces {
        directory_variable: Some("CODEX_HOME"),
        home_variables: &["HOME"],
        directory: ".codex",
        user: "hooks.json",
        project: "hooks.json",
        shared: "hooks.json",
    },
    disabled_by: (&[], true),
    timeout_units: 1,
    hook_name: None,
    prompt_commands: &[],
    rewind_note: None,
    // Codex takes `/undo` for a command that it does not know.
    prompt_prefix: "foldlog ",
    project_variable: None,
    process_variable: None,
    asks_for_trust: true,
    read,
    block_word: "block",
    hides_prompt: false,
};

const fn short(event: AgentEvent) -> AgentEvent {
    AgentEvent { timeout_seconds: SHORT_TIMEOUT_SECONDS, ..event }
}

/// Tools that change no files. A tool that is not listed may change any.
const READ_ONLY: [&str; 14] = [
    "close_agent",
    "create_goal",
    "get_goal",
    "request_user_input",
    "request_user_input_async",
    "resume_agent",
    "send_input",
    "spawn_agent",
    "tool_search",
    "update_goal",
    "update_plan",
    "view_image",
    "wait_agent",
    "web_search",
];

/// Beginning of the names of tools that start other agents and talk to them. Hooks report each call
/// of these.
const COLLABORATION: &str = "collaboration";

fn read(input: &str, process: Option<u32>) -> serde_json::Result<HookInput> {
    let input: Input<'_> = serde_json::from_str(input)?;
    let lane = input.lane(&PROGRAM);
    let call = || call(&input, &lane, process);
    let event = match input.hook_event_name.as_str() {
        "SessionStart" => HookEvent::SessionStarted { is_new: input.source.as_deref() != Some("compact") },
        "UserPromptSubmit" if lane.agent.is_none() => HookEvent::Prompted { text: input.prompt.clone() },
        "PreModelRequest" => HookEvent::CallsReturned,
        "PreToolUse" => call().map_or(HookEvent::Other, HookEvent::CallBegins),
        "PostToolUse" => call().map_or(HookEvent::Other, |call| HookEvent::CallEnds(call, end(&input))),
        "PermissionRequest" => HookEvent::PermissionAsked,
        "Stop" | "Interrupt" => HookEvent::TurnEnded,
        "SessionEnd" => HookEvent::SessionEnded,
        _ => HookEvent::Other,
    };
    Ok(HookInput { transcript: None, ..input.into_hook_input(lane, event) })
}

/// Returns the call of a tool that may change files.
fn call(input: &Input<'_>, lane: &Lane, process: Option<u32>) -> Option<NewCall> {
    let (tool, id) = (input.tool_name.clone()?, input.tool_use_id.clone()?);
    if READ_ONLY.contains(&tool.as_str()) || tool.starts_with(COLLABORATION) {
        return None;
    }
    let patch = input.arguments().text("command").filter(|_| tool == "apply_patch");
    let paths = patch.map(|patch| patched_paths(&patch)).filter(|paths| !paths.is_empty());
    let call = input.call(lane.clone(), id, tool, paths, process);
    Some(NewCall { may_overlap: true, ..call })
}

/// Returns the paths that a patch names. As in Codex, a marker may have white space around it. A line
/// of context that looks like a marker is taken for one, too: it may name a file with secrets.
fn patched_paths(patch: &str) -> Vec<String> {
    const WORDS: [&str; 4] = ["*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: "];
    let path = |line: &str| {
        let line = line.trim();
        WORDS.iter().find_map(|word| line.strip_prefix(word)).map(|path| path.trim().to_owned())
    };
    let mut paths: Vec<String> = patch.lines().filter_map(path).collect();
    paths.dedup();
    paths
}

fn end(input: &Input<'_>) -> CallEnd {
    let is_shell = input.tool_name.as_deref() == Some("Bash");
    let command = input
        .tool_use_id
        .as_deref()
        .zip(input.transcript_path.as_deref())
        .filter(|_| is_shell)
        .and_then(|(id, transcript)| EndedCommand::find(transcript, id));
    CallEnd {
        succeeded: command.as_ref().is_none_or(|command| command.exit_code == 0),
        result: input.response_text(),
        exit_code: command.as_ref().map(|command| command.exit_code),
        duration_ms: command.as_ref().and_then(EndedCommand::milliseconds_since_start),
        in_background: false,
    }
}

/// The end of a command in a transcript.
struct EndedCommand {
    exit_code: i64,
    started_at_ms: Option<i64>,
}

impl EndedCommand {
    /// Searches for a command at the end of a transcript.
    fn find(transcript: &Path, id: &str) -> Option<EndedCommand> {
        let mut file = open_regular_file(transcript).ok()?;
        let length = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TRANSCRIPT_BYTES_MAX))).ok()?;
        let mut bytes = Vec::new();
        file.take(TRANSCRIPT_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let mut lines =
            text.lines().rev().filter(|line| line.contains("item_completed") && line.contains(id));
        lines.find_map(|line| {
            let record: Json = serde_json::from_str(line).ok()?;
            let payload = &record["payload"];
            let item = Some(&payload["item"]).filter(|item| item["id"] == id)?;
            let duration = |unit: &str| item["duration"][unit].as_i64();
            let (seconds, nanos) = (duration("secs")?, duration("nanos")?);
            let milliseconds = seconds.checked_mul(1000).and_then(|it| it.checked_add(nanos / 1_000_000));
            let completed_at_ms = payload["completed_at_ms"].as_i64()?;
            Some(EndedCommand {
                exit_code: item["exit_code"].as_i64()?,
                started_at_ms: milliseconds.and_then(|duration| completed_at_ms.checked_sub(duration)),
            })
        })
    }

    /// Returns the time since the start of the command. Its end may be reported much later.
    fn milliseconds_since_start(&self) -> Option<u64> {
        u64::try_from(now().timestamp_millis().checked_sub(self.started_at_ms?)?).ok()
    }
}

/// Whether Codex runs one of the hooks of a directory.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HookTrust {
    pub(crate) source_path: PathBuf,
    #[serde(default)]
    pub(crate) command: Option<String>,
    pub(crate) event_name: String,
    pub(crate) enabled: bool,
    trust_status: String,
}

impl HookTrust {
    pub(crate) fn is_trusted(&self) -> bool {
        ["trusted", "managed"].contains(&self.trust_status.as_str())
    }
}

/// Number of the request for the hooks.
const LIST_REQUEST: u64 = 2;

/// Arguments with which Codex answers [requests](trust_request).
pub(crate) const TRUST_ARGUMENTS: [&str; 1] = ["app-server"];

/// Returns the lines that ask Codex for the hooks of a directory.
pub(crate) fn trust_request(directory: &Path) -> String {
    let client = json!({"clientInfo": {"name": "foldlog", "version": env!("CARGO_PKG_VERSION")}});
    let requests = [
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}),
        json!({"jsonrpc": "2.0", "method": "initialized"}),
        json!({"jsonrpc": "2.0", "id": LIST_REQUEST, "method": "hooks/list", "params": {"cwds": [directory]}}),
    ];
    requests.iter().map(|request| format!("{request}\n")).collect()
}

/// Reads a line of the answer; `None` if it is about something else.
pub(crate) fn trust_answer(line: &str) -> Option<Vec<HookTrust>> {
    let answer: Json = serde_json::from_str(line).ok()?;
    let lists = answer["result"]["data"].as_array().filter(|_| answer["id"] == LIST_REQUEST)?;
    let hooks = lists.iter().map(|list| Vec::<HookTrust>::deserialize(&list["hooks"]).ok());
    Some(hooks.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_names_all_files_that_it_changes() {
        let patch = "*** Begin Patch\n*** Update File: a b.txt\n*** Move to: src/c.txt\n@@\n-*** Add File: no\n+x\n*** Add File: n.txt\n+*** Delete File: no\n*** Delete File: /abs/d\n*** End Patch\n";
        assert_eq!(patched_paths(patch), ["a b.txt", "src/c.txt", "n.txt", "/abs/d"]);
        let padded = "*** Begin Patch\n *** Update File: .env\n@@\n-A=1\n+A=2\n\t*** Add File: .envrc \n+A=1\n*** End Patch\n";
        assert_eq!(patched_paths(padded), [".env", ".envrc"]);
        assert_eq!(patched_paths("no patch"), [""; 0]);
    }

    #[test]
    fn the_end_of_a_command_is_read_in_the_transcript() {
        let transcript = tempfile::NamedTempFile::new().unwrap();
        let end = now().timestamp_millis() - 5000;
        let record = |id: &str, code: i64| {
            let item = json!({"type": "CommandExecution", "id": id, "exit_code": code, "duration": {"secs": 2, "nanos": 500_000_000}});
            let payload =
                json!({"type": "item_completed", "item": item, "started_at_ms": 0, "completed_at_ms": end});
            format!("{}\n", json!({"type": "event_msg", "payload": payload}))
        };
        let text = format!(
            "{}{{\"half of\": \"item_completed call_1\n{}",
            record("call_1", 3),
            record("call_10", 0)
        );
        std::fs::write(transcript.path(), text).unwrap();
        let found = EndedCommand::find(transcript.path(), "call_1").unwrap();
        assert_eq!(found.exit_code, 3);
        let since = found.milliseconds_since_start().unwrap();
        assert!((7500..60_000).contains(&since), "{since}");
        assert!(EndedCommand::find(transcript.path(), "call_2").is_none());
        assert!(EndedCommand::find(Path::new("/nowhere"), "call_1").is_none());
    }
}

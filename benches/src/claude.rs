//! Measures runs of the Claude Code program: the adapter compared with the bare client, over the
//! stand-in for the program.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use foldlog::tools::{Tool, ToolContext, ToolError, ToolRegistry, ToolResult};
use foldlog::{
    Durability, Event, ExecutionState, Policy, ResourceRegistry, SessionTypes, Slice, Store, StoreOptions,
};
use foldlog_agent::adapter_state::StatefulAdapter;
use foldlog_agent::{EvaluateOptions, MarkdownSection, Prompt, UserMessage};
use foldlog_claude::{
    BridgedTool, Callbacks, ClaudeAgentSDKAdapter, ClaudeAgentSDKClientConfig, Client, ClientOptions,
    HookCall, HookMatcher, HookReply, PermissionMode, ToolCall, ToolReply,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::measure::{AtMost, BenchRow, Measurement, Result, take_turns, timed};

/// Number of calls of a run.
const CALLS: u64 = 50;

/// Duration of a call that does work: less than a search in a small directory.
const WORK: Duration = Duration::from_millis(10);

/// Number of lines of its transcript that a run sends, and bytes of each.
const FRAMES: u64 = 2_000;
const FRAME_BYTES: usize = 2_000;

const ROUNDS: usize = 9;

#[derive(Deserialize, JsonSchema)]
struct WorkParameters {}

/// Does nothing, or sleeps.
struct Works(Duration);

impl Tool for Works {
    const NAME: &'static str = "work";
    const DESCRIPTION: &'static str = "Works.";
    type Parameters = WorkParameters;
    type Output = ();

    fn call(&self, _: WorkParameters, _: &ToolContext) -> std::result::Result<ToolResult<()>, ToolError> {
        std::thread::sleep(self.0);
        Ok(ToolResult::ok("done", ()))
    }
}

/// Serves the same tool without any record.
struct Bare(Duration);

impl Callbacks for Bare {
    fn tools(&self) -> Vec<BridgedTool> {
        let schema = json!({"type": "object", "properties": {}});
        vec![BridgedTool::new("wink", Works::NAME, Works::DESCRIPTION, schema)]
    }

    fn call_tool(&self, _: ToolCall) -> ToolReply {
        std::thread::sleep(self.0);
        ToolReply::text("done")
    }

    fn hook(&self, _: HookCall) -> HookReply {
        HookReply::proceed()
    }
}

/// Contains the stand-in, its script and its directories.
struct StandIn {
    program: PathBuf,
    dir: PathBuf,
}

impl StandIn {
    fn new(program: PathBuf, dir: PathBuf, steps: &[Value]) -> Result<StandIn> {
        for directory in ["work", "home", "tmp", "config"] {
            std::fs::create_dir_all(dir.join(directory))?;
        }
        let lines: String = steps.iter().map(|step| format!("{step}\n")).collect();
        std::fs::write(dir.join("script"), lines)?;
        Ok(StandIn { program, dir })
    }

    fn bare(&self, tool: Duration) -> Result<()> {
        let mut options = ClientOptions::new(&self.program, self.dir.join("work"));
        options.home = Some(self.dir.join("home"));
        options.tmpdir = Some(self.dir.join("tmp"));
        options.config_dir = Some(self.dir.join("config"));
        options.variables.set("STAND_IN_SCRIPT", self.dir.join("script"));
        options.permission_mode = Some(PermissionMode::DontAsk);
        options.session_mirror = true;
        options.bridged_servers = vec!["wink".to_owned()];
        let events = ["PreToolUse", "PostToolUse", "PostToolUseFailure"];
        options.hooks = events.map(|event| HookMatcher::new(event, event)).to_vec();
        options.allowed_tools = Bare(tool).tools().iter().map(BridgedTool::full_name).collect();
        let client = Client::start(&options, Arc::new(Bare(tool)))?;
        client.query("Work.")?;
        while let Some(message) = client.next_message(None)? {
            if message.result().is_some() {
                break;
            }
        }
        client.close()?;
        Ok(())
    }

    /// Evaluates a prompt in a session of its own, which is deleted afterwards.
    fn adapted(&self, store: &Store, tool: Duration) -> Result<()> {
        let session = store.create(&SessionTypes::builder().build()?)?;
        let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
        let env = [("STAND_IN_SCRIPT".into(), self.dir.join("script").into())].into();
        let client = ClaudeAgentSDKClientConfig {
            permission_mode: PermissionMode::DontAsk,
            cwd: Some(self.dir.join("work")),
            env,
            ..ClaudeAgentSDKClientConfig::default()
        };
        let adapter = ClaudeAgentSDKAdapter::new().with_program(&self.program, []).with_client_config(client);
        let prompt: Prompt = Prompt::text("benches", "work")
            .with_section(MarkdownSection::new("task", "Work."))
            .with_tools(ToolRegistry::new().with(Works(tool)));
        let messages = vec![UserMessage { id: "1".to_owned(), text: "Work.".to_owned() }];
        adapter.evaluate(&prompt, &state, EvaluateOptions { messages, ..EvaluateOptions::default() })?;
        session.close()?;
        Ok(())
    }
}

/// Returns the stand-in next to this program. If it is not built, reports that and returns `None`.
fn stand_in() -> Result<Option<PathBuf>> {
    let program = std::env::current_exe()?.with_file_name("claude-stand-in");
    if program.is_file() {
        return Ok(Some(program));
    }
    eprintln!(
        "claude: skipped, {} is not there: `cargo build --release -p foldlog-tests --bin claude-stand-in` builds it",
        program.display()
    );
    Ok(None)
}

pub fn claude(dir: &Path) -> Result<Vec<BenchRow>> {
    let Some(program) = stand_in()? else { return Ok(Vec::new()) };
    let mut rows = runs(&program, dir)?;
    rows.extend(frames(&program, dir)?);
    Ok(rows)
}

fn store(path: &Path, durability: Durability) -> Result<Store> {
    Ok(Store::open_with(path, StoreOptions { durability, ..StoreOptions::default() })?)
}

/// Measures runs of many calls.
fn runs(program: &Path, dir: &Path) -> Result<Vec<BenchRow>> {
    let mut steps = vec![json!({"turn": true})];
    steps.extend((0..CALLS).map(|_| json!({"tool": Works::NAME, "input": {}})));
    steps.push(json!({"result": "done"}));
    let stand_in = StandIn::new(program.to_owned(), dir.join("runs"), &steps)?;
    let process = store(&dir.join("process"), Durability::Process)?;
    let boundary = store(&dir.join("boundary"), Durability::Boundary)?;
    let mut rows = Vec::new();
    for (tool, param) in [(WORK, "50 calls of 10 ms"), (Duration::ZERO, "50 calls of nothing")] {
        let [limit, unsynced, durable] = take_turns(
            ROUNDS,
            [
                &mut || timed(CALLS, || stand_in.bare(tool)),
                &mut || timed(CALLS, || stand_in.adapted(&process, tool)),
                &mut || timed(CALLS, || stand_in.adapted(&boundary, tool)),
            ],
        )?;
        let row = |subject: &str, measured: Measurement| {
            BenchRow::beside("claude", subject, param, measured, limit).at_most(AtMost::Ratio(1.02))
        };
        rows.push(BenchRow::alone("claude", "a call by the bare client", param, limit));
        rows.push(row("a call by the adapter at `Process`", unsynced));
        rows.push(row("a call by the adapter at `Boundary`", durable));
    }
    Ok(rows)
}

#[derive(Clone, Serialize, Deserialize)]
struct MirroredLine(String);

impl Event for MirroredLine {
    const NAME: &'static str = "told";
}

struct MirroredLines;

impl Slice for MirroredLines {
    const NAME: &'static str = "all";
    type Item = MirroredLine;
}

/// Measures a run that sends many lines of its transcript, minus the same with the bare client,
/// compared with a dispatch of the bytes.
fn frames(program: &Path, dir: &Path) -> Result<Vec<BenchRow>> {
    let line = |number: u64| {
        let entry = json!({"type": "assistant", "uuid": number.to_string(), "text": "x".repeat(FRAME_BYTES)});
        json!({"type": "transcript_mirror", "filePath": "/session.jsonl", "entries": [entry]})
    };
    let mut steps = vec![json!({"turn": true})];
    steps.extend((0..FRAMES).map(|number| json!({"emit": line(number)})));
    steps.push(json!({"result": "done"}));
    let stand_in = StandIn::new(program.to_owned(), dir.join("frames"), &steps)?;
    let process = store(&dir.join("frames-process"), Durability::Process)?;
    let types = SessionTypes::builder()
        .slice_with::<MirroredLines>(Policy::Log)
        .append_all::<MirroredLines>()
        .build()?;
    let text = line(0).to_string();
    let mut dispatched = || {
        let session = process.create(&types)?;
        let round = timed(FRAMES, || {
            (0..FRAMES)
                .try_for_each(|_| session.dispatch(MirroredLine(text.clone())).map(drop).map_err(Into::into))
        });
        session.close()?;
        round
    };
    let [limit, bare, adapted] = take_turns(
        ROUNDS,
        [&mut dispatched, &mut || timed(FRAMES, || stand_in.bare(Duration::ZERO)), &mut || {
            timed(FRAMES, || stand_in.adapted(&process, Duration::ZERO))
        }],
    )?;
    let param = format!("{FRAMES} lines of {FRAME_BYTES} bytes");
    Ok(vec![
        BenchRow::alone("claude", "a dispatch of a line's bytes", &param, limit),
        BenchRow::alone("claude", "a line by the bare client", &param, bare),
        BenchRow::beside("claude", "a line by the adapter, less that", &param, adapted.less(bare), limit)
            .at_most(AtMost::Ratio(2.0)),
    ])
}

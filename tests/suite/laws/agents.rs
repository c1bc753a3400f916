//! Law 3, for whole agents: with the same seed, clock and calls they leave the same records,
//! regardless of random draws and elapsed time.
//!
//! The comparison omits the program's process, which the system alone decides.

use std::ffi::OsString;
use std::fs;
use std::sync::Arc;

use foldlog::filesystem::{Filesystem, InMemoryFilesystem};
use foldlog::tools::{ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolResult, ToolRunner};
use foldlog::{
    Durability, ExecutionState, FixedClock, RecordKind, ResourceRegistry, SequenceNumber, Session, Store,
    StoreOptions,
};
use foldlog_agent::adapter_state::{AdapterStateOptions, StatefulAdapter};
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::{EvaluateOptions, MarkdownSection, Prompt, ProviderAdapter, UserMessage};
use foldlog_claude::{ClaudeAgentSDKAdapter, ClaudeAgentSDKClientConfig};
use foldlog_codec::body::Observed;
use serde_json::json;

use crate::claude::adapter::world::{City, Line, adapter_of, config_of, tools, types};
use crate::claude::stand_in::StandIn;

/// Returns the time of a file's change, so that a record contains that time.
struct Written;

impl Tool for Written {
    const NAME: &'static str = "written";
    type Parameters = City;
    type Output = i64;

    fn call(&self, _: City, context: &ToolContext) -> Result<ToolResult<i64>, ToolError> {
        let files = context.resources().get::<dyn Filesystem>().ok_or(ToolError::failed("no workspace"))?;
        files.write("written", b"now")?;
        let at = files.stat("written")?.modified_us;
        Ok(ToolResult::ok(format!("at {at}"), at))
    }
}

fn prompt() -> Prompt {
    Prompt::text("tests", "page")
        .with_section(MarkdownSection::new("task", "Write the page."))
        .with_tools(tools().with(Written))
}

fn saying(text: &str) -> EvaluateOptions<'static> {
    let messages = vec![UserMessage { id: text.to_owned(), text: text.to_owned() }];
    EvaluateOptions { messages, ..EvaluateOptions::default() }
}

type Content = (SequenceNumber, RecordKind, i64, Vec<u8>);

/// Runs a host over a new session in the directory `store` of the stand-in, and returns the
/// compared content of each record. Removes the files of an earlier run first.
fn live(at: &StandIn, host: &dyn Fn(Session)) -> Vec<Content> {
    for directory in ["store", "work"] {
        let _ = fs::remove_dir_all(at.path(directory));
    }
    fs::create_dir(at.path("work")).unwrap();
    let options = StoreOptions {
        // Each reading advances the clock.
        clock: Arc::new(FixedClock::with_step(1_767_322_800_000_000, 1_000)),
        seed: Some(1),
        durability: Durability::Process,
        ..StoreOptions::default()
    };
    let session = Store::open_with(at.path("store"), options).unwrap().create(&types()).unwrap();
    host(session.clone());
    let mut content = Vec::new();
    let read = session.log().records(0, u64::MAX, |record| {
        let is_process = record.kind == RecordKind::Observed
            && Observed::decode(record.body).is_ok_and(|observed| observed.name == "claude.started");
        let body = if is_process { Vec::new() } else { record.body.to_vec() };
        content.push((record.sequence, record.kind, record.time_us, body));
        Ok(())
    });
    read.unwrap();
    session.close().unwrap();
    content
}

fn check_same(at: &StandIn, host: &dyn Fn(Session)) {
    let (once, again) = (live(at, host), live(at, host));
    for (once, again) in once.iter().zip(&again) {
        let shown = |(sequence, kind, time, body): &Content| {
            format!("{sequence} {kind:?} {time} {}", body.escape_ascii())
        };
        assert!(once == again, "one run recorded\n{}\nand the next one\n{}", shown(once), shown(again));
    }
    assert_eq!(once.len(), again.len());
}

/// Ids of evaluations, their durations, and times of files in memory came from the system. A replay
/// drew another id and diverged.
#[test]
fn an_agent_with_a_provider_leaves_the_same_records_each_time() {
    let host = |session: Session| {
        let files = Arc::new(InMemoryFilesystem::new());
        let resources = ResourceRegistry::builder().filesystem(files).build().unwrap();
        let state = ExecutionState::new(session.clone(), resources);
        let runner = ToolRunner::new(state.clone(), tools().with(Written));
        let call = |name: &'static str, arguments: &str| {
            runner.execute(&ToolCall::new(name, arguments.to_owned()), &ExecuteOptions::default()).unwrap()
        };
        session.dispatch(Line { text: "by the host".to_owned() }).unwrap();
        let before = state.snapshot(Some("before")).unwrap();
        assert!(call("add", r#"{"text":"one"}"#).success);
        assert!(!call("add", r#"{"text":"break"}"#).success);
        assert!(call("written", r#"{"city":"Oslo"}"#).success);
        let replies = || {
            [
                ScriptedReply::calls([
                    ("a", "add", r#"{"text":"two"}"#),
                    ("b", "weather", r#"{"city":"Oslo"}"#),
                ]),
                ScriptedReply::calls([("a", "written", r#"{"city":"Oslo"}"#)]),
                ScriptedReply::text("It is written."),
            ]
        };
        let adapter = ProviderAdapter::new(ScriptedProvider::new([replies(), replies()].concat()));
        adapter.evaluate(&prompt(), &state, saying("Write.")).unwrap();
        adapter.evaluate(&prompt(), &state, saying("Write more.")).unwrap();
        state.restore(&before).unwrap();
    };
    let at = StandIn::new(&json!([]));
    check_same(&at, &host);
    // Here the provider's answers are not recorded.
    let unrecorded = |session: Session| {
        let state = ExecutionState::new(session, ResourceRegistry::builder().build().unwrap());
        let adapter = ProviderAdapter::new(ScriptedProvider::new([ScriptedReply::text("Hello.")]));
        adapter.evaluate(&prompt(), &state, saying("Hello?").enable_conversation_recording(false)).unwrap();
    };
    check_same(&at, &unrecorded);
}

/// A replay also finds an evaluation that the host does not name.
#[test]
fn an_evaluation_without_a_name_replays() {
    let at = StandIn::new(&json!([]));
    let host = |session: Session| {
        let state = ExecutionState::new(session, ResourceRegistry::builder().build().unwrap());
        let adapter = ProviderAdapter::new(ScriptedProvider::new([ScriptedReply::text("Hello.")]));
        drop(adapter.evaluate(&prompt(), &state, saying("Hello?")));
    };
    let mut dir = None;
    let lived = std::sync::Mutex::new(&mut dir);
    live(&at, &|session| {
        **lived.lock().unwrap() = Some(session.dir().to_owned());
        host(session);
    });
    foldlog_replay::assert_host_replays(dir.unwrap(), &types(), host);
}

/// The system drew the ids of the program's sessions, including the id of a copy.
#[test]
fn an_agent_with_the_program_leaves_the_same_records_each_time() {
    let steps = json!([
        {"turn": true}, {"tool": "add", "input": {"text": "one"}}, {"text": "It is written."}, {"result": "It is written."},
    ]);
    let at = StandIn::new(&steps);
    let adapter = || -> ClaudeAgentSDKAdapter {
        let config = config_of(&at.path("script"), &at.path("work"));
        let mut env = config.env.clone();
        env.insert(OsString::from("STAND_IN_COUNTS"), OsString::from("1"));
        adapter_of(&at.path("script"), &at.path("work"))
            .with_client_config(ClaudeAgentSDKClientConfig { env, ..config })
            .with_state_options(AdapterStateOptions::default())
            .stateful()
    };
    let host = |session: Session| {
        let files = Arc::new(InMemoryFilesystem::new());
        let resources = ResourceRegistry::builder().filesystem(files).build().unwrap();
        let state = ExecutionState::new(session, resources);
        let (adapter, prompt) = (adapter(), prompt());
        adapter.evaluate(&prompt, &state, saying("Write.")).unwrap();
        assert!(adapter.fork_session().is_some());
        adapter.evaluate(&prompt, &state, saying("Write more.")).unwrap();
    };
    check_same(&at, &host);
}

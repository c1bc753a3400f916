//! A run's messages to the host's logger.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Once;

use foldlog_claude::ClaudeAgentSDKModelConfig;
use log::kv::{Error, Key, Value, VisitSource};
use log::{LevelFilter, Log, Metadata, Record};
use serde_json::json;

use super::world::World;

thread_local! {
    /// The log of this thread, which is the one that evaluates.
    static LINES: RefCell<Vec<BTreeMap<String, String>>> = const { RefCell::new(Vec::new()) };
}

struct Collector;

struct Pairs(BTreeMap<String, String>);

impl<'kvs> VisitSource<'kvs> for Pairs {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), Error> {
        self.0.insert(key.to_string(), value.to_string());
        Ok(())
    }
}

impl Log for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "claude_agent_sdk"
    }

    fn log(&self, record: &Record<'_>) {
        let mut pairs = Pairs(BTreeMap::new());
        record.key_values().visit(&mut pairs).unwrap();
        pairs.0.insert("message".to_owned(), record.args().to_string());
        pairs.0.insert("level".to_owned(), record.level().to_string());
        LINES.with_borrow_mut(|lines| lines.push(pairs.0));
    }

    fn flush(&self) {}
}

/// Takes the lines that this thread has logged since the last call.
fn lines() -> Vec<BTreeMap<String, String>> {
    static SET: Once = Once::new();
    SET.call_once(|| {
        log::set_logger(&Collector).unwrap();
        log::set_max_level(LevelFilter::Info);
    });
    LINES.take()
}

#[test]
fn begin_end_and_resume_of_a_run_are_logged_with_all_fields_and_a_replay_logs_nothing() {
    assert!(lines().is_empty());
    let usage = json!({"input_tokens": 7, "output_tokens": 3});
    let result = json!({"result": "done", "usage": usage, "total_cost_usd": 0.25, "duration_ms": 41});
    let world = World::new(&json!([{"turn": true}, {"text": "done"}, result]));
    let told = |host: &super::world::Host| {
        let model = ClaudeAgentSDKModelConfig { model: Some("test-model".to_owned()), ..Default::default() };
        let adapter = host.adapter().with_model_config(model).stateful();
        host.ask_with(&adapter, "one").unwrap();
        let id = adapter.session_id().unwrap();
        let evaluation_id = Some("two".to_owned());
        let options = foldlog_agent::EvaluateOptions { evaluation_id, ..super::world::asking("two") };
        use foldlog_agent::adapter_state::StatefulAdapter;
        adapter.evaluate(&super::world::prompt(), &host.state, options).unwrap();
        id
    };
    let id = world.run_unreplayed(told);
    let live = lines();
    let start = json!({"event": "sdk.invoke.start", "message": "claude_agent_sdk.invoke", "level": "INFO",
        "prompt_name": "tests:page", "model": "test-model", "stateful": "true", "tool_count": "2"});
    let complete = json!({"event": "sdk.invoke.complete", "message": "claude_agent_sdk.complete", "level": "INFO",
        "prompt_name": "tests:page", "duration_ms": "41", "input_tokens": "7", "output_tokens": "3",
        "total_cost": "0.25", "session_id": id});
    let resuming = json!({"event": "sdk.resuming_session", "message": "claude_agent_sdk.resuming_session",
        "level": "INFO", "session_id": id});
    assert_eq!(serde_json::to_value(&live).unwrap(), json!([start, complete, resuming, start, complete]));
    world.replay(told);
    assert_eq!(lines(), [], "no program ran");
}

#[test]
fn a_run_that_failed_is_logged_with_its_error() {
    assert!(lines().is_empty());
    let world = World::new(&json!([{"turn": true}, {"exit": 3}]));
    let error = world.run_unreplayed(|host| host.ask("Write.").unwrap_err().to_string());
    let live = lines();
    assert_eq!(live.len(), 2, "{live:?}");
    assert_eq!((live[1]["event"].as_str(), live[1]["level"].as_str()), ("sdk.invoke.failed", "WARN"));
    assert_eq!(live[1]["error"], error);
}

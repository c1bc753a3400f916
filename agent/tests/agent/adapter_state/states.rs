//! Shows the contents of a state, and that every reader preserves it.

use std::sync::Arc;

use foldlog::Clock;
use foldlog_agent::adapter_state::*;
use serde_json::{Value, json};

use super::world::*;

#[test]
fn the_state_of_the_claude_agent_sdk_has_seven_fields_and_reads_back_from_json() {
    let state = ClaudeAgentSDKState { message_count: 12, ..complete("abc123") };
    let json = serde_json::to_value(&state).unwrap();
    assert_eq!(
        json,
        json!({
            "session_id": "abc123",
            "created_at": "2026-01-01T11:59:00Z",
            "last_activity_at": "2026-01-01T12:00:00Z",
            "workspace_path": "/work",
            "prompt_name": "demo:review",
            "message_count": 12,
            "is_complete": true,
        })
    );
    assert_eq!(serde_json::from_value::<ClaudeAgentSDKState>(json).unwrap(), state);

    let offset = json!({"session_id": "x", "created_at": "2026-01-01T14:00:00+02:00",
        "last_activity_at": "2026-01-01T14:00:00.5+02:00", "workspace_path": null, "prompt_name": "p"});
    let short: ClaudeAgentSDKState = serde_json::from_value(offset).unwrap();
    assert_eq!((short.message_count, short.is_complete, short.created_at), (0, false, at(0)));
    let naive = json!({"session_id": "x", "created_at": "2026-01-01T14:00:00", "last_activity_at": "2026-01-01T14:00:00",
        "prompt_name": "p"});
    assert!(serde_json::from_value::<ClaudeAgentSDKState>(naive).is_err(), "a time names its offset");
}

#[test]
fn a_session_is_resumable_if_it_has_an_id_and_did_not_complete() {
    assert!(claude("abc123").resumable());
    assert!(!claude("").resumable());
    assert!(!complete("abc123").resumable());
    assert_eq!(claude("abc123").adapter_type(), "claude_agent_sdk");
}

#[test]
fn the_session_id_comes_from_the_init_message_or_from_its_data() {
    let id = |message: Value| ClaudeAgentSDKState::session_id_of(&message).map(str::to_owned);
    assert_eq!(id(json!({"subtype": "init", "session_id": "a"})).as_deref(), Some("a"));
    assert_eq!(id(json!({"subtype": "init", "data": {"session_id": "b"}})).as_deref(), Some("b"));
    assert_eq!(
        id(json!({"subtype": "init", "session_id": null, "data": {"session_id": "c"}})).as_deref(),
        Some("c")
    );
    for other in [
        json!({"subtype": "result", "session_id": "a"}),
        json!({"session_id": "a"}),
        json!({"subtype": "init"}),
        json!({"subtype": "init", "session_id": 7}),
        json!("init"),
    ] {
        assert_eq!(id(other.clone()), None, "{other}");
    }
}

#[test]
fn a_state_is_read_as_the_type_of_its_own_adapter_alone() {
    let captured = CapturedState::from_state(&Thread { thread: 7 }).unwrap();
    assert_eq!(captured.read::<Thread>().unwrap(), Some(Thread { thread: 7 }));
    assert_eq!(captured.read::<ClaudeAgentSDKState>().unwrap(), None);
    let other = CapturedState::from_json("threads", true, json!({"thread": "seven"}));
    let error = other.read::<Thread>().unwrap_err();
    assert!(
        error.to_string().starts_with(
            "the state of adapter `threads` cannot be used: this program does \
         not know its form"
        ),
        "{error}"
    );
}

#[test]
fn states_of_several_adapters_are_one_composite_and_read_back_whole() {
    let unknown = CapturedState::from_json("from_the_future", false, json!({"deep": [1, {"x": null}]}));
    let composite = CompositeAdapterState::new()
        .with("reviewer", CapturedState::from_state(&claude("abc123")).unwrap())
        .with("indexer", unknown.clone());
    let json = serde_json::to_string(&composite).unwrap();
    assert_eq!(serde_json::from_str::<CompositeAdapterState>(&json).unwrap(), composite);
    assert_eq!(composite.states["indexer"], unknown);
    assert!(composite.resumable(), "one part can be resumed");
    assert!(!CompositeAdapterState::new().with("indexer", unknown).resumable());

    let world = World::new();
    let session = world.session();
    let clock = Arc::clone(&world.clock) as Arc<dyn Clock>;
    let options = AdapterStateOptions::default();
    let mut capture = StateCapture::begin(&session, "one", "composite", &options, clock).unwrap();
    capture.offer(&composite, None, CaptureOccasion::Init).unwrap();
    let session = world.reopened(session);
    let found = find_resumable_state(&session, "composite").unwrap().unwrap();
    assert_eq!(found.state.read::<CompositeAdapterState>().unwrap(), Some(composite));
}

#[test]
fn a_state_of_an_adapter_that_nobody_here_knows_survives_record_and_reopening_and_json() {
    let world = World::new();
    let mut session = world.session();
    let odd = [
        json!({"adapter_type": "not the tag", "resumable": 3, "state": null}),
        json!({"text": "\u{0}\u{1b}[2J\u{1f980}", "": {"": []}, "n": [0, -1, 1.5, u64::MAX, i64::MIN, true, null]}),
        json!("only a text"),
        json!([]),
        Value::Null,
        json!({"long": "x".repeat(STATE_BYTES_MAX)}),
    ];
    for state in &odd {
        record(&session, "from_the_future", state.clone(), None);
    }
    for _ in 0..2 {
        session = world.reopened(session);
        let read = states(&session);
        assert_eq!(read.iter().map(|snapshot| snapshot.state.state().clone()).collect::<Vec<_>>(), odd);
        for snapshot in read {
            assert_eq!(
                (snapshot.state.adapter_type(), snapshot.state.resumable()),
                ("from_the_future", true)
            );
            let json = serde_json::to_string(&snapshot.state).unwrap();
            assert_eq!(serde_json::from_str::<CapturedState>(&json).unwrap(), snapshot.state);
        }
    }
}

#[test]
fn a_field_that_a_later_version_of_a_known_adapter_wrote_is_kept() {
    let world = World::new();
    let session = world.session();
    let mut state = serde_json::to_value(claude("abc123")).unwrap();
    state["compacted_at"] = json!("2026-01-01T12:00:00Z");
    record(&session, CLAUDE, state.clone(), None);
    let session = world.reopened(session);
    let found = find_resumable_state(&session, CLAUDE).unwrap().unwrap();
    assert_eq!(found.state.read::<ClaudeAgentSDKState>().unwrap(), Some(claude("abc123")));
    assert_eq!(found.state.state(), &state);
}

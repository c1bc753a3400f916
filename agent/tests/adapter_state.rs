//! States of adapters whose providers keep sessions of their own: captured as records, kept whoever reads them, and
//! resumed only where that is right.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use foldlog::conversation::NewAdapterState;
use foldlog::{Clock, FixedClock, SequenceNumber, Session, SessionTypes, Store, StoreOptions, escape};
use foldlog_agent::Error;
use foldlog_agent::adapter_state::{
    AdapterState, AdapterStateOptions, AdapterStateSnapshot, AdapterStateType, CaptureOccasion,
    CapturedState, CheckpointDecider, CheckpointStrategy, ClaudeAgentSDKState, CompositeAdapterState,
    OversizedState, ResumeCheck, ResumeContext, ResumeMode, ResumePlan, ResumeRefusal, ResumeValidation,
    STATE_BYTES_MAX, StateCapture, diff_states, find_resumable_state, plan_resume,
};
use serde_json::{Value, json};

const CLAUDE: &str = ClaudeAgentSDKState::ADAPTER_TYPE;
const OCCASIONS: [CaptureOccasion; 6] = [
    CaptureOccasion::Init,
    CaptureOccasion::Message,
    CaptureOccasion::Tool,
    CaptureOccasion::Complete,
    CaptureOccasion::Failed,
    CaptureOccasion::Demand,
];
/// 2026-01-01 12:00:00 UTC.
const NOON: i64 = 1_767_268_800;

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(NOON + seconds, 0).unwrap()
}

/// Holds a store whose clock stands at noon.
struct World {
    _folder: tempfile::TempDir,
    store: Store,
    clock: Arc<FixedClock>,
    types: SessionTypes,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(FixedClock::new(NOON * 1_000_000));
        let options = StoreOptions { clock: Arc::clone(&clock) as Arc<dyn Clock>, ..StoreOptions::default() };
        let store = Store::open_with(folder.path(), options).unwrap();
        World { _folder: folder, store, clock, types: SessionTypes::builder().build().unwrap() }
    }

    fn session(&self) -> Session {
        self.store.create(&self.types).unwrap()
    }

    fn reopened(&self, session: Session) -> Session {
        let id = session.id();
        session.close().unwrap();
        self.store.open_session(id, &self.types).unwrap()
    }

    fn capture<'a>(
        &self,
        session: &'a Session,
        evaluation: &str,
        options: &AdapterStateOptions,
    ) -> StateCapture<'a> {
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        StateCapture::begin(session, evaluation, CLAUDE, options, clock).unwrap()
    }
}

fn claude(session_id: &str) -> ClaudeAgentSDKState {
    let state = ClaudeAgentSDKState::new(session_id, "demo:review", at(-60));
    ClaudeAgentSDKState { last_activity_at: at(0), workspace_path: Some("/work".into()), ..state }
}

fn complete(session_id: &str) -> ClaudeAgentSDKState {
    ClaudeAgentSDKState { is_complete: true, ..claude(session_id) }
}

fn context() -> ResumeContext {
    ResumeContext { workspace_path: Some("/work".into()), prompt_name: "demo:review".into(), now: at(30) }
}

fn on_every_occasion() -> AdapterStateOptions {
    AdapterStateOptions {
        checkpoint: Some(CheckpointStrategy::Periodic(Duration::ZERO)),
        ..Default::default()
    }
}

fn states(session: &Session) -> Vec<AdapterStateSnapshot> {
    session.adapter_states().unwrap().into_iter().map(AdapterStateSnapshot::from).collect()
}

fn snapshot(state: CapturedState) -> AdapterStateSnapshot {
    AdapterStateSnapshot {
        sequence: 7.into(),
        state,
        captured_at: at(0),
        evaluation_id: "one".into(),
        supersedes: None,
        entry: None,
        occasion: "init".into(),
        is_live: true,
    }
}

fn record(
    session: &Session,
    adapter: &str,
    state: Value,
    supersedes: Option<SequenceNumber>,
) -> SequenceNumber {
    let new = NewAdapterState {
        evaluation_id: "foreign".into(),
        adapter: adapter.into(),
        resumable: true,
        state,
        supersedes,
        entry: None,
        occasion: "init".into(),
    };
    session.record_adapter_state(&new).unwrap()
}

/// Does what a recovery does: resumes the provider's session if there is one, else begins a fresh one.
fn recover(session: &Session) -> Option<String> {
    let found = find_resumable_state(session, CLAUDE).unwrap()?;
    found.state.read::<ClaudeAgentSDKState>().unwrap().map(|state| state.session_id)
}

// ---- The states themselves ----

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

/// Another adapter of the host, with a type of its own.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Thread {
    thread: u64,
}

impl AdapterState for Thread {
    fn adapter_type(&self) -> &str {
        Self::ADAPTER_TYPE
    }

    fn resumable(&self) -> bool {
        true
    }
}

impl AdapterStateType for Thread {
    const ADAPTER_TYPE: &'static str = "threads";
}

#[test]
fn a_state_is_read_as_the_type_of_its_own_adapter_alone() {
    let captured = CapturedState::of(&Thread { thread: 7 }).unwrap();
    assert_eq!(captured.read::<Thread>().unwrap(), Some(Thread { thread: 7 }));
    assert_eq!(captured.read::<ClaudeAgentSDKState>().unwrap(), None);
    let other = CapturedState::untyped("threads", true, json!({"thread": "seven"}));
    let error = other.read::<Thread>().unwrap_err();
    assert!(error.to_string().starts_with("the state of adapter `threads`: it has another form"), "{error}");
}

#[test]
fn states_of_several_adapters_are_one_composite_and_read_back_whole() {
    let unknown = CapturedState::untyped("from_the_future", false, json!({"deep": [1, {"x": null}]}));
    let composite = CompositeAdapterState::new()
        .with("reviewer", CapturedState::of(&claude("abc123")).unwrap())
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

// ---- Capturing ----

#[test]
fn a_state_is_captured_when_the_session_is_known_and_at_the_end() {
    let world = World::new();
    let session = world.session();
    let mut capture = world.capture(&session, "one", &AdapterStateOptions::default());
    let first = capture.offer(&claude("abc123"), None, CaptureOccasion::Init).unwrap().unwrap();
    assert_eq!(capture.offer(&claude("abc123"), None, CaptureOccasion::Tool).unwrap(), None);
    capture.offer(&complete("abc123"), Some("message-9"), CaptureOccasion::Complete).unwrap();

    let [init, end] = &states(&session)[..] else { panic!("two captures") };
    assert_eq!((init.sequence, init.supersedes, init.occasion.as_str()), (first, None, "init"));
    assert_eq!((end.supersedes, end.occasion.as_str()), (Some(first), "complete"));
    assert_eq!(
        (end.entry.as_deref(), end.captured_at, end.evaluation_id.as_str()),
        (Some("message-9"), at(0), "one")
    );
}

#[test]
fn captures_survive_a_rollback_and_a_new_process_and_their_chain_can_be_walked() {
    let world = World::new();
    let session = world.session();
    let before = session.snapshot(Default::default()).unwrap();
    let mut capture = world.capture(&session, "one", &on_every_occasion());
    for occasion in [CaptureOccasion::Init, CaptureOccasion::Tool, CaptureOccasion::Tool] {
        capture.offer(&claude("abc123"), None, occasion).unwrap();
    }
    session.rollback(&before).unwrap();
    let session = world.reopened(session);
    let read = states(&session);
    let chain: Vec<_> = read.iter().map(|snapshot| snapshot.supersedes).collect();
    assert_eq!(chain, [None, Some(read[0].sequence), Some(read[1].sequence)]);
    assert!(read.iter().all(|snapshot| !snapshot.is_live), "but they say that a rollback abandoned them");
}

#[test]
fn another_process_goes_on_with_the_chain_of_its_evaluation() {
    let world = World::new();
    let session = world.session();
    world
        .capture(&session, "one", &on_every_occasion())
        .offer(&claude("a"), None, CaptureOccasion::Init)
        .unwrap();
    world
        .capture(&session, "two", &on_every_occasion())
        .offer(&claude("b"), None, CaptureOccasion::Init)
        .unwrap();
    let session = world.reopened(session);
    world
        .capture(&session, "one", &on_every_occasion())
        .offer(&claude("a"), None, CaptureOccasion::Tool)
        .unwrap();
    let read = states(&session);
    assert_eq!(read[2].supersedes, Some(read[0].sequence));
}

#[test]
fn a_host_that_captures_no_states_has_no_record() {
    let world = World::new();
    let session = world.session();
    let options = AdapterStateOptions { capture_state: false, ..on_every_occasion() };
    let mut capture = world.capture(&session, "one", &options);
    for occasion in OCCASIONS {
        assert_eq!(capture.offer(&claude("abc123"), None, occasion).unwrap(), None);
    }
    assert_eq!(states(&session), []);
    assert!(AdapterStateOptions::default().capture_state, "unless it says so, it captures");
    assert!(!AdapterStateOptions::default().auto_resume, "and resumes only when it is asked to");
}

#[test]
fn a_state_that_is_too_large_is_refused_unless_the_host_has_it_stored_apart() {
    let world = World::new();
    let session = world.session();
    let bytes_around = serde_json::to_value(claude("")).unwrap().to_string().len();
    let sized = |bytes: usize| claude(&"x".repeat(bytes - bytes_around));

    let mut capture = world.capture(&session, "one", &on_every_occasion());
    capture.offer(&sized(STATE_BYTES_MAX), None, CaptureOccasion::Init).unwrap();
    let error = capture.offer(&sized(STATE_BYTES_MAX + 1), None, CaptureOccasion::Tool).unwrap_err();
    assert!(matches!(error, Error::StateTooLarge { bytes: 65_537, max: 65_536, .. }), "{error}");
    assert!(error.to_string().contains("keep ids in it and the rest elsewhere"), "{error}");
    assert_eq!(states(&session).len(), 1, "nothing was recorded");

    let options = AdapterStateOptions { oversized: OversizedState::Reference, ..on_every_occasion() };
    let large = sized(3 * STATE_BYTES_MAX);
    world.capture(&session, "one", &options).offer(&large, None, CaptureOccasion::Tool).unwrap();
    let session = world.reopened(session);
    let found = find_resumable_state(&session, CLAUDE).unwrap().unwrap();
    assert_eq!(found.state.read::<ClaudeAgentSDKState>().unwrap(), Some(large));
    let objects = std::fs::read_dir(session.dir().join("objects")).unwrap().count();
    assert!(objects > 0, "the record refers to an object");
}

// ---- When states are captured ----

fn due(strategy: Option<CheckpointStrategy>) -> Vec<CaptureOccasion> {
    let decider = CheckpointDecider::new(strategy, Arc::new(FixedClock::new(0)));
    OCCASIONS.into_iter().filter(|occasion| decider.is_due(*occasion)).collect()
}

#[test]
fn each_strategy_captures_exactly_when_its_name_says() {
    use CaptureOccasion::{Complete, Demand, Failed, Init, Tool};
    assert_eq!(due(None), [Init, Complete, Failed, Demand]);
    assert_eq!(due(Some(CheckpointStrategy::OnComplete)), [Complete, Failed, Demand]);
    assert_eq!(due(Some(CheckpointStrategy::OnToolUse)), [Tool, Demand]);
    assert_eq!(due(Some(CheckpointStrategy::OnDemand)), [Demand]);
    assert_eq!(due(Some(CheckpointStrategy::Periodic(Duration::from_secs(1)))), [Demand]);
}

#[test]
fn a_periodic_capture_is_due_when_the_hosts_clock_says_so() {
    let clock = Arc::new(FixedClock::new(0));
    let strategy = CheckpointStrategy::Periodic(Duration::from_secs(10));
    let mut decider = CheckpointDecider::new(Some(strategy), Arc::clone(&clock) as Arc<dyn Clock>);
    let due = |decider: &CheckpointDecider| decider.is_due(CaptureOccasion::Message);
    clock.advance_us(9_999_999);
    assert!(!due(&decider));
    clock.advance_us(1);
    assert!(due(&decider), "10 s after the beginning");
    decider.captured();
    assert!(!due(&decider));
    clock.advance_us(-60_000_000);
    assert!(!due(&decider), "a clock that was set back is none that passed the time");
    clock.advance_us(70_000_000);
    assert!(due(&decider), "10 s after the last capture");
}

#[test]
fn the_end_is_captured_once_anything_was_so_that_no_completed_session_looks_resumable() {
    let world = World::new();
    for strategy in [CheckpointStrategy::OnToolUse, CheckpointStrategy::OnDemand] {
        let session = world.session();
        let options = AdapterStateOptions { checkpoint: Some(strategy), ..Default::default() };
        let mut capture = world.capture(&session, "one", &options);
        assert_eq!(capture.offer(&claude("abc123"), None, CaptureOccasion::Failed).unwrap(), None);
        let occasions = [CaptureOccasion::Tool, CaptureOccasion::Demand, CaptureOccasion::Complete];
        for occasion in occasions {
            let state =
                if occasion == CaptureOccasion::Complete { complete("abc123") } else { claude("abc123") };
            capture.offer(&state, None, occasion).unwrap();
        }
        assert_eq!(states(&session).last().unwrap().occasion, "complete");
        assert_eq!(recover(&session), None);
    }
}

// ---- Finding what can be resumed ----

#[test]
fn a_worker_that_crashed_is_resumed_by_the_id_that_it_captured_first() {
    let world = World::new();
    let session = world.session();
    assert_eq!(recover(&session), None, "without a state the recovery begins afresh");
    let mut capture = world.capture(&session, "one", &AdapterStateOptions::default());
    capture.offer(&claude("abc123"), None, CaptureOccasion::Init).unwrap();
    let session = world.reopened(session);
    assert_eq!(recover(&session).as_deref(), Some("abc123"));
}

#[test]
fn the_latest_resumable_state_of_the_adapter_is_found() {
    let world = World::new();
    let session = world.session();
    for (evaluation, id) in [("one", "a"), ("two", "b"), ("three", "c")] {
        let mut capture = world.capture(&session, evaluation, &AdapterStateOptions::default());
        capture.offer(&claude(id), None, CaptureOccasion::Init).unwrap();
        if evaluation == "three" {
            capture.offer(&complete(id), None, CaptureOccasion::Complete).unwrap();
        }
    }
    record(&session, "threads", json!({"thread": 7}), None);
    assert_eq!(recover(&session).as_deref(), Some("b"), "the latest that did not complete");
    assert_eq!(find_resumable_state(&session, "nobody").unwrap(), None);
    let thread = find_resumable_state(&session, "threads").unwrap().unwrap();
    assert_eq!(thread.state.read::<Thread>().unwrap(), Some(Thread { thread: 7 }));
}

#[test]
fn a_completed_session_is_not_resumed_through_an_older_capture_of_it() {
    let world = World::new();
    let session = world.session();
    let mut capture = world.capture(&session, "one", &on_every_occasion());
    for occasion in [CaptureOccasion::Init, CaptureOccasion::Tool] {
        capture.offer(&claude("abc123"), None, occasion).unwrap();
    }
    assert_eq!(recover(&session).as_deref(), Some("abc123"));
    capture.offer(&complete("abc123"), None, CaptureOccasion::Complete).unwrap();
    assert_eq!(recover(&session), None);
    assert_eq!(recover(&world.reopened(session)), None);
}

#[test]
fn an_evaluation_that_resumed_a_session_replaces_its_capture_also_in_a_copy_of_it() {
    let world = World::new();
    let session = world.session();
    let mut capture = world.capture(&session, "one", &AdapterStateOptions::default());
    capture.offer(&claude("original"), None, CaptureOccasion::Init).unwrap();
    let found = find_resumable_state(&session, CLAUDE).unwrap().unwrap();

    let mut resumed = world.capture(&session, "two", &AdapterStateOptions::default()).resuming(&found);
    resumed.offer(&claude("copy"), None, CaptureOccasion::Init).unwrap();
    assert_eq!(recover(&session).as_deref(), Some("copy"));
    resumed.offer(&complete("copy"), None, CaptureOccasion::Complete).unwrap();
    assert_eq!(recover(&session), None, "the original is not begun again behind its own copy");
}

#[test]
fn a_record_that_claims_to_replace_itself_or_a_later_one_replaces_nothing() {
    let world = World::new();
    let session = world.session();
    let first = record(&session, "threads", json!({"thread": 1}), Some(99.into()));
    let second = first + 1;
    assert_eq!(record(&session, "threads", json!({"thread": 2}), Some(second)), second);
    let found = find_resumable_state(&session, "threads").unwrap().unwrap();
    assert_eq!(found.sequence, second);
}

// ---- Whether it may be resumed here and now ----

fn refused(
    validation: ResumeValidation,
    state: ClaudeAgentSDKState,
    context: ResumeContext,
) -> Option<ResumeRefusal> {
    let snapshot = snapshot(CapturedState::of(&state).unwrap());
    validation.check(&snapshot, &context, Duration::from_secs(3600)).err()
}

#[test]
fn the_strict_validation_refuses_another_folder_another_prompt_and_what_is_too_old_and_names_both_values() {
    let strict = |state, context| refused(ResumeValidation::Strict, state, context);
    assert_eq!(strict(claude("abc123"), context()), None);

    let elsewhere = ResumeContext { workspace_path: Some("/other".into()), ..context() };
    let refusal = strict(claude("abc123"), elsewhere).unwrap();
    assert_eq!(refusal.check, ResumeCheck::WorkspacePath);
    assert_eq!(
        refusal.to_string(),
        "the state of adapter `claude_agent_sdk` in record 7 fails the check `workspace_path`: it says `/work`, and \
         expected is `/other`: resume in the recorded folder, or validate less strictly"
    );
    let nowhere = ResumeContext { workspace_path: None, ..context() };
    let refusal = strict(claude("abc123"), nowhere).unwrap();
    assert_eq!((refusal.recorded.as_str(), refusal.expected.as_str()), ("`/work`", "nothing"));

    let other = ResumeContext { prompt_name: "demo:write".into(), ..context() };
    let refusal = strict(claude("abc123"), other).unwrap();
    assert_eq!(refusal.check, ResumeCheck::PromptName);
    assert_eq!((refusal.recorded.as_str(), refusal.expected.as_str()), ("`demo:review`", "`demo:write`"));

    let hour = ResumeContext { now: at(3600), ..context() };
    assert_eq!(strict(claude("abc123"), hour), None, "at the limit");
    let late = ResumeContext { now: at(3601), ..context() };
    let refusal = strict(claude("abc123"), late).unwrap();
    assert_eq!(refusal.check, ResumeCheck::Recency);
    assert_eq!(refusal.recorded, "last active at 2026-01-01T12:00:00+00:00");
    assert_eq!(refusal.expected, "at most 3600 s before 2026-01-01T13:00:01+00:00");

    let ahead = ResumeContext { now: at(-3600), ..context() };
    assert_eq!(strict(claude("abc123"), ahead), None, "a time ahead is another clock's");
    let slashed = ResumeContext { workspace_path: Some("/work/".into()), ..context() };
    assert_eq!(strict(claude("abc123"), slashed), None, "it is the same folder");
}

#[test]
fn the_relaxed_validation_asks_only_for_an_id_and_a_session_that_can_be_resumed() {
    let elsewhere =
        || ResumeContext { workspace_path: None, prompt_name: String::new(), now: at(1_000_000_000) };
    for validation in [ResumeValidation::Relaxed, ResumeValidation::Strict] {
        let check = |state| refused(validation, state, elsewhere()).map(|refusal| refusal.check);
        assert_eq!(check(claude("")), Some(ResumeCheck::SessionId));
        assert_eq!(check(complete("abc123")), Some(ResumeCheck::Resumable));
    }
    assert_eq!(refused(ResumeValidation::Relaxed, claude("abc123"), elsewhere()), None);
}

#[test]
fn without_validation_any_state_is_tried() {
    assert_eq!(refused(ResumeValidation::None, complete(""), context()), None);
    assert_eq!(ResumeValidation::default(), ResumeValidation::Strict);
}

#[test]
fn a_state_that_does_not_say_what_is_checked_is_refused_by_the_strict_validation_alone() {
    let snapshot = snapshot(CapturedState::untyped("threads", true, json!({"session_id": "7"})));
    let check = |validation: ResumeValidation| validation.check(&snapshot, &context(), Duration::MAX);
    assert_eq!(check(ResumeValidation::Strict).unwrap_err().recorded, "nothing");
    assert_eq!(check(ResumeValidation::Relaxed), Ok(()));
}

#[test]
fn of_a_composite_each_part_that_can_be_resumed_is_validated() {
    let composite = |part: ClaudeAgentSDKState| {
        let composite = CompositeAdapterState::new()
            .with("done", CapturedState::of(&complete("x")).unwrap())
            .with("part", CapturedState::of(&part).unwrap());
        snapshot(CapturedState::of(&composite).unwrap())
    };
    let check = |part| ResumeValidation::Strict.check(&composite(part), &context(), Duration::MAX);
    assert_eq!(check(claude("abc123")), Ok(()));
    let elsewhere = ClaudeAgentSDKState { workspace_path: None, ..claude("abc123") };
    assert_eq!(check(elsewhere).unwrap_err().check, ResumeCheck::WorkspacePath);
    assert_eq!(check(complete("abc123")).unwrap_err().check, ResumeCheck::Resumable);
}

#[test]
fn a_refusal_shows_nothing_of_a_state_unescaped() {
    let hostile = "a\u{1b}[2J\u{7}\r\n\u{9b}\u{202e}z";
    let state = ClaudeAgentSDKState { workspace_path: Some(hostile.into()), ..claude("abc123") };
    let refusal = refused(ResumeValidation::Strict, state, context()).unwrap();
    let error = Error::from(Box::new(refusal));
    assert!(!error.to_string().contains(escape::is_escaped), "{error:?}");
    let (before, after) = (
        CapturedState::untyped(hostile, true, json!({hostile: hostile})),
        CapturedState::untyped("x", true, json!({})),
    );
    let diff = diff_states(&snapshot(before), &snapshot(after)).to_string();
    assert!(!diff.replace('\n', "").contains(escape::is_escaped), "{diff:?}");
}

// ---- Going on ----

fn captured(world: &World, entries: &[&str]) -> Session {
    let session = world.session();
    let mut capture = world.capture(&session, "one", &on_every_occasion());
    for entry in entries {
        capture.offer(&claude("abc123"), Some(entry), CaptureOccasion::Message).unwrap();
    }
    session
}

#[test]
fn a_session_is_copied_by_default_and_changed_only_where_the_host_says_so() {
    let world = World::new();
    let session = captured(&world, &["m1", "m2"]);
    let plan =
        |options: &AdapterStateOptions| plan_resume(&session, "two", CLAUDE, options, &context()).unwrap();
    let ResumePlan::Resume { snapshot, mode, at_entry } = plan(&AdapterStateOptions::default()) else {
        panic!()
    };
    assert_eq!((snapshot.entry.as_deref(), mode, at_entry), (Some("m2"), ResumeMode::Fork, None));
    let options = AdapterStateOptions { resume_mode: ResumeMode::Continue, ..Default::default() };
    assert!(matches!(plan(&options), ResumePlan::Resume { mode: ResumeMode::Continue, .. }));
}

#[test]
fn a_resume_that_is_refused_is_an_error_and_begins_nothing_afresh() {
    let world = World::new();
    let session = captured(&world, &["m1"]);
    let elsewhere = ResumeContext { workspace_path: None, ..context() };
    let error = plan_resume(&session, "two", CLAUDE, &Default::default(), &elsewhere).unwrap_err();
    let Error::ResumeRefused(refusal) = &error else { panic!("{error}") };
    assert_eq!(refusal.check, ResumeCheck::WorkspacePath);
    assert_eq!(states(&session).len(), 1, "and nothing is recorded");
    assert_eq!(recover(&session).as_deref(), Some("abc123"), "it can be resumed where it belongs");
}

/// A resume that fails and silently starts a new session loses what was said (github/app#2309): here the log says it.
#[test]
fn an_expired_session_is_begun_afresh_and_the_log_says_why() {
    let world = World::new();
    let session = captured(&world, &["m1"]);
    let day_later = ResumeContext { now: at(86_401), ..context() };
    let plan = plan_resume(&session, "two", CLAUDE, &Default::default(), &day_later).unwrap();
    let ResumePlan::Fresh { refusal: Some(refusal) } = plan else { panic!("{plan:?}") };
    assert_eq!(refusal.check, ResumeCheck::Recency);

    let session = world.reopened(session);
    let read = states(&session);
    let expired = read.last().unwrap();
    assert_eq!((expired.occasion.as_str(), expired.supersedes), ("expired", Some(read[0].sequence)));
    assert_eq!((expired.evaluation_id.as_str(), expired.state.resumable()), ("two", false));
    assert_eq!(expired.state.state(), read[0].state.state(), "what was expired stays to be read");
    let again = plan_resume(&session, "two", CLAUDE, &Default::default(), &context()).unwrap();
    assert_eq!(again, ResumePlan::Fresh { refusal: None });
}

#[test]
fn a_session_that_the_provider_says_is_expired_is_not_tried_again() {
    let world = World::new();
    let session = captured(&world, &["m1"]);
    let found = find_resumable_state(&session, CLAUDE).unwrap().unwrap();
    let error = Error::SessionExpired { adapter: CLAUDE.into(), session_id: "abc123".into() };
    assert!(error.to_string().contains("no longer has session `abc123`: record that it expired"), "{error}");

    let mut capture = world.capture(&session, "two", &AdapterStateOptions::default()).resuming(&found);
    capture.expired(&found).unwrap();
    assert_eq!(recover(&session), None);
    capture.offer(&claude("fresh"), None, CaptureOccasion::Init).unwrap();
    assert_eq!(states(&session).last().unwrap().supersedes, None, "the fresh session has a chain of its own");
    assert_eq!(recover(&session).as_deref(), Some("fresh"));
}

#[test]
fn a_capture_that_a_rollback_abandoned_is_refused_strictly_and_else_copied_where_the_log_went_back_to() {
    let world = World::new();
    let session = captured(&world, &["m1"]);
    let before = session.snapshot(Default::default()).unwrap();
    let mut capture = world.capture(&session, "one", &on_every_occasion());
    capture.offer(&claude("abc123"), Some("m2"), CaptureOccasion::Message).unwrap();
    session.rollback(&before).unwrap();

    let error = plan_resume(&session, "two", CLAUDE, &Default::default(), &context()).unwrap_err();
    let Error::ResumeRefused(refusal) = &error else { panic!("{error}") };
    assert_eq!(refusal.check, ResumeCheck::LivePath);
    let relaxed = AdapterStateOptions {
        resume_validation: ResumeValidation::Relaxed,
        resume_mode: ResumeMode::Continue,
        ..Default::default()
    };
    let plan = plan_resume(&session, "two", CLAUDE, &relaxed, &context()).unwrap();
    let ResumePlan::Resume { snapshot, mode, at_entry } = plan else { panic!("{plan:?}") };
    assert_eq!(
        (at_entry.as_deref(), mode),
        (Some("m1"), ResumeMode::Fork),
        "going on would repeat what was rolled back"
    );
    assert!(snapshot.is_live);
}

#[test]
fn an_abandoned_session_without_an_entry_to_go_back_to_is_begun_afresh_and_the_log_says_why() {
    let world = World::new();
    let session = world.session();
    let before = session.snapshot(Default::default()).unwrap();
    let mut capture = world.capture(&session, "one", &on_every_occasion());
    capture.offer(&claude("abc123"), Some("m1"), CaptureOccasion::Message).unwrap();
    session.rollback(&before).unwrap();

    let relaxed = AdapterStateOptions { resume_validation: ResumeValidation::Relaxed, ..Default::default() };
    let plan = plan_resume(&session, "two", CLAUDE, &relaxed, &context()).unwrap();
    let ResumePlan::Fresh { refusal: Some(refusal) } = plan else { panic!("{plan:?}") };
    assert_eq!(refusal.check, ResumeCheck::LivePath);
    assert_eq!(states(&session).last().unwrap().occasion, "abandoned");
    assert_eq!(recover(&session), None);
}

#[test]
fn a_diff_names_each_field_that_changed() {
    let before = snapshot(CapturedState::of(&claude("abc123")).unwrap());
    let end = ClaudeAgentSDKState { message_count: 4, last_activity_at: at(5), ..complete("abc123") };
    let after = snapshot(CapturedState::of(&end).unwrap());
    assert!(diff_states(&before, &before).is_empty());
    assert_eq!(
        diff_states(&before, &after).to_string(),
        "/resumable: true -> false\n\
         /state/is_complete: false -> true\n\
         /state/last_activity_at: \"2026-01-01T12:00:00Z\" -> \"2026-01-01T12:00:05Z\"\n\
         /state/message_count: 0 -> 4"
    );
    let nested = |state: Value| snapshot(CapturedState::untyped("x", true, state));
    let diff =
        diff_states(&nested(json!({"a": {"b/c": 1, "~": 2}})), &nested(json!({"a": {"~": 3}, "n": null})));
    let paths: Vec<_> = diff.changes.iter().map(|change| change.path.as_str()).collect();
    assert_eq!(paths, ["/state/a/b~1c", "/state/a/~0", "/state/n"]);
    assert_eq!((&diff.changes[0].after, &diff.changes[2].before), (&None, &None));
    assert_eq!(diff.changes[2].after, Some(Value::Null), "null is a value");
}

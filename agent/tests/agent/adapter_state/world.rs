//! Shared helpers: a store with a stopped clock, sessions in it, and states.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use foldlog::conversation::NewAdapterState;
use foldlog::{Clock, FixedClock, SequenceNumber, Session, SessionTypes, Store, StoreOptions};
use foldlog_agent::adapter_state::*;
use serde_json::Value;

pub(crate) const CLAUDE: &str = ClaudeAgentSDKState::ADAPTER_TYPE;
pub(crate) const OCCASIONS: [CaptureOccasion; 6] = [
    CaptureOccasion::Init,
    CaptureOccasion::Message,
    CaptureOccasion::Tool,
    CaptureOccasion::Complete,
    CaptureOccasion::Failed,
    CaptureOccasion::Demand,
];
/// 2026-01-01 12:00:00 UTC.
pub(crate) const NOON: i64 = 1_767_268_800;

pub(crate) fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(NOON + seconds, 0).unwrap()
}

/// A store whose clock is stopped at noon.
pub(crate) struct World {
    _directory: Option<tempfile::TempDir>,
    pub(crate) store: Store,
    pub(crate) clock: Arc<FixedClock>,
    pub(crate) types: SessionTypes,
}

impl World {
    pub(crate) fn new() -> World {
        let directory = tempfile::tempdir().unwrap();
        let world = World::at(directory.path());
        World { _directory: Some(directory), ..world }
    }

    /// Opens the store in a directory that outlives this world.
    pub(crate) fn at(directory: &Path) -> World {
        let clock = Arc::new(FixedClock::new(NOON * 1_000_000));
        let options = StoreOptions { clock: Arc::clone(&clock) as Arc<dyn Clock>, ..StoreOptions::default() };
        let store = Store::open_with(directory, options).unwrap();
        World { _directory: None, store, clock, types: SessionTypes::builder().build().unwrap() }
    }

    pub(crate) fn session(&self) -> Session {
        self.store.create(&self.types).unwrap()
    }

    pub(crate) fn reopened(&self, session: Session) -> Session {
        let id = session.id();
        session.close().unwrap();
        self.store.open_session(id, &self.types).unwrap()
    }

    pub(crate) fn capture<'a>(
        &self,
        session: &'a Session,
        evaluation: &str,
        options: &AdapterStateOptions,
    ) -> StateCapture<'a> {
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        StateCapture::begin(session, evaluation, CLAUDE, options, clock).unwrap()
    }
}

pub(crate) fn claude(session_id: &str) -> ClaudeAgentSDKState {
    let state = ClaudeAgentSDKState::new(session_id, "demo:review", at(-60));
    ClaudeAgentSDKState { last_activity_at: at(0), workspace_path: Some("/work".into()), ..state }
}

pub(crate) fn complete(session_id: &str) -> ClaudeAgentSDKState {
    ClaudeAgentSDKState { is_complete: true, ..claude(session_id) }
}

pub(crate) fn context() -> ResumeContext {
    ResumeContext {
        workspace_path: Some("/work".into()),
        moved_from: Vec::new(),
        prompt_name: "demo:review".into(),
        now: at(30),
    }
}

pub(crate) fn on_every_occasion() -> AdapterStateOptions {
    AdapterStateOptions {
        checkpoint: Some(CheckpointStrategy::Periodic(Duration::ZERO)),
        ..Default::default()
    }
}

pub(crate) fn states(session: &Session) -> Vec<AdapterStateSnapshot> {
    session.conversation().adapter_states().unwrap().into_iter().map(AdapterStateSnapshot::from).collect()
}

pub(crate) fn snapshot(state: CapturedState) -> AdapterStateSnapshot {
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

pub(crate) fn record(
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
    session.conversation().record_adapter_state(&new).unwrap()
}

/// Recovers like a host: resumes the provider's session if there is one, otherwise starts a new
/// one.
pub(crate) fn recover(session: &Session) -> Option<String> {
    let found = find_resumable_state(session, CLAUDE).unwrap()?;
    found.state.read::<ClaudeAgentSDKState>().unwrap().map(|state| state.session_id)
}

/// Another adapter of the host, with a type of its own.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Thread {
    pub(crate) thread: u64,
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

//! Shows when states are captured, and which records that writes.

use std::sync::Arc;
use std::time::Duration;

use foldlog::{Clock, FixedClock};
use foldlog_agent::Error;
use foldlog_agent::adapter_state::*;

use super::world::*;

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
    assert!(error.to_string().contains("keep only ids in it"), "{error}");
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
    decider.note_capture();
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

//! Logs and positions with which a replay cannot begin, and hosts that do what a replay does not know.

use foldlog::audit::LogReader;
use foldlog::replay::Replay;
use foldlog::tools::{ExecuteOptions, ToolCall, ToolRegistry, ToolRunner};
use foldlog::{Error, ExecutionState, ResourceRegistry, Session, SessionTypes};

use super::host::{Noted, Stored, types};

#[test]
fn a_replay_cannot_begin_within_a_call_nor_outside_of_the_log() {
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build().unwrap());
    let runner = ToolRunner::new(state, ToolRegistry::new());
    let call = ToolCall::new("elsewhere", "{}");
    let operation = runner.begin(&call, &ExecuteOptions::default()).unwrap();
    let within = session.position().unwrap();
    operation.context().session().dispatch(Noted::new(1, "within")).unwrap();
    operation.abort("enough").unwrap();
    let log = LogReader::open(session.dir()).unwrap();
    let nothing = |_: Session| ();
    let error = Replay::of(&log, &types()).from(within).run(nothing).unwrap_err();
    assert!(matches!(error, Error::InsideTransaction { position, .. } if position == within), "{error}");
    let error = Replay::of(&log, &types()).from(1_000_u64).run(nothing).unwrap_err();
    assert!(matches!(error, Error::NoSuchPosition { .. }), "{error}");
}

#[test]
fn a_fork_is_replayed_from_its_own_first_record_on() {
    let stored = Stored::new();
    let store = stored.store();
    let parent = store.create(&types()).unwrap();
    parent.dispatch(Noted::new(1, "of the parent")).unwrap();
    let at = parent.position().unwrap();
    let fork = store.fork(parent.id(), at, &types(), foldlog::SessionOptions::default()).unwrap();
    let host = |session: Session| session.dispatch(Noted::new(2, "of the fork")).map(drop);
    host(fork.clone()).unwrap();
    let log = LogReader::open(fork.dir()).unwrap();
    let report = Replay::of(&log, &types()).run(host).unwrap();
    assert_eq!((report.compared, report.records), (1, 1));
    let error = Replay::of(&log, &types()).from(at - 1).run(host).unwrap_err();
    assert!(matches!(error, Error::NoSuchPosition { .. }), "{error}");
}

/// The log goes on while it is replayed; the replay ends where it was read.
#[test]
fn a_session_that_is_still_written_is_replayed_to_where_it_was_read() {
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    session.dispatch(Noted::new(1, "read")).unwrap();
    let log = LogReader::open(session.dir()).unwrap();
    session.dispatch(Noted::new(2, "behind it")).unwrap();
    let mut ended = None;
    let host = |again: Session| {
        again.dispatch(Noted::new(1, "read")).unwrap();
        ended = again.dispatch(Noted::new(2, "behind it")).err();
    };
    let report = Replay::of(&log, &types()).run(host).unwrap();
    assert_eq!(report.compared, 1);
    assert!(matches!(ended, Some(Error::ReplayEnded { .. })));
}

#[test]
fn a_replay_without_the_types_of_its_log_names_what_is_missing() {
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    session.dispatch(Noted::new(1, "typed")).unwrap();
    let log = LogReader::open(session.dir()).unwrap();
    let nothing = SessionTypes::builder().build().unwrap();
    let error = Replay::of(&log, &nothing).run(|_| ()).unwrap_err();
    assert!(matches!(&error, Error::NotRegistered { event, .. } if event == "noted"), "{error}");
}

#[test]
fn names_of_observations_that_are_the_engines_own_are_refused_and_so_is_what_cannot_be_read_again() {
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    let position = session.position();
    let error = session.observe("foldlog.now", || 1).unwrap_err();
    assert!(error.to_string().contains("the engine's own"), "{error}");
    assert_eq!(session.position(), position);
}

/// What a host does for a call that runs elsewhere would be done again, so it has to be asked for.
#[test]
fn a_call_that_runs_elsewhere_is_begun_in_a_replay_only_where_tools_run_again() {
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    let host = |session: Session, text: &str| -> foldlog::Result<foldlog::tools::ToolReport> {
        let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
        let runner = ToolRunner::new(state, ToolRegistry::new());
        let operation = runner.begin(&ToolCall::new("elsewhere", "{}"), &ExecuteOptions::default())?;
        operation.context().session().dispatch(Noted::new(2, text))?;
        let report = operation.end(foldlog::tools::ToolResult::ok("done", 2_u64))?;
        // One that is let go of.
        drop(runner.begin(&ToolCall::new("dropped", "{}"), &ExecuteOptions::default())?);
        session.dispatch(Noted::new(4, "behind it"))?;
        Ok(report)
    };
    host(session.clone(), "within").unwrap();
    let log = LogReader::open(session.dir()).unwrap();
    let mut refused = None;
    let _ = Replay::of(&log, &types()).run(|session| refused = host(session, "within").err());
    assert!(refused.unwrap().to_string().contains("no tool runs"));
    let replay = Replay::of(&log, &types()).mode(foldlog::replay::ReplayMode::RunTools);
    let mut report = None;
    replay.run(|session| report = Some(host(session, "within").unwrap())).unwrap();
    assert!(report.unwrap().success);
    let error = replay.run(|session| drop(host(session, "changed"))).unwrap_err();
    assert!(error.to_string().contains("lane of the run begun at"), "{error}");
}

//! Logs and positions from which a replay cannot start, and hosts that do things unknown to a
//! replay.

use std::sync::Arc;
use std::time::{Duration, Instant};

use foldlog::inspect::LogReader;
use foldlog::replay::Replay;
use foldlog::tools::{
    ExecuteOptions, Question, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{
    Clock, Error, Event, ExecutionState, FixedClock, ResourceRegistry, Session, SessionTypes, Slice,
};
use foldlog_test_support::replayed_host::{Diary, Noted};
use serde::{Deserialize, Serialize};

use super::host::{Nothing, Stored, types};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Rang(u64);

impl Event for Rang {
    const NAME: &'static str = "rang";
}

struct Rings;

impl Slice for Rings {
    const NAME: &'static str = "rings";
    type Item = Rang;
}

#[test]
fn a_replay_cannot_begin_within_a_call_nor_outside_of_the_log() {
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build().unwrap());
    let runner = ToolRunner::new(state, ToolRegistry::new());
    let call = ToolCall::new("elsewhere", "{}");
    let operation = runner.begin(&call, &ExecuteOptions::default()).unwrap();
    let within = session.log().position().unwrap();
    operation.context().session().dispatch(Noted::new(1, "within")).unwrap();
    operation.abort("enough").unwrap();
    let log = LogReader::open(session.dir()).unwrap();
    let nothing = |_: Session| ();
    let error = Replay::new(&log, &types()).from(within).run(nothing).unwrap_err();
    assert!(matches!(error, Error::InsideTransaction { position, .. } if position == within), "{error}");
    let error = Replay::new(&log, &types()).from(1_000_u64).run(nothing).unwrap_err();
    assert!(matches!(error, Error::NoSuchPosition { .. }), "{error}");
}

/// A replay whose end was before its start, or after the log's end, passed silently: nothing was
/// compared, or less than requested.
#[test]
fn a_replay_cannot_end_before_it_begins_nor_behind_the_log() {
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    let positions: Vec<_> =
        (1..=3).map(|number| session.dispatch(Noted::new(number, "said")).unwrap()).collect();
    let log = LogReader::open(session.dir()).unwrap();
    let host = |session: Session| {
        (1..=3).try_for_each(|number| session.dispatch(Noted::new(number, "said")).map(drop))
    };
    let types = types();
    let replay = || Replay::new(&log, &types);
    for (replay, at) in [
        (replay().from(positions[1]).through(positions[0]), positions[0]),
        (replay().through(positions[2] + 1), positions[2] + 1),
    ] {
        let error = replay.run(host).unwrap_err();
        let last = Some(positions[2]);
        assert!(
            matches!(error, Error::NoSuchPosition { position, last: l } if position == at && l == last),
            "{error}"
        );
    }
    let report = replay().from(positions[1]).through(positions[1]).run(host).unwrap();
    assert_eq!((report.records, report.compared), (0, 0));
    assert_eq!(replay().through(positions[1]).run(host).unwrap().compared, 2);
}

#[test]
#[should_panic(expected = "nothing was compared: the log contains no records of a host")]
fn the_assertion_of_a_replay_does_not_hold_of_a_log_in_which_a_host_wrote_nothing() {
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    session.dispatch(Noted::new(1, "said")).unwrap();
    let end = session.log().position().unwrap();
    let fork = stored.store().fork(session.id(), end, &types(), foldlog::SessionOptions::default()).unwrap();
    let _ = foldlog_replay::assert_host_replays(fork.dir(), &types(), |_| ());
}

#[test]
fn a_fork_is_replayed_from_its_own_first_record_on() {
    let stored = Stored::new();
    let store = stored.store();
    let parent = store.create(&types()).unwrap();
    parent.dispatch(Noted::new(1, "of the parent")).unwrap();
    let at = parent.log().position().unwrap();
    let fork = store.fork(parent.id(), at, &types(), foldlog::SessionOptions::default()).unwrap();
    let host = |session: Session| session.dispatch(Noted::new(2, "of the fork")).map(drop);
    host(fork.clone()).unwrap();
    let log = LogReader::open(fork.dir()).unwrap();
    let report = Replay::new(&log, &types()).run(host).unwrap();
    assert_eq!((report.compared, report.records), (1, 1));
    for replay in [Replay::new(&log, &types()).from(at - 1), Replay::new(&log, &types()).through(at - 1)] {
        let error = replay.run(host).unwrap_err();
        assert!(matches!(error, Error::NoSuchPosition { .. }), "{error}");
    }
}

/// The log grows while it is replayed; the replay ends where it was read.
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
    let report = Replay::new(&log, &types()).run(host).unwrap();
    assert_eq!(report.compared, 1);
    assert!(matches!(ended, Some(Error::ReplayEnded { .. })));
}

#[test]
fn a_replay_without_the_types_of_its_log_names_all_that_are_missing() {
    let stored = Stored::new();
    let two =
        SessionTypes::builder().slice::<Diary>().append_all::<Diary>().slice::<Rings>().append_all::<Rings>();
    let session = stored.store().create(&two.build().unwrap()).unwrap();
    session.dispatch(Noted::new(1, "typed")).unwrap();
    session.dispatch(Rang(2)).unwrap();
    let log = LogReader::open(session.dir()).unwrap();
    let nothing = SessionTypes::builder().build().unwrap();
    let error = Replay::new(&log, &nothing).run(|_| ()).unwrap_err();
    let Error::NotRegistered(missing) = &error else { panic!("{error}") };
    assert_eq!(missing.iter().map(|missing| missing.event.as_str()).collect::<Vec<_>>(), ["noted", "rang"]);
    let missing = "but the host declares no such reducer";
    let named =
        format!("event `noted` reduces into `diary` in this log, {missing}; event `rang` reduces into");
    assert!(error.to_string().starts_with(&named), "{error}");
}

#[test]
fn names_of_observations_that_are_the_engines_own_are_refused_and_so_is_what_cannot_be_read_again() {
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    let position = session.log().position();
    let error = session.inputs().observe("foldlog.now", || 1).unwrap_err();
    assert!(error.to_string().contains("reserved for the engine"), "{error}");
    assert_eq!(session.log().position(), position);
}

/// The host would repeat its work for a call that runs elsewhere, so this has to be requested.
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
        // A call that is dropped.
        drop(runner.begin(&ToolCall::new("dropped", "{}"), &ExecuteOptions::default())?);
        session.dispatch(Noted::new(4, "behind it"))?;
        Ok(report)
    };
    host(session.clone(), "within").unwrap();
    let log = LogReader::open(session.dir()).unwrap();
    let mut refused = None;
    let _ = Replay::new(&log, &types()).run(|session| refused = host(session, "within").err());
    assert!(refused.unwrap().to_string().contains("no tool runs"));
    let replay = Replay::new(&log, &types()).mode(foldlog::replay::ReplayMode::RunTools);
    let mut report = None;
    replay.run(|session| report = Some(host(session, "within").unwrap())).unwrap();
    assert!(report.unwrap().success);
    let error = replay.run(|session| drop(host(session, "changed"))).unwrap_err();
    assert!(error.to_string().contains("lane of the run begun at"), "{error}");
}

/// A host that only records a tool's outcome has nothing to repeat.
#[test]
fn a_call_of_which_a_host_is_told_is_begun_in_every_replay_and_ends_as_it_is_recorded() {
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    let host = |session: Session, text: &str| -> foldlog::Result<(foldlog::tools::ToolReport, Error)> {
        let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
        let runner = ToolRunner::new(state, ToolRegistry::new());
        let begin = |name: &str| runner.begin_told(&ToolCall::new(name, "{}"), &ExecuteOptions::default());
        let operation = begin("told")?;
        operation.context().session().dispatch(Noted::new(2, text))?;
        let told: String = session.inputs().observe("told", || "done".to_owned())?;
        let report = operation.end(foldlog::tools::ToolResult::ok(told, 2_u64))?;
        let failed = begin("failed")?.fail(ToolError::failed("no"))?;
        assert!(!failed.success);
        let asked = begin("asked")?.fail(ToolError::Ask(Question::new("May it?"))).unwrap_err();
        session.dispatch(Noted::new(4, "behind it"))?;
        Ok((report, asked))
    };
    let (live, _) = host(session.clone(), "within").unwrap();
    let log = LogReader::open(session.dir()).unwrap();
    for mode in [foldlog::replay::ReplayMode::FromLog, foldlog::replay::ReplayMode::RunTools] {
        let mut again = None;
        let replay = Replay::new(&log, &types()).mode(mode);
        replay.run(|session| again = Some(host(session, "within").unwrap())).unwrap();
        let (report, asked) = again.unwrap();
        assert_eq!(report, live);
        assert!(matches!(asked, Error::Suspended { .. }), "{asked}");
        let error = replay.run(|session| drop(host(session, "changed"))).unwrap_err();
        assert!(error.to_string().contains("lane of the run begun at"), "{error}");
    }
}

/// Asks in each run; the question expires after a minute.
struct Asks;

impl Tool for Asks {
    const NAME: &'static str = "asks";
    type Parameters = Nothing;
    type Output = ();

    fn call(&self, _: Nothing, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        Err(ToolError::Ask(Question::new("May I?").expiring(Duration::from_secs(60))))
    }
}

/// A replay judged expiry by the time of the previous record, which another process wrote long ago:
/// a question still waited where the live process had found it expired.
#[test]
fn a_question_that_expired_between_two_processes_has_expired_in_their_replay_too() {
    let stored = Stored::new();
    let clock = Arc::new(FixedClock::new(1_700_000_000_000_000));
    let store = stored.store_with(Arc::clone(&clock) as Arc<dyn Clock>);
    let host = |session: &Session| -> foldlog::Result<()> {
        let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
        let runner = ToolRunner::new(state, ToolRegistry::new().with(Asks));
        let diary = session.log().slice::<Diary>()?;
        let origin = match diary.get(0)?.and_then(|noted| noted.position()) {
            Some((sequence, _)) => sequence,
            None => session.dispatch(Noted::new(1, "the model answers"))?,
        };
        match runner.execute(&ToolCall::new("asks", "{}").with_origin(origin, 0), &ExecuteOptions::default())
        {
            Err(Error::Suspended { .. }) => session.dispatch(Noted::new(2, "it waits")).map(drop),
            report => session.dispatch(Noted::new(3, &report?.message)).map(drop),
        }
    };
    let session = store.create(&types()).unwrap();
    let (id, dir) = (session.id(), session.dir().to_owned());
    host(&session).unwrap();
    session.close().unwrap();
    clock.advance_us(3_600_000_000);
    let session = store.open_session(id, &types()).unwrap();
    host(&session).unwrap();
    session.close().unwrap();
    let log = LogReader::open(dir).unwrap();
    let report = Replay::new(&log, &types()).run(|session| host(&session)).unwrap();
    assert_eq!(report.processes, 2);
}

/// Expiry was judged by the time of the next record, which came after a wait. A recovery that had
/// found a waiting question found it expired in the replay, and so did a host that asked.
#[test]
fn a_question_that_still_waited_when_the_live_host_asked_still_waits_in_its_replay() {
    for recovers in [true, false] {
        let stored = Stored::new();
        let clock = Arc::new(FixedClock::new(1_700_000_000_000_000));
        let store = stored.store_with(Arc::clone(&clock) as Arc<dyn Clock>);
        let host = |session: &Session| -> foldlog::Result<()> {
            let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
            let runner = ToolRunner::new(state, ToolRegistry::new().with(Asks));
            let asked = runner.execute(&ToolCall::new("asks", "{}"), &ExecuteOptions::default());
            assert!(matches!(asked, Err(Error::Suspended { .. })), "{asked:?}");
            for round in 0..3 {
                let waiting = match recovers {
                    true => runner.recover(&ExecuteOptions::default())?.len() as u64,
                    false => session.calls().pending_questions()?.len() as u64,
                };
                session.inputs().observe("letter", || clock.advance_us(2_000_000_000))?;
                session.dispatch(Noted::new(round * 10 + waiting, "so many"))?;
            }
            Ok(())
        };
        let session = store.create(&types()).unwrap();
        host(&session).unwrap();
        let dir = session.dir().to_owned();
        session.close().unwrap();
        let log = LogReader::open(dir).unwrap();
        let replay = Replay::new(&log, &types()).run(|session| host(&session));
        replay.unwrap_or_else(|error| panic!("recovers {recovers}: {error}"));
    }
}

/// If a lane's thread had exited, each of its records was waited for as long as the first.
#[test]
fn a_lane_that_does_not_come_is_waited_for_once() {
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    let host = |session: &Session, comes: bool| -> foldlog::Result<()> {
        let lane = session.lane("gone");
        for number in 0..if comes { 30 } else { 0 } {
            lane.dispatch(Noted::new(number, "of the lane"))?;
        }
        session.dispatch(Noted::new(99, "behind it")).map(drop)
    };
    host(&session, true).unwrap();
    let log = LogReader::open(session.dir()).unwrap();
    let (since, patience) = (Instant::now(), Duration::from_secs(2));
    let report =
        Replay::new(&log, &types()).all().patience(patience).run(|again| host(&again, false)).unwrap();
    assert_eq!(report.divergences.len(), 30);
    assert!(since.elapsed() < 10 * patience, "{:?}", since.elapsed());
}

/// A host that read an input as another type got an encoding error, and no divergence was reported.
#[test]
fn an_input_that_a_host_reads_as_another_type_has_changed() {
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    let (observed, behind) = (session.log().position().unwrap() + 1, session.log().position().unwrap() + 2);
    session.inputs().observe("count", || 7_u64).unwrap();
    session.dispatch(Noted::new(1, "behind it")).unwrap();
    assert!(session.log().position().unwrap() > behind);
    let log = LogReader::open(session.dir()).unwrap();
    let mut told = None;
    let mut host = |session: Session| {
        told = session.inputs().observe("count", || "seven".to_owned()).err();
        session.dispatch(Noted::new(1, "behind it")).map(drop)
    };
    let error = Replay::new(&log, &types()).run(&mut host).unwrap_err();
    let Error::Diverged(found) = &error else { panic!("{error}") };
    assert_eq!(
        (found.sequence, found.record.as_str(), found.path.as_str()),
        (observed, "observed count", "$.data")
    );
    let shown = found.to_string();
    assert!(shown.contains("recorded 7"), "{shown}");
    assert!(shown.contains("cannot be read as `alloc::string::String`"), "{shown}");
    let report = Replay::new(&log, &types()).all().run(&mut host).unwrap();
    assert_eq!(report.divergences, [(**found).clone()]);
    let Some(Error::Diverged(told)) = told else { panic!("{told:?}") };
    assert_eq!(told, *found);
}

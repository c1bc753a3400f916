//! Subscribers of a replayed host receive the same as those of the live one, at the same time.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use foldlog::inspect::LogReader;
use foldlog::replay::{Replay, ReplayMode};
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{
    ExecutionState, Idempotency, Policy, RecordKind, RecordNotification, ResourceRegistry, Session,
    SessionTypes,
};
use foldlog_test_support::replayed_host::{Diary, Noted};

use super::host::{Nothing, Stored, types};

struct Working;

impl Tool for Working {
    const NAME: &'static str = "working";
    type Parameters = Nothing;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        context.session().dispatch(Noted::new(4, "within"))?;
        context.session().dispatch(Noted::new(5, "within"))?;
        Ok(ToolResult::ok("done", ()))
    }
}

fn work(session: &Session) -> foldlog::Result<()> {
    let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Working));
    runner.execute(&ToolCall::new("working", "{}"), &ExecuteOptions::default()).map(drop)
}

/// Notes two numbers, and runs a tool that notes two others, twice.
fn steps(session: &Session) -> foldlog::Result<()> {
    for number in [1, 2] {
        session.dispatch(Noted::new(number, "by the host"))?;
        work(session)?;
    }
    Ok(())
}

/// Returns types with which a note changes only a slice that grows, so that it may be written while
/// a call is open.
fn growing() -> SessionTypes {
    SessionTypes::builder().slice_with::<Diary>(Policy::Log).append_all::<Diary>().build().unwrap()
}

fn replays(types: &SessionTypes, host: &dyn Fn(&Session) -> foldlog::Result<()>, told: &str) {
    let stored = Stored::new();
    let session = stored.store().create(types).unwrap();
    host(&session).unwrap();
    let dir = session.dir().to_owned();
    session.close().unwrap();
    let log = LogReader::open(dir).unwrap();
    for mode in [ReplayMode::FromLog, ReplayMode::RunTools] {
        let since = Instant::now();
        let replay = Replay::new(&log, types).mode(mode).patience(Duration::from_secs(30));
        replay.run(|session| host(&session)).unwrap_or_else(|error| panic!("{told}, {mode:?}: {error}"));
        assert!(since.elapsed() < Duration::from_secs(30), "{told}, {mode:?}: it waited");
    }
}

/// A record that a replay took from the log was delivered late, and without its event.
#[test]
fn a_subscriber_is_told_the_same_records_and_events_before_the_call_returns_that_led_to_them() {
    let host = |session: &Session| -> foldlog::Result<()> {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = Arc::clone(&told);
        let subscription = session.log().subscribe(move |record: &RecordNotification| {
            let number = record.event::<Noted>().map(|noted| noted.number);
            let name = record.event_name().map(|(name, version)| format!("{name} {version}"));
            let record = (record.sequence(), record.kind(), record.time_us(), name, number);
            tell.lock().unwrap().push(format!("{record:?}"));
        });
        for number in [1, 2] {
            session.dispatch(Noted::new(number, "by the host"))?;
            let heard = told.lock().unwrap().join(" ");
            session.dispatch(Noted::new(10 + number, &heard))?;
            work(session)?;
            let heard = told.lock().unwrap().join(" ");
            session.dispatch(Noted::new(20 + number, &heard))?;
        }
        session.log().unsubscribe(subscription);
        Ok(())
    };
    replays(&types(), &host, "all");
}

/// A subscriber's record follows the one that caused it. The replay waited for records that only
/// came after the subscriber's.
#[test]
fn a_subscriber_that_dispatches_finds_its_turn() {
    type Hears = fn(&RecordNotification) -> bool;
    let heard: [(&str, Hears); 4] = [
        ("the begin of a call", |record| record.kind() == RecordKind::ToolBegin),
        ("an event of the host", |record| record.event::<Noted>().is_some_and(|noted| noted.number < 3)),
        ("an event within a tool", |record| {
            record.event::<Noted>().is_some_and(|noted| (4..6).contains(&noted.number))
        }),
        ("the end of a call", |record| record.kind() == RecordKind::ToolEnd),
    ];
    for (what, hears) in heard {
        for lane in [Some("subscriber"), None] {
            let host = move |session: &Session| -> foldlog::Result<()> {
                let own = lane.map_or_else(|| session.clone(), |lane| session.lane(lane));
                let refused = Arc::new(Mutex::new(Vec::new()));
                let refusals = Arc::clone(&refused);
                let subscription = session.log().subscribe(move |record: &RecordNotification| {
                    if hears(record) {
                        let written = own.dispatch(Noted::new(100 + record.sequence().get(), "heard"));
                        refusals.lock().unwrap().extend(written.err().map(|error| error.to_string()));
                    }
                });
                steps(session)?;
                let refused = refused.lock().unwrap().join(" ");
                session.dispatch(Noted::new(9, &refused))?;
                session.log().unsubscribe(subscription);
                Ok(())
            };
            replays(&types(), &host, &format!("{what}, lane {lane:?}"));
            replays(&growing(), &host, &format!("{what}, lane {lane:?}, growing"));
        }
    }
}

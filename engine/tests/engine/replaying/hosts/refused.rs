//! Writes that the live run refused, and that left no record.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use foldlog::inspect::LogReader;
use foldlog::replay::{Replay, ReplayMode};
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{
    ExecutionState, Idempotency, Policy, ResourceRegistry, Session, SessionTypes, Settlement, Slice, SliceOp,
};
use foldlog_test_support::replayed_host::{Diary, Noted, Notes};

use super::host::{Nothing, Stored};

/// Returns types that refuse the number 6, and 7 if no 1 was noted before.
fn types() -> SessionTypes {
    SessionTypes::builder()
        .slice::<Notes>()
        .reducer::<Notes, Noted>(|notes, noted, _| match noted.number {
            6 => Err("not that one".into()),
            7 if notes.iter().all(|note| note.number != 1) => Err("not yet".into()),
            _ => Ok(SliceOp::Append(noted.clone())),
        })
        .slice_with::<Diary>(Policy::Log)
        .append_all::<Diary>()
        .build()
        .unwrap()
}

fn note(session: &Session, number: u64) -> foldlog::Result<()> {
    session.dispatch(Noted::new(number, "n")).map(drop)
}

struct Undeclared;

impl Slice for Undeclared {
    const NAME: &'static str = "undeclared";
    type Item = u64;
}

/// Runs a tool that gives away its handle, and writes through it after the call.
fn write_too_late(session: &Session) -> foldlog::Result<()> {
    let lent = Arc::default();
    runner(session, &lent)?.execute(&ToolCall::new("lending", "{}"), &ExecuteOptions::default())?;
    let handle = lent.lock().unwrap().take().unwrap();
    note(&handle, 3)
}

/// Runs a read-only tool that writes.
fn write_in_reading(session: &Session) -> foldlog::Result<()> {
    let call = ToolCall::new("reading", "{}");
    let report = runner(session, &Arc::default())?.execute(&call, &ExecuteOptions::default())?;
    assert!(report.success, "{}", report.message);
    note(session, 6)
}

fn runner(session: &Session, lent: &Arc<Mutex<Option<Session>>>) -> foldlog::Result<ToolRunner> {
    let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    Ok(ToolRunner::new(state, ToolRegistry::new().with(Lending(Arc::clone(lent))).with(Reading)))
}

struct Lending(Arc<Mutex<Option<Session>>>);

impl Tool for Lending {
    const NAME: &'static str = "lending";
    type Parameters = Nothing;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        *self.0.lock().unwrap() = Some(context.session().clone());
        Ok(ToolResult::ok("lent", ()))
    }
}

/// A read-only tool that tries to write.
struct Reading;

impl Tool for Reading {
    const NAME: &'static str = "reading";
    type Parameters = Nothing;
    type Output = ();

    fn reads_only(&self) -> bool {
        true
    }

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let refused = note(context.session(), 4).unwrap_err();
        let is_refusal = matches!(refused, foldlog::Error::ReadsOnly { .. });
        Ok(if is_refusal {
            ToolResult::ok("refused", ())
        } else {
            ToolResult::unsuccessful("it was written")
        })
    }
}

type Refused = (&'static str, fn(&Session) -> foldlog::Result<()>);

const REFUSED: [Refused; 9] = [
    ("an event that a reducer refuses", |session| note(session, 6)),
    ("an event that a reducer refuses, and later takes", |session| note(session, 7)),
    ("a rollback to a position that is not written yet", |session| session.rollback_to(99).map(drop)),
    ("a settlement of nothing", |session| {
        session.calls().settle(1, &Settlement::failed(), "a", "b").map(drop)
    }),
    ("clearing a slice that was never declared", |session| session.clear::<Undeclared>().map(drop)),
    ("clearing a slice that only grows", |session| session.clear::<Diary>().map(drop)),
    ("seeding a slice that only grows", |session| session.seed::<Diary>(Vec::new()).map(drop)),
    ("a write through the handle of a call that is over", write_too_late),
    ("a write within a tool that only reads", write_in_reading),
];

/// A refused write waited for the turn of its lane, which depended on the same thread. The first
/// record of a lane that the thread started later counted as missing after ten seconds.
#[test]
fn a_write_that_was_refused_is_refused_again_and_waits_for_nobody() {
    for (what, refused) in REFUSED {
        let host = |session: &Session| -> foldlog::Result<String> {
            note(session, 2)?;
            let told = refused(session).unwrap_err().to_string();
            let lane = session.lane("later");
            thread::spawn(move || note(&lane, 1)).join().unwrap()?;
            note(session, 7)?;
            Ok(told)
        };
        let stored = Stored::new();
        let session = stored.store().create(&types()).unwrap();
        let live = host(&session).unwrap();
        let log = LogReader::open(session.dir()).unwrap();
        for mode in [ReplayMode::FromLog, ReplayMode::RunTools] {
            if what.contains("call that is over") && mode == ReplayMode::FromLog {
                continue;
            }
            // The event that is accepted later looks like the refused one: only the patience
            // decides.
            let waits = what.contains("later takes");
            let patience = Duration::from_secs(if waits { 1 } else { 30 });
            let (mut again, since) = (None, Instant::now());
            let replay = Replay::new(&log, &types()).mode(mode).patience(patience);
            let report = replay.run(|session| again = Some(host(&session)));
            report.unwrap_or_else(|error| panic!("{what}, {mode:?}: {error}"));
            assert_eq!(again.unwrap().unwrap(), live, "{what}, {mode:?}");
            assert!(waits || since.elapsed() < patience, "{what}, {mode:?}: it waited");
        }
    }
}

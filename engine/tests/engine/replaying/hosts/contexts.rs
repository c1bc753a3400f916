//! The context of a tool: its run, clock and random numbers, which a replay of the tool reproduces.

use std::sync::{Arc, Mutex};

use foldlog::filesystem::{Filesystem, InMemoryFilesystem};
use foldlog::inspect::LogReader;
use foldlog::replay::{Replay, ReplayMode};
use foldlog::tools::{
    CompositeSnapshot, ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult,
    ToolRunner,
};
use foldlog::{Error, ExecutionState, Idempotency, ResourceRegistry, Session};
use foldlog_test_support::replayed_host::Noted;

use super::host::{Nothing, Stored, types};

type Seen = Arc<Mutex<Vec<(u64, i64)>>>;

/// Notes a line, within another call.
struct Note;

impl Tool for Note {
    const NAME: &'static str = "note";
    type Parameters = Nothing;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        context.state().session().dispatch(Noted::new(2, "within"))?;
        Ok(ToolResult::ok("noted", ()))
    }
}

/// Throws a die, reads the clock, notes both, and runs another tool within its call.
struct Throw(Seen, Option<CompositeSnapshot>);

impl Tool for Throw {
    const NAME: &'static str = "throw";
    type Parameters = Nothing;
    type Output = u64;

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<u64>, ToolError> {
        let thrown = context.state().draw(|generator| generator.next_below(1 << 40))?;
        let at = context.state().now()?.timestamp_micros();
        self.0.lock().unwrap().push((thrown, at));
        let state = context.state();
        state.session().dispatch(Noted::new(1, &format!("{thrown} at {at}")))?;
        let within = ToolRunner::new(state.clone(), ToolRegistry::new().with(Note));
        within.execute(&ToolCall::new("note", "{}"), &ExecuteOptions::default())?;
        // A transaction cannot be captured or restored half way.
        assert!(matches!(state.snapshot(None), Err(Error::InsideOperation { .. })));
        if let Some(before) = &self.1 {
            assert!(matches!(state.restore(before), Err(Error::InsideOperation { .. })));
        }
        match self.0.lock().unwrap().len() {
            2 => Err(ToolError::failed("it fell off the table")),
            _ => Ok(ToolResult::ok(thrown.to_string(), thrown)),
        }
    }
}

fn host(session: &Session, seen: &Seen) -> foldlog::Result<()> {
    let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    let before = state.snapshot(Some("before"))?;
    let throw = Throw(Arc::clone(seen), (!session.replays()).then_some(before));
    let runner = ToolRunner::new(state, ToolRegistry::new().with(throw));
    for _ in 0..3 {
        runner.execute(&ToolCall::new("throw", "{}"), &ExecuteOptions::default())?;
    }
    Ok(())
}

/// A tool that got the clock and the generator of its run from its host read new values in a
/// replay.
#[test]
fn a_tool_that_runs_again_draws_the_same_and_reads_the_same_time() {
    let (stored, lived) = (Stored::new(), Seen::default());
    let session = stored.store().create(&types()).unwrap();
    host(&session, &lived).unwrap();
    let dir = session.dir().to_owned();
    session.close().unwrap();
    let log = LogReader::open(dir).unwrap();
    let lived = lived.lock().unwrap().clone();
    assert!(lived[0].0 != lived[1].0 && lived[1].0 != lived[2].0, "{lived:?}");
    let ledger = log.ledger().unwrap();
    let nested = ledger.iter().filter(|one| one.tool == "note").map(|one| (one.parent, one.outcome.name()));
    let throws: Vec<_> = ledger.iter().filter(|one| one.tool == "throw").map(|one| one.operation).collect();
    // Calls that committed within the failed call were rolled back with it.
    let expected = ["committed", "abandoned", "committed"];
    assert!(nested.eq(throws.iter().map(|one| Some(*one)).zip(expected)), "{ledger:?}");
    let seen = Seen::default();
    let replay = Replay::new(&log, &types()).mode(ReplayMode::RunTools);
    replay.run(|session| host(&session, &seen)).unwrap();
    assert_eq!(*seen.lock().unwrap(), lived);
    let seen = Seen::default();
    Replay::new(&log, &types()).run(|session| host(&session, &seen)).unwrap();
    assert!(seen.lock().unwrap().is_empty(), "a tool ran");
}

/// Looks for the files of its run in every way.
struct Look;

impl Tool for Look {
    const NAME: &'static str = "look";
    type Parameters = Nothing;
    type Output = ();

    fn outside_only(&self) -> bool {
        true
    }

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        assert!(context.resources().get::<dyn Filesystem>().is_none());
        assert!(context.state().resources().get::<dyn Filesystem>().is_none());
        Ok(ToolResult::ok("nothing there", ()))
    }
}

#[test]
fn a_tool_that_acts_outside_only_finds_no_captured_resource_in_its_run() {
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    let resources =
        ResourceRegistry::builder().filesystem(Arc::new(InMemoryFilesystem::new())).build().unwrap();
    let state = ExecutionState::new(session, resources);
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Look));
    let report = runner.execute(&ToolCall::new("look", "{}"), &ExecuteOptions::default()).unwrap();
    assert!(report.success, "{report:?}");
}

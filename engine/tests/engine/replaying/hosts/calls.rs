//! Tools that run again in a replay and write more records than the log has: after its end, and
//! after the last one of the call.

use std::sync::Arc;

use foldlog::inspect::LogReader;
use foldlog::replay::{Replay, ReplayMode};
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{DivergenceKind, Error, ExecutionState, Idempotency, ResourceRegistry, Session, Store};
use foldlog_test_support::replayed_host::Noted;

use super::host::{Nothing, Stored, copy, types};

/// Notes numbers, and does something else before that.
struct Notes<'a> {
    numbers: &'a [u64],
    before: Arc<dyn Fn() + Send + Sync>,
}

struct Noting(Vec<u64>, Arc<dyn Fn() + Send + Sync>);

impl Tool for Noting {
    const NAME: &'static str = "noting";
    type Parameters = Nothing;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        self.1();
        for number in &self.0 {
            context.session().dispatch(Noted::new(*number, "within"))?;
        }
        Ok(ToolResult::ok("noted", ()))
    }
}

/// Notes a number, calls the tool, and notes another one.
fn host(session: &Session, notes: &Notes<'_>) -> foldlog::Result<()> {
    let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    let tools = ToolRegistry::new().with(Noting(notes.numbers.to_vec(), Arc::clone(&notes.before)));
    session.dispatch(Noted::new(1, "before"))?;
    ToolRunner::new(state, tools).execute(&ToolCall::new("noting", "{}"), &ExecuteOptions::default())?;
    session.dispatch(Noted::new(9, "behind")).map(drop)
}

fn notes(numbers: &[u64]) -> Notes<'_> {
    Notes { numbers, before: Arc::new(|| ()) }
}

/// A log that ended with a synced start record was taken for that of a closed session: the next
/// record of the tool was one too many, and so was its end.
#[test]
fn a_tool_that_runs_again_behind_the_end_of_a_log_that_ends_within_its_call_has_not_diverged() {
    let directory = tempfile::tempdir().unwrap();
    let (live, killed) = (directory.path().join("live"), directory.path().join("killed"));
    let session = Store::open(live).unwrap().create(&types()).unwrap();
    let (from, to) = (session.dir().to_owned(), killed.clone());
    let before = Arc::new(move || copy(&from, &to));
    host(&session, &Notes { numbers: &[2], before }).unwrap();
    let log = LogReader::open(killed).unwrap();
    for mode in [ReplayMode::FromLog, ReplayMode::RunTools] {
        let mut told = None;
        let replay = Replay::new(&log, &types()).mode(mode).all();
        let report = replay.run(|session| told = host(&session, &notes(&[2])).err()).unwrap();
        assert!(report.divergences.is_empty(), "{mode:?}: {:?}", report.divergences);
        assert!(matches!(told, Some(Error::ReplayEnded { .. })), "{mode:?}: {told:?}");
        Replay::new(&log, &types()).mode(mode).run(|session| host(&session, &notes(&[2]))).unwrap();
    }
}

/// An additional record within a call waited for its turn until the patience was over, and then the
/// call's end was missing.
#[test]
fn a_record_too_many_of_a_tool_that_runs_again_is_named_at_once() {
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    host(&session, &notes(&[2, 3])).unwrap();
    let log = LogReader::open(session.dir()).unwrap();
    let mut end = None;
    log.records(log.opened_sequence(), u64::MAX, |record| {
        end = end.or((record.kind == foldlog::RecordKind::ToolEnd).then_some(record.sequence));
        Ok(())
    })
    .unwrap();
    let replay = Replay::new(&log, &types()).mode(ReplayMode::RunTools);
    let error = replay.run(|session| host(&session, &notes(&[2, 3, 4]))).unwrap_err();
    let Error::Diverged(found) = error else { panic!("{error}") };
    let place = (Some(found.sequence), found.divergence, found.record.as_str());
    assert_eq!(place, (end, DivergenceKind::Extra, "dispatch noted"), "{found}");
    let report = replay.all().run(|session| host(&session, &notes(&[2, 3, 4])).unwrap()).unwrap();
    assert_eq!(report.divergences, [*found]);
}

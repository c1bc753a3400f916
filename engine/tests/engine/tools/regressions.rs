//! Bugs of transactions that a review found before any user did. Each test opens with its bug.

use std::thread;
use std::time::{Duration, Instant};

use foldlog::inspect::OperationStatus;
use foldlog::storage::{Fault, Op};
use foldlog::tools::{RecoveredOperation, Recovery};
use foldlog::{Durability, ExternalEffects, Policy, SequenceNumber, SessionOptions, Settlement, Value};

use super::*;

type Do = dyn Fn(&ToolContext) -> Result<ToolResult<u64>, ToolError> + Send + Sync;

/// A tool with a closure of the test.
struct Custom {
    run: Box<Do>,
    reads_only: bool,
}

impl Tool for Custom {
    const NAME: &'static str = "custom";
    type Parameters = Nothing;
    type Output = u64;

    fn idempotency(&self) -> Idempotency {
        // The idempotency of a read-only tool does not matter.
        if self.reads_only { Idempotency::Manual } else { Idempotency::Natural }
    }

    fn reads_only(&self) -> bool {
        self.reads_only
    }

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<u64>, ToolError> {
        (self.run)(context)
    }
}

fn done() -> Result<ToolResult<u64>, ToolError> {
    Ok(ToolResult::ok("done", 1))
}

/// Returns a runner with the run's tools and one more.
fn with(
    run: &Run,
    reads_only: bool,
    tool: impl Fn(&ToolContext) -> Result<ToolResult<u64>, ToolError> + Send + Sync + 'static,
) -> ToolRunner {
    let tools = run.runner.tools().clone().with(Custom { run: Box::new(tool), reads_only });
    ToolRunner::new(run.runner.state().clone(), tools)
}

fn custom() -> ToolCall {
    ToolCall::new("custom", "{}")
}

fn at_once() -> ExecuteOptions {
    ExecuteOptions::default()
}

fn step(title: &str) -> StepAdded {
    StepAdded { title: title.to_owned(), part: 0 }
}

/// A run whose process was killed within its first call, and the next process.
fn interrupted(idempotency: Idempotency) -> Run {
    let mut run = Run::with(idempotency);
    run.desk.put("letter", "as it was");
    assert!(run.write("letter", "half done", Then::Die).is_err());
    run.reopen(idempotency);
    run
}

/// A subscriber that wrote STATE on an end record waited for the very call that notified it.
#[test]
fn a_subscriber_of_an_end_may_write() {
    let run = Run::new();
    let session = run.session().clone();
    run.session().log().subscribe(move |notice| {
        if notice.kind().name() == "tool_end" {
            session.dispatch(step("told")).unwrap();
        }
    });
    run.write("p", "t", Then::Succeed).unwrap();
    assert_eq!(run.plan(), ["t", "told"]);
}

/// The same on a start record: such a write could never proceed, so it is refused at once.
#[test]
fn a_subscriber_within_a_call_is_told_that_it_cannot_wait_for_it() {
    let run = Run::new();
    let (session, told) = (run.session().clone(), Arc::new(Mutex::new(Vec::new())));
    let into = Arc::clone(&told);
    run.session().log().subscribe(move |notice| {
        if matches!(notice.kind().name(), "tool_begin" | "dispatch") {
            into.lock().unwrap().push(session.dispatch(step("too early")));
        }
    });
    run.write("p", "t", Then::Succeed).unwrap();
    let told = told.lock().unwrap();
    assert!(
        told.len() > 1 && told.iter().all(|told| matches!(told, Err(Error::InsideOperation { .. }))),
        "{told:?}"
    );
}

/// A call of an answer was looked up only among committed ones: one that waited to be settled, or
/// was settled, ran a second time.
#[test]
fn an_interrupted_call_of_an_answer_runs_again_only_as_its_settlement_says() {
    for (settlement, message) in [
        (None, ""),
        (Some(Settlement::committed(Some(Value::from(7_u64)))), "7"),
        (Some(Settlement::failed()), "The call did not do its work, and is not run again: "),
    ] {
        let mut run = Run::with(Idempotency::Manual);
        let answer = run.session().dispatch(Noted { text: "an answer".to_owned() }).unwrap();
        let one = call("letter", "one", Then::Die).with_origin(answer, 0);
        assert!(run.runner.execute(&one, &at_once()).is_err());
        run.reopen(Idempotency::Manual);
        run.runner.recover(&at_once()).unwrap();
        let operation = run.session().calls().unsettled_operations()[0].operation;
        if let Some(settlement) = &settlement {
            run.session().calls().settle(operation, settlement, "a person", "").unwrap();
        }
        match (settlement, run.runner.execute(&one, &at_once())) {
            (None, Err(Error::ToolIdempotency { .. })) => {}
            (Some(_), Ok(report)) => {
                assert!(report.recorded && report.operation == operation && report.message == message);
                assert_eq!(report.success, message == "7");
            }
            other => panic!("{other:?}"),
        }
        assert!(run.runner.begin(&one, &at_once()).is_err(), "by the other way in as well");
        assert_eq!(run.counts().ran, 1);
    }
}

/// Recovery checked the outer call's declaration alone: a manual one within it ran a second time
/// without approval.
#[test]
fn a_call_within_which_something_manual_ran_waits_for_a_person() {
    for then in [Then::Die, Then::Succeed] {
        let mut run = Run::with(Idempotency::Manual);
        let outer = |run: &Run, dies: bool| {
            let (inner, disk) = (run.runner.clone(), run.disk.clone());
            with(run, false, move |context| {
                inner.within(context).execute(&call("letter", "sent", then), &at_once())?;
                if dies {
                    disk.crash(CrashKind::Process);
                }
                done()
            })
        };
        assert!(outer(&run, true).execute(&custom(), &at_once()).is_err());
        run.reopen(Idempotency::Manual);
        let [recovered] = outer(&run, false).recover(&at_once()).unwrap().try_into().unwrap();
        assert!(matches!(recovered.recovery, Recovery::NeedsSettling(_)), "{recovered:?}");
        assert_eq!((run.counts().ran, recovered.tool.as_str()), (1, "custom"));
    }
}

/// A call that ended early, because something within it could not be restored, was neither over nor
/// open: every later write waited for it.
#[test]
fn whatever_fails_at_an_end_the_session_goes_on_once_it_is_recovered() {
    let run = Run::new();
    let outer = run.runner.begin(&call("p", "x", Then::Succeed), &at_once()).unwrap();
    let inner = run.runner.within(outer.context()).begin(&call("p", "y", Then::Succeed), &at_once()).unwrap();
    *run.desk.broken.lock().unwrap() = Some(Broken::Restore);
    drop(inner);
    let ended = outer.end(ToolResult::ok("done", 0));
    assert!(
        matches!(&ended, Err(Error::Interrupted { operations, .. }) if operations.len() == 2),
        "{ended:?}"
    );
    *run.desk.broken.lock().unwrap() = None;
    run.runner.recover(&at_once()).unwrap();
    run.session().dispatch(step("next")).unwrap();

    // Unreadable overrides are a failure, and do not leave the end half done.
    let deep = with(&run, false, |_| {
        let overrides = (0..120).fold(serde_json::json!(1), |inner, _| serde_json::json!([inner]));
        Err(ToolError::VisibilityExpansion { overrides, reason: "more".to_owned() })
    });
    assert_eq!(deep.execute(&custom(), &at_once()).unwrap().cause, Some(Cause::Error));
    run.session().dispatch(step("and next")).unwrap();
    assert_eq!(run.plan(), ["next", "and next"]);
}

/// A resource that panics this many times when it is restored.
struct Panics(Arc<Mutex<u32>>);

impl Snapshotable for Panics {
    const NAME: &'static str = "panics";
    type Snapshot = ();

    fn snapshot(&self, _: &CaptureOptions) -> Result<()> {
        Ok(())
    }

    fn restore(&self, _: &()) -> Result<()> {
        let mut left = self.0.lock().unwrap();
        if *left == 0 {
            return Ok(());
        }
        *left -= 1;
        drop(left);
        panic!("a resource panics")
    }
}

/// A resource's panic escaped from the end, and left the call blocking all others.
#[test]
fn a_resource_that_panics_is_named_and_in_nobodys_way_once_it_is_recovered() {
    let (run, panics) = (Run::new(), Arc::new(Mutex::new(2)));
    let resources = ResourceRegistry::builder().snapshotable(Arc::new(Panics(panics))).build().unwrap();
    let tools = ToolRegistry::new()
        .with(Custom { run: Box::new(|_| Err(ToolError::failed("no"))), reads_only: false });
    let runner = ToolRunner::new(ExecutionState::new(run.session().clone(), resources), tools);
    let failed = runner.execute(&custom(), &at_once());
    let names_it = |error: &Error| {
        matches!(error, Error::RestoreFailed { .. }) && error.to_string().contains("a resource panics")
    };
    assert!(failed.as_ref().is_err_and(names_it), "{failed:?}");
    let again = runner.recover(&at_once());
    assert!(again.as_ref().is_err_and(names_it), "{again:?}");
    runner.recover(&at_once()).unwrap();
    run.session().dispatch(step("next")).unwrap();
    assert_eq!(run.invoked().len(), 2, "it was interrupted, and ran again");
}

/// A wait within a dropped call took over the end of that call, and waited for itself.
#[test]
fn a_call_within_one_that_was_let_go_of_ends_first() {
    let run = Run::new();
    let outer = run.runner.begin(&call("p", "x", Then::Succeed), &at_once()).unwrap();
    let inner = run.runner.within(outer.context()).begin(&call("p", "y", Then::Succeed), &at_once()).unwrap();
    drop(outer);
    inner.context().session().dispatch(step("inner")).unwrap();
    inner.end(ToolResult::ok("done", 0)).unwrap();
    run.session().dispatch(step("next")).unwrap();
    assert_eq!(run.plan(), ["next"]);
}

/// Two concurrent recoveries ran one call twice, and the second start record poisoned the log.
#[test]
fn two_recoveries_at_once_are_one_after_the_other() {
    let run = interrupted(Idempotency::Natural);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| run.runner.recover(&at_once()).unwrap());
        }
    });
    assert_eq!((run.counts().ran, run.plan().len()), (2, 1));
    run.session().dispatch(step("next")).unwrap();
}

/// A settlement during the call's recovery poisoned the log.
#[test]
fn a_settlement_during_a_recovery_is_heeded() {
    let run = interrupted(Idempotency::Natural);
    let none = ToolRunner::new(run.runner.state().clone(), ToolRegistry::new());
    none.recover(&at_once()).unwrap();
    let operation = run.session().calls().unsettled_operations()[0].operation;
    let turn = run.runner.begin(&call("p", "x", Then::Succeed), &at_once()).unwrap();
    thread::scope(|scope| {
        let recovery = scope.spawn(|| run.runner.recover(&at_once()).unwrap());
        run.session().calls().settle(operation, &Settlement::failed(), "a person", "").unwrap();
        turn.abort("done").unwrap();
        // It ran again before, or was found settled; either way the session continues.
        recovery.join().unwrap();
    });
    run.session().dispatch(step("next")).unwrap();
}

/// A recovery that could not run its second call did not report its first, which had run.
#[test]
fn what_a_recovery_has_done_is_told_also_where_a_later_call_cannot_be_run() {
    let both_told = (1..20).any(|nth| {
        let mut run = interrupted(Idempotency::Natural);
        let none = ToolRunner::new(run.runner.state().clone(), ToolRegistry::new());
        none.recover(&at_once()).unwrap();
        run.counts.lock().unwrap().ran = 0;
        run.write("letter", "half done too", Then::Die).unwrap_err();
        run.reopen(Idempotency::Natural);
        run.disk.inject(Fault::FailNth { op: Op::Write, nth, error: std::io::ErrorKind::Other });
        let Ok(recovered) = run.runner.recover(&at_once()) else { return false };
        matches!(
            recovered.as_slice(),
            [
                RecoveredOperation { recovery: Recovery::RanAgain(first), .. },
                RecoveredOperation { recovery: Recovery::Failed(Error::Io { .. } | Error::Poisoned { .. }), .. },
            ] if first.success
        )
    });
    assert!(both_told);
}

/// A settlement between two steps of its recovery ended the whole recovery with an error, and later
/// calls were not recovered.
#[test]
fn what_is_settled_while_it_is_recovered_is_left_alone_and_the_others_are_not() {
    let mut run = Run::with(Idempotency::Compensate);
    for paper in ["first", "second"] {
        run.counts.lock().unwrap().ran = 0;
        assert!(run.write(paper, paper, Then::Die).is_err());
        run.reopen(Idempotency::Compensate);
        ToolRunner::new(run.runner.state().clone(), ToolRegistry::new()).recover(&at_once()).unwrap();
    }
    let unsettled = run.session().calls().unsettled_operations();
    let [first, second] = unsettled.iter().map(|one| one.operation).collect::<Vec<_>>()[..] else {
        panic!("two calls were interrupted: {unsettled:?}")
    };
    // Settles as soon as the first call is undone, before it runs again.
    let session = run.session().clone();
    run.session().log().subscribe(move |notice| {
        let waits =
            session.calls().unsettled_operations().iter().any(|one| one.operation == first && one.undone);
        if notice.kind().name() == "tool_end" && waits {
            session
                .calls()
                .settle(first, &Settlement::failed(), "a person", "it is not wanted any more")
                .unwrap();
        }
    });
    let [recovered] = run.runner.recover(&at_once()).unwrap().try_into().unwrap();
    assert!(recovered.operation == second && matches!(recovered.recovery, Recovery::RanAgain(_)));
    assert_eq!((run.plan(), run.counts().undone), (vec!["second".to_owned()], 2));
    assert!(run.session().calls().unsettled_operations().is_empty());
}

/// A settlement whose result was nested too deeply was acknowledged, and the log could not be read
/// any more.
#[test]
fn a_settlement_that_could_not_be_read_again_is_refused() {
    let mut run = interrupted(Idempotency::Manual);
    run.runner.recover(&at_once()).unwrap();
    let operation = run.session().calls().unsettled_operations()[0].operation;
    let deep = (0..200).fold(Value::from(1_u64), |inner, _| Value::Array(vec![inner]));
    let refused = run.session().calls().settle(operation, &Settlement::committed(Some(deep)), "a person", "");
    assert!(matches!(refused, Err(Error::Encode { .. })), "{refused:?}");
    run.session().clone().close().unwrap();
    run.reopen(Idempotency::Manual);
    assert_eq!(run.session().calls().unsettled_operations().len(), 1);
}

fn audit(run: &Run) {
    audit_of(&run.disk, run.session());
}

/// Checks that STATE along each position's path, read from the log alone, is STATE as it was there.
pub(super) fn audit_of(disk: &MemoryStorage, session: &Session) {
    let reader = LogReader::open_on(Arc::new(disk.clone()), session.dir()).unwrap();
    let kept = |state: foldlog::State| {
        let slices = state.slices.into_iter().filter(|(_, slice)| slice.policy == Policy::State);
        slices
            .filter(|(_, slice)| !slice.items.is_empty())
            .map(|(name, slice)| (name, slice.items))
            .collect::<Vec<_>>()
    };
    for position in 0..reader.records_len() {
        let along = reader.state_along(position).unwrap_or_else(|error| panic!("at {position}: {error}"));
        assert_eq!(kept(along), kept(reader.state_at(position).unwrap()), "{position}");
    }
}

/// The fold along a path met end records without their start records, and reported an intact log as
/// contradictory.
#[test]
fn a_log_whose_rollbacks_cross_calls_can_be_audited() {
    // A read-only call does not block a rollback.
    let run = Run::new();
    let snapshot = run.session().snapshot(Default::default()).unwrap();
    run.session().dispatch(step("one")).unwrap();
    let reading = with(&run, true, |_| done()).begin(&custom(), &at_once()).unwrap();
    run.session().rollback(&snapshot).unwrap();
    reading.end(ToolResult::ok("done", 0)).unwrap();
    audit(&run);
    // A rollback to before a waiting call, and its settlement afterwards.
    let run = interrupted(Idempotency::Manual);
    run.runner.recover(&at_once()).unwrap();
    let operation = run.session().calls().unsettled_operations()[0].operation;
    run.session().rollback_to(0).unwrap();
    run.session().calls().settle(operation, &Settlement::failed(), "a person", "").unwrap();
    audit(&run);
}

/// A tool's own handle could roll back to before the tool, and not to a snapshot of the tool's own.
#[test]
fn a_tools_handle_goes_back_within_the_call_and_no_further() {
    let run = Run::new();
    let before = run.session().snapshot(Default::default()).unwrap();
    let operation = run.runner.begin(&call("p", "x", Then::Succeed), &at_once()).unwrap();
    let session = operation.context().session().clone();
    assert!(matches!(session.rollback(&before), Err(Error::OutsideTransaction { .. })));
    session.dispatch(step("kept")).unwrap();
    let savepoint = session.snapshot(Default::default()).unwrap();
    session.dispatch(step("not kept")).unwrap();
    session.rollback(&savepoint).unwrap();
    operation.end(ToolResult::ok("done", 0)).unwrap();
    assert_eq!(run.plan(), ["kept"]);
    assert!(matches!(run.session().rollback(&savepoint), Err(Error::InsideTransaction { .. })));
    audit(&run);
}

/// The space for an end record was allocated at the start, and used up by the tool's own writes.
#[test]
fn a_full_disk_does_not_keep_a_call_from_ending() {
    let run = Run::new();
    run.session().dispatch(step("before")).unwrap();
    let operation = run.runner.begin(&call("p", "x", Then::Succeed), &at_once()).unwrap();
    run.disk.inject(Fault::DiskFull { capacity_bytes: 0 });
    while operation.context().session().dispatch(step(&"s".repeat(50))).is_ok() {}
    let report = operation.end(ToolResult::ok("m".repeat(100_000), "v".repeat(100_000))).unwrap();
    assert!(!report.success && report.message.contains("no space"), "{}", report.message);
    assert_eq!((run.plan(), run.session().calls().is_interrupted()), (vec!["before".to_owned()], false));
    run.disk.clear_faults();
    run.session().dispatch(step("next")).unwrap();
}

/// A read-only handle restored the files of a call that ran elsewhere, and then failed to write.
#[test]
fn a_reader_recovers_nothing() {
    let run = Run::new();
    let operation = run.runner.begin(&call("p", "x", Then::Succeed), &at_once()).unwrap();
    run.desk.put("p", "while it runs");
    let reader = store_of(&run.disk).open_read_only(run.id, &types()).unwrap();
    assert!(!reader.calls().is_interrupted() && reader.log().recovery().interrupted.len() == 1);
    let reader = runner(&run.disk, reader, &run.desk, &run.budget, &run.counts, Idempotency::Manual);
    assert!(matches!(reader.recover(&at_once()), Err(Error::ReadOnly { .. })));
    assert_eq!(run.desk.text("p").as_deref(), Some("while it runs"));
    operation.end(ToolResult::ok("done", 0)).unwrap();
}

/// A handler within another waited for itself if it wrote through the outer one's handle.
#[test]
fn a_call_that_writes_by_the_handle_of_the_one_around_it_is_told_so() {
    let run = Run::new();
    let outer = run.runner.begin(&call("p", "x", Then::Succeed), &at_once()).unwrap();
    let handle = outer.context().session().clone();
    let inner = with(&run, false, move |_| {
        handle.dispatch(step("by the outer one's door"))?;
        done()
    });
    let report = inner.within(outer.context()).execute(&custom(), &at_once()).unwrap();
    assert!(report.message.contains("runs on this thread"), "{}", report.message);
    outer.end(ToolResult::ok("done", 0)).unwrap();
}

/// A clean close left dropped calls to be recovered, and to be settled by a person.
#[test]
fn closing_takes_back_what_was_let_go_of() {
    let mut run = Run::new();
    run.desk.put("p", "before");
    let operation = run.runner.begin(&call("p", "x", Then::Succeed), &at_once()).unwrap();
    run.desk.put("p", "half");
    drop(operation);
    run.session().clone().close().unwrap();
    run.reopen(Idempotency::Manual);
    assert!(run.session().log().recovery().interrupted.is_empty());
    assert_eq!(
        (run.desk.text("p").as_deref(), run.ledger()[0].cause),
        (Some("before"), Some(Cause::Dropped))
    );
}

/// A dropped call kept its own session open. Unless that was closed explicitly, it stayed locked
/// for the life of the process, and the call was never rolled back.
#[test]
fn a_session_whose_call_was_let_go_of_closes_with_its_last_handle() {
    let Run { disk, desk, budget, counts, id, runner: first } = Run::new();
    desk.put("p", "before");
    let operation = first.begin(&call("p", "x", Then::Succeed), &at_once()).unwrap();
    desk.put("p", "half");
    drop(operation);
    drop(first);
    let session = store_of(&disk).open_session(id, &types()).unwrap();
    assert!(session.log().recovery().closed && session.log().recovery().interrupted.is_empty());
    assert_eq!(desk.text("p").as_deref(), Some("before"));

    // Also if the call's own handle is the last.
    let second = runner(&disk, session, &desk, &budget, &counts, Idempotency::Manual);
    let operation = second.begin(&call("p", "x", Then::Succeed), &at_once()).unwrap();
    drop(second);
    let locked = store_of(&disk).open_session(id, &types());
    assert!(matches!(locked, Err(Error::Locked { .. })), "a call that runs keeps it open: {locked:?}");
    desk.put("p", "half");
    drop(operation);
    assert!(store_of(&disk).open_session(id, &types()).unwrap().log().recovery().closed);
    assert_eq!(desk.text("p").as_deref(), Some("before"));
}

/// An outer call's deadline did not apply to programs of an inner call, and an inner one's applied
/// to the outer call.
#[test]
fn deadlines_reach_inwards_and_not_outwards() {
    let run = Run::new();
    let inner = with(&run, false, |context| {
        context.command("/bin/sh").args(["-c", "sleep 30"]).status()?;
        done()
    });
    let delegate = |inner: ToolRunner, options: ExecuteOptions| {
        let tools = ToolRegistry::new().with(Outer(Box::new(move |context| {
            match inner.within(context).execute(&custom(), &options)? {
                // Its own deadline may have passed too, and then it ends for that reason.
                report if report.success || context.is_cancelled() => done(),
                report => Err(ToolError::failed(report.message)),
            }
        })));
        ToolRunner::new(run.runner.state().clone(), tools)
    };
    let soon = ExecuteOptions { deadline: Some(Duration::from_secs(1)), ..ExecuteOptions::default() };
    let outer = ToolCall::new("outer", "{}");
    let since = Instant::now();
    let late = delegate(inner.clone(), at_once()).execute(&outer, &soon);
    assert!(is_late(&late), "{late:?}");
    assert!(since.elapsed() < Duration::from_secs(20));
    let report = delegate(inner, soon).execute(&outer, &at_once()).unwrap();
    assert_eq!(report.cause, Some(Cause::Error), "the outer one has no deadline");
}

struct Outer(Box<Do>);

impl Tool for Outer {
    const NAME: &'static str = "outer";
    type Parameters = Nothing;
    type Output = u64;

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<u64>, ToolError> {
        (self.0)(context)
    }
}

/// A call whose deadline had passed before it began ran all the same.
#[test]
fn a_call_whose_time_is_over_does_not_run() {
    let run = Run::new();
    let late = run.runner.execute(
        &call("p", "x", Then::Succeed),
        &ExecuteOptions { deadline: Some(Duration::ZERO), ..ExecuteOptions::default() },
    );
    assert!(is_late(&late) || matches!(late, Err(Error::DeadlineExceeded { .. })), "{late:?}");
    assert_eq!(run.counts().ran, 0);
}

/// The start record of a read-only call was not durable at a level that requires it for every
/// record. At other levels neither it nor any later record was delivered to subscribers before the
/// next sync.
#[test]
fn a_begin_that_reads_only_is_as_durable_as_its_level_says() {
    let disk = MemoryStorage::new();
    let options = SessionOptions { durability: Some(Durability::Every), ..SessionOptions::default() };
    let session = store_of(&disk).create_with(&types(), options).unwrap();
    let tools = ToolRegistry::new().with(Custom { run: Box::new(|_| done()), reads_only: true });
    let runner = ToolRunner::new(ExecutionState::new(session.clone(), ResourceRegistry::default()), tools);
    let operation = runner.begin(&custom(), &at_once()).unwrap();
    assert!(session.log().synced_end() > operation.id().into());
    operation.end(ToolResult::ok("done", 0)).unwrap();

    let run = Run::new();
    let told = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&told);
    run.session().log().subscribe(move |notice| into.lock().unwrap().push(notice.kind().name()));
    let operation = with(&run, true, |_| done()).begin(&custom(), &at_once()).unwrap();
    assert_eq!(*told.lock().unwrap(), ["declare", "tool_begin"]);
    operation.end(ToolResult::ok("done", 0)).unwrap();
}

/// An interrupted read-only call waited for a person, since it had no other declaration.
#[test]
fn an_interrupted_call_that_reads_only_runs_again() {
    let mut run = Run::new();
    let ran = Arc::new(Mutex::new(0));
    let look = |run: &Run| {
        let (disk, ran) = (run.disk.clone(), Arc::clone(&ran));
        with(run, true, move |_| {
            let mut ran = ran.lock().unwrap();
            *ran += 1;
            if *ran == 1 {
                disk.crash(CrashKind::Process);
            }
            done()
        })
    };
    assert!(look(&run).execute(&custom(), &at_once()).is_err());
    run.reopen(Idempotency::Manual);
    let [recovered] = look(&run).recover(&at_once()).unwrap().try_into().unwrap();
    assert!(matches!(recovered.recovery, Recovery::RanAgain(report) if report.success));
    assert_eq!((*ran.lock().unwrap(), run.ledger()[0].outcome), (2, OperationStatus::Committed));
}

/// An inner call by a runner with other resources was not rolled back with the outer one.
#[test]
fn a_call_within_one_of_another_run_is_refused() {
    let run = Run::new();
    let resources = ResourceRegistry::builder().snapshotable(Arc::new(Desk::default())).build().unwrap();
    let other =
        ToolRunner::new(ExecutionState::new(run.session().clone(), resources), run.runner.tools().clone());
    let outer = run.runner.begin(&call("p", "x", Then::Succeed), &at_once()).unwrap();
    let refused = other.within(outer.context()).execute(&call("p", "y", Then::Succeed), &at_once());
    assert!(matches!(refused, Err(Error::SnapshotMismatch(_))), "{refused:?}");
    outer.end(ToolResult::ok("done", 0)).unwrap();
}

#[test]
fn what_an_answer_asked_for_within_a_call_is_still_known_when_that_call_is_over() {
    // The search went backwards from the last end record, and stopped at a call that had begun
    // before the answer: the outer one, whose end is the last. A call committed within it ran a
    // second time.
    let run = Run::new();
    let (inner, answers) = (run.runner.clone(), Arc::new(Mutex::new(Vec::new())));
    let told = Arc::clone(&answers);
    let outer = with(&run, false, move |context| {
        let answer = context.session().dispatch(Noted { text: "an answer".to_owned() })?;
        let asked = call("paper", "one", Then::Succeed).with_origin(answer, 0);
        inner.within(context).execute(&asked, &at_once())?;
        told.lock().unwrap().push(asked);
        done()
    });
    assert!(outer.execute(&custom(), &at_once()).unwrap().success);
    let asked = answers.lock().unwrap().pop().unwrap();
    let report = run.runner.execute(&asked, &at_once()).unwrap();
    assert_eq!((report.recorded, run.counts().ran), (true, 1));
}

/// Fills the disk until a record is refused.
fn fill(disk: &MemoryStorage, session: &Session) {
    disk.inject(Fault::DiskFull { capacity_bytes: disk.used_bytes() });
    for title in ["x".repeat(1_000), String::new()] {
        let refused = (0..).find_map(|_| session.dispatch(step(&title)).err()).unwrap();
        assert!(matches!(refused, Error::Full { .. }), "{refused}");
    }
}

/// After such a failure, a call began further programs that no record named.
#[test]
fn a_leader_that_cannot_be_recorded_leads_no_program() {
    let run = Run::new();
    let disk = run.disk.clone();
    let runner = with(&run, false, move |context| {
        fill(&disk, context.session());
        let refused = context.command("/bin/true").output().unwrap_err();
        assert!(matches!(refused, ToolError::Engine(Error::Full { .. })), "{refused}");
        disk.clear_faults();
        context.command("/bin/true").output()?;
        done()
    });
    assert!(runner.execute(&custom(), &at_once()).unwrap().success);
    let (session, mut named) = (run.session(), 0);
    let count = |record: &foldlog::Record<'_>| {
        named += usize::from(record.body.windows(16).any(|bytes| bytes == b"foldlog.programs"));
        Ok(())
    };
    session.log().records(SequenceNumber::MIN, session.log().position().unwrap(), count).unwrap();
    assert_eq!(named, 1);
}

/// The failure to record the answer replaced what the tool had reported.
#[test]
fn effects_outside_are_recorded_as_reported_if_the_answer_cannot_be_recorded() {
    let run = Run::new();
    let disk = run.disk.clone();
    let runner = with(&run, false, move |context| {
        fill(&disk, context.session());
        let outside = Some(ExternalEffects::Unknown);
        Ok(ToolResult { outside, ..ToolResult::ok("x".repeat(100_000), 1) })
    });
    let report = runner.execute(&custom(), &at_once()).unwrap();
    assert!(report.message.starts_with("there is no space to record"), "{}", report.message);
    assert_eq!(report.outside, ExternalEffects::Unknown);
    assert_eq!(run.ledger().last().unwrap().effects, Some(ExternalEffects::Unknown));
}

/// Each call that ran after another one had the whole time.
#[test]
fn the_deadline_of_several_calls_counts_from_the_first_one() {
    let run = Run::new();
    let began = Arc::new(Mutex::new(0));
    let counts = Arc::clone(&began);
    let runner = with(&run, false, move |context| {
        *counts.lock().unwrap() += 1;
        while !context.is_cancelled() {
            thread::yield_now();
        }
        done()
    });
    let options = ExecuteOptions { deadline: Some(Duration::from_secs(1)), ..at_once() };
    let [first, second] =
        <[_; 2]>::try_from(runner.execute_together(&[custom(), custom()], &options)).unwrap();
    assert!(is_late(&first), "{first:?}");
    assert!(is_late(&second), "{second:?}");
    assert_eq!(*began.lock().unwrap(), 1);
}

/// The call's place was a line of the engine.
#[test]
fn a_wait_for_one_of_several_calls_names_the_line_of_the_host() {
    let limit = Duration::from_millis(10);
    let run = Run::in_store(Idempotency::Manual, StoreOptions { wait: limit, ..StoreOptions::default() });
    let session = run.session().clone();
    let runner = with(&run, false, move |_| {
        let waits =
            thread::scope(|scope| scope.spawn(|| session.dispatch(step("waits")).map(drop)).join().unwrap());
        Err(ToolError::failed(waits.unwrap_err().to_string()))
    });
    let line = line!() + 1;
    let reports = runner.execute_together(&[custom(), custom()], &at_once());
    for report in reports {
        let message = report.unwrap().message;
        assert!(message.contains(&format!("started at {}:{line}:", file!())), "{message}");
    }
}

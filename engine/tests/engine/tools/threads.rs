//! Which calls wait for which.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::Duration;

use foldlog::{OperationId, Outcome};

use super::*;

/// Reads the plan while others do.
struct Reader {
    together: Arc<Barrier>,
}

impl Tool for Reader {
    const NAME: &'static str = "read";
    type Parameters = Nothing;
    type Output = u64;

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn reads_only(&self) -> bool {
        true
    }

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<u64>, ToolError> {
        // Passed only once all are inside their handlers.
        self.together.wait();
        let changed = context.session().dispatch(StepAdded { title: "no".to_owned(), part: 0 });
        assert!(matches!(changed, Err(Error::ReadsOnly { .. })), "{changed:?}");
        context.session().dispatch(Noted { text: "read".to_owned() })?;
        Ok(ToolResult::ok("read", context.session().view::<Plan>()?.len()))
    }
}

#[test]
fn tools_that_read_only_are_inside_their_handlers_together() {
    let run = Run::new();
    let together = Arc::new(Barrier::new(3));
    let runner = ToolRunner::new(run.runner.state().clone(), ToolRegistry::new().with(Reader { together }));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                assert!(
                    runner.execute(&ToolCall::new("read", "{}"), &ExecuteOptions::default()).unwrap().success
                )
            });
        }
    });
    assert_eq!((run.invoked().len(), notes(run.session())), (3, 3));
}

/// Adds the length of the plan to the plan.
struct Counter;

impl Tool for Counter {
    const NAME: &'static str = "count";
    type Parameters = Nothing;
    type Output = u64;

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<u64>, ToolError> {
        let session = context.session();
        let count = session.view::<Plan>()?.len();
        thread::yield_now();
        session.dispatch(StepAdded { title: count.to_string(), part: 0 })?;
        if count % 3 == 2 {
            Err(ToolError::failed("not this one"))
        } else {
            Ok(ToolResult::ok("counted", count))
        }
    }
}

#[test]
fn tools_that_change_something_run_one_after_the_other() {
    let run = Run::new();
    let runner = ToolRunner::new(run.runner.state().clone(), ToolRegistry::new().with(Counter));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    runner.execute(&ToolCall::new("count", "{}"), &ExecuteOptions::default()).unwrap();
                }
            });
        }
    });
    // No update is lost or seen half done: each count follows the one before it.
    assert_eq!(run.plan(), ["0", "1"]);
    assert_eq!(run.invoked().iter().filter(|one| one.cause == Some(Cause::Error)).count(), 98);
}

#[test]
fn a_write_from_outside_waits_and_survives_the_tools_failure() {
    let run = Run::new();
    let operation =
        run.runner.begin(&call("paper", "inside", Then::Succeed), &ExecuteOptions::default()).unwrap();
    write(
        operation.context(),
        &Write { paper: "paper".to_owned(), text: "inside".to_owned(), then: Then::Fail },
    )
    .unwrap();
    // LOG does not wait.
    run.session().dispatch(Noted { text: "from outside".to_owned() }).unwrap();
    thread::scope(|scope| {
        let (started, session) = (Arc::new(Barrier::new(2)), run.session().clone());
        let begun = Arc::clone(&started);
        let outside = scope.spawn(move || {
            begun.wait();
            session.dispatch(StepAdded { title: "outside".to_owned(), part: 0 }).unwrap()
        });
        started.wait();
        let report = operation.fail(ToolError::failed("no")).unwrap();
        assert!(outside.join().unwrap() > report.end, "it came after the end, whenever it was tried");
    });
    assert_eq!(run.plan(), ["outside"]);
    assert_eq!(notes(run.session()), 2);
}

#[test]
fn a_begin_that_waits_past_its_deadline_leaves_nothing() {
    let run = Run::new();
    let operation =
        run.runner.begin(&call("paper", "first", Then::Succeed), &ExecuteOptions::default()).unwrap();
    operation.hand_over();
    let records = run.session().log().position();
    let options = ExecuteOptions { deadline: Some(Duration::from_millis(5)), ..ExecuteOptions::default() };
    let late = run.runner.execute(&call("paper", "second", Then::Succeed), &options);
    assert!(matches!(late, Err(Error::DeadlineExceeded { operation: None })), "{late:?}");
    assert_eq!((run.session().log().position(), run.counts().ran), (records, 0));
    assert!(operation.end(ToolResult::ok("done", 0)).unwrap().success);
    assert_eq!(run.invoked().len(), 1);
}

#[test]
fn a_tool_whose_time_is_over_is_taken_back() {
    let run = Run::new();
    let options = ExecuteOptions { deadline: Some(Duration::ZERO), ..ExecuteOptions::default() };
    let operation = run
        .runner
        .begin(
            &call("paper", "late", Then::Succeed),
            &ExecuteOptions { deadline: Some(Duration::from_secs(60)), ..ExecuteOptions::default() },
        )
        .unwrap();
    operation.cancel();
    let refused = operation.context().session().dispatch(StepAdded { title: "late".to_owned(), part: 0 });
    assert!(matches!(refused, Err(Error::Revoked { .. })), "{refused:?}");
    operation.abort("cancelled").unwrap();
    let late = run.runner.execute(&call("paper", "late", Then::Succeed), &options);
    assert!(is_late(&late) || matches!(late, Err(Error::DeadlineExceeded { .. })), "{late:?}");
    assert_eq!(run.state(), (vec![], [].into()));
}

/// Writes through the session's own handle, which waits for the very call it is in.
struct Careless {
    session: Session,
}

impl Tool for Careless {
    const NAME: &'static str = "careless";
    type Parameters = Nothing;
    type Output = u64;

    fn call(&self, _: Nothing, _: &ToolContext) -> Result<ToolResult<u64>, ToolError> {
        self.session.dispatch(StepAdded { title: "by the wrong door".to_owned(), part: 0 })?;
        Ok(ToolResult::ok("unreachable", 0))
    }
}

#[test]
fn a_tool_that_would_wait_for_itself_is_told_so() {
    let run = Run::new();
    let tools = ToolRegistry::new().with(Careless { session: run.session().clone() });
    let runner = ToolRunner::new(run.runner.state().clone(), tools);
    let report = runner.execute(&ToolCall::new("careless", "{}"), &ExecuteOptions::default()).unwrap();
    assert!(
        !report.success && report.message.contains("write through the session of its context"),
        "{report:?}"
    );
}

/// Continues after its deadline until it is released.
#[derive(Clone)]
struct Stubborn {
    runs: Arc<AtomicBool>,
    late: Arc<Barrier>,
    let_go: Arc<Barrier>,
}

impl Tool for Stubborn {
    const NAME: &'static str = "stubborn";
    type Parameters = Nothing;
    type Output = u64;

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<u64>, ToolError> {
        context.session().dispatch(StepAdded { title: "begun".to_owned(), part: 0 })?;
        self.runs.store(true, Ordering::Relaxed);
        context.resources().get::<Desk>().unwrap().put("paper", "half done");
        while !context.is_cancelled() {
            thread::yield_now();
        }
        self.late.wait();
        self.let_go.wait();
        context.resources().get::<Desk>().unwrap().put("paper", "done after all");
        Ok(ToolResult::ok("too late", 1))
    }
}

/// Runs `while_stuck` while a tool is stuck, then releases the tool and returns the result of its
/// call.
fn with_a_stuck_tool(run: &Run, while_stuck: impl FnOnce(&ToolRunner)) -> Result<ToolReport> {
    let (late, let_go) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let stubborn = Stubborn { runs: Arc::default(), late, let_go };
    let tools = run.runner.tools().clone().with(stubborn.clone());
    let runner = ToolRunner::new(run.runner.state().clone(), tools);
    let call = ToolCall::new("stubborn", "{}");
    // On a busy machine the deadline may pass before the tool runs; then it gets more time.
    let run_until_late = || {
        let mut deadline = Duration::from_millis(5);
        loop {
            let ended = runner
                .execute(&call, &ExecuteOptions { deadline: Some(deadline), ..ExecuteOptions::default() });
            if stubborn.runs.load(Ordering::Relaxed) {
                return ended;
            }
            deadline *= 2;
        }
    };
    thread::scope(|scope| {
        let running = scope.spawn(run_until_late);
        stubborn.late.wait();
        let looked = catch_unwind(AssertUnwindSafe(|| while_stuck(&runner)));
        // Whatever the outcome, so that a failure is no endless wait.
        stubborn.let_go.wait();
        let ended = running.join().unwrap();
        looked.map_or_else(|found| resume_unwind(found), |()| ended)
    })
}

fn is_stuck<T>(result: Result<T>, operation: OperationId) -> bool {
    matches!(result, Err(Error::Stuck { operation: stuck }) if stuck == operation)
}

/// The grace period was fixed at ten seconds, and only waiting calls learnt of a stuck tool.
#[test]
fn a_tool_that_does_not_end_after_its_time_and_the_grace_is_stuck_and_the_session_says_so() {
    let run = Run::without_grace();
    run.desk.put("paper", "as it was");
    assert!(run.session().calls().stuck_operations().is_empty());
    let late = with_a_stuck_tool(&run, |runner| {
        let session = run.session();
        let [stuck] = session.calls().stuck_operations().try_into().unwrap();
        assert_eq!(
            (stuck.tool.as_str(), session.calls().open_operations()),
            ("stubborn", vec![stuck.clone()])
        );
        let operation = stuck.operation;
        // Calls that would wait for it fail at once, with a deadline of their own or without.
        for deadline in [Some(Duration::from_secs(2)), None] {
            let options = ExecuteOptions { deadline, ..ExecuteOptions::default() };
            assert!(is_stuck(runner.begin(&call("paper", "next", Then::Succeed), &options), operation));
            assert!(is_stuck(runner.execute(&call("paper", "next", Then::Succeed), &options), operation));
        }
        assert!(is_stuck(session.dispatch(StepAdded { title: "next".to_owned(), part: 0 }), operation));
        assert!(is_stuck(runner.state().snapshot(None), operation));
        assert!(is_stuck(session.rollback_to(0), operation));
        // Writes of LOG do not wait, and neither do reads.
        session.dispatch(Noted { text: "noted".to_owned() }).unwrap();
        assert_eq!((plan(session), notes(session)), (vec!["begun".to_owned()], 1));
        assert!(!session.calls().is_interrupted());
    });
    // It has ended after all: like any late call it is rolled back, and the session continues.
    assert!(is_late(&late), "{late:?}");
    assert_eq!(run.state(), (vec![], [("paper".to_owned(), "as it was".to_owned())].into()));
    let invoked = run.invoked();
    assert!(
        !invoked.is_empty() && invoked.iter().all(|one| one.cause == Some(Cause::Deadline)),
        "{invoked:?}"
    );
    assert!(run.session().calls().stuck_operations().is_empty());
    assert!(run.write("paper", "next", Then::Succeed).unwrap().success);
}

/// Closing reported success, and the next process found an interrupted session.
#[test]
fn a_session_that_is_closed_over_a_stuck_tool_says_so_and_is_recovered_by_the_next_one() {
    let mut run = Run::without_grace();
    run.desk.put("paper", "as it was");
    let late = with_a_stuck_tool(&run, |_| {
        let operation = run.session().calls().stuck_operations()[0].operation;
        assert!(is_stuck(run.session().clone().close(), operation));
        let closed = run.session().dispatch(Noted { text: "too late".to_owned() });
        assert!(matches!(closed, Err(Error::Closed { .. })), "{closed:?}");
        assert!(run.session().clone().close().is_ok(), "it is told once");
    });
    assert!(matches!(late, Err(Error::Closed { .. })), "its end could not be recorded: {late:?}");
    run.reopen(Idempotency::Manual);
    assert_eq!(run.session().log().recovery().interrupted[0].tool, "stubborn");
    assert!(plan(run.session()).is_empty());
    run.runner.recover(&ExecuteOptions::default()).unwrap();
    assert_eq!(run.state(), (vec![], [("paper".to_owned(), "as it was".to_owned())].into()));
    assert_eq!(run.invoked().last().map(|one| one.outcome), Some(Outcome::Interrupted));
}

/// A call that is only late is waited for during its grace period.
#[test]
fn a_tool_that_is_late_is_not_stuck_within_its_grace() {
    let run = Run::new();
    let late = with_a_stuck_tool(&run, |runner| {
        assert!(run.session().calls().stuck_operations().is_empty());
        let options = ExecuteOptions { deadline: Some(Duration::ZERO), ..ExecuteOptions::default() };
        let next = runner.begin(&call("paper", "next", Then::Succeed), &options);
        assert!(matches!(next, Err(Error::DeadlineExceeded { operation: None })), "{next:?}");
    });
    assert!(is_late(&late), "{late:?}");
}

/// Begins a call without a deadline of a tool that runs elsewhere.
fn begun(runner: &ToolRunner, text: &str) -> foldlog::tools::Operation {
    let operation = runner.begin(&call("paper", text, Then::Succeed), &ExecuteOptions::default()).unwrap();
    operation.hand_over();
    operation.context().session().dispatch(StepAdded { title: text.to_owned(), part: 0 }).unwrap();
    operation.context().resources().get::<Desk>().unwrap().put("paper", text);
    operation
}

fn names_of_the_stuck(session: &Session) -> Vec<OperationId> {
    session.calls().stuck_operations().iter().map(|stuck| stuck.operation).collect()
}

/// Without a deadline a call was never stuck, however long ago it was cancelled, and other calls
/// waited for it for ever.
#[test]
fn a_cancelled_call_that_does_not_end_within_the_grace_is_stuck_though_it_has_no_deadline() {
    // A distant deadline changes nothing: the first signal to stop counts.
    for deadline in [None, Some(Duration::from_secs(3600))] {
        let run = Run::without_grace();
        run.desk.put("paper", "as it was");
        let options = ExecuteOptions { deadline, ..ExecuteOptions::default() };
        let operation = run.runner.begin(&call("paper", "half done", Then::Succeed), &options).unwrap();
        let (id, session) = (operation.id(), run.session());
        write(
            operation.context(),
            &Write { paper: "paper".to_owned(), text: "half done".to_owned(), then: Then::Succeed },
        )
        .unwrap();
        assert!(session.calls().stuck_operations().is_empty(), "it may run for as long as it likes");
        operation.cancel();
        operation.cancel();
        assert_eq!(names_of_the_stuck(session), [id]);
        for deadline in [Some(Duration::from_secs(2)), None] {
            let options = ExecuteOptions { deadline, ..ExecuteOptions::default() };
            assert!(is_stuck(run.runner.begin(&call("paper", "next", Then::Succeed), &options), id));
        }
        assert!(is_stuck(run.write("paper", "next", Then::Succeed), id));
        assert!(is_stuck(session.dispatch(StepAdded { title: "next".to_owned(), part: 0 }), id));
        assert!(is_stuck(run.runner.state().snapshot(None), id));
        session.dispatch(Noted { text: "noted".to_owned() }).unwrap();
        // It ends after all with success, but it was not allowed to work after it was cancelled.
        let ended = operation.end(ToolResult::ok("done after all", 1)).unwrap();
        assert_eq!((ended.success, ended.cause), (false, Some(Cause::Cancelled)));
        assert_eq!(run.state(), (vec![], [("paper".to_owned(), "as it was".to_owned())].into()));
        assert!(session.calls().stuck_operations().is_empty() && !session.calls().is_interrupted());
        assert!(run.write("paper", "next", Then::Succeed).unwrap().success);
    }
}

/// A cancelled call is waited for during its grace period. A dropped one is not stuck, since the
/// next call rolls it back.
#[test]
fn a_cancelled_call_is_not_stuck_within_its_grace_nor_where_it_was_let_go_of() {
    let run = Run::new();
    let operation = begun(&run.runner, "first");
    operation.cancel();
    assert!(run.session().calls().stuck_operations().is_empty());
    let options = ExecuteOptions { deadline: Some(Duration::ZERO), ..ExecuteOptions::default() };
    let next = run.runner.begin(&call("paper", "next", Then::Succeed), &options);
    assert!(matches!(next, Err(Error::DeadlineExceeded { operation: None })), "{next:?}");
    operation.abort("cancelled").unwrap();

    let run = Run::without_grace();
    let operation = begun(&run.runner, "first");
    operation.cancel();
    drop(operation);
    assert!(run.session().calls().stuck_operations().is_empty());
    assert!(run.write("paper", "next", Then::Succeed).unwrap().success);
    assert_eq!(run.plan(), ["next"]);
    let causes: Vec<_> = run.invoked().iter().map(|one| one.cause).collect();
    assert_eq!(causes, [Some(Cause::Dropped), None]);
}

/// Waits until a thread of this process sleeps. It takes no lock that another thread holds, so it
/// sleeps until its turn.
fn until_it_sleeps(thread: nix::unistd::Pid) {
    let path = format!("/proc/self/task/{thread}/stat");
    loop {
        let stat = std::fs::read_to_string(&path).unwrap();
        // The state follows the name, which may contain anything.
        if stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S')) {
            return;
        }
        thread::yield_now();
    }
}

/// A cancellation started no grace period for calls that already waited, and inner calls were not
/// notified at all.
#[test]
fn who_waits_already_when_a_call_is_cancelled_is_told_and_those_within_the_call_are_stuck_with_it() {
    let run = Run::without_grace();
    let outer = begun(&run.runner, "outer");
    let (late, let_go) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let stubborn = Stubborn { runs: Arc::default(), late, let_go };
    let tools = run.runner.tools().clone().with(stubborn.clone());
    let within = ToolRunner::new(run.runner.state().clone(), tools).within(outer.context());
    thread::scope(|scope| {
        let inner =
            scope.spawn(|| within.execute(&ToolCall::new("stubborn", "{}"), &ExecuteOptions::default()));
        while !stubborn.runs.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        let ((waits, waiting), (tells, told)) = (mpsc::channel(), mpsc::channel());
        let options = ExecuteOptions::default();
        scope.spawn({
            let run = &run;
            move || {
                waits.send(nix::unistd::gettid()).unwrap();
                let next = run.runner.begin(&call("paper", "next", Then::Succeed), &options);
                tells.send(next.map(|next| next.id())).unwrap();
            }
        });
        until_it_sleeps(waiting.recv().unwrap());
        outer.cancel();
        // A call that is not woken is detected, and not waited for.
        let told = told.recv_timeout(Duration::from_secs(20));
        stubborn.late.wait();
        let stuck = names_of_the_stuck(run.session());
        stubborn.let_go.wait();
        let inner = inner.join().unwrap().unwrap();
        let outer_stuck = names_of_the_stuck(run.session());
        let (id, ended) = (outer.id(), outer.fail(ToolError::Cancelled).unwrap());
        assert!(told.is_ok_and(|told| is_stuck(told, id)));
        assert_eq!((inner.cause, stuck), (Some(Cause::Cancelled), vec![id, inner.operation]));
        assert_eq!((ended.cause, outer_stuck), (Some(Cause::Cancelled), vec![id]));
    });
    assert!(run.plan().is_empty());
    assert!(run.write("paper", "next", Then::Succeed).unwrap().success);
}

/// Calls that waited for the outer call were never told of the inner one that kept it from ending.
#[test]
fn a_call_that_cannot_end_for_a_stuck_one_within_it_is_waited_for_no_longer_than_that_one() {
    let run = Run::without_grace();
    // A deadline, so that a failure is no endless wait.
    let options = ExecuteOptions { deadline: Some(Duration::from_secs(20)), ..ExecuteOptions::default() };
    let next = || run.runner.execute(&call("paper", "next", Then::Succeed), &options);
    let outer = begun(&run.runner, "outer");
    let inner = begun(&run.runner.within(outer.context()), "inner");
    // Only the cancelled inner call is stuck.
    inner.cancel();
    assert_eq!(names_of_the_stuck(run.session()), [inner.id()]);
    assert!(is_stuck(next(), inner.id()));
    inner.abort("cancelled").unwrap();
    assert!(run.session().calls().stuck_operations().is_empty());

    // A read-only call does not block other readers itself, but it keeps its outer call from
    // ending.
    let tools = run.runner.tools().clone().with(Reader { together: Arc::new(Barrier::new(1)) });
    let reading = ToolRunner::new(run.runner.state().clone(), tools);
    let read = |runner: &ToolRunner| runner.begin(&ToolCall::new("read", "{}"), &options);
    let inner = read(&reading.within(outer.context())).unwrap();
    inner.cancel();
    assert!(is_stuck(read(&reading), inner.id()));
    inner.abort("cancelled").unwrap();

    // An inner call that outlives its outer call is cancelled by that one's end.
    let inner = begun(&run.runner.within(outer.context()), "inner");
    assert!(is_stuck(outer.end(ToolResult::ok("done", 0)), inner.id()));
    assert_eq!(names_of_the_stuck(run.session()), [inner.id()]);
    assert!(is_stuck(next(), inner.id()));
    assert_eq!(inner.end(ToolResult::ok("done after all", 0)).unwrap().cause, Some(Cause::Cancelled));
    // The next call rolls back the one that could not be ended.
    assert!(next().unwrap().success);
    assert_eq!(run.plan(), ["next"]);
    let (causes, stopped): (Vec<_>, _) =
        (run.invoked().iter().map(|one| one.cause).collect(), Some(Cause::Cancelled));
    assert_eq!(causes, [stopped, stopped, stopped, Some(Cause::Dropped), None]);
}

/// Closing reported success although a cancelled call had not ended.
#[test]
fn a_session_that_is_closed_over_a_cancelled_call_that_is_stuck_says_so() {
    let mut run = Run::without_grace();
    run.desk.put("paper", "as it was");
    let operation = begun(&run.runner, "half done");
    let id = operation.id();
    operation.cancel();
    assert!(is_stuck(run.session().clone().close(), id));
    let ended = operation.end(ToolResult::ok("too late", 0));
    assert!(matches!(ended, Err(Error::Closed { .. })), "{ended:?}");
    run.reopen(Idempotency::Manual);
    assert_eq!(run.session().log().recovery().interrupted[0].operation, id);
    run.runner.recover(&ExecuteOptions::default()).unwrap();
    assert_eq!(run.state(), (vec![], [("paper".to_owned(), "as it was".to_owned())].into()));
}

/// The end of a dropped call was taken over while the call's handle was still valid. A call that
/// another thread began within it at that moment kept it from ending, and the end was not tried
/// again. Later calls were told that it was stuck, and waited for ever once the inner call was
/// over. The moment is short, so it takes some rounds to meet it; the engine's own test of an
/// operation stops within it.
#[test]
fn a_call_that_was_let_go_of_ends_although_another_thread_begins_calls_within_it() {
    let begin = |runner: &ToolRunner| runner.begin(&ToolCall::new("read", "{}"), &ExecuteOptions::default());
    let one = |runner: &ToolRunner| begin(runner).and_then(|begun| begun.abort("it is over"));
    for round in 0..300 {
        let run = Run::without_grace();
        // Read-only calls do not wait for each other, and without resources the threads do little
        // else than begin.
        let tools = ToolRegistry::new().with(Reader { together: Arc::new(Barrier::new(1)) });
        let state = ExecutionState::new(run.session().clone(), ResourceRegistry::default());
        let runner = ToolRunner::new(state, tools);
        let outer = begin(&runner).unwrap();
        let (within, id, start) = (runner.within(outer.context()), outer.id(), Barrier::new(2));
        drop(outer);
        let (ended, refused) = thread::scope(|scope| {
            let begins = scope.spawn(|| {
                start.wait();
                loop {
                    match one(&within) {
                        Ok(_) => {}
                        Err(refused) => return refused,
                    }
                }
            });
            start.wait();
            // The first one that finds no call at work within it ends it.
            let ended = loop {
                let next = one(&runner);
                if next.is_err() || run.session().calls().open_operations().is_empty() {
                    break next;
                }
            };
            (ended, begins.join().unwrap())
        });
        assert!(ended.is_ok(), "round {round}: {ended:?}");
        assert!(matches!(refused, Error::Revoked { operation, .. } if operation == id), "{refused:?}");
        assert!(
            run.session().calls().open_operations().is_empty() && !run.session().calls().is_interrupted()
        );
        assert_eq!(run.invoked().iter().filter(|one| one.cause == Some(Cause::Dropped)).count(), 1);
    }
}

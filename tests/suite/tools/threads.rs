//! Who waits for whom.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use foldlog::Cause;

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

/// Counts up what it finds in the plan.
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
    // No update is lost and none is seen half: each counted on what the one before it had left.
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
    // LOG passes.
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
    let records = run.session().position();
    let options = ExecuteOptions { deadline: Some(Duration::from_millis(5)) };
    let late = run.runner.execute(&call("paper", "second", Then::Succeed), &options);
    assert!(matches!(late, Err(Error::DeadlineExceeded { operation: None })), "{late:?}");
    assert_eq!((run.session().position(), run.counts().ran), (records, 0));
    assert!(operation.end(ToolResult::ok("done", 0)).unwrap().success);
    assert_eq!(run.invoked().len(), 1);
}

#[test]
fn a_tool_whose_time_is_over_is_taken_back() {
    let run = Run::new();
    let options = ExecuteOptions { deadline: Some(Duration::ZERO) };
    let operation = run
        .runner
        .begin(
            &call("paper", "late", Then::Succeed),
            &ExecuteOptions { deadline: Some(Duration::from_secs(60)) },
        )
        .unwrap();
    operation.cancel();
    let refused = operation.context().session().dispatch(StepAdded { title: "late".to_owned(), part: 0 });
    assert!(matches!(refused, Err(Error::Revoked { .. })), "{refused:?}");
    operation.abort("cancelled").unwrap();
    let late = run.runner.execute(&call("paper", "late", Then::Succeed), &options);
    assert!(matches!(late, Err(Error::DeadlineExceeded { .. })), "{late:?}");
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
    assert!(!report.success && report.message.contains("write through its context's session"), "{report:?}");
}

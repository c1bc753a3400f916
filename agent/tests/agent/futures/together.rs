//! Runs the calls of one answer concurrently, as futures on one thread.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldlog::tools::{
    AsyncTool, ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{CallOrigin, Cause, Idempotency, Outcome, SequenceNumber, ToolInvocations};
use tokio::sync::{Barrier, Notify};

use super::story::{Desk, Line};
use super::{dropped_once, single, soon};

/// Waits for as many calls as the barrier has. The call `last` ends first, then those before it in
/// reverse order.
struct Meets<const OUTSIDE: bool> {
    barrier: Barrier,
    /// The call that ends next, and a notification of each end.
    next: Mutex<usize>,
    ended: Notify,
}

impl<const OUTSIDE: bool> Meets<OUTSIDE> {
    fn of(calls: usize) -> Self {
        Meets { barrier: Barrier::new(calls), next: Mutex::new(calls - 1), ended: Notify::new() }
    }
}

impl<const OUTSIDE: bool> AsyncTool for Meets<OUTSIDE> {
    const NAME: &'static str = if OUTSIDE { "requests" } else { "reads" };
    type Parameters = Line;
    type Output = ();

    fn reads_only(&self) -> bool {
        !OUTSIDE
    }

    fn outside_only(&self) -> bool {
        OUTSIDE
    }

    async fn call(&self, line: Line, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        self.barrier.wait().await;
        let own: usize = line.text.parse().unwrap();
        loop {
            let ended = self.ended.notified();
            if *self.next.lock().unwrap() == own {
                break;
            }
            ended.await;
        }
        *self.next.lock().unwrap() = own.wrapping_sub(1);
        self.ended.notify_waiters();
        if own == 1 { Err(ToolError::failed("no")) } else { Ok(ToolResult::ok(line.text, ())) }
    }
}

fn calls(name: &str, count: usize) -> Vec<ToolCall> {
    let call =
        |number: usize| ToolCall::new(name, serde_json::json!({ "text": number.to_string() }).to_string());
    (0..count).map(call).collect()
}

/// Returns the ends of the calls in the order of the log.
fn ends(desk: &Desk) -> Vec<(Outcome, Option<Cause>)> {
    let log = desk.session().log().slice::<ToolInvocations>().unwrap();
    log.iter().map(|item| item.unwrap()).map(|item| (item.outcome, item.cause)).collect()
}

fn together(tools: ToolRegistry, name: &str) -> (Desk, Vec<String>, Vec<u64>) {
    let desk = Desk::new();
    let runner = ToolRunner::new(desk.state.clone(), tools);
    let running = runner.execute_together_async(&calls(name, 4), &ExecuteOptions::default());
    let reports = single().block_on(soon(running));
    let reports: Vec<_> = reports.into_iter().map(Result::unwrap).collect();
    let messages = reports.iter().map(|report| report.message.clone()).collect();
    let ends = reports.iter().map(|report| report.end.get()).collect();
    (desk, messages, ends)
}

#[test]
fn calls_that_act_outside_end_when_their_tools_end_and_are_reported_in_their_order() {
    let (desk, messages, ends) = together(ToolRegistry::new().with_async(Meets::<true>::of(4)), "requests");
    assert_eq!(messages, ["0", "no", "2", "3"]);
    assert!(ends.is_sorted_by(|one, next| one > next), "the last one ended first: {ends:?}");
    assert!(desk.session().calls().open_operations().is_empty());
}

#[test]
fn calls_that_only_read_end_in_their_order_once_all_have_answered() {
    let (desk, messages, ends) = together(ToolRegistry::new().with_async(Meets::<false>::of(4)), "reads");
    assert_eq!(messages, ["0", "no", "2", "3"]);
    assert!(ends.is_sorted(), "{ends:?}");
    assert!(desk.session().calls().open_operations().is_empty());
}

/// Waits until it is dropped, and reports its start.
struct Hangs(Arc<Notify>, Arc<AtomicUsize>);

impl AsyncTool for Hangs {
    const NAME: &'static str = "hangs";
    type Parameters = Line;
    type Output = ();

    fn reads_only(&self) -> bool {
        true
    }

    async fn call(&self, _: Line, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        if self.1.fetch_add(1, Ordering::SeqCst) == 2 {
            self.0.notify_one();
        }
        std::future::pending().await
    }
}

#[test]
fn calls_whose_future_is_dropped_are_all_ended_and_those_whose_time_is_over_say_so() {
    let (desk, began) = (Desk::new(), Arc::new(Notify::new()));
    let tools = ToolRegistry::new().with_async(Hangs(began.clone(), Arc::default()));
    let runner = ToolRunner::new(desk.state.clone(), tools);
    single().block_on(async {
        let running = runner.execute_together_async(&calls("hangs", 3), &ExecuteOptions::default());
        dropped_once(running, began.notified()).await;
        soon(desk.session().calls().until_stopped_calls_ended()).await;
        assert!(desk.session().calls().open_operations().is_empty());
        assert_eq!(ends(&desk), [(Outcome::Failed, Some(Cause::Dropped)); 3]);

        let deadline = Some(Duration::from_millis(20));
        let options = ExecuteOptions { deadline, ..ExecuteOptions::default() };
        // More than the limit of concurrent calls: those that have not started are refused.
        let reports = soon(runner.execute_together_async(&calls("hangs", 10), &options)).await;
        let late = |report: &Result<foldlog::tools::ToolReport, foldlog::Error>| match report {
            Ok(report) => report.cause == Some(Cause::Deadline),
            Err(error) => matches!(error, foldlog::Error::DeadlineExceeded { .. }),
        };
        assert!(reports.len() == 10 && reports.iter().all(late), "{reports:?}");
    });
}

/// A blocking tool that waits for its pair: both have to run at once.
struct Pairs(std::sync::Barrier);

impl Tool for Pairs {
    const NAME: &'static str = "pairs";
    type Parameters = Line;
    type Output = ();

    fn reads_only(&self) -> bool {
        true
    }

    fn call(&self, line: Line, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        self.0.wait();
        Ok(ToolResult::ok(line.text, ()))
    }
}

#[test]
fn tools_of_threads_run_beside_each_other_too() {
    let (_, messages, ends) = together(ToolRegistry::new().with(Pairs(std::sync::Barrier::new(4))), "pairs");
    assert_eq!(messages, ["0", "1", "2", "3"]);
    assert!(ends.is_sorted());
}

/// A call with a result does not run again, and is closed only once.
#[test]
fn a_call_of_an_answer_is_closed_once_as_the_blocking_form_closes_it() {
    let desk = Desk::with(Idempotency::Natural);
    let runner = desk.runner();
    let origin = Some(CallOrigin { answer: SequenceNumber::from(1), ordinal: 0 });
    let call = ToolCall { origin, ..ToolCall::new("nobody's", "{}") };
    single().block_on(async {
        let first = soon(runner.close_async(&call, Cause::UnknownTool, "There is none.")).await.unwrap();
        let again = soon(runner.close_async(&call, Cause::Skipped, "It did not run.")).await.unwrap();
        assert!(!first.recorded && again.recorded);
        assert_eq!((again.end, again.message.as_str()), (first.end, "There is none."));
        let text = "x".repeat(20_000);
        let too_long = runner.close_async(&ToolCall::new("a", "{}"), Cause::Skipped, &text).await;
        assert!(matches!(too_long, Err(foldlog::Error::TooLarge { .. })), "{too_long:?}");
    });
    assert_eq!(ends(&desk), [(Outcome::Failed, Some(Cause::UnknownTool))]);
}

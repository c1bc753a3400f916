//! Async variants of a runner's calls (feature `async`).
//!
//! | step | where it runs |
//! |---|---|
//! | waiting for the schedule | no thread: the future is woken when the schedule changes |
//! | waiting for another session's lease | no thread: the lease is tried again, at growing intervals |
//! | captures, start record, end record, restores | a thread of the pool, for that long; the future's own thread if all captures are in memory and nothing has to be synced |
//! | a tool that is a future | the task that polls the call |
//! | any other tool | a thread of the pool, until it returns |
//! | parallel calls | each as above, all polled by the same task |
//! | a call that was interrupted or suspended before, a recovery | a thread of the pool, until it is done; tools that are futures are polled by the task that polls the call |
//!
//! # Invariants
//!
//! 1. Dropping a future leaves no call open: a started call is cancelled at once, and rolled back
//!    as soon as its tool has returned. A tool that is a future is dropped first.
//! 2. Work that a thread of the pool has started continues to its end. This includes a call that
//!    continues after an interruption or a question; only its tool is dropped if that is a future.

use std::future::{Future, poll_fn, ready};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use foldlog_codec::OperationId;
use foldlog_codec::body::Cause;
use serde::Serialize;

use super::call::{
    CallEnd, CallInfo, DynTool, ExecuteOptions, Operation, ToolCall, ToolContext, ToolError, ToolFuture,
    ToolReport, ToolResult,
};
use super::execution::ExecutionState;
use super::parallel_calls::TOGETHER_MAX;
use super::recovery::RecoveredOperation;
use super::restore::RestoreWait;
use super::runner::{EarlierCall, HAS_RESULT, Ran, ToolRunner};
use crate::clock;
use crate::error::{Blocker, Error, Result};
use crate::offload::{BoxedFuture, offload, offload_and_poll, wait_for_any};
use crate::options::Durability;
use crate::session::Patience;

/// Shortest and longest pause between two attempts to get a lease.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));

/// Cancels a call when dropped. The call's thread then ends it.
struct StopOnDrop(Option<ToolContext>);

impl StopOnDrop {
    /// Disarms the guard after the call has ended.
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some(context) = &self.0 {
            context.running.begun.cancel();
        }
    }
}

/// Request of a call that a future starts.
struct CallRequest {
    runner: ToolRunner,
    call: ToolCall,
    options: ExecuteOptions,
    /// Deadline of the call.
    until: Option<Instant>,
    at: &'static Location<'static>,
}

impl ToolRunner {
    #[track_caller]
    fn build_request(&self, call: &ToolCall, options: &ExecuteOptions) -> CallRequest {
        let (until, at) = (options.deadline.map(clock::after), Location::caller());
        CallRequest { runner: self.clone(), call: call.clone(), options: *options, until, at }
    }

    /// Runs a tool as a transaction, like [`execute`](ToolRunner::execute), for async hosts. While
    /// the call waits for others, it occupies no thread. An [`AsyncTool`](crate::tools::AsyncTool)
    /// is polled with the future and occupies none either; any other tool runs in a thread of a
    /// pool.
    ///
    /// Dropping the future cancels the call and rolls it back; if the call has ended by then, its
    /// end remains. A call that continues after an interruption or a question is not cancelled,
    /// except for a tool that is a future.
    ///
    /// ```
    /// # use foldlog::tools::{AsyncTool, ExecuteOptions, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner};
    /// # use foldlog::{ExecutionState, ResourceRegistry, SessionTypes, Store};
    /// # struct Add;
    /// # impl AsyncTool for Add {
    /// #     const NAME: &'static str = "add";
    /// #     type Parameters = (i64, i64);
    /// #     type Output = i64;
    /// #     async fn call(&self, terms: (i64, i64), _: &ToolContext) -> Result<ToolResult<i64>, ToolError> {
    /// #         let (left, right) = terms;
    /// #         Ok(ToolResult::ok((left + right).to_string(), left + right))
    /// #     }
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let session = Store::open(directory.path())?.create(&SessionTypes::builder().build()?)?;
    /// # let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    /// let runner = ToolRunner::new(state, ToolRegistry::new().with_async(Add));
    /// # futures_lite::future::block_on(async {
    /// let report = runner.execute_async(&ToolCall::new("add", "[1, 2]"), &ExecuteOptions::default()).await?;
    /// assert_eq!(report.message, "3");
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`execute`](ToolRunner::execute). Waiting for an operation that this thread started is
    /// not an error: another task may end it.
    #[track_caller]
    pub fn execute_async(
        &self,
        call: &ToolCall,
        options: &ExecuteOptions,
    ) -> impl Future<Output = Result<ToolReport>> + Send + use<> {
        self.build_request(call, options).execute()
    }

    /// Runs several calls, like [`execute_together`](ToolRunner::execute_together), for async
    /// hosts. Concurrent calls are polled in the same task, and each occupies a thread only as
    /// described for [`execute_async`](ToolRunner::execute_async). They start and end in the order
    /// that `execute_together` describes.
    ///
    /// Dropping the future cancels the started calls and rolls them back, and no further one
    /// starts; calls that have ended by then are unchanged.
    #[track_caller]
    pub fn execute_together_async(
        &self,
        calls: &[ToolCall],
        options: &ExecuteOptions,
    ) -> impl Future<Output = Vec<Result<ToolReport>>> + Send + use<> {
        let (runner, calls, options) = (self.clone(), calls.to_vec(), *options);
        let (at, until) = (Location::caller(), options.deadline.map(clock::after));
        async move {
            let asked = |call: &ToolCall| CallRequest {
                runner: runner.clone(),
                call: call.clone(),
                options,
                until,
                at,
            };
            if runner.session.replays() {
                return offload_and_poll(move || runner.execute_together(&calls, &options)).await;
            }
            let mut reports = Vec::with_capacity(calls.len());
            for few in calls.chunks(TOGETHER_MAX) {
                if runner.run_at_once(few) {
                    reports.append(&mut together(few.iter().map(asked).collect()).await);
                    continue;
                }
                for call in few {
                    reports.push(asked(call).execute().await);
                }
            }
            reports
        }
    }

    /// Closes a call without running its tool, like [`close`](ToolRunner::close), for async hosts.
    /// If the future is dropped, a started call is closed as dropped.
    #[track_caller]
    pub fn close_async(
        &self,
        call: &ToolCall,
        cause: Cause,
        shown: &str,
    ) -> impl Future<Output = Result<ToolReport>> + Send + use<> {
        let (asked, shown) = (self.build_request(call, &ExecuteOptions::default()), shown.to_owned());
        async move {
            let runner = asked.runner.clone();
            let info = match runner.to_close(&asked.call, cause, &shown)? {
                ControlFlow::Continue(info) => CallInfo { at: asked.at, ..info },
                ControlFlow::Break(report) => return Ok(*report),
            };
            match asked.begin(info).await? {
                ControlFlow::Continue(operation) => {
                    end(operation, CallEnd::with_cause(cause, shown).harmless()).await
                }
                // The session replays, or another call of the same origin has ended or was left
                // open during the wait.
                ControlFlow::Break(_) => {
                    offload_and_poll(move || runner.close(&asked.call, cause, &shown)).await
                }
            }
        }
    }

    /// Starts a call of a tool that runs elsewhere, like [`begin`](ToolRunner::begin), for async
    /// hosts: the operation belongs to no thread, and any task may end it. If the future is
    /// dropped, a started call is rolled back. [`Operation`] describes the effect of dropping it
    /// later.
    #[track_caller]
    pub fn begin_async(
        &self,
        call: &ToolCall,
        options: &ExecuteOptions,
    ) -> impl Future<Output = Result<Operation>> + Send + use<> {
        let asked = self.build_request(call, options);
        async move {
            let info = CallInfo { at: asked.at, ..asked.runner.describe(&asked.call) };
            if let ControlFlow::Continue(operation) = asked.begin(info).await? {
                return operation.confirmed_async().await;
            }
            // A call that the log knows is refused, continues or is replayed like a call of a
            // thread.
            let (runner, call, options) =
                (asked.runner.clone(), asked.call.clone(), asked.remaining_options());
            offload_and_poll(move || {
                let operation = runner.begin(&call, &options)?;
                operation.hand_over();
                Ok(operation.ending_soon())
            })
            .await
        }
    }

    /// Ends the calls that were left open, and runs again those that may run again, like
    /// [`recover`](ToolRunner::recover), for async hosts. A thread of a pool does the work; tools
    /// that are futures are polled with this future. If it is dropped, such a tool is dropped and
    /// its call rolled back, and no further operation runs again.
    pub fn recover_async(
        &self,
        options: &ExecuteOptions,
    ) -> impl Future<Output = Result<Vec<RecoveredOperation>>> + Send + use<> {
        let (runner, options) = (self.clone(), *options);
        async move { offload_and_poll(move || runner.recover(&options)).await }
    }
}

/// Returns whether start and end of a run's calls touch no files, so that they need no thread.
fn touches_no_files(state: &ExecutionState) -> bool {
    state.session().log().durability() == Durability::Process && state.is_in_memory()
}

impl CallRequest {
    /// Returns the options for a call that continues this request now.
    fn remaining_options(&self) -> ExecuteOptions {
        let deadline = self.until.map(|until| until.saturating_duration_since(clock::now()));
        ExecuteOptions { deadline, ..self.options }
    }

    async fn execute(self) -> Result<ToolReport> {
        match self.start().await? {
            ControlFlow::Continue((operation, tool)) => {
                finish_call(run_tool(tool, operation, self.call.arguments, true).await).await
            }
            ControlFlow::Break(report) => Ok(report),
        }
    }

    /// Starts the call of a tool, unless the log determines its outcome.
    async fn start(&self) -> Result<ControlFlow<ToolReport, (Operation, Arc<DynTool>)>> {
        let tool = Arc::clone(self.runner.tools.get(&self.call.tool)?);
        let info = CallInfo { at: self.at, ..CallInfo::of_tool(&self.call, &tool) };
        match self.begin(info).await {
            Ok(ControlFlow::Continue(operation)) => Ok(ControlFlow::Continue((operation, tool))),
            Ok(ControlFlow::Break(Some(EarlierCall::Recorded(report)))) => Ok(ControlFlow::Break(*report)),
            // In the last case, another call of the same origin committed while this one waited.
            Ok(ControlFlow::Break(_)) | Err(Error::NoSuchOperation { reason: HAS_RESULT, .. }) => {
                let (runner, call) = (self.runner.clone(), self.call.clone());
                let options = self.remaining_options();
                let executed = offload_and_poll(move || runner.execute(&call, &options)).await;
                executed.map(ControlFlow::Break)
            }
            Err(error) => Err(error),
        }
    }

    /// Starts the call that `info` describes, once the schedule and the leases allow that. Breaks
    /// with an earlier call that the log knows; without one if the session replays, and a thread
    /// has to make the call.
    async fn begin(&self, info: CallInfo) -> Result<ControlFlow<Option<EarlierCall>, Operation>> {
        let session = &self.runner.session;
        if session.replays() {
            return Ok(ControlFlow::Break(None));
        }
        let around = session.calls().call_scope().and_then(|within| within.until());
        let until = self.runner.state.until(self.until.into_iter().chain(around).min());
        let patience = session.patience(until, self.options.wait).holding_no_thread();
        // A call that the log may know need not wait.
        if self.call.origin.is_none() && session.calls().call_scope().is_none() {
            session.until_may_begin(info.reads_only, &patience).await?;
        }
        let (runner, call, reads_only) = (self.runner.clone(), self.call.clone(), info.reads_only);
        let needs_thread = !touches_no_files(&self.runner.state);
        let begin = move |waiting: &RestoreWait<'_>| runner.try_begin(&call, info, waiting);
        self.runner.state.retry_until_free(reads_only, &patience, needs_thread, begin).await
    }
}

impl ExecutionState {
    /// Repeats attempts that do not wait until one is not blocked, as long as `patience` allows. A
    /// thread of the pool makes them if `needs_thread` is set.
    pub(super) async fn retry_until_free<T: Send + 'static>(
        &self,
        reads_only: bool,
        patience: &Patience,
        needs_thread: bool,
        attempt: impl FnOnce(&RestoreWait<'_>) -> Result<T> + Clone + Send + 'static,
    ) -> Result<T> {
        // Dropped with the future: an attempt on a thread then starts no call.
        let (wanted, mut pause) = (Arc::new(()), PAUSES.0);
        loop {
            let (attempt, wanted, at_once) =
                (attempt.clone(), Arc::downgrade(&wanted), patience.for_no_wait());
            let attempt =
                move || attempt(&RestoreWait { patience: at_once, is_wanted: &|| still_wanted(&wanted) });
            let tried = if needs_thread { offload(attempt).await } else { attempt() };
            let Err(Error::WaitedTooLong { blocker, .. }) = tried else { return tried };
            // A child session also waits for its parent's schedule, which its own schedule does not
            // know.
            if matches!(*blocker, Blocker::Operation { .. }) && self.inner.parent.is_none() {
                self.session().until_may_begin(reads_only, patience).await?;
                continue;
            }
            patience.check(|| *blocker)?;
            // Not woken by the schedule: failing attempts would wake each other.
            wait_for_any([], Some(clock::after(pause).min(patience.over_at()))).await;
            pause = pause.saturating_mul(2).min(PAUSES.1);
        }
    }
}

/// Fails if the future that made the attempt is dropped.
fn still_wanted(wanted: &Weak<()>) -> Result<()> {
    match wanted.strong_count() {
        0 => Err(Error::NoSuchOperation {
            operation: OperationId::default(),
            reason: "its future was dropped",
        }),
        _ => Ok(()),
    }
}

impl ToolRunner {
    /// Starts a call if it is new, need not wait, and its future still exists.
    fn try_begin(
        &self,
        call: &ToolCall,
        info: CallInfo,
        waiting: &RestoreWait<'_>,
    ) -> Result<ControlFlow<Option<EarlierCall>, Operation>> {
        let is_new = self.still_due(call);
        let still_due = || (waiting.is_wanted)().and_then(|()| is_new());
        if let Some(known) = self.find_earlier_call(call)? {
            return Ok(ControlFlow::Break(Some(known)));
        }
        Ok(ControlFlow::Continue(self.start(info, &waiting.patience, &still_due)?.ending_soon()))
    }
}

/// Runs the tool of a started call. With `ends_there`, ends the call too, and a thread that runs
/// the tool does that.
async fn run_tool(tool: Arc<DynTool>, operation: Operation, arguments: String, ends_there: bool) -> Ran {
    let context = operation.context().clone();
    let ran = match start_tool(&tool, &arguments, &context) {
        Ok(Some(answering)) => match operation.confirmed_async().await {
            Ok(operation) => Ran::Returned(operation, Box::new(drive(&context, answering).await)),
            Err(error) => Ran::Ended(Err(error)),
        },
        Ok(None) => on_thread(context, move || operation.run(&tool, &arguments, ends_there)).await,
        Err(panicked) => Ran::Returned(operation, panicked),
    };
    if ends_there { Ran::Ended(finish_call(ran).await) } else { ran }
}

/// Ends a call whose tool has returned, unless it has ended.
async fn finish_call(ran: Ran) -> Result<ToolReport> {
    match ran {
        Ran::Ended(report) => report,
        Ran::Returned(operation, ending) => end(operation, *ending).await,
    }
}

/// Runs concurrent calls. Returns their reports in the order of the calls.
async fn together(calls: Vec<CallRequest>) -> Vec<Result<ToolReport>> {
    let mut running: Vec<BoxedFuture<Ran>> = Vec::with_capacity(calls.len());
    for asked in calls {
        running.push(match asked.start().await {
            Ok(ControlFlow::Continue((operation, tool))) => {
                let ends_there = tool.outside_only;
                Box::pin(run_tool(tool, operation, asked.call.arguments, ends_there))
            }
            Ok(ControlFlow::Break(report)) => Box::pin(ready(Ran::Ended(Ok(report)))),
            Err(error) => Box::pin(ready(Ran::Ended(Err(error)))),
        });
    }
    let mut reports = Vec::with_capacity(running.len());
    for ran in all(running).await {
        reports.push(finish_call(ran).await);
    }
    reports
}

/// Polls futures concurrently until all have completed. Returns their results in order.
async fn all<T>(mut futures: Vec<BoxedFuture<T>>) -> Vec<T> {
    let mut ended: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, ended) in futures.iter_mut().zip(&mut ended).filter(|(_, ended)| ended.is_none()) {
            if let Poll::Ready(value) = future.as_mut().poll(context) {
                *ended = Some(value);
            }
        }
        if ended.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    ended.into_iter().flatten().collect()
}

/// Starts a tool that is a future; `None` for other tools. Returns the ending of the call if the
/// tool panics.
fn start_tool(
    tool: &DynTool,
    arguments: &str,
    context: &ToolContext,
) -> std::result::Result<Option<ToolFuture>, Box<CallEnd>> {
    let start = AssertUnwindSafe(|| tool.start.as_ref().map(|start| start(arguments, context)));
    catch_unwind(start).map_err(|panic| Box::new(CallEnd::from_panic(&*panic)))
}

/// Runs a call's tool on a thread of the pool, and cancels the call if this future is dropped.
async fn on_thread<T: Send + 'static>(context: ToolContext, job: impl FnOnce() -> T + Send + 'static) -> T {
    let stop = StopOnDrop(Some(context));
    let done = offload_and_poll(job).await;
    stop.keep();
    done
}

async fn end(operation: Operation, ending: CallEnd) -> Result<ToolReport> {
    // Requires no wait for a file or a nested call.
    let running = &operation.context().running;
    if touches_no_files(&running.state) && !running.programs.were_started() && !running.begun.has_inner() {
        operation.finish(ending)
    } else {
        running.begun.ends_soon();
        offload(move || operation.finish(ending)).await
    }
}

/// Polls a tool until it answers, its deadline passes or its call is cancelled; then drops it.
/// Returns the ending of the call.
async fn drive(context: &ToolContext, answering: ToolFuture) -> CallEnd {
    let within = &context.running.begun.within;
    if let Some(late) = CallEnd::too_late(within) {
        return late;
    }
    match answering.await {
        Ok(answer) => CallEnd::from_answer(answer, within),
        Err(panic) => CallEnd::from_panic(&*panic),
    }
}

impl Operation {
    /// Ends the call with the tool's result, like [`end`](Operation::end), for async hosts. If the
    /// future is dropped after its first poll, the call still ends.
    pub async fn end_async<T: Serialize + Send + 'static>(self, result: ToolResult<T>) -> Result<ToolReport> {
        offload(move || self.end(result)).await
    }

    /// Ends the call with the tool's error, like [`fail`](Operation::fail), for async hosts. If the
    /// future is dropped after its first poll, the call still ends.
    pub async fn fail_async(self, error: ToolError) -> Result<ToolReport> {
        offload(move || self.fail(error)).await
    }
}

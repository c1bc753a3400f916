//! Support for a model's answer with several calls: running reading calls in parallel, and closing
//! calls that do not run.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use foldlog_codec::OperationId;
use foldlog_codec::body::{Cause, Idempotency};
use parking_lot::Mutex;

use super::call::{CallEnd, CallInfo, DynTool, ExecuteOptions, Operation, ToolCall, ToolReport, Worker};
use super::runner::{EarlierCall, HAS_RESULT, Ran, ToolRunner, unsettled_error};
use crate::conversation::text_payload;
use crate::error::{Error, Result};

/// Maximum length in bytes of the text with which a call is closed.
const SHOWN_MAX: u64 = 16 << 10;

/// Maximum number of concurrent calls.
pub const TOGETHER_MAX: usize = 8;

/// Reason for the failure of a call whose thread ended without a result.
fn over() -> Error {
    Error::NoSuchOperation { operation: OperationId::default(), reason: "its thread has ended" }
}

impl ToolRunner {
    /// Runs several calls, and returns their reports in the order of the calls, each as
    /// [`execute`](ToolRunner::execute) would return it.
    ///
    /// The calls run in groups of up to [`TOGETHER_MAX`], one group after the other. If all the
    /// tools of a group [only read](crate::tools::Tool::reads_only) or [act only
    /// outside](crate::tools::Tool::outside_only), its calls run at the same time, each in a
    /// thread. They start in their order. The end of a call that acts outside is recorded as soon
    /// as its tool has returned, so that its effects are not unrecorded while a slower one runs.
    /// The ends of reading calls are recorded in their order, once all have returned. Otherwise the
    /// calls of a group run one after the other. A deadline counts from the start of the first
    /// call.
    #[track_caller]
    pub fn execute_together(&self, calls: &[ToolCall], options: &ExecuteOptions) -> Vec<Result<ToolReport>> {
        let began = Instant::now();
        let left = || {
            let deadline = options.deadline.map(|deadline| deadline.saturating_sub(began.elapsed()));
            ExecuteOptions { deadline, ..*options }
        };
        let mut reports = Vec::with_capacity(calls.len());
        // In loops, since a closure would be the location of the calls.
        for few in calls.chunks(TOGETHER_MAX) {
            if self.run_at_once(few) {
                reports.append(&mut self.execute_at_once(few, &left));
                continue;
            }
            for call in few {
                reports.push(self.execute(call, &left()));
            }
        }
        reports
    }

    /// Runs calls at the same time.
    #[track_caller]
    fn execute_at_once(
        &self,
        calls: &[ToolCall],
        left: &dyn Fn() -> ExecuteOptions,
    ) -> Vec<Result<ToolReport>> {
        let mut begun = Vec::with_capacity(calls.len());
        for call in calls {
            begun.push(self.begin_together(call, &left()));
        }
        let ran: Vec<Ran> = thread::scope(|scope| {
            let mut running = Vec::with_capacity(calls.len());
            for (together, call) in begun.into_iter().zip(calls) {
                let (operation, tool) = match together {
                    Ok(ControlFlow::Continue(running)) => running,
                    Ok(ControlFlow::Break(report)) => {
                        running.push(Err(Ran::Ended(Ok(report))));
                        continue;
                    }
                    Err(error) => {
                        running.push(Err(Ran::Ended(Err(error))));
                        continue;
                    }
                };
                // A call that only acts outside ends at once, and waits for no call before it.
                let ends_there = tool.outside_only;
                // Taken by the thread, or by this one if no thread can be started.
                let operation = Arc::new(Mutex::new(Some(operation)));
                let run = move || match operation.lock().take() {
                    Some(operation) => operation.run(tool, &call.arguments, ends_there),
                    None => Ran::Ended(Err(over())),
                };
                running.push(thread::Builder::new().spawn_scoped(scope, run.clone()).map_err(|_| run()));
            }
            let died = |_| Ran::Ended(Err(over()));
            let ran = |thread: Result<thread::ScopedJoinHandle<'_, Ran>, Ran>| {
                thread.map_or_else(|ran| ran, |thread| thread.join().unwrap_or_else(died))
            };
            running.into_iter().map(ran).collect()
        });
        let end = |ran| match ran {
            Ran::Ended(report) => report,
            Ran::Returned(operation, ending) => operation.finish(*ending),
        };
        ran.into_iter().map(end).collect()
    }

    /// Returns whether there are several calls that can run at the same time.
    pub(super) fn run_at_once(&self, calls: &[ToolCall]) -> bool {
        calls.len() > 1 && calls.iter().all(|call| self.runs_together(&call.tool))
    }

    /// Returns whether the runner has a tool of that name whose calls may run in parallel with
    /// calls of other such tools: it only reads, or acts only outside.
    pub fn runs_together(&self, tool: &str) -> bool {
        self.tools.get(tool).is_ok_and(|tool| tool.reads_only || tool.outside_only)
    }

    /// Returns whether the runner has a tool of that name, and the tool only reads.
    pub fn reads_only(&self, tool: &str) -> bool {
        self.tools.get(tool).is_ok_and(|tool| tool.reads_only && !tool.outside_only)
    }

    /// Starts the call of a tool, unless the log determines its outcome.
    #[track_caller]
    fn begin_together(
        &self,
        call: &ToolCall,
        options: &ExecuteOptions,
    ) -> Result<ControlFlow<ToolReport, (Operation, &DynTool)>> {
        let still_due = self.still_due(call);
        // A call that the log knows is reported or runs again without a thread.
        if self.find_earlier_call(call)?.is_some() {
            return Ok(ControlFlow::Break(self.execute(call, options)?));
        }
        let tool = self.tools.get(&call.tool)?;
        let info = CallInfo { worker: Worker::Once, ..CallInfo::of_tool(call, tool) };
        match self.start(info, &self.patience(options), &still_due) {
            Ok(operation) => Ok(ControlFlow::Continue((operation, tool))),
            // Another thread's call of the same origin committed while this one waited.
            Err(Error::NoSuchOperation { reason: HAS_RESULT, .. }) => {
                Ok(ControlFlow::Break(self.execute(call, options)?))
            }
            Err(error) => Err(error),
        }
    }

    /// Closes a call without running its tool: records a start and the end of a failed operation
    /// with this cause. `shown` is the text that the model receives in place of a result. The
    /// runner need not have the tool. If the process ends in between, a recovery ends the call with
    /// the same cause and text.
    ///
    /// If a call of the same [origin](ToolCall::origin) has a result, that is returned, and no
    /// record is written.
    ///
    /// # Errors
    ///
    /// [`Error::ToolIdempotency`] if an earlier call of the same origin must be settled first,
    /// [`Error::Suspended`] if it is suspended; [`Error::TooLarge`] if the text is longer than 16
    /// KiB; otherwise, the errors of [`begin`](ToolRunner::begin). [`Cause::Expansion`] and
    /// [`Cause::Deadline`] are returned as the errors with which a tool of that cause ends.
    #[track_caller]
    pub fn close(&self, call: &ToolCall, cause: Cause, shown: &str) -> Result<ToolReport> {
        let still_due = self.still_due(call);
        let info = match self.to_close(call, cause, shown)? {
            ControlFlow::Continue(info) => info,
            ControlFlow::Break(report) => return Ok(*report),
        };
        let operation = self.start(info, &self.patience(&ExecuteOptions::default()), &still_due)?;
        operation.finish(CallEnd::with_cause(cause, shown).harmless())
    }

    /// Describes a call to be closed, or returns the result that it already has.
    #[track_caller]
    pub(super) fn to_close(
        &self,
        call: &ToolCall,
        cause: Cause,
        shown: &str,
    ) -> Result<ControlFlow<Box<ToolReport>, CallInfo>> {
        let found = shown.len() as u64;
        if found > SHOWN_MAX {
            return Err(Error::TooLarge { what: "the text of a closed call", found, max: SHOWN_MAX });
        }
        match self.find_earlier_call(call)? {
            None => {}
            Some(EarlierCall::Recorded(report)) => return Ok(ControlFlow::Break(report)),
            Some(EarlierCall::Unsettled(unsettled)) => {
                return Err(unsettled_error(unsettled.operation, &unsettled.tool));
            }
            Some(EarlierCall::Suspended(suspended, standing)) => {
                return Err(self.suspended_error(&suspended, standing)?);
            }
        }
        Ok(ControlFlow::Continue(CallInfo {
            idempotency: Idempotency::Natural,
            reads_only: true,
            closed: Some((cause, text_payload(shown))),
            worker: Worker::Once,
            ..CallInfo::new(call)
        }))
    }
}

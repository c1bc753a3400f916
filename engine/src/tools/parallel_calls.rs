//! Support for a model's answer with several calls: running reading calls in parallel, and closing
//! calls that do not run.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use foldlog_codec::body::{Cause, Idempotency};
use foldlog_codec::{OperationId, SequenceNumber};

use parking_lot::Mutex;

use super::call::{AnyTool, CallEnd, CallInfo, ExecuteOptions, Operation, ToolCall, ToolReport};
use super::execute::{HAS_RESULT, info_of};
use super::recorded_call::EarlierCall;
use super::replay;
use super::runner::{ToolRunner, run_handler, unsettled_error};
use crate::conversation::text_payload;
use crate::error::{Error, Result};

/// Maximum length in bytes of the text with which a call is closed.
const SHOWN_MAX: u64 = 16 << 10;

/// Maximum number of concurrent calls.
pub const TOGETHER_MAX: usize = 8;

/// One of several concurrent calls.
enum ParallelCall<'a> {
    Running(Operation, &'a dyn AnyTool),
    Over(Result<ToolReport>),
}

/// A concurrent call whose tool has returned.
pub(super) enum Ran {
    /// The call has ended.
    Ended(Result<ToolReport>),
    /// The call ends after the calls before it, so that equal runs write equal records. Its tool
    /// had no effects outside that could be lost.
    Returned(Operation, Box<CallEnd>),
}

/// Runs the tool of a call, and ends the call if the tool acts outside.
fn run_together(operation: &Mutex<Option<Operation>>, tool: &dyn AnyTool, arguments: &str) -> Ran {
    let Some(operation) = operation.lock().take() else { return Ran::Ended(Err(over())) };
    let operation = match operation.confirm_claim() {
        Ok(operation) => operation,
        Err(error) => return Ran::Ended(Err(error)),
    };
    let ending = run_handler(operation.context(), |context| tool.call(arguments, context));
    match ends_at_once(tool) {
        true => Ran::Ended(operation.finish(ending)),
        false => Ran::Returned(operation, Box::new(ending)),
    }
}

/// Returns whether a concurrent call ends as soon as its tool has returned, without waiting for the
/// calls before it.
pub(super) fn ends_at_once(tool: &dyn AnyTool) -> bool {
    tool.outside_only()
}

fn over() -> Error {
    Error::NoSuchOperation { operation: OperationId::default(), reason: "its thread has ended" }
}

/// A call that is replayed together with others.
enum ReplayedParallelCall {
    Begun(CallInfo, SequenceNumber),
    Over(Result<ToolReport>),
}

impl ToolRunner {
    /// Runs several calls, and returns their reports in the order of the calls, each as
    /// [`execute`](ToolRunner::execute) would return it.
    ///
    /// If all the tools [only read](crate::tools::Tool::reads_only) or [act only
    /// outside](crate::tools::Tool::outside_only), up to [`TOGETHER_MAX`] calls run at the same
    /// time, each in a thread, and further ones once these have ended. They start in their order.
    /// The end of a call that acts outside is recorded as soon as its tool has returned, so that
    /// its effects are not unrecorded while a slower one runs. The ends of reading calls are
    /// recorded in their order, once all have returned. Otherwise the calls run one after the
    /// other. A deadline counts from the start of the first call.
    #[track_caller]
    pub fn execute_together(&self, calls: &[ToolCall], options: &ExecuteOptions) -> Vec<Result<ToolReport>> {
        if calls.len() > TOGETHER_MAX {
            let began = Instant::now();
            let left = || options.deadline.map(|deadline| deadline.saturating_sub(began.elapsed()));
            let few = |calls| self.execute_together(calls, &ExecuteOptions { deadline: left(), ..*options });
            return calls.chunks(TOGETHER_MAX).flat_map(few).collect();
        }
        if !self.run_at_once(calls) {
            return calls.iter().map(|call| self.execute(call, options)).collect();
        }
        if self.session.replays() {
            return self.run_together_replayed(calls, options);
        }
        let begun: Vec<ParallelCall<'_>> =
            calls.iter().map(|call| self.begin_together(call, options)).collect();
        let ran: Vec<Ran> = thread::scope(|scope| {
            let mut running = Vec::with_capacity(calls.len());
            for (together, call) in begun.into_iter().zip(calls) {
                let (operation, tool) = match together {
                    ParallelCall::Running(operation, tool) => (operation, tool),
                    ParallelCall::Over(report) => {
                        running.push(Err(Ran::Ended(report)));
                        continue;
                    }
                };
                // Taken by the thread, or by this one if no thread can be started.
                let operation = Arc::new(Mutex::new(Some(operation)));
                let run = move || run_together(&operation, tool, &call.arguments);
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

    /// Returns the recorded results of calls that ran together.
    fn run_together_replayed(&self, calls: &[ToolCall], options: &ExecuteOptions) -> Vec<Result<ToolReport>> {
        let begin = |call: &ToolCall| match self.find_earlier_call(call) {
            Ok(None) => {
                let begun = self.check_own().and_then(|()| self.tools.get(&call.tool)).and_then(|tool| {
                    let info = info_of(call, tool.as_ref());
                    let begin = replay::begin(&self.session, &info, &call.arguments)?;
                    Ok(ReplayedParallelCall::Begun(info, begin))
                });
                begun.unwrap_or_else(|error| ReplayedParallelCall::Over(Err(error)))
            }
            Ok(Some(_)) => ReplayedParallelCall::Over(self.execute(call, options)),
            Err(error) => ReplayedParallelCall::Over(Err(error)),
        };
        let begun: Vec<ReplayedParallelCall> = calls.iter().map(begin).collect();
        let end = |together| match together {
            ReplayedParallelCall::Over(report) => report,
            ReplayedParallelCall::Begun(info, begin) => replay::end(&self.session, &info, begin),
        };
        begun.into_iter().map(end).collect()
    }

    /// Returns whether the runner has a tool of that name whose calls may run in parallel with
    /// calls of other such tools: it only reads, or acts only outside.
    pub fn runs_together(&self, tool: &str) -> bool {
        self.tools.get(tool).is_ok_and(|tool| tool.reads_only() || tool.outside_only())
    }

    /// Returns whether the runner has a tool of that name, and the tool only reads.
    pub fn reads_only(&self, tool: &str) -> bool {
        self.tools.get(tool).is_ok_and(|tool| tool.reads_only() && !tool.outside_only())
    }

    fn begin_together(&self, call: &ToolCall, options: &ExecuteOptions) -> ParallelCall<'_> {
        let still_due = self.still_due(call);
        match self.find_earlier_call(call) {
            Ok(None) => {}
            // A call that the log knows is reported or runs again without a thread.
            Ok(Some(_)) => return ParallelCall::Over(self.execute(call, options)),
            Err(error) => return ParallelCall::Over(Err(error)),
        }
        let begun = self.tools.get(&call.tool).and_then(|tool| {
            let info = info_of(call, tool.as_ref());
            Ok((self.begin_as(info, &call.arguments, options, &still_due)?, tool))
        });
        match begun {
            Ok((operation, tool)) => ParallelCall::Running(operation, tool.as_ref()),
            // Another thread's call of the same origin committed while this one waited.
            Err(Error::NoSuchOperation { reason: HAS_RESULT, .. }) => {
                ParallelCall::Over(self.execute(call, options))
            }
            Err(error) => ParallelCall::Over(Err(error)),
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
        if self.session.replays() {
            return self.run_replayed(&info, &call.arguments);
        }
        let operation = self.begin_as(info, &call.arguments, &ExecuteOptions::default(), &still_due)?;
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
            ..CallInfo::new(call)
        }))
    }
}

//! Starts a call, runs its handler, and ends the call.

use foldlog_codec::OperationId;
use std::panic::{AssertUnwindSafe, catch_unwind};

use foldlog_codec::body::Idempotency;

use super::call::{
    CallEnd, CallInfo, EncodedToolResult, ExecuteOptions, Operation, ToolContext, ToolError, ToolRegistry,
    ToolReport,
};
use super::execution::ExecutionState;
use super::replay;
use crate::clock;
use crate::error::{Error, Result};
use crate::session::wait::inside_call;
use crate::session::{Patience, Session};

/// Runs tools as transactions. Calls by the host, by a tool and by a recovery take the same path
/// through a runner. Clones are cheap.
#[derive(Clone, Debug)]
pub struct ToolRunner {
    pub(super) state: ExecutionState,
    pub(super) tools: ToolRegistry,
    /// Session of the run, or handle of the operation within which the tools run.
    pub(super) session: Session,
    /// Whether the operation belongs to a different run, with different resources.
    is_anothers: bool,
}

impl ToolRunner {
    /// Creates a runner of these tools on the session and the resources of `state`. If that is the
    /// state of a [tool's context](ToolContext::state), the calls are nested in that call, as with
    /// [`within`](ToolRunner::within).
    pub fn new(state: ExecutionState, tools: ToolRegistry) -> ToolRunner {
        let session = state.session().clone();
        ToolRunner { state: state.outside_call(), tools, session, is_anothers: false }
    }

    /// Returns a runner whose calls are nested in the call of `context`, such as those of a
    /// sub-agent. They do not wait for the outer call. If it fails, their committed changes are
    /// rolled back with it. If the outer call belongs to another run, the nested calls fail with
    /// [`Error::SnapshotMismatch`].
    #[must_use]
    pub fn within(&self, context: &ToolContext) -> ToolRunner {
        let is_anothers =
            !context.running.state.registered_resources().is_same(self.state.registered_resources());
        ToolRunner { session: context.session().clone(), is_anothers, ..self.clone() }
    }

    /// Returns the session and the resources that the tools work on.
    pub fn state(&self) -> &ExecutionState {
        &self.state
    }

    /// Returns the tools of the runner.
    pub fn tools(&self) -> &ToolRegistry {
        &self.tools
    }

    /// Fails if the runner is nested in a call of another run.
    pub(super) fn check_own(&self) -> Result<()> {
        if self.is_anothers {
            let reason =
                "the call runs within a call of another run, whose resources differ from those of this run";
            return Err(Error::SnapshotMismatch(reason.to_owned()));
        }
        Ok(())
    }

    /// Returns whether a replay runs the tool of a call again. Conditions: it may run twice, copies
    /// are available for all its resources, and it opened no child session, which would now be a
    /// different one.
    fn may_run_again(&self, info: &CallInfo) -> Result<bool> {
        let harmless = info.only_reads() || info.idempotency == Idempotency::Natural;
        // A verifying call would query the outside again.
        let harmless = harmless && info.verifies.is_none() && !info.outside_only;
        Ok(harmless
            && self.session.calls().runs_tools_again()
            && self.state.has_all_as_it_was()
            && !self.session.calls().next_call_opens_children()?)
    }

    /// Returns the recorded result of the call that `info` describes.
    pub(super) fn run_replayed(&self, info: &CallInfo, arguments: &str) -> Result<ToolReport> {
        self.check_own()?;
        let begin = replay::begin(&self.session, info, arguments)?;
        replay::end(&self.session, info, begin)
    }

    /// Starts the call that `info` describes. `still_due` is called once the schedule admits the
    /// call, and may refuse it. Fails if the runner is nested in a call of another run.
    pub(super) fn begin_as(
        &self,
        info: CallInfo,
        arguments: &str,
        options: &ExecuteOptions,
        still_due: &dyn Fn() -> Result<()>,
    ) -> Result<Operation> {
        let until = self.state.until(options.deadline.map(clock::after));
        self.begin_within(info, arguments, &self.session.patience(until, options.wait), still_due)
    }

    /// Starts a call like [`begin_as`](ToolRunner::begin_as), and waits as long as `patience`
    /// allows.
    pub(super) fn begin_within(
        &self,
        info: CallInfo,
        arguments: &str,
        patience: &Patience,
        still_due: &dyn Fn() -> Result<()>,
    ) -> Result<Operation> {
        self.check_own()?;
        Operation::begin(&self.state, &self.session, info, arguments, patience, still_due)
    }

    /// Runs `handler` as the call that `info` describes, from its start to its end.
    pub(super) fn run(
        &self,
        info: CallInfo,
        arguments: &str,
        options: &ExecuteOptions,
        still_due: &dyn Fn() -> Result<()>,
        handler: impl FnOnce(&ToolContext) -> std::result::Result<EncodedToolResult, ToolError>,
    ) -> Result<ToolReport> {
        if self.session.replays() && !self.may_run_again(&info)? {
            return self.run_replayed(&info, arguments);
        }
        let operation = self.begin_as(info, arguments, options, still_due)?.confirm_claim()?;
        let ending = run_handler(operation.context(), handler);
        operation.finish(ending)
    }
}

/// Runs the handler of a started call, on this thread. Returns the ending of the call.
pub(super) fn run_handler(
    context: &ToolContext,
    handler: impl FnOnce(&ToolContext) -> std::result::Result<EncodedToolResult, ToolError>,
) -> CallEnd {
    let within = &context.running.begun.within;
    if let Some(late) = CallEnd::too_late(within) {
        return late;
    }
    let run = || inside_call(&context.session, || handler(context));
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(answer) => CallEnd::from_answer(answer, within),
        Err(panic) => CallEnd::from_panic(&*panic),
    }
}

/// Returns the error for an interrupted call that has to be settled.
pub(super) fn unsettled_error(operation: OperationId, tool: &str) -> Error {
    Error::ToolIdempotency { operation, tool: tool.to_owned() }
}

//! Calls a tool, or starts a call of a tool that runs elsewhere: the common path of every call.

use std::panic::Location;

use super::call::{AnyTool, CallInfo, ExecuteOptions, Operation, ToolCall, ToolReport};
use super::recorded_call::EarlierCall;
use super::recovery::Recovery;
use super::runner::{ToolRunner, unsettled_error};
use crate::clock;
use crate::error::{Error, Result};

/// Reason for refusing a call of an origin that already has a result.
pub(super) const HAS_RESULT: &str = "it already has a result for that model answer; read it with `recorded`";

impl ToolRunner {
    /// Runs a tool as a transaction. The tool fails by an error, a panic, an unsuccessful result,
    /// arguments that do not parse, or its deadline. STATE and resources are then rolled back, and
    /// the failure is returned as a [`ToolReport`], not as `Err`.
    ///
    /// If the call has an [origin](ToolCall::origin) and a call of that origin committed or failed
    /// before, the recorded result is returned and the tool does not run. If that call was
    /// interrupted, it is recovered as in [`recover`](ToolRunner::recover).
    ///
    /// Waits for other work as defined by [`ExecuteOptions`] and [the
    /// session](crate::Session#who-waits).
    ///
    /// The end is durable when this returns, with
    /// [`Durability::Boundary`](crate::Durability::Boundary) and
    /// [`Durability::Every`](crate::Durability::Every). The engine holds no lock while the tool
    /// runs. Another thread can stop the tool with
    /// [`SessionCalls::cancel`](crate::SessionCalls::cancel): the call is rolled back, and the
    /// cause in its report is [`Cause::Cancelled`](crate::Cause::Cancelled).
    ///
    /// ```
    /// # use foldlog::tools::{ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner};
    /// # use foldlog::{Event, ExecutionState, ResourceRegistry, SessionTypes, Slice, Store};
    /// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
    /// # struct Said(String);
    /// # impl Event for Said {
    /// #     const NAME: &'static str = "chat.said";
    /// # }
    /// # struct Chat;
    /// # impl Slice for Chat {
    /// #     const NAME: &'static str = "chat";
    /// #     type Item = Said;
    /// # }
    /// # struct Say;
    /// # impl Tool for Say {
    /// #     const NAME: &'static str = "say";
    /// #     type Parameters = Said;
    /// #     type Output = ();
    /// #     fn call(&self, said: Said, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
    /// #         context.session().dispatch(said.clone())?;
    /// #         if said.0.is_empty() { Err(ToolError::failed("nothing to say")) } else { Ok(ToolResult::ok("said", ())) }
    /// #     }
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
    /// # let session = Store::open(directory.path())?.create(&types)?;
    /// # let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    /// # let runner = ToolRunner::new(state, ToolRegistry::new().with(Say));
    /// let report = runner.execute(&ToolCall::new("say", r#""hello""#), &ExecuteOptions::default())?;
    /// assert!(report.success);
    /// let report = runner.execute(&ToolCall::new("say", r#""""#), &ExecuteOptions::default())?;
    /// assert!(!report.success);
    /// assert_eq!(session.view::<Chat>()?.len(), 1); // what the failed call dispatched is rolled back
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Before the tool runs, with no record written: [`Error::NoSuchTool`] if the runner has no
    /// tool of that name; [`Error::DeadlineExceeded`] if the deadline passed while the call waited
    /// for others; [`Error::Interrupted`] if the session must be recovered first;
    /// [`Error::ResourceDirty`] if another session left a resource half changed and must be
    /// recovered first, [`Error::ResourceMaybeDirty`] if that session's log cannot be read;
    /// [`Error::ToolIdempotency`] if an earlier call of the same origin must be settled first;
    /// [`Error::Stuck`] if another call should have stopped and still runs;
    /// [`Error::WaitedTooLong`] if another call or another session does not end within the maximum
    /// wait; [`Error::InsideOperation`] if this thread [started](ToolRunner::begin) that call and
    /// has to end it; [`Error::SnapshotMismatch`] if the runner is nested in a call of another run;
    /// the resource's error, such as [`Error::Filesystem`] or [`Error::Resource`], if a resource
    /// cannot be leased or captured.
    ///
    /// [`Error::Suspended`] if an earlier call of the same origin is still suspended, with no
    /// record written; or if the tool ran and asks for an approval, with its changes rolled back,
    /// or defers its result, with its changes kept. Within another call, an earlier call counts if
    /// it has the same tool and arguments and was suspended within an earlier run of the outer
    /// call.
    ///
    /// After the tool ran, with its changes rolled back: [`Error::VisibilityExpansion`] if the tool
    /// requests more sections of the prompt.
    ///
    /// [`Error::RestoreFailed`] if a resource could not be restored; the error lists the resources
    /// that were restored and those that were not. The call is left open: the session shows STATE
    /// as it was before the call, is [interrupted](crate::SessionCalls::is_interrupted), and
    /// rejects writes until [`recover`](ToolRunner::recover), in this process or another, has
    /// restored the other resources.
    ///
    /// Otherwise, the errors of [`Session::dispatch`](crate::Session::dispatch) that do not concern
    /// events, and if the call has an origin, those of
    /// [`recorded_report`](ToolRunner::recorded_report).
    #[track_caller]
    pub fn execute(&self, call: &ToolCall, options: &ExecuteOptions) -> Result<ToolReport> {
        let still_due = self.still_due(call);
        match self.find_earlier_call(call)? {
            None => {}
            Some(EarlierCall::Recorded(report)) => return Ok(*report),
            Some(EarlierCall::Unsettled(unsettled)) => {
                let patience = self.session.patience(options.deadline.map(clock::after), options.wait);
                let _recovering = self.session.lock_recovery(&patience)?;
                return match self.run_again(unsettled, options).recovery {
                    Recovery::RanAgain(report) | Recovery::Verified(report) | Recovery::NotUndone(report) => {
                        Ok(report)
                    }
                    Recovery::NeedsSettling(error) | Recovery::Failed(error) => Err(error),
                };
            }
            Some(EarlierCall::Suspended(suspended, standing)) => {
                return self.continue_suspended(&suspended, standing, options);
            }
        }
        let tool = self.tools.get(&call.tool)?;
        let info = info_of(call, tool.as_ref());
        let run = self
            .run(info, &call.arguments, options, &still_due, |context| tool.call(&call.arguments, context));
        match run {
            // Another thread's call of the same origin committed while this one waited.
            Err(Error::NoSuchOperation { reason: HAS_RESULT, operation }) => {
                self.recorded_report(call)?.ok_or(Error::NoSuchOperation { operation, reason: HAS_RESULT })
            }
            run => run,
        }
    }

    /// Returns a check that fails if a call of the same origin has got a result since now. The
    /// caller looks up earlier calls after this, so that no result falls between the two. A call
    /// without an origin is always due.
    pub(super) fn still_due(&self, call: &ToolCall) -> impl Fn() -> Result<()> {
        let asked_at = call.origin.map(|_| self.session.log().position());
        move || {
            if asked_at.is_none_or(|asked_at| self.session.log().position() == asked_at) {
                return Ok(());
            }
            match self.recorded_report(call)? {
                Some(ToolReport { operation, .. }) => {
                    Err(Error::NoSuchOperation { operation, reason: HAS_RESULT })
                }
                None => Ok(()),
            }
        }
    }

    /// Starts a call of a tool that runs elsewhere; the host ends it through the [`Operation`]. If
    /// the runner has a tool of that name, its declarations apply:
    /// [`idempotency`](crate::tools::Tool::idempotency),
    /// [`reads_only`](crate::tools::Tool::reads_only) and
    /// [`outside_only`](crate::tools::Tool::outside_only). Any other tool counts as
    /// [`Manual`](crate::Idempotency::Manual) and as one that may make changes.
    ///
    /// Waits like [`execute`](ToolRunner::execute). Until the operation is ended or [handed
    /// over](Operation::hand_over), calls on this thread that would wait for it are refused.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchOperation`] if an earlier call of the same origin has a result, which
    /// [`recorded_report`](ToolRunner::recorded_report) returns. [`Error::ToolIdempotency`] if that
    /// call was interrupted and is neither run again nor settled yet; [`Error::Suspended`] if that
    /// call is suspended, and [`Error::NoSuchOperation`] if it has failed because its question
    /// expired. An approved call starts again. Otherwise, the errors of
    /// [`execute`](ToolRunner::execute) that occur before the tool runs, without
    /// [`Error::NoSuchTool`].
    #[track_caller]
    pub fn begin(&self, call: &ToolCall, options: &ExecuteOptions) -> Result<Operation> {
        let still_due = self.still_due(call);
        self.begin_as(self.to_begin(call)?, &call.arguments, options, &still_due)?.confirm_claim()
    }

    /// Starts a call of a tool that runs elsewhere, like [`begin`](ToolRunner::begin), for a host
    /// with no effects for the call outside of its session. An example is an adapter that receives
    /// a program's reports of its tool calls through [observations](crate::Session::observe). Such
    /// a call may start in a replay of any mode. There, its start record and the writes through its
    /// handle are compared with the log, and its end comes from the log.
    ///
    /// # Errors
    ///
    /// See [`begin`](ToolRunner::begin).
    #[track_caller]
    pub fn begin_told(&self, call: &ToolCall, options: &ExecuteOptions) -> Result<Operation> {
        if !self.session.replays() {
            return self.begin(call, options);
        }
        self.check_own()?;
        Operation::begin_from_log(&self.state, &self.session, self.to_begin(call)?, &call.arguments)
    }

    /// Describes a call of a tool that runs elsewhere, before its start.
    #[track_caller]
    fn to_begin(&self, call: &ToolCall) -> Result<CallInfo> {
        match self.find_earlier_call(call)? {
            None => {}
            Some(EarlierCall::Recorded(report)) => {
                return Err(Error::NoSuchOperation { operation: report.operation, reason: HAS_RESULT });
            }
            Some(EarlierCall::Unsettled(unsettled)) => {
                return Err(unsettled_error(unsettled.operation, &unsettled.tool));
            }
            Some(EarlierCall::Suspended(suspended, standing)) => {
                let info = self.call_to_continue(&suspended, standing)?.0;
                return Ok(CallInfo { at: Location::caller(), is_held: true, ..info });
            }
        }
        let info = match self.tools.get(&call.tool) {
            Ok(tool) => info_of(call, tool.as_ref()),
            Err(_) => CallInfo::new(call),
        };
        Ok(CallInfo { is_held: true, ..info })
    }
}

/// Describes a call of `tool`, with the tool's declarations.
#[track_caller]
pub(super) fn info_of(call: &ToolCall, tool: &dyn AnyTool) -> CallInfo {
    CallInfo { idempotency: tool.idempotency(), ..CallInfo::new(call) }.of_tool(tool)
}

//! Starts a call, runs its handler, and ends the call. A call whose origin already has a result in
//! the log does not run: no call that committed for a model's answer runs twice.

use std::panic::{AssertUnwindSafe, Location, catch_unwind};

use foldlog_codec::body::{Idempotency, Outcome, ToolBegin};
use foldlog_codec::{OperationId, SequenceNumber};

use super::call::{
    CallEnd, CallEndState, CallInfo, CallSource, DynTool, EncodedToolResult, ExecuteOptions, Operation,
    ToolCall, ToolContext, ToolError, ToolRegistry, ToolReport, Worker,
};
use super::captures::CaptureSet;
use super::execution::{ExecutionState, Leases};
use super::recovery::Recovery;
use crate::clock;
use crate::error::{Error, Result, catch_panic};
use crate::fold::suspensions::SuspensionStatus;
use crate::operation::{SuspendedOperation, UnsettledOperation};
use crate::session::wait::inside_call;
use crate::session::{Patience, Session};
use crate::types::ToolInvoked;

/// Reason for refusing a call of an origin that already has a result.
pub(super) const HAS_RESULT: &str = "it already has a result for that model answer; read it with `recorded`";

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
                return match self.run_again(&unsettled, options)? {
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
        let run = self.run(CallInfo::of_tool(call, tool), options, &still_due, |context| {
            (tool.call)(&call.arguments, context)
        });
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
        self.begin_elsewhere(call, options, Worker::Host)
    }

    /// Starts a call of a tool that runs elsewhere, like [`begin`](ToolRunner::begin), for a host
    /// with no effects for the call outside of its session. An example is an adapter that receives
    /// a program's reports of its tool calls through [observations](crate::SessionInputs::observe). Such
    /// a call may start in a replay of any mode. There, its start record and the writes through its
    /// handle are compared with the log, and its end comes from the log.
    #[track_caller]
    pub fn begin_told(&self, call: &ToolCall, options: &ExecuteOptions) -> Result<Operation> {
        self.begin_elsewhere(call, options, Worker::Reported)
    }

    #[track_caller]
    fn begin_elsewhere(
        &self,
        call: &ToolCall,
        options: &ExecuteOptions,
        worker: Worker,
    ) -> Result<Operation> {
        let still_due = self.still_due(call);
        let info = match self.find_earlier_call(call)? {
            None => self.describe(call),
            Some(EarlierCall::Recorded(report)) => {
                return Err(Error::NoSuchOperation { operation: report.operation, reason: HAS_RESULT });
            }
            Some(EarlierCall::Unsettled(unsettled)) => {
                return Err(unsettled_error(unsettled.operation, &unsettled.tool));
            }
            Some(EarlierCall::Suspended(suspended, standing)) => {
                let info = self.call_to_continue(&suspended, standing)?.0;
                CallInfo { at: Location::caller(), ..info }
            }
        };
        let info = CallInfo { worker, is_held: true, ..info };
        self.start(info, &self.patience(options), &still_due)?.confirm_claim()
    }

    /// Describes a first run of a call, whose tool may run elsewhere.
    #[track_caller]
    pub(super) fn describe(&self, call: &ToolCall) -> CallInfo {
        match self.tools.get(&call.tool) {
            Ok(tool) => CallInfo::of_tool(call, tool),
            Err(_) => CallInfo::new(call),
        }
    }

    /// Returns how long a call with these options waits for others.
    pub(super) fn patience(&self, options: &ExecuteOptions) -> Patience {
        let until = self.state.until(options.deadline.map(clock::after));
        self.session.patience(until, options.wait)
    }

    /// Fails if the runner is nested in a call of another run or session.
    pub(super) fn check_own(&self) -> Result<()> {
        if self.is_anothers {
            let reason =
                "the call runs within a call of another run, whose resources differ from those of this run";
            return Err(Error::SnapshotMismatch(reason.to_owned()));
        }
        if !self.session.is_same(self.state.session()) {
            let (found, own) = (self.session.id(), self.state.session().id());
            return Err(Error::SnapshotMismatch(format!(
                "the call runs within a call of session {found}, but this run belongs to session {own}"
            )));
        }
        Ok(())
    }

    /// Waits, as long as `patience` allows, until the schedule admits the call. Then takes the
    /// leases of the resources, captures them and writes the start record. `still_due` is called
    /// after the wait, and may refuse the call.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotMismatch`] if the runner is nested in a call of another run;
    /// [`Error::DeadlineExceeded`] if the deadline passes before the start; the errors of an
    /// admission, of a lease, and of a capture. No record is written with these. Otherwise, the
    /// errors of [`Session::dispatch`] that do not concern events.
    pub(super) fn start(
        &self,
        info: CallInfo,
        patience: &Patience,
        still_due: &dyn Fn() -> Result<()>,
    ) -> Result<Operation> {
        self.check_own()?;
        let (state, session) = (&self.state, &self.session);
        let info = info.within(session);
        let (until, reads_only, asker) = (patience.until(), info.reads_only, info.to_asker());
        let Some(mut admission) = session.admit(reads_only, patience, asker.clone())? else {
            return self.start_replayed(info);
        };
        // A call that ran during the wait may have made this one unnecessary.
        still_due()?;
        // A nested call works under the leases of the enclosing call, and a closed call needs none.
        let works = info.parent.is_none() && info.closed.is_none();
        let leases = if works { state.lease(reads_only, patience, &asker)? } else { None };
        if let Some(guest) = leases.as_deref().and_then(Leases::guest) {
            admission.run_as(guest);
            if !reads_only {
                state.announce_work()?;
            }
        }
        if let Some(leases) = leases.as_deref().filter(|_| !reads_only) {
            catch_panic("the mark of a workspace", || leases.open())?;
        }
        let captured = || catch_panic("the resources before the call", || state.capture(until));
        let before = if reads_only { CaptureSet::default() } else { captured()? };
        // A restore is about to replace the current contents, and reports its findings itself.
        if info.restores.is_none() && info.parent.is_none() {
            state.tell_of_changes(&before);
        }
        let body = ToolBegin { resources: before.to_record(), ..info.to_begin() };
        let begun = admission.begin(body, state.checkpoints().is_some() && info.restores.is_none())?;
        Ok(Operation::new(state, session, begun, info, CallEndState { before, leases }, CallSource::Live))
    }

    /// Starts a call of a replay: compares its start record with the recorded one. Takes no lease
    /// and no captures. A tool that runs again works on copies of the resources.
    fn start_replayed(&self, info: CallInfo) -> Result<Operation> {
        let (state, session) = (&self.state, &self.session);
        let source = match info.worker {
            Worker::Tool if self.may_run_again(&info)? => CallSource::RunAgain,
            Worker::Host if session.calls().runs_tools_again() => CallSource::RunAgain,
            Worker::Host => {
                let reason = "it replays recorded records, and in this replay no tool runs";
                return Err(Error::ReadOnly { session: session.id(), reason: reason.to_owned() });
            }
            Worker::Reported => CallSource::Reported,
            Worker::Tool | Worker::Once => CallSource::Log,
        };
        let begun = session.calls().begin_replayed(&info.to_begin(), source == CallSource::Log)?;
        let mut held = CallEndState::default();
        if source == CallSource::RunAgain {
            let recorded = session.calls().read_begin(begun.begin).map(|begin| begin.resources);
            held.before =
                state.or_end_replay(recorded.and_then(|recorded| state.begin_on_copies(recorded)))?;
        }
        Ok(Operation::new(state, session, begun, info, held, source))
    }

    /// Runs `handler` as the call that `info` describes, from its start to its end.
    pub(super) fn run(
        &self,
        info: CallInfo,
        options: &ExecuteOptions,
        still_due: &dyn Fn() -> Result<()>,
        handler: impl FnOnce(&ToolContext) -> std::result::Result<EncodedToolResult, ToolError>,
    ) -> Result<ToolReport> {
        let operation = self.start(info, &self.patience(options), still_due)?.confirm_claim()?;
        let ending = run_handler(operation.context(), handler);
        operation.finish(ending)
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

    /// Returns the recorded report of an earlier call with the same [origin](ToolCall::origin): its
    /// committed result, its failure, or the result of its
    /// [settlement](crate::SessionCalls::settle). Does not run the tool. Returns `None` if the call
    /// has no origin, no call of that origin ran, the host rolled back to before its end, or it
    /// still has to be settled.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) if the log cannot be read,
    /// [`Error::Object`](crate::Error::Object) if a payload's object is missing or damaged,
    /// [`Error::Inconsistent`](crate::Error::Inconsistent) if a record contradicts the records
    /// before it.
    pub fn recorded_report(&self, call: &ToolCall) -> Result<Option<ToolReport>> {
        Ok(self.find_earlier_call(call)?.and_then(|known| match known {
            EarlierCall::Recorded(report) => Some(*report),
            EarlierCall::Unsettled(_) | EarlierCall::Suspended(..) => None,
        }))
    }

    /// Finds an earlier call with the same origin; `None` if the call should run as a new one.
    pub(super) fn find_earlier_call(&self, call: &ToolCall) -> Result<Option<EarlierCall>> {
        if let Some((suspended, standing)) =
            self.session.calls().suspended_within(&call.tool, &call.arguments)
        {
            return Ok(Some(EarlierCall::Suspended(Box::new(suspended), standing)));
        }
        let Some(origin) = call.origin else {
            return Ok(None);
        };
        let Some((end, invoked)) = self.session.calls().last_ended(origin)? else { return Ok(None) };
        let invoked = &invoked;
        match invoked.outcome {
            // Unless it has run again or was settled since.
            Outcome::Interrupted => {
                return match self.session.calls().unsettled_operation(invoked.operation) {
                    Some(unsettled) => Ok(Some(EarlierCall::Unsettled(unsettled))),
                    None => self.of_settled(invoked, end),
                };
            }
            Outcome::Suspended => {
                let found = self.session.calls().find_suspended(invoked.operation);
                return match found.filter(|(suspended, _)| suspended.end == end) {
                    Some((suspended, standing)) => {
                        Ok(Some(EarlierCall::Suspended(Box::new(suspended), standing)))
                    }
                    None => self.of_settled(invoked, end),
                };
            }
            // A failed call is closed too: the model received the failure, and repeats the call if
            // needed.
            Outcome::Committed | Outcome::Failed => {}
            // A session with an outcome of a later version is not written to.
            Outcome::Other(_) => return Ok(None),
        }
        let (value, message) = self.session.calls().result_at(end)?;
        let success = invoked.outcome == Outcome::Committed;
        let report = ToolReport::of_ended(invoked, end, success, message, value);
        Ok(Some(EarlierCall::Recorded(Box::new(report))))
    }

    /// Returns the settlement that closed a call that waited since the record `end`; `None` if it
    /// should run again.
    pub(super) fn of_settled(
        &self,
        invoked: &ToolInvoked,
        end: SequenceNumber,
    ) -> Result<Option<EarlierCall>> {
        let settled = self.session.calls().read_settlement(invoked.operation, end)?;
        Ok(settled.and_then(|settled| {
            let (success, shown) = settled.closing_result()?;
            let report = ToolReport::of_ended(invoked, end, success, shown, settled.settlement.result);
            Some(EarlierCall::Recorded(Box::new(report)))
        }))
    }
}

/// An earlier call with the same origin, as the log records it.
pub(super) enum EarlierCall {
    /// Report of a call that committed, failed or was settled.
    Recorded(Box<ToolReport>),
    /// Operation that was interrupted and has neither run again nor been settled since.
    Unsettled(UnsettledOperation),
    /// Suspended operation, and its status.
    Suspended(Box<SuspendedOperation>, SuspensionStatus),
}

/// A call whose tool has returned.
pub(super) enum Ran {
    /// The call has ended.
    Ended(Result<ToolReport>),
    /// The call ends after the calls before it, so that equal runs write equal records. Its tool
    /// had no effects outside that could be lost.
    Returned(Operation, Box<CallEnd>),
}

impl Operation {
    /// Runs the tool of the call on this thread. With `ends_there`, ends the call too; a replay
    /// ends it in the order of the calls.
    pub(super) fn run(self, tool: &DynTool, arguments: &str, ends_there: bool) -> Ran {
        let operation = match self.confirm_claim() {
            Ok(operation) => operation,
            Err(error) => return Ran::Ended(Err(error)),
        };
        let ending = run_handler(operation.context(), |context| (tool.call)(arguments, context));
        match ends_there && !operation.is_from_log() {
            true => Ran::Ended(operation.finish(ending)),
            false => Ran::Returned(operation, Box::new(ending)),
        }
    }
}

/// Runs the handler of a started call, on this thread, unless its effects come from the log.
/// Returns the ending of the call.
fn run_handler(
    context: &ToolContext,
    handler: impl FnOnce(&ToolContext) -> std::result::Result<EncodedToolResult, ToolError>,
) -> CallEnd {
    if context.running.source == CallSource::Log {
        return CallEnd::default();
    }
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

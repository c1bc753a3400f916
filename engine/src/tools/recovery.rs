//! Recovers calls that a process left open: ends them, and runs again those that may run again.
//!
//! | step | if the process ends within it |
//! |---|---|
//! | 1. end the programs that the calls started, including those that left the process group, and wait for their end; also for the calls that their child sessions left open | no changes |
//! | 2. [capture](super::rollback) the current resources, with changes that others made since the call was left | no changes |
//! | 3. restore the resources to their state before the first open call | the next recovery restores them again |
//! | 4. end the open calls of their child sessions as interrupted | the next recovery ends the others |
//! | 5. end each open call as interrupted, nested calls first | the next recovery ends the others |
//! | 6. let the tools that can verify their calls do so, each in its own call | they verify again |
//! | 7. settle the operations that had completed their work, with their results | their tools verify again |
//! | 8. run the operations again that may run again | the repetition is one more interrupted call |
//!
//! If a call's resources could not be restored in its own process, the call was left open too. That
//! process or another recovers it the same way.
//!
//! A recovery also rolls back a [restore](crate::ExecutionState::restore) that was left open, and
//! ends it as failed: no decision is needed.
//!
//! Content of the call that cannot be captured, for example because it filled the disk, is [set
//! aside](super::rollback). The end record and [`RecoveredOperation::not_undone`] state this.

mod left_in_children;

use foldlog_codec::{OperationId, SequenceNumber};
use std::panic::Location;

use foldlog_codec::body::{Cause, ExternalEffects, Idempotency, Outcome, Payload, ToolEnd};
use foldlog_codec::msgpack::Value;
use smol_str::SmolStr;

use self::left_in_children::InterruptedChildren;
use super::call::{
    CallInfo, CallVerification, DynTool, ExecuteOptions, InterruptedCall, ToolCall, ToolReport, ToolResult,
    recorded_groups,
};
use super::captures::CaptureSet;
use super::children::{AnnouncedChildren, ChildReport};
use super::execution::Leases;
use super::rollback::Rollback;
use super::runner::{ToolRunner, unsettled_error};
use crate::clock;
use crate::error::{Error, Result};
use crate::operation::{NotUndone, OpenOperation, PutBack, RESTORE, ReplacedContent, UnsettledOperation};
use crate::session::operation_records::BeginRead;
use crate::session::{Asker, Patience, Session, Settlement};

/// Describes the recovery of one interrupted operation.
#[derive(Clone, Debug)]
pub struct RecoveredOperation {
    /// Operation id: the sequence number of the operation's first `tool_begin`.
    pub operation: OperationId,
    /// Name of the tool.
    pub tool: SmolStr,
    /// Id that the provider assigned to the call.
    pub call_id: Option<SmolStr>,
    /// Outcome of the recovery.
    pub recovery: Recovery,
    /// Changes of the call to its resources that this recovery could not undo.
    pub not_undone: Vec<NotUndone>,
    /// Contents of resources that this recovery replaced or removed, including changes by others.
    /// The end record names a capture of them, which
    /// [`undo_rewind`](crate::ExecutionState::undo_rewind) restores.
    pub replaced: Vec<ReplacedContent>,
    /// Child sessions of the operation, in their state before the tool ran again.
    pub children: Vec<ChildReport>,
}

/// Describes the outcome of a recovery for one interrupted operation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Recovery {
    /// The tool ran again. The report states whether it succeeded.
    RanAgain(ToolReport),
    /// The tool [verified](crate::tools::Tool::verify) that the interrupted call had completed its
    /// work, and did not run again. The report contains the result, with which the operation is
    /// settled.
    Verified(ToolReport),
    /// The tool could not undo the possible effects of the call, and did not run again. The next
    /// recovery tries again. The report is that of the attempt to undo.
    NotUndone(ToolReport),
    /// The tool did not run again: the operation has to be [settled](crate::SessionCalls::settle).
    /// The error contains the reason.
    NeedsSettling(Error),
    /// The tool did not run again, or ran again without a report: it requests more sections of the
    /// prompt, its deadline passed before it started, a resource could not be restored, or the
    /// session rejects further writes. The error contains the reason.
    Failed(Error),
}

/// Returns the [`Error::Full`] of a restore that failed only because the disk is full, and any
/// other error unchanged.
fn full_if_so(error: Error) -> Error {
    match &error {
        Error::RestoreFailed { failed, .. } if failed.iter().all(|(_, error)| error.is_full()) => {
            failed.first().map_or_else(|| error.clone(), |(_, full)| Error::clone(full))
        }
        _ => error,
    }
}

/// Records the end of a call that a process left open. `found` contains the captures from before
/// the recovery's restore.
pub(super) fn end_one(
    session: &Session,
    open: &OpenOperation,
    found: &CaptureSet,
    put_back: &PutBack,
) -> Result<()> {
    let BeginRead { origin, closed, .. } = session.calls().read_begin(open.begin)?;
    // A restore, and a call that was closed without running, need no decision.
    let (outcome, cause) = match &closed {
        Some((cause, _)) => (Outcome::Failed, Some(*cause)),
        None if open.tool == RESTORE => (Outcome::Failed, Some(Cause::Dropped)),
        None => (Outcome::Interrupted, None),
    };
    let info = CallInfo::of_open(open, origin);
    let mut end = ToolEnd { resources: found.to_record(), ..info.to_end(open.begin, outcome, cause) };
    end.shown = closed.as_ref().map(|(_, shown)| Payload::new(shown));
    end.not_undone = put_back.not_undone.iter().map(NotUndone::to_record).collect();
    end.replaced = put_back.replaced.iter().map(ReplacedContent::to_record).collect();
    match session.calls().end_interrupted(end.clone()) {
        // The log reserves room for an end record without paths.
        Err(Error::Full { .. }) => {
            let counted: Vec<ReplacedContent> =
                put_back.replaced.iter().map(ReplacedContent::without_paths).collect();
            end.replaced = counted.iter().map(ReplacedContent::to_record).collect();
            session.calls().end_interrupted(end).map(drop)
        }
        ended => ended.map(drop),
    }
}

/// Returns whether the async caller of the recovery has dropped it.
fn is_given_up() -> bool {
    #[cfg(feature = "async")]
    return crate::offload::is_given_up();
    #[cfg(not(feature = "async"))]
    false
}

/// Author of the settlement of an operation whose tool verified that it had completed its work.
const VERIFIER: &str = "foldlog";

/// Returns whether a tool may verify a call before any other step for it.
fn can_verify(idempotency: Idempotency) -> bool {
    matches!(idempotency, Idempotency::Verify | Idempotency::Keyed | Idempotency::Compensate)
}

impl ToolRunner {
    /// Ends the calls that an earlier process, or this one, left open, and runs again those that
    /// may run again.
    ///
    /// Also takes the [decisions](crate::SessionCalls::take_decisions) that other processes have
    /// left, runs approved suspended calls, and records expired ones as failed.
    ///
    /// A [`Natural`](Idempotency::Natural) or [`Keyed`](Idempotency::Keyed) tool runs again, a
    /// [`Compensate`](Idempotency::Compensate) tool once it has undone its work, and any tool whose
    /// operation was [settled](crate::SessionCalls::settle) that way. The operation of a
    /// [`Manual`](Idempotency::Manual) tool, or of a tool that this runner does not have, waits
    /// until it is settled. The same applies to a call if the host has rolled back to before the
    /// model's answer that requested it. A decision to run a call again becomes invalid if the
    /// session is rolled back to before that call: the call has to be settled again. A tool that
    /// [verifies](crate::tools::Tool::verifies) first determines the effects of its call.
    ///
    /// Returns a report for each unsettled operation, even if the recovery of another one failed. A
    /// host may call this at any time, and again after a failure. The ends are durable when this
    /// returns, with [`Durability::Boundary`](crate::Durability::Boundary) and
    /// [`Durability::Every`](crate::Durability::Every). `options` apply to each call that runs
    /// again.
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
    /// // At every start: also where another process has ended the calls, one may have been decided to run again.
    /// for recovered in runner.recover(&ExecuteOptions::default())? {
    ///     println!("operation {}: {:?}", recovered.operation, recovered.recovery);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// With each of these, calls are still open and the session rejects writes:
    /// [`Error::RestoreFailed`] if a resource could not be restored; [`Error::SnapshotMismatch`] if
    /// the run lacks a resource that is to be restored; [`Error::DeadlineExceeded`] if another
    /// session works on a resource beyond the deadline of `options`; [`Error::ResourceDirty`] if
    /// another session left a resource half changed and must be recovered first,
    /// [`Error::ResourceMaybeDirty`] if that session's log cannot be read; [`Error::Stuck`] if a
    /// program of a call does not end; [`Error::Uncaptured`] if the current content can neither be
    /// captured nor set aside, and no content was touched; [`Error::Full`] if the disk has no space
    /// for the restore.
    ///
    /// [`Error::WaitedTooLong`] if another thread's recovery, or another session's work on a
    /// resource, does not end within the maximum wait. [`Error::InsideOperation`] if a thread that
    /// runs a tool of the session calls this. [`Error::ReadOnly`], [`Error::Closed`],
    /// [`Error::Forked`] or [`Error::Poisoned`] if the session cannot be written here, and
    /// [`Error::Io`] or [`Error::DurabilityUnknown`] if writing an end record fails.
    pub fn recover(&self, options: &ExecuteOptions) -> Result<Vec<RecoveredOperation>> {
        let patience = self.state.session().patience(options.deadline.map(clock::after), options.wait);
        let _recovering = self.state.session().lock_recovery(&patience)?;
        let mut put_back = None;
        if self.state.session().calls().is_interrupted() {
            put_back = self.end_open(&patience)?;
        }
        self.state.session().calls().take_decisions()?;
        let unsettled = self.state.session().calls().unsettled_operations();
        let operations = unsettled.iter().map(|one| one.operation);
        // Children that cannot be read must not prevent a recovery.
        let mut announced = AnnouncedChildren::read(self.state.session(), operations).unwrap_or_default();
        // If the async caller is dropped, futures are no longer polled, and the remaining
        // operations wait for the next recovery.
        let recovered = unsettled.into_iter().take_while(|_| !is_given_up()).map(|unsettled| {
            let told = put_back.take_if(|(operation, _)| *operation == unsettled.operation);
            let children = announced.report(self.state.session(), unsettled.operation);
            let recovery = self.run_again(&unsettled, options).unwrap_or_else(Recovery::Failed);
            let PutBack { not_undone, replaced } = told.map(|(_, told)| told).unwrap_or_default();
            let UnsettledOperation { operation, tool, call_id, .. } = unsettled;
            RecoveredOperation { operation, tool, call_id, recovery, not_undone, replaced, children }
        });
        // If an operation was settled while this waited for the schedule, no recovery is needed.
        let is_settled = |RecoveredOperation { operation, recovery, .. }: &RecoveredOperation| matches!(recovery, Recovery::Failed(Error::NoSuchOperation { operation: settled, .. } | Error::AlreadySettled { operation: settled, .. }) if settled == operation);
        let mut recovered: Vec<RecoveredOperation> = recovered.filter(|one| !is_settled(one)).collect();
        if !is_given_up() {
            recovered.extend(self.run_approved(options)?);
        }
        Ok(recovered)
    }

    /// Ends the calls that were left open, as a recovery does before it runs any again.
    pub(super) fn end_left_open(&self) -> Result<()> {
        let patience = self.state.session().patience(None, None);
        let _recovering = self.state.session().lock_recovery(&patience)?;
        match self.state.session().calls().is_interrupted() {
            true => self.end_open(&patience).map(drop),
            false => Ok(()),
        }
    }

    /// Restores the resources, then ends each open call. Waits for the leases of the resources as
    /// long as `patience` allows. Returns the first open operation that may have made changes, with
    /// the outcome of the restore for it and its nested calls; `None` if the open calls only read.
    pub(super) fn end_open(&self, patience: &Patience) -> Result<Option<(OperationId, PutBack)>> {
        if self.session.replays() {
            return self.end_open_replayed();
        }
        let session = self.state.session();
        let open = session.calls().left_open();
        let reads_only = open.iter().all(|open| open.reads_only);
        let until = patience.until();
        let leases = self.state.lease(reads_only, patience, &Asker::new("recovery", Location::caller()))?;
        let mut children = InterruptedChildren::default();
        let mut found = CaptureSet::default();
        let mut put_back = PutBack::default();
        if let Some(first) = open.iter().find(|open| !open.reads_only) {
            let left = self.state.inner.unended.lock().get(&first.begin).cloned();
            let before = match left {
                Some(before) => before,
                None => CaptureSet::from_recorded(session.calls().read_begin(first.begin)?.resources),
            };
            let before = before.decode_recorded(self.state.resources(), true)?.with_undone(first.operation);
            // Before the marks: a resource whose restore would be refused must not be touched at
            // all.
            before.check(self.state.resources())?;
            leases.as_deref().map_or(Ok(()), Leases::open)?;
            children = InterruptedChildren::open(&self.state, &open)?;
            put_back.not_undone.append(&mut children.unread);
            let groups = recorded_groups(session, first.begin)?;
            for group in groups.iter().chain(&children.programs) {
                if !group.end() {
                    return Err(Error::Stuck { operation: first.operation });
                }
            }
            let earlier = session.calls().captures_before_rollback(first.begin, SequenceNumber::MAX)?;
            let rollback = Rollback { begin: first.begin, before: &before, all: false, earlier, until };
            let plan = self.state.prepare_rollback(rollback).map_err(full_if_so)?;
            found = plan.found.unwrap_or_default();
            put_back.append(plan.told);
            let restored = self.state.put_back(&plan.target, false);
            put_back.append(restored.map_err(full_if_so)?);
        }
        // Before this session's calls: once these have ended, the children's calls must have ended
        // too.
        children.end();
        let first = open.iter().find(|open| !open.reads_only);
        for open in open.iter().rev() {
            let is_first = first.is_some_and(|first| first.begin == open.begin);
            let told = if is_first { put_back.clone() } else { PutBack::default() };
            end_one(session, open, &found, &told)?;
        }
        self.state.inner.unended.lock().clear();
        Ok(first.map(|first| (first.operation, put_back)))
    }

    /// Takes the ends of the calls that an earlier process left open from the log. Returns the
    /// outcome of the restore, for the first operation that may have made changes.
    fn end_open_replayed(&self) -> Result<Option<(OperationId, PutBack)>> {
        let session = self.state.session();
        let open = session.calls().left_open();
        let first = open.iter().find(|open| !open.reads_only);
        let mut put_back = PutBack::default();
        for open in open.iter().rev() {
            let end = session.calls().end_left_open_replayed(open.begin)?;
            if first.is_some_and(|first| first.begin == open.begin) {
                put_back = session.calls().read_whole_end(end)?.put_back;
            }
        }
        Ok(first.map(|first| (first.operation, put_back)))
    }

    /// Runs the tool of an unsettled operation again if it may run again. A
    /// [`Compensate`](Idempotency::Compensate) tool undoes the work of the interrupted call first.
    pub(super) fn run_again(
        &self,
        unsettled: &UnsettledOperation,
        options: &ExecuteOptions,
    ) -> Result<Recovery> {
        let UnsettledOperation { operation, begin, tool, call_id, idempotency, undone, run_again } =
            unsettled;
        let (operation, begin, idempotency, run_again) = (*operation, *begin, *idempotency, *run_again);
        let handler = match self.tools.get(tool) {
            Ok(handler) => handler,
            Err(error) => return Ok(Recovery::NeedsSettling(error)),
        };
        let asks = !run_again && !undone && can_verify(idempotency) && handler.verifies;
        let manual = idempotency.needs_settling() && !run_again;
        let needs_settling = || Ok(Recovery::NeedsSettling(unsettled_error(operation, tool)));
        // A rollback to before the call also took back the decision about it.
        if manual && !asks || run_again && self.decision_is_gone(operation, begin)? {
            return needs_settling();
        }
        let call = self.call_again(begin, tool, call_id.as_ref())?;
        // The call is no longer requested, and its effects outside are unknown.
        if !run_again
            && call.origin.is_some_and(|origin| self.state.session().conversation().is_abandoned(origin))
        {
            return needs_settling();
        }
        let verified = match asks {
            true => self.verify(unsettled, &call, handler, options)?,
            false => None,
        };
        let finding = verified.as_ref().map_or(CallVerification::Unknown, CallVerification::from_report);
        let had_effects = match (finding, verified) {
            (CallVerification::Done(result), Some(asked)) => {
                return self.settle_verified(unsettled, result, asked).map(Recovery::Verified);
            }
            (CallVerification::Unknown, _) if manual => return needs_settling(),
            (CallVerification::NotDone, _) => false,
            _ => true,
        };
        if idempotency == Idempotency::Compensate && had_effects && !undone && !run_again {
            let undo = CallInfo { undoes: Some(operation), idempotency, ..CallInfo::new(&call) };
            // Like the call that it undoes, it need not wait for others of its kind.
            let undo = if handler.outside_only { undo.declared_by(handler) } else { undo };
            let undone = InterruptedCall::read(self.state.session(), operation, begin)?;
            let report = self.run(undo, options, &|| Ok(()), |context| (handler.undo)(&undone, context))?;
            if !report.success {
                return Ok(Recovery::NotUndone(report));
            }
        }
        let approval = self.approval_of(operation, begin)?;
        let again = Some(operation);
        let info = CallInfo { again, approval, idempotency, ..CallInfo::new(&call) }.declared_by(handler);
        let run = |context: &_| (handler.call)(&call.arguments, context);
        self.run(info, options, &|| Ok(()), run).map(Recovery::RanAgain)
    }

    /// Returns whether the session was rolled back to before the call of an unsettled operation
    /// since the last decision about it, and has not returned to a position after that decision.
    fn decision_is_gone(&self, operation: OperationId, begin: SequenceNumber) -> Result<bool> {
        let session = self.state.session();
        Ok(match session.calls().read_settlement(operation, begin)? {
            Some(decided) => session.conversation().was_rolled_back_behind(begin, decided.sequence),
            _ => false,
        })
    }

    /// Lets a tool verify an interrupted call, in a separate call that only reads. Returns the
    /// report of that call; `None` if it has no finding.
    fn verify(
        &self,
        unsettled: &UnsettledOperation,
        call: &ToolCall,
        handler: &DynTool,
        options: &ExecuteOptions,
    ) -> Result<Option<ToolReport>> {
        let UnsettledOperation { operation, begin, idempotency, .. } = *unsettled;
        let verifies = Some(operation);
        let info = CallInfo { verifies, idempotency, reads_only: true, ..CallInfo::new(call) };
        let interrupted = InterruptedCall::read(self.state.session(), operation, begin)?;
        let verify = |context: &_| (handler.verify)(&interrupted, context);
        match self.run(info, options, &|| Ok(()), verify) {
            // The verifying call has an end, and no finding.
            Err(Error::VisibilityExpansion { .. }) => Ok(None),
            asked => asked.map(Some),
        }
    }

    /// Settles an interrupted operation with the result that its tool found. Returns its report;
    /// `asked` is that of the verifying call.
    fn settle_verified(
        &self,
        unsettled: &UnsettledOperation,
        result: ToolResult<Value>,
        asked: ToolReport,
    ) -> Result<ToolReport> {
        let UnsettledOperation { operation, begin, .. } = *unsettled;
        let ToolResult { success, message, value, .. } = result;
        let settlement = match success {
            true => Settlement::committed(value.clone()),
            false => Settlement::failed(),
        };
        let reason = "its tool found out that it had done its work";
        self.state.session().calls().settle(operation, &settlement.showing(message), VERIFIER, reason)?;
        Ok(ToolReport {
            operation,
            begin,
            success,
            outcome: if success { Outcome::Committed } else { Outcome::Failed },
            cause: (!success).then_some(Cause::Unsuccessful),
            value,
            outside: ExternalEffects::Unknown,
            recorded: true,
            ..asked
        })
    }

    /// Returns the request of the call with the start record `begin`.
    pub(super) fn call_again(
        &self,
        begin: SequenceNumber,
        tool: &SmolStr,
        call_id: Option<&SmolStr>,
    ) -> Result<ToolCall> {
        let BeginRead { arguments, origin, .. } = self.state.session().calls().read_begin(begin)?;
        let arguments = match Value::decode(&arguments) {
            Ok(Value::Str(arguments)) => arguments,
            _ => {
                let reason = "the call's recorded arguments are not text".to_owned();
                return Err(Error::Inconsistent { sequence: begin, reason });
            }
        };
        Ok(ToolCall { tool: tool.clone(), call_id: call_id.cloned(), arguments, origin })
    }
}

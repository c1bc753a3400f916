//! What becomes of calls that a process left open.
//!
//! | step | where the process ends in it |
//! |---|---|
//! | 1. programs that it had started are ended, wherever they went, and waited for until they are gone | nothing was changed |
//! | 2. the resources are captured as they are, where they can be | nothing was changed |
//! | 3. they are restored to what they were before the first open call | they are restored again |
//! | 4. each open call is ended as interrupted, the inner ones first | the others are ended by the next recovery |
//! | 5. what may be run again is | it is one more interrupted call |
//!
//! A call whose resources could not be restored in its own process was left open too, and is recovered the same way, by
//! that process or by another.
//!
//! # A full disk
//!
//! Where there is no room for a capture of what was left half done, the resources remove what they can make again, and the
//! restore, which removes before it writes, makes the room that it needs. The end says in the log that nothing was
//! captured, and [`Recovered::not_undone`] to the caller. Where there is no room even then, the recovery answers with
//! [`Error::Full`], has recorded nothing, and is to be called again once there is.
//!
//! A restore that was left open is taken back too, and ended as failed: nobody has to decide about it.

use foldlog_codec::OperationId;
use std::time::Instant;

use foldlog_codec::body::{Cause, Idempotency, Outcome, ToolEnd};
use foldlog_codec::msgpack::Value;
use smol_str::SmolStr;

use super::call::{CallInfo, ExecuteOptions, Group, ToolCall, ToolReport};
use super::captures::Captures;
use super::execution::Leases;
use super::restoring::RESTORE;
use super::runner::{ToolRunner, unsettled_error};
use crate::clock;
use crate::error::{Error, Result};
use crate::operation::{NotUndone, UnsettledOperation};
use crate::sabotage::{self, Breakage};
use crate::session::operation_records::BeginRead;

/// What was done about an interrupted operation.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The operation's name.
    pub operation: OperationId,
    /// The tool.
    pub tool: SmolStr,
    /// The provider's name for the call.
    pub call_id: Option<SmolStr>,
    /// What was done.
    pub recovery: Recovery,
    /// What the call did to its resources that was not undone when this recovery restored them.
    pub not_undone: Vec<NotUndone>,
}

/// What was done about an interrupted operation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Recovery {
    /// It was run again.
    RanAgain(ToolReport),
    /// What it may have done could not be undone; it is tried again at the next recovery.
    NotUndone(ToolReport),
    /// Somebody has to settle it: the error says why.
    NeedsSettling(Error),
    /// It was not run again, or that has no report: it asks for more of the prompt to be shown, its time was over, a
    /// resource could not be restored, or the session takes no writes any more. The error says which.
    Failed(Error),
}

/// Of a restore that failed for a lack of room alone, that.
fn full_if_so(error: Error) -> Error {
    match &error {
        Error::RestoreFailed { failed, .. } if failed.iter().all(|(_, error)| error.is_full()) => {
            failed.first().map_or_else(|| error.clone(), |(_, full)| Error::clone(full))
        }
        _ => error,
    }
}

impl ToolRunner {
    /// Ends what an earlier process left open, and runs again what may be: a [`Natural`](Idempotency::Natural) or
    /// [`Keyed`](Idempotency::Keyed) tool, a [`Compensate`](Idempotency::Compensate) one once its work is undone, and
    /// what somebody settled that way. What is [`Manual`](Idempotency::Manual), or not among this runner's tools, is
    /// left to be settled. May be called at any time, and again after it failed. Answers for each operation that waits,
    /// whatever became of the others.
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
    /// # let folder = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
    /// # let session = Store::open(folder.path())?.create(&types)?;
    /// # let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    /// # let runner = ToolRunner::new(state, ToolRegistry::new().with(Say));
    /// if session.is_interrupted() {
    ///     for recovered in runner.recover(&ExecuteOptions::default())? {
    ///         println!("operation {}: {:?}", recovered.operation, recovered.recovery);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::RestoreFailed`] or [`Error::SnapshotMismatch`] where a resource could not be restored,
    /// [`Error::DeadlineExceeded`] where somebody else worked on one for longer than the time of a call,
    /// [`Error::ResourceDirty`] and [`Error::ResourceMaybeDirty`] where another session is to be recovered before,
    /// [`Error::Stuck`] where a program of a call does not end, [`Error::Full`] where the disk has no room for what is to
    /// be restored, and what writing the ends says: calls are still open then, and the session takes no writes.
    pub fn recover(&self, options: &ExecuteOptions) -> Result<Vec<Recovered>> {
        let _recovering = self.state.session().recovering()?;
        let mut not_undone = None;
        if self.state.session().is_interrupted() {
            not_undone = self.end_open(options.deadline.map(clock::after))?;
        }
        let unsettled = self.state.session().unsettled_operations();
        let recovered = unsettled.into_iter().map(|unsettled| {
            let told = not_undone.take_if(|(operation, _)| *operation == unsettled.operation);
            let recovered = self.run_again(unsettled, options);
            Recovered { not_undone: told.map(|(_, told)| told).unwrap_or_default(), ..recovered }
        });
        // Where somebody settled one while this waited for its turn there is nothing left to recover.
        let is_settled = |Recovered { operation, recovery, .. }: &Recovered| matches!(recovery, Recovery::Failed(Error::NoSuchOperation { operation: settled, .. }) if settled == operation);
        Ok(recovered.filter(|one| !is_settled(one)).collect())
    }

    /// Restores the resources, for which it waits no longer than it is told, then ends what is open. Tells what the first
    /// open operation, with those within it, did that was not undone.
    fn end_open(&self, until: Option<Instant>) -> Result<Option<(OperationId, Vec<NotUndone>)>> {
        let session = self.state.session();
        let open = session.left_open();
        let leases = self.state.lease(until.filter(|_| !sabotage::is(Breakage::RecoveryWaitsOn)))?;
        let mut found = Captures::default();
        let mut late = None;
        let mut not_undone = Vec::new();
        if let Some(first) = open.iter().find(|open| !open.reads_only) {
            let before = match self.state.unended(first.begin) {
                Some(before) => before,
                None => session.read_begin(first.begin, |begin| Captures::recorded(begin.resources))?,
            };
            let before = before.recalled(self.state.resources(), true)?;
            // Ahead of the marks: what is not to be restored is not to be touched at all.
            before.check(self.state.resources())?;
            leases.as_deref().map_or(Ok(()), Leases::open)?;
            for group in Group::recorded(session, first.begin)? {
                if !sabotage::is(Breakage::ProgramsNotAwaited) && !group.is_gone() {
                    return Err(Error::Stuck { operation: first.operation });
                }
            }
            // What a call left half done may be what cannot be captured: a pipe, too much, too deep. It is not needed.
            match self.state.capture(until, || Some("recovery".to_owned())) {
                Err(error) if sabotage::is(Breakage::RecoveryNeedsCapture) => return Err(error),
                Err(error) => {
                    if error.is_full() {
                        self.state.free_caches();
                    }
                    let reason = format!("what the call had left was not captured: {error}");
                    not_undone.push(NotUndone::new("", "", reason));
                }
                Ok(captures) => found = captures,
            }
            if sabotage::is(Breakage::RestoredAfterEnd) {
                late = Some(before);
            } else if !sabotage::is(Breakage::ResourcesNotRestored) {
                let restored = self.state.put_back(&before, false);
                not_undone.extend(restored.map_err(full_if_so)?);
            }
        }
        let first = open.iter().find(|open| !open.reads_only);
        for open in open.iter().rev() {
            let origin = session.read_begin(open.begin, |begin| begin.origin)?;
            // Of a restore nothing is left that anybody could decide about.
            let ended = match open.tool == RESTORE {
                true => (Outcome::Failed, Some(Cause::Dropped)),
                false => (Outcome::Interrupted, None),
            };
            let info = CallInfo::of_open(open, origin);
            let mut end = ToolEnd { resources: found.to_record(), ..info.to_end(open.begin, ended) };
            end.rolls_back &= !sabotage::is(Breakage::InterruptedStateKept);
            if first.is_some_and(|first| first.begin == open.begin) {
                end.not_undone = not_undone.iter().map(NotUndone::to_record).collect();
            }
            session.end_interrupted(end)?;
        }
        self.state.all_ended();
        if let Some(before) = late {
            self.state.put_back(&before, false)?;
        }
        Ok(first.map(|first| (first.operation, not_undone)))
    }

    pub(super) fn run_again(&self, unsettled: UnsettledOperation, options: &ExecuteOptions) -> Recovered {
        let recovery = self.again(&unsettled, options).unwrap_or_else(Recovery::Failed);
        let UnsettledOperation { operation, tool, call_id, .. } = unsettled;
        Recovered { operation, tool, call_id, recovery, not_undone: Vec::new() }
    }

    fn again(&self, unsettled: &UnsettledOperation, options: &ExecuteOptions) -> Result<Recovery> {
        let UnsettledOperation { operation, begin, tool, call_id, idempotency, undone, run_again } =
            unsettled;
        let (operation, begin, idempotency) = (*operation, *begin, *idempotency);
        let run_again = *run_again || sabotage::is(Breakage::ManualRunAgain);
        let manual = idempotency == Idempotency::Manual && !run_again;
        let handler = match self.tools.get(tool) {
            Ok(handler) if !manual => handler,
            Ok(_) => return Ok(Recovery::NeedsSettling(unsettled_error(operation, tool))),
            Err(error) => return Ok(Recovery::NeedsSettling(error)),
        };
        let BeginRead { arguments, origin, .. } = self.state.session().read_begin(begin, |begin| begin)?;
        let arguments = match Value::decode(&arguments) {
            Ok(Value::Str(arguments)) => arguments,
            _ => {
                let reason = "its arguments are no text".to_owned();
                return Err(Error::Inconsistent { sequence: begin, reason });
            }
        };
        let call = ToolCall { tool: tool.clone(), call_id: call_id.clone(), arguments, origin };
        let reads_only = handler.reads_only();
        if idempotency == Idempotency::Compensate && !undone && !run_again {
            let undo = CallInfo { undoes: Some(operation), idempotency, ..CallInfo::new(&call) };
            match self.run(undo, &call.arguments, options, |context| handler.undo(&call.arguments, context)) {
                Ok(report) if report.success => {}
                Ok(report) => return Ok(Recovery::NotUndone(report)),
                Err(error) => return Err(error),
            }
        }
        let info = CallInfo { again: Some(operation), idempotency, reads_only, ..CallInfo::new(&call) };
        self.run(info, &call.arguments, options, |context| handler.call(&call.arguments, context))
            .map(Recovery::RanAgain)
    }
}

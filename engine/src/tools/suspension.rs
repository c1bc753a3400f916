//! Suspended calls: the outcome when such a call is requested again.
//!
//! | status of the call | outcome |
//! |---|---|
//! | it waits | the caller gets the question again, and no record is written |
//! | its question or its approval has expired | the failure is recorded, and is its result |
//! | it was approved | the tool runs under the same operation id, and its context contains the approval |
//! | it was nested, and was refused or got a result | that is its result |
//! | it waits for a call within it that no longer waits | the tool runs again under the same operation id |
//!
//! An approval is valid for each run that follows from it, until it expires: also after a run that
//! was interrupted, and after one that was rolled back because a call within it asked. A fork asks
//! again.

use foldlog_codec::body::SuspensionForm;
use foldlog_codec::{OperationId, SequenceNumber};

use super::call::{Approval, CallInfo, ExecuteOptions, ToolCall, ToolReport};
use super::recovery::{RecoveredOperation, Recovery};
use super::runner::{EarlierCall, ToolRunner};
use crate::error::{Error, Result};
use crate::fold::suspensions::SuspensionStatus;
use crate::operation::SuspendedOperation;
use crate::session::Settlement;
use crate::types::ToolInvoked;

/// Author of the decision about an expired call.
const EXPIRY: &str = "foldlog";
/// Text for the model about such a call.
const EXPIRED: &str = "Nobody answered in time, so the call has failed. It did not run.";
/// Text for the model if the call has completed its part.
const EXPIRED_RESULT: &str =
    "The result did not come in time, so the call has failed. What it did before stays.";

impl ToolRunner {
    /// Continues a suspended call according to its status.
    pub(super) fn continue_suspended(
        &self,
        suspended: &SuspendedOperation,
        standing: SuspensionStatus,
        options: &ExecuteOptions,
    ) -> Result<ToolReport> {
        if standing == SuspensionStatus::Expired {
            self.expire(suspended)?;
        }
        if suspended.parent.is_some() {
            self.session.calls().makes_again(suspended.operation);
        }
        let invoked = ToolInvoked::of_suspended(suspended);
        // A nested call may have run since its question, and been rolled back.
        let decided = self.session.calls().suspended_one(suspended.operation).and_then(|one| one.decided);
        let from = decided.map_or(suspended.end, |decided| decided.sequence);
        if let Some(EarlierCall::Recorded(report)) = self.of_settled(&invoked, from)? {
            return Ok(*report);
        }
        let (info, call) = self.call_to_continue(suspended, standing)?;
        let tool = self.tools.get(&call.tool)?;
        // While this waited for the schedule, the question may have been withdrawn, or the approval
        // may have expired.
        let still_due = || self.still_approved(suspended.operation);
        self.run(info, options, &still_due, |context| (tool.call)(&call.arguments, context))
    }

    fn still_approved(&self, operation: OperationId) -> Result<()> {
        let reason = match self.session.calls().find_suspended(operation) {
            Some((_, SuspensionStatus::MayRun(_))) => return Ok(()),
            Some((_, SuspensionStatus::Waits(_))) => "it waits for a decision again",
            Some((_, SuspensionStatus::Expired)) => "its approval has expired",
            None => "its question was withdrawn, or it has run",
        };
        Err(Error::NoSuchOperation { operation, reason })
    }

    /// Returns the request of a suspended call, and describes the run that continues it.
    ///
    /// # Errors
    ///
    /// [`Error::Suspended`] if it still waits, [`Error::NoSuchOperation`] if it has expired.
    pub(super) fn call_to_continue(
        &self,
        suspended: &SuspendedOperation,
        standing: SuspensionStatus,
    ) -> Result<(CallInfo, ToolCall)> {
        let SuspensionStatus::MayRun(approved) = standing else {
            return Err(self.suspended_error(suspended, standing)?);
        };
        let approval = match approved {
            Some(decided) => self
                .session
                .calls()
                .read_settlement(suspended.operation, decided)?
                .map(Approval::of_settlement),
            None => self.approval_of(suspended.operation, suspended.begin)?,
        };
        let call = self.call_again(suspended.begin, &suspended.tool, suspended.call_id.as_ref())?;
        let (again, idempotency) = (Some(suspended.operation), suspended.idempotency);
        let info = CallInfo { again, approval, idempotency, ..CallInfo::new(&call) };
        let info = match self.tools.get(&call.tool) {
            Ok(tool) => info.declared_by(tool),
            Err(_) => info,
        };
        Ok((info, call))
    }

    /// Returns the approval for another run of an operation whose last run has the start record
    /// `begin`. An approval remains valid if that run was interrupted, or was rolled back because a
    /// call within it asks.
    pub(super) fn approval_of(
        &self,
        operation: OperationId,
        begin: SequenceNumber,
    ) -> Result<Option<Approval>> {
        // A first run has no approval.
        if operation.sequence() == begin {
            return Ok(None);
        }
        Ok(self.session.calls().read_approval(operation)?.map(Approval::of_settlement))
    }

    /// Returns the error of a call that does not continue.
    pub(super) fn suspended_error(
        &self,
        suspended: &SuspendedOperation,
        standing: SuspensionStatus,
    ) -> Result<Error> {
        let SuspensionStatus::Waits(operation) = standing else {
            let reason = "it was not answered in time: run it again to record that it failed";
            return Ok(Error::NoSuchOperation { operation: suspended.operation, reason });
        };
        let waiting = self.session.calls().suspended_one(operation).unwrap_or_else(|| suspended.clone());
        let (_, question) = self.session.calls().result_at(waiting.end)?;
        let (session, form) = (self.session.id(), waiting.suspension.form);
        Ok(Error::Suspended { session, operation, form, question })
    }

    /// Records that the question expired.
    fn expire(&self, suspended: &SuspendedOperation) -> Result<()> {
        let awaited = suspended.suspension.form == SuspensionForm::Awaits;
        let shown = if awaited { EXPIRED_RESULT } else { EXPIRED };
        self.session.calls().expire(suspended.operation, &Settlement::failed().showing(shown), EXPIRY)
    }

    /// Runs the approved calls that are not nested, and records expired ones as failed.
    pub(super) fn run_approved(&self, options: &ExecuteOptions) -> Result<Vec<RecoveredOperation>> {
        let mut recovered = Vec::new();
        for (suspended, standing) in self.state.session().calls().due() {
            if standing == SuspensionStatus::Expired {
                self.expire(&suspended)?;
                continue;
            }
            if self.tools.get(&suspended.tool).is_err() {
                continue;
            }
            // Children that cannot be read must not prevent a recovery.
            let children = self.state.session().calls().children_of(suspended.operation).unwrap_or_default();
            let recovery = self.continue_suspended(&suspended, standing, options);
            let recovery = recovery.map_or_else(Recovery::Failed, Recovery::RanAgain);
            let SuspendedOperation { operation, tool, call_id, .. } = suspended;
            let (not_undone, replaced) = (Vec::new(), Vec::new());
            recovered.push(RecoveredOperation {
                operation,
                tool,
                call_id,
                recovery,
                not_undone,
                replaced,
                children,
            });
        }
        Ok(recovered)
    }
}

//! Finds an earlier call with the same origin in the log, so that no call that committed for a
//! model's answer runs twice.

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::Outcome;
use foldlog_codec::msgpack::Value;

use super::call::{ToolCall, ToolReport};
use super::runner::ToolRunner;
use crate::error::Result;
use crate::fold::suspensions::SuspensionStatus;
use crate::operation::{SuspendedOperation, UnsettledOperation};
use crate::types::ToolInvoked;

impl ToolRunner {
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
            Outcome::Interrupted => return self.of_interrupted(invoked, end),
            Outcome::Suspended => return self.of_suspended(invoked, end),
            // A failed call is closed too: the model received the failure, and repeats the call if
            // needed.
            Outcome::Committed | Outcome::Failed => {}
            // A session with an outcome of a later version is not written to.
            Outcome::Other(_) => return Ok(None),
        }
        let (value, message) = self.session.calls().result_at(end)?;
        let success = invoked.outcome == Outcome::Committed;
        Ok(Some(EarlierCall::from_invoked(invoked, end, success, message, value)))
    }

    /// Returns an interrupted call that has not run again: as unsettled, or with its settlement.
    fn of_interrupted(&self, invoked: &ToolInvoked, end: SequenceNumber) -> Result<Option<EarlierCall>> {
        match self.session.calls().unsettled_operation(invoked.operation) {
            Some(unsettled) => Ok(Some(EarlierCall::Unsettled(unsettled))),
            None => self.of_settled(invoked, end),
        }
    }

    /// Returns a suspended call with its status, or its settlement.
    fn of_suspended(&self, invoked: &ToolInvoked, end: SequenceNumber) -> Result<Option<EarlierCall>> {
        match self
            .session
            .calls()
            .find_suspended(invoked.operation)
            .filter(|(suspended, _)| suspended.end == end)
        {
            Some((suspended, standing)) => Ok(Some(EarlierCall::Suspended(Box::new(suspended), standing))),
            None => self.of_settled(invoked, end),
        }
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
            Some(EarlierCall::from_invoked(invoked, end, success, shown, settled.settlement.result))
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

impl EarlierCall {
    fn from_invoked(
        invoked: &ToolInvoked,
        end: SequenceNumber,
        success: bool,
        message: String,
        value: Option<Value>,
    ) -> EarlierCall {
        EarlierCall::Recorded(Box::new(ToolReport {
            operation: invoked.operation,
            begin: invoked.begin,
            end,
            tool: invoked.tool.clone(),
            call_id: invoked.call_id.clone(),
            outcome: invoked.outcome,
            cause: invoked.cause,
            success,
            message,
            value,
            outside: invoked.outside,
            not_undone: Vec::new(),
            replaced: Vec::new(),
            elapsed_us: invoked.elapsed_us,
            recorded: true,
        }))
    }
}

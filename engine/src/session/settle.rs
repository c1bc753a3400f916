//! Decisions about interrupted and suspended operations.

use chrono::{DateTime, Utc};
use foldlog_codec::body::{Decision, Payload, Settle};
use foldlog_codec::msgpack::Value;
use foldlog_codec::{OperationId, RecordKind, SequenceNumber};
use parking_lot::MutexGuard;

use super::replay::Attempt;
use super::{Session, SessionCalls, SessionInner, WriterState};
use crate::conversation::{settled_text, text_payload};
use crate::error::{Error, Result};
use crate::fold::conversation_reading;
use crate::fold::questions::{self, PendingQuestion};
use crate::fold::record_kinds::RecordBody;
use crate::fold::suspensions::{Standings, SuspensionStatus};
use crate::operation::{SuspendedOperation, UnsettledOperation};
use crate::types::encode;

/// A decision about an operation that was interrupted or is suspended.
#[derive(Clone, Debug, PartialEq)]
pub struct Settlement {
    pub(crate) decision: Decision,
    pub(crate) result: Option<Value>,
    pub(crate) shown: Option<String>,
    pub(crate) arguments: Option<[u8; 32]>,
    pub(crate) until: Option<DateTime<Utc>>,
}

pub(crate) struct SettlementPayloads {
    result: Option<Vec<u8>>,
    /// Text for the model.
    shown: Option<Vec<u8>>,
}

impl Settlement {
    fn new(decision: Decision) -> Settlement {
        Settlement { decision, result: None, shown: None, arguments: None, until: None }
    }

    /// States that the operation finished its work, with this result. For a suspended operation
    /// that awaits its result, this is the result.
    pub fn committed(result: Option<Value>) -> Settlement {
        Settlement { result, ..Settlement::new(Decision::Committed) }
    }

    /// States that the operation has not finished its work, and is not to run again. If the
    /// operation asked for an approval, this is a refusal.
    pub fn failed() -> Settlement {
        Settlement::new(Decision::Failed)
    }

    /// States that an interrupted operation is to run again.
    pub fn run_again() -> Settlement {
        Settlement::new(Decision::RunAgain)
    }

    /// Approves an operation: it is to run. `arguments` is the BLAKE3 of the text of its arguments,
    /// as in [`PendingQuestion::digest`], so that only arguments that were seen can be approved.
    pub fn approved(arguments: [u8; 32]) -> Settlement {
        Settlement { arguments: Some(arguments), ..Settlement::new(Decision::RunAgain) }
    }

    /// Sets the text for the model about the call. Without it the model reads the result, or the
    /// reason.
    #[must_use]
    pub fn showing(self, text: impl Into<String>) -> Settlement {
        Settlement { shown: Some(text.into()), ..self }
    }

    /// Sets the time at which an approval expires: a call that was not run by then has failed.
    #[must_use]
    pub fn until(self, until: DateTime<Utc>) -> Settlement {
        Settlement { until: Some(until), ..self }
    }
}

impl Settlement {
    /// Returns the decision in a record. `value` reads its payloads.
    pub(crate) fn of_record(
        settle: &Settle<'_>,
        value: impl Fn(Payload<'_>) -> Result<Value>,
    ) -> Result<Settlement> {
        let shown = settle.shown.map(&value).transpose()?;
        Ok(Settlement {
            decision: settle.decision,
            result: settle.result.map(&value).transpose()?,
            shown: shown.as_ref().and_then(Value::as_str).map(str::to_owned),
            arguments: settle.arguments,
            until: settle.until_us.map(conversation_reading::time),
        })
    }

    /// Encodes the result of the decision, and the text for the model.
    pub(crate) fn payloads(&self) -> Result<SettlementPayloads> {
        // A value that cannot be decoded again would make the log unreadable.
        let result = self.result.as_ref().map(|result| encode("a settled result", result)).transpose()?;
        Ok(SettlementPayloads { result, shown: self.shown.as_deref().map(text_payload) })
    }

    /// Returns the record of the decision, with these [payloads](Settlement::payloads).
    pub(crate) fn to_record<'a>(
        &self,
        operation: OperationId,
        by: &str,
        reason: &str,
        payloads: &'a SettlementPayloads,
    ) -> Settle<'a> {
        Settle {
            result: payloads.result.as_deref().map(Payload::new),
            shown: payloads.shown.as_deref().map(Payload::new),
            arguments: self.arguments,
            until_us: self.until.map(|until| until.timestamp_micros()),
            ..Settle::new(operation, self.decision, by, reason)
        }
    }
}

pub(crate) struct RecordedSettlement {
    pub(crate) sequence: SequenceNumber,
    pub(crate) settlement: Settlement,
    pub(crate) by: String,
    pub(crate) reason: String,
}

impl RecordedSettlement {
    /// Returns whether the call counts as successful, and the text for the model; `None` if it is
    /// to run again.
    pub(crate) fn closing_result(&self) -> Option<(bool, String)> {
        let Settlement { decision, result, shown, .. } = &self.settlement;
        let text = || settled_text(*decision, result.as_ref(), shown.as_deref(), &self.reason);
        match decision {
            Decision::RunAgain => None,
            Decision::Committed => Some((true, text())),
            Decision::Failed => Some((false, text())),
        }
    }
}

impl SessionCalls<'_> {
    /// Returns the operations that were interrupted and have neither run again nor been settled
    /// since.
    pub fn unsettled_operations(&self) -> Vec<UnsettledOperation> {
        self.session.inner.state.lock().live.projection.operations.unsettled().cloned().collect()
    }

    pub(crate) fn unsettled_operation(&self, operation: OperationId) -> Option<UnsettledOperation> {
        self.session.inner.state.lock().live.projection.operations.unsettled_one(operation).cloned()
    }

    /// Returns the unanswered questions of suspended operations that have not expired, in the order
    /// of their operation ids. An operation that depends on a nested one has no question.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the log cannot be read, [`Error::Object`] if an object is missing or
    /// damaged, [`Error::Inconsistent`] if a recorded text is no string.
    pub fn pending_questions(&self) -> Result<Vec<PendingQuestion>> {
        let (waiting, source) = {
            let state = self.session.inner.state.lock();
            let standing = self.session.inner.standings(&state);
            (standing.waiting_operations(), self.session.inner.log_source(&state))
        };
        questions::read(&source, self.session.inner.id, &waiting, None)
    }

    /// Decides about a suspended operation, or about an interrupted one that only a person or the
    /// host can judge. Returns the sequence number of the decision's record. Needs no types.
    ///
    /// With [`Settlement::run_again`], the next recovery runs an interrupted operation again. With
    /// [`Settlement::approved`], either the next recovery or the conversation that requested the
    /// call runs it.
    ///
    /// With [`Durability::Boundary`](crate::Durability::Boundary) and
    /// [`Durability::Every`](crate::Durability::Every), the record is durable when this returns.
    ///
    /// # Errors
    ///
    /// - [`Error::Blank`] if `by` is blank; the reason may be empty
    /// - [`Error::AlreadySettled`] if the operation was settled before
    /// - [`Error::NoSuchOperation`] if the decision does not fit: the operation is unknown, or
    ///   still open, so that the session must be recovered first; its question has expired or was
    ///   withdrawn; the approval names other arguments, or no approval is required; it requires an
    ///   approval and is to run again without one; it requires a result and is to run again
    /// - the errors of [`dispatch`](Session::dispatch) that do not concern events
    pub fn settle(
        &self,
        operation: impl Into<OperationId>,
        settlement: &Settlement,
        by: &str,
        reason: &str,
    ) -> Result<SequenceNumber> {
        let operation = operation.into();
        let inner = &self.session.inner;
        if by.trim().is_empty() {
            return Err(Error::Blank { argument: "by" });
        }
        let attempt = Attempt {
            brings: &|recorded, _| recorded.kind == RecordKind::Settle,
            refused: &mut |state| inner.settles(state, operation, settlement),
            left_out: None,
        };
        let state = self.session.turn_to_settle(inner.settleable()?, Some(attempt))?;
        if let Err(error) = inner.settles(&state, operation, settlement) {
            drop(state);
            let is_over = matches!(error, Error::NoSuchOperation { reason: WAITS_FOR_NOBODY, .. });
            let settled = if is_over { self.settled_before(operation)? } else { None };
            return Err(settled.unwrap_or(error));
        }
        self.write_settlement(state, operation, settlement, by, reason)
    }

    /// Returns a suspended operation and its status, if it is live.
    pub(crate) fn find_suspended(
        &self,
        operation: OperationId,
    ) -> Option<(SuspendedOperation, SuspensionStatus)> {
        let state = self.session.inner.state.lock();
        let suspended = state.live.projection.operations.suspended_one(operation)?;
        let standings = self.session.inner.standings_of(&state, self.session, suspended);
        Some((suspended.clone(), standings.of_live(suspended)?))
    }

    /// Returns the operations that needed a decision at a position, and have not ended since.
    pub(crate) fn suspended_at(&self, position: SequenceNumber) -> Vec<OperationId> {
        self.session.inner.standings(&self.session.inner.state.lock()).waited_at(position)
    }

    /// Returns a suspended operation, also one that a rollback has withdrawn.
    pub(crate) fn suspended_one(&self, operation: OperationId) -> Option<SuspendedOperation> {
        self.session.inner.state.lock().live.projection.operations.suspended_one(operation).cloned()
    }

    /// Returns the first operation, and its status, that was suspended within this handle's
    /// operation by a call of the same tool with the same arguments and was not repeated in this
    /// run.
    pub(crate) fn suspended_within(
        &self,
        tool: &str,
        arguments: &str,
    ) -> Option<(SuspendedOperation, SuspensionStatus)> {
        let parent = self.session.within.as_deref()?.operation();
        let state = self.session.inner.state.lock();
        let operations = &state.live.projection.operations;
        operations.suspended_within(parent).next()?;
        let arguments = blake3::hash(arguments.as_bytes());
        let made_again = self.session.within.as_deref()?.made_again.lock();
        let same = |one: &&SuspendedOperation| {
            one.tool == tool
                && one.suspension.arguments == *arguments.as_bytes()
                && !made_again.contains(&one.operation)
        };
        let suspended = operations.suspended_within(parent).filter(same).last()?;
        let standings = self.session.inner.standings_of(&state, self.session, suspended);
        Some((suspended.clone(), standings.status_of(suspended)))
    }

    /// Notes that a call is repeated that was suspended within an earlier run of this handle's
    /// operation, so that a second call like it is distinct.
    pub(crate) fn makes_again(&self, operation: OperationId) {
        if let Some(within) = &self.session.within {
            within.made_again.lock().push(operation);
        }
    }

    /// Returns the outermost suspended operations that continue without a decision: approved ones,
    /// expired ones, and those with a nested call that no longer waits.
    pub(crate) fn due(&self) -> Vec<(SuspendedOperation, SuspensionStatus)> {
        let state = self.session.inner.state.lock();
        let standings = self.session.inner.standings(&state);
        let outer = standings.operations.suspended().filter(|one| one.parent.is_none());
        // Only the tool can find out whether a call in another session still waits. The
        // conversation that requested the call runs the tool for that.
        let is_asked = |one: &SuspendedOperation| {
            one.origin.is_none() || one.suspension.inner.is_some_and(|inner| inner.session.is_none())
        };
        let due = outer.filter_map(|one| {
            match self.session.inner.standings_of(&state, self.session, one).of_live(one)? {
                standing @ (SuspensionStatus::MayRun(Some(_)) | SuspensionStatus::Expired) => {
                    Some((one.clone(), standing))
                }
                standing @ SuspensionStatus::MayRun(None) => is_asked(one).then(|| (one.clone(), standing)),
                SuspensionStatus::Waits(_) => None,
            }
        });
        due.collect()
    }

    /// Records that a suspended operation has expired, unless it was settled in the meantime.
    pub(crate) fn expire(&self, operation: OperationId, settlement: &Settlement, by: &str) -> Result<()> {
        let state = self.session.turn_to_settle(self.session.inner.settleable()?, None)?;
        let standings = self.session.inner.standings(&state);
        let suspended = standings.operations.suspended_one(operation);
        if suspended.map(|suspended| standings.status_of(suspended)) != Some(SuspensionStatus::Expired) {
            return Ok(());
        }
        self.write_settlement(state, operation, settlement, by, "nobody answered in time").map(drop)
    }

    /// Returns the error that names the last settlement of an operation, if there is one.
    fn settled_before(&self, operation: OperationId) -> Result<Option<Error>> {
        let last = self.settlements_of(operation, operation.into(), false)?.pop();
        Ok(last.map(|RecordedSettlement { sequence, settlement, by, .. }| {
            let Settlement { decision, arguments, .. } = settlement;
            Error::AlreadySettled { operation, decision, arguments, by, sequence }
        }))
    }

    fn write_settlement(
        &self,
        state: MutexGuard<'_, WriterState>,
        operation: OperationId,
        settlement: &Settlement,
        by: &str,
        reason: &str,
    ) -> Result<SequenceNumber> {
        let inner = &self.session.inner;
        let payloads = settlement.payloads()?;
        let mut settle = settlement.to_record(operation, by, reason, &payloads);
        let references = inner.references(&state, settle.payloads_mut())?;
        inner.refer(settle.payloads_mut(), &references);
        let body = self.session.in_lane(settle.encode());
        inner.write_now(state, RecordKind::Settle, &body, RecordBody::Settle(settle))
    }
}

/// Reason for refusing to settle an operation that needs no decision.
const WAITS_FOR_NOBODY: &str = "it is neither interrupted nor suspended, so there is nothing to settle";

impl SessionInner {
    /// Fails if an operation cannot be settled in this way now.
    fn settles(&self, state: &WriterState, operation: OperationId, settlement: &Settlement) -> Result<()> {
        check(&self.standings(state), operation, settlement)
    }

    /// Returns the time at which expiry is judged: in a replay that of the last record. It is the
    /// time of the next record if that is a settlement, or if a process starts there, which may be
    /// long after the last one.
    pub(super) fn judged_us(&self) -> i64 {
        self.replay().and_then(|replay| replay.judging_us()).unwrap_or_else(|| self.now_us())
    }

    /// Returns the status of suspended operations for a call or recovery of this handle that would
    /// settle the expired one. In a replay, the settling record determines the expiry.
    fn standings_of<'a>(
        &self,
        state: &'a WriterState,
        lane: &Session,
        one: &SuspendedOperation,
    ) -> Standings<'a> {
        let standings = self.standings(state);
        match self.replay() {
            Some(replay) => {
                let settled_us = replay.expires_us(lane, one.operation);
                Standings { now_us: settled_us.unwrap_or_else(|| self.now_us()), ..standings }
            }
            None => standings,
        }
    }

    /// Returns the present status of suspended operations.
    pub(super) fn standings<'a>(&self, state: &'a WriterState) -> Standings<'a> {
        Standings {
            operations: &state.live.projection.operations,
            path: &state.live.path,
            position: state.last_position(),
            opened: state.opened_sequence(),
            now_us: self.judged_us(),
        }
    }
}

pub(crate) fn check(
    standings: &Standings<'_>,
    operation: OperationId,
    settlement: &Settlement,
) -> Result<()> {
    let refused = |reason| Err(Error::NoSuchOperation { operation, reason });
    let operations = standings.operations;
    if operations.open().any(|open| open.operation == operation) {
        return refused("it is still open: recover the session first");
    }
    if let Some(suspended) = operations.suspended_one(operation) {
        if let Some(reason) = standings.objection(suspended, settlement.decision, settlement.arguments) {
            return refused(reason);
        }
    } else if operations.unsettled_one(operation).is_none() {
        return refused(WAITS_FOR_NOBODY);
    } else if settlement.arguments.is_some() {
        return refused("it was interrupted and does not wait for an approval");
    }
    Ok(())
}

/// Returns the interrupted or suspended operation that has to be settled before this one continues;
/// `None` if there is none.
pub(crate) fn waits_for(standings: &Standings<'_>, operation: OperationId) -> Option<OperationId> {
    match standings.operations.unsettled_one(operation) {
        Some(unsettled) => must_settle(unsettled).then_some(operation),
        None => standings.waits_for(operation),
    }
}

/// Returns whether an interrupted operation has to be settled.
pub(crate) fn must_settle(unsettled: &UnsettledOperation) -> bool {
    unsettled.idempotency.needs_settling() && !unsettled.run_again
}

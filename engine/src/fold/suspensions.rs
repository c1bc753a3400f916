//! How suspended operations stand: whom they wait for, and whether they may run.
//!
//! A suspended operation holds no transaction and no lease: it has ended, and its end holds a question. Whether it still
//! waits follows from the log and the time alone:
//!
//! | since the end that suspended it | it |
//! |---|---|
//! | nothing | waits, until its question expires |
//! | a rollback to before its begin | is withdrawn |
//! | a decision | is over, or runs again if it asked and was approved, until the approval expires |
//! | a fork | waits in the fork too; an approval by the forked session does not count there |
//! | the operation within which it ran committed, failed or was settled | is withdrawn |
//! | the operation within which it ran is suspended or runs again | waits for as long as that one counts |

use foldlog_codec::body::{Decision, SuspensionForm};
use foldlog_codec::image::SuspensionDecision;
use foldlog_codec::{OperationId, SequenceNumber};

use super::operations::Operations;
use super::path::Path;
use crate::operation::SuspendedOperation;
use crate::sabotage::{self, Breakage};

/// Says how a suspended operation stands at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuspensionStatus {
    /// This operation waits for a person or the host: the suspended one, or one within it.
    Waits(OperationId),
    /// The operation may run again. It was approved by this record, or it waits for something that its tool asks for itself.
    MayRun(Option<SequenceNumber>),
    /// The time to answer, or to run what was approved, is over.
    Expired,
}

/// Tells how suspended operations stand at one moment.
pub(crate) struct Standings<'a> {
    pub(crate) operations: &'a Operations,
    /// Which records are live.
    pub(crate) path: &'a Path,
    /// Last record of the log.
    pub(crate) position: SequenceNumber,
    /// Record with which the session began. What was approved before, another session approved.
    pub(crate) opened: SequenceNumber,
    /// Time of the question, in microseconds since 1970-01-01 UTC.
    pub(crate) now_us: i64,
}

impl<'a> Standings<'a> {
    /// Returns how an operation stands; `None` if it is withdrawn.
    pub(crate) fn of_live(&self, suspended: &SuspendedOperation) -> Option<SuspensionStatus> {
        self.is_live(suspended).then(|| self.status_of(suspended))
    }

    /// Returns whether an operation is suspended and its question counts.
    pub(crate) fn counts(&self, operation: OperationId) -> bool {
        self.operations.suspended_one(operation).is_some_and(|suspended| self.is_live(suspended))
    }

    /// Returns the operation that somebody has to settle before this one goes on; `None` if nobody has to.
    pub(crate) fn waits_for(&self, operation: OperationId) -> Option<OperationId> {
        match self.of_live(self.operations.suspended_one(operation)?)? {
            SuspensionStatus::Waits(operation) => Some(operation),
            SuspensionStatus::MayRun(_) | SuspensionStatus::Expired => None,
        }
    }

    /// Returns the operations whose questions nobody has answered.
    pub(crate) fn waiting_operations(&self) -> Vec<SuspendedOperation> {
        let waits =
            |one: &&SuspendedOperation| self.of_live(one) == Some(SuspensionStatus::Waits(one.operation));
        self.operations.suspended().filter(waits).cloned().collect()
    }

    /// Returns the operations that waited at a position for somebody, or for a call that does, and are not over since.
    pub(crate) fn waited_at(&self, position: SequenceNumber) -> Vec<OperationId> {
        let then = Standings { position: position.min(self.position), ..*self };
        let waited = |one: &&SuspendedOperation| one.end <= then.position && then.is_live(one);
        self.operations.suspended().filter(waited).map(|one| one.operation).collect()
    }

    /// Returns whether the question of an operation counts. One that ran within another counts while that one does: its own
    /// end was rolled back with it.
    fn is_live(&self, suspended: &SuspendedOperation) -> bool {
        let mut outermost = suspended;
        // Each one began before the one within it, so this ends.
        while let Some(parent) = outermost.parent {
            match self.operations.suspended_one(parent) {
                Some(outer) if parent < outermost.operation => outermost = outer,
                _ => return self.operations.run_of(parent).is_some(),
            }
        }
        self.path.is_live(outermost.end, self.position) || sabotage::is(Breakage::QuestionNotWithdrawn)
    }

    pub(crate) fn status_of(&self, suspended: &SuspendedOperation) -> SuspensionStatus {
        let is_over = |until_us: Option<i64>| {
            until_us.is_some_and(|until_us| until_us <= self.now_us) && !sabotage::is(Breakage::ExpiryIgnored)
        };
        // A fork asks anew what another session has approved.
        let counts = |decided: &SuspensionDecision| {
            decided.decision != Decision::RunAgain
                || decided.sequence > self.opened
                || sabotage::is(Breakage::ForkKeepsApproval)
        };
        let decided = suspended.decided.filter(counts);
        let approved = decided.filter(|decided| decided.decision == Decision::RunAgain);
        match (suspended.suspension.form, approved) {
            (SuspensionForm::Within, _) => self.inner_status(suspended),
            (SuspensionForm::Asks, Some(approved)) if is_over(approved.until_us) => SuspensionStatus::Expired,
            (SuspensionForm::Asks, Some(approved)) => SuspensionStatus::MayRun(Some(approved.sequence)),
            _ if decided.is_some() => SuspensionStatus::MayRun(decided.map(|decided| decided.sequence)),
            _ if is_over(suspended.suspension.expires_us) => SuspensionStatus::Expired,
            _ => SuspensionStatus::Waits(suspended.operation),
        }
    }

    /// Returns how an operation stands that waits for one within it.
    fn inner_status(&self, suspended: &SuspendedOperation) -> SuspensionStatus {
        let inner_of = |outer: &SuspendedOperation| {
            let own = outer.suspension.inner.filter(|inner| inner.session.is_none());
            own.map(|inner| inner.operation)
        };
        let mut next = inner_of(suspended);
        let mut before = suspended.operation;
        while let Some(inner) =
            next.filter(|inner| *inner > before).and_then(|it| self.operations.suspended_one(it))
        {
            before = inner.operation;
            match inner.suspension.form {
                SuspensionForm::Within => next = inner_of(inner),
                _ => match self.status_of(inner) {
                    SuspensionStatus::Waits(operation) => return SuspensionStatus::Waits(operation),
                    SuspensionStatus::MayRun(_) | SuspensionStatus::Expired => break,
                },
            }
        }
        SuspensionStatus::MayRun(None)
    }

    /// Returns why a suspended operation cannot be settled like this.
    pub(crate) fn objection(
        &self,
        suspended: &SuspendedOperation,
        decision: Decision,
        arguments: Option<[u8; 32]>,
    ) -> Option<&'static str> {
        // What was approved can be refused still, until it runs.
        let is_final = decision != Decision::Failed;
        let is_decided = match suspended.decided {
            Some(decided) if decided.decision == Decision::RunAgain => {
                is_final && decided.sequence > self.opened
            }
            decided => decided.is_some(),
        };
        match (suspended.suspension.form, self.of_live(suspended)) {
            (_, None) => Some("its question was withdrawn by a rollback"),
            (_, Some(SuspensionStatus::Expired)) => {
                Some("its question or its approval has expired, so the call has failed")
            }
            (SuspensionForm::Within, _) if decision == Decision::Failed => None,
            (SuspensionForm::Within, _) => Some("it waits for a call within it: settle that one"),
            (_, _) if is_decided => Some("somebody has decided about it already"),
            (SuspensionForm::Asks, _) if decision == Decision::RunAgain => match arguments {
                Some(arguments) if arguments == suspended.suspension.arguments => None,
                Some(_) if sabotage::is(Breakage::ApprovalUnchecked) => None,
                Some(_) => Some("the approval names other arguments than those of the call"),
                None => Some("it asks for an approval, which names the digest of its arguments"),
            },
            (SuspensionForm::Awaits, _) if decision == Decision::RunAgain => {
                Some("it waits for its result, and what it did stays: it cannot run again")
            }
            (SuspensionForm::Other(_), _) => Some("only a later version of foldlog knows what it waits for"),
            _ => None,
        }
    }
}

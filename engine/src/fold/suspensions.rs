//! The status of suspended operations: what they wait for, and whether they may run.
//!
//! A suspended operation has no transaction and no lease: it has ended, and its end record contains
//! a question. Its status follows from the log and the time:
//!
//! | since the end that suspended it | the operation |
//! |---|---|
//! | nothing | waits, until its question expires |
//! | a rollback to before its start record | is withdrawn |
//! | a decision | is over; or runs again, if it asked for an approval and was approved, until the approval expires |
//! | a fork | waits in the fork too; an approval by the forked session is not valid there |
//! | the operation around it committed, failed or was settled | is withdrawn |
//! | the operation around it is suspended or runs again | waits for as long as that one is live |

use foldlog_codec::body::{Decision, SuspensionForm};
use foldlog_codec::image::SuspensionDecision;
use foldlog_codec::{OperationId, SequenceNumber};

use super::live_path::LivePath;
use super::operations::Operations;
use crate::operation::SuspendedOperation;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuspensionStatus {
    /// This operation waits for a person or the host: the suspended one, or one within it.
    Waits(OperationId),
    /// The operation may run again: by the decision in this record or, with `None`, because nothing
    /// within it waits any more.
    MayRun(Option<SequenceNumber>),
    /// The time to answer, or to run after an approval, is over.
    Expired,
}

pub(crate) struct Standings<'a> {
    pub(crate) operations: &'a Operations,
    pub(crate) path: &'a LivePath,
    pub(crate) position: SequenceNumber,
    /// Record that opened the session. An earlier approval belongs to another session.
    pub(crate) opened: SequenceNumber,
    /// Present time, in microseconds since 1970-01-01 UTC.
    pub(crate) now_us: i64,
}

impl<'a> Standings<'a> {
    /// Returns the status of an operation; `None` if it is withdrawn.
    pub(crate) fn of_live(&self, suspended: &SuspendedOperation) -> Option<SuspensionStatus> {
        self.is_live(suspended).then(|| self.status_of(suspended))
    }

    /// Returns whether an operation is suspended and its question is live.
    pub(crate) fn counts(&self, operation: OperationId) -> bool {
        self.operations.suspended_one(operation).is_some_and(|suspended| self.is_live(suspended))
    }

    /// Returns the operation that must be settled before this one continues, if there is one.
    pub(crate) fn waits_for(&self, operation: OperationId) -> Option<OperationId> {
        match self.of_live(self.operations.suspended_one(operation)?)? {
            SuspensionStatus::Waits(operation) => Some(operation),
            SuspensionStatus::MayRun(_) | SuspensionStatus::Expired => None,
        }
    }

    pub(crate) fn waiting_operations(&self) -> Vec<SuspendedOperation> {
        let waits =
            |one: &&SuspendedOperation| self.of_live(one) == Some(SuspensionStatus::Waits(one.operation));
        self.operations.suspended().filter(waits).cloned().collect()
    }

    /// Returns the operations that were suspended and live at a position, and are not over since.
    pub(crate) fn waited_at(&self, position: SequenceNumber) -> Vec<OperationId> {
        let then = Standings { position: position.min(self.position), ..*self };
        let waited = |one: &&SuspendedOperation| one.end <= then.position && then.is_live(one);
        self.operations.suspended().filter(waited).map(|one| one.operation).collect()
    }

    /// Returns whether the question of an operation is live. An operation that ran within another
    /// is live while the outer one is: its own end record was rolled back with it.
    fn is_live(&self, suspended: &SuspendedOperation) -> bool {
        let mut outermost = suspended;
        // Each one began before the one within it, so this terminates.
        while let Some(parent) = outermost.parent {
            match self.operations.suspended_one(parent) {
                Some(outer) if parent < outermost.operation => outermost = outer,
                _ => return self.operations.run_of(parent).is_some(),
            }
        }
        self.path.is_live(outermost.end, self.position)
    }

    pub(crate) fn status_of(&self, suspended: &SuspendedOperation) -> SuspensionStatus {
        let is_over = |until_us: Option<i64>| until_us.is_some_and(|until_us| until_us <= self.now_us);
        // A fork needs a new approval for everything that another session has approved.
        let counts = |decided: &SuspensionDecision| {
            decided.decision != Decision::RunAgain || decided.sequence > self.opened
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

    /// Returns the status of an operation that waits for one within it.
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

    /// Returns the reason for refusing to settle a suspended operation in this way, if there is
    /// one.
    pub(crate) fn objection(
        &self,
        suspended: &SuspendedOperation,
        decision: Decision,
        arguments: Option<[u8; 32]>,
    ) -> Option<&'static str> {
        // An approved operation can still be refused until it runs.
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
            (SuspensionForm::Within, _) => Some("it waits for a call within it: settle that call"),
            (_, _) if is_decided => Some("it is already decided"),
            (SuspensionForm::Asks, _) if decision == Decision::RunAgain => match arguments {
                Some(arguments) if arguments == suspended.suspension.arguments => None,
                Some(_) => Some("the approval names arguments that differ from those of the call"),
                None => Some("it waits for an approval, which requires the digest of its arguments"),
            },
            (SuspensionForm::Awaits, _) if decision == Decision::RunAgain => {
                Some("it waits for its result and keeps its changes: it cannot run again")
            }
            (SuspensionForm::Other(_), _) => {
                Some("it waits for something that this version of foldlog does not know")
            }
            _ => None,
        }
    }
}

//! Operations that are open (begun and not ended), unsettled (interrupted, and neither run again
//! nor settled) or suspended (ended with a question, and neither run again nor settled).
//!
//! | record | effect on an operation |
//! |---|---|
//! | `tool_begin` | it is open. If it runs an interrupted or suspended operation again, that one stops waiting; but one that was suspended within another keeps its approval until the outer one is over |
//! | `tool_end`, committed or failed | it is over, and operations suspended within it stop waiting; if it undid an interrupted operation, that one is marked as undone |
//! | `tool_end`, interrupted | it is unsettled, unless it ran within another one, whose fate it shares, or undid or verified one |
//! | `tool_end`, suspended | it is suspended |
//! | `settle` | it is over, or to be run again; one that was suspended within another keeps the decision, since the outer one asks for it when it runs again |
//!
//! If an operation may have had effects outside, an operation around it is `Manual`, whatever its
//! tool declares, unless it undoes them: running it again would repeat those effects.
//!
//! An interrupted `Verify` operation waits to be settled, like a `Manual` one: a recovery settles
//! it with the result of its tool's verification.
//!
//! No rollback changes any of this. The session determines from the live path whether a suspended
//! operation is still live, since a later rollback may return to a branch that an earlier one has
//! abandoned.

use foldlog_codec::{OperationId, SequenceNumber};
use std::sync::Arc;

use foldlog_codec::body::{
    Decision, ExternalEffects, Idempotency, OPEN_OPERATIONS_MAX, Outcome, Settle, Suspension, SuspensionForm,
    ToolBegin, ToolEnd,
};
use foldlog_codec::image::{Image, SuspensionDecision};
use smol_str::SmolStr;

use crate::error::{Error, Result};
use crate::items::tree::CowTree;
use crate::operation::{OpenOperation, SuspendedOperation, UnsettledOperation};

/// The open, unsettled and suspended operations of a log. Each retained position shares them, and
/// is nearly always followed by a start or end record. There may be many of them, so clones share
/// the trees too.
#[derive(Clone, Default)]
pub(crate) struct Operations {
    /// Open operations by the sequence numbers of their start records.
    open: CowTree<SequenceNumber, Arc<OpenOperation>, 16, 16>,
    unsettled: CowTree<OperationId, Arc<UnsettledOperation>, 16, 16>,
    suspended: CowTree<OperationId, Arc<SuspendedOperation>, 16, 16>,
    /// Suspended operations that ran within another one, by the id of the outer one and their own.
    inner: CowTree<(OperationId, OperationId), (), 16, 16>,
}

impl std::fmt::Debug for Operations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.open()).entries(self.unsettled()).entries(self.suspended()).finish()
    }
}

impl Operations {
    pub(super) fn from_image(image: &Image<'_>) -> Operations {
        let (mut open, mut unsettled, mut suspended) =
            (CowTree::default(), CowTree::default(), CowTree::default());
        for one in &image.open {
            open.insert(one.begin, Arc::new(one.clone()));
        }
        for one in &image.unsettled {
            unsettled.insert(one.operation, Arc::new(one.clone()));
        }
        let mut inner = CowTree::default();
        for one in &image.suspended {
            suspended.insert(one.operation, Arc::new(one.clone()));
            if let Some(parent) = one.parent {
                inner.insert((parent, one.operation), ());
            }
        }
        Operations { open, unsettled, suspended, inner }
    }

    /// Returns the open operations in the order of their start records.
    pub(crate) fn open(&self) -> impl DoubleEndedIterator<Item = &OpenOperation> {
        self.open.iter().map(|(_, open)| open.as_ref())
    }

    fn open_one(&self, operation: OperationId) -> Option<&OpenOperation> {
        // Most ran only once, and their id is the sequence number of that start record.
        let first =
            self.open.get(&operation.sequence()).map(Arc::as_ref).filter(|open| open.operation == operation);
        first.or_else(|| self.open().find(|open| open.operation == operation))
    }

    /// Returns the start record of the present run of an open operation.
    pub(crate) fn run_of(&self, operation: OperationId) -> Option<SequenceNumber> {
        self.open_one(operation).map(|open| open.begin)
    }

    /// Returns the start record of the run around an open one.
    pub(crate) fn parent_run(&self, begin: SequenceNumber) -> Option<SequenceNumber> {
        self.run_of(self.open.get(&begin)?.parent?)
    }

    /// Returns the unsettled operations in the order of their ids.
    pub(crate) fn unsettled(&self) -> impl Iterator<Item = &UnsettledOperation> {
        self.unsettled.iter().map(|(_, unsettled)| unsettled.as_ref())
    }

    pub(crate) fn unsettled_one(&self, operation: OperationId) -> Option<&UnsettledOperation> {
        self.unsettled.get(&operation).map(Arc::as_ref)
    }

    /// Returns the suspended operations in the order of their ids, including those that a rollback
    /// has withdrawn.
    pub(crate) fn suspended(&self) -> impl Iterator<Item = &SuspendedOperation> {
        self.suspended.iter().map(|(_, suspended)| suspended.as_ref())
    }

    pub(crate) fn suspended_one(&self, operation: OperationId) -> Option<&SuspendedOperation> {
        self.suspended.get(&operation).map(Arc::as_ref)
    }

    /// Changes an unsettled operation. Returns whether there is one with this id.
    fn change_unsettled(
        &mut self,
        operation: OperationId,
        change: impl FnOnce(&mut UnsettledOperation),
    ) -> bool {
        let Some(mut changed) = self.unsettled_one(operation).cloned() else { return false };
        change(&mut changed);
        self.unsettled.insert(operation, Arc::new(changed));
        true
    }

    pub(crate) fn count(&self) -> usize {
        self.open.len() + self.unsettled.len() + self.suspended.len()
    }

    /// Returns the ids of the open operations that may change STATE.
    pub(crate) fn all_changing(&self) -> Vec<OperationId> {
        self.open().filter(|open| !open.reads_only).map(|open| open.operation).collect()
    }

    /// Returns the first open operation that may change STATE. Until it ends, STATE is not final.
    pub(crate) fn changing_operation(&self) -> Option<&OpenOperation> {
        self.open().find(|open| !open.reads_only)
    }

    /// Checks that a start record is consistent with the operations so far. Returns the operation
    /// that it contradicts, and the reason.
    pub(crate) fn check_begin(&self, begin: &ToolBegin<'_>) -> Result<(), (OperationId, &'static str)> {
        if let Some(last) = self.open.last().filter(|_| self.open.len() >= OPEN_OPERATIONS_MAX) {
            return Err((
                last.1.operation,
                "it is the last of the maximum number of open operations, so no other can start",
            ));
        }
        if let Some(parent) = begin.parent
            && self.open_one(parent).is_none()
        {
            return Err((parent, "it is not open, so no operation can start within it"));
        }
        if let Some(operation) = begin.again.or(begin.undoes).or(begin.verifies)
            && self.unsettled_one(operation).is_none()
            && !begin.again.and_then(|again| self.suspended_one(again)).is_some_and(may_run_again)
        {
            return Err((operation, "it cannot be run again, undone or verified"));
        }
        Ok(())
    }

    pub(super) fn begin(&mut self, sequence: SequenceNumber, begin: &ToolBegin<'_>) -> Result<()> {
        self.check_begin(begin).map_err(|(operation, reason)| inconsistent(sequence, operation, reason))?;
        if let Some(operation) = begin.again {
            self.unsettled.remove(&operation);
            // An operation that ran within another keeps its approval for as long as it may run
            // again: if a later call within the outer one also suspends, both are rolled back.
            if begin.parent.is_none() {
                self.withdraw(operation);
            }
        }
        let open = OpenOperation {
            operation: begin.again.unwrap_or(sequence.into()),
            begin: sequence,
            parent: begin.parent,
            tool: SmolStr::new(&begin.tool),
            call_id: begin.call_id.as_deref().map(SmolStr::new),
            idempotency: match begin.idempotency {
                // Only a later version can run this again, so a person decides about it.
                Idempotency::Other(_) => Idempotency::Manual,
                own => own,
            },
            reads_only: begin.reads_only,
            outside_only: begin.outside_only,
            undoes: begin.undoes,
            verifies: begin.verifies,
            origin: begin.origin,
            had_effects_within: false,
        };
        self.open.insert(sequence, Arc::new(open));
        Ok(())
    }

    /// Checks that an end record is consistent with the operations so far. Returns the operation
    /// that it contradicts, and the reason.
    pub(crate) fn check_end(&self, end: &ToolEnd<'_>) -> Result<(), (OperationId, &'static str)> {
        let Some(open) = self.open.get(&end.begin) else {
            return Err((end.operation(), "it is not open, so it cannot end"));
        };
        match self.open().find(|inner| inner.parent == Some(open.operation)) {
            Some(inner) => {
                Err((inner.operation, "it has not ended, but the operation that contains it is to end"))
            }
            None => Ok(()),
        }
    }

    pub(super) fn end(&mut self, sequence: SequenceNumber, end: &ToolEnd<'_>) {
        let Some(open) = self.open.remove(&end.begin) else { return };
        let committed = end.outcome == Outcome::Committed;
        let natural = open.idempotency == Idempotency::Natural;
        let harmless = !open.outside_only && (open.reads_only || natural);
        let effects = open.had_effects_within || (!harmless && end.outside == ExternalEffects::Unknown);
        if let Some(parent) = open.parent.filter(|_| effects).and_then(|parent| self.open_one(parent)) {
            let parent = OpenOperation { had_effects_within: true, ..parent.clone() };
            self.open.insert(parent.begin, Arc::new(parent));
        }
        if let Some(undone) = open.undoes {
            if committed {
                self.change_unsettled(undone, |unsettled| unsettled.undone = true);
            }
            return;
        }
        match end.suspension {
            Some(suspension) => self.suspend(sequence, &open, suspension),
            None if end.outcome != Outcome::Interrupted => self.withdraw_within(open.operation),
            None => {}
        }
        // If a verification was interrupted, the verified operation is still unsettled.
        if end.outcome == Outcome::Interrupted && open.parent.is_none() && open.verifies.is_none() {
            let OpenOperation { operation, begin, tool, call_id, .. } = open.as_ref().clone();
            let idempotency = match open.idempotency {
                // The tool's compensation must also undo the operations that ran within it.
                Idempotency::Compensate => Idempotency::Compensate,
                _ if open.had_effects_within => Idempotency::Manual,
                _ if open.reads_only && !open.outside_only => Idempotency::Natural,
                own => own,
            };
            let (undone, run_again) = (false, false);
            let unsettled =
                UnsettledOperation { operation, begin, tool, call_id, idempotency, undone, run_again };
            self.unsettled.insert(operation, Arc::new(unsettled));
        }
    }

    fn suspend(&mut self, end: SequenceNumber, open: &OpenOperation, suspension: Suspension) {
        let OpenOperation { operation, begin, parent, tool, call_id, origin, idempotency, .. } = open.clone();
        let decided = None;
        let suspended = SuspendedOperation {
            operation,
            begin,
            end,
            parent,
            tool,
            call_id,
            origin,
            idempotency,
            suspension,
            decided,
        };
        self.suspended.insert(operation, Arc::new(suspended));
        if let Some(parent) = parent {
            self.inner.insert((parent, operation), ());
        }
    }

    /// Withdraws a suspended operation. Does nothing for other operations.
    fn withdraw(&mut self, operation: OperationId) {
        let withdrawn = self.suspended.remove(&operation);
        if let Some(parent) = withdrawn.and_then(|withdrawn| withdrawn.parent) {
            self.inner.remove(&(parent, operation));
        }
    }

    /// Returns the last operation that was suspended within another one.
    fn last_within(&self, parent: OperationId) -> Option<OperationId> {
        let behind = (OperationId::from(parent.get().saturating_add(1)), OperationId::default());
        let ((outer, operation), ()) = self.inner.before(&behind)?;
        (*outer == parent).then_some(*operation)
    }

    /// Returns the operations that were suspended within another one, latest first.
    pub(crate) fn suspended_within(&self, parent: OperationId) -> impl Iterator<Item = &SuspendedOperation> {
        let first = self.last_within(parent);
        let all = std::iter::successors(first, move |operation| {
            let ((outer, operation), ()) = self.inner.before(&(parent, *operation))?;
            (*outer == parent).then_some(*operation)
        });
        all.filter_map(|operation| self.suspended_one(operation))
    }

    /// Withdraws the operations that were suspended within an operation that is over.
    fn withdraw_within(&mut self, parent: OperationId) {
        let mut over = vec![parent];
        while let Some(outer) = over.pop() {
            while let Some(operation) = self.last_within(outer) {
                self.withdraw(operation);
                over.push(operation);
            }
        }
    }

    /// Records a decision about a suspended operation. Returns whether there is one with this id.
    fn decide(&mut self, sequence: SequenceNumber, settle: &Settle<'_>) -> bool {
        let Some(suspended) = self.suspended_one(settle.operation) else { return false };
        let Settle { operation, decision, until_us, .. } = *settle;
        // When the outer operation runs again, it asks for the decision.
        if decision == Decision::RunAgain || suspended.parent.is_some() {
            let decided = Some(SuspensionDecision { sequence, decision, until_us });
            let suspended = SuspendedOperation { decided, ..suspended.clone() };
            self.suspended.insert(operation, Arc::new(suspended));
        } else {
            self.withdraw(operation);
        }
        if decision != Decision::RunAgain {
            self.withdraw_within(operation);
        }
        true
    }

    pub(super) fn settle(&mut self, sequence: SequenceNumber, settle: &Settle<'_>) -> Result<()> {
        let operation = settle.operation;
        if self.decide(sequence, settle) {
            return Ok(());
        }
        let waits = match settle.decision {
            Decision::RunAgain => self.change_unsettled(operation, |unsettled| unsettled.run_again = true),
            Decision::Committed | Decision::Failed => {
                // Looked up first, to avoid a useless copy.
                let waits =
                    self.unsettled_one(operation).is_some() && self.unsettled.remove(&operation).is_some();
                self.withdraw_within(operation);
                waits
            }
        };
        if waits {
            return Ok(());
        }
        let reason = format!(
            "operation {operation} is not unsettled: it was neither interrupted nor suspended, or was settled before"
        );
        Err(Error::Inconsistent { sequence, reason })
    }
}

/// Returns whether the operation may run again: it was approved, or it waits for a call within it.
fn may_run_again(suspended: &SuspendedOperation) -> bool {
    match suspended.suspension.form {
        SuspensionForm::Asks => {
            suspended.decided.is_some_and(|decided| decided.decision == Decision::RunAgain)
        }
        SuspensionForm::Within => true,
        SuspensionForm::Awaits | SuspensionForm::Other(_) => false,
    }
}

fn inconsistent(sequence: SequenceNumber, operation: OperationId, reason: &str) -> Error {
    Error::Inconsistent { sequence, reason: format!("operation {operation}: {reason}") }
}

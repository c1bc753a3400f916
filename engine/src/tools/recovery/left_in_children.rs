//! Calls that the child sessions of interrupted calls left open. They worked under the leases of
//! these calls, so the recovery that restores the resources also ends their programs and their
//! calls.

use std::collections::BTreeSet;

use foldlog_codec::OperationId;
use uuid::Uuid;

use super::end_one;
use crate::error::{Error, Result};
use crate::operation::{NotUndone, OpenOperation, PutBack};
use crate::tools::call::{ProgramGroup, recorded_groups};
use crate::tools::captures::CaptureSet;
use crate::tools::children::{AnnouncedChildren, is_child_of};
use crate::tools::execution::ExecutionState;

/// Interrupted child sessions of calls that were left open.
#[derive(Default)]
pub(super) struct InterruptedChildren {
    /// Runs of interrupted sessions, each after its parent. Their recorded captures are durable
    /// already, so that later records can become durable.
    runs: Vec<ExecutionState>,
    /// Programs of their open calls.
    pub(super) programs: Vec<ProgramGroup>,
    /// Entries for children whose log cannot be read.
    pub(super) unread: Vec<NotUndone>,
}

impl InterruptedChildren {
    /// Opens the interrupted child sessions of these open calls of the run `parent`, and their
    /// descendants.
    pub(super) fn open(parent: &ExecutionState, open: &[OpenOperation]) -> Result<InterruptedChildren> {
        let mut left = InterruptedChildren::default();
        let mut seen = BTreeSet::from([parent.session().id()]);
        left.find(parent, open, &mut seen)?;
        let mut next = 0;
        while let Some(child) = left.runs.get(next).cloned() {
            let open = child.session().calls().left_open();
            if let Err(error) = left.find(&child, &open, &mut seen) {
                left.unread.push(unread(child.session().id(), &error));
            }
            next += 1;
        }
        Ok(left)
    }

    fn find(
        &mut self,
        parent: &ExecutionState,
        open: &[OpenOperation],
        seen: &mut BTreeSet<Uuid>,
    ) -> Result<()> {
        let operations: BTreeSet<OperationId> = open.iter().map(|open| open.operation).collect();
        let mut announced = AnnouncedChildren::read(parent.session(), operations.iter().copied())?;
        for operation in operations {
            for child in announced.take(operation).into_values() {
                if seen.insert(child)
                    && let Err(error) = self.take(parent, operation, child)
                {
                    self.unread.push(unread(child, &error));
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, parent: &ExecutionState, operation: OperationId, child: Uuid) -> Result<()> {
        let session = parent.session();
        let child = match session.store().open_to_recover(child) {
            Ok(child) if is_child_of(&child, session.id(), operation) => child,
            Ok(_) | Err(Error::NoSuchSession { .. } | Error::NotASession { .. }) => return Ok(()),
            // Another process has it open, and ends its calls.
            Err(Error::Locked { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        if let Some(first) = child.calls().left_open().first() {
            self.programs.append(&mut recorded_groups(&child, first.begin)?);
            self.runs.push(ExecutionState::new(child, parent.resources().clone()));
        }
        Ok(())
    }

    /// Ends the open calls of the children as interrupted. The resources are already restored; a
    /// child that continues restores them to their state before these calls.
    pub(super) fn end(self) {
        for child in self.runs.into_iter().rev() {
            let child = child.session();
            let ends =
                |open: &OpenOperation| end_one(child, open, &CaptureSet::default(), &PutBack::default());
            // If the end cannot be written, the call stays open, and the next opening of the child
            // ends it.
            let _ = child.calls().left_open().iter().rev().try_for_each(ends);
            let _ = child.clone().close();
        }
    }
}

fn unread(child: Uuid, error: &Error) -> NotUndone {
    let reason = format!("whether its child session {child} left programs running is not known: {error}");
    NotUndone::new("", "", reason)
}

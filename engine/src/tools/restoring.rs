//! Going back to a composite snapshot, as an operation of its own: the session and the resources cannot change at one
//! moment, so a process that ends between them must leave a trace.
//!
//! | step | where the process ends behind it |
//! |---|---|
//! | 1. the begin is recorded, with what the resources are | nothing was changed |
//! | 2. the resources are restored to what the snapshot holds | recovery restores them to what the begin holds |
//! | 3. a rollback to the snapshot's position is recorded | recovery does so, and its end takes the rollback back |
//! | 4. the end is recorded | all is as it was at the snapshot |

use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{Cause, Idempotency};

use super::call::{CallInfo, Ending, ExecuteOptions, Operation, RestoreScope, ToolCall};
use super::captures::{Captures, CompositeSnapshot};
use super::checkpoints::ToolCheckpoint;
use super::execution::ExecutionState;
use crate::error::{Error, Result, caught};
use crate::options::SessionOptions;
use crate::sabotage::{self, Breakage};
use crate::session::{RollbackReport, Session};
use crate::store::Store;

/// What a restore is called in the log, where a call has its tool. Its arguments say where it goes back to.
pub(super) const RESTORE: &str = "foldlog.restore";

impl ExecutionState {
    /// Brings the session and every resource of a snapshot back to it, what was spent too, or leaves all as they are. LOG
    /// stays, and so does what calls did elsewhere: those that may have are [named](RollbackReport::outside).
    ///
    /// In the log it is an operation of its own, `foldlog.restore`. A process that ends within it leaves the session
    /// interrupted, and [`ToolRunner::recover`](crate::tools::ToolRunner::recover) brings all back to what it was before,
    /// but for resources that no tool takes back with it. Durable as a [`Session::rollback`] is.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotMismatch`] where the snapshot is of another session, or of a resource that this run does not
    /// have or cannot have back; [`Error::RestoreFailed`] where a resource could not be restored, or could not be
    /// brought back to what it was after something else failed: it names those that are as they were in neither case.
    /// [`Error::Interrupted`] where the session is to be recovered first, [`Error::ResourceDirty`] where another one is,
    /// [`Error::Stuck`] where a call does not end. Else as [`Session::rollback`].
    pub fn restore(&self, snapshot: &CompositeSnapshot) -> Result<RollbackReport> {
        self.go_back(snapshot, RestoreScope::All)
    }

    /// STATE and resources go back to what they were before a tool call, but for those that no tool takes back with it:
    /// what was spent stays spent. Else as [`restore`](ExecutionState::restore).
    ///
    /// # Errors
    ///
    /// [`Error::NoCheckpoint`] where none is kept, [`Error::AmbiguousCall`] where the name stands for several
    /// operations; else as [`restore`](ExecutionState::restore).
    pub fn rollback_to_tool(&self, call_id: &str) -> Result<RollbackReport> {
        let checkpoint = self.checkpoint(call_id)?;
        self.go_back(&checkpoint.pre, RestoreScope::AsATool)
    }

    /// Back to a snapshot with all resources, or with those alone that a failed tool takes back with it.
    fn go_back(&self, snapshot: &CompositeSnapshot, scope: RestoreScope) -> Result<RollbackReport> {
        if snapshot.session.session != self.session().id() {
            let (found, own) = (snapshot.session.session, self.session().id());
            return Err(Error::SnapshotMismatch(format!("it is of session {found}, this one is {own}")));
        }
        let captures = snapshot.captures(self.resources())?;
        go_back(self, snapshot.session.position, &captures, scope)
    }

    /// A new session that shares the records before a tool call.
    ///
    /// # Errors
    ///
    /// As [`rollback_to_tool`](ExecutionState::rollback_to_tool), and as [`Store::fork`](crate::Store::fork).
    pub fn fork_at_tool(&self, call_id: &str) -> Result<Session> {
        let position = self.checkpoint(call_id)?.pre.session.position;
        let session = self.session();
        Store::of(session.open_store()).fork(
            session.id(),
            position,
            session.types()?,
            SessionOptions::default(),
        )
    }

    fn checkpoint(&self, call_id: &str) -> Result<ToolCheckpoint> {
        let missing = || Error::NoCheckpoint(call_id.to_owned());
        self.checkpoints().ok_or_else(missing)?.get(call_id)?.ok_or_else(missing)
    }
}

/// Brings the session back to a position and the resources to what they were then, or leaves all as they are.
fn go_back(
    state: &ExecutionState,
    position: SequenceNumber,
    captures: &Captures,
    scope: RestoreScope,
) -> Result<RollbackReport> {
    let call = ToolCall::new(RESTORE, format!("{{\"position\":{position}}}"));
    // Recovery rolls it back, and nothing of it is outside of what is rolled back.
    let idempotency = Idempotency::Natural;
    let info = CallInfo { idempotency, restores: Some(scope), ..CallInfo::new(&call) };
    if sabotage::is(Breakage::RestoreUnrecorded) {
        state.put_back(captures, scope == RestoreScope::All)?;
        return state.session().rollback_to(position);
    }
    let operation =
        Operation::begin(state, state.session(), info, &call.arguments, &ExecuteOptions::default())?;
    let session = operation.context().session().clone();
    let restored = caught("the snapshot", || {
        let not_undone = state.put_back(captures, scope == RestoreScope::All)?;
        Ok((session.restore_to(position)?, not_undone))
    });
    let cause = match restored {
        Ok((rolled_back, not_undone)) => {
            let ending = Ending::done(format!("back at {position}")).telling(not_undone);
            let report = operation.finish(ending)?;
            match report.success {
                true => return Ok(rolled_back),
                // What it came to could not be captured, so it was taken back.
                false => Error::Resource { resource: RESTORE.to_owned(), reason: report.message },
            }
        }
        Err(cause) => {
            let put_back = operation.finish(Ending::failed(Cause::Error, cause.to_string()));
            if let Err(Error::RestoreFailed { restored, failed }) = put_back {
                let both = |(resource, error): (String, Arc<Error>)| {
                    let reason = format!("{error}; it was to be as it was before, since {cause}");
                    (resource.clone(), Arc::new(Error::Resource { resource, reason }))
                };
                let failed = failed.into_iter().map(both).collect();
                return Err(Error::RestoreFailed { restored, failed });
            }
            // Where the end could not be recorded the session says so from now on; this is why it came to that.
            cause
        }
    };
    Err(cause)
}

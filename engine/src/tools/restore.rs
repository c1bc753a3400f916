//! Restore of a composite snapshot, as a separate operation. Session and resources cannot change at
//! one moment, so the log must show that a process ended between the two.
//!
//! | step | if the process ends after it |
//! |---|---|
//! | 1. write the start record, with captures of the current resources | no changes |
//! | 2. restore the resources to the snapshot's captures | a recovery restores them to the start record's captures |
//! | 3. record a rollback to the snapshot's position | a recovery restores them to the start record's captures, and its end record undoes the rollback |
//! | 4. write the end record | session and resources are as they were at the snapshot |

use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{Cause, Idempotency};
use foldlog_filesystem as filesystem;

use super::call::{CallEnd, CallInfo, RestoreScope, ToolCall, ToolRegistry, ToolReport, Worker};
use super::captures::CaptureSet;
use super::checkpoints::ToolCheckpoint;
use super::composite::CompositeSnapshot;
use super::execution::ExecutionState;
use super::replay;
use super::runner::ToolRunner;
use crate::error::{Error, Result, catch_panic};
use crate::operation::{PutBack, RESTORE};
use crate::options::SessionOptions;
use crate::session::{Patience, RollbackReport, Session};

impl ExecutionState {
    /// Restores the session and every resource of a snapshot, including those that are not rolled
    /// back with a failed tool, such as a budget. If anything fails, session and resources are
    /// returned to their previous state. LOG slices are unchanged. Effects of calls outside of the
    /// session and its resources remain too; the [report](RollbackReport::outside) lists the calls
    /// that may have had some.
    ///
    /// The restore is recorded as a separate operation, `foldlog.restore`. If the process ends
    /// within it, the session is interrupted.
    /// [`ToolRunner::recover`](crate::tools::ToolRunner::recover) then returns session and
    /// resources to their state before the restore, except resources that are not rolled back with
    /// a failed tool. The end is durable when this returns, with
    /// [`Durability::Boundary`](crate::Durability::Boundary) and
    /// [`Durability::Every`](crate::Durability::Every).
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotMismatch`] if the snapshot is of another session, contains a resource that
    /// this run does not have, or contains a capture that was lost with its process.
    /// [`Error::Collected`] if a capture was collected: no record was written then.
    /// [`Error::RestoreFailed`] if the restore failed and a resource could not be returned to its
    /// previous state; the error lists these resources, and the session is
    /// [interrupted](crate::SessionCalls::is_interrupted). If the restore failed and all were
    /// returned, the error of the failed step. [`Error::Interrupted`] if the session must be
    /// recovered first; [`Error::ResourceDirty`] if another session left a resource half changed,
    /// [`Error::ResourceMaybeDirty`] if that session's log cannot be read; [`Error::Stuck`] if a
    /// call should have stopped and still runs; [`Error::InsideOperation`] for the run of a [tool's
    /// context](crate::tools::ToolContext::state). Otherwise, the errors of [`Session::rollback`].
    pub fn restore(&self, snapshot: &CompositeSnapshot) -> Result<RollbackReport> {
        self.go_back(snapshot, RestoreScope::All, &RestoreWait::from_state(self))
    }

    /// Rolls STATE and resources back to their state before a tool call, by the provider's id of
    /// the call. Resources that are not rolled back with a failed tool are unchanged: spent amounts
    /// remain spent. Otherwise this is the same as [`restore`](ExecutionState::restore) of the
    /// snapshot before the call.
    ///
    /// # Errors
    ///
    /// [`Error::NoCheckpoint`] if the run has no checkpoint for this id, [`Error::AmbiguousCall`]
    /// if several operations have this id; otherwise, the errors of
    /// [`restore`](ExecutionState::restore).
    pub fn rollback_to_tool(&self, call_id: &str) -> Result<RollbackReport> {
        self.roll_back_tool(call_id, &RestoreWait::from_state(self))
    }

    /// Rolls back to the state before a tool call. Waits for other work as `waiting` allows.
    pub(super) fn roll_back_tool(&self, call_id: &str, waiting: &RestoreWait<'_>) -> Result<RollbackReport> {
        let checkpoint = self.checkpoint(call_id)?;
        self.go_back(&checkpoint.pre, RestoreScope::AsATool, waiting)
    }

    /// Restores the session and the resources in `scope` to a snapshot of this session.
    pub(super) fn go_back(
        &self,
        snapshot: &CompositeSnapshot,
        scope: RestoreScope,
        waiting: &RestoreWait<'_>,
    ) -> Result<RollbackReport> {
        if snapshot.session.session != self.session().id() {
            let (found, own) = (snapshot.session.session, self.session().id());
            return Err(Error::SnapshotMismatch(format!("it belongs to session {found}, not to {own}")));
        }
        let captures = snapshot.captures(self.resources())?;
        let position = snapshot.session.position;
        let way = WayBack { position, arguments: format!("{{\"position\":{position}}}"), scope, waiting };
        let prepare =
            |_: &CaptureSet, _: bool| Ok(PreparedRestore { captures: captures.clone(), value: None });
        Ok(way.go(self, &|| captures.check_kept(self.resources()), &prepare)?.0)
    }

    /// Creates a session that shares this session's records up to the position before a tool call,
    /// by the provider's id of the call. The resources are unchanged.
    ///
    /// # Errors
    ///
    /// [`Error::NoCheckpoint`] if the run has no checkpoint for this id, [`Error::AmbiguousCall`]
    /// if several operations have this id; [`Error::Untyped`] if this session was opened without
    /// types; otherwise, the errors of [`Store::fork`](crate::Store::fork).
    pub fn fork_at_tool(&self, call_id: &str) -> Result<Session> {
        let position = self.checkpoint(call_id)?.pre.session.position;
        let session = self.session();
        session.store().fork(session.id(), position, session.types()?, SessionOptions::default())
    }

    fn checkpoint(&self, call_id: &str) -> Result<ToolCheckpoint> {
        let missing = || Error::NoCheckpoint(call_id.to_owned());
        self.checkpoints().ok_or_else(missing)?.get(call_id)?.ok_or_else(missing)
    }
}

/// Maximum wait of a restore for others, and a check after the wait that the caller still exists.
pub(super) struct RestoreWait<'a> {
    pub(super) patience: Patience,
    pub(super) is_wanted: &'a dyn Fn() -> Result<()>,
}

impl RestoreWait<'_> {
    /// Blocks this thread, at most for the store's wait.
    pub(super) fn from_state(state: &ExecutionState) -> RestoreWait<'static> {
        RestoreWait { patience: state.session().patience(state.until(None), None), is_wanted: &|| Ok(()) }
    }
}

/// Captures that a restore restores, determined after its start record has captured the present
/// state.
pub(super) struct PreparedRestore {
    pub(super) captures: CaptureSet,
    /// Value for the end record of the restore: one MessagePack value.
    pub(super) value: Option<Vec<u8>>,
}

/// Maximum number of captures of the present state by a restore that preserves changes. If the
/// state changes all the time, the last capture is used.
const LOOKS_MAX: u32 = 8;

/// Returns whether the restore of every failed resource was refused because of a concurrent change.
fn is_changed(error: &Error) -> bool {
    let Error::RestoreFailed { failed, .. } = error else { return false };
    let is_changed = |error: &Error| matches!(error, Error::Filesystem(filesystem::Error::Changed { .. }));
    failed.iter().all(|(_, error)| is_changed(error))
}

/// Describes a restore: its target, its name in the log, and its maximum wait.
pub(super) struct WayBack<'a> {
    pub(super) position: SequenceNumber,
    /// Arguments of the operation, as JSON.
    pub(super) arguments: String,
    pub(super) scope: RestoreScope,
    pub(super) waiting: &'a RestoreWait<'a>,
}

impl WayBack<'_> {
    /// Restores the session to the position and the resources to the captures that `prepare`
    /// returns; or leaves all unchanged. `prepare` receives the captures of the start record and
    /// whether the restore should be refused if a resource has changed since. If it is refused,
    /// `prepare` is called again with new captures. Calls `still_due` once nothing else runs; if it
    /// fails, no record is written.
    pub(super) fn go(
        &self,
        state: &ExecutionState,
        still_due: &dyn Fn() -> Result<()>,
        prepare: &dyn Fn(&CaptureSet, bool) -> Result<PreparedRestore>,
    ) -> Result<(RollbackReport, ToolReport)> {
        state.check_outside()?;
        let WayBack { position, scope, .. } = *self;
        let call = ToolCall::new(RESTORE, self.arguments.clone());
        // A recovery rolls the restore back, and the restore has no effects outside of the
        // rolled-back state.
        let idempotency = Idempotency::Natural;
        let worker = Worker::Once;
        let info = CallInfo { idempotency, restores: Some(scope), worker, ..CallInfo::new(&call) };
        let RestoreWait { patience, is_wanted } = self.waiting;
        let still_due = || is_wanted().and_then(|()| still_due());
        let runner = ToolRunner::new(state.clone(), ToolRegistry::new());
        let operation = runner.start(info, patience, &still_due)?;
        if operation.is_from_log() {
            return replay::go_back(state.session(), operation, position);
        }
        let session = operation.context().session().clone();
        let restored = catch_panic("the snapshot", || {
            let mut present = operation.before();
            let mut looks = 1;
            let (put_back, value) = loop {
                let PreparedRestore { captures, value } = prepare(&present, looks < LOOKS_MAX)?;
                match state.put_back(&captures, scope == RestoreScope::All) {
                    Err(error) if looks < LOOKS_MAX && is_changed(&error) => {
                        present = state.capture(None)?;
                        looks += 1;
                    }
                    put_back => break (put_back?, value),
                }
            };
            Ok((session.restore_to(position)?, put_back.not_undone, value))
        });
        let cause = match restored {
            Ok((rolled_back, not_undone, value)) => {
                let ending = CallEnd { value, ..CallEnd::with_message(format!("back at {position}")) };
                let put_back = PutBack { not_undone, ..PutBack::default() };
                let report = operation.finish(CallEnd { put_back, ..ending })?;
                match report.success {
                    true => return Ok((rolled_back, report)),
                    // The restored resources could not be captured, so the restore was rolled back.
                    false => Error::Resource { resource: RESTORE.to_owned(), reason: report.message },
                }
            }
            Err(cause) => {
                let put_back = operation.finish(CallEnd::with_cause(Cause::Error, cause.to_string()));
                if let Err(Error::RestoreFailed { restored, failed }) = put_back {
                    let both = |(resource, error): (String, Arc<Error>)| {
                        let reason = format!(
                            "{error}; the previous state was to be restored, because the restore failed: {cause}"
                        );
                        (resource.clone(), Arc::new(Error::Resource { resource, reason }))
                    };
                    let failed = failed.into_iter().map(both).collect();
                    return Err(Error::RestoreFailed { restored, failed });
                }
                // If the end could not be recorded, later calls of the session report it; `cause`
                // is the reason.
                cause
            }
        };
        Err(cause)
    }
}

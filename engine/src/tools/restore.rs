//! Restores a composite snapshot, as an operation of its own: session and resources cannot change at one
//! moment, so a process that ends between the two must leave a trace in the log.
//!
//! | step | if the process ends after it |
//! |---|---|
//! | 1. record the begin, with captures of the resources as they are | nothing was changed |
//! | 2. restore the resources to the snapshot's captures | a recovery restores them to the begin's captures |
//! | 3. record a rollback to the snapshot's position | a recovery restores them to the begin's captures, and the end that it records undoes the rollback |
//! | 4. record the end | session and resources are as they were at the snapshot |

use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{Cause, Idempotency};
use foldlog_filesystem as filesystem;

use super::call::{CallEnd, CallInfo, Operation, RestoreScope, ToolCall, ToolReport};
use super::captures::{CaptureSet, CompositeSnapshot};
use super::checkpoints::ToolCheckpoint;
use super::execution::ExecutionState;
use super::replay;
use crate::error::{Error, Result, catch_panic};
use crate::operation::RESTORE;
use crate::options::SessionOptions;
use crate::sabotage::{self, Breakage};
use crate::session::{Patience, RollbackReport, Session};
use crate::store::Store;

impl ExecutionState {
    /// Restores the session and every resource of a snapshot, including those that are not rolled back with a
    /// failed tool, such as a budget. If anything fails, session and resources are brought back to what they
    /// were before. LOG slices stay. Effects that calls had outside of the session and its resources stay
    /// too; the [report](RollbackReport::outside) names the calls that may have had some.
    ///
    /// The log holds the restore as an operation of its own, `foldlog.restore`. A process that ends within it
    /// leaves the session interrupted, and [`ToolRunner::recover`](crate::tools::ToolRunner::recover) brings
    /// session and resources back to what they were before the restore, except resources that are not rolled
    /// back with a failed tool. The end is durable when this returns, with
    /// [`Durability::Boundary`](crate::Durability::Boundary) and
    /// [`Durability::Every`](crate::Durability::Every).
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotMismatch`] if the snapshot is of another session, holds a resource that this run does
    /// not have, or holds a capture that did not outlive its process. [`Error::Collected`] if a capture was collected: nothing was
    /// recorded then. [`Error::RestoreFailed`] if the restore
    /// failed and a resource could not be brought back to what it was before; the error names these
    /// resources, and the session is [interrupted](Session::is_interrupted). If the restore failed and all
    /// were brought back, the error of what failed. [`Error::Interrupted`] if the session must be recovered
    /// first; [`Error::ResourceDirty`] if another session left a resource half done,
    /// [`Error::ResourceMaybeDirty`] if that session's log cannot be read; [`Error::Stuck`] if a call should
    /// have stopped and still runs; [`Error::InsideOperation`] if the run is that of a
    /// [tool's context](crate::tools::ToolContext::state). Else those of [`Session::rollback`].
    pub fn restore(&self, snapshot: &CompositeSnapshot) -> Result<RollbackReport> {
        self.go_back(snapshot, RestoreScope::All, &RestoreWait::from_state(self))
    }

    /// Rolls STATE and resources back to what they were before a tool call, by the id that the provider gave
    /// the call. Resources that are not rolled back with a failed tool stay as they are: what was spent stays
    /// spent. Otherwise this does what [`restore`](ExecutionState::restore) does with the snapshot before the
    /// call.
    ///
    /// # Errors
    ///
    /// [`Error::NoCheckpoint`] if the run keeps no checkpoint for this id, [`Error::AmbiguousCall`] if
    /// several operations have this id; else those of [`restore`](ExecutionState::restore).
    pub fn rollback_to_tool(&self, call_id: &str) -> Result<RollbackReport> {
        self.roll_back_tool(call_id, &RestoreWait::from_state(self))
    }

    /// Rolls back to what was before a tool call, once the others allow that for which it may wait.
    pub(super) fn roll_back_tool(&self, call_id: &str, waiting: &RestoreWait<'_>) -> Result<RollbackReport> {
        let checkpoint = self.checkpoint(call_id)?;
        self.go_back(&checkpoint.pre, RestoreScope::AsATool, waiting)
    }

    /// Restores the session and, as `scope` says, the resources of a snapshot of this session.
    pub(super) fn go_back(
        &self,
        snapshot: &CompositeSnapshot,
        scope: RestoreScope,
        waiting: &RestoreWait<'_>,
    ) -> Result<RollbackReport> {
        if snapshot.session.session != self.session().id() {
            let (found, own) = (snapshot.session.session, self.session().id());
            return Err(Error::SnapshotMismatch(format!("it is of session {found}, this one is {own}")));
        }
        let captures = snapshot.captures(self.resources())?;
        let position = snapshot.session.position;
        if sabotage::is(Breakage::RestoreUnrecorded) {
            self.put_back(&captures, scope == RestoreScope::All)?;
            return self.session().rollback_to(position);
        }
        let way = WayBack { position, arguments: format!("{{\"position\":{position}}}"), scope, waiting };
        let prepare =
            |_: &CaptureSet, _: bool| Ok(PreparedRestore { captures: captures.clone(), value: None });
        Ok(way.go(self, &|| captures.check_kept(self.resources()), &prepare)?.0)
    }

    /// Creates a session that shares this session's records up to the position before a tool call, by the id
    /// that the provider gave the call. The resources stay as they are.
    ///
    /// # Errors
    ///
    /// [`Error::NoCheckpoint`] if the run keeps no checkpoint for this id, [`Error::AmbiguousCall`] if
    /// several operations have this id; [`Error::Untyped`] if this session was opened without types; else
    /// those of [`Store::fork`].
    pub fn fork_at_tool(&self, call_id: &str) -> Result<Session> {
        let position = self.checkpoint(call_id)?.pre.session.position;
        let session = self.session();
        Store::from_inner(session.open_store()).fork(
            session.id(),
            position,
            session.types()?,
            SessionOptions::default(),
        )
    }

    /// Returns the checkpoint of the call to which the provider gave this id.
    fn checkpoint(&self, call_id: &str) -> Result<ToolCheckpoint> {
        let missing = || Error::NoCheckpoint(call_id.to_owned());
        self.checkpoints().ok_or_else(missing)?.get(call_id)?.ok_or_else(missing)
    }
}

/// Says how long a restore may wait for others, and whether somebody still wants it when they allow it.
pub(super) struct RestoreWait<'a> {
    pub(super) patience: Patience,
    pub(super) is_wanted: &'a dyn Fn() -> Result<()>,
}

impl RestoreWait<'_> {
    /// Waits on this thread, for as long as the store lets calls wait.
    pub(super) fn from_state(state: &ExecutionState) -> RestoreWait<'static> {
        RestoreWait { patience: state.session().patience(state.until(None), None), is_wanted: &|| Ok(()) }
    }
}

/// Holds what a restore is to bring back, once its begin has captured what is there.
pub(super) struct PreparedRestore {
    pub(super) captures: CaptureSet,
    /// What the end records of the restore, as one MessagePack value.
    pub(super) value: Option<Vec<u8>>,
}

/// How often a restore that keeps what is there otherwise looks at what that is. Where it changes all the time, the last look has
/// to do.
const LOOKS_MAX: u32 = 8;

/// Returns whether nothing was restored of a resource since somebody else changed it.
fn is_changed(error: &Error) -> bool {
    let Error::RestoreFailed { failed, .. } = error else { return false };
    let is_changed = |error: &Error| matches!(error, Error::Filesystem(filesystem::Error::Changed { .. }));
    failed.iter().all(|(_, error)| is_changed(error))
}

/// Describes a restore: where it goes, how the log names it, and how long it waits.
pub(super) struct WayBack<'a> {
    pub(super) position: SequenceNumber,
    /// Arguments of the operation, as JSON.
    pub(super) arguments: String,
    pub(super) scope: RestoreScope,
    pub(super) waiting: &'a RestoreWait<'a>,
}

impl WayBack<'_> {
    /// Restores the session to the position and the resources to what `prepare` makes of the captures of the begin, or of later ones
    /// if it is told to have the restore refused where something has changed since and it is refused; or leaves
    /// all as they are. Nothing is recorded if `still_due` fails, which is called once nothing else runs.
    pub(super) fn go(
        &self,
        state: &ExecutionState,
        still_due: &dyn Fn() -> Result<()>,
        prepare: &dyn Fn(&CaptureSet, bool) -> Result<PreparedRestore>,
    ) -> Result<(RollbackReport, ToolReport)> {
        state.check_outside()?;
        let WayBack { position, scope, .. } = *self;
        let call = ToolCall::new(RESTORE, self.arguments.clone());
        // A recovery rolls the restore back, and the restore has no effect outside of what is rolled back.
        let idempotency = Idempotency::Natural;
        let info = CallInfo { idempotency, restores: Some(scope), ..CallInfo::new(&call) };
        if state.session().replays() {
            return replay::go_back(state.session(), &info, &call.arguments, position);
        }
        let RestoreWait { patience, is_wanted } = self.waiting;
        let still_due = || is_wanted().and_then(|()| still_due());
        let operation =
            Operation::begin(state, state.session(), info, &call.arguments, patience, &still_due)?;
        let session = operation.context().session().clone();
        let restored = catch_panic("the snapshot", || {
            let mut present = operation.before();
            let mut looks = 1;
            let (put_back, value) = loop {
                let PreparedRestore { captures, value } = prepare(&present, looks < LOOKS_MAX)?;
                match state.put_back(&captures, scope == RestoreScope::All) {
                    Err(error) if looks < LOOKS_MAX && is_changed(&error) => {
                        present = state.capture(None, || None)?;
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
                let report = operation.finish(CallEnd { not_undone, ..ending })?;
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
                        let reason = format!("{error}; it was to be as it was before, since {cause}");
                        (resource.clone(), Arc::new(Error::Resource { resource, reason }))
                    };
                    let failed = failed.into_iter().map(both).collect();
                    return Err(Error::RestoreFailed { restored, failed });
                }
                // If the end could not be recorded, later calls of the session say so; `cause` says why it came to that.
                cause
            }
        };
        Err(cause)
    }
}

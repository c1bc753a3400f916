//! Restores a session to a checkpoint.

use std::ops::RangeInclusive;

use foldlog::tools::CompositeSnapshot;
use foldlog::{RollbackReport, SequenceNumber, Session, escape};
use serde::{Deserialize, Serialize};

use super::{Checkpoint, CheckpointId, CheckpointManager, Occasion};
use crate::error::{Error, Result};
use crate::state::SessionStateBuilder;
use crate::state::walk::{conversations_in, walk_abandoned};
use crate::{NotCompared, RecoveryAction, StateUpdate, TaskTreeState, UpdateOperation};

/// Configures a restore of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreOptions {
    /// Person or program that restores it.
    pub by: String,
    /// Reason.
    pub reason: String,
    /// Whether the updates that counted after the checkpoint are applied again, in order. Events of
    /// tasks are dispatched if they are still legal. Messages of conversations and changes of files
    /// are views of requests, calls and captures, which only happen once: each is
    /// [refused](RestoreReport::refused).
    pub apply_later_updates: bool,
    /// Whether resources such as workspaces are restored too. The checkpoint and the manager must
    /// have them.
    pub with_resources: bool,
}

/// Describes an update that was not applied again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RefusedUpdate {
    /// Record of the update.
    pub sequence: SequenceNumber,
    /// The update.
    pub operation: UpdateOperation,
    /// Why it was refused.
    pub reason: String,
}

/// Reports the results of a restore.
#[derive(Clone, Debug, PartialEq)]
pub struct RestoreReport {
    /// Checkpoint to which the session was restored.
    pub checkpoint: Checkpoint,
    /// Checkpoint of the state before the restore, with which it can be undone.
    pub undo: CheckpointId,
    /// The rollback.
    pub rolled_back: RollbackReport,
    /// Records of the updates that were applied again, each with its new record.
    pub applied: Vec<(SequenceNumber, SequenceNumber)>,
    /// Updates that were not applied again.
    pub refused: Vec<RefusedUpdate>,
    /// Later captures of workspaces that could not be compared. No update names the changes between
    /// them.
    pub not_compared: Vec<NotCompared>,
}

impl RecoveryAction {
    /// Records the start of a restore. Its subject is the checkpoint.
    pub const RESTORE: &str = "restore";
    /// Records the end of a restore. Its subject is the checkpoint; its losses are the refused
    /// updates, and captures that could not be compared.
    pub const RESTORED: &str = "restored";
    /// Records the failure of a restore. Its subject is the checkpoint; its loss is the cause.
    pub const RESTORE_FAILED: &str = "restore_failed";
}

impl CheckpointManager {
    /// Restores the session to a checkpoint.
    ///
    /// | step | if the process ends after it |
    /// |---|---|
    /// | 1. verify the hashes of the checkpoints through this one | nothing has changed |
    /// | 2. create a checkpoint of the current state, for [`BeforeRestore`](Occasion::BeforeRestore) | the session continues unchanged |
    /// | 3. record a [`RecoveryAction`] `restore` | the session continues unchanged, and a recovery reports a restore without an end |
    /// | 4. roll back STATE, and resources if requested | the session is in the state of the checkpoint |
    /// | 5. apply later updates again if requested | the applied updates count |
    /// | 6. record a [`RecoveryAction`] `restored`, which lists the refused updates | |
    ///
    /// If step 4 or 5 fails, a [`RecoveryAction`] `restore_failed` records the cause, provided that
    /// the session still accepts writes.
    ///
    /// # Errors
    ///
    /// [`Error::CheckpointMismatch`] if a hash does not match, and [`Error::NoSuchCheckpoint`],
    /// [`Error::CheckpointRemoved`] or [`Error::NoResources`].
    /// [`Compacted`](foldlog::Error::Compacted) if later updates are to be applied again and a
    /// compaction has dropped some of them. In these cases nothing has changed, except that the
    /// checkpoint of step 2 exists if another manager removed the target after step 1. Also those
    /// of [`create`](CheckpointManager::create), of [`Session::rollback_to`] and of
    /// [`ExecutionState::restore`](foldlog::ExecutionState::restore).
    pub fn restore_from_checkpoint(
        &self,
        id: CheckpointId,
        options: &RestoreOptions,
    ) -> Result<RestoreReport> {
        let checkpoint = self.get(id)?;
        self.verify(id)?;
        let resources = match options.with_resources {
            true => Some(self.resources_of(&checkpoint)?),
            false => None,
        };
        if options.apply_later_updates {
            // Updates that a compaction has dropped cannot be applied again.
            self.session.log().contents(checkpoint.position + 1, SequenceNumber::MAX, |_| Ok(()))?;
            conversations_in(&self.session, SequenceNumber::MAX)?;
        }
        let undo = self.create_for(Occasion::BeforeRestore(id), None)?.id;
        // Another manager may have removed it until now; from now on it is kept.
        self.get(id)?;
        let RestoreOptions { by, reason, .. } = options;
        let action = |action: &str, lost| RecoveryAction {
            action: action.to_owned(),
            by: by.clone(),
            reason: reason.clone(),
            subject: Some(id.to_string()),
            lost,
        };
        self.session.dispatch(action(RecoveryAction::RESTORE, Vec::new()))?;
        match self.go_back(checkpoint, undo, resources.as_ref(), options.apply_later_updates) {
            Ok(report) => {
                let lost =
                    report.refused.iter().map(|one| format!("update {}: {}", one.sequence, one.reason));
                let unknown = report.not_compared.iter().map(|one| {
                    format!("changes of {} up to record {}: {}", one.workspace, one.sequence, one.reason)
                });
                self.session.dispatch(action(RecoveryAction::RESTORED, lost.chain(unknown).collect()))?;
                Ok(report)
            }
            Err(error) => {
                // If the session accepts no writes, the restore has no end record, which a recovery
                // reports.
                let _ =
                    self.session.dispatch(action(RecoveryAction::RESTORE_FAILED, vec![error.to_string()]));
                Err(error.into())
            }
        }
    }

    /// Rolls session and resources back, and applies later updates again.
    fn go_back(
        &self,
        checkpoint: Checkpoint,
        undo: CheckpointId,
        resources: Option<&(foldlog::ExecutionState, CompositeSnapshot)>,
        apply_later_updates: bool,
    ) -> foldlog::Result<RestoreReport> {
        let rolled_back = match resources {
            Some((run, snapshot)) => run.restore(snapshot)?,
            None => self.session.rollback_to(checkpoint.position)?,
        };
        // Read only now, to include the records that other threads wrote before the rollback.
        let later = match apply_later_updates {
            true => self.later(&checkpoint, &rolled_back)?,
            false => SessionStateBuilder::default(),
        };
        let (mut applied, mut refused) = (Vec::new(), Vec::new());
        for StateUpdate { operation, position: sequence, .. } in later.updates.unwrap_or_default() {
            match dispatch(&self.session, &operation) {
                Ok(again) => applied.push((sequence, again)),
                Err(foldlog::Error::Refused { reason, .. }) => {
                    refused.push(RefusedUpdate { sequence, operation, reason });
                }
                Err(error) => return Err(error),
            }
        }
        let not_compared = later.state.file_system.not_compared;
        Ok(RestoreReport { checkpoint, undo, rolled_back, applied, refused, not_compared })
    }

    /// Returns the updates after the target of a rollback that counted until then, in order.
    fn later(
        &self,
        checkpoint: &Checkpoint,
        rolled_back: &RollbackReport,
    ) -> foldlog::Result<SessionStateBuilder> {
        let behind =
            |range: &RangeInclusive<SequenceNumber>| (*range.start()).max(rolled_back.to + 1)..=*range.end();
        let ranges = rolled_back.abandoned.iter().map(behind).filter(|range| !range.is_empty());
        let ranges: Vec<_> = ranges.collect();
        let Some(last) = ranges.last().map(|range| *range.end()) else { return Ok(Default::default()) };
        // On another branch, the state before these records differs from that of the checkpoint.
        let is_behind = self.session.log().live_path().is_live(checkpoint.position, last);
        let (captured, in_progress) = match is_behind {
            true => {
                let tasks = TaskTreeState::from_session(&self.session).unwrap_or_default();
                (checkpoint.workspaces.clone(), tasks.scheduling_state.in_progress)
            }
            false => Default::default(),
        };
        walk_abandoned(&self.session, ranges, &captured, in_progress, &self.stores)
    }

    fn resources_of(&self, checkpoint: &Checkpoint) -> Result<(foldlog::ExecutionState, CompositeSnapshot)> {
        let missing = |reason| Error::NoResources { id: checkpoint.id, reason };
        let run = self.run.clone().ok_or_else(|| missing("the manager has no resources"))?;
        let json =
            checkpoint.resources.as_deref().ok_or_else(|| missing("it was created without resources"))?;
        let mut snapshot = CompositeSnapshot::from_json(json)?;
        // A fork shares the checkpoints of its parent, and a salvaged session those of the damaged
        // one. The hashes prove that the records through this one are the session's own, whatever
        // its id was then.
        snapshot.session.session = self.session.id();
        Ok((run, snapshot))
    }
}

/// Dispatches an event of tasks again. The other updates are views of records, which cannot be
/// dispatched.
pub(crate) fn dispatch(session: &Session, operation: &UpdateOperation) -> foldlog::Result<SequenceNumber> {
    match operation.clone() {
        UpdateOperation::TaskCreated(event) => session.dispatch(event),
        UpdateOperation::TaskStatusChanged(event) => session.dispatch(event),
        UpdateOperation::TaskModified(event) => session.dispatch(event),
        UpdateOperation::DependencyAdded(event) => session.dispatch(event),
        UpdateOperation::DependencyRemoved(event) => session.dispatch(event),
        UpdateOperation::TaskRenumbered(event) => session.dispatch(event),
        UpdateOperation::FileModified { modification } => {
            let reason =
                format!("the change of `{}` is a view of captures", escape::text(&modification.path));
            Err(refused_error("file_modified", reason))
        }
        UpdateOperation::ConversationExtended { evaluation_id, messages } => {
            let (count, id) = (messages.len(), escape::text(&evaluation_id));
            let reason = format!("{count} messages of `{id}` are a view of requests, answers and calls");
            Err(refused_error("conversation_extended", reason))
        }
    }
}

fn refused_error(event: &str, reason: String) -> foldlog::Error {
    foldlog::Error::Refused { slice: String::new(), event: event.to_owned(), reason }
}

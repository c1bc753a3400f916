//! Prepares the rollback of what a call did to resources, so that nothing that is there now is lost, whoever made it.
//!
//! | step | if the process ends after it |
//! |---|---|
//! | 1. capture the resources as they are, once the programs of the call have ended | nothing was changed |
//! | 2. record these captures, as `foldlog.rollback` | the next attempt knows what was there when the first one began |
//! | 3. restore the resources (whoever asked for the rollback) | the next attempt restores them again |
//! | 4. record the end, which names what was replaced (the same) | the rollback is complete, and can be undone |
//!
//! What an attempt finds otherwise than the first one left it was changed by somebody else, since the programs of the call had ended: it
//! stays as it is now, and is told. That holds for files with a content that neither the first attempt found nor the rollback restores.
//!
//! # What cannot be captured
//!
//! Where there is no room for a capture, the session and the resources remove what they can make again, and it is tried once more. If it
//! fails still, or for another reason, the resources [set aside](crate::tools::resources::Snapshotable::set_aside) what is to be replaced. If
//! that fails too, nothing is touched, and the call is left open: its resources stay marked, so that other sessions are refused with
//! [`Error::ResourceDirty`]. A run [without captures](crate::tools::ExecutionStateBuilder::without_capture) goes on then, and what was there is
//! lost.

use std::time::Instant;

use foldlog_codec::SequenceNumber;
use foldlog_codec::msgpack::Value;

use super::captures::CaptureSet;
use super::execution::ExecutionState;
use crate::error::{Error, Result, catch_panic};
use crate::operation::{NotUndone, PutBack, RollbackBegun};
use crate::sabotage::{self, Breakage};
use crate::session::operation_records::RecordedCaptures;

/// Describes the rollback of a call.
pub(super) struct Rollback<'a> {
    /// Record with which the call began.
    pub(super) begin: SequenceNumber,
    /// Captures from before the call, ready to be restored.
    pub(super) before: &'a CaptureSet,
    /// Whether resources are restored too that are not rolled back with a failed tool.
    pub(super) all: bool,
    /// What was there when an earlier attempt began; empty if this is the first one.
    pub(super) earlier: RecordedCaptures,
    /// Name of the capture.
    pub(super) tag: Option<String>,
    /// When the capture is given up.
    pub(super) until: Option<Instant>,
}

/// Says what a rollback restores.
pub(super) struct RollbackPlan {
    /// Captures of what is there now; `None` if it could not be captured.
    pub(super) found: Option<CaptureSet>,
    /// Captures to be restored.
    pub(super) target: CaptureSet,
    /// What is to be told beside what the restore tells.
    pub(super) told: PutBack,
}

impl ExecutionState {
    /// Captures what is there before a rollback, or has it set aside, and says what is to be restored.
    ///
    /// # Errors
    ///
    /// [`Error::Uncaptured`] if neither is possible. The errors of a write.
    pub(super) fn prepare_rollback(&self, rollback: Rollback<'_>) -> Result<RollbackPlan> {
        let Rollback { begin, before, all, ref earlier, .. } = rollback;
        let mut told = PutBack::default();
        let found = match self.capture_present(&rollback) {
            Ok(found) => found,
            Err(error) if sabotage::is(Breakage::RecoveryNeedsCapture) => return Err(error),
            Err(error) => {
                if !sabotage::is(Breakage::NothingSetAside)
                    && let Err(aside) = before.set_aside(self.resources(), all)
                    && !self.goes_on_uncaptured()
                {
                    return Err(Error::capture_failed(&error, aside));
                }
                told.not_undone.push(NotUndone::from_capture_error(&error));
                return Ok(RollbackPlan { found: None, target: before.clone(), told });
            }
        };
        if earlier.is_empty() && !sabotage::is(Breakage::RollbackUnrecorded) {
            let resources = found.shared_beside(before, self.resources());
            let resources =
                resources.filter_map(|(name, recorded)| Some((name, Value::decode(recorded).ok()?)));
            let begun = RollbackBegun { begin, resources: resources.collect() };
            if !begun.resources.is_empty() {
                self.session().record_rollback(&begun)?;
            }
        }
        let target = match earlier.is_empty() || sabotage::is(Breakage::LaterChangesRolledBack) {
            true => before.clone(),
            false => before.beside_changes(self.resources(), earlier, &found, &mut told),
        };
        Ok(RollbackPlan { found: Some(found), target, told })
    }

    fn capture_present(&self, rollback: &Rollback<'_>) -> Result<CaptureSet> {
        let capture = || {
            catch_panic("the resources before the rollback", || {
                self.capture(rollback.until, || rollback.tag.clone())
            })
        };
        match capture() {
            Err(error) if error.is_full() => {
                self.free_caches();
                capture()
            }
            captured => captured,
        }
    }
}

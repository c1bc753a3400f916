//! Preparation for the rollback of a call's changes to resources, so that no present content is
//! lost, regardless of its author.
//!
//! | step | if the process ends after it |
//! |---|---|
//! | 1. capture the current resources, once the programs of the call have ended | no changes |
//! | 2. record these captures, as `foldlog.rollback` | the next attempt knows the content at the start of the first one |
//! | 3. restore the resources (by the caller) | the next attempt restores them again |
//! | 4. write the end record, which lists the replaced contents (by the caller) | the rollback is complete, and can be undone |
//!
//! An attempt may find content that is neither in the captures of the first attempt nor a result of
//! the rollback. Such content was changed after the programs of the call had ended: it remains
//! unchanged, and is reported. This protects only files that exist: a missing file may have been
//! removed by an earlier attempt, so it is restored.
//!
//! # Content that cannot be captured
//!
//! If there is no room for a capture, the session and the resources remove data that can be
//! recreated, and it is tried once more. If it fails again, or for a different reason, the
//! resources [set aside](crate::tools::resources::Snapshotable::set_aside) the content to be
//! replaced. If that fails too, no content is touched, and the call is left open: its resources
//! stay marked, and other sessions are refused with [`Error::ResourceDirty`]. A run [without
//! captures](crate::tools::ExecutionStateBuilder::without_capture) continues in this case, and the
//! content is lost.

use std::time::Instant;

use foldlog_codec::SequenceNumber;
use foldlog_codec::msgpack::Value;

use super::captures::CaptureSet;
use super::execution::ExecutionState;
use crate::error::{Error, Result, catch_panic};
use crate::operation::{NotUndone, PutBack, RollbackBegun};
use crate::session::operation_records::RecordedCaptures;

/// Rollback of a call.
pub(super) struct Rollback<'a> {
    /// Start record of the call.
    pub(super) begin: SequenceNumber,
    /// Captures from before the call, ready to be restored.
    pub(super) before: &'a CaptureSet,
    /// Whether resources that are not rolled back with a failed tool are restored too.
    pub(super) all: bool,
    /// Captures at the start of an earlier attempt; empty for the first attempt.
    pub(super) earlier: RecordedCaptures,
    /// Time limit of the capture.
    pub(super) until: Option<Instant>,
}

/// Plan of a rollback.
pub(super) struct RollbackPlan {
    /// Captures of the present content; `None` if it could not be captured.
    pub(super) found: Option<CaptureSet>,
    /// Captures to restore.
    pub(super) target: CaptureSet,
    /// Entries to report in addition to the restore's.
    pub(super) told: PutBack,
}

impl ExecutionState {
    /// Captures the present content before a rollback, or lets it be set aside, and returns the
    /// captures to restore.
    ///
    /// # Errors
    ///
    /// [`Error::Uncaptured`] if neither is possible. The errors of a write.
    pub(super) fn prepare_rollback(&self, rollback: Rollback<'_>) -> Result<RollbackPlan> {
        let Rollback { begin, before, all, ref earlier, .. } = rollback;
        let mut told = PutBack::default();
        let found = match self.capture_present(&rollback) {
            Ok(found) => found,
            Err(error) => {
                if let Err(aside) = before.set_aside(self.resources(), all)
                    && !self.inner.without_capture
                {
                    return Err(Error::capture_failed(&error, aside));
                }
                told.not_undone.push(NotUndone::from_capture_error(&error));
                return Ok(RollbackPlan { found: None, target: before.clone(), told });
            }
        };
        if earlier.is_empty() {
            let resources = found.shared_beside(before, self.resources());
            let resources =
                resources.filter_map(|(name, recorded)| Some((name, Value::decode(recorded).ok()?)));
            let begun = RollbackBegun { begin, resources: resources.collect() };
            if !begun.resources.is_empty() {
                self.session().calls().record_rollback(&begun)?;
            }
        }
        let target = match earlier.is_empty() {
            true => before.clone(),
            false => before.beside_changes(self.resources(), earlier, &found, &mut told),
        };
        Ok(RollbackPlan { found: Some(found), target, told })
    }

    fn capture_present(&self, rollback: &Rollback<'_>) -> Result<CaptureSet> {
        let capture = || catch_panic("the resources before the rollback", || self.capture(rollback.until));
        match capture() {
            Err(error) if error.is_full() => {
                self.free_caches();
                capture()
            }
            captured => captured,
        }
    }
}

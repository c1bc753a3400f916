//! Going back to a composite snapshot, as an operation of its own: the session and the resources cannot change at one
//! moment, so a process that ends between them must leave a trace.
//!
//! | step | where the process ends behind it |
//! |---|---|
//! | 1. the begin is recorded, with what the resources are | nothing was changed |
//! | 2. the resources are restored to what the snapshot holds | recovery restores them to what the begin holds |
//! | 3. a rollback to the snapshot's position is recorded | recovery does so, and its end takes the rollback back |
//! | 4. the end is recorded | all is as it was at the snapshot |

use foldlog_codec::SequenceNumber;
use std::sync::Arc;

use foldlog_codec::body::{Cause, Idempotency};

use super::operation::{Ending, GoesBack, Operation, Spec, caught};
use super::runner::{ExecuteOptions, ToolCall};
use crate::error::{Error, Result};
use crate::execution::{Captures, ExecutionState};
use crate::sabotage::{self, Breakage};
use crate::session::RollbackReport;

/// What a restore is called in the log, where a call has its tool. Its arguments say where it goes back to.
pub(super) const RESTORE: &str = "foldlog.restore";

/// Brings the session back to a position and the resources to what they were then, or leaves all as they are.
pub(crate) fn go_back(
    state: &ExecutionState,
    position: SequenceNumber,
    captures: &Captures,
    goes_back: GoesBack,
) -> Result<RollbackReport> {
    let call = ToolCall::new(RESTORE, format!("{{\"position\":{position}}}"));
    let spec = Spec {
        call: &call,
        // Recovery takes it back, and nothing of it is outside of what goes back.
        idempotency: Idempotency::Natural,
        reads_only: false,
        again: None,
        undoes: None,
        goes_back: Some(goes_back),
    };
    if sabotage::is(Breakage::RestoreUnrecorded) {
        state.put_back(captures, goes_back == GoesBack::All)?;
        return state.session().rollback_to(position);
    }
    let operation = Operation::begin(state, state.session(), &spec, &ExecuteOptions::default())?;
    let session = operation.context().session().clone();
    let restored = caught("the snapshot", || {
        let not_undone = state.put_back(captures, goes_back == GoesBack::All)?;
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

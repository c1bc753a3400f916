//! Calls in a session that replays: the tool does not run, and its effects and result come from the
//! log.
//!
//! | call | compared | from the log |
//! |---|---|---|
//! | a tool that runs here | the start record, except its captures | all records within the call, and its end |
//! | several that only read, together | their start records, in order | the same |
//! | a call that is closed without running | the start record | the end |
//! | a restore of resources | the start record | the rollback, and the end |
//! | the end of a call that an earlier process left open | nothing | the end |
//!
//! The resources are not touched: they are neither leased nor captured nor restored.
//! [`scratch`](super::scratch) describes the copies that a run uses instead.

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::Outcome;

use super::call::{CallEnd, Operation, ToolReport};
use crate::error::{Error, Result};
use crate::operation::{PutBack, RESTORE};
use crate::session::operation_records::EndRead;
use crate::session::{RollbackReport, Session};

/// Waits until the call's end comes from the log, and returns the result of the live call.
pub(super) fn end(session: &Session, begin: SequenceNumber) -> Result<ToolReport> {
    let end = session.calls().end_of_replayed(begin)?;
    let EndRead { invoked, value, message, overrides, suspension, put_back } =
        session.calls().read_whole_end(end)?;
    let PutBack { not_undone, replaced } = put_back;
    let success = invoked.outcome == Outcome::Committed;
    let report = ToolReport::of_ended(&invoked, end, success, message, value);
    ToolReport { not_undone, replaced, recorded: false, ..report }.into_result(session, suspension, overrides)
}

/// Ends a recorded restore, and returns its result and the report of its end record.
pub(super) fn go_back(
    session: &Session,
    restore: Operation,
    to: SequenceNumber,
) -> Result<(RollbackReport, ToolReport)> {
    // The rollback follows the start record.
    let sequence = restore.begin() + 1;
    let (abandoned, outside) = session.abandoned_by(sequence, to)?;
    let report = restore.finish(CallEnd::default())?;
    if report.success {
        return Ok((RollbackReport { sequence, to, abandoned, outside }, report));
    }
    Err(Error::Resource { resource: RESTORE.to_owned(), reason: report.message })
}

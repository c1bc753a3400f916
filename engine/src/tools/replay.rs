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

use foldlog_codec::body::{Cause, Outcome};
use foldlog_codec::{OperationId, SequenceNumber};

use super::call::{CallInfo, ToolReport};
use crate::conversation::text_payload;
use crate::error::{Error, Result};
use crate::session::operation_records::EndRead;
use crate::session::{RollbackReport, Session};

/// Compares the start record of the call that `info` describes with the recorded one. Returns its
/// sequence number.
pub(super) fn begin(session: &Session, info: &CallInfo, arguments: &str) -> Result<SequenceNumber> {
    let parent = session.calls().call_scope().map(|within| within.operation());
    let info = CallInfo { parent, ..info.clone() };
    let text = text_payload(arguments);
    session.calls().begin_replayed(&info.to_begin(&text))
}

/// Waits until the call's end comes from the log, and returns the result of the live call.
pub(super) fn end(session: &Session, info: &CallInfo, begin: SequenceNumber) -> Result<ToolReport> {
    let end = session.calls().end_of_replayed(begin)?;
    let EndRead { outcome, cause, outside, elapsed_us, value, message, overrides, suspension, put_back } =
        session.calls().read_whole_end(end)?;
    let operation = info.again.unwrap_or(OperationId::from(begin));
    if let Some(suspension) = suspension.filter(|_| outcome == Outcome::Suspended) {
        let inner = suspension.inner;
        return Err(Error::Suspended {
            session: inner.and_then(|inner| inner.session).unwrap_or(session.id()),
            operation: inner.map_or(operation, |inner| inner.operation),
            form: suspension.form,
            question: message,
        });
    }
    match cause {
        Some(Cause::Expansion) => Err(Error::VisibilityExpansion {
            operation,
            overrides: overrides.unwrap_or_default(),
            reason: message,
        }),
        _ => Ok(ToolReport {
            operation,
            begin,
            end,
            tool: info.tool.clone(),
            call_id: info.call_id.clone(),
            outcome,
            cause,
            success: outcome == Outcome::Committed,
            message,
            value,
            outside,
            not_undone: put_back.not_undone,
            replaced: put_back.replaced,
            elapsed_us,
            recorded: false,
        }),
    }
}

/// Returns the result of the recorded restore that `info` describes, and the report of its end
/// record.
pub(super) fn go_back(
    session: &Session,
    info: &CallInfo,
    arguments: &str,
    to: SequenceNumber,
) -> Result<(RollbackReport, ToolReport)> {
    let begin = begin(session, info, arguments)?;
    // Of the rollback, which follows the start record.
    let (abandoned, outside) = session.abandoned_by(begin + 1, to)?;
    let report = end(session, info, begin)?;
    if report.success {
        return Ok((RollbackReport { sequence: begin + 1, to, abandoned, outside }, report));
    }
    Err(Error::Resource { resource: info.tool.to_string(), reason: report.message })
}

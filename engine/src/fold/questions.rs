//! The questions of suspended operations, read from the log by the places that the fold knows.

use chrono::{DateTime, Utc};
use foldlog_codec::body::{CallOrigin, Payload, SuspensionForm, ToolBegin, ToolEnd};
use foldlog_codec::{OperationId, RecordKind, SequenceNumber};
use smol_str::SmolStr;
use uuid::Uuid;

use super::conversation_reading::{TextBudget, read_records, recorded_len, text, time};
use super::log_source::LogSource;
use crate::error::{Error, Result};
use crate::operation::SuspendedOperation;

/// Holds the question of a suspended operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingQuestion {
    /// Session whose log holds the question.
    pub session: Uuid,
    /// Operation that waits.
    pub operation: OperationId,
    /// Operation within which it ran; `None` if it ran within none.
    pub parent: Option<OperationId>,
    /// Name of the tool.
    pub tool: SmolStr,
    /// Id that the model's provider gave the call.
    pub call_id: Option<SmolStr>,
    /// Model answer that asked for the call; `None` if the host asked.
    pub origin: Option<CallOrigin>,
    /// What the operation waits for: an approval, or its result.
    pub form: SuspensionForm,
    /// Text of the question.
    pub question: String,
    /// Arguments of the call: JSON text, as it came.
    pub arguments: String,
    /// BLAKE3 of `arguments`, which an approval names.
    pub digest: [u8; 32],
    /// Time at which the tool asked.
    pub asked_at: DateTime<Utc>,
    /// Time from which on the call counts as failed; `None` if the question never expires.
    pub expires_at: Option<DateTime<Utc>>,
}

/// Reads the questions of these operations, in their order.
///
/// # Errors
///
/// [`Error::Io`] if the log cannot be read, [`Error::Object`] if an object is missing or damaged,
/// [`Error::Inconsistent`] if a text is no text, [`Error::OverBudget`] if the texts take more memory than they may.
pub(crate) fn read(
    source: &LogSource,
    session: Uuid,
    waiting: &[SuspendedOperation],
    budget: Option<&TextBudget<'_>>,
) -> Result<Vec<PendingQuestion>> {
    // Counted before it is read: a short record may name a large object.
    let held = |sequence: SequenceNumber, payload: Payload<'_>| {
        let bytes = recorded_len(payload).saturating_add(size_of::<PendingQuestion>() as u64);
        budget.map_or(Ok(()), |budget| budget.hold(sequence, bytes))?;
        text(source, sequence, payload)
    };
    let mut questions = Vec::new();
    for one in waiting {
        let (mut question, mut arguments, mut asked_us) = (String::new(), String::new(), 0);
        read_records(source, &[one.begin, one.end], &mut |record| {
            let bad = Error::unread(record.sequence);
            match record.kind {
                RecordKind::TOOL_BEGIN => {
                    let begin = ToolBegin::decode(record.body).map_err(bad)?;
                    arguments = held(record.sequence, begin.arguments)?;
                }
                RecordKind::TOOL_END => {
                    let end = ToolEnd::decode(record.body).map_err(bad)?;
                    let shown = end.shown.map(|shown| held(record.sequence, shown)).transpose()?;
                    (question, asked_us) = (shown.unwrap_or_default(), record.time_us);
                }
                _ => {}
            }
            Ok(())
        })?;
        questions.push(PendingQuestion {
            session,
            operation: one.operation,
            parent: one.parent,
            tool: one.tool.clone(),
            call_id: one.call_id.clone(),
            origin: one.origin,
            form: one.suspension.form,
            question,
            arguments,
            digest: one.suspension.arguments,
            asked_at: time(asked_us),
            expires_at: one.suspension.expires_us.map(time),
        });
    }
    Ok(questions)
}

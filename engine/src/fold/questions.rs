//! Reads the questions of suspended operations from the log, at the places in the fold.

use chrono::{DateTime, Utc};
use foldlog_codec::body::{CallOrigin, Payload, SuspensionForm, ToolBegin, ToolEnd};
use foldlog_codec::{OperationId, RecordKind, SequenceNumber};
use smol_str::SmolStr;
use uuid::Uuid;

use super::conversation_reading::{TextBudget, read_records, recorded_len, text, time};
use super::log_source::LogSource;
use crate::error::{Error, Result};
use crate::operation::SuspendedOperation;

/// Describes the question of a suspended operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingQuestion {
    /// Session whose log contains the question.
    pub session: Uuid,
    /// Operation that waits.
    pub operation: OperationId,
    /// Operation within which it ran, if any.
    pub parent: Option<OperationId>,
    /// Name of the tool.
    pub tool: SmolStr,
    /// Call id from the model's provider.
    pub call_id: Option<SmolStr>,
    /// Model answer that requested the call; `None` if the host did.
    pub origin: Option<CallOrigin>,
    /// Kind of the expected reply: an approval, or the result.
    pub form: SuspensionForm,
    /// Text of the question.
    pub question: String,
    /// Arguments of the call: JSON text, in its original form.
    pub arguments: String,
    /// BLAKE3 digest of `arguments`; an approval must contain it.
    pub digest: [u8; 32],
    /// Time of the question.
    pub asked_at: DateTime<Utc>,
    /// Time at which the call becomes failed; `None` if the question never expires.
    pub expires_at: Option<DateTime<Utc>>,
}

/// Reads the questions of these operations, in their order.
///
/// # Errors
///
/// [`Error::Io`] if the log cannot be read, [`Error::Object`] if an object is missing or damaged,
/// [`Error::Inconsistent`] if a text is not valid, [`Error::OverBudget`] if the texts exceed the
/// memory budget.
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
        read_records(source, &[(one.begin, ()), (one.end, ())], &mut |record, ()| {
            let bad = Error::unread(record.sequence);
            match record.kind {
                RecordKind::ToolBegin => {
                    let begin = ToolBegin::decode(record.body).map_err(bad)?;
                    arguments = held(record.sequence, begin.arguments)?;
                }
                RecordKind::ToolEnd => {
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

//! Facts of an interrupted call, for the tool that undoes or verifies its effects outside.

use std::collections::BTreeMap;

use foldlog_codec::body::{CallOrigin, ToolBegin};
use foldlog_codec::msgpack::Value;
use foldlog_codec::{OperationId, RecordKind, SequenceNumber};
use smol_str::SmolStr;

use crate::error::{Error, Result};
use crate::session::Session;
use crate::session::operation_records::captures_of;

/// Describes an interrupted call to the tool that undoes or verifies its effects outside of STATE
/// and resources.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InterruptedCall {
    /// Operation id of the interrupted call, as its
    /// [`ToolContext::operation`](super::ToolContext::operation) returned it: the key of its
    /// effects. The undoing call has another operation id.
    pub operation: OperationId,
    /// Sequence number of the start record of the interrupted run.
    pub begin: SequenceNumber,
    /// Number of the interrupted run of the operation, counted from 1. Earlier runs were
    /// interrupted too.
    pub run: u32,
    /// Start time of that run, in microseconds since 1970-01-01 UTC.
    pub began_us: i64,
    /// Id that the model's provider assigned to the call.
    pub call_id: Option<SmolStr>,
    /// Model's answer that requested the call; `None` if the host requested it.
    pub origin: Option<CallOrigin>,
    /// Operation within which the call ran; `None` if it was not nested.
    pub parent: Option<OperationId>,
    /// Arguments of the call as received: JSON text.
    pub arguments: String,
    /// Captures of the resources before the run, by resource name, in the form that the resources
    /// recorded; `None` for a capture that was lost with its process. Empty for a call that only
    /// reads.
    pub captures: BTreeMap<String, Option<Vec<u8>>>,
}

impl InterruptedCall {
    /// Reads the run of `operation` with the start record `begin` from the log.
    pub(in crate::tools) fn read(
        session: &Session,
        operation: OperationId,
        begin: SequenceNumber,
    ) -> Result<InterruptedCall> {
        let (source, mut run) = (session.log_source(), 0);
        let mut undone = None;
        source.places.read(&source.storage, operation.into(), begin, &mut |record| {
            if record.kind != RecordKind::ToolBegin {
                return Ok(());
            }
            let bad = Error::unread(record.sequence);
            let body = ToolBegin::decode(record.body).map_err(&bad)?;
            run += u32::from(
                record.sequence == SequenceNumber::from(operation) || body.again == Some(operation),
            );
            if record.sequence != begin {
                return Ok(());
            }
            let arguments = Value::decode(&source.objects.resolve(body.arguments)?).map_err(&bad)?;
            undone = Some(InterruptedCall {
                operation,
                begin,
                run,
                began_us: record.time_us,
                call_id: body.call_id.as_deref().map(SmolStr::new),
                origin: body.origin,
                parent: body.parent,
                arguments: arguments.as_str().unwrap_or_default().to_owned(),
                captures: captures_of(body.resources, &source.objects)?,
            });
            Ok(())
        })?;
        undone
            .ok_or(Error::NoSuchOperation { operation, reason: "the log does not contain its start record" })
    }
}

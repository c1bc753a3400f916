//! Encodes and decodes the operations of an image: the open, the unsettled and the suspended ones,
//! and STATE at the start records of open ones.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::ItemImage;
use crate::body::fields::{Place, ReadField, WriteField, list, map_fields};
use crate::body::{CallOrigin, Decision, Idempotency, Suspension};
use crate::msgpack::{MsgpackReader, MsgpackWriter};
use crate::{Error, OperationId, SequenceNumber};

/// Describes an operation that has started and not ended.
///
/// In an image it is a map. A field whose value is `None`, `false` or `manual` is omitted.
///
/// | field | meaning |
/// |---|---|
/// | `op` | operation id |
/// | `begin` | sequence number of the operation's latest `tool_begin` |
/// | `in` | id of the operation within which it runs |
/// | `t`, `call`, `idem`, `ro`, `oo`, `undo`, `verify`, `by` | the fields of these names in its `tool_begin` |
/// | `fx` | whether a nested operation may have had effects outside |
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenOperation {
    /// Operation id: the sequence number of the operation's first `tool_begin`.
    pub operation: OperationId,
    /// Sequence number of the operation's latest `tool_begin`.
    pub begin: SequenceNumber,
    /// Id of the operation within which this one runs.
    pub parent: Option<OperationId>,
    /// Name of the tool.
    pub tool: SmolStr,
    /// The provider's id of the call.
    pub call_id: Option<SmolStr>,
    /// How the operation may run again if it is interrupted.
    pub idempotency: Idempotency,
    /// Whether the tool changes nothing.
    pub reads_only: bool,
    /// Whether the tool acts only outside. `reads_only` is then also set.
    pub outside_only: bool,
    /// Id of the operation whose effects this one undoes.
    pub undoes: Option<OperationId>,
    /// Id of the operation of which this one queries the outcome outside of the session.
    pub verifies: Option<OperationId>,
    /// Model answer that requested the call; `None` if the host requested it.
    pub origin: Option<CallOrigin>,
    /// Whether a nested operation may have had effects outside. If this operation runs again, the
    /// nested one also runs again, as a new operation.
    pub had_effects_within: bool,
}

/// Describes an operation that was interrupted and neither run again nor settled since. `T` is the
/// type of its texts.
///
/// In an image it is a map. A field whose value is `None`, `false` or `manual` is omitted.
///
/// | field | meaning |
/// |---|---|
/// | `op` | operation id |
/// | `begin` | sequence number of the operation's latest `tool_begin` |
/// | `t`, `call`, `idem` | the fields of these names in its `tool_begin` |
/// | `undone` | whether the operation's effects are undone |
/// | `again` | whether the operation was settled to run again |
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsettledOperation {
    /// Operation id: the sequence number of the operation's first `tool_begin`.
    pub operation: OperationId,
    /// Sequence number of the operation's latest `tool_begin`, which contains the arguments.
    pub begin: SequenceNumber,
    /// Name of the tool.
    pub tool: SmolStr,
    /// The provider's id of the call.
    pub call_id: Option<SmolStr>,
    /// How the operation may run again.
    pub idempotency: Idempotency,
    /// Whether the operation's effects are undone.
    pub undone: bool,
    /// Whether the operation was settled to run again.
    pub run_again: bool,
}

/// Describes a suspended operation.
///
/// The operation waits until it runs again, until a decision ends it, or until the operation within
/// which it ran has ended.
///
/// In an image it is a map. A field whose value is `None` or `manual` is omitted.
///
/// | field | meaning |
/// |---|---|
/// | `op` | operation id |
/// | `begin`, `end` | sequence numbers of its latest `tool_begin` and of the `tool_end` that suspended it |
/// | `in` | id of the operation within which it ran |
/// | `t`, `call`, `by`, `idem` | the fields of these names in its `tool_begin` |
/// | `wait` | the field of this name in its `tool_end` |
/// | `is` | array of the sequence number of the latest decision, the decision, and the time of its expiry if it has one |
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SuspendedOperation {
    /// Operation id: the sequence number of the operation's first `tool_begin`.
    pub operation: OperationId,
    /// Sequence number of the operation's latest `tool_begin`, which contains the arguments.
    pub begin: SequenceNumber,
    /// Sequence number of the `tool_end` that suspended it, which contains the question.
    pub end: SequenceNumber,
    /// Id of the operation within which this one ran.
    pub parent: Option<OperationId>,
    /// Name of the tool.
    pub tool: SmolStr,
    /// The provider's id of the call.
    pub call_id: Option<SmolStr>,
    /// Model answer that requested the call; `None` if the host requested it.
    pub origin: Option<CallOrigin>,
    /// How the operation may run again if it is interrupted.
    pub idempotency: Idempotency,
    /// Condition for which it waits.
    pub suspension: Suspension,
    /// Latest decision, if the operation has not run since.
    pub decided: Option<SuspensionDecision>,
}

/// Contains a decision about a suspended operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuspensionDecision {
    /// Sequence number of the decision.
    pub sequence: SequenceNumber,
    /// The decision.
    pub decision: Decision,
    /// Time, in microseconds since 1970-01-01 UTC, from which on an approval is no longer valid.
    pub until_us: Option<i64>,
}

/// Contains STATE at the start record of an open operation that may change something. The
/// operation's rollback restores it.
#[derive(Clone, Debug, PartialEq)]
pub struct BegunImage<'a> {
    /// Sequence number of the operation's `tool_begin`.
    pub begin: SequenceNumber,
    /// STATE slices at the start record; a slice that is not listed was empty.
    pub slices: Vec<BegunSlice<'a>>,
}

/// Contains a STATE slice at the start of an operation: the first items of the same slice in the
/// image, then further items.
#[derive(Clone, Debug, PartialEq)]
pub struct BegunSlice<'a> {
    /// Id of the slice.
    pub slice: u32,
    /// Number of the first items that are those of the same slice in
    /// [`Image::slices`](super::Image::slices).
    pub kept: u64,
    /// Number of the further items.
    pub len: u64,
    /// Further items, after the first `kept`.
    pub items: Vec<ItemImage<'a>>,
}

map_fields! { impl<'a> OpenOperation {
    "op" => operation [required],
    "begin" => begin [required],
    "t" => tool [required],
    "call" => call_id,
    "by" => origin,
    "idem" => idempotency,
    "in" => parent,
    "undo" => undoes,
    "verify" => verifies,
    "ro" => reads_only,
    "oo" => outside_only,
    "fx" => had_effects_within,
}}

map_fields! { impl<'a> UnsettledOperation {
    "op" => operation [required],
    "begin" => begin [required],
    "t" => tool [required],
    "call" => call_id,
    "idem" => idempotency,
    "undone" => undone,
    "again" => run_again,
}}

map_fields! { impl<'a> SuspendedOperation {
    "op" => operation [required],
    "begin" => begin [required],
    "end" => end [required],
    "in" => parent,
    "t" => tool [required],
    "call" => call_id,
    "by" => origin,
    "idem" => idempotency,
    "wait" => suspension [required],
    "is" => decided,
}}

impl WriteField for SuspensionDecision {
    fn write(&self, writer: &mut MsgpackWriter) {
        writer.array(2 + usize::from(self.until_us.is_some()));
        writer.unsigned(self.sequence.get()).str(self.decision.name());
        if let Some(until_us) = self.until_us {
            writer.signed(until_us);
        }
    }
}

impl ReadField<'_> for SuspensionDecision {
    fn read(place: Place<'_>, reader: &mut MsgpackReader<'_>) -> Result<SuspensionDecision, Error> {
        let len = reader.array()?;
        if !(2..=3).contains(&len) {
            return Err(place.bad("a decision is not a number and a name with an optional time"));
        }
        let (sequence, decision) = (reader.unsigned()?.into(), Decision::read(place, reader)?);
        let until_us = if len == 3 { Some(reader.signed()?) } else { None };
        Ok(SuspensionDecision { sequence, decision, until_us })
    }
}

impl WriteField for BegunImage<'_> {
    fn write(&self, writer: &mut MsgpackWriter) {
        writer.array(2).unsigned(self.begin.get()).array(self.slices.len());
        for BegunSlice { slice, kept, len, .. } in &self.slices {
            writer.array(3).unsigned(u64::from(*slice)).unsigned(*kept).unsigned(*len);
        }
    }
}

impl<'a> ReadField<'a> for BegunImage<'a> {
    /// Decodes everything but the items, which follow the image's map.
    fn read(place: Place<'_>, reader: &mut MsgpackReader<'a>) -> Result<BegunImage<'a>, Error> {
        let slice = |reader: &mut MsgpackReader<'a>| match reader.array()? {
            3 => Ok(BegunSlice {
                slice: reader.unsigned32()?,
                kept: reader.unsigned()?,
                len: reader.unsigned()?,
                items: Vec::new(),
            }),
            _ => Err(place.bad("a slice of a start record is not an id and two numbers")),
        };
        match reader.array()? {
            2 => Ok(BegunImage { begin: reader.unsigned()?.into(), slices: list(reader, slice)? }),
            _ => Err(place.bad("a start record is not a number and its slices")),
        }
    }
}

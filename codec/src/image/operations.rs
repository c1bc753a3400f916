//! Encodes and decodes the operations of an image: the open, the unsettled and the suspended ones,
//! and STATE at the start records of open ones.

use serde::{Deserialize, Serialize};

use super::{ItemImage, KIND};
use crate::body::fields::{FieldWriter, bad, list, require_field, walk_map};
use crate::body::{CallOrigin, Decision, Idempotency, Suspension};
use crate::msgpack::{MsgpackReader, MsgpackWriter};
use crate::{Error, OperationId, SequenceNumber};

/// Describes an operation that has started and not ended. `T` is the type of its texts.
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenOperation<T> {
    /// Operation id: the sequence number of the operation's first `tool_begin`.
    pub operation: OperationId,
    /// Sequence number of the operation's latest `tool_begin`.
    pub begin: SequenceNumber,
    /// Id of the operation within which this one runs.
    pub parent: Option<OperationId>,
    /// Name of the tool.
    pub tool: T,
    /// The provider's id of the call.
    pub call_id: Option<T>,
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsettledOperation<T> {
    /// Operation id: the sequence number of the operation's first `tool_begin`.
    pub operation: OperationId,
    /// Sequence number of the operation's latest `tool_begin`, which contains the arguments.
    pub begin: SequenceNumber,
    /// Name of the tool.
    pub tool: T,
    /// The provider's id of the call.
    pub call_id: Option<T>,
    /// How the operation may run again.
    pub idempotency: Idempotency,
    /// Whether the operation's effects are undone.
    pub undone: bool,
    /// Whether the operation was settled to run again.
    pub run_again: bool,
}

/// Describes a suspended operation. `T` is the type of its texts.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuspendedOperation<T> {
    /// Operation id: the sequence number of the operation's first `tool_begin`.
    pub operation: OperationId,
    /// Sequence number of the operation's latest `tool_begin`, which contains the arguments.
    pub begin: SequenceNumber,
    /// Sequence number of the `tool_end` that suspended it, which contains the question.
    pub end: SequenceNumber,
    /// Id of the operation within which this one ran.
    pub parent: Option<OperationId>,
    /// Name of the tool.
    pub tool: T,
    /// The provider's id of the call.
    pub call_id: Option<T>,
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

impl<T> SuspendedOperation<T> {
    /// Returns a copy of the operation in which `text` has converted the tool's name and the
    /// provider's call id.
    pub fn with_texts<'s, U>(&'s self, text: impl Fn(&'s T) -> U) -> SuspendedOperation<U> {
        SuspendedOperation {
            operation: self.operation,
            begin: self.begin,
            end: self.end,
            parent: self.parent,
            tool: text(&self.tool),
            call_id: self.call_id.as_ref().map(text),
            origin: self.origin,
            idempotency: self.idempotency,
            suspension: self.suspension,
            decided: self.decided,
        }
    }
}

impl<T> OpenOperation<T> {
    /// Returns a copy of the operation in which `text` has converted the tool's name and the
    /// provider's call id.
    pub fn with_texts<'s, U>(&'s self, text: impl Fn(&'s T) -> U) -> OpenOperation<U> {
        OpenOperation {
            operation: self.operation,
            begin: self.begin,
            parent: self.parent,
            tool: text(&self.tool),
            call_id: self.call_id.as_ref().map(text),
            idempotency: self.idempotency,
            reads_only: self.reads_only,
            outside_only: self.outside_only,
            undoes: self.undoes,
            verifies: self.verifies,
            origin: self.origin,
            had_effects_within: self.had_effects_within,
        }
    }
}

impl<T> UnsettledOperation<T> {
    /// Returns a copy of the operation in which `text` has converted the tool's name and the
    /// provider's call id.
    pub fn with_texts<'s, U>(&'s self, text: impl Fn(&'s T) -> U) -> UnsettledOperation<U> {
        UnsettledOperation {
            operation: self.operation,
            begin: self.begin,
            tool: text(&self.tool),
            call_id: self.call_id.as_ref().map(text),
            idempotency: self.idempotency,
            undone: self.undone,
            run_again: self.run_again,
        }
    }
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

impl<'a> OpenOperation<&'a str> {
    pub(super) fn write(&self, writer: &mut MsgpackWriter) {
        let numbers = [("in", self.parent), ("undo", self.undoes), ("verify", self.verifies)];
        let flags = [("ro", self.reads_only), ("oo", self.outside_only), ("fx", self.had_effects_within)];
        let stated = self.idempotency != Idempotency::Manual;
        let optional = numbers.iter().filter(|(_, number)| number.is_some()).count()
            + flags.iter().filter(|(_, flag)| *flag).count()
            + usize::from(self.call_id.is_some())
            + usize::from(self.origin.is_some())
            + usize::from(stated);
        writer.map(3 + optional);
        writer.str("op").unsigned(self.operation.get());
        writer.str("begin").unsigned(self.begin.get());
        writer.str("t").str(self.tool);
        if let Some(call_id) = self.call_id {
            writer.str("call").str(call_id);
        }
        if let Some(origin) = self.origin {
            origin.write(writer.str("by"));
        }
        if stated {
            writer.str("idem").str(self.idempotency.name());
        }
        for (name, number) in numbers {
            if let Some(number) = number {
                writer.str(name).unsigned(number.get());
            }
        }
        for (name, _) in flags.iter().filter(|(_, flag)| *flag) {
            writer.str(name).bool(true);
        }
    }

    pub(super) fn read(reader: &mut MsgpackReader<'a>) -> Result<OpenOperation<&'a str>, Error> {
        let (mut read, mut origin) = (Fields::default(), None);
        walk_map(reader, |name, value| match name {
            "by" => {
                origin = Some(CallOrigin::read(value)?);
                Ok(())
            }
            _ => read.take(name, value),
        })?;
        Ok(OpenOperation {
            operation: require_field(KIND, "open.op", read.operation)?,
            begin: require_field(KIND, "open.begin", read.begin)?,
            parent: read.parent,
            tool: require_field(KIND, "open.t", read.tool)?,
            call_id: read.call_id,
            idempotency: read.idempotency()?,
            reads_only: read.reads_only || read.outside_only,
            outside_only: read.outside_only,
            undoes: read.undoes,
            verifies: read.verifies,
            origin,
            had_effects_within: read.had_effects_within,
        })
    }
}

impl<'a> UnsettledOperation<&'a str> {
    pub(super) fn write(&self, writer: &mut MsgpackWriter) {
        let flags = [("undone", self.undone), ("again", self.run_again)];
        let stated = self.idempotency != Idempotency::Manual;
        let optional = flags.iter().filter(|(_, flag)| *flag).count();
        writer.map(3 + optional + usize::from(self.call_id.is_some()) + usize::from(stated));
        writer.str("op").unsigned(self.operation.get());
        writer.str("begin").unsigned(self.begin.get());
        writer.str("t").str(self.tool);
        if let Some(call_id) = self.call_id {
            writer.str("call").str(call_id);
        }
        if stated {
            writer.str("idem").str(self.idempotency.name());
        }
        for (name, _) in flags.iter().filter(|(_, flag)| *flag) {
            writer.str(name).bool(true);
        }
    }

    pub(super) fn read(reader: &mut MsgpackReader<'a>) -> Result<UnsettledOperation<&'a str>, Error> {
        let mut read = Fields::default();
        walk_map(reader, |name, value| read.take(name, value))?;
        Ok(UnsettledOperation {
            operation: require_field(KIND, "unsettled.op", read.operation)?,
            begin: require_field(KIND, "unsettled.begin", read.begin)?,
            tool: require_field(KIND, "unsettled.t", read.tool)?,
            call_id: read.call_id,
            idempotency: read.idempotency()?,
            undone: read.undone,
            run_again: read.run_again,
        })
    }
}

impl<'a> SuspendedOperation<&'a str> {
    pub(super) fn write(&self, writer: &mut MsgpackWriter) {
        let mut fields = FieldWriter::with_capacity(160);
        fields.number("op", Some(self.operation.get()));
        fields.sequence("begin", Some(self.begin));
        fields.sequence("end", Some(self.end));
        fields.number("in", self.parent.map(OperationId::get));
        fields.text("t", Some(self.tool));
        fields.text("call", self.call_id);
        if let Some(origin) = self.origin {
            origin.write(fields.field("by"));
        }
        if self.idempotency != Idempotency::Manual {
            fields.text("idem", Some(self.idempotency.name()));
        }
        self.suspension.write(fields.field("wait"));
        if let Some(decided) = self.decided {
            let writer = fields.field("is").array(2 + usize::from(decided.until_us.is_some()));
            writer.unsigned(decided.sequence.get()).str(decided.decision.name());
            if let Some(until_us) = decided.until_us {
                writer.signed(until_us);
            }
        }
        fields.into_map(writer);
    }

    pub(super) fn read(reader: &mut MsgpackReader<'a>) -> Result<SuspendedOperation<&'a str>, Error> {
        let mut read = Fields::default();
        let (mut end, mut origin, mut suspension, mut decided) = (None, None, None, None);
        walk_map(reader, |name, value| {
            match name {
                "end" => end = Some(value.unsigned()?.into()),
                "by" => origin = Some(CallOrigin::read(value)?),
                "wait" => suspension = Some(Suspension::read(value)?),
                "is" => decided = Some(SuspensionDecision::read(value)?),
                _ => read.take(name, value)?,
            }
            Ok(())
        })?;
        Ok(SuspendedOperation {
            operation: require_field(KIND, "suspended.op", read.operation)?,
            begin: require_field(KIND, "suspended.begin", read.begin)?,
            end: require_field(KIND, "suspended.end", end)?,
            parent: read.parent,
            tool: require_field(KIND, "suspended.t", read.tool)?,
            call_id: read.call_id,
            origin,
            idempotency: read.idempotency()?,
            suspension: require_field(KIND, "suspended.wait", suspension)?,
            decided,
        })
    }
}

impl SuspensionDecision {
    fn read(reader: &mut MsgpackReader<'_>) -> Result<SuspensionDecision, Error> {
        let len = reader.array()?;
        if !(2..=3).contains(&len) {
            return Err(bad(KIND, "a decision is not a number and a name with an optional time"));
        }
        let (sequence, name) = (reader.unsigned()?.into(), reader.str()?);
        let decision = Decision::from_name(name)
            .ok_or_else(|| bad(KIND, format!("field `is` has the unknown value `{name}`")))?;
        let until_us = if len == 3 { Some(reader.signed()?) } else { None };
        Ok(SuspensionDecision { sequence, decision, until_us })
    }
}

#[derive(Default)]
struct Fields<'a> {
    operation: Option<OperationId>,
    begin: Option<SequenceNumber>,
    parent: Option<OperationId>,
    undoes: Option<OperationId>,
    verifies: Option<OperationId>,
    tool: Option<&'a str>,
    call_id: Option<&'a str>,
    idempotency: Option<&'a str>,
    reads_only: bool,
    outside_only: bool,
    had_effects_within: bool,
    undone: bool,
    run_again: bool,
}

impl<'a> Fields<'a> {
    fn take(&mut self, name: &str, value: &mut MsgpackReader<'a>) -> Result<(), Error> {
        match name {
            "op" => self.operation = Some(value.unsigned()?.into()),
            "begin" => self.begin = Some(value.unsigned()?.into()),
            "in" => self.parent = Some(value.unsigned()?.into()),
            "undo" => self.undoes = Some(value.unsigned()?.into()),
            "verify" => self.verifies = Some(value.unsigned()?.into()),
            "t" => self.tool = Some(value.str()?),
            "call" => self.call_id = Some(value.str()?),
            "idem" => self.idempotency = Some(value.str()?),
            "ro" => self.reads_only = value.bool()?,
            "oo" => self.outside_only = value.bool()?,
            "fx" => self.had_effects_within = value.bool()?,
            "undone" => self.undone = value.bool()?,
            "again" => self.run_again = value.bool()?,
            _ => {}
        }
        Ok(())
    }

    fn idempotency(&self) -> Result<Idempotency, Error> {
        let Some(name) = self.idempotency else { return Ok(Idempotency::Manual) };
        Idempotency::from_recorded(name)
            .ok_or_else(|| bad(KIND, format!("field `idem` has the unknown value `{name}`")))
    }
}

impl<'a> BegunImage<'a> {
    pub(super) fn write(&self, writer: &mut MsgpackWriter) {
        writer.array(2).unsigned(self.begin.get()).array(self.slices.len());
        for BegunSlice { slice, kept, len, .. } in &self.slices {
            writer.array(3).unsigned(u64::from(*slice)).unsigned(*kept).unsigned(*len);
        }
    }

    /// Decodes everything but the items, which follow the image's map.
    pub(super) fn read(reader: &mut MsgpackReader<'a>) -> Result<BegunImage<'a>, Error> {
        let slice = |reader: &mut MsgpackReader<'a>| match reader.array()? {
            3 => Ok(BegunSlice {
                slice: reader.unsigned32()?,
                kept: reader.unsigned()?,
                len: reader.unsigned()?,
                items: Vec::new(),
            }),
            _ => Err(bad(KIND, "a slice of a start record is not an id and two numbers")),
        };
        match reader.array()? {
            2 => Ok(BegunImage { begin: reader.unsigned()?.into(), slices: list(reader, slice)? }),
            _ => Err(bad(KIND, "a start record is not a number and its slices")),
        }
    }
}

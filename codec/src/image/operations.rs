//! Operations in an image: those that were open or unsettled at its position, and STATE where open ones began.

use super::{ItemImage, KIND};
use crate::body::fields::{bad, list, required, walk_map};
use crate::body::{CallOrigin, Idempotency};
use crate::msgpack::{Reader, Writer};
use crate::{Error, OperationId, SequenceNumber};

/// An operation that has begun and not ended, its texts held as `T`. In an image it is a map: `op` its name, `begin` its
/// latest begin, `in` the operation within which it runs, `t` the tool, `call` the provider's name for the call, `idem` as
/// in a `tool_begin`, `ro`, `undo` and `by` as there, `fx` whether something ran within it that may have had effects
/// outside. Those that say nothing are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOperation<T> {
    /// The operation's name: the sequence number of its first begin.
    pub operation: OperationId,
    /// The sequence number of its latest begin.
    pub begin: SequenceNumber,
    /// The operation within which it runs.
    pub parent: Option<OperationId>,
    /// The tool.
    pub tool: T,
    /// The provider's name for the call.
    pub call_id: Option<T>,
    /// What may be done with it should it be interrupted.
    pub idempotency: Idempotency,
    /// Whether it changes nothing.
    pub reads_only: bool,
    /// The operation that it undoes.
    pub undoes: Option<OperationId>,
    /// The answer that asked for it, and which of its calls this is.
    pub origin: Option<CallOrigin>,
    /// Whether something ran within it that may have had effects outside: running this again would run that again,
    /// as another operation.
    pub had_effects_within: bool,
}

/// An operation that was interrupted and neither run again nor settled since, its texts held as `T`. In an image it is a
/// map: `op`, `begin`, `t`, `call` and `idem` as of an open one, `undone` and `again` where they are so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsettledOperation<T> {
    /// The operation's name: the sequence number of its first begin.
    pub operation: OperationId,
    /// The sequence number of its latest begin, which holds its arguments.
    pub begin: SequenceNumber,
    /// The tool.
    pub tool: T,
    /// The provider's name for the call.
    pub call_id: Option<T>,
    /// What may be done with it.
    pub idempotency: Idempotency,
    /// Whether what it did is undone.
    pub undone: bool,
    /// Whether somebody decided that it is to be run again.
    pub run_again: bool,
}

impl<T> OpenOperation<T> {
    /// Returns the operation with its texts held otherwise, as `text` makes them.
    pub fn with_texts<'s, U>(&'s self, text: impl Fn(&'s T) -> U) -> OpenOperation<U> {
        OpenOperation {
            operation: self.operation,
            begin: self.begin,
            parent: self.parent,
            tool: text(&self.tool),
            call_id: self.call_id.as_ref().map(text),
            idempotency: self.idempotency,
            reads_only: self.reads_only,
            undoes: self.undoes,
            origin: self.origin,
            had_effects_within: self.had_effects_within,
        }
    }
}

impl<T> UnsettledOperation<T> {
    /// Returns the operation with its texts held otherwise, as `text` makes them.
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

/// STATE where an operation began that is open and may change something: what a rollback to its begin goes back to.
#[derive(Clone, Debug, PartialEq)]
pub struct BegunImage<'a> {
    /// The begin's sequence number.
    pub begin: SequenceNumber,
    /// Its STATE slices; those that are not named were empty.
    pub slices: Vec<BegunSlice<'a>>,
}

/// A STATE slice where an operation began: the first items of the slice as the image holds it, and others behind them.
#[derive(Clone, Debug, PartialEq)]
pub struct BegunSlice<'a> {
    /// The slice's id.
    pub slice: u32,
    /// How many of the image's items of that slice come first.
    pub kept: u64,
    /// How many others follow.
    pub len: u64,
    /// The others.
    pub items: Vec<ItemImage<'a>>,
}

impl<'a> OpenOperation<&'a str> {
    pub(super) fn write(&self, writer: &mut Writer) {
        let numbers = [("in", self.parent), ("undo", self.undoes)];
        let flags = [("ro", self.reads_only), ("fx", self.had_effects_within)];
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

    pub(super) fn read(reader: &mut Reader<'a>) -> Result<OpenOperation<&'a str>, Error> {
        let (mut read, mut origin) = (Fields::default(), None);
        walk_map(reader, |name, value| match name {
            "by" => {
                origin = Some(CallOrigin::read(value)?);
                Ok(())
            }
            _ => read.take(name, value),
        })?;
        Ok(OpenOperation {
            operation: required(KIND, "open.op", read.operation)?,
            begin: required(KIND, "open.begin", read.begin)?,
            parent: read.parent,
            tool: required(KIND, "open.t", read.tool)?,
            call_id: read.call_id,
            idempotency: read.idempotency()?,
            reads_only: read.reads_only,
            undoes: read.undoes,
            origin,
            had_effects_within: read.had_effects_within,
        })
    }
}

impl<'a> UnsettledOperation<&'a str> {
    pub(super) fn write(&self, writer: &mut Writer) {
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

    pub(super) fn read(reader: &mut Reader<'a>) -> Result<UnsettledOperation<&'a str>, Error> {
        let mut read = Fields::default();
        walk_map(reader, |name, value| read.take(name, value))?;
        Ok(UnsettledOperation {
            operation: required(KIND, "unsettled.op", read.operation)?,
            begin: required(KIND, "unsettled.begin", read.begin)?,
            tool: required(KIND, "unsettled.t", read.tool)?,
            call_id: read.call_id,
            idempotency: read.idempotency()?,
            undone: read.undone,
            run_again: read.run_again,
        })
    }
}

/// The fields of an operation as they are found.
#[derive(Default)]
struct Fields<'a> {
    operation: Option<OperationId>,
    begin: Option<SequenceNumber>,
    parent: Option<OperationId>,
    undoes: Option<OperationId>,
    tool: Option<&'a str>,
    call_id: Option<&'a str>,
    idempotency: Option<&'a str>,
    reads_only: bool,
    had_effects_within: bool,
    undone: bool,
    run_again: bool,
}

impl<'a> Fields<'a> {
    fn take(&mut self, name: &str, value: &mut Reader<'a>) -> Result<(), Error> {
        match name {
            "op" => self.operation = Some(value.unsigned()?.into()),
            "begin" => self.begin = Some(value.unsigned()?.into()),
            "in" => self.parent = Some(value.unsigned()?.into()),
            "undo" => self.undoes = Some(value.unsigned()?.into()),
            "t" => self.tool = Some(value.str()?),
            "call" => self.call_id = Some(value.str()?),
            "idem" => self.idempotency = Some(value.str()?),
            "ro" => self.reads_only = value.bool()?,
            "fx" => self.had_effects_within = value.bool()?,
            "undone" => self.undone = value.bool()?,
            "again" => self.run_again = value.bool()?,
            _ => {}
        }
        Ok(())
    }

    fn idempotency(&self) -> Result<Idempotency, Error> {
        let Some(name) = self.idempotency else { return Ok(Idempotency::Manual) };
        Idempotency::from_name(name).ok_or_else(|| bad(KIND, format!("`idem` is not known: {name}")))
    }
}

impl<'a> BegunImage<'a> {
    pub(super) fn write(&self, writer: &mut Writer) {
        writer.array(2).unsigned(self.begin.get()).array(self.slices.len());
        for BegunSlice { slice, kept, len, .. } in &self.slices {
            writer.array(3).unsigned(u64::from(*slice)).unsigned(*kept).unsigned(*len);
        }
    }

    /// The items are still to be read.
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<BegunImage<'a>, Error> {
        let slice = |reader: &mut Reader<'a>| match reader.array()? {
            3 => Ok(BegunSlice {
                slice: reader.unsigned32()?,
                kept: reader.unsigned()?,
                len: reader.unsigned()?,
                items: Vec::new(),
            }),
            _ => Err(bad(KIND, "a slice of a begin is its id and two numbers")),
        };
        match reader.array()? {
            2 => Ok(BegunImage { begin: reader.unsigned()?.into(), slices: list(reader, slice)? }),
            _ => Err(bad(KIND, "a begin is its number and its slices")),
        }
    }
}

//! Encodes and decodes the start record of an operation.

use std::borrow::Cow;

use super::fields::{bad, list, require_field, walk};
use super::json::{NameBudget, Object, payload};
use super::operation::{
    BEGIN, CallOrigin, Cause, FIELDS_BYTES, Idempotency, ResourceSnapshot, payload_len, read_named,
    resources_json, resources_len, set_call, text_len, write_resources,
};
use super::{Body, Lane, Payload};
use crate::msgpack::{MsgpackReader, MsgpackWriter, Value};
use crate::{Error, OperationId};

/// Records that a tool is about to run, or that a call is closed without running.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolBegin<'a> {
    /// Name of the tool.
    pub tool: Cow<'a, str>,
    /// The provider's id of the call.
    pub call_id: Option<Cow<'a, str>>,
    /// Arguments of the call as they arrived: JSON text, in one MessagePack string.
    pub arguments: Payload<'a>,
    /// Model answer that requested the call; `None` if the host requested it.
    pub origin: Option<CallOrigin>,
    /// Operation within which this one runs; `None` if it is not nested.
    pub parent: Option<OperationId>,
    /// How the tool may run again if it is interrupted.
    pub idempotency: Idempotency,
    /// Whether the tool changes nothing, so that other such tools may run at the same time.
    pub reads_only: bool,
    /// Whether the tool acts only outside: it changes neither STATE nor resources. Unlike a tool
    /// that only reads, it may run again only if its idempotency permits it. `reads_only` is then
    /// also set.
    pub outside_only: bool,
    /// Operation that runs again with this record; `None` if this record starts a new operation.
    pub again: Option<OperationId>,
    /// Operation whose effects this one undoes.
    pub undoes: Option<OperationId>,
    /// Operation of which this one queries the outcome outside of the session. No log of this
    /// version has one.
    pub verifies: Option<OperationId>,
    /// Snapshots of the resources before the tool runs, in the order of their names.
    pub resources: Vec<ResourceSnapshot<'a>>,
    /// Reason if the call is closed without running. Its end follows, or a recovery writes it.
    pub closed: Option<ClosedCall<'a>>,
}

/// Describes why a call is closed without running.
#[derive(Clone, Debug, PartialEq)]
pub struct ClosedCall<'a> {
    /// Why the call does not run.
    pub cause: Cause,
    /// Text that the model reads in place of a result, as one MessagePack string.
    pub shown: Payload<'a>,
}

impl<'a> ClosedCall<'a> {
    fn write(&self, writer: &mut MsgpackWriter) {
        writer.array(2).str(self.cause.name());
        self.shown.write(writer);
    }

    fn read(name: &str, reader: &mut MsgpackReader<'a>) -> Result<ClosedCall<'a>, Error> {
        match reader.array()? {
            2 => {
                let cause = read_named(BEGIN, name, reader, Cause::from_recorded)?;
                Ok(ClosedCall { cause, shown: Payload::new(reader.value()?) })
            }
            _ => Err(bad(BEGIN, "a closed call is not a pair of cause and text")),
        }
    }
}

impl<'a> ToolBegin<'a> {
    /// Creates the start record of a call by the host, with defaults for all other fields: a
    /// [`Manual`](Idempotency::Manual) tool that may change something, without a parent call and
    /// without resources. `arguments` is JSON, as one MessagePack string.
    pub fn new(tool: impl Into<Cow<'a, str>>, arguments: Payload<'a>) -> ToolBegin<'a> {
        ToolBegin {
            tool: tool.into(),
            call_id: None,
            arguments,
            origin: None,
            parent: None,
            idempotency: Idempotency::Manual,
            reads_only: false,
            outside_only: false,
            again: None,
            undoes: None,
            verifies: None,
            resources: Vec::new(),
            closed: None,
        }
    }

    /// Returns all payloads of the record for modification, so that a writer can replace large ones
    /// by references.
    pub fn payloads_mut(&mut self) -> impl Iterator<Item = &mut Payload<'a>> {
        let resources = self.resources.iter_mut().filter_map(|resource| resource.snapshot.as_mut());
        let shown = self.closed.as_mut().map(|closed| &mut closed.shown);
        std::iter::once(&mut self.arguments).chain(shown).chain(resources)
    }

    /// Encodes the body of a `tool_begin` record as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_into(Vec::new())
    }

    /// Encodes the body of a `tool_begin` record as MessagePack into the allocation of `buffer`,
    /// whose content is discarded.
    pub fn encode_into(&self, mut buffer: Vec<u8>) -> Vec<u8> {
        let stated = self.idempotency != Idempotency::Manual;
        let fields = 2
            + usize::from(stated)
            + usize::from(self.call_id.is_some())
            + usize::from(self.origin.is_some())
            + usize::from(self.parent.is_some())
            + usize::from(self.reads_only)
            + usize::from(self.outside_only)
            + usize::from(self.again.is_some())
            + usize::from(self.undoes.is_some())
            + usize::from(self.verifies.is_some())
            + usize::from(!self.resources.is_empty())
            + usize::from(self.closed.is_some());
        let names = self.tool.len() + text_len(self.call_id.as_deref());
        let payloads = payload_len(Some(self.arguments))
            + payload_len(self.closed.as_ref().map(|closed| closed.shown))
            + resources_len(&self.resources);
        buffer.clear();
        buffer.reserve(FIELDS_BYTES + names + payloads);
        let mut writer = MsgpackWriter::reuse_buffer(buffer);
        writer.map(fields).str("t").str(&self.tool);
        if let Some(call_id) = &self.call_id {
            writer.str("call").str(call_id);
        }
        writer.str("args");
        self.arguments.write(&mut writer);
        if let Some(origin) = self.origin {
            origin.write(writer.str("by"));
        }
        let others =
            [("in", self.parent), ("again", self.again), ("undo", self.undoes), ("verify", self.verifies)];
        for (field, operation) in others {
            if let Some(operation) = operation {
                writer.str(field).unsigned(operation.get());
            }
        }
        if stated {
            writer.str("idem").str(self.idempotency.name());
        }
        if self.reads_only {
            writer.str("ro").bool(true);
        }
        if self.outside_only {
            writer.str("oo").bool(true);
        }
        write_resources(&mut writer, &self.resources);
        if let Some(closed) = &self.closed {
            closed.write(writer.str("shut"));
        }
        writer.finish()
    }

    /// Decodes the body of a `tool_begin` record.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, or if a field is missing or malformed.
    pub fn decode(bytes: &'a [u8]) -> Result<ToolBegin<'a>, Error> {
        let (mut tool, mut call_id, mut arguments, mut origin) = (None, None, None, None);
        let (mut parent, mut again, mut undoes, mut idempotency) = (None, None, None, Idempotency::Manual);
        let (mut verifies, mut reads_only, mut outside_only) = (None, false, false);
        let (mut resources, mut closed) = (Vec::new(), None);
        walk(BEGIN, bytes, |name, value| {
            match name {
                "t" => tool = Some(Cow::Borrowed(value.str()?)),
                "call" => call_id = Some(Cow::Borrowed(value.str()?)),
                "args" => arguments = Some(Payload::new(value.rest())),
                "by" => origin = Some(CallOrigin::read(value)?),
                "in" => parent = Some(value.unsigned()?.into()),
                "again" => again = Some(value.unsigned()?.into()),
                "undo" => undoes = Some(value.unsigned()?.into()),
                "verify" => verifies = Some(value.unsigned()?.into()),
                "idem" => idempotency = read_named(BEGIN, name, value, Idempotency::from_recorded)?,
                "ro" => reads_only = value.bool()?,
                "oo" => outside_only = value.bool()?,
                "res" => resources = list(value, |value| ResourceSnapshot::read(BEGIN, value))?,
                "shut" => closed = Some(ClosedCall::read(name, value)?),
                _ => Lane::check(name, value)?,
            }
            Ok(())
        })?;
        Ok(ToolBegin {
            tool: require_field(BEGIN, "t", tool)?,
            call_id,
            arguments: require_field(BEGIN, "args", arguments)?,
            origin,
            parent,
            idempotency,
            reads_only: reads_only || outside_only,
            outside_only,
            again,
            undoes,
            verifies,
            resources,
            closed,
        })
    }
}

impl<'a> Body<'a> for ToolBegin<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        self.payloads_mut().map(|payload| *payload)
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        set_call(object, self.tool, self.call_id, self.origin, self.parent, self.undoes, self.verifies);
        object.set("arguments", payload(self.arguments)?);
        object.set("idempotency", Value::from(self.idempotency.name()));
        object.set("reads_only", Value::from(self.reads_only));
        if self.outside_only {
            object.set("outside_only", Value::from(true));
        }
        object.set("runs_again", self.again.map_or(Value::Nil, Value::from));
        object.set("resources", resources_json(self.resources)?);
        if let Some(closed) = self.closed {
            object.set("closed", Value::from(closed.cause.name()));
            object.set("shown", payload(closed.shown)?);
        }
        Ok(())
    }
}

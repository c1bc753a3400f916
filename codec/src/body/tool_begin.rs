//! Encodes and decodes the start record of an operation.

use std::borrow::Cow;

use super::fields::{MapFields, Place, ReadField, WriteField, decode, map_fields};
use super::json::{NameBudget, Object, payload};
use super::operation::{
    CallOrigin, Cause, FIELDS_BYTES, Idempotency, ResourceSnapshot, payload_len, resources_json,
    resources_len, set_call, text_len,
};
use super::{Body, Lane, Payload};
use crate::msgpack::{MsgpackReader, MsgpackWriter};
use crate::{Error, OperationId};

/// Records that a tool is about to run, or that a call is closed without running.
#[derive(Clone, Debug, Default, PartialEq)]
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

impl<'a> ReadField<'a> for ClosedCall<'a> {
    fn read(place: Place<'_>, reader: &mut MsgpackReader<'a>) -> Result<ClosedCall<'a>, Error> {
        match reader.array()? {
            2 => {
                let cause = Cause::read(place, reader)?;
                Ok(ClosedCall { cause, shown: Payload::read_element(reader)? })
            }
            _ => Err(place.bad("a closed call is not a pair of cause and text")),
        }
    }
}

impl WriteField for ClosedCall<'_> {
    fn write(&self, writer: &mut MsgpackWriter) {
        self.cause.write(writer.array(2));
        self.shown.write(writer);
    }
}

map_fields! { impl<'a> ToolBegin<'a> {
    "t" => tool [required],
    "call" => call_id,
    "args" => arguments [required],
    "by" => origin,
    "in" => parent,
    "again" => again,
    "undo" => undoes,
    "verify" => verifies,
    "idem" => idempotency,
    "ro" => reads_only,
    "oo" => outside_only,
    "res" => resources,
    "shut" => closed,
    _ => Lane::check,
}}

impl<'a> ToolBegin<'a> {
    /// Creates the start record of a call by the host, with defaults for all other fields: a
    /// [`Manual`](Idempotency::Manual) tool that may change something, without a parent call and
    /// without resources. `arguments` is JSON, as one MessagePack string.
    pub fn new(tool: impl Into<Cow<'a, str>>, arguments: Payload<'a>) -> ToolBegin<'a> {
        ToolBegin { tool: tool.into(), arguments, ..ToolBegin::default() }
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
        let names = self.tool.len() + text_len(self.call_id.as_ref());
        let payloads = payload_len(Some(self.arguments))
            + payload_len(self.closed.as_ref().map(|closed| closed.shown))
            + resources_len(&self.resources);
        buffer.clear();
        buffer.reserve(FIELDS_BYTES + names + payloads);
        let mut writer = MsgpackWriter::reuse_buffer(buffer);
        writer.fields(|fields| self.write_fields(fields));
        writer.finish()
    }

    /// Decodes the body of a `tool_begin` record.
    pub fn decode(bytes: &'a [u8]) -> Result<ToolBegin<'a>, Error> {
        let mut begin: ToolBegin<'a> = decode("tool_begin", bytes)?;
        begin.reads_only |= begin.outside_only;
        Ok(begin)
    }
}

impl<'a> Body<'a> for ToolBegin<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        self.payloads_mut().map(|payload| *payload)
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        set_call(object, self.tool, self.call_id, self.origin, self.parent, self.undoes, self.verifies);
        object.set("arguments", payload(self.arguments)?);
        object.set("idempotency", self.idempotency.name());
        object.set("reads_only", self.reads_only);
        object.flag("outside_only", self.outside_only);
        object.set("runs_again", self.again);
        object.set("resources", resources_json(self.resources)?);
        if let Some(closed) = self.closed {
            object.set("closed", closed.cause.name());
            object.set("shown", payload(closed.shown)?);
        }
        Ok(())
    }
}

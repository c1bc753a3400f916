//! Encodes and decodes the end record of an operation.

use std::borrow::Cow;

use super::fields::{MapFields, bad, decode, encode_fields, map_fields};
use super::json::{NameBudget, Object, Part, array, optional};
use super::operation::{
    CallOrigin, Cause, ExternalEffects, FIELDS_BYTES, NotUndone, Outcome, ReplacedParts, ResourceSnapshot,
    payload_len, resources_json, resources_len, set_call, text_len,
};
use super::suspension::Suspension;
use super::{Body, Payload, Rollback};
use crate::msgpack::{MsgpackWriter, Value};
use crate::{Error, OperationId, SequenceNumber};

/// Field of a result, and its value, by which a tool reports that it is unknown whether its work
/// ended.
const ENDED: &str = "ended";
const UNKNOWN: &str = "unknown";

const END: &str = "tool_end";

/// Records that a tool has ended, and how.
///
/// Unless the operation committed or its tool only reads, this record is also the rollback to the
/// operation's start, so that no crash can fall between the end and the rollback.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolEnd<'a> {
    /// Sequence number of the `tool_begin` that this record ends.
    pub begin: SequenceNumber,
    /// Operation id, if the operation ran again and its first `tool_begin` is an earlier one.
    pub again: Option<OperationId>,
    /// Name of the tool, repeated from the start record for readers that see only end records.
    pub tool: Cow<'a, str>,
    /// The provider's id of the call.
    pub call_id: Option<Cow<'a, str>>,
    /// Model answer that requested the call; `None` if the host requested it.
    pub origin: Option<CallOrigin>,
    /// Operation within which this one ran; `None` if it was not nested.
    pub parent: Option<OperationId>,
    /// Operation whose effects this one undid.
    pub undoes: Option<OperationId>,
    /// Operation of which this one queried the outcome outside of the session.
    pub verifies: Option<OperationId>,
    /// How the operation ended.
    pub outcome: Outcome,
    /// Why the operation failed; `None` if it did not fail.
    pub cause: Option<Cause>,
    /// Exit code of the command that the tool ran; `None` if it ran none, or if the code is
    /// unknown.
    pub exit_code: Option<i32>,
    /// Whether the record rolls STATE back to the start of the run.
    pub rolls_back: bool,
    /// Known effects of the operation outside of STATE and resources.
    pub outside: ExternalEffects,
    /// Duration of the run, in microseconds.
    pub elapsed_us: u64,
    /// Result of the tool: a value of the host.
    pub result: Option<Payload<'a>>,
    /// Text for the model, in one MessagePack string.
    pub shown: Option<Payload<'a>>,
    /// Visibility overrides that the tool requests for its next call; set for [`Cause::Expansion`].
    pub overrides: Option<Payload<'a>>,
    /// Condition for which the operation waits; set for [`Outcome::Suspended`].
    pub suspension: Option<Suspension>,
    /// Snapshots of the resources. If the run committed, they were taken after it; if it was rolled
    /// back, they show the resources as the rollback found them.
    pub resources: Vec<ResourceSnapshot<'a>>,
    /// Changes of resources that the rollback did not undo.
    pub not_undone: Vec<NotUndone<'a>>,
    /// Parts of resources that the rollback replaced or removed. `resources` still contains them.
    pub replaced: Vec<ReplacedParts<'a>>,
    /// Id of the LOG slice to which the record adds the item
    /// [`encode_invocation`](ToolEnd::encode_invocation).
    pub slice: u32,
}

map_fields! { impl<'a> ToolEnd<'a> {
    "op" => begin [required],
    "again" => again,
    "in" => parent,
    "undo" => undoes,
    "verify" => verifies,
    "t" => tool [required],
    "call" => call_id,
    "by" => origin,
    "out" => outcome [required],
    "why" => cause,
    "exit" => exit_code,
    "back" => rolls_back,
    "fx" => outside,
    "us" => elapsed_us [always],
    "result" => result,
    "shown" => shown,
    "over" => overrides,
    "wait" => suspension,
    "res" => resources,
    "left" => not_undone,
    "rep" => replaced,
    "s" => slice [required],
}}

impl<'a> ToolEnd<'a> {
    /// Creates the end record of the run that started at `begin`, with defaults for all other
    /// fields: no origin, no parent and no answer, no rollback, unknown effects outside, and slice
    /// 0.
    pub fn new(begin: SequenceNumber, tool: impl Into<Cow<'a, str>>, outcome: Outcome) -> ToolEnd<'a> {
        ToolEnd { begin, tool: tool.into(), outcome, ..ToolEnd::default() }
    }

    /// Returns all payloads of the record for modification, so that a writer can replace large ones
    /// by references.
    pub fn payloads_mut(&mut self) -> impl Iterator<Item = &mut Payload<'a>> {
        let own = [&mut self.result, &mut self.shown, &mut self.overrides];
        let resources = self.resources.iter_mut().map(|resource| &mut resource.snapshot);
        own.into_iter().chain(resources).filter_map(Option::as_mut)
    }

    /// Returns the rollback of STATE to the start of the call; `None` if the record includes none.
    pub fn rollback(&self) -> Option<Rollback> {
        self.rolls_back.then_some(Rollback { to: self.begin, preserve_logs: true })
    }

    /// Returns whether the run committed although its tool reports that it is unknown whether its
    /// work ended: the result is a map whose field `ended` is `unknown`. Returns `false` for a
    /// result that is stored as an object.
    pub fn has_unknown_end(&self) -> bool {
        let result = self.result.as_ref().filter(|result| result.object().is_none());
        let is_committed = self.outcome == Outcome::Committed;
        result.filter(|_| is_committed).is_some_and(|result| says_unknown(result.bytes()))
    }

    /// Returns the operation id.
    pub fn operation(&self) -> OperationId {
        self.again.unwrap_or(self.begin.into())
    }

    /// Encodes the item that the record adds to its LOG slice: one MessagePack map with full field
    /// names. No record contains these bytes; a reader builds them from the record's other fields.
    pub fn encode_invocation(&self) -> Vec<u8> {
        let names = self.tool.len() + text_len(self.call_id.as_ref());
        encode_fields(FIELDS_BYTES + names, |fields| {
            fields.set("operation", &self.operation());
            fields.set("begin", &self.begin);
            fields.some("parent", &self.parent);
            fields.some("undoes", &self.undoes);
            fields.some("verifies", &self.verifies);
            fields.some("asked_by", &self.origin);
            fields.set("tool", &self.tool);
            fields.some("call_id", &self.call_id);
            fields.set("outcome", &self.outcome);
            fields.some("cause", &self.cause);
            fields.some("exit_code", &self.exit_code);
            fields.set("outside", &self.outside);
            fields.set("elapsed_us", &self.elapsed_us);
        })
    }

    /// Encodes the body of a `tool_end` record as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_into(Vec::new())
    }

    /// Encodes the body of a `tool_end` record as MessagePack into the allocation of `buffer`,
    /// whose content is discarded.
    pub fn encode_into(&self, mut buffer: Vec<u8>) -> Vec<u8> {
        let names = self.tool.len() + text_len(self.call_id.as_ref());
        let payloads: usize = [self.result, self.shown, self.overrides].into_iter().map(payload_len).sum();
        let not_undone: usize = self.not_undone.iter().map(NotUndone::len).sum();
        let replaced: usize = self.replaced.iter().map(ReplacedParts::len).sum();
        let lists = resources_len(&self.resources) + not_undone + replaced;
        buffer.clear();
        buffer.reserve(FIELDS_BYTES + names + payloads + lists);
        let mut writer = MsgpackWriter::reuse_buffer(buffer);
        writer.fields(|fields| self.write_fields(fields));
        writer.finish()
    }

    /// Decodes the body of a `tool_end` record.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, if a field is missing or malformed, if a committed operation
    /// is rolled back, or if only one of a suspended outcome and a suspension is present.
    pub fn decode(bytes: &'a [u8]) -> Result<ToolEnd<'a>, Error> {
        let end: ToolEnd<'a> = decode(END, bytes)?;
        if end.outcome == Outcome::Committed && end.rolls_back {
            return Err(bad(END, "a committed operation cannot be rolled back"));
        }
        if (end.outcome == Outcome::Suspended) != end.suspension.is_some() {
            return Err(bad(
                END,
                "a suspended operation states no reason for the wait, or another operation states one",
            ));
        }
        Ok(end)
    }
}

/// Returns whether a value is a map whose field [`ENDED`] is [`UNKNOWN`]. Only a result that
/// contains the two next to each other is decoded, and few do.
fn says_unknown(bytes: &[u8]) -> bool {
    let mut writer = MsgpackWriter::new();
    writer.str(ENDED).str(UNKNOWN);
    let field = writer.finish();
    bytes.windows(field.len()).any(|at| at == field)
        && Value::decode(bytes).is_ok_and(|value| value.get(ENDED).and_then(Value::as_str) == Some(UNKNOWN))
}

impl<'a> Body<'a> for ToolEnd<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        self.payloads_mut().map(|payload| *payload)
    }

    fn set_json(self, object: &mut Object<'a>, names: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("begin", self.begin);
        object.set("operation", self.operation());
        set_call(object, self.tool, self.call_id, self.origin, self.parent, self.undoes, self.verifies);
        object.set("outcome", self.outcome.name());
        object.set("cause", self.cause.map(|cause| cause.name().to_owned()));
        object.some("exit_code", self.exit_code);
        object.set("rolls_back", self.rolls_back);
        object.set("outside_effects", self.outside.name());
        object.set("elapsed_us", self.elapsed_us);
        object.set("result", optional(self.result)?);
        object.set("shown", optional(self.shown)?);
        object.set("overrides", optional(self.overrides)?);
        object.some("suspension", self.suspension.map(Suspension::into_json));
        object.set("resources", resources_json(self.resources)?);
        if !self.not_undone.is_empty() {
            object.set("not_undone", not_undone(self.not_undone)?);
        }
        if !self.replaced.is_empty() {
            object.set("replaced", replaced_resources(self.replaced)?);
        }
        object.set("slice", names.slice(self.slice, 0)?);
        Ok(())
    }
}

fn not_undone(not_undone: Vec<NotUndone<'_>>) -> Result<Part<'_>, Error> {
    array(not_undone.into_iter(), |one| {
        let mut object = Object::with_capacity(3);
        object.set("resource", one.resource);
        object.set("path", one.path);
        object.set("reason", one.reason);
        Ok(object.into_part())
    })
}

fn replaced_resources(replaced: Vec<ReplacedParts<'_>>) -> Result<Part<'_>, Error> {
    array(replaced.into_iter(), |one| {
        let mut object = Object::with_capacity(4);
        object.set("resource", one.resource);
        object.set("changed", one.changed);
        object.set("removed", one.removed);
        object.set("more", one.more);
        Ok(object.into_part())
    })
}

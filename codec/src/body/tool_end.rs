//! Encodes and decodes the end record of an operation.

use std::borrow::Cow;

use super::fields::{bad, list, require_field, walk};
use super::json::{NameBudget, Object, Part, array, optional};
use super::operation::{
    CallOrigin, Cause, END, ExternalEffects, FIELDS_BYTES, NotUndone, Outcome, ReplacedParts,
    ResourceSnapshot, payload_len, read_named, resources_json, resources_len, set_call, text_len,
    write_resources,
};
use super::suspension::Suspension;
use super::{Body, Payload, Rollback};
use crate::msgpack::{MsgpackWriter, Value};
use crate::{Error, OperationId, SequenceNumber};

/// Field of a result, and its value, by which a tool reports that it is unknown whether its work
/// ended.
const ENDED: &str = "ended";
const UNKNOWN: &str = "unknown";

/// Records that a tool has ended, and how.
///
/// Unless the operation committed or its tool only reads, this record is also the rollback to the
/// operation's start, so that no crash can fall between the end and the rollback.
#[derive(Clone, Debug, PartialEq)]
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

impl<'a> ToolEnd<'a> {
    /// Creates the end record of the run that started at `begin`, with defaults for all other
    /// fields: no origin, no parent and no answer, no rollback, unknown effects outside, and slice
    /// 0.
    pub fn new(begin: SequenceNumber, tool: impl Into<Cow<'a, str>>, outcome: Outcome) -> ToolEnd<'a> {
        ToolEnd {
            begin,
            again: None,
            tool: tool.into(),
            call_id: None,
            origin: None,
            parent: None,
            undoes: None,
            verifies: None,
            outcome,
            cause: None,
            exit_code: None,
            rolls_back: false,
            outside: ExternalEffects::Unknown,
            elapsed_us: 0,
            result: None,
            shown: None,
            overrides: None,
            suspension: None,
            resources: Vec::new(),
            not_undone: Vec::new(),
            replaced: Vec::new(),
            slice: 0,
        }
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
        let numbers = [("parent", self.parent), ("undoes", self.undoes), ("verifies", self.verifies)];
        let fields = 6
            + numbers.iter().filter(|(_, number)| number.is_some()).count()
            + usize::from(self.origin.is_some())
            + usize::from(self.call_id.is_some())
            + usize::from(self.cause.is_some())
            + usize::from(self.exit_code.is_some());
        let names = self.tool.len() + text_len(self.call_id.as_deref());
        let mut writer = MsgpackWriter::with_capacity(FIELDS_BYTES + names);
        writer
            .map(fields)
            .str("operation")
            .unsigned(self.operation().get())
            .str("begin")
            .unsigned(self.begin.get());
        for (field, number) in numbers {
            if let Some(number) = number {
                writer.str(field).unsigned(number.get());
            }
        }
        if let Some(origin) = self.origin {
            origin.write(writer.str("asked_by"));
        }
        writer.str("tool").str(&self.tool);
        if let Some(call_id) = &self.call_id {
            writer.str("call_id").str(call_id);
        }
        writer.str("outcome").str(self.outcome.name());
        if let Some(cause) = self.cause {
            writer.str("cause").str(cause.name());
        }
        if let Some(exit_code) = self.exit_code {
            writer.str("exit_code").signed(exit_code.into());
        }
        writer.str("outside").str(self.outside.name()).str("elapsed_us").unsigned(self.elapsed_us);
        writer.finish()
    }

    /// Encodes the body of a `tool_end` record as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_into(Vec::new())
    }

    /// Encodes the body of a `tool_end` record as MessagePack into the allocation of `buffer`,
    /// whose content is discarded.
    pub fn encode_into(&self, mut buffer: Vec<u8>) -> Vec<u8> {
        let numbers =
            [("again", self.again), ("in", self.parent), ("undo", self.undoes), ("verify", self.verifies)];
        let payloads = [("result", self.result), ("shown", self.shown), ("over", self.overrides)];
        let stated = self.outside != ExternalEffects::Unknown;
        let fields = 5
            + usize::from(stated)
            + numbers.iter().filter(|(_, number)| number.is_some()).count()
            + payloads.iter().filter(|(_, payload)| payload.is_some()).count()
            + usize::from(self.call_id.is_some())
            + usize::from(self.origin.is_some())
            + usize::from(self.cause.is_some())
            + usize::from(self.exit_code.is_some())
            + usize::from(self.rolls_back)
            + usize::from(self.suspension.is_some())
            + usize::from(!self.resources.is_empty())
            + usize::from(!self.not_undone.is_empty())
            + usize::from(!self.replaced.is_empty());
        let names = self.tool.len() + text_len(self.call_id.as_deref());
        let payloads_len: usize = payloads.iter().map(|(_, payload)| payload_len(*payload)).sum();
        let resources = resources_len(&self.resources);
        let not_undone: usize = self.not_undone.iter().map(NotUndone::len).sum();
        let replaced: usize = self.replaced.iter().map(ReplacedParts::len).sum();
        buffer.clear();
        buffer.reserve(FIELDS_BYTES + names + payloads_len + resources + not_undone + replaced);
        let mut writer = MsgpackWriter::reuse_buffer(buffer);
        writer.map(fields).str("op").unsigned(self.begin.get());
        for (field, number) in numbers {
            if let Some(number) = number {
                writer.str(field).unsigned(number.get());
            }
        }
        writer.str("t").str(&self.tool);
        if let Some(call_id) = &self.call_id {
            writer.str("call").str(call_id);
        }
        if let Some(origin) = self.origin {
            origin.write(writer.str("by"));
        }
        writer.str("out").str(self.outcome.name());
        if let Some(cause) = self.cause {
            writer.str("why").str(cause.name());
        }
        if let Some(exit_code) = self.exit_code {
            writer.str("exit").signed(exit_code.into());
        }
        if self.rolls_back {
            writer.str("back").bool(true);
        }
        if stated {
            writer.str("fx").str(self.outside.name());
        }
        writer.str("us").unsigned(self.elapsed_us);
        for (field, payload) in payloads {
            if let Some(payload) = payload {
                writer.str(field);
                payload.write(&mut writer);
            }
        }
        if let Some(suspension) = &self.suspension {
            suspension.write(writer.str("wait"));
        }
        write_resources(&mut writer, &self.resources);
        if !self.not_undone.is_empty() {
            writer.str("left").array(self.not_undone.len());
            self.not_undone.iter().for_each(|one| one.write(&mut writer));
        }
        if !self.replaced.is_empty() {
            writer.str("rep").array(self.replaced.len());
            self.replaced.iter().for_each(|one| one.write(&mut writer));
        }
        writer.str("s").unsigned(u64::from(self.slice));
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
        let (mut begin, mut tool, mut outcome, mut slice) = (None, None, None, None);
        // Optional fields are decoded in place. Required ones are checked after all fields are
        // read.
        let mut end = ToolEnd::new(SequenceNumber::MIN, "", Outcome::Committed);
        walk(END, bytes, |name, value| {
            match name {
                "op" => begin = Some(value.unsigned()?.into()),
                "again" => end.again = Some(value.unsigned()?.into()),
                "in" => end.parent = Some(value.unsigned()?.into()),
                "undo" => end.undoes = Some(value.unsigned()?.into()),
                "verify" => end.verifies = Some(value.unsigned()?.into()),
                "t" => tool = Some(Cow::Borrowed(value.str()?)),
                "call" => end.call_id = Some(Cow::Borrowed(value.str()?)),
                "by" => end.origin = Some(CallOrigin::read(value)?),
                "out" => outcome = Some(read_named(END, name, value, Outcome::from_recorded)?),
                "why" => end.cause = Some(read_named(END, name, value, Cause::from_recorded)?),
                "exit" => {
                    let code = i32::try_from(value.signed()?);
                    end.exit_code = Some(code.map_err(|_| bad(END, "an exit code exceeds 32 bits"))?);
                }
                "back" => end.rolls_back = value.bool()?,
                "fx" => end.outside = read_named(END, name, value, ExternalEffects::from_name)?,
                "us" => end.elapsed_us = value.unsigned()?,
                "result" => end.result = Some(Payload::new(value.rest())),
                "shown" => end.shown = Some(Payload::new(value.rest())),
                "wait" => end.suspension = Some(Suspension::read(value)?),
                "over" => end.overrides = Some(Payload::new(value.rest())),
                "res" => end.resources = list(value, |value| ResourceSnapshot::read(END, value))?,
                "left" => end.not_undone = list(value, NotUndone::read)?,
                "rep" => end.replaced = list(value, ReplacedParts::read)?,
                "s" => slice = Some(value.unsigned32()?),
                _ => {}
            }
            Ok(())
        })?;
        end.begin = require_field(END, "op", begin)?;
        end.tool = require_field(END, "t", tool)?;
        end.outcome = require_field(END, "out", outcome)?;
        end.slice = require_field(END, "s", slice)?;
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
        object.set("begin", Value::from(self.begin));
        object.set("operation", Value::from(self.operation()));
        set_call(object, self.tool, self.call_id, self.origin, self.parent, self.undoes, self.verifies);
        object.set("outcome", Value::from(self.outcome.name()));
        object.set("cause", self.cause.map_or(Value::Nil, |cause| Value::from(cause.name())));
        if let Some(exit_code) = self.exit_code {
            object.set("exit_code", Value::from(i64::from(exit_code)));
        }
        object.set("rolls_back", Value::from(self.rolls_back));
        object.set("outside_effects", Value::from(self.outside.name()));
        object.set("elapsed_us", Value::from(self.elapsed_us));
        object.set("result", optional(self.result)?);
        object.set("shown", optional(self.shown)?);
        object.set("overrides", optional(self.overrides)?);
        if let Some(waits) = self.suspension {
            object.set("suspension", waits.into_json());
        }
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
        object.set("resource", Value::from(one.resource.into_owned()));
        object.set("path", Value::from(one.path.into_owned()));
        object.set("reason", Value::from(one.reason.into_owned()));
        Ok(object.into_part())
    })
}

fn replaced_resources(replaced: Vec<ReplacedParts<'_>>) -> Result<Part<'_>, Error> {
    let paths = |paths: Vec<Cow<'_, str>>| {
        Value::Array(paths.into_iter().map(|path| Value::from(path.into_owned())).collect())
    };
    array(replaced.into_iter(), |one| {
        let mut object = Object::with_capacity(4);
        object.set("resource", Value::from(one.resource.into_owned()));
        object.set("changed", paths(one.changed));
        object.set("removed", paths(one.removed));
        object.set("more", Value::from(one.more));
        Ok(object.into_part())
    })
}

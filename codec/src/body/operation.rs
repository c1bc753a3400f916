//! Tools as transactions: an operation's begin, its end, and what somebody decided about it.
//!
//! An operation's name is the sequence number of its first `tool_begin`: a provider's call id is data, since one
//! may come twice for different calls.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::Payload;
use super::fields::{bad, list, required, walk, walk_map};
use crate::msgpack::{Reader, Writer};
use crate::{Error, OperationId, SequenceNumber};

const BEGIN: &str = "tool_begin";
const END: &str = "tool_end";
const SETTLE: &str = "settle";
const OBSERVED: &str = "observed";

macro_rules! named {
    ($(#[$doc:meta])* $type:ident { $($(#[$each:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $type {
            $($(#[$each])* #[serde(rename = $name)] $variant,)*
        }

        impl $type {
            /// All of them.
            pub const ALL: &'static [$type] = &[$($type::$variant),*];

            /// The name in records and JSON.
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)*
                }
            }

            /// The one of that name.
            pub fn from_name(name: &str) -> Option<$type> {
                $type::ALL.iter().copied().find(|one| one.name() == name)
            }
        }
    };
}

named! {
    /// What may be done with a tool that was interrupted.
    Idempotency {
        /// It may run again: running it twice is as running it once.
        Natural = "natural",
        /// It may run again under the same operation, by whose name it finds what it did before.
        Keyed = "keyed",
        /// What it did is undone first, then it may run again.
        Compensate = "compensate",
        /// Nobody but a person or the host knows.
        Manual = "manual",
    }
}

named! {
    /// How an operation ended.
    Outcome {
        /// What it did stays.
        Committed = "committed",
        /// What it did was taken back.
        Failed = "failed",
        /// Its process ended before it did; what it did was taken back when the session was recovered.
        Interrupted = "interrupted",
    }
}

named! {
    /// Why an operation failed.
    Cause {
        /// The tool answered with an error.
        Error = "error",
        /// The tool panicked.
        Panic = "panic",
        /// The tool's result says that it had no success.
        Unsuccessful = "unsuccessful",
        /// The arguments are not what the tool takes.
        InvalidArguments = "invalid_arguments",
        /// The tool asks for more of the prompt to be shown, after which it is to be called again.
        Expansion = "visibility_expansion",
        /// Its time was over.
        Deadline = "deadline",
        /// It was told to stop.
        Cancelled = "cancelled",
        /// Whoever ran it let go of it without an end.
        Dropped = "dropped",
    }
}

named! {
    /// What is known of a failed tool's effects outside of all that is taken back.
    ExternalEffects {
        /// There are none.
        None = "none",
        /// There may be some.
        Unknown = "unknown",
    }
}

named! {
    /// What somebody decided about an interrupted operation.
    Decision {
        /// It had done its work; the decision holds its result.
        Committed = "committed",
        /// It had not, and is not to be run again.
        Failed = "failed",
        /// It is to be run again.
        RunAgain = "run-again",
    }
}

/// What a resource said of itself at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceSnapshot<'a> {
    /// The resource's name.
    pub resource: Cow<'a, str>,
    /// What it needs to come back to that moment; `None` where it cannot in another process.
    pub snapshot: Option<Payload<'a>>,
}

impl<'a> ResourceSnapshot<'a> {
    fn write(&self, writer: &mut Writer) {
        writer.map(1 + usize::from(self.snapshot.is_some())).str("r").str(&self.resource);
        if let Some(snapshot) = &self.snapshot {
            writer.str("s");
            snapshot.write(writer);
        }
    }

    fn read(kind: &'static str, reader: &mut Reader<'a>) -> Result<ResourceSnapshot<'a>, Error> {
        let (mut resource, mut snapshot) = (None, None);
        walk_map(reader, |name, value| {
            match name {
                "r" => resource = Some(Cow::Borrowed(value.str()?)),
                "s" => snapshot = Some(Payload::new(value.rest())),
                _ => {}
            }
            Ok(())
        })?;
        Ok(ResourceSnapshot { resource: required(kind, "res.r", resource)?, snapshot })
    }
}

/// Something that a call did to a resource and that was not undone with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotUndone<'a> {
    /// The resource's name.
    pub resource: Cow<'a, str>,
    /// What of the resource: a path of a workspace, say.
    pub path: Cow<'a, str>,
    /// What about it, and why.
    pub reason: Cow<'a, str>,
}

impl<'a> NotUndone<'a> {
    fn write(&self, writer: &mut Writer) {
        writer.map(3).str("r").str(&self.resource).str("p").str(&self.path).str("w").str(&self.reason);
    }

    fn read(reader: &mut Reader<'a>) -> Result<NotUndone<'a>, Error> {
        let (mut resource, mut path, mut reason) = (None, None, None);
        walk_map(reader, |name, value| {
            match name {
                "r" => resource = Some(Cow::Borrowed(value.str()?)),
                "p" => path = Some(Cow::Borrowed(value.str()?)),
                "w" => reason = Some(Cow::Borrowed(value.str()?)),
                _ => {}
            }
            Ok(())
        })?;
        Ok(NotUndone {
            resource: required(END, "left.r", resource)?,
            path: required(END, "left.p", path)?,
            reason: required(END, "left.w", reason)?,
        })
    }

    fn len(&self) -> usize {
        self.resource.len() + self.path.len() + self.reason.len() + 20
    }
}

/// At least as many bytes as a body's fields take beside its payloads and names, so that it is encoded without growing.
const FIELDS_BYTES: usize = 160;

fn resources_len(resources: &[ResourceSnapshot<'_>]) -> usize {
    let len = |resource: &ResourceSnapshot<'_>| resource.resource.len() + payload_len(resource.snapshot) + 12;
    resources.iter().map(len).sum()
}

fn payload_len(payload: Option<Payload<'_>>) -> usize {
    payload.map_or(0, |payload| payload.bytes().len())
}

fn text_len(text: Option<&str>) -> usize {
    text.map_or(0, str::len)
}

fn write_resources(writer: &mut Writer, resources: &[ResourceSnapshot<'_>]) {
    if !resources.is_empty() {
        writer.str("res").array(resources.len());
        resources.iter().for_each(|resource| resource.write(writer));
    }
}

fn read_named<T>(
    kind: &'static str,
    field: &str,
    reader: &mut Reader<'_>,
    from_name: fn(&str) -> Option<T>,
) -> Result<T, Error> {
    let name = reader.str()?;
    from_name(name).ok_or_else(|| bad(kind, format!("`{field}` is not known: {name}")))
}

/// Names the place in a conversation where a model asked for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "(u64, u32)", into = "(u64, u32)")]
pub struct CallOrigin {
    /// The sequence number of the record that holds the model's answer.
    pub answer: SequenceNumber,
    /// Which of the answer's tool calls this is, counted from 0.
    pub ordinal: u32,
}

impl From<(u64, u32)> for CallOrigin {
    fn from((answer, ordinal): (u64, u32)) -> CallOrigin {
        CallOrigin { answer: answer.into(), ordinal }
    }
}

impl From<CallOrigin> for (u64, u32) {
    fn from(origin: CallOrigin) -> (u64, u32) {
        (origin.answer.get(), origin.ordinal)
    }
}

impl CallOrigin {
    pub(crate) fn write(self, writer: &mut Writer) {
        writer.array(2).unsigned(self.answer.get()).unsigned(u64::from(self.ordinal));
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<CallOrigin, Error> {
        match reader.array()? {
            2 => Ok(CallOrigin { answer: reader.unsigned()?.into(), ordinal: reader.unsigned32()? }),
            _ => Err(bad(BEGIN, "a call is named by its answer and its place there")),
        }
    }
}

/// A tool is about to run.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolBegin<'a> {
    /// The tool's name.
    pub tool: Cow<'a, str>,
    /// The provider's name for the call.
    pub call_id: Option<Cow<'a, str>>,
    /// The arguments as they came: JSON, as one MessagePack string.
    pub arguments: Payload<'a>,
    /// The model answer that asked for the call; `None` where the host asked.
    pub origin: Option<CallOrigin>,
    /// The operation within which it runs.
    pub parent: Option<OperationId>,
    /// What may be done with it should it be interrupted.
    pub idempotency: Idempotency,
    /// Whether it changes nothing, so that others of its kind may run beside it.
    pub reads_only: bool,
    /// The operation that is run again here.
    pub again: Option<OperationId>,
    /// The operation whose effects are undone here.
    pub undoes: Option<OperationId>,
    /// The resources before it ran, in the order of their names.
    pub resources: Vec<ResourceSnapshot<'a>>,
}

impl<'a> ToolBegin<'a> {
    /// The payloads that the record holds, or refers to where they are large.
    pub fn payloads_mut(&mut self) -> impl Iterator<Item = &mut Payload<'a>> {
        let resources = self.resources.iter_mut().filter_map(|resource| resource.snapshot.as_mut());
        std::iter::once(&mut self.arguments).chain(resources)
    }

    /// The body's bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_into(Vec::new())
    }

    /// The body's bytes, in a buffer of which nothing but its allocation is used.
    pub fn encode_into(&self, mut buffer: Vec<u8>) -> Vec<u8> {
        let stated = self.idempotency != Idempotency::Manual;
        let fields = 2
            + usize::from(stated)
            + usize::from(self.call_id.is_some())
            + usize::from(self.origin.is_some())
            + usize::from(self.parent.is_some())
            + usize::from(self.reads_only)
            + usize::from(self.again.is_some())
            + usize::from(self.undoes.is_some())
            + usize::from(!self.resources.is_empty());
        let names = self.tool.len() + text_len(self.call_id.as_deref());
        let payloads = payload_len(Some(self.arguments)) + resources_len(&self.resources);
        buffer.clear();
        buffer.reserve(FIELDS_BYTES + names + payloads);
        let mut writer = Writer::reusing(buffer);
        writer.map(fields).str("t").str(&self.tool);
        if let Some(call_id) = &self.call_id {
            writer.str("call").str(call_id);
        }
        writer.str("args");
        self.arguments.write(&mut writer);
        if let Some(origin) = self.origin {
            origin.write(writer.str("by"));
        }
        for (field, operation) in [("in", self.parent), ("again", self.again), ("undo", self.undoes)] {
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
        write_resources(&mut writer, &self.resources);
        writer.finish()
    }

    /// Reads a body.
    ///
    /// # Errors
    ///
    /// [`Error::Body`], or what the pre-scan says.
    pub fn decode(bytes: &'a [u8]) -> Result<ToolBegin<'a>, Error> {
        let (mut tool, mut call_id, mut arguments, mut origin) = (None, None, None, None);
        let (mut parent, mut again, mut undoes, mut idempotency) = (None, None, None, Idempotency::Manual);
        let (mut reads_only, mut resources) = (false, Vec::new());
        walk(BEGIN, bytes, |name, value| {
            match name {
                "t" => tool = Some(Cow::Borrowed(value.str()?)),
                "call" => call_id = Some(Cow::Borrowed(value.str()?)),
                "args" => arguments = Some(Payload::new(value.rest())),
                "by" => origin = Some(CallOrigin::read(value)?),
                "in" => parent = Some(value.unsigned()?.into()),
                "again" => again = Some(value.unsigned()?.into()),
                "undo" => undoes = Some(value.unsigned()?.into()),
                "idem" => idempotency = read_named(BEGIN, name, value, Idempotency::from_name)?,
                "ro" => reads_only = value.bool()?,
                "res" => resources = list(value, |value| ResourceSnapshot::read(BEGIN, value))?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(ToolBegin {
            tool: required(BEGIN, "t", tool)?,
            call_id,
            arguments: required(BEGIN, "args", arguments)?,
            origin,
            parent,
            idempotency,
            reads_only,
            again,
            undoes,
            resources,
        })
    }
}

/// A tool has ended. Unless it is committed, and unless the tool reads only, this record is also the rollback to
/// its begin: no crash can fall between the two.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolEnd<'a> {
    /// The `tool_begin` that this ends.
    pub begin: SequenceNumber,
    /// The operation's name, where that is an earlier begin.
    pub again: Option<OperationId>,
    /// The tool, as the begin names it, so that a reader of ends alone knows what ended.
    pub tool: Cow<'a, str>,
    /// The provider's name for the call.
    pub call_id: Option<Cow<'a, str>>,
    /// The answer that asked for it, and which of its calls this is.
    pub origin: Option<CallOrigin>,
    /// The operation within which it ran.
    pub parent: Option<OperationId>,
    /// The operation whose effects were undone here.
    pub undoes: Option<OperationId>,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, where it failed.
    pub cause: Option<Cause>,
    /// Whether STATE goes back to the begin.
    pub rolls_back: bool,
    /// What is known of its effects outside of what is taken back.
    pub outside: ExternalEffects,
    /// How long it ran, in microseconds.
    pub elapsed_us: u64,
    /// Its result: the host's value.
    pub result: Option<Payload<'a>>,
    /// What the model is to see, as one MessagePack string.
    pub shown: Option<Payload<'a>>,
    /// What a tool that asks for more to be shown wants to be shown.
    pub overrides: Option<Payload<'a>>,
    /// The resources afterwards, where it committed; as they were found, where it was interrupted.
    pub resources: Vec<ResourceSnapshot<'a>>,
    /// What it did to its resources and was not undone, where it was rolled back.
    pub not_undone: Vec<NotUndone<'a>>,
    /// The LOG slice that takes in what is to be known of the call: [`invoked`](ToolEnd::invoked).
    pub slice: u32,
}

impl<'a> ToolEnd<'a> {
    /// The payloads that the record holds, or refers to where they are large.
    pub fn payloads_mut(&mut self) -> impl Iterator<Item = &mut Payload<'a>> {
        let own = [&mut self.result, &mut self.shown, &mut self.overrides];
        let resources = self.resources.iter_mut().map(|resource| &mut resource.snapshot);
        own.into_iter().chain(resources).filter_map(Option::as_mut)
    }

    /// The position that STATE goes back to, where it does.
    pub fn rolled_back_to(&self) -> Option<SequenceNumber> {
        self.rolls_back.then_some(self.begin)
    }

    /// The operation's name.
    pub fn operation(&self) -> OperationId {
        self.again.unwrap_or(self.begin.into())
    }

    /// The item that the record adds to its LOG slice: one map, whose fields bear full names. It is made of the record
    /// and not written a second time.
    pub fn invoked(&self) -> Vec<u8> {
        let numbers = [("parent", self.parent), ("undoes", self.undoes)];
        let fields = 6
            + numbers.iter().filter(|(_, number)| number.is_some()).count()
            + usize::from(self.origin.is_some())
            + usize::from(self.call_id.is_some())
            + usize::from(self.cause.is_some());
        let names = self.tool.len() + text_len(self.call_id.as_deref());
        let mut writer = Writer::with_capacity(FIELDS_BYTES + names);
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
        writer.str("outside").str(self.outside.name()).str("elapsed_us").unsigned(self.elapsed_us);
        writer.finish()
    }

    /// The body's bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_into(Vec::new())
    }

    /// The body's bytes, in a buffer of which nothing but its allocation is used.
    pub fn encode_into(&self, mut buffer: Vec<u8>) -> Vec<u8> {
        let numbers = [("again", self.again), ("in", self.parent), ("undo", self.undoes)];
        let payloads = [("result", self.result), ("shown", self.shown), ("over", self.overrides)];
        let stated = self.outside != ExternalEffects::Unknown;
        let fields = 5
            + usize::from(stated)
            + numbers.iter().filter(|(_, number)| number.is_some()).count()
            + payloads.iter().filter(|(_, payload)| payload.is_some()).count()
            + usize::from(self.call_id.is_some())
            + usize::from(self.origin.is_some())
            + usize::from(self.cause.is_some())
            + usize::from(self.rolls_back)
            + usize::from(!self.resources.is_empty())
            + usize::from(!self.not_undone.is_empty());
        let names = self.tool.len() + text_len(self.call_id.as_deref());
        let payloads_len: usize = payloads.iter().map(|(_, payload)| payload_len(*payload)).sum();
        let resources = resources_len(&self.resources);
        let not_undone: usize = self.not_undone.iter().map(NotUndone::len).sum();
        buffer.clear();
        buffer.reserve(FIELDS_BYTES + names + payloads_len + resources + not_undone);
        let mut writer = Writer::reusing(buffer);
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
        write_resources(&mut writer, &self.resources);
        if !self.not_undone.is_empty() {
            writer.str("left").array(self.not_undone.len());
            self.not_undone.iter().for_each(|one| one.write(&mut writer));
        }
        writer.str("s").unsigned(u64::from(self.slice));
        writer.finish()
    }

    /// Reads a body.
    ///
    /// # Errors
    ///
    /// [`Error::Body`], or what the pre-scan says.
    pub fn decode(bytes: &'a [u8]) -> Result<ToolEnd<'a>, Error> {
        let (mut begin, mut tool, mut outcome, mut slice) = (None, None, None, None);
        // Fields that may be missing are read where they belong; the others are checked once all were seen.
        let mut end = ToolEnd {
            begin: SequenceNumber::MIN,
            again: None,
            tool: Cow::Borrowed(""),
            call_id: None,
            origin: None,
            parent: None,
            undoes: None,
            outcome: Outcome::Committed,
            cause: None,
            rolls_back: false,
            outside: ExternalEffects::Unknown,
            elapsed_us: 0,
            result: None,
            shown: None,
            overrides: None,
            resources: Vec::new(),
            not_undone: Vec::new(),
            slice: 0,
        };
        walk(END, bytes, |name, value| {
            match name {
                "op" => begin = Some(value.unsigned()?.into()),
                "again" => end.again = Some(value.unsigned()?.into()),
                "in" => end.parent = Some(value.unsigned()?.into()),
                "undo" => end.undoes = Some(value.unsigned()?.into()),
                "t" => tool = Some(Cow::Borrowed(value.str()?)),
                "call" => end.call_id = Some(Cow::Borrowed(value.str()?)),
                "by" => end.origin = Some(CallOrigin::read(value)?),
                "out" => outcome = Some(read_named(END, name, value, Outcome::from_name)?),
                "why" => end.cause = Some(read_named(END, name, value, Cause::from_name)?),
                "back" => end.rolls_back = value.bool()?,
                "fx" => end.outside = read_named(END, name, value, ExternalEffects::from_name)?,
                "us" => end.elapsed_us = value.unsigned()?,
                "result" => end.result = Some(Payload::new(value.rest())),
                "shown" => end.shown = Some(Payload::new(value.rest())),
                "over" => end.overrides = Some(Payload::new(value.rest())),
                "res" => end.resources = list(value, |value| ResourceSnapshot::read(END, value))?,
                "left" => end.not_undone = list(value, NotUndone::read)?,
                "s" => slice = Some(value.unsigned32()?),
                _ => {}
            }
            Ok(())
        })?;
        end.begin = required(END, "op", begin)?;
        end.tool = required(END, "t", tool)?;
        end.outcome = required(END, "out", outcome)?;
        end.slice = required(END, "s", slice)?;
        if end.outcome == Outcome::Committed && end.rolls_back {
            return Err(bad(END, "what is committed is not taken back"));
        }
        Ok(end)
    }
}

/// Somebody decided about an interrupted operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Settle<'a> {
    /// The operation.
    pub operation: OperationId,
    /// The decision.
    pub decision: Decision,
    /// The result, where it had done its work.
    pub result: Option<Payload<'a>>,
    /// Who decided.
    pub by: String,
    /// Why.
    pub reason: String,
}

impl<'a> Settle<'a> {
    /// The body's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.map(4 + usize::from(self.result.is_some()));
        writer.str("op").unsigned(self.operation.get()).str("is").str(self.decision.name());
        writer.str("by").str(&self.by).str("why").str(&self.reason);
        if let Some(result) = &self.result {
            writer.str("result");
            result.write(&mut writer);
        }
        writer.finish()
    }

    /// Reads a body.
    ///
    /// # Errors
    ///
    /// [`Error::Body`], or what the pre-scan says.
    pub fn decode(bytes: &'a [u8]) -> Result<Settle<'a>, Error> {
        let (mut operation, mut decision, mut result) = (None, None, None);
        let (mut by, mut reason) = (String::new(), String::new());
        walk(SETTLE, bytes, |name, value| {
            match name {
                "op" => operation = Some(value.unsigned()?.into()),
                "is" => decision = Some(read_named(SETTLE, name, value, Decision::from_name)?),
                "by" => by = value.str()?.to_owned(),
                "why" => reason = value.str()?.to_owned(),
                "result" => result = Some(Payload::new(value.rest())),
                _ => {}
            }
            Ok(())
        })?;
        let operation = required(SETTLE, "op", operation)?;
        Ok(Settle { operation, decision: required(SETTLE, "is", decision)?, result, by, reason })
    }
}

/// Something that was observed while a session was written: no change of a slice, but a fact that a later reader needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed<'a> {
    /// What it is.
    pub name: String,
    /// What was observed.
    pub data: Payload<'a>,
}

impl<'a> Observed<'a> {
    /// The body's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.map(2).str("n").str(&self.name).str("d");
        self.data.write(&mut writer);
        writer.finish()
    }

    /// Reads a body.
    ///
    /// # Errors
    ///
    /// [`Error::Body`], or what the pre-scan says.
    pub fn decode(bytes: &'a [u8]) -> Result<Observed<'a>, Error> {
        let (mut observed, mut data) = (None, None);
        walk(OBSERVED, bytes, |name, value| {
            match name {
                "n" => observed = Some(value.str()?.to_owned()),
                "d" => data = Some(Payload::new(value.rest())),
                _ => {}
            }
            Ok(())
        })?;
        Ok(Observed { name: required(OBSERVED, "n", observed)?, data: required(OBSERVED, "d", data)? })
    }
}

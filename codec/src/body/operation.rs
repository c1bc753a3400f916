//! Encodes and decodes the common parts of an operation's records: named choices, resources and
//! origins.
//!
//! An *operation* is a tool call as a transaction. Its id is the sequence number of its first
//! `tool_begin`. The provider's call id is not used as an identifier, since a provider may use one
//! id for different calls.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Payload;
use super::fields::{Place, ReadField, WriteField, map_fields};
use super::json::{Object, Part, array, optional};
use crate::msgpack::{MsgpackReader, MsgpackWriter, Value};
use crate::{Error, OperationId, SequenceNumber};

/// Defines an enum whose variants have fixed names in records and JSON.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident { $($(#[$each:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $type {
            $($(#[$each])* #[serde(rename = $name)] $variant,)*
        }

        impl $type {
            /// Every variant, in the order of declaration.
            pub const ALL: &'static [$type] = &[$($type::$variant),*];

            /// Returns the variant's name in records and JSON.
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)*
                }
            }

            /// Returns the variant with that name, or `None` if there is none.
            pub fn from_name(name: &str) -> Option<$type> {
                $type::ALL.iter().copied().find(|one| one.name() == name)
            }
        }

        $crate::body::operation::name_field!($type, from_name);
    };
}

pub(super) use named;

/// Makes a field of the name of an enum's variant.
macro_rules! name_field {
    ($type:ident, $from_name:ident) => {
        impl $crate::body::fields::WriteField for $type {
            fn write(&self, writer: &mut $crate::msgpack::MsgpackWriter) {
                writer.str(self.name());
            }
        }

        impl $crate::body::fields::ReadField<'_> for $type {
            fn read(
                place: $crate::body::fields::Place<'_>,
                reader: &mut $crate::msgpack::MsgpackReader<'_>,
            ) -> Result<$type, $crate::Error> {
                let name = reader.str()?;
                let unknown = || place.bad(format!("field `{place}` has the unknown value `{name}`"));
                $type::$from_name(name).ok_or_else(unknown)
            }
        }
    };
}

pub(super) use name_field;

/// Longest name of a later version, in bytes, that an enum preserves.
const OTHER_NAME_MAX: usize = 30;

/// Contains a name that only a later version knows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OtherName {
    bytes: [u8; OTHER_NAME_MAX],
    len: u8,
}

impl OtherName {
    fn new(name: &str) -> Option<OtherName> {
        let mut bytes = [0; OTHER_NAME_MAX];
        bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        Some(OtherName { bytes, len: name.len() as u8 })
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..usize::from(self.len)).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

impl std::fmt::Debug for OtherName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Defines an enum whose variants have fixed names in records and JSON, and which preserves names
/// of a later version.
macro_rules! named_for_later {
    ($(#[$doc:meta])* $type:ident { $($(#[$each:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type {
            $($(#[$each])* $variant,)*
            /// A name that is defined by a later version of foldlog. No log of this version
            /// contains one.
            Other(OtherName),
        }

        impl $type {
            /// Every variant that this version knows, in the order of declaration.
            pub const ALL: &'static [$type] = &[$($type::$variant),*];

            /// Returns the variant's name in records and JSON.
            pub fn name(&self) -> &str {
                match self {
                    $($type::$variant => $name,)*
                    $type::Other(name) => name.as_str(),
                }
            }

            /// Returns the known variant with that name, or `None` if there is none.
            pub fn from_name(name: &str) -> Option<$type> {
                $type::ALL.iter().copied().find(|one| one.name() == name)
            }

            /// Returns the variant for a name in a record: [`Other`]($type::Other) for one that
            /// this version does not know. `None` if the name is over 30 bytes long.
            pub fn from_recorded(name: &str) -> Option<$type> {
                $type::from_name(name).or_else(|| OtherName::new(name).map($type::Other))
            }
        }

        name_field!($type, from_recorded);

        impl Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                struct Name;

                impl serde::de::Visitor<'_> for Name {
                    type Value = $type;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str(concat!("a name of ", stringify!($type)))
                    }

                    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<$type, E> {
                        let invalid = || E::invalid_value(serde::de::Unexpected::Str(name), &self);
                        $type::from_recorded(name).ok_or_else(invalid)
                    }
                }

                deserializer.deserialize_str(Name)
            }
        }
    };
}

named_for_later! {
    /// Names how an interrupted tool may run again.
    #[derive(Default)]
    Idempotency {
        /// The tool may run again: running it twice has the effect of running it once.
        Natural = "natural",
        /// The tool may run again under the same operation id, by which it finds its earlier work.
        Keyed = "keyed",
        /// The tool may run again after its effects are undone.
        Compensate = "compensate",
        /// A person or the host has to decide.
        #[default]
        Manual = "manual",
        /// The tool can query the outside for the outcome of the call. If it finds none, a person
        /// or the host has to decide, as for [`Manual`](Idempotency::Manual).
        Verify = "verify",
    }
}

impl Idempotency {
    /// Returns whether an interrupted call needs a decision before it may run again.
    pub fn needs_settling(self) -> bool {
        matches!(self, Idempotency::Manual | Idempotency::Verify | Idempotency::Other(_))
    }
}

named_for_later! {
    /// Names how an operation ended.
    #[derive(Default)]
    Outcome {
        /// The operation committed: its end rolls nothing back. A rollback of an outer operation or
        /// of the host may still undo its changes.
        #[default]
        Committed = "committed",
        /// The operation failed: its changes were rolled back.
        Failed = "failed",
        /// The process ended before the operation did. Recovery of the session rolled the
        /// operation's changes back.
        Interrupted = "interrupted",
        /// The operation waits for a person, the host or another call. See
        /// [`Suspension`](super::Suspension).
        Suspended = "suspended",
    }
}

named_for_later! {
    /// Names the condition for which a suspended call waits.
    #[derive(Default)]
    SuspensionForm {
        /// Nothing has run: the call waits for an approval.
        #[default]
        Asks = "asks",
        /// The call's changes are committed: it waits for its result.
        Awaits = "awaits",
        /// Nothing has run: the call waits for a call that it made, in its own session or in
        /// another one.
        Within = "within",
    }
}

named_for_later! {
    /// Names why an operation failed.
    Cause {
        /// The tool returned an error.
        Error = "error",
        /// The tool panicked.
        Panic = "panic",
        /// The tool returned a result that reports failure.
        Unsuccessful = "unsuccessful",
        /// The arguments are not valid for the tool.
        InvalidArguments = "invalid_arguments",
        /// The tool requests another call once more of the prompt is visible.
        Expansion = "visibility_expansion",
        /// The operation exceeded its deadline.
        Deadline = "deadline",
        /// The operation was cancelled.
        Cancelled = "cancelled",
        /// The caller dropped the operation without ending it.
        Dropped = "dropped",
        /// The host has no tool with that name.
        UnknownTool = "unknown_tool",
        /// The tool was not run, because something before it changed the work to be done.
        Skipped = "skipped",
        /// The call was refused.
        Denied = "denied",
    }
}

named! {
    /// Names the known effects of an operation outside of STATE and resources, which no rollback
    /// undoes.
    #[derive(Default)]
    ExternalEffects {
        /// The operation had no effects outside.
        None = "none",
        /// The operation may have had effects outside.
        #[default]
        Unknown = "unknown",
    }
}

named! {
    /// Names a decision about an interrupted operation.
    #[derive(Default)]
    Decision {
        /// The operation had done its work. The record of the decision contains its result.
        Committed = "committed",
        /// The operation had not done its work, and must not run again.
        #[default]
        Failed = "failed",
        /// The operation is to run again.
        RunAgain = "run-again",
    }
}

impl Decision {
    /// Returns the name for people and JSON: `approved` for a decision that names the arguments of
    /// a call that waited for approval. On disk, an approval is [`RunAgain`](Decision::RunAgain)
    /// with these arguments.
    pub fn shown_name(self, names_arguments: bool) -> &'static str {
        match self {
            Decision::RunAgain if names_arguments => "approved",
            decision => decision.name(),
        }
    }
}

/// Contains a resource's snapshot of itself at the start or end of an operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResourceSnapshot<'a> {
    /// Name of the resource.
    pub resource: Cow<'a, str>,
    /// Payload from which the resource can be restored; `None` if no other process can restore it.
    pub snapshot: Option<Payload<'a>>,
}

map_fields! { impl<'a> ResourceSnapshot<'a> {
    "r" => resource [required],
    "s" => snapshot,
}}

/// Describes a change of a resource that the rollback of an operation did not undo.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotUndone<'a> {
    /// Name of the resource.
    pub resource: Cow<'a, str>,
    /// Part of the resource that is changed, such as a path in a workspace.
    pub path: Cow<'a, str>,
    /// The change, and why it was not undone.
    pub reason: Cow<'a, str>,
}

map_fields! { impl<'a> NotUndone<'a> {
    "r" => resource [required],
    "p" => path [required],
    "w" => reason [required],
}}

impl NotUndone<'_> {
    /// Returns the approximate length of the entry in a body, in bytes.
    pub(super) fn len(&self) -> usize {
        self.resource.len() + self.path.len() + self.reason.len() + 20
    }
}

/// Lists the parts of a resource that the rollback of an operation replaced or removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplacedParts<'a> {
    /// Name of the resource.
    pub resource: Cow<'a, str>,
    /// Parts of the resource that got back an earlier content, such as paths in a workspace.
    pub changed: Vec<Cow<'a, str>>,
    /// Parts of the resource that were removed.
    pub removed: Vec<Cow<'a, str>>,
    /// Number of replaced or removed parts that are not listed.
    pub more: u64,
}

map_fields! { impl<'a> ReplacedParts<'a> {
    "r" => resource [required],
    "c" => changed,
    "x" => removed,
    "n" => more,
}}

impl ReplacedParts<'_> {
    /// Returns the approximate length of the entry in a body, in bytes.
    pub(super) fn len(&self) -> usize {
        let paths = self.changed.iter().chain(&self.removed);
        self.resource.len() + paths.map(|path| path.len() + 5).sum::<usize>() + 32
    }
}

/// Upper bound, in bytes, of the fields of a body without its payloads and names, so that encoding
/// need not grow the buffer.
pub(super) const FIELDS_BYTES: usize = 160;

pub(super) fn resources_len(resources: &[ResourceSnapshot<'_>]) -> usize {
    let len = |resource: &ResourceSnapshot<'_>| resource.resource.len() + payload_len(resource.snapshot) + 12;
    resources.iter().map(len).sum()
}

pub(super) fn payload_len(payload: Option<Payload<'_>>) -> usize {
    payload.map_or(0, |payload| payload.bytes().len())
}

pub(super) fn text_len(text: Option<&Cow<'_, str>>) -> usize {
    text.map_or(0, |text| text.len())
}

/// Identifies the place in a conversation where a model requested a tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallOrigin {
    /// Sequence number of the record with the model's answer.
    pub answer: SequenceNumber,
    /// Number of the tool call within the answer, counted from 0.
    pub ordinal: u32,
}

/// Serializes as an array of the answer's sequence number and the ordinal.
impl Serialize for CallOrigin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.answer.get(), self.ordinal).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for CallOrigin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CallOrigin, D::Error> {
        let (answer, ordinal) = <(u64, u32)>::deserialize(deserializer)?;
        Ok(CallOrigin::new(answer, ordinal))
    }
}

impl CallOrigin {
    /// Identifies the tool call with this ordinal in the answer with this sequence number.
    pub fn new(answer: impl Into<SequenceNumber>, ordinal: u32) -> CallOrigin {
        CallOrigin { answer: answer.into(), ordinal }
    }
}

impl WriteField for CallOrigin {
    fn write(&self, writer: &mut MsgpackWriter) {
        writer.array(2).unsigned(self.answer.get()).unsigned(u64::from(self.ordinal));
    }
}

impl ReadField<'_> for CallOrigin {
    fn read(_: Place<'_>, reader: &mut MsgpackReader<'_>) -> Result<CallOrigin, Error> {
        match reader.array()? {
            2 => Ok(CallOrigin { answer: reader.unsigned()?.into(), ordinal: reader.unsigned32()? }),
            _ => Err(Error::Malformed {
                offset: reader.offset(),
                reason: "the origin of a call is not a pair of answer and ordinal",
            }),
        }
    }
}

pub(super) fn resources_json(resources: Vec<ResourceSnapshot<'_>>) -> Result<Part<'_>, Error> {
    array(resources.into_iter(), |resource| {
        let mut object = Object::with_capacity(2);
        object.set("resource", resource.resource);
        object.set("snapshot", optional(resource.snapshot)?);
        Ok(object.into_part())
    })
}

pub(super) fn set_call(
    object: &mut Object<'_>,
    tool: Cow<'_, str>,
    call_id: Option<Cow<'_, str>>,
    origin: Option<CallOrigin>,
    parent: Option<OperationId>,
    undoes: Option<OperationId>,
    verifies: Option<OperationId>,
) {
    object.set("tool", tool);
    object.set("call_id", call_id);
    object.set("asked_by", asked_by(origin));
    object.set("parent", parent);
    object.set("undoes", undoes);
    object.some("verifies", verifies);
}

/// Builds the value of the answer and ordinal with which a model requested a call.
pub(crate) fn asked_by(origin: Option<CallOrigin>) -> Value {
    origin.map(|origin| vec![Value::from(origin.answer), Value::from(origin.ordinal)]).into()
}

//! Numbers the kinds of record.
//!
//! Content kinds have the high bit clear and take a sequence number. Envelope kinds have the high
//! bit set. Their frames attest, seal and introduce segments; they are not content, take no
//! sequence number and are in no digest.
//!
//! A reader shows a kind of a later version by its number. 0 is never a kind: a range of zeros must
//! never decode as a record.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::num::NonZeroU8;

use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! define_kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $body:ident, $lane:ident;)*) => {
        /// Identifies the kind of a record or envelope frame by one byte. A reader preserves the
        /// bytes of kinds that it does not know.
        ///
        /// ```
        /// use foldlog_codec::RecordKind;
        ///
        /// assert_eq!(RecordKind::Dispatch.byte(), 3);
        /// assert_eq!(RecordKind::from_byte(3), Some(RecordKind::Dispatch));
        /// assert_eq!(RecordKind::from_name("dispatch"), Some(RecordKind::Dispatch));
        /// assert!(!RecordKind::Dispatch.is_envelope() && RecordKind::Seal.is_envelope());
        ///
        /// let later = RecordKind::from_byte(77).unwrap();
        /// assert!(!later.is_known());
        /// assert_eq!(later.to_string(), "unknown-77");
        /// assert_eq!(RecordKind::from_byte(0), None);
        /// ```
        ///
        /// Equality, order, hash and the serialized form are those of the byte.
        #[derive(Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum RecordKind {
            // A kind is represented as its byte, so conversions need no table.
            $($(#[$doc])* $name = $number,)*
            /// A kind of a later version.
            Unknown(UnknownKind) = 0,
        }

        impl RecordKind {
            /// Every kind that this version knows, in ascending order of their bytes.
            pub const ALL: &'static [RecordKind] = &[$(RecordKind::$name),*];

            /// Returns the kind of a byte on disk, known or unknown; `None` for 0, which is never a
            /// kind.
            #[inline]
            pub fn from_byte(byte: u8) -> Option<RecordKind> {
                match byte {
                    $($number => Some(RecordKind::$name),)*
                    _ => NonZeroU8::new(byte).map(|byte| RecordKind::Unknown(UnknownKind(byte))),
                }
            }

            /// Returns the kind's byte on disk.
            #[inline]
            pub fn byte(self) -> u8 {
                match self {
                    $(RecordKind::$name => $number,)*
                    RecordKind::Unknown(UnknownKind(byte)) => byte.get(),
                }
            }

            /// Returns the kind's name in listings and JSON, or `unknown` for a kind of a later
            /// version.
            pub fn name(self) -> &'static str {
                match self {
                    $(RecordKind::$name => $text,)*
                    RecordKind::Unknown(_) => "unknown",
                }
            }

            /// Returns the kind with that name, or `None` if this version knows no such kind.
            pub fn from_name(name: &str) -> Option<RecordKind> {
                match name {
                    $($text => Some(RecordKind::$name),)*
                    _ => None,
                }
            }
        }
    };
}

/// Contains the byte of a kind that this version does not know. Only [`RecordKind::from_byte`]
/// makes one, so it never contains the byte of a known kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UnknownKind(NonZeroU8);

/// Passes every kind that this version knows to the macro `$use`: its docs, its byte, its name, the
/// type of its body, and the fields that state its lane.
macro_rules! record_kinds {
    ($use:ident) => {
        $use! {
            /// Starts a session: its id, seed, tags and parent. See
            /// [`SessionOpening`](crate::body::SessionOpening).
            Opened = 1, "opened", SessionOpening, None;
            /// Binds names of events and slices to the small integers that records use. See
            /// [`Declare`](crate::body::Declare).
            Declare = 2, "declare", Declare, None;
            /// Records an event, or an action of the engine, with its effects. See
            /// [`Dispatch`](crate::body::Dispatch).
            Dispatch = 3, "dispatch", Dispatch, Separate;
            /// Records a fact that the host or the engine observed. See
            /// [`Observed`](crate::body::Observed).
            Observed = 4, "observed", Observed, Separate;
            /// Records that a tool is about to run. See [`ToolBegin`](crate::body::ToolBegin).
            ToolBegin = 5, "tool_begin", ToolBegin, NameOnly;
            /// Records that a tool has ended, and how. See [`ToolEnd`](crate::body::ToolEnd).
            ToolEnd = 6, "tool_end", ToolEnd, None;
            /// Records a decision about an interrupted operation. See
            /// [`Settle`](crate::body::Settle).
            Settle = 7, "settle", Settle, Separate;
            /// Records a message that the host adds to a conversation. See
            /// [`Input`](crate::body::Input).
            Input = 8, "input", Input, InScope;
            /// Records that a request to a provider is about to be sent, or that it failed. See
            /// [`Request`](crate::body::Request).
            Request = 9, "request", Request, InScope;
            /// Records a provider's answer. See [`AnswerBody`](crate::body::AnswerBody).
            Answer = 10, "answer", AnswerBody, InScope;
            /// Records that an answer and its tool calls are finished. See
            /// [`Turn`](crate::body::Turn).
            Turn = 11, "turn", Turn, InScope;
            /// Records the messages that a provider is sent in place of a part of a conversation.
            /// See [`Shortened`](crate::body::Shortened).
            Shortened = 12, "shortened", Shortened, InScope;
            /// Records that a changed prompt is accepted. See
            /// [`PromptAccepted`](crate::body::PromptAccepted).
            PromptAccepted = 13, "prompt_accepted", PromptAccepted, InScope;
            /// Records the captured state of an adapter. See
            /// [`AdapterState`](crate::body::AdapterState).
            AdapterState = 14, "adapter_state", AdapterState, InScope;
            /// Marks its own position for a later rollback. See
            /// [`SnapshotBody`](crate::body::SnapshotBody).
            Snapshot = 15, "snapshot", SnapshotBody, Separate;
            /// Rolls STATE back to a position. See [`Rollback`](crate::body::Rollback).
            Rollback = 16, "rollback", Rollback, Separate;
            /// Imports the slices of an export into a new session. See
            /// [`Import`](crate::body::Import).
            Import = 17, "import", Import, None;
            /// Replaces a record whose body a compaction has dropped. See
            /// [`Dropped`](crate::body::Dropped).
            Dropped = 18, "dropped", Dropped, None;
            /// Records that a replica has the session's records. See
            /// [`Replicated`](crate::body::Replicated).
            Replicated = 19, "replicated", Replicated, None;
            /// Envelope: attests that every record below the header's watermark is durable. Its
            /// body is empty.
            Synced = 128, "synced", Empty, None;
            /// Envelope: ends a segment whose successor exists. See [`Seal`](crate::body::Seal).
            Seal = 129, "seal", Seal, None;
            /// Envelope: states that the session was opened for writing. See
            /// [`Resumed`](crate::body::Resumed).
            Resumed = 130, "resumed", Resumed, None;
            /// Envelope: repeats all declarations so far at the head of a segment. See
            /// [`Declare`](crate::body::Declare).
            Declared = 131, "declared", Declare, None;
            /// Envelope: attests the same as [`Synced`](RecordKind::Synced), and states that the
            /// writer closed the session after the last record. Its body is empty.
            Closed = 132, "closed", Empty, None;
            /// Envelope: starts a segment that a compaction has written. See
            /// [`Compacted`](crate::body::Compacted).
            Compacted = 133, "compacted", Compacted, None;
            /// Envelope: names the items of the STATE and CACHE slices at a position. See
            /// [`Base`](crate::body::Base).
            Base = 134, "base", Base, None;
        }
    };
}

pub(crate) use record_kinds;

record_kinds!(define_kinds);

impl RecordKind {
    /// Returns whether frames of this kind are envelope frames, which are not content and take no
    /// sequence number.
    pub fn is_envelope(self) -> bool {
        self.byte() & 0x80 != 0
    }

    /// Returns whether this version knows the kind.
    pub fn is_known(self) -> bool {
        !matches!(self, RecordKind::Unknown(_))
    }
}

impl Ord for RecordKind {
    fn cmp(&self, other: &RecordKind) -> Ordering {
        self.byte().cmp(&other.byte())
    }
}

impl PartialOrd for RecordKind {
    fn partial_cmp(&self, other: &RecordKind) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for RecordKind {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.byte().hash(state);
    }
}

impl Serialize for RecordKind {
    /// Serializes the number of the kind, which later versions do not change.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.byte())
    }
}

impl<'de> Deserialize<'de> for RecordKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RecordKind, D::Error> {
        let byte = u8::deserialize(deserializer)?;
        let invalid =
            || D::Error::invalid_value(Unexpected::Unsigned(byte.into()), &"the number of a record kind");
        RecordKind::from_byte(byte).ok_or_else(invalid)
    }
}

impl fmt::Display for RecordKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordKind::Unknown(_) => write!(f, "unknown-{}", self.byte()),
            known => f.write_str(known.name()),
        }
    }
}

impl fmt::Debug for RecordKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for UnknownKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

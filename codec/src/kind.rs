//! Numbers the kinds of record.
//!
//! Content kinds have the high bit clear and take a sequence number. Envelope kinds have the high
//! bit set. Their frames attest, seal and introduce segments; they are not content, take no
//! sequence number and are in no digest.
//!
//! The first version numbers all planned kinds, so that an older reader can name a record that it
//! does not understand. 0 is never a kind: a range of zeros must never decode as a record.

use std::fmt;

use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Identifies the kind of a record or envelope frame by one byte. A reader preserves the bytes of
/// kinds that it does not know.
///
/// ```
/// use foldlog_codec::RecordKind;
///
/// assert_eq!(RecordKind::DISPATCH.byte(), 3);
/// assert_eq!(RecordKind::from_byte(3), Some(RecordKind::DISPATCH));
/// assert_eq!(RecordKind::from_name("dispatch"), Some(RecordKind::DISPATCH));
/// assert!(!RecordKind::DISPATCH.is_envelope() && RecordKind::SEAL.is_envelope());
///
/// let later = RecordKind::from_byte(77).unwrap();
/// assert!(!later.is_known());
/// assert_eq!(later.to_string(), "unknown-77");
/// assert_eq!(RecordKind::from_byte(0), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKind(u8);

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        impl RecordKind {
            $($(#[$doc])* pub const $name: RecordKind = RecordKind($number);)*

            /// Every kind that this version knows, in ascending order of their bytes.
            pub const ALL: &'static [RecordKind] = &[$(RecordKind::$name),*];

            /// Returns the kind's name in listings and JSON, or `unknown` for a kind of a later
            /// version.
            pub fn name(self) -> &'static str {
                match self.0 {
                    $($number => $text,)*
                    _ => "unknown",
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

impl Serialize for RecordKind {
    /// Serializes the number of the kind, which later versions do not change.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.0)
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

kinds! {
    /// Starts a session: its id, seed, tags and parent. See
    /// [`SessionOpening`](crate::body::SessionOpening).
    OPENED = 1, "opened";
    /// Binds names of events and slices to the small integers that records use. See
    /// [`Declare`](crate::body::Declare).
    DECLARE = 2, "declare";
    /// Records an event, or an action of the engine, with its effects. See
    /// [`Dispatch`](crate::body::Dispatch).
    DISPATCH = 3, "dispatch";
    /// Records a fact that the host or the engine observed. See
    /// [`Observed`](crate::body::Observed).
    OBSERVED = 4, "observed";
    /// Records that a tool is about to run. See [`ToolBegin`](crate::body::ToolBegin).
    TOOL_BEGIN = 5, "tool_begin";
    /// Records that a tool has ended, and how. See [`ToolEnd`](crate::body::ToolEnd).
    TOOL_END = 6, "tool_end";
    /// Records a decision about an interrupted operation. See [`Settle`](crate::body::Settle).
    SETTLE = 7, "settle";
    /// Records a message that the host adds to a conversation. See [`Input`](crate::body::Input).
    INPUT = 8, "input";
    /// Records that a request to a provider is about to be sent, or that it failed. See
    /// [`Request`](crate::body::Request).
    REQUEST = 9, "request";
    /// Records a provider's answer. See [`AnswerBody`](crate::body::AnswerBody).
    ANSWER = 10, "answer";
    /// Records that an answer and its tool calls are finished. See [`Turn`](crate::body::Turn).
    TURN = 11, "turn";
    /// Records the messages that a provider is sent in place of a part of a conversation. See
    /// [`Shortened`](crate::body::Shortened).
    SHORTENED = 12, "shortened";
    /// Records that a changed prompt is accepted. See
    /// [`PromptAccepted`](crate::body::PromptAccepted).
    PROMPT_ACCEPTED = 13, "prompt_accepted";
    /// Records the captured state of an adapter. See [`AdapterState`](crate::body::AdapterState).
    ADAPTER_STATE = 14, "adapter_state";
    /// Marks its own position for a later rollback. See
    /// [`SnapshotBody`](crate::body::SnapshotBody).
    SNAPSHOT = 15, "snapshot";
    /// Rolls STATE back to a position. See [`Rollback`](crate::body::Rollback).
    ROLLBACK = 16, "rollback";
    /// Imports the slices of an export into a new session. See [`Import`](crate::body::Import).
    IMPORT = 17, "import";
    /// Replaces a record whose body a compaction has dropped. See
    /// [`Dropped`](crate::body::Dropped).
    DROPPED = 18, "dropped";
    /// Records that a replica has the session's records. See
    /// [`Replicated`](crate::body::Replicated).
    REPLICATED = 19, "replicated";
    /// Envelope: attests that every record below the header's watermark is durable. Its body is
    /// empty.
    SYNCED = 128, "synced";
    /// Envelope: ends a segment whose successor exists. See [`Seal`](crate::body::Seal).
    SEAL = 129, "seal";
    /// Envelope: states that the session was opened for writing. See
    /// [`Resumed`](crate::body::Resumed).
    RESUMED = 130, "resumed";
    /// Envelope: repeats all declarations so far at the head of a segment. See
    /// [`Declare`](crate::body::Declare).
    DECLARED = 131, "declared";
    /// Envelope: attests the same as [`SYNCED`](RecordKind::SYNCED), and states that the writer
    /// closed the session after the last record. Its body is empty.
    CLOSED = 132, "closed";
    /// Envelope: starts a segment that a compaction has written. See
    /// [`Compacted`](crate::body::Compacted).
    COMPACTED = 133, "compacted";
    /// Envelope: names the items of the STATE and CACHE slices at a position. See
    /// [`Base`](crate::body::Base).
    BASE = 134, "base";
}

impl RecordKind {
    /// Returns the kind of a byte on disk, known or unknown; `None` for 0, which is never a kind.
    pub fn from_byte(byte: u8) -> Option<RecordKind> {
        (byte != 0).then_some(RecordKind(byte))
    }

    /// Returns the kind's byte on disk.
    pub fn byte(self) -> u8 {
        self.0
    }

    /// Returns whether frames of this kind are envelope frames, which are not content and take no
    /// sequence number.
    pub fn is_envelope(self) -> bool {
        self.0 & 0x80 != 0
    }

    /// Returns whether this version knows the kind.
    pub fn is_known(self) -> bool {
        RecordKind::ALL.contains(&self)
    }
}

impl fmt::Display for RecordKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_known() { f.write_str(self.name()) } else { write!(f, "unknown-{}", self.0) }
    }
}

impl fmt::Debug for RecordKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

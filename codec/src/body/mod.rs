//! Encodes and decodes the body of each kind of record.
//!
//! A *body* is one MessagePack map with short field names, which a reader without this crate can
//! still display. A field `v`, which comes first if present, is the version of the body; without it
//! the version is 1. A reader skips unknown fields, so a later version of foldlog may add fields
//! without a new version of the body.
//!
//! A *payload* is a value of the host within a body. A payload that is too large for the log is
//! stored in the session's object directory, and the body contains a reference to it: a MessagePack
//! extension of type 1, whose 40 bytes are the BLAKE3 of the object's bytes (32) and their number
//! as a little-endian `u64`.
//!
//! | kind | fields |
//! |---|---|
//! | opened | `session` bytes of the id, `seed`, `tags` map, `parent` map (`session`, `how` fork or child; for a fork `position` and `chain`, for a child `operation` if an operation started it) |
//! | declare, declared | `events` array of maps (`id`, `name`, `ver` if not 1, `to` array of alternating slice ids and built-in effects (0 append, 1 replace, 2 explicit), `implicit`), `slices` array of maps (`id`, `name`, `policy` if not state, `item` if not the slice's name) |
//! | dispatch | `e` event id and `d` payload, or `o` action of the engine (seed, clear, reset, tag; for a tag `key` and `value`); `x` effects |
//! | snapshot | `tag`, `policies` array, if not just state, `res` as in tool_begin: the captures that were taken with it |
//! | tool_begin | `t` tool, `call` provider's id, `args` JSON text, `by` answer and ordinal, `in` parent, `again`, `undo` and `verify` operations, `idem` if not manual, `ro`, `oo`, `res` array of maps (`r` resource, `s` snapshot), `shut` array of cause and text if the call is closed without running |
//! | tool_end | `op` sequence number of the start record, `again` operation id if it is an earlier start record, `t`, `call`, `by`, `in`, `undo` and `verify` the values of the start record, `out` outcome, `why` cause, `exit` exit code of the tool's command if known, `back` (true if STATE is rolled back), `fx` effects outside if not unknown, `us` duration, `result`, `shown` text, `over` overrides, `wait` map if suspended (`is` form, `args` digest of the arguments, `until` time of expiry, `on` array of the operation that it waits for and the bytes of its session's id if that is another one), `res`, `left` array of maps of changes that were not undone (`r` resource, `p` path, `w` reason), `s` id of the LOG slice that the call is added to |
//! | observed | `n` name, `d` payload |
//! | settle | `op` operation id, `is` decision, `by`, `why`, `result`, `shown` text, `args` digest of the arguments that an approval names, `until` time of its expiry |
//! | input | `ev` evaluation; `r` role if not user, `c` text, `blocks` map (`f` format, `j` JSON), `id` host's id, `n` name, `p` prompt (`ns`, `key`, `d` digest), `call` provider's id of the call, `by` answer and ordinal, `pp` JSON of the adapter |
//! | request | `ev`; `n` attempt if not 1, `p` digest of the prompt, `m` model, `par` parameters, `sent` digest of the body; `fail` map if an earlier request failed (`of` that request, `why`, `m` message, `st` status, `c` text that arrived, `rid`, `use`, `rate`) |
//! | answer | `ev`; `to` request, `c` text, `calls` array of maps (`id`, `n` tool, `a` arguments, `cut` if incomplete), `blocks`, `stop` reason, `more` if another request to the provider follows, `m` model, `rid` request id, `use` map of tokens (`in`, `out`, `cr` and `cw` read from and written to a cache, `re` reasoning), `rate` array of alternating names and values, `pp` JSON of the adapter |
//! | turn | `ev`; `n` number, `a` answer, `i` inputs, `e` ends, `done` |
//! | shortened | `ev`; `from`, `to`, `msgs` array of maps (`r` role, `c` text), `why` |
//! | prompt_accepted | `ev`; `was` and `now` prompts, `by`, `why` |
//! | adapter_state | `ev`; `t` adapter, `res` if resumable, `st` state, `sup` superseded record, `ent` provider's entry, `at` occasion |
//! | rollback | `to` target, `logs` (false if LOG is rolled back too) |
//! | replicated | `at` location of the replica, `by` writer that claimed the session there, `epoch` of its claim |
//! | import | `from` session, `at` time of the export, `tags`, `slices` array of maps (`s` slice id, `items`, `vers` their versions if not all 1) |
//! | resumed | `epoch`, `boot` bytes of the boot id, `clock`, `recovered` if a recovery rewrote records: the sequence number after the last of them |
//! | seal | `next` ordinal, `records`, `hash` |
//! | synced | no body: the watermark of the frame's header is the attestation |
//! | dropped | `k` kind of the record, `len` of its body in bytes, `hash` BLAKE3 of its body |
//! | compacted | `upto` position through which bodies are missing, `end` offset after the segment's last frame; `was` and `crc` the end and the last checksum of the replaced segment. Each number takes nine bytes |
//! | base | `at` position, `more` if the next base frame continues it, `slices` array of maps (`s` slice id, `items` packed runs, each the sequence number `u64` and the ordinal `u32` of its first item, its version `u32`, and the number `u32` of items, one for each record from there on) |
//!
//! # Lanes
//!
//! A record that a host writes through an operation's handle, or through the handle of a named
//! lane, also has the fields of a [`Lane`]. Records of the main lane have neither field.
//!
//! | field | meaning | in |
//! |---|---|---|
//! | `in` | start record of the tool run through whose handle the record was written | dispatch, snapshot, rollback, observed, settle, and all kinds with `ev` |
//! | `lane` | name of the lane | the same, and tool_begin |
//!
//! # Effects of a dispatch
//!
//! Effects (`x`) are an array with at most one entry for each slice. Without the field, each of the
//! event's declared bindings had its built-in effect, so the built-in reducers add no bytes to a
//! record. An entry is one of
//!
//! | entry | meaning |
//! |---|---|
//! | integer `2 * slice` | the event was appended |
//! | integer `2 * slice + 1` | the event replaced all items |
//! | map | `s` slice id; `r` removed items: `true` for all, or `[sequence, ordinal, ...]`; `a` added items, or the event if missing; `b` `[sequence, ordinal]` of the item before which the added ones are inserted, or at the end if missing; `ver` version of the added items, or 1 if missing |

mod base;
mod compacted_segment;
mod compaction;
mod conversation;
mod declare;
mod dispatch;
mod dropped_body;
pub(crate) mod fields;
mod import;
pub(crate) mod json;
mod lane;
mod observation;
pub(crate) mod operation;
mod replica_claim;
mod resumption;
mod rollback;
mod seal;
mod session_opening;
mod settle;
mod snapshot;
mod suspension;
mod tool_begin;
mod tool_end;

pub use crate::msgpack::{OBJECT_BYTES_MAX, payload_fits};
pub use base::{Base, BaseSlice, ItemRun};
pub use compacted_segment::Compacted;
pub use compaction::{DROPPED_BODIES, DroppedBodies, KnownPositions};
pub use conversation::{
    AdapterState, AnswerBody, AnsweredCall, Blocks, ConversationScope, Input, Original, PromptAccepted,
    PromptIdentity, Request, RequestFailure, Role, Shortened, ShortenedMessage, TokenUsage, Turn,
};
pub use declare::{Binding, BuiltIn, Declare, EventDeclaration, SliceDeclaration};
pub use dispatch::{Action, AddedItems, Dispatch, Effect, ItemId, RemovedItems};
pub use dropped_body::Dropped;
pub use import::{Import, ImportedSlice};
pub use lane::Lane;
pub use observation::Observed;
pub use operation::{
    CallOrigin, Cause, Decision, ExternalEffects, Idempotency, NotUndone, OtherName, Outcome, ReplacedParts,
    ResourceSnapshot, SuspensionForm,
};
pub use replica_claim::Replicated;
pub use resumption::Resumed;
pub use rollback::Rollback;
pub use seal::Seal;
pub use session_opening::{Parent, SessionOpening};
pub use settle::Settle;
pub use snapshot::SnapshotBody;
pub use suspension::{InnerCall, Suspension};
pub use tool_begin::{ClosedCall, ToolBegin};
pub use tool_end::ToolEnd;

use std::collections::BTreeSet;
use std::iter;

use serde::{Deserialize, Serialize};

use crate::kind::record_kinds;
use crate::msgpack::{JsonStream, MsgpackReader, MsgpackToken, MsgpackWriter, ValueLimits};
use crate::{Error, RecordKind};
use json::{NameBudget, Object, Part, set_lane};
use lane::LaneFields;

operation::named! {
    /// Names the effect of a rollback on a slice.
    #[derive(Default)]
    Policy {
        /// STATE: a rollback restores the slice to the target position.
        #[default]
        State = "state",
        /// LOG: the slice only grows. A rollback leaves it unchanged, and nothing erases it.
        Log = "log",
        /// CACHE: a rollback empties the slice, and later records fill it again.
        Cache = "cache",
    }
}

const OBJECT_EXT: i8 = 1;

/// Length in bytes of a reference: the BLAKE3 of the object and its length.
const REFERENCE_LEN: usize = 40;

/// Greatest number of slices of a session, and so of effects in a record.
pub const SLICES_MAX: usize = 4096;

/// Greatest number of operations that may be open at once in a session, nested or in parallel.
pub const OPEN_OPERATIONS_MAX: usize = 1024;

/// Contains a value of the host in a record: the value itself, or a reference to an object in the
/// session's object directory. In both cases the bytes are one MessagePack value.
///
/// ```
/// use foldlog_codec::body::{ObjectId, Payload};
/// use foldlog_codec::msgpack;
///
/// let value = msgpack::to_vec(&["a", "b"])?;
/// assert_eq!(Payload::new(&value).object(), None);
///
/// let id = ObjectId::from_content(&value);
/// let reference = id.reference();
/// assert_eq!(Payload::new(&reference).object(), Some(id));
/// # Ok::<(), foldlog_codec::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Payload<'a> {
    bytes: &'a [u8],
}

/// Identifies an object in the object directory by its content: the BLAKE3 and the number of its
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    /// BLAKE3 of the object's bytes.
    pub hash: [u8; 32],
    /// Number of the object's bytes.
    pub len: u64,
}

impl ObjectId {
    /// Computes the id of an object from its bytes.
    pub fn from_content(bytes: &[u8]) -> ObjectId {
        ObjectId { hash: *blake3::hash(bytes).as_bytes(), len: bytes.len() as u64 }
    }

    /// Returns the object's file name in the object directory: the 64 hexadecimal digits of its
    /// hash.
    pub fn file_name(&self) -> String {
        blake3::Hash::from_bytes(self.hash).to_hex().to_string()
    }

    /// Returns the id of the object with that file name and `len` bytes, or `None` if the name is
    /// not 64 hexadecimal digits.
    pub fn from_file_name(name: &str, len: u64) -> Option<ObjectId> {
        blake3::Hash::from_hex(name).ok().map(|hash| ObjectId { hash: *hash.as_bytes(), len })
    }

    /// Encodes the reference that a record contains in place of the value.
    pub fn reference(&self) -> Vec<u8> {
        let mut reference = [0; REFERENCE_LEN];
        let bytes = self.hash.iter().copied().chain(self.len.to_le_bytes());
        reference.iter_mut().zip(bytes).for_each(|(slot, byte)| *slot = byte);
        let mut writer = MsgpackWriter::new();
        writer.ext(OBJECT_EXT, &reference);
        writer.finish()
    }
}

impl<'a> Payload<'a> {
    /// Wraps bytes that are one MessagePack value: a value of the host, or an
    /// [`ObjectId::reference`]. The bytes are not checked.
    pub fn new(bytes: &'a [u8]) -> Payload<'a> {
        Payload { bytes }
    }

    /// Returns the bytes in the record.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the id of the object that the record refers to, or `None` if the record contains the
    /// value itself.
    #[inline]
    pub fn object(&self) -> Option<ObjectId> {
        // This is called for every payload. Almost none starts as an extension with a length, as a
        // reference does.
        if matches!(self.bytes, [0xc7..=0xc9, ..]) { self.reference() } else { None }
    }

    fn reference(&self) -> Option<ObjectId> {
        let mut reader = MsgpackReader::new(self.bytes);
        let Ok(MsgpackToken::Ext(OBJECT_EXT, reference)) = reader.token() else { return None };
        let (hash, len) = reference.split_first_chunk::<32>()?;
        let len = len.try_into().ok()?;
        Some(ObjectId { hash: *hash, len: u64::from_le_bytes(len) })
    }

    /// Reads the next element of an array.
    fn read_element(reader: &mut MsgpackReader<'a>) -> Result<Payload<'a>, Error> {
        Ok(Payload { bytes: reader.value()? })
    }
}

/// Counts the items that a body lists for slices, and the ids of items that it removes, without
/// decoding them. Each takes memory when the body is decoded, and a body may list one for each of
/// its bytes. Returns 0 for a body that lists none, and for one that does not decode.
pub fn listed_items(kind: RecordKind, body: &[u8]) -> u64 {
    let listed = match kind {
        RecordKind::Dispatch => Dispatch::listed_items(body),
        RecordKind::Import => Import::listed_items(body),
        _ => Ok(0),
    };
    listed.unwrap_or_default()
}

/// States the payloads and the JSON form of the body of a kind.
trait Body<'a>: Sized {
    /// Returns the payloads of the record.
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        iter::empty()
    }

    /// Sets the fields of the JSON form, except those of a [separate](LaneFields::Separate) lane.
    fn set_json(self, object: &mut Object<'a>, names: &mut NameBudget<'_>) -> Result<(), Error>;
}

/// The body of `synced` and `closed` frames, which is not read.
struct Empty;

impl Empty {
    fn decode(_: &[u8]) -> Result<Empty, Error> {
        Ok(Empty)
    }
}

impl<'a> Body<'a> for Empty {
    fn set_json(self, _: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        Ok(())
    }
}

macro_rules! match_kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $body:ident, $lane:ident;)*) => {
        /// Checks that a body decodes as a body of its kind. If this version does not know the
        /// kind, the body only has to be one MessagePack value. The bodies of `synced` and `closed`
        /// frames are not checked.
        ///
        /// # Errors
        ///
        /// [`Error::Body`] if the body does not decode as one of its kind. If this version does not
        /// know the kind:
        ///
        /// - [`Error::Truncated`] if the value ends early.
        /// - [`Error::Malformed`] if the body is not exactly one MessagePack value.
        /// - [`Error::Limit`] if it is over the [default limits](crate::msgpack::ValueLimits).
        pub fn check(kind: RecordKind, body: &[u8]) -> Result<(), Error> {
            match kind {
                $(RecordKind::$name => $body::decode(body).map(drop),)*
                RecordKind::Unknown(_) => crate::msgpack::check(body),
            }
        }

        fn lane_fields(kind: RecordKind) -> LaneFields {
            match kind {
                $(RecordKind::$name => LaneFields::$lane,)*
                RecordKind::Unknown(_) => LaneFields::None,
            }
        }

        /// Returns the ids of the objects that a body refers to; none if it does not decode.
        pub(crate) fn objects(kind: RecordKind, body: &[u8]) -> BTreeSet<ObjectId> {
            match kind {
                $(RecordKind::$name => $body::decode(body).map(objects_of).unwrap_or_default(),)*
                RecordKind::Unknown(_) => BTreeSet::new(),
            }
        }

        /// Sets the fields of the JSON form of a body.
        pub(crate) fn set_json<'a>(
            kind: RecordKind,
            body: &'a [u8],
            object: &mut Object<'a>,
            names: &mut NameBudget<'_>,
        ) -> Result<(), Error> {
            match kind {
                $(RecordKind::$name => $body::decode(body)?.set_json(object, names)?,)*
                RecordKind::Unknown(_) => {
                    let stream = JsonStream::new(body, ValueLimits::of_payload());
                    object.set("body", stream.map_or(Part::Hex(body), Part::Payload));
                }
            }
            if matches!(lane_fields(kind), LaneFields::NameOnly | LaneFields::Separate) {
                set_lane(object, Lane::decode(kind, body)?);
            }
            Ok(())
        }
    };
}

record_kinds!(match_kinds);

fn objects_of<'a>(mut body: impl Body<'a>) -> BTreeSet<ObjectId> {
    body.payloads().filter_map(|payload| payload.object()).collect()
}

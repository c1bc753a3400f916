//! What stands in the body of each kind.
//!
//! A body is one MessagePack map with short field names, which a reader without this crate can still show.
//! A field `v`, the first where it stands, names the body's version; where it is missing the version is 1. Fields that a reader does not
//! know are passed over, so that a later version may add some without a new version number.
//!
//! | kind | fields |
//! |---|---|
//! | opened | `session` bytes of the id, `seed`, `tags` map, `parent` map (`session`, `how` fork or child; of a fork `position` and `chain`, of a child `operation` where one began it) |
//! | declare, declared | `events` array of maps (`id`, `name`, `ver`, `to` array of bindings, `implicit`), `slices` array of maps (`id`, `name`, `policy`, `item`) |
//! | dispatch | `e` event id, `d` data, `o` the engine's own operation, `x` effects |
//! | snapshot | `tag`, `policies` array |
//! | tool_begin | `t` tool, `call` provider's id, `args` JSON text, `by` answer and ordinal, `in` parent, `again` and `undo` operations, `idem` where not manual, `ro`, `res` array of maps (`r` resource, `s` snapshot) |
//! | tool_end | `op` the begin, `again` the operation where that is another, `t`, `call`, `by`, `in` and `undo` as in the begin, `out`, `why`, `back` (true where STATE goes back), `fx` where not unknown, `us`, `result`, `shown` text, `over`, `res`, `s` the LOG slice that takes the call in |
//! | observed | `n` name, `d` data |
//! | settle | `op`, `is` decision, `by`, `why`, `result` |
//! | rollback | `to`, `logs` (false where LOG went back too) |
//! | import | `from` session, `at` time of the export, `tags`, `slices` array of maps (`s` slice id, `items`, `vers`) |
//! | resumed | `epoch`, `boot` bytes of the boot id, `clock`, `recovered` where a recovery wrote records anew: the number behind the last of them |
//! | seal | `next` ordinal, `records`, `hash` |
//! | synced | empty: the header's watermark says it all |
//!
//! A payload that is too large for the log is an extension of type 1: 32 bytes BLAKE3, then its length as a
//! little-endian `u64`.

mod declare;
mod dispatch;
mod envelope;
pub(crate) mod fields;
pub(crate) mod opened;
mod operation;
mod position;

pub use declare::{Binding, BuiltIn, Declare, EventDeclaration, SliceDeclaration};
pub use dispatch::{Action, Added, Dispatch, Effect, ItemId, Removed};
pub use envelope::{Resumed, Seal};
pub use opened::{Opened, Parent};
pub use operation::{
    CallOrigin, Cause, Decision, ExternalEffects, Idempotency, NotUndone, Observed, Outcome,
    ResourceSnapshot, Settle, ToolBegin, ToolEnd,
};
pub use position::{Import, ImportedSlice, Rollback, Snapshot};

use crate::msgpack::{Reader, Token, Writer};
use crate::sabotage::{self, Breakage};
use crate::{Error, Kind};

/// What becomes of a slice when STATE goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// Goes back on rollback.
    State,
    /// Never goes back, is never erased, only grows.
    Log,
    /// Emptied on rollback and refilled from what follows.
    Cache,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Policy; 3] = [Policy::State, Policy::Log, Policy::Cache];

    /// The name in records and JSON: `state`, `log` or `cache`.
    pub fn name(self) -> &'static str {
        match self {
            Policy::State => "state",
            Policy::Log => "log",
            Policy::Cache => "cache",
        }
    }

    /// The policy of that name.
    pub fn from_name(name: &str) -> Option<Policy> {
        Policy::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// The extension type of a reference to the object folder.
const OBJECT_EXT: i8 = 1;

const REFERENCE_LEN: usize = 40;

/// How many slices a session may have, and so how many effects a record.
pub const SLICES_MAX: usize = 4096;

/// The largest payload, in bytes, wherever it stands: an object over this is neither written nor read.
pub const OBJECT_BYTES_MAX: u64 = 1 << 30;

/// Whether a payload of so many bytes is within [`OBJECT_BYTES_MAX`]: what is asked before one is written.
#[inline]
pub fn payload_fits(bytes: usize) -> bool {
    bytes as u64 <= OBJECT_BYTES_MAX || sabotage::is(Breakage::PayloadOverLimit)
}

/// How many operations may be open at once, within one another or beside one another.
pub const OPEN_OPERATIONS_MAX: usize = 1024;

/// A host's value in a record: the value itself, or a reference to the session's object folder. Either way the
/// bytes are one MessagePack value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload<'a> {
    bytes: &'a [u8],
}

/// The name of an object: the BLAKE3 of its bytes, and how many they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    /// BLAKE3 of the object's bytes.
    pub hash: [u8; 32],
    /// Their number.
    pub len: u64,
}

impl ObjectId {
    /// The name of these bytes.
    pub fn of(bytes: &[u8]) -> ObjectId {
        ObjectId { hash: *blake3::hash(bytes).as_bytes(), len: bytes.len() as u64 }
    }

    /// The file name in the object folder: 64 hexadecimal digits.
    pub fn file_name(&self) -> String {
        blake3::Hash::from_bytes(self.hash).to_hex().to_string()
    }

    /// The object of that file name, where it is one and has so many bytes.
    pub fn from_file_name(name: &str, len: u64) -> Option<ObjectId> {
        blake3::Hash::from_hex(name).ok().map(|hash| ObjectId { hash: *hash.as_bytes(), len })
    }

    /// The reference that stands in a record in place of the value.
    pub fn reference(&self) -> Vec<u8> {
        let mut reference = [0; REFERENCE_LEN];
        let bytes = self.hash.iter().copied().chain(self.len.to_le_bytes());
        reference.iter_mut().zip(bytes).for_each(|(slot, byte)| *slot = byte);
        let mut writer = Writer::new();
        writer.ext(OBJECT_EXT, &reference);
        writer.finish()
    }
}

impl<'a> Payload<'a> {
    /// A payload of bytes that are one MessagePack value: a host's, or [`ObjectId::reference`].
    pub fn new(bytes: &'a [u8]) -> Payload<'a> {
        Payload { bytes }
    }

    /// The bytes in the record.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The object, where the record holds but a reference.
    #[inline]
    pub fn object(&self) -> Option<ObjectId> {
        // Asked of every payload, and nearly none begins as an extension with a length, which a reference is.
        if matches!(self.bytes, [0xc7..=0xc9, ..]) { self.reference() } else { None }
    }

    fn reference(&self) -> Option<ObjectId> {
        let mut reader = Reader::new(self.bytes);
        let Ok(Token::Ext(OBJECT_EXT, reference)) = reader.token() else { return None };
        let (hash, len) = reference.split_first_chunk::<32>()?;
        let len = len.try_into().ok()?;
        Some(ObjectId { hash: *hash, len: u64::from_le_bytes(len) })
    }

    fn read(reader: &mut Reader<'a>) -> Result<Payload<'a>, Error> {
        Ok(Payload { bytes: reader.value()? })
    }

    fn write(&self, writer: &mut Writer) {
        writer.raw(self.bytes);
    }
}

/// Checks that a record's body reads as its kind says. Of a kind that this version cannot name it only has to be MessagePack.
///
/// # Errors
///
/// What is wrong with the body.
pub fn check(kind: Kind, body: &[u8]) -> Result<(), Error> {
    match kind {
        Kind::OPENED => Opened::decode(body).map(drop),
        Kind::DECLARE | Kind::DECLARED => Declare::decode(body).map(drop),
        Kind::DISPATCH => Dispatch::decode(body).map(drop),
        Kind::SNAPSHOT => Snapshot::decode(body).map(drop),
        Kind::ROLLBACK => Rollback::decode(body).map(drop),
        Kind::TOOL_BEGIN => ToolBegin::decode(body).map(drop),
        Kind::TOOL_END => ToolEnd::decode(body).map(drop),
        Kind::SETTLE => Settle::decode(body).map(drop),
        Kind::OBSERVED => Observed::decode(body).map(drop),
        Kind::IMPORT => Import::decode(body).map(drop),
        Kind::RESUMED => Resumed::decode(body).map(drop),
        Kind::SEAL => Seal::decode(body).map(drop),
        Kind::SYNCED => Ok(()),
        _ => crate::msgpack::check(body),
    }
}

//! Encodes and decodes images: caches of a log's state at one position.
//!
//! An *image* contains the slices, declarations and operations of a session at one position, so
//! that opening the session need not read the whole log. It is a cache next to the log. A writer
//! writes it after the log is durable through its position. A reader compares it with the log
//! before use, and ignores it on any difference.
//!
//! ```text
//!  0          8                            40                  48
//!  +----------+----------------------------+-------------------+---------------------+---------------+
//!  | foldimg1 | BLAKE3 of all that follows | length of the map | one MessagePack map | packed items  |
//!  +----------+----------------------------+-------------------+---------------------+---------------+
//! ```
//!
//! The items follow the map, which contains their number, so a writer writes each item when it
//! finds it and buffers none of them. The items of each [held](SliceImage::Held) slice come first,
//! by slice id; the items of `begun` follow, in its order.
//!
//! | field | meaning |
//! |---|---|
//! | `next` | sequence number of the first record that the image does not cover |
//! | `segment`, `salt`, `last`, `end`, `crc` | the last frame covered: ordinal and salt of its segment; offsets of its start and end; its checksum, which also represents all frames before it |
//! | `time`, `epoch`, `boot`, `synced` | results of a scan of the covered frames: the last record's time, the number of times that the log was opened for writing, the boot id at the last write, and the watermark |
//! | `opened` | array of sequence number and `SessionOpening` body, alternating: one pair for the session and one for each of its ancestors |
//! | `rollbacks` | packed: sequence number `u64`, target `u64`, whether LOG was preserved `u8` |
//! | `index` | packed: sequence number `u64`, segment ordinal `u32`, offset `u64` |
//! | `compacted` | packed: ordinal `u32` and salt `u64` of each compacted segment; omitted if there is none |
//! | `unsealed` | packed: ordinal `u32` and salt `u64` of each covered segment that had no seal when the image was written; omitted if there is none |
//! | `declared` | a `Declare` body: all names, with the versions and bindings under which records use them |
//! | `tags` | map of the session's tags |
//! | `replicated` | the body of the `replicated` record that applies; omitted if there is none |
//! | `unsupported` | array of sequence number and kind of the first record that could not be folded; omitted if there is none |
//! | `slices` | array with one element for each slice, by id: the number of its items if the image contains them; if the items stay in the log, an array of their number, packed marks and packed ranges |
//! | `open` | array of [operations](OpenOperation) that have started but not ended, in the order of their start records; omitted if empty |
//! | `unsettled` | array of [operations](UnsettledOperation) that were interrupted and neither run again nor settled, by operation id; omitted if empty |
//! | `suspended` | array of [operations](SuspendedOperation) that wait, by operation id; omitted if empty |
//! | `begun` | array of STATE at the start records of open operations that may change something; omitted if empty. Each element is an array of the start record's sequence number and an array of slices; each slice is an array of its id, the number of its first items that are those of `slices`, and the number of the items that follow them |
//! | `conversations` | array of four: the ids of evaluations; packed entries, each the record's sequence number `u64`, its [kind](EntryKind) `u8` in the order of the kinds, flags `u8` (1 the entry's flag, 2 it has an origin), the evaluation's index `u32`, the start record of the run that wrote it `u64`, its origin `u64` and `u32`, its number `u64`; packed runs, each its start record, its parent's start record and its end `u64` and whether it committed `u8`; packed rollbacks by the host, each sequence number and target `u64`. A `u64` of all ones means none. Omitted if there is no conversation |
//!
//! The length of the map is a `u64`. Packed fields are byte strings of little-endian integers. An
//! item is sequence number `u64`, ordinal `u32`, version `u32`, length `u32` and its bytes; items
//! are in the slice's order. A mark is the item's index in the slice `u64` and a sequence number
//! `u64`; a range is its first `u64` and last `u64` sequence number. A reader skips unknown fields.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use uuid::Uuid;

use crate::body::fields::{FieldWriter, Place, ReadField, WriteField, bad, require_field, store, walk};
use crate::body::{Declare, ItemId, Replicated, Rollback, SessionOpening};
use crate::msgpack::{MsgpackReader, MsgpackToken, MsgpackWriter};
use crate::{Error, RecordKind, SequenceNumber};

mod conversations;
mod operations;

pub use conversations::{ConversationEntry, ConversationsImage, EntryKind, RunFate};
pub use operations::{
    BegunImage, BegunSlice, OpenOperation, SuspendedOperation, SuspensionDecision, UnsettledOperation,
};

const MAGIC: &[u8; 8] = b"foldimg1";
const DIGEST_LEN: usize = 32;
const FRONT_LEN: usize = MAGIC.len() + DIGEST_LEN + 8;
const KIND: &str = "image";

/// Size in bytes of the largest image that is written or read: 1 GiB.
pub const IMAGE_BYTES_MAX: u64 = 1 << 30;

/// Contains the state of a log at one position, borrowed from the bytes of an image file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Image<'a> {
    /// Sequence number of the first record that the image does not cover.
    pub next_sequence: SequenceNumber,
    /// Last frame that the image covers.
    pub last: LastFrame,
    /// Time of the last record covered, in microseconds since 1970-01-01 UTC.
    pub time_us: i64,
    /// Number of times that the log had been opened for writing.
    pub epoch: u64,
    /// Boot id of the machine at the last write, or `None` if it is unknown.
    pub boot_id: Option<Uuid>,
    /// Watermark: every record below this sequence number was known to be durable.
    pub watermark: SequenceNumber,
    /// `SessionOpening` records of the session and of its ancestors, each with its sequence number.
    pub openings: Vec<(SequenceNumber, SessionOpening)>,
    /// Rollbacks, each with its sequence number.
    pub rollbacks: Vec<(SequenceNumber, Rollback)>,
    /// Positions of some records in the segments, for seeking.
    pub index: Vec<RecordLocation>,
    /// Ordinals and salts of the compacted segments among those that the image covers.
    pub compacted: Vec<(u32, u64)>,
    /// Ordinals and salts of the segments, except the last frame's own, that had no seal, but whose
    /// frames were known to be complete and durable when the image was written.
    pub unsealed: Vec<(u32, u64)>,
    /// Declarations of all events and slices.
    pub declared: Declare,
    /// Tags of the session.
    pub tags: BTreeMap<String, String>,
    /// Content of the session's `replicated` record, or `None` if it has none.
    pub replicated: Option<Replicated>,
    /// Sequence number and kind of the first record that could not be folded.
    pub unsupported: Option<(SequenceNumber, RecordKind)>,
    /// Operations that have started but not ended, in the order of their start records.
    pub open: Vec<OpenOperation>,
    /// Operations that were interrupted and neither run again nor settled, by operation id.
    pub unsettled: Vec<UnsettledOperation>,
    /// Operations that wait, by operation id.
    pub suspended: Vec<SuspendedOperation>,
    /// STATE at the start records of those open operations that may change something.
    pub begun: Vec<BegunImage<'a>>,
    /// Locations of the records of conversations.
    pub conversations: ConversationsImage<'a>,
    /// Slices, by id.
    pub slices: Vec<SliceImage<'a>>,
}

/// Identifies the last frame that an image covers. Its checksum also represents all frames before
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastFrame {
    /// Ordinal of the frame's segment.
    pub ordinal: u32,
    /// Salt of the frame's segment.
    pub salt: u64,
    /// Offset, in bytes, of the start of the frame.
    pub offset: u64,
    /// Offset, in bytes, of the end of the frame.
    pub end: u64,
    /// Checksum of the frame.
    pub crc: u32,
}

/// Locates one record in the segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLocation {
    /// Sequence number of the record.
    pub sequence: SequenceNumber,
    /// Ordinal of the record's segment.
    pub ordinal: u32,
    /// Offset, in bytes, of the start of the record's frame.
    pub offset: u64,
}

/// Contains one slice of an image: its items, or how to find them in the log.
#[derive(Clone, Debug, PartialEq)]
pub enum SliceImage<'a> {
    /// The image contains the slice's items.
    Held {
        /// Number of items.
        len: u64,
        /// Items, in the slice's order.
        items: Vec<ItemImage<'a>>,
    },
    /// The items of a LOG slice stay in the log, and the image describes how to find them there.
    InLog {
        /// Number of items.
        len: u64,
        /// Indexes of some items in the slice, each with the sequence number of the record that
        /// inserted the item.
        marks: Vec<(u64, SequenceNumber)>,
        /// Sequence numbers of records whose items were rolled back.
        undone: Vec<RangeInclusive<SequenceNumber>>,
    },
}

/// Contains one item of a slice, as in its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemImage<'a> {
    /// Id of the item.
    pub id: ItemId,
    /// Version of the item's type at which it was recorded.
    pub version: u32,
    /// MessagePack of the item.
    pub bytes: &'a [u8],
}

impl ItemImage<'_> {
    /// Number of bytes of an item in a file in addition to its own MessagePack.
    pub const HEAD_LEN: u64 = 20;

    /// Appends the item to `into`, packed as in an image file.
    pub fn write(&self, into: &mut Vec<u8>) {
        let ItemImage { id, version, bytes } = self;
        into.extend(id.sequence.to_le_bytes());
        into.extend(id.ordinal.to_le_bytes());
        into.extend(version.to_le_bytes());
        into.extend((bytes.len() as u32).to_le_bytes());
        into.extend_from_slice(bytes);
    }
}

/// Computes the front of an image file: the magic bytes, and the digest of all bytes that follow.
#[derive(Clone, Debug, Default)]
pub struct Front(blake3::Hasher);

impl Front {
    /// Length in bytes of the front.
    pub const LEN: u64 = (MAGIC.len() + DIGEST_LEN) as u64;

    /// Adds the next bytes of the file after the front to the digest.
    pub fn take(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the bytes of the front.
    pub fn finish(&self) -> Vec<u8> {
        MAGIC.iter().chain(self.0.finalize().as_bytes()).copied().collect()
    }
}

impl<'a> Image<'a> {
    /// Encodes the image as the bytes of its file.
    pub fn encode(&self) -> Vec<u8> {
        let mut rest = self.head();
        let held = self.slices.iter().flat_map(|slice| match slice {
            SliceImage::Held { items, .. } => items.as_slice(),
            SliceImage::InLog { .. } => &[],
        });
        let begun = self.begun.iter().flat_map(|begun| &begun.slices).flat_map(|slice| &slice.items);
        held.chain(begun).for_each(|item| item.write(&mut rest));
        let mut front = Front::default();
        front.take(&rest);
        [front.finish(), rest].concat()
    }

    /// Encodes the part of an image file between the front and the items: the length of the map,
    /// and the map.
    pub fn head(&self) -> Vec<u8> {
        let mut writer = MsgpackWriter::new();
        writer.raw(&[0; 8]).fields(|fields| {
            fields.set("next", &self.next_sequence);
            fields.set("segment", &self.last.ordinal);
            fields.set("salt", &self.last.salt);
            fields.set("last", &self.last.offset);
            fields.set("end", &self.last.end);
            fields.set("crc", &self.last.crc);
            fields.set("time", &self.time_us);
            fields.set("epoch", &self.epoch);
            fields.some("boot", &self.boot_id);
            fields.set("synced", &self.watermark);
            let openings = fields.field("opened").array(2 * self.openings.len());
            for (sequence, opened) in &self.openings {
                openings.unsigned(sequence.get()).bin(&opened.encode());
            }
            self.write_packed(fields);
            fields.field("declared").bin(&self.declared.encode());
            fields.set("tags", &self.tags);
            if let Some(replicated) = &self.replicated {
                fields.field("replicated").bin(&replicated.encode());
            }
            if let Some((sequence, kind)) = self.unsupported {
                let unsupported = fields.field("unsupported").array(2);
                unsupported.unsigned(sequence.get()).unsigned(u64::from(kind.byte()));
            }
            fields.unless("open", &self.open, &Vec::new());
            fields.unless("unsettled", &self.unsettled, &Vec::new());
            fields.unless("suspended", &self.suspended, &Vec::new());
            fields.unless("begun", &self.begun, &Vec::new());
            if !self.conversations.is_empty() {
                self.conversations.write(fields.field("conversations"));
            }
            fields.set("slices", &self.slices);
        });
        let mut bytes = writer.finish();
        if let Some((len, map)) = bytes.split_first_chunk_mut::<8>() {
            *len = (map.len() as u64).to_le_bytes();
        }
        bytes
    }

    fn write_packed(&self, fields: &mut FieldWriter<'_>) {
        let mut packed = Vec::new();
        for (sequence, rollback) in &self.rollbacks {
            packed.extend(sequence.to_le_bytes());
            packed.extend(rollback.to.to_le_bytes());
            packed.push(u8::from(rollback.preserve_logs));
        }
        fields.field("rollbacks").bin(&packed);
        packed.clear();
        for RecordLocation { sequence, ordinal, offset } in &self.index {
            packed.extend(sequence.to_le_bytes());
            packed.extend(ordinal.to_le_bytes());
            packed.extend(offset.to_le_bytes());
        }
        fields.field("index").bin(&packed);
        for (name, segments) in [("compacted", &self.compacted), ("unsealed", &self.unsealed)] {
            if segments.is_empty() {
                continue;
            }
            packed.clear();
            for (ordinal, salt) in segments {
                packed.extend(ordinal.to_le_bytes());
                packed.extend(salt.to_le_bytes());
            }
            fields.field(name).bin(&packed);
        }
    }

    /// Decodes the bytes of an image file and verifies their digest.
    ///
    /// # Errors
    ///
    /// - [`Error::Truncated`] if there are fewer bytes than the front needs.
    /// - [`Error::Magic`] if the file does not start with the magic bytes.
    /// - [`Error::Body`] if the digest does not match, if a field is missing or malformed, or if
    ///   the items end before or after the end of the file.
    pub fn decode(bytes: &'a [u8]) -> Result<Image<'a>, Error> {
        let truncated =
            || Error::Truncated { offset: 0, needed: FRONT_LEN as u64, available: bytes.len() as u64 };
        let (magic, rest) = bytes.split_first_chunk::<8>().ok_or_else(truncated)?;
        if magic != MAGIC {
            return Err(Error::Magic { found: *magic });
        }
        let (digest, body) = rest.split_first_chunk::<DIGEST_LEN>().ok_or_else(truncated)?;
        if blake3::hash(body).as_bytes() != digest {
            return Err(bad(KIND, "the digest does not match"));
        }
        let (map_len, rest) = body.split_first_chunk::<8>().ok_or_else(truncated)?;
        let map_len = usize::try_from(u64::from_le_bytes(*map_len)).unwrap_or(usize::MAX);
        let (map, items) =
            rest.split_at_checked(map_len).ok_or_else(|| bad(KIND, "the map is longer than the file"))?;
        let mut image = Image::default();
        walk(KIND, &REQUIRED, map, |place, value| image.take(place, value))?;
        let mut packed = PackedReader(items);
        for slice in &mut image.slices {
            if let SliceImage::Held { len, items } = slice {
                *items = packed.items(*len)?;
            }
        }
        for slice in image.begun.iter_mut().flat_map(|begun| &mut begun.slices) {
            slice.items = packed.items(slice.len)?;
        }
        if packed.0.is_empty() { Ok(image) } else { Err(bad(KIND, "extra bytes after the items")) }
    }
}

impl WriteField for SliceImage<'_> {
    fn write(&self, writer: &mut MsgpackWriter) {
        let mut packed = Vec::new();
        match self {
            SliceImage::Held { len, .. } => {
                writer.unsigned(*len);
            }
            SliceImage::InLog { len, marks, undone } => {
                writer.array(3).unsigned(*len);
                let marks = marks.iter().map(|(place, sequence)| (*place, sequence.get()));
                let ranges = undone.iter().map(|range| (range.start().get(), range.end().get()));
                for pairs in [marks.collect::<Vec<_>>(), ranges.collect()] {
                    packed.clear();
                    for (one, other) in pairs {
                        packed.extend(one.to_le_bytes());
                        packed.extend(other.to_le_bytes());
                    }
                    writer.bin(&packed);
                }
            }
        }
    }
}

impl<'a> ReadField<'a> for SliceImage<'a> {
    fn read(_: Place<'_>, reader: &mut MsgpackReader<'a>) -> Result<SliceImage<'a>, Error> {
        let mut ahead = *reader;
        match ahead.token()? {
            MsgpackToken::Array(3) => {
                let len = ahead.unsigned()?;
                let marks =
                    PackedReader(ahead.bin()?).all(|packed| Ok((packed.u64()?, packed.sequence()?)))?;
                let undone =
                    PackedReader(ahead.bin()?).all(|packed| Ok(packed.sequence()?..=packed.sequence()?))?;
                *reader = ahead;
                Ok(SliceImage::InLog { len, marks, undone })
            }
            _ => Ok(SliceImage::Held { len: reader.unsigned()?, items: Vec::new() }),
        }
    }
}

fn ordinals_and_salts(value: &mut MsgpackReader<'_>) -> Result<Vec<(u32, u64)>, Error> {
    PackedReader(value.bin()?).all(|packed| Ok((packed.u32()?, packed.u64()?)))
}

const REQUIRED: [&str; 11] =
    ["segment", "salt", "last", "end", "crc", "next", "time", "epoch", "synced", "declared", "slices"];

impl<'a> Image<'a> {
    fn take(&mut self, place: Place<'_>, value: &mut MsgpackReader<'a>) -> Result<(), Error> {
        match place.field {
            "next" => value.read_into(place, &mut self.next_sequence),
            "segment" => value.read_into(place, &mut self.last.ordinal),
            "salt" => value.read_into(place, &mut self.last.salt),
            "last" => value.read_into(place, &mut self.last.offset),
            "end" => value.read_into(place, &mut self.last.end),
            "crc" => value.read_into(place, &mut self.last.crc),
            "epoch" => value.read_into(place, &mut self.epoch),
            "synced" => value.read_into(place, &mut self.watermark),
            "time" => value.read_into(place, &mut self.time_us),
            "boot" => value.read_into(place, &mut self.boot_id),
            "opened" => {
                for _ in 0..value.array()? / 2 {
                    self.openings.push((value.unsigned()?.into(), SessionOpening::decode(value.bin()?)?));
                }
                Ok(())
            }
            "rollbacks" => {
                let rollbacks = PackedReader(value.bin()?).all(|packed| {
                    let (sequence, to) = (packed.sequence()?, packed.sequence()?);
                    Ok((sequence, Rollback { to, preserve_logs: packed.u8()? != 0 }))
                });
                store(&mut self.rollbacks, rollbacks)
            }
            "index" => {
                let index = PackedReader(value.bin()?).all(|packed| {
                    let (sequence, ordinal, offset) = (packed.sequence()?, packed.u32()?, packed.u64()?);
                    Ok(RecordLocation { sequence, ordinal, offset })
                });
                store(&mut self.index, index)
            }
            "compacted" => store(&mut self.compacted, ordinals_and_salts(value)),
            "unsealed" => store(&mut self.unsealed, ordinals_and_salts(value)),
            "declared" => store(&mut self.declared, Declare::decode(value.bin()?)),
            "tags" => value.read_into(place, &mut self.tags),
            "replicated" => store(&mut self.replicated, Replicated::decode(value.bin()?)),
            "unsupported" => {
                value.array()?;
                let (sequence, kind) = (value.unsigned()?, value.unsigned()?);
                let kind = u8::try_from(kind).ok().and_then(RecordKind::from_byte);
                self.unsupported = Some((sequence.into(), require_field(KIND, "unsupported", kind)?));
                Ok(())
            }
            "open" => {
                value.read_into(place, &mut self.open)?;
                self.open.iter_mut().for_each(|open| open.reads_only |= open.outside_only);
                Ok(())
            }
            "unsettled" => value.read_into(place, &mut self.unsettled),
            "suspended" => value.read_into(place, &mut self.suspended),
            "begun" => value.read_into(place, &mut self.begun),
            "conversations" => store(&mut self.conversations, ConversationsImage::read(value)),
            "slices" => value.read_into(place, &mut self.slices),
            _ => Ok(()),
        }
    }
}

/// Decodes packed fields. Contains the bytes that are still to be decoded.
struct PackedReader<'a>(&'a [u8]);

impl<'a> PackedReader<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) =
            self.0.split_at_checked(len).ok_or_else(|| bad(KIND, "packed bytes end early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (taken, rest) = self.0.split_first_chunk().ok_or_else(|| bad(KIND, "packed bytes end early"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, Error> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn sequence(&mut self) -> Result<SequenceNumber, Error> {
        Ok(SequenceNumber::from_le_bytes(self.array()?))
    }

    /// Decodes `len` items. The claimed number reserves no memory: each item takes bytes that are
    /// present.
    fn items(&mut self, len: u64) -> Result<Vec<ItemImage<'a>>, Error> {
        let mut items = Vec::new();
        for _ in 0..len {
            let id = ItemId { sequence: self.sequence()?, ordinal: self.u32()? };
            let (version, len) = (self.u32()?, self.u32()?);
            items.push(ItemImage { id, version, bytes: self.bytes(len as usize)? });
        }
        Ok(items)
    }

    /// Decodes entries until no byte is left.
    fn all<T>(mut self, mut read: impl FnMut(&mut Self) -> Result<T, Error>) -> Result<Vec<T>, Error> {
        let mut all = Vec::new();
        while !self.0.is_empty() {
            all.push(read(&mut self)?);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::CallOrigin;
    use crate::body::{
        Decision, Idempotency, InnerCall, Policy, SliceDeclaration, Suspension, SuspensionForm,
    };

    fn image() -> Image<'static> {
        let opened =
            SessionOpening { session: Uuid::from_u128(7), seed: 3, tags: BTreeMap::new(), parent: None };
        let slice = SliceDeclaration {
            id: 0,
            name: "plan".to_owned(),
            policy: Policy::State,
            item: "plan.step".to_owned(),
        };
        let item = |sequence, bytes| ItemImage { id: ItemId { sequence, ordinal: 1 }, version: 2, bytes };
        Image {
            next_sequence: 40.into(),
            last: LastFrame { ordinal: 2, salt: u64::MAX, offset: 300, end: 340, crc: u32::MAX },
            time_us: -5,
            epoch: 1,
            boot_id: Some(Uuid::from_u128(9)),
            watermark: 40.into(),
            openings: vec![(0.into(), opened)],
            rollbacks: vec![(9.into(), Rollback { to: 3.into(), preserve_logs: false })],
            index: vec![RecordLocation { sequence: 0.into(), ordinal: 0, offset: 84 }],
            compacted: vec![(0, 77)],
            unsealed: vec![(1, 78)],
            declared: Declare { events: Vec::new(), slices: vec![slice] },
            tags: BTreeMap::from([("key".to_owned(), "value".to_owned())]),
            replicated: Some(Replicated { at: "a bucket".to_owned(), by: "worker 7".to_owned(), epoch: 3 }),
            unsupported: Some((39.into(), RecordKind::Observed)),
            open: vec![OpenOperation {
                operation: 30.into(),
                begin: 33.into(),
                parent: Some(20.into()),
                tool: "write".into(),
                call_id: Some("call-1".into()),
                idempotency: Idempotency::Keyed,
                reads_only: false,
                outside_only: false,
                undoes: Some(7.into()),
                verifies: Some(8.into()),
                origin: Some(CallOrigin { answer: 4.into(), ordinal: 1 }),
                had_effects_within: true,
            }],
            unsettled: vec![UnsettledOperation {
                operation: 11.into(),
                begin: 12.into(),
                tool: "send".into(),
                call_id: None,
                idempotency: Idempotency::Manual,
                undone: true,
                run_again: true,
            }],
            suspended: vec![SuspendedOperation {
                operation: 21.into(),
                begin: 22.into(),
                end: 24.into(),
                parent: Some(20.into()),
                tool: "drop".into(),
                call_id: Some("call-2".into()),
                origin: Some(CallOrigin { answer: 4.into(), ordinal: 2 }),
                idempotency: Idempotency::Natural,
                suspension: Suspension {
                    expires_us: Some(-7),
                    inner: Some(InnerCall { session: Some(Uuid::from_u128(3)), operation: 5.into() }),
                    ..Suspension::new(SuspensionForm::Within, [9; 32])
                },
                decided: Some(SuspensionDecision {
                    sequence: 25.into(),
                    decision: Decision::RunAgain,
                    until_us: Some(8),
                }),
            }],
            begun: vec![BegunImage {
                begin: 33.into(),
                slices: vec![BegunSlice { slice: 0, kept: 1, len: 1, items: vec![item(2.into(), b"\xc3")] }],
            }],
            conversations: ConversationsImage {
                evaluations: vec!["ev-1"],
                entries: vec![(
                    6.into(),
                    ConversationEntry {
                        kind: EntryKind::Interrupted,
                        evaluation: 0,
                        within: Some(5.into()),
                        origin: Some(CallOrigin { answer: 4.into(), ordinal: 1 }),
                        number: 5,
                        flag: true,
                    },
                )],
                runs: vec![(5.into(), RunFate { parent: None, ended: Some((7.into(), true)) })],
                rollbacks: vec![(9.into(), 3.into())],
            },
            slices: vec![
                SliceImage::Held { len: 2, items: vec![item(5.into(), b"\xc0"), item(4.into(), b"")] },
                SliceImage::InLog { len: 3, marks: vec![(0, 8.into())], undone: vec![4.into()..=9.into()] },
            ],
        }
    }

    #[test]
    fn an_image_comes_back_as_it_went_in() {
        let bytes = image().encode();
        assert_eq!(Image::decode(&bytes).unwrap(), image());
        let calm = Image {
            open: Vec::new(),
            unsettled: Vec::new(),
            suspended: Vec::new(),
            begun: Vec::new(),
            ..image()
        };
        let bytes = calm.encode();
        assert_eq!(Image::decode(&bytes).unwrap(), calm);
    }

    #[test]
    fn what_is_written_as_it_is_found_is_what_is_encoded_at_once() {
        let whole = image().encode();
        let mut front = Front::default();
        let rest = &whole[Front::LEN as usize..];
        rest.chunks(7).for_each(|bytes| front.take(bytes));
        assert_eq!(front.finish(), whole[..Front::LEN as usize]);
        assert!(rest.starts_with(&image().head()));
    }

    #[test]
    fn every_bit_of_an_image_is_covered_and_so_is_its_length() {
        let bytes = image().encode();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Image::decode(&damaged).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(Image::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        let longer: Vec<u8> = bytes.iter().copied().chain([0]).collect();
        assert!(Image::decode(&longer).is_err());
    }

    /// A digest is not a signature: an attacker can write a file whose digest matches.
    #[test]
    fn fields_that_lie_under_a_digest_that_matches_are_refused_or_bounded() {
        let whole = image().encode();
        let body = &whole[MAGIC.len() + DIGEST_LEN..];
        for place in 0..body.len() {
            for byte in [0, 0x7f, 0x80, 0xc4, 0xc6, 0xdd, 0xff] {
                let mut body = body.to_vec();
                body[place] = byte;
                let digest = *blake3::hash(&body).as_bytes();
                let file: Vec<u8> = MAGIC.iter().chain(&digest).chain(&body).copied().collect();
                // Any result is fine, as long as the function returns.
                let _ = Image::decode(&file);
            }
        }
    }
}

//! Images: what a log amounted to at one position, kept beside it.
//!
//! An image is a cache. It is written after the log is durable through its position, checked against the log
//! before it is trusted, and left aside where anything differs.
//!
//! ```text
//!  0          8                            40                  48
//!  +----------+----------------------------+-------------------+---------------------+---------------+
//!  | foldimg1 | BLAKE3 of all that follows | length of the map | one MessagePack map | packed items  |
//!  +----------+----------------------------+-------------------+---------------------+---------------+
//! ```
//!
//! The items stand behind the map, which says how many there are: so an image is written as its items are found, and not
//! held in memory. They are those of each slice whose items are held, by id, and then those of `begun`, in its order.
//!
//! | field | meaning |
//! |---|---|
//! | `next` | the sequence number of the first record that the image does not cover |
//! | `segment`, `salt`, `last`, `end`, `crc` | the segment of the last frame covered, by ordinal and salt; where that frame begins and ends; its checksum, which pins all frames before it |
//! | `time`, `epoch`, `boot`, `synced` | what a walk over those frames finds: the last record's time, how often the log was opened, under which boot it was written last, and the watermark |
//! | `opened` | array of sequence number and `Opened` body, one for the session and each of its ancestors |
//! | `rollbacks` | packed: sequence number `u64`, target `u64`, whether LOG stayed `u8` |
//! | `index` | packed: sequence number `u64`, segment ordinal `u32`, offset `u64` |
//! | `declared` | a `Declare` body: all names, with the versions and reducers that they were recorded under |
//! | `tags` | map |
//! | `unsupported` | array of sequence number and kind, where there is a record that could not be folded |
//! | `slices` | array with one element a slice, by id: how many items it has where they are held; an array of length, packed marks and packed ranges where they stand in the log |
//! | `open` | array of [operations](OpenOperation) that had begun and not ended, in the order of their begins; left out where there are none, as the next two |
//! | `unsettled` | array of [operations](UnsettledOperation) that were interrupted and neither run again nor settled, by their names |
//! | `begun` | STATE where open operations began that may change something: array of begin and array of slice id, how many of the slice's items come first, and how many others follow them |
//!
//! The length of the map is a `u64`. Packed fields are bytes, little-endian: an item is sequence number `u64`, ordinal `u32`, version `u32`, length
//! `u32` and its bytes, in the slice's order; a mark is place `u64` and sequence number `u64`; a range is first
//! `u64` and last `u64`. Fields that a reader does not know are passed over.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use uuid::Uuid;

use crate::body::fields::{bad, fixed, list, required, walk};
use crate::body::opened::{read_tags, write_tags};
use crate::body::{Declare, ItemId, Opened, Rollback};
use crate::msgpack::{Reader, Token, Writer};
use crate::{Error, Kind, SequenceNumber};

mod operations;

pub use operations::{BegunImage, BegunSlice, OpenOperation, UnsettledOperation};

const MAGIC: &[u8; 8] = b"foldimg1";
const DIGEST_LEN: usize = 32;
/// What stands before the map, its length included.
const FRONT_LEN: usize = MAGIC.len() + DIGEST_LEN + 8;
const KIND: &str = "image";

/// The largest image that is written or read, in bytes.
pub const IMAGE_BYTES_MAX: u64 = 1 << 30;

/// What a log amounted to at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct Image<'a> {
    /// The sequence number of the first record that is not covered.
    pub next_sequence: SequenceNumber,
    /// The last frame that is covered.
    pub last: LastFrame,
    /// The last record's time, in microseconds since 1970-01-01 UTC.
    pub time_us: i64,
    /// How often the log had been opened for writing.
    pub epoch: u64,
    /// The boot under which it was written last.
    pub boot_id: Option<Uuid>,
    /// Every record below this was known to be durable.
    pub watermark: SequenceNumber,
    /// The `Opened` records, each with its sequence number.
    pub openings: Vec<(SequenceNumber, Opened)>,
    /// The rollbacks, each with its sequence number.
    pub rollbacks: Vec<(SequenceNumber, Rollback)>,
    /// Where some records stand.
    pub index: Vec<Indexed>,
    /// All names.
    pub declared: Declare,
    /// The session's tags.
    pub tags: BTreeMap<String, String>,
    /// The first record of a kind that could not be folded.
    pub unsupported: Option<(SequenceNumber, Kind)>,
    /// The operations that had begun and not ended, in the order of their begins.
    pub open: Vec<OpenOperation<&'a str>>,
    /// The operations that were interrupted and neither run again nor settled, by their names.
    pub unsettled: Vec<UnsettledOperation<&'a str>>,
    /// STATE where open operations began that may change something.
    pub begun: Vec<BegunImage<'a>>,
    /// The slices by id.
    pub slices: Vec<SliceImage<'a>>,
}

/// The last frame that an image covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastFrame {
    /// Its segment's ordinal.
    pub ordinal: u32,
    /// Its segment's salt.
    pub salt: u64,
    /// Where it begins.
    pub offset: u64,
    /// Where it ends.
    pub end: u64,
    /// Its checksum.
    pub crc: u32,
}

/// Where a record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indexed {
    /// The record.
    pub sequence: SequenceNumber,
    /// Its segment's ordinal.
    pub ordinal: u32,
    /// Where its frame begins.
    pub offset: u64,
}

/// One slice in an image.
#[derive(Clone, Debug, PartialEq)]
pub enum SliceImage<'a> {
    /// Its items in order.
    Held {
        /// How many there are.
        len: u64,
        /// The items.
        items: Vec<ItemImage<'a>>,
    },
    /// Of a LOG slice, what is needed to find its items in the log.
    InLog {
        /// How many items it has.
        len: u64,
        /// Places of items, and the records that inserted them.
        marks: Vec<(u64, SequenceNumber)>,
        /// Records whose items were taken back.
        undone: Vec<RangeInclusive<SequenceNumber>>,
    },
}

/// One item as it was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemImage<'a> {
    /// Where it was inserted.
    pub id: ItemId,
    /// The version that it was recorded at.
    pub version: u32,
    /// Its MessagePack.
    pub bytes: &'a [u8],
}

impl ItemImage<'_> {
    /// How many bytes an item takes beside its own.
    pub const HEAD_LEN: u64 = 20;

    /// Writes the item as it stands in a file.
    pub fn write(&self, into: &mut Vec<u8>) {
        let ItemImage { id, version, bytes } = self;
        into.extend(id.sequence.to_le_bytes());
        into.extend(id.ordinal.to_le_bytes());
        into.extend(version.to_le_bytes());
        into.extend((bytes.len() as u32).to_le_bytes());
        into.extend_from_slice(bytes);
    }
}

/// What stands first in a file, over all that follows: the magic bytes and the digest.
#[derive(Clone, Debug, Default)]
pub struct Front(blake3::Hasher);

impl Front {
    /// How long it is, in bytes.
    pub const LEN: u64 = (MAGIC.len() + DIGEST_LEN) as u64;

    /// Takes in what stands behind what was taken in before.
    pub fn take(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Its bytes.
    pub fn finish(&self) -> Vec<u8> {
        MAGIC.iter().chain(self.0.finalize().as_bytes()).copied().collect()
    }
}

impl<'a> Image<'a> {
    /// The file's bytes.
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

    /// What stands between the front and the items: the map, behind its length.
    pub fn head(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        let lists = [self.open.len(), self.unsettled.len(), self.begun.len()];
        let optional = usize::from(self.boot_id.is_some())
            + usize::from(self.unsupported.is_some())
            + lists.iter().filter(|len| **len > 0).count();
        writer.raw(&[0; 8]).map(15 + optional);
        writer.str("next").unsigned(self.next_sequence.get());
        writer.str("segment").unsigned(u64::from(self.last.ordinal));
        writer.str("salt").unsigned(self.last.salt);
        writer.str("last").unsigned(self.last.offset);
        writer.str("end").unsigned(self.last.end);
        writer.str("crc").unsigned(u64::from(self.last.crc));
        writer.str("time").signed(self.time_us);
        writer.str("epoch").unsigned(self.epoch);
        if let Some(boot_id) = self.boot_id {
            writer.str("boot").bin(boot_id.as_bytes());
        }
        writer.str("synced").unsigned(self.watermark.get());
        writer.str("opened").array(2 * self.openings.len());
        for (sequence, opened) in &self.openings {
            writer.unsigned(sequence.get()).bin(&opened.encode());
        }
        let mut packed = Vec::new();
        for (sequence, rollback) in &self.rollbacks {
            packed.extend(sequence.to_le_bytes());
            packed.extend(rollback.to.to_le_bytes());
            packed.push(u8::from(rollback.preserve_logs));
        }
        writer.str("rollbacks").bin(&packed);
        packed.clear();
        for Indexed { sequence, ordinal, offset } in &self.index {
            packed.extend(sequence.to_le_bytes());
            packed.extend(ordinal.to_le_bytes());
            packed.extend(offset.to_le_bytes());
        }
        writer.str("index").bin(&packed);
        writer.str("declared").bin(&self.declared.encode());
        writer.str("tags");
        write_tags(&mut writer, &self.tags);
        if let Some((sequence, kind)) = self.unsupported {
            writer.str("unsupported").array(2).unsigned(sequence.get()).unsigned(u64::from(kind.byte()));
        }
        self.write_operations(&mut writer);
        writer.str("slices").array(self.slices.len());
        self.slices.iter().for_each(|slice| slice.write(&mut writer));
        let mut bytes = writer.finish();
        if let Some((len, map)) = bytes.split_first_chunk_mut::<8>() {
            *len = (map.len() as u64).to_le_bytes();
        }
        bytes
    }

    fn write_operations(&self, writer: &mut Writer) {
        if !self.open.is_empty() {
            writer.str("open").array(self.open.len());
            self.open.iter().for_each(|open| open.write(writer));
        }
        if !self.unsettled.is_empty() {
            writer.str("unsettled").array(self.unsettled.len());
            self.unsettled.iter().for_each(|unsettled| unsettled.write(writer));
        }
        if !self.begun.is_empty() {
            writer.str("begun").array(self.begun.len());
            self.begun.iter().for_each(|begun| begun.write(writer));
        }
    }

    /// Reads a file's bytes and checks their digest.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`], [`Error::Magic`], or [`Error::Body`] where the digest does not match or the fields
    /// are not what they should be.
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
        let mut read = Fields::default();
        walk(KIND, map, |name, value| read.take(name, value))?;
        let mut image = read.finish()?;
        let mut packed = Packed(items);
        for slice in &mut image.slices {
            if let SliceImage::Held { len, items } = slice {
                *items = packed.items(*len)?;
            }
        }
        for slice in image.begun.iter_mut().flat_map(|begun| &mut begun.slices) {
            slice.items = packed.items(slice.len)?;
        }
        if packed.0.is_empty() { Ok(image) } else { Err(bad(KIND, "bytes follow the items")) }
    }
}

impl<'a> SliceImage<'a> {
    fn write(&self, writer: &mut Writer) {
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

    fn read(reader: &mut Reader<'a>) -> Result<SliceImage<'a>, Error> {
        let mut ahead = *reader;
        match ahead.token()? {
            Token::Array(3) => {
                let len = ahead.unsigned()?;
                let marks = Packed(ahead.bin()?).all(|packed| Ok((packed.u64()?, packed.sequence()?)))?;
                let undone =
                    Packed(ahead.bin()?).all(|packed| Ok(packed.sequence()?..=packed.sequence()?))?;
                *reader = ahead;
                Ok(SliceImage::InLog { len, marks, undone })
            }
            _ => Ok(SliceImage::Held { len: reader.unsigned()?, items: Vec::new() }),
        }
    }
}

/// The fields of an image as they are found.
#[derive(Default)]
struct Fields<'a> {
    numbers: BTreeMap<&'static str, u64>,
    time_us: Option<i64>,
    boot_id: Option<Uuid>,
    openings: Vec<(SequenceNumber, Opened)>,
    rollbacks: Vec<(SequenceNumber, Rollback)>,
    index: Vec<Indexed>,
    declared: Option<Declare>,
    tags: BTreeMap<String, String>,
    unsupported: Option<(SequenceNumber, Kind)>,
    open: Vec<OpenOperation<&'a str>>,
    unsettled: Vec<UnsettledOperation<&'a str>>,
    begun: Vec<BegunImage<'a>>,
    slices: Option<Vec<SliceImage<'a>>>,
}

/// The fields that are plain integers of 0 or more.
const NUMBERS: [&str; 8] = ["next", "segment", "salt", "last", "end", "crc", "epoch", "synced"];

impl<'a> Fields<'a> {
    fn take(&mut self, name: &str, value: &mut Reader<'a>) -> Result<(), Error> {
        if let Some(name) = NUMBERS.iter().find(|known| **known == name) {
            self.numbers.insert(name, value.unsigned()?);
            return Ok(());
        }
        match name {
            "time" => self.time_us = Some(value.signed()?),
            "boot" => self.boot_id = Some(Uuid::from_bytes(fixed(value)?)),
            "opened" => {
                for _ in 0..value.array()? / 2 {
                    self.openings.push((value.unsigned()?.into(), Opened::decode(value.bin()?)?));
                }
            }
            "rollbacks" => {
                self.rollbacks = Packed(value.bin()?).all(|packed| {
                    let (sequence, to) = (packed.sequence()?, packed.sequence()?);
                    Ok((sequence, Rollback { to, preserve_logs: packed.u8()? != 0 }))
                })?;
            }
            "index" => {
                self.index = Packed(value.bin()?).all(|packed| {
                    let (sequence, ordinal, offset) = (packed.sequence()?, packed.u32()?, packed.u64()?);
                    Ok(Indexed { sequence, ordinal, offset })
                })?;
            }
            "declared" => self.declared = Some(Declare::decode(value.bin()?)?),
            "tags" => self.tags = read_tags(value)?,
            "unsupported" => {
                value.array()?;
                let (sequence, kind) = (value.unsigned()?, value.unsigned()?);
                let kind = u8::try_from(kind).ok().and_then(Kind::from_byte);
                self.unsupported = Some((sequence.into(), required(KIND, "unsupported", kind)?));
            }
            "open" => self.open = list(value, OpenOperation::read)?,
            "unsettled" => self.unsettled = list(value, UnsettledOperation::read)?,
            "begun" => self.begun = list(value, BegunImage::read)?,
            "slices" => self.slices = Some(list(value, SliceImage::read)?),
            _ => {}
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Image<'a>, Error> {
        let mut number = |name| required(KIND, name, self.numbers.remove(name));
        let narrow = |name, number: u64| {
            u32::try_from(number).map_err(|_| bad(KIND, format!("field `{name}` is over 32 bits")))
        };
        let last = LastFrame {
            ordinal: narrow("segment", number("segment")?)?,
            salt: number("salt")?,
            offset: number("last")?,
            end: number("end")?,
            crc: narrow("crc", number("crc")?)?,
        };
        Ok(Image {
            next_sequence: number("next")?.into(),
            last,
            time_us: required(KIND, "time", self.time_us)?,
            epoch: number("epoch")?,
            boot_id: self.boot_id,
            watermark: number("synced")?.into(),
            openings: self.openings,
            rollbacks: self.rollbacks,
            index: self.index,
            declared: required(KIND, "declared", self.declared)?,
            tags: self.tags,
            unsupported: self.unsupported,
            open: self.open,
            unsettled: self.unsettled,
            begun: self.begun,
            slices: required(KIND, "slices", self.slices)?,
        })
    }
}

/// Packed fields that are still to be read.
struct Packed<'a>(&'a [u8]);

impl<'a> Packed<'a> {
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

    /// Reads `len` items. The claimed count reserves no memory: each item takes bytes that are there.
    fn items(&mut self, len: u64) -> Result<Vec<ItemImage<'a>>, Error> {
        let mut items = Vec::new();
        for _ in 0..len {
            let id = ItemId { sequence: self.sequence()?, ordinal: self.u32()? };
            let (version, len) = (self.u32()?, self.u32()?);
            items.push(ItemImage { id, version, bytes: self.bytes(len as usize)? });
        }
        Ok(items)
    }

    /// Reads until nothing is left.
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
    use crate::body::{Idempotency, Policy, SliceDeclaration};

    fn image() -> Image<'static> {
        let opened = Opened { session: Uuid::from_u128(7), seed: 3, tags: BTreeMap::new(), parent: None };
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
            index: vec![Indexed { sequence: 0.into(), ordinal: 0, offset: 84 }],
            declared: Declare { events: Vec::new(), slices: vec![slice] },
            tags: BTreeMap::from([("key".to_owned(), "value".to_owned())]),
            unsupported: Some((39.into(), Kind::OBSERVED)),
            open: vec![OpenOperation {
                operation: 30.into(),
                begin: 33.into(),
                parent: Some(20.into()),
                tool: "write",
                call_id: Some("call-1"),
                idempotency: Idempotency::Keyed,
                reads_only: false,
                undoes: Some(7.into()),
                origin: Some(CallOrigin { answer: 4.into(), ordinal: 1 }),
                had_effects_within: true,
            }],
            unsettled: vec![UnsettledOperation {
                operation: 11.into(),
                begin: 12.into(),
                tool: "send",
                call_id: None,
                idempotency: Idempotency::Manual,
                undone: true,
                run_again: true,
            }],
            begun: vec![BegunImage {
                begin: 33.into(),
                slices: vec![BegunSlice { slice: 0, kept: 1, len: 1, items: vec![item(2.into(), b"\xc3")] }],
            }],
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
        let calm = Image { open: Vec::new(), unsettled: Vec::new(), begun: Vec::new(), ..image() };
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

    /// A digest is no signature: whoever writes a file can write one that matches.
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
                // Whatever it answers, it answers.
                let _ = Image::decode(&file);
            }
        }
    }
}

//! Encodes and decodes the items of slices at a position of a compacted segment.

use super::fields::{Place, ReadField, WriteField, bad, decode, encode, map_fields, store, walk_part};
use super::json::{NameBudget, Object, Part};
use super::{Body, ItemId, SLICES_MAX};
use crate::msgpack::{MsgpackReader, MsgpackWriter};
use crate::{Error, SequenceNumber};

const KIND: &str = "base";

const RUN_LEN: usize = 8 + 4 + 4 + 4;

/// Envelope: names the items of the STATE and CACHE slices at a position. The items themselves stay
/// in their records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// Position: the sequence number of the last record whose effects are included.
    pub position: SequenceNumber,
    /// Whether another frame at the same position continues this one.
    pub goes_on: bool,
    /// Items of the slices, in ascending order of the slices' ids. A slice that is not listed was
    /// empty.
    pub slices: Vec<BaseSlice>,
}

/// Names the items of one slice in a [`Base`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BaseSlice {
    /// Id of the slice.
    pub slice: u32,
    /// Items, in the slice's order.
    pub items: Vec<ItemRun>,
}

/// Names items of consecutive records, each with the same ordinal in its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemRun {
    /// First of the items.
    pub first: ItemId,
    /// Version at which they were recorded.
    pub version: u32,
    /// Number of items.
    pub count: u32,
}

impl ItemRun {
    /// Returns the ids of the items.
    pub fn ids(self) -> impl Iterator<Item = ItemId> {
        let ItemId { sequence, ordinal } = self.first;
        (0..u64::from(self.count)).map(move |at| ItemId { sequence: sequence + at, ordinal })
    }
}

map_fields! { impl<'a> Base {
    "at" => position [required],
    "more" => goes_on,
    "slices" => slices [always],
}}

impl Base {
    /// Encodes the body of a `base` frame as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        encode(0, self)
    }

    /// Decodes the body of a `base` frame.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, if a field is missing or malformed, or if an item belongs to
    /// a record after the position.
    pub fn decode(bytes: &[u8]) -> Result<Base, Error> {
        let base: Base = decode(KIND, bytes)?;
        let Base { position, slices, .. } = &base;
        if slices.len() > SLICES_MAX || !slices.is_sorted_by(|before, after| before.slice < after.slice) {
            return Err(bad(KIND, "it has too many slices, or they are out of order"));
        }
        let known = |run: &ItemRun| {
            run.first.sequence <= *position && u64::from(run.count) <= position.since(run.first.sequence) + 1
        };
        if !slices.iter().flat_map(|slice| &slice.items).all(known) {
            return Err(bad(KIND, "it names an item that is newer than the base"));
        }
        Ok(base)
    }
}

impl ReadField<'_> for BaseSlice {
    fn read(place: Place<'_>, reader: &mut MsgpackReader<'_>) -> Result<BaseSlice, Error> {
        let mut slice = BaseSlice::default();
        walk_part(place, &["s"], reader, |place, value| match place.field {
            "s" => value.read_into(place, &mut slice.slice),
            "items" => store(&mut slice.items, runs(value.bin()?)),
            _ => Ok(()),
        })?;
        Ok(slice)
    }
}

impl WriteField for BaseSlice {
    fn write(&self, writer: &mut MsgpackWriter) {
        let mut packed = Vec::with_capacity(self.items.len() * RUN_LEN);
        for ItemRun { first, version, count } in &self.items {
            packed.extend_from_slice(&first.sequence.to_le_bytes());
            packed.extend_from_slice(&first.ordinal.to_le_bytes());
            packed.extend_from_slice(&version.to_le_bytes());
            packed.extend_from_slice(&count.to_le_bytes());
        }
        writer.map(2).str("s").unsigned(u64::from(self.slice)).str("items").bin(&packed);
    }
}

fn runs(packed: &[u8]) -> Result<Vec<ItemRun>, Error> {
    let (runs, rest) = packed.as_chunks::<RUN_LEN>();
    if !rest.is_empty() {
        return Err(bad(KIND, "the names of its items end early"));
    }
    let run = |run: &[u8; RUN_LEN]| -> Option<ItemRun> {
        let number = |at: usize| Some(u32::from_le_bytes(*run.get(at..)?.first_chunk()?));
        let sequence = u64::from_le_bytes(*run.first_chunk()?).into();
        let first = ItemId { sequence, ordinal: number(8)? };
        Some(ItemRun { first, version: number(12)?, count: number(16)? })
    };
    runs.iter().map(|bytes| run(bytes).ok_or_else(|| bad(KIND, "the names of its items end early"))).collect()
}

impl<'a> Body<'a> for Base {
    fn set_json(self, object: &mut Object<'a>, names: &mut NameBudget<'_>) -> Result<(), Error> {
        // The ids of the items are in the frame.
        object.set("position", self.position);
        let mut slices = Vec::with_capacity(self.slices.len());
        for slice in self.slices {
            let count = slice.items.iter().map(|run| u64::from(run.count)).fold(0, u64::saturating_add);
            let name = names.slice(slice.slice, 2)?;
            slices.push(Part::Map(vec![("slice", name.into()), ("items", count.into())]));
        }
        object.set("slices", Part::Array(slices));
        object.flag("goes_on", self.goes_on);
        Ok(())
    }
}

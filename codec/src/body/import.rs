//! Encodes and decodes the import of an export's slices.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::fields::{
    Place, ReadField, WriteField, decode, encode, list, map_fields, store, walk, walk_map, walk_part,
};
use super::json::{NameBudget, Object, array, payload, tags};
use super::{Body, Payload};
use crate::Error;
use crate::msgpack::{MsgpackReader, MsgpackWriter};
use crate::record::time_text;

/// Imports the slices of an export into a new session, including LOG slices. Items that do not fit
/// into the record are in the import records after it, in order, which contain nothing else.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Import<'a> {
    /// Id of the exported session, or `None` if it is unknown.
    pub from: Option<Uuid>,
    /// Time of the export, in microseconds since 1970-01-01 UTC; `None` if it is unknown.
    pub exported_at_us: Option<i64>,
    /// Tags of the exported session.
    pub tags: BTreeMap<String, String>,
    /// Imported slices.
    pub slices: Vec<ImportedSlice<'a>>,
}

/// Contains one slice of an import.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImportedSlice<'a> {
    /// Id of the slice in the new session.
    pub slice: u32,
    /// Items of the slice in its order, each with the version of its type at which it was recorded.
    pub items: Vec<(Payload<'a>, u32)>,
}

map_fields! { impl<'a> Import<'a> {
    "from" => from,
    "at" => exported_at_us,
    "tags" => tags,
    "slices" => slices [always],
}}

impl<'a> Import<'a> {
    /// Encodes the body of an import as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        encode(0, self)
    }

    pub(super) fn listed_items(bytes: &[u8]) -> Result<u64, Error> {
        let mut listed = 0;
        walk("import", &[], bytes, |place, slices| {
            let len = if place.field == "slices" { slices.array()? } else { 0 };
            for _ in 0..len {
                walk_map(&mut slices.part()?, |name, items| {
                    listed += if name == "items" { u64::from(items.array()?) } else { 0 };
                    Ok(())
                })?;
            }
            Ok(())
        })?;
        Ok(listed)
    }

    /// Decodes the body of an import.
    pub fn decode(bytes: &'a [u8]) -> Result<Import<'a>, Error> {
        decode("import", bytes)
    }
}

impl<'a> ReadField<'a> for ImportedSlice<'a> {
    fn read(place: Place<'_>, reader: &mut MsgpackReader<'a>) -> Result<ImportedSlice<'a>, Error> {
        let (mut slice, mut versions) = (ImportedSlice::default(), None::<Vec<u32>>);
        walk_part(place, &["s"], reader, |place, value| match place.field {
            "s" => value.read_into(place, &mut slice.slice),
            "items" => store(&mut slice.items, list(value, |value| Ok((Payload::read_element(value)?, 1)))),
            "vers" => value.read_into(place, &mut versions),
            _ => Ok(()),
        })?;
        if let Some(versions) = versions {
            if versions.len() != slice.items.len() {
                return Err(place.bad("the numbers of items and versions differ"));
            }
            slice.items.iter_mut().zip(versions).for_each(|((_, slot), version)| *slot = version);
        }
        Ok(slice)
    }
}

impl WriteField for ImportedSlice<'_> {
    fn write(&self, writer: &mut MsgpackWriter) {
        writer.fields(|fields| {
            fields.set("s", &self.slice);
            let items = fields.field("items").array(self.items.len());
            self.items.iter().for_each(|(item, _)| item.write(items));
            if self.items.iter().any(|(_, version)| *version != 1) {
                let versions = fields.field("vers").array(self.items.len());
                self.items.iter().for_each(|(_, version)| version.write(versions));
            }
        });
    }
}

impl<'a> Body<'a> for Import<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        self.slices.iter().flat_map(|slice| &slice.items).map(|(item, _)| *item)
    }

    fn set_json(self, object: &mut Object<'a>, names: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("from", self.from.map(|id| id.to_string()));
        object.set("exported_at", self.exported_at_us.map(time_text));
        object.set("tags", tags(self.tags));
        let slices = array(self.slices.into_iter(), |slice| {
            let mut object = Object::with_capacity(2);
            object.set("slice", names.slice(slice.slice, 2)?);
            object.set("items", array(slice.items.iter(), |(item, _)| payload(*item))?);
            Ok(object.into_part())
        });
        object.set("slices", slices?);
        Ok(())
    }
}

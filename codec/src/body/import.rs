//! Encodes and decodes the import of an export's slices.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::fields::{bad, fixed, list, require_field, walk, walk_map};
use super::json::{NameBudget, Object, array, payload, tags};
use super::session_opening::{read_tags, write_tags};
use super::{Body, Payload};
use crate::Error;
use crate::msgpack::{MsgpackReader, MsgpackWriter, Value};
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
#[derive(Clone, Debug, PartialEq)]
pub struct ImportedSlice<'a> {
    /// Id of the slice in the new session.
    pub slice: u32,
    /// Items of the slice in its order, each with the version of its type at which it was recorded.
    pub items: Vec<(Payload<'a>, u32)>,
}

impl<'a> Import<'a> {
    /// Encodes the body of an import as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = MsgpackWriter::new();
        let fields = 1
            + usize::from(self.from.is_some())
            + usize::from(self.exported_at_us.is_some())
            + usize::from(!self.tags.is_empty());
        writer.map(fields);
        if let Some(from) = self.from {
            writer.str("from").bin(from.as_bytes());
        }
        if let Some(time_us) = self.exported_at_us {
            writer.str("at").signed(time_us);
        }
        if !self.tags.is_empty() {
            writer.str("tags");
            write_tags(&mut writer, &self.tags);
        }
        writer.str("slices").array(self.slices.len());
        for slice in &self.slices {
            let versioned = slice.items.iter().any(|(_, version)| *version != 1);
            writer.map(2 + usize::from(versioned)).str("s").unsigned(u64::from(slice.slice));
            writer.str("items").array(slice.items.len());
            slice.items.iter().for_each(|(item, _)| item.write(&mut writer));
            if versioned {
                writer.str("vers").array(slice.items.len());
                for (_, version) in &slice.items {
                    writer.unsigned(u64::from(*version));
                }
            }
        }
        writer.finish()
    }

    pub(super) fn listed_items(bytes: &[u8]) -> Result<u64, Error> {
        let mut listed = 0;
        walk("import", bytes, |name, slices| {
            let len = if name == "slices" { slices.array()? } else { 0 };
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
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, or if a field is missing or malformed.
    pub fn decode(bytes: &'a [u8]) -> Result<Import<'a>, Error> {
        let mut import =
            Import { from: None, exported_at_us: None, tags: BTreeMap::new(), slices: Vec::new() };
        walk("import", bytes, |name, value| {
            match name {
                "from" => import.from = Some(Uuid::from_bytes(fixed(value)?)),
                "at" => import.exported_at_us = Some(value.signed()?),
                "tags" => import.tags = read_tags(value)?,
                "slices" => import.slices = list(value, ImportedSlice::read)?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(import)
    }
}

impl<'a> ImportedSlice<'a> {
    fn read(reader: &mut MsgpackReader<'a>) -> Result<ImportedSlice<'a>, Error> {
        let (mut slice, mut items, mut versions) = (None, Vec::new(), None::<Vec<u32>>);
        walk_map(reader, |name, value| {
            match name {
                "s" => slice = Some(value.unsigned32()?),
                "items" => items = list(value, |value| Ok((Payload::read(value)?, 1)))?,
                "vers" => versions = Some(list(value, |value| value.unsigned32())?),
                _ => {}
            }
            Ok(())
        })?;
        if let Some(versions) = versions {
            if versions.len() != items.len() {
                return Err(bad("import", "the numbers of items and versions differ"));
            }
            items.iter_mut().zip(versions).for_each(|((_, slot), version)| *slot = version);
        }
        Ok(ImportedSlice { slice: require_field("import", "slices.s", slice)?, items })
    }
}

impl<'a> Body<'a> for Import<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        self.slices.iter().flat_map(|slice| &slice.items).map(|(item, _)| *item)
    }

    fn set_json(self, object: &mut Object<'a>, names: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("from", self.from.map_or(Value::Nil, |id| Value::from(id.to_string())));
        object
            .set("exported_at", self.exported_at_us.map_or(Value::Nil, |time| Value::from(time_text(time))));
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

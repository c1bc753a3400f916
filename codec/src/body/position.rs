//! Encodes and decodes records that concern a position: snapshots, rollbacks and imports.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::fields::{bad, fixed, list, require_field, walk, walk_map};
use super::opened::{read_tags, write_tags};
use super::operation::write_resources;
use super::{Lane, Payload, Policy, ResourceSnapshot};
use crate::msgpack::{MsgpackReader, MsgpackWriter};
use crate::{Error, SequenceNumber};

const SNAPSHOT: &str = "snapshot";

/// Marks a position, that of the record itself, for a later rollback.
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotBody<'a> {
    /// The host's tag for the snapshot.
    pub tag: Option<String>,
    /// Policies of the slices that the snapshot covers, in ascending order.
    pub policies: Vec<Policy>,
    /// Captures of resources that were taken with the snapshot, in the order of their names.
    /// Captures that do not outlive their process are omitted.
    pub resources: Vec<ResourceSnapshot<'a>>,
}

impl<'a> SnapshotBody<'a> {
    /// Returns all payloads of the record for modification, so that a writer can replace large ones
    /// by references.
    pub fn payloads_mut(&mut self) -> impl Iterator<Item = &mut Payload<'a>> {
        self.resources.iter_mut().filter_map(|resource| resource.snapshot.as_mut())
    }

    /// Encodes the body of a snapshot as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = MsgpackWriter::new();
        let stated = self.policies != [Policy::State];
        writer.map(
            usize::from(self.tag.is_some()) + usize::from(stated) + usize::from(!self.resources.is_empty()),
        );
        if let Some(tag) = &self.tag {
            writer.str("tag").str(tag);
        }
        if stated {
            writer.str("policies").array(self.policies.len());
            for policy in &self.policies {
                writer.str(policy.name());
            }
        }
        write_resources(&mut writer, &self.resources);
        writer.finish()
    }

    /// Decodes the body of a snapshot.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, or if a field is missing or malformed.
    pub fn decode(bytes: &'a [u8]) -> Result<SnapshotBody<'a>, Error> {
        let (mut tag, mut policies, mut resources) = (None, vec![Policy::State], Vec::new());
        walk(SNAPSHOT, bytes, |name, value| {
            match name {
                "tag" => tag = Some(value.str()?.to_owned()),
                "policies" => policies = list(value, read_policy)?,
                "res" => resources = list(value, |value| ResourceSnapshot::read(SNAPSHOT, value))?,
                _ => Lane::check(name, value)?,
            }
            Ok(())
        })?;
        Ok(SnapshotBody { tag, policies, resources })
    }
}

fn read_policy(reader: &mut MsgpackReader<'_>) -> Result<Policy, Error> {
    let name = reader.str()?;
    Policy::from_name(name).ok_or_else(|| bad(SNAPSHOT, format!("unknown policy `{name}`")))
}

/// Rolls STATE back to an earlier position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollback {
    /// Target: the sequence number of the last record whose changes are preserved.
    pub to: SequenceNumber,
    /// Whether LOG is unchanged. Only tests also roll LOG back.
    pub preserve_logs: bool,
}

impl Rollback {
    /// Encodes the body of a rollback as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = MsgpackWriter::new();
        writer.map(1 + usize::from(!self.preserve_logs)).str("to").unsigned(self.to.get());
        if !self.preserve_logs {
            writer.str("logs").bool(false);
        }
        writer.finish()
    }

    /// Decodes the body of a rollback.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, or if a field is missing or malformed.
    pub fn decode(bytes: &[u8]) -> Result<Rollback, Error> {
        let (mut to, mut preserve_logs) = (None, true);
        walk("rollback", bytes, |name, value| {
            match name {
                "to" => to = Some(value.unsigned()?.into()),
                "logs" => preserve_logs = value.bool()?,
                _ => Lane::check(name, value)?,
            }
            Ok(())
        })?;
        Ok(Rollback { to: require_field("rollback", "to", to)?, preserve_logs })
    }
}

/// Imports the slices of an export into a new session, including LOG slices. Items that do not fit
/// into the record are in the import records after it, in order, which contain nothing else.
#[derive(Clone, Debug, PartialEq)]
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

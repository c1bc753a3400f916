//! Encodes and decodes a snapshot.

use super::fields::{bad, list, walk};
use super::json::{NameBudget, Object};
use super::operation::{resources_json, write_resources};
use super::{Body, Lane, Payload, Policy, ResourceSnapshot};
use crate::Error;
use crate::msgpack::{MsgpackReader, MsgpackWriter, Value};

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

impl<'a> Body<'a> for SnapshotBody<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        self.payloads_mut().map(|payload| *payload)
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("tag", self.tag.map_or(Value::Nil, Value::from));
        let policies = self.policies.iter().map(|policy| Value::from(policy.name()));
        object.set("policies", Value::Array(policies.collect()));
        if !self.resources.is_empty() {
            object.set("resources", resources_json(self.resources)?);
        }
        Ok(())
    }
}

//! Encodes and decodes a snapshot.

use super::fields::{decode, encode, map_fields};
use super::json::{NameBudget, Object};
use super::operation::{ResourceSnapshot, resources_json};
use super::{Body, Lane, Payload, Policy};
use crate::Error;

/// Marks a position, that of the record itself, for a later rollback.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SnapshotBody<'a> {
    /// The host's tag for the snapshot.
    pub tag: Option<String>,
    /// Policies of the slices that the snapshot covers, in ascending order.
    pub policies: Vec<Policy>,
    /// Captures of resources that were taken with the snapshot, in the order of their names.
    /// Captures that do not outlive their process are omitted.
    pub resources: Vec<ResourceSnapshot<'a>>,
}

map_fields! { impl<'a> SnapshotBody<'a> {
    "tag" => tag,
    "policies" => policies [or vec![Policy::State]],
    "res" => resources,
    _ => Lane::check,
}}

impl<'a> SnapshotBody<'a> {
    /// Returns all payloads of the record for modification, so that a writer can replace large ones
    /// by references.
    pub fn payloads_mut(&mut self) -> impl Iterator<Item = &mut Payload<'a>> {
        self.resources.iter_mut().filter_map(|resource| resource.snapshot.as_mut())
    }

    /// Encodes the body of a snapshot as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        encode(0, self)
    }

    /// Decodes the body of a snapshot.
    pub fn decode(bytes: &'a [u8]) -> Result<SnapshotBody<'a>, Error> {
        decode("snapshot", bytes)
    }
}

impl<'a> Body<'a> for SnapshotBody<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        self.payloads_mut().map(|payload| *payload)
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("tag", self.tag);
        object.set("policies", self.policies.iter().map(|policy| policy.name()).collect::<Vec<_>>());
        if !self.resources.is_empty() {
            object.set("resources", resources_json(self.resources)?);
        }
        Ok(())
    }
}

//! Encodes and decodes an observation.

use std::iter;

use super::fields::{decode, encode, map_fields};
use super::json::{NameBudget, Object, payload};
use super::{Body, Lane, Payload};
use crate::Error;

/// Records a fact that the host or the engine observed, for later readers. It changes no slice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed<'a> {
    /// Name of the observation's type.
    pub name: String,
    /// Observed value.
    pub data: Payload<'a>,
}

map_fields! { impl<'a> Observed<'a> {
    "n" => name [required],
    "d" => data [required],
    _ => Lane::check,
}}

impl<'a> Observed<'a> {
    /// Encodes the body of an observation as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        encode(0, self)
    }

    /// Decodes the body of an observation.
    pub fn decode(bytes: &'a [u8]) -> Result<Observed<'a>, Error> {
        decode("observed", bytes)
    }
}

impl<'a> Body<'a> for Observed<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        iter::once(self.data)
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("name", self.name);
        object.set("data", payload(self.data)?);
        Ok(())
    }
}

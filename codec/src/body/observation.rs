//! Encodes and decodes an observation.

use std::iter;

use super::fields::{encode_fields, walk};
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

impl<'a> Observed<'a> {
    /// Encodes the body of an observation as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        encode_fields(0, |fields| {
            fields.set("n", &self.name);
            fields.set("d", self.data);
        })
    }

    /// Decodes the body of an observation.
    pub fn decode(bytes: &'a [u8]) -> Result<Observed<'a>, Error> {
        let mut observed = Observed::default();
        walk("observed", &["n", "d"], bytes, |name, value| match name {
            "n" => value.read_into(&mut observed.name),
            "d" => value.read_into(&mut observed.data),
            _ => Lane::check(name, value),
        })?;
        Ok(observed)
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

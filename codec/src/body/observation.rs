//! Encodes and decodes an observation.

use std::iter;

use super::fields::{require_field, walk};
use super::json::{NameBudget, Object, payload};
use super::{Body, Lane, Payload};
use crate::Error;
use crate::msgpack::{MsgpackWriter, Value};

const OBSERVED: &str = "observed";

/// Records a fact that the host or the engine observed, for later readers. It changes no slice.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed<'a> {
    /// Name of the observation's type.
    pub name: String,
    /// Observed value.
    pub data: Payload<'a>,
}

impl<'a> Observed<'a> {
    /// Encodes the body of an observation as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = MsgpackWriter::new();
        writer.map(2).str("n").str(&self.name).str("d");
        self.data.write(&mut writer);
        writer.finish()
    }

    /// Decodes the body of an observation.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, or if a field is missing or malformed.
    pub fn decode(bytes: &'a [u8]) -> Result<Observed<'a>, Error> {
        let (mut observed, mut data) = (None, None);
        walk(OBSERVED, bytes, |name, value| {
            match name {
                "n" => observed = Some(value.str()?.to_owned()),
                "d" => data = Some(Payload::new(value.rest())),
                _ => Lane::check(name, value)?,
            }
            Ok(())
        })?;
        Ok(Observed {
            name: require_field(OBSERVED, "n", observed)?,
            data: require_field(OBSERVED, "d", data)?,
        })
    }
}

impl<'a> Body<'a> for Observed<'a> {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        iter::once(self.data)
    }

    fn set_json(self, object: &mut Object<'a>, _: &mut NameBudget<'_>) -> Result<(), Error> {
        object.set("name", Value::from(self.name));
        object.set("data", payload(self.data)?);
        Ok(())
    }
}

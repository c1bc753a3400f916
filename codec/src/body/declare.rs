//! Encodes and decodes declarations of events and slices.

use std::collections::BTreeMap;

use super::fields::{WriteField, bad, encode_fields, list, store, walk, walk_part};
use super::json::{NameBudget, Object, Part, array};
use super::{Body, Policy};
use crate::Error;
use crate::msgpack::{MsgpackReader, MsgpackWriter};

const KIND: &str = "declare";

/// Declares events and slices: binds their names to the small integers that records use.
///
/// A rollback does not undo a declaration. A later declaration of an id replaces the earlier one
/// for the records that follow. The writer repeats all declarations in an envelope frame at the
/// head of each segment.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Declare {
    /// Declared events.
    pub events: Vec<EventDeclaration>,
    /// Declared slices.
    pub slices: Vec<SliceDeclaration>,
}

/// Declares one event type at one version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventDeclaration {
    /// Integer that identifies the event in records.
    pub id: u32,
    /// The host's name for the event.
    pub name: String,
    /// Version of the payloads that are recorded under this id.
    pub version: u32,
    /// Slices that the event reduces into, each with its effect.
    pub bindings: Vec<Binding>,
    /// Whether the host never declared the event. Such an event is appended to its own implicit
    /// slice.
    pub implicit: bool,
}

/// Binds an event to one slice that it reduces into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Id of the slice.
    pub slice: u32,
    /// Effect on the slice if the record of a dispatch lists no effects.
    pub built_in: BuiltIn,
}

/// Names an effect of an event on a slice that a record may omit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuiltIn {
    /// The event is appended to the slice.
    Append,
    /// The event replaces all items of the slice.
    Replace,
    /// There is no built-in effect: every record lists its effects.
    Explicit,
}

impl BuiltIn {
    /// Returns the effect's name in JSON: `append`, `replace` or `explicit`.
    pub fn name(self) -> &'static str {
        match self {
            BuiltIn::Append => "append",
            BuiltIn::Replace => "replace",
            BuiltIn::Explicit => "explicit",
        }
    }

    fn code(self) -> u64 {
        match self {
            BuiltIn::Append => 0,
            BuiltIn::Replace => 1,
            BuiltIn::Explicit => 2,
        }
    }

    fn from_code(code: u64) -> Option<BuiltIn> {
        [BuiltIn::Append, BuiltIn::Replace, BuiltIn::Explicit].into_iter().find(|op| op.code() == code)
    }
}

/// Declares one slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SliceDeclaration {
    /// Integer that identifies the slice in records.
    pub id: u32,
    /// Name of the slice.
    pub name: String,
    /// Effect of a rollback on the slice.
    pub policy: Policy,
    /// Name of the type of the slice's items.
    pub item: String,
}

impl Declare {
    /// Encodes the body of a declaration as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        encode_fields(0, |fields| {
            fields.list("events", &self.events);
            fields.list("slices", &self.slices);
        })
    }

    /// Returns an upper bound, in bytes, of the length of the encoded declaration.
    pub fn len_max(&self) -> usize {
        let events = self.events.iter().map(EventDeclaration::len_max);
        events
            .chain(self.slices.iter().map(SliceDeclaration::len_max))
            .fold(FIELDS_BYTES, usize::saturating_add)
    }

    /// Decodes the body of a declaration.
    pub fn decode(bytes: &[u8]) -> Result<Declare, Error> {
        let mut declare = Declare::default();
        walk(KIND, &[], bytes, |name, value| match name {
            "events" => store(&mut declare.events, list(value, EventDeclaration::read)),
            "slices" => store(&mut declare.slices, list(value, SliceDeclaration::read)),
            _ => Ok(()),
        })?;
        Ok(declare)
    }
}

/// Upper bound, in bytes, of the fields of a declaration without names and bindings. It counts at
/// least six bytes for each MessagePack value, so that a bound in bytes also bounds the number of
/// values.
const FIELDS_BYTES: usize = 72;

/// Upper bound, in bytes, of one binding: six for each of its two values.
const BINDING_BYTES: usize = 12;

impl EventDeclaration {
    /// Returns an upper bound, in bytes, of the declaration's length in a body.
    pub fn len_max(&self) -> usize {
        FIELDS_BYTES + self.name.len() + BINDING_BYTES * self.bindings.len()
    }

    fn read(reader: &mut MsgpackReader<'_>) -> Result<EventDeclaration, Error> {
        let mut event = EventDeclaration { version: 1, ..EventDeclaration::default() };
        walk_part(KIND, &["events.id", "events.name"], reader, |name, value| match name {
            "id" => value.read_into(&mut event.id),
            "name" => value.read_into(&mut event.name),
            "ver" => value.read_into(&mut event.version),
            "to" => store(&mut event.bindings, read_bindings(value)),
            "implicit" => value.read_into(&mut event.implicit),
            _ => Ok(()),
        })?;
        Ok(event)
    }
}

impl WriteField for EventDeclaration {
    fn write(&self, writer: &mut MsgpackWriter) {
        writer.fields(|fields| {
            fields.set("id", self.id);
            fields.set("name", &self.name);
            fields.some("ver", (self.version != 1).then_some(self.version));
            let bindings = fields.field("to").array(2 * self.bindings.len());
            for binding in &self.bindings {
                bindings.unsigned(u64::from(binding.slice)).unsigned(binding.built_in.code());
            }
            fields.flag("implicit", self.implicit);
        });
    }
}

fn read_bindings(reader: &mut MsgpackReader<'_>) -> Result<Vec<Binding>, Error> {
    let numbers = list(reader, |reader| reader.unsigned32())?;
    let (pairs, rest) = numbers.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(bad(KIND, "a binding is not a pair of slice and effect"));
    }
    pairs
        .iter()
        .map(|&[slice, code]| {
            let built_in = BuiltIn::from_code(u64::from(code))
                .ok_or_else(|| bad(KIND, format!("unknown effect {code} in a binding")))?;
            Ok(Binding { slice, built_in })
        })
        .collect()
}

impl SliceDeclaration {
    /// Returns an upper bound, in bytes, of the declaration's length in a body.
    pub fn len_max(&self) -> usize {
        let item = if self.item == self.name { 0 } else { self.item.len() };
        FIELDS_BYTES + self.name.len() + item
    }

    fn read(reader: &mut MsgpackReader<'_>) -> Result<SliceDeclaration, Error> {
        let (mut slice, mut item) = (SliceDeclaration::default(), None);
        walk_part(KIND, &["slices.name", "slices.id"], reader, |name, value| match name {
            "id" => value.read_into(&mut slice.id),
            "name" => value.read_into(&mut slice.name),
            "policy" => store(&mut slice.policy, Policy::read(KIND, value)),
            "item" => value.read_into(&mut item),
            _ => Ok(()),
        })?;
        slice.item = item.unwrap_or_else(|| slice.name.clone());
        Ok(slice)
    }
}

impl WriteField for SliceDeclaration {
    fn write(&self, writer: &mut MsgpackWriter) {
        writer.fields(|fields| {
            fields.set("id", self.id);
            fields.set("name", &self.name);
            fields.some("policy", (self.policy != Policy::State).then(|| self.policy.name()));
            fields.some("item", (self.item != self.name).then_some(&self.item));
        });
    }
}

impl<'a> Body<'a> for Declare {
    fn set_json(self, object: &mut Object<'a>, names: &mut NameBudget<'_>) -> Result<(), Error> {
        // A declaration names its own slices; those of its bindings may have been declared earlier.
        let own: BTreeMap<u32, &str> =
            self.slices.iter().map(|slice| (slice.id, slice.name.as_str())).collect();
        let events = array(self.events.into_iter(), |event| {
            let mut object = Object::with_capacity(5);
            object.set("id", event.id);
            object.set("name", event.name);
            object.set("version", event.version);
            let bindings = array(event.bindings.iter(), |binding| {
                let mut object = Object::with_capacity(2);
                let name = own
                    .get(&binding.slice)
                    .map_or_else(|| names.known().slice(binding.slice), |name| (*name).into());
                object.set("slice", names.name(&name, 2)?);
                object.set("effect", binding.built_in.name());
                Ok(object.into_part())
            });
            object.set("bindings", bindings?);
            object.set("implicit", event.implicit);
            Ok(object.into_part())
        })?;
        let slices = self.slices.into_iter().map(|slice| {
            let mut object = Object::default();
            object.set("id", slice.id);
            object.set("name", slice.name);
            object.set("policy", slice.policy.name());
            object.set("item", slice.item);
            object.into_part()
        });
        object.set("events", events);
        object.set("slices", Part::Array(slices.collect()));
        Ok(())
    }
}

//! Encodes and decodes declarations of events and slices.

use std::collections::BTreeMap;

use super::fields::{Place, ReadField, WriteField, decode, encode, map_fields, walk_part};
use super::json::{NameBudget, Object, Part, array};
use super::{Body, Policy};
use crate::Error;
use crate::msgpack::{MsgpackReader, MsgpackWriter};

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
    Append = 0,
    /// The event replaces all items of the slice.
    Replace = 1,
    /// There is no built-in effect: every record lists its effects.
    Explicit = 2,
}

impl BuiltIn {
    const ALL: [BuiltIn; 3] = [BuiltIn::Append, BuiltIn::Replace, BuiltIn::Explicit];

    /// Returns the effect's name in JSON: `append`, `replace` or `explicit`.
    pub fn name(self) -> &'static str {
        match self {
            BuiltIn::Append => "append",
            BuiltIn::Replace => "replace",
            BuiltIn::Explicit => "explicit",
        }
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

map_fields! { impl<'a> Declare {
    "events" => events,
    "slices" => slices,
}}

map_fields! { impl<'a> EventDeclaration {
    "id" => id [required],
    "name" => name [required],
    "ver" => version [or 1],
    "to" => bindings [always],
    "implicit" => implicit,
}}

impl Declare {
    /// Encodes the body of a declaration as MessagePack.
    pub fn encode(&self) -> Vec<u8> {
        encode(0, self)
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
        decode("declare", bytes)
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
}

impl WriteField for Vec<Binding> {
    fn write(&self, writer: &mut MsgpackWriter) {
        writer.array(2 * self.len());
        for binding in self {
            writer.unsigned(u64::from(binding.slice)).unsigned(binding.built_in as u64);
        }
    }
}

impl ReadField<'_> for Vec<Binding> {
    fn read(place: Place<'_>, reader: &mut MsgpackReader<'_>) -> Result<Vec<Binding>, Error> {
        let numbers = Vec::<u32>::read(place, reader)?;
        let (pairs, rest) = numbers.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(place.bad("a binding is not a pair of slice and effect"));
        }
        let binding = |&[slice, code]: &[u32; 2]| {
            let built_in = BuiltIn::ALL.into_iter().find(|built_in| *built_in as u32 == code);
            let unknown = || place.bad(format!("unknown effect {code} in a binding"));
            built_in.map(|built_in| Binding { slice, built_in }).ok_or_else(unknown)
        };
        pairs.iter().map(binding).collect()
    }
}

impl SliceDeclaration {
    /// Returns an upper bound, in bytes, of the declaration's length in a body.
    pub fn len_max(&self) -> usize {
        let item = if self.item == self.name { 0 } else { self.item.len() };
        FIELDS_BYTES + self.name.len() + item
    }
}

impl ReadField<'_> for SliceDeclaration {
    fn read(place: Place<'_>, reader: &mut MsgpackReader<'_>) -> Result<SliceDeclaration, Error> {
        let (mut slice, mut item) = (SliceDeclaration::default(), None);
        walk_part(place, &["name", "id"], reader, |place, value| match place.field {
            "id" => value.read_into(place, &mut slice.id),
            "name" => value.read_into(place, &mut slice.name),
            "policy" => value.read_into(place, &mut slice.policy),
            "item" => value.read_into(place, &mut item),
            _ => Ok(()),
        })?;
        slice.item = item.unwrap_or_else(|| slice.name.clone());
        Ok(slice)
    }
}

impl WriteField for SliceDeclaration {
    fn write(&self, writer: &mut MsgpackWriter) {
        writer.fields(|fields| {
            fields.set("id", &self.id);
            fields.set("name", &self.name);
            fields.unless("policy", &self.policy, &Policy::State);
            fields.unless("item", &self.item, &self.name);
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

//! Encodes and decodes declarations of events and slices.

use std::collections::BTreeMap;
use std::iter;

use super::fields::{bad, list, require_field, walk, walk_map};
use super::json::{NameBudget, Object, Part, array};
use super::{Body, Payload, Policy};
use crate::Error;
use crate::msgpack::{MsgpackReader, MsgpackWriter, Value};

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
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
        let mut writer = MsgpackWriter::new();
        writer.map(usize::from(!self.events.is_empty()) + usize::from(!self.slices.is_empty()));
        if !self.events.is_empty() {
            writer.str("events").array(self.events.len());
            for event in &self.events {
                event.write(&mut writer);
            }
        }
        if !self.slices.is_empty() {
            writer.str("slices").array(self.slices.len());
            for slice in &self.slices {
                slice.write(&mut writer);
            }
        }
        writer.finish()
    }

    /// Returns an upper bound, in bytes, of the length of the encoded declaration.
    pub fn len_max(&self) -> usize {
        let events = self.events.iter().map(EventDeclaration::len_max);
        events
            .chain(self.slices.iter().map(SliceDeclaration::len_max))
            .fold(FIELDS_BYTES, usize::saturating_add)
    }

    /// Decodes the body of a declaration.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Body`] if the bytes are not one MessagePack map within the default limits,
    /// if its version is unsupported, or if a field is missing or malformed.
    pub fn decode(bytes: &[u8]) -> Result<Declare, Error> {
        let mut declare = Declare::default();
        walk(KIND, bytes, |name, value| {
            match name {
                "events" => declare.events = list(value, EventDeclaration::read)?,
                "slices" => declare.slices = list(value, SliceDeclaration::read)?,
                _ => {}
            }
            Ok(())
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

    fn write(&self, writer: &mut MsgpackWriter) {
        let versioned = self.version != 1;
        writer.map(3 + usize::from(versioned) + usize::from(self.implicit));
        writer.str("id").unsigned(u64::from(self.id)).str("name").str(&self.name);
        if versioned {
            writer.str("ver").unsigned(u64::from(self.version));
        }
        writer.str("to").array(2 * self.bindings.len());
        for binding in &self.bindings {
            writer.unsigned(u64::from(binding.slice)).unsigned(binding.built_in.code());
        }
        if self.implicit {
            writer.str("implicit").bool(true);
        }
    }

    fn read(reader: &mut MsgpackReader<'_>) -> Result<EventDeclaration, Error> {
        let (mut id, mut event_name, mut version, mut bindings, mut implicit) =
            (None, None, 1, Vec::new(), false);
        walk_map(reader, |name, value| {
            match name {
                "id" => id = Some(value.unsigned32()?),
                "name" => event_name = Some(value.str()?.to_owned()),
                "ver" => version = value.unsigned32()?,
                "to" => bindings = read_bindings(value)?,
                "implicit" => implicit = value.bool()?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(EventDeclaration {
            id: require_field(KIND, "events.id", id)?,
            name: require_field(KIND, "events.name", event_name)?,
            version,
            bindings,
            implicit,
        })
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

    fn write(&self, writer: &mut MsgpackWriter) {
        let (stated, typed) = (self.policy != Policy::State, self.item != self.name);
        writer.map(2 + usize::from(stated) + usize::from(typed));
        writer.str("id").unsigned(u64::from(self.id)).str("name").str(&self.name);
        if stated {
            writer.str("policy").str(self.policy.name());
        }
        if typed {
            writer.str("item").str(&self.item);
        }
    }

    fn read(reader: &mut MsgpackReader<'_>) -> Result<SliceDeclaration, Error> {
        let (mut id, mut slice_name, mut policy, mut item) = (None, None, Policy::State, None);
        walk_map(reader, |name, value| {
            match name {
                "id" => id = Some(value.unsigned32()?),
                "name" => slice_name = Some(value.str()?.to_owned()),
                "policy" => {
                    let text = value.str()?;
                    policy = Policy::from_name(text)
                        .ok_or_else(|| bad(KIND, format!("unknown policy `{text}`")))?;
                }
                "item" => item = Some(value.str()?.to_owned()),
                _ => {}
            }
            Ok(())
        })?;
        let slice_name = require_field(KIND, "slices.name", slice_name)?;
        Ok(SliceDeclaration {
            id: require_field(KIND, "slices.id", id)?,
            item: item.unwrap_or_else(|| slice_name.clone()),
            name: slice_name,
            policy,
        })
    }
}

impl<'a> Body<'a> for Declare {
    fn payloads(&mut self) -> impl Iterator<Item = Payload<'a>> {
        iter::empty()
    }

    fn set_json(self, object: &mut Object<'a>, names: &mut NameBudget<'_>) -> Result<(), Error> {
        // A declaration names its own slices; those of its bindings may have been declared earlier.
        let own: BTreeMap<u32, &str> =
            self.slices.iter().map(|slice| (slice.id, slice.name.as_str())).collect();
        let events = array(self.events.into_iter(), |event| {
            let mut object = Object::with_capacity(5);
            object.set("id", Value::from(u64::from(event.id)));
            object.set("name", Value::from(event.name));
            object.set("version", Value::from(u64::from(event.version)));
            let bindings = array(event.bindings.iter(), |binding| {
                let mut object = Object::with_capacity(2);
                let name = own
                    .get(&binding.slice)
                    .map_or_else(|| names.known().slice(binding.slice), |name| (*name).into());
                object.set("slice", names.name(&name, 2)?);
                object.set("effect", Value::from(binding.built_in.name()));
                Ok(object.into_part())
            });
            object.set("bindings", bindings?);
            object.set("implicit", Value::from(event.implicit));
            Ok(object.into_part())
        })?;
        let slices = self.slices.into_iter().map(|slice| {
            let mut object = Object::default();
            object.set("id", Value::from(u64::from(slice.id)));
            object.set("name", Value::from(slice.name));
            object.set("policy", Value::from(slice.policy.name()));
            object.set("item", Value::from(slice.item));
            object.into_part()
        });
        object.set("events", events);
        object.set("slices", Part::Array(slices.collect()));
        Ok(())
    }
}

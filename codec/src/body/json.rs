//! The parts of a record's JSON form, from which each body builds its own fields.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::{ItemId, Lane, Payload};
use crate::Error;
use crate::msgpack::{Hex, JsonStream, LeftOut, MSGPACK, OBJECT, Value, ValueLimits, serialize_tagged};
use crate::record::RecordNames;

/// Bounds the memory of the names in a JSON form, and of the objects that start with one.
///
/// One byte of a hostile body can cause such an object, and a copy of a name that is as long as a
/// record. Without a budget, a record of 200 kB took gigabytes.
pub(crate) struct NameBudget<'n> {
    known: &'n RecordNames,
    left: usize,
    max: usize,
}

impl<'n> NameBudget<'n> {
    /// Returns the budget of a body: three quarters of the 64 bytes of memory that each byte of a
    /// body may take. The decoded body itself takes the rest.
    pub(crate) fn for_body(body: &[u8], known: &'n RecordNames) -> NameBudget<'n> {
        let max = ((640 << 10) + 48 * body.len()).min(NAMES_BYTES_MAX);
        NameBudget { known, left: max, max }
    }

    /// Returns the names that the log has declared.
    pub(crate) fn known(&self) -> &'n RecordNames {
        self.known
    }

    /// Charges for the name of a slice, as [`name`](NameBudget::name) does, and returns it.
    pub(crate) fn slice(&mut self, id: u32, fields: usize) -> Result<Value, Error> {
        self.name(&self.known.slice(id), fields)
    }

    /// Charges for a name that is the first field of an object of `fields` fields, and returns the
    /// name as a value.
    pub(crate) fn name(&mut self, name: &str, fields: usize) -> Result<Value, Error> {
        let cost = size_of::<Part<'_>>() * (1 + 2 * fields) + TEXTS + name.len();
        self.left = self.left.checked_sub(cost).ok_or(Error::Limit {
            offset: 0,
            limit: "size of the JSON form",
            max: self.max as u64,
        })?;
        Ok(Value::from(name))
    }
}

/// Number of bytes that a [`NameBudget`] allows at most, regardless of the length of the body.
const NAMES_BYTES_MAX: usize = 48 << 20;

/// Approximate number of bytes of the other texts in an object that starts with a name.
const TEXTS: usize = 24;

#[derive(Debug)]
pub(crate) enum Part<'a> {
    Value(Value),
    /// A payload of a host, still MessagePack.
    Payload(JsonStream<'a>),
    /// Bytes that become hexadecimal digits.
    Hex(&'a [u8]),
    /// A payload over the limits of JSON, which becomes the hexadecimal digits of its MessagePack.
    MessagePack(&'a [u8]),
    /// Ids of items, which become pairs of sequence number and ordinal.
    Ids(Vec<ItemId>),
    /// Names with their texts, which become the fields of an object.
    Texts(Vec<(Cow<'a, str>, Cow<'a, str>)>),
    /// An omitted payload, as its MessagePack.
    LeftOut(&'a [u8]),
    Array(Vec<Part<'a>>),
    Map(Vec<(&'static str, Part<'a>)>),
}

impl<T: Into<Value>> From<T> for Part<'_> {
    fn from(value: T) -> Self {
        Part::Value(value.into())
    }
}

impl Part<'_> {
    /// Replaces the payloads in the field `key` by their type, length and digest.
    pub(crate) fn leave_out(&mut self, key: &str) {
        match self {
            Part::Payload(payload) => *self = Part::LeftOut(payload.bytes()),
            Part::Hex(bytes) | Part::MessagePack(bytes) => *self = Part::LeftOut(bytes),
            Part::Texts(texts) => *texts = Vec::new(),
            Part::Value(value @ Value::Str(_)) if key == "message" => *value = Value::Nil,
            Part::Array(parts) => parts.iter_mut().for_each(|part| part.leave_out("")),
            Part::Map(pairs) => pairs.iter_mut().for_each(|(key, part)| part.leave_out(key)),
            Part::Value(_) | Part::Ids(_) | Part::LeftOut(_) => {}
        }
    }

    pub(crate) fn into_value(self) -> Value {
        match self {
            Part::Value(value) => value,
            Part::LeftOut(bytes) => Value::from(LeftOut(bytes).type_name()),
            Part::Payload(payload) => payload.to_value(),
            Part::Hex(bytes) => Value::from(Hex(bytes).to_string()),
            Part::MessagePack(bytes) => {
                Value::Map(vec![(Value::from(MSGPACK), Value::from(Hex(bytes).to_string()))])
            }
            Part::Ids(ids) => Value::Array(ids.into_iter().map(id_value).collect()),
            Part::Texts(texts) => {
                let mut values = Vec::with_capacity(texts.len());
                let value = |text: Cow<'_, str>| Value::from(text.into_owned());
                values.extend(texts.into_iter().map(|(name, text)| (value(name), value(text))));
                Value::Map(values)
            }
            Part::Array(parts) => {
                // Exact capacity: a body may contain many arrays, and spare capacity in each adds
                // up.
                let mut values = Vec::with_capacity(parts.len());
                values.extend(parts.into_iter().map(Part::into_value));
                Value::Array(values)
            }
            Part::Map(pairs) => {
                let mut values = Vec::with_capacity(pairs.len());
                values.extend(pairs.into_iter().map(|(key, part)| (Value::from(key), part.into_value())));
                Value::Map(values)
            }
        }
    }
}

impl Serialize for Part<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Part::Value(value) => value.serialize(serializer),
            Part::Payload(payload) => payload.serialize(serializer),
            Part::Hex(bytes) => Hex(bytes).serialize(serializer),
            Part::MessagePack(bytes) => serialize_tagged(serializer, MSGPACK, &Hex(bytes)),
            Part::LeftOut(bytes) => LeftOut(bytes).serialize(serializer),
            Part::Ids(ids) => serializer.collect_seq(ids.iter().map(|id| (id.sequence, id.ordinal))),
            Part::Texts(texts) => serializer.collect_map(texts.iter().map(|(name, text)| (name, text))),
            Part::Array(parts) => serializer.collect_seq(parts),
            Part::Map(pairs) => serializer.collect_map(pairs.iter().map(|(key, part)| (key, part))),
        }
    }
}

#[derive(Default)]
pub(crate) struct Object<'a> {
    pub(crate) pairs: Vec<(&'static str, Part<'a>)>,
}

impl<'a> Object<'a> {
    /// Creates an object with capacity for exactly `fields` fields: a body may contain many
    /// objects, and spare capacity in each adds up.
    pub(crate) fn with_capacity(fields: usize) -> Object<'a> {
        Object { pairs: Vec::with_capacity(fields) }
    }

    pub(crate) fn set(&mut self, key: &'static str, part: impl Into<Part<'a>>) {
        self.pairs.push((key, part.into()));
    }

    /// Adds a value that is there, and nothing for `None`.
    pub(crate) fn some(&mut self, key: &'static str, part: Option<impl Into<Part<'a>>>) {
        if let Some(part) = part {
            self.set(key, part);
        }
    }

    /// Adds a flag that is true, and nothing for `false`.
    pub(crate) fn flag(&mut self, key: &'static str, flag: bool) {
        self.some(key, flag.then_some(true));
    }

    pub(crate) fn into_part(self) -> Part<'a> {
        Part::Map(self.pairs)
    }
}

pub(crate) fn array<'a, T>(
    items: impl ExactSizeIterator<Item = T>,
    part: impl FnMut(T) -> Result<Part<'a>, Error>,
) -> Result<Part<'a>, Error> {
    let mut parts = Vec::with_capacity(items.len());
    for item in items.map(part) {
        parts.push(item?);
    }
    Ok(Part::Array(parts))
}

pub(crate) fn hex<const N: usize>(bytes: [u8; N]) -> String {
    Hex(&bytes).to_string()
}

pub(crate) fn tags(tags: BTreeMap<String, String>) -> Value {
    Value::Map(tags.into_iter().map(|(key, value)| (Value::from(key), Value::from(value))).collect())
}

pub(crate) fn payload(payload: Payload<'_>) -> Result<Part<'_>, Error> {
    match payload.object() {
        // No host can have passed in a value over these limits, and many readers of JSON accept 128
        // levels in all.
        None => match JsonStream::new(payload.bytes(), ValueLimits::of_payload()) {
            Err(Error::Limit { .. }) => Ok(Part::MessagePack(payload.bytes())),
            streamed => streamed.map(Part::Payload),
        },
        Some(object) => {
            Ok(Part::Map(vec![(OBJECT, object.file_name().into()), ("bytes", object.len.into())]))
        }
    }
}

pub(crate) fn optional(value: Option<Payload<'_>>) -> Result<Part<'_>, Error> {
    value.map_or(Ok(Part::Value(Value::Nil)), payload)
}

pub(crate) fn set_lane(object: &mut Object<'_>, lane: Lane<'_>) {
    object.some("within", lane.within);
    object.some("lane", lane.name);
}

pub(crate) fn id_value(id: ItemId) -> Value {
    Value::from(vec![Value::from(id.sequence), Value::from(id.ordinal)])
}

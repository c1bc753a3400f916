//! Represents MessagePack values of any shape.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

use super::{MsgpackReader, MsgpackToken, MsgpackWriter, ValueLimits, check_within};
use crate::{Error, escape};

/// Represents a MessagePack value of any type. Maps preserve the order of their pairs, which is
/// part of the record.
///
/// ```
/// use foldlog_codec::msgpack::{Value, from_json};
///
/// let mut step = from_json(r#"{"title": "ship it", "state": "open"}"#).unwrap();
/// step.set("state", Value::from("done"));
/// assert_eq!(step.get("state").and_then(Value::as_str), Some("done"));
/// assert_eq!(Value::decode(&step.encode())?, step);
/// assert_eq!(serde_json::to_string(&step).unwrap(), r#"{"title":"ship it","state":"done"}"#);
/// # Ok::<(), foldlog_codec::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Default)]
pub enum Value {
    /// Nil, the absence of a value: `null` in JSON.
    #[default]
    Nil,
    /// Boolean.
    Bool(bool),
    /// Integer of 0 or more, in any encoding.
    Unsigned(u64),
    /// Integer below 0.
    Signed(i64),
    /// Floating-point number of 32 bits.
    F32(f32),
    /// Floating-point number of 64 bits.
    F64(f64),
    /// Text.
    Str(String),
    /// Byte string.
    Bin(Vec<u8>),
    /// Extension: its type and its bytes.
    Ext(i8, Vec<u8>),
    /// Array of values.
    Array(Vec<Value>),
    /// Map: pairs of key and value, in their order.
    Map(Vec<(Value, Value)>),
}

impl Value {
    /// Decodes exactly one value within the default [`ValueLimits`]. The value takes at most 64
    /// times the memory of the bytes.
    ///
    /// # Errors
    ///
    /// - [`Error::Truncated`] if the value ends early.
    /// - [`Error::Malformed`] if the bytes are not MessagePack, continue after the value or contain
    ///   text that is not UTF-8.
    /// - [`Error::Limit`] if the value is over the limits.
    pub fn decode(bytes: &[u8]) -> Result<Value, Error> {
        Value::decode_within(bytes, ValueLimits::default())
    }

    /// Decodes exactly one value within the caller's limits. The value takes at most 64 times the
    /// memory of the bytes.
    ///
    /// # Errors
    ///
    /// - [`Error::Truncated`] if the value ends early.
    /// - [`Error::Malformed`] if the bytes are not MessagePack, continue after the value or contain
    ///   text that is not UTF-8.
    /// - [`Error::Limit`] if the value is over `limits`.
    pub fn decode_within(bytes: &[u8], limits: ValueLimits) -> Result<Value, Error> {
        check_within(bytes, limits)?;
        // The scan has bounded the depth, which also bounds the recursion below.
        Value::read(&mut MsgpackReader::new(bytes))
    }

    fn read(reader: &mut MsgpackReader<'_>) -> Result<Value, Error> {
        Ok(match reader.token()? {
            MsgpackToken::Nil => Value::Nil,
            MsgpackToken::Bool(value) => Value::Bool(value),
            MsgpackToken::Unsigned(value) => Value::Unsigned(value),
            MsgpackToken::Signed(value) => Value::from(value),
            MsgpackToken::F32(value) => Value::F32(value),
            MsgpackToken::F64(value) => Value::F64(value),
            MsgpackToken::Str(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Value::Str(text.to_owned()),
                Err(_) => {
                    return Err(Error::Malformed { offset: reader.offset(), reason: "text is not UTF-8" });
                }
            },
            MsgpackToken::Bin(bytes) => Value::Bin(bytes.to_vec()),
            MsgpackToken::Ext(kind, bytes) => Value::Ext(kind, bytes.to_vec()),
            MsgpackToken::Array(len) => {
                // The pre-scan has verified that there are as many values, so the length may decide
                // the capacity.
                let mut items = Vec::with_capacity(len as usize);
                for _ in 0..len {
                    items.push(Value::read(reader)?);
                }
                Value::Array(items)
            }
            MsgpackToken::Map(len) => {
                let mut pairs = Vec::with_capacity(len as usize);
                for _ in 0..len {
                    pairs.push((Value::read(reader)?, Value::read(reader)?));
                }
                Value::Map(pairs)
            }
        })
    }

    /// Encodes the value as MessagePack; integers take their shortest form.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = MsgpackWriter::new();
        self.write(&mut writer);
        writer.finish()
    }

    /// Appends the value's MessagePack to a writer; integers take their shortest form.
    pub fn write(&self, writer: &mut MsgpackWriter) {
        match self {
            Value::Nil => writer.nil(),
            Value::Bool(value) => writer.bool(*value),
            Value::Unsigned(value) => writer.unsigned(*value),
            Value::Signed(value) => writer.signed(*value),
            Value::F32(value) => writer.f32(*value),
            Value::F64(value) => writer.f64(*value),
            Value::Str(text) => writer.str(text),
            Value::Bin(bytes) => writer.bin(bytes),
            Value::Ext(kind, bytes) => writer.ext(*kind, bytes),
            Value::Array(items) => {
                writer.array(items.len());
                items.iter().for_each(|item| item.write(writer));
                writer
            }
            Value::Map(pairs) => {
                writer.map(pairs.len());
                for (key, value) in pairs {
                    key.write(writer);
                    value.write(writer);
                }
                writer
            }
        };
    }

    /// Returns the value of a field of a map, or `None` if this is not a map or has no such field.
    pub fn get(&self, field: &str) -> Option<&Value> {
        let Value::Map(pairs) = self else { return None };
        pairs.iter().find(|(key, _)| key.as_str() == Some(field)).map(|(_, value)| value)
    }

    /// Sets a field of a map: in its place if the map has it, otherwise at the end. A value that is
    /// not a map is replaced by a map of this one field.
    pub fn set(&mut self, field: &str, value: Value) {
        if !matches!(self, Value::Map(_)) {
            *self = Value::Map(Vec::new());
        }
        if let Value::Map(pairs) = self {
            match pairs.iter_mut().find(|(key, _)| key.as_str() == Some(field)) {
                Some((_, slot)) => *slot = value,
                None => pairs.push((Value::from(field), value)),
            }
        }
    }

    /// Removes a field from a map and returns its value, or `None` if this is not a map or has no
    /// such field.
    pub fn remove(&mut self, field: &str) -> Option<Value> {
        let Value::Map(pairs) = self else { return None };
        let at = pairs.iter().position(|(key, _)| key.as_str() == Some(field))?;
        Some(pairs.remove(at).1)
    }

    /// Returns the step of a path that leads to the field with this key: `.name`, or `["any
    /// text"]`.
    pub fn path_step(&self) -> String {
        let is_plain = |text: &&str| {
            text.chars().all(|c| c.is_alphanumeric() || c == '_')
                && text.chars().next().is_some_and(|c| !c.is_numeric())
        };
        match self.as_str().filter(is_plain) {
            Some(name) => format!(".{name}"),
            None => format!("[{}]", escape::to_json(self).unwrap_or_default()),
        }
    }

    /// Returns the text of a [`Value::Str`], or `None` for any other value.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the integer of a [`Value::Unsigned`], or `None` for any other value.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Value::Unsigned(value) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn as_ext_kind(&self) -> Option<i8> {
        match self {
            Value::Unsigned(kind) => i8::try_from(*kind).ok(),
            Value::Signed(kind) => i8::try_from(*kind).ok(),
            _ => None,
        }
    }

    /// Returns the values of a [`Value::Array`], or `None` for any other value.
    pub fn as_array(&self) -> Option<&[Value]> {
        match self {
            Value::Array(items) => Some(items),
            _ => None,
        }
    }
}

macro_rules! from {
    ($($type:ty: |$value:ident| $converted:expr,)*) => {
        $(impl From<$type> for Value {
            fn from($value: $type) -> Value {
                $converted
            }
        })*
    };
}

from! {
    bool: |value| Value::Bool(value),
    u32: |value| Value::Unsigned(value.into()),
    u64: |value| Value::Unsigned(value),
    i32: |value| Value::from(i64::from(value)),
    // An integer of 0 or more has one form, whatever its type.
    i64: |value| u64::try_from(value).map_or(Value::Signed(value), Value::Unsigned),
    f64: |value| Value::F64(value),
    &str: |text| Value::Str(text.to_owned()),
    String: |text| Value::Str(text),
    Cow<'_, str>: |text| Value::Str(text.into_owned()),
}

impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(items: Vec<T>) -> Value {
        Value::Array(items.into_iter().map(T::into).collect())
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Nil, T::into)
    }
}

impl<'de> Deserialize<'de> for Value {
    /// Deserializes a value of any self-describing format; maps keep the order of their keys.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Nil)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Nil)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    /// Accepts an extension in the form that `rmp-serde` passes.
    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let parts = Value::deserialize(deserializer)?;
        Ok(match parts.as_array() {
            Some([kind, Value::Bin(bytes)]) => {
                kind.as_ext_kind().map_or_else(|| parts.clone(), |kind| Value::Ext(kind, bytes.clone()))
            }
            _ => parts,
        })
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Unsigned(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f32<E>(self, value: f32) -> Result<Value, E> {
        Ok(Value::F32(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::F64(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::from(text))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::Str(text))
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Value, E> {
        Ok(Value::Bin(bytes.to_vec()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::with_capacity(bounded_capacity(seq.size_hint()));
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut pairs = Vec::with_capacity(bounded_capacity(map.size_hint()));
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Value::Map(pairs))
    }
}

/// Returns the capacity to reserve for a length that a format claims. It is exact for small arrays,
/// so that many of them take no more memory than they fill. It is bounded, since a format without a
/// pre-scan may claim any length.
fn bounded_capacity(len: Option<usize>) -> usize {
    len.unwrap_or(0).min(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_and_integers_take_one_form() {
        let value = Value::Map(vec![
            (Value::from("z"), Value::Array(vec![Value::Nil, Value::from(true), Value::from(-5_i64)])),
            (Value::from("a"), Value::Bin(vec![1, 2])),
            (Value::Unsigned(7), Value::Ext(3, vec![9; 5])),
            (Value::from("f"), Value::F64(1.5)),
            (Value::from("g"), Value::F32(1.5)),
        ]);
        assert_eq!(Value::decode(&value.encode()).unwrap(), value);
        // 5 as int64: the long encoding reads as the same integer as the short one.
        assert_eq!(Value::decode(&[0xd3, 0, 0, 0, 0, 0, 0, 0, 5]).unwrap(), Value::Unsigned(5));
    }

    #[test]
    fn fields_are_found_set_and_taken_out() {
        let mut value = Value::default();
        value.set("name", Value::from("a"));
        value.set("count", Value::from(1_u64));
        value.set("name", Value::from("b"));
        assert_eq!(value.get("name").and_then(Value::as_str), Some("b"));
        assert_eq!(value.remove("count"), Some(Value::Unsigned(1)));
        assert_eq!(value.remove("count"), None);
    }
}

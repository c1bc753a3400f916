//! Serializes MessagePack as JSON, token by token.
//!
//! A [`Value`] takes up to 64 times the memory of its bytes. Printing needs none of that memory:
//! [`JsonStream`] walks the bytes and serializes each token as it is read. The JSON is the [JSON
//! form](Value::json_form) of the value.

use std::cell::RefCell;

use serde::ser::{Error as _, Serialize, SerializeMap, SerializeSeq, Serializer};

use super::json_form::{BYTES, EXT, Hex, MSGPACK, f32, f64, is_reserved, key_text, serialize_tagged};
use super::{MsgpackReader, MsgpackToken, Value, ValueLimits, check_within};
use crate::Error;

/// Contains MessagePack that serializes to the [JSON form](Value::json_form) of its [`Value`],
/// without the memory for the value.
#[derive(Clone, Copy, Debug)]
pub struct JsonStream<'a> {
    pub(super) bytes: &'a [u8],
}

impl<'a> JsonStream<'a> {
    /// Wraps bytes that are exactly one value, and checks them.
    ///
    /// # Errors
    ///
    /// - [`Error::Truncated`] if the value ends early.
    /// - [`Error::Malformed`] if the bytes are not MessagePack, continue after the value or contain
    ///   text that is not UTF-8.
    /// - [`Error::Limit`] if the value is over `limits`.
    pub fn new(bytes: &'a [u8], limits: ValueLimits) -> Result<JsonStream<'a>, Error> {
        check_within(bytes, limits)?;
        let mut reader = MsgpackReader::new(bytes);
        while !reader.is_done() {
            if let MsgpackToken::Str(text) = reader.token()?
                && std::str::from_utf8(text).is_err()
            {
                return Err(Error::Malformed { offset: reader.offset(), reason: "text is not UTF-8" });
            }
        }
        Ok(JsonStream { bytes })
    }

    /// Returns the MessagePack.
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Decodes the bytes as a [`Value`].
    pub fn to_value(self) -> Value {
        // `new` has checked the bytes.
        Value::decode(self.bytes).unwrap_or_default()
    }
}

impl Serialize for JsonStream<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Next { reader: &RefCell::new(MsgpackReader::new(self.bytes)), in_key: false }.serialize(serializer)
    }
}

/// Serializes the next value of the reader. The pre-scan has bounded the depth, which also bounds
/// the recursion.
struct Next<'r, 'a> {
    reader: &'r RefCell<MsgpackReader<'a>>,
    /// Whether the value is within a key that is not text, where a map is written as its
    /// MessagePack.
    in_key: bool,
}

impl<'a> Next<'_, 'a> {
    fn token<E: serde::ser::Error>(&self) -> Result<MsgpackToken<'a>, E> {
        self.reader.borrow_mut().token().map_err(E::custom)
    }

    /// Reads a key of any type, and returns its text in JSON.
    fn key<E: serde::ser::Error>(&self) -> Result<String, E> {
        let before = *self.reader.borrow();
        if let MsgpackToken::Str(text) = self.token()?
            && let Some(text) =
                Some(std::str::from_utf8(text).map_err(E::custom)?).filter(|it| !is_reserved(it))
        {
            return Ok(text.to_owned());
        }
        *self.reader.borrow_mut() = before;
        key_text(&Next { reader: self.reader, in_key: true }).map_err(E::custom)
    }

    fn reborrow(&self) -> Next<'_, 'a> {
        Next { reader: self.reader, in_key: self.in_key }
    }
}

impl Serialize for Next<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.in_key {
            let mut reader = self.reader.borrow_mut();
            let mut ahead = *reader;
            if let MsgpackToken::Map(_) = ahead.token().map_err(S::Error::custom)? {
                let map = reader.value().map_err(S::Error::custom)?;
                return serialize_tagged(serializer, MSGPACK, &Hex(map));
            }
        }
        match self.token()? {
            MsgpackToken::Nil => serializer.serialize_unit(),
            MsgpackToken::Bool(value) => serializer.serialize_bool(value),
            MsgpackToken::Unsigned(value) => serializer.serialize_u64(value),
            MsgpackToken::Signed(value) => serializer.serialize_i64(value),
            MsgpackToken::F32(value) => f32(serializer, value),
            MsgpackToken::F64(value) => f64(serializer, value),
            MsgpackToken::Str(text) => {
                serializer.serialize_str(std::str::from_utf8(text).map_err(S::Error::custom)?)
            }
            MsgpackToken::Bin(bytes) => serialize_tagged(serializer, BYTES, &Hex(bytes)),
            MsgpackToken::Ext(kind, bytes) => serialize_tagged(serializer, EXT, &(kind, Hex(bytes))),
            MsgpackToken::Array(len) => {
                let mut seq = serializer.serialize_seq(Some(len as usize))?;
                for _ in 0..len {
                    seq.serialize_element(&self.reborrow())?;
                }
                seq.end()
            }
            MsgpackToken::Map(len) => {
                let mut map = serializer.serialize_map(Some(len as usize))?;
                for _ in 0..len {
                    let key: String = self.key()?;
                    map.serialize_entry(&key, &self.reborrow())?;
                }
                map.end()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Generates values of all kinds, including those that look like the form of another value.
    fn values() -> impl Strategy<Value = Value> {
        let reserved = ["$bytes", "$f32", "$f64", "$ext", "$msgpack", "$object", "$key:", "$key:1", "$ref"];
        let leaf = prop_oneof![
            Just(Value::Nil),
            any::<bool>().prop_map(Value::Bool),
            any::<u64>().prop_map(Value::Unsigned),
            any::<i64>().prop_map(Value::from),
            any::<u32>().prop_map(|bits| Value::F32(f32::from_bits(bits))),
            any::<u64>().prop_map(|bits| Value::F64(f64::from_bits(bits))),
            any::<f64>().prop_map(Value::F64),
            prop::sample::select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0]).prop_map(Value::F64),
            prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.1]).prop_map(Value::F32),
            prop::sample::select(reserved.to_vec()).prop_map(Value::from),
            any::<String>().prop_map(Value::Str),
            vec(any::<u8>(), 0..20).prop_map(Value::Bin),
            (any::<i8>(), vec(any::<u8>(), 0..20)).prop_map(|(kind, bytes)| Value::Ext(kind, bytes)),
        ];
        leaf.prop_recursive(5, 64, 6, |inner| {
            prop_oneof![
                vec(inner.clone(), 0..6).prop_map(Value::Array),
                vec((inner.clone(), inner), 0..6).prop_map(Value::Map),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_json_is_that_of_the_value(value in values()) {
            let bytes = value.encode();
            let streamed = JsonStream::new(&bytes, ValueLimits::default()).unwrap();
            let json = serde_json::to_string(&value.json_form()).unwrap();
            prop_assert_eq!(serde_json::to_string(&streamed).unwrap(), json);
        }

        /// Regression: bytes came back as an array, numbers that are not finite as nil, keys that
        /// are not text as text, and many other numbers were off by one bit.
        #[test]
        fn a_value_comes_back_from_its_json_form(value in values()) {
            let json = serde_json::to_string(&value.json_form()).unwrap();
            let read = crate::msgpack::from_json(&json).unwrap().into_exact();
            // The encoding of a NaN is equal to itself, unlike the NaN.
            prop_assert_eq!(read.map(|read| read.encode()), Ok(value.encode()), "{}", json);
        }
    }

    #[test]
    fn what_is_no_value_is_told_before_anything_is_written() {
        for bytes in [&[0xa1, 0xff][..], &[0x92, 1], &[1, 2], &[0xc1], &[]] {
            let streamed = JsonStream::new(bytes, ValueLimits::default()).map(|_| ()).unwrap_err();
            assert_eq!(streamed, Value::decode(bytes).unwrap_err());
        }
    }
}

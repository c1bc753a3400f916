//! Serializes values as JSON, and parses JSON into values. JSON that a host or a provider wrote is
//! reproduced exactly. For values that JSON lacks, see [`JsonForm`](super::JsonForm).

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use super::{Hex, Value};

/// Name of a newtype that `rmp-serde` writes as an extension.
const EXTENSION: &str = rmp_serde::MSGPACK_EXT_STRUCT_NAME;

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Nil => serializer.serialize_unit(),
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::Unsigned(value) => serializer.serialize_u64(*value),
            Value::Signed(value) => serializer.serialize_i64(*value),
            Value::F32(value) => serializer.serialize_f32(*value),
            Value::F64(value) => serializer.serialize_f64(*value),
            Value::Str(text) => serializer.serialize_str(text),
            Value::Bin(bytes) => serializer.serialize_bytes(bytes),
            Value::Ext(kind, bytes) if !serializer.is_human_readable() => {
                serializer.serialize_newtype_struct(EXTENSION, &(kind, Value::Bin(bytes.clone())))
            }
            Value::Ext(kind, bytes) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("$ext", &(kind, Hex(bytes)))?;
                map.end()
            }
            Value::Array(items) => {
                let mut seq = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    seq.serialize_element(item)?;
                }
                seq.end()
            }
            Value::Map(pairs) => {
                // Only JSON requires text keys; other formats take the key unchanged.
                let text_keys = serializer.is_human_readable();
                let mut map = serializer.serialize_map(Some(pairs.len()))?;
                for (key, value) in pairs {
                    match key {
                        Value::Str(text) => map.serialize_entry(text, value)?,
                        other if text_keys => map.serialize_entry(&key_text(other), value)?,
                        other => map.serialize_entry(other, value)?,
                    }
                }
                map.end()
            }
        }
    }
}

fn key_text(key: &Value) -> String {
    serde_json::to_string(&InKey(key)).unwrap_or_default()
}

/// Serializes a value within a key. A map within a key is an array of pairs, so that no key's JSON
/// text is quoted within another's. Otherwise each level would double the quotes of those below,
/// and a few bytes of nested keys would exhaust the memory.
struct InKey<'a>(&'a Value);

impl Serialize for InKey<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Array(items) => serializer.collect_seq(items.iter().map(InKey)),
            Value::Map(pairs) => {
                serializer.collect_seq(pairs.iter().map(|(key, value)| [InKey(key), InKey(value)]))
            }
            value => value.serialize(serializer),
        }
    }
}

/// Parses a JSON text into a value; maps keep the order of the object's keys.
///
/// # Errors
///
/// Returns an error if the text is not one JSON value, or if it nests deeper than 127 levels. The
/// error names line and column.
pub fn from_json(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_the_order_of_keys_and_the_width_of_numbers() {
        let text = r#"{"z":1,"a":[-2,1.5,null,true,18446744073709551615],"m":{"y":"ü","b":""}}"#;
        let value = from_json(text).unwrap();
        assert_eq!(serde_json::to_string(&value).unwrap(), text);
        let again = Value::decode(&value.encode()).unwrap();
        assert_eq!(serde_json::to_string(&again).unwrap(), text);
    }

    /// Regression: a key that is a map was displayed as its JSON text, and so was that map's key
    /// within it. Every level doubled the quotes of those below, and 1,257 bytes took more than 4
    /// GiB.
    #[test]
    fn keys_within_keys_take_no_more_than_they_hold() {
        let within = |key: Value| Value::Map(vec![(key, Value::Str("\"".to_owned()))]);
        let deep = (0..100).fold(Value::Nil, |key, _| within(key));
        let text = serde_json::to_string(&deep).unwrap();
        assert!(text.len() < 10 * deep.encode().len(), "{} bytes", text.len());
        let two = within(within(Value::Unsigned(1)));
        assert_eq!(serde_json::to_string(&two).unwrap(), r#"{"[[1,\"\\\"\"]]":"\""}"#);
    }

    #[test]
    fn what_json_lacks_is_still_shown() {
        let value = Value::Map(vec![
            (Value::Unsigned(1), Value::Bin(vec![0, 255])),
            (Value::Array(vec![Value::Nil]), Value::Ext(-1, vec![0xab])),
        ]);
        assert_eq!(serde_json::to_string(&value).unwrap(), r#"{"1":[0,255],"[null]":{"$ext":[-1,"ab"]}}"#);
    }
}

//! JSON forms of values.
//!
//! | MessagePack | JSON |
//! |---|---|
//! | nil, bool, integers, text, arrays | themselves |
//! | numbers of 32 and 64 bits | the shortest decimal that reads back; `null` for infinities and NaN |
//! | maps | objects, keys in their order; an integer key as its digits, any other key as its JSON text, in which a map is an array of pairs |
//! | bytes | an array of integers, as serde writes a `Vec<u8>` |
//! | extensions | `{"$ext": [type, "hex"]}` |

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use super::Value;

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
            Value::Ext(kind, bytes) => {
                let mut map = serializer.serialize_map(Some(1))?;
                let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                map.serialize_entry("$ext", &(kind, hex))?;
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
                // Only JSON wants its keys to be text; other formats take the key as it is.
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

/// A value within a key. No text of a key stands within that of another: each would double the other's quotes, and a
/// few bytes of keys within keys would come to more than any memory holds.
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

/// The value of a JSON text; the order of an object's keys is kept.
///
/// # Errors
///
/// What is wrong with the text, with line and column.
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

    /// A key that is a map was shown as its JSON text, and so was that map's key within it: every level doubled the
    /// quotes of those below, and 1,257 bytes took more than 4 GiB.
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

//! Converts values to and from `serde_json::Value`.

use std::fmt::{self, Write};

use serde::Deserialize;

use super::Value;
use crate::escape;

/// Describes which part of a value JSON cannot express.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct NotJson {
    /// Path of the part, such as `$.steps[2].id`. Control characters in names are escaped.
    pub path: String,
    /// Why JSON cannot express the part.
    pub reason: &'static str,
}

impl From<serde_json::Value> for Value {
    /// Converts JSON, all of which MessagePack can express. The pairs of an object are in the order
    /// of `serde_json`: ascending by name, unless its feature `preserve_order` is on.
    fn from(json: serde_json::Value) -> Value {
        // A value accepts all that JSON can express, so this never fails.
        Value::deserialize(json).unwrap_or_default()
    }
}

impl TryFrom<Value> for serde_json::Value {
    type Error = NotJson;

    fn try_from(value: Value) -> Result<serde_json::Value, NotJson> {
        value.to_json()
    }
}

impl Value {
    /// Converts the value to JSON without loss. Converted back, it compares equal, with two
    /// exceptions: the order of a map's pairs, which `serde_json` preserves only with its feature
    /// `preserve_order`, and the width of floating-point numbers. To display any value as JSON,
    /// serialize it instead.
    ///
    /// ```
    /// use foldlog_codec::msgpack::Value;
    ///
    /// let step = Value::from(serde_json::json!({"title": "ship it", "tags": ["a"]}));
    /// assert_eq!(step.to_json()?, serde_json::json!({"title": "ship it", "tags": ["a"]}));
    ///
    /// let raw = Value::Array(vec![Value::Nil, Value::Bin(vec![1])]);
    /// assert_eq!(raw.to_json().unwrap_err().to_string(), "$[1]: JSON cannot represent bytes");
    /// # Ok::<(), foldlog_codec::msgpack::NotJson>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`NotJson`] names the first part that JSON cannot express: bytes, an extension, a number
    /// that is not finite, a key that is not text, the second of two equal keys, or a value nested
    /// deeper than 128 levels.
    pub fn to_json(&self) -> Result<serde_json::Value, NotJson> {
        convert_value(self, &JsonPath::Root, 0)
    }
}

enum JsonPath<'a> {
    Root,
    Field(&'a JsonPath<'a>, &'a str),
    Index(&'a JsonPath<'a>, usize),
    Key(&'a JsonPath<'a>, &'a Value),
}

impl fmt::Display for JsonPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JsonPath::Root => f.write_char('$'),
            JsonPath::Index(around, at) => write!(f, "{around}[{at}]"),
            JsonPath::Field(around, name) => {
                let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
                match !name.is_empty() && name.chars().all(plain) {
                    true => write!(f, "{around}.{name}"),
                    false => write!(f, "{around}[\"{}\"]", escape::text(name)),
                }
            }
            JsonPath::Key(around, key) => {
                let key = escape::json_beginning(key, 40);
                write!(f, "{around}[{key}]")
            }
        }
    }
}

fn convert_value(value: &Value, place: &JsonPath<'_>, depth: usize) -> Result<serde_json::Value, NotJson> {
    let not = |reason| Err(NotJson { path: place.to_string(), reason });
    if depth > super::ValueLimits::default().depth_max {
        return not("the value is nested too deeply");
    }
    let number = |number: f64| match serde_json::Number::from_f64(number) {
        Some(number) => Ok(serde_json::Value::Number(number)),
        None => not("JSON cannot represent NaN or infinity"),
    };
    Ok(match value {
        Value::Nil => serde_json::Value::Null,
        Value::Bool(value) => serde_json::Value::Bool(*value),
        Value::Unsigned(value) => (*value).into(),
        Value::Signed(value) => (*value).into(),
        Value::F32(value) => number(f64::from(*value))?,
        Value::F64(value) => number(*value)?,
        Value::Str(text) => serde_json::Value::String(text.clone()),
        Value::Bin(_) => return not("JSON cannot represent bytes"),
        Value::Ext(..) => return not("JSON cannot represent MessagePack extensions"),
        Value::Array(items) => {
            let item = |(at, item)| convert_value(item, &JsonPath::Index(place, at), depth + 1);
            serde_json::Value::Array(items.iter().enumerate().map(item).collect::<Result<_, _>>()?)
        }
        Value::Map(pairs) => {
            let mut object = serde_json::Map::new();
            for (key, value) in pairs {
                let Some(name) = key.as_str() else {
                    let path = JsonPath::Key(place, key).to_string();
                    return Err(NotJson { path, reason: "JSON cannot represent a key that is not text" });
                };
                let place = JsonPath::Field(place, name);
                let value = convert_value(value, &place, depth + 1)?;
                if object.insert(name.to_owned(), value).is_some() {
                    return Err(NotJson {
                        path: place.to_string(),
                        reason: "the map contains the key twice",
                    });
                }
            }
            serde_json::Value::Object(object)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(serde_json::Value::from),
            any::<u64>().prop_map(serde_json::Value::from),
            any::<i64>().prop_map(serde_json::Value::from),
            any::<f64>().prop_map(serde_json::Value::from),
            ".{0,6}".prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
                prop::collection::btree_map(".{0,3}", inner, 0..4)
                    .prop_map(|pairs| serde_json::Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn all_json_comes_back_by_way_of_the_recorded_bytes(json in json()) {
            let value = Value::from(json.clone());
            prop_assert_eq!(value.to_json(), Ok(json.clone()));
            prop_assert_eq!(Value::decode(&value.encode()).unwrap().to_json(), Ok(json));
        }
    }

    #[test]
    fn what_json_cannot_hold_is_named_by_its_path() {
        let at = |value: Value| Value::Map(vec![(Value::from("a"), Value::Array(vec![Value::Nil, value]))]);
        let map = |key: Value| Value::Map(vec![(key.clone(), Value::Nil), (key, Value::Nil)]);
        let odd = Value::Map(vec![(Value::from("x\u{1b} y"), Value::Bin(Vec::new()))]);
        let deep = (0..200).fold(Value::Nil, |deep, _| Value::Array(vec![deep]));
        for (value, error) in [
            (Value::Bin(vec![1]), "$.a[1]: JSON cannot represent bytes"),
            (Value::Ext(1, Vec::new()), "$.a[1]: JSON cannot represent MessagePack extensions"),
            (Value::F64(f64::NAN), "$.a[1]: JSON cannot represent NaN or infinity"),
            (Value::F32(f32::INFINITY), "$.a[1]: JSON cannot represent NaN or infinity"),
            (map(Value::Unsigned(7)), "$.a[1][7]: JSON cannot represent a key that is not text"),
            (map(Value::from("k")), "$.a[1].k: the map contains the key twice"),
            (odd, "$.a[1][\"x\\u{1b} y\"]: JSON cannot represent bytes"),
        ] {
            assert_eq!(at(value).to_json().unwrap_err().to_string(), error);
        }
        assert_eq!(deep.to_json().unwrap_err().reason, "the value is nested too deeply");
        assert_eq!(Value::F32(0.1).to_json(), Ok(serde_json::json!(f64::from(0.1_f32))));
    }
}

//! Events and items without a Rust type: their encoding, decoding, keys and paths.

use std::fmt;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::escape;
use foldlog_codec::msgpack::{self, Value, ValueLimits};
use smol_str::SmolStr;

use super::event::{Decoded, Decoder, RecordedBytes, check_payload};
use super::{UpcastError, View};
use crate::error::{Error, Result};
use crate::items::runs;

/// Converts a value that was recorded at an earlier version to the present form.
pub(crate) type UpcastValue =
    Arc<dyn Fn(u32, Value) -> std::result::Result<Value, UpcastError> + Send + Sync>;

#[derive(Clone)]
pub(crate) struct ValueDecoder {
    pub(crate) name: SmolStr,
    pub(crate) version: u32,
    pub(crate) upcast: Option<UpcastValue>,
    /// Rust type through which the values are decoded, so that they have the form in which the host
    /// of that type would record them now.
    pub(crate) by_way_of: Option<(Decoder, EncodeAny)>,
}

/// Encodes a value of a type that only the host knows, under the name of its event or slice.
pub(crate) type EncodeAny = fn(&str, &runs::Value) -> Result<Vec<u8>>;

impl fmt::Debug for ValueDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueDecoder").field("name", &self.name).field("version", &self.version).finish()
    }
}

impl ValueDecoder {
    pub(crate) fn value(
        &self,
        version: u32,
        sequence: SequenceNumber,
        recorded: RecordedBytes<'_>,
    ) -> std::result::Result<Value, Box<Error>> {
        let bad = |reason: String| Box::new(Error::Decode { name: self.name.to_string(), sequence, reason });
        let read = |bytes: &[u8]| Value::decode(bytes).map_err(|error| bad(error.to_string()));
        if let Some((decoder, encode)) = &self.by_way_of {
            let value = decoder.alone(version, sequence, recorded)?;
            return read(&encode(&self.name, value.as_ref())?);
        }
        if version > self.version {
            let (name, stored, supported) = (self.name.to_string(), version, self.version);
            return Err(Box::new(Error::NewerVersion { name, stored, supported }));
        }
        let value = read(recorded.bytes())?;
        if version == self.version {
            return Ok(value);
        }
        match &self.upcast {
            Some(upcast) => upcast(version, value)
                .map_err(|error| bad(format!("upcasting from version {version}: {error}"))),
            None => Err(bad(format!("there is no upcast from version {version} to {}", self.version))),
        }
    }

    pub(crate) fn decode(
        &self,
        version: u32,
        sequence: SequenceNumber,
        recorded: RecordedBytes<'_>,
    ) -> Decoded {
        Ok(Arc::new(self.value(version, sequence, recorded)?))
    }
}

/// Encodes a value to its recorded form: the bytes of [`Value::encode`].
pub(crate) fn encode_value(name: &str, value: &Value) -> Result<Vec<u8>> {
    // The depth is checked before the recursion that encodes the value.
    if !is_within(value, ValueLimits::of_payload().depth_max) {
        let reason = format!("it nests deeper than {} levels", ValueLimits::of_payload().depth_max);
        return Err(Error::Encode { name: name.to_owned(), reason });
    }
    let bytes = value.encode();
    check_payload(name, &bytes)?;
    Ok(bytes)
}

/// Returns whether a value nests at most `levels` deep.
fn is_within(value: &Value, levels: usize) -> bool {
    let Some(below) = levels.checked_sub(1) else { return !matches!(value, Value::Array(_) | Value::Map(_)) };
    match value {
        Value::Array(items) => items.iter().all(|item| is_within(item, below)),
        Value::Map(pairs) => {
            pairs.iter().all(|(key, value)| is_within(key, below) && is_within(value, below))
        }
        _ => true,
    }
}

pub(crate) fn encode_any_value(name: &str, value: &runs::Value) -> Result<Vec<u8>> {
    match value.downcast_ref() {
        Some(value) => encode_value(name, value),
        None => Err(Error::NoSuchSlice { slice: name.to_owned(), reason: "its items are of another type" }),
    }
}

/// A part of a value as a key. Two keys are equal if the parts' encodings are equal. `None` is the
/// key of a value without such a part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ValueKey(Option<Vec<u8>>);

impl ValueKey {
    pub(crate) fn from_value(part: Option<&Value>) -> ValueKey {
        ValueKey(part.map(Value::encode))
    }
}

/// Path from a value to a part of it: names of fields and indices, such as `card.id` or `ids[0]`.
/// `$` is the value itself, and may precede any path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValuePath {
    text: SmolStr,
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Field(SmolStr),
    Index(usize),
}

impl fmt::Display for ValuePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        escape::display(&self.text).fmt(f)
    }
}

impl ValuePath {
    /// Parses a path. Returns `None` if the text is not a path.
    pub(crate) fn read(text: &str) -> Option<ValuePath> {
        let path = match text.strip_prefix('$') {
            Some("") => return Some(ValuePath { text: text.into(), steps: Vec::new() }),
            Some(rest) if rest.starts_with('[') => rest,
            Some(rest) => rest.strip_prefix('.')?,
            None => text,
        };
        let mut steps = Vec::new();
        for (place, part) in path.split('.').enumerate() {
            let (name, indices) = part.split_at(part.find('[').unwrap_or(part.len()));
            match name {
                "" if place > 0 || indices.is_empty() => return None,
                "" => {}
                name if name.contains(']') => return None,
                name => steps.push(Step::Field(name.into())),
            }
            for index in indices.split_terminator(']') {
                steps.push(Step::Index(index.strip_prefix('[')?.parse().ok()?));
            }
            if !indices.is_empty() && !indices.ends_with(']') {
                return None;
            }
        }
        Some(ValuePath { text: text.into(), steps })
    }

    pub(crate) fn find<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        self.steps.iter().try_fold(value, |value, step| match step {
            Step::Field(name) => value.get(name),
            Step::Index(at) => value.as_array()?.get(*at),
        })
    }

    pub(crate) fn key(&self, value: &Value) -> ValueKey {
        ValueKey::from_value(self.find(value))
    }
}

impl View<Value> {
    /// Returns the item with `key` at the path by which the slice is
    /// [keyed](super::DynamicSlice::keyed_by) or [upserted](super::DynamicEvent::upsert). Returns
    /// the last one if there are several, and `None` if there is none. Takes logarithmic time in
    /// the slice's length.
    ///
    /// # Errors
    ///
    /// [`Error::NotKeyed`] if the slice is declared without such a path, or with a Rust type.
    pub fn find_value(&self, key: &Value) -> Result<Option<&Value>> {
        self.find(&ValueKey::from_value(Some(key))).map_err(|_| Error::NotKeyed { key: "Value" })
    }
}

/// Decodes the bytes of a value that is to be recorded.
pub(crate) fn read_value(name: &str, bytes: &[u8]) -> Result<Value> {
    Value::decode(bytes).map_err(|error| Error::Encode { name: name.to_owned(), reason: error.to_string() })
}

/// Decodes a value as type `T`. Fails if the type lacks a field of the value.
pub(crate) fn decode_strict<T: serde::de::DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T> {
    let bad = |reason: String| Error::Encode { name: name.to_owned(), reason };
    msgpack::check(bytes).map_err(|error| bad(error.to_string()))?;
    let mut unknown = Vec::new();
    let mut reading = rmp_serde::Deserializer::from_read_ref(bytes);
    let value = serde_ignored::deserialize(&mut reading, |path| unknown.push(path.to_string()))
        .map_err(|error| bad(error.to_string()))?;
    match unknown.is_empty() {
        true => Ok(value),
        false => Err(bad(format!("its type has no field {}", escape::text(&unknown.join(", "))))),
    }
}

/// Checks that a type retains every field of a value. `kept` is the type's encoding of the value.
/// `keeps` returns the type's encoding of another value, if the type can read that.
///
/// serde finds the form of untagged and flattened types by trying, and these drop unknown fields
/// silently. A dropped field is missing from the type's encoding, and another value in its place
/// makes no difference. If the type omits a default or renames the field, another value makes a
/// difference.
pub(crate) fn check_kept(
    name: &str,
    value: &Value,
    kept: &[u8],
    keeps: &dyn Fn(&Value) -> Option<Vec<u8>>,
) -> Result<()> {
    let Ok(encoded) = Value::decode(kept) else { return Ok(()) };
    let mut missing = Vec::new();
    missing_in(&encoded, value, &mut Vec::new(), &mut missing);
    let is_dropped = |steps: &Vec<Step>| {
        let mut other = value.clone();
        part_mut(&mut other, steps).is_some_and(|part| {
            // No type recognizes this value.
            *part = Value::Ext(-128, b"foldlog".to_vec());
            true
        }) && keeps(&other).as_deref() == Some(kept)
    };
    let dropped: Vec<String> =
        missing.iter().filter(|steps| is_dropped(steps)).map(|at| format_path(at)).collect();
    match dropped.is_empty() {
        true => Ok(()),
        false => {
            let reason = format!("its type has no field {}", escape::text(&dropped.join(", ")));
            Err(Error::Encode { name: name.to_owned(), reason })
        }
    }
}

/// Maximum number of missing fields that are tested for being dropped.
const MISSING_MAX: usize = 64;

/// Lists the fields of a value that are missing from its encoded form. Values of different shapes
/// are not compared.
fn missing_in(encoded: &Value, value: &Value, at: &mut Vec<Step>, missing: &mut Vec<Vec<Step>>) {
    let mut within = |encoded: Option<&Value>, value: &Value, step: Step| {
        at.push(step);
        match encoded {
            Some(encoded) => missing_in(encoded, value, at, missing),
            None if missing.len() < MISSING_MAX => missing.push(at.clone()),
            None => {}
        }
        at.pop();
    };
    match (encoded, value) {
        (Value::Map(_), Value::Map(pairs)) => {
            for (key, value) in pairs.iter().filter_map(|(key, value)| Some((key.as_str()?, value))) {
                within(encoded.get(key), value, Step::Field(key.into()));
            }
        }
        (Value::Array(encoded), Value::Array(values)) => {
            for (place, (encoded, value)) in encoded.iter().zip(values).enumerate() {
                within(Some(encoded), value, Step::Index(place));
            }
        }
        _ => {}
    }
}

fn part_mut<'a>(value: &'a mut Value, steps: &[Step]) -> Option<&'a mut Value> {
    steps.iter().try_fold(value, |value, step| match (step, value) {
        (Step::Field(name), Value::Map(pairs)) => {
            pairs.iter_mut().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value)
        }
        (Step::Index(at), Value::Array(items)) => items.get_mut(*at),
        _ => None,
    })
}

/// Formats the path of a field for people: `card.owner`, `cards[0].owner`.
fn format_path(steps: &[Step]) -> String {
    let mut path = String::new();
    for step in steps {
        match step {
            Step::Field(name) if path.is_empty() => path.push_str(name),
            Step::Field(name) => path.extend([".", name]),
            Step::Index(at) => path.push_str(&format!("[{at}]")),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, SessionTypes, Slice};

    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(untagged)]
    enum Shape {
        Circle { radius: u64 },
        Square { side: u64 },
    }

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Owner {
        owner: String,
    }

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Drawn {
        shapes: Vec<Shape>,
        #[serde(flatten)]
        by: Owner,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
        #[serde(default, alias = "colour")]
        color: u64,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        hidden: bool,
    }

    impl Event for Drawn {
        const NAME: &'static str = "drawn";
    }

    struct Drawing;

    impl Slice for Drawing {
        const NAME: &'static str = "drawing";
        type Item = Drawn;
    }

    #[test]
    fn fields_that_a_type_would_drop_are_refused_by_name() {
        let types = SessionTypes::builder().slice::<Drawing>().append_all::<Drawing>().build().unwrap();
        let types = types.event("drawn").unwrap();
        let read = |json: serde_json::Value| {
            types.check_value(Value::from(json)).map(drop).map_err(|error| error.to_string())
        };
        let whole = serde_json::json!({
            "shapes": [{"radius": 1}, {"side": 2}], "owner": "ada", "note": "x", "color": 3, "hidden": true,
        });
        assert_eq!(read(whole.clone()), Ok(()));
        // A field that is omitted as a default, or renamed, is not lost.
        let mut same = whole.clone();
        same["note"] = serde_json::Value::Null;
        same["hidden"] = false.into();
        let color = same.as_object_mut().unwrap().remove("color").unwrap();
        same["colour"] = color;
        assert_eq!(read(same), Ok(()));
        for (path, pointer) in
            [("shapes[0].depth", "/shapes/0"), ("shapes[1].radios", "/shapes/1"), ("odd", "")]
        {
            let mut other = whole.clone();
            let field = path.rsplit('.').next().unwrap();
            other.pointer_mut(pointer).unwrap()[field] = 5.into();
            let refused = read(other).unwrap_err();
            assert!(refused.contains(&format!("has no field {path}")), "{path}: {refused}");
        }
    }

    #[test]
    fn a_path_leads_to_a_part_and_what_is_none_is_refused() {
        let value = Value::from(serde_json::json!({"card": {"ids": [["a"], 7]}, "": 1}));
        let find = |path: &str| ValuePath::read(path).unwrap().find(&value).cloned();
        assert_eq!(find("card.ids[1]"), Some(Value::Unsigned(7)));
        assert_eq!(find("$.card.ids[0][0]"), Some(Value::from("a")));
        assert_eq!(find("$"), Some(value.clone()));
        assert_eq!(find("card.ids[2]"), None);
        assert_eq!(find("card.ids.x"), None);
        let list = Value::from(serde_json::json!([1, {"a": 2}]));
        assert_eq!(ValuePath::read("$[1].a").unwrap().find(&list), Some(&Value::Unsigned(2)));
        for none in ["", ".", "a.", "a..b", "$a", "a[", "a[x]", "a[0]b", "a]", "a.[0]"] {
            assert_eq!(ValuePath::read(none), None, "{none}");
        }
    }

    #[test]
    fn a_value_that_nests_too_deeply_is_refused_before_it_is_encoded() {
        let nested = |levels| (0..levels).fold(Value::Nil, |inner, _| Value::Array(vec![inner]));
        assert!(encode_value("x", &nested(112)).is_ok());
        let deep = nested(113);
        assert!(matches!(encode_value("x", &deep), Err(Error::Encode { .. })));
    }
}

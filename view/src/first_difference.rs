//! The values at which two logs diverge, with the contents of objects that replace large values.

use foldlog::Value;
use foldlog::inspect::{LogDivergence, LogReader};
use foldlog_codec::body::{ObjectId, Payload};
use foldlog_codec::escape;
use foldlog_codec::msgpack::{JsonStream, ValueLimits};
use serde_json::{Value as Json, json};

use crate::payload::OBJECT_BYTES_MAX;
use crate::text::shorten_text;

/// Number of characters that two values may share before their common start is left out.
const ALIKE_CHARS: usize = 60;

/// Number of characters that are shown before the first difference.
const BEFORE_CHARS: usize = 20;

/// One of the values at which two logs diverge.
#[derive(Debug)]
pub struct DifferingValue {
    /// Object to which the record refers; `None` if the record contains the value itself.
    pub object: Option<ObjectId>,
    /// The value in MessagePack, or the reason why it is not available.
    pub bytes: Result<Vec<u8>, String>,
    /// Part of the value at the path of [`FirstDifference`], in MessagePack; `None` if that is the
    /// whole value.
    part: Option<Vec<u8>>,
}

/// The values at which two logs diverge.
#[derive(Debug)]
pub struct FirstDifference {
    /// Path of the first difference. It leads into the value of an object if both values are known.
    pub path: String,
    /// The first log's value and the other's; `None` if a log has no value there.
    pub sides: [Option<DifferingValue>; 2],
}

impl DifferingValue {
    /// Reads a value of `reader`'s log at a divergence. Replaces a reference with the object's
    /// content.
    fn read(reader: &LogReader, value: &Value) -> DifferingValue {
        let Some(object) = reference(value) else {
            return DifferingValue { object: None, bytes: Ok(value.encode()), part: None };
        };
        let read = match object.len <= OBJECT_BYTES_MAX {
            true => reader.payload(Payload::new(&object.reference())).map_err(|error| error.to_string()),
            false => Err(format!("objects of more than {OBJECT_BYTES_MAX} bytes are not read for this")),
        };
        let checked = read.and_then(|bytes| match JsonStream::new(&bytes, ValueLimits::of_payload()) {
            Ok(_) => Ok(bytes.to_vec()),
            Err(error) => Err(error.to_string()),
        });
        DifferingValue { object: Some(object), bytes: checked, part: None }
    }

    /// Returns the value at the path, in MessagePack, or the reason why it is not available.
    pub fn bytes_at_path(&self) -> Result<&[u8], &str> {
        match &self.part {
            Some(part) => Ok(part),
            None => self.bytes.as_deref().map_err(String::as_str),
        }
    }

    /// Describes the object for programs: its name, its length, and its content or the reason why
    /// it was not read. `None` if the record contains the value itself.
    fn object_json(&self) -> Option<Json> {
        let object = self.object?;
        let mut held = json!({ "object": object.file_name(), "bytes": object.len });
        match &self.bytes {
            Err(reason) => held["error"] = Json::from(reason.as_str()),
            Ok(bytes) => {
                let value = JsonStream::new(bytes, ValueLimits::of_payload()).ok();
                held["value"] = value.and_then(|value| serde_json::to_value(value).ok()).unwrap_or_default();
            }
        }
        Some(held)
    }

    /// Names the object for a person; `None` if the record contains the value itself.
    pub fn object_text(&self) -> Option<String> {
        let object = self.object?;
        let reason = self.bytes.as_ref().err().map_or_else(String::new, |reason| format!(": {reason}"));
        Some(format!("object {}, {} bytes{reason}", object.file_name(), object.len))
    }
}

/// Reads the values at which two logs diverge; `None` if the divergence has no values.
pub fn read_difference(
    parting: &LogDivergence,
    here: &LogReader,
    there: &LogReader,
) -> Option<FirstDifference> {
    let difference = parting.difference.as_ref()?;
    let of = |reader, value: Option<&Value>| value.map(|value| DifferingValue::read(reader, value));
    let mut sides = [of(here, difference.recorded.as_ref()), of(there, difference.produced.as_ref())];
    let mut path = difference.path.clone();
    if let [Some(one), Some(other)] = &mut sides
        && (one.object.is_some() || other.object.is_some())
        && let (Ok(old), Ok(new)) = (&one.bytes, &other.bytes)
        && let (Ok(old), Ok(new)) = (decode_value(old), decode_value(new))
    {
        let (old, new) = first_difference(&old, &new, &mut path);
        (one.part, other.part) = (Some(old.encode()), Some(new.encode()));
    }
    Some(FirstDifference { path, sides })
}

fn decode_value(bytes: &[u8]) -> Result<Value, foldlog_codec::Error> {
    Value::decode_within(bytes, ValueLimits::of_payload())
}

/// Descends to the first part in which two values differ, as long as both have the same fields or
/// the same number of items. The decoder has bounded the depth.
fn first_difference<'v>(mut old: &'v Value, mut new: &'v Value, path: &mut String) -> (&'v Value, &'v Value) {
    loop {
        let (step, parts) = match (old, new) {
            (Value::Map(one), Value::Map(two))
                if one.len() == two.len() && one.iter().zip(two).all(|(one, two)| one.0 == two.0) =>
            {
                let unlike = one.iter().zip(two).find(|(one, two)| one.1 != two.1);
                let Some(((key, one), (_, two))) = unlike else { return (old, new) };
                (key.path_step(), (one, two))
            }
            (Value::Array(one), Value::Array(two)) if one.len() == two.len() => {
                let unlike = one.iter().zip(two).enumerate().find(|(_, (one, two))| one != two);
                let Some((place, parts)) = unlike else { return (old, new) };
                (format!("[{place}]"), parts)
            }
            _ => return (old, new),
        };
        path.push_str(&step);
        (old, new) = parts;
    }
}

/// Returns the contents of the objects at which two logs diverge, for programs; `None` if there are
/// none.
pub fn objects_json(sides: &[Option<DifferingValue>; 2]) -> Option<Json> {
    let [here, there] = sides.each_ref().map(|side| side.as_ref().and_then(DifferingValue::object_json));
    (here.is_some() || there.is_some()).then(|| json!({ "here": here, "there": there }))
}

/// Returns the values at which two logs diverge, for a person. Each has at most `chars` characters
/// or a few more.
pub fn side_texts(sides: &[Option<DifferingValue>; 2], chars: usize) -> [String; 2] {
    let texts = sides.each_ref().map(|side| match side {
        Some(side) => {
            let value = side
                .bytes_at_path()
                .ok()
                .and_then(|bytes| JsonStream::new(bytes, ValueLimits::of_payload()).ok());
            value.and_then(|value| escape::to_json(&value).ok()).unwrap_or_else(|| "(not read)".to_owned())
        }
        None => "nothing".to_owned(),
    });
    apart(texts, chars)
}

/// Shortens two texts to about `chars` characters each. Leaves out a long common start, up to
/// shortly before the first difference.
pub fn apart(texts: [String; 2], chars: usize) -> [String; 2] {
    let [here, there] = &texts;
    let alike = here.chars().zip(there.chars()).take_while(|(one, other)| one == other).count();
    if alike <= ALIKE_CHARS {
        return texts.map(|text| shorten_text(&text, chars));
    }
    texts.map(|text| {
        let behind: String = text.chars().skip(alike - BEFORE_CHARS).take(chars + 1).collect();
        format!("…{}", shorten_text(&behind, chars))
    })
}

/// Returns the object to which a value refers, in the form that a comparison of records uses.
fn reference(value: &Value) -> Option<ObjectId> {
    match value {
        Value::Map(pairs) => match pairs.as_slice() {
            [(Value::Str(object), Value::Str(name)), (Value::Str(bytes), Value::Unsigned(len))]
                if object == "$object" && bytes == "bytes" =>
            {
                ObjectId::from_file_name(name, *len)
            }
            _ => None,
        },
        _ => None,
    }
}

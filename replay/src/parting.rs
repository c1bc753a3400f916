//! The values at which two logs part, and what the objects hold that stand in the place of large ones.

use foldlog::Value;
use foldlog::audit::{LogReader, Parting};
use foldlog_codec::body::{ObjectId, Payload};
use foldlog_codec::escape;
use foldlog_codec::msgpack::{Limits, Streamed};
use serde_json::{Value as Json, json};

use crate::payload::OBJECT_BYTES_MAX;
use crate::reading::shortened;

/// Number of characters that two values may have in common before what is shown of them begins behind their beginnings.
const ALIKE_CHARS: usize = 60;

/// Number of characters that are shown before the first that differs.
const BEFORE_CHARS: usize = 20;

/// Holds a value at which two logs part.
#[derive(Debug)]
pub(crate) struct Side {
    /// Object that stands in its record; `None` if the record has the value itself.
    pub(crate) object: Option<ObjectId>,
    /// The value in MessagePack, or why it is not told.
    pub(crate) bytes: Result<Vec<u8>, String>,
}

impl Side {
    /// Reads a value of `reader`'s log as a parting has it: an object's content in the place of its reference.
    fn of(reader: &LogReader, value: &Value) -> Side {
        let Some(object) = reference(value) else { return Side { object: None, bytes: Ok(value.encode()) } };
        let read = match object.len <= OBJECT_BYTES_MAX {
            true => reader.payload(Payload::new(&object.reference())).map_err(|error| error.to_string()),
            false => Err(format!("objects of more than {OBJECT_BYTES_MAX} bytes are not read for this")),
        };
        let checked = read.and_then(|bytes| match Streamed::new(&bytes, Limits::of_payload()) {
            Ok(_) => Ok(bytes.to_vec()),
            Err(error) => Err(error.to_string()),
        });
        Side { object: Some(object), bytes: checked }
    }

    /// Returns the value's JSON; `None` if it is not told.
    fn json(&self) -> Option<String> {
        let bytes = self.bytes.as_ref().ok()?;
        escape::to_json(&Streamed::new(bytes, Limits::of_payload()).ok()?).ok()
    }

    /// Returns what is told of the object for programs; `None` if the record has the value itself.
    fn held(&self) -> Option<Json> {
        let object = self.object?;
        let mut held = json!({ "object": object.file_name(), "bytes": object.len });
        match (&self.bytes, self.json().and_then(|json| serde_json::from_str::<Json>(&json).ok())) {
            (Err(reason), _) => held["error"] = Json::from(reason.as_str()),
            (Ok(_), value) => held["value"] = value.unwrap_or_default(),
        }
        Some(held)
    }

    /// Returns which object it is, for a person; `None` if the record has the value itself.
    pub(crate) fn object_text(&self) -> Option<String> {
        let object = self.object?;
        let reason = self.bytes.as_ref().err().map_or_else(String::new, |reason| format!(": {reason}"));
        Some(format!("object {}, {} bytes{reason}", object.file_name(), object.len))
    }
}

/// Reads the values at which two logs part, the first log's and the other's; `None` for each where it has none there.
pub(crate) fn sides(parting: &Parting, here: &LogReader, there: &LogReader) -> [Option<Side>; 2] {
    let of = |reader, value: Option<&Value>| value.map(|value| Side::of(reader, value));
    match &parting.difference {
        Some(difference) => [of(here, difference.recorded.as_ref()), of(there, difference.produced.as_ref())],
        None => [None, None],
    }
}

/// Returns what the objects hold at which two logs part, for programs; `None` if there are none.
pub(crate) fn held(sides: &[Option<Side>; 2]) -> Option<Json> {
    let [here, there] = sides.each_ref().map(|side| side.as_ref().and_then(Side::held));
    (here.is_some() || there.is_some()).then(|| json!({ "here": here, "there": there }))
}

/// Returns what a person is shown of the values at which two logs part, of each at most `chars` characters or a few more.
pub(crate) fn shown(sides: &[Option<Side>; 2], chars: usize) -> [String; 2] {
    let texts = sides.each_ref().map(|side| match side {
        Some(side) => side.json().unwrap_or_else(|| "(not read)".to_owned()),
        None => "nothing".to_owned(),
    });
    apart(texts, chars)
}

/// Shortens two texts to about `chars` characters each: what both begin with is left out, up to shortly before they differ, if it is
/// much.
pub(crate) fn apart(texts: [String; 2], chars: usize) -> [String; 2] {
    let [here, there] = &texts;
    let alike = here.chars().zip(there.chars()).take_while(|(one, other)| one == other).count();
    if alike <= ALIKE_CHARS {
        return texts.map(|text| shortened(&text, chars));
    }
    texts.map(|text| {
        let behind: String = text.chars().skip(alike - BEFORE_CHARS).take(chars + 1).collect();
        format!("…{}", shortened(&behind, chars))
    })
}

/// Returns the object to which a value refers, in the form that a comparison of records has it.
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

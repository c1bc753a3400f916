//! Puts the pieces of a streamed value together.

use serde_json::{Map, Value};

/// Adds a piece to what has arrived of a value: texts and lists grow, objects grow field by field, and anything else is
/// replaced. A `null` changes nothing.
pub(super) fn merge(whole: &mut Value, piece: Value) {
    match (whole, piece) {
        (_, Value::Null) => {}
        (Value::String(whole), Value::String(piece)) => whole.push_str(&piece),
        (Value::Array(whole), Value::Array(piece)) => whole.extend(piece),
        (Value::Object(whole), Value::Object(piece)) => merge_fields(whole, piece),
        (whole, piece) => *whole = piece,
    }
}

/// Adds the fields of a piece to those that have arrived.
pub(super) fn merge_fields(whole: &mut Map<String, Value>, piece: Map<String, Value>) {
    for (name, value) in piece {
        match whole.get_mut(&name) {
            Some(field) => merge(field, value),
            None if value.is_null() => {}
            None => {
                whole.insert(name, value);
            }
        }
    }
}

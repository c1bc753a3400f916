//! Puts the pieces of a streamed value together.

use serde_json::{Map, Value};

/// Adds a piece to what has arrived of a value: texts and lists grow, objects grow field by field, and anything else is
/// replaced. A `null` changes nothing. Returns how many values were added.
pub(super) fn merge(whole: &mut Value, piece: Value) -> usize {
    match (whole, piece) {
        (_, Value::Null) => 0,
        (Value::String(whole), Value::String(piece)) => {
            whole.push_str(&piece);
            0
        }
        (Value::Array(whole), Value::Array(piece)) => {
            let added = piece.iter().map(count).sum();
            whole.extend(piece);
            added
        }
        (Value::Object(whole), Value::Object(piece)) => merge_fields(whole, piece),
        (whole, piece) => {
            let added = count(&piece);
            *whole = piece;
            added
        }
    }
}

/// Adds the fields of a piece to those that have arrived. Returns how many values were added.
pub(super) fn merge_fields(whole: &mut Map<String, Value>, piece: Map<String, Value>) -> usize {
    let mut added = 0;
    for (name, value) in piece {
        match whole.get_mut(&name) {
            Some(field) => added += merge(field, value),
            None if value.is_null() => {}
            None => {
                added += count(&value);
                whole.insert(name, value);
            }
        }
    }
    added
}

/// Returns the number of values that a value consists of.
pub(super) fn count(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(count).sum::<usize>(),
        Value::Object(fields) => 1 + fields.values().map(count).sum::<usize>(),
        _ => 1,
    }
}

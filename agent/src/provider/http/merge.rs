//! Merges the pieces of a streamed value.

use serde_json::{Map, Value};

/// Merges a piece into a partial value. Texts and lists are appended, objects are merged field by
/// field, other values are replaced. A `null` changes nothing. Returns the number of added values.
pub(in crate::provider) fn merge(whole: &mut Value, piece: Value) -> usize {
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

/// Merges the fields of a piece into a partial object. Returns the number of added values.
pub(in crate::provider) fn merge_fields(whole: &mut Map<String, Value>, piece: Map<String, Value>) -> usize {
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

/// Returns the number of values in a value, including itself.
pub(in crate::provider) fn count(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(count).sum::<usize>(),
        Value::Object(fields) => 1 + fields.values().map(count).sum::<usize>(),
        _ => 1,
    }
}

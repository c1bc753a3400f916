//! The differences of two states, by slice and path.
//!
//! Items are matched by identity, not by place: an item that both states hold, known by the sequence number of the record
//! that inserted it and its ordinal in that record, is the same item. Between two such items, the removed and the added items
//! are paired in order and compared field by field; one without a partner is removed or added whole. So an appended item is
//! one difference, a replaced item shows the fields that changed, and an item behind a removed one is not reported because it
//! moved.
//!
//! A path begins at the slice: `items[3].status`. The index is the item's place in the later state, or in the earlier one
//! if the item was removed.

use std::collections::{BTreeMap, BTreeSet};

use foldlog::audit::StateReader;
use foldlog::{Policy, SequenceNumber, State, StoredItem, Value};
use foldlog_codec::escape;
use serde::{Serialize, Serializer};

use crate::failure::Result;

/// Describes one difference of two states.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Name of the slice; `None` for the session's tags and for conversations.
    pub slice: Option<String>,
    /// Id of the evaluation of whose conversation a message differs; `None` for slices and tags.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// Path of the value within the slice, such as `items[3].status`.
    pub path: String,
    /// What happened to the value.
    pub change: Change,
    /// The value in the earlier state; nil if it was added.
    #[serde(serialize_with = "json_form")]
    pub before: Value,
    /// The value in the later state; nil if it was removed.
    #[serde(serialize_with = "json_form")]
    pub after: Value,
}

fn json_form<S: Serializer>(value: &Value, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    value.json_form().serialize(serializer)
}

/// Names what happened to a value between two states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// Only the later state holds the value.
    Added,
    /// Only the earlier state holds the value.
    Removed,
    /// The two states hold different values.
    Changed,
}

/// Reads two states of one log in which only items that one state alone holds have contents. Items that both hold are equal,
/// and are not read.
///
/// # Errors
///
/// The engine's error if an item cannot be read.
pub fn unlike(before: &StateReader, after: &StateReader) -> foldlog::Result<(State, State)> {
    let in_one = |state: &StateReader, other: &StateReader| {
        state.to_state_of(|slice, item| {
            !other.slice(slice.name()).is_some_and(|other| other.contains(item.sequence, item.ordinal))
        })
    };
    Ok((in_one(before, after)?, in_one(after, before)?))
}

/// Takes one difference after the other. If it fails, no more are looked for.
pub type Sink<'a> = dyn FnMut(Difference) -> Result<()> + 'a;

/// Hands the differences of two states to `sink`: those of slices, in the order of their names, then those of tags. One pair of
/// items is decoded at a time.
///
/// # Errors
///
/// [`foldlog::Error::Decode`] if an item is not MessagePack, or the error of `sink`.
pub fn states(before: &State, after: &State, sink: &mut Sink<'_>) -> Result<()> {
    slices(before, after, |_| true, sink)?;
    Collector { slice: None, sink }.values("tags", &text_map(&before.tags), &text_map(&after.tags))
}

/// Hands the differences of the slices whose policy is `wanted` to `sink`. A slice that only one state knows counts as empty in
/// the other.
///
/// # Errors
///
/// [`foldlog::Error::Decode`] if an item is not MessagePack, or the error of `sink`.
pub fn slices(
    before: &State,
    after: &State,
    wanted: impl Fn(Policy) -> bool,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let names: BTreeSet<&String> = before.slices.keys().chain(after.slices.keys()).collect();
    for name in names {
        let (old, new) = (before.slices.get(name), after.slices.get(name));
        if !new.or(old).is_some_and(|slice| wanted(slice.policy)) {
            continue;
        }
        let old = old.map(|slice| slice.items.as_slice()).unwrap_or_default();
        let new = new.map(|slice| slice.items.as_slice()).unwrap_or_default();
        // Most slices are equal, which is cheap to find out.
        if old == new {
            continue;
        }
        Collector { slice: Some(name), sink: &mut *sink }.items(old, new)?;
    }
    Ok(())
}

fn text_map(map: &BTreeMap<String, String>) -> Value {
    Value::Map(
        map.iter().map(|(key, value)| (Value::from(key.as_str()), Value::from(value.as_str()))).collect(),
    )
}

struct Collector<'a, 'b> {
    slice: Option<&'a String>,
    sink: &'a mut Sink<'b>,
}

impl Collector<'_, '_> {
    fn push(&mut self, path: String, change: Change, before: Value, after: Value) -> Result<()> {
        (self.sink)(Difference {
            slice: self.slice.cloned(),
            conversation: None,
            path,
            change,
            before,
            after,
        })
    }

    fn items(&mut self, old: &[StoredItem], new: &[StoredItem]) -> Result<()> {
        let places: BTreeMap<(SequenceNumber, u32), usize> =
            old.iter().enumerate().map(|(place, item)| ((item.sequence, item.ordinal), place)).collect();
        let (mut old_from, mut new_from) = (0, 0);
        for (place, item) in new.iter().enumerate() {
            // An item that moved back, which no log can do, counts as removed and added.
            let partner = places.get(&(item.sequence, item.ordinal)).filter(|at| **at >= old_from);
            let Some((at, before)) = partner.and_then(|at| Some((*at, old.get(*at)?))) else { continue };
            self.between(old, old_from..at, new, new_from..place)?;
            if before != item {
                self.values(&format!("items[{place}]"), &before.value()?, &item.value()?)?;
            }
            (old_from, new_from) = (at + 1, place + 1);
        }
        self.between(old, old_from..old.len(), new, new_from..new.len())
    }

    /// Compares the removed items with the added ones between two items that stayed.
    fn between(
        &mut self,
        old: &[StoredItem],
        went: std::ops::Range<usize>,
        new: &[StoredItem],
        came: std::ops::Range<usize>,
    ) -> Result<()> {
        let mut went = went;
        for place in came {
            let Some(after) = new.get(place) else { continue };
            let path = format!("items[{place}]");
            match went.next().and_then(|place| old.get(place)) {
                Some(before) => self.values(&path, &before.value()?, &after.value()?),
                None => self.push(path, Change::Added, Value::Nil, after.value()?),
            }?;
        }
        for (place, before) in went.filter_map(|place| Some((place, old.get(place)?))) {
            self.push(format!("items[{place}]"), Change::Removed, before.value()?, Value::Nil)?;
        }
        Ok(())
    }

    /// Compares two values field by field. Decoding has bounded the depth of values from a log.
    fn values(&mut self, path: &str, before: &Value, after: &Value) -> Result<()> {
        match (before, after) {
            (before, after) if before == after => Ok(()),
            (Value::Map(old), Value::Map(new)) => {
                for (key, value) in old {
                    let path = field(path, key);
                    match new.iter().find(|(other, _)| other == key) {
                        Some((_, other)) => self.values(&path, value, other),
                        None => self.push(path, Change::Removed, value.clone(), Value::Nil),
                    }?;
                }
                let is_new = |(key, _): &&(Value, Value)| !old.iter().any(|(other, _)| other == key);
                new.iter().filter(is_new).try_for_each(|(key, value)| {
                    self.push(field(path, key), Change::Added, Value::Nil, value.clone())
                })
            }
            (Value::Array(old), Value::Array(new)) => {
                for (place, (value, other)) in old.iter().zip(new).enumerate() {
                    self.values(&format!("{path}[{place}]"), value, other)?;
                }
                for (place, value) in old.iter().enumerate().skip(new.len()) {
                    self.push(format!("{path}[{place}]"), Change::Removed, value.clone(), Value::Nil)?;
                }
                for (place, value) in new.iter().enumerate().skip(old.len()) {
                    self.push(format!("{path}[{place}]"), Change::Added, Value::Nil, value.clone())?;
                }
                Ok(())
            }
            _ => self.push(path.to_owned(), Change::Changed, before.clone(), after.clone()),
        }
    }
}

/// Returns the path of a field: `.name`, or `["any text"]`.
fn field(path: &str, key: &Value) -> String {
    let plain = |text: &&str| {
        !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_') && {
            text.chars().next().is_some_and(|c| !c.is_numeric())
        }
    };
    match key.as_str().filter(plain) {
        Some(name) => format!("{path}.{name}"),
        None => format!("{path}[{}]", escape::to_json(key).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use foldlog::SliceState;

    use super::*;

    fn state(items: &[(u64, &str)]) -> State {
        let items = items.iter().map(|(sequence, json)| StoredItem {
            sequence: SequenceNumber::new(*sequence),
            ordinal: 0,
            version: 1,
            bytes: serde_json::from_str::<Value>(json).unwrap().encode().into(),
        });
        let slice = SliceState { policy: Policy::State, item: "item".to_owned(), items: items.collect() };
        let slices = BTreeMap::from([("slice".to_owned(), slice)]);
        State { position: Some(9.into()), tags: BTreeMap::new(), open_operations: Vec::new(), slices }
    }

    fn found(before: &[(u64, &str)], after: &[(u64, &str)]) -> Vec<String> {
        let shown = |difference: Difference| {
            let json = |value| serde_json::to_string(value).unwrap();
            format!("{} {}>{}", difference.path, json(&difference.before), json(&difference.after))
        };
        let mut found = Vec::new();
        let mut sink = |difference| {
            found.push(shown(difference));
            Ok(())
        };
        states(&state(before), &state(after), &mut sink).unwrap();
        found
    }

    #[test]
    fn items_that_stayed_are_not_reported_where_others_went() {
        let before = [(1, "1"), (2, "2"), (3, "3")];
        assert_eq!(found(&before, &[(2, "2"), (3, "3"), (4, "1")]), ["items[0] 1>null", "items[2] null>1"]);
        assert_eq!(found(&before, &[(1, "1"), (4, "5"), (3, "3")]), ["items[1] 2>5"]);
        assert_eq!(found(&before, &before), [] as [&str; 0]);
        assert_eq!(found(&before, &[]).len(), 3);
    }

    #[test]
    fn values_are_compared_field_by_field() {
        let before = [(1, r#"{"a": 1, "b": [1, {"c": 2}], "gone": null, "odd key": 1}"#)];
        let after = [(2, r#"{"b": [1, {"c": 3}, 4], "a": 1, "new": "x", "odd key": 2}"#)];
        assert_eq!(
            found(&before, &after),
            [
                "items[0].b[1].c 2>3",
                "items[0].b[2] null>4",
                "items[0].gone null>null",
                r#"items[0]["odd key"] 1>2"#,
                r#"items[0].new null>"x""#,
            ]
        );
    }

    #[test]
    fn one_item_with_other_bytes_is_a_difference() {
        assert_eq!(found(&[(1, "1")], &[(1, "2")]), ["items[0] 1>2"]);
    }
}

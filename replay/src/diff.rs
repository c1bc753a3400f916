//! The differences of two states, by slice and path.
//!
//! Items are matched by what they are, not by where they stand: an item that both states hold, known by the
//! record that inserted it and its place in that record, is the same. Between two such items, what went and
//! what came is paired in order and compared field by field; what has no partner went or came whole. So an
//! appended item is one difference, a replaced one shows the fields that changed, and nothing behind an item
//! that went is reported merely because it moved.
//!
//! A path begins at the slice: `items[3].status`. The index is the item's place in the later state, or in the
//! earlier one where the item went.

use std::collections::{BTreeMap, BTreeSet};

use foldlog::audit::StateReader;
use foldlog::{Policy, SequenceNumber, State, StoredItem, Value};
use foldlog_codec::escape;
use serde::Serialize;

use crate::failure::Result;

/// One difference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The slice; `None` for the session's tags.
    pub slice: Option<String>,
    /// Where in it.
    pub path: String,
    /// What happened there.
    pub change: Change,
    /// What stood there; nil where nothing did.
    pub before: Value,
    /// What stands there; nil where nothing does.
    pub after: Value,
}

/// What happened to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// It came.
    Added,
    /// It went.
    Removed,
    /// It is another.
    Changed,
}

/// Two states of one log, whose items say something only where one state alone holds them: what both hold is the same, and
/// need not be read to be compared.
///
/// # Errors
///
/// What reading says.
pub fn unlike(before: &StateReader, after: &StateReader) -> foldlog::Result<(State, State)> {
    let in_one = |state: &StateReader, other: &StateReader| {
        state.to_state_of(|slice, item| {
            !other.slice(slice.name()).is_some_and(|other| other.contains(item.sequence, item.ordinal))
        })
    };
    Ok((in_one(before, after)?, in_one(after, before)?))
}

/// Takes one difference after the other; where it fails, no more are looked for.
pub type Sink<'a> = dyn FnMut(Difference) -> Result<()> + 'a;

/// Hands what changed between two states to `sink`: in slices in the order of their names, then in tags. One pair of items
/// is decoded at a time.
///
/// # Errors
///
/// [`foldlog::Error::Decode`] where an item is no MessagePack, or what `sink` says.
pub fn states(before: &State, after: &State, sink: &mut Sink<'_>) -> Result<()> {
    slices(before, after, |_| true, sink)?;
    Collector { slice: None, sink }.values("tags", &text_map(&before.tags), &text_map(&after.tags))
}

/// As [`states`], of the slices whose policy is wanted. A slice that only one state knows was, or is, empty in the other.
///
/// # Errors
///
/// As [`states`].
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
        // Most slices did not change, and comparing them costs little.
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
        (self.sink)(Difference { slice: self.slice.cloned(), path, change, before, after })
    }

    fn items(&mut self, old: &[StoredItem], new: &[StoredItem]) -> Result<()> {
        let places: BTreeMap<(SequenceNumber, u32), usize> =
            old.iter().enumerate().map(|(place, item)| ((item.sequence, item.ordinal), place)).collect();
        let (mut old_from, mut new_from) = (0, 0);
        for (place, item) in new.iter().enumerate() {
            // An item that moved back, which no log can do, is taken as one that went and came.
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

    /// Compares what went with what came, between two items that stayed.
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

    /// Compares two values field by field. The depth of values from a log is bounded by their decoding.
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

/// The path of a field: `.name`, or `["any text"]`.
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

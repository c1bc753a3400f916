use std::collections::BTreeSet;
use std::fmt;

use foldlog::escape;
use serde_json::Value;

use super::{AdapterState, AdapterStateSnapshot};

/// Contains the changes from one capture to another, field by field.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StateDiff {
    /// Changed fields, in ascending order of their paths within each level.
    pub changes: Vec<FieldChange>,
}

/// Describes a field with a changed value.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldChange {
    /// Path of the field: `/adapter_type`, `/resumable`, or a JSON pointer that starts with
    /// `/state`.
    pub path: String,
    /// Value before; `None` if the field did not exist.
    pub before: Option<Value>,
    /// Value after; `None` if the field no longer exists.
    pub after: Option<Value>,
}

impl StateDiff {
    /// Returns whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

impl fmt::Display for StateDiff {
    /// Writes one line per change.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text =
            |value: &Option<Value>| value.as_ref().map_or_else(|| "nothing".to_owned(), Value::to_string);
        for (index, change) in self.changes.iter().enumerate() {
            let (before, after) = (text(&change.before), text(&change.after));
            let line = format!("{}: {before} -> {after}", change.path);
            write!(f, "{}{}", if index == 0 { "" } else { "\n" }, escape::text(&line))?;
        }
        Ok(())
    }
}

/// Compares two captures: the adapter, whether the session can be resumed, and each field of the
/// states. Objects are compared field by field, other values as a whole.
pub fn diff_states(before: &AdapterStateSnapshot, after: &AdapterStateSnapshot) -> StateDiff {
    let mut changes = Vec::new();
    let (was, is) = (&before.state, &after.state);
    compare("/adapter_type", Some(&was.adapter_type().into()), Some(&is.adapter_type().into()), &mut changes);
    compare("/resumable", Some(&was.resumable().into()), Some(&is.resumable().into()), &mut changes);
    compare("/state", Some(was.state()), Some(is.state()), &mut changes);
    StateDiff { changes }
}

fn compare(path: &str, before: Option<&Value>, after: Option<&Value>, changes: &mut Vec<FieldChange>) {
    match (before, after) {
        (before, after) if before == after => {}
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
            for name in names {
                let path = format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"));
                compare(&path, before.get(name), after.get(name), changes);
            }
        }
        (before, after) => changes.push(FieldChange {
            path: path.to_owned(),
            before: before.cloned(),
            after: after.cloned(),
        }),
    }
}

//! What changed between two states of a slice.

use std::ops::ControlFlow;

use super::{Key, RowRef, Rows, Slot};

/// A place of a slice at which something else stands than before.
#[derive(Debug)]
pub(crate) struct Changed<'a> {
    key: Key,
    before: Option<RowRef<'a>>,
    now: Option<RowRef<'a>>,
}

/// Whether two items have the same name, version and recorded bytes; false where these are not held.
fn is_same(one: RowRef<'_>, other: RowRef<'_>) -> bool {
    one.id == other.id
        && one.version == other.version
        && one.bytes().is_some()
        && one.bytes() == other.bytes()
}

fn are_same(one: Option<RowRef<'_>>, other: Option<RowRef<'_>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => is_same(one, other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

impl Changed<'_> {
    /// Whether both are the same change.
    pub(crate) fn is_same(&self, other: &Changed<'_>) -> bool {
        self.key == other.key && are_same(self.before, other.before) && are_same(self.now, other.now)
    }
}

impl Rows {
    /// What changed since `before`, in time that depends on how much that is where this was made from it. `None` where
    /// not all items stand by themselves with what was recorded, as an audit holds them.
    pub(crate) fn changes_since<'a>(&'a self, before: &'a Rows) -> Option<Vec<Changed<'a>>> {
        if self.open.is_some() || before.open.is_some() {
            return None;
        }
        fn row(slot: &Slot) -> Option<RowRef<'_>> {
            match slot {
                Slot::Row(row) => Some(row.borrow()).filter(|row| row.bytes().is_some()),
                Slot::Run(_) => None,
            }
        }
        let mut changes = Vec::new();
        let walked = self.by_key.differences(&before.by_key, &mut |key, now, then| {
            let (now_row, then_row) = (now.and_then(row), then.and_then(row));
            if now_row.is_some() != now.is_some() || then_row.is_some() != then.is_some() {
                return ControlFlow::Break(());
            }
            if !are_same(now_row, then_row) {
                changes.push(Changed { key: *key, before: then_row, now: now_row });
            }
            ControlFlow::Continue(())
        });
        walked.is_continue().then_some(changes)
    }

    /// Whether this is `before` with more items behind it, as a LOG slice grows. False also where that cannot be told.
    pub(crate) fn only_grew_since(&self, before: &Rows) -> bool {
        let last = before.by_key.last().map(|(key, _)| *key);
        let behind = |changed: &Changed<'_>| changed.before.is_none() && Some(changed.key) > last;
        self.changes_since(before).is_some_and(|changes| changes.iter().all(behind))
    }
}

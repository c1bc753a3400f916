//! Differences between the slices of two positions, item by item.
//!
//! A reader that walks a log and requests the changes after each record has every list of items at
//! every position, in time in proportion to the changes, not to the lists.

use super::{ItemName, StateReader};
use crate::items::rows::Rows;

/// Place of an item in its slice: items are in ascending order of their places. An item keeps its
/// place while the slice contains it, unless so many items are inserted before it that it gets a
/// new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemPlace(u128);

/// Differences of a slice between two positions. Each list is in the order of places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceChanges {
    /// Id with which the log declared the slice.
    pub slice: u32,
    /// Items that the slice no longer contains, or not at this place.
    pub removed: Vec<(ItemPlace, ItemName)>,
    /// Items that the slice did not contain before, or not at this place.
    pub added: Vec<(ItemPlace, ItemName)>,
}

impl StateReader {
    /// Returns the differences of the slices since `before`, an earlier position of the same walk,
    /// in the order of the slices' ids. `None` is the position before the first record, where no
    /// slice has an item. Unchanged slices are left out. Takes time in proportion to the changes
    /// between the two, and to the number of slices.
    pub fn changes_since(&self, before: Option<&StateReader>) -> Vec<SliceChanges> {
        let nothing = Rows::default();
        let slices = self.projection.names.slices().iter();
        let changes = slices.map(|declared| {
            let then = before.and_then(|before| before.rows(declared.id)).unwrap_or(&nothing);
            let now = self.rows(declared.id).unwrap_or(&nothing);
            let mut changes = SliceChanges { slice: declared.id, removed: Vec::new(), added: Vec::new() };
            for changed in now.changes_since(then) {
                let to = if changed.is_new { &mut changes.added } else { &mut changes.removed };
                to.push((ItemPlace(changed.key), ItemName::from_row(&changed.item)));
            }
            changes
        });
        changes.filter(|changes| !changes.removed.is_empty() || !changes.added.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::inspect::LogReader;
    use crate::{Event, SessionTypes, Store};

    #[derive(Serialize, Deserialize)]
    struct Said(u64);

    impl Event for Said {
        const NAME: &'static str = "said";
    }

    #[test]
    fn changes_from_record_to_record_add_up_to_the_slices() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let session = store.create(&SessionTypes::builder().build().unwrap()).unwrap();
        for number in 0..60_u64 {
            session.dispatch(Said(number)).unwrap();
            if number % 4 == 3 {
                session.rollback_to(number * 7 % (session.log().position().unwrap().get() + 1)).unwrap();
            }
        }
        let dir = session.dir().to_owned();
        session.close().unwrap();
        let reader = LogReader::open(&dir).unwrap();
        let mut before: Option<StateReader> = None;
        let mut held: BTreeMap<(u32, ItemPlace), ItemName> = BTreeMap::new();
        let mut changed = 0;
        reader
            .fold(|_, state| {
                let now = state();
                let changes = now.changes_since(before.as_ref());
                for SliceChanges { slice, removed, added } in changes {
                    changed += 1;
                    for (place, name) in removed {
                        assert_eq!(held.remove(&(slice, place)), Some(name));
                    }
                    for (place, name) in added {
                        assert_eq!(held.insert((slice, place), name), None);
                    }
                }
                for slice in now.slices() {
                    let names = held.iter().filter(|((id, _), _)| *id == slice.id()).map(|(_, name)| *name);
                    assert!(names.eq(slice.names()), "slice {} at {:?}", slice.name(), now.position());
                }
                before = Some(now);
                Ok(())
            })
            .unwrap();
        assert!(changed >= 60, "{changed} changes");
    }
}

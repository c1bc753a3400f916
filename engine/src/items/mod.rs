//! The items of slices in memory: persistent collections, shared between a projection and its
//! views.
//!
//! | module | contains |
//! |---|---|
//! | `row` | one item, owned and borrowed |
//! | `rows` | the items of one slice, shared between views |
//! | `runs` | consecutive values of one type, in one piece of memory |
//! | `index` | a map from keys to items, for `upsert_by` |
//! | `log_items` | the items of a LOG slice, which stay in the log |
//! | `tree` | the persistent map in which `rows` and `index` store their entries |
//!
//! This module knows no records, logs or types of a host.

use std::any::Any;
use std::sync::Arc;

pub(crate) mod index;
pub(crate) mod log_items;
pub(crate) mod row;
pub(crate) mod rows;
pub(crate) mod runs;
pub(crate) mod tree;

use log_items::LogItems;
use row::SliceRow;
use rows::Rows;

/// Value of a type that only the host knows.
pub(crate) type AnyValue = Arc<dyn Any + Send + Sync>;

#[derive(Clone, Debug)]
pub(crate) enum SliceItems {
    /// All items.
    Held(Rows),
    /// The last items of a LOG slice. The others are read from the log.
    InLog(LogItems),
}

impl SliceItems {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            SliceItems::Held(rows) => rows.is_empty(),
            SliceItems::InLog(items) => items.len() == 0,
        }
    }

    /// Returns the items in memory: all, or the last ones of a LOG slice.
    pub(crate) fn rows_in_memory(&self) -> &Rows {
        match self {
            SliceItems::Held(rows) => rows,
            SliceItems::InLog(items) => &items.tail,
        }
    }

    /// Returns all items, unless they are in the log.
    pub(crate) fn held_rows(&self) -> Option<&Rows> {
        match self {
            SliceItems::Held(rows) => Some(rows),
            SliceItems::InLog(_) => None,
        }
    }

    pub(crate) fn push(&mut self, row: SliceRow) {
        match self {
            SliceItems::Held(rows) => rows.push(row),
            SliceItems::InLog(items) => items.push(row),
        }
    }
}

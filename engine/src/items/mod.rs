//! The items of slices, as they are held in memory: persistent, shared between a projection and its views.
//!
//! | module | holds |
//! |---|---|
//! | `row` | one item, as it is held and as it is looked at |
//! | `rows` | the items of one slice, shared between views |
//! | `runs` | values that were put in at a stretch, in one piece of memory |
//! | `index` | which items have which key, for `upsert_by` |
//! | `log_items` | the items of a LOG slice, which stay in the log |
//! | `tree` | the persistent map behind `rows` and `index` |
//!
//! Nothing here knows a record, a log or a host's types.

use std::any::Any;
use std::sync::Arc;

pub(crate) mod index;
pub(crate) mod log_items;
pub(crate) mod row;
pub(crate) mod rows;
pub(crate) mod runs;
pub(crate) mod tree;

use log_items::LogItems;
use row::Row;
use rows::Rows;

/// A decoded value of a type that only the host knows.
pub(crate) type AnyValue = Arc<dyn Any + Send + Sync>;

/// The items of one slice.
#[derive(Clone, Debug)]
pub(crate) enum Items {
    /// All of them.
    Held(Rows),
    /// The last ones of a LOG slice, whose others are read from the log.
    InLog(LogItems),
}

impl Items {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Items::Held(rows) => rows.is_empty(),
            Items::InLog(items) => items.len() == 0,
        }
    }

    /// The items that are held: all, or the last ones of a LOG slice.
    pub(crate) fn held(&self) -> &Rows {
        match self {
            Items::Held(rows) => rows,
            Items::InLog(items) => items.tail(),
        }
    }

    pub(crate) fn push(&mut self, row: Row) {
        match self {
            Items::Held(rows) => rows.push(row),
            Items::InLog(items) => items.push(row),
        }
    }
}

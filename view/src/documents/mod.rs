//! Documents: what is known of a log or a store, as values that serialise into the fields of `--json`.
//!
//! | module | contains |
//! |---|---|
//! | [`timeline`] | the name, line and JSON form of each record |
//! | [`stats`] | what a log is made of |
//! | [`ledger`] | what is known of a call, and what can be decided about it |
//! | [`verify`], [`captures`] | damage of a log and of captures |
//! | [`sessions`] | how each session of a store stands |
//! | [`tasks`] | words for tasks |

pub mod captures;
pub mod ledger;
pub mod sessions;
pub mod stats;
pub mod tasks;
pub mod timeline;
pub mod verify;

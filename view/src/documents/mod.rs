//! Documents: facts about a log or a store, as values that serialise into the fields of `--json`.
//!
//! | module | contains |
//! |---|---|
//! | [`timeline`] | the name, line and JSON form of each record |
//! | [`stats`] | counts of a log's contents |
//! | [`ledger`] | the account of a call, with the decisions that are possible |
//! | [`verify`], [`captures`] | damage of a log and of captures |
//! | [`sessions`] | the status of each session of a store |
//! | [`tasks`] | texts about tasks |

pub mod captures;
pub mod ledger;
pub mod sessions;
pub mod stats;
pub mod tasks;
pub mod timeline;
pub mod verify;

//! Shows sessions to people and programs: as documents, as an HTML report, and as a live page in a
//! browser.
//!
//! | module | contains |
//! |---|---|
//! | [`documents`] | the timeline, statistics, ledger accounts, verification and session rows: serialisable, collected from a log |
//! | [`first_difference`] | the values at which two logs diverge, with the contents of objects |
//! | [`payload`] | the payloads of records, decoded without their types |
//! | [`spend`] | tokens and money that a session has spent |
//! | [`report`] | the report: one HTML file |
//! | `server` | the live page: a server on the loopback (feature `server`) |
//! | `walk`, `records`, `lists`, `blocks` | the columns, histories and blocks of a page |
//! | `summaries`, `tasks`, `files`, `agent_steps`, `after_damage` | the other parts of a page |
//! | [`positions`] | positions by number or tag |
//! | [`visits`] | walks over records whose visitor may fail |
//! | [`session_dirs`], [`bucket`] | the directories of sessions, and buckets in local directories |
//! | [`text`], [`shell`] | short texts for a person, and quoted words for commands |
//! | [`clock`] | the present time |
//! | [`error`] | errors, and the next step after each |
//!
//! # Pages
//!
//! A page folds nothing. The engine computes the state at a position, and a page shows it:
//!
//! | a page shows | source |
//! |---|---|
//! | the timeline | `records`: the fields of `show --json` for each record, its operation, its depth among rollbacks |
//! | a record's document | `show --json`, verbatim |
//! | a slice at a step | `walk`: the items by their names, at every position (`lists`); each item as `state --json` prints it |
//! | a conversation at a step | the messages that count there according to [`MessageHistory`](foldlog::inspect::MessageHistory), each as `transcript --as-recorded --json` prints it, read one after the other |
//! | tokens and cost at a step | [`spend`], as in `stats --json` |
//! | the summaries of a conversation at a step | `summaries`: the messages that a provider is sent, and the records that they replace |
//! | the tasks at a step | `tasks`: the fields of `task list --json` for each task, with its record |
//! | a workspace's files at a step | `files`: the last capture on the way there |
//! | the calls of agents in a directory | `agent_steps`: the steps of a [timeline](foldlog_timeline), as operations; their captures, without ignored files, as those of a workspace |
//! | a diff of two steps | the items that are in only one of the two lists, compared as [`foldlog_replay::differences`] compares them |
//! | damage | `after_damage`: the damage, and the records after it as `show --beyond-damage --json` prints them |
//! | operations | `ledger --json`; for operations that wait for a decision, `ledger OPERATION --json` with the commands that decide |
//! | integrity | `verify --json` |
//! | statistics | `stats --json`, and the ledger's durations |
//!
//! [`report`] writes all of this into one file; `server` serves it to a browser. Both use the
//! modules in `pages/`. These are plain JavaScript, and only the implementations of `source.js`
//! know where the data comes from.
//!
//! # Invariants
//!
//! 1. A report makes no request and runs only its own modules: its content security policy allows
//!    nothing without its nonce.
//! 2. A report's markup contains no data from a log: the data is in `blocks`, and the pages create
//!    text nodes from it.
//! 3. Without `--payloads`, the file contains no value of a host, a tool or a model, only its type,
//!    length and digest, and the sums that were spent.
//! 4. A report's memory grows with the number of records and changes, not with the size of their
//!    contents.

mod after_damage;
mod agent_steps;
mod blocks;
pub mod bucket;
pub mod clock;
pub mod documents;
pub mod error;
mod files;
pub mod first_difference;
mod lists;
mod numbered;
pub mod payload;
pub mod positions;
mod records;
pub mod report;
#[cfg(feature = "server")]
pub mod server;
pub mod session_dirs;
pub mod shell;
pub mod spend;
mod summaries;
mod tasks;
pub mod text;
pub mod visits;
mod walk;

use foldlog::SequenceNumber;

pub use error::{Error, Result};

/// Maximum size of a page's files in bytes, before modules are encoded.
#[cfg(test)]
const PAGES_BYTES_MAX: usize = 155_000;

/// Selects the values that a page includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payloads {
    /// Maximum length of an included value in bytes; `None` includes no values.
    limit: Option<u64>,
}

impl Payloads {
    /// Includes values of at most `limit` bytes, or none if `limit` is `None`.
    pub fn up_to(limit: Option<u64>) -> Payloads {
        Payloads { limit }
    }

    pub(crate) fn are_asked_for(self) -> bool {
        self.limit.is_some()
    }

    pub(crate) fn bytes_max(self) -> u64 {
        self.limit.unwrap_or(0)
    }
}

/// Range of records that a page lists; both ends are included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRange {
    /// First record.
    pub from: SequenceNumber,
    /// Last record.
    pub last: SequenceNumber,
}

impl RecordRange {
    pub(crate) fn contains(&self, sequence: SequenceNumber) -> bool {
        (self.from..=self.last).contains(&sequence)
    }

    /// Returns whether the range contains no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of records.
    pub fn len(&self) -> u64 {
        (self.last.get() + 1).saturating_sub(self.from.get())
    }
}

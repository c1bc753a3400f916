//! Shows sessions to people and programs: as documents, as an HTML report, and as a live page in a browser.
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
//! | `summaries`, `tasks`, `files`, `after_damage` | the other parts of a page |
//! | [`positions`] | positions by number or tag |
//! | [`visits`] | walks over records whose visitor may fail |
//! | [`record_names`] | the name of a record in a listing |
//! | [`session_dirs`], [`bucket`] | the directories of sessions, and buckets in local directories |
//! | [`text`], [`shell`] | short texts for a person, and words of commands |
//! | [`clock`] | the present time |
//! | [`error`] | reasons for failure, and what to do next |
//!
//! # Pages
//!
//! A page folds nothing. The engine computes what was at a position, and a page shows it:
//!
//! | a page shows | which comes from |
//! |---|---|
//! | the timeline | `records`: what `show --json` says of each record, its operation, its depth among rollbacks |
//! | a record's document | `show --json`, word by word |
//! | a slice at a step | `walk`: the items by their names, at every position (`lists`); each item as `state --json` prints it |
//! | a conversation at a step | the messages that [`MessageHistory`](foldlog::inspect::MessageHistory) says count there, each as `transcript --as-recorded --json` prints it, read one after the other |
//! | what was spent at a step | [`spend`], as `stats --json` tells it |
//! | the summaries of a conversation at a step | `summaries`: what a provider is sent in place of which records |
//! | the tasks at a step | `tasks`: what `tasks --json` knows of each, with its record |
//! | a workspace's files at a step | `files`: the last capture on the way there |
//! | a diff of two steps | the items that one of the two lists lacks, compared as [`foldlog_replay::differences`] compares them |
//! | damage | `after_damage`: what is damaged, and the records behind it as `show --beyond-damage --json` prints them |
//! | operations | `ledger --json`; what waits for somebody, with the commands that decide, from `ledger OPERATION --json` |
//! | integrity | `verify --json` |
//! | statistics | `stats --json`, and the ledger's durations |
//!
//! [`report`] writes all of it into one file; `server` answers a browser. Both show the modules in `pages/`, as
//! they stand: plain JavaScript, of which only what implements `source.js` knows where data comes from.
//!
//! # Invariants
//!
//! 1. A report makes no request, and runs no script but its own modules: its content security policy allows what bears its nonce,
//!    and nothing else.
//! 2. Nothing from a log stands in a report's markup: data is in `blocks`, and the pages make text nodes of it.
//! 3. Without `--payloads` no value of a host, a tool or a model is in the file, only its type, length and digest, and the sums of
//!    what was spent.
//! 4. The memory that a report takes grows with the number of records and of changes, not with what these hold.

mod after_damage;
mod blocks;
pub mod bucket;
pub mod clock;
pub mod documents;
pub mod error;
mod files;
pub mod first_difference;
mod lists;
pub mod payload;
pub mod positions;
pub mod record_names;
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

/// Number of bytes that the files of a page take at most, before modules are encoded.
#[cfg(test)]
const PAGES_BYTES_MAX: usize = 150_000;

/// Says which values a page has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payloads {
    /// Number of bytes of the longest value that is included; `None` if none is.
    limit: Option<u64>,
}

impl Payloads {
    /// Values of at most `limit` bytes, or none at all.
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

/// Holds the records that a page lists: from the first through the last.
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

    /// Returns whether there are no records in the range.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of records.
    pub fn len(&self) -> u64 {
        (self.last.get() + 1).saturating_sub(self.from.get())
    }
}

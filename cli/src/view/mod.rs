//! The viewer: pages that show a session, and the documents that they show.
//!
//! A page folds nothing. The engine computes what was at a position, and a page shows it:
//!
//! | a page shows | which comes from |
//! |---|---|
//! | the timeline | [`records`]: what `show --json` says of each record, its operation, its depth among rollbacks |
//! | a record's document | `show --json`, word by word |
//! | a slice at a step | [`walk`]: the items by their names, at every position ([`lists`]); each item as `state --json` prints it |
//! | a conversation at a step | the messages that [`MessageHistory`](foldlog::inspect::MessageHistory) says count there, each as `transcript --as-recorded --json` prints it, read one after the other |
//! | what was spent at a step | [`spend`](crate::spend), as `stats --json` tells it |
//! | the summaries of a conversation at a step | [`summaries`]: what a provider is sent in place of which records |
//! | the tasks at a step | [`tasks`]: what `tasks --json` knows of each, with its record |
//! | a workspace's files at a step | [`files`]: the last capture on the way there |
//! | a diff of two steps | the items that one of the two lists lacks, compared as [`crate::diff`] compares them |
//! | damage | [`after_damage`]: what is damaged, and the records behind it as `show --beyond-damage --json` prints them |
//! | operations | `ledger --json`; what waits for somebody, with the commands that decide, from `ledger OPERATION --json` |
//! | integrity | `verify --json` |
//! | statistics | `stats --json`, and the ledger's durations |
//!
//! [`report`] writes all of it into one file; `server` (feature `view`) answers a browser. Both show the modules in `pages/`, as
//! they stand: plain JavaScript, of which only what implements `source.js` knows where data comes from.
//!
//! # Invariants
//!
//! 1. A report makes no request, and runs no script but its own modules: its content security policy allows what bears its nonce,
//!    and nothing else.
//! 2. Nothing from a log stands in a report's markup: data is in [`blocks`], and the pages make text nodes of it.
//! 3. Without `--payloads` no value of a host, a tool or a model is in the file, only its type, length and digest, and the sums of
//!    what was spent.
//! 4. The memory that a report takes grows with the number of records and of changes, not with what these hold.

mod after_damage;
mod blocks;
mod files;
mod lists;
mod records;
pub(crate) mod report;
#[cfg(feature = "view")]
pub(crate) mod server;
mod summaries;
mod tasks;
mod walk;

use foldlog::SequenceNumber;

/// Number of bytes that the files of a page take at most, before modules are encoded.
#[cfg(test)]
const PAGES_BYTES_MAX: usize = 150_000;

/// Says which values a page has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Payloads {
    /// Number of bytes of the longest value that is included; `None` if none is.
    limit: Option<u64>,
}

impl Payloads {
    /// Values of at most `limit` bytes, or none at all.
    pub(crate) fn up_to(limit: Option<u64>) -> Payloads {
        Payloads { limit }
    }

    fn are_asked_for(self) -> bool {
        self.limit.is_some()
    }

    fn bytes_max(self) -> u64 {
        self.limit.unwrap_or(0)
    }
}

/// Holds the records that a page lists: from the first through the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordRange {
    pub(crate) from: SequenceNumber,
    pub(crate) last: SequenceNumber,
}

impl RecordRange {
    fn contains(&self, sequence: SequenceNumber) -> bool {
        (self.from..=self.last).contains(&sequence)
    }

    /// Returns the number of records.
    pub(crate) fn len(&self) -> u64 {
        (self.last.get() + 1).saturating_sub(self.from.get())
    }
}

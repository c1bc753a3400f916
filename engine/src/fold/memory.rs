//! Limits the memory of a fold.
//!
//! A log may come from anywhere, and a few of its bytes can ask for much memory: names, kept positions, items
//! of one byte each. A reader counts what its fold holds and fails with
//! [`Error::OverBudget`](crate::Error::OverBudget) if that is more than it may take. It counts what grows
//! with the log; a window, and a record with what it is decoded into, come on top.
//!
//! The count is an estimate, and rather too high than too low. Two kept positions that share items count them
//! twice, but never more than what came between them can have added.

use std::collections::BTreeMap;
use std::path::PathBuf;

use foldlog_codec::{Record, SequenceNumber};

use super::projection::Projection;
use crate::error::{Error, Result};
use crate::sabotage::{self, Breakage};

/// Bytes that a reader of names, tags and operations alone may take.
pub(crate) const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// Bytes that a fold may take on top for each byte of the log.
pub(crate) const MEMORY_PER_BYTE: u64 = 3;

/// Bytes of an open, unsettled or suspended operation, its tree's share included.
const OPERATION_BYTES: u64 = 448;

/// Bytes of a name beside its text, which is held twice.
const NAME_BYTES: u64 = 256;

/// Bytes of a kept position beside its slices and items.
const POSITION_BYTES: u64 = 4096;

/// Bytes of a slice in each position.
const SLICE_BYTES: u64 = 208;

/// Maximum bytes of an item that is held alone. A body holds at most one item for each of its bytes.
const ITEM_BYTES: u64 = 112;

/// Bytes of bodies after which the memory is counted again. The same is done after [`RECORDS_BETWEEN`]
/// records.
const BYTES_BETWEEN: u64 = 1 << 20;
/// Number of records after which the memory is counted again.
const RECORDS_BETWEEN: u64 = 1 << 14;

/// Counts the memory of a fold, and fails it if it takes too much.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    session_dir: PathBuf,
    budget: u64,
    /// Bytes of all bodies. A reader without a budget of its own may take a multiple of them on top.
    read: u64,
    records: u64,
    bytes: u64,
    /// Bytes of bodies since the last position was kept.
    since_kept: u64,
    /// Bytes of each kept position.
    kept: BTreeMap<SequenceNumber, u64>,
}

impl Watch {
    pub(crate) fn new(session_dir: PathBuf, budget: u64) -> Watch {
        Watch { session_dir, budget, read: 0, records: 0, bytes: 0, since_kept: 0, kept: BTreeMap::new() }
    }

    /// Counts a position that is kept.
    pub(super) fn keep(&mut self, sequence: SequenceNumber, projection: &Projection) {
        let items = projection.items_bytes().min(self.since_kept.saturating_mul(ITEM_BYTES));
        self.since_kept = 0;
        let slices = projection.slices().count() as u64 * SLICE_BYTES;
        self.kept.insert(sequence, POSITION_BYTES + slices + items);
        // Counted at once, since each position may take much.
        self.bytes = self.bytes.saturating_add(POSITION_BYTES + slices);
    }

    /// Removes a position that was dropped from the count.
    pub(super) fn forget(&mut self, sequence: SequenceNumber) {
        self.kept.remove(&sequence);
    }

    /// Counts a record that was applied.
    ///
    /// # Errors
    ///
    /// [`Error::OverBudget`] if the fold takes more memory than its budget.
    pub(super) fn applied(&mut self, record: &Record<'_>, projection: &Projection) -> Result<()> {
        self.since_kept = self.since_kept.saturating_add(record.body.len() as u64);
        self.bytes = self.bytes.saturating_add(record.body.len() as u64);
        self.read = self.read.saturating_add(record.body.len() as u64);
        self.records += 1;
        if self.bytes < BYTES_BETWEEN.min(self.budget / 4) && self.records < RECORDS_BETWEEN {
            return Ok(());
        }
        (self.bytes, self.records) = (0, 0);
        let needed = projection.held_bytes().saturating_add(self.kept.values().sum());
        let budget = match self.budget {
            MEMORY_BYTES_MIN => MEMORY_BYTES_MIN.saturating_add(self.read.saturating_mul(MEMORY_PER_BYTE)),
            said => said,
        };
        if needed <= budget || sabotage::is(Breakage::BudgetIgnored) {
            return Ok(());
        }
        Err(Error::OverBudget {
            session_dir: self.session_dir.clone(),
            sequence: record.sequence,
            needed,
            budget,
        })
    }
}

impl Projection {
    /// Estimates the bytes of the items that are held by name.
    fn items_bytes(&self) -> u64 {
        self.slices().map(|items| items.held().unread_bytes()).sum()
    }

    fn held_bytes(&self) -> u64 {
        let texts = |texts: usize| texts as u64 * 2 + NAME_BYTES;
        let slices = self.names.slices().iter().map(|slice| texts(slice.name.len() + slice.item.len()));
        let events =
            self.names.events().map(|event| texts(event.name.len()) + 8 * event.bindings.len() as u64);
        let tags = self.tags.iter().map(|(key, value)| texts(key.len() + value.len()));
        let names: u64 = slices.chain(events).chain(tags).sum();
        names
            + self.operations.count() as u64 * OPERATION_BYTES
            + self.conversations.held_bytes()
            + self.items_bytes()
            + self.gathered_bytes()
    }
}

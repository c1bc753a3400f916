//! How much memory a fold may take.
//!
//! A log may come from anywhere, and a few bytes in it can ask for much: names, kept positions, items of one byte each. A
//! reader that only wants to know something of a log counts what its fold holds, and ends with
//! [`Error::OverBudget`](crate::Error::OverBudget) where that is more than it may take, long before memory is. Counted is
//! what grows with the log; a window, a record and what it is decoded into come on top.
//!
//! What is counted is an estimate, and rather too much than too little. Of two kept positions that share their items those
//! of both count, but never more than what came between them can have added.

use std::collections::BTreeMap;
use std::path::PathBuf;

use foldlog_codec::{Record, SequenceNumber};

use super::projection::Projection;
use crate::error::{Error, Result};
use crate::sabotage::{self, Breakage};

/// What a reader that asks for no STATE may take, in bytes.
pub(crate) const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// How many times the bytes of a log its fold may take on top.
pub(crate) const MEMORY_PER_BYTE: u64 = 3;

/// What an operation that is not done with takes, its tree's share included.
const OPERATION_BYTES: u64 = 320;

/// What a name takes beside its text, which is held twice.
const NAME_BYTES: u64 = 256;

/// What a kept position takes beside its slices and items.
const POSITION_BYTES: u64 = 4096;

/// What a slice takes in each position.
const SLICE_BYTES: u64 = 208;

/// What an item takes where it stands alone, at most; a body holds at most one item for each of its bytes.
const ITEM_BYTES: u64 = 112;

/// After so many bytes of bodies, or so many records, what is held is counted again.
const BYTES_BETWEEN: u64 = 1 << 20;
const RECORDS_BETWEEN: u64 = 1 << 14;

/// Sees to it that a fold takes no more than it may.
#[derive(Debug)]
pub(crate) struct Watch {
    session_dir: PathBuf,
    budget: u64,
    /// Bytes of all bodies, which a reader that was not told how much it may take is given on top, as many times over.
    read: u64,
    records: u64,
    bytes: u64,
    /// Bytes of bodies since the last position was kept.
    since_kept: u64,
    /// What each kept position takes.
    kept: BTreeMap<SequenceNumber, u64>,
}

impl Watch {
    pub(crate) fn new(session_dir: PathBuf, budget: u64) -> Watch {
        Watch { session_dir, budget, read: 0, records: 0, bytes: 0, since_kept: 0, kept: BTreeMap::new() }
    }

    /// A position was kept.
    pub(super) fn keep(&mut self, sequence: SequenceNumber, projection: &Projection) {
        let items = projection.items_bytes().min(self.since_kept.saturating_mul(ITEM_BYTES));
        self.since_kept = 0;
        let slices = projection.slices().count() as u64 * SLICE_BYTES;
        self.kept.insert(sequence, POSITION_BYTES + slices + items);
        // Each may take much.
        self.bytes = self.bytes.saturating_add(POSITION_BYTES + slices);
    }

    /// A position was let go of.
    pub(super) fn let_go(&mut self, sequence: SequenceNumber) {
        self.kept.remove(&sequence);
    }

    /// A record was applied.
    ///
    /// # Errors
    ///
    /// [`Error::OverBudget`].
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
    /// What its items take, as far as it holds them by name.
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
        names + self.operations.count() as u64 * OPERATION_BYTES + self.items_bytes()
    }
}

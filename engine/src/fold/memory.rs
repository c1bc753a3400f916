//! Limits the memory of a fold.
//!
//! A log may come from anywhere, and a few of its bytes can ask for much memory: names, kept positions, items
//! of one byte each. A fold with a [limit](MemoryLimit) counts what it holds and fails with
//! [`Error::OverBudget`](crate::Error::OverBudget) if that is more than it may take. It counts what grows
//! with the log. A window comes on top.
//!
//! The count is an estimate, and rather too high than too low. Two kept positions that share items count them
//! twice, but never more than what came between them can have added.
//!
//! # When memory is counted
//!
//! | what takes it | counted |
//! |---|---|
//! | items that a body lists, and what they are decoded into | before the body is decoded, if it is long |
//! | objects whose content is held | before they are read |
//! | all else | after records of [`BYTES_BETWEEN`] bytes |

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use foldlog_codec::{Record, SequenceNumber, body};

use super::projection::{LogSlices, Projection};
use crate::error::{Error, Result};
use crate::items::row::ItemRef;
use crate::options::MemoryLimit;
use crate::sabotage::{self, Breakage};

/// Bytes that a reader of names, tags and operations alone may take.
const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// Bytes that a fold may take on top for each byte of the log.
const MEMORY_PER_BYTE: u64 = 3;

/// Bytes of an open, unsettled or suspended operation, its tree's share included.
const OPERATION_BYTES: u64 = 448;

/// Bytes of a name beside its text, which is held twice.
const NAME_BYTES: u64 = 256;

/// Bytes of a kept position beside its slices and items.
const POSITION_BYTES: u64 = 4096;

/// Bytes of a slice in each position.
const SLICE_BYTES: u64 = 208;

/// Maximum bytes of an item that is held alone. A body holds at most one item for each of its bytes.
pub(super) const ITEM_BYTES: u64 = 112;

/// Bytes of an item's content beside its MessagePack: two counters.
pub(super) const CONTENT_BYTES: u64 = 16;

/// Bytes of a value of a host's type beside those of its MessagePack.
const VALUE_BYTES: u64 = 64;

/// Bytes that an item takes while its record is decoded: its payload in one list, its row in another that grows.
const DECODED_BYTES: u64 = 120;

/// Bytes of the same if the fold holds no items.
const OUTLINED_BYTES: u64 = 32;

/// Length of a body from which on the items that it lists are counted before it is decoded.
const LONG_BODY_BYTES: usize = 64 << 10;

/// Bytes of a frame beside the body.
const FRAME_BYTES: u64 = 28;

/// Bytes of bodies after which the memory is counted again. The same is done after [`RECORDS_BETWEEN`]
/// records.
const BYTES_BETWEEN: u64 = 1 << 20;
/// Number of records after which the memory is counted again.
const RECORDS_BETWEEN: u64 = 1 << 14;

impl MemoryLimit {
    /// Returns the limit of a reader that was given a number of bytes, or none.
    pub(crate) fn of_reader(memory_bytes: Option<u64>) -> MemoryLimit {
        memory_bytes.map_or(MemoryLimit::OfLog, MemoryLimit::Bytes)
    }

    /// Returns the limit for what is read of a log of `log_bytes` bytes; `None` if there is none.
    pub(crate) fn bytes(self, log_bytes: u64) -> Option<u64> {
        match self {
            MemoryLimit::Unlimited => None,
            MemoryLimit::OfLog => {
                Some(MEMORY_BYTES_MIN.saturating_add(log_bytes.saturating_mul(MEMORY_PER_BYTE)))
            }
            MemoryLimit::Bytes(bytes) => Some(bytes),
        }
    }
}

/// Says why a position is kept. One position may be kept for several reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeptFor {
    Rollback,
    Operation,
    Snapshot,
}

/// What a fold has read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadSoFar {
    /// Bytes of all records, from which [`MemoryLimit::OfLog`] follows.
    bytes: u64,
    /// Number of all records.
    records: u64,
}

/// Counts the memory of a fold, and fails it if it takes too much.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    session_dir: PathBuf,
    limit: MemoryLimit,
    so_far: ReadSoFar,
    records: u64,
    bytes: u64,
    /// Bytes that the contents of the held items take at most.
    contents: u64,
    /// Bytes of bodies since the last position was kept.
    since_kept: u64,
    /// Bytes of each kept position.
    kept: BTreeMap<(KeptFor, SequenceNumber), u64>,
}

impl Watch {
    /// Makes the watch of a fold of the log in `session_dir`; `None` if its memory is not limited.
    pub(crate) fn from_limit(session_dir: &Path, limit: MemoryLimit) -> Option<Watch> {
        (limit != MemoryLimit::Unlimited).then(|| Watch {
            session_dir: session_dir.to_owned(),
            limit,
            so_far: ReadSoFar::default(),
            records: 0,
            bytes: 0,
            contents: 0,
            since_kept: 0,
            kept: BTreeMap::new(),
        })
    }

    /// Goes on behind an image, which covers the records before `next_sequence`, or `read_bytes` of the log, and holds
    /// `contents` bytes of items.
    ///
    /// # Errors
    ///
    /// [`Error::OverBudget`] if the image takes more memory than the fold may.
    pub(crate) fn behind_image(
        &mut self,
        next_sequence: SequenceNumber,
        read_bytes: u64,
        items: u64,
        contents: u64,
    ) -> Result<()> {
        self.so_far = ReadSoFar { bytes: read_bytes, records: next_sequence.get() };
        self.contents = contents;
        let needed = contents.saturating_add(items.saturating_mul(ITEM_BYTES + CONTENT_BYTES));
        self.check(next_sequence.saturating_sub(1), needed)
    }

    /// Returns what the fold has read.
    pub(crate) fn read_so_far(&self) -> ReadSoFar {
        self.so_far
    }

    /// Goes on with a fold that had read this. Other than that it holds what is held now.
    pub(crate) fn go_back_to(&mut self, so_far: ReadSoFar) {
        self.so_far = so_far;
    }

    /// Counts a position that is kept.
    pub(crate) fn keep(&mut self, why: KeptFor, sequence: SequenceNumber, projection: &Projection) {
        let items = projection.items_bytes().min(self.since_kept.saturating_mul(ITEM_BYTES));
        let contents = self.contents.min(self.since_kept);
        self.since_kept = 0;
        let slices = projection.slices().count() as u64 * SLICE_BYTES;
        self.kept.insert((why, sequence), POSITION_BYTES + slices + items + contents);
        // Counted at once, since each position may take much.
        self.bytes = self.bytes.saturating_add(POSITION_BYTES + slices);
    }

    /// Removes a position that was dropped from the count.
    pub(crate) fn forget(&mut self, why: KeptFor, sequence: SequenceNumber) {
        self.kept.remove(&(why, sequence));
    }

    /// Checks, before a record is decoded, that there is memory for what it lists and for the objects that it names.
    ///
    /// # Errors
    ///
    /// [`Error::OverBudget`] if the fold would take more memory than its budget.
    pub(super) fn before(&mut self, record: &Record<'_>, projection: &Projection) -> Result<()> {
        let objects = match projection.holds_contents() {
            true => record.objects().iter().map(|object| object.len).fold(0, u64::saturating_add),
            false => 0,
        };
        if objects > 0 {
            self.before_object(record.sequence, objects, projection)?;
        }
        if record.body.len() < LONG_BODY_BYTES {
            return Ok(());
        }
        let of_item = match (projection.log_slices(), self.limit) {
            (LogSlices::Outline, _) => OUTLINED_BYTES,
            (_, MemoryLimit::Bytes(_)) => ITEM_BYTES + CONTENT_BYTES + DECODED_BYTES,
            _ => ITEM_BYTES + CONTENT_BYTES,
        };
        let listed = body::listed_items(record.kind, record.body);
        let so_far = self.so_far;
        self.so_far.bytes = so_far.bytes.saturating_add(record.body.len() as u64 + FRAME_BYTES);
        let checked = self.count(record.sequence, listed.saturating_mul(of_item), projection);
        self.so_far = so_far;
        checked
    }

    /// Checks, before an object is read, that there is memory for its content.
    ///
    /// # Errors
    ///
    /// [`Error::OverBudget`] if the fold would take more memory than its budget.
    pub(super) fn before_object(
        &mut self,
        sequence: SequenceNumber,
        len: u64,
        projection: &Projection,
    ) -> Result<()> {
        self.count(sequence, len, projection)?;
        self.contents = self.contents.saturating_add(len);
        Ok(())
    }

    /// Counts a record that was applied, whose body has `len` bytes.
    ///
    /// # Errors
    ///
    /// [`Error::OverBudget`] if the fold takes more memory than its budget.
    pub(super) fn count_applied(
        &mut self,
        sequence: SequenceNumber,
        len: usize,
        projection: &Projection,
    ) -> Result<()> {
        let len = len as u64;
        self.since_kept = self.since_kept.saturating_add(len);
        self.bytes = self.bytes.saturating_add(len);
        self.so_far.bytes = self.so_far.bytes.saturating_add(len + FRAME_BYTES);
        self.so_far.records += 1;
        self.records += 1;
        if projection.holds_contents() {
            self.contents = self.contents.saturating_add(len + CONTENT_BYTES);
        }
        if self.bytes < BYTES_BETWEEN.min(self.budget() / 4) && self.records < RECORDS_BETWEEN {
            return Ok(());
        }
        (self.bytes, self.records) = (0, 0);
        self.count(sequence, 0, projection)
    }

    /// Counts what is held, and what is about to come.
    fn count(&mut self, sequence: SequenceNumber, coming: u64, projection: &Projection) -> Result<()> {
        let beside = projection.held_bytes().saturating_add(self.kept.values().sum()).saturating_add(coming);
        if beside.saturating_add(self.contents) > self.budget() && self.contents > 0 {
            // Some of what came has gone since. All items are looked at, so only if the rough count is too high.
            let of_value = VALUE_BYTES + self.so_far.bytes / self.so_far.records.max(1);
            self.contents = projection.contents_bytes(of_value);
        }
        self.check(sequence, beside.saturating_add(self.contents))
    }

    fn check(&self, sequence: SequenceNumber, needed: u64) -> Result<()> {
        let budget = self.budget();
        if needed <= budget || sabotage::is(Breakage::BudgetIgnored) {
            return Ok(());
        }
        Err(Error::OverBudget { session_dir: self.session_dir.clone(), sequence, needed, budget })
    }

    fn budget(&self) -> u64 {
        self.limit.bytes(self.so_far.bytes).unwrap_or(u64::MAX)
    }
}

impl Projection {
    /// Returns whether the contents of items are held, and not their names alone.
    fn holds_contents(&self) -> bool {
        matches!(self.log_slices(), LogSlices::Held | LogSlices::InLog | LogSlices::StateUnread)
    }

    /// Estimates the bytes of the contents of held items. A value of a host's type counts `of_value`.
    fn contents_bytes(&self, of_value: u64) -> u64 {
        if !self.holds_contents() {
            return 0;
        }
        let rows = self.read_slices().flat_map(|items| items.rows_in_memory().iter());
        let bytes = rows.map(|row| match row.item {
            ItemRef::Bytes(bytes) => bytes.len() as u64 + CONTENT_BYTES,
            ItemRef::Typed(_) | ItemRef::InRun(..) => of_value,
        });
        bytes.sum()
    }

    /// Estimates the bytes of the items that are held by name.
    pub(crate) fn items_bytes(&self) -> u64 {
        self.slices().map(|items| items.rows_in_memory().unread_bytes()).sum()
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

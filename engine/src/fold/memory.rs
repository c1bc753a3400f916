//! Limits the memory of a fold.
//!
//! A log may be untrusted, and a few of its bytes can require much memory: names, retained
//! positions, items of one byte each. A fold with a [limit](MemoryLimit) counts its memory and
//! fails with [`Error::OverBudget`](crate::Error::OverBudget) if that exceeds the limit. It counts
//! everything that grows with the log. A read window is not counted.
//!
//! The count is an estimate, and too high rather than too low. If two retained positions share
//! items, both count them, but never more than the records between the positions can have added.
//!
//! # When memory is counted
//!
//! | memory of | counted |
//! |---|---|
//! | items that a body lists, and their decoded values | before the body is decoded, if it is long |
//! | objects with content in memory | before they are read |
//! | anything else | after every [`BYTES_BETWEEN`] bytes of records |

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use foldlog_codec::{Record, SequenceNumber, body};

use super::projection::{LogSlices, Projection};
use crate::error::{Error, Result};
use crate::items::row::ItemRef;
use crate::options::MemoryLimit;

/// Bytes that even a reader of names, tags and operations may use.
const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// Bytes that a fold may use in addition for each byte of the log.
const MEMORY_PER_BYTE: u64 = 3;

/// Memory of an open, unsettled or suspended operation in bytes, including its share of the tree.
const OPERATION_BYTES: u64 = 448;

/// Memory of a name in bytes, without its text, which is stored twice.
const NAME_BYTES: u64 = 256;

/// Memory of a retained position in bytes, without its slices and items.
const POSITION_BYTES: u64 = 4096;

/// Memory of a slice in each position, in bytes.
const SLICE_BYTES: u64 = 208;

/// Maximum memory in bytes of an item that is stored separately. A body contains at most one item
/// for each of its bytes.
pub(super) const ITEM_BYTES: u64 = 112;

/// Memory of an item's content in bytes, in addition to its MessagePack: two counters.
pub(super) const CONTENT_BYTES: u64 = 16;

/// Memory of a value of a host's type in bytes, in addition to that of its MessagePack.
const VALUE_BYTES: u64 = 64;

/// Memory in bytes of an item while its record is decoded: its payload in one list, and its row in
/// another, growing one.
const DECODED_BYTES: u64 = 120;

/// The same memory in bytes, if the fold does not store items.
const OUTLINED_BYTES: u64 = 32;

/// Minimum length of a body whose listed items are counted before it is decoded.
const LONG_BODY_BYTES: usize = 64 << 10;

/// Bytes of a frame in addition to the body.
const FRAME_BYTES: u64 = 28;

/// Bytes of bodies after which the memory is counted again, unless [`RECORDS_BETWEEN`] records come
/// first.
const BYTES_BETWEEN: u64 = 1 << 20;
/// Number of records after which the memory is counted again.
const RECORDS_BETWEEN: u64 = 1 << 14;

impl MemoryLimit {
    /// Returns the limit of a reader with an optional number of bytes.
    pub(crate) fn of_reader(memory_bytes: Option<u64>) -> MemoryLimit {
        memory_bytes.map_or(MemoryLimit::OfLog, MemoryLimit::Bytes)
    }

    /// Returns the limit in bytes for reading a log of `log_bytes` bytes; `None` if there is no
    /// limit.
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

/// The reason for retaining a position. One position may have several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeptFor {
    Rollback,
    Operation,
    Snapshot,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadSoFar {
    /// Bytes of all records; [`MemoryLimit::OfLog`] depends on them.
    bytes: u64,
    records: u64,
}

/// Counts the memory of a fold, and fails it if it exceeds its limit.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    session_dir: PathBuf,
    limit: MemoryLimit,
    pub(crate) so_far: ReadSoFar,
    records: u64,
    bytes: u64,
    /// Upper bound for the content of the items in memory, in bytes.
    contents: u64,
    /// Bytes of bodies since the last position was retained.
    since_kept: u64,
    kept: BTreeMap<(KeptFor, SequenceNumber), u64>,
}

impl Watch {
    /// Creates the counter of a fold of the log in `session_dir`; `None` if its memory is not
    /// limited.
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

    /// Continues after an image. The image covers the records before `next_sequence`, which are
    /// `read_bytes` of the log, and contains `contents` bytes of items.
    ///
    /// # Errors
    ///
    /// [`Error::OverBudget`] if the image exceeds the memory limit.
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

    pub(crate) fn keep(&mut self, why: KeptFor, sequence: SequenceNumber, projection: &Projection) {
        let items = projection.items_bytes().min(self.since_kept.saturating_mul(ITEM_BYTES));
        let contents = self.contents.min(self.since_kept);
        self.since_kept = 0;
        let slices = projection.slices().count() as u64 * SLICE_BYTES;
        self.kept.insert((why, sequence), POSITION_BYTES + slices + items + contents);
        // Counted at once, since each position may take much.
        self.bytes = self.bytes.saturating_add(POSITION_BYTES + slices);
    }

    pub(crate) fn forget(&mut self, why: KeptFor, sequence: SequenceNumber) {
        self.kept.remove(&(why, sequence));
    }

    /// Checks, before a record is decoded, that there is memory for its listed items and its
    /// objects.
    ///
    /// # Errors
    ///
    /// [`Error::OverBudget`] if the fold would exceed its budget.
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
    /// [`Error::OverBudget`] if the fold would exceed its budget.
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

    /// Counts an applied record with a body of `len` bytes.
    ///
    /// # Errors
    ///
    /// [`Error::OverBudget`] if the fold exceeds its budget.
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

    /// Counts the memory in use, and `coming` bytes more.
    fn count(&mut self, sequence: SequenceNumber, coming: u64, projection: &Projection) -> Result<()> {
        let beside = projection.held_bytes().saturating_add(self.kept.values().sum()).saturating_add(coming);
        if beside.saturating_add(self.contents) > self.budget() && self.contents > 0 {
            // Some of the items were removed since. The exact count visits all items, so it is made
            // only if the rough one is too high.
            let of_value = VALUE_BYTES + self.so_far.bytes / self.so_far.records.max(1);
            self.contents = projection.contents_bytes(of_value);
        }
        self.check(sequence, beside.saturating_add(self.contents))
    }

    fn check(&self, sequence: SequenceNumber, needed: u64) -> Result<()> {
        let budget = self.budget();
        if needed <= budget {
            return Ok(());
        }
        Err(Error::OverBudget { session_dir: self.session_dir.clone(), sequence, needed, budget })
    }

    fn budget(&self) -> u64 {
        self.limit.bytes(self.so_far.bytes).unwrap_or(u64::MAX)
    }
}

impl Projection {
    /// Returns whether the contents of items are in memory, in addition to their names.
    fn holds_contents(&self) -> bool {
        matches!(self.log_slices(), LogSlices::Held | LogSlices::InLog | LogSlices::StateUnread)
    }

    /// Estimates the bytes of the contents of items in memory. A value of a host's type counts
    /// `of_value`.
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

    /// Estimates the bytes of the items that are stored by name.
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

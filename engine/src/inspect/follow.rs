//! Follows a log while it is written.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

use foldlog_codec::body::{Declare, EventDeclaration, SliceDeclaration};
use foldlog_codec::record::RecordNames;
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::log::TornTail;
use crate::log::follow::Cursor;
use crate::log::scan::FrameAt;
use crate::storage::{FileStorage, Storage};

/// Maximum number of stored fingerprints. They distinguish records that a recovery rewrote
/// unchanged from records that it replaced. Only records that are not attested as durable need one,
/// and the engine syncs long before there are so many.
const MARKS_MAX: usize = 1 << 17;

/// Follows a log that another process may be writing. [`poll`](Follower::poll) returns the records
/// that were appended since the last poll, and never blocks.
///
/// A follower opens files for reading only and takes no lock. A frame at the end of the log whose
/// checksum does not match counts as not yet written. By the rules of opening, it is corrupt once a
/// later frame attests it. Records before the first followed one are not checked.
///
/// A poll reads the new bytes and, if there are none, the names in the directory. Memory does not
/// grow with the log. It consists of a window of 64 KiB or the largest record, the names that the
/// log declared, 24 bytes for each record that is not synced yet, at most 3 MiB, and a header for
/// each segment that is still ahead.
#[derive(Clone, Debug)]
pub struct Follower {
    cursor: Cursor,
    handed: DeliveryState,
}

/// Describes an update from a [`Follower`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum LogUpdate<'a> {
    /// A record was appended.
    Record {
        /// The record.
        record: Record<'a>,
        /// Meanings of the names in the record.
        names: &'a RecordNames,
    },
    /// A recovery of the log changed or removed records that were returned before. Their
    /// replacements follow.
    Replaced {
        /// Sequence number of the first record that was replaced.
        from: SequenceNumber,
        /// Sequence number of the last record that was replaced.
        through: SequenceNumber,
    },
}

/// Reports the results of a poll.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Number of records that were returned.
    pub records: u64,
    /// Bytes after the last record whose checksum does not match and that are not known to be
    /// damage: a frame that is being written, or a torn tail.
    pub torn: Option<TornTail>,
}

/// Records and names that were already delivered.
#[derive(Clone, Debug)]
struct DeliveryState {
    from: SequenceNumber,
    /// Sequence number of the next record that was not delivered yet, or was replaced since.
    next: SequenceNumber,
    names: RecordNames,
    events: BTreeMap<u32, EventDeclaration>,
    slices: BTreeMap<u32, SliceDeclaration>,
    /// Fingerprints of the records before `next`.
    marks: VecDeque<RecordFingerprint>,
}

/// Distinguishes a record from another one that a recovery wrote in its place. The CRCs of frames
/// cannot: they cover more than a record, and differ even for records that a recovery rewrites
/// unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecordFingerprint {
    time_us: i64,
    len: usize,
    /// CRC of the kind and the body.
    crc: u32,
}

impl Follower {
    /// Follows the log in the directory `dir` from record `from` on, which need not exist yet.
    ///
    /// # Errors
    ///
    /// [`Error::NotASession`] if `dir` contains no session, [`Error::NotAFile`] if one of its
    /// segments is not a regular file, [`Error::Corrupt`], [`Error::OlderThanSuccessor`],
    /// [`Error::MissingSegment`] or [`Error::WrongSession`] if the headers of the segments show
    /// damage, [`Error::FutureFormat`] if a later version wrote them, [`Error::Io`] if they cannot
    /// be read.
    pub fn open(dir: impl AsRef<Path>, from: impl Into<SequenceNumber>) -> Result<Follower> {
        let from = from.into();
        Follower::open_on(Arc::new(FileStorage::new()), dir, from)
    }

    /// Follows the log in the directory `dir` of `storage` from record `from` on, which need not
    /// exist yet.
    pub fn open_on(
        storage: Arc<dyn Storage>,
        dir: impl AsRef<Path>,
        from: impl Into<SequenceNumber>,
    ) -> Result<Follower> {
        let from = from.into();
        let cursor = Cursor::open(&storage, dir.as_ref(), from)?;
        let handed = DeliveryState {
            from,
            next: from,
            names: RecordNames::default(),
            events: BTreeMap::new(),
            slices: BTreeMap::new(),
            marks: VecDeque::new(),
        };
        Ok(Follower { cursor, handed })
    }

    /// Follows the log in the directory `dir` from the `count`-th last of its current records on.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Follower::open) and of [`poll`](Follower::poll), which finds the
    /// log's end.
    pub fn open_last(dir: impl AsRef<Path>, count: u64) -> Result<Follower> {
        let mut scout = Follower::open(&dir, SequenceNumber::MAX)?;
        scout.poll(|_| Ok(()))?;
        Follower::open(dir, scout.cursor.next_sequence().saturating_sub(count))
    }

    /// Returns the id of the session.
    pub fn session(&self) -> Uuid {
        self.cursor.session()
    }

    /// Returns the number of records in the log at the last poll, including the ones before the
    /// first followed one.
    pub fn records_len(&self) -> u64 {
        self.cursor.next_sequence().get()
    }

    /// Returns the declarations of the log at the last poll: events with the slices that they are
    /// bound to, and slices with their policies.
    pub fn declarations(&self) -> Declare {
        let DeliveryState { events, slices, .. } = &self.handed;
        Declare { events: events.values().cloned().collect(), slices: slices.values().cloned().collect() }
    }

    /// Passes the records that were appended since the last poll to `visit`, in order. If `visit`
    /// fails, the next poll passes the same record again.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`], [`Error::MissingSegment`], [`Error::WrongSession`] or
    /// [`Error::Inconsistent`] if the log is damaged, after all records before the damage were
    /// returned; [`Error::NotASession`] if the session was deleted; [`Error::Io`] if a file cannot
    /// be read; the error of `visit`.
    pub fn poll(&mut self, mut visit: impl FnMut(LogUpdate<'_>) -> Result<()>) -> Result<Progress> {
        let mut records = 0;
        let handed = &mut self.handed;
        let torn = self.cursor.step(&mut |at| {
            records += u64::from(handed.take(at, &mut visit)?);
            Ok(())
        })?;
        // A recovery has shortened the log: the other records are removed, for now.
        let end = self.cursor.next_sequence().max(handed.from);
        if end < handed.next {
            visit(LogUpdate::Replaced { from: end, through: handed.next - 1 })?;
            handed.forget_from(end);
        }
        Ok(Progress { records, torn })
    }
}

impl DeliveryState {
    /// Takes a frame, and returns whether its record was delivered.
    fn take(&mut self, at: &FrameAt<'_>, visit: &mut dyn FnMut(LogUpdate<'_>) -> Result<()>) -> Result<bool> {
        let header = at.frame.header;
        let record = at.record();
        let Record { sequence, kind, .. } = record;
        self.learn(&record)?;
        self.forget_below(header.watermark.min(sequence));
        if kind.is_envelope() || sequence < self.from {
            return Ok(false);
        }
        let mark = RecordFingerprint::from_record(&record);
        if sequence < self.next {
            // A record whose body was dropped since was delivered with its original body.
            if kind == RecordKind::Dropped {
                return Ok(false);
            }
            // A record without a fingerprint was durable when it was delivered, and no recovery
            // rewrites it.
            if self.mark_of(sequence).is_none_or(|known| *known == mark) {
                return Ok(false);
            }
            visit(LogUpdate::Replaced { from: sequence, through: self.next - 1 })?;
            self.forget_from(sequence);
        }
        visit(LogUpdate::Record { record, names: &self.names })?;
        self.next = sequence + 1;
        self.marks.push_back(mark);
        if self.marks.len() > MARKS_MAX {
            self.marks.pop_front();
        }
        Ok(true)
    }

    /// Learns the names that a record declares, or that a segment's head repeats.
    fn learn(&mut self, record: &Record<'_>) -> Result<()> {
        if !matches!(record.kind, RecordKind::Declare | RecordKind::Declared) {
            return Ok(());
        }
        match Declare::decode(record.body) {
            Ok(declare) => {
                self.names.learn(&declare);
                self.events.extend(declare.events.into_iter().map(|event| (event.id, event)));
                self.slices.extend(declare.slices.into_iter().map(|slice| (slice.id, slice)));
            }
            // Declarations repeated in a segment's head are not content, and no fold reads them.
            Err(_) if record.kind == RecordKind::Declared => {}
            Err(error) => return Err(Error::unread(record.sequence)(error)),
        }
        Ok(())
    }

    fn mark_of(&self, sequence: SequenceNumber) -> Option<&RecordFingerprint> {
        let back = usize::try_from(self.next.checked_since(sequence)?).ok()?;
        self.marks.get(self.marks.len().checked_sub(back)?)
    }

    /// Drops the fingerprints of durable records, which no recovery rewrites.
    fn forget_below(&mut self, watermark: SequenceNumber) {
        let first = self.next.saturating_sub(self.marks.len() as u64);
        let durable = usize::try_from(watermark.since(first)).unwrap_or(usize::MAX);
        self.marks.drain(..durable.min(self.marks.len()));
    }

    /// Counts the records from `sequence` on as not delivered.
    fn forget_from(&mut self, sequence: SequenceNumber) {
        let gone = usize::try_from(self.next.since(sequence)).unwrap_or(usize::MAX);
        self.marks.truncate(self.marks.len().saturating_sub(gone));
        self.next = sequence;
    }
}

impl RecordFingerprint {
    fn from_record(record: &Record<'_>) -> RecordFingerprint {
        let mut crc = crc32fast::Hasher::new_with_initial(u32::from(record.kind.byte()));
        crc.update(record.body);
        RecordFingerprint { time_us: record.time_us, len: record.body.len(), crc: crc.finalize() }
    }
}

//! Reads a log without the host's code, and without disturbing its writer.
//!
//! A [`LogReader`] opens a session's directory, in a store or copied from one. It opens files for
//! reading only, takes no lock, and detects damage by the rules of opening. A [`Follower`] returns
//! the records of a log while it is written. No part of this module writes. Events and items are
//! decoded as a host's types only by replays of reducers and of versions
//! ([`LogReader::replay_reducers`], [`replay_versions`]), and on request ([`StateReader::items`],
//! [`RecordedEvent::read`]).

mod captures;
mod changes;
mod compare_logs;
mod contents;
mod conversations;
mod damage;
mod differences;
mod export;
mod feed;
mod follow;
mod ledger;
mod messages;
mod overview;
mod pending;
mod points;
mod reducers;
mod seals;
mod segments;
mod shared;
mod state;
mod versions;
mod walk;

use foldlog_codec::SequenceNumber;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::Record;
use foldlog_codec::body::{Declare, Parent, Payload, Replicated, Rollback, SessionOpening};
use foldlog_codec::digest::SegmentDigest;
use foldlog_codec::frame::{Frame, Header};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::fold::history::History;
use crate::fold::live_path::LivePath;
use crate::fold::log_source::LogSource;
use crate::fold::projection::{LogSlices, Projection};
use crate::log::objects::Objects;
use crate::log::reader::RecordLocator;
use crate::log::scan::{self, LogScan};
use crate::log::{self, FileExposure, layout, partial_creation};
use crate::options::MemoryLimit;
use crate::session::{RecoveryReport, Snapshot, State, read_outline, snapshots_of};
use crate::storage::StoreAccess;
use crate::storage::{FileStorage, Storage};

pub use crate::fold::record_kinds::{record_title, shown_payloads};
pub use crate::log::fence::SessionFence;
pub use crate::log::layout::{captures_dir, is_store, is_within_directory, is_within_store, store_around};
pub use crate::log::scan::survey::{DamagedPlace, SoundStretch};
pub use crate::names::UnregisteredEvent;
#[cfg(feature = "host-filesystem")]
pub use captures::{CapturesAudited, audit_captures};
pub(crate) use captures::{NamedCaptures, captures_named};
#[cfg(feature = "host-filesystem")]
pub(crate) use captures::{directory_of, snapshots};
pub use changes::{ItemPlace, SliceChanges};
pub use compare_logs::{ConversationBeside, LogDivergence, MessageRow};
pub use contents::{
    DecodedRecord, RecordedBegin, RecordedCaptures, RecordedContent, RecordedEnd, RecordedEvent,
    RecordedObservation,
};
pub use damage::{SoundEnd, check_object, damaged_places, damaged_places_on};
pub(crate) use differences::messages_of;
pub use differences::{Difference, DifferenceKind, VisitDifference};
pub use feed::{EventFeed, Fed, FedEvent};
/// Meanings of the names in records, as [`Record::to_json`] needs them.
pub use foldlog_codec::record::RecordNames;
pub use follow::{Follower, LogUpdate, Progress};
pub use ledger::{ChildFate, FateInParent, LedgerChild, LedgerEntry, OperationStatus, Settled};
pub use messages::{MessageHistory, MessagesChange, RecordedMessage};
pub(crate) use overview::overview_on;
pub use overview::{
    ResumableConversation, SessionOverview, StandingOperation, kept_objects, overview, read_fence,
    running_sessions,
};
pub use points::FoldPoint;
pub use reducers::{ReducersReplayed, ReplayReducers, SliceDiffers};
pub use seals::damaged_seals;
pub use segments::SegmentInfo;
pub use shared::FoldComparison;
pub use state::{ItemName, SliceReader, StateReader};
pub use versions::{VersionOutcome, VersionRow, VersionSubject, VersionsReplayed, replay_versions};
pub use walk::AlongPath;

/// Describes one frame of a log, including envelope frames, which contain no record of the session.
#[derive(Clone, Copy, Debug)]
pub struct FrameInfo<'a> {
    /// Path of the segment file.
    pub segment: &'a Path,
    /// Offset of the frame in the segment file, in bytes.
    pub offset: u64,
    /// Length of the whole frame, in bytes.
    pub bytes: u64,
    /// Sequence number below which every record was durable when the frame was written.
    pub watermark: SequenceNumber,
    /// Content of the frame.
    pub record: Record<'a>,
}

impl<'a> FrameInfo<'a> {
    fn new(segment: &'a Path, offset: u64, frame: Frame<'a>) -> FrameInfo<'a> {
        let Header { sequence, kind, time_us, watermark, .. } = frame.header;
        let record = Record { sequence, kind, time_us, body: frame.body };
        FrameInfo { segment, offset, bytes: frame.len() as u64, watermark, record }
    }
}

/// Reports the results of a walk over a log's frames.
#[derive(Clone, Debug)]
pub struct WalkSummary {
    /// Id of the session.
    pub session: Uuid,
    /// Number of records.
    pub records: u64,
    /// Bytes that the log uses.
    pub log_bytes: u64,
    /// Report that opening the session would return.
    pub report: RecoveryReport,
}

/// Options of a [`LogReader`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Whether the reader skips the slices, for callers that need only records, names or
    /// operations. The reader then does not detect contradictory items or missing objects.
    pub outline: bool,
    /// Maximum memory, in bytes, for the reader's index of the log and for a single decoded record
    /// during a fold. Windows are not counted. `None` is 64 MiB plus three times the bytes of the
    /// log.
    pub memory_bytes: Option<u64>,
}

/// Reads a log.
///
/// # Memory
///
/// A reader keeps in memory the declarations of the log, its open and unsettled operations, its
/// rollbacks, and the name of each item: about 20 bytes for items that are added one by one, 112 at
/// most, regardless of the items' sizes. A fold that does not fit into
/// [`ReadOptions::memory_bytes`] fails with [`Error::OverBudget`]. Objects are read piece by piece,
/// each once.
///
/// # Files
///
/// A reader keeps the files of its segments open, and continues to read the original files after a
/// compaction has replaced them. All readers of a process keep at most 1,024 files open, and at
/// most a quarter of the files that the process may open. Further files are opened by their names.
#[derive(Debug)]
pub struct LogReader {
    pub(crate) storage: Arc<dyn Storage>,
    dir: PathBuf,
    options: ReadOptions,
    pub(crate) objects: Arc<Objects>,
    pub(crate) places: RecordLocator,
    pub(crate) rollbacks: BTreeMap<SequenceNumber, Rollback>,
    path: LivePath,
    pub(crate) outline: Projection,
    /// Slices at the end of the log. `None` with [`ReadOptions::outline`].
    folded: Option<Projection>,
    pub(crate) openings: Vec<(SequenceNumber, SessionOpening)>,
    opened: SessionOpening,
    opened_sequence: SequenceNumber,
    log_bytes: u64,
    report: RecoveryReport,
    /// Where damage ends the part that is read, if it does.
    sound_end: Option<SoundEnd>,
}

/// Returns whether a session's directory in a store contains only what a crash left before the
/// session's first record was written. Such a session was never acknowledged. It can be
/// [created](crate::Store::create_with) again under its id. The result is meaningless while another
/// process writes to the directory.
pub fn is_leftover(dir: &Path) -> Result<bool> {
    let Some(session) = layout::session_of(dir) else { return Ok(false) };
    Ok(partial_creation::find(&FileStorage::new(), dir, session)?.is_some())
}

/// Walks the frames of the log in `dir` and passes each to `visit`, in order. Checks every checksum
/// and folds no record.
///
/// # Errors
///
/// The errors of [`LogReader::open`], except for objects and the fold, and the error of `visit`.
pub fn walk(dir: &Path, visit: &mut dyn FnMut(&FrameInfo<'_>) -> Result<()>) -> Result<WalkSummary> {
    let storage: Arc<dyn Storage> = Arc::new(FileStorage::new());
    walk_on(&storage, dir, visit)
}

/// Walks the frames of the log in the directory `dir` of `storage` and passes each to `visit`, in
/// order. Checks every checksum and folds no record.
///
/// # Errors
///
/// The errors of [`LogReader::open`], except for objects and the fold, and the error of `visit`.
pub fn walk_on(
    storage: &Arc<dyn Storage>,
    dir: &Path,
    visit: &mut dyn FnMut(&FrameInfo<'_>) -> Result<()>,
) -> Result<WalkSummary> {
    // If a segment was replaced in the meantime, continues after the last record that was passed to
    // `visit`.
    let mut next = SequenceNumber::MIN;
    let scan = scan::retry_if_replaced(|| {
        let from = next;
        scan::scan(storage.as_ref(), dir, &mut |at| {
            let header = at.frame.header;
            if header.sequence < from {
                return Ok(());
            }
            visit(&FrameInfo::new(&at.segment.path, at.offset, at.frame))?;
            next = header.sequence + u64::from(!header.kind.is_envelope());
            Ok(())
        })
    })?;
    let report = RecoveryReport {
        exposed: exposed_on(storage.as_ref(), dir),
        ..RecoveryReport::from_scan(&scan, None)
    };
    let (session, records) = (scan.session, scan.next_sequence.get());
    Ok(WalkSummary { session, records, log_bytes: scan.used_bytes, report })
}

/// Finds a file of the session in the directory `dir` that users other than its owner can read.
pub fn find_exposure(dir: &Path) -> Option<FileExposure> {
    exposed_on(&FileStorage::new(), dir)
}

fn exposed_on(storage: &dyn Storage, dir: &Path) -> Option<FileExposure> {
    log::exposure::find(storage, dir, StoreAccess::Private)
}

/// Describes a range of records from which a compaction has dropped bodies.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactedRange {
    /// Sequence number of the first record.
    pub from: SequenceNumber,
    /// Sequence number of the last record. From this position on, the contents of the slices are
    /// known again.
    pub through: SequenceNumber,
    /// Positions in the range at which they are known, in ascending order.
    pub known: Vec<SequenceNumber>,
}

impl LogReader {
    pub(crate) fn is_outline(&self) -> bool {
        self.folded.is_none()
    }

    fn set_folded(&mut self, folded: Projection) {
        // Both have the same tags, which a host can have many of.
        if self.outline.tags == folded.tags {
            self.outline.tags = Arc::clone(&folded.tags);
        }
        self.folded = Some(folded);
    }

    /// Opens the log in the directory `dir` and folds it, with the default [`ReadOptions`].
    ///
    /// ```
    /// # use foldlog::{Event, Session, SessionTypes, Slice, Store};
    /// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    /// # struct Said(String);
    /// # impl Event for Said {
    /// #     const NAME: &'static str = "chat.said";
    /// # }
    /// # struct Chat;
    /// # impl Slice for Chat {
    /// #     const NAME: &'static str = "chat";
    /// #     type Item = Said;
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
    /// # let store = Store::open(directory.path())?;
    /// # let session = store.create(&types)?;
    /// use foldlog::inspect::LogReader;
    ///
    /// let last = session.dispatch(Said("hello".to_owned()))?;
    /// let dir = session.dir().to_owned();
    /// session.close()?;
    /// let reader = LogReader::open(&dir)?; // without the host's types
    /// assert_eq!(reader.state_at(last)?.slices["chat"].items.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NotASession`] if `dir` contains no session, [`Error::NotAFile`] if one of its
    /// segments is not a regular file, [`Error::Corrupt`], [`Error::OlderThanSuccessor`],
    /// [`Error::MissingSegment`] or [`Error::WrongSession`] if the log is damaged,
    /// [`Error::FutureFormat`] if a later version wrote it, [`Error::Object`] if an object is
    /// missing or damaged, [`Error::Inconsistent`] if a record contradicts those before it,
    /// [`Error::OverBudget`] if the fold exceeds 64 MiB plus three times the bytes of the log,
    /// [`Error::Io`] if a file cannot be read.
    pub fn open(dir: impl AsRef<Path>) -> Result<LogReader> {
        LogReader::open_on(Arc::new(FileStorage::new()), dir)
    }

    /// Opens the log in the directory `dir` of `storage` and folds it, with the default
    /// [`ReadOptions`].
    pub fn open_on(storage: Arc<dyn Storage>, dir: impl AsRef<Path>) -> Result<LogReader> {
        LogReader::open_with(storage, dir, ReadOptions::default())
    }

    /// Opens the log in the directory `dir` of `storage`, and reads it with these options.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](LogReader::open), with [`ReadOptions::memory_bytes`] as the limit for
    /// [`Error::OverBudget`].
    pub fn open_with(
        storage: Arc<dyn Storage>,
        dir: impl AsRef<Path>,
        options: ReadOptions,
    ) -> Result<LogReader> {
        let dir = dir.as_ref().to_owned();
        let objects = Arc::new(Objects::new(Arc::clone(&storage), &dir));
        scan::retry_if_replaced(|| LogReader::open_once(&storage, &dir, &objects, options))
    }

    fn open_once(
        storage: &Arc<dyn Storage>,
        dir: &Path,
        objects: &Arc<Objects>,
        options: ReadOptions,
    ) -> Result<LogReader> {
        let (storage, dir, objects) = (Arc::clone(storage), dir.to_owned(), Arc::clone(objects));
        let (scan, outline) =
            read_outline(&storage, &dir, &objects, MemoryLimit::of_reader(options.memory_bytes))?;
        let (outline, failed) = match outline {
            Ok(outline) => (outline, None),
            Err(error) => (Projection::default(), Some(error)),
        };
        let mut reader = LogReader::of_scan(storage, dir, objects, options, scan, outline);
        reader.hold_open()?;
        if let (Some(compaction), false) = (&reader.places.compaction, options.outline) {
            compaction.check_end(reader.places.next_sequence)?;
        }
        if !options.outline {
            let next = reader.places.next_sequence;
            let folded = reader.fold_below(next, &mut |_, _| Ok(()));
            reader.set_folded(folded.map_err(|error| scan::begins_anew(error, next, &reader.dir))?);
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(reader),
        }
    }

    /// Keeps the scanned files open.
    ///
    /// # Errors
    ///
    /// [`Error::CompactedMeanwhile`] if a compaction has replaced one since.
    fn hold_open(&mut self) -> Result<()> {
        self.places.hold_open(self.storage.as_ref())?;
        self.objects.are_named_in(&self.places.segments);
        Ok(())
    }

    /// Creates a reader from a scan, without slices.
    fn of_scan(
        storage: Arc<dyn Storage>,
        dir: PathBuf,
        objects: Arc<Objects>,
        options: ReadOptions,
        scan: LogScan,
        outline: Projection,
    ) -> LogReader {
        let exposed = exposed_on(storage.as_ref(), &dir);
        let report = RecoveryReport { exposed, ..RecoveryReport::of_folded(&scan, &outline) };
        LogReader {
            objects,
            storage,
            dir,
            options,
            places: scan.places(),
            path: LivePath::new(scan.rollbacks.iter().map(|(at, rollback)| (*at, rollback.to))),
            rollbacks: scan.rollbacks,
            outline,
            folded: None,
            openings: scan.openings,
            opened: scan.opened,
            opened_sequence: scan.opened_sequence,
            log_bytes: scan.used_bytes,
            report,
            sound_end: None,
        }
    }

    /// Returns the directory of the log.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the session's own first record: its id, its seed, its tags at creation, its parent.
    pub fn opening_record(&self) -> &SessionOpening {
        &self.opened
    }

    /// Returns the sequence number of the session's own first record: 0, or in a fork the one after
    /// the records shared with the parent.
    pub fn opened_sequence(&self) -> SequenceNumber {
        self.opened_sequence
    }

    /// Returns the report of opening the log.
    pub fn report(&self) -> &RecoveryReport {
        &self.report
    }

    /// Returns the number of records in the log, which is also the next sequence number.
    pub fn records_len(&self) -> u64 {
        self.places.next_sequence.get()
    }

    /// Returns the position of the last record.
    pub fn last_position(&self) -> SequenceNumber {
        self.places.next_sequence.saturating_sub(1)
    }

    /// Returns the number of bytes that the log uses.
    pub fn log_bytes(&self) -> u64 {
        self.log_bytes
    }

    /// Returns the memory limit for the reader's index of the log, in bytes:
    /// [`ReadOptions::memory_bytes`], or 64 MiB plus three times the bytes of the log.
    pub fn memory_bytes(&self) -> u64 {
        MemoryLimit::of_reader(self.options.memory_bytes).bytes(self.log_bytes).unwrap_or(u64::MAX)
    }

    /// Returns the meanings of the names in records.
    pub fn names(&self) -> RecordNames {
        let mut names = RecordNames::default();
        names.learn(&self.outline.names.all());
        names
    }

    /// Returns all declarations of the log: events with the slices that they are bound to, and
    /// slices with their policies.
    pub fn declarations(&self) -> Declare {
        self.outline.names.all()
    }

    /// Returns the session's tags at the end of the log.
    pub fn tags(&self) -> &BTreeMap<String, String> {
        &self.outline.tags
    }

    /// Returns the record which states that the session is replicated, so that other machines may
    /// continue it; `None` if it is not. Only the replica can tell whether another machine has done
    /// so.
    pub fn replicated_record(&self) -> Option<&Replicated> {
        self.outline.replicated.as_deref()
    }

    /// Returns the records that are live at the end of the log.
    pub fn live_path(&self) -> &LivePath {
        &self.path
    }

    /// Returns the rollbacks in order: the sequence number of each record, and the position that it
    /// rolled back to.
    pub fn rollbacks(&self) -> impl DoubleEndedIterator<Item = (SequenceNumber, SequenceNumber)> {
        self.rollbacks.iter().map(|(at, rollback)| (*at, rollback.to))
    }

    /// Passes the records from `from` through `through` to `visit`, in order.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a segment can no longer be read; the error of `visit`.
    pub fn records(
        &self,
        from: impl Into<SequenceNumber>,
        through: impl Into<SequenceNumber>,
        mut visit: impl FnMut(&Record<'_>) -> Result<()>,
    ) -> Result<()> {
        let (from, through) = (from.into(), through.into());
        self.places.read(&self.storage, from, through, &mut |record| visit(&record))
    }

    /// Lists the snapshots in the log, as [`SessionLog::snapshots`](crate::SessionLog::snapshots)
    /// does.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>> {
        snapshots_of(&self.places, &self.storage, self.opening_record().session)
    }

    /// Returns the slices at the end of the log, with all items in memory.
    ///
    /// # Errors
    ///
    /// [`Error::OverBudget`] if the fold exceeds [`memory_bytes`](LogReader::memory_bytes),
    /// [`Error::Object`] if an object is missing or damaged, [`Error::Io`] if a segment can no
    /// longer be read.
    pub fn state(&self) -> Result<State> {
        self.state_reader()?.to_state()
    }

    /// Returns a reader of the slices at the end of the log. It reads them item by item.
    ///
    /// # Errors
    ///
    /// [`Error::OverBudget`] if the fold exceeds [`memory_bytes`](LogReader::memory_bytes),
    /// [`Error::Inconsistent`] or [`Error::Object`] if an outline reader finds damage that other
    /// readers find at opening, [`Error::Io`] if a segment can no longer be read.
    pub fn state_reader(&self) -> Result<StateReader> {
        match &self.folded {
            Some(folded) => Ok(self.reader_of(folded.clone())),
            None => self.fold_below(self.places.next_sequence, &mut |_, _| Ok(())).map(|f| self.reader_of(f)),
        }
    }

    /// Returns a reader of the slices as of `position`, after that record was written. It reads
    /// them item by item.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPosition`] if the log has no record at `position`; otherwise the errors of
    /// [`state_reader`](LogReader::state_reader).
    pub fn state_reader_at(&self, position: impl Into<SequenceNumber>) -> Result<StateReader> {
        let position = position.into();
        self.check_position(position)?;
        if position + 1 == self.places.next_sequence {
            return self.state_reader();
        }
        Ok(self.reader_of(self.fold_below(position + 1, &mut |_, _| Ok(()))?))
    }

    fn reader_of(&self, projection: Projection) -> StateReader {
        let source = self.log_source(&projection);
        StateReader { projection, source, limit: Some((self.dir.as_path().into(), self.memory_bytes())) }
    }

    /// Returns the source from which the records of a projection of this log are read.
    fn log_source(&self, projection: &Projection) -> LogSource {
        LogSource {
            storage: Arc::clone(&self.storage),
            places: self.places.clone(),
            objects: Arc::clone(&self.objects),
            names: Arc::clone(&projection.names),
        }
    }

    fn fold_below(
        &self,
        end: SequenceNumber,
        visit: &mut dyn FnMut(&Record<'_>, &Projection) -> Result<()>,
    ) -> Result<Projection> {
        Ok(self.history().fold(end, None, LogSlices::Unread, visit)?.projection)
    }

    /// Returns the slices as of `position`, after that record was written, with all items in
    /// memory.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPosition`] if the log has no record at `position`; otherwise the errors of
    /// [`state`](LogReader::state).
    pub fn state_at(&self, position: impl Into<SequenceNumber>) -> Result<State> {
        let position = position.into();
        self.state_reader_at(position)?.to_state()
    }

    /// Returns the slices at `position`, folding only the records that were live then: abandoned
    /// records are left out, from LOG slices too. CACHE slices contain the items collected along
    /// the path; after a compacted range, they start with their contents when the base was written.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPosition`] if the log has no record at `position`; otherwise the errors of
    /// [`state`](LogReader::state).
    pub fn state_along(&self, position: impl Into<SequenceNumber>) -> Result<State> {
        self.walk_paths().state(position)
    }

    /// Starts folds along the live paths of many positions, one after the other, as
    /// [`state_along`](LogReader::state_along) does for one.
    pub fn walk_paths(&self) -> AlongPath<'_> {
        AlongPath::new(self)
    }

    /// Folds the log from its first record on. `visit` receives each record, and a function that
    /// returns the slices after it.
    ///
    /// # Errors
    ///
    /// The errors of [`state_reader`](LogReader::state_reader), and the error of `visit`.
    pub fn fold(
        &self,
        mut visit: impl FnMut(&Record<'_>, &dyn Fn() -> StateReader) -> Result<()>,
    ) -> Result<StateReader> {
        let folded = self.fold_below(self.places.next_sequence, &mut |record, projection| {
            visit(record, &|| self.reader_of(projection.clone()))
        })?;
        Ok(self.reader_of(folded))
    }

    /// Returns the bytes of a payload, from its record or from the object directory.
    ///
    /// # Errors
    ///
    /// [`Error::Object`] if the object is missing or does not match its name, [`Error::Io`] if it
    /// cannot be read.
    pub fn payload(&self, payload: Payload<'_>) -> Result<Arc<[u8]>> {
        self.objects.resolve(payload).map(Arc::from)
    }

    /// Checks that the shared records of a fork are those of its parent. Compares the checksum that
    /// the fork recorded. If a recovery has rewritten the parent's frames since, compares the
    /// contents.
    ///
    /// # Errors
    ///
    /// [`Error::WrongSession`] if `parent` is not the parent of this fork,
    /// [`Error::NoSuchPosition`] if the parent has no record at the fork's position,
    /// [`Error::Inconsistent`] if the shared records differ, [`Error::Io`] if a segment cannot be
    /// read.
    pub fn check_lineage(&self, parent: &LogReader) -> Result<()> {
        let (expected, position, chain) = match self.opened.parent {
            Some(Parent::Fork { session, position, chain }) => (session, position, chain),
            _ => (self.opened.session, SequenceNumber::MIN, 0),
        };
        let found = parent.opened.session;
        if expected != found || expected == self.opened.session {
            return Err(Error::WrongSession { path: parent.dir.clone(), expected, found });
        }
        parent.check_position(position)?;
        let same_frame = parent.places.locate(&parent.storage, position)?.crc == chain;
        if same_frame || self.digest_through(position)? == parent.digest_through(position)? {
            return Ok(());
        }
        let reason = format!("the records that it shares with its parent {found} differ from the parent's");
        Err(Error::Inconsistent { sequence: position, reason })
    }

    /// Returns the digest of the records through `position`. It covers their contents, not their
    /// frames.
    pub fn digest_through(&self, position: impl Into<SequenceNumber>) -> Result<[u8; 32]> {
        let position = position.into();
        let mut digest = SegmentDigest::new();
        self.records(SequenceNumber::MIN, position, |record| {
            digest.update(record);
            Ok(())
        })?;
        Ok(digest.finish())
    }

    /// Returns the ranges of the log from which a compaction has dropped contents of slices, in
    /// ascending order.
    pub fn compacted_ranges(&self) -> Vec<CompactedRange> {
        let Some(compaction) = &self.places.compaction else { return Vec::new() };
        let range = |range: &RangeInclusive<SequenceNumber>| CompactedRange {
            from: *range.start(),
            through: *range.end(),
            known: compaction.bases_in(range.clone()).collect(),
        };
        compaction.ranges().iter().map(range).collect()
    }

    /// Returns whether the contents of the slices at a position are known, not dropped by a
    /// compaction.
    pub fn is_known(&self, position: SequenceNumber) -> bool {
        self.places.check_known(position).is_ok()
    }

    fn check_position(&self, position: SequenceNumber) -> Result<()> {
        self.places.check_position(position)
    }

    pub(crate) fn history(&self) -> History<'_> {
        History {
            storage: &self.storage,
            places: &self.places,
            objects: &self.objects,
            rollbacks: &self.rollbacks,
            limit: (&self.dir, MemoryLimit::of_reader(self.options.memory_bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::{Event, SessionTypes, Store};

    #[derive(Serialize, Deserialize)]
    struct Said(u64);

    impl Event for Said {
        const NAME: &'static str = "said";
    }

    #[test]
    fn a_fold_along_paths_that_goes_on_is_one_that_starts_anew() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let session = store.create(&SessionTypes::builder().build().unwrap()).unwrap();
        for number in 0..40_u64 {
            session.dispatch(Said(number)).unwrap();
            if number % 3 == 2 {
                // Rolls back a little, then far, then onto a path that was abandoned before.
                session.rollback_to(number * 7 % (session.log().position().unwrap().get() + 1)).unwrap();
            }
        }
        let dir = session.dir().to_owned();
        let last = session.log().position().unwrap().get();
        session.close().unwrap();
        let reader = LogReader::open(&dir).unwrap();
        let mixed = (0..=last).map(|position| position * 17 % (last + 1));
        let asked: Vec<u64> = (0..=last).chain((0..=last).rev()).chain(mixed).chain([last, last]).collect();
        let expected = asked.iter().filter(|position| *position % 3 > 0).map(|position| (*position).into());
        let (mut along, mut held) = (reader.walk_paths(), reader.walk_paths().expecting(expected));
        for position in asked {
            let anew = reader.state_along(position).unwrap();
            assert_eq!(along.state(position).unwrap(), anew, "position {position}");
            assert_eq!(held.state(position).unwrap(), anew, "position {position}");
        }
        assert!(matches!(along.state(last + 1), Err(Error::NoSuchPosition { .. })));
        assert_eq!(along.state(3).unwrap(), reader.state_along(3).unwrap());
    }
}

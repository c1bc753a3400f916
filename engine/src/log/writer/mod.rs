//! Appending to a log.
//!
//! # Starting, continuing and recovering a session
//!
//! Opening writes nothing; these steps are done by the first append.
//!
//! | the log | steps of the first append |
//! |---|---|
//! | is new | creates segment 0: header, `Resumed`, `Opened`. After the [partial creation](super::partial_creation) of an attempt that a crash ended, it creates the segment after the last one instead |
//! | was closed | continues in the last segment, with a `Resumed` |
//! | anything else | creates a new segment that names the end of the attested part, and rewrites into it the valid records after that end: under a temporary name, synced, renamed, its directory synced ([`recovery`]). The old bytes stay in place |
//! | is a fork | creates a segment of its own after the linked ones |
//!
//! # Rollover: from one segment to the next
//!
//! 1. The writer creates the next file and allocates its space, unless it was preallocated
//!    ([`preallocate`]). If the disk has no space for a file of the preferred size, it tries half
//!    the size, and so on. If there is no space for the record either, the rollover fails with
//!    [`Error::Full`] and nothing has changed. The same applies if no file handle is left
//!    ([`Error::NoHandle`]).
//! 2. The writer writes the header and the declarations into it. The file's name becomes durable
//!    with the next sync, together with the names of the segments before. A power cut before that
//!    may lose any of these names; the records in such segments were never acknowledged.
//! 3. The old segment is sealed, off the writer's path ([`seals`]).
//!
//! # Syncing
//!
//! One sync makes durable, in this order: the data outside of the log that records name (the
//! session does that), the objects, the directories with new names, and the segments from oldest to
//! newest. Only then does the watermark rise, and a `Synced` frame records it.
//!
//! # Invariants
//!
//! 1. Bytes of a segment are never changed, and never written after a later segment was begun,
//!    except for its seal.
//! 2. A failed write or sync is final: the caller poisons the session. A sync is never retried.
//! 3. If a record is attested, every frame before it is durable, including envelope frames, and so
//!    are the names of their segments. Three rules ensure that:
//!    - A sync's plan includes everything that was written.
//!    - No plan runs after one that failed.
//!    - A writer that continues after a close writes all bytes after the last record again,
//!      unchanged, and syncs them. The attesting frame itself was not synced, or its sync failed
//!      when the log was to rest, and a second sync alone does not write the data of a failed one.
//!
//!    A recovery, which cuts directly after an attested record, therefore syncs nothing below the
//!    cut. A sync would not help there either, for the same reason, and a log of many segments has
//!    more files than a process may open.

mod idle;
mod open;
mod preallocate;
mod recovery;
mod recovery_space;
mod reserve;
mod rollover;
mod seals;
mod sync;

use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::body::{Declare, Resumed, SessionOpening};
use foldlog_codec::frame::{self, Context, HEADER_LEN as FRAME_HEADER_LEN, Header};
use foldlog_codec::image::LastFrame;
use foldlog_codec::segment::Previous;
use foldlog_codec::{RecordKind, SequenceNumber};
use foldlog_filesystem::{is_out_of_handles, is_out_of_space};
use uuid::Uuid;

use self::preallocate::{Pace, SegmentPreallocator};
use self::recovery_space::Spare;
use self::rollover::PAGE_BYTES;
use self::seals::Seals;
use crate::background::Background;
use crate::error::{Error, Result};
use crate::log::image_files::UnfinishedImage;
use crate::log::layout;
use crate::log::objects::Objects;
use crate::log::reader::RecordLocator;
use crate::log::scan::Location;
use crate::storage::{Storage, StorageFile};

use self::reserve::check_body;
pub(crate) use self::reserve::{ReservationKind, check_body_len};
pub(crate) use self::sync::SyncPlan;
use self::sync::UnsyncedRange;

/// Bytes that every segment reserves for its seal, one `Synced` frame and one `Closed` frame.
const RESERVED_BYTES: u64 = 160;

/// Bytes that are reserved for the end record of each open operation: a full disk does not prevent
/// a tool from ending, though its answer may have to be omitted.
pub(crate) const END_BYTES: u64 = 4096;

/// Specifies the sizes of segments, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSizes {
    /// Size of the first segment of a session, and of the first one after each opening.
    pub first_bytes: u64,
    /// Maximum size of a segment; one with a larger record is larger.
    pub max_bytes: u64,
    /// Minimum size of a segment that is preallocated before the rollover to it.
    pub ahead_bytes_min: u64,
}

impl Default for SegmentSizes {
    /// Returns 16 KiB, 64 MiB, and 256 KiB.
    fn default() -> Self {
        SegmentSizes { first_bytes: 16 << 10, max_bytes: 64 << 20, ahead_bytes_min: 256 << 10 }
    }
}

/// The environment of a log: storage, background and sizes, from the store's options.
#[derive(Clone, Debug)]
pub(crate) struct LogEnvironment {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) sizes: SegmentSizes,
    pub(crate) background: Background,
}

#[derive(Debug)]
pub(crate) enum AppendBody<'a> {
    Alone(&'a [u8]),
    /// Bytes of the body after the room for the frame's header, which saves the writer a copy.
    Roomy(&'a mut [u8]),
}

impl AppendBody<'_> {
    fn frame_len(&self) -> usize {
        match self {
            AppendBody::Alone(body) => FRAME_HEADER_LEN + body.len(),
            AppendBody::Roomy(frame) => frame.len(),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            AppendBody::Alone(body) => body,
            AppendBody::Roomy(frame) => frame.get(FRAME_HEADER_LEN..).unwrap_or_default(),
        }
    }
}

pub(crate) struct AppendContext<'a> {
    /// Sequence number below which everything is durable.
    pub(crate) synced: SequenceNumber,
    /// Returns the declarations so far, for the head of a segment.
    pub(crate) declared: &'a dyn Fn() -> Declare,
}

#[derive(Debug)]
enum WriterPhase {
    /// A log without a segment of its own; `previous` is in the segments that it shares.
    New {
        previous: Option<Previous>,
    },
    Continue {
        end: u64,
        named: bool,
    },
    Recover {
        attested: SequenceNumber,
    },
    Running,
    /// Everything written is durable, and no file is open.
    Resting {
        offset: u64,
        capacity: u64,
    },
    /// The records exist already, and nothing is written.
    Recorded,
}

#[derive(Debug)]
struct Active {
    file: Arc<dyn StorageFile>,
    path: PathBuf,
    context: Context,
    ordinal: u32,
    offset: u64,
    capacity: u64,
    /// Offset up to which records may be written without a further check: the capacity, or the
    /// offset at which the spare would become too small.
    limit: u64,
    /// Offset up to which a sync was planned.
    planned: u64,
    /// Offset at which the writer requests resources that it will need soon.
    ask_at: u64,
    /// Offset up to which pages were requested.
    pages_through: u64,
    asked_for_next: bool,
}

#[derive(Debug)]
pub(crate) struct LogWriter {
    storage: Arc<dyn Storage>,
    dir: PathBuf,
    sizes: SegmentSizes,
    ahead: SegmentPreallocator,
    unfinished_image: Arc<UnfinishedImage>,
    pace: Pace,
    seals: Seals,
    pub(crate) objects: Arc<Objects>,
    session: Uuid,
    seed: u64,
    pub(crate) places: RecordLocator,
    start: WriterPhase,
    active: Option<Active>,
    ordinal_max: Option<u32>,
    last_crc: u32,
    /// Offset of the last frame in the active segment; `None` before the first.
    last_offset: Option<u64>,
    /// The last record's frame in the active segment; `None` before the first.
    last_record: Option<RecordFrame>,
    last_time_us: i64,
    /// Highest watermark in a frame of the log.
    watermark: SequenceNumber,
    /// Sequence number below which this writer made everything durable before its first append.
    recovered: SequenceNumber,
    is_closed: bool,
    epoch: Option<u64>,
    written_bytes: u64,
    /// Capacity in bytes of the segment that its last writer closed and in which this writer
    /// continued; 0 if there is none.
    reopened_bytes: u64,
    used_bytes: u64,
    unsynced_files: Vec<UnsyncedRange>,
    unsynced_dirs: Vec<PathBuf>,
    pub(crate) unsynced_bytes: u64,
    /// Bytes in the active segment that are reserved for the ends of operations.
    reserved_bytes: u64,
    /// Number of calls for whose ends a recovery must leave room.
    pub(crate) interrupted_calls: u64,
    spare: Spare,
    /// Frame being written; reused for its memory.
    frame: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct RecordFrame {
    offset: u64,
    end: u64,
    crc: u32,
    /// Highest watermark of this frame and those before it.
    watermark: SequenceNumber,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct LogIdentity {
    pub(crate) session: Uuid,
    pub(crate) seed: u64,
}

impl LogIdentity {
    pub(crate) fn from_opening(opened: &SessionOpening) -> LogIdentity {
        LogIdentity { session: opened.session, seed: opened.seed }
    }
}

impl LogWriter {
    pub(crate) fn next_sequence(&self) -> SequenceNumber {
        self.places.next_sequence
    }

    /// Returns the bytes of all segments that belong to the log, including headers and envelope
    /// frames.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Returns the number of finished segments that wait for a sync, each with an open file.
    pub(crate) fn unsynced_files(&self) -> usize {
        self.unsynced_files.len()
    }

    /// Returns the sequence number of the first record that an earlier process left unattested and
    /// that the first append makes durable; `None` if there is none.
    pub(crate) fn unattested_from(&self) -> Option<SequenceNumber> {
        match self.start {
            WriterPhase::Recover { attested } => Some(attested),
            _ => None,
        }
    }

    /// Returns the time of the last record, in microseconds since 1970.
    pub(crate) fn last_time_us(&self) -> i64 {
        self.last_time_us
    }

    /// Returns the highest watermark that the log itself states.
    #[cfg(test)]
    pub(crate) fn watermark(&self) -> SequenceNumber {
        self.watermark
    }

    /// Returns the sequence number below which everything was made durable before the first append:
    /// by a recovery, or by a sync of the name of a recovery's segment.
    pub(crate) fn recovered_end(&self) -> SequenceNumber {
        self.recovered
    }

    /// Returns how often the log was opened for writing before.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.unwrap_or(0)
    }

    /// Returns the last frame, if this writer wrote it.
    pub(crate) fn last_frame(&self) -> Option<LastFrame> {
        let (active, offset) = (self.active.as_ref()?, self.last_offset?);
        let segment = self.places.segments.last()?;
        let (ordinal, salt) = (segment.header.ordinal, segment.header.salt);
        Some(LastFrame { ordinal, salt, offset, end: active.offset, crc: self.last_crc })
    }

    /// Returns the frame of the last record, and the highest watermark that a scan finds through
    /// it, if this writer wrote it into the active segment. This frame is durable once the log is
    /// durable through that record. The frames after it are not: they attest a sync and are not
    /// covered by one themselves.
    pub(crate) fn last_record_frame(&self) -> Option<(LastFrame, SequenceNumber)> {
        let RecordFrame { offset, end, crc, watermark } = self.last_record?;
        let segment = self.places.segments.last()?;
        Some((
            LastFrame { ordinal: segment.header.ordinal, salt: segment.header.salt, offset, end, crc },
            watermark,
        ))
    }

    /// Returns whether this writer has written anything since opening, and holds its files open.
    pub(crate) fn is_writing(&self) -> bool {
        matches!(self.start, WriterPhase::Running)
    }

    /// Appends one record and returns its sequence number. The record is not durable before a sync.
    ///
    /// If the error is [`Error::Full`], [`Error::NoHandle`], [`Error::ReadOnly`] or
    /// [`Error::TooLarge`], nothing was written; after any other error the log must not be written
    /// to again.
    pub(crate) fn append(
        &mut self,
        kind: RecordKind,
        time_us: i64,
        body: AppendBody<'_>,
        context: &AppendContext<'_>,
    ) -> Result<SequenceNumber> {
        let frame_len = body.frame_len();
        check_body(frame_len.saturating_sub(FRAME_HEADER_LEN), || body.bytes())?;
        let time_us = time_us.clamp(frame::TIME_US_MIN, frame::TIME_US_MAX);
        if !self.is_writing() {
            self.begin(time_us, context)?;
        }
        // The end of an operation may use the room that was reserved for it, but not the room of
        // other operations.
        let own = if kind == RecordKind::ToolEnd { END_BYTES } else { 0 };
        if let Some(active) = self.active.as_mut().filter(|_| own > 0) {
            // When the call's start record was written, the spare was made large enough for this
            // record.
            active.limit = active.capacity;
        }
        let reserved = self.reserved_bytes.saturating_sub(own);
        // A recovery writes the declarations twice: as records, and at the head of its segment.
        let again = if kind == RecordKind::Declare { frame_len as u64 } else { 0 };
        self.make_room(frame_len as u64 + again + reserved, context)?;
        self.write_record(kind, time_us, body, context.synced)
    }

    /// Gives the unused room of the segment back to the disk, after the session is closed. Does
    /// nothing if a call is still open, which needs the room for its end record. A failure only
    /// means that the session takes more space.
    pub(crate) fn give_back_room(&self) {
        let Some(active) = self.active.as_ref().filter(|_| self.reserved_bytes == 0) else { return };
        let used = active.offset.next_multiple_of(PAGE_BYTES);
        if used < active.capacity {
            let _ = active.file.give_back(used, active.capacity);
        }
    }

    /// Ends the background work: removes the preallocated segment, and seals every finished
    /// segment. The session calls this when it closes, before the last sync, and requests no
    /// background work afterwards.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.finish_but_seals()?;
        self.finish_seals()
    }

    /// Works like [`finish`](LogWriter::finish), but seals nothing.
    pub(crate) fn finish_but_seals(&mut self) -> Result<()> {
        if let Some(active) = &mut self.active {
            active.ask_at = u64::MAX;
        }
        self.discard_made_ahead()?;
        self.drop_spare()
    }

    fn discard_made_ahead(&self) -> Result<()> {
        let Some(made) = self.ahead.take_segment() else { return Ok(()) };
        self.ahead.discard(&made).map_err(|error| Error::io("remove", &made.path, error))
    }

    /// Sets the new locations and the size of the records after a compaction has replaced segments.
    pub(crate) fn replace_places(&mut self, places: RecordLocator, used_bytes: u64) {
        self.places = places;
        self.used_bytes = used_bytes;
    }

    /// Makes the steps that precede the first append, as described in the module docs. Fails like
    /// [`append`](LogWriter::append).
    pub(crate) fn begin(&mut self, time_us: i64, context: &AppendContext<'_>) -> Result<()> {
        match self.start {
            WriterPhase::Running => return Ok(()),
            WriterPhase::Resting { offset, capacity } => return self.wake(offset, capacity),
            WriterPhase::Recorded => {
                let reason = "it replays recorded records".to_owned();
                return Err(Error::ReadOnly { session: self.session, reason });
            }
            WriterPhase::New { previous } => {
                self.new_segment(previous, 0, context)?;
                self.unsynced_dirs.push(self.dir.clone());
            }
            WriterPhase::Continue { end, named } => self.reopen(end, named)?,
            WriterPhase::Recover { attested } => {
                let read = self.places.clone();
                if let Err(error) = self.recover(attested, time_us, context) {
                    // Readers continue with the previous segments, which are unchanged.
                    (self.places, self.active) = (read, None);
                    return Err(error);
                }
                self.start = WriterPhase::Running;
                return Ok(());
            }
        }
        let body = self.encode_resumed(time_us, None, Vec::new());
        self.make_room(FRAME_HEADER_LEN as u64 + body.len() as u64, context)?;
        // This is set only now: if there was no room, the next attempt must write the same frame
        // first.
        self.start = WriterPhase::Running;
        self.epoch = Some(self.next_epoch());
        self.write_envelope(RecordKind::Resumed, &body, context.synced)
    }

    fn next_epoch(&self) -> u64 {
        self.epoch.map_or(0, |epoch| epoch.saturating_add(1))
    }

    fn encode_resumed(
        &self,
        time_us: i64,
        recovered: Option<SequenceNumber>,
        began: Vec<SequenceNumber>,
    ) -> Vec<u8> {
        let epoch = self.next_epoch();
        Resumed { epoch, boot_id: self.storage.boot_id(), clock_us: time_us, recovered, began }.encode()
    }

    /// Continues in the last segment, which its last writer closed.
    fn reopen(&mut self, end: u64, named: bool) -> Result<()> {
        let Some(segment) = self.places.segments.last() else { return Ok(()) };
        if !named {
            // The process that created the segment in a recovery may have been killed before the
            // segment's name was durable.
            self.storage.sync_directory(&self.dir)?;
            self.recovered = self.watermark.min(self.places.next_sequence);
        }
        self.spare.adopt(layout::spare_file(&self.dir), self.storage.as_ref());
        let io = |op, error| self.write_error(op, &segment.path, error);
        let file = self.storage.open_segment(&segment.path).map_err(|error| io("open", error))?;
        // The capacity is limited to that of normal segments: a longer file is not trusted.
        let used = end.next_multiple_of(PAGE_BYTES);
        let believed = used.max(self.sizes.max_bytes).max(SegmentSizes::default().max_bytes);
        let mut capacity = file.len().map_err(|error| io("open", error))?.min(believed);
        // A close gave its unused room back. On a full disk the log continues for as long as it has
        // room.
        match file.allocate(capacity) {
            Err(error) if is_out_of_space(&error) => capacity = used.min(capacity),
            allocated => allocated.map_err(|error| io("allocate", error))?,
        }
        // The frames that attested the close were not synced themselves, and the next frame names
        // them. There are several if one thread's sync was planned before another thread had
        // attested the previous sync.
        let planned = match self.next_sequence().checked_sub(1) {
            Some(last) => self.places.locate(&self.storage, last)?.end,
            None => 0,
        };
        rewrite_frames(file.as_ref(), planned..end).map_err(|error| io("write", error))?;
        self.active = Some(Active { planned, ..Active::new(file, segment, end, capacity) });
        self.reopened_bytes = capacity;
        Ok(())
    }

    fn write_error(&self, op: &'static str, path: &Path, error: std::io::Error) -> Error {
        match error.kind() {
            ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => {
                let reason = format!("{}: {error}", path.display());
                Error::ReadOnly { session: self.session, reason }
            }
            _ if is_out_of_handles(&error) => Error::unmade(op, path, 0, error),
            _ => Error::io(op, path, error),
        }
    }

    #[inline(always)]
    fn write_record(
        &mut self,
        kind: RecordKind,
        time_us: i64,
        body: AppendBody<'_>,
        watermark: SequenceNumber,
    ) -> Result<SequenceNumber> {
        let sequence = self.places.next_sequence;
        let offset = self.write(kind, sequence, time_us, body, watermark)?;
        let segment = self.places.segments.len().saturating_sub(1);
        self.places.index.note(sequence, Location { segment, offset });
        self.places.next_sequence += 1;
        self.last_time_us = time_us;
        Ok(sequence)
    }

    fn write_envelope(&mut self, kind: RecordKind, body: &[u8], watermark: SequenceNumber) -> Result<()> {
        let (sequence, time_us) = (self.places.next_sequence, self.last_time_us);
        self.write(kind, sequence, time_us, AppendBody::Alone(body), watermark).map(drop)
    }

    /// Writes a frame after the last one, and returns its offset.
    #[inline(always)]
    fn write(
        &mut self,
        kind: RecordKind,
        sequence: SequenceNumber,
        time_us: i64,
        body: AppendBody<'_>,
        watermark: SequenceNumber,
    ) -> Result<u64> {
        let Some(active) = &mut self.active else {
            let reason = "no segment is open for writing".to_owned();
            return Err(Error::Inconsistent { sequence, reason });
        };
        // A recovery reports only afterwards to its caller what it attested.
        let watermark = watermark.max(self.recovered);
        let predecessor_crc = self.last_crc;
        let header = Header { crc: 0, predecessor_crc, body_len: 0, sequence, watermark, kind, time_us };
        let (crc, frame) = match body {
            AppendBody::Alone(body) => {
                self.frame.clear();
                (frame::encode(active.context, &header, body, &mut self.frame), self.frame.as_slice())
            }
            AppendBody::Roomy(frame) => (frame::fill_in(active.context, &header, frame), &*frame),
        };
        let crc =
            crc.map_err(|error| Error::Encode { name: kind.name().to_owned(), reason: error.to_string() })?;
        let offset = active.offset;
        if let Some(found) = active.found_foreign(self.last_offset, self.last_crc) {
            return Err(Error::SecondWriter { session: self.session, found });
        }
        active.file.write_at(frame, offset).map_err(|error| Error::io("write", &active.path, error))?;
        let len = frame.len() as u64;
        active.offset += len;
        self.written_bytes += len;
        self.used_bytes += len;
        self.unsynced_bytes += len;
        self.last_crc = crc;
        self.last_offset = Some(offset);
        self.watermark = self.watermark.max(watermark);
        if !kind.is_envelope() {
            self.last_record =
                Some(RecordFrame { offset, end: active.offset, crc, watermark: self.watermark });
        }
        if active.offset >= active.ask_at {
            self.look_ahead(time_us);
        }
        Ok(offset)
    }
}

/// Writes the bytes in `range` of a file again, so that the next sync really writes them: after a
/// failed sync the system considers pages clean that the disk never got.
fn rewrite_frames(file: &dyn StorageFile, range: Range<u64>) -> std::io::Result<()> {
    let mut buffer = [0; PAGE_BYTES as usize];
    let mut at = range.start;
    while at < range.end {
        let read = file.read_at(&mut buffer, at)?.min(usize::try_from(range.end - at).unwrap_or(usize::MAX));
        let bytes = buffer.get(..read).filter(|bytes| !bytes.is_empty()).ok_or(ErrorKind::UnexpectedEof)?;
        file.write_at(bytes, at)?;
        at += bytes.len() as u64;
    }
    Ok(())
}

fn seal_bytes_max() -> u64 {
    RESERVED_BYTES - 2 * FRAME_HEADER_LEN as u64
}

//! Appending to a log.
//!
//! # How a session is begun, continued and recovered
//!
//! Opening writes nothing; what follows comes with the first append.
//!
//! | the log | what the first append does |
//! |---|---|
//! | is new | makes segment 0: header, `Resumed`, `Opened` |
//! | was closed | goes on in the last segment, with a `Resumed` |
//! | anything else | makes a fresh segment that names where the attested part ends, and rewrites into it the sound records behind that: under a temporary name, synced, renamed, its folder synced. The old bytes stay where they are |
//! | is a fork | makes a segment of its own behind the linked ones |
//!
//! # Turning to the next segment
//!
//! 1. The next file is made, its space allocated. Where there is none, the turn is [`Error::Full`] and nothing
//!    has happened.
//! 2. The folder is synced, so that the name is durable, and so are those of the segments before it.
//! 3. Its header and the declarations are written into it. A header thus always has its predecessor.
//! 4. The old segment is sealed. A seal thus always has a successor.
//!
//! # Syncing
//!
//! Objects first, then the folders whose names are new, then segments from the oldest to the newest. Only
//! then does the watermark rise, and a `Synced` frame says so.
//!
//! # Invariants
//!
//! 1. Bytes of a segment are never written twice, and never after a later segment was begun, but for its seal.
//! 2. A failed write or sync is final: the caller poisons the session. A sync is never retried.

mod recovery;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::Kind;
use foldlog_codec::body::{Declare, Resumed, Seal};
use foldlog_codec::digest::SegmentDigest;
use foldlog_codec::frame::{self, BODY_LEN_MAX, Context, HEADER_LEN as FRAME_HEADER_LEN, Header};
use foldlog_codec::segment::{HEADER_LEN as SEGMENT_HEADER_LEN, Previous, SegmentHeader};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::generator::Generator;
use crate::log::chain::Segment;
use crate::log::layout;
use crate::log::lock::is_read_only;
use crate::log::objects::{Objects, Unsynced};
use crate::log::reader::{Located, Places};
use crate::log::scan::{INDEX_EVERY, Location, Scan};
use crate::log::storage::{Access, Storage, StorageFile};

/// Room that every segment keeps for its seal and for one `Synced` frame.
const RESERVED_BYTES: u64 = 160;

/// How large segments are, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSizes {
    /// The first segment of a session, and of each opening.
    pub first_bytes: u64,
    /// The largest; one that must hold a larger record is larger.
    pub max_bytes: u64,
}

impl Default for SegmentSizes {
    /// 16 KiB and 64 MiB.
    fn default() -> Self {
        SegmentSizes { first_bytes: 16 << 10, max_bytes: 64 << 20 }
    }
}

/// What an append has to know of the session.
pub(crate) struct AppendContext<'a> {
    /// Everything below is durable.
    pub(crate) synced: u64,
    /// The declarations so far, for a segment's head.
    pub(crate) declared: &'a dyn Fn() -> Declare,
}

#[derive(Debug)]
enum Start {
    New,
    Continue { end: u64 },
    Recover { attested: u64 },
    Behind { previous: Previous },
    Running,
}

#[derive(Debug)]
struct Active {
    file: Arc<dyn StorageFile>,
    path: PathBuf,
    context: Context,
    ordinal: u32,
    offset: u64,
    capacity: u64,
    unsynced: bool,
}

/// The writer's side of a log.
#[derive(Debug)]
pub(crate) struct Log {
    storage: Arc<dyn Storage>,
    dir: PathBuf,
    sizes: SegmentSizes,
    pub(crate) objects: Arc<Objects>,
    session: Uuid,
    seed: u64,
    pub(crate) places: Places,
    start: Start,
    active: Option<Active>,
    ordinal_max: Option<u32>,
    last_crc: u32,
    last_time_us: i64,
    epoch: Option<u64>,
    written_bytes: u64,
    used_bytes: u64,
    unsynced_files: Vec<(PathBuf, Arc<dyn StorageFile>)>,
    unsynced_dirs: Vec<PathBuf>,
    pub(crate) unsynced_bytes: u64,
}

/// What one sync has to do; it runs without any lock of the session.
#[derive(Debug)]
pub(crate) struct SyncPlan {
    objects: Unsynced,
    dirs: Vec<PathBuf>,
    files: Vec<(PathBuf, Arc<dyn StorageFile>)>,
    /// Everything below is durable once the plan has run.
    pub(crate) through: u64,
}

impl SyncPlan {
    /// Makes everything durable, in the order that the module names.
    pub(crate) fn run(&self, storage: &dyn Storage) -> Result<()> {
        let files = |files: &[(PathBuf, Arc<dyn StorageFile>)]| -> Result<()> {
            for (path, file) in files {
                file.sync_data().map_err(|error| Error::io("sync", path, error))?;
            }
            Ok(())
        };
        files(&self.objects.files)?;
        for dir in self.objects.dirs.iter().chain(&self.dirs) {
            storage.sync_dir(dir).map_err(|error| Error::io("sync", dir, error))?;
        }
        files(&self.files)
    }
}

impl Log {
    /// The log of a new session whose folder is there and empty. `parents` are the folders whose names are
    /// new and have to be synced with the first sync.
    pub(crate) fn create(
        storage: &Arc<dyn Storage>,
        dir: &Path,
        session: Uuid,
        seed: u64,
        sizes: SegmentSizes,
        parents: Vec<PathBuf>,
    ) -> Log {
        let places = Places { segments: Vec::new(), index: BTreeMap::new(), next_sequence: 0 };
        let mut log = Log::at(storage, dir, session, seed, sizes, places, Start::New);
        log.unsynced_dirs = parents;
        log
    }

    /// The log of a session that was scanned.
    pub(crate) fn open(storage: &Arc<dyn Storage>, dir: &Path, scan: Scan, sizes: SegmentSizes) -> Log {
        let start = if scan.clean {
            Start::Continue { end: scan.end }
        } else {
            Start::Recover { attested: scan.watermark.min(scan.next_sequence) }
        };
        let places = Places { segments: scan.segments, index: scan.index, next_sequence: scan.next_sequence };
        let mut log = Log::at(storage, dir, scan.session, scan.opened.seed, sizes, places, start);
        log.ordinal_max = Some(scan.ordinal_max);
        log.last_crc = scan.last_crc;
        log.last_time_us = scan.last_time_us;
        log.epoch = Some(scan.epoch);
        log.used_bytes = scan.used_bytes;
        log
    }

    /// The log of a fork: `places` are the linked segments, `located` the last record that it shares.
    pub(crate) fn fork(
        storage: &Arc<dyn Storage>,
        dir: &Path,
        session: Uuid,
        seed: u64,
        sizes: SegmentSizes,
        places: Places,
        located: Located,
    ) -> Log {
        let ordinal = places.segments.last().map_or(0, |segment| segment.header.ordinal);
        let previous = Previous { ordinal, end: located.end, crc: located.crc };
        let mut log = Log::at(storage, dir, session, seed, sizes, places, Start::Behind { previous });
        log.ordinal_max = Some(ordinal);
        log.last_crc = located.crc;
        log
    }

    fn at(
        storage: &Arc<dyn Storage>,
        dir: &Path,
        session: Uuid,
        seed: u64,
        sizes: SegmentSizes,
        places: Places,
        start: Start,
    ) -> Log {
        Log {
            storage: Arc::clone(storage),
            dir: dir.to_owned(),
            sizes,
            objects: Arc::new(Objects::new(Arc::clone(storage), dir)),
            session,
            seed,
            places,
            start,
            active: None,
            ordinal_max: None,
            last_crc: 0,
            last_time_us: 0,
            epoch: None,
            written_bytes: 0,
            used_bytes: 0,
            unsynced_files: Vec::new(),
            unsynced_dirs: Vec::new(),
            unsynced_bytes: 0,
        }
    }

    pub(crate) fn next_sequence(&self) -> u64 {
        self.places.next_sequence
    }

    /// Bytes of all segments that belong to the log, headers and envelope frames included.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Whether anything was written since opening.
    pub(crate) fn is_writing(&self) -> bool {
        matches!(self.start, Start::Running)
    }

    /// Appends one record and returns its sequence number. It is not durable before a sync.
    ///
    /// Nothing was written where the error is [`Error::Full`], [`Error::ReadOnly`] or [`Error::TooLarge`];
    /// after any other the log must not be written again.
    pub(crate) fn append(
        &mut self,
        kind: Kind,
        time_us: i64,
        body: &[u8],
        context: &AppendContext<'_>,
    ) -> Result<u64> {
        check_body_len(body.len())?;
        let time_us = time_us.clamp(frame::TIME_US_MIN, frame::TIME_US_MAX);
        self.begin(time_us, context)?;
        self.make_room(FRAME_HEADER_LEN as u64 + body.len() as u64, context)?;
        let sequence = self.places.next_sequence;
        let (offset, _) = self.write(kind, sequence, time_us, body, context.synced)?;
        let new_segment = self.places.segments.last().is_some_and(|s| s.header.first_sequence == sequence);
        if new_segment || sequence.is_multiple_of(INDEX_EVERY) {
            let segment = self.places.segments.len().saturating_sub(1);
            self.places.index.insert(sequence, Location { segment, offset });
        }
        self.places.next_sequence += 1;
        self.last_time_us = time_us;
        Ok(sequence)
    }

    /// Makes room for records with bodies of these lengths, so that either all of them are appended or none is:
    /// the errors are those of [`append`](Log::append), before the first of them.
    pub(crate) fn reserve(
        &mut self,
        time_us: i64,
        body_lens: impl Iterator<Item = usize>,
        context: &AppendContext<'_>,
    ) -> Result<()> {
        let mut bytes = 0;
        for len in body_lens {
            check_body_len(len)?;
            bytes += (FRAME_HEADER_LEN + len) as u64;
        }
        self.begin(time_us.clamp(frame::TIME_US_MIN, frame::TIME_US_MAX), context)?;
        self.make_room(bytes, context)
    }

    /// Appends a `Synced` frame where there is room; a segment begun later says the same in its header.
    pub(crate) fn attest(&mut self, synced: u64) -> Result<()> {
        let room = self.active.as_ref().is_some_and(|active| {
            active.offset + FRAME_HEADER_LEN as u64 + seal_bytes_max() <= active.capacity
        });
        if room {
            let (sequence, time_us) = (self.places.next_sequence, self.last_time_us);
            self.write(Kind::SYNCED, sequence, time_us, &[], synced)?;
        }
        Ok(())
    }

    /// Takes all that is not yet durable; the plan must be run, or the log is not written again.
    pub(crate) fn sync_plan(&mut self) -> SyncPlan {
        let mut files = std::mem::take(&mut self.unsynced_files);
        if let Some(active) = self.active.as_mut().filter(|active| active.unsynced) {
            active.unsynced = false;
            files.push((active.path.clone(), Arc::clone(&active.file)));
        }
        self.unsynced_bytes = 0;
        SyncPlan {
            objects: self.objects.take_unsynced(),
            dirs: std::mem::take(&mut self.unsynced_dirs),
            files,
            through: self.places.next_sequence,
        }
    }

    /// Does what has to come before the first append; see the module. Fails as [`append`](Log::append) does.
    pub(crate) fn begin(&mut self, time_us: i64, context: &AppendContext<'_>) -> Result<()> {
        match self.start {
            Start::Running => return Ok(()),
            Start::New => {
                self.new_segment(None, 0, context)?;
                self.unsynced_dirs.push(self.dir.clone());
            }
            Start::Behind { previous } => {
                self.new_segment(Some(previous), 0, context)?;
                self.unsynced_dirs.push(self.dir.clone());
            }
            Start::Continue { end } => self.reopen(end)?,
            Start::Recover { attested } => {
                self.recover(attested, time_us, context)?;
                self.start = Start::Running;
                return Ok(());
            }
        }
        let body = self.resumed(time_us);
        self.make_room(FRAME_HEADER_LEN as u64 + body.len() as u64, context)?;
        // Only now: where there was no room, the next attempt has to write the same frame first.
        self.start = Start::Running;
        self.epoch = Some(self.next_epoch());
        let sequence = self.places.next_sequence;
        self.write(Kind::RESUMED, sequence, self.last_time_us, &body, context.synced)?;
        Ok(())
    }

    fn next_epoch(&self) -> u64 {
        self.epoch.map_or(0, |epoch| epoch.saturating_add(1))
    }

    fn resumed(&self, time_us: i64) -> Vec<u8> {
        let epoch = self.next_epoch();
        Resumed { epoch, boot_id: self.storage.boot_id(), clock_us: time_us }.encode()
    }

    /// Goes on in the last segment, which its last writer closed.
    fn reopen(&mut self, end: u64) -> Result<()> {
        let Some(segment) = self.places.segments.last() else { return Ok(()) };
        let io = |op, error| self.write_error(op, &segment.path, error);
        let file = self.storage.open(&segment.path, Access::Write).map_err(|error| io("open", error))?;
        let capacity = file.len().map_err(|error| io("open", error))?;
        self.active = Some(Active {
            file,
            path: segment.path.clone(),
            context: segment.context(),
            ordinal: segment.header.ordinal,
            offset: end,
            capacity,
            unsynced: false,
        });
        Ok(())
    }

    fn write_error(&self, op: &'static str, path: &Path, error: std::io::Error) -> Error {
        match error.kind() {
            ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => {
                let reason = format!("{}: {error}", path.display());
                Error::ReadOnly { session: self.session, reason }
            }
            _ => Error::io(op, path, error),
        }
    }

    /// Makes room for a frame of `len` bytes, in the next segment if need be.
    fn make_room(&mut self, len: u64, context: &AppendContext<'_>) -> Result<()> {
        let Some(active) = &self.active else { return Ok(()) };
        if active.offset + len + RESERVED_BYTES <= active.capacity {
            return Ok(());
        }
        let previous = Previous { ordinal: active.ordinal, end: active.offset, crc: self.last_crc };
        self.new_segment(Some(previous), len, context)
    }

    /// Makes the next segment and, where one is open, seals that.
    fn new_segment(
        &mut self,
        previous: Option<Previous>,
        len: u64,
        context: &AppendContext<'_>,
    ) -> Result<()> {
        let ordinal = self.ordinal_max.map_or(0, |ordinal| ordinal + 1);
        let path = layout::segment_file(&self.dir, ordinal);
        let (active, segment) =
            self.create_segment(ordinal, &path, previous, (self.places.next_sequence, len), context)?;
        self.ordinal_max = Some(ordinal);
        if self.active.is_some() {
            self.storage.sync_dir(&self.dir).map_err(|error| Error::io("sync", &self.dir, error))?;
        }
        write_header(&active, &segment)?;
        if let Some(finished) = self.active.take() {
            self.seal(&finished, ordinal)?;
            self.unsynced_files.push((finished.path, finished.file));
        }
        self.follow_with(active, segment);
        self.declare_head(context)
    }

    fn follow_with(&mut self, active: Active, segment: Segment) {
        if let (Some(last), Some(previous)) = (self.places.segments.last_mut(), segment.header.previous) {
            last.end = Some(previous.end);
        }
        self.used_bytes += SEGMENT_HEADER_LEN as u64;
        self.places.segments.push(segment);
        self.active = Some(active);
    }

    /// The declarations so far, at a segment's head.
    fn declare_head(&mut self, context: &AppendContext<'_>) -> Result<()> {
        let declared = (context.declared)();
        if declared == Declare::default() {
            return Ok(());
        }
        let sequence = self.places.next_sequence;
        self.write(Kind::DECLARED, sequence, self.last_time_us, &declared.encode(), context.synced)?;
        Ok(())
    }

    /// Makes a segment file, into which its header is to be written.
    fn create_segment(
        &self,
        ordinal: u32,
        path: &Path,
        previous: Option<Previous>,
        (first_sequence, len): (u64, u64),
        context: &AppendContext<'_>,
    ) -> Result<(Active, Segment)> {
        let head = SEGMENT_HEADER_LEN as u64
            + RESERVED_BYTES
            + 2 * FRAME_HEADER_LEN as u64
            + (context.declared)().encode().len() as u64
            + 128;
        let follow = self.written_bytes.min(self.sizes.max_bytes).max(self.sizes.first_bytes);
        // A size that no file can have is refused when the file is made.
        let capacity = follow.max(head + len).checked_next_multiple_of(4096).unwrap_or(u64::MAX);
        let file = self.storage.create(path, capacity).map_err(|error| match error.kind() {
            kind if kind != ErrorKind::PermissionDenied
                && kind != ErrorKind::ReadOnlyFilesystem
                && is_read_only(&error) =>
            {
                Error::Full { path: path.to_owned(), bytes: capacity, source: Arc::new(error) }
            }
            _ => self.write_error("create", path, error),
        })?;
        let header = SegmentHeader {
            ordinal,
            session: self.session,
            first_sequence,
            watermark: context.synced,
            salt: Generator::salt(self.seed, ordinal),
            previous,
        };
        let segment = Segment { path: path.to_owned(), header, end: None };
        let active = Active {
            file,
            path: path.to_owned(),
            context: segment.context(),
            ordinal,
            offset: SEGMENT_HEADER_LEN as u64,
            capacity,
            unsynced: true,
        };
        Ok((active, segment))
    }

    /// Writes a frame behind the last one; returns where it stands and its checksum.
    fn write(
        &mut self,
        kind: Kind,
        sequence: u64,
        time_us: i64,
        body: &[u8],
        watermark: u64,
    ) -> Result<(u64, u32)> {
        let Some(active) = &mut self.active else {
            let reason = "no segment is open for writing".to_owned();
            return Err(Error::Inconsistent { sequence, reason });
        };
        let predecessor_crc = self.last_crc;
        let header = Header { crc: 0, predecessor_crc, body_len: 0, sequence, watermark, kind, time_us };
        let mut bytes = Vec::new();
        let crc = frame::encode(active.context, &header, body, &mut bytes)
            .map_err(|error| Error::Encode { name: kind.name().to_owned(), reason: error.to_string() })?;
        let offset = active.offset;
        active.file.write_at(&bytes, offset).map_err(|error| Error::io("write", &active.path, error))?;
        let len = bytes.len() as u64;
        active.offset += len;
        active.unsynced = true;
        self.written_bytes += len;
        self.used_bytes += len;
        self.unsynced_bytes += len;
        self.last_crc = crc;
        Ok((offset, crc))
    }

    /// Writes the seal of a finished segment; it belongs to no chain, since its successor names the frame
    /// before it.
    fn seal(&mut self, finished: &Active, next: u32) -> Result<()> {
        let Some(segment) = self.places.segments.last() else { return Ok(()) };
        let (records, hash) = digest(&self.places, &self.storage, segment.header.first_sequence)?;
        let body = Seal { next, records, hash }.encode();
        let header = Header {
            crc: 0,
            predecessor_crc: self.last_crc,
            body_len: 0,
            sequence: self.places.next_sequence,
            watermark: 0,
            kind: Kind::SEAL,
            time_us: self.last_time_us,
        };
        let mut bytes = Vec::new();
        frame::encode(finished.context, &header, &body, &mut bytes)
            .map_err(|error| Error::Encode { name: "seal".to_owned(), reason: error.to_string() })?;
        self.used_bytes += bytes.len() as u64;
        finished
            .file
            .write_at(&bytes, finished.offset)
            .map_err(|error| Error::io("write", &finished.path, error))
    }
}

fn check_body_len(len: usize) -> Result<()> {
    if len <= BODY_LEN_MAX {
        return Ok(());
    }
    Err(Error::TooLarge { what: "record body", found: len as u64, max: BODY_LEN_MAX as u64 })
}

fn write_header(active: &Active, segment: &Segment) -> Result<()> {
    let header = segment.header.encode();
    active.file.write_at(&header, 0).map_err(|error| Error::io("write", &active.path, error))
}

fn seal_bytes_max() -> u64 {
    RESERVED_BYTES - FRAME_HEADER_LEN as u64
}

/// How many records there are from `first` on, and their digest.
fn digest(places: &Places, storage: &Arc<dyn Storage>, first: u64) -> Result<(u64, [u8; 32])> {
    let mut digest = SegmentDigest::new();
    places.read(storage, first, u64::MAX, &mut |record| {
        digest.update(record.sequence, record.kind, record.time_us, record.body);
        Ok(())
    })?;
    Ok((digest.records(), digest.finish()))
}

//! Opens a session from its directory: reads the log, folds it, and checks it against the host's
//! types.
//!
//! Opening does not write into the session's directory. [`open_read`] scans and folds, from the
//! newest image that the log confirms; [`open_as_read`] builds the session from the result;
//! [`begin`] creates a new one.

use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, OnceLock};

use foldlog_codec::body::{Rollback, SessionOpening};
use foldlog_codec::image::{Image, SliceImage};
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use parking_lot::Mutex;
use uuid::Uuid;

use super::child_captures;
use super::fetch::{claim, claim_new, replica_from_claim};
use super::image_writing::ImageStatus;
use super::mode::Mode;
use super::open_store::OpenStore;
use super::rebuilt_log::{Digests, MadeLog};
use super::recovery_report::RecoveryReport;
use super::replay::ReplayCursor;
use super::replay::recorded_log::ReplayLog;
use super::replica_feed::{Replica, ReplicaClaim};
use super::schedule::{RunningCalls, WriteScope};
use super::write::{PendingRecord, SyncRequest};
use super::{Session, SessionInner, WriterState};
use crate::error::{Error, Result};
use crate::fold::history::History;
use crate::fold::image_conversion::{self, LoadedImage};
use crate::fold::live::{FoldSources, LiveState};
use crate::fold::live_path::LivePath;
use crate::fold::log_source::LogSource;
use crate::fold::memory::Watch;
use crate::fold::pipeline::{Fold, fold_while_reading};
use crate::fold::positions::Positions;
use crate::fold::projection::{FrozenProjection, LogSlices, Projection};
use crate::fold::record_kinds::RecordBody;
use crate::log::TornTail;
use crate::log::exposure;
use crate::log::image_files;
use crate::log::lock::{self, WriterLock};
use crate::log::objects::Objects;
use crate::log::publish::SyncGate;
use crate::log::reader::RecordLocator;
use crate::log::scan::{self, FrameAt, LogScan, Scanner};
use crate::log::writer::{LogIdentity, LogWriter};
use crate::names::DeclaredNames;
use crate::operation::OpenOperation;
use crate::options::{Durability, MemoryLimit, StoreOptions};
use crate::storage::{Storage, process_mark};
use crate::types::SessionTypes;
use crate::wakeups::ChangeNotifier;

pub(crate) struct SessionSeed {
    pub(crate) opened: SessionOpening,
    pub(crate) durability: Durability,
    pub(crate) types: SessionTypes,
    pub(crate) lock: WriterLock,
}

pub(crate) struct OpenAs {
    pub(crate) types: Option<SessionTypes>,
    pub(crate) durability: Durability,
    pub(crate) lock: Option<WriterLock>,
    pub(crate) read_only: Option<String>,
}

/// Storage of a session, and the memory limit for reading it.
#[derive(Clone, Copy)]
pub(crate) struct ReadGround<'a> {
    pub(crate) storage: &'a Arc<dyn Storage>,
    pub(crate) memory: MemoryLimit,
}

impl<'a> ReadGround<'a> {
    pub(crate) fn from_options(options: &'a StoreOptions) -> ReadGround<'a> {
        ReadGround { storage: &options.storage, memory: options.memory }
    }
}

/// A session that was read: its scan and its fold.
pub(crate) struct LoadedSession {
    pub(crate) scan: LogScan,
    pub(crate) folded: LiveState,
    pub(crate) images: Images,
    /// Number of lost records that the store's replicator returned.
    pub(crate) fetched: u64,
}

/// Reads the session in `dir`, with the host's types or without. A session continues from the
/// newest image that the log confirms; an audit folds every record. Fails if the fold exceeds the
/// memory limit.
pub(crate) fn open_read(
    ground: ReadGround<'_>,
    dir: &FilePath,
    types: Option<&SessionTypes>,
    log_slices: LogSlices,
) -> Result<LoadedSession> {
    scan::retry_if_replaced(|| open_read_once(ground, dir, types, log_slices, &mut None))
}

/// Reads the session once. If `digests` is `Some`, it receives the digests of the segments, and no
/// image is used.
pub(super) fn open_read_once(
    ground: ReadGround<'_>,
    dir: &FilePath,
    types: Option<&SessionTypes>,
    log_slices: LogSlices,
    digests: &mut Option<Digests>,
) -> Result<LoadedSession> {
    let ReadGround { storage, memory } = ground;
    let objects = Arc::new(Objects::new(Arc::clone(storage), dir));
    let mut images = Images::default();
    let scanner = match log_slices {
        LogSlices::InLog if digests.is_none() => images.start_after_image(ground, dir, types, &objects)?,
        _ => Scanner::new(storage.as_ref(), dir)?,
    };
    // Retained, since the fold may have to start again.
    let projection = match images.projection.take() {
        Some(projection) => projection,
        None => Projection::new(log_slices).over(scanner.compaction()?.as_ref()),
    };
    images.watch = images.watch.take().or_else(|| Watch::from_limit(dir, memory));
    let folded = images.live_state(&projection);
    let folding = Fold { folded, sources: FoldSources { objects: &objects, types }, failed: false };
    let is_digested = digests.is_some();
    let ((mut scan, read), folding) = fold_while_reading(folding, scanner.finished_bytes(), |take| {
        let mut digests = is_digested.then(Digests::default);
        // A walk consumes its scanner, and it is not known yet whether a second thread walks.
        let scan = scanner.clone().run(&mut |at| {
            let record = at.record();
            if !record.kind.is_envelope() {
                if let Some(digests) = &mut digests {
                    digests.add(at.segment, &record);
                }
                take(&record);
            }
            Ok(())
        })?;
        Ok((scan, digests))
    })?;
    *digests = read;
    // If a record could not be folded, the second reading reports it.
    let mut folded = folding.finish();
    leave_out_records_without_objects(storage, &mut scan, &objects)?;
    // One reading is enough, unless the log has a rollback to a position whose state was not
    // retained, or its last records are left out. The second reading also starts after the image,
    // unless a rollback goes to a position before it.
    if folded.projection.next_sequence() != scan.next_sequence {
        let places = scan.places();
        let (rollbacks, limit) = (&scan.rollbacks, (dir, memory));
        let history = History { storage, places: &places, objects: &objects, rollbacks, limit };
        let end = scan.next_sequence;
        let behind = images.next_sequence.filter(|next| *next <= end);
        // If a rollback goes to a position before the image, or a record contradicts it, all
        // records are folded.
        let goes_on = behind.and_then(|_| {
            history.fold_behind(images.live_state(&projection), end, types, &mut |_, _| Ok(())).ok()
        });
        folded = match goes_on {
            Some(folded) => folded,
            None => {
                images.next_sequence = None;
                let folded = history.fold(end, types, log_slices, &mut |_, _| Ok(()));
                folded.map_err(|error| scan::begins_anew(error, end, dir))?
            }
        };
    }
    if let Some(compaction) = &scan.compaction {
        compaction.check_end(scan.next_sequence)?;
    }
    Ok(LoadedSession { scan, folded, images, fetched: 0 })
}

/// Reads names, tags, operations and rollbacks of the log in `dir`, without items. Memory does not
/// grow with the slices, and is limited. If a record contradicts earlier ones, the error is
/// returned with the scan: a fold with items may find an earlier one.
pub(crate) fn read_outline(
    storage: &Arc<dyn Storage>,
    dir: &FilePath,
    objects: &Objects,
    limit: MemoryLimit,
) -> Result<(LogScan, Result<Projection>)> {
    let none = Projection::new(LogSlices::Outline);
    let source = OutlineSource { storage, objects, limit };
    scan::retry_if_replaced(|| {
        read_outline_by(source, dir, &none, |visit| Scanner::new(storage.as_ref(), dir)?.run(visit))
    })
}

pub(crate) type VisitFrame<'a> = dyn FnMut(FrameAt<'_>) -> Result<()> + 'a;

/// Sources of an outline, and the memory limit for reading it.
#[derive(Clone, Copy)]
pub(crate) struct OutlineSource<'a> {
    pub(crate) storage: &'a Arc<dyn Storage>,
    pub(crate) objects: &'a Objects,
    pub(crate) limit: MemoryLimit,
}

/// Reads an outline as [`read_outline`] does, by a given walk over the log. The walk passes the
/// records after the outline `begun`.
pub(crate) fn read_outline_by(
    source: OutlineSource<'_>,
    dir: &FilePath,
    begun: &Projection,
    walk: impl FnOnce(&mut VisitFrame<'_>) -> Result<LogScan>,
) -> Result<(LogScan, Result<Projection>)> {
    let OutlineSource { storage, objects, limit } = source;
    let watch = || Watch::from_limit(dir, limit);
    let outline =
        || LiveState { watch: watch(), projection: begun.clone(), ..LiveState::new(LogSlices::Outline) };
    let sources = FoldSources { objects, types: None };
    let (mut folded, mut failed) = (outline(), None);
    let mut scan = walk(&mut |at| {
        let record = at.record();
        if failed.is_none() && !record.kind.is_envelope() {
            match folded.apply_record(&record, sources) {
                Err(error @ Error::OverBudget { .. }) => return Err(error),
                applied => failed = applied.err(),
            }
        }
        Ok(())
    })?;
    leave_out_records_without_objects(storage, &mut scan, objects)?;
    // The record that could not be applied may be among the excluded ones.
    if folded.projection.next_sequence() != scan.next_sequence {
        folded = outline();
        let last = scan.next_sequence.saturating_sub(1);
        let first = begun.next_sequence();
        let read =
            scan.places().read(storage, first, last, &mut |record| folded.apply_record(&record, sources));
        if let Err(error) = read {
            return Ok((scan, Err(error)));
        }
    }
    Ok((scan, Ok(folded.projection)))
}

/// Result of searching a session's images.
#[derive(Default)]
pub(crate) struct Images {
    /// Number of records that need no fold because of the image in use.
    pub(super) next_sequence: Option<SequenceNumber>,
    projection: Option<Projection>,
    /// STATE at the starts of operations that were open at the image's position.
    begun: Vec<(SequenceNumber, Arc<FrozenProjection>)>,
    rollbacks: BTreeMap<SequenceNumber, Rollback>,
    /// Length of the image in bytes.
    pub(crate) bytes: u64,
    /// Bytes of the log that the image covers.
    pub(crate) log_bytes: u64,
    /// Counts the memory of the fold after the image.
    watch: Option<Watch>,
    pub(super) dropped: Vec<PathBuf>,
}

impl Images {
    /// Describes the image in use for the next one; describes none if no opening can continue from
    /// it.
    fn image_status(&self, opened_at: u32, closed: bool) -> ImageStatus {
        let (bytes, log_bytes, next_sequence) = match self.next_sequence {
            Some(next_sequence) => (self.bytes, self.log_bytes, next_sequence),
            None => (0, 0, SequenceNumber::MIN),
        };
        ImageStatus::new(bytes, log_bytes, next_sequence, opened_at, closed)
    }

    /// Returns the fold after the image with this projection.
    fn live_state(&self, projection: &Projection) -> LiveState {
        let mut positions = Positions::default();
        for (begin, frozen) in &self.begun {
            positions.begin(*begin, Some(Arc::clone(frozen)));
        }
        let (projection, rollbacks) = (projection.clone(), self.rollbacks.clone());
        let path = LivePath::new(rollbacks.iter().map(|(at, rollback)| (*at, rollback.to)));
        LiveState { projection, positions, rollbacks, path, watch: self.watch.clone() }
    }

    /// Finds the newest image that the log confirms, and starts the walk after it.
    fn start_after_image<'a>(
        &mut self,
        ReadGround { storage, memory }: ReadGround<'a>,
        dir: &'a FilePath,
        types: Option<&SessionTypes>,
        objects: &Arc<Objects>,
    ) -> Result<Scanner<'a>> {
        let mut scanner = Scanner::new(storage.as_ref(), dir)?;
        for (_, path) in image_files::list(storage.as_ref(), dir) {
            if !may_decode(storage.as_ref(), &path, memory) {
                continue;
            }
            let bytes = image_files::read(storage.as_ref(), &path).unwrap_or_default();
            let image = Image::decode(&bytes);
            if let Ok(image) = &image
                && let Some(places) = scanner.go_on_from(image)?
            {
                let mut watch = Watch::from_limit(dir, memory);
                let (next, read_bytes) = (image.next_sequence, scanner.passed_bytes());
                let charge = |watch: &mut Watch| {
                    let (items, contents) = held_by(image);
                    watch.behind_image(next, read_bytes, items, contents)
                };
                // Folding all records needs as much, or reports that the limit is exceeded.
                if let Some(Err(_)) = watch.as_mut().map(charge) {
                    scanner = Scanner::new(storage.as_ref(), dir)?;
                    continue;
                }
                let ground = LogSource {
                    storage: Arc::clone(storage),
                    places,
                    objects: Arc::clone(objects),
                    names: Arc::default(),
                };
                if let Ok(LoadedImage { projection, begun }) =
                    image_conversion::projection(image, types, ground)
                {
                    self.next_sequence = Some(image.next_sequence);
                    (self.projection, self.begun) = (Some(projection), begun);
                    self.rollbacks = image.rollbacks.iter().copied().collect();
                    (self.bytes, self.log_bytes) = (bytes.len() as u64, scanner.passed_bytes());
                    self.watch = watch;
                    return Ok(scanner);
                }
                // The log is read from its beginning, which also reports damage in it.
                scanner = Scanner::new(storage.as_ref(), dir)?;
            }
            self.dropped.push(path);
        }
        Ok(scanner)
    }
}

/// Returns whether an image is small enough to be decoded. Decoding needs twice its bytes, in
/// addition to the bytes themselves.
fn may_decode(storage: &dyn Storage, path: &FilePath, memory: MemoryLimit) -> bool {
    let MemoryLimit::Bytes(budget) = memory else { return true };
    let len = storage.entry(path).ok().flatten().map_or(0, |entry| entry.len);
    len.saturating_mul(3) <= budget
}

/// Returns the number of items in an image, and the bytes of their contents.
fn held_by(image: &Image<'_>) -> (u64, u64) {
    let of_slices = image.slices.iter().flat_map(|slice| match slice {
        SliceImage::Held { items, .. } => items.as_slice(),
        SliceImage::InLog { .. } => &[],
    });
    let of_begun = image.begun.iter().flat_map(|begun| &begun.slices).flat_map(|slice| &slice.items);
    let items = of_slices.chain(of_begun);
    items.fold((0, 0), |(count, bytes): (u64, u64), item| (count + 1, bytes + item.bytes.len() as u64))
}

impl LoadedSession {
    /// Reads and folds the new records of the log in `dir`, which may have been renamed. Returns
    /// `None` if the log does not continue from the known end, or the new records cannot be folded:
    /// then read the log from its beginning.
    pub(super) fn read_new_records(
        self,
        storage: &Arc<dyn Storage>,
        dir: &FilePath,
        types: Option<&SessionTypes>,
    ) -> Result<Option<LoadedSession>> {
        let Some(passed) = self.scan.passed_image() else { return Ok(None) };
        let mut scanner = Scanner::new(storage.as_ref(), dir)?;
        if scanner.go_on_from(&passed)?.is_none() {
            return Ok(None);
        }
        let objects = Objects::new(Arc::clone(storage), dir);
        let mut folding =
            Fold { folded: self.folded, sources: FoldSources { objects: &objects, types }, failed: false };
        let scan = scanner.run(&mut |at| {
            let record = at.record();
            if !record.kind.is_envelope() {
                folding.fold(&record);
            }
            Ok(())
        })?;
        let Fold { folded, failed, .. } = folding;
        Ok((!failed).then_some(LoadedSession { scan, folded, ..self }))
    }

    pub(crate) fn places(&self) -> RecordLocator {
        self.scan.places()
    }
}

/// Cuts the log before the first record with a missing object that is not known to be durable. Such
/// a record may have reached the disk before its object, and is then a torn tail, like a
/// half-written record.
fn leave_out_records_without_objects(
    storage: &Arc<dyn Storage>,
    scan: &mut LogScan,
    objects: &Objects,
) -> Result<()> {
    if scan.same_boot {
        return Ok(());
    }
    let mut first_bad = None;
    scan.places().read(storage, scan.watermark, SequenceNumber::MAX, &mut |record| {
        let missing = record
            .objects()
            .iter()
            .any(|object| matches!(objects.check_object(object), Err(Error::Object { .. })));
        if missing && first_bad.is_none() {
            first_bad = Some(record.sequence);
        }
        Ok(())
    })?;
    if let Some(sequence) = first_bad {
        let located = scan.places().locate(storage, sequence)?;
        let segment = scan.segments.get(located.segment).map(|segment| segment.path.clone());
        let bytes = scan.torn.as_ref().map_or(0, |torn| torn.bytes) + scan.end.saturating_sub(located.offset);
        let segment = segment.unwrap_or_default();
        scan.torn = Some(TornTail { segment, offset: located.offset, sequence, bytes });
        scan.next_sequence = sequence;
        scan.rollbacks.split_off(&sequence);
        scan.index.cut_at(sequence);
        (scan.clean, scan.closed) = (false, false);
    }
    Ok(())
}

/// Returns the first open operation of the session in `dir` that may make changes, from its log
/// only. Returns `None` also for a directory without this session.
pub(crate) fn left_open(
    ground: ReadGround<'_>,
    dir: &FilePath,
    session: Uuid,
) -> Result<Option<OpenOperation>> {
    let storage = ground.storage;
    let LoadedSession { scan, folded, .. } = match open_read(ground, dir, None, LogSlices::InLog) {
        Ok(read) => read,
        Err(Error::NotASession { .. }) => return Ok(None),
        // The session may have been deleted while it was read.
        Err(_) if matches!(storage.entry(dir), Ok(None)) => return Ok(None),
        Err(error) => return Err(error),
    };
    if scan.session != session {
        return Ok(None);
    }
    if let Some((sequence, kind)) = folded.projection.unsupported {
        return Err(Error::UnsupportedKind { sequence, kind });
    }
    Ok(folded.projection.operations.changing_operation().cloned())
}

/// Opens the session in `dir` without writing.
pub(crate) fn open(store: &Arc<OpenStore>, dir: &FilePath, open_as: OpenAs) -> Result<Session> {
    let read =
        open_read(ReadGround::from_options(&store.options), dir, open_as.types.as_ref(), LogSlices::InLog)?;
    open_as_read(store, dir, open_as, read)
}

/// Opens the session in `dir` for previews of rewinds, without writing: with only the names of
/// STATE's items.
pub(crate) fn open_to_preview(store: &Arc<OpenStore>, dir: &FilePath, open_as: OpenAs) -> Result<Session> {
    let read = open_read(ReadGround::from_options(&store.options), dir, None, LogSlices::StateUnread)?;
    open_as_read(store, dir, open_as, read)
}

/// Person that took a session over, and the reason.
#[derive(Clone, Copy)]
pub(crate) struct TakeoverNote<'a> {
    pub(crate) by: &'a str,
    pub(crate) reason: &'a str,
}

/// Opens the session in `dir`, which this process has claimed and rebuilt from the store's
/// replicator. `made` is the log as it was read back; `note` names the person of a manual takeover.
pub(crate) fn open_claimed(
    store: &Arc<OpenStore>,
    dir: &FilePath,
    mut open_as: OpenAs,
    made: MadeLog,
    claim: ReplicaClaim,
    note: Option<TakeoverNote<'_>>,
) -> Result<Session> {
    let read = made.read_on(ReadGround::from_options(&store.options), dir, open_as.types.as_ref())?;
    let session = read.scan.session;
    lock_directory(dir, &mut open_as, session)?;
    let replica = replica_from_claim(store, session, dir, claim);
    let session = open_beside(store, dir, open_as, read, replica)?;
    if let Some(TakeoverNote { by, reason }) = note {
        session.inner.note_takeover(by, reason)?;
    }
    Ok(session)
}

/// Opens the session in `dir` from the result of reading it. Writes only if the store has a
/// replicator: lost records are fetched from it, and the log records that the session is
/// replicated.
pub(crate) fn open_as_read(
    store: &Arc<OpenStore>,
    dir: &FilePath,
    mut open_as: OpenAs,
    read: LoadedSession,
) -> Result<Session> {
    if let Some(types) = &open_as.types {
        check_declared(types, &read.folded.projection.names)?;
    }
    lock_directory(dir, &mut open_as, read.scan.session)?;
    let (read, replica) = claim(store, dir, &open_as, read)?;
    open_beside(store, dir, open_as, read, replica)
}

fn lock_directory(dir: &FilePath, open_as: &mut OpenAs, session: Uuid) -> Result<()> {
    open_as.lock.as_mut().map_or(Ok(()), |lock| lock.lock_directory(dir, session))
}

/// Creates the session from the result of reading it, with its replica.
fn open_beside(
    store: &Arc<OpenStore>,
    dir: &FilePath,
    open_as: OpenAs,
    read: LoadedSession,
    replica: Option<Replica>,
) -> Result<Session> {
    if let Some(types) = &open_as.types {
        check_declared(types, &read.folded.projection.names)?;
    }
    if open_as.lock.is_some() {
        child_captures::bring_home(store, dir, &read.scan.opened)?;
    }
    let options = &store.options;
    let exposed = exposure::find(options.storage.as_ref(), dir, options.access);
    let report = RecoveryReport { exposed, ..RecoveryReport::of_read(&read) };
    let LoadedSession { scan, mut folded, images, .. } = read;
    // The memory limit does not apply while the session is written.
    folded.watch = None;
    // A read-only handle does not recover: the operations may be running in another process.
    let interrupted = !report.interrupted.is_empty() && open_as.lock.is_some();
    show_state_before_open_calls(&mut folded);
    // A fork attests its shared records before its directory has its name; until it attests a new
    // record, a power cut may still remove the whole directory.
    let own = scan.durable > scan.opened_sequence;
    let gate = SyncGate::new(if own { scan.durable.min(scan.next_sequence) } else { SequenceNumber::MIN });
    let (openings, closed) = (scan.openings.clone(), scan.closed);
    let opened_at = scan.segments.last().map_or(0, |last| last.header.ordinal);
    let log = LogWriter::open(&store.log_environment(), dir, scan);
    let mut state = WriterState {
        imaged: images.image_status(opened_at, closed),
        interrupted,
        ..WriterState::new(log, folded, openings)
    };
    state.log.interrupted_calls = report.interrupted.len() as u64;
    let session = assemble(store, dir, open_as, report, gate, state, Mode::Live, replica)?;
    session.inner.note_replica()?;
    session.inner.note_dropped()?;
    Ok(session)
}

/// A part of a recorded log over which a host runs again.
pub(crate) struct RecordedPart {
    /// State after the last record before the part.
    pub(crate) live: LiveState,
    /// `SessionOpening` records of the session and its ancestors, each with its sequence number.
    pub(crate) openings: Vec<(SequenceNumber, SessionOpening)>,
    pub(crate) recording: ReplayLog,
    /// Places of the records before the part.
    pub(crate) places: RecordLocator,
}

/// Opens a session that replays a recorded part without writing.
pub(crate) fn open_recorded(
    store: &Arc<OpenStore>,
    dir: &FilePath,
    types: SessionTypes,
    part: RecordedPart,
) -> Result<Session> {
    let RecordedPart { mut live, openings, recording, places } = part;
    let mode = Mode::Replay(Box::new(ReplayCursor::new(recording)?));
    let report = RecoveryReport {
        interrupted: live.projection.operations.open().cloned().collect(),
        unsettled: live.projection.operations.unsettled().cloned().collect(),
        records: places.next_sequence.get(),
        ..RecoveryReport::default()
    };
    show_state_before_open_calls(&mut live);
    let identity = openings.last().map(|(_, opened)| LogIdentity::from_opening(opened)).unwrap_or_default();
    let log = LogWriter::from_recorded(&store.log_environment(), dir, identity, places);
    let state =
        WriterState { interrupted: !report.interrupted.is_empty(), ..WriterState::new(log, live, openings) };
    let durability = Durability::Process;
    let open_as = OpenAs { types: Some(types), durability, lock: None, read_only: None };
    assemble(store, dir, open_as, report, SyncGate::new(SequenceNumber::MAX), state, mode, None)
}

/// Shows STATE as it was before the first open call that may have changed it.
fn show_state_before_open_calls(folded: &mut LiveState) {
    folded.positions.before_change(&folded.projection);
    if let Some(begin) = folded.projection.operations.changing_operation().map(|open| open.begin)
        && let Some(frozen) = folded.positions.get(begin)
    {
        folded.projection.show_state_at(begin, &frozen);
    }
}

/// Starts a new session in the new log `log`. The first record is written at once, so that every
/// process sees the session; the records `rest` follow it.
pub(crate) fn begin(
    store: &Arc<OpenStore>,
    dir: &FilePath,
    seed: SessionSeed,
    log: LogWriter,
    rest: Vec<(RecordKind, Vec<u8>)>,
) -> Result<Session> {
    let (id, body) = (seed.opened.session, seed.opened.encode());
    let openings = vec![(SequenceNumber::MIN, seed.opened)];
    let state = WriterState::new(log, LiveState::new(LogSlices::InLog), openings);
    let report = RecoveryReport { closed: true, ..RecoveryReport::default() };
    let mut open_as = OpenAs {
        types: Some(seed.types),
        durability: seed.durability,
        lock: Some(seed.lock),
        read_only: None,
    };
    lock_directory(dir, &mut open_as, id)?;
    let replica = claim_new(store, dir, id)?;
    let note = replica.as_ref().map(|replica| (RecordKind::Replicated, replica.note().encode()));
    let session = assemble(
        store,
        dir,
        open_as,
        report,
        SyncGate::new(SequenceNumber::MIN),
        state,
        Mode::Live,
        replica,
    )?;
    let time_us = session.inner.now_us();
    let opened = (RecordKind::Opened, body);
    let records: Result<Vec<PendingRecord<'_>>> = std::iter::once(&opened)
        .chain(&rest)
        .chain(&note)
        .zip(0..)
        .map(|((kind, body), sequence)| {
            let record = Record { sequence: SequenceNumber::new(sequence), kind: *kind, time_us, body };
            Ok(PendingRecord::new(*kind, body, RecordBody::decode(&record)?))
        })
        .collect();
    let records = records?;
    let state = session.writable(WriteScope::State)?;
    session.inner.write(state, time_us, records)?;
    Ok(session)
}

#[expect(clippy::too_many_arguments, reason = "each part is made by a different caller")]
fn assemble(
    store: &Arc<OpenStore>,
    dir: &FilePath,
    open_as: OpenAs,
    report: RecoveryReport,
    gate: SyncGate<Error>,
    state: WriterState,
    mode: Mode,
    replica: Option<Replica>,
) -> Result<Session> {
    let id = state.opening_record().session;
    let clock = match &mode {
        Mode::Live => Arc::clone(&store.options.clock),
        Mode::Replay(cursor) => cursor.clock(),
    };
    let inner = Arc::new(SessionInner {
        id,
        dir: dir.to_owned(),
        store: Arc::clone(store),
        types: open_as.types,
        durability: open_as.durability,
        read_only: open_as.read_only,
        report,
        state: Mutex::new(state),
        schedule: ChangeNotifier::default(),
        recovering: Mutex::default(),
        taking: Mutex::default(),
        gate,
        replica,
        said_dropped: OnceLock::new(),
        subscribers: super::subscribers::Subscribers::default(),
        lock: Mutex::new(open_as.lock),
        imaging: Mutex::default(),
        captured: Mutex::default(),
        process: process_mark(),
        clock,
        mode,
    });
    if let Some(replica) = &inner.replica {
        replica.start(Arc::downgrade(&inner));
        if replica.replicated_end() < inner.gate.synced_end() {
            replica.wake();
        }
    }
    let session = Session::from_inner(inner);
    // A read-only handle must not be registered as the writer, or the writer's records would not be
    // synced.
    if session.inner.lock.lock().is_some() {
        store.writers.register(&session);
    }
    Ok(session)
}

/// Checks the declarations of the log against the types of the host.
pub(crate) fn check_declared(types: &SessionTypes, names: &DeclaredNames) -> Result<()> {
    for slice in names.slices() {
        let declared = types.slice(&slice.name).map(|slice| slice.policy);
        if let Some(declared) = declared.filter(|declared| *declared != slice.policy) {
            let (slice, recorded) = (slice.name.clone(), slice.policy);
            return Err(Error::PolicyMismatch { slice, declared, recorded });
        }
    }
    let unregistered = types.unregistered_events(names);
    if !unregistered.is_empty() {
        return Err(Error::NotRegistered(unregistered));
    }
    for event in names.events().filter(|event| !event.implicit) {
        let host = types.event(&event.name);
        if let Some(host) = host.filter(|host| host.version < event.version) {
            let (name, stored) = (event.name.clone(), event.version);
            return Err(Error::NewerVersion { name, stored, supported: host.version });
        }
    }
    Ok(())
}

/// Locks a session for writing.
///
/// # Errors
///
/// [`Error::ReadOnly`] if it can only be read; otherwise the errors of [`lock_or_read_only`].
pub(crate) fn lock_to_write(store: &OpenStore, session: Uuid) -> Result<WriterLock> {
    let (lock, read_only) = lock_or_read_only(store, session)?;
    lock.ok_or_else(|| Error::ReadOnly { session, reason: read_only.unwrap_or_default() })
}

/// Locks a session, or returns the reason why it can only be read.
pub(crate) fn lock_or_read_only(
    store: &OpenStore,
    session: Uuid,
) -> Result<(Option<WriterLock>, Option<String>)> {
    let options = &store.options;
    match lock::take(&options.storage, &store.root, session, options.clock.now_us())? {
        lock::Attempt::Held(lock) => Ok((Some(lock), None)),
        lock::Attempt::ReadOnlyDisk(reason) => Ok((None, Some(reason))),
    }
}

impl WriterState {
    /// Creates the state of a newly opened session, without open operations.
    fn new(log: LogWriter, live: LiveState, openings: Vec<(SequenceNumber, SessionOpening)>) -> WriterState {
        WriterState {
            log,
            live,
            openings,
            imaged: ImageStatus::default(),
            first_unsynced_us: None,
            asked: SyncRequest::default(),
            asked_to_rest: false,
            plans: BTreeMap::new(),
            named_plans: BTreeMap::new(),
            closed: false,
            running_calls: RunningCalls::default(),
            body: Vec::new(),
            interrupted: false,
        }
    }

    /// Returns the `SessionOpening` record of this session, not of an ancestor.
    pub(super) fn opening_record(&self) -> SessionOpening {
        let last = self.openings.last().map(|(_, opened)| opened.clone());
        last.unwrap_or_else(|| SessionOpening {
            session: Uuid::nil(),
            seed: 0,
            tags: BTreeMap::new(),
            parent: None,
        })
    }

    /// Returns the seed that applies to the next record.
    pub(super) fn seed(&self) -> u64 {
        self.openings.last().map_or(0, |(_, opened)| opened.seed)
    }
}

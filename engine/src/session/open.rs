//! Opens a session from its directory: reads and folds the log, and checks it against the host's
//! types.
//!
//! Opening does not write into the session's directory. [`open_read`] scans and folds;
//! [`open_as_read`] builds the session from the result; [`begin`] creates a new one.

use std::path::Path as FilePath;
use std::sync::{Arc, OnceLock};

use foldlog_codec::body::SessionOpening;
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use parking_lot::Mutex;
use uuid::Uuid;

use super::child_captures;
use super::event_plan::EventPlans;
use super::fetch::{claim, claim_new};
use super::image_writing::ImageStatus;
use super::load::{LoadedSession, ReadGround, open_read};
use super::open_store::OpenStore;
use super::rebuilt_log::MadeLog;
use super::recovery_report::RecoveryReport;
use super::replay::ReplayCursor;
use super::replay::recorded_log::ReplayLog;
use super::replica_feed::{Replica, ReplicaClaim};
use super::schedule::{RunningCalls, WriteScope};
use super::sync::SyncRequests;
use super::write::{Mode, PendingRecord};
use super::{Handles, Session, SessionInner, WriterState};
use crate::error::{Error, Result};
use crate::fold::live::LiveState;
use crate::fold::projection::LogSlices;
use crate::fold::record_kinds::RecordBody;
use crate::log::exposure;
use crate::log::lock::{self, WriterLock};
use crate::log::publish::SyncGate;
use crate::log::reader::RecordLocator;
use crate::log::writer::{LogIdentity, LogWriter};
use crate::names::DeclaredNames;
use crate::operation::OpenOperation;
use crate::options::Durability;
use crate::storage::process_mark;
use crate::types::SessionTypes;
use crate::wakeups::ChangeNotifier;

pub(crate) struct OpenAs {
    pub(crate) types: Option<SessionTypes>,
    pub(crate) durability: Durability,
    pub(crate) lock: Option<WriterLock>,
    pub(crate) read_only: Option<String>,
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
    let replication = store.options.replication.as_ref();
    let replica = replication.map(|replication| Replica::from_claim(replication, session, dir, claim));
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
        imaged: ImageStatus::new(&images, opened_at, closed),
        interrupted,
        ..WriterState::new(log, folded, openings)
    };
    state.log.interrupted_calls = report.interrupted.len() as u64;
    let session = assemble(store, dir, open_as, report, gate, state, Mode::Live, replica);
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
    Ok(assemble(store, dir, open_as, report, SyncGate::new(SequenceNumber::MAX), state, mode, None))
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
    opened: SessionOpening,
    mut open_as: OpenAs,
    log: LogWriter,
    rest: Vec<(RecordKind, Vec<u8>)>,
) -> Result<Session> {
    let (id, body) = (opened.session, opened.encode());
    let state = WriterState::new(log, LiveState::new(LogSlices::InLog), vec![(SequenceNumber::MIN, opened)]);
    let report = RecoveryReport { closed: true, ..RecoveryReport::default() };
    lock_directory(dir, &mut open_as, id)?;
    let replica = claim_new(store, dir, id)?;
    let note = replica.as_ref().map(|replica| (RecordKind::Replicated, replica.note().encode()));
    let gate = SyncGate::new(SequenceNumber::MIN);
    let session = assemble(store, dir, open_as, report, gate, state, Mode::Live, replica);
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
) -> Session {
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
    let session = Session::with(Arc::new(Handles(inner)));
    // A read-only handle must not be registered as the writer, or the writer's records would not be
    // synced.
    if session.inner.lock.lock().is_some() {
        store.writers.register(&session);
    }
    session
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
            sync_requests: SyncRequests::default(),
            plans: EventPlans::default(),
            closed: false,
            running_calls: RunningCalls::default(),
            body: Vec::new(),
            interrupted: false,
        }
    }

    /// Returns the `SessionOpening` record of this session, not of an ancestor.
    pub(super) fn opening_record(&self) -> SessionOpening {
        self.openings.last().map(|(_, opened)| opened.clone()).unwrap_or_default()
    }

    /// Returns the sequence number of the session's own `Opened` record, not of an ancestor's.
    pub(super) fn opened_sequence(&self) -> SequenceNumber {
        self.openings.last().map_or(SequenceNumber::MIN, |(sequence, _)| *sequence)
    }

    /// Returns the number by which records name a slice; 0 if none declares it.
    pub(super) fn slice_id(&self, name: &str) -> u32 {
        self.live.projection.names.slice_named(name).map_or(0, |slice| slice.id)
    }

    pub(super) fn seed(&self) -> u64 {
        self.openings.last().map_or(0, |(_, opened)| opened.seed)
    }
}

//! Compares a session that is opened for writing with the store's replicator, and fetches missing
//! records from there.
//!
//! # Rules
//!
//! 1. A store without a replicator opens no replicated session for writing ([`Error::Replicated`]),
//!    unless the store's options allow it.
//! 2. If the replicator's newest claim is older than the one in the log, the replicator uses a
//!    different place, or its place has lost the session ([`Error::ReplicaElsewhere`]). A claim
//!    there would give the session two writers, and epochs that start again. The same option allows
//!    it.
//! 3. Records are fetched only if every record that the log lacks was appended under this
//!    replicator's name. The log then lost acknowledged records in a power cut. Records of a
//!    different writer are not fetched ([`Error::ReplicaAhead`]).
//! 4. Fetching starts after the whole log was compared. Fetched records are durable before the
//!    session is claimed. A kill leaves some of them, and the next opening fetches the rest.
//! 5. Records whose bodies were dropped before replication are not appended to an existing log: the
//!    data that they need is at the heads of segments, and is written before the log has its name
//!    ([`crate::log::rebuild`]). Such a log is refused, and can be rebuilt.

use std::path::Path;
use std::sync::Arc;

use foldlog_codec::body::{
    Dropped, DroppedBodies, KnownPositions, ObjectId, Parent, Replicated, SessionOpening,
};
use foldlog_codec::digest::SegmentDigest;
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use uuid::Uuid;

use super::compaction_notice::SaidDropped;
use super::held_captures::{CaptureReceiver, HeldFrom};
use super::load::{LoadedSession, ReadGround, open_read};
use super::open::OpenAs;
use super::open_store::OpenStore;
use super::replica_comparison;
use super::replica_feed::{Replica, read_object, replica_error};
use crate::error::{Error, Result};
use crate::fold::live::{FoldSources, LiveState};
use crate::fold::projection::LogSlices;
use crate::log::reader::RecordLocator;
use crate::log::rebuild::RemadeLog;
use crate::log::writer::{AppendContext, LogEnvironment, LogWriter};
use crate::replication::{HeldPart, ReplicaStatus, Replication, Replicator};
use crate::storage::Storage;
use crate::types::SessionTypes;

/// Maximum number of finished segments that wait for a sync.
const UNSYNCED_FILES_MAX: usize = 16;

/// Maximum number of claims while records of the log's writer still arrive.
const CLAIMS_MAX: u32 = 4;

const BEHIND: &str = "after the records of this log it contains records whose bodies were dropped before they were replicated, or records that \
                      start a fork: these cannot be appended to an existing log. If this copy is only read, or all its records are replicated, \
                      delete it, and pull the session or take it over again";

/// Claims a session that is opened for writing, if the store has a replicator, and first fetches
/// the records that the log has lost. Records that this log's writer sent before it was cut off may
/// arrive between the two. Then the log is compared again, unless a different writer has claimed
/// it.
pub(super) fn claim(
    store: &Arc<OpenStore>,
    dir: &Path,
    open_as: &OpenAs,
    read: LoadedSession,
) -> Result<(LoadedSession, Option<Replica>)> {
    let session = read.scan.session;
    if open_as.lock.is_none() || open_as.read_only.is_some() {
        return Ok((read, None));
    }
    let Some(replication) = &store.options.replication else {
        return match &read.folded.projection.replicated {
            Some(replicated) if !store.options.unreplicated => {
                let (at, by) = (replicated.at.clone(), replicated.by.clone());
                Err(Error::Replicated { session, at, by })
            }
            _ => Ok((read, None)),
        };
    };
    let (mut read, mut late) = (read, None);
    for tries_left in (0..CLAIMS_MAX).rev() {
        let storage = &store.options.storage;
        let compared =
            replica_comparison::compare_to_write(replication, session, storage, &read.scan.places())?;
        let held = &compared.held;
        if let Some((_, fenced)) = late.take_if(|(epoch, _)| *epoch != held.epoch) {
            return Err(fenced);
        }
        if !store.options.unreplicated {
            check_place(replication, session, held, read.folded.projection.replicated.as_deref())?;
        }
        let local = read.scan.next_sequence;
        if held.next > local {
            if held.others_end > local {
                return Err(Error::ReplicaAhead { session, local, held: held.next });
            }
            let (types, before) = (open_as.types.as_ref(), read.fetched);
            read = fetch_behind(store, dir, read, types, replication.replicator.as_ref())?;
            if read.scan.next_sequence != held.next {
                let reason =
                    "another writer appends to the session while it is opened; open it again".to_owned();
                return Err(Error::ReplicaFailed { session, reason });
            }
            read.fetched = before + held.next.since(local);
        }
        match Replica::claim(replication, session, dir, &compared) {
            Err(fenced @ Error::Fenced { .. }) if held.is_ours && tries_left > 0 => {
                late = Some((held.epoch, fenced));
            }
            claimed => return Ok((read, Some(claimed?))),
        }
    }
    Err(Error::ReplicaFailed { session, reason: "another writer keeps appending to the session".to_owned() })
}

/// Fails if the replicator's newest claim is older than the one in the session's log.
fn check_place(
    replication: &Replication,
    session: Uuid,
    held: &ReplicaStatus,
    named: Option<&Replicated>,
) -> Result<()> {
    match named.filter(|named| held.epoch < named.epoch) {
        Some(Replicated { at, by, epoch }) => Err(Error::ReplicaElsewhere {
            session,
            at: at.clone(),
            by: by.clone(),
            epoch: *epoch,
            here: replication.replicator.place(),
            held: held.epoch,
        }),
        None => Ok(()),
    }
}

/// Appends the replicator's records that the log in `dir` lacks, makes them durable, and reads the
/// log again, since the fetched records were not folded. `read` is the result of reading the log
/// before.
fn fetch_behind(
    store: &Arc<OpenStore>,
    dir: &Path,
    read: LoadedSession,
    types: Option<&SessionTypes>,
    replicator: &dyn Replicator,
) -> Result<LoadedSession> {
    let (session, storage) = (read.scan.session, &store.options.storage);
    let log = LogWriter::open(&store.log_environment(), dir, read.scan);
    let mut fetch = Fetch::new(session, dir, replicator, storage);
    fetch.live = Some((RemadeLog::from_log(log, dir), read.folded));
    let end = fetch.read()?.next;
    let mut log = fetch.finish()?;
    log.attest(end)?;
    log.sync_plan().run(storage.as_ref(), &|| ())?;
    open_read(ReadGround::from_options(&store.options), dir, types, LogSlices::InLog)
}

/// Updates a local copy of a session from the store's replicator, under the session's lock. Returns
/// the number of records in the copy before and after. The session is not claimed. Records that the
/// replicator lacks remain.
pub(crate) fn pull(
    store: &Arc<OpenStore>,
    dir: &Path,
    session: Uuid,
) -> Result<(SequenceNumber, SequenceNumber)> {
    let storage = &store.options.storage;
    let read = open_read(ReadGround::from_options(&store.options), dir, None, LogSlices::InLog)?;
    let local = read.scan.next_sequence;
    let Some(replication) = &store.options.replication else { return Ok((local, local)) };
    let held = replica_comparison::compare(replication, session, storage, &read.scan.places())?.held;
    let end = match held.next > local {
        true => fetch_behind(store, dir, read, None, replication.replicator.as_ref())?.scan.next_sequence,
        false => local,
    };
    Ok((local, end))
}

/// Claims a new session. The store's replicator, if there is one, must not have any of its records.
pub(super) fn claim_new(store: &Arc<OpenStore>, dir: &Path, session: Uuid) -> Result<Option<Replica>> {
    let Some(replication) = &store.options.replication else { return Ok(None) };
    let compared = replica_comparison::compare_to_write(
        replication,
        session,
        &store.options.storage,
        &RecordLocator::default(),
    )?;
    match compared.held.next {
        SequenceNumber::MIN => Replica::claim(replication, session, dir, &compared).map(Some),
        held => Err(Error::ReplicaAhead { session, local: SequenceNumber::MIN, held }),
    }
}

/// Appends a replicator's records to a log, each with its sequence number, time and body, after the
/// payloads that it names.
///
/// A new log is folded meanwhile, so that a record that contradicts earlier ones is reported. For
/// an existing log only the names are followed, since a rollback may lead to a position that its
/// fold did not retain; it is read again afterwards.
///
/// A record is appended once the next one is available: the last record that a fork shares with its
/// parent starts a segment. If that is the `opened` record of a different fork, it starts one
/// anyway.
pub(crate) struct Fetch<'a> {
    session: Uuid,
    dir: &'a Path,
    replicator: &'a dyn Replicator,
    storage: &'a Arc<dyn Storage>,
    /// The log, and its fold; `None` before the first record of a new one.
    live: Option<(RemadeLog, LiveState)>,
    /// Environment of a new log; `None` for an existing one.
    ground: Option<&'a LogEnvironment>,
    /// Whether a new log was settled, and is appended to since.
    is_settled: bool,
    /// The last record that was read, if it is not appended yet.
    last: Option<(SequenceNumber, RecordKind, i64)>,
    /// Body of that record.
    body: Vec<u8>,
    /// Creates the files that captures need. They are durable before the records that name them.
    captures: CaptureReceiver,
    is_child: bool,
    /// Object with the last known positions that were read.
    known: Option<ObjectId>,
}

/// Extent of a session's replica when it was read.
#[derive(Clone, Debug)]
pub(crate) struct ReplicaExtent {
    /// Sequence number after the last replicated record.
    pub(crate) next: SequenceNumber,
    /// Sequence number from which on, to the end, all captures are replicated.
    pub(crate) captures_from: SequenceNumber,
    /// Newest record of bodies that compactions have dropped.
    pub(crate) said_dropped: Option<Arc<DroppedBodies>>,
}

impl Drop for Fetch<'_> {
    /// Stops writes in the directory of a new log that was not finished and is about to be removed.
    fn drop(&mut self) {
        if let (Some((log, _)), Some(_)) = (&self.live, self.ground) {
            log.log.abandon();
        }
    }
}

impl<'a> Fetch<'a> {
    pub(crate) fn with_new_log(
        session: Uuid,
        dir: &'a Path,
        replicator: &'a dyn Replicator,
        ground: &'a LogEnvironment,
    ) -> Fetch<'a> {
        let mut fetch = Fetch::new(session, dir, replicator, &ground.storage);
        fetch.ground = Some(ground);
        fetch
    }

    fn new(
        session: Uuid,
        dir: &'a Path,
        replicator: &'a dyn Replicator,
        storage: &'a Arc<dyn Storage>,
    ) -> Fetch<'a> {
        Fetch {
            session,
            dir,
            replicator,
            storage,
            live: None,
            ground: None,
            is_settled: false,
            last: None,
            body: Vec::new(),
            captures: CaptureReceiver::new(dir),
            is_child: false,
            known: None,
        }
    }

    /// Reads all replicated records, appends those that the log lacks, and returns the extent of
    /// the log.
    ///
    /// # Errors
    ///
    /// [`Error::ReplicaFailed`] if the replicator cannot be read, has records that form no log, or
    /// has fewer records than the log; errors of the log, and of the directory of captures.
    pub(crate) fn read(&mut self) -> Result<ReplicaExtent> {
        let mut result = Ok(());
        let (mut from, mut said) = (HeldFrom::default(), SaidDropped::default());
        let replicator = self.replicator;
        let read = replicator.read(self.session, &mut |part| {
            from.see(&part);
            if let HeldPart::Record(record) = &part {
                said.see(record);
            }
            if result.is_ok() {
                result = self.take(part);
            }
        });
        let ReplicaStatus { next, .. } = read.map_err(|error| replica_error(self.session, error))?;
        result?;
        self.append_last(false)?;
        if next != self.next() {
            return Err(self.fetch_error("it contains fewer records than before"));
        }
        let said_dropped = said.read(self.session, replicator)?;
        Ok(ReplicaExtent { next, captures_from: from.from(), said_dropped })
    }

    fn take(&mut self, part: HeldPart<'_>) -> Result<()> {
        match part {
            HeldPart::Captures { next, captures } if next > self.next() => {
                let records = self.next()..next;
                self.captures.take(self.session, self.replicator, records, captures)?;
                // A power cut may leave any part of an existing log; a new one has no name yet.
                if self.can_append() { self.captures.sync() } else { Ok(()) }
            }
            HeldPart::Record(record) if record.sequence >= self.next() => {
                self.append_last(record.kind == RecordKind::Opened)?;
                self.last = Some((record.sequence, record.kind, record.time_us));
                self.body.clear();
                self.body.extend_from_slice(record.body);
                Ok(())
            }
            HeldPart::Captures { .. } | HeldPart::Record(_) => Ok(()),
        }
    }

    /// Checks that the records read so far form a log of the session.
    ///
    /// # Errors
    ///
    /// [`Error::ReplicaFailed`].
    pub(crate) fn check(&self) -> Result<()> {
        let nothing = || self.fetch_error("it contains no records of that session");
        let (log, _) = self.live.as_ref().ok_or_else(nothing)?;
        if log.session().is_some_and(|session| session != self.session) {
            return Err(self.fetch_error("its records belong to another session"));
        }
        log.check().map_err(|reason| self.fetch_error(reason))
    }

    /// Makes a log of the records read so far that can be read back from its directory, once. Later
    /// records are appended to it. Its segments may not be sealed yet.
    ///
    /// # Errors
    ///
    /// The errors of [`check`](Fetch::check), and errors of writing the log.
    pub(crate) fn settle(&mut self) -> Result<()> {
        self.check()?;
        if self.ground.is_some() && !self.is_child {
            self.captures.remember_collected()?;
        }
        self.captures.sync()?;
        if self.is_settled {
            return Ok(());
        }
        let nothing = self.fetch_error("it contains no records of that session");
        let Some((log, live)) = self.live.take() else { return Err(nothing) };
        let names = &live.projection.names;
        let context = AppendContext { synced: SequenceNumber::MIN, declared: &|| names.all() };
        let log = log.finish(&context)?;
        self.live = Some((RemadeLog::from_log(log, self.dir), live));
        self.is_settled = true;
        self.sync()
    }

    /// Seals the finished segments of a settled log with the digests of their records, computed by
    /// reading them back.
    pub(crate) fn seal(&mut self, digests: &[(u32, SegmentDigest)]) -> Result<()> {
        self.live.as_mut().map_or(Ok(()), |(log, _)| log.log.seal_digested(digests))
    }

    fn sync(&mut self) -> Result<()> {
        let storage = self.storage.as_ref();
        self.live.as_mut().map_or(Ok(()), |(log, _)| log.log.sync_plan().run(storage, &|| ()))
    }

    /// Makes the appended records durable, and returns the log. Its name may still be a temporary
    /// one.
    pub(crate) fn finish(mut self) -> Result<LogWriter> {
        self.settle()?;
        let nothing = self.fetch_error("it contains no records of that session");
        let Some((mut log, _)) = self.live.take() else { return Err(nothing) };
        log.log.finish()?;
        log.log.sync_plan().run(self.storage.as_ref(), &|| ())?;
        Ok(log.log)
    }

    /// Returns the sequence number after the last record that was read.
    fn next(&self) -> SequenceNumber {
        let appended = || self.live.as_ref().map_or(SequenceNumber::MIN, |(log, _)| log.log.next_sequence());
        self.last.map_or_else(appended, |(sequence, ..)| sequence + 1)
    }

    /// Returns whether records are appended to a log that can be read back.
    fn can_append(&self) -> bool {
        self.ground.is_none() || self.is_settled
    }

    fn fetch_error(&self, reason: &str) -> Error {
        Error::ReplicaFailed { session: self.session, reason: reason.to_owned() }
    }

    /// Appends the last record that was read, as the first one of a segment if a fork follows it.
    fn append_last(&mut self, begins_segment: bool) -> Result<()> {
        let Some((sequence, kind, time_us)) = self.last.take() else { return Ok(()) };
        let body = std::mem::take(&mut self.body);
        let appended = self.append(&Record { sequence, kind, time_us, body: &body }, begins_segment);
        self.body = body;
        appended
    }

    fn append(&mut self, record: &Record<'_>, begins_segment: bool) -> Result<()> {
        if self.live.is_none() {
            self.live = Some(self.begin_log(record)?);
        } else if self.can_append() && matches!(record.kind, RecordKind::Opened | RecordKind::Dropped) {
            return Err(self.fetch_error(BEHIND));
        }
        let known = self.known_beside(record)?;
        let other = self.fetch_error("the bytes of a payload do not match its name");
        let (session, replicator) = (self.session, self.replicator);
        let refused = |reason: &str| Error::ReplicaFailed { session, reason: reason.to_owned() };
        let Some((log, live)) = &mut self.live else { return Ok(()) };
        for object in record.objects() {
            let bytes = replicator.get_object(session, object);
            let put = log.log.objects.put(&bytes.map_err(|error| replica_error(session, error))?)?;
            if put != object {
                return Err(other);
            }
        }
        if self.ground.is_some() {
            self.captures.see(record, &log.log.objects)?;
        }
        let names = &live.projection.names;
        let context = AppendContext { synced: SequenceNumber::MIN, declared: &|| names.all() };
        // A fork's first record starts a segment of the fork: one more before it would be empty.
        if begins_segment && record.kind != RecordKind::Opened {
            log.begin_segment(record.body.len(), record.time_us, &context)?;
        }
        log.append(record, known, &context)?.map_err(refused)?;
        match log.is_new() {
            true => live.apply_record(record, FoldSources { objects: &log.log.objects, types: None })?,
            false => live.projection.pass_over(record)?,
        }
        if log.log.unsynced_files() >= UNSYNCED_FILES_MAX {
            log.log.sync_plan().run(self.storage.as_ref(), &|| ())?;
        }
        Ok(())
    }

    /// Returns the known positions of slices that a dropped record names.
    fn known_beside(&mut self, record: &Record<'_>) -> Result<Option<KnownPositions>> {
        if record.kind != RecordKind::Dropped {
            return Ok(None);
        }
        let Some(object) = Dropped::decode_known(record.body)? else { return Ok(None) };
        // Each range of a compacted part names the same object.
        if self.known.replace(object) == Some(object) {
            return Ok(None);
        }
        let bytes = read_object(self.replicator, self.session, object)?;
        Ok(Some(KnownPositions::decode(&bytes)?))
    }

    fn begin_log(&mut self, record: &Record<'_>) -> Result<(RemadeLog, LiveState)> {
        if record.kind != RecordKind::Opened {
            return Err(self.fetch_error("its first record does not start a session"));
        }
        let opened = SessionOpening::decode(record.body)?;
        let ground = self.ground.ok_or_else(|| self.fetch_error(BEHIND))?;
        self.is_child = matches!(opened.parent, Some(Parent::Child { .. }));
        Ok((RemadeLog::new(ground, self.dir, &opened), LiveState::new(LogSlices::Outline)))
    }
}

//! Takeover: a local session made of what the store's replicator holds, and from then on written here.
//!
//! 1. The session is claimed, so that its writer, wherever it is, gets nothing acknowledged any more that it begins from here on.
//! 2. What the replicator holds, which does not grow any more, is written into a folder with a temporary name: each record with
//!    its sequence number, time and body, and the payloads that the records name, before them. It is folded meanwhile, read once
//!    more as an audit reads, and only then renamed.
//! 3. The session is opened as after any crash: a call that the other worker left open is recovered here.
//!
//! A kill leaves a folder with a temporary name at most, which the next takeover removes, and a claim that nobody writes under.
//!
//! Not yet: sessions that were forked, salvaged or compacted, whose logs are no plain sequence of records, are refused. Captures
//! of workspaces are not held: a call that was left open on a workspace is recovered only with the captures of the lost machine, the
//! folder `files` of its session.

use std::path::Path;
use std::sync::Arc;

use foldlog_codec::body::Opened;
use foldlog_codec::{Kind, Record, SequenceNumber};
use uuid::Uuid;

use super::Store;
use crate::audit::LogReader;
use crate::error::{Error, Result};
use crate::fold::live::{LiveState, Sources};
use crate::fold::projection::LogSlices;
use crate::log::layout;
use crate::log::partial_creation::PartialCreation;
use crate::log::writer::{AppendContext, Body, Log};
use crate::replication::{Held, ReplicaError, Replicator};
use crate::session::{Session, lock_or_read_only, replica_error};
use crate::types::SessionTypes;

/// How often a claim is put while the other writer appends.
const CLAIMS_MAX: u32 = 20;

/// Number of finished segments that wait for a sync at most.
const UNSYNCED_FILES_MAX: usize = 16;

const FORKED: &str = "a session that was forked or salvaged cannot be taken over yet";

impl Store {
    /// Takes a session over that the store's [replicator](crate::replication) holds and this store does not have: fences its
    /// writer, makes a local session of what is held, and opens it. What the other writer had acknowledged is there.
    ///
    /// # Errors
    ///
    /// - [`Error::ReplicaFailed`] if the store has no replicator, the replicator cannot be asked or holds nothing of the session, a
    ///   payload is missing, or the session is one that cannot be taken over yet: a fork, a salvaged session, or a compacted one.
    /// - [`Error::SessionExists`] if this store has the session: open it instead.
    /// - [`Error::Fenced`] or [`Error::ReplicaUnknown`] if somebody else claimed it meanwhile, or nobody knows who did.
    /// - Those of [`create_with`](Store::create_with) and [`open_session`](Store::open_session). No session is left behind
    ///   unless opening fails.
    pub fn take_over(&self, session: Uuid, types: &SessionTypes) -> Result<Session> {
        let Some(replication) = &self.inner.options.replication else {
            let reason = "the store has no replicator".to_owned();
            return Err(Error::ReplicaFailed { session, reason });
        };
        let replicator = Arc::clone(&replication.replicator);
        {
            let (lock, read_only) = lock_or_read_only(&self.inner, session)?;
            let Some(_lock) = lock else {
                return Err(Error::ReadOnly { session, reason: read_only.unwrap_or_default() });
            };
            // What a crash left before a first record is left to `create_with`.
            let dir = self.session_dir(session);
            if self.storage().entry(&dir).map_err(|error| Error::io("look up", &dir, error))?.is_some() {
                return Err(Error::SessionExists { session });
            }
            let (epoch, held) = self.claim(session, replicator.as_ref())?;
            let building = layout::building_session_dir(&self.inner.root, session);
            let built = self.build(session, replicator.as_ref(), &building, held);
            replicator.release(session, epoch);
            if built.is_err() {
                // Nobody was told of the session, so nothing of it is to stay.
                let _ = self.storage().remove_dir_all(&building);
            }
            built?;
        }
        self.open_session(session, types)
    }

    /// Claims the session and returns the epoch, and how far its records go.
    fn claim(&self, session: Uuid, replicator: &dyn Replicator) -> Result<(u64, SequenceNumber)> {
        let mut last =
            ReplicaError::Failed { reason: "its writer appends faster than it can be claimed".to_owned() };
        for _ in 0..CLAIMS_MAX {
            let Held { next, .. } =
                replicator.read(session, &mut |_| ()).map_err(|error| replica_error(session, error))?;
            if next == 0 {
                let reason =
                    "it holds nothing of that session: its id, or where the replicator looks, is another one";
                return Err(Error::ReplicaFailed { session, reason: reason.to_owned() });
            }
            match replicator.claim(session, next) {
                Ok(epoch) => return Ok((epoch, next)),
                // Its writer appended, or somebody else claimed: what is held now says which.
                Err(error @ ReplicaError::Fenced { .. }) => last = error,
                Err(error) => return Err(replica_error(session, error)),
            }
        }
        Err(replica_error(session, last))
    }

    /// Writes what is held into a folder, and gives it the session's name.
    fn build(
        &self,
        session: Uuid,
        replicator: &dyn Replicator,
        building: &Path,
        held: SequenceNumber,
    ) -> Result<()> {
        let storage = self.storage();
        self.make_building(building)?;
        let mut rebuilt = Rebuilt { store: self, session, replicator, building, live: None, result: Ok(()) };
        replicator
            .read(session, &mut |record| rebuilt.take(record))
            .map_err(|error| replica_error(session, error))?;
        rebuilt.result?;
        let Some((mut log, _)) = rebuilt.live.filter(|(log, _)| log.next_sequence() == held) else {
            let reason = "it holds other records than it did when the session was claimed".to_owned();
            return Err(Error::ReplicaFailed { session, reason });
        };
        log.finish()?;
        log.sync_plan().run(storage.as_ref(), &|| ())?;
        LogReader::open_on(Arc::clone(storage), building)?.check_seals()?;
        self.name_building(building, &self.session_dir(session), &mut log)
    }
}

/// Holds a log that is made of records which arrive one by one.
struct Rebuilt<'a> {
    store: &'a Store,
    session: Uuid,
    replicator: &'a dyn Replicator,
    building: &'a Path,
    /// The log, and what its records amount to; `None` before the first.
    live: Option<(Log, LiveState)>,
    /// The first error; nothing is taken behind it.
    result: Result<()>,
}

impl Rebuilt<'_> {
    fn take(&mut self, record: &Record<'_>) {
        if self.result.is_ok() {
            self.result = self.append(record);
        }
    }

    fn append(&mut self, record: &Record<'_>) -> Result<()> {
        let session = self.session;
        let refused = |reason: &str| Error::ReplicaFailed { session, reason: reason.to_owned() };
        if record.kind == Kind::DROPPED {
            return Err(refused("a compacted session cannot be taken over yet"));
        }
        let (log, live) = match &mut self.live {
            Some(_) if record.kind == Kind::OPENED => {
                return Err(refused(FORKED));
            }
            Some(live) => live,
            live => {
                if record.kind != Kind::OPENED {
                    return Err(refused("its first record begins no session"));
                }
                let opened = Opened::decode(record.body)?;
                if opened.session != session {
                    return Err(refused(FORKED));
                }
                let (ground, identity) = (self.store.inner.ground(), (session, opened.seed));
                let log =
                    Log::create(&ground, self.building, identity, PartialCreation::default(), Vec::new());
                live.insert((log, LiveState::new(LogSlices::Outline)))
            }
        };
        for object in record.objects() {
            let bytes = self.replicator.get_object(session, object);
            let put = log.objects.put(&bytes.map_err(|error| replica_error(session, error))?)?;
            if put != object {
                return Err(refused("a payload has other bytes than its name says"));
            }
        }
        let names = &live.projection.names;
        let context = AppendContext { synced: SequenceNumber::MIN, declared: &|| names.all() };
        log.append(record.kind, record.time_us, Body::Alone(record.body), &context)?;
        // Whatever contradicts the records before it, a fold reports.
        live.apply_record(record, Sources { objects: &log.objects, types: None })?;
        if log.unsynced_files() >= UNSYNCED_FILES_MAX {
            log.sync_plan().run(self.store.storage().as_ref(), &|| ())?;
        }
        Ok(())
    }
}

//! Takeover: a local session is created from the data of the store's replicator, and is written
//! here from then on.
//!
//! 1. The replica's data is written into a directory with a temporary name: each record with its
//!    sequence number, time and body; before them the payloads that the records name; and the
//!    objects of captures of workspaces, into the directory `files`.
//! 2. The written log is read back, checked as an audit checks it, and folded with the host's types
//!    ([`MadeLog`]). If no log can be created from the replica, or the log is not valid, nothing
//!    was claimed, and its writer continues.
//! 3. The session is claimed directly after its last record. From here on, nothing that its
//!    previous writer begins is acknowledged any more. If that writer appended in the meantime, its
//!    new records are read, written, checked and folded, and the claim is tried again.
//! 4. The directory gets its name.
//! 5. The session is opened under that claim with the folded state, as after any crash: a call that
//!    the other worker left open is recovered here. Its workspace is not the captured directory, so
//!    the recovery fills an empty one (`ExecutionState::fill`).
//!
//! A kill leaves at most a directory with a temporary name, which the next takeover removes, and a
//! claim that is never used.
//!
//! A read-only copy needs no claim: [`Store::pull`] creates one in the same way, or updates it from
//! the replica.
//!
//! Forks, salvaged and compacted sessions are rebuilt too ([`crate::log::rebuild`]): with the names
//! of their parents, and, if bodies were dropped before they were replicated, with the positions at
//! which the slices are known. A compacted session that the other worker had replicated only in
//! part cannot be rebuilt. Records cannot be appended to an existing local log if bodies are
//! missing among them. That log has to be deleted first and is then created again.
//!
//! Captures that a host stores outside of the session's directory are not replicated; the first
//! call on such a workspace leaves a notice of that. A takeover could not put them where the host
//! looks for them, and a workspace that exists for one call only may do without.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Store;
use crate::error::{Error, Result};
use crate::fold::projection::LogSlices;
use crate::log::lock::WriterLock;
use crate::log::writer::LogWriter;
use crate::replication::{ReplicaError, Replicator};
use crate::session::{
    Fetch, MadeLog, OpenAs, ReplicaClaim, Session, TakeoverNote, lock_to_write, open_claimed, pull,
    replica_error,
};
use crate::types::SessionTypes;

/// Reports the results of a copy from a replicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PullReport {
    /// Id of the session.
    pub session: Uuid,
    /// Number of records that the copy has now.
    pub records: u64,
    /// Number of new records among them.
    pub new: u64,
}

/// Maximum number of claims while the other writer appends.
const CLAIMS_MAX: u32 = 20;

const NOT_SOUND: &str = "the log that was created from its records is not intact, and was removed";

impl Store {
    /// Takes over a session that the store's [replicator](crate::replication) has and this store
    /// does not: creates a local session from the replica, fences its writer, and opens it. It
    /// contains everything that the other writer had acknowledged.
    ///
    /// Workspaces are not filled. To do that, [fill](crate::ExecutionState::fill) an empty
    /// directory before any tool runs. A call that runs or is repeated before that captures the
    /// directory's current contents, and leaves a notice that it is another directory.
    ///
    /// # Errors
    ///
    /// - [`Error::ReplicaFailed`] if the store has no replicator; if the replicator cannot be
    ///   reached or has nothing of the session; if a payload is missing; if the session was
    ///   compacted and replicated only in part; if it was first replicated by an earlier version,
    ///   which replicated only the records; or if the log created from the replica is not valid.
    ///   Its writer continues then.
    /// - [`Error::SessionExists`] if this store has the session: open it instead.
    /// - [`Error::Fenced`] or [`Error::ReplicaUnknown`] if another worker claimed it in the
    ///   meantime, or the result of the claim is unknown.
    /// - The errors of [`create_with`](Store::create_with) and
    ///   [`open_session`](Store::open_session). No session remains unless opening fails.
    pub fn take_over(&self, session: Uuid, types: &SessionTypes) -> Result<Session> {
        self.take_over_as(session, Some(types.clone()), None)
    }

    /// Takes over a session without types, as [`open_to_recover`](Store::open_to_recover) opens
    /// one: it can be recovered and settled, but rejects dispatches. An observation named
    /// `foldlog.taken_over` records `by` and `reason`; it is replicated when this returns.
    ///
    /// # Errors
    ///
    /// The errors of [`take_over`](Store::take_over) that do not concern types.
    pub fn take_over_to_recover(&self, session: Uuid, by: &str, reason: &str) -> Result<Session> {
        self.take_over_as(session, None, Some(TakeoverNote { by, reason }))
    }

    /// Copies a session from the store's [replicator](crate::replication) into this store, or only
    /// its new records if a copy exists. Claims nothing, so its writer continues. The copy can be
    /// read. Its log records that the session is replicated, so it can be written only with a
    /// replicator.
    ///
    /// # Errors
    ///
    /// - [`Error::ReplicaFailed`] as for [`take_over`](Store::take_over), and if new records lost
    ///   their bodies before they were replicated: delete the copy, and pull it again.
    /// - [`Error::Superseded`] if the local log differs from the replica: it is another history,
    ///   and is unchanged.
    /// - [`Error::Locked`] if the session is open for writing here; the errors of reading and
    ///   writing the log.
    pub fn pull(&self, session: Uuid) -> Result<PullReport> {
        let replicator = self.replicator(session)?;
        let (_lock, is_there) = self.lock_to_fetch(session)?;
        if is_there {
            let (before, records) = pull(&self.inner, &self.session_dir(session), session)?;
            return Ok(PullReport { session, records: records.get(), new: records.since(before) });
        }
        let records = self.build_session(session, |building| {
            let ground = self.inner.log_environment();
            let mut fetch = Fetch::with_new_log(session, building, replicator.as_ref(), &ground);
            let records = fetch.read()?.next;
            self.read_back(session, building, None, LogSlices::Unread, &mut fetch, None)?
                .check_end(records)
                .map_err(|error| not_sound(session, error))?;
            self.name_building(building, &self.session_dir(session), &mut fetch.finish()?)?;
            Ok(records.get())
        })?;
        Ok(PullReport { session, records, new: records })
    }

    /// Locks a session before it is fetched, and returns whether this store already has it.
    fn lock_to_fetch(&self, session: Uuid) -> Result<(WriterLock, bool)> {
        let lock = lock_to_write(&self.inner, session)?;
        let dir = self.session_dir(session);
        let entry = self.storage().look_up(&dir)?;
        Ok((lock, entry.is_some()))
    }

    fn replicator(&self, session: Uuid) -> Result<Arc<dyn Replicator>> {
        let replication = self.inner.options.replication.as_ref();
        let reason = || "the store has no replicator".to_owned();
        replication
            .map(|replication| Arc::clone(&replication.replicator))
            .ok_or_else(|| Error::ReplicaFailed { session, reason: reason() })
    }

    fn take_over_as(
        &self,
        session: Uuid,
        types: Option<SessionTypes>,
        note: Option<TakeoverNote<'_>>,
    ) -> Result<Session> {
        let replicator = self.replicator(session)?;
        let (lock, is_there) = self.lock_to_fetch(session)?;
        // Leftovers of a crash before the first record are the business of `create_with`.
        if is_there {
            return Err(Error::SessionExists { session });
        }
        let (made, claimed) = self.build_session(session, |building| {
            let (mut log, made, claimed) =
                self.fetch(session, replicator.as_ref(), building, types.as_ref())?;
            let named = self.name_building(building, &self.session_dir(session), &mut log);
            let epoch = claimed.epoch;
            named.map(|()| (made, claimed)).inspect_err(|_| replicator.release(session, epoch))
        })?;
        let dir = self.session_dir(session);
        let durability = self.inner.options.durability;
        let open_as = OpenAs { types, durability, lock: Some(lock), read_only: None };
        open_claimed(&self.inner, &dir, open_as, made, claimed, note)
    }

    /// Writes the replica's data into a directory, reads it back, and claims the session after its
    /// last record.
    fn fetch(
        &self,
        session: Uuid,
        replicator: &dyn Replicator,
        building: &Path,
        types: Option<&SessionTypes>,
    ) -> Result<(LogWriter, MadeLog, ReplicaClaim)> {
        let ground = self.inner.log_environment();
        let mut fetch = Fetch::with_new_log(session, building, replicator, &ground);
        let mut last = ReplicaError::Failed {
            reason: "its writer appends faster than the session can be claimed".to_owned(),
        };
        let mut before = None;
        for _ in 0..CLAIMS_MAX {
            let extent = fetch.read()?;
            let held = extent.next;
            if held == 0 {
                let reason = "it contains no records of that session: check the id of the session and the place of the replicator";
                return Err(Error::ReplicaFailed { session, reason: reason.to_owned() });
            }
            let made =
                self.read_back(session, building, types, LogSlices::InLog, &mut fetch, before.take())?;
            made.check_end(held).map_err(|error| not_sound(session, error))?;
            match replicator.claim(session, held) {
                Ok(epoch) => {
                    let finished = fetch.finish().inspect_err(|_| replicator.release(session, epoch));
                    return Ok((finished?, made, ReplicaClaim { epoch, extent }));
                }
                // Its writer appended, or another worker claimed it. The next read shows which.
                Err(error @ ReplicaError::Fenced { .. }) => last = error,
                Err(error) => return Err(replica_error(session, error)),
            }
            before = Some(made);
        }
        Err(replica_error(session, last))
    }

    /// Reads back the fetched log: all of it, or the part after `before`. Checks it as an audit
    /// does.
    fn read_back(
        &self,
        session: Uuid,
        building: &Path,
        types: Option<&SessionTypes>,
        log_slices: LogSlices,
        fetch: &mut Fetch<'_>,
        before: Option<MadeLog>,
    ) -> Result<MadeLog> {
        fetch.settle()?;
        let made = match before {
            None => MadeLog::read(self.read_ground(), building, types, log_slices, fetch),
            Some(made) => made.read_appended(self.read_ground(), building, types),
        };
        made.map_err(|error| not_sound(session, error))
    }
}

/// Returns the error of a log that cannot be read back.
fn not_sound(session: Uuid, error: Error) -> Error {
    match error.is_damage() {
        // Its directory is removed, so the log cannot be examined or salvaged.
        true => Error::ReplicaFailed { session, reason: format!("{NOT_SOUND}: {error}") },
        false => error,
    }
}

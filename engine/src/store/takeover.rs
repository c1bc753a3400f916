//! Takeover: a local session made of what the store's replicator holds, and from then on written here.
//!
//! 1. What the replicator holds is written into a directory with a temporary name: each record with its sequence number, time and body, and
//!    before them the payloads that the records name, and the objects of captures of workspaces, into the directory `files`.
//! 2. What was written is read back, checked as an audit checks it, and folded with the host's types ([`MadeLog`]). Where no log can be
//!    made of what is held, or the log is not sound, nothing was claimed, and its writer goes on.
//! 3. The session is claimed directly behind it, so that its writer, wherever it is, gets nothing acknowledged any more that it begins from
//!    here on. If that one appended meanwhile, what is new is read, written, checked and folded, and the claim is put once more.
//! 4. The directory gets its name.
//! 5. The session is opened under that claim with what was folded, as after any crash: a call that the other worker left open is recovered here. Its
//!    workspace is another directory than that of the captures, so whoever recovers it fills an empty one (`ExecutionState::fill`).
//!
//! A kill leaves a directory with a temporary name at most, which the next takeover removes, and a claim that nobody writes under.
//!
//! A copy that is only read needs no claim: [`Store::pull`] makes one in the same way, or brings it up to what is held.
//!
//! Forks, salvaged and compacted sessions are made anew too ([`crate::log::rebuild`]): with the names of their parents, and, where bodies were
//! dropped before they were held, with the positions at which the slices are known. Of a compacted session of which the other worker had
//! brought only a part, nothing can be made. Records that cannot stand behind a log that is there, since bodies are missing among them, are not
//! appended to it: it is to be made anew, by whoever deletes it.
//!
//! Captures that a host keeps in another directory than that of the session are not held: the first call on such a workspace leaves a
//! notice that says so. A takeover could not bring them where the host looks for them, and a workspace that is made for one
//! call may do without.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Store;
use crate::error::{Error, Result};
use crate::fold::projection::LogSlices;
use crate::log::layout;
use crate::log::lock::WriterLock;
use crate::log::writer::LogWriter;
use crate::replication::{ReplicaError, Replicator};
use crate::session::{
    Fetch, FetchedExtent, MadeLog, OpenAs, ReplicaClaim, Session, TakeoverNote, lock_to_write, open_claimed,
    pull, replica_error,
};
use crate::types::SessionTypes;

/// Reports what was copied from a replicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PullReport {
    /// Id of the session.
    pub session: Uuid,
    /// Number of records that the copy has now.
    pub records: u64,
    /// How many of them are new.
    pub new: u64,
}

/// How often a claim is put while the other writer appends.
const CLAIMS_MAX: u32 = 20;

const NOT_SOUND: &str = "the log that was made of what it holds is not sound, and was removed again";

impl Store {
    /// Takes a session over that the store's [replicator](crate::replication) holds and this store does not have: makes a local session
    /// of what is held, fences its writer, and opens it. What the other writer had acknowledged is there.
    ///
    /// Workspaces are not filled by it: [fill](crate::ExecutionState::fill) does that, in an empty directory, before any tool runs. A call
    /// that runs before, or is run again, captures whatever it finds, and leaves a notice that it is another directory.
    ///
    /// # Errors
    ///
    /// - [`Error::ReplicaFailed`] if the store has no replicator, the replicator cannot be asked or holds nothing of the session, a
    ///   payload is missing, or the session was compacted and is held in part only, or was first held by an earlier version, which
    ///   held no more of it than the records, or if the log that was made of what is held is not sound: then its writer goes on.
    /// - [`Error::SessionExists`] if this store has the session: open it instead.
    /// - [`Error::Fenced`] or [`Error::ReplicaUnknown`] if somebody else claimed it meanwhile, or nobody knows who did.
    /// - Those of [`create_with`](Store::create_with) and [`open_session`](Store::open_session). No session is left behind
    ///   unless opening fails.
    pub fn take_over(&self, session: Uuid, types: &SessionTypes) -> Result<Session> {
        self.take_over_as(session, Some(types.clone()), None)
    }

    /// Takes a session over without any types, as [`open_to_recover`](Store::open_to_recover) opens one: it can be recovered and
    /// settled, and not dispatched to. An observation named `foldlog.taken_over` says by whom and why; the replicator holds it when this
    /// returns.
    ///
    /// # Errors
    ///
    /// Those of [`take_over`](Store::take_over) that do not concern types.
    pub fn take_over_to_recover(&self, session: Uuid, by: &str, reason: &str) -> Result<Session> {
        self.take_over_as(session, None, Some(TakeoverNote { by, reason }))
    }

    /// Copies a session that the store's [replicator](crate::replication) holds into this store, or what is new of it. Claims nothing, so
    /// that its writer goes on. The copy can be read; its log says that a replica holds it, and so it is written with a replicator only.
    ///
    /// # Errors
    ///
    /// - [`Error::ReplicaFailed`] as [`take_over`](Store::take_over), and if what is new are records whose bodies were dropped before they
    ///   were held: delete the copy, and pull it anew.
    /// - [`Error::Superseded`] if the local log differs from what is held: it is another history, and stays as it is.
    /// - [`Error::Locked`] if the session is open for writing here; those of reading and writing the log.
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

    /// Locks a session that is fetched, and returns whether this store has it already.
    fn lock_to_fetch(&self, session: Uuid) -> Result<(WriterLock, bool)> {
        let lock = lock_to_write(&self.inner, session)?;
        let dir = self.session_dir(session);
        let entry = self.storage().entry(&dir).map_err(|error| Error::io("look up", &dir, error))?;
        Ok((lock, entry.is_some()))
    }

    /// Has `make` make a session in a directory in the making, of which nothing stays if that fails: nobody was told of it.
    fn build_session<T>(&self, session: Uuid, make: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let building = layout::building_session_dir(&self.inner.root, session);
        let made = self.make_building(&building).and_then(|()| make(&building));
        made.inspect_err(|_| drop(self.storage().remove_dir_all(&building)))
    }

    /// Returns the store's replicator.
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
        // What a crash left before a first record is left to `create_with`.
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

    /// Writes what is held into a directory, reads it back, and claims the session behind it.
    fn fetch(
        &self,
        session: Uuid,
        replicator: &dyn Replicator,
        building: &Path,
        types: Option<&SessionTypes>,
    ) -> Result<(LogWriter, MadeLog, ReplicaClaim)> {
        let ground = self.inner.log_environment();
        let mut fetch = Fetch::with_new_log(session, building, replicator, &ground);
        let mut last =
            ReplicaError::Failed { reason: "its writer appends faster than it can be claimed".to_owned() };
        let mut before = None;
        for _ in 0..CLAIMS_MAX {
            let FetchedExtent { next: held, captures_from, said_dropped } = fetch.read()?;
            if held == 0 {
                let reason =
                    "it holds nothing of that session: its id, or where the replicator looks, is another one";
                return Err(Error::ReplicaFailed { session, reason: reason.to_owned() });
            }
            let made =
                self.read_back(session, building, types, LogSlices::InLog, &mut fetch, before.take())?;
            made.check_end(held).map_err(|error| not_sound(session, error))?;
            match replicator.claim(session, held) {
                Ok(epoch) => {
                    let finished = fetch.finish().inspect_err(|_| replicator.release(session, epoch));
                    return Ok((finished?, made, ReplicaClaim { epoch, held, captures_from, said_dropped }));
                }
                // Its writer appended, or somebody else claimed: what is held now says which.
                Err(error @ ReplicaError::Fenced { .. }) => last = error,
                Err(error) => return Err(replica_error(session, error)),
            }
            before = Some(made);
        }
        Err(replica_error(session, last))
    }

    /// Reads back what was fetched and written: all, or what is new since `before` was read. Checks it as an audit does.
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
            Some(made) => made.goes_on(self.read_ground(), building, types),
        };
        made.map_err(|error| not_sound(session, error))
    }
}

/// Returns the error of a log that cannot be read back.
fn not_sound(session: Uuid, error: Error) -> Error {
    match error.is_damage() {
        // Its directory goes away, so nobody can look at it or salvage it.
        true => Error::ReplicaFailed { session, reason: format!("{NOT_SOUND}: {error}") },
        false => error,
    }
}

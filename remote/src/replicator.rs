//! Replicates the sessions of a store into a place: the engine's [`Replicator`] for any place.
//! [`SessionPlace`] has what distinguishes one kind of place from another.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldlog::replication::{CapturePacks, HeldPart, ReplicaError, ReplicaStatus, Replicator};
use foldlog_codec::body::ObjectId;
use foldlog_codec::{Record, SequenceNumber};
use uuid::Uuid;

use crate::chunk::{Epoch, NOTE_BYTES_MAX};
use crate::confirmations::{Confirmations, fresh_for};
use crate::error::{Error, Result, check_len, replica_error};
use crate::lease::renewal::{LeaseRenewer, Leases};
use crate::lease::{LEASE_LENGTH, check_length};
use crate::runtime::Runtime;
use crate::slots::Slots;

/// Provides the operations of one kind of place.
#[allow(async_fn_in_trait)]
pub trait SessionPlace: fmt::Debug + Send + Sync + Sized {
    /// A reader at the end of a session.
    type Reader: fmt::Debug + Send;
    /// The writer that claimed a session.
    type Writer: SessionWriter<State = Self::State> + fmt::Debug + Send;
    /// The payloads that a writer puts.
    type Payloads: SessionPayloads + fmt::Debug + Send;
    /// The leases of the place.
    type Leases: Leases + fmt::Debug;
    /// The state of a session's log when its claim was confirmed.
    type State: Copy + fmt::Debug + Send;

    /// Returns the time of the clock that also runs while the machine sleeps.
    fn now(&self) -> Duration;

    /// Returns the lease of a worker with this name.
    fn leases(&self, name: &str, length: Duration) -> Self::Leases;

    /// Reads a session to its end, and passes its parts to `visit`. `name` is this worker's.
    fn read(
        &self,
        runtime: &Runtime,
        session: Uuid,
        name: &str,
        visit: &mut dyn FnMut(HeldPart<'_>),
    ) -> Result<(Self::Reader, ReplicaStatus)>;

    /// Returns the sequence number after the last record that a reader has passed.
    fn next_sequence(reader: &Self::Reader) -> SequenceNumber;

    /// Claims a session after a reader's position, with one attempt: if anything was added after
    /// that, nothing is claimed.
    async fn claim(
        &self,
        session: Uuid,
        reader: Self::Reader,
        name: &str,
        lease: Option<&LeaseRenewer<Self::Leases>>,
    ) -> Result<Self::Writer>;

    /// Returns the payloads of a session's writer. Sends no request.
    fn payloads(&self, session: Uuid) -> Self::Payloads;

    /// Returns the bytes of a payload, verified against their hash; `None` if it is missing.
    async fn object(&self, session: Uuid, object: ObjectId) -> Result<Option<Vec<u8>>>;

    /// Checks that the claim of `epoch` is the newest one, and returns the state of the log now.
    /// It had the state `known` this long `ago`.
    ///
    /// # Errors
    ///
    /// [`Error::Fenced`] if there is a later claim.
    async fn confirm(
        &self,
        session: Uuid,
        epoch: Epoch,
        known: Self::State,
        ago: Duration,
    ) -> Result<Self::State>;

    /// Notifies those who follow a session of new records.
    fn note_appended(&self, _session: Uuid) {}
}

/// Appends to one session, as the writer of one epoch.
#[allow(async_fn_in_trait)]
pub trait SessionWriter {
    /// The state of the session's log.
    type State;

    /// Returns the epoch that this writer claimed.
    fn epoch(&self) -> Epoch;

    /// Returns the state of the log, as far as this writer knows; `None` once it has stopped.
    fn state(&self) -> Option<Self::State>;

    /// Takes as many records as fit into one request, in memory only, and returns their number.
    /// `captures` are the packs that their captures add; `None` omits captures.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`] if earlier records are in doubt, [`Error::OutOfOrder`],
    /// [`Error::TooLarge`] and [`Error::NotContent`]. No record is taken then.
    fn queue(&mut self, captures: Option<CapturePacks<'_>>, records: &[Record<'_>]) -> Result<usize>;

    /// Puts records that are still in doubt, if there are any. Returns the sequence number up to
    /// which the log contains all records.
    ///
    /// # Errors
    ///
    /// - [`Error::Fenced`] if another writer claimed the session, and for every later call.
    /// - [`Error::Unknown`] if the place does not report whether it has the records. They are kept,
    ///   and the next call tries again.
    /// - The errors of what was found in place of the records. The writer then stops appending.
    async fn settle(&mut self) -> Result<SequenceNumber>;

    /// Appends records, in as many requests as they need, after those that are still in doubt.
    /// Returns the sequence number after the last one, once the log contains them all.
    ///
    /// # Errors
    ///
    /// The errors of [`queue`](SessionWriter::queue) and [`settle`](SessionWriter::settle). Earlier
    /// records may have been appended.
    async fn append_with(
        &mut self,
        mut captures: Option<CapturePacks<'_>>,
        mut records: &[Record<'_>],
    ) -> Result<SequenceNumber> {
        loop {
            let next = self.settle().await?;
            if records.is_empty() {
                return Ok(next);
            }
            let taken = self.queue(captures, records)?;
            records = records.get(taken..).unwrap_or_default();
            // The first request contains the captures of all.
            captures = captures.map(|_| CapturePacks::default());
        }
    }

    /// Ends the writer.
    async fn finish(self);
}

/// Puts the payloads that a writer's next records name.
#[allow(async_fn_in_trait)]
pub trait SessionPayloads {
    /// Puts a payload under its hash, unless it exists.
    ///
    /// # Errors
    ///
    /// [`Error::Store`], and [`Error::Withdrawal`] if the withdrawn names cannot be read.
    async fn put(&mut self, object: ObjectId, bytes: Vec<u8>) -> Result<()>;

    /// Ensures that the payloads remain under the names that the next records use, unless that is
    /// already certain. If the place already has such a record, it is acknowledged only after this
    /// returns.
    ///
    /// # Errors
    ///
    /// The errors of [`put`](SessionPayloads::put), and [`Error::MissingPayload`]: no record may
    /// name the payload, and a record that does must not be relied on.
    async fn make_sure(&mut self) -> Result<()>;

    /// Forgets the payloads that were put: the records that name them are acknowledged.
    fn forget(&mut self);
}

/// Replicates the sessions of one store into a place.
#[derive(Debug)]
pub struct SessionReplicator<P: SessionPlace> {
    pub(crate) place: P,
    pub(crate) runtime: Runtime,
    /// Location of the sessions, in words for people.
    at: String,
    name: String,
    sessions: Slots<P::Reader, P::Writer>,
    /// For each claim, the last time when it was the newest one, and the log's state at that time.
    confirmations: Confirmations<P::State>,
    /// Validity of a confirmation.
    fresh_for: Duration,
    /// Payloads that writers have put, by session.
    payloads: Mutex<BTreeMap<Uuid, P::Payloads>>,
    /// `None` if it keeps no lease.
    lease: Option<Arc<LeaseRenewer<P::Leases>>>,
}

impl<P: SessionPlace> SessionReplicator<P> {
    /// Replicates sessions into a place, which logs name `at`.
    pub(crate) fn start(place: P, runtime: Runtime, at: &str, name: &str) -> Result<SessionReplicator<P>> {
        check_len("note", name.len(), NOTE_BYTES_MAX)?;
        SessionReplicator {
            place,
            runtime,
            at: at.to_owned(),
            name: name.to_owned(),
            sessions: Slots::default(),
            confirmations: Confirmations::default(),
            fresh_for: fresh_for(None),
            payloads: Mutex::default(),
            lease: None,
        }
        .with_lease(LEASE_LENGTH)
    }

    /// Sets the length of its lease, from 100 ms to an hour; the default is [`LEASE_LENGTH`]. It
    /// writes to the place three times in that time, while it has sessions claimed; in a bucket
    /// also with each claim. Call this before anything is claimed.
    ///
    /// # Errors
    ///
    /// [`Error::LeaseLength`].
    pub fn with_lease(self, length: Duration) -> Result<Self> {
        let lease = Some(LeaseRenewer::new(self.place.leases(&self.name, check_length(length)?), length));
        Ok(SessionReplicator { lease, fresh_for: fresh_for(Some(length)), ..self })
    }

    /// Keeps no lease, so that its sessions can be taken over without waiting.
    #[must_use]
    pub fn without_lease(self) -> Self {
        SessionReplicator { lease: None, fresh_for: fresh_for(None), ..self }
    }

    fn run<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime.run(request)?
    }

    /// Ensures that the payloads of records that are about to be appended, or were just appended,
    /// still exist.
    fn make_sure_of_payloads(&self, session: Uuid) -> Result<()> {
        let Some(mut payloads) = crate::lock(&self.payloads).remove(&session) else { return Ok(()) };
        let made = self.run(payloads.make_sure());
        crate::lock(&self.payloads).insert(session, payloads);
        made
    }

    /// Forgets a claim that was replaced by a later one, if a request found that.
    fn note_fenced<T>(&self, session: Uuid, epoch: u64, done: Result<T>) -> Result<T, ReplicaError> {
        if matches!(done, Err(Error::Fenced { .. })) {
            self.confirmations.forget(session, epoch);
            if let Some(lease) = &self.lease {
                lease.lose(session, epoch);
            }
        }
        done.map_err(replica_error)
    }
}

impl<P: SessionPlace> Replicator for SessionReplicator<P> {
    fn place(&self) -> String {
        self.at.clone()
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn read(
        &self,
        session: Uuid,
        visit: &mut dyn FnMut(HeldPart<'_>),
    ) -> Result<ReplicaStatus, ReplicaError> {
        let read = self.place.read(&self.runtime, session, &self.name, visit);
        let (reader, status) = read.map_err(replica_error)?;
        self.sessions.note_read(session, reader);
        Ok(status)
    }

    fn claim(&self, session: Uuid, expected: SequenceNumber) -> Result<u64, ReplicaError> {
        let reader = self.sessions.take_read(session, |reader| P::next_sequence(reader) == expected)?;
        let asked = self.place.now();
        let claim = async {
            let writer = self.place.claim(session, reader, &self.name, self.lease.as_deref()).await?;
            if let Some(lease) = &self.lease {
                lease.hold(session, writer.epoch().get()).await;
            }
            Ok(writer)
        };
        let writer = self.run(claim).map_err(replica_error)?;
        let epoch = writer.epoch().get();
        if let Some(state) = writer.state() {
            self.confirmations.note(session, epoch, asked, state);
        }
        self.sessions.note_claimed(session, writer);
        Ok(epoch)
    }

    fn put_object(&self, session: Uuid, object: ObjectId, bytes: &[u8]) -> Result<(), ReplicaError> {
        let known = crate::lock(&self.payloads).remove(&session);
        let mut payloads = known.unwrap_or_else(|| self.place.payloads(session));
        let put = self.run(payloads.put(object, bytes.to_vec()));
        crate::lock(&self.payloads).insert(session, payloads);
        put.map_err(replica_error)
    }

    fn get_object(&self, session: Uuid, object: ObjectId) -> Result<Vec<u8>, ReplicaError> {
        let found = self.run(self.place.object(session, object)).map_err(replica_error)?;
        found.ok_or_else(|| ReplicaError::Failed {
            reason: format!("the payload {} is missing", object.file_name()),
        })
    }

    fn holds_captures(&self) -> bool {
        true
    }

    fn append(
        &self,
        session: Uuid,
        epoch: u64,
        captures: Option<CapturePacks<'_>>,
        records: &[Record<'_>],
    ) -> Result<(), ReplicaError> {
        let mut writer = self.sessions.take_claimed(session, |writer| writer.epoch().get() == epoch)?;
        let append = |()| {
            let asked = self.place.now();
            self.run(writer.append_with(captures, records))?;
            if let Some(state) = writer.state() {
                self.confirmations.note(session, epoch, asked, state);
            }
            self.make_sure_of_payloads(session)
        };
        let appended = self.make_sure_of_payloads(session).and_then(append);
        if appended.is_ok() {
            if let Some(payloads) = crate::lock(&self.payloads).get_mut(&session) {
                payloads.forget();
            }
            self.place.note_appended(session);
        }
        // After a panic the writer's state is unknown, and nothing more is appended under its
        // epoch.
        if !matches!(appended, Err(Error::NoRuntime)) {
            self.sessions.note_claimed(session, writer);
        }
        self.note_fenced(session, epoch, appended)
    }

    fn is_confirmed(&self, session: Uuid, epoch: u64) -> bool {
        self.confirmations.is_fresh(session, epoch, self.place.now(), self.fresh_for)
    }

    fn confirm(&self, session: Uuid, epoch: u64) -> Result<(), ReplicaError> {
        let (before, known) = self.confirmations.last(session, epoch)?;
        let asked = self.place.now();
        let ago = asked.saturating_sub(before);
        let confirmed = self.run(self.place.confirm(session, Epoch::new(epoch), known, ago));
        let state = self.note_fenced(session, epoch, confirmed)?;
        self.confirmations.note(session, epoch, asked, state);
        Ok(())
    }

    fn release(&self, session: Uuid, epoch: u64) {
        // Another handle may have claimed the session since.
        let claimed = self.sessions.take_claimed(session, |writer| writer.epoch().get() == epoch);
        if claimed.is_ok() {
            crate::lock(&self.payloads).remove(&session);
        }
        self.confirmations.forget(session, epoch);
        // If this fails, a takeover waits until the lease has run out.
        let _ = self.runtime.run(async {
            if let Some(lease) = &self.lease {
                lease.release(session, epoch).await;
            }
            // After the release, so that a takeover waits only for the lease.
            if let Ok(writer) = claimed {
                writer.finish().await;
            }
        });
    }
}

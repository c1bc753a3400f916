//! Replicates the sessions of a store into object storage: the engine's [`Replicator`] for buckets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldlog::replication::{CapturePacks, HeldPart, ReplicaError, ReplicaStatus, Replicator};
use foldlog::{ObjectId, Record, SequenceNumber};
use futures_lite::future;
use object_store::ObjectStore;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::bucket::Bucket;
use crate::chain::Chain;
use crate::chunk::Chunk;
use crate::confirmations::{Confirmations, fresh_for};
use crate::error::{Error, Result, replica_error};
use crate::lease::objects::ObjectLeases;
use crate::lease::renewal::LeaseRenewer;
use crate::lease::{LEASE_LENGTH, check_length};
use crate::payloads::Payloads;
use crate::reader::{ChunkReader, VerifiedChunk};
use crate::remote::{Remote, RemoteWriter};
use crate::retries::Retries;
use crate::slots::Slots;
use crate::volume::MIN_AGE;
use crate::writer::ChunkWriter;

const CONFIRM: &str = "confirm the session's claim";

/// Number of chunks, or of parts of volumes, that are read ahead of their consumer.
const AHEAD: usize = 2;

/// Replicates the sessions of one store into object storage.
///
/// ```
/// use std::sync::Arc;
///
/// use foldlog::replication::Replication;
/// use foldlog::{Store, StoreOptions};
/// use foldlog_remote::{ObjectReplicator, Retries};
/// use object_store::memory::InMemory;
///
/// let bucket = Arc::new(InMemory::new());
/// let replicator = ObjectReplicator::new(bucket, "team/agents", "worker 7", Retries::default())?;
/// let directory = tempfile::tempdir()?;
/// let options = StoreOptions {
///     replication: Some(Replication::new(Arc::new(replicator))),
///     ..StoreOptions::default()
/// };
/// let store = Store::open_with(directory.path(), options)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ObjectReplicator {
    remote: Remote,
    /// Location of the sessions, in words for people.
    at: String,
    name: String,
    sessions: Slots<ChunkReader, RemoteWriter>,
    /// For each claim, the last time when it was the newest one, and the chain at that time.
    confirmations: Confirmations<Chain>,
    /// Validity of a confirmation.
    fresh_for: Duration,
    /// Payloads that writers have put, by session.
    payloads: Mutex<BTreeMap<Uuid, Payloads>>,
    /// `None` if it keeps no lease.
    lease: Option<Arc<LeaseRenewer<ObjectLeases>>>,
}

impl ObjectReplicator {
    /// Replicates sessions beneath `prefix` in `store`. `name` identifies the writer in claims, and
    /// must belong to this one directory of sessions. Another directory with the same name would
    /// continue from records that this one has not brought to the bucket.
    ///
    /// # Errors
    ///
    /// [`Error::Prefix`], [`Error::NoRuntime`], and [`Error::TooLarge`] if the name is longer than
    /// a claim's note may be.
    pub fn new(
        store: Arc<dyn ObjectStore>,
        prefix: &str,
        name: &str,
        retries: Retries,
    ) -> Result<ObjectReplicator> {
        let at = match prefix {
            "" => "object storage".to_owned(),
            prefix => format!("object storage beneath `{prefix}`"),
        };
        ObjectReplicator::over(Remote::new(store, prefix, retries)?, &at, name)
    }

    /// Replicates sessions through an existing [`Remote`], which logs name `at`.
    #[doc(hidden)]
    pub fn over(remote: Remote, at: &str, name: &str) -> Result<ObjectReplicator> {
        let max = crate::chunk::NOTE_BYTES_MAX;
        if name.len() > max {
            return Err(Error::TooLarge { what: "note", len: name.len() as u64, max: max as u64 });
        }
        let (at, name) = (at.to_owned(), name.to_owned());
        ObjectReplicator {
            remote,
            at,
            name,
            sessions: Slots::default(),
            confirmations: Confirmations::default(),
            fresh_for: fresh_for(None),
            payloads: Mutex::default(),
            lease: None,
        }
        .with_lease(LEASE_LENGTH)
    }

    /// Sets the length of its lease, from 100 ms to an hour; the default is [`LEASE_LENGTH`]. It
    /// puts an object three times in that time, while it has sessions claimed, and one with each
    /// claim. Call this before anything is claimed.
    ///
    /// # Errors
    ///
    /// [`Error::LeaseLength`].
    pub fn with_lease(self, length: Duration) -> Result<ObjectReplicator> {
        let leases = ObjectLeases::new(self.remote.bucket().clone(), &self.name, check_length(length)?);
        let lease = Some(LeaseRenewer::new(leases, length));
        Ok(ObjectReplicator { lease, fresh_for: fresh_for(Some(length)), ..self })
    }

    /// Keeps no lease, so that its sessions can be taken over without waiting.
    #[must_use]
    pub fn without_lease(self) -> ObjectReplicator {
        ObjectReplicator { lease: None, fresh_for: fresh_for(None), ..self }
    }

    fn payloads(&self) -> MutexGuard<'_, BTreeMap<Uuid, Payloads>> {
        self.payloads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ensures that the payloads of records that are about to be appended, or were just appended,
    /// still exist.
    fn make_sure_of_payloads(&self, session: Uuid) -> Result<()> {
        if self.payloads().get(&session).is_none_or(Payloads::is_sure) {
            return Ok(());
        }
        let Some(mut payloads) = self.payloads().remove(&session) else { return Ok(()) };
        let (payloads, made) = self.remote.runtime().run(async move {
            let made = payloads.make_sure().await;
            (payloads, made)
        })?;
        self.payloads().insert(session, payloads);
        made
    }

    /// Sets the clock. For tests, which cannot wait for days.
    #[doc(hidden)]
    pub fn with_clock(self, read: impl Fn() -> Duration + Send + Sync + 'static) -> ObjectReplicator {
        ObjectReplicator { remote: self.remote.with_clock(read), ..self }
    }

    /// Returns the location of the sessions.
    pub fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Forgets a claim that was replaced by a later one.
    fn lose(&self, session: Uuid, epoch: u64) {
        self.confirmations.forget(session, epoch);
        if let Some(lease) = &self.lease {
            lease.lose(session, epoch);
        }
    }
}

impl Replicator for ObjectReplicator {
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
        let mut claimed_by = String::new();
        let mut others_end = SequenceNumber::MIN;
        let mut each = |chunk: &Chunk<'_>| {
            if chunk.count == 0 {
                claimed_by.clone_from(&chunk.head.note);
            } else if claimed_by != self.name {
                others_end = chunk.next_sequence();
            }
            if let Some(captures) = &chunk.captures {
                let packs: Vec<ObjectId> = captures.packs().collect();
                let captures = CapturePacks { packs: &packs, inlined: captures.inlined };
                visit(HeldPart::Captures { next: chunk.next_sequence(), captures });
            }
            chunk.records().for_each(|record| visit(HeldPart::Record(record)));
        };
        let reader = self.remote.read_here(session, &mut each).map_err(replica_error)?;
        let chain = *reader.chain();
        self.sessions.note_read(session, reader);
        let (next, epoch) = (chain.next_sequence(), chain.epoch().get());
        Ok(ReplicaStatus { next, epoch, is_ours: claimed_by == self.name, others_end })
    }

    fn claim(&self, session: Uuid, expected: SequenceNumber) -> Result<u64, ReplicaError> {
        let reader = self.sessions.take_read(session, |reader| reader.chain().next_sequence() == expected)?;
        let name = self.name.clone();
        let (bucket, lease) = (self.remote.bucket().clone(), self.lease.clone());
        let asked = bucket.now();
        let claim = async move {
            bucket.require_conditional_puts(session).await?;
            let writer = ChunkWriter::claim_behind(reader, &name).await?;
            if let Some(lease) = lease {
                lease.hold(session, writer.epoch().get()).await;
            }
            Ok(writer)
        };
        let writer = self.remote.writer_of(claim).map_err(replica_error)?;
        let epoch = epoch_of(&writer);
        if let Some(writer) = writer.writer() {
            self.confirmations.note(session, epoch, asked, *writer.chain());
        }
        self.sessions.note_claimed(session, Box::new(writer));
        Ok(epoch)
    }

    fn put_object(&self, session: Uuid, object: ObjectId, bytes: &[u8]) -> Result<(), ReplicaError> {
        let (known, bytes) = (self.payloads().remove(&session), bytes.to_vec());
        let mut payloads = known.unwrap_or_else(|| Payloads::new(self.remote.bucket().clone(), session));
        let put = async move {
            let put = payloads.put(object, bytes).await;
            (payloads, put)
        };
        let (payloads, put) = self.remote.runtime().run(put).map_err(replica_error)?;
        self.payloads().insert(session, payloads);
        put.map_err(replica_error)
    }

    fn get_object(&self, session: Uuid, object: ObjectId) -> Result<Vec<u8>, ReplicaError> {
        let bucket = self.remote.bucket().clone();
        let get = async move { bucket.get_object(session, object).await };
        let found = self.remote.runtime().run(get).and_then(|found| found).map_err(replica_error)?;
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
        let mut writer = self.sessions.take_claimed(session, |writer| epoch_of(writer) == epoch)?;
        let captures = captures.map(|CapturePacks { packs, inlined }| (packs, inlined));
        let append = |()| {
            let asked = self.remote.bucket().now();
            writer.append_with(captures, records.iter().copied())?;
            if let Some(writer) = writer.writer() {
                self.confirmations.note(session, epoch, asked, *writer.chain());
            }
            self.make_sure_of_payloads(session)
        };
        let appended = self.make_sure_of_payloads(session).and_then(append);
        if appended.is_ok()
            && let Some(payloads) = self.payloads().get_mut(&session)
        {
            payloads.forget();
        }
        // Without the thread there is no writer, and nothing more is appended under its epoch.
        if writer.writer().is_some() {
            self.sessions.note_claimed(session, writer);
        }
        if matches!(appended, Err(Error::Fenced { .. })) {
            self.lose(session, epoch);
        }
        appended.map_err(replica_error)
    }

    fn is_confirmed(&self, session: Uuid, epoch: u64) -> bool {
        self.confirmations.is_fresh(session, epoch, self.remote.bucket().now(), self.fresh_for)
    }

    fn confirm(&self, session: Uuid, epoch: u64) -> Result<(), ReplicaError> {
        let (before, chain) = self.confirmations.last(session, epoch)?;
        let bucket = self.remote.bucket().clone();
        let asked = bucket.now();
        let ask = async move { newest_claim(bucket, chain, asked.saturating_sub(before)).await };
        let asked_for = self.remote.runtime().run(ask).and_then(|newest| newest);
        let (chain, note) = asked_for.map_err(replica_error)?;
        if chain.epoch().get() == epoch {
            self.confirmations.note(session, epoch, asked, chain);
            return Ok(());
        }
        self.lose(session, epoch);
        Err(replica_error(Error::Fenced { epoch: chain.epoch(), by: chain.writer(), note }))
    }

    fn release(&self, session: Uuid, epoch: u64) {
        // Another handle may have claimed the session since.
        let claimed = self.sessions.take_claimed(session, |writer| epoch_of(writer) == epoch);
        if claimed.is_ok() {
            self.payloads().remove(&session);
        }
        self.confirmations.forget(session, epoch);
        if let Some(lease) = self.lease.clone() {
            // If this fails, a takeover waits until the lease has run out.
            let _ = self.remote.runtime().run(async move { lease.release(session, epoch).await });
        }
        // After the release, so that a takeover waits only for the lease.
        if let Ok(writer) = claimed {
            writer.finish();
        }
    }
}

impl Remote {
    /// Reads a session's log to its end and passes each chunk to `each`, on the calling thread.
    /// Returns a reader positioned after the last one.
    ///
    /// # Errors
    ///
    /// The errors of [`ChunkReader::read_to_end`].
    pub fn read_here(&self, session: Uuid, each: &mut dyn FnMut(&Chunk<'_>)) -> Result<ChunkReader> {
        let mut reader = ChunkReader::new(self.bucket().clone(), session);
        self.read_here_behind(&mut reader, each)?;
        Ok(reader)
    }

    /// Continues with a reader, as [`read_here`](Remote::read_here) does. Even after an error, the
    /// reader is positioned after the last chunk that was passed to `each`.
    ///
    /// # Errors
    ///
    /// The errors of [`ChunkReader::read_to_end`].
    pub fn read_here_behind(&self, reader: &mut ChunkReader, each: &mut dyn FnMut(&Chunk<'_>)) -> Result<()> {
        let (send, mut chunks) = mpsc::channel(AHEAD);
        let mut reads = reader.clone();
        self.runtime().spawn(async move {
            loop {
                let read = reads.read_some().await;
                let ends = !matches!(&read, Ok(some) if !some.is_empty());
                let end = ends.then(|| Box::new(reads.clone()));
                if send.send((read, end)).await.is_err() || ends {
                    return;
                }
            }
        })?;
        loop {
            let (read, end) = future::block_on(chunks.recv()).ok_or(Error::NoRuntime)?;
            let ended = read.map(|some| {
                some.iter().try_for_each(|VerifiedChunk { number, bytes, behind }| {
                    each(&Chunk::decode_verified(bytes, *number)?);
                    *reader.chain_mut() = *behind;
                    Ok(())
                })
            });
            if let Some(end) = end {
                *reader = *end;
                return ended.and_then(|read| read);
            }
            ended??;
        }
    }
}

/// Reads on after a chain that was known `age` ago. Returns the chain at the end, whose last claim
/// is the newest one, and the name of a claim that was read.
async fn newest_claim(bucket: Bucket, chain: Chain, age: Duration) -> Result<(Chain, String)> {
    let mut name = String::new();
    // A later claim takes the next number, and its chunk remains there until it is a day old.
    let key = bucket.chunk_key(chain.session(), chain.next_number());
    if age < MIN_AGE / 2 && bucket.size(&key, CONFIRM).await?.is_none() {
        return Ok((chain, name));
    }
    let mut reader = ChunkReader::resume(bucket, chain).await?;
    let mut each = |chunk: &Chunk<'_>| {
        if chunk.count == 0 {
            name.clone_from(&chunk.head.note);
        }
    };
    reader.read_to_end(&mut each).await?;
    Ok((*reader.chain(), name))
}

/// Returns the epoch that a writer claimed; 0, which no claim has, once the thread has lost it.
fn epoch_of(writer: &RemoteWriter) -> u64 {
    writer.writer_and_epoch().map_or(0, |(_, epoch)| epoch.get())
}

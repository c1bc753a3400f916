//! Replicates the sessions of a store into object storage.

use std::sync::Arc;
use std::time::Duration;

use foldlog::replication::{CapturePacks, HeldPart, ReplicaStatus};
use foldlog::{ObjectId, SequenceNumber};
use object_store::ObjectStore;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::bucket::Bucket;
use super::leases::ObjectLeases;
use super::payloads::Payloads;
use super::reader::{ChunkReader, VerifiedChunk};
use super::remote::Remote;
use super::writer::ChunkWriter;
use crate::chain::Chain;
use crate::chunk::{Chunk, Epoch};
use crate::error::{Error, Result};
use crate::lease::renewal::LeaseRenewer;
use crate::replicator::{SessionPlace, SessionReplicator};
use crate::retries::Retries;
use crate::runtime::Runtime;
use crate::volume::MIN_AGE;

const CONFIRM: &str = "confirm the session's claim";

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
pub type ObjectReplicator = SessionReplicator<Bucket>;

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
        SessionReplicator::start(remote.bucket, remote.runtime, at, name)
    }

    /// Sets the clock. For tests, which cannot wait for days.
    #[doc(hidden)]
    pub fn with_clock(mut self, read: impl Fn() -> Duration + Send + Sync + 'static) -> ObjectReplicator {
        self.place = self.place.with_clock(read);
        self
    }
}

impl SessionPlace for Bucket {
    type Reader = ChunkReader;
    type Writer = ChunkWriter;
    type Payloads = Payloads;
    type Leases = ObjectLeases;
    type State = Chain;

    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn leases(&self, name: &str, length: Duration) -> ObjectLeases {
        ObjectLeases::new(self.clone(), name, length)
    }

    fn read(
        &self,
        runtime: &Runtime,
        session: Uuid,
        name: &str,
        visit: &mut dyn FnMut(HeldPart<'_>),
    ) -> Result<(ChunkReader, ReplicaStatus)> {
        let mut claimed_by = String::new();
        let mut others_end = SequenceNumber::MIN;
        let mut reader = ChunkReader::new(self.clone(), session);
        read_here(runtime, &mut reader, &mut |chunk| {
            if chunk.count == 0 {
                claimed_by.clone_from(&chunk.head.note);
            } else if claimed_by != name {
                others_end = chunk.next_sequence();
            }
            if let Some(captures) = &chunk.captures {
                let packs: Vec<ObjectId> = captures.packs().collect();
                let captures = CapturePacks { packs: &packs, inlined: captures.inlined };
                visit(HeldPart::Captures { next: chunk.next_sequence(), captures });
            }
            chunk.records().for_each(|record| visit(HeldPart::Record(record)));
        })?;
        let (next, epoch) = (reader.chain().next_sequence(), reader.chain().epoch().get());
        Ok((reader, ReplicaStatus { next, epoch, is_ours: claimed_by == name, others_end }))
    }

    fn next_sequence(reader: &ChunkReader) -> SequenceNumber {
        reader.chain().next_sequence()
    }

    async fn claim(
        &self,
        session: Uuid,
        reader: ChunkReader,
        name: &str,
        _lease: Option<&LeaseRenewer<ObjectLeases>>,
    ) -> Result<ChunkWriter> {
        self.require_conditional_puts(session).await?;
        ChunkWriter::claim_behind(reader, name).await
    }

    fn payloads(&self, session: Uuid) -> Payloads {
        Payloads::new(self.clone(), session)
    }

    async fn object(&self, session: Uuid, object: ObjectId) -> Result<Option<Vec<u8>>> {
        self.get_object(session, object).await
    }

    async fn confirm(&self, session: Uuid, epoch: Epoch, known: Chain, ago: Duration) -> Result<Chain> {
        // A later claim takes the next number, and its chunk remains there until it is a day old.
        let key = self.chunk_key(session, known.next_number());
        if ago < MIN_AGE / 2 && self.size(&key, CONFIRM).await?.is_none() {
            return Ok(known);
        }
        let mut note = String::new();
        let mut reader = ChunkReader::resume(self.clone(), known).await?;
        let mut each = |chunk: &Chunk<'_>| {
            if chunk.count == 0 {
                note.clone_from(&chunk.head.note);
            }
        };
        reader.read_to_end(&mut each).await?;
        let chain = *reader.chain();
        if chain.epoch() == epoch {
            return Ok(chain);
        }
        Err(Error::Fenced { epoch: chain.epoch(), by: chain.writer(), note })
    }
}

/// Reads on to the end of a session's log and passes each chunk to `each`, on the calling thread.
/// Even after an error, the reader is positioned after the last chunk that was passed on.
pub(crate) fn read_here(
    runtime: &Runtime,
    reader: &mut ChunkReader,
    each: &mut dyn FnMut(&Chunk<'_>),
) -> Result<()> {
    let mut reads = reader.clone();
    let read = |send: mpsc::Sender<Vec<VerifiedChunk>>| async move {
        loop {
            match reads.read_some().await {
                Ok(some) if !some.is_empty() => {
                    if send.send(some).await.is_err() {
                        return (reads, Err(Error::NoRuntime));
                    }
                }
                ended => return (reads, ended.map(drop)),
            }
        }
    };
    let mut decoded = Ok(());
    let visit = |some: Vec<VerifiedChunk>| {
        for VerifiedChunk { number, bytes } in some {
            match Chunk::decode_verified(&bytes, number) {
                Ok(chunk) => each(&chunk),
                Err(error) => decoded = Err(error),
            }
        }
    };
    let (end, read) = runtime.read_ahead(read, visit)?;
    *reader = end;
    decoded.and(read)
}

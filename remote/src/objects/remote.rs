//! The blocking API, for hosts without an async runtime. Each call runs by a [`Runtime`].

use std::sync::Arc;

use foldlog_codec::{Record, SequenceNumber};
use object_store::ObjectStore;
use uuid::Uuid;

use super::bucket::Bucket;
use super::reader::ChunkReader;
use super::replicator::read_here;
use super::writer::ChunkWriter;
use crate::chain::Chain;
use crate::chunk::Chunk;
use crate::error::Result;
use crate::retries::Retries;
use crate::runtime::Runtime;

/// Provides blocking access to sessions in an object store. Callbacks for chunks run on the calling
/// thread.
///
/// ```
/// use std::sync::Arc;
///
/// use foldlog_codec::{RecordKind, Record};
/// use foldlog_remote::{Error, Remote, Retries};
/// use object_store::memory::InMemory;
///
/// let remote = Remote::new(Arc::new(InMemory::new()), "team/agents", Retries::default())?;
/// let session = uuid::Uuid::from_u128(7);
/// let record = |sequence: u64, body| Record { sequence: sequence.into(), kind: RecordKind::Observed, time_us: 0, body };
///
/// let mut first = remote.claim(session, "worker 1", |_| {})?;
/// assert_eq!(first.append([record(0, b"begun")])?, 1);
///
/// // Another worker takes the session over, and reads all that was acknowledged.
/// let mut bodies = Vec::new();
/// let mut second = remote.claim(session, "worker 2", |chunk| {
///     bodies.extend(chunk.records().map(|record| record.body.to_vec()));
/// })?;
/// assert_eq!(bodies, [b"begun"]);
///
/// // The first one, when it wakes up, gets nothing acknowledged any more.
/// assert!(matches!(first.append([record(1, b"too late")]), Err(Error::Fenced { .. })));
/// assert_eq!(second.append([record(1, b"went on")])?, 2);
/// # Ok::<(), foldlog_remote::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Remote {
    pub(crate) bucket: Bucket,
    pub(crate) runtime: Runtime,
}

impl Remote {
    /// Describes the location beneath `prefix` in `store`, and starts a thread for its requests.
    /// Sends no request.
    ///
    /// # Errors
    ///
    /// [`Error::Prefix`](crate::Error::Prefix) and [`Error::NoRuntime`](crate::Error::NoRuntime).
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str, retries: Retries) -> Result<Remote> {
        Ok(Remote { bucket: Bucket::new(store, prefix, retries)?, runtime: Runtime::start()? })
    }

    /// Reads a session's log from its start to its end, passes each chunk to `each`, and returns
    /// the chain. Writes nothing.
    pub fn read(&self, session: Uuid, each: impl FnMut(&Chunk<'_>)) -> Result<Chain> {
        self.read_behind(Chain::new(session), each)
    }

    /// Continues after a chain that was read before, after checking that the store still has that
    /// chain's last chunk.
    pub fn read_behind(&self, chain: Chain, mut each: impl FnMut(&Chunk<'_>)) -> Result<Chain> {
        let mut reader = self.runtime.run(ChunkReader::resume(self.bucket.clone(), chain))??;
        read_here(&self.runtime, &mut reader, &mut each)?;
        Ok(*reader.chain())
    }

    /// Checks that the store supports writers, reads the log to its end, passes each chunk to
    /// `each`, and claims the session.
    pub fn claim(
        &self,
        session: Uuid,
        note: &str,
        mut each: impl FnMut(&Chunk<'_>) + Send,
    ) -> Result<RemoteWriter> {
        let claim = async {
            self.bucket.require_conditional_puts(session).await?;
            ChunkWriter::claim(ChunkReader::new(self.bucket.clone(), session), note, &mut each).await
        };
        Ok(RemoteWriter { writer: self.runtime.run(claim)??, runtime: self.runtime.clone() })
    }

    /// Returns the location of the sessions, for callers that have a runtime.
    pub fn bucket(&self) -> &Bucket {
        &self.bucket
    }
}

/// Appends to one session, for blocking callers. See [`ChunkWriter`].
#[derive(Debug)]
pub struct RemoteWriter {
    writer: ChunkWriter,
    runtime: Runtime,
}

impl RemoteWriter {
    /// Appends records, as [`ChunkWriter::append`] does, and returns the sequence number after the
    /// last one.
    pub fn append<'a>(&mut self, records: impl IntoIterator<Item = Record<'a>>) -> Result<SequenceNumber> {
        self.runtime.run(self.writer.append(records))?
    }

    /// Returns the writer itself, for queries that need no store: its chain, and whether records
    /// are in doubt.
    pub fn writer(&self) -> &ChunkWriter {
        &self.writer
    }
}

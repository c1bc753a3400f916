//! The blocking API, for hosts without an async runtime. Each call runs on the thread of a
//! [`Runtime`].

use std::sync::Arc;
use std::time::Duration;

use foldlog_codec::body::ObjectId;
use foldlog_codec::{Record, SequenceNumber};
use object_store::ObjectStore;
use uuid::Uuid;

use crate::bucket::Bucket;
use crate::chain::Chain;
use crate::chunk::{Chunk, Epoch, WriterId};
use crate::error::{Error, Result};
use crate::reader::ChunkReader;
use crate::retries::Retries;
use crate::runtime::Runtime;
use crate::writer::ChunkWriter;

/// Provides blocking access to sessions in an object store. Callbacks for chunks run on the thread
/// that sends requests to the store, so they must send the data that they want to keep.
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
/// let (read, bodies) = std::sync::mpsc::channel();
/// let mut second = remote.claim(session, "worker 2", move |chunk| {
///     chunk.records().for_each(|record| read.send(record.body.to_vec()).unwrap());
/// })?;
/// assert_eq!(bodies.iter().collect::<Vec<_>>(), [b"begun"]);
///
/// // The first one, when it wakes up, gets nothing acknowledged any more.
/// assert!(matches!(first.append([record(1, b"too late")]), Err(Error::Fenced { .. })));
/// assert_eq!(second.append([record(1, b"went on")])?, 2);
/// # Ok::<(), foldlog_remote::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Remote {
    bucket: Bucket,
    runtime: Runtime,
}

impl Remote {
    /// Describes the location beneath `prefix` in `store`, and starts a thread for its requests.
    /// Sends no request.
    ///
    /// # Errors
    ///
    /// [`Error::Prefix`] and [`Error::NoRuntime`].
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str, retries: Retries) -> Result<Remote> {
        Ok(Remote { bucket: Bucket::new(store, prefix, retries)?, runtime: Runtime::start()? })
    }

    /// Sets the URL of the place in errors. It must not contain a password.
    pub(crate) fn at(self, place: &str) -> Remote {
        Remote { bucket: self.bucket.at(place), ..self }
    }

    /// Reads a session's log from its start to its end, passes each chunk to `each`, and returns
    /// the chain. Writes nothing.
    ///
    /// # Errors
    ///
    /// The errors of [`ChunkReader::read_to_end`].
    pub fn read(&self, session: Uuid, each: impl FnMut(&Chunk<'_>) + Send + 'static) -> Result<Chain> {
        self.read_behind(Chain::new(session), each)
    }

    /// Continues after a chain that was read before, after checking that the store still has that
    /// chain's last chunk.
    ///
    /// # Errors
    ///
    /// The errors of [`ChunkReader::resume`] and [`ChunkReader::read_to_end`].
    pub fn read_behind(
        &self,
        chain: Chain,
        mut each: impl FnMut(&Chunk<'_>) + Send + 'static,
    ) -> Result<Chain> {
        let bucket = self.bucket.clone();
        self.runtime.run(async move {
            let mut reader = ChunkReader::resume(bucket, chain).await?;
            reader.read_to_end(&mut each).await?;
            Ok(*reader.chain())
        })?
    }

    /// Returns the ids of the sessions that the store lists: see [`Bucket::sessions`].
    ///
    /// # Errors
    ///
    /// The errors of [`Bucket::sessions`].
    pub fn sessions(&self) -> Result<Vec<Uuid>> {
        let bucket = self.bucket.clone();
        self.runtime.run(async move { bucket.sessions().await })?
    }

    /// Checks that the store supports writers, reads the log to its end, passes each chunk to
    /// `each`, and claims the session.
    ///
    /// # Errors
    ///
    /// The errors of [`Bucket::require_conditional_puts`] and [`ChunkWriter::claim`].
    pub fn claim(
        &self,
        session: Uuid,
        note: &str,
        mut each: impl FnMut(&Chunk<'_>) + Send + 'static,
    ) -> Result<RemoteWriter> {
        let (bucket, note) = (self.bucket.clone(), note.to_owned());
        let claim = async move {
            bucket.require_conditional_puts(session).await?;
            ChunkWriter::claim(ChunkReader::new(bucket, session), &note, &mut each).await
        };
        self.writer_of(claim)
    }

    /// Runs a future that claims, and returns the writer.
    pub(crate) fn writer_of(
        &self,
        claim: impl Future<Output = Result<ChunkWriter>> + Send + 'static,
    ) -> Result<RemoteWriter> {
        let writer = self.runtime.run(claim)??;
        Ok(RemoteWriter { writer: Some(writer), runtime: self.runtime.clone() })
    }

    pub(crate) fn with_clock(self, read: impl Fn() -> Duration + Send + Sync + 'static) -> Remote {
        Remote { bucket: self.bucket.with_clock(read), ..self }
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the location of the sessions, for callers that have a runtime.
    pub fn bucket(&self) -> &Bucket {
        &self.bucket
    }
}

/// Appends to one session, for blocking callers. See [`ChunkWriter`].
#[derive(Debug)]
pub struct RemoteWriter {
    /// `None` once the thread has lost it.
    writer: Option<ChunkWriter>,
    runtime: Runtime,
}

impl RemoteWriter {
    /// Appends records, as [`ChunkWriter::append`] does, and returns the sequence number after the
    /// last one.
    ///
    /// # Errors
    ///
    /// The errors of [`ChunkWriter::append`], and [`Error::NoRuntime`].
    pub fn append<'a>(&mut self, records: impl IntoIterator<Item = Record<'a>>) -> Result<SequenceNumber> {
        self.append_with(None, records)
    }

    /// Appends records with the data of their captures: packs that the store has, and the bytes of
    /// one more, which may be empty. `None` appends them without their captures.
    ///
    /// # Errors
    ///
    /// The errors of [`RemoteWriter::append`], and [`Error::TooLarge`] for the data of captures.
    pub fn append_with<'a>(
        &mut self,
        mut captures: Option<(&[ObjectId], &[u8])>,
        records: impl IntoIterator<Item = Record<'a>>,
    ) -> Result<SequenceNumber> {
        let mut records = records.into_iter().peekable();
        loop {
            let next = self.settle()?;
            if records.peek().is_none() {
                return Ok(next);
            }
            self.writer.as_mut().ok_or(Error::NoRuntime)?.queue(captures, &mut records)?;
            // The first chunk contains the captures of all.
            captures = captures.map(|_| (&[][..], &[][..]));
        }
    }

    /// Puts records that are still in doubt, as [`ChunkWriter::settle`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`ChunkWriter::settle`], and [`Error::NoRuntime`].
    pub fn settle(&mut self) -> Result<SequenceNumber> {
        let mut writer = self.writer.take().ok_or(Error::NoRuntime)?;
        let (writer, settled) = self.runtime.run(async move {
            let settled = writer.settle().await;
            (writer, settled)
        })?;
        self.writer = Some(writer);
        settled
    }

    /// Ends the writer, as [`ChunkWriter::finish`] does.
    pub fn finish(mut self) {
        if let Some(writer) = self.writer.take() {
            // Without a thread nothing is put.
            let _ = self.runtime.run(writer.finish());
        }
    }

    /// Returns the writer itself, for queries that need no store: its chain, and whether records
    /// are in doubt. `None` once the thread has lost it, which [`Error::NoRuntime`] reported.
    pub fn writer(&self) -> Option<&ChunkWriter> {
        self.writer.as_ref()
    }

    /// Returns the writer's id and epoch.
    pub fn writer_and_epoch(&self) -> Option<(WriterId, Epoch)> {
        self.writer.as_ref().map(|writer| (writer.id(), writer.epoch()))
    }
}

//! The blocking forms, for hosts without an async runtime: each runs on the thread of a [`Runtime`].

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

/// Names a place of sessions in an object store, for callers that block. What reads chunks runs on the thread that speaks
/// to the store, so it hands on what it wants to keep.
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
/// let record = |sequence: u64, body| Record { sequence: sequence.into(), kind: RecordKind::OBSERVED, time_us: 0, body };
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
    /// Names the place beneath `prefix` in `store`, and starts a thread that speaks to it. Asks the store for nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Prefix`] and [`Error::NoRuntime`].
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str, retries: Retries) -> Result<Remote> {
        Ok(Remote { bucket: Bucket::new(store, prefix, retries)?, runtime: Runtime::start()? })
    }

    /// Has errors name the place by a URL, in which no password stands.
    pub(crate) fn at(self, place: &str) -> Remote {
        Remote { bucket: self.bucket.at(place), ..self }
    }

    /// Reads a session's log from its beginning to its end, handing each chunk to `each`, and returns where it ends. Writes
    /// nothing.
    ///
    /// # Errors
    ///
    /// Those of [`ChunkReader::read_to_end`].
    pub fn read(&self, session: Uuid, each: impl FnMut(&Chunk<'_>) + Send + 'static) -> Result<Chain> {
        self.read_behind(Chain::new(session), each)
    }

    /// Reads on behind a chain that was read before, once the store still has that chain's last chunk.
    ///
    /// # Errors
    ///
    /// Those of [`ChunkReader::resume`] and [`ChunkReader::read_to_end`].
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
    /// Those of [`Bucket::sessions`].
    pub fn sessions(&self) -> Result<Vec<Uuid>> {
        let bucket = self.bucket.clone();
        self.runtime.run(async move { bucket.sessions().await })?
    }

    /// Finds out whether the store is fit for writers, reads the log to its end, handing each chunk to `each`, and claims
    /// the session.
    ///
    /// # Errors
    ///
    /// Those of [`Bucket::require_conditional_puts`] and [`ChunkWriter::claim`].
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

    /// Claims by a future, and returns the writer.
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

    /// Returns where the sessions are, for callers that have a runtime.
    pub fn bucket(&self) -> &Bucket {
        &self.bucket
    }
}

/// Appends to one session, for callers that block. See [`ChunkWriter`].
#[derive(Debug)]
pub struct RemoteWriter {
    /// `None` once the thread has lost it.
    writer: Option<ChunkWriter>,
    runtime: Runtime,
}

impl RemoteWriter {
    /// Appends records, as [`ChunkWriter::append`] does, and returns the sequence number behind the last one.
    ///
    /// # Errors
    ///
    /// Those of [`ChunkWriter::append`], and [`Error::NoRuntime`].
    pub fn append<'a>(&mut self, records: impl IntoIterator<Item = Record<'a>>) -> Result<SequenceNumber> {
        self.append_with(None, records)
    }

    /// Appends records with what their captures add: packs that the store has, and the bytes of one more, which may be none. `None`
    /// appends them without their captures.
    ///
    /// # Errors
    ///
    /// Those of [`RemoteWriter::append`], and [`Error::TooLarge`] for what captures add.
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
            // The first chunk has them, for the others too.
            captures = captures.map(|_| (&[][..], &[][..]));
        }
    }

    /// Puts what is still in doubt, as [`ChunkWriter::settle`] does.
    ///
    /// # Errors
    ///
    /// Those of [`ChunkWriter::settle`], and [`Error::NoRuntime`].
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
            // Without a thread nobody puts anything.
            let _ = self.runtime.run(writer.finish());
        }
    }

    /// Returns the writer itself, for what needs no store: where it stands, and what is in doubt. `None` once the thread
    /// has lost it, which [`Error::NoRuntime`] reported.
    pub fn writer(&self) -> Option<&ChunkWriter> {
        self.writer.as_ref()
    }

    /// Returns the writer's id and epoch.
    pub fn writer_and_epoch(&self) -> Option<(WriterId, Epoch)> {
        self.writer.as_ref().map(|writer| (writer.id(), writer.epoch()))
    }
}

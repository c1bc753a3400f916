//! Sends requests to an object store. Each request is bounded in time and size, and sent once, or
//! several times within [`Retries`].
//!
//! The protocol relies on three operations only: create an object that does not exist, read an
//! object, and detect that an object does not exist. It uses no update, no rename, no list. Lists
//! have three other users: [`Bucket::sessions`], which shows people the existing sessions; a
//! process that watches a lease, which does not affect safety; and a collection, which removes only
//! those listed objects that may be removed. This module turns a store's own messages into a
//! [`RemoteFailure`], and drops them.
//!
//! Keys, below the prefix of the [`Bucket`]:
//!
//! ```text
//! sessions/{session}/log/{chunk:020}     a chunk
//! sessions/{session}/volumes/{number of chunks}/{first chunk:020}
//!                                        a volume
//! sessions/{session}/collected/{first chunk:020}
//!                                        a mark: the small volume's chunks are removed
//! sessions/{session}/compactions/{number:020}
//!                                        a compaction, from 1 on
//! sessions/{session}/compacted/{compaction:020}/{first chunk:020}/{hash}
//!                                        a compacted volume of it
//! sessions/{session}/objects/{hash}      a payload that the local log stores out of line, under its
//!                                        local name; or a pack of captures of workspaces
//! sessions/{session}/objects/{hash}.{n}  the same, put again after n of its names were withdrawn
//! sessions/{session}/withdrawn/{number:020}
//!                                        a withdrawal, from 1 on
//! sessions/{session}/lease/{epoch:020}   the worker with the claim's lease (`leases`)
//! leases/{worker}/{renewal:020}          a renewal of a worker's lease
//! sessions/{session}/probe/{random}      tests whether puts are conditional; removed at once
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use foldlog_codec::body::ObjectId;
use foldlog_codec::escape;
use futures_lite::{StreamExt, stream};
use object_store::local::LocalFileSystem;
use object_store::path::{Path, PathPart};
use object_store::{GetResult, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tokio::time;
use uuid::Uuid;

use super::exchange::{self, Exchange};
use super::payloads::Withdrawn;
use crate::chunk::ChunkHash;
use crate::clock::Clock;
use crate::compaction::CompactedVolume;
use crate::error::{Error, FailureDetails, Reason, RemoteFailure, Result, ServerAnswer};
use crate::retries::{Attempts, Retries};
use crate::volume::{Extent, SPANS, VOLUME_BYTES_MAX, encoded_len};
use crate::withdrawal::Name;

/// Describes the location of sessions in an object store.
#[derive(Clone)]
pub struct Bucket {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    /// URL of the place in errors; `None` for a store that the host created.
    place: Option<Arc<str>>,
    pub(crate) retries: Retries,
    pub(crate) clock: Clock,
    /// The store, if it is a local directory.
    files: Option<Arc<LocalFileSystem>>,
    /// Numbers of chunks in small and large volumes.
    pub(crate) spans: [u64; 2],
    volume_bytes: u64,
    /// Withdrawn names of payloads, as far as readers know them, by session.
    withdrawn: Arc<Mutex<BTreeMap<Uuid, Arc<Withdrawn>>>>,
}

impl fmt::Debug for Bucket {
    /// Formats only the prefix: a store's own form may contain an address with a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bucket").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// Describes the outcome of one put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PutOutcome {
    /// The object did not exist, and was created.
    Created,
    /// The store reports that the object exists. An earlier attempt may have put it. S3 also
    /// reports this during another put, which may still fail.
    Exists,
    /// The put failed, or its answer was lost: the object may exist, now or later, or not.
    Failed(Reason),
}

impl Bucket {
    /// Describes the location beneath `prefix` in `store`. An empty prefix means the whole store.
    ///
    /// # Errors
    ///
    /// [`Error::Prefix`] if the prefix does not consist of names with `/` between them.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str, retries: Retries) -> Result<Bucket> {
        let volume_bytes = VOLUME_BYTES_MAX as u64;
        let path = Path::parse(prefix).map_err(|_| Error::Prefix { prefix: prefix.to_owned() })?;
        Ok(Bucket {
            store,
            prefix: path,
            place: None,
            retries,
            clock: Clock::default(),
            files: None,
            spans: SPANS,
            volume_bytes,
            withdrawn: Arc::default(),
        })
    }

    /// Describes sessions in a local directory. Every object there has to be a regular file: a pipe
    /// in place of an object would block for ever, and `object_store` reports a directory as a
    /// missing object, so that a log would seem to end there.
    ///
    /// # Errors
    ///
    /// That of `object_store` if there is no such directory.
    pub(crate) fn in_directory(path: PathBuf, retries: Retries) -> object_store::Result<Result<Bucket>> {
        // Objects that are put into it are durable.
        let files = Arc::new(LocalFileSystem::new_with_prefix(path)?.with_fsync(true));
        let bucket = Bucket::new(Arc::clone(&files) as _, "", retries);
        Ok(bucket.map(|bucket| Bucket { files: Some(files), ..bucket }))
    }

    /// Refuses an entry of a local directory that is not a regular file.
    fn check_file(&self, key: &Path) -> Result<(), RequestFailure> {
        let path = self.files.as_ref().and_then(|files| files.path_to_filesystem(key).ok());
        match path.map(fs::metadata) {
            Some(Ok(found)) if !found.is_file() => {
                Err(RequestFailure::Failed(RemoteFailure::NotAFile.into()))
            }
            // Opening a missing or inaccessible path reports its own error.
            _ => Ok(()),
        }
    }

    /// Sets the URL of the place in errors. It must not contain a password.
    pub(crate) fn at(self, place: &str) -> Bucket {
        Bucket { place: Some(escape::text(place).into()), ..self }
    }

    /// Starts to count the attempts of one request.
    pub(crate) fn begin(&self) -> Attempts {
        self.retries.begin(self.place.as_ref())
    }

    /// Replaces the system's clock, which also runs while the machine sleeps, by the caller's
    /// clock. For tests, which cannot wait for days.
    pub fn with_clock(self, read: impl Fn() -> Duration + Send + Sync + 'static) -> Bucket {
        Bucket { clock: Clock::new(read), ..self }
    }

    /// Sets the numbers of chunks in small and large volumes; the second is a multiple of the
    /// first. For tests: all readers and writers of a session must use the same numbers.
    #[doc(hidden)]
    pub fn with_spans(self, spans: [u64; 2]) -> Bucket {
        Bucket { spans, ..self }
    }

    /// Sets the maximum length of a volume. For tests, as [`Bucket::with_spans`].
    #[doc(hidden)]
    pub fn with_volume_bytes(self, volume_bytes: u64) -> Bucket {
        Bucket { volume_bytes, ..self }
    }

    /// Returns whether `count` chunks of `bytes` bytes in total may form a volume.
    pub(crate) fn has_volume_of(&self, count: u64, bytes: u64) -> bool {
        encoded_len(count, bytes) <= self.volume_bytes
    }

    /// Returns the known withdrawn names of a session's payloads.
    pub(crate) fn known_withdrawn(&self, session: Uuid) -> Arc<Withdrawn> {
        let known = crate::lock(&self.withdrawn);
        known.get(&session).cloned().unwrap_or_default()
    }

    pub(crate) fn note_withdrawn(&self, session: Uuid, known: Withdrawn) {
        crate::lock(&self.withdrawn).insert(session, Arc::new(known));
    }

    /// Returns the time of the clock that also runs while the machine sleeps.
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Returns the key of a chunk.
    pub fn chunk_key(&self, session: Uuid, number: u64) -> Path {
        self.key(session, "log", &format!("{number:020}"))
    }

    /// Returns the key of the volume of these chunks.
    pub fn volume_key(&self, session: Uuid, extent: Extent) -> Path {
        let (count, first) = (extent.count.to_string(), format!("{:020}", extent.first));
        self.key_of(&["sessions", &session.to_string(), "volumes", &count, &first])
    }

    /// Returns the key of the mark for the removed chunks of a small volume.
    pub fn mark_key(&self, session: Uuid, extent: Extent) -> Path {
        self.key(session, "collected", &format!("{:020}", extent.first))
    }

    /// Returns the key of the compaction with this number.
    pub fn compaction_key(&self, session: Uuid, number: u64) -> Path {
        self.key(session, "compactions", &format!("{number:020}"))
    }

    /// Returns the key of a volume of the compaction with this number.
    pub fn compacted_key(&self, session: Uuid, number: u64, volume: &CompactedVolume) -> Path {
        let (number, first) = (format!("{number:020}"), format!("{:020}", volume.extent.first));
        let hash = ChunkHash(volume.hash).to_string();
        self.key_of(&["sessions", &session.to_string(), "compacted", &number, &first, &hash])
    }

    /// Returns the key of a payload that the local log stores out of line, or of a pack, under its
    /// first name.
    pub fn object_key(&self, session: Uuid, object: ObjectId) -> Path {
        self.payload_key(session, Name { hash: object.hash, before: 0 })
    }

    /// Returns the key of a payload or a pack under one of its names.
    pub fn payload_key(&self, session: Uuid, name: Name) -> Path {
        self.key(session, "objects", &name.to_string())
    }

    /// Returns the key of the withdrawal with this number.
    pub fn withdrawal_key(&self, session: Uuid, number: u64) -> Path {
        self.key(session, "withdrawn", &format!("{number:020}"))
    }

    /// Returns the ids of the sessions that the store lists, in ascending order. The list may lack
    /// objects that were put just now; no other operation relies on a list.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    pub async fn sessions(&self) -> Result<Vec<Uuid>> {
        let directory = self.key_of(&["sessions"]);
        // A list comes in pages of a thousand.
        let within = self.retries.request_timeout.saturating_mul(LIST_PAGES);
        let list = async || Ok(request(within, self.store.list_with_delimiter(Some(&directory))).await?);
        let found = self.retry("list the sessions", list).await?;
        let names = found.common_prefixes.iter().filter_map(|directory| directory.filename());
        let mut sessions: Vec<Uuid> = names.filter_map(|name| Uuid::try_parse(name).ok()).collect();
        sessions.sort_unstable();
        Ok(sessions)
    }

    /// Sends a request in several attempts. `what` describes it in an error.
    async fn retry<T, F>(&self, what: &'static str, request: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T, RequestFailure>>,
    {
        let mut attempts = self.begin();
        while attempts.wait_for_next().await {
            match request().await {
                Ok(answer) => return Ok(answer),
                Err(RequestFailure::Failed(reason)) => attempts.note_failure(reason),
                Err(RequestFailure::Final(error)) => return Err(*error),
            }
        }
        Err(attempts.error(what))
    }

    fn key(&self, session: Uuid, directory: &str, name: &str) -> Path {
        self.key_of(&["sessions", &session.to_string(), directory, name])
    }

    /// Returns the key of a path beneath the prefix.
    pub(crate) fn key_of(&self, below: &[&str]) -> Path {
        let below = below.iter().map(|name| PathPart::from(*name));
        self.prefix.parts().map(|part| PathPart::from(part.as_ref().to_owned())).chain(below).collect()
    }

    /// Tries to remove an object. Nothing may depend on whether that succeeds.
    pub(crate) async fn remove(&self, key: &Path) {
        let _ = time::timeout(self.retries.request_timeout, self.store.delete(key)).await;
    }

    /// Returns the object directly beneath a directory whose name is the greatest number, with that
    /// number and the store's time of its put, in microseconds since 1970; `None` if there is none.
    /// Does not rely on the order of the list.
    pub(crate) async fn greatest(&self, directory: &Path, what: &'static str) -> Result<Option<(u64, i64)>> {
        let find = async || {
            let (mut greatest, mut listed) = (None, self.store.list(Some(directory)));
            while let Some(object) = listed.next().await {
                let object = object?;
                let number = object.location.filename().and_then(|name| name.parse::<u64>().ok());
                let found = number.map(|number| (number, object.last_modified.timestamp_micros()));
                greatest = greatest.max(found);
            }
            Ok(greatest)
        };
        let within = self.retries.request_timeout.saturating_mul(LIST_PAGES);
        self.retry(what, async || Ok(request(within, find()).await?)).await
    }

    /// Puts an object that must not exist, once.
    pub(crate) async fn put_once(&self, key: &Path, payload: &PutPayload) -> PutOutcome {
        let options = PutOptions::from(PutMode::Create);
        let put = self.store.put_opts(key, payload.clone(), options);
        match request(self.retries.timeout_of(payload.content_length() as u64), put).await {
            Ok(_) => PutOutcome::Created,
            Err(refusal) if refusal.exists => PutOutcome::Exists,
            Err(refusal) => PutOutcome::Failed(refusal.reason),
        }
    }

    /// Reads an object of up to `max` bytes, once; returns `None` if it does not exist.
    pub(crate) async fn get_once(&self, key: &Path, max: usize) -> Result<Option<Vec<u8>>, RequestFailure> {
        self.check_file(key)?;
        let get = async {
            let found = with_timeout(self.retries.request_timeout, self.store.get(key)).await?;
            let bound = self.retries.timeout_of(found.meta.size.min(max as u64));
            with_timeout(bound, read(found, max)).await
        };
        match explain_refusal(get).await {
            Ok(read) => read.map(Some),
            Err(refusal) if refusal.is_missing => Ok(None),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Reads an object of up to `max` bytes, in several attempts; returns `None` if it does not
    /// exist. `what` describes the request in an error.
    pub(crate) async fn get(&self, key: &Path, max: usize, what: &'static str) -> Result<Option<Vec<u8>>> {
        self.retry(what, || self.get_once(key, max)).await
    }

    /// Creates an object whose bytes are the same for all creators; returns whether it was created
    /// now.
    pub(crate) async fn create(&self, key: &Path, payload: PutPayload, what: &'static str) -> Result<bool> {
        let put = async || match self.put_once(key, &payload).await {
            PutOutcome::Created => Ok(true),
            PutOutcome::Exists => match self.size(key, what).await? {
                Some(_) => Ok(false),
                None => Err(RequestFailure::Failed(RemoteFailure::Conflict.into())),
            },
            PutOutcome::Failed(reason) => Err(RequestFailure::Failed(reason)),
        };
        self.retry(what, put).await
    }

    /// Creates an object that a concurrent process may create with other bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Store`], with [`RemoteFailure::Overtaken`] if the other process was first.
    pub(crate) async fn create_alone(&self, key: &Path, bytes: Vec<u8>, what: &'static str) -> Result<()> {
        self.create(key, PutPayload::from(bytes.clone()), what).await?;
        match self.get(key, bytes.len(), what).await {
            Ok(Some(found)) if found == bytes => Ok(()),
            Ok(_) | Err(Error::TooLarge { .. }) => Err(self.begin().end(what, RemoteFailure::Overtaken)),
            Err(error) => Err(error),
        }
    }

    /// Reads an object and decodes it. If that fails, reads it a second time, since the bytes may
    /// have been damaged in transit. Returns `None` if it does not exist.
    pub(crate) async fn get_decoded<T>(
        &self,
        key: &Path,
        max: usize,
        what: &'static str,
        decode: impl Fn(&[u8]) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut unusable = None;
        for _ in 0..2 {
            let Some(bytes) = self.get(key, max, what).await? else { break };
            match decode(&bytes) {
                Ok(decoded) => return Ok(Some(decoded)),
                Err(error) => unusable = Some(error),
            }
        }
        unusable.map_or(Ok(None), Err)
    }

    /// Lists the objects beneath a directory of a session.
    pub(crate) async fn list_objects(
        &self,
        session: Uuid,
        directory: &str,
        what: &'static str,
    ) -> Result<Vec<ObjectMeta>> {
        let directory = self.key_of(&["sessions", &session.to_string(), directory]);
        let list = async || {
            let (mut list, mut listed) = (self.store.list(Some(&directory)), Vec::new());
            let mut next = async || request(self.retries.request_timeout, list.try_next()).await;
            while let Some(found) = next().await? {
                listed.push(found);
            }
            Ok(listed)
        };
        self.retry(what, list).await
    }

    /// Returns the time of the store's clock, from an object that is put now.
    pub(crate) async fn store_time(&self, session: Uuid) -> Result<DateTime<Utc>> {
        let key = self.key(session, "probe", &Uuid::new_v4().simple().to_string());
        let time = async {
            self.create(&key, PutPayload::from_static(FIRST), AGES).await?;
            let missing = || self.begin().error(AGES);
            Ok(self.head(&key, AGES).await?.ok_or_else(missing)?.last_modified)
        }
        .await;
        // If this fails, a few bytes remain under a name that is never read.
        self.remove(&key).await;
        time
    }

    /// Returns the age of an object at `time`, by the store's clock alone; 0 for one that is
    /// missing or newer.
    pub(crate) async fn age(&self, key: &Path, time: DateTime<Utc>) -> Result<Duration> {
        let found = self.head(key, AGES).await?;
        Ok(found.map(|found| age_at(time, found.last_modified)).unwrap_or_default())
    }

    /// Puts the mark of a range, unless it exists.
    pub(crate) async fn mark(&self, session: Uuid, extent: Extent, what: &'static str) -> Result<()> {
        let mark = PutPayload::from_static(MARK);
        self.create(&self.mark_key(session, extent), mark, what).await.map(drop)
    }

    /// Removes objects. A missing one is no error.
    pub(crate) async fn remove_all(&self, keys: Vec<Path>, what: &'static str) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let remove = async || {
            let paths = stream::iter(keys.clone().into_iter().map(Ok)).boxed();
            let mut removed = self.store.delete_stream(paths);
            loop {
                match request(self.retries.request_timeout, removed.try_next()).await {
                    Ok(Some(_)) => {}
                    Ok(None) => return Ok(()),
                    Err(refusal) if refusal.is_missing => {}
                    Err(refusal) => return Err(refusal.into()),
                }
            }
        };
        self.retry(what, remove).await
    }

    /// Returns the length of an object in bytes; `None` if it does not exist. `what` describes the
    /// request in an error.
    pub(crate) async fn size(&self, key: &Path, what: &'static str) -> Result<Option<u64>> {
        Ok(self.head(key, what).await?.map(|found| found.size))
    }

    /// Returns the store's metadata of an object; `None` if it does not exist.
    pub(crate) async fn head(&self, key: &Path, what: &'static str) -> Result<Option<ObjectMeta>> {
        let head = async || {
            self.check_file(key)?;
            match request(self.retries.request_timeout, self.store.head(key)).await {
                Ok(found) => Ok(Some(found)),
                Err(refusal) if refusal.is_missing => Ok(None),
                Err(refusal) => Err(refusal.into()),
            }
        };
        self.retry(what, head).await
    }

    /// Checks that this store supports conditional puts, with a probe object: the first put must
    /// create it, and the second must not replace it.
    ///
    /// # Errors
    ///
    /// [`Error::NoConditionalPuts`] if the second put replaces the object, or the store does not
    /// support such puts; [`Error::Store`] if the store does not answer, or the credentials do not
    /// permit it.
    pub async fn require_conditional_puts(&self, session: Uuid) -> Result<()> {
        let key = self.key(session, "probe", &Uuid::new_v4().simple().to_string());
        let answer = async {
            self.put_probe(&key, FIRST).await?;
            self.put_probe(&key, SECOND).await?;
            match self.get(&key, FIRST.len().max(SECOND.len()), PROBE).await? {
                Some(found) if found == FIRST => Ok(()),
                Some(_) => Err(Error::NoConditionalPuts),
                None => Err(self.begin().error(PROBE)),
            }
        }
        .await;
        // If this fails, a few bytes remain under a name that is never read.
        self.remove(&key).await;
        answer
    }

    /// Puts the probe until the store reports that it was created, or that it exists and a read
    /// confirms that.
    async fn put_probe(&self, key: &Path, bytes: &'static [u8]) -> Result<()> {
        let payload = PutPayload::from_static(bytes);
        let put = async || match self.put_once(key, &payload).await {
            PutOutcome::Created if bytes == SECOND => Err(Error::NoConditionalPuts.into()),
            PutOutcome::Created => Ok(()),
            PutOutcome::Exists => match self.get(key, FIRST.len().max(SECOND.len()), PROBE).await? {
                Some(_) => Ok(()),
                None => Err(RequestFailure::Failed(RemoteFailure::Conflict.into())),
            },
            PutOutcome::Failed(Reason { failure: RemoteFailure::Unsupported, .. }) => {
                Err(Error::NoConditionalPuts.into())
            }
            PutOutcome::Failed(reason) => Err(RequestFailure::Failed(reason)),
        };
        self.retry(PROBE, put).await
    }
}

/// Returns the time from `modified` to `time`; 0 if `modified` is later.
pub(crate) fn age_at(time: DateTime<Utc>, modified: DateTime<Utc>) -> Duration {
    time.signed_duration_since(modified).to_std().unwrap_or_default()
}

/// Time limit of a list, as a multiple of that of one attempt.
const LIST_PAGES: u32 = 10;

const MARK: &[u8] = b"foldlog: chunks of this range are removed, and stand in its volume\n";
const FIRST: &[u8] = b"foldlog: first put\n";
const SECOND: &[u8] = b"foldlog: second put, which must not happen\n";
const AGES: &str = "determine the age of objects";
const PROBE: &str = "find out whether the store supports conditional puts";

/// Describes why an attempt of a request had no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestFailure {
    /// The request failed.
    Failed(Reason),
    /// The answer shows that a repetition is useless.
    Final(Box<Error>),
}

impl From<BucketRefusal> for RequestFailure {
    fn from(refusal: BucketRefusal) -> RequestFailure {
        RequestFailure::Failed(refusal.reason)
    }
}

impl From<Error> for RequestFailure {
    fn from(error: Error) -> RequestFailure {
        RequestFailure::Final(Box::new(error))
    }
}

async fn request<T>(
    bound: Duration,
    request: impl Future<Output = object_store::Result<T>>,
) -> Result<T, BucketRefusal> {
    explain_refusal(with_timeout(bound, request)).await
}

/// Waits for an answer for the time `bound`; the error is `None` after a timeout.
async fn with_timeout<T>(
    bound: Duration,
    request: impl Future<Output = object_store::Result<T>>,
) -> Result<T, Option<object_store::Error>> {
    time::timeout(bound, request).await.map_err(|_| None)?.map_err(Some)
}

/// Runs a bounded request, and explains its failure.
async fn explain_refusal<T>(
    request: impl Future<Output = Result<T, Option<object_store::Error>>>,
) -> Result<T, BucketRefusal> {
    let (answer, exchange) = exchange::track_exchange(request).await;
    answer.map_err(|error| BucketRefusal::from_error(error.as_ref(), exchange))
}

/// The meaning of a store's error.
struct BucketRefusal {
    /// Whether the store reports that there is no such object. A missing bucket does not count,
    /// since it does not imply that an object is missing.
    is_missing: bool,
    /// Whether the store reports that there is such an object already.
    exists: bool,
    reason: Reason,
}

impl BucketRefusal {
    /// Interprets an error; `None` means a timeout.
    fn from_error(error: Option<&object_store::Error>, exchange: Exchange) -> BucketRefusal {
        use object_store::Error::{AlreadyExists, NotFound, NotModified, Precondition};

        let Exchange { host, answer, failure } = exchange;
        let named = error.and_then(named_failure);
        let failure = named.or(failure).or_else(|| answered_failure(answer.as_ref()?));
        let failure = failure.unwrap_or_else(|| error.map_or(RemoteFailure::TimedOut, failure_of));
        BucketRefusal {
            is_missing: named.is_none() && matches!(error, Some(NotFound { .. })),
            exists: matches!(error, Some(AlreadyExists { .. } | Precondition { .. } | NotModified { .. })),
            reason: Reason { failure, details: FailureDetails { place: None, host, answer } },
        }
    }
}

/// Reads the content of an object as it arrives: no length that a store or an object claims decides
/// how much memory is allocated.
async fn read(found: GetResult, max: usize) -> object_store::Result<Result<Vec<u8>, RequestFailure>> {
    let too_large = |len| Ok(Err(Error::TooLarge { what: "object", len, max: max as u64 }.into()));
    let size = found.meta.size;
    if size > max as u64 {
        return too_large(size);
    }
    let mut stream = found.into_stream();
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await {
        let piece = piece?;
        let len = bytes.len() + piece.len();
        if len > max {
            return too_large(len as u64);
        }
        bytes.extend_from_slice(&piece);
    }
    // An answer may break off without an error.
    let is_whole = bytes.len() as u64 == size;
    let broke_off = || RequestFailure::Failed(RemoteFailure::Unavailable.into());
    Ok(is_whole.then_some(bytes).ok_or_else(broke_off))
}

/// Interprets a status. `object_store` does not interpret one that answers a list.
fn answered_failure(answer: &ServerAnswer) -> Option<RemoteFailure> {
    match answer {
        ServerAnswer::Http { status: 401 | 403, .. } => Some(RemoteFailure::Denied),
        ServerAnswer::Http { status: 429 | 503, .. } => Some(RemoteFailure::Busy),
        _ => None,
    }
}

/// Converts a store's error to a failure of this crate.
fn failure_of(error: &object_store::Error) -> RemoteFailure {
    match error {
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            RemoteFailure::Denied
        }
        object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => {
            RemoteFailure::Unsupported
        }
        object_store::Error::NotFound { .. } => RemoteFailure::Missing,
        object_store::Error::AlreadyExists { .. } => RemoteFailure::Conflict,
        _ => RemoteFailure::Unavailable,
    }
}

/// Searches a store's message for known words, and drops it. A key cannot contain these words,
/// since it is encoded in the text of an error.
fn named_failure(error: &object_store::Error) -> Option<RemoteFailure> {
    const NAMED: [(&[&str], RemoteFailure); 5] = [
        (&["<Code>NoSuchBucket</Code>", "<Code>ContainerNotFound</Code>"], RemoteFailure::Missing),
        (
            &[
                "<Code>PermanentRedirect</Code>",
                "<Code>AuthorizationHeaderMalformed</Code>",
                "<Code>IllegalLocationConstraintException</Code>",
                "redirect without LOCATION",
                "status code: 301 ",
                "status code: 307 ",
                "status code: 308 ",
            ],
            RemoteFailure::Elsewhere,
        ),
        (
            &["<Code>ExpiredToken</Code>", "<Code>InvalidToken</Code>", "<Code>InvalidAccessKeyId</Code>"],
            RemoteFailure::Denied,
        ),
        (&["<Code>RequestTimeTooSkewed</Code>"], RemoteFailure::ClockSkew),
        // Addresses from which machines of a provider get their keys.
        (&["//169.254.169.254", "//metadata.google.internal", "//metadata/"], RemoteFailure::NoCredentials),
    ];
    let text = error.to_string();
    let is_in = |words: &[&str]| words.iter().any(|word| text.contains(word));
    NAMED.iter().find(|(words, _)| is_in(words)).map(|(_, failure)| *failure)
}

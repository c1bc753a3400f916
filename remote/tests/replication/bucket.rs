//! A bucket in memory that fails on demand, and shows its contents.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use foldlog_remote::chunk::Chunk;
use foldlog_remote::{Remote, Retries};
use futures_lite::stream::Boxed;
use futures_lite::{StreamExt, future};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetResult, ObjectStore, ObjectStoreExt, PutOptions, PutPayload, PutResult, Result,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use crate::requests::{Answered, Requests};

/// Limits with which a test sees a failure at once.
pub(crate) fn retries() -> Retries {
    Retries {
        within: Duration::ZERO,
        attempts: 2,
        request_timeout: Duration::from_secs(10),
        first_wait: Duration::from_millis(1),
        longest_wait: Duration::from_millis(1),
    }
}

/// A bucket that several workers share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bucket {
    held: Arc<InMemory>,
    switches: Arc<Switches>,
}

#[derive(Debug, Default)]
struct Switches {
    gate: Gate,
    refuses_puts: AtomicBool,
    /// Refuses puts of keys that contain this text, unless it is empty.
    refused: Mutex<String>,
    /// Delays puts of keys that contain this text, unless it is empty.
    slow: Mutex<String>,
    puts: AtomicU64,
    put_bytes: AtomicU64,
    reads: AtomicU64,
    before_answer: BeforeAnswer,
}

/// Runs once after the next put of a chunk, before its answer.
#[derive(Default)]
struct BeforeAnswer(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl fmt::Debug for BeforeAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BeforeAnswer").finish_non_exhaustive()
    }
}

/// Admits one put after the other, while it is open.
#[derive(Debug)]
struct Gate(Arc<Semaphore>);

impl Default for Gate {
    fn default() -> Gate {
        Gate(Arc::new(Semaphore::new(1)))
    }
}

/// One record in a bucket.
pub(crate) type HeldRecord = (u64, String, Vec<u8>);

impl Bucket {
    pub(crate) fn refuse_puts(&self, refuse: bool) {
        self.switches.refuses_puts.store(refuse, Ordering::SeqCst);
    }

    /// Leaves puts unanswered until the returned permit is dropped.
    pub(crate) fn leave_puts_unanswered(&self) -> OwnedSemaphorePermit {
        future::block_on(Arc::clone(&self.switches.gate.0).acquire_owned()).unwrap()
    }

    /// Refuses puts of keys that contain `part`.
    pub(crate) fn refuse_puts_of(&self, part: &str) {
        part.clone_into(&mut self.switches.refused.lock().unwrap());
    }

    /// Delays puts of keys that contain `part` until all other tasks had many turns.
    pub(crate) fn put_slowly(&self, part: &str) {
        part.clone_into(&mut self.switches.slow.lock().unwrap());
    }

    /// Runs `act` after the next put of a chunk, before its answer.
    pub(crate) fn before_answering_next_chunk(&self, act: impl FnOnce() + Send + 'static) {
        *self.switches.before_answer.0.lock().unwrap() = Some(Box::new(act));
    }

    /// Returns the number of reads so far.
    pub(crate) fn reads(&self) -> u64 {
        self.switches.reads.load(Ordering::SeqCst)
    }

    pub(crate) fn puts(&self) -> u64 {
        self.switches.puts.load(Ordering::SeqCst)
    }

    /// Returns the number of bytes in all puts so far.
    pub(crate) fn put_bytes(&self) -> u64 {
        self.switches.put_bytes.load(Ordering::SeqCst)
    }

    /// Returns the keys that contain `part`.
    pub(crate) fn keys(&self, part: &str) -> Vec<Path> {
        let listed = future::block_on(self.held.list(None).collect::<Vec<_>>());
        let keys = listed.into_iter().map(|found| found.unwrap().location);
        keys.filter(|key| key.as_ref().contains(part)).collect()
    }

    pub(crate) fn bytes(&self, key: &Path) -> Vec<u8> {
        future::block_on(async { self.held.get(key).await.unwrap().bytes().await.unwrap() }).to_vec()
    }

    /// Replaces the bytes of an object, or removes it.
    pub(crate) fn exchange(&self, key: &Path, bytes: Option<Vec<u8>>) {
        match bytes {
            Some(bytes) => drop(future::block_on(self.held.put(key, bytes.into())).unwrap()),
            None => future::block_on(self.held.delete(key)).unwrap(),
        }
    }

    /// Returns a separate bucket with the current contents.
    pub(crate) fn fork(&self) -> Bucket {
        Bucket { held: Arc::new(self.held.fork()), switches: Arc::default() }
    }

    pub(crate) fn store(&self) -> Answered<Bucket> {
        Answered(self.clone())
    }

    pub(crate) fn remote(&self) -> Remote {
        Remote::new(Arc::new(self.store()), "team", retries()).unwrap()
    }

    /// Reads a session's replicated records, as any worker could.
    pub(crate) fn records(&self, session: Uuid) -> Vec<HeldRecord> {
        let mut records = Vec::new();
        let mut each = |chunk: &Chunk<'_>| {
            records.extend(
                chunk
                    .records()
                    .map(|one| (one.sequence.get(), one.kind.name().to_owned(), one.body.to_vec())),
            );
        };
        self.remote().read(session, &mut each).unwrap();
        records
    }

    pub(crate) fn kinds(&self, session: Uuid) -> Vec<String> {
        self.records(session).into_iter().map(|(_, kind, _)| kind).collect()
    }
}

#[async_trait]
impl Requests for Bucket {
    async fn create(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.switches.puts.fetch_add(1, Ordering::SeqCst);
        self.switches.put_bytes.fetch_add(payload.content_length() as u64, Ordering::SeqCst);
        let answered = self.switches.gate.0.acquire().await.unwrap();
        let slow = self.switches.slow.lock().unwrap().clone();
        if !slow.is_empty() && location.as_ref().contains(&slow) {
            for _ in 0..100_000 {
                future::yield_now().await;
            }
        }
        let part = self.switches.refused.lock().unwrap().clone();
        let is_refused = !part.is_empty() && location.as_ref().contains(&part);
        if is_refused || self.switches.refuses_puts.load(Ordering::SeqCst) {
            return Err(Error::Generic { store: "bucket", source: "down".into() });
        }
        let put = self.held.put_opts(location, payload, options).await;
        drop(answered);
        if location.as_ref().contains("/log/") {
            let act = self.switches.before_answer.0.lock().unwrap().take();
            // On a thread of its own: it may block on requests, which a runtime's thread must not.
            act.into_iter().for_each(|act| std::thread::spawn(act).join().unwrap());
        }
        put
    }

    async fn read(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.switches.reads.fetch_add(1, Ordering::SeqCst);
        self.held.get_opts(location, options).await
    }

    fn delete(&self, locations: Boxed<Result<Path>>) -> Boxed<Result<Path>> {
        self.held.delete_stream(locations)
    }
}

//! A bucket in memory that can be told to fail, and what it holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use foldlog_remote::chunk::Chunk;
use foldlog_remote::{Remote, Retries};
use futures_lite::stream::Boxed;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetResult, ObjectStore, PutOptions, PutPayload, PutResult, Result};
use uuid::Uuid;

use crate::requests::{Answered, Requests};

/// Bounds that let a test see a failure at once.
pub(crate) fn retries() -> Retries {
    Retries {
        attempts: 2,
        request_timeout: Duration::from_secs(10),
        first_wait: Duration::from_millis(1),
        longest_wait: Duration::from_millis(1),
    }
}

/// A bucket that several workers reach.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bucket {
    held: Arc<InMemory>,
    switches: Arc<Switches>,
}

#[derive(Debug, Default)]
struct Switches {
    refuses_puts: AtomicBool,
    puts: AtomicU64,
}

/// One record as a bucket holds it.
pub(crate) type HeldRecord = (u64, String, Vec<u8>);

impl Bucket {
    pub(crate) fn refuse_puts(&self, refuse: bool) {
        self.switches.refuses_puts.store(refuse, Ordering::SeqCst);
    }

    pub(crate) fn puts(&self) -> u64 {
        self.switches.puts.load(Ordering::SeqCst)
    }

    /// Returns a bucket of its own that holds what this one holds now.
    pub(crate) fn fork(&self) -> Bucket {
        Bucket { held: Arc::new(self.held.fork()), switches: Arc::default() }
    }

    /// Returns the bucket as a store.
    pub(crate) fn store(&self) -> Answered<Bucket> {
        Answered(self.clone())
    }

    pub(crate) fn remote(&self) -> Remote {
        Remote::new(Arc::new(self.store()), "team", retries()).unwrap()
    }

    /// Reads what is held of a session, as any worker could.
    pub(crate) fn records(&self, session: Uuid) -> Vec<HeldRecord> {
        let mut records = Vec::new();
        let mut each = |chunk: &Chunk<'_>| {
            records.extend(
                chunk
                    .records()
                    .map(|one| (one.sequence.get(), one.kind.name().to_owned(), one.body.to_vec())),
            );
        };
        self.remote().read_here(session, &mut each).unwrap();
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
        if self.switches.refuses_puts.load(Ordering::SeqCst) {
            return Err(Error::Generic { store: "bucket", source: "down".into() });
        }
        self.held.put_opts(location, payload, options).await
    }

    async fn read(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.held.get_opts(location, options).await
    }

    fn delete(&self, locations: Boxed<Result<Path>>) -> Boxed<Result<Path>> {
        self.held.delete_stream(locations)
    }
}

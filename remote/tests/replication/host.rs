//! A small host over a bucket in memory.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldlog::replication::Replication;
use foldlog::tools::{ExecuteOptions, ToolContext, ToolError, ToolReport};
use foldlog::{BackgroundSync, Durability, FixedClock, ResourceRegistry, Session, Store, StoreOptions};
use foldlog_remote::{LEASE_LENGTH_MAX, ObjectReplicator};

use crate::bucket::{Bucket, retries};
use crate::notes::{call, runner_over};

/// Returns a replicator whose lease no timer renews, since tests count puts.
fn replicator(bucket: &Bucket, name: &str) -> ObjectReplicator {
    let replicator = ObjectReplicator::new(Arc::new(bucket.store()), "team", name, retries()).unwrap();
    replicator.with_lease(LEASE_LENGTH_MAX).unwrap()
}

/// A clock that counts sleep, and that a test advances.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    seconds: Arc<AtomicU64>,
    /// Seconds by which each reading advances the clock.
    each: Arc<AtomicU64>,
}

impl Clock {
    pub(crate) fn advance(&self, by: Duration) {
        self.seconds.fetch_add(by.as_secs(), Ordering::SeqCst);
    }

    /// Has each reading take this long.
    pub(crate) fn read_slowly(&self, each: Duration) {
        self.each.store(each.as_secs(), Ordering::SeqCst);
    }

    fn read(&self) -> Duration {
        Duration::from_secs(self.seconds.fetch_add(self.each.load(Ordering::SeqCst), Ordering::SeqCst))
    }
}

/// Opens the store of a worker with such a clock and a lease of an hour.
pub(crate) fn store_with(directory: &tempfile::TempDir, bucket: &Bucket, name: &str, clock: &Clock) -> Store {
    let clock = clock.clone();
    let replicator = replicator(bucket, name).with_clock(move || clock.read());
    let replication = Some(Replication::new(Arc::new(replicator)));
    Store::open_with(directory.path(), StoreOptions { replication, ..StoreOptions::default() }).unwrap()
}

pub(crate) fn store_at(
    directory: &tempfile::TempDir,
    bucket: &Bucket,
    name: &str,
    durability: Durability,
) -> Store {
    let replicator = replicator(bucket, name);
    let replication = Some(Replication::new(Arc::new(replicator)));
    Store::open_with(directory.path(), StoreOptions { replication, durability, ..StoreOptions::default() })
        .unwrap()
}

/// Opens a store in which no time passes: only records that a call waits for are replicated.
pub(crate) fn timeless_store(directory: &tempfile::TempDir, bucket: &Bucket, name: &str) -> Store {
    let replicator = replicator(bucket, name);
    let options = StoreOptions {
        replication: Some(Replication::new(Arc::new(replicator))),
        background: BackgroundSync::Inline,
        clock: Arc::new(FixedClock::new(1_800_000_000_000_000)),
        ..StoreOptions::default()
    };
    Store::open_with(directory.path(), options).unwrap()
}

pub(crate) fn store(directory: &tempfile::TempDir, bucket: &Bucket, name: &str) -> Store {
    store_at(directory, bucket, name, Durability::Boundary)
}

/// Opens the same store without a replicator. `unreplicated` permits writes to replicated sessions.
pub(crate) fn plain_store(directory: &Path, unreplicated: bool) -> Store {
    Store::open_with(directory, StoreOptions { unreplicated, ..StoreOptions::default() }).unwrap()
}

/// Runs a tool that runs `act`.
pub(crate) fn run(
    session: &Session,
    act: impl Fn(&ToolContext) -> Result<(), ToolError> + Send + Sync + 'static,
) -> foldlog::Result<ToolReport> {
    call(&runner_over(session, ResourceRegistry::default(), act)?)
}

/// Recovers a session by running its open calls of that tool again.
pub(crate) fn recover_by_running_again(
    session: &Session,
    act: impl Fn(&ToolContext) -> Result<(), ToolError> + Send + Sync + 'static,
) {
    let recovered = runner_over(session, ResourceRegistry::default(), act)
        .unwrap()
        .recover(&ExecuteOptions::default())
        .unwrap();
    assert_eq!(recovered.len(), 1);
}

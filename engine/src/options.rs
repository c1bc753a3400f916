//! How stores and sessions work: durability, segments, images, who syncs.

use foldlog_codec::OperationId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::clock::{Clock, SystemClock};
use crate::log::SegmentSizes;
use crate::storage::{FileStorage, Storage, StoreAccess};

/// When a record is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// A record survives a kill of the process as soon as the call returns. A power cut loses what was not
    /// yet synced in the background: about a second, or 4 MiB.
    Process,
    /// As `Process`, and what an agent could not repeat is durable when the call returns: snapshots,
    /// rollbacks and imports, and of the kinds to come tools begun and ended, inputs, answers, turns, adapter
    /// states and settlements.
    #[default]
    Boundary,
    /// Every record is durable when the call returns.
    Every,
}

/// Who syncs what no call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BackgroundSync {
    /// One thread of the store's, started when it is first needed.
    #[default]
    Thread,
    /// The call that finds 4 MiB, or a second by the session's clock that nobody sets
    /// ([`steady_us`](crate::Clock::steady_us)), unsynced. With it and a [`FixedClock`](crate::FixedClock), one thread's
    /// calls give the same bytes each time.
    Inline,
}

/// How a store works.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The file system.
    pub storage: Arc<dyn Storage>,
    /// Who may read what the store makes from now on; the process's user alone where nothing is said.
    pub access: StoreAccess,
    /// Where sessions take the time from.
    pub clock: Arc<dyn Clock>,
    /// What session ids and seeds are drawn from; the system's entropy where nothing is said.
    pub seed: Option<u64>,
    /// The level of sessions that do not say their own.
    pub durability: Durability,
    /// How large segments are.
    pub segments: SegmentSizes,
    /// Payloads over this many bytes go into the object folder.
    pub object_bytes_min: u64,
    /// How many bytes the log has to grow by before an image is written, so that opening need not fold all
    /// records; or by twice of what the last image took, if that is more. It grows over all lives of the session, however
    /// short each is.
    pub image_bytes_min: u64,
    /// Who syncs what no call waits for.
    pub background: BackgroundSync,
    /// How long after its deadline, or after it was cancelled, an operation may still take to end before it is
    /// [stuck](crate::Session::stuck_operations), which whoever waits for it is told.
    pub grace: Duration,
}

impl Default for StoreOptions {
    /// Mapped files for the process's user alone, the system's clock and entropy, [`Durability::Boundary`], objects over 64 KiB,
    /// images every 1 MiB, a background thread, ten seconds of grace.
    fn default() -> Self {
        StoreOptions {
            storage: Arc::new(FileStorage::new()),
            access: StoreAccess::default(),
            clock: Arc::new(SystemClock),
            seed: None,
            durability: Durability::default(),
            segments: SegmentSizes::default(),
            object_bytes_min: 64 << 10,
            image_bytes_min: 1 << 20,
            background: BackgroundSync::default(),
            grace: Duration::from_secs(10),
        }
    }
}

/// What a new session is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionOptions {
    /// Its id; drawn where nothing is said.
    pub id: Option<Uuid>,
    /// Its seed; drawn where nothing is said.
    pub seed: Option<u64>,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// The session on whose behalf it is begun.
    pub parent: Option<Uuid>,
    /// The operation of the parent's on whose behalf it is begun; not looked at where there is no parent.
    pub operation: Option<OperationId>,
    /// Its level; the store's where nothing is said.
    pub durability: Option<Durability>,
}

impl SessionOptions {
    /// Adds a tag.
    #[must_use]
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> SessionOptions {
        self.tags.insert(key.into(), value.into());
        self
    }
}

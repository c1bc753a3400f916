//! Options of stores and sessions: durability, access, segments, images, compactions, background
//! work.

use foldlog_codec::{OperationId, SequenceNumber};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::clock::{Clock, SystemClock};
use crate::log::{Compression, SegmentSizes};
use crate::replication::Replication;
use crate::storage::{FileStorage, Storage, StoreAccess};

/// Defines when a record is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// A record survives a kill of the process as soon as the call returns. A power cut loses
    /// records that the background has not synced yet: about a second of records, or 4 MiB.
    Process,
    /// Records that an agent could not repeat are durable when the call returns: snapshots,
    /// rollbacks, imports, start and end records of tool calls (except the start of a call that only
    /// reads), settlements, and all records of conversations and adapter states except requests. All
    /// other records are as durable as with [`Process`](Durability::Process).
    #[default]
    Boundary,
    /// Every record is durable when the call returns.
    Every,
}

/// Defines which thread performs deferred syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BackgroundSync {
    /// The store's background thread, started when it is first needed.
    #[default]
    Thread,
    /// The call that finds 4 MiB unsynced, or a record that has been unsynced for a second of
    /// [`steady_us`](crate::Clock::steady_us). With a [`FixedClock`](crate::FixedClock), the same
    /// calls of a single thread then write the same bytes each time.
    Inline,
}

/// Defines how events that the host dispatches without a declaration are treated: events with no
/// bound reducer that are no [`dynamic_event`](crate::SessionTypesBuilder::dynamic_event).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum UndeclaredEvents {
    /// Appends the event to an implicit slice of its name, usually a STATE slice. A host can start
    /// without declarations, but a mistyped name creates a slice that is never read.
    #[default]
    Append,
    /// Fails with [`Error::UndeclaredEvent`](crate::Error::UndeclaredEvent) and records nothing,
    /// whether the event is dispatched by name or as a Rust type. Use it for bindings of other
    /// languages and bridges, whose names no compiler checks, and to detect a forgotten reducer.
    Refuse,
}

/// Contains the options of a [`Store`](crate::Store).
///
/// ```
/// use foldlog::{Durability, Store, StoreOptions};
///
/// let directory = tempfile::tempdir()?;
/// let options = StoreOptions { durability: Durability::Every, ..StoreOptions::default() };
/// let store = Store::open_with(directory.path(), options)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// File system that contains the store.
    pub storage: Arc<dyn Storage>,
    /// Users who may read the files that the store creates. Defaults to the process's user alone.
    pub access: StoreAccess,
    /// Clock of the sessions.
    pub clock: Arc<dyn Clock>,
    /// Seed for session ids and session seeds. `None` draws them from the system's entropy.
    pub seed: Option<u64>,
    /// Durability of sessions whose [`SessionOptions::durability`] is `None`.
    pub durability: Durability,
    /// Sizes of segment files, in bytes.
    pub segments: SegmentSizes,
    /// Largest payload that is stored within its record, in bytes. Larger payloads are stored in
    /// the object directory.
    pub object_bytes_min: u64,
    /// Growth of a log, in bytes, after which its session writes an image, so that opening need not
    /// fold all records. If twice the size of the last image is larger, that is the limit. Growth
    /// is counted over all openings of the session, however short each is.
    pub image_bytes_min: u64,
    /// Options of [`Store::compact_old`](crate::Store::compact_old) for each session. With `None`,
    /// it changes no session.
    pub retention: Option<CompactOptions>,
    /// Replication of the sessions' records to another place. `None` disables replication.
    pub replication: Option<Replication>,
    /// Whether replicated sessions are written without their replicator. Such records are neither
    /// replicated nor fenced. The next opening with the replicator replicates them, or, if another
    /// worker has claimed the session since, fails with
    /// [`Error::Superseded`](crate::Error::Superseded). If `false`, opening such a session fails
    /// with [`Error::Replicated`](crate::Error::Replicated). A store with a replicator uses it in
    /// either case; this option then permits it to continue sessions that are replicated elsewhere
    /// ([`Error::ReplicaElsewhere`](crate::Error::ReplicaElsewhere)).
    pub unreplicated: bool,
    /// Thread for deferred syncs.
    pub background: BackgroundSync,
    /// Time that an operation has to end after its deadline or its cancellation. After it, the
    /// operation counts as [stuck](crate::SessionCalls::stuck_operations), and calls that wait for
    /// it fail with [`Error::Stuck`](crate::Error::Stuck).
    pub grace: Duration,
    /// Longest time that a call waits for operations of other threads, for a recovery by another
    /// thread, or for a resource that another session works on. After it, the call fails with
    /// [`Error::WaitedTooLong`](crate::Error::WaitedTooLong), and no record is written. A
    /// [handle](crate::Session::waiting_at_most) or a [call](crate::tools::ExecuteOptions::wait)
    /// may have its own limit.
    pub wait: Duration,
    /// Treatment of events that the host dispatches without a declaration, by a Rust type or by
    /// name.
    pub undeclared_events: UndeclaredEvents,
    /// Limits the memory for reading a session's log when the session is opened, forked, compacted,
    /// collected or salvaged. Beyond the limit these fail with
    /// [`Error::OverBudget`](crate::Error::OverBudget), and no data is written. The memory of a
    /// session that is being written is not limited.
    pub memory: MemoryLimit,
}

/// Limits the memory for reading a log. A log can require far more memory than it has bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryLimit {
    /// No limit, for logs that the host has written itself.
    #[default]
    Unlimited,
    /// 64 MiB, and three times the bytes read from the log. The decoded form of a single record is
    /// not counted.
    OfLog,
    /// This number of bytes. A record whose decoded form exceeds the remaining budget is refused
    /// before it is decoded.
    Bytes(u64),
}

impl Default for StoreOptions {
    /// Returns the defaults: mapped files that only the process's user may read, the system's clock
    /// and entropy, [`Durability::Boundary`], objects for payloads over 64 KiB, an image every 1
    /// MiB, no retention, no replication, no unreplicated writes, a background thread, ten seconds
    /// of grace, waits of up to ten minutes, [`UndeclaredEvents::Append`], and no memory limit.
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
            retention: None,
            replication: None,
            unreplicated: false,
            background: BackgroundSync::default(),
            grace: Duration::from_secs(10),
            wait: Duration::from_secs(600),
            undeclared_events: UndeclaredEvents::default(),
            memory: MemoryLimit::default(),
        }
    }
}

impl StoreOptions {
    /// Returns the latest time at which a record is older than `age`, in microseconds since
    /// 1970-01-01 UTC. `None` without an age.
    pub(crate) fn old_until_us(&self, age: Option<Duration>) -> Option<i64> {
        let now_us = self.clock.now_us();
        age.map(|age| now_us.saturating_sub(i64::try_from(age.as_micros()).unwrap_or(i64::MAX)))
    }
}

/// Selects the snapshots whose positions a compaction keeps, and whose captures a collection keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeptSnapshots {
    /// Snapshots with a tag.
    #[default]
    Tagged,
    /// All.
    All,
    /// None.
    None,
}

impl KeptSnapshots {
    /// Returns whether a snapshot with or without a tag is selected.
    pub(crate) fn keeps(self, tagged: bool) -> bool {
        match self {
            KeptSnapshots::All => true,
            KeptSnapshots::Tagged => tagged,
            KeptSnapshots::None => false,
        }
    }
}

/// Contains the options of a compaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactOptions {
    /// Snapshots whose positions are kept.
    pub snapshots: KeptSnapshots,
    /// Additional positions that are kept.
    pub positions: BTreeSet<SequenceNumber>,
    /// Age up to which bodies are kept, by the times of their records.
    pub younger_than: Option<Duration>,
    /// Compression of finished segments; `None` leaves their files unchanged.
    pub compression: Option<Compression>,
    /// Minimum length in bytes of a segment that is compressed; `None` for 64 KiB. A smaller file
    /// saves only a few disk blocks, which matters in a store with many short sessions. The last
    /// segment is finished for compression if it has at least 16 KiB.
    pub compress_bytes_min: Option<u64>,
    /// Whether all bodies are kept, so that segments are only compressed or decompressed.
    pub keep_bodies: bool,
    /// Whether the compaction only reports its effects, without changes.
    pub dry_run: bool,
}

/// Contains the options of a new session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionOptions {
    /// Session id. `None` draws one.
    pub id: Option<Uuid>,
    /// Session seed, from which reducers' generators start. `None` draws one.
    pub seed: Option<u64>,
    /// Tags that the session starts with.
    pub tags: BTreeMap<String, String>,
    /// Session on whose behalf this one is created.
    pub parent: Option<Uuid>,
    /// Operation of the parent on whose behalf the session is created. Ignored if `parent` is
    /// `None`.
    pub operation: Option<OperationId>,
    /// Durability of the session's records. `None` uses the store's durability.
    pub durability: Option<Durability>,
}

impl SessionOptions {
    /// Adds a tag to the options.
    #[must_use]
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> SessionOptions {
        self.tags.insert(key.into(), value.into());
        self
    }
}

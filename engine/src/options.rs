//! Options of stores and sessions: durability, access, segments, images, compactions, background work.

use foldlog_codec::{OperationId, SequenceNumber};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::clock::{Clock, SystemClock};
use crate::log::{Compression, SegmentSizes};
use crate::replication::Replication;
use crate::storage::{FileStorage, Storage, StoreAccess};

/// Names when a record is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// A record survives a kill of the process as soon as the call returns. A power cut loses what the
    /// background has not synced yet: about a second of records, or 4 MiB.
    Process,
    /// What an agent could not repeat is durable when the call returns: snapshots, rollbacks, imports, begins
    /// and ends of tool calls, settlements, and all records of conversations and adapter states but requests.
    /// All other records are as durable as with [`Process`](Durability::Process).
    #[default]
    Boundary,
    /// Every record is durable when the call returns.
    Every,
}

/// Names who syncs the records that no call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BackgroundSync {
    /// The store's background thread, started when it is first needed.
    #[default]
    Thread,
    /// The call that finds 4 MiB unsynced, or a record that has been unsynced for a second of
    /// [`steady_us`](crate::Clock::steady_us). With a [`FixedClock`](crate::FixedClock), the calls of a
    /// single thread then write the same bytes each time.
    Inline,
}

/// Names what becomes of an event that the host dispatches and does not declare: no reducer is bound to it, and it is no
/// [`dynamic_event`](crate::SessionTypesBuilder::dynamic_event).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum UndeclaredEvents {
    /// Appends the event to an implicit slice of its name, mostly a STATE one. So a host needs no declarations for a start, and a mistyped name makes a
    /// slice that nobody reads.
    #[default]
    Append,
    /// Fails with [`Error::UndeclaredEvent`](crate::Error::UndeclaredEvent), and nothing is recorded, whether the event is dispatched by its name
    /// or as a Rust type. Bindings of other languages and bridges, whose names no compiler checks, want this, and hosts that
    /// want to hear of a forgotten reducer.
    Refuse,
}

/// Holds the options of a [`Store`](crate::Store).
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
    /// File system that holds the store.
    pub storage: Arc<dyn Storage>,
    /// Who may read the files that the store creates. Defaults to the process's user alone.
    pub access: StoreAccess,
    /// Clock that sessions take their time from.
    pub clock: Arc<dyn Clock>,
    /// Seed that session ids and session seeds are drawn from. `None` draws them from the system's entropy.
    pub seed: Option<u64>,
    /// Durability of sessions whose [`SessionOptions::durability`] is `None`.
    pub durability: Durability,
    /// Sizes of segment files, in bytes.
    pub segments: SegmentSizes,
    /// Largest payload that is stored within its record, in bytes. Larger ones go into the object directory.
    pub object_bytes_min: u64,
    /// Bytes by which a log grows before its session writes an image, so that opening need not fold all
    /// records. The session waits for twice the size of the last image, if that is more. Growth is counted
    /// over all openings of the session, however short each is.
    pub image_bytes_min: u64,
    /// What [`Store::compact_old`](crate::Store::compact_old) keeps of each session. `None` keeps everything.
    pub retention: Option<CompactOptions>,
    /// Who keeps copies of the sessions' records elsewhere. `None` keeps none.
    pub replication: Option<Replication>,
    /// Whether sessions that a replica holds are written without their replicator. Nobody else learns of such records, and nothing
    /// fences them: the next opening with the replicator brings them to it, or, if another worker has claimed the session meanwhile, fails
    /// with [`Error::Superseded`](crate::Error::Superseded). Otherwise opening such a session fails with
    /// [`Error::Replicated`](crate::Error::Replicated). A store with a replicator asks that, whatever this says,
    /// and lets sessions that another place holds go on in its own only if this says so ([`Error::ReplicaElsewhere`](crate::Error::ReplicaElsewhere)).
    pub unreplicated: bool,
    /// Who syncs the records that no call waits for.
    pub background: BackgroundSync,
    /// Time that an operation has to end after its deadline or its cancellation. After it, the operation
    /// counts as [stuck](crate::Session::stuck_operations), and calls that wait for it fail with
    /// [`Error::Stuck`](crate::Error::Stuck).
    pub grace: Duration,
    /// Longest time that a call waits for operations of other threads to end, for a recovery by another thread, or for a
    /// resource on which another session works. After it, the call fails with
    /// [`Error::WaitedTooLong`](crate::Error::WaitedTooLong), and nothing is recorded. A
    /// [handle](crate::Session::waiting_at_most) or a [call](crate::tools::ExecuteOptions::wait) may have a limit of its own.
    pub wait: Duration,
    /// What [`Session::dispatch_value`](crate::Session::dispatch_value) does with the name of an event that nobody declared.
    pub undeclared_events: UndeclaredEvents,
    /// Limits the memory for what is read of a session's log when the session is opened, forked, compacted, collected or salvaged.
    /// Beyond it these fail with [`Error::OverBudget`](crate::Error::OverBudget), and nothing is written. What a session takes
    /// while it is written is not limited.
    pub memory: MemoryLimit,
}

/// Limits the memory that reading a log may take. A log can ask for far more memory than it has bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryLimit {
    /// No limit, for logs that the host has written itself.
    #[default]
    Unlimited,
    /// 64 MiB, and three times the bytes that were read of the log. What a single record is decoded into is not counted.
    OfLog,
    /// This number of bytes. A record that is decoded into more than what is left is refused before it is decoded.
    Bytes(u64),
}

impl Default for StoreOptions {
    /// Returns the defaults: mapped files that only the process's user may read, the system's clock and
    /// entropy, [`Durability::Boundary`], objects for payloads over 64 KiB, an image every 1 MiB, no retention, no
    /// replication, no unreplicated writes, a background thread, ten seconds of grace, waits of ten minutes, [`UndeclaredEvents::Append`],
    /// and no limit of memory.
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
    /// Returns the time of the youngest record that is older than an age now, in microseconds since 1970-01-01 UTC. `None` without
    /// an age.
    pub(crate) fn old_until_us(&self, age: Option<Duration>) -> Option<i64> {
        let now_us = self.clock.now_us();
        age.map(|age| now_us.saturating_sub(i64::try_from(age.as_micros()).unwrap_or(i64::MAX)))
    }
}

/// Names the snapshots whose positions a compaction keeps, and whose captures a collection keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeptSnapshots {
    /// Those with a tag.
    #[default]
    Tagged,
    /// All.
    All,
    /// None.
    None,
}

impl KeptSnapshots {
    /// Returns whether a snapshot is among them, which has a tag or none.
    pub(crate) fn keeps(self, tagged: bool) -> bool {
        match self {
            KeptSnapshots::All => true,
            KeptSnapshots::Tagged => tagged,
            KeptSnapshots::None => false,
        }
    }
}

/// Holds the options of a compaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactOptions {
    /// Snapshots whose positions are kept.
    pub snapshots: KeptSnapshots,
    /// Further positions that are kept.
    pub positions: BTreeSet<SequenceNumber>,
    /// Age up to which bodies are kept, by the times of their records.
    pub younger_than: Option<Duration>,
    /// How the files of finished segments are kept; `None` leaves them as they are.
    pub compression: Option<Compression>,
    /// Length in bytes from which a segment is compressed; `None` for 64 KiB. Below that a file saves a few of the disk's blocks,
    /// which counts where a store has many short sessions. The segment that was written last is finished for it from 16 KiB on.
    pub compress_bytes_min: Option<u64>,
    /// Whether no body is dropped, so that segments are only compressed, or made plain.
    pub keep_bodies: bool,
    /// Whether nothing is changed, and the report says what a compaction would do.
    pub dry_run: bool,
}

/// Holds the options of a new session.
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
    /// Operation of the parent on whose behalf the session is created. Ignored if `parent` is `None`.
    pub operation: Option<OperationId>,
    /// Durability of the session's records. `None` takes that of the store.
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

//! Sessions: the handle through which a host dispatches, reads, takes snapshots and rolls back.
//!
//! | module | contents |
//! |---|---|
//! | `open`, `load` | opens a session from its directory; reads and folds its log; `recovery_report` contains [`RecoveryReport`] |
//! | `write` | writes a record, in a live session or a replay: payloads, append, apply, notify |
//! | `sync` | makes records durable, rests idle sessions, and closes sessions |
//! | `dispatch`, `changes` | events; seeds, clears, resets, tags |
//! | `views` | the five views, which contain the methods that only some hosts need |
//! | `inputs` | recorded inputs of a run: time, random numbers, observations |
//! | `values` | events and slices by their names, as values of any shape |
//! | `event_plan` | cached facts about dispatched events, their fast path, and declarations that the log needs before a record can name an event or a slice |
//! | `conversations` | records of conversations and adapter states |
//! | `conversation_follower` | reads a conversation repeatedly |
//! | `decisions` | decisions that other processes leave for the open session |
//! | `positions` | snapshots and rollbacks |
//! | `rewind` | the part of a rewind that works on the log |
//! | `operations` | tool calls as transactions: their start and end records |
//! | `schedule`, `wait` | order of writes while operations run, and the limits of waiting |
//! | `futures` | `async` variants of blocking methods (feature `async`) |
//! | `operation_records` | reads operations from the log |
//! | `queries` | views, stored values |
//! | `compaction`, `compaction_notice` | the part of a compaction that works on an open session; the record of dropped bodies |
//! | `image_writing` | images, so that opening need not fold every record |
//! | `log_view` | LOG slices, read from the log |
//! | `shared_prefix` | the records that a fork shares with its parent |
//! | `subscribers` | notifications of records |
//! | `child_captures` | the place of a child session's captures |
//! | `replica_feed`, `replica_comparison`, `fetch` | feeds the store's replicator, compares the log with its records, and opens sessions from them |
//! | `rebuilt_log` | verifies a log that was rebuilt from the replicator, before the claim |
//! | `lag` | how far the replicator is behind |
//! | `held_captures` | files that captures of workspaces need, replicated with the records that name them |
//! | `open_store` | the handle of a store, and the state that its sessions share |
//! | `replay` | runs a host again over its log |
//!
//! # Invariants: the order of a write
//!
//! 1. Reducers resolve the change against the present slices. Nothing has changed yet: a reducer
//!    that refuses or panics leaves no trace.
//! 2. The record is appended. If that fails, the projection is unchanged.
//! 3. The record is applied and becomes visible to readers.
//! 4. The session's [`Durability`] is honored: if the record must be durable, the call waits for a
//!    sync, its own or another thread's.
//! 5. Subscribers are notified.

mod changes;
mod child_captures;
mod compaction;
mod compaction_notice;
mod confirm;
mod conversation_follower;
mod conversations;
pub(crate) mod decisions;
mod dispatch;
mod event_plan;
mod fetch;
#[cfg(feature = "async")]
mod futures;
mod held_captures;
mod image_writing;
mod inputs;
mod lag;
mod load;
mod log_view;
mod open;
pub(crate) mod open_store;
pub(crate) mod operation_records;
pub(crate) mod operations;
mod positions;
mod queries;
mod rebuilt_log;
mod recovery_report;
pub(crate) mod replay;
mod replica_comparison;
mod replica_feed;
pub(crate) mod rewind;
mod schedule;
pub(crate) mod settle;
mod shared_prefix;
mod subscribers;
mod sync;
mod values;
mod views;
pub(crate) mod wait;
mod write;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{DroppedBodies, Lane, Parent, SessionOpening};
use foldlog_codec::frame::{TIME_US_MAX, TIME_US_MIN};
#[cfg(feature = "host-filesystem")]
use foldlog_filesystem::{HostFilesystem, HostFilesystemOptions};
use parking_lot::Mutex;
use smol_str::SmolStr;
use uuid::Uuid;

use self::open_store::{OpenStore, Store};
use self::write::Mode;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::fold::live::LiveState;
use crate::log::lock::WriterLock;
use crate::log::publish::SyncGate;
use crate::log::writer::LogWriter;
use crate::options::Durability;
use crate::storage::{Storage, process_mark};
use crate::types::SessionTypes;
use crate::wakeups::ChangeNotifier;

pub use conversation_follower::ConversationFollower;
pub use decisions::{DecisionWait, DecisionsTaken, RefusedDecision, TakenDecision};
pub(crate) use fetch::{Fetch, pull};
pub use log_view::LogView;
pub(crate) use positions::list as snapshots_of;
pub use positions::{AbandonedCall, RollbackReport, Snapshot, SnapshotOptions};
pub use queries::{SliceState, State, StoredItem};
pub(crate) use rebuilt_log::MadeLog;
pub use recovery_report::RecoveryReport;
pub use replay::RecordedReply;
pub(crate) use replica_feed::{ReplicaClaim, replica_error};
pub use settle::Settlement;
pub(crate) use subscribers::SubscriptionGuard;
pub use subscribers::{RecordNotification, SubscriberPanic, Subscription};
#[cfg(feature = "testkit")]
pub(crate) use sync::{SyncRequests, SyncSteps, poison_on_error, promises_sync, sync_in_time, sync_through};
pub use views::{DynamicSession, SessionCalls, SessionConversation, SessionInputs, SessionLog};

pub(crate) use load::{
    Images, LoadedSession, OutlineSource, ReadGround, VisitFrame, open_read, read_outline, read_outline_by,
};
pub(crate) use open::{
    OpenAs, RecordedPart, TakeoverNote, begin, check_declared, left_open, lock_or_read_only, lock_to_write,
    open, open_as_read, open_claimed, open_recorded, open_to_preview,
};
pub(crate) use operation_records::captures_named_by;
pub(crate) use shared_prefix::{SharedPrefix, cut};
pub(crate) use wait::{Asker, Patience};

pub(crate) trait SyncCaptures: Send + Sync {
    /// Makes new captures since the last call durable, and the `earlier` ones, which are given as
    /// recorded. Returns a panic of the host's code as an error.
    fn sync_captures(&self, earlier: &[Vec<u8>]) -> Result<()>;
}

/// A cheap-to-clone handle of an open session. All clones refer to the same session.
///
/// The session closes when its last handle is dropped or [`close`](Session::close) is called. Only
/// `close` reports whether the last sync succeeded.
///
/// # Who waits
///
/// | call | waits while |
/// |---|---|
/// | an event, seed, clear or reset of STATE or CACHE; a snapshot; a rollback | an operation of this process runs that may change STATE |
/// | the same through an operation's handle | such an operation runs within that one |
/// | the start of an operation | an operation runs that does not enclose it, unless each only reads or acts outside only |
/// | a recovery | another thread recovers the session |
/// | changes of LOG alone; tags; conversations, observations, adapter states; reads | never |
///
/// A call that waits longer than the store's [limit](crate::StoreOptions::wait), or [its
/// own](Session::waiting_at_most), fails with
/// [`Error::WaitedTooLong`](crate::Error::WaitedTooLong), which names the blocker. If only the
/// calling thread could end the wait, the call fails at once with
/// [`Error::InsideOperation`](crate::Error::InsideOperation). In addition, calls wait for the disk
/// according to their [`Durability`].
#[derive(Clone)]
pub struct Session {
    inner: Arc<SessionInner>,
    /// `None` for handles that must not keep the session open.
    _handles: Option<Arc<Handles>>,
    /// Operation that owns this handle. It may write while other handles are blocked.
    within: Option<Arc<wait::CallScope>>,
    /// Lane that the host's records name; `None` for the handle without one.
    lane: Option<SmolStr>,
    /// Limit of a call's wait through this handle; `None` for the store's limit.
    wait: Option<Duration>,
}

/// Counts the handles of a session. The background thread owns none: it may keep the session alive
/// while it syncs or writes an image.
struct Handles(Arc<SessionInner>);

impl Drop for Handles {
    fn drop(&mut self) {
        // A drop cannot report errors; hosts that need the result call `close`.
        let _ = self.0.close();
    }
}

/// State that all handles of a session share.
pub(crate) struct SessionInner {
    id: Uuid,
    dir: PathBuf,
    store: Arc<OpenStore>,
    types: Option<SessionTypes>,
    durability: Durability,
    read_only: Option<String>,
    report: RecoveryReport,
    state: Mutex<WriterState>,
    /// Notified whenever an operation ends, for threads that wait to write.
    schedule: ChangeNotifier,
    /// Locked while the session is recovered.
    recovering: Mutex<()>,
    /// Locked while decisions of other processes are recorded.
    taking: Mutex<()>,
    gate: SyncGate<Error>,
    /// Feed of the replicator; `None` if the store has none, or for a handle without writes.
    replica: Option<replica_feed::Replica>,
    /// Record of the bodies that a replica may have dropped, read once on demand; see
    /// [`compaction_notice`].
    said_dropped: OnceLock<Option<Arc<DroppedBodies>>>,
    subscribers: subscribers::Subscribers,
    lock: Mutex<Option<WriterLock>>,
    /// Locked while an image is written; always before `state`.
    imaging: Mutex<()>,
    /// Resources with captures that are not durable before the next sync.
    captured: Mutex<Vec<Arc<dyn SyncCaptures>>>,
    /// Mark of the process that opened the session; see [`process_mark`].
    process: u32,
    /// Clock of the records.
    clock: Arc<dyn Clock>,
    mode: Mode,
}

/// Writer state, under one lock.
struct WriterState {
    log: LogWriter,
    live: LiveState,
    /// `SessionOpening` records of the session and its ancestors, each with its sequence number.
    openings: Vec<(SequenceNumber, SessionOpening)>,
    imaged: image_writing::ImageStatus,
    sync_requests: sync::SyncRequests,
    plans: event_plan::EventPlans,
    closed: bool,
    /// Operations of this process that have not ended.
    running_calls: schedule::RunningCalls,
    /// Reused buffer for the body of an operation's record.
    body: Vec<u8>,
    /// Whether an earlier process, or a failed write of end records, left operations open that have
    /// not been recovered since.
    interrupted: bool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("id", &self.inner.id).field("dir", &self.inner.dir).finish()
    }
}

impl Session {
    /// Returns the id of the session.
    pub fn id(&self) -> Uuid {
        self.inner.id
    }

    /// Returns the directory of the session's log.
    pub fn dir(&self) -> &FilePath {
        &self.inner.dir
    }

    /// Returns the directory of captures that the store's replicator copies; `None` if it copies
    /// none.
    #[cfg(feature = "host-filesystem")]
    pub(crate) fn held_captures_dir(&self) -> Option<PathBuf> {
        self.inner.holds_captures().then(|| self.log().captures_dir())
    }

    /// Returns the store in which the session is open.
    pub fn store(&self) -> Store {
        Store { inner: Arc::clone(&self.inner.store) }
    }

    /// Opens the directory `root` as the session's workspace. Its captures are stored in
    /// [`captures_dir`](crate::SessionLog::captures_dir), and equal captures of the store's
    /// sessions are stored once. Performs no writes.
    ///
    /// ```
    /// # use foldlog::filesystem::{Filesystem, HostFilesystemOptions};
    /// # use foldlog::{ExecutionState, ResourceRegistry, SessionTypes, Store};
    /// # use std::sync::Arc;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # std::fs::create_dir(directory.path().join("work"))?;
    /// # let store = Store::open(directory.path().join("store"))?;
    /// let session = store.create(&SessionTypes::builder().build()?)?;
    /// let files = Arc::new(session.open_workspace(directory.path().join("work"), HostFilesystemOptions::default())?);
    /// let resources = ResourceRegistry::builder().filesystem(Arc::clone(&files)).build()?;
    /// let state = ExecutionState::new(session, resources);
    /// let before = state.snapshot(Some("before"))?;
    /// files.write("page", b"one")?;
    /// state.restore(&before)?;
    /// assert!(!files.exists("page")?);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "host-filesystem")]
    pub fn open_workspace(
        &self,
        root: impl AsRef<FilePath>,
        options: HostFilesystemOptions,
    ) -> Result<HostFilesystem> {
        let store_pool = || crate::log::layout::captures_pool(&self.inner.store.root);
        let pool = options.pool.clone().unwrap_or_else(store_pool);
        Ok(HostFilesystem::open(root, self.log().captures_dir(), options.pool(pool))?)
    }

    /// Returns the session from which this one was forked, or for which it was created.
    pub fn parent(&self) -> Option<Parent> {
        self.inner.state.lock().opening_record().parent
    }

    /// Returns the tags of the session.
    pub fn tags(&self) -> BTreeMap<String, String> {
        (*self.inner.state.lock().live.projection.tags).clone()
    }

    /// Makes every record written so far durable. One sync serves all blocked threads.
    ///
    /// If opening found records that are not known to be durable and there were no writes since,
    /// this writes them again.
    ///
    /// # Errors
    ///
    /// - [`Error::DurabilityUnknown`](crate::Error::DurabilityUnknown) if the sync fails. Records
    ///   that were not durable before may or may not exist after reopening.
    /// - [`Error::NoHandle`](crate::Error::NoHandle) if no file handle was left. Nothing is lost,
    ///   and a later sync covers the same records.
    /// - [`Error::Poisoned`](crate::Error::Poisoned) after an earlier failure.
    /// - [`Error::Full`](crate::Error::Full) or [`Error::Io`](crate::Error::Io) if records found at
    ///   opening cannot be written again.
    pub fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    /// Makes every record durable, and closes the file that the log is written to; the next record
    /// opens it again. An open session that rests uses a single file handle, for the lock on its
    /// directory, and no memory mapping.
    ///
    /// The store's background thread does this for each session without writes for a second or two.
    /// A host calls it if the store has [no such thread](crate::BackgroundSync::Inline), or to free
    /// the handles at once.
    ///
    /// Returns whether a file was closed. No file is closed without writes since opening, if the
    /// session rests already, or if a concurrent write happens.
    ///
    /// # Errors
    ///
    /// The errors of [`sync`](Session::sync); [`Error::NoHandle`](crate::Error::NoHandle) leaves
    /// everything unchanged. [`Error::Closed`](crate::Error::Closed) once the session is closed.
    ///
    /// ```
    /// # use foldlog::{SessionTypes, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let store = Store::open(directory.path())?;
    /// let session = store.create(&SessionTypes::builder().build()?)?;
    /// session.set_tag("state", "waits for an answer")?;
    /// assert!(session.rest()?);
    /// assert!(!session.rest()?);
    /// session.set_tag("state", "answered")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn rest(&self) -> Result<bool> {
        self.inner.sync()?;
        let mut state = self.inner.sound()?;
        if state.closed {
            return Err(Error::Closed { session: self.inner.id });
        }
        self.inner.rest(&mut state)
    }

    /// Makes every record durable, attests the close in the log, and closes the session for all
    /// handles.
    ///
    /// If this process did not write to the session, the log is unchanged: no close is attested,
    /// and a log left unclosed by its last writer stays unclosed.
    ///
    /// Running tool calls are neither awaited nor stopped. Their later writes and end records are
    /// refused, and the session has to be recovered at its next opening. To avoid that,
    /// [`cancel`](crate::SessionCalls::cancel) the calls and join their threads first.
    ///
    /// # Errors
    ///
    /// [`Error::Stuck`](crate::Error::Stuck) if an operation still runs after its grace period; the
    /// next opening has to recover it. Otherwise the errors of [`sync`](Session::sync). The session
    /// is closed in any case.
    pub fn close(self) -> Result<()> {
        self.inner.close()
    }

    /// Returns a handle that writes its records in the lane `name`.
    ///
    /// In a replay, a host must write the records of one lane in their recorded order, independent
    /// of other threads. So give a separate lane to each thread whose records may interleave.
    /// Handles without a name share the main lane. A tool's handle is a lane by itself, and lanes
    /// created from it are within that tool. Naming another lane replaces the name.
    ///
    /// ```
    /// # use foldlog::{SessionTypes, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let store = Store::open(directory.path())?;
    /// # let session = store.create(&SessionTypes::builder().build()?)?;
    /// let mailbox = session.lane("mailbox");
    /// std::thread::spawn(move || mailbox.set_tag("mail", "read")).join().expect("no panic")?;
    /// session.set_tag("state", "done")?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn lane(&self, name: impl Into<SmolStr>) -> Session {
        Session { lane: Some(name.into()), ..self.clone() }
    }

    /// Returns a handle with `limit` as the longest wait for other calls, in place of the store's
    /// [default](crate::StoreOptions::wait). It replaces an earlier limit, and does not affect
    /// other handles. With a limit of zero, calls never wait.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use foldlog::{SessionTypes, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let session = Store::open(directory.path())?.create(&SessionTypes::builder().build()?)?;
    /// session.waiting_at_most(Duration::from_millis(50)).reset()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn waiting_at_most(&self, limit: Duration) -> Session {
        Session { wait: Some(limit), ..self.clone() }
    }

    /// Returns how long a call through this handle may wait: `limit` if it is given, otherwise the
    /// handle's own limit, otherwise the store's, and not past `until`.
    pub(crate) fn patience(&self, until: Option<Instant>, limit: Option<Duration>) -> Patience {
        Patience::new(until, limit.or(self.wait).unwrap_or(self.inner.store.options.wait))
    }

    /// Returns the conversations of the session.
    pub fn conversation(&self) -> SessionConversation<'_> {
        SessionConversation { session: self }
    }

    /// Returns the tool calls of the session.
    pub fn calls(&self) -> SessionCalls<'_> {
        SessionCalls { session: self }
    }

    /// Returns the log of the session.
    pub fn log(&self) -> SessionLog<'_> {
        SessionLog { session: self }
    }

    /// Returns the recorded inputs of the session: the time, random numbers and observations.
    pub fn inputs(&self) -> SessionInputs<'_> {
        SessionInputs { session: self }
    }

    /// Returns the events and slices of the session by their names.
    pub fn dynamic(&self) -> DynamicSession<'_> {
        DynamicSession { session: self }
    }

    /// Returns the lane of this handle's records; `None` for the main lane.
    #[inline]
    pub(super) fn own_lane(&self) -> Option<Lane<'_>> {
        if self.within.is_none() && self.lane.is_none() { None } else { Some(self.record_lane()) }
    }

    /// Returns the lane of this handle's records, the main lane included.
    pub(super) fn record_lane(&self) -> Lane<'_> {
        Lane {
            within: self.within.as_deref().and_then(|within| within.run),
            name: self.lane.as_deref().map(Cow::Borrowed),
        }
    }

    /// Adds this handle's lane to the body of a record.
    pub(super) fn in_lane(&self, mut body: Vec<u8>) -> Vec<u8> {
        self.record_lane().add_to(&mut body, 0);
        body
    }

    /// Returns the seed that the session was created with.
    pub(crate) fn own_seed(&self) -> u64 {
        self.inner.state.lock().seed()
    }

    /// Returns whether both handles share one opened session.
    pub(crate) fn is_same(&self, other: &Session) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Makes these resources' captures durable before the next sync of the log.
    pub(crate) fn sync_first(&self, resources: impl Iterator<Item = Arc<dyn SyncCaptures>>) {
        let mut captured = self.inner.captured.lock();
        for resource in resources {
            if !captured.iter().any(|known| std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(&resource))) {
                captured.push(resource);
            }
        }
    }

    /// Frees the disk space of the session's images, and of a segment that was allocated ahead.
    pub(crate) fn give_up_caches(&self) {
        self.inner.state.lock().log.give_up_caches();
    }

    /// Poisons the session: it accepts no more writes.
    pub(crate) fn poison(&self, cause: crate::Error) {
        self.inner.gate.fail(Arc::new(cause));
    }

    pub(crate) fn types(&self) -> Result<&SessionTypes> {
        self.inner.types()
    }

    pub(crate) fn open_store(&self) -> &Arc<OpenStore> {
        &self.inner.store
    }

    pub(crate) fn now_us(&self) -> i64 {
        self.inner.now_us()
    }

    pub(crate) fn storage(&self) -> &Arc<dyn Storage> {
        &self.inner.store.options.storage
    }

    /// Returns the storage and the memory limit for reading the store's sessions.
    pub(crate) fn read_ground(&self) -> ReadGround<'_> {
        ReadGround::from_options(&self.inner.store.options)
    }
}

impl SessionInner {
    /// Reads the session's clock, or that of the recorded run. Clamps the time to the range of a
    /// record, so that reducers and subscribers see the recorded time.
    fn now_us(&self) -> i64 {
        self.clock.now_us().clamp(TIME_US_MIN, TIME_US_MAX)
    }

    /// Checks that this process opened the session. In a forked copy of that process, the session's
    /// threads and locks belong to the original.
    #[inline]
    fn check_process(&self) -> Result<()> {
        if process_mark() == self.process { Ok(()) } else { Err(Error::Forked { session: self.id }) }
    }
}

impl Session {
    /// Returns one more counted handle.
    fn with(handles: Arc<Handles>) -> Session {
        Session {
            inner: Arc::clone(&handles.0),
            _handles: Some(handles),
            within: None,
            lane: None,
            wait: None,
        }
    }

    /// Returns a handle for an operation.
    pub(crate) fn through(&self, within: Arc<wait::CallScope>) -> Session {
        let (inner, handles) = (Arc::clone(&self.inner), self._handles.clone());
        // The start record names the lane in which the operation runs.
        Session { inner, _handles: handles, within: Some(within), lane: None, wait: self.wait }
    }

    /// Returns a handle that belongs to no operation.
    pub(crate) fn outside(&self) -> Session {
        Session { within: None, ..self.clone() }
    }

    /// Returns a handle that does not keep the session open.
    pub(crate) fn clone_uncounted(&self) -> Session {
        Session {
            inner: Arc::clone(&self.inner),
            _handles: None,
            within: self.within.clone(),
            lane: self.lane.clone(),
            wait: self.wait,
        }
    }
}

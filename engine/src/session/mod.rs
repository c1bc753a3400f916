//! A session: the handle that a host dispatches to and reads from.
//!
//! | module | holds |
//! |---|---|
//! | `opening` | from a folder to a session; [`RecoveryReport`] |
//! | `writing` | how a record is written: resolve, append, apply, sync, tell |
//! | `dispatching` | events, seeds, clears, resets, tags |
//! | `positions` | snapshots and rollbacks |
//! | `operations` | tools' transactions: their begins and ends |
//! | `schedule` | who may write while they run |
//! | `operation_records` | what the log says of them |
//! | `reading` | views, stored values |
//! | `imaging` | images, so that opening need not fold every record |
//! | `log_view` | LOG slices, read from the log |
//! | `shared_prefix` | what a fork shares with its parent |
//! | `subscribers` | who is told of records |
//!
//! # The order of a write
//!
//! 1. Reducers resolve the change against the present slices. Nothing has changed yet; what they refuse, or
//!    where they panic, leaves no trace.
//! 2. The record is appended. Where that fails the projection is as it was.
//! 3. The record is applied: from here on readers see it.
//! 4. The level's promise is kept: where the record must be durable, the call waits for a sync, its own or
//!    another thread's.
//! 5. Subscribers are told.

mod declaring;
mod dispatching;
mod event_plan;
mod imaging;
mod large_payloads;
mod log_view;
pub(crate) mod open_store;
mod opening;
pub(crate) mod operation_records;
pub(crate) mod operations;
mod positions;
mod reading;
pub(crate) mod schedule;
mod shared_prefix;
mod subscribers;
mod writing;

use std::any::TypeId;
use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{Opened, Parent};
use foldlog_codec::frame::{TIME_US_MAX, TIME_US_MIN};
use parking_lot::{Condvar, Mutex};
use uuid::Uuid;

use self::open_store::OpenStore;
use crate::background::Background;
use crate::error::{Error, Result};
use crate::fold::live::LiveState;
use crate::fold::path::Path;
use crate::log::lock::WriterLock;
use crate::log::publish::SyncGate;
use crate::log::writer::Log;
use crate::options::Durability;
use crate::sabotage::{self, Breakage};
use crate::storage::{Storage, process_mark};
use crate::types::SessionTypes;

pub use log_view::LogView;
pub use opening::RecoveryReport;
pub use operations::Settlement;
pub use positions::{AbandonedCall, RollbackReport, Snapshot, SnapshotOptions};
pub use reading::{SliceState, State, StoredItem};
pub use subscribers::{RecordNotification, SubscriberPanic, Subscription};
#[cfg(feature = "testkit")]
pub(crate) use writing::{Asked, due, failed, promises_sync, sync_in_time, sync_through};

pub(crate) use opening::{
    Images, OpenAs, Read, SessionSeed, begin, left_open, lock_or_read_only, open, open_as_read, read_outline,
};
pub(crate) use shared_prefix::{SharedPrefix, cut};

/// Something whose captures a record names, so that they have to be durable before it.
pub(crate) trait SyncCaptures: Send + Sync {
    /// Makes the captures durable that were made since the last call, and `earlier` ones, given as they were recorded. A
    /// panic of the host's code is an error.
    fn sync_captures(&self, earlier: &[Vec<u8>]) -> Result<()>;
}

/// A handle on an open session. Cheap to clone; every clone is the same session.
///
/// The session closes when the last handle is dropped, or by [`close`](Session::close), which tells whether
/// the last sync went well.
#[derive(Clone)]
pub struct Session {
    inner: Arc<Inner>,
    /// Nothing for what the session itself holds, which is not to keep it open.
    _handles: Option<Arc<Handles>>,
    /// The operation whose handle this is; it may write while others wait.
    within: Option<Arc<schedule::CallScope>>,
}

/// What all handles of a session share, and nobody else: the background may hold on to the session while it syncs
/// it or writes an image.
struct Handles(Arc<Inner>);

impl Drop for Handles {
    fn drop(&mut self) {
        // Nobody is left to be told; `close` is there for who wants to know.
        let _ = self.0.close();
    }
}

pub(crate) struct Inner {
    id: Uuid,
    dir: PathBuf,
    store: Arc<OpenStore>,
    types: Option<SessionTypes>,
    durability: Durability,
    read_only: Option<String>,
    report: RecoveryReport,
    state: Mutex<WriterState>,
    /// Told whenever an operation is over, for those who wait to write.
    schedule: Condvar,
    /// Held while the session is recovered.
    recovering: Mutex<()>,
    gate: SyncGate<Error>,
    subscribers: subscribers::Subscribers,
    lock: Mutex<Option<WriterLock>>,
    /// Held while an image is written, and taken before the state's lock.
    imaging: Mutex<()>,
    /// Those resources of which captures were taken that are durable with the next sync only.
    captured: Mutex<Vec<Arc<dyn SyncCaptures>>>,
    /// The process that opened the session; see [`process_mark`].
    process: u32,
}

/// What the writer changes, under one lock.
struct WriterState {
    log: Log,
    live: LiveState,
    /// The `Opened` records of the session and its ancestors, each with its sequence number.
    openings: Vec<(SequenceNumber, Opened)>,
    imaged: imaging::Imaged,
    first_unsynced_us: Option<i64>,
    asked: writing::Asked,
    /// The events dispatched so far, by their Rust types.
    plans: BTreeMap<TypeId, Arc<event_plan::EventPlan>>,
    closed: bool,
    /// Operations of this process that are not over.
    table: schedule::RunningCalls,
    /// The body of an operation's record that is being written; kept for its memory.
    body: Vec<u8>,
    /// Whether operations were left open, by another process or because their ends could not be written, and were not
    /// recovered since.
    interrupted: bool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("id", &self.inner.id).field("dir", &self.inner.dir).finish()
    }
}

impl Session {
    /// The session's id.
    pub fn id(&self) -> Uuid {
        self.inner.id
    }

    /// The folder that holds the session's log.
    pub fn dir(&self) -> &FilePath {
        &self.inner.dir
    }

    /// What opening found.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.inner.report
    }

    /// Where the session comes from, if it was forked or begun for another.
    pub fn parent(&self) -> Option<Parent> {
        self.inner.state.lock().opened().parent
    }

    /// The session's tags.
    pub fn tags(&self) -> BTreeMap<String, String> {
        (*self.inner.state.lock().live.projection.tags).clone()
    }

    /// The sequence number of the last record; `None` where there is none yet.
    pub fn position(&self) -> Option<SequenceNumber> {
        self.inner.state.lock().log.next_sequence().checked_sub(1)
    }

    /// Bytes that the log uses, headers and envelope frames included, allocated but unused space not.
    pub fn log_bytes(&self) -> u64 {
        self.inner.state.lock().log.used_bytes()
    }

    /// Every record below this is known to be durable.
    pub fn synced(&self) -> SequenceNumber {
        self.inner.gate.synced()
    }

    /// Makes everything written so far durable. One sync serves every thread that waits.
    ///
    /// # Errors
    ///
    /// [`Error::DurabilityUnknown`] where the sync fails: what was not durable before may be there after reopening or
    /// not. [`Error::Poisoned`] after an earlier failure. Where opening found records that nobody knows to be
    /// durable and nothing was written since, they are written once more, with the errors of an append.
    pub fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    /// Makes everything durable, says so in the log, and closes the session for every handle.
    ///
    /// # Errors
    ///
    /// As [`sync`](Session::sync), and [`Error::Stuck`] where a tool still runs that was to stop long ago: what
    /// it did is left for whoever opens the session next to recover. The session is closed all the same.
    pub fn close(self) -> Result<()> {
        self.inner.close()
    }

    /// What the session promises when a call returns.
    pub fn durability(&self) -> Durability {
        self.inner.durability
    }

    /// The seed that the session was created with.
    pub(crate) fn own_seed(&self) -> u64 {
        self.inner.state.lock().seed()
    }

    /// Whether both are handles of one session, opened once.
    pub(crate) fn is_same(&self, other: &Session) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Which of the session's records are live.
    pub(crate) fn live_path(&self) -> Path {
        self.inner.state.lock().live.path.clone()
    }

    /// Has these resources make their captures durable before the log is synced next.
    pub(crate) fn sync_first(&self, resources: impl Iterator<Item = Arc<dyn SyncCaptures>>) {
        let mut captured = self.inner.captured.lock();
        for resource in resources {
            if !captured.iter().any(|known| std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(&resource))) {
                captured.push(resource);
            }
        }
    }

    /// Poisons the session: it takes no more writes.
    pub(crate) fn poison(&self, cause: crate::Error) {
        self.inner.gate.fail(Arc::new(cause));
    }

    /// The host's types.
    pub(crate) fn types(&self) -> Result<&SessionTypes> {
        self.inner.types()
    }

    /// Returns what the sessions of this one's store share.
    pub(crate) fn open_store(&self) -> &Arc<OpenStore> {
        &self.inner.store
    }

    pub(crate) fn now_us(&self) -> i64 {
        self.inner.now_us()
    }

    pub(crate) fn storage(&self) -> &Arc<dyn Storage> {
        &self.inner.store.options.storage
    }
}

impl Inner {
    /// The session's clock, within what a record can hold, so that reducers and subscribers see the time that
    /// is recorded.
    fn now_us(&self) -> i64 {
        self.store.options.clock.now_us().clamp(TIME_US_MIN, TIME_US_MAX)
    }

    pub(crate) fn sync(&self) -> Result<()> {
        let next = self.settle_unattested()?;
        self.sync_through(next)
    }

    /// Says whether this process is not the one that opened the session, but a copy that it made of itself: whatever
    /// threads and locks the session has are the other's.
    #[inline]
    fn check_process(&self) -> Result<()> {
        if process_mark() == self.process { Ok(()) } else { Err(Error::Forked { session: self.id }) }
    }

    fn close(self: &Arc<Self>) -> Result<()> {
        // Nothing of it is this process's to close.
        self.check_process()?;
        // What somebody let go of is taken back, and not left for the next process to recover.
        operations::end_abandoned(self);
        let (writing, stuck) = {
            let mut state = self.state.lock();
            let before = std::mem::replace(&mut state.closed, true);
            let stuck = state.table.stuck(self.store.options.grace).next().filter(|_| !before);
            (!before && state.log.is_writing(), stuck)
        };
        let writing = writing && !sabotage::is(Breakage::CloseUnsynced);
        let result = if writing { self.finish().and_then(|()| self.sync()) } else { Ok(()) };
        if writing && result.is_ok() {
            self.image_at_closing();
        }
        // One that is being written in the background comes to its end first.
        drop(self.imaging.lock());
        if let Some(lock) = self.lock.lock().take() {
            // Forgotten first: behind the lock's back it might be the next writer that is forgotten.
            self.store.writers.forget(self.id);
            if let Background::Thread(worker) = &self.store.background {
                worker.forget(self.id);
            }
            drop(lock);
        }
        self.subscribers.end();
        result.and(stuck.map_or(Ok(()), |operation| Err(Error::Stuck { operation })))
    }
}

impl Session {
    /// The first handle of a session.
    fn of(inner: Arc<Inner>) -> Session {
        Session { _handles: Some(Arc::new(Handles(Arc::clone(&inner)))), inner, within: None }
    }

    /// The handle of an operation.
    pub(crate) fn through(&self, within: Arc<schedule::CallScope>) -> Session {
        let (inner, handles) = (Arc::clone(&self.inner), self._handles.clone());
        Session { inner, _handles: handles, within: Some(within) }
    }

    /// A handle that does not keep the session open.
    pub(crate) fn uncounted(&self) -> Session {
        Session { inner: Arc::clone(&self.inner), _handles: None, within: self.within.clone() }
    }
}

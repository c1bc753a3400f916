//! A session: the handle through which a host dispatches, reads, takes snapshots and rolls back.
//!
//! | module | holds |
//! |---|---|
//! | `open` | from a directory to a session; `recovery_report` holds [`RecoveryReport`] |
//! | `write` | how a record is written: resolve, append, apply, sync, notify |
//! | `dispatch` | events, seeds, clears, resets, tags |
//! | `values` | events and slices by their names, as values of any shape |
//! | `event_plan` | what is known of an event once it was dispatched, and its fast path |
//! | `conversations` | records of conversations and adapter states |
//! | `conversation_follower` | a conversation that is read again and again |
//! | `decisions` | decisions that other processes leave for the open session |
//! | `declare` | what the log has to declare before a record can name it |
//! | `large_payloads` | payloads that become objects |
//! | `positions` | snapshots and rollbacks |
//! | `rewind` | what the log says to a rewind |
//! | `operations` | tool calls as transactions: their begins and ends |
//! | `schedule`, `wait` | who may write while operations run, and how long others wait |
//! | `futures` | the forms for async hosts (feature `async`) |
//! | `operation_records` | what the log says of operations |
//! | `queries` | views, stored values |
//! | `image_writing` | images, so that opening need not fold every record |
//! | `log_view` | LOG slices, read from the log |
//! | `shared_prefix` | what a fork shares with its parent |
//! | `subscribers` | who is notified of records |
//! | `child_captures` | where the captures of a child session are kept |
//! | `replica`, `fetch` | what is fed to the store's replicator, and what opening makes of what it holds |
//! | `rebuilt_log` | a log that was made of what the replicator holds, read back before it is claimed |
//! | `lag` | how far the replicator is behind |
//! | `held_captures` | what captures of workspaces need, fed and fetched with the records that name them |
//! | `open_store` | what the sessions of one store share |
//! | `replay`, `recorded_log`, `compare` | a host that runs again over its log |
//! | `rejected_writes`, `replayed_calls`, `notifications` | its refused writes, its calls, its subscribers |
//!
//! # Invariants: the order of a write
//!
//! 1. Reducers resolve the change against the present slices. Nothing has changed yet; a reducer that refuses
//!    or panics leaves no trace.
//! 2. The record is appended. If that fails, the projection is unchanged.
//! 3. The record is applied: from here on readers see it.
//! 4. The session's [`Durability`] is kept: if the record must be durable, the call waits for a sync, its own
//!    or another thread's.
//! 5. Subscribers are notified.

mod child_captures;
mod compaction_notice;
mod compare;
mod confirm;
mod conversation_follower;
mod conversations;
pub(crate) mod decisions;
mod declare;
mod dispatch;
mod event_plan;
mod fetch;
#[cfg(feature = "async")]
mod futures;
mod held_captures;
mod idle;
mod image_writing;
mod inputs;
mod lag;
mod large_payloads;
mod log_view;
mod notifications;
mod open;
pub(crate) mod open_store;
pub(crate) mod operation_records;
pub(crate) mod operations;
mod positions;
mod queries;
mod rebuilt_log;
pub(crate) mod recorded_log;
mod recorded_replies;
mod recovery_report;
mod rejected_writes;
pub(crate) mod replay;
mod replayed_calls;
mod replica;
pub(crate) mod rewind;
pub(crate) mod schedule;
pub(crate) mod settle;
mod shared_prefix;
mod subscribers;
mod values;
mod wait;
mod write;

use std::any::TypeId;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{DroppedBodies, Lane, Parent, Replicated, SessionOpening};
use foldlog_codec::frame::{TIME_US_MAX, TIME_US_MIN};
use parking_lot::Mutex;
use smol_str::SmolStr;
use uuid::Uuid;

use self::open_store::OpenStore;
use crate::background::Background;
use crate::changes::ChangeNotifier;
use crate::error::{Error, Result};
use crate::fold::live::LiveState;
use crate::log::lock::WriterLock;
use crate::log::publish::SyncGate;
use crate::log::writer::LogWriter;
use crate::options::Durability;
use crate::sabotage::{self, Breakage};
use crate::storage::{Storage, process_mark};
use crate::types::SessionTypes;

pub use conversation_follower::ConversationFollower;
pub use decisions::{DecisionWait, DecisionsTaken, RefusedDecision, TakenDecision};
pub(crate) use fetch::{Fetch, FetchedExtent, pull};
pub use log_view::LogView;
pub(crate) use positions::list as snapshots_of;
pub use positions::{AbandonedCall, RollbackReport, Snapshot, SnapshotOptions};
pub use queries::{SliceState, State, StoredItem};
pub(crate) use rebuilt_log::MadeLog;
pub use recorded_replies::RecordedReply;
pub use recovery_report::RecoveryReport;
pub(crate) use replica::{ReplicaClaim, replica_error};
pub use settle::Settlement;
pub(crate) use subscribers::SubscriptionGuard;
pub use subscribers::{RecordNotification, SubscriberPanic, Subscription};
#[cfg(feature = "testkit")]
pub(crate) use write::{
    SyncRequest, SyncSteps, due, poison_on_error, promises_sync, sync_in_time, sync_through,
};

pub(crate) use open::{
    Images, LoadedSession, OpenAs, OutlineSource, ReadGround, RecordedPart, SessionSeed, TakeoverNote,
    VisitFrame, begin, check_declared, left_open, lock_or_read_only, lock_to_write, open, open_as_read,
    open_claimed, open_read, open_recorded, open_to_preview, read_outline, read_outline_by,
};
pub(crate) use operation_records::captures_named_by;
pub(crate) use shared_prefix::{SharedPrefix, cut};
pub(crate) use wait::{Asker, Patience};

/// Makes captures of a resource durable before the records that name them.
pub(crate) trait SyncCaptures: Send + Sync {
    /// Makes the captures durable that were made since the last call, and the `earlier` ones, given as they
    /// were recorded. A panic of the host's code is returned as an error.
    fn sync_captures(&self, earlier: &[Vec<u8>]) -> Result<()>;
}

/// Handles an open session. Cheap to clone; every clone handles the same session.
///
/// The session closes when its last handle is dropped, or with [`close`](Session::close), which reports
/// whether the last sync succeeded.
///
/// # Who waits
///
/// | call | waits while |
/// |---|---|
/// | an event, seed, clear or reset of STATE or CACHE; a snapshot; a rollback | an operation of this process runs that may change STATE |
/// | the same through an operation's own handle | such an operation runs within that one |
/// | the begin of an operation | another one runs that is not around it, unless each only reads or acts outside only |
/// | a recovery | another thread recovers the session |
/// | what changes LOG alone; tags; conversations, observations, adapter states; reading | never |
///
/// A call that waits longer than the store's [limit](crate::StoreOptions::wait), or [its own](Session::waiting_at_most), fails
/// with [`Error::WaitedTooLong`](crate::Error::WaitedTooLong), which names what it waited for; one that would wait for what
/// its own thread has to end fails at once with [`Error::InsideOperation`](crate::Error::InsideOperation). Beside that, calls
/// wait for the disk as their [`Durability`] says.
#[derive(Clone)]
pub struct Session {
    inner: Arc<SessionInner>,
    /// `None` for handles that must not keep the session open.
    _handles: Option<Arc<Handles>>,
    /// Operation whose handle this is. It may write while others wait.
    within: Option<Arc<schedule::CallScope>>,
    /// Lane that the host's records name; `None` for the handle without one.
    lane: Option<SmolStr>,
    /// Longest time that a call through this handle waits; `None` for the store's.
    wait: Option<Duration>,
}

/// Counts the handles of a session. The background thread has none: it may hold on to the session while it
/// syncs it or writes an image.
struct Handles(Arc<SessionInner>);

impl Drop for Handles {
    fn drop(&mut self) {
        // Nobody is left to be told; hosts that want to know call `close`.
        let _ = self.0.close();
    }
}

/// Holds what all handles of a session share.
pub(crate) struct SessionInner {
    id: Uuid,
    dir: PathBuf,
    store: Arc<OpenStore>,
    types: Option<SessionTypes>,
    durability: Durability,
    read_only: Option<String>,
    report: RecoveryReport,
    state: Mutex<WriterState>,
    /// Notified whenever an operation is over, for those that wait to write.
    schedule: ChangeNotifier,
    /// Held while the session is recovered.
    recovering: Mutex<()>,
    /// Held while decisions are taken that other processes have left.
    taking: Mutex<()>,
    gate: SyncGate<Error>,
    /// Copy of the records that is kept elsewhere; `None` if the store has no replicator, or this handle writes nothing.
    replica: Option<replica::Replica>,
    /// What the log says of bodies that a replica may have dropped, once it was read for that; see [`compaction_notice`].
    said_dropped: OnceLock<Option<Arc<DroppedBodies>>>,
    subscribers: subscribers::Subscribers,
    lock: Mutex<Option<WriterLock>>,
    /// Held while an image is written, and locked before `state`.
    imaging: Mutex<()>,
    /// Resources with captures that only the next sync makes durable.
    captured: Mutex<Vec<Arc<dyn SyncCaptures>>>,
    /// Mark of the process that opened the session; see [`process_mark`].
    process: u32,
    /// What is known without the lock of the replay; `None` for a live session.
    replayed: Option<replay::ReplayClock>,
}

/// Holds what the writer changes, under one lock.
struct WriterState {
    log: LogWriter,
    live: LiveState,
    /// `SessionOpening` records of the session and its ancestors, each with its sequence number.
    openings: Vec<(SequenceNumber, SessionOpening)>,
    imaged: image_writing::ImageStatus,
    first_unsynced_us: Option<i64>,
    asked: write::SyncRequest,
    /// Whether the background was asked to rest the session.
    asked_to_rest: bool,
    /// Plans of the events dispatched so far, by their Rust types.
    plans: BTreeMap<TypeId, Arc<event_plan::EventPlan>>,
    /// Plans of events that are dispatched by their names.
    named_plans: BTreeMap<SmolStr, Arc<event_plan::EventPlan>>,
    closed: bool,
    /// Operations of this process that are not over.
    running_calls: schedule::RunningCalls,
    /// Buffer for the body of an operation's record, kept for its memory.
    body: Vec<u8>,
    /// Whether operations were left open, by another process or because their ends could not be written, and
    /// have not been recovered since.
    interrupted: bool,
    /// Records that the host is run over again; `None` for a live session.
    recording: Option<Box<recorded_log::ReplayLog>>,
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

    /// Returns the directory in the session's own in which captures of its workspace belong, so that they go where the session goes
    /// and are [collected](crate::Store::collect) with it: the `store` of
    /// [`HostFilesystem::open`](crate::filesystem::HostFilesystem::open). Makes nothing.
    pub fn captures_dir(&self) -> PathBuf {
        crate::log::layout::captures_dir(&self.inner.dir)
    }

    /// Returns the directory of which the store's replicator holds captures; `None` if it holds none.
    #[cfg(feature = "host-filesystem")]
    pub(crate) fn held_captures_dir(&self) -> Option<PathBuf> {
        self.inner.holds_captures().then(|| self.captures_dir())
    }

    /// Returns what opening found.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.inner.report
    }

    /// Returns the session that this one was forked from or created for.
    pub fn parent(&self) -> Option<Parent> {
        self.inner.state.lock().opening_record().parent
    }

    /// Returns the tags of the session.
    pub fn tags(&self) -> BTreeMap<String, String> {
        (*self.inner.state.lock().live.projection.tags).clone()
    }

    /// Returns the sequence number of the last record. `None` before the first.
    pub fn position(&self) -> Option<SequenceNumber> {
        self.inner.state.lock().log.next_sequence().checked_sub(1)
    }

    /// Returns how many bytes the log uses: headers and envelope frames included, allocated but unused space
    /// not.
    pub fn log_bytes(&self) -> u64 {
        self.inner.state.lock().log.used_bytes()
    }

    /// Returns the epoch under which this process writes the session where the store has a [replicator](crate::replication): each
    /// worker that claims the session has a higher one than those before. `None` without a replicator, and for a session that was
    /// opened for reading.
    pub fn epoch(&self) -> Option<u64> {
        self.inner.replica.as_ref().map(replica::Replica::epoch)
    }

    /// Returns what the log says of the replica that holds the session's records; `None` if none does.
    pub fn replicated_record(&self) -> Option<Replicated> {
        self.inner.state.lock().live.projection.replicated.as_deref().cloned()
    }

    /// Returns the sequence number below which every record is known to be durable.
    pub fn synced_end(&self) -> SequenceNumber {
        self.inner.gate.synced_end()
    }

    /// Makes every record written so far durable. One sync serves all threads that wait.
    ///
    /// If opening found records that are not known to be durable and nothing was written since, this writes
    /// them once more.
    ///
    /// # Errors
    ///
    /// [`Error::DurabilityUnknown`](crate::Error::DurabilityUnknown) if the sync fails: after reopening,
    /// records that were not durable before may be there or not. [`Error::NoHandle`](crate::Error::NoHandle) if no
    /// file handle was left for it: nothing is lost, and a later sync covers the same. [`Error::Poisoned`](crate::Error::Poisoned)
    /// after an earlier failure. [`Error::Full`](crate::Error::Full) or [`Error::Io`](crate::Error::Io) if
    /// records that opening found cannot be written once more.
    pub fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    /// Makes every record durable, attests that in the log, and closes the session for all handles.
    ///
    /// A session to which nothing was written through this process, as one that was opened only to look, leaves its log as it is:
    /// nothing is attested, and a log that its last writer did not close stays unclosed.
    ///
    /// A tool call that runs is neither waited for nor stopped: its later writes and its end are refused, and
    /// the session has to be recovered when it is opened next. [`cancel`](Session::cancel) calls and join
    /// their threads first.
    ///
    /// # Errors
    ///
    /// [`Error::Stuck`](crate::Error::Stuck) if an operation still runs although its grace is over; whoever
    /// opens the session next recovers it. Else those of [`sync`](Session::sync). The session is closed in
    /// any case.
    pub fn close(self) -> Result<()> {
        self.inner.close()
    }

    /// Returns the durability of the session's records.
    pub fn durability(&self) -> Durability {
        self.inner.durability
    }

    /// Returns a handle of the lane `name`, which all records that are written through it name.
    ///
    /// A host that runs again writes the records of one lane in the same order, whatever other threads do: give each of
    /// its threads whose records may interleave a lane of its own. Handles without a name share the main lane. A
    /// tool's own handle is a lane by itself, and lanes that are made from it are within that tool. Naming another lane
    /// replaces the name.
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

    /// Returns the lane of the records that are written through this handle; `None` for the main lane.
    #[inline]
    pub(super) fn own_lane(&self) -> Option<Lane<'_>> {
        if self.within.is_none() && self.lane.is_none() { None } else { Some(self.record_lane()) }
    }

    /// Returns the lane of the records that are written through this handle.
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

    /// Returns whether both are handles of one session, opened once.
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

    /// Gives the disk the room of the session's images, and of a segment that was made ahead.
    pub(crate) fn give_up_caches(&self) {
        self.inner.state.lock().log.give_up_caches();
    }

    /// Poisons the session: it takes no more writes.
    pub(crate) fn poison(&self, cause: crate::Error) {
        self.inner.gate.fail(Arc::new(cause));
    }

    /// Returns the host's types.
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

    /// Returns what the store's sessions are read from, and how much memory that may take.
    pub(crate) fn read_ground(&self) -> ReadGround<'_> {
        ReadGround::from_options(&self.inner.store.options)
    }
}

impl SessionInner {
    /// Reads the session's clock, or that of the recorded run, and clamps the time to what a record can hold, so that reducers and
    /// subscribers see the recorded time.
    fn now_us(&self) -> i64 {
        if let Some(replayed) = &self.replayed {
            return replayed.now_us();
        }
        self.store.options.clock.now_us().clamp(TIME_US_MIN, TIME_US_MAX)
    }

    pub(crate) fn sync(self: &Arc<Self>) -> Result<()> {
        let next = self.sync_here()?;
        self.hold_through(next)
    }

    /// Makes every record durable here, and has them fed to the replicator without waiting for it.
    fn sync_locally(self: &Arc<Self>) -> Result<()> {
        self.sync_here()?;
        self.wake_replica();
        Ok(())
    }

    /// Makes every record durable here, and returns the sequence number behind the last one.
    fn sync_here(self: &Arc<Self>) -> Result<SequenceNumber> {
        let next = self.settle_unattested()?;
        match self.sync_through(next) {
            // No sync has failed, and a later one covers the same.
            Err(Error::DurabilityUnknown { cause, .. }) if matches!(*cause, Error::NoHandle { .. }) => {
                Err(Error::clone(&cause))
            }
            synced => synced.map(|()| next),
        }
    }

    fn wake_replica(&self) {
        if let Some(replica) = &self.replica {
            replica.wake();
        }
    }

    /// Makes every record durable, and states in the log that the session was closed behind the last one.
    fn sync_to_close(self: &Arc<Self>) -> Result<()> {
        self.sync()?;
        let mut state = self.state.lock();
        if self.gate.failure().is_some() {
            return Ok(());
        }
        state.log.attest_close(self.gate.synced_end()).map_err(|error| self.poison_on_error(error))?;
        state.log.give_back_room();
        Ok(())
    }

    /// Checks that this process opened the session. In a forked copy of that process, the session's threads
    /// and locks belong to the original.
    #[inline]
    fn check_process(&self) -> Result<()> {
        if process_mark() == self.process { Ok(()) } else { Err(Error::Forked { session: self.id }) }
    }

    fn close(self: &Arc<Self>) -> Result<()> {
        // A forked process has nothing to close.
        self.check_process()?;
        // What somebody let go of is rolled back, and not left for the next process to recover.
        operations::end_abandoned(self);
        operations::await_abandoned(self);
        let (writing, stuck) = {
            let mut state = self.state.lock();
            let before = std::mem::replace(&mut state.closed, true);
            let stuck =
                state.running_calls.stuck_operations(self.store.options.grace).next().filter(|_| !before);
            (!before && (state.log.is_writing() || state.log.is_resting()), stuck)
        };
        let writing = writing && !sabotage::is(Breakage::CloseUnsynced);
        let result = match writing {
            true => self.finish().and_then(|()| self.sync_to_close()),
            // What an earlier process wrote may be durable here and not held yet.
            false if self.gate.failure().is_none() => self.hold_through(self.gate.synced_end()),
            false => Ok(()),
        };
        if writing && result.is_ok() {
            self.image_at_closing();
        }
        // Waits for an image that the background is writing.
        drop(self.imaging.lock());
        // Here, and not where the last thread lets go of the session: by then the process may have ended.
        if let Some(replica) = &self.replica {
            replica.release();
        }
        if let Some(lock) = self.lock.lock().take() {
            // Forgotten before unlocking: afterwards this might forget the next writer.
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
    /// Makes the first handle of a session.
    fn from_inner(inner: Arc<SessionInner>) -> Session {
        Session::with(Arc::new(Handles(inner)))
    }

    /// Makes a handle that counts among these.
    fn with(handles: Arc<Handles>) -> Session {
        Session {
            inner: Arc::clone(&handles.0),
            _handles: Some(handles),
            within: None,
            lane: None,
            wait: None,
        }
    }

    /// Makes a handle for an operation.
    pub(crate) fn through(&self, within: Arc<schedule::CallScope>) -> Session {
        let (inner, handles) = (Arc::clone(&self.inner), self._handles.clone());
        // The begin names the lane in which the operation runs.
        Session { inner, _handles: handles, within: Some(within), lane: None, wait: self.wait }
    }

    /// Makes a handle for no operation.
    pub(crate) fn outside(&self) -> Session {
        Session { within: None, ..self.clone() }
    }

    /// Makes a handle that does not keep the session open.
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

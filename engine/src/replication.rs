//! Interface to a *replicator*, which stores copies of sessions' records elsewhere, so that another
//! machine can continue a session.
//!
//! A replicator stores the records of sessions, in order and without a gap, and lets one writer
//! append at a time. The engine feeds it; `foldlog-remote` implements one over object storage. The
//! engine passes records (sequence number, kind, time, body), never frames: a recovery of the local
//! log rewrites frames, and both sides must agree on content.
//!
//! # When
//!
//! | moment | action of the engine |
//! |---|---|
//! | a session is created, or opened for writing | compares the replicated records with the local log ([`Replicator::read`]), fetches records that the log has lost, claims the session ([`Replicator::claim`]), and records that it is replicated |
//! | a call returns whose record is [durable](crate::Durability) by then | that record and all before it are replicated: the handler of a tool that does not only read runs only after its start record is |
//! | a record that no call waits for | follows with the next background sync, within about a second |
//! | [`Store::take_over`](crate::Store::take_over) | claims a session that another machine wrote, and creates a local session from the replicated records |
//! | [`Session::sync`](crate::Session::sync), and dropping the last handle | every record is replicated |
//!
//! With [`Durability::Process`](crate::Durability::Process) no call waits, unless the replicator
//! lags further than [`Replication`] allows, in records, in bytes or in time. Then the next write
//! waits for it, or is refused, as the host chose.
//!
//! # Superseded workers
//!
//! Another worker may claim the session while the acknowledgement of a start record is on its way,
//! and the process may be paused at that time. The acknowledgement alone is therefore not enough to
//! start the tool. Directly before the start, with no I/O between, the engine checks that the claim
//! was confirmed a short time ago ([`Replicator::is_confirmed`]). If not, it has the claim
//! confirmed again ([`Replicator::confirm`]), until a confirmation is recent enough when it is
//! read. A *bounded window* remains: a superseded worker starts a tool only
//!
//! - if the process is paused between that check and the first instruction of the tool, or
//! - if the other worker claimed while a confirmation was still valid: with `foldlog-remote` a
//!   sixth of the lease, 5 s for the default lease. A worker that waits for the lease claims later
//!   than that, unless renewals were lost.
//!
//! An external system closes the window for itself if it refuses epochs lower than the highest one
//! it has seen ([`FencingToken`](crate::tools::FencingToken)). Tools that only read start without
//! these steps, and so does every tool with [`Durability::Process`](crate::Durability::Process),
//! which does not wait for start records either.
//!
//! # Captures
//!
//! A record names the captures of workspaces with which it was written, but not their objects.
//! Objects that the replicator does not store yet are put as *packs*, never one by one: packs of up
//! to 8 MiB, each under its hash like a payload, and a last pack of up to 1 MiB, next to the
//! records in the same [append](Replicator::append). The appended data therefore determines the
//! packs that a takeover fetches, and no listing of a store is needed. A call with few changes
//! needs no separate put. The packs of a child session's calls contain only objects that the
//! replicated captures of the sessions for which it works lack.
//!
//! # Compacted sessions
//!
//! If a record's body was dropped before the record was replicated, it is replicated without its
//! body. The first such record names an accompanying object. It lists the later positions at which
//! the slices are known, and the slices' contents there: names of items, which are stored in the
//! records.
//!
//! If a body was replicated before a compaction dropped it, the replica is unchanged until its
//! maintainer drops that body too. The session's writer lists those bodies in an observation named
//! `foldlog.compacted`: when an open session is compacted, or else at the next opening for writing.
//! After that record, a return to a position that needs such a body fails with
//! [`Error::Compacted`](crate::Error::Compacted), even if the body is available.
//!
//! # Invariants
//!
//! 1. The replicator receives only records that are durable in the local log. It is therefore never
//!    ahead of the log, unless the disk lost synced bytes, the directory is an older copy, or
//!    another writer appended. Records appended under this replicator's name are then fetched when
//!    the session is opened; records appended under another name never are.
//! 2. An object is put before any record that names it. The same applies to the objects of a
//!    workspace's capture, if the session stores it in
//!    [`captures_dir`](crate::SessionLog::captures_dir) and the replicator [stores
//!    captures](Replicator::holds_captures).
//! 3. After [`ReplicaError::Fenced`] the session rejects writes, and its running calls are
//!    cancelled. After any other failure it takes none until it is opened again, because the state
//!    of the replica is unknown.
//! 4. Local records are never merged with another writer's. If they differ from them, or follow
//!    another writer's claim, opening fails with [`Error::Superseded`](crate::Error::Superseded).
//!    They remain readable.
//! 5. A store without a replicator does none of this, and an append has its usual cost. But it
//!    opens no session for writing whose log states that it is replicated
//!    ([`Error::Replicated`](crate::Error::Replicated)), unless its options allow that
//!    ([`StoreOptions::unreplicated`](crate::StoreOptions::unreplicated)). This statement is a
//!    record, so that copies of the log contain it too. It is durable before opening returns a
//!    session that had none, and in a new session it follows the first record.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use foldlog_codec::body::ObjectId;
use foldlog_codec::{Record, SequenceNumber};
use uuid::Uuid;

/// Name of the observation that records who [took over](crate::Store::take_over_to_recover) a
/// session, why, and under which epoch: a map of `by`, `reason` and `epoch`.
pub const TAKEN_OVER: &str = "foldlog.taken_over";

/// Describes a failure of a replicator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplicaError {
    /// Another writer has claimed the session. The records to be appended are not stored, and never
    /// will be.
    Fenced {
        /// Epoch of the other writer.
        epoch: u64,
        /// Name of the other writer, for people.
        by: String,
    },
    /// It is unknown whether the replicator stores the data, or will.
    Unknown {
        /// Cause of the failure.
        reason: String,
    },
    /// The replicator changed nothing: it could not be reached, or its data is unusable.
    Failed {
        /// Cause of the failure.
        reason: String,
    },
}

/// Describes the replicated part of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Sequence number after the last replicated record.
    pub next: SequenceNumber,
    /// Epoch of the last claim; 0 if the session was never claimed.
    pub epoch: u64,
    /// Whether the last claim was made under this replicator's name.
    pub is_ours: bool,
    /// Sequence number after the last record that was appended under another name; 0 if there is
    /// none.
    pub others_end: SequenceNumber,
}

/// Contains the objects that captures of workspaces add to the replica, as packs. The engine
/// creates and unpacks them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapturePacks<'a> {
    /// Packs that [`put_object`](Replicator::put_object) stored before, in their order.
    pub packs: &'a [ObjectId],
    /// Bytes of one more pack, the last one; empty if there is none.
    pub inlined: &'a [u8],
}

/// Maximum length of [`CapturePacks::inlined`] in bytes.
pub const INLINED_BYTES_MAX: usize = 1 << 20;

/// Contains a part of a replicated session, in the order in which the parts were appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeldPart<'a> {
    /// Packs for the captures that records of this append name. The part precedes each append with
    /// captures, even if they add no objects. Records without it were appended without their
    /// captures.
    Captures {
        /// Sequence number after the last record of the append.
        next: SequenceNumber,
        /// Packs of the append.
        captures: CapturePacks<'a>,
    },
    /// A record.
    Record(Record<'a>),
}

/// Stores copies of sessions' records elsewhere. See the [module](self).
///
/// The engine calls the methods of one session from one thread at a time, and never while it holds
/// a lock that a host could wait for. Each method blocks until it is done or has given up, and
/// limits that time itself.
pub trait Replicator: fmt::Debug + Send + Sync {
    /// Returns the place of the replica, in words for people. It is recorded in every session's log
    /// and must not contain a password.
    fn place(&self) -> String;

    /// Returns the name under which claims are made. It belongs to one directory of sessions.
    fn name(&self) -> String;

    /// Passes all replicated parts of the session to `visit`, in order. Returns the end of the
    /// records and the last claim. Makes no changes.
    ///
    /// # Errors
    ///
    /// [`ReplicaError::Failed`].
    fn read(&self, session: Uuid, visit: &mut dyn FnMut(HeldPart<'_>))
    -> Result<ReplicaStatus, ReplicaError>;

    /// Claims the session for this writer and returns the claim's epoch, which is higher than any
    /// before. All earlier writers are fenced from then on. Fails, and claims nothing, if records
    /// from `expected` on are stored, or if the session was claimed since
    /// [`read`](Replicator::read).
    ///
    /// # Errors
    ///
    /// [`ReplicaError::Fenced`] if another writer was faster, else [`ReplicaError::Unknown`] or
    /// [`ReplicaError::Failed`].
    fn claim(&self, session: Uuid, expected: SequenceNumber) -> Result<u64, ReplicaError>;

    /// Stores the bytes of an object, whose id is their hash. An existing object is unchanged.
    ///
    /// # Errors
    ///
    /// [`ReplicaError::Unknown`] or [`ReplicaError::Failed`].
    fn put_object(&self, session: Uuid, object: ObjectId, bytes: &[u8]) -> Result<(), ReplicaError>;

    /// Returns the bytes of a stored object.
    ///
    /// # Errors
    ///
    /// [`ReplicaError::Failed`], also if the object is missing.
    fn get_object(&self, session: Uuid, object: ObjectId) -> Result<Vec<u8>, ReplicaError>;

    /// Appends records as the writer of `epoch`. The first record must follow the last stored one.
    /// The packs of `captures` are stored with the first record or before it; `None` appends
    /// records without their captures. Returns once everything is stored.
    ///
    /// # Errors
    ///
    /// [`ReplicaError::Fenced`] if another writer claimed the session, else
    /// [`ReplicaError::Unknown`] or [`ReplicaError::Failed`].
    fn append(
        &self,
        session: Uuid,
        epoch: u64,
        captures: Option<CapturePacks<'_>>,
        records: &[Record<'_>],
    ) -> Result<(), ReplicaError>;

    /// Returns whether the claim of `epoch` was confirmed as the session's newest one recently
    /// enough that a tool may start now. Performs no I/O and does not block, because the engine
    /// calls it directly before the start. The time counts from before the confirming request was
    /// sent, on a clock that runs while the machine sleeps. A successful append or claim is a
    /// confirmation too.
    ///
    /// May be called while other methods of the session run, like [`confirm`](Replicator::confirm).
    fn is_confirmed(&self, session: Uuid, epoch: u64) -> bool;

    /// Checks whether the claim of `epoch` is the session's newest one, and notes the time of the
    /// request.
    ///
    /// # Errors
    ///
    /// [`ReplicaError::Fenced`] if another writer claimed the session, else
    /// [`ReplicaError::Unknown`] or [`ReplicaError::Failed`].
    fn confirm(&self, session: Uuid, epoch: u64) -> Result<(), ReplicaError>;

    /// Returns whether the replicator stores captures of workspaces. If not, it receives none and
    /// returns none to readers.
    fn holds_captures(&self) -> bool {
        false
    }

    /// Releases the data for the writer of `epoch`, which does not append afterwards. Has no effect
    /// if the data is already released.
    fn release(&self, session: Uuid, epoch: u64);
}

/// Configures the replication of a store's sessions.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Replication {
    /// Replicator of the records.
    pub replicator: Arc<dyn Replicator>,
    /// Maximum number of records by which the replicator may lag.
    pub records_behind_max: u64,
    /// Maximum number of bytes of the log by which it may lag, to within 64 KiB.
    pub bytes_behind_max: u64,
    /// Maximum time between the write of a record and its replication, on the clock's steady
    /// reading.
    pub time_behind_max: Duration,
    /// Treatment of a write that finds the replicator further behind.
    pub when_behind: WhenBehind,
}

/// Defines the treatment of a write if the replicator lags further than allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenBehind {
    /// Waits until the written record is replicated.
    #[default]
    Wait,
    /// Fails with [`Error::ReplicaBehind`](crate::Error::ReplicaBehind), and no data is written.
    /// End records of calls, and settlements, are still written.
    Refuse,
}

impl Replication {
    /// Replicates records to `replicator`, which may lag by 65,536 records, 64 MiB and a minute. If
    /// it lags further, writes wait for it.
    pub fn new(replicator: Arc<dyn Replicator>) -> Replication {
        Replication {
            replicator,
            records_behind_max: 65_536,
            bytes_behind_max: 64 << 20,
            time_behind_max: Duration::from_secs(60),
            when_behind: WhenBehind::Wait,
        }
    }
}

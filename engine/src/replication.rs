//! The seam to whoever keeps a copy of a session's records elsewhere, so that another machine can go on with it.
//!
//! A *replicator* holds the records of sessions, in order and without a gap, and lets one writer append at a time. The
//! engine feeds it; `foldlog-remote` is one over object storage. What is fed are records (sequence number, kind, time, body)
//! and never frames: a recovery of the local log rewrites frames, and content is what two sides must agree on.
//!
//! # When
//!
//! | moment | what the engine does |
//! |---|---|
//! | a session is created, or opened for writing | compares what the replicator holds with the local log ([`Replicator::read`]), fetches what the log has lost, claims the session ([`Replicator::claim`]), and records that it is held |
//! | a call returns whose record is [durable](crate::Durability) by then | the replicator holds that record and all before it: the handler of a tool that does not only read runs only behind such a begin |
//! | a record that no call waits for | follows with the next background sync, within about a second |
//! | [`Store::take_over`](crate::Store::take_over) | claims a session that another machine wrote, and makes a local one of what is held |
//! | [`Session::sync`](crate::Session::sync), and the last handle is dropped | the replicator holds every record |
//!
//! With [`Durability::Process`](crate::Durability::Process) no call waits, except where the replicator is further behind than
//! [`Replication`] allows, in records, in bytes or in time: then the next write waits for it, or is refused, as the host chose.
//!
//! # Superseded workers
//!
//! Another worker may claim the session while the acknowledgement of a begin is on its way to this one, and the process may be stopped
//! meanwhile. So the acknowledgement alone does not start the tool. Directly before the start, with no I/O between, the engine asks whether the
//! claim was confirmed a short time ago ([`Replicator::is_confirmed`]); if not, it has the replicator ask again
//! ([`Replicator::confirm`]), until an answer is young enough when it is read. What remains is a *bounded window*: a superseded worker starts a
//! tool only
//!
//! - if the process is stopped between that question and the first instruction of the tool, or
//! - if the other worker claimed within the time for which a confirmation counts: with `foldlog-remote` a sixth of the lease, 5 s if nobody
//!   chose another length. A worker that waits for the lease claims later than that, unless renewals were lost.
//!
//! A system outside closes the window for itself if it refuses an epoch lower than the highest one it has seen
//! ([`FencingToken`](crate::tools::FencingToken)). Tools that only read start without all this, and so does every tool with
//! [`Durability::Process`](crate::Durability::Process), which waits for no begin either.
//!
//! # Captures
//!
//! A record names the captures of workspaces that it was written with, and says nothing of their objects. What these need and the
//! replicator does not hold yet is put as *packs*, never object by object: packs of up to 8 MiB, each under its hash as a payload is,
//! and a last one, of up to 1 MiB, that stands beside the records in the same [append](Replicator::append). So what a
//! takeover has to ask for follows from what is appended, and no list of a store is relied on. A call that changed little costs no
//! put of its own. Those of a child session's calls are what they add to the captures of the session that it works for.
//!
//! # Compacted sessions
//!
//! A record whose body was dropped before it was held is held as the log has it. The first such record names an object beside, which says
//! at which positions from there on the slices are known, and what they held there: names of items, which stand in the records.
//!
//! A record whose body was held before a compaction dropped it stays as it is, until whoever keeps the records drops that body too. The
//! session's writer says which those are, in an observation named `foldlog.compacted`: when a session that is open is compacted, else when it is
//! opened for writing next. Behind that record nobody goes back to a position that needs such a body, also who has it:
//! [`Error::Compacted`](crate::Error::Compacted).
//!
//! # Invariants
//!
//! 1. The replicator is fed only what is durable in the local log, so it is never ahead of it, unless the disk lost what it had
//!    synced, the directory is an older copy, or somebody else wrote. What this replicator's name appended is fetched then, when the session
//!    is opened; what another name appended never is.
//! 2. An object is put before any record that names it; so is what a capture of a workspace needs, where the session keeps it
//!    in [`captures_dir`](crate::Session::captures_dir), and the replicator [holds captures](Replicator::holds_captures).
//! 3. After [`ReplicaError::Fenced`] the session takes no writes, and its running calls are told to stop. After any other
//!    failure it takes none until it is opened again, since nobody knows what the replicator holds.
//! 4. Local records are never merged with another writer's: where they differ, or stand behind another writer's claim, opening
//!    fails with [`Error::Superseded`](crate::Error::Superseded). They can still be read.
//! 5. A store without a replicator does none of this, and an append costs what it did. But it opens no session for writing whose log
//!    says that a replica holds it ([`Error::Replicated`](crate::Error::Replicated)), unless its options say that it shall
//!    ([`StoreOptions::unreplicated`](crate::StoreOptions::unreplicated)). What says so is a record, so that copies of the log say it too: it
//!    is durable before a session that had none is returned from opening, and in a new session it stands behind the first record.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use foldlog_codec::body::ObjectId;
use foldlog_codec::{Record, SequenceNumber};
use uuid::Uuid;

/// Name of the observation that says by whom a session was [taken over](crate::Store::take_over_to_recover), why, and under which epoch: a map
/// of `by`, `reason` and `epoch`.
pub const TAKEN_OVER: &str = "foldlog.taken_over";

/// Reports why a replicator did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplicaError {
    /// Another writer has claimed the session: what was to be appended is not held, and never will be.
    Fenced {
        /// Epoch of the other writer.
        epoch: u64,
        /// Who it is, in words.
        by: String,
    },
    /// Nobody knows whether the replicator holds what was to be appended, or will.
    Unknown {
        /// Why.
        reason: String,
    },
    /// The replicator did nothing: it could not be asked, or what it holds cannot be used.
    Failed {
        /// Why.
        reason: String,
    },
}

/// Says what a replicator holds of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Sequence number behind the last record that it holds.
    pub next: SequenceNumber,
    /// Epoch of the last claim; 0 if nobody has claimed the session.
    pub epoch: u64,
    /// Whether the last claim was made in the name that this replicator claims in.
    pub is_ours: bool,
    /// Sequence number behind the last record that was appended in another name; 0 if there is none.
    pub others_end: SequenceNumber,
}

/// Names what captures of workspaces add to what is held: packs, which the engine makes and takes apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapturePacks<'a> {
    /// Packs that [`put_object`](Replicator::put_object) put before, in their order.
    pub packs: &'a [ObjectId],
    /// Bytes of one more pack, which comes last; empty if there is none.
    pub inlined: &'a [u8],
}

/// Length of [`CapturePacks::inlined`] in bytes at most.
pub const INLINED_BYTES_MAX: usize = 1 << 20;

/// Shows a part of what is held of a session, in the order in which it was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeldPart<'a> {
    /// Names what captures add that the records below `next` name, of those that follow. It stands in front of each append with captures,
    /// also if they add nothing: records without it were appended without their captures.
    Captures {
        /// Sequence number behind the last record of the append.
        next: SequenceNumber,
        /// Packs of the append.
        captures: CapturePacks<'a>,
    },
    /// Holds a record.
    Record(Record<'a>),
}

/// Keeps copies of sessions' records elsewhere. See the [module](self).
///
/// The engine calls the methods of one session from one thread at a time, and none while it holds a lock that a host could wait
/// for. Each blocks until it is done or has given up, and bounds that time itself.
pub trait Replicator: fmt::Debug + Send + Sync {
    /// Returns where the records are held, in words for people: every session's log says so. No password may stand in it.
    fn place(&self) -> String;

    /// Returns the name that claims are made in. It belongs to one directory of sessions.
    fn name(&self) -> String;

    /// Hands all that is held of the session to `visit`, in order, and returns how far the records go and who claimed the session last.
    /// Changes nothing.
    ///
    /// # Errors
    ///
    /// [`ReplicaError::Failed`].
    fn read(&self, session: Uuid, visit: &mut dyn FnMut(HeldPart<'_>))
    -> Result<ReplicaStatus, ReplicaError>;

    /// Claims the session for this writer and returns the claim's epoch, which is higher than any before. From then on every
    /// earlier writer is fenced. Fails, and claims nothing, if records are held from `expected` on, or anybody claimed the session
    /// since [`read`](Replicator::read).
    ///
    /// # Errors
    ///
    /// [`ReplicaError::Fenced`] where somebody else was faster, else [`ReplicaError::Unknown`] or [`ReplicaError::Failed`].
    fn claim(&self, session: Uuid, expected: SequenceNumber) -> Result<u64, ReplicaError>;

    /// Holds the bytes of an object, whose id is their hash. An object that is held already is left as it is.
    ///
    /// # Errors
    ///
    /// [`ReplicaError::Unknown`] or [`ReplicaError::Failed`].
    fn put_object(&self, session: Uuid, object: ObjectId, bytes: &[u8]) -> Result<(), ReplicaError>;

    /// Returns the bytes of an object that is held.
    ///
    /// # Errors
    ///
    /// [`ReplicaError::Failed`], also where it is not held.
    fn get_object(&self, session: Uuid, object: ObjectId) -> Result<Vec<u8>, ReplicaError>;

    /// Appends records behind those that are held, the first of which follows the last one held, as the writer of `epoch`. Holds what
    /// captures add that these records name with the first record or before it; `None` appends records without their captures. Returns
    /// once all are held.
    ///
    /// # Errors
    ///
    /// [`ReplicaError::Fenced`] if another writer claimed the session, else [`ReplicaError::Unknown`] or
    /// [`ReplicaError::Failed`].
    fn append(
        &self,
        session: Uuid,
        epoch: u64,
        captures: Option<CapturePacks<'_>>,
        records: &[Record<'_>],
    ) -> Result<(), ReplicaError>;

    /// Returns whether the claim of `epoch` is known to have been the session's newest one so short a time ago that a tool may start now. Asks
    /// nobody and waits for nothing, since the engine calls it directly before the start. The time counts from before the confirming request
    /// was sent, on a clock that goes on while the machine sleeps; an append and a claim that succeeded confirm as well.
    ///
    /// May be called while other methods of the session run, as may [`confirm`](Replicator::confirm).
    fn is_confirmed(&self, session: Uuid, epoch: u64) -> bool;

    /// Asks whether the claim of `epoch` is the session's newest one, and notes when it asked.
    ///
    /// # Errors
    ///
    /// [`ReplicaError::Fenced`] if another writer claimed the session, else [`ReplicaError::Unknown`] or
    /// [`ReplicaError::Failed`].
    fn confirm(&self, session: Uuid, epoch: u64) -> Result<(), ReplicaError>;

    /// Returns whether it holds captures of workspaces. One that does not is given none, and hands none to whoever reads.
    fn holds_captures(&self) -> bool {
        false
    }

    /// Forgets what it keeps for the writer of `epoch`, which appends nothing any more, and does nothing if it has already.
    fn release(&self, session: Uuid, epoch: u64);
}

/// Says how the sessions of a store are replicated.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Replication {
    /// Who holds the records.
    pub replicator: Arc<dyn Replicator>,
    /// Number of records by which the replicator may be behind.
    pub records_behind_max: u64,
    /// Number of bytes of the log by which it may be behind, to within 64 KiB.
    pub bytes_behind_max: u64,
    /// How long a record may have been written, on the clock's steady reading, and not be held.
    pub time_behind_max: Duration,
    /// What becomes of a write that finds it further behind.
    pub when_behind: WhenBehind,
}

/// Says what becomes of a write that finds the replicator further behind than it may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenBehind {
    /// Waits until the replicator holds the record that it wrote.
    #[default]
    Wait,
    /// Fails with [`Error::ReplicaBehind`](crate::Error::ReplicaBehind), and nothing is written. The ends of calls, and what settles
    /// them, are written all the same.
    Refuse,
}

impl Replication {
    /// Has records held by `replicator`, which may be 65,536 records, 64 MiB and a minute behind. Further behind, writes wait for it.
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

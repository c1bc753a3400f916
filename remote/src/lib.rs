//! Stores foldlog sessions in object storage or in PostgreSQL: one fenced writer, and readers
//! anywhere.
//!
//! A worker's machine may disappear in the middle of a tool call. Another worker, on any machine,
//! then reads the session from the bucket, claims it, and knows exactly which records were
//! acknowledged. After the claim, the old worker gets no append acknowledged, even if it was only
//! paused and wakes up again. It starts no tool either, except within a bounded window, which
//! `foldlog::replication` describes.
//!
//! # Terms
//!
//! | term | meaning |
//! |---|---|
//! | *chunk* | one object of a session's remote log: some records, or a claim ([`chunk`] draws its bytes) |
//! | *chain* | the chunks that count, in the order of their numbers ([`chain`] lists the rules) |
//! | *epoch* | number of a claim; every chunk contains its writer's epoch |
//! | *claim* | a chunk without records that raises the epoch; the worker that puts it becomes the writer |
//! | *fenced* | of a writer: it found another writer's claim under the number of its next chunk |
//! | *pack* | the bytes that captures of workspaces add, built by the engine; stored in an object that a chunk names, or in the chunk |
//! | *volume* | one object with the chunks of a whole range of numbers ([`volume`] draws its bytes) |
//! | *collected* | of a chunk: removed, since a volume contains it |
//! | *compacted* | of a volume: its chunks have lost the bodies that a compaction of the session dropped ([`compaction`] describes where compacted volumes are) |
//! | *withdrawn* | of a payload's name: no longer used by any writer, since the payload is unreferenced ([`withdrawal`]) |
//! | *lease* | shows whether a session's worker lives, and so when to take over, but never whether that is safe: [`SessionLease`] |
//! | *acknowledged* | of a record: the chain contains it and every record before it |
//!
//! # Modules
//!
//! | module | contains |
//! |---|---|
//! | [`chunk`] | the bytes of a chunk |
//! | [`chain`] | the rules by which chunks form a log; no I/O |
//! | [`volume`] | the bytes of a volume |
//! | [`compaction`] | the bytes that record which compacted volumes replace which chunks |
//! | [`withdrawal`] | the bytes that record which names of payloads no writer uses any more |
//! | `fields`, `numbered_objects` | the fields of these bytes, and the common parts of objects that a session numbers |
//! | `objects` | sessions in object storage: [`ObjectReplicator`] |
//! | `postgres` | sessions in a database, with its own protocol: [`PostgresReplicator`] |
//! | `replicator`, `slots` | the replicator that the engine feeds, for both |
//! | `confirmations` | the time since the place confirmed a claim, which is checked before a tool starts |
//! | `lease` | when to take a session over: [`wait_for_lease`] |
//! | `kept_payloads` | payloads that were put, until the records that name them are acknowledged |
//! | `dropped_bodies`, `referenced_payloads` | the bodies that a compaction dropped, and the payloads that the log names, both from the session's records |
//! | `place` | places that people name by URLs, and the operations of each: [`Place`], [`open_place`] |
//! | `runtime`, `clock`, `retries` | a thread that drives requests, elapsed time, and bounds of requests |
//! | `connection` | the cause of a missing connection |
//!
//! The feature `postgres`, off by default, stores sessions in a PostgreSQL database. Chunks and
//! chains belong to object storage; `docs/spec/remote.md` describes their counterparts in a
//! database.
//!
//! The module `objects` needs the feature `object-store`, which is on by default. It brings the
//! crate [`object_store`] with stores in memory and in a local directory. The features `s3`, `gcs`
//! and `azure` bring the stores of networks. A URL names such a store, and its keys come from the
//! environment ([`open_place`]). A host that builds a store itself with the crate `object_store`
//! passes it to [`ObjectReplicator`].
//!
//! # Invariants
//!
//! 1. A record is acknowledged only once the chain contains it and all records before it.
//! 2. The log changes only by creating objects that do not exist yet. It relies on no list, update
//!    or rename. Only a collection removes objects of the log. Under a number that was collected,
//!    no chunk counts but the one in the volume.
//! 3. A writer has one put in flight. It puts no other bytes under that number before the outcome
//!    is known.
//! 4. A writer is fenced only by a chunk that was read and verified, never by a store's claim about
//!    it.
//! 5. No length that a chunk or a store claims decides how much memory is allocated.
//! 6. Text from a store, a chunk or a host is shown escaped or not at all. Of an answer of a
//!    bucket's store, only status and code are shown; of an answer of a database's server, the
//!    SQLSTATE and the start of its message. No error contains a password, a key, a token or a
//!    signature.
//!
//! `docs/spec/remote.md` lists the proof obligations, and the test that covers each.
//!
//! # Not yet
//!
//! There are no images: a claim reads every record.

#![deny(clippy::indexing_slicing)]

use std::sync::{Mutex, MutexGuard, PoisonError};

pub mod chain;
pub mod chunk;
mod clock;
pub mod compaction;
mod confirmations;
#[cfg(any(feature = "network", feature = "postgres"))]
mod connection;
mod dropped_bodies;
mod error;
mod fields;
mod kept_payloads;
mod lease;
mod numbered_objects;
#[cfg(feature = "object-store")]
mod objects;
mod place;
#[cfg(feature = "postgres")]
mod postgres;
mod referenced_payloads;
mod replicator;
mod retries;
mod runtime;
mod slots;
pub mod volume;
pub mod withdrawal;

pub use error::{Error, FailureDetails, GapEnd, RemoteFailure, Result, ServerAnswer, SqlState};
pub use lease::{
    LEASE_LENGTH, LEASE_LENGTH_MAX, LEASE_LENGTH_MIN, LeasePacer, LeaseStanding, LeaseWait, LeaseWaitOutcome,
    LeaseWatch, SessionLease, SteadyPacing, wait_for_lease,
};
#[cfg(feature = "object-store")]
pub use object_store;
#[cfg(feature = "object-store")]
pub use objects::{
    Bucket, ChunkReader, ChunkWriter, ObjectReplicator, Payloads, Remote, RemoteWriter, collect, open_remote,
};
pub use place::{
    CollectOptions, CollectReport, Place, PlaceEnvironment, PlaceItem, PlaceReader, SessionStanding,
    open_place, open_place_with,
};
#[cfg(feature = "postgres")]
pub use postgres::{Database, HeldRecord, PostgresReplicator, Tail};
pub use replicator::{SessionPayloads, SessionWriter};
pub use retries::Retries;
pub use runtime::Runtime;
pub use volume::MIN_AGE;

/// Locks a value that is valid even after a panic of another thread.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

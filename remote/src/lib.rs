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
//! | `bucket` | requests to a store, bounded in time, size and number |
//! | [`volume`] | the bytes of a volume |
//! | `volume_lookup`, `clock` | finding the chunk with a number, and whether it counts |
//! | `reader` | reading a chain without a list |
//! | `writer` | claiming and appending, and resolving a lost answer |
//! | `volume_builder`, `collect` | putting volumes, and removing the chunks in them ([`Remote::collect`]) |
//! | [`compaction`] | the bytes that record which compacted volumes replace which chunks |
//! | `dropped_bodies`, `body_removal` | the bodies that a compaction dropped, from the session's records; putting compacted volumes, and removing the objects that they replace |
//! | `payloads`, [`withdrawal`] | putting and reading payloads and packs, and the bytes that record which of their names no writer uses any more |
//! | `fields`, `numbered_objects` | the fields of these bytes, and the common parts of objects that a session numbers |
//! | `referenced_payloads`, `payload_removal` | the payloads that the log names, and removal of the others |
//! | `lease` | when to take a session over: [`wait_for_lease`] |
//! | `confirmations` | the time since the place confirmed a claim, which is checked before a tool starts |
//! | `runtime`, `remote` | a thread that drives requests, and the blocking API |
//! | `place` | places that people name by URLs, and the operations of each: [`Place`], [`open_place`] |
//! | `buckets`, `network` | places in object storage, and access to those in networks |
//! | `exchange`, `connection` | the host of the last request and its answer; the cause of a missing connection |
//! | `replicator`, `object_replicator` | the replicator that the engine feeds, for any place and for object storage: [`ObjectReplicator`] |
//! | `kept_payloads` | payloads that were put, until the records that name them are acknowledged |
//! | `postgres` | a database instead of a bucket, with its own protocol: [`PostgresReplicator`] |
//!
//! The feature `postgres`, off by default, stores sessions in a PostgreSQL database. Chunks and
//! chains belong to object storage; `docs/spec/remote.md` describes their counterparts in a
//! database.
//!
//! What reads and writes buckets needs the feature `object-store`, which is on by default. It brings the crate [`object_store`] with stores
//! in memory and in a local directory. The features `s3`, `gcs` and `azure` bring the stores of
//! networks. A URL names such a store, and its keys come from the environment ([`open_place`]). A
//! host that builds a store itself with the crate `object_store` passes it to [`ObjectReplicator`].
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

#[cfg(feature = "object-store")]
mod body_removal;
#[cfg(feature = "object-store")]
mod bucket;
#[cfg(feature = "object-store")]
mod buckets;
pub mod chain;
pub mod chunk;
mod clock;
#[cfg(feature = "object-store")]
mod collect;
pub mod compaction;
mod confirmations;
#[cfg(any(feature = "network", feature = "postgres"))]
mod connection;
#[cfg(feature = "object-store")]
mod directory;
mod dropped_bodies;
mod error;
#[cfg(feature = "object-store")]
mod exchange;
mod fields;
mod kept_payloads;
mod lease;
#[cfg(feature = "object-store")]
mod log_end;
#[cfg(feature = "network")]
mod network;
mod numbered_objects;
#[cfg(feature = "object-store")]
mod object_replicator;
#[cfg(feature = "object-store")]
mod payload_removal;
#[cfg(feature = "object-store")]
mod payloads;
mod place;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "object-store")]
mod reader;
mod referenced_payloads;
#[cfg(feature = "object-store")]
mod remote;
mod replicator;
mod retries;
mod runtime;
mod slots;
pub mod volume;
#[cfg(feature = "object-store")]
mod volume_builder;
#[cfg(feature = "object-store")]
mod volume_lookup;
pub mod withdrawal;
#[cfg(feature = "object-store")]
mod writer;

#[cfg(feature = "object-store")]
pub use bucket::Bucket;
#[cfg(feature = "object-store")]
pub use buckets::open_remote;
#[cfg(feature = "object-store")]
pub use collect::collect;
pub use error::{Error, FailureDetails, GapEnd, RemoteFailure, Result, ServerAnswer, SqlState};
pub use lease::{
    LEASE_LENGTH, LEASE_LENGTH_MAX, LEASE_LENGTH_MIN, LeasePacer, LeaseStanding, LeaseWait, LeaseWaitOutcome,
    LeaseWatch, SessionLease, SteadyPacing, wait_for_lease,
};
#[cfg(feature = "object-store")]
pub use object_replicator::ObjectReplicator;
#[cfg(feature = "object-store")]
pub use object_store;
#[cfg(feature = "object-store")]
pub use payloads::Payloads;
pub use place::{
    CollectOptions, CollectReport, Place, PlaceEnvironment, PlaceItem, PlaceReader, SessionStanding,
    open_place, open_place_with,
};
#[cfg(feature = "postgres")]
pub use postgres::{Database, HeldRecord, PostgresReplicator, Tail};
#[cfg(feature = "object-store")]
pub use reader::ChunkReader;
#[cfg(feature = "object-store")]
pub use remote::{Remote, RemoteWriter};
pub use replicator::{SessionPayloads, SessionWriter};
pub use retries::Retries;
pub use runtime::Runtime;
pub use volume::MIN_AGE;
#[cfg(feature = "object-store")]
pub use writer::ChunkWriter;

//! Keeps sessions of foldlog in object storage, or in PostgreSQL: one fenced writer, and readers anywhere.
//!
//! A worker's machine disappears in the middle of a tool call. Another worker, anywhere, reads the session from the
//! bucket, claims it, and knows exactly what was acknowledged; the old one gets nothing acknowledged any more that it
//! begins to append behind the claim, even if it was only paused and wakes up again. It starts no tool any more either, except within a
//! bounded window, which `foldlog::replication` describes.
//!
//! # Terms
//!
//! | term | means |
//! |---|---|
//! | *chunk* | one object of a session's remote log: some records, or a claim ([`chunk`] draws its bytes) |
//! | *chain* | the chunks that count, in the order of their numbers ([`chain`] says by which rules) |
//! | *epoch* | number of a claim; every chunk holds the one of its writer |
//! | *claim* | a chunk without records that raises the epoch; whoever puts it is the writer from there on |
//! | *fenced* | what a writer is that finds another writer's claim where its next chunk was to be |
//! | *pack* | what captures of workspaces add: bytes that the engine makes, in an object that a chunk names, or in the chunk |
//! | *volume* | one object with the chunks of a whole range of numbers ([`volume`] draws its bytes) |
//! | *collected* | a chunk that was removed, since a volume holds it |
//! | *compacted* | of a volume: one whose chunks have lost the bodies that a compaction of the session dropped ([`compaction`] says where they are) |
//! | *withdrawn* | of a name of a payload: given by no writer any more, since nothing named the payload ([`withdrawal`]) |
//! | *lease* | what says that a session's worker lives, and so when to take over, and never whether that is safe: [`SessionLease`] |
//! | *acknowledged* | the chain holds the record, and every record before it |
//!
//! # Rooms
//!
//! | module | holds |
//! |---|---|
//! | [`chunk`] | the bytes of a chunk |
//! | [`chain`] | the rules by which chunks are a log; no I/O |
//! | `bucket` | requests to a store, bounded in time, size and number |
//! | [`volume`] | the bytes of a volume |
//! | `volumes`, `clock` | where the chunk with a number is found, and whether what stands there counts |
//! | `reader` | reading a chain without a list |
//! | `writer` | claiming and appending, and what is made of a lost answer |
//! | `volume_builder`, `collect` | putting volumes, and removing chunks that they hold ([`Remote::collect`]) |
//! | [`compaction`] | the bytes that say which compacted volumes stand for which chunks |
//! | `dropped_bodies`, `compact` | which bodies a compaction dropped, as the session's records say; putting compacted volumes, and removing what they stand for |
//! | `payloads`, [`withdrawal`] | putting and reading payloads and packs, and the bytes that say which of their names no writer gives any more |
//! | `fields`, `numbered_objects` | the fields of these bytes, and what objects have in common that a session numbers |
//! | `referenced_payloads`, `withdraw` | which payloads the log names, and removing the others |
//! | `lease` | when it is time to take a session over: [`wait_for_lease`] |
//! | `confirmations` | how long ago the place confirmed a claim, which is asked before a tool starts |
//! | `runtime`, `remote` | a thread of its own, and blocking forms of all that |
//! | `place` | places that people name by URLs, and what can be asked of each: [`Place`], [`open_place`] |
//! | `buckets`, `network` | places in object storage, and how those of networks are reached |
//! | `exchange`, `connection` | which host was asked last and what it answered; why there is no connection |
//! | `replicator` | what the engine feeds: [`ObjectReplicator`] |
//! | `postgres` | a database in place of a bucket, with a protocol of its own: [`PostgresReplicator`] |
//!
//! With the feature `postgres`, which is not on by default, sessions are kept in a PostgreSQL database. What stands here of chunks and chains
//! is of object storage; `docs/spec/remote.md` says what takes their place there.
//!
//! All but `chunk`, `chain`, `volume`, `compaction`, `withdrawal` and `postgres` are there with the feature `object-store`, which is on by default. It brings the crate
//! [`object_store`] with stores in memory and in a local directory. The features `s3`, `gcs` and `azure` bring the stores of networks,
//! which a URL names and whose keys come from the environment ([`open_place`]). A host that makes a store itself, as the crate
//! `object_store` says, hands it to [`ObjectReplicator`].
//!
//! # Invariants
//!
//! 1. A record is acknowledged only once the chain holds it and all records before it.
//! 2. Nothing but creating an object that does not exist changes the log. No list, update or rename is relied on. Only a collection
//!    removes anything of it, and no chunk counts under a number that was collected but that of the volume.
//! 3. One put of a writer is in flight, and no other bytes are put under its number before its fate is known.
//! 4. A writer is fenced only by a chunk that was read and verified, never by what a store says in place of it.
//! 5. No length that a chunk or a store claims decides how much memory is taken.
//! 6. What a store, a chunk or a host says is shown escaped or not at all. Of what a bucket's store answers, status and code alone are shown;
//!    of what a database's server answers, the SQLSTATE and the beginning of its message. No error holds a password, a key, a token or a
//!    signature.
//!
//! The proof obligations, and which test covers which, stand in `docs/spec/remote.md`.
//!
//! # Not yet
//!
//! There are no images: a claim reads every record.

#![deny(clippy::indexing_slicing)]

#[cfg(feature = "object-store")]
mod bucket;
#[cfg(feature = "object-store")]
mod buckets;
pub mod chain;
pub mod chunk;
#[cfg(any(feature = "object-store", feature = "postgres"))]
mod clock;
#[cfg(feature = "object-store")]
mod collect;
#[cfg(feature = "object-store")]
mod compact;
pub mod compaction;
#[cfg(any(feature = "object-store", feature = "postgres"))]
mod confirmations;
#[cfg(any(feature = "network", feature = "postgres"))]
mod connection;
#[cfg(feature = "object-store")]
mod directory;
#[cfg(any(feature = "object-store", feature = "postgres"))]
mod dropped_bodies;
mod error;
#[cfg(feature = "object-store")]
mod exchange;
mod fields;
#[cfg(any(feature = "object-store", feature = "postgres"))]
mod lease;
#[cfg(feature = "object-store")]
mod log_end;
#[cfg(feature = "network")]
mod network;
mod numbered_objects;
#[cfg(feature = "object-store")]
mod payloads;
#[cfg(any(feature = "object-store", feature = "postgres"))]
mod place;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "object-store")]
mod reader;
#[cfg(any(feature = "object-store", feature = "postgres"))]
mod referenced_payloads;
#[cfg(feature = "object-store")]
mod remote;
#[cfg(feature = "object-store")]
mod replicator;
#[cfg(any(feature = "object-store", feature = "postgres"))]
mod retries;
#[cfg(any(feature = "object-store", feature = "postgres"))]
mod runtime;
#[cfg(any(feature = "object-store", feature = "postgres"))]
mod slots;
pub mod volume;
#[cfg(feature = "object-store")]
mod volume_builder;
#[cfg(feature = "object-store")]
mod volumes;
#[cfg(feature = "object-store")]
mod withdraw;
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
#[cfg(any(feature = "object-store", feature = "postgres"))]
pub use lease::{
    LEASE_LENGTH, LEASE_LENGTH_MAX, LEASE_LENGTH_MIN, LeasePacer, LeaseStanding, LeaseWait, LeaseWaitOutcome,
    LeaseWatch, SessionLease, SteadyPacing, wait_for_lease,
};
#[cfg(feature = "object-store")]
pub use object_store;
#[cfg(feature = "object-store")]
pub use payloads::Payloads;
#[cfg(any(feature = "object-store", feature = "postgres"))]
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
#[cfg(feature = "object-store")]
pub use replicator::ObjectReplicator;
#[cfg(any(feature = "object-store", feature = "postgres"))]
pub use retries::Retries;
#[cfg(any(feature = "object-store", feature = "postgres"))]
pub use runtime::Runtime;
pub use volume::MIN_AGE;
#[cfg(feature = "object-store")]
pub use writer::ChunkWriter;

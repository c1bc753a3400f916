//! Stores sessions in object storage: chunks, volumes, payloads and leases as objects.
//!
//! | module | contains |
//! |---|---|
//! | `bucket` | requests to a store, bounded in time, size and number |
//! | `volume_lookup` | finding the chunk with a number, and whether it counts |
//! | `reader`, `log_end` | reading a chain without a list, and finding its end |
//! | `writer` | claiming and appending, and resolving a lost answer |
//! | `volume_builder`, `collect` | putting volumes, and removing the chunks in them |
//! | `body_removal` | putting compacted volumes, and removing the objects that they replace |
//! | `payloads`, `payload_removal` | putting and reading payloads and packs, and removing unreferenced ones |
//! | `leases` | the objects of a lease |
//! | `remote`, `replicator` | the blocking API, and the place of the replicator that the engine feeds |
//! | `buckets`, `network` | places by URLs, and access to those in networks |
//! | `exchange` | the host of the last request and its answer |

mod body_removal;
mod bucket;
pub(crate) mod buckets;
mod collect;
mod exchange;
mod leases;
mod log_end;
#[cfg(feature = "network")]
mod network;
mod payload_removal;
mod payloads;
mod reader;
mod remote;
mod replicator;
mod volume_builder;
mod volume_lookup;
mod writer;

pub use bucket::Bucket;
pub use buckets::open_remote;
pub use collect::collect;
pub use payloads::Payloads;
pub use reader::ChunkReader;
pub use remote::{Remote, RemoteWriter};
pub use replicator::ObjectReplicator;
pub use writer::ChunkWriter;

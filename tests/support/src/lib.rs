//! Shared parts of the tests: a host's types, child processes, disks, and oracles that share no
//! code with the engine.

mod blob;
pub mod captures;
pub mod child;
pub mod competing;
pub mod crash;
pub mod host;
pub mod killed;
pub mod loop_disk;
pub mod model;
pub mod named_host;
pub mod replayed_host;
pub mod replica;
pub mod room;
pub mod runs;
mod skipped;
mod watched;
pub mod workload;

pub use blob::Blob;
pub use skipped::skipped;
pub use watched::Watched;

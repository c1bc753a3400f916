//! Shared parts of the tests: a host's types, child processes, disks, and oracles that share no code with the engine.

/// Runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

mod blob;
pub mod child;
pub mod crash;
pub mod forge;
pub mod fuzz;
pub mod held;
pub mod host;
pub mod killed;
pub mod loop_disk;
pub mod model;
pub mod named_host;
pub mod replica;
pub mod runs;
#[cfg(feature = "sabotage")]
pub mod sabotage;
pub mod shown;
mod skipped;
pub mod verbs;
mod watched;

pub use blob::Blob;
pub use skipped::skipped;
pub use watched::Watched;

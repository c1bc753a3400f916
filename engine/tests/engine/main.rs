//! Tests of the engine through its public API. `docs/internals/checklist.md` lists the behaviour
//! that each of them shows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::redundant_clone, clippy::semicolon_if_nothing_returned)]

mod backups;
mod bad_input;
mod collection;
mod compaction;
mod compressed;
mod conversation;
mod failing;
mod filesystem;
mod following;
mod private;
mod processes;
mod replaying;
mod replicated;
mod replicated_captures;
mod replicated_claims;
mod replicated_lineages;
mod replicated_starts;
mod session;
mod tools;

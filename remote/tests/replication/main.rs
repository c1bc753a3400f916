//! Shows that a store whose sessions are replicated into a bucket acknowledges only records that
//! another worker could read there, and what happens to a writer whose session another worker has
//! claimed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bucket;
mod captures;
mod children;
mod compacted;
#[path = "../parts/directories.rs"]
mod directories;
mod elsewhere;
mod feeding;
mod fencing;
mod fetching;
mod held;
mod host;
mod lag;
mod leases;
#[path = "../parts/lineages.rs"]
mod lineages;
#[path = "../parts/notes.rs"]
mod notes;
#[path = "../parts/pacing.rs"]
mod pacing;
#[path = "../parts/requests.rs"]
mod requests;
mod takeover;
mod workspace;

//! Shows that a store whose sessions are replicated into a bucket acknowledges nothing that another worker could not read
//! there, and what becomes of a writer whose session another one has claimed.

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

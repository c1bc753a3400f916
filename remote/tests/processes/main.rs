//! Real processes over a bucket in a local directory: killed at each step of the protocol, or stopped there while somebody else takes
//! their session over, and continued.
//!
//! A *step* is the moment before or behind one request of a worker's to the bucket. A worker is another process of this test binary
//! (`worker::part_of_a_worker`), which says on its standard output what it has done, and at the step that it is told waits for a line
//! on its standard input. So nothing here waits for a time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod child;
#[path = "../parts/directories.rs"]
mod directories;
mod host;
mod kills;
#[path = "../parts/notes.rs"]
mod notes;
#[path = "../parts/requests.rs"]
mod requests;
mod steps;
mod stops;
mod worker;

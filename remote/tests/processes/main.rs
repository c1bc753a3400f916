//! Runs real processes over a bucket in a local directory. They are killed at each step of the
//! protocol, or stopped there while another worker takes their session over, and continued.
//!
//! A *step* is the moment before or after one of a worker's requests to the bucket. A worker is
//! another process of this test binary (`worker::part_of_a_worker`). It reports its progress on
//! standard output, and at its given step waits for a line on standard input. So no test waits for
//! a time.

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

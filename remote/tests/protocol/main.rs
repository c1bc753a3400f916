//! Shows that the protocol over object storage keeps its promises. `docs/spec/remote.md` lists the
//! test of each one.

// Clippy does not take helpers of tests for tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod compacted;
mod counts;
mod damage;
mod holes;
mod local;
mod payloads;
#[path = "../parts/requests.rs"]
mod requests;
mod schedules;
mod sim;
mod traps;
mod volumes;

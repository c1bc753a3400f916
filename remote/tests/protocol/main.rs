//! Shows that the protocol over object storage keeps what it promises; `tests/README.md` of the workspace says which
//! test shows what.

// Helpers of tests are no tests to clippy.
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

//! Speaks to a server that speaks as S3 does: what holds over a store in memory holds over the wire, and what goes wrong there is
//! said in words that a person can act on.
//!
//! `FOLDLOG_S3_ENDPOINT` names the server, such as the one that `serve.py` starts. Without it each test says that it is skipped. One
//! test is for a bucket of one's own, of any kind, and run by hand.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod between;
#[path = "../parts/late_starts.rs"]
mod late;
mod late_starts;
#[path = "../parts/notes.rs"]
mod notes;
#[path = "../parts/placed.rs"]
mod placed;
mod places;
mod races;
mod refused;
mod server;
mod traps;
mod volumes;

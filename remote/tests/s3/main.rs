//! Runs the protocol against a real S3 server. The results of the store in memory apply over the
//! wire too, and errors tell a person how to correct them.
//!
//! `FOLDLOG_S3_ENDPOINT` names the server, such as the one that `serve.py` starts. Without it each
//! test reports that it is skipped. One test is for your own bucket, of any kind, and run by hand.

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

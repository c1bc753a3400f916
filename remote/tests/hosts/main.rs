//! Runs several hosts on one machine: a bucket in one network namespace, and workers in others,
//! each with its own link to the bucket. Links go down and up, the bucket's server is killed and
//! restarted, workers are stopped, killed and cut off, their clocks leap, and others take over.
//!
//! Namespaces need root and `ip`. Without them each test reports that it is skipped (also in the
//! file that `FOLDLOG_SKIPPED` names). Nothing leaves the machine: no namespace has a route out. A
//! worker executes one command after the other, so no test waits for a time, except for a lease.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod child;
mod clocks;
mod links;
mod net;
#[path = "../parts/notes.rs"]
mod notes;
mod server;
mod stops;
mod worker;

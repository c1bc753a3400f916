//! Several hosts on one machine: a bucket in one network namespace, and workers in others, each with a link of its own to it. Links go
//! down and up, the bucket's server is killed and started again, workers are stopped, killed and cut off, their clocks leap, and others
//! take over.
//!
//! Namespaces need root and `ip`; where they cannot be made each test says that it is skipped (`FOLDLOG_SKIPPED` names a file that gets that
//! line too). Nothing leaves the machine: no namespace has a way out. A worker does what it is asked, one line after the other, so nothing
//! here waits for a time, but those who wait for a lease.

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

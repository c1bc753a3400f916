//! Shows which failures sessions in a PostgreSQL database survive, against real servers that the
//! tests start. Without PostgreSQL on the machine each test reports that it is skipped, also in the
//! file that `FOLDLOG_SKIPPED` names.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod answers;
mod captures;
mod compacted;
mod damage;
#[path = "../parts/directories.rs"]
mod directories;
mod elsewhere;
mod kills;
#[path = "../parts/late_starts.rs"]
mod late;
mod late_starts;
mod leases;
#[path = "../parts/lineages.rs"]
mod lineages;
#[path = "../parts/notes.rs"]
mod notes;
#[path = "../parts/pacing.rs"]
mod pacing;
mod payloads;
#[path = "../parts/placed.rs"]
mod placed;
mod places;
mod pooler;
mod proxy;
mod races;
mod refusals;
mod server;
mod sql;
mod tails;
mod worker;

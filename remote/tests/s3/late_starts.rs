//! Counts the late starts of workers that are stopped, taken over and continued.

use std::sync::Arc;
use std::time::Duration;

use foldlog::replication::Replicator;
use foldlog_remote::{ObjectReplicator, open_place_with, open_remote};

use crate::late::{Ground, LEASE, count, retries, work};
use crate::server;

/// `words` contains the server's address and the place's URL.
fn open(words: &str, name: &str, clock: fn() -> Duration) -> Arc<dyn Replicator> {
    let (address, url) = words.split_once(' ').unwrap();
    let remote = open_remote(url, retries(), &server::variables(address)).unwrap();
    let replicator = ObjectReplicator::over(remote, url, name).unwrap();
    Arc::new(replicator.with_lease(LEASE).unwrap().with_clock(clock))
}

#[test]
#[ignore = "a process that another test starts"]
fn part_of_a_worker() {
    work(open);
}

#[test]
fn a_worker_that_is_stopped_taken_over_and_continued_starts_no_tool_outside_of_the_window() {
    let Some(server) = server::bucket() else { return };
    let place = open_place_with(&server.url(), retries(), &server.variables()).unwrap();
    let words = format!("{} {}", server.address, server.url());
    count(&Ground { place: &*place, words: &words, open, worker: "late_starts::part_of_a_worker" });
}

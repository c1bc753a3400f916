//! Counts the late starts of workers that are stopped, taken over and continued.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldlog::replication::{ReplicaError, Replicator};
use foldlog_remote::{Database, PostgresReplicator, open_place};
use uuid::Uuid;

use crate::late::{Ground, LEASE, count, retries, work};
use crate::server::{self, shared};
use crate::worker::{append, claim};

fn open(url: &str, name: &str, clock: fn() -> Duration) -> Arc<dyn Replicator> {
    let replicator = PostgresReplicator::new(Database::from_url(url).unwrap(), name, retries()).unwrap();
    Arc::new(replicator.with_lease(LEASE).unwrap().with_clock(clock, 1 << 20))
}

#[test]
#[ignore = "a process that another test starts"]
fn part_of_a_worker() {
    work(open);
}

#[test]
fn a_worker_that_is_stopped_taken_over_and_continued_starts_no_tool_outside_of_the_window() {
    let Some(server) = shared() else { return };
    let url = server.url();
    let place = open_place(&url, retries()).unwrap();
    count(&Ground { place: &*place, words: &url, open, worker: "late_starts::part_of_a_worker" });
}

#[test]
fn a_claim_counts_as_confirmed_for_a_sixth_of_the_lease_and_is_asked_for_again_after_that() {
    let Some(server) = shared() else { return };
    let (url, session, seconds) = (server.url(), Uuid::from_u128(23), Arc::new(AtomicU64::new(0)));
    let read = Arc::clone(&seconds);
    let one = server::replicator(&url, "one", server::retries())
        .with_lease(Duration::from_secs(60))
        .unwrap()
        .with_clock(move || Duration::from_secs(read.load(Ordering::SeqCst)), 1 << 20);
    let (_, epoch) = claim(&one, session).unwrap();
    let sleep = || seconds.fetch_add(10, Ordering::SeqCst);
    assert!(one.is_confirmed(session, epoch) && !one.is_confirmed(session, epoch + 1));
    sleep();
    assert!(!one.is_confirmed(session, epoch));
    append(&one, session, epoch, 0, &["a"]).unwrap();
    assert!(one.is_confirmed(session, epoch));
    sleep();
    assert!(!one.is_confirmed(session, epoch));
    one.confirm(session, epoch).unwrap();
    assert!(one.is_confirmed(session, epoch));

    claim(&server::replicator(&url, "two", server::retries()), session).unwrap();
    assert!(one.is_confirmed(session, epoch));
    sleep();
    let fenced = one.confirm(session, epoch).unwrap_err();
    assert!(
        matches!(&fenced, ReplicaError::Fenced { epoch: 2, by } if by.starts_with("two, ")),
        "{fenced:?}"
    );
    assert!(!one.is_confirmed(session, epoch));
    assert!(matches!(one.confirm(session, epoch), Err(ReplicaError::Failed { .. })));
}

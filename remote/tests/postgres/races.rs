//! Shows that one writer wins if several race for a session.

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};
use std::thread;

use foldlog::replication::{ReplicaError, Replicator};
use foldlog_remote::PostgresReplicator;
use uuid::Uuid;

use crate::server::{replicator, retries, shared};
use crate::worker::{append, claim, held, reason, record};

const WRITERS: usize = 8;

/// Number of races, unless `FOLDLOG_POSTGRES_RACES` sets another one.
fn races() -> u64 {
    std::env::var("FOLDLOG_POSTGRES_RACES").ok().and_then(|races| races.parse().ok()).unwrap_or(200)
}

/// Claims the session and appends to it until two appends are acknowledged or another worker is the
/// writer, twice. Returns the claimed epochs and the acknowledged texts.
fn race(worker: &PostgresReplicator, name: usize, session: Uuid) -> (Vec<u64>, Vec<String>) {
    let (mut epochs, mut acknowledged) = (Vec::new(), Vec::new());
    for round in 0..2 {
        let Ok((mut next, epoch)) = claim(worker, session) else { continue };
        epochs.push(epoch);
        for place in 0..2 {
            let texts = [0, 1].map(|half| format!("{name} {round} {place} {half}"));
            match append(worker, session, epoch, next, &texts.each_ref().map(String::as_str)) {
                Ok(()) => acknowledged.extend(texts),
                Err(ReplicaError::Fenced { epoch: other, .. }) => {
                    assert!(other > epoch);
                    break;
                }
                Err(other) => panic!("{other:?}"),
            }
            next += 2;
        }
    }
    (epochs, acknowledged)
}

#[test]
fn of_eight_writers_none_appends_what_another_ones_claim_stands_before_in_200_races() {
    let Some(server) = shared() else { return };
    let url = server.url();
    let workers: Vec<_> =
        (0..WRITERS).map(|name| Arc::new(replicator(&url, &name.to_string(), retries()))).collect();
    let reader = replicator(&url, "reader", retries());
    let (mut claims, mut appended) = (0, 0);
    for seed in 0..races() {
        let session = Uuid::from_u128(u128::from(seed) + 1);
        let barrier = Arc::new(Barrier::new(WRITERS));
        let racing = workers.iter().enumerate().map(|(name, worker)| {
            let (worker, barrier) = (Arc::clone(worker), Arc::clone(&barrier));
            thread::spawn(move || {
                barrier.wait();
                race(&worker, name, session)
            })
        });
        let racing: Vec<_> = racing.collect();
        let done: Vec<_> = racing.into_iter().map(|one| one.join().unwrap()).collect();

        let (ended, texts) = held(&reader, session).unwrap();
        let epochs: Vec<u64> = done.iter().flat_map(|(epochs, _)| epochs.iter().copied()).collect();
        let distinct: BTreeSet<u64> = epochs.iter().copied().collect();
        assert_eq!(distinct.len(), epochs.len(), "an epoch has two writers");
        assert_eq!(distinct, (1..=ended.epoch).collect());
        let acknowledged: Vec<&String> = done.iter().flat_map(|(_, texts)| texts).collect();
        // Fencing is the only failure here, so the log contains each acknowledged text exactly
        // once.
        let (held, acknowledged): (BTreeSet<&String>, BTreeSet<&String>) =
            (texts.iter().collect(), acknowledged.into_iter().collect());
        assert_eq!(held.len(), texts.len(), "a record was appended twice");
        assert_eq!(held, acknowledged);
        (claims, appended) = (claims + epochs.len(), appended + texts.len());
    }
    println!("{} races, {claims} claims, {appended} records", races());
    // Each race has its winner, and most of them a writer that was fenced in the middle.
    assert!(claims as u64 >= races() && appended as u64 >= races() * 2);
}

#[test]
fn a_superseded_writer_is_fenced_and_a_takeover_has_what_was_acknowledged() {
    let Some(server) = shared() else { return };
    let (url, session) = (server.url(), Uuid::from_u128(7));
    let (one, two) = (replicator(&url, "one", retries()), replicator(&url, "two", retries()));
    let (next, first) = claim(&one, session).unwrap();
    assert_eq!((next, first), (0, 1));
    append(&one, session, first, 0, &["a", "b"]).unwrap();
    append(&one, session, first, 2, &["c"]).unwrap();

    let (ended, texts) = held(&two, session).unwrap();
    assert_eq!(
        (ended.epoch, ended.is_ours, texts.as_slice()),
        (1, false, &["a", "b", "c"].map(String::from)[..])
    );
    assert_eq!(ended.others_end, 3);
    assert_eq!(claim(&two, session).unwrap(), (3, 2));
    let fenced = append(&one, session, first, 3, &["late"]).unwrap_err();
    assert!(
        matches!(&fenced, ReplicaError::Fenced { epoch: 2, by } if by.starts_with("two, ")),
        "{fenced:?}"
    );
    // It stays fenced, and nothing was added.
    assert_eq!(append(&one, session, first, 3, &["late"]).unwrap_err(), fenced);
    append(&two, session, 2, 3, &["d"]).unwrap();
    let (ended, texts) = held(&one, session).unwrap();
    assert_eq!(texts, ["a", "b", "c", "d"]);
    assert_eq!((ended.epoch, ended.is_ours, ended.others_end.get()), (2, false, 4));
    assert_eq!(one.sessions().unwrap(), [session]);

    // A claim succeeds only at the end of the log as it was read.
    assert!(reason(one.claim(session, 3.into())).contains("was not read"));
    let read = one.read(session, &mut |_| {}).unwrap();
    append(&two, session, 2, 4, &["e"]).unwrap();
    assert!(matches!(one.claim(session, read.next), Err(ReplicaError::Fenced { epoch: 2, .. })));
    append(&two, session, 2, 5, &["f"]).unwrap();
    assert!(matches!(one.append(session, 9, None, &[record(6, "x")]), Err(ReplicaError::Failed { .. })));
}

#[test]
fn records_of_every_kind_and_size_come_back_as_they_were_in_one_statement_or_several() {
    let Some(server) = shared() else { return };
    let (url, session) = (server.url(), Uuid::from_u128(8));
    let one = replicator(&url, "one", retries());
    assert_eq!(held(&one, session).unwrap().1, [""; 0]);
    let (_, epoch) = claim(&one, session).unwrap();
    let large = "x".repeat(15 << 20);
    let texts: Vec<String> = (0..5_000).map(|n| n.to_string()).collect();
    let mut all: Vec<&str> = texts.iter().map(String::as_str).collect();
    all.extend([large.as_str(), "", large.as_str(), "\0\u{1b}"]);
    append(&one, session, epoch, 0, &all).unwrap();
    assert_eq!(held(&one, session).unwrap().1, all);
    let out_of_order = append(&replicator_of(&one, &url), session, 1, 9, &["x"]);
    assert!(out_of_order.is_err());
}

/// Returns another replicator of the same name, without a claim.
fn replicator_of(one: &PostgresReplicator, url: &str) -> PostgresReplicator {
    replicator(url, &one.name(), retries())
}

//! Shows that unreferenced payloads are removed from the database, and that writers may reference
//! one again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use foldlog::replication::Replicator;
use foldlog::{ObjectId, Record, RecordKind};
use foldlog_codec::body::{Observed, Payload};
use foldlog_remote::{CollectOptions, CollectReport, PostgresReplicator, open_place};
use uuid::Uuid;

use crate::server::{Server, replicator, retries, schema_of, shared};
use crate::worker::{claim, reason};

const NAMED: &[u8] = b"a payload that a record names";
const ORPHAN: &[u8] = b"a payload whose writer died";

/// Appends a record that names a payload.
fn append(
    worker: &PostgresReplicator,
    session: Uuid,
    epoch: u64,
    sequence: u64,
    bytes: &[u8],
) -> Result<(), foldlog::replication::ReplicaError> {
    let data = ObjectId::from_content(bytes).reference();
    let body = Observed { name: "n".to_owned(), data: Payload::new(&data) }.encode();
    let record = Record { sequence: sequence.into(), kind: RecordKind::Observed, time_us: 0, body: &body };
    worker.append(session, epoch, None, &[record])
}

fn put(worker: &PostgresReplicator, session: Uuid, bytes: &[u8]) {
    worker.put_object(session, ObjectId::from_content(bytes), bytes).unwrap();
}

fn collect(url: &str, session: Uuid, dry_run: bool) -> CollectReport {
    let mut options = CollectOptions::default();
    options.dry_run = dry_run;
    open_place(url, retries()).unwrap().collect(session, options).unwrap().unwrap()
}

/// Collects, and returns the numbers of payloads that it removed and left.
fn removed_and_left(url: &str, session: Uuid) -> (u64, u64) {
    let report = collect(url, session, false);
    (report.payloads, report.payloads_left)
}

/// Dates all withdrawals back by a day and a second.
fn pass_a_day(server: &Server, url: &str) {
    let schema = schema_of(url);
    server.sql(&format!("UPDATE {schema}.objects SET withdrawn = withdrawn - interval '86401 seconds'"));
}

fn is_there(worker: &PostgresReplicator, session: Uuid, bytes: &[u8]) -> bool {
    worker.get_object(session, ObjectId::from_content(bytes)).is_ok_and(|found| found == bytes)
}

#[test]
fn a_payload_that_nothing_names_goes_from_the_database_a_day_after_it_was_found_so() {
    let Some(server) = shared() else { return };
    let (url, session, other) = (server.url(), Uuid::from_u128(1), Uuid::from_u128(2));
    let worker = replicator(&url, "one", retries());
    let (_, epoch) = claim(&worker, session).unwrap();
    for bytes in [NAMED, ORPHAN] {
        put(&worker, session, bytes);
    }
    put(&worker, other, ORPHAN);
    append(&worker, session, epoch, 0, NAMED).unwrap();
    let dry = collect(&url, session, true);
    assert_eq!((dry.payloads, dry.payloads_left), (0, 1));
    pass_a_day(&server, &url);
    assert_eq!(removed_and_left(&url, session), (0, 1), "a dry run notes nothing");
    assert_eq!(removed_and_left(&url, session), (0, 1));
    pass_a_day(&server, &url);
    let dry = collect(&url, session, true);
    assert_eq!((dry.payloads, dry.payload_bytes, dry.payloads_left), (1, ORPHAN.len() as u64, 0));
    assert!(is_there(&worker, session, ORPHAN));
    assert_eq!(removed_and_left(&url, session), (1, 0));
    assert!(!is_there(&worker, session, ORPHAN) && is_there(&worker, session, NAMED));
    assert!(is_there(&worker, other, ORPHAN), "another session's is its own");
    // If the payload is put again, its earlier withdrawal is forgotten.
    put(&worker, session, ORPHAN);
    assert_eq!(removed_and_left(&url, session), (0, 1));
    pass_a_day(&server, &url);
    put(&worker, session, ORPHAN);
    assert_eq!(removed_and_left(&url, session), (0, 1), "it was put again");
    append(&worker, session, epoch, 1, ORPHAN).unwrap();
    pass_a_day(&server, &url);
    assert_eq!(removed_and_left(&url, session), (0, 0));
    assert!(is_there(&worker, session, ORPHAN));
}

#[test]
fn a_writer_that_was_paused_makes_sure_of_its_payloads_in_front_of_its_append() {
    let Some(server) = shared() else { return };
    let (url, session) = (server.url(), Uuid::from_u128(1));
    let hours = Arc::new(AtomicU64::new(0));
    let worker = |name: &str, kept: u64| {
        let clock = Arc::clone(&hours);
        let now = move || Duration::from_secs(3_600 * clock.load(Ordering::Relaxed));
        replicator(&url, name, retries()).with_clock(now, kept)
    };
    // One worker keeps the bytes, the other one may not keep that many.
    for (at, (name, kept)) in [(0, ("one", 1 << 20)), (2, ("two", 5))] {
        let worker = worker(name, kept);
        let (next, epoch) = claim(&worker, session).unwrap();
        assert_eq!(next, at);
        // Withdrawn, not yet removed, and needed again from here on.
        let (stays, goes) = (format!("{name} stays").into_bytes(), format!("{name} goes").into_bytes());
        put(&worker, session, &stays);
        assert_eq!(removed_and_left(&url, session), (0, 1));
        hours.fetch_add(13, Ordering::Relaxed);
        append(&worker, session, epoch, at, &stays).unwrap();
        let schema = schema_of(&url);
        let withdrawn = format!("SELECT count(*) FROM {schema}.objects WHERE withdrawn IS NOT NULL");
        assert_eq!(server.query(&withdrawn)[0].get::<_, i64>(0), 0);
        // Removed while the worker was paused.
        put(&worker, session, &goes);
        assert_eq!(removed_and_left(&url, session), (0, 1));
        pass_a_day(&server, &url);
        assert_eq!(removed_and_left(&url, session), (1, 0));
        hours.fetch_add(25, Ordering::Relaxed);
        let appended = append(&worker, session, epoch, at + 1, &goes);
        if name == "one" {
            appended.unwrap();
            assert!(is_there(&worker, session, &goes), "it was put once more");
            continue;
        }
        // Nothing of the append is stored, not at the second attempt either, and the next writer
        // puts the payload again.
        assert!(reason(appended).contains("is missing"));
        assert!(reason(append(&worker, session, epoch, at + 1, &goes)).contains("is missing"));
        let next = replicator(&url, "three", retries());
        let (end, epoch) = claim(&next, session).unwrap();
        assert_eq!(end, at + 1);
        put(&next, session, &goes);
        append(&next, session, epoch, end, &goes).unwrap();
        assert!(is_there(&next, session, &goes));
    }
}

#[test]
fn a_put_and_a_removal_that_race_leave_the_payload_there() {
    let Some(server) = shared() else { return };
    let (url, session) = (server.url(), Uuid::from_u128(1));
    let worker = Arc::new(replicator(&url, "one", retries()));
    claim(&worker, session).unwrap();
    let mut removed = 0;
    for _ in 0..40 {
        put(&worker, session, ORPHAN);
        assert_eq!(removed_and_left(&url, session), (0, 1));
        pass_a_day(&server, &url);
        let barrier = Arc::new(Barrier::new(2));
        let putting = thread::spawn({
            let (worker, barrier) = (Arc::clone(&worker), Arc::clone(&barrier));
            move || {
                barrier.wait();
                put(&worker, session, ORPHAN);
            }
        });
        barrier.wait();
        removed += removed_and_left(&url, session).0;
        putting.join().unwrap();
        assert!(is_there(&worker, session, ORPHAN));
    }
    println!("{removed} removals in 40 races");
}

//! Shows which records are replicated, and when.

use foldlog::inspect::LogReader;
use foldlog::{Durability, Error, ObjectId, SessionOptions};
use foldlog_remote::object_store::ObjectStoreExt;
use futures_lite::future;

use crate::bucket::Bucket;
use crate::host::{run, store, store_at};
use crate::notes::{note, types};

#[test]
fn a_handler_runs_behind_a_begin_that_is_held_and_its_end_is_held_when_the_call_returns() {
    let (directory, bucket) = (tempfile::tempdir().unwrap(), Bucket::default());
    let session = store(&directory, &bucket, "one").create(&types()).unwrap();
    session.dispatch(note("before")).unwrap();
    let (id, seen) = (session.id(), bucket.clone());
    let report = run(&session, move |_| {
        // Another worker that reads the bucket now finds the call, and all records before it.
        assert_eq!(seen.kinds(id).last().map(String::as_str), Some("tool_begin"));
        Ok(())
    });
    assert!(report.unwrap().success);
    assert_eq!(bucket.kinds(id).last().map(String::as_str), Some("tool_end"));
}

#[test]
fn what_is_held_is_the_log_record_for_record_with_its_payloads() {
    let (directory, bucket) = (tempfile::tempdir().unwrap(), Bucket::default());
    let session = store(&directory, &bucket, "one").create(&types()).unwrap();
    let id = session.id();
    for n in 0..10_000 {
        session.dispatch(note(format!("note {n}"))).unwrap();
    }
    session.dispatch(note("long ".repeat(30_000))).unwrap();
    session.sync().unwrap();
    let held = bucket.records(id);
    session.close().unwrap();

    let mut local = Vec::new();
    let mut objects = Vec::new();
    let log = LogReader::open(foldlog::Store::open(directory.path()).unwrap().session_dir(id)).unwrap();
    log.records(0, u64::MAX, |record| {
        objects.extend(record.objects());
        local.push((record.sequence.get(), record.kind.name().to_owned(), record.body.to_vec()));
        Ok(())
    })
    .unwrap();
    assert_eq!(held, local);
    // Payloads out of line are stored under their hashes.
    assert!(!objects.is_empty());
    for object in objects {
        let key = bucket.remote().bucket().object_key(id, object);
        let bytes =
            future::block_on(async { bucket.store().get(&key).await.unwrap().bytes().await.unwrap() });
        assert_eq!(ObjectId::from_content(&bytes), object);
    }
}

#[test]
fn what_no_call_waits_for_follows_and_a_write_waits_where_the_bucket_is_too_far_behind() {
    let (directory, bucket) = (tempfile::tempdir().unwrap(), Bucket::default());
    let session = store_at(&directory, &bucket, "one", Durability::Process).create(&types()).unwrap();
    let id = session.id();
    session.dispatch(note("one")).unwrap();
    // No call waits at this durability: only the claim is certain.
    assert!(bucket.records(id).len() <= 4);
    for n in 0..70_000 {
        session.dispatch(note(n.to_string())).unwrap();
    }
    let behind = session.log().position().unwrap().get() + 1 - bucket.records(id).len() as u64;
    assert!(behind <= 65_537, "{behind}");
    session.close().unwrap();
    assert_eq!(bucket.records(id).len(), 70_004);
}

#[test]
fn a_call_whose_begin_cannot_be_held_does_not_run_and_the_next_opening_goes_on() {
    let (directory, bucket) = (tempfile::tempdir().unwrap(), Bucket::default());
    let workers = store(&directory, &bucket, "one");
    let session = workers.create(&types()).unwrap();
    let id = session.id();
    session.sync().unwrap();
    bucket.refuse_puts(true);
    let refused = run(&session, |_| panic!("the handler runs"));
    assert!(matches!(refused, Err(Error::ReplicaUnknown { .. })), "{refused:?}");
    assert!(matches!(session.dispatch(note("more")), Err(Error::Poisoned { .. })));
    let puts = bucket.puts();
    assert!(session.close().is_err());
    assert_eq!(bucket.puts(), puts, "a poisoned session puts nothing");

    // No worker can claim while puts fail. Afterwards the session continues, and replicates its
    // records.
    let opened = workers.open_session(id, &types());
    assert!(matches!(opened, Err(Error::ReplicaFailed { .. })), "{opened:?}");
    bucket.refuse_puts(false);
    let session = workers.open_session(id, &types()).unwrap();
    assert!(session.calls().is_interrupted());
    session.sync().unwrap();
    assert_eq!(bucket.kinds(id).last().map(String::as_str), Some("tool_begin"));
}

#[test]
fn a_store_goes_on_with_its_own_sessions_and_feeds_what_a_process_left() {
    let (directory, bucket) = (tempfile::tempdir().unwrap(), Bucket::default());
    let id = {
        let session = store(&directory, &bucket, "one").create(&types()).unwrap();
        session.dispatch(note("first")).unwrap();
        session.id()
    };
    for round in 0..3 {
        let session = store(&directory, &bucket, "one").open_session(id, &types()).unwrap();
        session.dispatch(note(format!("round {round}"))).unwrap();
        session.close().unwrap();
    }
    let kinds = bucket.kinds(id);
    assert_eq!(kinds.iter().filter(|kind| *kind == "dispatch").count(), 4);
    assert_eq!(kinds.iter().filter(|kind| *kind == "replicated").count(), 1);
}

#[test]
fn an_id_that_the_bucket_holds_is_not_created_anew() {
    let (directory, bucket) = (tempfile::tempdir().unwrap(), Bucket::default());
    let session = store(&directory, &bucket, "one").create(&types()).unwrap();
    let id = session.id();
    session.close().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let options = SessionOptions { id: Some(id), ..SessionOptions::default() };
    let other = store(&elsewhere, &bucket, "two");
    let refused = other.create_with(&types(), options.clone());
    assert!(matches!(refused, Err(Error::ReplicaAhead { .. })), "{refused:?}");
    // This fenced no writer, and left no objects.
    assert!(store(&directory, &bucket, "one").open_session(id, &types()).is_ok());
    assert!(matches!(other.create_with(&types(), options), Err(Error::ReplicaAhead { .. })));
}

#[test]
fn what_is_put_behind_the_appends_is_put_once_the_session_is_closed() {
    let (directory, bucket) = (tempfile::tempdir().unwrap(), Bucket::default());
    let session = store(&directory, &bucket, "one").create(&types()).unwrap();
    bucket.put_slowly("/volumes/");
    while bucket.keys("/log/").len() < 64 {
        session.dispatch(note("one more")).unwrap();
        session.sync().unwrap();
    }
    session.close().unwrap();
    assert_eq!(bucket.keys("/volumes/").len(), 1);
}

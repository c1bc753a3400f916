//! Shows that a log that has lost acknowledged records gets them back when it is opened.

use std::path::Path;
use std::sync::{Arc, Mutex};

use foldlog::inspect::LogReader;
use foldlog::tools::{ExecuteOptions, ToolRegistry, ToolRunner};
use foldlog::{Error, ExecutionState, ResourceRegistry, Session};
use foldlog_remote::object_store::ObjectStoreExt;
use futures_lite::future;
use uuid::Uuid;

use crate::bucket::Bucket;
use crate::directories::copy;
use crate::host::{plain_store, run, store};
use crate::notes::{note, texts, types};

/// A worker's directory, and a copy of it from before the last records.
struct Worker {
    directory: tempfile::TempDir,
    older: tempfile::TempDir,
    bucket: Bucket,
    id: Uuid,
}

impl Worker {
    /// Records three notes, copies the directory, and records more.
    fn that_loses(lost: impl FnOnce(&Session, &Path)) -> Worker {
        let (directory, older) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let bucket = Bucket::default();
        let session = store(&directory, &bucket, "one").create(&types()).unwrap();
        let id = session.id();
        for n in 0..3 {
            session.dispatch(note(n.to_string())).unwrap();
        }
        session.close().unwrap();
        copy(directory.path(), older.path());
        let session = store(&directory, &bucket, "one").open_session(id, &types()).unwrap();
        lost(&session, older.path());
        session.close().unwrap();
        Worker { directory, older, bucket, id }
    }

    fn newer(&self) -> Session {
        store(&self.directory, &self.bucket, "one").open_session(self.id, &types()).unwrap()
    }

    fn older(&self) -> Result<Session, Error> {
        store(&self.older, &self.bucket, "one").open_session(self.id, &types())
    }

    fn digest(&self, directory: &Path) -> (u64, Vec<u8>) {
        let log = LogReader::open(plain_store(directory, false).session_dir(self.id)).unwrap();
        let digest = log.digest_through(log.last_position()).unwrap();
        (log.records_len(), digest.to_vec())
    }
}

#[test]
fn what_the_log_lost_and_the_bucket_has_comes_back_with_its_payloads() {
    let worker = Worker::that_loses(|session, _| {
        session.dispatch(note("acknowledged")).unwrap();
        session.dispatch(note("long ".repeat(30_000))).unwrap();
        assert!(
            run(session, |context| Ok(context.session().dispatch(note("within")).map(|_| ())?))
                .unwrap()
                .success
        );
    });
    let session = worker.older().unwrap();
    assert_eq!(session.log().recovery().fetched, 6);
    assert_eq!(texts(&session).len(), 6, "{:?}", texts(&session));
    assert_eq!(texts(&session)[3], "acknowledged");
    // The records are as durable as they were.
    assert_eq!(session.log().synced_end(), session.log().position().unwrap() + 1);
    assert!(!session.calls().is_interrupted());
    session.close().unwrap();
    assert_eq!(worker.digest(worker.older.path()), worker.digest(worker.directory.path()));

    // The log continues, under its own claim.
    let session = worker.older().unwrap();
    assert_eq!((session.log().recovery().fetched, session.log().epoch()), (0, Some(4)));
    assert!(run(&session, |_| Ok(())).unwrap().success);
    session.close().unwrap();
    assert_eq!(worker.bucket.kinds(worker.id).last().map(String::as_str), Some("tool_end"));
    let log = LogReader::open(plain_store(worker.older.path(), false).session_dir(worker.id)).unwrap();
    assert_eq!(log.check_seals().map(drop).map_err(|error| error.to_string()), Ok(()));
}

#[test]
fn a_call_whose_begin_was_lost_with_the_disk_is_interrupted() {
    let worker = Worker::that_loses(|_, _| {});
    let session = worker.newer();
    let (bucket, kept) = (worker.bucket.clone(), Arc::new(Mutex::new(None)));
    let keeps = Arc::clone(&kept);
    let ended = run(&session, move |_| {
        *keeps.lock().unwrap() = Some(bucket.fork());
        Ok(())
    });
    assert!(ended.unwrap().success);
    drop(session);
    // The machine stopped within the handler, and its disk lost all records since the copy.
    let bucket = kept.lock().unwrap().take().unwrap();
    let session = store(&worker.older, &bucket, "one").open_session(worker.id, &types()).unwrap();
    // A declaration, and the start record.
    assert_eq!(session.log().recovery().fetched, 2);
    assert_eq!(session.log().recovery().interrupted.len(), 1);
    assert!(session.calls().is_interrupted());
    let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build().unwrap());
    ToolRunner::new(state, ToolRegistry::new()).recover(&ExecuteOptions::default()).unwrap();
    assert_eq!(session.calls().unsettled_operations().len(), 1);
    session.close().unwrap();
    assert_eq!(bucket.kinds(worker.id).last().map(String::as_str), Some("tool_end"));
}

#[test]
fn records_of_another_writer_are_not_fetched() {
    let worker = Worker::that_loses(|session, _| _ = session.dispatch(note("one's")).unwrap());
    let elsewhere = tempfile::tempdir().unwrap();
    let other = store(&elsewhere, &worker.bucket, "two").take_over(worker.id, &types()).unwrap();
    other.close().unwrap();
    // Another worker's claim without records takes nothing from this one.
    let saved = tempfile::tempdir().unwrap();
    copy(worker.older.path(), saved.path());
    let session = store(&saved, &worker.bucket, "one").open_session(worker.id, &types()).unwrap();
    assert_eq!(session.log().recovery().fetched, 1);
    drop(session);

    let other = store(&elsewhere, &worker.bucket, "two").open_session(worker.id, &types()).unwrap();
    other.dispatch(note("two's")).unwrap();
    other.close().unwrap();
    let records = worker.digest(worker.older.path());
    let ahead = worker.older().unwrap_err();
    assert!(matches!(ahead, Error::ReplicaAhead { .. }), "{ahead:?}");
    assert_eq!(worker.digest(worker.older.path()), records, "nothing was written");
    // If worker two itself loses its record, it gets it back.
    let older = tempfile::tempdir().unwrap();
    copy(worker.directory.path(), older.path());
    let session = store(&older, &worker.bucket, "two").open_session(worker.id, &types()).unwrap();
    assert_eq!(texts(&session).last().map(String::as_str), Some("two's"));
}

#[test]
fn a_log_that_went_on_otherwise_gets_nothing() {
    let worker = Worker::that_loses(|session, _| _ = session.dispatch(note("acknowledged")).unwrap());
    let plain = plain_store(worker.older.path(), true).open_session(worker.id, &types()).unwrap();
    plain.dispatch(note("otherwise")).unwrap();
    let at = plain.log().position().unwrap();
    plain.close().unwrap();
    let records = worker.digest(worker.older.path());
    let superseded = worker.older().unwrap_err();
    assert!(matches!(superseded, Error::Superseded { sequence, .. } if sequence == at), "{superseded:?}");
    assert_eq!(worker.digest(worker.older.path()), records);
}

#[test]
fn a_fetch_that_fails_in_the_midst_is_gone_on_with() {
    let worker = Worker::that_loses(|session, _| {
        session.dispatch(note("first")).unwrap();
        session.dispatch(note("long ".repeat(30_000))).unwrap();
        session.dispatch(note("last")).unwrap();
    });
    let log = LogReader::open(plain_store(worker.directory.path(), false).session_dir(worker.id)).unwrap();
    let mut objects = Vec::new();
    log.records(0, u64::MAX, |record| {
        objects.extend(record.objects());
        Ok(())
    })
    .unwrap();
    let key = worker.bucket.remote().bucket().object_key(worker.id, objects[0]);
    let bytes = future::block_on(async {
        let bytes = worker.bucket.store().get(&key).await.unwrap().bytes().await.unwrap();
        worker.bucket.store().delete(&key).await.unwrap();
        bytes
    });
    for _ in 0..2 {
        let failed = worker.older().unwrap_err();
        assert!(
            matches!(&failed, Error::ReplicaFailed { reason, .. } if reason.contains("missing")),
            "{failed:?}"
        );
        // Fetched records are not fetched again, and never written twice.
        let read = plain_store(worker.older.path(), false).open_read_only(worker.id, &types()).unwrap();
        assert_eq!(texts(&read)[3..], ["first"]);
    }
    future::block_on(worker.bucket.store().put(&key, bytes.into())).unwrap();
    let session = worker.older().unwrap();
    assert_eq!(texts(&session).last().map(String::as_str), Some("last"));
    session.close().unwrap();
    assert_eq!(worker.digest(worker.older.path()), worker.digest(worker.directory.path()));
}

/// The put of a process that was cut off arrived between the reading and the claim of the next one.
/// That one took its own log's records for another writer's.
#[test]
fn what_its_own_writer_had_put_and_arrives_late_keeps_nobody_from_opening() {
    let (directory, next, bucket) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Bucket::default());
    let session = store(&directory, &bucket, "one").create(&types()).unwrap();
    let id = session.id();
    session.dispatch(note("acknowledged")).unwrap();
    session.sync().unwrap();
    session.dispatch(note("late")).unwrap();
    let (puts, unanswered) = (bucket.puts(), bucket.leave_puts_unanswered());
    let late = session.clone();
    let late = std::thread::spawn(move || late.sync());
    let wait_for = |count: u64| {
        while bucket.puts() < puts + count {
            std::thread::yield_now();
        }
    };
    wait_for(1);
    copy(directory.path(), next.path());
    let opened = store(&next, &bucket, "one");
    let opening = std::thread::spawn(move || opened.open_session(id, &types()));
    // It has read the replicated records, and is about to claim.
    wait_for(2);
    drop(unanswered);
    let opened = opening.join().unwrap().unwrap();
    assert_eq!(texts(&opened), ["acknowledged", "late"]);
    let _ = late.join().unwrap();
    session.dispatch(note("too late")).unwrap();
    assert!(matches!(session.sync(), Err(Error::Fenced { epoch: 2, .. } | Error::Poisoned { .. })));
    opened.dispatch(note("on")).unwrap();
    opened.sync().unwrap();
    let of_others = bucket.records(id).iter().filter(|(_, kind, _)| kind == "dispatch").count();
    assert_eq!(of_others, 3);
}

//! Shows how far a bucket may lag, and what happens to writes beyond that.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldlog::replication::{Replication, WhenBehind};
use foldlog::tools::ToolReport;
use foldlog::{Durability, Error, FixedClock, Session, Store, StoreOptions};
use foldlog_remote::ObjectReplicator;

use crate::bucket::{Bucket, retries};
use crate::host::run;
use crate::notes::{note, texts, types};

/// Makes a session at a durability for which no call waits. `bound` limits the lag of its bucket.
fn session(
    directory: &tempfile::TempDir,
    bucket: &Bucket,
    clock: &Arc<FixedClock>,
    bound: impl FnOnce(&mut Replication),
) -> Session {
    let replicator = ObjectReplicator::new(Arc::new(bucket.store()), "team", "one", retries()).unwrap();
    let mut replication = Replication::new(Arc::new(replicator));
    bound(&mut replication);
    let options = StoreOptions {
        replication: Some(replication),
        durability: Durability::Process,
        clock: Arc::clone(clock) as _,
        ..StoreOptions::default()
    };
    let session = Store::open_with(directory.path(), options).unwrap().create(&types()).unwrap();
    session.sync().unwrap();
    session
}

fn refuse(replication: &mut Replication) {
    replication.when_behind = WhenBehind::Refuse;
}

#[test]
fn a_write_waits_where_the_bucket_is_too_many_bytes_or_too_long_behind() {
    let (directory, bucket, clock) = (tempfile::tempdir().unwrap(), Bucket::default(), Arc::default());
    let large = session(&directory, &bucket, &clock, |replication| replication.bytes_behind_max = 1 << 20);
    for n in 0..400 {
        large.dispatch(note(format!("{n} {}", "long ".repeat(2_000)))).unwrap();
    }
    let behind = large.log().position().unwrap().get() + 1 - bucket.records(large.id()).len() as u64;
    // A mebibyte, and the records between two marks.
    assert!(behind <= (1 << 20) / 10_000 + 10, "{behind}");
    large.close().unwrap();

    let late = session(&directory, &bucket, &clock, |replication| {
        replication.time_behind_max = Duration::from_secs(5);
    });
    late.dispatch(note("early")).unwrap();
    clock.advance_us(6_000_000);
    late.dispatch(note("late")).unwrap();
    assert_eq!(bucket.records(late.id()).len() as u64, late.log().position().unwrap().get() + 1);
}

#[test]
fn a_write_is_refused_where_the_host_chose_that_and_succeeds_once_the_bucket_has_caught_up() {
    let bounds: [fn(&mut Replication); 3] = [
        |replication| replication.records_behind_max = 50,
        |replication| replication.bytes_behind_max = 5_000,
        |replication| replication.time_behind_max = Duration::from_secs(5),
    ];
    for bound in bounds {
        let (directory, bucket, clock) = (tempfile::tempdir().unwrap(), Bucket::default(), Arc::default());
        let session = session(&directory, &bucket, &clock, |replication| {
            refuse(replication);
            bound(replication);
        });
        let unanswered = bucket.leave_puts_unanswered();
        let mut written = 0;
        let refused = loop {
            match session.dispatch(note(format!("note {written} {}", "long ".repeat(40)))) {
                Ok(_) => written += 1,
                Err(error) => break error,
            }
            clock.advance_us(90_000);
            assert!(written < 100, "no write is refused");
        };
        assert!(matches!(refused, Error::ReplicaBehind { records, .. } if records >= written), "{refused:?}");
        assert!(written > 10, "{written}");
        // Nothing was written, nothing was poisoned, and no tool starts.
        let called: foldlog::Result<ToolReport> = run(&session, |_| panic!("the handler runs"));
        assert!(matches!(called, Err(Error::ReplicaBehind { .. })), "{called:?}");
        assert_eq!(texts(&session).len() as u64, written);
        drop(unanswered);
        session.sync().unwrap();
        session.dispatch(note("caught up")).unwrap();
        assert!(run(&session, |_| Ok(())).unwrap().success);
        session.close().unwrap();
    }
}

#[test]
fn a_call_that_began_ends_however_far_the_bucket_is_behind() {
    let (directory, bucket, clock) = (tempfile::tempdir().unwrap(), Bucket::default(), Arc::default());
    let session = session(&directory, &bucket, &clock, |replication| {
        refuse(replication);
        replication.records_behind_max = 5;
    });
    let (gate, held) = (bucket.clone(), Arc::new(Mutex::new(None)));
    let keeps = Arc::clone(&held);
    let report = run(&session, move |context| {
        *keeps.lock().unwrap() = Some(gate.leave_puts_unanswered());
        while context.session().dispatch(note("within")).is_ok() {}
        Ok(())
    });
    assert!(report.unwrap().success);
    assert!(matches!(session.dispatch(note("more")), Err(Error::ReplicaBehind { .. })));
    drop(held.lock().unwrap().take());
    let id = session.id();
    session.close().unwrap();
    assert_eq!(bucket.kinds(id).last().map(String::as_str), Some("tool_end"));
}

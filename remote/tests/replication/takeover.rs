//! Takes the session of a lost machine over on another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldlog::inspect::LogReader;
use foldlog::tools::ToolError;
use foldlog::tools::resources::{BudgetTracker, Usage};
use foldlog::{Error, ResourceRegistry, Session, Store};
use foldlog_remote::object_store::ObjectStoreExt;
use futures_lite::future;

use crate::bucket::Bucket;
use crate::host::{run, store};
use crate::notes::{call, note, runner_over, texts, types};

/// Two machines: a directory each, and the store of a worker there.
fn machines(bucket: &Bucket) -> [(tempfile::TempDir, Store); 2] {
    ["one", "two"].map(|name| {
        let directory = tempfile::tempdir().unwrap();
        let store = store(&directory, bucket, name);
        (directory, store)
    })
}

#[test]
fn what_was_acknowledged_is_there_on_another_machine_and_the_old_writer_is_fenced() {
    let bucket = Bucket::default();
    let [(_one, first), (_two, second)] = machines(&bucket);
    let old = first.create(&types()).unwrap();
    let id = old.id();
    for n in 0..300 {
        old.dispatch(note(format!("{n}"))).unwrap();
    }
    old.dispatch(note("long ".repeat(30_000))).unwrap();
    let within = run(&old, |context| {
        context.session().dispatch(note("within"))?;
        Ok(())
    });
    assert!(within.unwrap().success);

    let new = second.take_over(id, &types()).unwrap();
    assert!(!new.calls().is_interrupted());
    assert_eq!(texts(&new), texts(&old));
    assert_eq!(texts(&new).len(), 302);
    // The same content, although every frame was written again.
    let last = old.log().position().unwrap();
    let (local, taken) = (LogReader::open(old.dir()).unwrap(), LogReader::open(new.dir()).unwrap());
    assert_eq!(local.digest_through(last).unwrap(), taken.digest_through(last).unwrap());

    assert!(run(&new, |_| Ok(())).unwrap().success);
    assert!(matches!(run(&old, |_| panic!("it runs")), Err(Error::Fenced { .. })));
    new.dispatch(note("went on")).unwrap();
    new.close().unwrap();
    let again = second.open_session(id, &types()).unwrap();
    assert_eq!(texts(&again).last().map(String::as_str), Some("went on"));
    // On the first machine, the records that were not acknowledged are superseded.
    drop(old);
    let superseded = first.open_session(id, &types()).unwrap_err();
    assert!(matches!(superseded, Error::Superseded { .. }), "{superseded:?}");
}

#[test]
fn a_call_that_the_lost_machine_left_open_is_recovered_on_the_other() {
    let bucket = Bucket::default();
    let [(_one, first), (_two, second)] = machines(&bucket);
    let old = first.create(&types()).unwrap();
    let id = old.id();
    let began = Arc::new(AtomicU64::new(0));
    let (taken, begun) = (std::sync::mpsc::channel(), Arc::clone(&began));
    let lost = run(&old, move |context| {
        begun.store(context.operation().get(), Ordering::SeqCst);
        // The others lose this machine, which does not notice.
        let new = second.take_over(id, &types()).unwrap();
        assert!(new.calls().is_interrupted());
        let open: Vec<u64> = new.calls().open_operations().iter().map(|open| open.operation.get()).collect();
        assert_eq!(open, [context.operation().get()]);
        taken.0.send((second.clone(), new)).unwrap();
        Ok(())
    });
    assert!(matches!(lost, Err(Error::Fenced { .. })), "{lost:?}");
    let (_second, new) = taken.1.recv().unwrap();
    let resources = foldlog::ResourceRegistry::builder().build().unwrap();
    let state = foldlog::ExecutionState::new(new.clone(), resources);
    let runner = foldlog::tools::ToolRunner::new(state, foldlog::tools::ToolRegistry::new());
    runner.recover(&foldlog::tools::ExecuteOptions::default()).unwrap();
    assert!(!new.calls().is_interrupted());
    let waiting: Vec<u64> =
        new.calls().unsettled_operations().iter().map(|one| one.operation.get()).collect();
    assert_eq!(waiting, [began.load(Ordering::SeqCst)]);
    assert!(run(&new, |_| Ok(())).unwrap().success);
}

#[test]
fn what_cannot_be_taken_over_is_refused_and_leaves_nothing() {
    let bucket = Bucket::default();
    let [(_one, first), (two, second)] = machines(&bucket);
    let session = first.create(&types()).unwrap();
    let id = session.id();
    session.dispatch(note("long ".repeat(30_000))).unwrap();
    session.sync().unwrap();
    assert!(matches!(first.take_over(id, &types()), Err(Error::Locked { .. } | Error::SessionExists { .. })));
    let nothing = second.take_over(uuid::Uuid::from_u128(9), &types());
    assert!(
        matches!(&nothing, Err(Error::ReplicaFailed { reason, .. }) if reason.contains("no records of that session")),
        "{nothing:?}"
    );
    let plain = Store::open(two.path()).unwrap().take_over(id, &types());
    assert!(matches!(plain, Err(Error::ReplicaFailed { .. })), "{plain:?}");

    // A payload that is missing.
    let log = LogReader::open(session.dir()).unwrap();
    let mut keys = Vec::new();
    log.records(0, u64::MAX, |record| {
        keys.extend(
            record.objects().into_iter().map(|object| bucket.remote().bucket().object_key(id, object)),
        );
        Ok(())
    })
    .unwrap();
    future::block_on(bucket.store().delete(&keys[0])).unwrap();
    let refused = second.take_over(id, &types()).unwrap_err();
    assert!(
        matches!(&refused, Error::ReplicaFailed { reason, .. } if reason.contains("missing")),
        "{refused:?}"
    );

    assert!(second.session_ids().unwrap().is_empty());
    let left: Vec<_> = std::fs::read_dir(two.path().join("sessions")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_was_spent_on_the_lost_machine_is_spent_on_the_other() {
    let bucket = Bucket::default();
    let [(_one, first), (_two, second)] = machines(&bucket);
    let old = first.create(&types()).unwrap();
    let id = old.id();
    let budget = Arc::new(BudgetTracker::default());
    let over = |session: &Session, budget: &Arc<BudgetTracker>, fails: bool| {
        let spends = Arc::clone(budget);
        let resources = ResourceRegistry::builder().snapshotable(Arc::clone(budget)).build().unwrap();
        runner_over(session, resources, move |_| {
            spends.record("research", Usage { cost_micros: 40, ..Usage::default() });
            if fails { Err(ToolError::failed("no luck")) } else { Ok(()) }
        })
        .unwrap()
    };
    assert!(call(&over(&old, &budget, false)).unwrap().success);
    assert!(!call(&over(&old, &budget, true)).unwrap().success);
    drop(old);

    let new = second.take_over(id, &types()).unwrap();
    let there = Arc::new(BudgetTracker::default());
    let runner = over(&new, &there, false);
    assert_eq!(there.usage_of("research").cost_micros, 80);
    assert!(call(&runner).unwrap().success);
    assert_eq!(there.usage_of("research").cost_micros, 120);
}

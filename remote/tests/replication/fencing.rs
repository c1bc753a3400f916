//! Shows what a writer can do after another worker has claimed its session.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldlog::inspect::LogReader;
use foldlog::tools::{ExecuteOptions, FencingToken, ToolCall};
use foldlog::{Error, Record, RecordKind, ResourceRegistry};

use crate::bucket::Bucket;
use crate::host::{Clock, recover_by_running_again, run, store, store_with};
use crate::notes::{note, runner_over, types};

/// Lifetime of a confirmation under a lease of an hour.
const FRESH: Duration = Duration::from_secs(600);

#[test]
fn a_superseded_writer_starts_no_further_handler_and_appends_nothing() {
    let (directory, bucket) = (tempfile::tempdir().unwrap(), Bucket::default());
    let session = store(&directory, &bucket, "one").create(&types()).unwrap();
    let id = session.id();
    assert!(run(&session, |_| Ok(())).unwrap().success);
    let before = bucket.records(id);

    let _other = bucket.remote().claim(id, "two", |_| {}).unwrap();
    let fenced = run(&session, |_| panic!("the handler runs")).unwrap_err();
    assert!(matches!(&fenced, Error::Fenced { epoch: 2, by, .. } if by.starts_with("two, ")), "{fenced:?}");
    let fenced = run(&session, |_| panic!("the handler runs")).unwrap_err();
    assert!(
        matches!(&fenced, Error::Poisoned { cause } if matches!(**cause, Error::Fenced { .. })),
        "{fenced:?}"
    );
    assert!(session.close().is_err());
    assert_eq!(bucket.records(id), before);
}

/// A worker was stopped while the acknowledgement of a start record was on its way. It read that
/// after another worker had taken over, and started the tool, which that worker ran too.
#[test]
fn a_worker_that_reads_the_acknowledgement_of_a_begin_after_a_takeover_starts_no_tool() {
    for runs_elsewhere in [false, true] {
        let (directory, bucket, clock) = (tempfile::tempdir().unwrap(), Bucket::default(), Clock::default());
        let session = store_with(&directory, &bucket, "one", &clock).create(&types()).unwrap();
        let id = session.id();
        let (taking, sleeping) = (bucket.clone(), clock.clone());
        bucket.before_answering_next_chunk(move || {
            sleeping.advance(FRESH);
            drop(taking.remote().claim(id, "two", |_| {}).unwrap());
        });
        let runner =
            runner_over(&session, ResourceRegistry::default(), |_| panic!("the tool starts")).unwrap();
        let (call, options) = (ToolCall::new("act", "{}"), ExecuteOptions::default());
        let fenced = match runs_elsewhere {
            true => runner.begin(&call, &options).unwrap_err(),
            false => runner.execute(&call, &options).unwrap_err(),
        };
        assert!(
            matches!(&fenced, Error::Fenced { epoch: 2, by, .. } if by.starts_with("two, ")),
            "{fenced:?}"
        );
        // The other worker recovers the open call, and no record is written after its start record.
        assert_eq!(bucket.kinds(id).last().map(String::as_str), Some("tool_begin"));
        assert!(session.calls().is_interrupted());
        let poisoned = session.dispatch(note("too late")).unwrap_err();
        assert!(matches!(&poisoned, Error::Poisoned { cause } if matches!(**cause, Error::Fenced { .. })));
        // A reader of the log learns the first record that was not acknowledged.
        let told = foldlog::inspect::read_fence(session.dir()).unwrap();
        assert_eq!((told.from.get(), told.epoch), (bucket.records(id).len() as u64, 2));
    }
}

/// Shows the window that `foldlog::replication` documents.
#[test]
fn a_takeover_within_a_sixth_of_the_lease_is_not_noticed_before_the_start_and_the_token_shows_it() {
    let (directory, bucket, clock) = (tempfile::tempdir().unwrap(), Bucket::default(), Clock::default());
    let session = store_with(&directory, &bucket, "one", &clock).create(&types()).unwrap();
    let id = session.id();
    let taking = bucket.clone();
    bucket.before_answering_next_chunk(move || {
        clock.advance(FRESH - Duration::from_secs(1));
        drop(taking.remote().claim(id, "two", |_| {}).unwrap());
    });
    let tokens: Arc<Mutex<Vec<FencingToken>>> = Arc::default();
    let seen = Arc::clone(&tokens);
    let late = run(&session, move |context| {
        seen.lock().unwrap().push(context.fencing_token());
        Ok(())
    });
    // The end record is not acknowledged, and a service that knows epoch 2 refuses epoch 1.
    assert!(matches!(late, Err(Error::Fenced { epoch: 2, .. })), "{late:?}");
    assert_eq!(tokens.lock().unwrap().iter().map(|token| token.epoch).collect::<Vec<_>>(), [Some(1)]);
}

#[test]
fn an_old_acknowledgement_is_confirmed_by_one_request_and_a_young_one_by_none() {
    let (directory, bucket, clock) = (tempfile::tempdir().unwrap(), Bucket::default(), Clock::default());
    let session = store_with(&directory, &bucket, "one", &clock).create(&types()).unwrap();
    let before = bucket.reads();
    assert!(run(&session, |_| Ok(())).unwrap().success);
    assert_eq!(bucket.reads(), before);
    bucket.before_answering_next_chunk(move || clock.advance(FRESH));
    assert!(run(&session, |_| Ok(())).unwrap().success);
    assert_eq!(bucket.reads(), before + 1);
    assert!(run(&session, |_| Ok(())).unwrap().success);
    assert_eq!(bucket.reads(), before + 1);
}

#[test]
fn a_tool_does_not_start_while_each_confirmation_is_read_too_late() {
    let (directory, bucket, clock) = (tempfile::tempdir().unwrap(), Bucket::default(), Clock::default());
    let session = store_with(&directory, &bucket, "one", &clock).create(&types()).unwrap();
    clock.read_slowly(FRESH);
    let refused = run(&session, |_| panic!("the tool starts")).unwrap_err();
    let Error::ReplicaFailed { reason, .. } = &refused else { panic!("{refused:?}") };
    assert!(reason.contains("after the lease had expired"), "{reason}");
    // Once the bucket answers, the session can be opened again and continues.
    clock.read_slowly(Duration::ZERO);
    let (id, store) = (session.id(), store_with(&directory, &bucket, "one", &clock));
    drop(session);
    let session = store.open_session(id, &types()).unwrap();
    recover_by_running_again(&session, |_| Ok(()));
    assert!(run(&session, |_| Ok(())).unwrap().success);
}

#[test]
fn a_running_handler_is_told_to_stop_and_its_end_is_not_acknowledged() {
    let (directory, bucket) = (tempfile::tempdir().unwrap(), Bucket::default());
    let session = store(&directory, &bucket, "one").create(&types()).unwrap();
    let id = session.id();
    let (inside, taking) = (session.clone(), bucket.clone());
    let told = Arc::new(AtomicBool::new(false));
    let tells = Arc::clone(&told);
    let ended = run(&session, move |context| {
        taking.remote().claim(id, "two", |_| {}).unwrap();
        context.session().dispatch(note("within")).unwrap();
        // The writer learns of it with its next record that must be replicated.
        assert!(matches!(inside.sync(), Err(Error::Fenced { .. })));
        tells.store(context.is_cancelled(), Ordering::SeqCst);
        Ok(())
    });
    assert!(told.load(Ordering::SeqCst), "the handler was not told to stop");
    assert!(ended.is_err(), "{ended:?}");
    assert_eq!(bucket.kinds(id).last().map(String::as_str), Some("tool_begin"));
}

#[test]
fn records_behind_anothers_claim_are_superseded_and_stay_readable() {
    let (directory, bucket) = (tempfile::tempdir().unwrap(), Bucket::default());
    let workers = store(&directory, &bucket, "one");
    let session = workers.create(&types()).unwrap();
    let id = session.id();
    session.dispatch(note("held")).unwrap();
    session.sync().unwrap();
    let held = bucket.records(id).len() as u64;

    // Another worker claims and appends nothing. This worker's records since then were never
    // acknowledged.
    let mut other = bucket.remote().claim(id, "two", |_| {}).unwrap();
    session.dispatch(note("too late")).unwrap();
    assert!(session.sync().is_err());
    drop(session);
    let superseded = workers.open_session(id, &types()).unwrap_err();
    assert!(matches!(superseded, Error::Superseded { sequence, .. } if sequence == held), "{superseded:?}");

    // The same applies if the other worker has continued.
    let theirs = Record { sequence: held.into(), kind: RecordKind::Observed, time_us: 1, body: b"theirs" };
    other.append([theirs]).unwrap();
    let superseded = workers.open_session(id, &types()).unwrap_err();
    assert!(matches!(superseded, Error::Superseded { sequence, .. } if sequence == held), "{superseded:?}");
    assert_eq!(bucket.records(id).len() as u64, held + 1);

    let log = LogReader::open(workers.session_dir(id)).unwrap();
    assert_eq!(log.records_len(), held + 1);
    let text = superseded.to_string();
    assert!(text.contains(&id.to_string()), "{text}");
}

#[test]
fn the_epoch_of_a_fencing_token_rises_with_each_worker_and_the_operation_stays() {
    let bucket = Bucket::default();
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (first, second) = (store(&one, &bucket, "one"), store(&two, &bucket, "two"));
    let session = first.create(&types()).unwrap();
    let id = session.id();
    let tokens: Arc<Mutex<Vec<FencingToken>>> = Arc::default();
    let seen = Arc::clone(&tokens);
    let taken = Arc::new(Mutex::new(None));
    let takes = Arc::clone(&taken);
    let lost = run(&session, move |context| {
        seen.lock().unwrap().push(context.fencing_token());
        *takes.lock().unwrap() = Some(second.take_over(id, &types()).unwrap());
        Ok(())
    });
    assert!(matches!(lost, Err(Error::Fenced { .. })), "{lost:?}");
    let session = taken.lock().unwrap().take().unwrap();
    let seen = Arc::clone(&tokens);
    // The tool may run again, so the new worker runs it with the old worker's operation.
    recover_by_running_again(&session, move |context| {
        seen.lock().unwrap().push(context.fencing_token());
        Ok(())
    });
    let (operation, epochs) = (session.log().position().unwrap(), [Some(1), Some(2)]);
    let tokens = tokens.lock().unwrap();
    assert_eq!(tokens.iter().map(|token| token.epoch).collect::<Vec<_>>(), epochs);
    assert_eq!(tokens[0].operation, tokens[1].operation);
    assert!(tokens[0] < tokens[1] && tokens[0].operation.sequence() < operation);

    // Without a replicator there are no takeovers.
    let directory = tempfile::tempdir().unwrap();
    let plain = foldlog::Store::open(directory.path()).unwrap().create(&types()).unwrap();
    assert!(
        run(&plain, |context| {
            assert_eq!(context.fencing_token().epoch, None);
            assert_eq!(context.fencing_token().operation, context.operation());
            Ok(())
        })
        .unwrap()
        .success
    );
}

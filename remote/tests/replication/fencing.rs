//! What becomes of a writer whose session another one has claimed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use foldlog::audit::LogReader;
use foldlog::tools::FencingToken;
use foldlog::{Error, Kind, Record};

use crate::bucket::Bucket;
use crate::host::{recover_by_running_again, run, store};
use crate::notes::{note, types};

#[test]
fn a_superseded_writer_starts_no_further_handler_and_appends_nothing() {
    let (folder, bucket) = (tempfile::tempdir().unwrap(), Bucket::default());
    let session = store(&folder, &bucket, "one").create(&types()).unwrap();
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

#[test]
fn a_running_handler_is_told_to_stop_and_its_end_is_not_acknowledged() {
    let (folder, bucket) = (tempfile::tempdir().unwrap(), Bucket::default());
    let session = store(&folder, &bucket, "one").create(&types()).unwrap();
    let id = session.id();
    let (inside, taking) = (session.clone(), bucket.clone());
    let told = Arc::new(AtomicBool::new(false));
    let tells = Arc::clone(&told);
    let ended = run(&session, move |context| {
        taking.remote().claim(id, "two", |_| {}).unwrap();
        context.session().dispatch(note("within")).unwrap();
        // The writer learns it with the next record that is to be held.
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
    let (folder, bucket) = (tempfile::tempdir().unwrap(), Bucket::default());
    let workers = store(&folder, &bucket, "one");
    let session = workers.create(&types()).unwrap();
    let id = session.id();
    session.dispatch(note("held")).unwrap();
    session.sync().unwrap();
    let held = bucket.records(id).len() as u64;

    // Another worker claims and says nothing; what this one recorded since was never acknowledged.
    let mut other = bucket.remote().claim(id, "two", |_| {}).unwrap();
    session.dispatch(note("too late")).unwrap();
    assert!(session.sync().is_err());
    drop(session);
    let superseded = workers.open_session(id, &types()).unwrap_err();
    assert!(matches!(superseded, Error::Superseded { sequence, .. } if sequence == held), "{superseded:?}");

    // Nor where it went on.
    let theirs = Record { sequence: held.into(), kind: Kind::OBSERVED, time_us: 1, body: b"theirs" };
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
    // The tool may run again, so the new worker does that with the operation that the old one began.
    recover_by_running_again(&session, move |context| {
        seen.lock().unwrap().push(context.fencing_token());
        Ok(())
    });
    let (operation, epochs) = (session.position().unwrap(), [Some(1), Some(2)]);
    let tokens = tokens.lock().unwrap();
    assert_eq!(tokens.iter().map(|token| token.epoch).collect::<Vec<_>>(), epochs);
    assert_eq!(tokens[0].operation, tokens[1].operation);
    assert!(tokens[0] < tokens[1] && tokens[0].operation.sequence() < operation);

    // Without a replicator nobody takes a session over.
    let folder = tempfile::tempdir().unwrap();
    let plain = foldlog::Store::open(folder.path()).unwrap().create(&types()).unwrap();
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

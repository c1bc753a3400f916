//! What becomes of a writer whose session another one has claimed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use foldlog::audit::LogReader;
use foldlog::{Error, Kind, Record};

use crate::bucket::Bucket;
use crate::host::{note, run, store, types};

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

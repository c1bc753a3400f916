//! Shows that a replicated session states so, wherever its log is copied, and cannot be written
//! without its replicator by accident.

use foldlog::inspect::{LogReader, overview};
use foldlog::{
    Durability, Error, Policy, SessionOptions, SessionTypes, Settlement, SnapshotOptions, Store, StoreOptions,
};

use crate::bucket::Bucket;
use crate::directories::copy;
use crate::host::{plain_store, run, store, store_at};
use crate::notes::{Notes, note, texts, types};

fn is_refused<T: std::fmt::Debug>(opened: Result<T, Error>) -> bool {
    match opened {
        Err(Error::Replicated { at, by, .. }) => at == "object storage beneath `team`" && by == "one",
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_store_without_the_replicator_reads_a_held_session_and_does_not_write_it() {
    let (directory, bucket) = (tempfile::tempdir().unwrap(), Bucket::default());
    let session = store(&directory, &bucket, "one").create(&types()).unwrap();
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.dispatch(note("held")).unwrap();
    let replicated = session.log().replicated_record().unwrap();
    assert_eq!((replicated.by.as_str(), replicated.epoch, session.log().epoch()), ("one", 1, Some(1)));
    session.close().unwrap();
    assert_eq!(bucket.kinds(id)[..2], ["opened", "replicated"]);
    let records = LogReader::open(&dir).unwrap().records_len();

    let plain = plain_store(directory.path(), false);
    assert!(is_refused(plain.open_session(id, &types())));
    assert!(is_refused(plain.open_to_recover(id)));
    assert!(is_refused(plain.settle(id, 7, &Settlement::failed(), "a person", "why not")));
    assert_eq!(texts(&plain.open_read_only(id, &types()).unwrap()), ["held"]);
    assert_eq!(plain.open_read_only(id, &types()).unwrap().log().epoch(), None);
    let log = LogReader::open(&dir).unwrap();
    assert_eq!((log.records_len(), log.replicated_record()), (records, Some(&replicated)));
    assert_eq!(overview(&dir, 0, None).unwrap().replicated, Some(replicated));
    let refused = plain.open_session(id, &types()).unwrap_err().to_string();
    assert!(refused.contains("is replicated") && refused.contains("another worker"), "{refused}");
    // There was no claim, and no writer was fenced.
    assert_eq!(bucket.records(id).len() as u64, records);
}

#[test]
fn whoever_says_so_writes_a_held_session_and_the_next_opening_brings_that() {
    let (directory, bucket) = (tempfile::tempdir().unwrap(), Bucket::default());
    let session = store(&directory, &bucket, "one").create(&types()).unwrap();
    let id = session.id();
    session.close().unwrap();
    let held = bucket.kinds(id).len();
    let plain = plain_store(directory.path(), true).open_session(id, &types()).unwrap();
    plain.dispatch(note("alone")).unwrap();
    assert_eq!(plain.log().epoch(), None);
    plain.close().unwrap();
    let session = store(&directory, &bucket, "one").open_session(id, &types()).unwrap();
    session.close().unwrap();
    assert_eq!(bucket.kinds(id)[held..], ["declare", "dispatch"]);

    // After another worker's claim the same records are superseded.
    let plain = plain_store(directory.path(), true).open_session(id, &types()).unwrap();
    plain.dispatch(note("too late")).unwrap();
    plain.close().unwrap();
    let _other = bucket.remote().claim(id, "two", |_| {}).unwrap();
    let superseded = store(&directory, &bucket, "one").open_session(id, &types()).unwrap_err();
    assert!(matches!(superseded, Error::Superseded { .. }), "{superseded:?}");
}

#[test]
fn a_session_that_gets_a_replicator_says_so_durably_before_it_is_there() {
    let (directory, bucket) = (tempfile::tempdir().unwrap(), Bucket::default());
    for durability in [Durability::Process, Durability::Boundary] {
        let plain = plain_store(directory.path(), false).create(&types()).unwrap();
        let (id, dir) = (plain.id(), plain.dir().to_owned());
        plain.dispatch(note("before")).unwrap();
        plain.close().unwrap();
        let before = LogReader::open(&dir).unwrap().records_len();
        let session = store_at(&directory, &bucket, "one", durability).open_session(id, &types()).unwrap();
        assert_eq!(session.log().synced_end(), before + 1);
        drop(session);
        // The statement is written once.
        store_at(&directory, &bucket, "one", durability).open_session(id, &types()).unwrap().close().unwrap();
        let log = LogReader::open(&dir).unwrap();
        assert_eq!(log.records_len(), before + 1);
        assert_eq!(bucket.records(id).len() as u64, before + 1);
        assert!(is_refused(plain_store(directory.path(), false).open_session(id, &types())));
    }
}

#[test]
fn an_interrupted_session_says_so_too() {
    let (directory, bucket) = (tempfile::tempdir().unwrap(), Bucket::default());
    let plain = plain_store(directory.path(), false).create(&types()).unwrap();
    let id = plain.id();
    let saved = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().to_owned(), saved.path().to_owned());
    run(&plain, move |_| {
        copy(&from, &to);
        Ok(())
    })
    .unwrap();
    // The copy is the state that a kill during the call leaves.
    let session = store(&saved, &bucket, "one").open_session(id, &types()).unwrap();
    assert!(session.calls().is_interrupted() && session.log().replicated_record().is_some());
    session.close().unwrap();
    assert_eq!(bucket.kinds(id).last().map(String::as_str), Some("replicated"));
    assert!(is_refused(plain_store(saved.path(), false).open_to_recover(id)));
    assert!(plain_store(saved.path(), true).open_to_recover(id).unwrap().calls().is_interrupted());
}

#[test]
fn images_rollbacks_and_copies_forget_nothing_of_it() {
    let (directory, bucket) = (tempfile::tempdir().unwrap(), Bucket::default());
    let state =
        SessionTypes::builder().slice_with::<Notes>(Policy::State).append_all::<Notes>().build().unwrap();
    let plain = Store::open(directory.path()).unwrap().create(&state).unwrap();
    let (id, dir) = (plain.id(), plain.dir().to_owned());
    plain.dispatch(note("kept")).unwrap();
    let before = plain.snapshot(SnapshotOptions::default()).unwrap();
    plain.close().unwrap();

    let session = store(&directory, &bucket, "one").open_session(id, &state).unwrap();
    session.dispatch(note("abandoned")).unwrap();
    session.rollback(&before).unwrap();
    // Enough for an image.
    for n in 0..40 {
        session.dispatch(note(format!("{n} {}", "long ".repeat(10_000)))).unwrap();
    }
    session.close().unwrap();
    assert!(std::fs::read_dir(dir.join("snapshots")).unwrap().count() > 0, "no image was written");
    assert!(is_refused(Store::open(directory.path()).unwrap().open_session(id, &state)));
    let options = StoreOptions { unreplicated: true, ..StoreOptions::default() };
    let opened = Store::open_with(directory.path(), options).unwrap().open_session(id, &state).unwrap();
    assert!(opened.log().recovery().from_image.is_some());
    assert!(opened.log().replicated_record().is_some());
    drop(opened);
    assert!(overview(&dir, 0, None).unwrap().replicated.is_some());
    assert!(LogReader::open(&dir).unwrap().replicated_record().is_some());

    let copies = tempfile::tempdir().unwrap();
    let to = Store::open(copies.path()).unwrap();
    to.backup_from(&dir, foldlog::BackupOptions::default()).unwrap();
    assert!(is_refused(to.open_session(id, &state)));
}

#[test]
fn a_fork_is_held_where_its_own_store_has_a_replicator() {
    let (directory, bucket) = (tempfile::tempdir().unwrap(), Bucket::default());
    let workers = store(&directory, &bucket, "one");
    let session = workers.create(&types()).unwrap();
    session.dispatch(note("shared")).unwrap();
    session.sync().unwrap();
    let (id, at) = (session.id(), session.log().position().unwrap());
    let fork = workers.fork(id, at, &types(), SessionOptions::default()).unwrap();
    assert!(fork.log().replicated_record().is_some());
    let held = fork.id();
    fork.close().unwrap();
    assert!(is_refused(plain_store(directory.path(), false).open_session(held, &types())));

    // A replicated parent does not replicate a fork that was made without the replicator.
    let plain = plain_store(directory.path(), false);
    let fork = plain.fork(id, at, &types(), SessionOptions::default()).unwrap();
    assert_eq!(fork.log().replicated_record(), None);
    let own = fork.id();
    fork.dispatch(note("own")).unwrap();
    fork.close().unwrap();
    let fork = plain.open_session(own, &types()).unwrap();
    assert_eq!(texts(&fork), ["shared", "own"]);
    assert!(LogReader::open(fork.dir()).unwrap().replicated_record().is_none());
}

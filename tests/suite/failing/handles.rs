//! A process that may open no more files: what needs one is refused by name, and the session goes on once it may.

use foldlog::storage::{CrashKind, Fault};
use foldlog::{Durability, Error, SessionOptions};
use foldlog_tests::crash::{Machine, Slices, step};
use foldlog_tests::host::types;

/// A rollover that found no handle once ended the session: each later call said that it was poisoned, although nothing of it was
/// lost, and the host had to be started again.
#[test]
fn a_rollover_without_a_file_handle_is_refused_and_made_once_there_is_one() {
    let machine = Machine::default();
    let store = machine.process(Durability::Process);
    let session = store.create(&types()).unwrap();
    session.dispatch(step(0)).unwrap();
    machine.disk.inject(Fault::NoHandles);
    let refused =
        (1..1000).find_map(|n| session.dispatch(step(n)).err()).expect("segments of 4 KiB are soon full");
    assert!(matches!(refused, Error::NoHandle { .. }), "{refused:?}");
    let shown = refused.to_string();
    assert!(shown.starts_with("no file handle is left to open /home/store/sessions/"), "{shown}");
    let before = Slices::of(&session).unwrap();
    // It is refused for as long as there is none, and nothing comes of it.
    assert!(matches!(session.dispatch(step(1000)), Err(Error::NoHandle { .. })));
    assert_eq!(Slices::of(&session).unwrap(), before);

    machine.disk.clear_faults();
    session.dispatch(step(1000)).unwrap();
    let (id, slices) = (session.id(), Slices::of(&session).unwrap());
    assert_ne!(slices, before);
    session.sync().unwrap();
    drop((session, store));
    machine.crash(CrashKind::PowerLosingAll);
    let session = machine.open(id, Durability::Process).unwrap();
    assert_eq!(Slices::of(&session).unwrap(), slices);
}

/// Opening writes nothing: the file that is written on is opened with the first record.
#[test]
fn a_session_whose_first_record_finds_no_handle_takes_it_later() {
    let machine = Machine::default();
    let store = machine.process(Durability::Process);
    let closed = store.create(&types()).unwrap();
    closed.dispatch(step(0)).unwrap();
    let closed = {
        let id = closed.id();
        closed.close().unwrap();
        store.open_session(id, &types()).unwrap()
    };
    let parent = store.create(&types()).unwrap();
    parent.dispatch(step(0)).unwrap();
    parent.sync().unwrap();
    let fork =
        store.fork(parent.id(), parent.position().unwrap(), &types(), SessionOptions::default()).unwrap();
    for (name, session) in [("closed", closed), ("fork", fork)] {
        machine.disk.inject(Fault::NoHandles);
        let refused = session.dispatch(step(1)).expect_err(name);
        assert!(matches!(refused, Error::NoHandle { .. }), "{name}: {refused:?}");
        machine.disk.clear_faults();
        session.dispatch(step(1)).expect(name);
        assert!(session.sync().is_ok(), "{name}");
    }
}

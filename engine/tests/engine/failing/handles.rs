//! A process at its limit of open files: calls that need a file handle are refused with their own
//! error, and the session continues once handles are available.

use std::io::ErrorKind;

use foldlog::storage::{CrashKind, Fault, Op};
use foldlog::{Durability, Error, SessionOptions, SnapshotOptions};
use foldlog_test_support::crash::{Machine, Slices, count, large_note, step, write_steps};
use foldlog_test_support::host::types;

/// A rollover without a file handle once ended the session. Each later call failed as poisoned
/// although nothing was lost, and the host had to be restarted.
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
    // It is refused while no handle is available, and changes nothing.
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

/// Opening writes nothing: the file for writing is opened with the first record.
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
    let fork = store
        .fork(parent.id(), parent.log().position().unwrap(), &types(), SessionOptions::default())
        .unwrap();
    for (name, session) in [("closed", closed), ("fork", fork)] {
        machine.disk.inject(Fault::NoHandles);
        let refused = session.dispatch(step(1)).expect_err(name);
        assert!(matches!(refused, Error::NoHandle { .. }), "{name}: {refused:?}");
        machine.disk.clear_faults();
        session.dispatch(step(1)).expect(name);
        assert!(session.sync().is_ok(), "{name}");
    }
}

/// A sync opens the directories that contain new names. Without a file handle for that it once
/// ended the session, although no sync had failed.
#[test]
fn a_sync_without_a_file_handle_is_refused_and_made_once_there_is_one() {
    let machine = Machine::default();
    let store = machine.process(Durability::Boundary);
    let session = store.create(&types()).unwrap();
    write_steps(&session, 30);
    session.dispatch(large_note(1)).unwrap();
    machine.disk.inject(Fault::NoHandles);
    let synced = session.log().synced_end();
    for _ in 0..2 {
        let refused = session.sync().unwrap_err();
        assert!(matches!(refused, Error::NoHandle { .. }), "{refused:?}");
        assert_eq!(session.log().synced_end(), synced);
    }
    // The record that must be durable when the call returns is written, and reported as not known
    // to be durable.
    match session.snapshot(SnapshotOptions::default()) {
        Err(Error::DurabilityUnknown { sequence, cause }) => {
            assert_eq!(Some(sequence), session.log().position());
            assert!(matches!(*cause, Error::NoHandle { .. }), "{cause:?}");
        }
        other => panic!("{other:?}"),
    }
    machine.disk.clear_faults();
    session.dispatch(step(31)).unwrap();
    session.sync().unwrap();
    let (id, slices, position) = (session.id(), Slices::of(&session).unwrap(), session.log().position());
    drop((session, store));
    machine.crash(CrashKind::PowerLosingAll);
    let session = machine.open(id, Durability::Boundary).unwrap();
    assert_eq!((Slices::of(&session).unwrap(), session.log().position()), (slices, position));
}

/// A resting session opens its file again for the next record, and to close.
#[test]
fn a_session_that_rests_and_finds_no_handle_goes_on_later() {
    let machine = Machine::default();
    let store = machine.process(Durability::Every);
    let session = store.create(&types()).unwrap();
    write_steps(&session, 3);
    assert!(session.rest().unwrap());
    let (before, position) = (Slices::of(&session).unwrap(), session.log().position());
    machine.disk.inject(Fault::NoHandles);
    for _ in 0..2 {
        let refused = session.dispatch(step(3)).unwrap_err();
        assert!(matches!(refused, Error::NoHandle { .. }), "{refused:?}");
        assert_eq!((Slices::of(&session).unwrap(), session.log().position()), (before.clone(), position));
    }
    assert!(!session.rest().unwrap());
    machine.disk.clear_faults();
    session.dispatch(step(3)).unwrap();
    let (id, slices) = (session.id(), Slices::of(&session).unwrap());
    assert_ne!(slices, before);
    assert!(session.rest().unwrap());
    machine.disk.inject(Fault::NoHandles);
    // All records are durable; only the note that the session is closed could not be written.
    assert!(matches!(session.close(), Err(Error::NoHandle { .. })));
    machine.disk.clear_faults();
    drop(store);
    machine.crash(CrashKind::PowerLosingAll);
    let session = machine.open(id, Durability::Every).unwrap();
    assert_eq!(Slices::of(&session).unwrap(), slices);
}

/// A reopened file does not report an earlier failed sync. So no file is closed before a sync has
/// covered it: the frame that attests a sync is written after it.
#[test]
fn a_session_whose_last_sync_before_it_rests_fails_is_poisoned() {
    let machine = Machine::default();
    let store = machine.process(Durability::Process);
    let session = store.create(&types()).unwrap();
    write_steps(&session, 3);
    session.sync().unwrap();
    let written = count(&session);
    machine.disk.inject(Fault::FailNth { op: Op::SyncData, nth: 1, error: ErrorKind::Other });
    let refused = session.rest().unwrap_err();
    assert!(matches!(refused, Error::Io { .. }), "{refused:?}");
    assert!(matches!(session.dispatch(step(3)), Err(Error::Poisoned { .. })));
    let id = session.id();
    drop((session, store));
    machine.crash(CrashKind::PowerLosingAll);
    assert_eq!(count(&machine.open(id, Durability::Process).unwrap()), written);
}

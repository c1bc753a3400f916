//! Calls that fail: the session then reports only what it knows, and nothing acknowledged is lost.

use std::io::ErrorKind;

use foldlog::storage::{CrashKind, Fault, Op};
use foldlog::{Durability, Error, Session};
use foldlog_test_support::crash::{Machine, Slices, count, large_note, step, write_steps};
use foldlog_test_support::host::{Noted, Notes, types};
use uuid::Uuid;

fn session(machine: &Machine, durability: Durability) -> (Session, Uuid) {
    let session = machine.process(durability).create(&types()).unwrap();
    write_steps(&session, 2);
    let id = session.id();
    (session, id)
}

/// Checks that every later call fails with the first cause until the session is reopened.
fn assert_poisoned(session: &Session, cause: &str) {
    for again in [
        session.dispatch(step(9)).map(drop),
        session.snapshot(foldlog::SnapshotOptions::default()).map(drop),
        session.rollback_to(0).map(drop),
        session.set_tag("a", "b").map(drop),
        session.sync(),
    ] {
        match again {
            Err(Error::Poisoned { cause: first }) => assert!(first.to_string().contains(cause), "{first}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn after_a_failed_sync_the_record_is_unknown_the_session_poisoned_and_nothing_acknowledged_gone() {
    for lost in [CrashKind::Process, CrashKind::PowerLosingAll, CrashKind::Power { seed: 1 }] {
        let machine = Machine::default();
        let (session, id) = session(&machine, Durability::Every);
        let acknowledged = count(&session);
        machine.disk.inject(Fault::FailNth { op: Op::SyncData, nth: 1, error: ErrorKind::Other });
        match session.dispatch(step(3)) {
            Err(Error::DurabilityUnknown { sequence, .. }) => assert_eq!(sequence, acknowledged),
            other => panic!("{other:?}"),
        }
        assert_poisoned(&session, "injected");
        assert!(session.clone().close().is_err(), "closing does not hide it");
        // Reads still succeed.
        assert!(Slices::of(&session).is_ok() && session.dynamic().state_at(0).is_ok());
        machine.crash(lost);
        let session = machine.open(id, Durability::Every).unwrap();
        let left = count(&session);
        assert!(left == acknowledged || left == acknowledged + 1, "{left}");
        write_steps(&session, 2);
    }
}

#[test]
fn after_a_failed_or_short_write_the_session_is_poisoned_and_its_projection_as_it_was() {
    let faults = [
        Fault::FailNth { op: Op::Write, nth: 1, error: ErrorKind::TimedOut },
        Fault::ShortWrite { nth: 1, bytes: 0 },
        Fault::ShortWrite { nth: 1, bytes: 27 },
        Fault::ShortWrite { nth: 1, bytes: 100 },
    ];
    for (fault, durability) in faults.iter().flat_map(|f| [(f, Durability::Process), (f, Durability::Every)])
    {
        let machine = Machine::default();
        let (session, id) = session(&machine, durability);
        let (acknowledged, slices) = (count(&session), Slices::of(&session).unwrap());
        machine.disk.inject(fault.clone());
        assert!(matches!(session.dispatch(step(3)), Err(Error::Io { op: "write", .. })));
        assert_eq!(count(&session), acknowledged);
        assert_eq!(Slices::of(&session).unwrap(), slices);
        assert_poisoned(&session, "write");
        drop(session);
        let session = machine.open(id, durability).unwrap();
        assert_eq!(count(&session), acknowledged, "{fault:?}");
        assert_eq!(Slices::of(&session).unwrap(), slices);
        assert_eq!(session.dispatch(step(3)).unwrap(), acknowledged);
    }
}

/// Each call that changes the disk fails in turn, over turns, objects and recoveries. The next
/// session has everything that was acknowledged.
#[test]
fn whichever_call_fails_nothing_acknowledged_is_gone_after_reopening() {
    let ops =
        [Op::Create, Op::Write, Op::SyncData, Op::SyncDir, Op::Rename, Op::CreateDirAll, Op::Open, Op::Read];
    let kinds = [ErrorKind::Other, ErrorKind::StorageFull, ErrorKind::ReadOnlyFilesystem];
    let mut refusals = 0;
    for (op, error) in ops.iter().flat_map(|op| kinds.map(|error| (*op, error))) {
        for nth in 1..14 {
            let machine = Machine::default();
            let (first, id) = session(&machine, Durability::Process);
            drop(first);
            machine.crash(CrashKind::Process);
            let session = machine.open(id, Durability::Every).unwrap();
            let mut acknowledged = count(&session);
            machine.disk.inject(Fault::FailNth { op, nth, error });
            for n in 0..14 {
                let done =
                    if n % 5 == 3 { session.dispatch(large_note(n)) } else { session.dispatch(step(n)) };
                match done {
                    Ok(at) => acknowledged = at.get() + 1,
                    Err(_) => refusals += 1,
                }
            }
            drop(session);
            machine.disk.clear_faults();
            machine.crash(CrashKind::PowerLosingAll);
            let session =
                machine.open(id, Durability::Every).unwrap_or_else(|e| panic!("{op:?} {nth} {error:?}: {e}"));
            assert!(count(&session) >= acknowledged, "{op:?} {nth} {error:?}");
            write_steps(&session, 1);
        }
    }
    assert!(refusals > 100, "{refusals}");
}

/// A full disk is no failure of the log: the turn is refused without effect, and the same session
/// continues once there is space.
#[test]
fn a_full_disk_refuses_the_turn_and_the_session_goes_on_once_there_is_space() {
    for durability in [Durability::Process, Durability::Every] {
        let machine = Machine::default();
        let (session, id) = session(&machine, durability);
        machine.disk.inject(Fault::DiskFull { capacity_bytes: machine.disk.used_bytes() });
        let refused = (0..20).find_map(|n| session.dispatch(step(n)).err()).unwrap();
        assert!(matches!(refused, Error::Full { .. }), "{refused}");
        let (all, slices) = (count(&session), Slices::of(&session).unwrap());
        assert!(matches!(session.dispatch(step(1)), Err(Error::Full { .. })), "and again");
        assert!(
            matches!(session.dispatch(large_note(1)), Err(Error::Full { .. })),
            "an object has no room either"
        );
        session.sync().unwrap();
        // Another process opens and reads it on the full disk.
        let reader = machine.process(durability).open_read_only(id, &types()).unwrap();
        assert_eq!(Slices::of(&reader).unwrap(), slices);
        machine.disk.clear_faults();
        assert_eq!(session.dispatch(step(1)).unwrap(), all);
        session.dispatch(large_note(1)).unwrap();
        let (all, slices) = (count(&session), Slices::of(&session).unwrap());
        session.close().unwrap();
        machine.crash(CrashKind::PowerLosingAll);
        let session = machine.open(id, durability).unwrap();
        assert_eq!((count(&session), Slices::of(&session).unwrap()), (all, slices));
    }
}

/// After a recovery that failed half way, the session read from the segment under construction. Its
/// LOG was unreadable, or lacked the records not yet rewritten.
#[test]
fn after_a_recovery_that_failed_at_any_call_the_session_reads_as_before() {
    let ops = [Op::Create, Op::Write, Op::SyncData, Op::SyncDir, Op::Rename, Op::Open, Op::Read];
    let mut poisoned = 0;
    for (op, nth) in ops.iter().flat_map(|op| (1..20).map(|nth| (*op, nth))) {
        let machine = Machine::default();
        let (first, id) = session(&machine, Durability::Process);
        first.close().unwrap();
        let session = machine.open(id, Durability::Process).unwrap();
        for n in 0..6 {
            session.dispatch(Noted { text: format!("note {n}") }).unwrap();
            write_steps(&session, 2);
        }
        machine.crash(CrashKind::Process);
        let session = machine.open(id, Durability::Every).unwrap();
        let (all, slices) = (count(&session), Slices::of(&session).unwrap());
        machine.disk.inject(Fault::FailNth { op, nth, error: ErrorKind::Other });
        let refused = session.set_tag("after", "the crash");
        machine.disk.clear_faults();
        if refused.is_ok() || session.sync().is_ok() {
            continue;
        }
        poisoned += 1;
        if !matches!(refused, Err(Error::DurabilityUnknown { .. })) {
            assert_eq!(count(&session), all, "{op:?} {nth}");
            assert_eq!(Slices::of(&session).unwrap(), slices, "{op:?} {nth}");
        }
        drop(session);
        let session = machine.open(id, Durability::Every).unwrap();
        assert_eq!(session.log().slice::<Notes>().unwrap().len(), 6, "{op:?} {nth}");
        write_steps(&session, 1);
    }
    assert!(poisoned > 20, "{poisoned}");
}

/// Recovery needs a segment. Without space for it the log is unchanged, also on the second attempt.
#[test]
fn a_full_disk_refuses_a_recovery_and_leaves_the_log_as_it_was() {
    let machine = Machine::default();
    let (first, id) = session(&machine, Durability::Process);
    drop(first);
    let session = machine.open(id, Durability::Process).unwrap();
    write_steps(&session, 2);
    machine.crash(CrashKind::Process);
    let before = machine.disk.dump();
    machine.disk.inject(Fault::DiskFull { capacity_bytes: machine.disk.used_bytes() });
    let session = machine.open(id, Durability::Every).unwrap();
    let slices = Slices::of(&session).unwrap();
    for _ in 0..2 {
        assert!(matches!(session.dispatch(step(1)), Err(Error::Full { .. })));
        assert!(matches!(session.sync(), Err(Error::Full { .. })));
    }
    assert_eq!(Slices::of(&session).unwrap(), slices);
    for path in machine.segments(id) {
        assert_eq!(machine.disk.read_file(&path).as_ref(), before.get(&path));
    }
    machine.disk.clear_faults();
    let all = count(&session);
    assert_eq!(session.dispatch(step(1)).unwrap(), all);
    machine.crash(CrashKind::PowerLosingAll);
    assert_eq!(count(&machine.open(id, Durability::Every).unwrap()), all + 1);
}

/// The frame that records which boot wrote a tail was omitted if its first attempt met a full disk.
#[test]
fn a_session_that_met_a_full_disk_at_its_first_append_still_says_that_it_was_resumed() {
    let machine = Machine::default();
    let session = machine.process(Durability::Every).create(&types()).unwrap();
    let id = session.id();
    // Fills the segment until not even the frame of the next opening fits.
    while machine.segments(id).len() == 1 {
        session.dispatch(step(1)).unwrap();
    }
    let end = |machine: &Machine| machine.frames(id).unwrap().last().unwrap().end;
    while end(&machine) + 200 < 4096 {
        let room = 4096 - 160 - 28 - 28 - end(&machine);
        let len = if room > 340 { 100 } else { room.saturating_sub(60).min(100) };
        session.set_tag("t", "z".repeat(len)).unwrap();
    }
    session.close().unwrap();
    let resumed = |machine: &Machine| {
        machine.frames(id).unwrap().iter().filter(|frame| frame.kind == foldlog::RecordKind::Resumed).count()
    };
    let before = resumed(&machine);
    machine.disk.inject(Fault::DiskFull { capacity_bytes: machine.disk.used_bytes() });
    let session = machine.open(id, Durability::Every).unwrap();
    assert!(matches!(session.dispatch(step(1)), Err(Error::Full { .. })));
    machine.disk.clear_faults();
    session.dispatch(step(1)).unwrap();
    assert_eq!(resumed(&machine), before + 1);
}

#[test]
fn a_read_only_disk_is_opened_and_read_and_says_so_at_the_first_append() {
    let machine = Machine::default();
    let (first, id) = session(&machine, Durability::Process);
    drop(first);
    for unclean in [false, true] {
        if unclean {
            write_steps(&machine.open(id, Durability::Process).unwrap(), 1);
            machine.crash(CrashKind::Process);
        }
        machine.disk.inject(Fault::ReadOnly);
        let session = machine.open(id, Durability::Every).unwrap();
        assert!(Slices::of(&session).is_ok());
        for _ in 0..2 {
            assert!(matches!(session.dispatch(step(1)), Err(Error::ReadOnly { .. })));
        }
        session.close().unwrap();
        machine.disk.clear_faults();
        // The disk becomes read-only after the session was opened. The session notices at the
        // append, and continues afterwards.
        let session = machine.open(id, Durability::Every).unwrap();
        machine.disk.inject(Fault::ReadOnly);
        let refused = session.dispatch(step(1)).unwrap_err();
        assert!(matches!(refused, Error::ReadOnly { .. }), "{refused}");
        let refused = session.dispatch(large_note(1)).unwrap_err();
        assert!(matches!(refused, Error::ReadOnly { .. }), "{refused}");
        machine.disk.clear_faults();
        session.dispatch(step(1)).unwrap();
        session.close().unwrap();
    }
}

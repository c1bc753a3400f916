//! Single crashes: each test is about data that was once lost, or that is most at risk.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use foldlog::log::SegmentSizes;
use foldlog::storage::{Access, CrashKind, Fault, Op, Storage};
use foldlog::{
    BackgroundSync, CollectOptions, Durability, Error, RecordKind, SessionOptions, Store, StoreOptions,
};
use foldlog_codec::frame::{self, Header};
use foldlog_codec::segment::{Previous, SegmentHeader};
use foldlog_test_support::crash::{BOOT, Machine, Slices, count, large_note, step, write_steps};
use foldlog_test_support::host::{Notes, Plan, types};
use uuid::Uuid;

fn fails(op: Op, nth: u64) -> Fault {
    Fault::FailNth { op, nth, error: ErrorKind::Other }
}

/// Creates a closed session with some records, all durable.
fn closed_session(machine: &Machine, steps: u64) -> Uuid {
    let session = machine.process(Durability::Every).create(&types()).unwrap();
    write_steps(&session, steps);
    let id = session.id();
    session.close().unwrap();
    id
}

/// Returns a function that opens the store with segments of 16 KiB, of which none is made ahead.
fn opens_with_small_segments(machine: &Machine) -> impl Fn() -> Store {
    let segments = SegmentSizes { first_bytes: 16384, max_bytes: 16384, ahead_bytes_min: u64::MAX };
    move || {
        let options = StoreOptions { segments, ..machine.options(Durability::Every) };
        Store::open_with("/home/store", options).unwrap()
    }
}

fn files_of(machine: &Machine, id: Uuid) -> BTreeMap<PathBuf, Vec<u8>> {
    machine.disk.dump().into_iter().filter(|(path, _)| path.starts_with(machine.dir(id))).collect()
}

/// The name of the store's own directory was never synced, so an early power cut took everything.
#[test]
fn a_new_store_is_as_durable_as_its_first_record() {
    let machine = Machine::default();
    let session = machine.process(Durability::Every).create(&types()).unwrap();
    machine.crash(CrashKind::PowerLosingAll);
    assert_eq!(count(&machine.open(session.id(), Durability::Every).unwrap()), 1);
}

/// Recovery made the names of segments durable, but not the name of the session's directory.
#[test]
fn a_session_begun_by_a_killed_process_is_kept_once_the_next_one_is_told_so() {
    let machine = Machine::default();
    // Dropping the session would close it, and nothing would be left to recover.
    let killed = machine.process(Durability::Process).create(&types()).unwrap();
    let id = killed.id();
    machine.crash(CrashKind::Process);
    machine.open(id, Durability::Every).unwrap().dispatch(step(1)).unwrap();
    machine.crash(CrashKind::PowerLosingAll);
    assert_eq!(machine.open(id, Durability::Every).unwrap().view::<Plan>().unwrap().len(), 1);
}

/// The sync found nothing of its own to sync, and promised data that only the dead process's files
/// contained.
#[test]
fn a_sync_after_a_kill_covers_what_the_killed_process_wrote() {
    let machine = Machine::default();
    let id = closed_session(&machine, 1);
    let session = machine.open(id, Durability::Process).unwrap();
    session.dispatch(step(1)).unwrap();
    machine.crash(CrashKind::Process);
    let session = machine.open(id, Durability::Process).unwrap();
    let all = count(&session);
    assert!(session.log().synced_end() < all.into() && session.log().recovery().unattested > 0);
    session.sync().unwrap();
    assert_eq!(session.log().synced_end(), all);
    machine.crash(CrashKind::PowerLosingAll);
    assert_eq!(count(&machine.open(id, Durability::Process).unwrap()), all);
}

/// A read-only handle cannot make the tail durable, and reports that instead of promising it.
#[test]
fn a_handle_for_reading_does_not_promise_what_it_cannot_sync() {
    let machine = Machine::default();
    let session = machine.process(Durability::Process).create(&types()).unwrap();
    let id = session.id();
    machine.crash(CrashKind::Process);
    let reader = machine.process(Durability::Process).open_read_only(id, &types()).unwrap();
    assert!(matches!(reader.sync(), Err(Error::ReadOnly { .. })));
    assert_eq!(reader.log().synced_end(), 0);
}

/// After a kill during the switch to a new segment, the log passed for closed, since its last frame
/// was a `Synced` frame. But that frame was in the old segment, unsynced, and the next writer, in
/// the new segment, never synced it.
#[test]
fn whichever_call_is_a_processes_last_the_next_one_goes_on_durably() {
    // With a sync after each record, every switch follows a `Synced` frame.
    for durability in [Durability::Process, Durability::Every] {
        die_at_each_call(durability);
    }
}

fn die_at_each_call(durability: Durability) {
    let mut deaths = 0;
    for nth in 1.. {
        let machine = Machine::default();
        let id = closed_session(&machine, 2);
        let store = machine.process(durability);
        let session = store.open_session(id, &types()).unwrap();
        machine.disk.inject(Fault::Die { nth, bytes: 40 });
        let mut acknowledged = count(&session);
        for n in 0..24 {
            let done = if n % 8 == 3 { session.dispatch(large_note(n)) } else { session.dispatch(step(n)) };
            let done = if n % 5 == 4 { done.and_then(|at| session.sync().map(|()| at)) } else { done };
            match done {
                Ok(at) => acknowledged = at.get() + 1,
                Err(_) => break,
            }
        }
        let survived = store.session_ids().is_ok();
        machine.crash(CrashKind::Process);
        machine.disk.clear_faults();
        let session = machine.open(id, Durability::Every).unwrap();
        assert!(count(&session) >= acknowledged, "call {nth}");
        session.set_tag("after", "the kill").unwrap();
        let (all, slices) = (count(&session), Slices::of(&session).unwrap());
        machine.crash(CrashKind::PowerLosingAll);
        let session = machine.open(id, Durability::Every).unwrap();
        assert_eq!(count(&session), all, "call {nth}");
        assert_eq!(Slices::of(&session).unwrap(), slices, "call {nth}");
        if survived {
            break;
        }
        deaths += 1;
    }
    assert!(deaths > 40, "{deaths}");
}

/// During the first switch of a session whose names were not yet durable, a power cut could keep
/// the second segment and lose the first. Then the session was reported as damaged.
#[test]
fn a_session_of_which_nothing_was_promised_is_never_called_damaged() {
    let mut gone = 0;
    for nth in 1..36 {
        for seed in 0..20 {
            let machine = Machine::default();
            let store = machine.process(Durability::Process);
            machine.disk.inject(Fault::Die { nth, bytes: 0 });
            let session = store.create(&types());
            if let Ok(session) = &session {
                let _ = (0..20).try_for_each(|n| session.dispatch(step(n)).map(drop));
            }
            machine.disk.write_back(seed);
            machine.crash(CrashKind::Power { seed });
            let Ok(ids) = machine.process(Durability::Process).session_ids() else { continue };
            for id in ids {
                match machine.open(id, Durability::Process) {
                    Ok(session) => drop(session.set_tag("after", "the cut").unwrap()),
                    Err(Error::NotASession { .. }) => gone += 1,
                    Err(error) => panic!("call {nth}, seed {seed}: {error}"),
                }
            }
        }
    }
    assert!(gone > 0);
}

/// Either kind of crash may cut a recovery short, at any call. Earlier files stay unchanged, byte
/// for byte, and the next recovery ends the same way.
#[test]
fn a_recovery_cut_short_at_any_call_costs_nothing() {
    let torn = Machine::default();
    let id = closed_session(&torn, 3);
    let session = torn.open(id, Durability::Process).unwrap();
    write_steps(&session, 12);
    session.dispatch(large_note(1)).unwrap();
    torn.crash(CrashKind::Process);
    let before: BTreeMap<PathBuf, Vec<u8>> = torn.disk.dump();
    let whole = torn.audit(id).unwrap();
    let (all, state) = (whole.records_len(), whole.state().unwrap());
    assert!(whole.report().unattested > 5);

    let kinds = [
        CrashKind::Process,
        CrashKind::PowerLosingAll,
        CrashKind::Power { seed: 3 },
        CrashKind::Power { seed: 4 },
        CrashKind::Power { seed: 5 },
    ];
    let mut deaths = 0;
    for (nth, kind) in (1..60).flat_map(|nth| kinds.map(|kind| (nth, kind))) {
        // The files are durable here, as after a power cut without losses.
        let machine = torn.copied(BOOT);
        let session = machine.open(id, Durability::Every).unwrap();
        machine.disk.inject(Fault::Die { nth, bytes: 100 });
        let told = session.set_tag("after", "the kill").is_ok();
        machine.crash(kind);
        machine.disk.clear_faults();
        deaths += u64::from(!told);
        let session = machine.open(id, Durability::Every).unwrap();
        let left = count(&session);
        assert!(left == all + 1 || left == all && !told, "call {nth}, {kind:?}: {left} of {all}");
        assert_eq!(session.dynamic().state_at(all - 1).unwrap().slices, state.slices, "call {nth}, {kind:?}");
        for (path, bytes) in before.iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "seg")) {
            assert_eq!(machine.disk.read_file(path).as_ref(), Some(bytes), "call {nth}, {kind:?}");
        }
        session.set_tag("at", "last").unwrap();
        machine.crash(CrashKind::PowerLosingAll);
        assert_eq!(count(&machine.open(id, Durability::Every).unwrap()), left + 1, "call {nth}, {kind:?}");
    }
    assert!(deaths > 40, "{deaths}");
}

/// After a crash left a recovery half-built, every later opening was a recovery too, each with a
/// new segment.
#[test]
fn what_a_crash_left_half_built_is_reported_and_does_not_matter() {
    let machine = Machine::default();
    let id = closed_session(&machine, 1);
    let leftover = machine.dir(id).join("0000000009.seg.new");
    machine.disk.write_file(&leftover, b"half").unwrap();
    let session = machine.open(id, Durability::Every).unwrap();
    assert_eq!(session.log().recovery().leftovers, std::slice::from_ref(&leftover));
    assert!(session.log().recovery().closed);
    session.dispatch(step(1)).unwrap();
    assert_eq!(machine.segments(id).len(), 1, "it went on in its segment");
    assert_eq!(machine.disk.read_file(&leftover).unwrap(), b"half");
}

/// After a failed sync the system considers the object's pages clean. The next process synced the
/// object "again", which wrote nothing, and acknowledged a record whose object never reached the
/// disk.
#[test]
fn an_object_whose_sync_failed_is_really_written_by_the_next_process() {
    let machine = Machine::default();
    let id = closed_session(&machine, 1);
    let session = machine.open(id, Durability::Every).unwrap();
    machine.disk.inject(fails(Op::SyncData, 1));
    assert!(matches!(session.dispatch(large_note(1)), Err(Error::DurabilityUnknown { .. })));
    drop(session);
    let session = machine.open(id, Durability::Every).unwrap();
    session.dispatch(large_note(1)).unwrap();
    let slices = Slices::of(&session).unwrap();
    machine.crash(CrashKind::PowerLosingAll);
    assert_eq!(Slices::of(&machine.open(id, Durability::Every).unwrap()).unwrap(), slices);
}

/// An object that could not be rewritten in place was replaced by a new file, although the old one
/// was durable and the new one was not. Its record was never written, so the new file was never
/// synced. The next sync of the directory made its name durable. After a power cut that name had no
/// content, although an acknowledged record referred to it.
#[test]
fn an_object_that_is_there_is_not_replaced_where_it_cannot_be_written_once_more() {
    let machine = Machine::default();
    let id = closed_session(&machine, 1);
    let session = machine.open(id, Durability::Every).unwrap();
    session.dispatch(large_note(1)).unwrap();
    session.close().unwrap();
    let session = machine.open(id, Durability::Process).unwrap();
    // The write of the object in place fails, then the write of its record; the write of the
    // renamed copy between them succeeds.
    [1, 3].into_iter().for_each(|nth| machine.disk.inject(fails(Op::Write, nth)));
    session.dispatch(large_note(1)).unwrap_err();
    machine.disk.clear_faults();
    drop(session);
    machine.open(id, Durability::Every).unwrap().dispatch(large_note(2)).unwrap();
    machine.crash(CrashKind::PowerLosingAll);
    let notes = machine.open(id, Durability::Every).unwrap().log().slice::<Notes>().unwrap();
    let kept: Vec<_> = (0..notes.len()).map(|at| notes.get(at).unwrap().unwrap().text.clone()).collect();
    assert_eq!(kept, [1, 2].map(|n| large_note(n).text));
}

/// After a failed sync the log's own pages look clean as well. Therefore recovery rewrites the
/// unattested tail.
#[test]
fn records_whose_sync_failed_are_really_written_by_the_next_process() {
    let machine = Machine::default();
    let id = closed_session(&machine, 1);
    let session = machine.open(id, Durability::Every).unwrap();
    machine.disk.inject(fails(Op::SyncData, 1));
    let at = match session.dispatch(step(1)) {
        Err(Error::DurabilityUnknown { sequence, .. }) => sequence,
        other => panic!("{other:?}"),
    };
    drop(session);
    let session = machine.open(id, Durability::Every).unwrap();
    assert_eq!(session.log().position(), Some(at));
    session.sync().unwrap();
    machine.crash(CrashKind::PowerLosingAll);
    assert_eq!(machine.open(id, Durability::Every).unwrap().log().position(), Some(at));
}

/// A fork linked segments and objects of a parent whose sync had failed; syncing them again wrote
/// nothing.
#[test]
fn a_fork_of_a_parent_whose_sync_failed_is_whole_after_a_power_cut() {
    // The object is synced first, then the segment.
    for nth in [1, 2] {
        let machine = Machine::default();
        let id = closed_session(&machine, 1);
        let session = machine.open(id, Durability::Process).unwrap();
        write_steps(&session, 5);
        let at = session.dispatch(large_note(1)).unwrap();
        machine.disk.inject(fails(Op::SyncData, nth));
        assert!(session.sync().is_err());
        drop(session);
        let store = machine.process(Durability::Every);
        let fork = store.fork(id, at, &types(), SessionOptions::default()).unwrap();
        let slices = Slices::of(&fork).unwrap();
        machine.crash(CrashKind::PowerLosingAll);
        let fork = machine.open(fork.id(), Durability::Every).unwrap();
        assert_eq!(Slices::of(&fork).unwrap(), slices, "sync {nth}");
        assert_eq!(fork.log().slice::<Notes>().unwrap().len(), 1);
    }
}

/// A writer that continued after a close left its `Resumed` in the old segment and its first record
/// in a new one, and its process was killed. A fork copied the new segment, in which the record was
/// unattested. It linked the old one, whose records were durable, but the frame after them was not.
#[test]
fn a_fork_behind_a_kill_within_a_turn_is_whole_after_a_power_cut() {
    let mut turned = 0;
    for records in 0..40 {
        let machine = Machine::default();
        let id = closed_session(&machine, records);
        let segments = machine.segments(id).len();
        let session = machine.open(id, Durability::Process).unwrap();
        let at = session.dispatch(step(records)).unwrap();
        machine.crash(CrashKind::Process);
        turned += u32::from(machine.segments(id).len() > segments);
        let fork =
            machine.process(Durability::Every).fork(id, at, &types(), SessionOptions::default()).unwrap();
        let (id, slices) = (fork.id(), Slices::of(&fork).unwrap());
        machine.crash(CrashKind::PowerLosingAll);
        let fork =
            machine.open(id, Durability::Every).unwrap_or_else(|error| panic!("{records} records: {error}"));
        assert_eq!(Slices::of(&fork).unwrap(), slices, "{records} records");
    }
    assert!(turned > 0, "no record was the first of a segment");
}

/// The parent's own writer syncs the files that a fork shares. If it cannot, the fork fails.
#[test]
fn a_fork_of_a_session_that_is_open_waits_for_its_writer() {
    let machine = Machine::default();
    let store = machine.process(Durability::Process);
    let parent = store.create(&types()).unwrap();
    let at = parent.dispatch(step(1)).unwrap();
    store.fork(parent.id(), at, &types(), SessionOptions::default()).unwrap();
    assert_eq!(parent.log().synced_end(), at + 1);
    let at = parent.dispatch(step(2)).unwrap();
    machine.disk.inject(fails(Op::SyncData, 1));
    let refused = store.fork(parent.id(), at, &types(), SessionOptions::default());
    assert!(matches!(refused, Err(Error::DurabilityUnknown { .. })), "{refused:?}");
}

/// A fork recorded in its log that it was durable before its directory had its name. If it was
/// killed in between, it passed for closed, and its next writer never synced the name.
#[test]
fn a_fork_cut_short_at_any_call_is_not_there_or_whole_and_can_be_gone_on_with() {
    let (mut absent, mut whole) = (0, 0);
    let kinds = [CrashKind::Process, CrashKind::PowerLosingAll, CrashKind::Power { seed: 1 }];
    for (nth, kind) in (1..40).flat_map(|nth| kinds.map(|kind| (nth, kind))) {
        let machine = Machine::default();
        let id = closed_session(&machine, 20);
        let session = machine.open(id, Durability::Every).unwrap();
        let at = session.dispatch(large_note(1)).unwrap();
        let slices = Slices::of(&session).unwrap();
        session.close().unwrap();
        let store = machine.process(Durability::Every);
        let fork = Uuid::from_u128(99);
        machine.disk.inject(Fault::Die { nth, bytes: 30 });
        let options = SessionOptions { id: Some(fork), ..SessionOptions::default() };
        let told = store.fork(id, at, &types(), options).is_ok();
        machine.crash(kind);
        machine.disk.clear_faults();
        match machine.open(fork, Durability::Every) {
            Ok(session) => {
                whole += 1;
                assert_eq!(count(&session), at + 2, "call {nth}, {kind:?}");
                assert_eq!(Slices::of(&session).unwrap(), slices, "call {nth}, {kind:?}");
                session.set_tag("mine", "1").unwrap();
                machine.crash(CrashKind::PowerLosingAll);
                let session = machine.open(fork, Durability::Every).unwrap();
                assert_eq!(count(&session), at + 3, "call {nth}, {kind:?}");
            }
            Err(Error::NoSuchSession { .. }) => {
                absent += 1;
                assert!(!told, "call {nth}, {kind:?}: it was reported as made");
            }
            Err(error) => panic!("call {nth}, {kind:?}: {error}"),
        }
        let parent = machine.open(id, Durability::Every).unwrap();
        assert_eq!(Slices::of(&parent).unwrap(), slices, "call {nth}, {kind:?}: the parent");
        // The remains of a fork block no later one.
        machine.process(Durability::Every).fork(id, 1, &types(), SessionOptions::default()).unwrap();
    }
    assert!(absent > 20 && whole > 20, "{absent} absent, {whole} whole");
}

/// If any call of a fork fails, all that was built is removed, and the parent is unchanged. After
/// the rename the session exists as a whole, although its creator got an error.
#[test]
fn a_fork_of_which_any_call_fails_leaves_nothing_half_built_and_can_be_made_again() {
    let whole = Machine::default().with_images();
    let id = closed_session(&whole, 20);
    let session = whole.open(id, Durability::Every).unwrap();
    let at = session.dispatch(large_note(1)).unwrap();
    let slices = Slices::of(&session).unwrap();
    session.close().unwrap();
    // An unattested tail is copied; everything before it is linked.
    let session = whole.open(id, Durability::Process).unwrap();
    write_steps(&session, 12);
    session.dispatch(large_note(2)).unwrap();
    let (unattested, slices_unattested) = (session.log().position().unwrap(), Slices::of(&session).unwrap());
    whole.crash(CrashKind::Process);

    let (mut absent, mut there) = (BTreeMap::<Op, u64>::new(), 0);
    for (at, slices) in [(at, slices), (unattested, slices_unattested)] {
        let made = |machine: &Machine, fork: Uuid| {
            let options = SessionOptions { id: Some(fork), ..SessionOptions::default() };
            machine.process(Durability::Every).fork(id, at, &types(), options)
        };
        let calls = {
            let machine = whole.copied(BOOT);
            let store = machine.process(Durability::Every);
            machine.disk.take_trace();
            store.fork(id, at, &types(), SessionOptions::default()).unwrap();
            machine.disk.take_trace().into_iter().fold(BTreeMap::<Op, u64>::new(), |mut calls, (op, _)| {
                *calls.entry(op).or_default() += 1;
                calls
            })
        };
        for (op, nth) in calls.iter().flat_map(|(op, count)| (1..=*count).map(|nth| (*op, nth))) {
            let told = format!("record {at}, {op:?} {nth}");
            let (machine, fork) = (whole.copied(BOOT), Uuid::from_u128(99));
            let before = files_of(&machine, id);
            let store = machine.process(Durability::Every);
            machine.disk.inject(fails(op, nth));
            let options = SessionOptions { id: Some(fork), ..SessionOptions::default() };
            let refused = store.fork(id, at, &types(), options).map(drop);
            machine.disk.clear_faults();
            let sessions = machine.disk.list(Path::new("/home/store/sessions")).unwrap();
            let names: Vec<String> = sessions.into_iter().map(|entry| entry.name).collect();
            let is_there = names.contains(&fork.to_string());
            assert_eq!(names.len(), 1 + usize::from(is_there), "{told}: {names:?}");
            assert!(names.contains(&id.to_string()) && (is_there || refused.is_err()), "{told}: {refused:?}");
            assert_eq!(files_of(&machine, id), before, "{told}: the parent");
            match is_there {
                false => *absent.entry(op).or_default() += 1,
                true => there += u64::from(refused.is_err()),
            }
            let again = match is_there {
                false => made(&machine, fork).unwrap_or_else(|error| panic!("{told}, again: {error}")),
                true => machine.open(fork, Durability::Every).unwrap_or_else(|e| panic!("{told}: {e}")),
            };
            assert_eq!(Slices::of(&again).unwrap(), slices, "{told}");
            again.set_tag("mine", "1").unwrap();
            made(&machine, Uuid::from_u128(100)).unwrap_or_else(|error| panic!("{told}, another: {error}"));
            machine.crash(CrashKind::PowerLosingAll);
            let count = count(&machine.open(fork, Durability::Every).unwrap());
            assert_eq!(count, at + 3, "{told}");
        }
    }
    let refusing =
        [Op::CreateDirAll, Op::Create, Op::Rename, Op::HardLink, Op::SyncDir, Op::Write, Op::SyncData];
    assert!(refusing.iter().all(|op| absent.contains_key(op)) && there > 0, "{absent:?}, {there} whole");
}

/// After a crash at any call, a deleted session exists unchanged or not at all.
#[test]
fn a_deletion_cut_short_at_any_call_leaves_all_or_nothing() {
    for nth in 1..12 {
        let machine = Machine::default();
        let id = closed_session(&machine, 20);
        let records = machine.audit(id).unwrap().records_len();
        let store = machine.process(Durability::Every);
        machine.disk.inject(Fault::Die { nth, bytes: 0 });
        let told = store.delete(id).is_ok();
        machine.crash(CrashKind::Power { seed: nth });
        machine.disk.clear_faults();
        match machine.open(id, Durability::Every) {
            Ok(session) => assert!(!told && count(&session) == records, "call {nth}"),
            Err(error) => assert!(matches!(error, Error::NoSuchSession { .. }), "call {nth}: {error}"),
        }
    }
}

/// A deletion failed at its sync, and a collection removed files in the directory. A power cut gave
/// the session its name back without those files: it was damaged, and never reported as deleted.
#[test]
fn a_collection_behind_a_deletion_that_failed_leaves_all_or_nothing() {
    let mut whole = 0;
    for seed in 0..40 {
        let machine = Machine::default();
        let id = closed_session(&machine, 20);
        let records = machine.audit(id).unwrap().records_len();
        let store = machine.process(Durability::Every);
        machine.disk.inject(fails(Op::SyncDir, 1));
        assert!(store.delete(id).is_err());
        if seed % 2 == 0 {
            // While the name of the directory cannot be made durable, none of its files are
            // removed.
            assert!(store.collect(&CollectOptions::default()).is_ok());
        } else {
            machine.disk.inject(fails(Op::SyncDir, 1));
            assert!(store.collect(&CollectOptions::default()).is_err());
        }
        machine.crash(CrashKind::Power { seed });
        machine.disk.clear_faults();
        match machine.open(id, Durability::Every) {
            Ok(session) => {
                assert_eq!(count(&session), records, "{seed}");
                whole += 1;
            }
            Err(error) => assert!(matches!(error, Error::NoSuchSession { .. }), "{seed}: {error}"),
        }
    }
    assert!(whole > 0, "a power cut brings some back");
}

/// Opening a session for reading took over the writer's entry in the background thread, and closing
/// the reader removed it: the writer's records were no longer synced.
#[test]
fn a_reader_that_comes_and_goes_leaves_the_writer_its_background_syncs() {
    let machine = Machine::default();
    let options = StoreOptions {
        background: BackgroundSync::Thread,
        object_bytes_min: u64::MAX,
        segments: SegmentSizes::default(),
        ..machine.options(Durability::Process)
    };
    let store = Store::open_with("/home/store", options).unwrap();
    let session = store.create(&types()).unwrap();
    drop(store.open_untyped(session.id()).unwrap());
    let text = "z".repeat(1 << 20);
    let mut last = 0;
    for _ in 0..5 {
        last = (session.dispatch(foldlog_test_support::host::Noted { text: text.clone() }).unwrap()).get();
    }
    // The thread syncs more than 4 MiB at once; the test only waits until the thread runs.
    let begun = std::time::Instant::now();
    while session.log().synced_end() < last.into() {
        assert!(begun.elapsed().as_secs() < 60, "nobody syncs what the writer wrote");
        std::thread::yield_now();
    }
}

/// Contradictory sizes made the writer panic.
#[test]
fn no_segment_sizes_make_the_writer_panic() {
    for (first_bytes, max_bytes) in
        [(8192, 4096), (0, 0), (1, u64::MAX), (u64::MAX, 4096), (u64::MAX, u64::MAX)]
    {
        let machine = Machine::default();
        let segments = SegmentSizes { first_bytes, max_bytes, ahead_bytes_min: 0 };
        let options = StoreOptions { segments, ..machine.options(Durability::Every) };
        let store = Store::open_with("/home/store", options).unwrap();
        match store.create(&types()) {
            Ok(session) => {
                write_steps(&session, 20);
                let slices = Slices::of(&session).unwrap();
                let id = session.id();
                session.close().unwrap();
                let session = machine.open(id, Durability::Every).unwrap();
                assert_eq!(Slices::of(&session).unwrap(), slices);
            }
            Err(error) => assert!(first_bytes == u64::MAX && matches!(error, Error::Io { .. }), "{error}"),
        }
    }
}

/// The frame with which a writer attests the records of a close is not synced itself. The next
/// writer assumed that it was durable. If its first record started a new segment, which names that
/// frame, a power cut could take the frame and leave the segment.
#[test]
fn what_the_last_writer_attested_is_durable_before_what_the_next_one_builds_on_it() {
    for records in 0..40 {
        for seed in 0..4 {
            let machine = Machine::default();
            let session = machine.process(Durability::Every).create(&types()).unwrap();
            let id = session.id();
            (0..records).try_for_each(|n| session.dispatch(step(n)).map(drop)).unwrap();
            session.close().unwrap();
            let session = machine.open(id, Durability::Every).unwrap();
            session.dispatch(step(records)).unwrap();
            let position = session.log().position();
            machine.crash(CrashKind::Power { seed });
            let after = machine.open(id, Durability::Every);
            let after = after.unwrap_or_else(|error| panic!("{records} records, seed {seed}: {error}"));
            assert_eq!(after.log().position(), position, "{records} records, seed {seed}");
        }
    }
}

/// While a session came to rest, the sync of the frame that attests its last record failed. The
/// next writer synced that frame "again", which wrote nothing, and started a segment that names it.
/// A power cut took the frame, and the session was reported as damaged.
#[test]
fn what_a_session_that_could_not_rest_attested_is_durable_before_what_the_next_writer_builds_on_it() {
    for len in 0..40 {
        let machine = Machine::default();
        let open = opens_with_small_segments(&machine);
        let session = open().create(&types()).unwrap();
        let id = session.id();
        session
            .set_tag("t", "z".repeat(3950 - machine.frames(id).unwrap().last().unwrap().end + len * 4))
            .unwrap();
        machine.disk.inject(fails(Op::SyncData, 1));
        assert!(matches!(session.rest(), Err(Error::Io { op: "sync", .. })), "{len}");
        drop(session);

        let session = open().open_session(id, &types()).unwrap();
        // The record takes a segment of its own.
        let at = session.set_tag("t", "y".repeat(20_000)).unwrap();
        drop(session);
        machine.crash(CrashKind::PowerLosingAll);
        let session = machine.open(id, Durability::Every).unwrap_or_else(|error| panic!("{len}: {error}"));
        assert_eq!(session.log().position(), Some(at), "{len}");
    }
}

/// Two threads synced one after the other, and the first attested its records only after the sync
/// of the second had been planned. Neither frame was synced, and the next writer synced only the
/// last one. If the other frame ended at a page boundary, a power cut took it from before
/// acknowledged records, and that was damage.
#[test]
fn whatever_attested_at_the_end_is_durable_before_what_the_next_writer_builds_on_it() {
    let mut apart = 0;
    for len in 0..100 {
        let machine = Machine::default();
        let open = opens_with_small_segments(&machine);
        let session = open().create(&types()).unwrap();
        let id = session.id();
        while machine.frames(id).unwrap().last().unwrap().end < 3600 {
            session.dispatch(step(1)).unwrap();
        }
        session
            .set_tag("t", "z".repeat(3950 - machine.frames(id).unwrap().last().unwrap().end + len))
            .unwrap();
        session.close().unwrap();
        // The frame of the slower thread, which attests the same records again.
        let last = machine.frames(id).unwrap().pop().unwrap();
        let bytes = machine.disk.read_file(&last.segment).unwrap();
        let segment = SegmentHeader::decode(&bytes).unwrap();
        let context = frame::Context::new(segment.salt, segment.first_sequence);
        let first = frame::decode(context, &bytes[last.start..last.end]).unwrap().header;
        assert_eq!((first.kind, first.watermark), (RecordKind::Closed, first.sequence));
        let mut second = Vec::new();
        let header = Header { predecessor_crc: first.crc, ..first };
        frame::encode(context, &header, &[], &mut second).unwrap();
        let file = machine.disk.open(&last.segment, Access::Write).unwrap();
        file.write_at(&second, last.end as u64).unwrap();
        apart += u32::from(last.end / 4096 > last.start / 4096);

        let session = open().open_session(id, &types()).unwrap();
        assert!(session.log().recovery().closed);
        let at = session.dispatch(step(2)).unwrap();
        machine.crash(CrashKind::PowerLosingAll);
        let session = machine.open(id, Durability::Every).unwrap_or_else(|error| panic!("{len}: {error}"));
        assert_eq!(session.log().position(), Some(at), "{len}");
    }
    assert!(apart > 0, "both always stood in one page");
}

/// A new segment without a record must not pass for closed, whatever its last frame states. A
/// writer that continued there would sync nothing of it, nor the frames after the last record of
/// the segment before.
#[test]
fn a_segment_without_a_record_does_not_pass_for_closed() {
    let machine = Machine::default();
    let id = closed_session(&machine, 3);
    let last = machine.frames(id).unwrap().pop().unwrap();
    let bytes = machine.disk.read_file(&last.segment).unwrap();
    let before = SegmentHeader::decode(&bytes).unwrap();
    let context = frame::Context::new(before.salt, before.first_sequence);
    let synced = frame::decode(context, &bytes[last.start..last.end]).unwrap().header;
    let previous = Previous { ordinal: before.ordinal, end: last.end as u64, crc: synced.crc };
    let (ordinal, first_sequence, salt) = (before.ordinal + 1, synced.sequence, 77);
    let header = SegmentHeader { ordinal, first_sequence, salt, previous: Some(previous), ..before };
    let mut forged = header.encode().to_vec();
    let attests = Header { predecessor_crc: synced.crc, ..synced };
    frame::encode(frame::Context::new(salt, first_sequence), &attests, &[], &mut forged).unwrap();
    forged.resize(4096, 0);
    let path = last.segment.with_file_name(format!("{ordinal:010}.seg"));
    let file = machine.disk.create(&path, 4096).unwrap();
    file.write_at(&forged, 0).unwrap();

    let session = machine.open(id, Durability::Every).unwrap();
    assert!(!session.log().recovery().closed && count(&session) == synced.sequence);
    let at = session.dispatch(step(9)).unwrap();
    machine.crash(CrashKind::PowerLosingAll);
    assert_eq!(machine.open(id, Durability::Every).unwrap().log().position(), Some(at));
}

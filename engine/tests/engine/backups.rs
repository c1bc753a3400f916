//! Backups. They are taken while a session is written, extend older copies, survive a kill at any
//! step, and are restored by opening them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use foldlog::inspect::LogReader;
use foldlog::log::SegmentSizes;
use foldlog::storage::{CrashKind, Fault};
use foldlog::{
    BackgroundSync, BackupOptions, BackupReport, Durability, Error, Result, SequenceNumber, Session,
    SessionOptions, Store, StoreOptions,
};
use foldlog_test_support::crash::{BOOT, CHANGES, Machine, large_note, step, write_steps};
use foldlog_test_support::host::{Plan, types};
use uuid::Uuid;

/// The store of the copies, on the same disk.
const COPIES: &str = "/mnt/copies";

fn copies(machine: &Machine) -> Store {
    Store::open_with(COPIES, machine.options(Durability::Boundary)).unwrap()
}

fn back_up(machine: &Machine, id: Uuid) -> Result<BackupReport> {
    copies(machine).backup_from(machine.dir(id), BackupOptions::default())
}

fn copy_of(machine: &Machine, id: Uuid) -> Result<LogReader> {
    LogReader::open_on(Arc::new(machine.disk.clone()), copies(machine).session_dir(id))
}

/// Checks that the records of `copy` are the first ones of `whole`, and returns their number.
fn begins(copy: &LogReader, whole: &LogReader) -> u64 {
    let last = copy.last_position();
    assert!(copy.report().torn.is_none(), "{:?}", copy.report());
    assert_eq!(copy.digest_through(last).unwrap(), whole.digest_through(last).unwrap());
    assert_eq!(copy.state().unwrap().slices, whole.state_at(last).unwrap().slices);
    copy.check_seals().unwrap();
    copy.records_len()
}

fn write_more(session: &Session, steps: u64) {
    for n in 0..steps {
        session.dispatch(step(n)).unwrap();
        if n % 4 == 0 {
            session.dispatch(large_note(session.log().position().unwrap().get())).unwrap();
        }
    }
}

fn files(machine: &Machine, below: impl AsRef<Path>) -> BTreeMap<PathBuf, Vec<u8>> {
    machine.disk.dump().into_iter().filter(|(path, _)| path.starts_with(&below)).collect()
}

/// Returns the segments of a copy with their inode numbers, which change if a file is rewritten.
fn numbers(machine: &Machine, id: Uuid) -> BTreeMap<PathBuf, u64> {
    let dir = copies(machine).session_dir(id);
    let paths = machine.disk.files().into_iter().filter(|path| {
        path.parent() == Some(&dir) && path.extension().is_some_and(|extension| extension == "seg")
    });
    paths.map(|path| (path.clone(), machine.disk.file_number(&path).unwrap())).collect()
}

/// Steps that eight threads write together while one backup is taken.
const STEPS: u64 = 800;

#[test]
fn what_eight_threads_write_meanwhile_is_restored_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let segments = SegmentSizes { first_bytes: 16 << 10, max_bytes: 64 << 10, ahead_bytes_min: 0 };
    let options = || StoreOptions { segments, object_bytes_min: 600, ..StoreOptions::default() };
    let store = Store::open_with(directory.path().join("store"), options()).unwrap();
    let session = store.create(&types()).unwrap();
    let (id, to) = (session.id(), directory.path().join("copies"));
    let (stop, written, quota) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut reports = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let (session, stop, written, quota) = (session.clone(), &stop, &written, &quota);
            scope.spawn(move || {
                loop {
                    let n = written.fetch_add(1, Ordering::Relaxed);
                    while n >= quota.load(Ordering::Relaxed) {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        std::thread::yield_now();
                    }
                    session.dispatch(step(n)).unwrap();
                    if n.is_multiple_of(16) {
                        session.dispatch(large_note(n)).unwrap();
                    }
                }
            });
        }
        for n in 0..6_u64 {
            // The writers have started, and write this many more steps during the backup.
            let begun = quota.fetch_add(STEPS, Ordering::Relaxed) + STEPS / 8;
            while written.load(Ordering::Relaxed) < begun {
                std::thread::yield_now();
            }
            let told = session.log().position().unwrap();
            // Every second backup uses a reader, as a process does that does not know the writer.
            let report = match n % 2 {
                0 => store.backup(id, &to, BackupOptions::default()).unwrap(),
                _ => {
                    let copies = Store::open_with(&to, options()).unwrap();
                    copies
                        .backup_from(
                            store.session_dir(id),
                            BackupOptions { images: true, ..BackupOptions::default() },
                        )
                        .unwrap()
                }
            };
            assert!(report.records > told.get(), "{report:?}: all that was acknowledged before is in it");
            let copy = LogReader::open(&report.dir).unwrap();
            assert_eq!(copy.records_len(), report.records);
            begins(&copy, &store.read_log(id).unwrap());
            reports.push(report);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(reports.windows(2).all(|two| two[1].records_before == two[0].records), "{reports:?}");
    assert!(reports.iter().all(|report| report.segments > 0), "{reports:?}");

    let last = store.backup(id, &to, BackupOptions::default()).unwrap();
    assert_eq!(last.records, session.log().position().unwrap().get() + 1);
    session.close().unwrap();
    let restored = Store::open(&to).unwrap();
    assert!(restored.sessions().unwrap().iter().all(|(_, summary)| summary.is_ok()));
    let restored = restored.open_session(id, &types()).unwrap();
    let written = store.open_read_only(id, &types()).unwrap();
    assert_eq!(restored.dynamic().state().unwrap().slices, written.dynamic().state().unwrap().slices);
    assert_eq!(restored.view::<Plan>().unwrap().len(), written.view::<Plan>().unwrap().len());
    restored.dispatch(step(1)).unwrap();
}

#[test]
fn a_later_backup_copies_what_is_new_and_no_finished_segment_again() {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    let id = session.id();
    write_more(&session, 40);
    let first = back_up(&machine, id).unwrap();
    assert_eq!((first.records_before, first.records), (0, session.log().position().unwrap().get() + 1));
    assert!(first.segments > 4 && first.objects == 10 && first.verified == first.records, "{first:?}");
    let before = numbers(&machine, id);

    // Without new records, nothing is written.
    let idle = files(&machine, COPIES);
    let again = back_up(&machine, id).unwrap();
    assert_eq!((again.segments, again.objects, again.bytes, again.records), (0, 0, 0, first.records));
    assert!(idle == files(&machine, COPIES));

    write_more(&session, 12);
    let second = back_up(&machine, id).unwrap();
    assert_eq!(second.records_before, first.records);
    assert!(
        second.objects == 3 && second.bytes < first.bytes / 2 && second.verified < first.records,
        "{second:?}"
    );
    // The last segment is not rewritten either: its new records are appended.
    let after = numbers(&machine, id);
    assert!(after.len() > before.len() && before.iter().all(|(path, number)| after[path] == *number));
    session.close().unwrap();
    back_up(&machine, id).unwrap();
    let whole = machine.audit(id).unwrap();
    assert_eq!(begins(&copy_of(&machine, id).unwrap(), &whole), whole.records_len());
    // Seals are copied with their segments or later.
    let sealed = |reader: &LogReader| reader.check_seals().unwrap();
    assert_eq!(sealed(&copy_of(&machine, id).unwrap()), sealed(&whole));
}

/// A session whose only segment has room for all that a test writes.
fn in_one_segment() -> (Machine, Session) {
    let machine = Machine::default();
    let sizes = SegmentSizes { first_bytes: 1 << 20, max_bytes: 1 << 20, ahead_bytes_min: 0 };
    let options = StoreOptions { segments: sizes, ..machine.options(Durability::Boundary) };
    let session = Store::open_with("/home/store", options).unwrap().create(&types()).unwrap();
    write_steps(&session, 300);
    (machine, session)
}

#[test]
fn what_was_added_to_the_last_segment_is_all_that_is_copied_of_it() {
    let (machine, session) = in_one_segment();
    let id = session.id();
    let first = back_up(&machine, id).unwrap();
    assert_eq!(first.segments, 1);
    write_steps(&session, 3);
    let before = numbers(&machine, id);
    let second = back_up(&machine, id).unwrap();
    assert_eq!((second.segments, second.verified), (1, second.records - first.records));
    assert!(second.bytes > 0 && second.bytes < first.bytes / 20, "{second:?} behind {first:?}");
    assert_eq!(numbers(&machine, id), before, "the file is the same, and nothing else is left");
    assert_eq!(begins(&copy_of(&machine, id).unwrap(), &machine.audit(id).unwrap()), second.records);
}

/// A recovery rewrites unattested records into a new segment, and records that the segment before
/// it ends earlier.
#[test]
fn a_copy_that_was_taken_before_a_recovery_is_gone_on_with() {
    for kind in [CrashKind::Process, CrashKind::PowerLosingAll] {
        let machine = Machine::default();
        let session = machine.process(Durability::Process).create(&types()).unwrap();
        let id = session.id();
        write_more(&session, 9);
        session.sync().unwrap();
        session.dispatch(step(1)).unwrap();
        session.dispatch(step(2)).unwrap();
        // The copy must not contain records that the power cut is to take.
        let copied = if kind == CrashKind::Process { back_up(&machine, id).unwrap().records } else { 0 };
        machine.crash(kind);
        drop(session);
        let session = machine.open(id, Durability::Process).unwrap();
        write_more(&session, 9);
        session.close().unwrap();
        let report = back_up(&machine, id).unwrap();
        assert_eq!(report.records_before, copied, "{kind:?}");
        let whole = machine.audit(id).unwrap();
        assert_eq!(begins(&copy_of(&machine, id).unwrap(), &whole), whole.records_len(), "{kind:?}");
    }
}

/// Returns a session, an older copy of it, and the number of records that the session has since.
fn with_older_copy() -> (Machine, Uuid, u64) {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    let id = session.id();
    write_more(&session, 10);
    let older = back_up(&machine, id).unwrap().records;
    write_more(&session, 24);
    session.close().unwrap();
    (machine.copied(BOOT), id, older)
}

/// At each step the disk refuses, the process dies, or the power fails. The older copy stays, with
/// or without some of the new records, and the next backup completes it.
#[test]
fn a_backup_that_is_killed_at_any_step_leaves_the_older_copy() {
    let (whole, id, older) = with_older_copy();
    let reader = whole.audit(id).unwrap();
    let look = |machine: &Machine, killed: &str| {
        let copy = copy_of(machine, id).unwrap_or_else(|error| panic!("{killed}: {error}"));
        let records = begins(&copy, &reader);
        assert!(records >= older, "{killed}: {records} of {older}");
        goes_on(&machine.copied(BOOT), id, killed);
        let again = back_up(machine, id).unwrap_or_else(|error| panic!("{killed}: {error}"));
        assert_eq!((again.records_before, again.records), (records, reader.records_len()), "{killed}");
        assert_eq!(begins(&copy_of(machine, id).unwrap(), &reader), reader.records_len(), "{killed}");
        let left = files(machine, COPIES);
        assert!(left.keys().all(|path| path.extension().is_none_or(|it| it != "new")), "{killed}: {left:?}");
        records
    };
    let mut steps = BTreeMap::new();
    let crashes = |at| {
        let power = (0..3).map(|seed| CrashKind::Power { seed: 7 * at + seed });
        power.chain([CrashKind::Process, CrashKind::PowerLosingAll]).collect()
    };
    let act = |machine: &Machine| back_up(machine, id);
    whole.killed_at_each_step(crashes, act, |machine, killed| {
        *steps.entry(look(machine, killed)).or_insert(0) += 1;
    });
    // The steps include those before the first segment is renamed, which also brings the end of the
    // segment before it, and those after the last.
    assert!(steps.len() > 3, "{steps:?}");
    whole.refused_at_each_step(&CHANGES, 5, act, |machine, refused| {
        look(machine, refused);
    });
}

/// Checks that a copy can be restored: it opens, takes new records, and all of them are read again.
fn goes_on(machine: &Machine, id: Uuid, killed: &str) {
    let session =
        copies(machine).open_session(id, &types()).unwrap_or_else(|error| panic!("{killed}: {error}"));
    session.dispatch(step(7)).unwrap();
    let position = session.log().position();
    session.close().unwrap();
    let copy = copy_of(machine, id).unwrap_or_else(|error| panic!("{killed}: {error}"));
    assert_eq!(Some(copy.last_position()), position, "{killed}");
}

/// Kills the step that appends new records to the last segment of an older copy. The disk keeps any
/// part of them.
#[test]
fn a_backup_that_is_killed_while_it_appends_leaves_the_older_copy() {
    let (whole, id, older) = with_older_copy();
    let last = numbers(&whole, id).into_keys().last().unwrap();
    let held = whole.disk.read_file(&last).unwrap();
    let mut partly = 0;
    for at in 1..40 {
        for bytes in [1, 50, 400] {
            let machine = whole.copied(BOOT);
            machine.disk.inject(Fault::Die { nth: at, bytes });
            let done = back_up(&machine, id);
            machine.disk.clear_faults();
            machine.crash(CrashKind::Process);
            let found = machine.disk.read_file(&last).unwrap();
            assert!(found.starts_with(&held));
            if done.is_err()
                && found.len() > held.len()
                && copy_of(&machine, id).unwrap().records_len() == older
            {
                partly += 1;
                goes_on(&machine.copied(BOOT), id, &format!("{at}, {bytes}"));
                assert_eq!(back_up(&machine, id).unwrap().records_before, older);
                let copy = copy_of(&machine, id).unwrap();
                assert_eq!(begins(&copy, &whole.audit(id).unwrap()), copy.records_len());
                assert_eq!(machine.disk.read_file(&last).unwrap()[..held.len()], held);
            }
        }
    }
    assert!(partly > 5, "{partly}");
}

/// After the end that a killed backup marked, a disk may keep more bytes than the session now has.
#[test]
fn what_a_killed_backup_left_behind_the_end_of_a_copy_is_no_part_of_it() {
    let (whole, session) = in_one_segment();
    let id = session.id();
    let older = back_up(&whole, id).unwrap().records;
    write_steps(&session, 3);
    session.close().unwrap();
    let last = numbers(&whole, id).into_keys().last().unwrap();
    let len = whole.disk.read_file(&last).unwrap().len();
    let mut partly = 0;
    for at in 1..20 {
        let machine = whole.copied(BOOT);
        machine.disk.inject(Fault::Die { nth: at, bytes: 50 });
        let done = back_up(&machine, id);
        machine.disk.clear_faults();
        machine.crash(CrashKind::Process);
        let is_longer = machine.disk.read_file(&last).unwrap().len() > len;
        if done.is_err() && is_longer && copy_of(&machine, id).unwrap().records_len() == older {
            partly += 1;
            machine.disk.mutate_file(&last, |file| file.extend([7; 100_000])).unwrap();
            assert_eq!(copy_of(&machine, id).unwrap().records_len(), older);
            assert_eq!(back_up(&machine, id).unwrap().records_before, older);
            let reader = whole.audit(id).unwrap();
            assert_eq!(begins(&copy_of(&machine, id).unwrap(), &reader), reader.records_len());
        }
    }
    assert!(partly > 2, "{partly}");
}

/// Files named `*.lock` and `*.new` were missing from backups, and names that a killed backup had
/// given were never made durable.
#[test]
fn what_a_host_keeps_beside_the_log_is_in_the_copy_and_durable() {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    let id = session.id();
    write_more(&session, 3);
    session.close().unwrap();
    let names = ["cargo.lock", "what.is.new", "deep/er/a.lock", "deep/tmp_obj_of_mine", "deep/b"];
    let unfinished = ["deep/tmp_obj_17_3"];
    back_up(&machine, id).unwrap();
    for name in names.iter().chain(&unfinished) {
        let path = machine.dir(id).join(name);
        foldlog::storage::Storage::create_dir_all(&machine.disk, path.parent().unwrap()).unwrap();
        machine.disk.write_file(path, name.as_bytes()).unwrap();
    }
    for at in 1..60 {
        let machine = machine.copied(BOOT);
        machine.disk.inject(Fault::Die { nth: at, bytes: 3 });
        let _ = back_up(&machine, id);
        machine.disk.clear_faults();
        machine.crash(CrashKind::Process);
        assert_eq!(back_up(&machine, id).unwrap().session, id);
        machine.crash(CrashKind::PowerLosingAll);
        let copy = copies(&machine).session_dir(id);
        for name in names {
            let found = machine.disk.read_file(copy.join(name));
            assert_eq!(found.as_deref(), Some(name.as_bytes()), "{name}, killed at {at}");
        }
        assert!(unfinished.iter().all(|name| machine.disk.read_file(copy.join(name)).is_none()));
    }
}

#[test]
fn a_first_backup_that_is_killed_at_any_step_leaves_a_whole_copy_or_none() {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    let id = session.id();
    write_more(&session, 6);
    session.close().unwrap();
    let whole = machine.copied(BOOT);
    let reader = whole.audit(id).unwrap();
    let mut left = [0, 0];
    for at in 1.. {
        let machine = whole.copied(BOOT);
        let store = copies(&machine);
        machine.disk.inject(Fault::Die { nth: at, bytes: 20 });
        let done = store.backup_from(machine.dir(id), BackupOptions::default());
        machine.disk.clear_faults();
        if done.is_ok() {
            break;
        }
        machine.crash(if at % 2 == 0 { CrashKind::PowerLosingAll } else { CrashKind::Process });
        let sessions = copies(&machine).session_ids().unwrap();
        for session in &sessions {
            assert_eq!(begins(&copy_of(&machine, *session).unwrap(), &reader), reader.records_len());
        }
        left[sessions.len()] += 1;
        assert_eq!(back_up(&machine, id).unwrap().records, reader.records_len(), "killed at {at}");
    }
    assert!(left[0] > 10, "{left:?}");
}

/// Checks that a backup is refused with these words, and changes nothing.
fn is_refused(machine: &Machine, id: Uuid, words: &str) {
    let before = files(machine, COPIES);
    let error = back_up(machine, id).unwrap_err();
    assert!(matches!(&error, Error::NotACopy { session, .. } if *session == id), "{error:?}");
    assert!(error.to_string().contains(words), "{error}");
    let after = files(machine, COPIES);
    let sessions = |files: &BTreeMap<PathBuf, Vec<u8>>| {
        let below = Path::new(COPIES).join("sessions");
        files
            .iter()
            .filter(|(path, _)| path.starts_with(&below))
            .map(|(p, b)| (p.clone(), b.clone()))
            .collect::<Vec<_>>()
    };
    assert!(sessions(&before) == sessions(&after), "nothing of the copy is changed");
}

#[test]
fn a_copy_that_is_not_the_beginning_of_the_session_is_refused_and_kept() {
    // The copy was opened in place and written to.
    let (machine, id, older) = with_older_copy();
    let restored = copies(&machine).open_session(id, &types()).unwrap();
    restored.dispatch(step(77)).unwrap();
    match back_up(&machine, id) {
        Err(Error::Locked { session, .. }) => assert_eq!(session, id),
        other => panic!("it is open for writing: {other:?}"),
    }
    restored.close().unwrap();
    is_refused(&machine, id, &format!("its record {older} differs from the session's"));

    // The session itself was reset to an earlier state, and lacks records of the copy.
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    let id = session.id();
    write_more(&session, 10);
    session.close().unwrap();
    let earlier = machine.copied(BOOT);
    let lost_from = earlier.audit(id).unwrap().records_len();
    let session = machine.open(id, Durability::Boundary).unwrap();
    write_more(&session, 10);
    session.close().unwrap();
    let through = back_up(&machine, id).unwrap().records - 1;
    for (path, bytes) in files(&machine, COPIES) {
        earlier.disk.write_file(path, bytes).unwrap();
    }
    is_refused(
        &earlier,
        id,
        &format!("it contains records {lost_from} through {through}, which the session does not contain"),
    );

    // Another session with the same id.
    let (machine, id, _) = with_older_copy();
    machine.process(Durability::Boundary).delete(id).unwrap();
    let store = Store::open_with(
        "/home/store",
        StoreOptions { seed: Some(8), ..machine.options(Durability::Boundary) },
    );
    let other = store.unwrap().create_with(&types(), with_id(id)).unwrap();
    write_steps(&other, 60);
    other.close().unwrap();
    is_refused(&machine, id, "its record 0 differs from the session's");
}

fn with_id(id: Uuid) -> SessionOptions {
    SessionOptions { id: Some(id), ..SessionOptions::default() }
}

#[test]
fn a_damaged_session_is_not_copied_over_a_sound_one() {
    let (whole, id, older) = with_older_copy();
    let frames = whole.frames(id).unwrap();
    let new = frames.iter().find(|frame| frame.sequence == older + 9 && !frame.kind.is_envelope()).unwrap();
    let machine = whole.copied(BOOT);
    machine.disk.mutate_file(&new.segment, |bytes| bytes[new.start + 30] ^= 1).unwrap();
    let without_object = whole.copied(BOOT);
    let mut removed = Vec::new();
    for path in files(&whole, whole.dir(id).join("objects")).into_keys() {
        let there = copies(&whole).session_dir(id).join("objects").join(path.file_name().unwrap());
        if whole.disk.read_file(there).is_none() {
            foldlog::storage::Storage::remove_file(&without_object.disk, &path).unwrap();
            removed.push(path);
        }
    }
    assert!(removed.len() > 2, "{removed:?}");
    for machine in [machine, without_object] {
        let error = back_up(&machine, id).unwrap_err();
        assert!(error.is_damage(), "{error}");
        // The session is damaged, so the error names the session's file.
        let dir = machine.dir(id).display().to_string();
        assert!(error.to_string().contains(&dir) && !error.to_string().contains(".new"), "{error}");
        assert_eq!(copy_of(&machine, id).unwrap().records_len(), older);
    }
}

/// Damage found only while copying was reported under a temporary file name, which no longer
/// existed.
#[test]
fn damage_is_reported_by_the_name_of_the_sessions_own_file() {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    let id = session.id();
    write_more(&session, 10);
    // Attestations in later segments are checked only once they are copied.
    session.sync().unwrap();
    write_more(&session, 10);
    session.close().unwrap();
    let frames = machine.frames(id).unwrap();
    let early = frames.iter().find(|frame| frame.sequence == 3 && !frame.kind.is_envelope()).unwrap();
    machine.disk.mutate_file(&early.segment, |bytes| bytes[early.start + 30] ^= 1).unwrap();
    let fresh = Store::open_with("/mnt/fresh", machine.options(Durability::Boundary)).unwrap();
    match fresh.backup_from(machine.dir(id), BackupOptions::default()) {
        Err(Error::Corrupt(found)) => {
            assert_eq!((&found.segment, found.offset), (&early.segment, early.start as u64));
        }
        other => panic!("{other:?}"),
    }
    assert!(fresh.session_ids().unwrap().is_empty());
}

/// A fork shares its parent's segments, and a child session is a session of its own. The copy of a
/// store contains all of them, and the copy of a fork is self-contained.
#[test]
fn forks_and_children_are_copied_with_what_they_share() {
    let machine = Machine::default();
    let store = machine.process(Durability::Boundary);
    let parent = store.create(&types()).unwrap();
    write_more(&parent, 20);
    let position = parent.log().position().unwrap();
    let fork = store.fork(parent.id(), position, &types(), SessionOptions::default()).unwrap();
    write_more(&fork, 10);
    write_more(&parent, 10);
    let child = SessionOptions { parent: Some(parent.id()), ..SessionOptions::default() };
    let child = store.create_with(&types(), child).unwrap();
    write_more(&child, 3);
    let ids = [parent.id(), fork.id(), child.id()];

    let alone = store.backup(fork.id(), "/mnt/alone", BackupOptions::default()).unwrap();
    let reader = LogReader::open_on(Arc::new(machine.disk.clone()), &alone.dir).unwrap();
    assert_eq!(begins(&reader, &machine.audit(fork.id()).unwrap()), alone.records);

    let reports = store.backup_all(COPIES, BackupOptions::default()).unwrap();
    assert_eq!(reports.len(), ids.len());
    for (session, report) in reports {
        assert_eq!(report.unwrap().records, machine.audit(session).unwrap().records_len());
    }
    for session in [parent, fork, child] {
        write_more(&session, 5);
        session.close().unwrap();
    }
    assert!(
        store.backup_all(COPIES, BackupOptions::default()).unwrap().iter().all(|(_, report)| report.is_ok())
    );
    let restored = copies(&machine);
    for id in ids {
        let whole = machine.audit(id).unwrap();
        assert_eq!(begins(&copy_of(&machine, id).unwrap(), &whole), whole.records_len());
    }
    let (mut theirs, mut ours) = (restored.children(ids[0]).unwrap(), store.children(ids[0]).unwrap());
    theirs.sort();
    ours.sort();
    assert!(theirs == ours && ours.len() == 2);
    let fork = restored.open_session(ids[1], &types()).unwrap();
    assert!(fork.log().position() > Some(position));
    fork.dispatch(step(1)).unwrap();
}

/// If requested, the newest image is copied too, and the copy opens with it.
#[test]
fn images_come_along_where_they_are_asked_for() {
    let machine = Machine::default().with_images();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    let id = session.id();
    write_more(&session, 20);
    session.close().unwrap();
    let images = || {
        let all = files(&machine, copies(&machine).session_dir(id).join("snapshots"));
        all.into_keys().filter(|path| path.extension().is_some_and(|it| it == "image")).count()
    };
    back_up(&machine, id).unwrap();
    assert_eq!(images(), 0);
    copies(&machine)
        .backup_from(machine.dir(id), BackupOptions { images: true, ..BackupOptions::default() })
        .unwrap();
    assert_eq!(images(), 1);
    let restored = copies(&machine).open_session(id, &types()).unwrap();
    assert_eq!(
        restored.dynamic().state().unwrap().slices,
        machine.audit(id).unwrap().state().unwrap().slices
    );
}

/// The copy used to keep every image that it had ever received.
#[test]
fn images_that_the_session_has_dropped_are_dropped_from_the_copy() {
    let machine = Machine::default().with_images();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    let id = session.id();
    session.close().unwrap();
    let images = |dir: PathBuf| -> BTreeSet<OsString> {
        let all = files(&machine, dir.join("snapshots")).into_keys();
        all.map(|path| path.file_name().unwrap().to_owned()).collect()
    };
    for _ in 0..3 {
        let session = machine.open(id, Durability::Boundary).unwrap();
        write_more(&session, 20);
        session.close().unwrap();
        let copied = copies(&machine)
            .backup_from(machine.dir(id), BackupOptions { images: true, ..BackupOptions::default() })
            .unwrap();
        let (ours, theirs) = (images(copied.dir), images(machine.dir(id)));
        assert!(!ours.is_empty() && ours.is_subset(&theirs), "{ours:?} of {theirs:?}");
        // A writer drops older images, and a full disk all of them.
        for dropped in theirs {
            let path = machine.dir(id).join("snapshots").join(dropped);
            foldlog::storage::Storage::remove_file(&machine.disk, &path).unwrap();
        }
    }
}

#[test]
fn what_is_no_session_is_not_copied() {
    let directory = tempfile::tempdir().unwrap();
    let options = StoreOptions { background: BackgroundSync::Inline, ..StoreOptions::default() };
    let store = Store::open_with(directory.path().join("store"), options).unwrap();
    let session = store.create(&types()).unwrap();
    let missing = store.backup(Uuid::nil(), directory.path().join("copies"), BackupOptions::default());
    assert!(matches!(missing, Err(Error::NoSuchSession { .. })), "{missing:?}");
    // Copies within a store's `sessions` directory were taken for sessions of that store. Copies
    // within a session were created before they were refused.
    let sessions = store.session_dir(session.id()).parent().unwrap().to_owned();
    for within in [
        store.session_dir(session.id()).join("copies"),
        sessions.clone(),
        sessions.join("../sessions"),
        sessions.join("a/b"),
        directory.path().join("new/../store/sessions/copies"),
        directory.path().join("store"),
    ] {
        let refused = store.backup(session.id(), &within, BackupOptions::default()).unwrap_err();
        assert!(matches!(refused, Error::WithinStore { .. }), "{refused}");
        let refused = store.backup_all(&within, BackupOptions::default()).unwrap_err();
        assert!(matches!(refused, Error::WithinStore { .. }), "{refused}");
    }
    assert!(!store.session_dir(session.id()).join("copies").exists());
    assert_eq!(sessions.read_dir().unwrap().count(), 1);
    assert!(!directory.path().join("new").exists());
    let empty = Store::open(directory.path().join("copies")).unwrap();
    let found = empty.backup_from(directory.path().join("nothing"), BackupOptions::default());
    assert!(matches!(found, Err(Error::NotASession { .. })), "{found:?}");
    assert_eq!(empty.sessions().unwrap().len(), 0);
    assert_eq!(session.log().position(), Some(SequenceNumber::MIN));
}

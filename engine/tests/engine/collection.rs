//! Collection: a store removes only files that nothing needs, also if processes are killed or work
//! at the same time. [`crate::tools`] shows which captures of workspaces stay.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use foldlog::storage::{CrashKind, Fault, Op, Storage};
use foldlog::{
    CollectOptions, CollectReport, CollectedFiles, CompactOptions, Durability, Error, Session,
    SessionOptions, SnapshotOptions, Store,
};
use foldlog_test_support::crash::{BOOT, Machine, large_note, step};
use foldlog_test_support::host::{Draft, DraftEdited, Notes, types};
use foldlog_test_support::workload::write_objects;
use uuid::Uuid;

const DRY: CollectOptions = CollectOptions { dry_run: true, ..KEEPING_ALL };
const KEEPING_ALL: CollectOptions = CollectOptions {
    session: None,
    snapshots: foldlog::KeptSnapshots::All,
    calls: u64::MAX,
    younger_than: None,
    dry_run: false,
};

fn collect(machine: &Machine) -> foldlog::Result<CollectReport> {
    machine.process(Durability::Boundary).collect(&CollectOptions::default())
}

/// Returns a closed session whose compaction dropped bodies that were objects.
fn compacted() -> (Machine, Uuid) {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    write_objects(&session, 12);
    let id = session.id();
    session.close().unwrap();
    let options = CompactOptions::default();
    assert!(machine.process(Durability::Boundary).compact(id, &options).unwrap().dropped > 0);
    (machine, id)
}

fn objects(machine: &Machine, id: Uuid) -> BTreeSet<PathBuf> {
    let dir = machine.dir(id).join("objects");
    machine.disk.files().into_iter().filter(|path| path.parent() == Some(&dir)).collect()
}

/// Reads each slice to its last byte.
fn read_all(machine: &Machine, id: Uuid) -> (Vec<String>, Vec<String>) {
    let session = machine.open(id, Durability::Boundary).unwrap();
    let draft = session.view::<Draft>().unwrap().iter().cloned().collect();
    let notes =
        session.log().slice::<Notes>().unwrap().iter().map(|note| note.unwrap().text.clone()).collect();
    (draft, notes)
}

#[test]
fn objects_that_no_record_names_any_more_go_and_all_others_stay() {
    let (machine, id) = compacted();
    let (all, there) = (read_all(&machine, id), objects(&machine, id));
    let planned = machine.process(Durability::Boundary).collect(&DRY).unwrap();
    assert_eq!(objects(&machine, id), there, "a dry run removes nothing");
    let report = collect(&machine).unwrap();
    assert_eq!(report, planned);
    assert_eq!(report.all.objects, 22, "of each edit the event, and the line");
    assert_eq!(report.sessions[&id], report.all);
    assert!(report.all.bytes > 22 * 1000, "{report:?}");
    assert_eq!(objects(&machine, id).len(), there.len() - 22);
    assert_eq!(read_all(&machine, id), all);
    machine.audit(id).unwrap().check_seals().unwrap();
    assert_eq!(collect(&machine).unwrap(), CollectReport::default());
}

/// A log that was never compacted needs every object that it names, also in records that rollbacks
/// have abandoned.
#[test]
fn what_an_abandoned_record_names_stays() {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    write_objects(&session, 2);
    let then = session.snapshot(SnapshotOptions::default()).unwrap();
    write_objects(&session, 5);
    session.rollback(&then).unwrap();
    let id = session.id();
    session.close().unwrap();
    let states = |machine: &Machine| {
        let reader = machine.audit(id).unwrap();
        (0..reader.records_len()).map(|at| reader.state_at(at).unwrap()).collect::<Vec<_>>()
    };
    let before = states(&machine);
    assert_eq!(collect(&machine).unwrap(), CollectReport::default());
    assert!(states(&machine) == before);
}

/// A fork has its own hard links to the files that its parent gives up.
#[test]
fn a_fork_keeps_what_its_parent_gives_up() {
    let machine = Machine::default();
    let store = machine.process(Durability::Boundary);
    let session = store.create(&types()).unwrap();
    write_objects(&session, 12);
    let (id, at) = (session.id(), session.log().position().unwrap());
    let fork = store.fork(id, at, &types(), SessionOptions::default()).unwrap().id();
    session.close().unwrap();
    let before: Vec<_> = {
        let reader = machine.audit(fork).unwrap();
        (0..reader.records_len()).map(|at| reader.state_at(at).unwrap()).collect()
    };
    store.compact(id, &CompactOptions::default()).unwrap();
    let report = store.collect(&CollectOptions::default()).unwrap();
    assert!(report.all.objects >= 22, "{report:?}");
    assert_eq!(report.all.bytes, 0, "the fork has them still");
    let reader = machine.audit(fork).unwrap();
    let after: Vec<_> = (0..reader.records_len()).map(|at| reader.state_at(at).unwrap()).collect();
    assert!(before == after);
    store.delete(id).unwrap();
    assert!(machine.audit(fork).unwrap().state().is_ok());
}

#[test]
fn a_session_that_is_open_or_damaged_is_skipped_with_the_reason() {
    let (machine, id) = compacted();
    let there = objects(&machine, id);
    let session = machine.open(id, Durability::Boundary).unwrap();
    for options in [CollectOptions::default(), DRY] {
        let report = machine.process(Durability::Boundary).collect(&options).unwrap();
        assert_eq!(report.all, CollectedFiles::default());
        assert!(report.skipped[&id].contains("open for writing"), "{report:?}");
    }
    session.close().unwrap();
    assert_eq!(objects(&machine, id), there);
    let damaged = machine.copied(BOOT);
    let (path, mut bytes) = {
        let path = damaged.segments(id).remove(0);
        let bytes = damaged.disk.dump().into_iter().find(|(it, _)| *it == path).unwrap().1;
        (path, bytes)
    };
    bytes[200] ^= 1;
    damaged.disk.write_file(&path, &bytes).unwrap();
    let report = collect(&damaged).unwrap();
    assert!(report.sessions.is_empty());
    assert!(report.skipped.contains_key(&id), "{report:?}");
    assert_eq!(objects(&damaged, id), there);
}

/// Unfinished files of killed processes have recognizable names and are removed. A host's own files
/// and evidence of damage stay.
#[test]
fn what_crashes_have_left_goes_and_what_others_made_stays() {
    let (machine, id) = compacted();
    collect(&machine).unwrap();
    let (dir, other) = (machine.dir(id), Uuid::from_u128(77));
    let sessions = dir.parent().unwrap().to_owned();
    let store = sessions.parent().unwrap().to_owned();
    let hash = "a".repeat(64);
    let made = [
        dir.join("0000000099.seg.new"),
        dir.join(".foldlog-backup.new"),
        dir.join("recovery.spare"),
        dir.join(format!("objects/{hash}.new")),
        dir.join(format!("objects/{hash}")),
        dir.join("snapshots/00000000000000000003.image.new"),
        dir.join("snapshots/00000000000000999999.image"),
        sessions.join(format!(".new-{other}/0000000000.seg")),
        sessions.join(format!(".deleted-{other}/objects/{hash}")),
        store.join(format!("writers/{}.json", Uuid::from_u128(78))),
    ];
    let stay = [
        dir.join("notes of the host"),
        dir.join("objects/readme"),
        dir.join("0000000098.seg"),
        sessions.join(".new-mine/file"),
        store.join("writers/readme"),
        store.join("host.toml"),
    ];
    for path in made.iter().chain(&stay) {
        machine.disk.write_file(path, b"what somebody wrote").unwrap();
    }
    let report = collect(&machine).unwrap();
    assert_eq!((report.all.leftovers, report.all.objects, report.all.images), (8, 1, 1), "{report:?}");
    let files = machine.disk.files();
    assert_eq!(made.iter().filter(|path| files.contains(path)).collect::<Vec<_>>(), [] as [&PathBuf; 0]);
    assert_eq!(stay.iter().filter(|path| !files.contains(path)).collect::<Vec<_>>(), [] as [&PathBuf; 0]);
}

/// A killed creation may leave a directory without a record. It is not a session, and was never
/// reported as one.
#[test]
fn a_creation_that_was_killed_before_its_first_record_goes() {
    let mut kills = 0;
    for nth in 1..12 {
        let machine = Machine::default();
        let process = machine.process(Durability::Every);
        machine.disk.inject(Fault::Die { nth, bytes: 30 });
        let created = process.create(&types());
        machine.disk.clear_faults();
        if created.is_ok() {
            continue;
        }
        machine.crash(CrashKind::Process);
        let report = collect(&machine).unwrap();
        let ids = machine.process(Durability::Every).session_ids().unwrap();
        let audited: Vec<_> =
            ids.iter().map(|id| machine.audit(*id).map(|audit| audit.records_len())).collect();
        assert!(audited.iter().all(|records| matches!(records, Ok(1))), "{nth}: {audited:?} {report:?}");
        kills += u64::from(report.all.leftovers > 0);
    }
    assert!(kills > 2, "{kills}");
}

#[test]
fn a_collection_that_is_killed_at_any_step_is_done_by_the_next() {
    let (whole, id) = compacted();
    let (all, mut killed) = (read_all(&whole, id), 0);
    let rest = {
        let machine = whole.copied(BOOT);
        collect(&machine).unwrap();
        objects(&machine, id)
    };
    let crashes = |at| vec![CrashKind::Process, CrashKind::PowerLosingAll, CrashKind::Power { seed: at }];
    whole.killed_at_each_step(crashes, collect, |machine, how| {
        assert_eq!(read_all(machine, id), all, "{how}");
        collect(machine).unwrap();
        assert_eq!(objects(machine, id), rest, "{how}");
        killed += 1;
    });
    assert!(killed >= 3 * 22, "{killed}");
    let machine = whole.copied(BOOT);
    machine.disk.inject(Fault::FailNth { op: Op::RemoveFile, nth: 3, error: std::io::ErrorKind::Other });
    assert!(matches!(collect(&machine), Err(Error::Io { .. })));
    machine.disk.clear_faults();
    assert_eq!(read_all(&machine, id), all);
}

/// A compaction was killed after its file had taken the segment's name, before the name was
/// durable. A collection removed the objects of the dropped bodies. A power cut then brought back
/// the old file, which names them.
#[test]
fn a_power_cut_behind_a_killed_compaction_takes_no_object() {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    write_objects(&session, 12);
    let id = session.id();
    session.close().unwrap();
    let whole = machine.copied(BOOT);
    let (all, mut collected, mut seeds) = (read_all(&whole, id), 0, (0..12).cycle());
    let compact =
        |machine: &Machine| machine.process(Durability::Boundary).compact(id, &CompactOptions::default());
    whole.killed_at_each_step(
        |_| vec![CrashKind::Process; 12],
        compact,
        |machine, how| {
            collected += collect(machine).unwrap().all.objects;
            let seed = seeds.next().unwrap();
            machine.crash(CrashKind::Power { seed });
            assert_eq!(read_all(machine, id), all, "{how}, seed {seed}");
            machine.audit(id).unwrap().state().unwrap();
            let named = machine.audit(id).unwrap().records(0, u64::MAX, |record| {
                for object in record.objects() {
                    let path = machine.dir(id).join("objects").join(object.file_name());
                    assert!(machine.disk.read_file(&path).is_some(), "{how}, seed {seed}: {path:?}");
                }
                Ok(())
            });
            named.unwrap();
        },
    );
    assert!(collected > 0);
}

/// A power cut took the header of a segment that the previous segment's seal names. The rest of the
/// file was collected, and the log was damaged from then on: a segment was missing.
#[test]
fn a_file_that_a_seal_names_stays_though_a_power_cut_emptied_it() {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    let id = session.id();
    write_objects(&session, 60);
    session.close().unwrap();
    let last = machine.segments(id).pop().unwrap();
    machine.disk.mutate_file(&last, |bytes| bytes.fill(0)).unwrap();
    let left = machine.audit(id).unwrap().records_len();
    collect(&machine).unwrap();
    assert_eq!(machine.audit(id).unwrap().records_len(), left);
    let session = machine.open(id, Durability::Boundary).unwrap();
    write_objects(&session, 10);
    session.close().unwrap();
    assert!(machine.audit(id).unwrap().records_len() > left);
    collect(&machine).unwrap();
    machine.audit(id).unwrap().check_seals().unwrap();
}

#[test]
fn who_works_while_a_store_is_collected_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let options = foldlog::StoreOptions { object_bytes_min: 600, ..foldlog::StoreOptions::default() };
    let store = Store::open_with(directory.path(), options).unwrap();
    let old = store.create(&types()).unwrap();
    write_objects(&old, 8);
    let old = (old.id(), old.close().unwrap()).0;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                store.collect(&CollectOptions::default()).unwrap();
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let at = store.read_log(old).unwrap().last_position();
                let fork = match store.fork(old, at, &types(), SessionOptions::default()) {
                    Ok(fork) => fork,
                    // A later compaction has dropped this position.
                    Err(Error::Compacted { position, .. }) if position == at => continue,
                    Err(error) => panic!("{error}"),
                };
                let id = fork.id();
                fork.close().unwrap();
                store.read_log(id).unwrap().state().unwrap();
                // A collection may hold the lock.
                while let Err(error) = store.delete(id) {
                    assert!(matches!(error, Error::Locked { .. }), "{error}");
                }
            }
        });
        for round in 0..8 {
            let session = store.create(&types()).unwrap();
            write_objects(&session, 3);
            let id = session.id();
            session.close().unwrap();
            let read = store.read_log(id).unwrap().state().unwrap();
            assert_eq!(read.slices["notes"].items.len(), 3);
            if let Ok(session) = store.open_session(old, &types()) {
                write_objects(&session, 3);
                session.dispatch(step(round)).unwrap();
                session.close().unwrap();
                // A collection may hold the lock.
                match store.compact(old, &CompactOptions::default()) {
                    Ok(_) | Err(Error::Locked { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    for id in store.session_ids().unwrap() {
        let reader = store.read_log(id).unwrap();
        reader.state().unwrap();
        assert!(store.open_session(id, &types()).is_ok());
    }
}

fn pool(machine: &Machine) -> Vec<PathBuf> {
    let dir = PathBuf::from("/home/store/pool");
    machine.disk.files().into_iter().filter(|path| path.parent() == Some(&dir)).collect()
}

/// Sessions of one store share one file for equal payloads, and deleting one session leaves it to
/// the others.
#[test]
fn what_sessions_hold_alike_is_kept_once() {
    let machine = Machine::default();
    let store = machine.process(Durability::Boundary);
    let alike = |session: &Session| {
        session.dispatch(large_note(1)).unwrap();
        session.sync().unwrap();
    };
    let first = store.create(&types()).unwrap();
    alike(&first);
    let pooled = pool(&machine);
    assert_eq!(pooled.len(), 1);
    let others: Vec<Session> = (0..3).map(|_| store.create(&types()).unwrap()).collect();
    others.iter().for_each(alike);
    let names = machine.disk.links(&pooled[0]).unwrap();
    assert_eq!(names, 5);
    let ids: Vec<Uuid> = others.iter().map(Session::id).collect();
    let notes = |id: Uuid| machine.audit(id).unwrap().state().unwrap().slices["notes"].items.len();
    first.clone().close().unwrap();
    store.delete(first.id()).unwrap();
    for session in others {
        session.close().unwrap();
    }
    assert_eq!(store.collect(&CollectOptions::default()).unwrap(), CollectReport::default());
    assert_eq!(notes(ids[1]), 1);
    for id in ids {
        assert_eq!(pool(&machine).len(), 1);
        store.delete(id).unwrap();
    }
    assert_eq!(
        pool(&machine),
        [] as [PathBuf; 0],
        "what nobody has any more is deleted with the last session"
    );
}

#[test]
fn a_killed_deletion_leaves_nothing_in_the_pool() {
    for nth in 1..14 {
        let machine = Machine::default();
        let store = machine.process(Durability::Boundary);
        let session = store.create(&types()).unwrap();
        session.dispatch(large_note(1)).unwrap();
        let id = session.id();
        session.close().unwrap();
        machine.disk.inject(Fault::Die { nth, bytes: 20 });
        let deleted = store.delete(id);
        machine.disk.clear_faults();
        machine.crash(CrashKind::Process);
        collect(&machine).unwrap();
        let is_there = machine.process(Durability::Boundary).session_ids().unwrap().contains(&id);
        assert!(!is_there || deleted.is_err(), "{nth}");
        assert_eq!(pool(&machine).len(), usize::from(is_there), "{nth}");
    }
}

/// The pool is only an optimization: a wrong file in it belongs to no session, and links may fail.
#[test]
fn a_damaged_pool_or_none_at_all_changes_nothing() {
    let machine = Machine::default();
    let store = machine.process(Durability::Boundary);
    let write = || {
        let session = store.create(&types()).unwrap();
        session.dispatch(large_note(1)).unwrap();
        let id = session.id();
        session.close().unwrap();
        assert_eq!(machine.audit(id).unwrap().state().unwrap().slices["notes"].items.len(), 1);
        id
    };
    write();
    let pooled = pool(&machine).remove(0);
    let bytes = machine.disk.dump().into_iter().find(|(path, _)| *path == pooled).unwrap().1;
    for damaged in [b"other".to_vec(), vec![0; bytes.len()], Vec::new()] {
        // A new file, so that the sessions keep theirs.
        machine.disk.remove_file(&pooled).unwrap();
        machine.disk.write_file(&pooled, &damaged).unwrap();
        write();
    }
    machine.disk.remove_dir_all(&PathBuf::from("/home/store/pool")).unwrap();
    for nth in 1..4 {
        let error = std::io::ErrorKind::CrossesDevices;
        machine.disk.inject(Fault::FailNth { op: Op::HardLink, nth, error });
        write();
        machine.disk.clear_faults();
    }
    for id in store.session_ids().unwrap() {
        machine.audit(id).unwrap().state().unwrap();
    }
}

#[test]
fn forks_take_no_room_for_what_they_share() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let session = store.create(&types()).unwrap();
    for n in 0..6_u8 {
        let line = String::from(char::from(b'a' + n)).repeat(1 << 20);
        session.dispatch(DraftEdited { place: n.into(), line }).unwrap();
    }
    let at = session.log().position().unwrap();
    let own = |directory: &std::path::Path| -> u64 {
        let mut bytes = 0;
        let mut directories = vec![directory.to_owned()];
        while let Some(directory) = directories.pop() {
            bytes += std::fs::metadata(&directory).unwrap().blocks() * 512;
            for entry in std::fs::read_dir(directory).unwrap() {
                let entry = entry.unwrap();
                let metadata = entry.metadata().unwrap();
                match metadata.is_dir() {
                    true => directories.push(entry.path()),
                    false if metadata.nlink() == 1 => bytes += metadata.blocks() * 512,
                    false => {}
                }
            }
        }
        bytes
    };
    let mut forks = Vec::new();
    for _ in 0..10 {
        let fork = store.fork(session.id(), at, &types(), SessionOptions::default()).unwrap();
        forks.push((fork.id(), fork.dir().to_owned()));
        fork.close().unwrap();
    }
    let state = store.read_log(session.id()).unwrap().state().unwrap();
    session.clone().close().unwrap();
    store.delete(session.id()).unwrap();
    for (id, dir) in forks {
        assert!(own(&dir) < 256 << 10, "{}", own(&dir));
        assert_eq!(store.read_log(id).unwrap().state_at(at).unwrap(), state);
    }
}

//! Copies of sessions that are compacted between two backups.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use foldlog::inspect::{LogReader, walk_on};
use foldlog::storage::{CrashKind, Storage};
use foldlog::{BackupOptions, BackupReport, Durability, Error, Store};
use foldlog_test_support::crash::{BOOT, Machine};
use foldlog_test_support::host::types;
use foldlog_test_support::workload::write_lines;
use uuid::Uuid;

use super::{compact, write_what_stays, written};

fn back_up(machine: &Machine, id: Uuid) -> foldlog::Result<BackupReport> {
    let copies = Store::open_with("/mnt/copies", machine.options(Durability::Boundary))?;
    copies.backup_from(machine.dir(id), BackupOptions::default())
}

fn copy(machine: &Machine, id: Uuid) -> LogReader {
    LogReader::open_on(Arc::new(machine.disk.clone()), dir_of(id)).unwrap()
}

fn dir_of(id: Uuid) -> PathBuf {
    PathBuf::from("/mnt/copies/sessions").join(id.to_string())
}

/// Protects: a copy can be opened wherever the next backup dies. When compacted segments were added
/// to it one by one, it ended for a while within a range in which the slices are unknown.
#[test]
fn a_copy_that_lacks_what_was_compacted_since_is_not_gone_on_with() {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    let id = session.id();
    write_what_stays(&machine, &session);
    session.sync().unwrap();
    let first = back_up(&machine, id).unwrap();
    write_what_stays(&machine, &session);
    write_lines(&session, 40);
    session.close().unwrap();
    assert!(compact(&machine, id).unwrap().segments > 2);
    let sound = machine.audit(id).unwrap();
    assert!(sound.compacted_ranges()[0].from.get() > first.records, "what the copy holds is as it was");
    let before = machine.disk.dump();
    let refused = back_up(&machine, id).unwrap_err();
    assert!(matches!(refused, Error::NotACopy { .. }), "{refused}");
    assert!(refused.to_string().contains("was compacted since"), "{refused}");
    assert!(before == machine.disk.dump(), "nothing was changed");
    // In another store it is a first copy, and complete.
    let elsewhere = Store::open_with("/mnt/others", machine.options(Durability::Boundary)).unwrap();
    let copied = elsewhere.backup_from(machine.dir(id), BackupOptions::default()).unwrap();
    assert_eq!(copied.records, sound.records_len());
    assert_eq!(elsewhere.read_log(id).unwrap().check_seals().unwrap(), sound.check_seals().unwrap());
}

/// Protects: if a backup dies while it adds seals to compacted segments, each segment has a
/// complete seal or none. A partial seal therefore always means damage.
#[test]
fn a_copy_whose_compacted_segments_lack_seals_gains_whole_ones() {
    let (machine, id) = written();
    compact(&machine, id).unwrap();
    back_up(&machine, id).unwrap();
    let (seals, state) = (copy(&machine, id).check_seals().unwrap(), copy(&machine, id).state().unwrap());
    // The state after a backup that died before it added the last seals.
    let mut ends = BTreeMap::new();
    walk_on(&(Arc::new(machine.disk.clone()) as Arc<dyn Storage>), &dir_of(id), &mut |frame| {
        ends.insert(frame.segment.to_owned(), frame.offset + frame.bytes);
        Ok(())
    })
    .unwrap();
    for (path, end) in ends.iter().rev().skip(1).take(3) {
        machine.disk.mutate_file(path, |bytes| bytes.truncate(usize::try_from(*end).unwrap())).unwrap();
    }
    assert_eq!(copy(&machine, id).check_seals().unwrap(), seals - 3);
    let crashes = |at| vec![CrashKind::Process, CrashKind::PowerLosingAll, CrashKind::Power { seed: at }];
    let mut sealed = BTreeSet::new();
    machine.copied(BOOT).killed_at_each_step(
        crashes,
        |machine| back_up(machine, id),
        |machine, how| {
            let left = copy(machine, id);
            sealed.insert(left.check_seals().unwrap_or_else(|error| panic!("{how}: {error}")));
            back_up(machine, id).unwrap_or_else(|error| panic!("{how}: {error}"));
            let gone_on = copy(machine, id);
            assert_eq!(gone_on.check_seals().unwrap(), seals, "{how}");
            assert_eq!(gone_on.state().unwrap(), state, "{how}");
        },
    );
    assert!(sealed.len() > 2, "{sealed:?} of {seals}");
}

/// A copy of a compacted session is compacted too. Later backups extend it until the session is
/// compacted again.
#[test]
fn a_backup_of_a_compacted_session_is_restored_and_gone_on_with() {
    let (machine, id) = written();
    let store = || Store::open_with("/mnt/copies", machine.options(Durability::Boundary)).unwrap();
    let back_up = || back_up(&machine, id);
    compact(&machine, id).unwrap();
    let first = back_up().unwrap();
    let session = machine.open(id, Durability::Boundary).unwrap();
    write_lines(&session, 12);
    session.close().unwrap();
    let second = back_up().unwrap();
    assert_eq!(second.records_before, first.records);
    let state = machine.audit(id).unwrap().state().unwrap();
    let restored = store().open_session(id, &types()).unwrap();
    assert_eq!(restored.dynamic().state().unwrap(), state);
    restored.close().unwrap();
    compact(&machine, id).unwrap();
    assert!(matches!(back_up(), Err(Error::NotACopy { .. })), "it has other segments now");
    let copy = store().open_read_only(id, &types()).unwrap();
    assert_eq!(copy.dynamic().state().unwrap(), state, "and the copy is as it was");
}

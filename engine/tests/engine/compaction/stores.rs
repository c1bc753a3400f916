//! Compactions of whole stores, and the space that they save.

use std::sync::Arc;
use std::time::Duration;

use foldlog::log::SegmentSizes;
use foldlog::{BackgroundSync, CompactOptions, Durability, Store, StoreOptions};
use foldlog_test_support::crash::{BOOT, Machine, Mortal, write_steps};
use foldlog_test_support::host::types;
use foldlog_test_support::workload::write_lines;
use uuid::Uuid;

use super::{segments, written};

fn another(machine: &Machine, edits: u64) -> Uuid {
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    write_lines(&session, edits);
    let id = session.id();
    session.close().unwrap();
    id
}

fn keeping(machine: &Machine, retention: CompactOptions) -> Store {
    let options = StoreOptions { retention: Some(retention), ..machine.options(Durability::Boundary) };
    Store::open_with("/home/store", options).unwrap()
}

#[test]
fn a_store_is_compacted_by_its_policy_and_no_session_keeps_another_from_it() {
    let (machine, first) = written();
    let ids = [another(&machine, 60), another(&machine, 60), another(&machine, 60), another(&machine, 0)];
    let [second, open, damaged, short] = ids;
    let session = machine.open(open, Durability::Boundary).unwrap();
    let path = machine.segments(damaged).remove(0);
    machine.disk.mutate_file(&path, |bytes| bytes[700] ^= 4).unwrap();
    let untouched = [open, damaged, short].map(|id| segments(&machine, id));
    let states = [first, second].map(|id| machine.audit(id).unwrap().state().unwrap().slices);

    assert_eq!(machine.process(Durability::Boundary).compact_old().unwrap().unchanged, 0, "all is kept");
    let young =
        CompactOptions { younger_than: Some(Duration::from_secs(86_400)), ..CompactOptions::default() };
    let report = keeping(&machine, young).compact_old().unwrap();
    assert!(report.compacted.is_empty() && report.unchanged == 3, "nothing is that old: {report:?}");

    let report = keeping(&machine, CompactOptions::default()).compact_old().unwrap();
    let mut compacted: Vec<Uuid> = report.compacted.iter().map(|one| one.session).collect();
    compacted.sort();
    let mut expected = vec![first, second];
    expected.sort();
    assert_eq!(compacted, expected);
    assert!(report.bytes() > 4096 && report.unchanged == 1 && report.open == [open], "{report:?}");
    assert!(matches!(&report.failed[..], [(id, error)] if *id == damaged && error.is_damage()), "{report:?}");
    assert!(untouched == [open, damaged, short].map(|id| segments(&machine, id)));
    assert_eq!(states, [first, second].map(|id| machine.audit(id).unwrap().state().unwrap().slices));
    session.close().unwrap();
}

/// Placeholders of dropped bodies, and the notes about them in each segment, take space too.
#[test]
fn nothing_is_dropped_where_that_saves_nothing() {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    let id = session.id();
    // Each event replaces the one before, and is shorter than its placeholder.
    for part in 0..200 {
        session
            .dispatch(foldlog_test_support::host::DraftEdited { place: 0, line: format!("{part}") })
            .unwrap();
    }
    session.close().unwrap();
    let before = segments(&machine, id);
    let store = machine.process(Durability::Boundary);
    assert_eq!(store.compact(id, &CompactOptions::default()).unwrap().through, None);
    assert!(before == segments(&machine, id));

    // Two long ones among them are worth more than the note about dropped bodies, and the report
    // states how much they save.
    let session = machine.open(id, Durability::Boundary).unwrap();
    write_lines(&session, 3);
    write_steps(&session, 20);
    session.close().unwrap();
    let bytes = || machine.audit(id).unwrap().log_bytes();
    let (len, mut saved) = (bytes(), 0);
    let report = store.compact(id, &CompactOptions::default()).unwrap();
    saved += report.bytes;
    // The segment that starts after the last one, and its first record, are not part of the
    // compaction.
    assert!(bytes() + saved <= len + 1024 && bytes() + saved + 256 >= len, "{len}, {saved}, {}", bytes());
}

/// Protects: deleting a session while its store is compacted is no failure, at any moment. It used
/// to count as one.
#[test]
fn a_session_that_is_deleted_while_its_store_is_compacted_has_not_failed() {
    let (mut moments, mut gone) = (0, 0);
    for dry_run in [true, false] {
        for nth in 1.. {
            let directory = tempfile::tempdir().unwrap();
            let segments = SegmentSizes { first_bytes: 4096, max_bytes: 4096, ahead_bytes_min: 0 };
            let disk = Mortal::born(Some(BOOT));
            let options = |disk: &Mortal| StoreOptions {
                storage: Arc::new(disk.clone()),
                background: BackgroundSync::Inline,
                durability: Durability::Process,
                segments,
                ..StoreOptions::default()
            };
            let store = Store::open_with(directory.path(), options(&disk)).unwrap();
            let [first, second] = [(); 2].map(|()| {
                let session = store.create(&types()).unwrap();
                write_lines(&session, 40);
                let id = session.id();
                session.close().unwrap();
                id
            });
            // By another process, so that the other's locks apply. A locked session is not deleted.
            let other = Store::open_with(directory.path(), options(&Mortal::born(Some(BOOT)))).unwrap();
            let dir = store.session_dir(first);
            let (say, hear) = std::sync::mpsc::channel();
            disk.meanwhile(
                nth,
                move |path| path.starts_with(&dir),
                move || {
                    say.send(other.delete(first).is_ok()).unwrap();
                },
            );
            let report = store.compact_all(&CompactOptions { dry_run, ..CompactOptions::default() }).unwrap();
            if disk.is_to_come() {
                break;
            }
            assert!(report.failed.is_empty(), "call {nth}: {report:?}");
            assert!(report.compacted.iter().any(|one| one.session == second), "call {nth}: {report:?}");
            let is_gone = hear.try_recv().unwrap();
            assert_eq!(store.session_ids().unwrap().contains(&first), !is_gone, "call {nth}");
            (moments, gone) = (moments + 1, gone + usize::from(is_gone));
        }
    }
    assert!(gone > 5 && moments > gone, "{gone} of {moments}");
}

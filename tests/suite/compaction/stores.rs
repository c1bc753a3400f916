//! Compactions of whole stores, and what they are worth.

use std::sync::Arc;
use std::time::Duration;

use foldlog::inspect::{LogReader, damaged_seals};
use foldlog::log::SegmentSizes;
use foldlog::{BackgroundSync, CompactOptions, Durability, Error, SnapshotOptions, Store, StoreOptions};
use foldlog_test_support::crash::{BOOT, Machine, Mortal, write_steps};
use foldlog_test_support::host::types;
use foldlog_tests::verbs::foldlog;
use uuid::Uuid;

use super::{segments, write, written};
use crate::binary::demo;

/// A session of a store, closed.
fn another(machine: &Machine, edits: u64) -> Uuid {
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    write(&session, edits);
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

/// What stands in the place of a body, and what says so in each segment, takes room too.
#[test]
fn nothing_is_dropped_where_that_saves_nothing() {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    let id = session.id();
    // Each of them takes the place of the one before, and is shorter than what would stand in its place.
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

    // Two long ones among them are worth more than a note of what was dropped, and their report says what they are worth.
    let session = machine.open(id, Durability::Boundary).unwrap();
    write(&session, 3);
    write_steps(&session, 20);
    session.close().unwrap();
    let bytes = || machine.audit(id).unwrap().log_bytes();
    let (len, mut saved) = (bytes(), 0);
    let report = store.compact(id, &CompactOptions::default()).unwrap();
    saved += report.bytes;
    // The segment that begins behind the last one, and its first record, are none of what was compacted.
    assert!(bytes() + saved <= len + 1024 && bytes() + saved + 256 >= len, "{len}, {saved}, {}", bytes());
}

#[test]
fn the_log_of_the_demonstration_does_not_get_longer() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept");
    let ran = demo(&["demo", "--dir", kept.to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let sessions = walk(folder.path());
    assert!(!sessions.is_empty());
    for dir in sessions {
        let read = || LogReader::open(&dir).unwrap();
        let (bytes, state) = (read().log_bytes(), read().state().unwrap().slices);
        let store = Store::open(dir.parent().unwrap().parent().unwrap()).unwrap();
        let id = dir.file_name().unwrap().to_str().unwrap().parse().unwrap();
        match store.compact(id, &CompactOptions::default()) {
            Ok(report) => assert!(read().log_bytes() <= bytes, "{report:?}"),
            Err(error) => assert!(matches!(error, Error::Interrupted { .. }), "{error}"),
        }
        assert_eq!(read().state().unwrap().slices, state);
    }
}

/// The folders of sessions in the stores below a folder.
fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found = Vec::new();
    for path in entries.filter(|path| path.is_dir()) {
        match path.join("0000000001.seg").exists() || path.join("0000000000.seg").exists() {
            true => found.push(path),
            false => found.extend(walk(&path)),
        }
    }
    found
}

/// Protects: a session that somebody deletes while its store is compacted is no failure, at whichever moment it goes. It counted as one.
#[test]
fn a_session_that_is_deleted_while_its_store_is_compacted_has_not_failed() {
    let (mut moments, mut gone) = (0, 0);
    for dry_run in [true, false] {
        for nth in 1.. {
            let folder = tempfile::tempdir().unwrap();
            let segments = SegmentSizes { first_bytes: 4096, max_bytes: 4096, ahead_bytes_min: 0 };
            let disk = Mortal::born(Some(BOOT));
            let options = |disk: &Mortal| StoreOptions {
                storage: Arc::new(disk.clone()),
                background: BackgroundSync::Inline,
                durability: Durability::Process,
                segments,
                ..StoreOptions::default()
            };
            let store = Store::open_with(folder.path(), options(&disk)).unwrap();
            let [first, second] = [(); 2].map(|()| {
                let session = store.create(&types()).unwrap();
                write(&session, 40);
                let id = session.id();
                session.close().unwrap();
                id
            });
            // By another process, so that the other's locks hold. What is held is not deleted.
            let other = Store::open_with(folder.path(), options(&Mortal::born(Some(BOOT)))).unwrap();
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

#[test]
fn the_binary_compacts_a_session_and_says_what_it_did() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let session = store.create(&types()).unwrap();
    write(&session, 50);
    session.snapshot(SnapshotOptions::with_tag("then")).unwrap();
    write(&session, 50);
    let dir = session.dir().to_owned();
    let locked = foldlog(["compact".into(), dir.clone().into_os_string()]);
    assert_eq!(locked.code, 2, "{}", locked.stderr);
    session.close().unwrap();
    let planned = foldlog(["compact".into(), dir.clone().into_os_string(), "--dry-run".into()]);
    assert!(
        planned.code == 0 && planned.stdout.contains("would drop"),
        "{}{}",
        planned.stdout,
        planned.stderr
    );
    let done =
        foldlog(["compact".into(), dir.clone().into_os_string(), "--keep-position".into(), "30".into()]);
    assert!(
        done.code == 0 && done.stdout.contains("dropped the bodies of"),
        "{}{}",
        done.stdout,
        done.stderr
    );
    assert!(done.stdout.contains("30"), "{}", done.stdout);
    let same = ["compact".into(), dir.clone().into_os_string(), "--keep-position".into(), "30".into()];
    let again = foldlog(same);
    assert!(again.code == 0 && again.stdout.contains("nothing to drop"), "{}{}", again.stdout, again.stderr);
    for verb in ["verify", "show", "stats", "state"] {
        let ran = foldlog([verb.into(), dir.clone().into_os_string()]);
        assert_eq!(ran.code, 0, "{verb}: {}", ran.stderr);
    }
    let at = foldlog(["state".into(), dir.clone().into_os_string(), "--at".into(), "31".into()]);
    assert!(
        at.code == 2 && at.stderr.contains("since a compaction has dropped bodies of records up to"),
        "{}",
        at.stderr
    );
    let json = foldlog(["show".into(), dir.clone().into_os_string(), "--json".into()]);
    assert!(json.stdout.contains(r#""kind":"dropped","#), "{}", &json.stdout[..400]);
    assert!(damaged_seals(&dir).unwrap().is_empty());
    let segment = dir.join("0000000000.seg");
    let mut bytes = std::fs::read(&segment).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[used] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let verified = foldlog(["verify".into(), dir.into_os_string()]);
    assert!(verified.code == 1 && verified.stdout.contains("is no sound seal"), "{}", verified.stdout);
}

#[test]
fn the_binary_compacts_each_session_of_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let sessions: Vec<_> = (0..3).map(|_| store.create(&types()).unwrap()).collect();
    sessions.iter().for_each(|session| write(session, 100));
    let mut sessions = sessions.into_iter();
    let open = sessions.next().unwrap();
    let closed: Vec<Uuid> = sessions
        .map(|session| {
            let id = session.id();
            session.close().unwrap();
            id
        })
        .collect();
    let verb = |more: &[&str]| {
        let words = ["compact".into(), folder.path().as_os_str().to_owned()];
        foldlog(words.into_iter().chain(more.iter().map(Into::into)))
    };
    assert_eq!(verb(&["--keep-position", "3"]).code, 2, "sessions have no positions in common");
    let planned = verb(&["--dry-run"]);
    assert!(planned.code == 0 && planned.stdout.matches("would drop").count() == 3, "{}", planned.stdout);
    let done = verb(&["--json"]);
    let done: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    let of = |one: &serde_json::Value| one["session"].as_str().unwrap().parse::<Uuid>().unwrap();
    let compacted: Vec<Uuid> = done["compacted"].as_array().unwrap().iter().map(of).collect();
    assert!(compacted.len() == 2 && closed.iter().all(|id| compacted.contains(id)), "{done}");
    assert_eq!(done["open"], serde_json::json!([open.id()]));
    let again = verb(&[]);
    assert!(again.stdout.contains("2 sessions with nothing to drop"), "{}", again.stdout);
    assert!(again.stdout.contains("open for writing, left as it is"), "{}", again.stdout);
}

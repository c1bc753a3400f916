//! Compactions by the binary, of sessions and of whole stores.

use foldlog::inspect::{LogReader, damaged_seals};
use foldlog::{CompactOptions, Error, SnapshotOptions, Store};
use foldlog_test_support::host::types;
use foldlog_test_support::workload::write_lines;
use foldlog_tests::verbs::foldlog;
use uuid::Uuid;

use super::demo;

#[test]
fn the_log_of_the_demonstration_does_not_get_longer() {
    let directory = tempfile::tempdir().unwrap();
    let kept = directory.path().join("kept");
    let ran = demo(&["demo", "--dir", kept.to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let sessions = walk(directory.path());
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

fn walk(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut found = Vec::new();
    for path in entries.filter(|path| path.is_dir()) {
        match path.join("0000000001.seg").exists() || path.join("0000000000.seg").exists() {
            true => found.push(path),
            false => found.extend(walk(&path)),
        }
    }
    found
}

#[test]
fn the_binary_compacts_a_session_and_says_what_it_did() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let session = store.create(&types()).unwrap();
    write_lines(&session, 50);
    session.snapshot(SnapshotOptions::with_tag("then")).unwrap();
    write_lines(&session, 50);
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
        at.code == 2 && at.stderr.contains("because a compaction dropped bodies of records up to"),
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
    assert!(verified.code == 1 && verified.stdout.contains("not an intact seal"), "{}", verified.stdout);
}

#[test]
fn the_binary_compacts_each_session_of_a_store() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let sessions: Vec<_> = (0..3).map(|_| store.create(&types()).unwrap()).collect();
    sessions.iter().for_each(|session| write_lines(session, 100));
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
        let words = ["compact".into(), directory.path().as_os_str().to_owned()];
        foldlog(words.into_iter().chain(more.iter().map(Into::into)))
    };
    assert_eq!(verb(&["--keep-position", "3"]).code, 2, "a store has no positions");
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
    assert!(again.stdout.contains("open for writing, skipped"), "{}", again.stdout);
}

/// The exit code was 2, as for wrong usage.
#[test]
fn a_damaged_session_of_a_store_is_reported_by_the_exit_code_for_damage() {
    let directory = tempfile::tempdir().unwrap();
    let session = Store::open(directory.path()).unwrap().create(&types()).unwrap();
    write_lines(&session, 100);
    let segment = session.dir().join("0000000000.seg");
    session.close().unwrap();
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[2000] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let ran = foldlog(["compact".into(), directory.path().as_os_str().to_owned()]);
    assert!(ran.stdout.contains("not compacted"), "{}", ran.stdout);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
}

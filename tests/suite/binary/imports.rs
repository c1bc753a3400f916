//! Imports of exported sessions.

use std::fs;
use std::path::Path;

use foldlog::Store;
use foldlog::inspect::LogReader;
use foldlog_test_support::host::types;
use foldlog_tests::verbs::{Ran, foldlog};
use serde_json::Value as Json;

use super::fixture;

/// Runs the binary with these words, in which each `_` is replaced by the next path.
pub(super) fn run(words: &[&str], paths: &[&Path]) -> Ran {
    let mut paths = paths.iter();
    let words = words.iter().map(|word| match *word {
        "_" => paths.next().unwrap().as_os_str().to_owned(),
        word => word.into(),
    });
    foldlog(words.collect::<Vec<_>>())
}

#[test]
fn an_export_becomes_a_session_again() {
    let fixture = fixture();
    let exported = run(&["export", "_", "--format", "snapshot-json"], &[&fixture.session]);
    let (file, to) =
        (fixture.directory.path().join("export.json"), fixture.directory.path().join("imported"));
    fs::write(&file, &exported.stdout).unwrap();
    let ran = run(&["import", "snapshot-json", "_", "--store", "_"], &[&file, &to]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
    let mut lines = ran.stdout.lines();
    let first = lines.next().unwrap();
    let id = first.strip_prefix("session ").unwrap().split(',').next().unwrap();
    assert!(first.contains(", exported at 2026-01-02T"), "{first}");
    let imported = Store::open(&to).unwrap().open_session(id.parse().unwrap(), &types()).unwrap();
    let was = LogReader::open(&fixture.session).unwrap().state().unwrap();
    let now = imported.dynamic().state().unwrap();
    for (name, slice) in was.slices.iter().filter(|(_, slice)| !slice.items.is_empty()) {
        let bytes = |slice: &foldlog::SliceState| -> Vec<_> {
            slice.items.iter().map(|item| item.bytes.clone()).collect()
        };
        match slice.policy {
            foldlog::Policy::Cache => assert!(!now.slices.contains_key(name), "{name}"),
            _ => assert_eq!(bytes(&now.slices[name]), bytes(slice), "{name}"),
        }
    }
    assert_eq!(imported.tags(), was.tags);
    imported.close().unwrap();
    // A second export differs only in its time and its session.
    let path = to.join("sessions").join(id);
    let again = run(&["export", "_", "--format", "snapshot-json"], &[&path]);
    let slices = |text: &str| serde_json::from_str::<Json>(text).unwrap()["slices"].clone();
    assert_eq!(slices(&again.stdout), slices(&exported.stdout));

    let told = run(&["import", "snapshot-json", "_", "--store", "_", "--json"], &[&file, &to]);
    let told: Json = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(told["slices"], now.slices.len());
    assert_eq!(Store::open(&to).unwrap().session_ids().unwrap().len(), 2);

    // A file that is no export creates no store.
    fs::write(&file, exported.stdout.replace("exact", "rounded")).unwrap();
    let bad = run(&["import", "snapshot-json", "_", "--store", "_"], &[&file, &to.join("other")]);
    assert!(bad.code == 2 && bad.stderr.contains("not a snapshot export"), "{bad:?}");
    assert!(!to.join("other").exists());
}

//! An exporter: it remembers the files that it wrote, and writes the same trees as one without
//! memory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use foldlog_tasks::{CompressionAlgorithm, StateCompression, TreeExporter};

use super::files::{all, by, tree_of, two_days};

fn changed(path: &Path) -> (i64, i64) {
    let metadata = fs::metadata(path).unwrap();
    (metadata.ctime(), metadata.ctime_nsec())
}

/// Waits until the clock gives a file's change a later time than all before.
fn until_the_clock_goes_on(directory: &Path) {
    let probe = directory.join("probe");
    fs::write(&probe, "1").unwrap();
    let before = changed(&probe);
    while changed(&probe) == before {
        std::thread::sleep(Duration::from_millis(1));
        fs::write(&probe, "2").unwrap();
    }
}

/// The session also goes back, so that the memory could be outdated.
#[test]
fn an_exporter_writes_the_trees_that_an_export_writes() {
    let (before, after) = two_days();
    for compression in [StateCompression::default(), by(CompressionAlgorithm::Zstd)] {
        let (directory, beside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut exporter = TreeExporter::new(directory.path(), compression);
        for told in [&before, &before, &after, &after, &before, &after, &before] {
            let fresh = tempfile::tempdir().unwrap();
            told.export(fresh.path(), &compression);
            exporter.export(&told.contents()).unwrap();
            assert_eq!(all(directory.path()), all(fresh.path()));
            until_the_clock_goes_on(beside.path());
        }
    }
}

/// The exporter must notice that a file was changed, replaced or removed, although its length is
/// the same; the next export restores it.
#[test]
fn what_somebody_did_to_a_file_that_an_exporter_knows_is_undone() {
    let (before, after) = two_days();
    let (directory, beside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut exporter = TreeExporter::new(directory.path(), StateCompression::default());
    // The second export finds the files of the first one, and the third one remembers them.
    for told in [&before, &after, &after] {
        exporter.export(&told.contents()).unwrap();
        until_the_clock_goes_on(beside.path());
    }
    let sound = all(directory.path());
    let dir = tree_of(directory.path(), after.state.session_id);
    let mut touched = 0;
    for (place, (name, content)) in sound.iter().enumerate() {
        let path = directory.path().join(name);
        if path == dir.join("meta/checkpoint_manifest.json") {
            continue;
        }
        let mut wrong = content.clone();
        wrong[0] ^= 1;
        match place % 4 {
            0 => fs::write(&path, wrong).unwrap(),
            1 => {
                let other = beside.path().join("other");
                fs::write(&other, wrong).unwrap();
                fs::rename(&other, &path).unwrap();
            }
            2 => fs::remove_file(&path).unwrap(),
            _ => continue,
        }
        touched += 1;
    }
    assert!(touched > 10, "{touched}");
    let report = exporter.export(&after.contents()).unwrap();
    assert_eq!((report.written, report.removed), (touched, 0));
    assert_eq!(all(directory.path()), sound);
    let report = exporter.export(&after.contents()).unwrap();
    assert_eq!((report.written, report.removed), (0, 0));
}

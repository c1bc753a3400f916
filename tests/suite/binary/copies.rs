//! Copies of a session that were made while it was written.

use std::fs;
use std::path::{Path, PathBuf};

use foldlog::inspect::LogReader;
use foldlog::log::SegmentSizes;
use foldlog::{Error, Session, Store, StoreOptions};
use foldlog_test_support::host::types;
use foldlog_test_support::runs::Json;
use foldlog_tests::verbs::foldlog;

use super::{options, step};

fn small() -> StoreOptions {
    let segments = SegmentSizes { first_bytes: 4096, max_bytes: 4096, ahead_bytes_min: 0 };
    StoreOptions { segments, ..options() }
}

fn write(session: &Session, steps: u8) {
    for number in 0..steps {
        session.dispatch(step(&format!("step {number} {}", "x".repeat(200)), number)).unwrap();
    }
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut segments: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "seg"))
        .collect();
    segments.sort();
    segments
}

fn copy(segment: &Path, into: &Path) {
    fs::copy(segment, into.join(segment.file_name().unwrap())).unwrap();
}

/// Copies the present segments in the given order, and writes to the session between one and the
/// next. The order determines how often such a copy opens.
fn copied(session: &Session, into: &Path, newest_first: bool, between: u8) -> PathBuf {
    let copy_dir = into.join(session.id().to_string());
    fs::create_dir_all(&copy_dir).unwrap();
    let mut there = segments(session.dir());
    if newest_first {
        there.reverse();
    }
    let newest = there.iter().max().cloned();
    for segment in there {
        copy(&segment, &copy_dir);
        // Enough records after the newest segment to start another one.
        write(session, if Some(&segment) == newest.as_ref() { 20 } else { between });
    }
    if !newest_first {
        // Like `cp -r` when the directory grew during its listing.
        segments(session.dir())
            .iter()
            .filter(|path| !copy_dir.join(path.file_name().unwrap()).exists())
            .for_each(|path| {
                copy(path, &copy_dir);
            });
    }
    copy_dir
}

/// In 16 of 45 cases, a copy of a live session made by `cp -r` was reported as damaged: the copy of
/// a segment was older than the copy of the next one.
#[test]
fn a_copy_that_was_taken_while_the_session_was_written_is_told_from_damage() {
    let (directory, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::open_with(directory.path(), small()).unwrap();
    let mut told = 0;
    for round in 0..45_u8 {
        // Each round has its own session: every copied segment is followed by more records, and
        // these by segments.
        let session = store.create(&types()).unwrap();
        write(&session, 20 + round);
        let into = copies.path().join(round.to_string());
        let oldest_first = copied(&session, &into.join("oldest"), false, round % 2);
        match LogReader::open(&oldest_first) {
            Ok(_) => {}
            Err(Error::OlderThanSuccessor { segment, offset, end, successor, .. }) => {
                assert!(offset < end && segment < successor, "{offset} of {end}");
                told += 1;
            }
            Err(error) => panic!("round {round}: {error}"),
        }
        let newest_first = copied(&session, &into.join("newest"), true, round % 2);
        LogReader::open(&newest_first).unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    assert!(told >= 10, "{told} of 45 copies were too old in part");

    // The output for people, and for programs.
    let session = store.create(&types()).unwrap();
    write(&session, 20);
    let stale = copied(&session, &copies.path().join("last"), false, 1);
    let Err(Error::OlderThanSuccessor { segment, offset, sequence, .. }) = LogReader::open(&stale) else {
        panic!("twenty steps fill a segment");
    };
    for verb in ["show", "verify", "state", "tail"] {
        let ran = foldlog([verb.as_ref(), stale.as_os_str()]);
        assert_eq!(ran.code, 1, "{verb}: {}", ran.stderr);
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert!(said.contains("directory was copied while the session was written"), "{verb}: {said}");
    }
    let shown = foldlog(["show".as_ref(), stale.as_os_str()]);
    assert!(shown.stderr.contains("`foldlog backup "), "{}", shown.stderr);
    let verified = foldlog(["verify".as_ref(), stale.as_os_str(), "--json".as_ref()]);
    let verified = Json::parse(&verified.stdout);
    assert!(verified.get("corrupt").unwrap().elements().is_empty(), "{verified:?}");
    let damage = &verified.get("incomplete").unwrap().elements()[0];
    assert_eq!(damage.get("offset"), Some(&Json::Scalar(offset.into())));
    assert_eq!(damage.get("sequence"), Some(&Json::Scalar(sequence.get().into())));
    assert_eq!(damage.get("segment"), Some(&Json::text(segment.to_str().unwrap())));

    // Damage before the end of a segment, or in its last frame, is still damage.
    session.close().unwrap();
    let first = &segments(directory.path().join("sessions").join(stale.file_name().unwrap()).as_path())[0];
    let whole = fs::read(first).unwrap();
    let used = whole.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    for at in [1000, used / 2, used - 200] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(first, bytes).unwrap();
        assert!(matches!(LogReader::open(first.parent().unwrap()), Err(Error::Corrupt(_))), "byte {at}");
    }
    let mut bytes = whole.clone();
    bytes[1000..1400].fill(0);
    fs::write(first, bytes).unwrap();
    assert!(matches!(LogReader::open(first.parent().unwrap()), Err(Error::Corrupt(_))));
}

/// `cp -r` copies the directory `objects` before the segments, whose last records then name objects
/// that the copy lacks. It may also read a page during its write, and later pages after their
/// writes.
#[test]
fn a_copy_of_a_live_session_is_incomplete_and_not_corrupt() {
    let (directory, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::open_with(directory.path(), options()).unwrap();
    let session = store.create(&types()).unwrap();
    let large = |number: u8| step(&char::from(b'a' + number).to_string().repeat(100_000), number);
    for number in 0..3 {
        session.dispatch(large(number)).unwrap();
    }
    let copy_dir = copies.path().join(session.id().to_string());
    let objects = copy_dir.join("objects");
    fs::create_dir_all(&objects).unwrap();
    for object in fs::read_dir(session.dir().join("objects")).unwrap() {
        copy(&object.unwrap().path(), &objects);
    }
    for number in 3..5 {
        session.dispatch(large(number)).unwrap();
    }
    write(&session, 40);
    segments(session.dir()).iter().for_each(|segment| copy(segment, &copy_dir));
    let counts = |dir: &Path| {
        let ran = foldlog(["verify".as_ref(), dir.as_os_str(), "--json".as_ref()]);
        let verified = Json::parse(&ran.stdout);
        let count = |name: &str| verified.get(name).map_or(0, |places| places.elements().len());
        (ran.code, count("corrupt"), count("incomplete"))
    };
    assert_eq!(counts(&copy_dir), (1, 0, 2));
    let told = foldlog(["verify".as_ref(), copy_dir.as_os_str()]);
    let said = format!("{}{}", told.stdout, told.stderr);
    assert!(!said.contains("corrupt") && said.contains("2 places are incomplete"), "{said}");
    assert!(said.contains("`foldlog salvage"), "{said}");

    // The salvaged session ends before the missing parts.
    let salvaged = copies.path().join("salvaged");
    let ran = foldlog(["salvage".as_ref(), copy_dir.as_os_str(), "--to".as_ref(), salvaged.as_os_str()]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(counts(&salvaged), (0, 0, 0));

    // An object that is missing before an existing one must have existed.
    let first = fs::read_dir(&objects).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(first).unwrap();
    let (code, corrupt, incomplete) = counts(&copy_dir);
    assert!(code == 1 && corrupt + incomplete == 3 && incomplete >= 2, "{corrupt} and {incomplete}");

    // A page that was read while it was partly written.
    let whole = copies.path().join("whole");
    fs::create_dir(&whole).unwrap();
    let page_dir = whole.join(session.id().to_string());
    fs::create_dir(&page_dir).unwrap();
    let torn_from = |from: usize, to: usize| {
        segments(session.dir()).iter().for_each(|segment| copy(segment, &page_dir));
        fs::create_dir_all(page_dir.join("objects")).unwrap();
        for object in fs::read_dir(session.dir().join("objects")).unwrap() {
            copy(&object.unwrap().path(), &page_dir.join("objects"));
        }
        let last = segments(&page_dir).pop().unwrap();
        let mut bytes = fs::read(&last).unwrap();
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        assert!(used > to, "{used}");
        bytes[from..to].fill(0);
        fs::write(&last, bytes).unwrap();
        counts(&page_dir)
    };
    assert_eq!(torn_from(3000, 4096), (1, 0, 1));
    assert_eq!(torn_from(4096, 8192), (1, 0, 1));
    // Zeros that end within a page cannot be a page that was read too early.
    assert_eq!(torn_from(3000, 4000), (1, 1, 0));
}

//! The verb that creates a new session from the intact part of a damaged one: its output, its exit
//! codes, and where it writes nothing.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use foldlog::{RecordKind, Store};
use foldlog_codec::body::Rollback;
use foldlog_test_support::host::types;
use foldlog_test_support::runs::Json;
use foldlog_tests::verbs::{Ran, foldlog};

use super::damaged::{flip, forged, place, segment};
use super::{Fixture, fixture, options};

fn salvage(session: &Path, to: &Path) -> Ran {
    foldlog(["salvage".as_ref(), session.as_os_str(), "--to".as_ref(), to.as_os_str()])
}

fn salvage_json(session: &Path, to: &Path) -> Json {
    let ran = foldlog([
        "salvage".as_ref(),
        session.as_os_str(),
        "--to".as_ref(),
        to.as_os_str(),
        "--json".as_ref(),
    ]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    Json::parse(&ran.stdout)
}

fn run(verb: &str, path: &Path) -> Ran {
    foldlog([verb.as_ref(), path.as_os_str()])
}

/// Returns everything in a directory, with its content.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() && !path.is_symlink() {
            true => files.extend(self::files(&path)),
            false => drop(files.insert(path.clone(), fs::read(&path).unwrap_or_default())),
        }
    }
    files
}

fn damaged() -> (Fixture, u64) {
    let fixture = fixture();
    let (offset, bytes) = place(&fixture.session, 4);
    flip(&segment(&fixture.session), offset + bytes - 1);
    (fixture, offset)
}

/// The salvaged session verifies, shows the records of the damaged one, and a host continues it.
#[test]
fn a_damaged_session_is_salvaged_into_a_new_store_and_says_what_was_left() {
    let (fixture, offset) = damaged();
    let before = files(&fixture.session);
    let to = fixture.directory.path().join("a new/store");
    let salvaged = salvage_json(&fixture.session, &to);
    assert!(before == files(&fixture.session), "the damaged session is as it was");
    let text = |field: &str| match salvaged.get(field) {
        Some(Json::Scalar(value)) => value.as_str().unwrap_or_default().to_owned(),
        other => panic!("{field}: {other:?}"),
    };
    assert_eq!(text("from"), fixture.session.file_name().unwrap().to_str().unwrap());
    assert_eq!(salvaged.get("records"), Some(&Json::Scalar(4.into())));
    assert_eq!(salvaged.get("offset"), Some(&Json::Scalar(offset.into())));
    assert!(text("damage").contains("record 4"), "{}", text("damage"));
    let left = &salvaged.get("left").unwrap().elements()[0];
    // One of the twelve later records is damaged; the predecessor of the others is unknown.
    assert!(
        matches!(left.get("records"), Some(Json::Scalar(records)) if records.as_u64() > Some(5)),
        "{left:?}"
    );

    let dir = to.join("sessions").join(text("session"));
    assert_eq!(PathBuf::from(text("dir")), dir);
    assert_eq!(run("verify", &to).code, 0, "{}", run("verify", &to).stdout);
    assert_eq!(run("replay", &dir).code, 0);
    let shown = run("show", &dir).stdout;
    assert!(shown.contains("foldlog.salvaged") && shown.contains("fork of"), "{shown}");
    // The first records are shown unchanged.
    let (was, is) = (run("show", &fixture.session).stdout, shown);
    let head = |text: &str| text.lines().take(4).map(str::to_owned).collect::<Vec<_>>();
    assert!(was.is_empty() || head(&was) == head(&is));

    let store = Store::open_with(&to, options()).unwrap();
    let session = store.open_session(text("session").parse().unwrap(), &types()).unwrap();
    session.dispatch(super::step("goes on", 1)).unwrap();
    session.close().unwrap();
    // A second salvage creates another new session next to the first.
    assert_eq!(salvage(&fixture.session, &to).code, 0);
    assert_eq!(store.session_ids().unwrap().len(), 2);
    // The same is true in the damaged session's own store.
    assert_eq!(salvage(&fixture.session, fixture.directory.path()).code, 0);
    assert!(before == files(&fixture.session));
}

#[test]
fn a_person_is_told_what_was_taken_and_what_was_left() {
    let (fixture, offset) = damaged();
    let to = fixture.directory.path().join("other");
    let ran = salvage(&fixture.session, &to);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[0].starts_with("salvaged "), "{}", ran.stdout);
    assert!(lines[1].starts_with(&format!("copied   4 records and 0 objects, up to byte {offset} of ")));
    assert!(lines.iter().any(|line| line.starts_with("damage ") && line.contains("record 4")));
    assert!(lines.iter().any(|line| line.starts_with("left ") && line.contains("intact records (5 to ")));
    // For an intact session nothing is reported.
    let sound = self::fixture();
    let ran = salvage(&sound.session, &to);
    assert!(ran.code == 0 && ran.stdout.ends_with("every record was copied\n"), "{}", ran.stdout);
}

#[test]
fn a_directory_that_must_not_be_written_is_refused_before_anything_is() {
    let (fixture, _) = damaged();
    let before = files(fixture.directory.path());
    let outside = tempfile::tempdir().unwrap();
    let at = |name: &str| outside.path().join(name);
    // A link to a directory, a link into the session, a dangling link, a store whose `sessions` is
    // a link.
    fs::create_dir(at("directory")).unwrap();
    symlink(at("directory"), at("link")).unwrap();
    symlink(&fixture.session, at("into")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    fs::create_dir(at("half")).unwrap();
    symlink(&fixture.session, at("half/sessions")).unwrap();
    // A file, and a directory with other content.
    fs::write(at("file"), "text").unwrap();
    fs::create_dir(at("home")).unwrap();
    fs::write(at("home/letter"), "text").unwrap();
    let refused = [
        fixture.session.clone(),
        fixture.session.join("objects"),
        fixture.session.join("deep/down"),
        fixture.session.join("objects/../deep"),
        at("link"),
        at("into"),
        at("into/deep"),
        at("dangling"),
        at("half"),
        at("file"),
        at("file/deep"),
        at("home"),
        at("missing/../directory"),
    ];
    let was = files(outside.path());
    for to in &refused {
        let ran = salvage(&fixture.session, to);
        assert_eq!(ran.code, 2, "{}: {}{}", to.display(), ran.stdout, ran.stderr);
        assert!(ran.stdout.is_empty() && ran.stderr.contains("next: "), "{}", ran.stderr);
    }
    assert!(before == files(fixture.directory.path()) && was == files(outside.path()));
    assert!(!at("missing").exists() && !at("nowhere").exists());
    // An empty directory is accepted.
    assert_eq!(salvage(&fixture.session, &at("directory")).code, 0);
}

#[test]
fn what_holds_nothing_sound_or_is_in_use_makes_no_session_and_no_store() {
    let fixture = fixture();
    let (offset, _) = place(&fixture.session, 0);
    let to = fixture.directory.path().join("other");
    assert_eq!(salvage(&fixture.directory.path().join("nothing"), &to).code, 2);
    assert_eq!(salvage(&segment(&fixture.session), &to).code, 2);
    assert_eq!(salvage(fixture.directory.path(), &to).code, 2);
    assert!(!to.exists());
    // The writer is alive.
    let store = Store::open_with(fixture.directory.path(), options()).unwrap();
    let session = store.create(&types()).unwrap();
    let ran = salvage(session.dir(), &to);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("open for writing") && !to.exists(), "{}", ran.stderr);
    session.close().unwrap();
    // No record is intact.
    flip(&segment(&fixture.session), offset + 30);
    let ran = salvage(&fixture.session, &to);
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains("damaged") && !to.exists(), "{}", ran.stderr);
}

/// All frames are valid, but the last record contradicts the others.
#[test]
fn a_record_that_contradicts_the_log_is_left() {
    let fixture = forged(RecordKind::Rollback, Rollback { to: 7.into(), preserve_logs: true }.encode());
    let to = fixture.directory.path().join("other");
    let salvaged = salvage_json(&fixture.session, &to);
    assert_eq!(salvaged.get("records"), Some(&Json::Scalar(4.into())));
    assert_eq!(salvaged.get("left").unwrap().elements().len(), 1);
    assert_eq!(run("verify", &to).code, 0);
    // A body that is no map, in a record and in the declarations at a segment's head.
    for kind in [RecordKind::Dispatch, RecordKind::Declared] {
        let fixture = forged(kind, vec![0xc1]);
        let to = fixture.directory.path().join("other");
        assert_eq!(salvage_json(&fixture.session, &to).get("records"), Some(&Json::Scalar(4.into())));
        assert_eq!(run("verify", &to).code, 0);
    }
    // A kind of a later version is copied unchanged.
    let fixture = forged(RecordKind::from_byte(99).unwrap(), foldlog::Value::from("later").encode());
    let to = fixture.directory.path().join("other");
    assert_eq!(salvage_json(&fixture.session, &to).get("records"), Some(&Json::Scalar(5.into())));
    assert_eq!(run("verify", &to).code, 0);
}

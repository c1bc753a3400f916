//! Collections by the binary: preview, removal, and the files that it leaves alone.

use std::fs;
use std::path::Path;

use foldlog::{CollectReport, CompactOptions, Store};
use foldlog_test_support::host::types;
use foldlog_test_support::room::{Room, root, store_in};
use foldlog_test_support::workload::write_objects;
use foldlog_tests::verbs::foldlog;

#[test]
fn the_binary_tells_what_would_go_and_removes_it_when_it_is_told_to() {
    let directory = tempfile::tempdir().unwrap();
    let options = foldlog::StoreOptions { object_bytes_min: 600, ..foldlog::StoreOptions::default() };
    let store = Store::open_with(directory.path(), options).unwrap();
    let session = store.create(&types()).unwrap();
    write_objects(&session, 6);
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close().unwrap();
    store.compact(id, &CompactOptions::default()).unwrap();
    let gc = |path: &std::path::Path, flags: &[&str]| {
        let arguments = ["gc".into(), path.as_os_str().to_owned()];
        foldlog(arguments.into_iter().chain(flags.iter().map(|flag| (*flag).into())))
    };
    let count = || std::fs::read_dir(dir.join("objects")).unwrap().count();
    let before = count();
    let told = gc(directory.path(), &[]);
    assert!(
        told.code == 0 && told.stdout.contains("would remove 10 objects"),
        "{}{}",
        told.stdout,
        told.stderr
    );
    assert!(told.stdout.contains("--yes"), "{}", told.stdout);
    assert_eq!(count(), before);
    let done = gc(&dir, &["--yes"]);
    assert!(done.code == 0 && done.stdout.contains("removed 10 objects"), "{}{}", done.stdout, done.stderr);
    assert_eq!(count(), before - 10);
    let again = gc(directory.path(), &["--yes"]);
    assert_eq!((again.code, again.stdout.as_str()), (0, "nothing to remove\n"));
    let json = gc(directory.path(), &["--json"]);
    let report: CollectReport = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(report, CollectReport::default());
    let wrong = gc(&directory.path().join("nowhere"), &[]);
    assert!(
        wrong.code == 2 && wrong.stderr.contains("is neither a store nor a session in one"),
        "{}",
        wrong.stderr
    );
    assert_eq!(foldlog(["verify".into(), dir.into_os_string()]).code, 0);
}

#[test]
fn the_binary_collects_captures() {
    let room = Room::new();
    let first = room.call("printf first > page");
    for n in 0..5 {
        room.call(&format!("printf {n} > page"));
    }
    room.session().clone().close().unwrap();
    let gc = |flags: &[&str]| {
        let store: &Path = &room.directory.path().join("store");
        let arguments = ["gc".into(), store.as_os_str().to_owned()];
        foldlog(arguments.into_iter().chain(flags.iter().map(|flag| (*flag).into())))
    };
    let told = gc(&[]);
    assert_eq!((told.code, told.stdout.as_str()), (0, "nothing to remove\n"), "a hundred calls are kept");
    let done = gc(&["--keep-calls", "1", "--yes"]);
    assert!(done.code == 0 && done.stdout.contains("of captures"), "{}{}", done.stdout, done.stderr);
    let dir = store_in(room.directory.path()).session_dir(room.id);
    let back = foldlog([
        "rewind".into(),
        dir.into_os_string(),
        first.to_string().into(),
        "--preview".into(),
        "--workspace".into(),
        root(room.directory.path()).into_os_string(),
    ]);
    assert!(back.code != 0 && back.stderr.contains("by a collection"), "{}{}", back.stdout, back.stderr);
}

/// The binary ended as if it could not read the store, although everything had been collected. A
/// pool that is a link must not be followed, and one that is a file must not prevent the collection
/// of the rest.
#[test]
fn a_pool_that_is_no_directory_is_left_alone_and_told_of_without_its_control_characters() {
    for is_link in [true, false] {
        let room = Room::new();
        for n in 0..5 {
            room.call(&format!("printf {n} > page"));
        }
        room.session().clone().close().unwrap();
        let Room { directory, runner, .. } = room;
        drop(runner);
        let root = directory.path().join("of\u{1b}[2Jsomebody");
        fs::rename(directory.path().join("store"), &root).unwrap();
        let (pool, elsewhere) = (root.join("pool"), directory.path().join("elsewhere"));
        let _ = fs::remove_dir_all(&pool);
        let theirs =
            ["a".repeat(64), format!("files/objects/ab/{}", "c".repeat(38))].map(|it| elsewhere.join(it));
        fs::create_dir_all(elsewhere.join("files/objects/ab")).unwrap();
        theirs.iter().for_each(|path| fs::write(path, "not yours").unwrap());
        match is_link {
            true => std::os::unix::fs::symlink(&elsewhere, &pool).unwrap(),
            false => fs::write(&pool, "no pool").unwrap(),
        }
        let words =
            ["gc".into(), root.clone().into_os_string(), "--keep-calls".into(), "1".into(), "--yes".into()];
        let ran = foldlog(words);
        let what = if is_link { "a symbolic link" } else { "a regular file" };
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{what}");
        assert!(ran.stdout.contains("objects of captures"), "{}", ran.stdout);
        assert!(ran.stdout.contains(&format!("somebody/pool: left alone: it is {what}\n")), "{}", ran.stdout);
        assert!(!ran.stdout.contains('\u{1b}'), "{:?}", ran.stdout);
        assert!(pool.symlink_metadata().is_ok() && theirs.iter().all(|path| path.is_file()), "{what}");
    }
}

//! Irregular entries with the names of a store's files, while the store is collected.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use foldlog::filesystem::HostFilesystem;
use foldlog::{CollectOptions, CollectedFiles};
use foldlog_test_support::room::{Room, store_in};

use super::collected::keeping;
use super::*;

/// Creates a directory with content, a link to a foreign file, or a pipe.
fn make_irregular(what: &str, path: &Path, elsewhere: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    match what {
        "a directory" => {
            fs::create_dir(path).unwrap();
            fs::write(path.join("inside"), "not yours").unwrap();
        }
        "a symbolic link" => std::os::unix::fs::symlink(elsewhere, path).unwrap(),
        _ => nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
    }
}

/// Protects: an irregular entry with the name of a file that a collection reads does no harm. It
/// stays, the report names it, and the rest is collected. If a directory had an object's name in
/// the pool, the object could not be removed, and the collection of the whole store ended.
#[test]
fn what_bears_a_files_name_and_is_none_is_left_alone_and_the_rest_goes() {
    for what in ["a directory", "a symbolic link", "a pipe"] {
        let room = Room::new();
        for n in 0..5 {
            room.call(&format!("printf {n} > page"));
        }
        room.session().clone().close().unwrap();
        let Room { directory, runner, id, .. } = room;
        drop(runner);
        let (store, elsewhere) = (store_in(directory.path()), directory.path().join("elsewhere"));
        fs::write(&elsewhere, "not yours").unwrap();
        let (dir, root) = (store.session_dir(id), store.path().to_owned());
        let (object, captured, other) = ("a".repeat(64), "c".repeat(38), Uuid::from_u128(7));
        let mut made = vec![
            dir.join("objects").join(&object),
            dir.join("objects").join(format!("{}.new", "b".repeat(64))),
            dir.join("0000000099.seg.new"),
            dir.join("snapshots/00000000000000999999.image"),
            dir.join("files/objects/ab").join(&captured),
            dir.join("files/objects/ab/tmp_obj_1_1"),
            root.join("pool").join(&object),
            root.join("pool/files/objects/ab").join(&captured),
            root.join("writers").join(format!("{other}.json")),
        ];
        if what != "a directory" {
            made.push(root.join(format!("sessions/.new-{other}")));
            // A directory of objects that no capture has created.
            let mut unused = (0..=u8::MAX).rev().map(|byte| dir.join(format!("files/objects/{byte:02x}")));
            made.push(unused.find(|path| !path.exists()).unwrap());
        }
        made.iter().for_each(|path| make_irregular(what, path, &elsewhere));
        // An unreferenced object with another hard link, but not the one in the pool.
        let unnamed = dir.join("objects").join("d".repeat(64));
        fs::write(&unnamed, "nobody's").unwrap();
        fs::hard_link(&unnamed, directory.path().join("another name")).unwrap();
        let in_pool = root.join("pool").join("d".repeat(64));
        fs::create_dir(&in_pool).unwrap();

        let planned = store.collect(&CollectOptions { dry_run: true, ..keeping(1) }).unwrap();
        let report = store.collect(&keeping(1)).unwrap();
        assert_eq!(report, planned, "{what}");
        assert_eq!(report.skipped, BTreeMap::new(), "{what}");
        assert!(report.all.captures > 3 && report.all.objects == 1, "{what}: {report:?}");
        assert!(!unnamed.exists() && directory.path().join("another name").exists(), "{what}");
        let left: BTreeMap<_, _> =
            report.left.iter().map(|left| (left.path.clone(), left.what.as_str())).collect();
        let mut expected: BTreeMap<_, _> = made.iter().map(|path| (path.clone(), what)).collect();
        expected.insert(in_pool.clone(), "a directory");
        assert_eq!((left, report.left.len()), (expected, made.len() + 1), "{what}");
        for path in &made {
            let is_whole = what != "a directory" || path.join("inside").is_file();
            assert!(is_whole && path.symlink_metadata().is_ok(), "{what}: {path:?}");
        }
        assert!(in_pool.is_dir() && fs::read_to_string(&elsewhere).unwrap() == "not yours", "{what}");
        assert_eq!(
            store.collect(&keeping(1)).unwrap().all,
            CollectedFiles::default(),
            "{what}: nothing is left to do"
        );
    }
}

/// Protects: if a needed capture's commit is replaced by something else, its objects are unknown,
/// and none of them is collected. It was treated as a capture that the store does not have, and its
/// objects were removed.
#[test]
fn a_capture_in_whose_place_something_else_stands_keeps_its_objects() {
    for what in ["a directory", "a symbolic link", "a pipe"] {
        let room = Room::new();
        for n in 0..5 {
            room.call(&format!("printf {n} > page"));
        }
        let recorded = room.session().calls().recorded_captures().unwrap().remove("workspace").unwrap();
        let snapshot = HostFilesystem::recall(&recorded).unwrap();
        let commit = room.session().log().captures_dir().join("objects").join(&snapshot.commit[..2]);
        let commit = commit.join(&snapshot.commit[2..]);
        room.session().clone().close().unwrap();
        let Room { directory, runner, id, .. } = room;
        drop(runner);
        let store = store_in(directory.path());
        let aside = directory.path().join("aside");
        fs::rename(&commit, &aside).unwrap();
        make_irregular(what, &commit, &directory.path().join("nowhere"));
        for dry_run in [true, false] {
            let report = store.collect(&CollectOptions { dry_run, ..keeping(1) }).unwrap();
            assert_eq!(report.all, CollectedFiles::default(), "{what}: {report:?}");
            let why = &report.skipped[&id];
            assert!(why.contains(&format!("it is {what}, not a regular file")), "{what}: {why}");
        }
        match what {
            "a directory" => fs::remove_dir_all(&commit).unwrap(),
            _ => fs::remove_file(&commit).unwrap(),
        }
        fs::rename(&aside, &commit).unwrap();
        let report = store.collect(&keeping(1)).unwrap();
        assert!(report.all.captures > 3 && report.skipped.is_empty(), "{what}: {report:?}");
    }
}

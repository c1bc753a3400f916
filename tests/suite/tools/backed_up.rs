//! Backups of sessions with a workspace: the captures that were copied are read, and what is damaged of them is named.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use foldlog::{BackupOptions, BackupReport};
use foldlog_tests::verbs::foldlog;

use super::rewind::{Room, store_in};
use super::*;

fn back_up(room: &Room, to: &str) -> BackupReport {
    let store = store_in(room.folder.path());
    store.backup(room.id, room.folder.path().join(to), BackupOptions::default()).unwrap()
}

/// The objects of the captures, by their paths in the folder of captures.
fn objects(captures: &Path) -> BTreeSet<PathBuf> {
    let folders = fs::read_dir(captures.join("objects")).unwrap().map(|entry| entry.unwrap().path());
    let folders = folders.filter(|folder| folder.file_name().is_some_and(|name| name.len() == 2));
    let files = folders.flat_map(|folder| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
    files.map(|path| path.strip_prefix(captures).unwrap().to_owned()).collect()
}

/// Flips a bit in the middle of a file.
fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(path, bytes).unwrap();
}

/// A backup had copied what it never read: nobody knew until a rewind needed it.
#[test]
fn a_flipped_bit_in_any_object_of_a_capture_is_named_by_the_backup() {
    let room = Room::new();
    room.call("printf one > page; mkdir d; printf other > d/other; chmod 700 d/other");
    room.call("printf two > page");
    let captures = room.session().captures_dir();
    let sound = back_up(&room, "sound");
    assert!(sound.captures > 1, "{sound:?}");
    assert_eq!((sound.captures_absent, sound.damaged.len(), sound.damaged_more), (0, 0, 0));
    // Nothing is new, so nothing is read.
    assert_eq!(back_up(&room, "sound").captures, 0);

    let all = objects(&captures);
    assert!(all.len() > 5, "{all:?}");
    for (number, object) in all.iter().enumerate() {
        flip(&captures.join(object));
        let to = format!("damaged-{number}");
        let report = back_up(&room, &to);
        let copy = store_of_copy(&room, &to).join(captures.file_name().unwrap());
        let named: Vec<_> = report.damaged.iter().map(|one| one.path.clone()).collect();
        assert_eq!(named, [copy.join(object)], "{object:?}: {report:?}");
        assert_eq!(report.records, sound.records, "all else is copied");
        flip(&captures.join(object));
    }
    // A lost object is told as well, and so is a capture of which there is nothing.
    let lost = all.first().unwrap();
    let away = room.folder.path().join("away");
    fs::rename(captures.join(lost), &away).unwrap();
    let report = back_up(&room, "lost");
    assert_eq!((report.damaged.len() as u64 + report.captures_absent).min(1), 1, "{report:?}");
    fs::rename(&away, captures.join(lost)).unwrap();
    fs::rename(&captures, &away).unwrap();
    let report = back_up(&room, "absent");
    assert_eq!((report.captures, report.captures_absent), (0, sound.captures));
    fs::rename(&away, &captures).unwrap();

    // The binary says so, and its exit code is that of damage.
    let (session, to) = (room.session().dir().to_owned(), room.folder.path().join("by-binary"));
    let ran = |to: &Path| foldlog(["backup", session.to_str().unwrap(), "--to", to.to_str().unwrap()]);
    let sound = ran(&to);
    assert_eq!((sound.code, sound.stdout.contains("captures read")), (0, true), "{sound:?}");
    flip(&captures.join(lost));
    let damaged = ran(&room.folder.path().join("damaged-by-binary"));
    let name = lost.file_name().unwrap().to_str().unwrap();
    assert_eq!((damaged.code, damaged.stdout.contains(name)), (1, true), "{damaged:?}");
    assert!(damaged.stderr.contains("captures of 1 session are damaged"), "{damaged:?}");
}

fn store_of_copy(room: &Room, to: &str) -> PathBuf {
    let store = Store::open(room.folder.path().join(to)).unwrap();
    store.session_dir(room.id)
}

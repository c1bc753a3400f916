//! Backups of sessions with a workspace: copied captures are read, damaged ones are named until
//! they are repaired, and those damaged only in the copy are copied again.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use foldlog::filesystem::{HostFilesystem, HostFilesystemOptions};
use foldlog::{BackupOptions, BackupReport};
use foldlog_test_support::captures::{IN_PLACES, clear, flip, objects, put, with_objects};
use foldlog_test_support::room::{Room, store_in};

use super::*;

fn back_up(room: &Room, to: &str) -> BackupReport {
    back_up_by(room, to, BackupOptions::default())
}

fn back_up_by(room: &Room, to: &str, options: BackupOptions) -> BackupReport {
    let store = store_in(room.directory.path());
    store.backup(room.id, room.directory.path().join(to), options).unwrap()
}

/// Returns the names of the files that a backup left next to the log of a copy.
fn marks(copy: &Path) -> Vec<String> {
    let names = fs::read_dir(copy).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(".foldlog-backup")).collect()
}

/// A backup did not read the captures that it copied, so damage went unnoticed until a rewind
/// needed them.
#[test]
fn a_flipped_bit_in_any_object_of_a_capture_is_named_by_the_backup() {
    let room = Room::new();
    room.call("printf one > page; mkdir d; printf other > d/other; chmod 700 d/other");
    room.call("printf two > page");
    let captures = room.session().log().captures_dir();
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

        // A lost object is reported as well, even the first one of a capture.
        let away = room.directory.path().join("away");
        fs::rename(captures.join(object), &away).unwrap();
        let to = format!("lost-{number}");
        let report = back_up(&room, &to);
        let copy = store_of_copy(&room, &to).join(captures.file_name().unwrap());
        let named: Vec<_> = report.damaged.iter().map(|one| one.path.clone()).collect();
        assert_eq!(named, [copy.join(object)], "{object:?}: {report:?}");
        assert_eq!(report.captures_absent, 0, "{report:?}");
        fs::rename(&away, captures.join(object)).unwrap();
    }
}

fn store_of_copy(room: &Room, to: &str) -> PathBuf {
    let store = Store::open(room.directory.path().join(to)).unwrap();
    store.session_dir(room.id)
}

/// One backup reported a damaged capture. Later ones, which copied nothing of it, were silent, and
/// kept the damaged copy after the session's capture was repaired.
#[test]
fn each_backup_names_a_damaged_capture_until_the_session_has_a_sound_one() {
    let (room, captures, all) = with_objects();
    for (number, object) in all.iter().enumerate() {
        let to = format!("copy-{number}");
        flip(&captures.join(object));
        let damaged = |report: &BackupReport| -> Vec<PathBuf> {
            report.damaged.iter().map(|one| one.path.clone()).collect()
        };
        let first = back_up(&room, &to);
        let copied = first.dir.join("files").join(object);
        assert_eq!(damaged(&first), std::slice::from_ref(&copied), "{first:?}");
        // Nothing is new by then.
        for _ in 0..2 {
            let again = back_up(&room, &to);
            assert_eq!((damaged(&again), again.captures_healed), (vec![copied.clone()], 0), "{again:?}");
        }

        flip(&captures.join(object));
        let healed = back_up(&room, &to);
        assert_eq!((damaged(&healed), healed.captures_healed), (vec![], 1), "{healed:?}");
        assert_eq!(fs::read(&copied).unwrap(), fs::read(captures.join(object)).unwrap());
        assert!(marks(&healed.dir).is_empty(), "nothing is left to be read: {:?}", marks(&healed.dir));
        assert_eq!(back_up(&room, &to).captures, 0);
    }
}

/// Only a backup that reads all captures notices that the disk damaged earlier copies.
#[test]
fn a_backup_that_reads_all_captures_heals_the_copy_and_names_what_the_session_has_lost() {
    let (room, captures, all) = with_objects();
    let all_read = BackupOptions { check_captures: true, ..BackupOptions::default() };
    let copy = back_up(&room, "copy").dir.join("files");
    for object in &all {
        let sound = fs::read(copy.join(object)).unwrap();
        flip(&copy.join(object));
        assert_eq!(back_up(&room, "copy").captures_healed, 0);
        let healed = back_up_by(&room, "copy", all_read);
        assert_eq!((healed.damaged.len(), healed.captures_healed), (0, 1), "{healed:?}");
        assert_eq!(fs::read(copy.join(object)).unwrap(), sound);
        fs::remove_file(copy.join(object)).unwrap();
        let healed = back_up(&room, "copy");
        assert_eq!(
            (healed.files, healed.damaged.len()),
            (1, 0),
            "what is missing is copied by any: {healed:?}"
        );

        // The intact copy stays, and the session's own file has to be repaired.
        flip(&captures.join(object));
        for options in [all_read, BackupOptions::default(), BackupOptions::default()] {
            let told = back_up_by(&room, "copy", options);
            let paths: Vec<_> = told.damaged.iter().map(|one| one.path.clone()).collect();
            assert_eq!(paths, [captures.join(object)], "{told:?}");
            assert_eq!(fs::read(copy.join(object)).unwrap(), sound);
        }
        flip(&captures.join(object));
        assert!(back_up(&room, "copy").damaged.is_empty());
        assert_eq!(back_up(&room, "copy").captures, 0);
    }
}

/// A backup once copied every file whose length differed: a truncated file replaced the only intact
/// one.
#[test]
fn a_sound_file_of_the_copy_never_gives_way_to_a_damaged_one() {
    let (room, captures, all) = with_objects();
    let copy = back_up(&room, "copy").dir.join("files");
    for object in &all {
        let (here, there) = (captures.join(object), copy.join(object));
        let sound = fs::read(&here).unwrap();
        fs::set_permissions(&here, fs::Permissions::from_mode(0o600)).unwrap();
        for damaged in [&[], &sound[..sound.len() / 2], &[&sound[..sound.len() - 1], b"and more"].concat()] {
            fs::write(&here, damaged).unwrap();
            for _ in 0..2 {
                let told = back_up(&room, "copy");
                let paths: Vec<_> = told.damaged.iter().map(|one| one.path.clone()).collect();
                assert_eq!(paths, std::slice::from_ref(&here), "{told:?}");
                assert_eq!(fs::read(&there).unwrap(), sound);
            }
        }
        fs::write(&here, &sound).unwrap();
        assert!(back_up(&room, "copy").damaged.is_empty());
        assert_eq!(back_up(&room, "copy").captures, 0);
    }
}

/// After a kill between copying and reading, it is unknown whether the captures are intact.
#[test]
fn what_a_killed_backup_did_not_read_is_read_by_the_next() {
    let (room, captures, all) = with_objects();
    let dir = back_up(&room, "copy").dir;
    for left in ["0\n", "", "no number"] {
        flip(&dir.join("files").join(&all[0]));
        fs::write(dir.join(".foldlog-backup.unread"), left).unwrap();
        let next = back_up(&room, "copy");
        assert_eq!((next.damaged.len(), next.captures_healed), (0, 1), "{next:?}");
        assert!(next.captures > 1 && marks(&dir).is_empty(), "{next:?}");
    }
    // The mark is not part of the session: no copy of the copy has it.
    flip(&captures.join(&all[0]));
    let damaged = back_up(&room, "another").dir;
    assert_eq!(marks(&damaged), [".foldlog-backup.unread"]);
    let elsewhere = Store::open(room.directory.path().join("third")).unwrap();
    let third = elsewhere.backup_from(&damaged, BackupOptions::default()).unwrap();
    assert_eq!(third.damaged.len(), 1);
    fs::write(damaged.join(".foldlog-backup.unread"), "7\n").unwrap();
    assert_eq!(elsewhere.backup_from(&damaged, BackupOptions::default()).unwrap().files, 0);
}

/// A directory in place of a capture's object stopped every backup of the session, with an error
/// that named the copy's file.
#[test]
fn what_stands_in_the_place_of_a_capture_is_named_left_alone_and_stops_nothing_else() {
    let (room, captures, all) = with_objects();
    room.session().sync().unwrap();
    let first = back_up(&room, "copy");
    let copy = first.dir.join("files");
    let parts = [Path::new("config"), Path::new("HEAD"), Path::new("refs"), Path::new("objects")];
    let of_object = all[0].parent().unwrap();
    let places = parts.into_iter().chain([of_object]).chain(all.iter().map(PathBuf::as_path));
    let mut grown = 0;
    for (number, place) in places.enumerate() {
        for what in IN_PLACES {
            let usual = fs::metadata(captures.join(place)).unwrap();
            if usual.is_dir() == (what == "a directory") && (usual.is_dir() || what == "a regular file") {
                continue;
            }
            for (within, is_source) in [(&captures, true), (&copy, false)] {
                let (path, aside) = (within.join(place), room.directory.path().join("aside"));
                fs::rename(&path, &aside).unwrap();
                put(&path, what);
                room.session().dispatch(StepAdded { title: what.to_owned(), part: 0 }).unwrap();
                grown += 1;
                for _ in 0..2 {
                    let report = back_up(&room, "copy");
                    assert_eq!(report.records, first.records + grown, "all else is copied");
                    let told: Vec<_> = report.damaged.iter().filter(|one| one.path == path).collect();
                    let [told] = told.as_slice() else { panic!("{path:?}: {report:?}") };
                    assert!(told.reason.contains(&format!("it is {what}, not ")), "{told:?}");
                    let mut others = report.damaged.iter().filter(|one| !one.path.starts_with(&path));
                    assert!(others.next().is_none() || !is_source, "{report:?}");
                }
                if number % 3 == 0 && is_source {
                    // A first backup copies as much as it can.
                    let to = format!("anew-{number}-{what}");
                    let anew = back_up(&room, &to);
                    assert!(anew.damaged.iter().any(|one| one.path == path), "{anew:?}");
                    clear(&path);
                    fs::rename(&aside, &path).unwrap();
                    let healed = back_up(&room, &to);
                    assert!(healed.damaged.is_empty() && marks(&healed.dir).is_empty(), "{healed:?}");
                    continue;
                }
                clear(&path);
                fs::rename(&aside, &path).unwrap();
                let healed = back_up(&room, "copy");
                assert!(healed.damaged.is_empty() && marks(&healed.dir).is_empty(), "{path:?}: {healed:?}");
            }
        }
    }
    assert_eq!(objects(&copy), objects(&captures));
}

/// A session that had lost all its captures was backed up as if it had never had any.
#[test]
fn a_session_without_its_captures_is_named_for_as_long_as_the_copy_has_them() {
    let (room, captures, all) = with_objects();
    let copy = back_up(&room, "copy").dir.join("files");
    let aside = room.directory.path().join("aside");
    fs::rename(&captures, &aside).unwrap();
    for what in ["nothing", "a symbolic link", "a pipe", "a regular file"] {
        if what != "nothing" {
            put(&captures, what);
        }
        for _ in 0..2 {
            let report = back_up(&room, "copy");
            let told: Vec<_> = report.damaged.iter().map(|one| one.path.clone()).collect();
            let place = if what == "a regular file" { &copy } else { &captures };
            assert_eq!(told, std::slice::from_ref(place), "{what}: {report:?}");
        }
        if what != "nothing" {
            // No earlier copy exists.
            let anew = back_up(&room, &format!("anew-{what}"));
            assert_eq!(anew.damaged.len(), 1, "{what}: {anew:?}");
            clear(&captures);
        }
    }
    assert_eq!(objects(&copy).len(), all.len(), "the copy keeps them");
    fs::rename(&aside, &captures).unwrap();
    assert!(back_up(&room, "copy").damaged.is_empty());
}

/// Git refuses an object file with trailing bytes, and only reading it to its end shows them.
#[test]
fn bytes_behind_an_object_are_damage_and_stand_in_no_restores_way() {
    let room = Room::new();
    let then = room.call("printf one > page; mkdir d; printf other > d/other; chmod 700 d/other");
    room.call("printf two > page");
    let captures = room.session().log().captures_dir();
    for object in objects(&captures) {
        let path = captures.join(&object);
        let sound = fs::read(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, [&*sound, b"\0"].concat()).unwrap();
        let to = format!("copy-{}", object.file_name().unwrap().display());
        let report = back_up(&room, &to);
        let [told] = report.damaged.as_slice() else { panic!("{object:?}: {report:?}") };
        assert_eq!(told.path, report.dir.join("files").join(&object));
        assert!(told.reason.contains("extra bytes after its content"), "{told:?}");
        fs::write(&path, &sound).unwrap();
        let healed = back_up(&room, &to);
        assert!(healed.damaged.is_empty(), "{healed:?}");
    }
    for object in objects(&captures) {
        let path = captures.join(object);
        fs::write(&path, [&*fs::read(&path).unwrap(), b"more"].concat()).unwrap();
    }
    // Everything that a restore needs is there.
    let room = room.reopen();
    room.rewind(then);
    assert_eq!(room.file("page").as_deref(), Some("one"));
}

/// Large captures are in git packs, whose damage affects many objects.
#[test]
fn packs_of_captures_are_copied_once_read_and_repaired_in_either_direction() {
    let room = Room::new();
    let then = room.call("for n in $(seq 1100); do echo $n > $n; done; printf one > page");
    room.call("printf two > page");
    let captures = room.session().log().captures_dir();
    let packs = || -> Vec<PathBuf> {
        let entries = fs::read_dir(captures.join("objects/pack")).unwrap();
        entries.map(|entry| Path::new("objects/pack").join(entry.unwrap().file_name())).collect()
    };
    assert!(packs().len() >= 2);
    let first = back_up(&room, "copy");
    let copy = first.dir.join("files");
    assert!(first.damaged.is_empty() && packs().iter().all(|path| copy.join(path).is_file()), "{first:?}");
    room.call("printf three > page");
    let second = back_up(&room, "copy");
    assert!(second.files < 20 && second.damaged.is_empty(), "{second:?}");
    for path in packs() {
        let sound = fs::read(captures.join(&path)).unwrap();
        // The next backup reads everything because of the mark of the one before it.
        flip(&copy.join(&path));
        fs::write(first.dir.join(".foldlog-backup.unread"), "x").unwrap();
        let healed = back_up(&room, "copy");
        assert!(healed.damaged.is_empty() && healed.captures_healed > 0, "{path:?}: {healed:?}");
        assert!(fs::read(copy.join(&path)).unwrap() == sound);
        flip(&captures.join(&path));
        fs::write(first.dir.join(".foldlog-backup.unread"), "x").unwrap();
        let told = back_up(&room, "copy");
        assert!(told.damaged.iter().all(|one| one.path.starts_with(&captures)), "{told:?}");
        assert!(!told.damaged.is_empty() && fs::read(copy.join(&path)).unwrap() == sound);
        fs::write(captures.join(&path), &sound).unwrap();
    }
    let room = room.reopen();
    room.rewind(then);
    assert_eq!(room.file("page").as_deref(), Some("one"));
}

/// A forged mark claimed that nothing was left to read.
#[test]
fn a_forged_mark_stands_for_all_captures() {
    let (room, _, all) = with_objects();
    let report = back_up(&room, "copy");
    let (dir, object) = (report.dir.clone(), report.dir.join("files").join(&all[0]));
    let mark = dir.join(".foldlog-backup.unread");
    let last = report.records.to_string();
    for forged in
        ["99999", &last, &format!("{last}\n"), &format!("{last} 0123456789abcdef\n"), &"9".repeat(1 << 20)]
    {
        flip(&object);
        fs::write(&mark, forged).unwrap();
        let next = back_up(&room, "copy");
        assert_eq!((next.damaged.len(), next.captures_healed), (0, 1), "{forged:?}: {next:?}");
        assert!(marks(&dir).is_empty());
    }
    for what in &IN_PLACES[..3] {
        flip(&object);
        put(&mark, what);
        for healed in [1, 0] {
            let next = back_up(&room, "copy");
            let told: Vec<_> = next.damaged.iter().map(|one| one.path.clone()).collect();
            assert_eq!((told, next.captures_healed), (vec![mark.clone()], healed), "{next:?}");
        }
        clear(&mark);
        assert!(back_up(&room, "copy").damaged.is_empty());
    }
}

#[test]
fn captures_that_a_host_keeps_in_a_directory_of_its_own_are_told_of_and_found_within_the_sessions() {
    for kept in ["beside", "store/sessions/SESSION/mine"] {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("workspace")).unwrap();
        let session = store_in(directory.path()).create(&types()).unwrap();
        let captures = directory.path().join(kept.replace("SESSION", &session.id().to_string()));
        let root = directory.path().join("workspace");
        let files = HostFilesystem::open(&root, &captures, HostFilesystemOptions::default()).unwrap();
        let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
        let state = ExecutionState::new(session.clone(), resources);
        fs::write(root.join("page"), "one").unwrap();
        state.snapshot(None).unwrap();
        let back_up = |to: &str| {
            let store = store_in(directory.path());
            store.backup(session.id(), directory.path().join(to), BackupOptions::default()).unwrap()
        };
        let first = back_up("copy");
        if kept == "beside" {
            assert_eq!((first.captures, first.captures_absent, first.damaged.len()), (0, 1, 0), "{first:?}");
            let told = &first.elsewhere[0];
            assert_eq!((told.resource.as_str(), told.captures, told.parent), ("workspace", 1, None));
            continue;
        }
        assert_eq!((first.captures, first.captures_absent, first.elsewhere.len()), (1, 0, 0), "{first:?}");
        for object in objects(&captures) {
            flip(&captures.join(&object));
            let damaged = back_up(&format!("damaged-{}", object.file_name().unwrap().display())).damaged;
            assert_eq!(damaged.len(), 1, "{object:?}");
            flip(&captures.join(&object));
        }
    }
}

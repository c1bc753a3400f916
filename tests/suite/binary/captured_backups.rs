//! Backups of sessions with a workspace by the binary: the message and the exit code report damaged
//! captures until they are repaired.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog::filesystem::{HostFilesystem, HostFilesystemOptions};
use foldlog::{ExecutionState, ResourceRegistry};
use foldlog_test_support::captures::{IN_PLACES, clear, flip, objects, put, with_objects};
use foldlog_test_support::host::{StepAdded, types};
use foldlog_test_support::room::{Room, store_in};
use foldlog_tests::verbs::{Ran, foldlog};

fn back_up(room: &Room, to: &str) -> Ran {
    let (session, to) = (room.session().dir().to_owned(), room.directory.path().join(to));
    foldlog(["backup", session.to_str().unwrap(), "--to", to.to_str().unwrap()])
}

fn captures_of_copy(room: &Room, to: &str) -> PathBuf {
    room.directory.path().join(to).join("sessions").join(room.id.to_string()).join("files")
}

#[test]
fn a_flipped_bit_in_a_capture_is_reported_by_name_and_exit_code() {
    let (room, captures, all) = with_objects();
    let lost = all.first().unwrap();
    let sound = back_up(&room, "by-binary");
    assert_eq!((sound.code, sound.stdout.contains("captures read")), (0, true), "{sound:?}");
    flip(&captures.join(lost));
    let damaged = back_up(&room, "damaged-by-binary");
    let name = lost.file_name().unwrap().to_str().unwrap();
    assert_eq!((damaged.code, damaged.stdout.contains(name)), (1, true), "{damaged:?}");
    assert!(damaged.stderr.contains("captures of 1 session are damaged"), "{damaged:?}");
}

#[test]
fn each_backup_reports_a_damaged_capture_until_the_session_has_a_sound_one() {
    let (room, captures, all) = with_objects();
    for (number, object) in all.iter().enumerate() {
        let to = format!("copy-{number}");
        flip(&captures.join(object));
        // The second run copies nothing.
        for _ in 0..2 {
            let ran = back_up(&room, &to);
            assert!(ran.code == 1 && ran.stdout.contains("damaged capture: "), "{ran:?}");
        }
        flip(&captures.join(object));
        for _ in 0..2 {
            assert_eq!(back_up(&room, &to).code, 0);
        }
    }
}

#[test]
fn other_files_in_the_place_of_a_capture_are_reported_with_their_kind() {
    let (room, captures, all) = with_objects();
    room.session().sync().unwrap();
    assert_eq!(back_up(&room, "copy").code, 0);
    let copy = captures_of_copy(&room, "copy");
    let parts = [Path::new("config"), Path::new("HEAD"), Path::new("refs"), Path::new("objects")];
    let of_object = all[0].parent().unwrap();
    for place in parts.into_iter().chain([of_object]).chain(all.iter().map(PathBuf::as_path)) {
        for what in IN_PLACES {
            let usual = fs::metadata(captures.join(place)).unwrap();
            if usual.is_dir() == (what == "a directory") && (usual.is_dir() || what == "a regular file") {
                continue;
            }
            for within in [&captures, &copy] {
                let (path, aside) = (within.join(place), room.directory.path().join("aside"));
                fs::rename(&path, &aside).unwrap();
                put(&path, what);
                room.session().dispatch(StepAdded { title: what.to_owned(), part: 0 }).unwrap();
                let ran = back_up(&room, "copy");
                let told = format!("it is {what}, not ");
                assert!(ran.code == 1 && ran.stdout.contains(&told), "{path:?}: {ran:?}");
                clear(&path);
                fs::rename(&aside, &path).unwrap();
                assert_eq!(back_up(&room, "copy").code, 0, "{path:?}, {what}");
            }
        }
    }
}

#[test]
fn a_backup_of_a_session_without_its_captures_fails_for_as_long_as_the_copy_has_them() {
    let (room, captures, _) = with_objects();
    assert_eq!(back_up(&room, "copy").code, 0);
    let aside = room.directory.path().join("aside");
    fs::rename(&captures, &aside).unwrap();
    for what in ["nothing", "a symbolic link", "a pipe", "a regular file"] {
        if what != "nothing" {
            put(&captures, what);
        }
        for _ in 0..2 {
            assert_eq!(back_up(&room, "copy").code, 1, "{what}");
        }
        if what != "nothing" {
            clear(&captures);
        }
    }
    fs::rename(&aside, &captures).unwrap();
    assert_eq!(back_up(&room, "copy").code, 0);
}

#[test]
fn verify_reports_bytes_behind_an_object_and_how_to_copy_the_rest() {
    let (room, captures, all) = with_objects();
    for object in all {
        let path = captures.join(object);
        let sound = fs::read(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, [&*sound, b"\0"].concat()).unwrap();
        let verify = || foldlog(["verify", room.session().dir().to_str().unwrap(), "--captures"]);
        let ran = verify();
        assert!(ran.code == 1 && ran.stdout.contains("extra bytes after its content"), "{ran:?}");
        // The advice was `salvage`, which copies no captures.
        let advice = " --to STORE` copies a session with all its intact captures";
        assert!(ran.stderr.contains(advice) && !ran.stderr.contains("salvage"), "{}", ran.stderr);
        fs::write(&path, &sound).unwrap();
        let ran = verify();
        assert!(ran.code == 0 && ran.stdout.contains("captures of workspaces read, 0 were"), "{ran:?}");
    }
}

#[test]
fn other_files_in_the_place_of_a_backups_mark_are_reported_until_they_are_removed() {
    let (room, _, all) = with_objects();
    assert_eq!(back_up(&room, "copy").code, 0);
    let copy = captures_of_copy(&room, "copy");
    let mark = copy.parent().unwrap().join(".foldlog-backup.unread");
    for what in &IN_PLACES[..3] {
        flip(&copy.join(&all[0]));
        put(&mark, what);
        for _ in 0..2 {
            assert_eq!(back_up(&room, "copy").code, 1, "{what}");
        }
        clear(&mark);
        assert_eq!(back_up(&room, "copy").code, 0, "{what}");
    }
}

#[test]
fn captures_outside_of_the_session_are_reported_and_those_within_it_are_copied() {
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
        assert!(!objects(&captures).is_empty());
        let ran = foldlog([
            "backup",
            session.dir().to_str().unwrap(),
            "--to",
            directory.path().join("by-binary").to_str().unwrap(),
        ]);
        if kept == "beside" {
            assert!(
                ran.stdout.contains("not copied (outside the session's directory): 1 capture"),
                "{ran:?}"
            );
            assert!(ran.code == 0 && ran.stdout.contains("--snapshots workspace="), "{ran:?}");
        } else {
            assert!(ran.code == 0 && !ran.stdout.contains("not copied"), "{ran:?}");
        }
    }
}

//! Files over 50 MB, on disks that can share the blocks of files and on others.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use foldlog::filesystem::{FileForm, PartialCapture, audit_snapshots};
use foldlog_test_support::loop_disk::LoopDisk;
use foldlog_test_support::{child, killed, skipped};
use foldlog_timeline::{Timeline, TimelineOptions, TimelinePlace};

use crate::world::{World, now, shell};

const SIZES: PartialCapture =
    PartialCapture { file_bytes_max: 10_000, ignored_file_bytes_max: 10_000, shared_file_bytes_max: 100_000 };

const PART: &str = "large_files::part_that_captures_or_undoes_a_large_file";

fn btrfs() -> Option<LoopDisk> {
    LoopDisk::mounted_as("mkfs.btrfs", &["-q", "-f"], 512 << 20)
        .map_err(|reason| skipped(format!("no disk that shares blocks: {reason}")))
        .ok()
}

fn world_on(disk: &LoopDisk) -> World {
    let mut world = World::in_directory(tempfile::tempdir_in(disk.root()).unwrap());
    world.options.free_bytes_min = 0;
    world
}

/// Returns the bytes in use on a disk.
fn used_bytes(disk: &LoopDisk) -> u64 {
    rustix::fs::syncfs(File::open(disk.root()).unwrap()).unwrap();
    let space = rustix::fs::statvfs(disk.root()).unwrap();
    (space.f_blocks - space.f_bfree) * space.f_frsize
}

fn shared(world: &World) -> PathBuf {
    world.place.captures().join("shared")
}

fn clones(world: &World) -> Vec<PathBuf> {
    let found = fs::read_dir(shared(world)).into_iter().flatten();
    found.map(|entry| entry.unwrap().path()).collect()
}

/// Returns the number of incomplete files of captures.
fn temporaries(world: &World) -> usize {
    let found = fs::read_dir(world.place.captures().join("objects")).unwrap().flatten();
    found.filter(|entry| entry.file_name().to_string_lossy().starts_with("tmp_obj_")).count()
}

/// Returns the damaged files of the captures, with the reasons.
fn damage(world: &World) -> Vec<(PathBuf, String)> {
    let captures = world.open().captures().unwrap();
    let audited = audit_snapshots(&world.place.captures(), &captures, &|_| true);
    assert!(audited.absent.is_empty(), "{audited:?}");
    audited.damaged.into_iter().map(|damaged| (damaged.path, damaged.reason)).collect()
}

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    File::options().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

#[test]
fn a_file_of_60_mb_is_undone_and_redone_and_shares_its_blocks() {
    let Some(disk) = btrfs() else { return };
    let world = world_on(&disk);
    let large = world.root.join("large");
    let before: Vec<u8> = (0..60_000_000_u32).map(|at| (at % 251) as u8 + 1).collect();
    fs::write(&large, &before).unwrap();
    world.write("small", "1\n");
    let used = used_bytes(&disk);
    let call = world.call("call", || {
        overwrite(&large, 30_000_000, &[0; 1 << 20]);
        world.write("small", "2\n");
    });
    let after = fs::read(&large).unwrap();
    let changes = world.open_changes(call);
    let forms: Vec<_> = changes.files.iter().map(|change| change.after.as_ref().unwrap().form).collect();
    assert_eq!((forms, changes.not_kept.len()), (vec![FileForm::Shared, FileForm::Whole], 0));

    let undo = world.undo(&[call]);
    assert!(undo.conflicts.is_empty(), "{undo:?}");
    assert!(fs::read(&large).unwrap() == before, "the file is as before the call");
    let redo = world.undo(&[undo.number]);
    assert!(redo.conflicts.is_empty() && fs::read(&large).unwrap() == after);
    let removal = world.call("removal", || world.remove("large"));
    world.undo(&[removal]);
    assert!(fs::read(&large).unwrap() == after, "a removed file is back");

    let grown = used_bytes(&disk).saturating_sub(used);
    assert!(grown < 20_000_000, "{grown} bytes more are in use");
    assert_eq!(clones(&world).len(), 2);
    for (path, mode) in clones(&world).into_iter().map(|path| (path, 0o600)).chain([(shared(&world), 0o700)])
    {
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode, "{}", path.display());
    }
    assert_eq!(damage(&world), []);
    let fsck = Command::new("git").args(["fsck", "--strict"]).current_dir(world.place.captures()).output();
    assert!(fsck.is_err() || fsck.unwrap().status.success());

    // The clone of the latest capture stays, and does not count: the root has its blocks.
    assert!(!world.open().collect(70_000_000, now()).unwrap());
    assert_eq!(clones(&world).len(), 2);
    assert!(world.open().collect(50_000_000, now()).unwrap());
    assert_eq!(clones(&world).len(), 1);
    assert_eq!(damage(&world), []);
}

#[test]
fn an_altered_clone_is_found_and_not_restored_and_replaced_where_the_file_has_its_content() {
    let Some(disk) = btrfs() else { return };
    let mut world = world_on(&disk);
    world.options.sizes = SIZES;
    world.write("large", &"before".repeat(10_000));
    world.write("same", &"same".repeat(10_000));
    world.open().capture().unwrap();
    let same = clones(&world);
    let call = world.call("call", || world.write("large", &"after!".repeat(10_000)));
    let changes = world.open_changes(call);
    let clone = shared(&world).join(&changes.files[0].before.as_ref().unwrap().digest);
    let sound = fs::read(&clone).unwrap();
    let alterations: [(&str, &dyn Fn()); 4] = [
        ("its content does not match its digest", &|| overwrite(&clone, 50_000, b"x")),
        ("it has 59999 bytes instead of 60000", &|| fs::write(&clone, &sound[1..]).unwrap()),
        ("No such file or directory (os error 2)", &|| fs::remove_file(&clone).unwrap()),
        ("it is a symbolic link, not a regular file: move it away", &|| {
            std::os::unix::fs::symlink(world.root.join("large"), &clone).unwrap();
        }),
    ];
    for (reason, alter) in alterations {
        alter();
        assert_eq!(damage(&world), [(clone.clone(), reason.to_owned())]);
        let refused = world.try_undo(&[call], &[]).unwrap_err().to_string();
        assert!(refused.contains(reason), "{refused}");
        assert_eq!(world.read("large").unwrap(), "after!".repeat(10_000));
        let names: Vec<_> = world.manifest().into_keys().collect();
        assert_eq!(names, ["large", "same"], "{reason}");
    }
    fs::remove_file(&clone).unwrap();
    fs::write(&clone, &sound).unwrap();
    assert_eq!(damage(&world), []);
    // A clone of a file that the root still has is made again.
    let same = same.into_iter().find(|path| *path != clone).unwrap();
    for alter in [&|path: &Path| overwrite(path, 7, b"x"), &|path: &Path| fs::remove_file(path).unwrap()]
        as [&dyn Fn(&Path); 2]
    {
        alter(&same);
        world.open().capture().unwrap();
        assert_eq!(fs::read_to_string(&same).unwrap(), "same".repeat(10_000));
    }
    let undo = world.undo(&[call]);
    assert!(undo.conflicts.is_empty(), "{undo:?}");
    assert_eq!(world.read("large").unwrap(), "before".repeat(10_000));
}

#[test]
fn a_change_of_a_large_file_between_the_plan_and_the_undo_stays() {
    let Some(disk) = btrfs() else { return };
    let mut world = world_on(&disk);
    world.options.sizes = SIZES;
    world.write("large", &"before".repeat(10_000));
    let call = world.call("call", || world.write("large", &"after!".repeat(10_000)));
    let mut timeline = world.open();
    let plan = timeline.plan_undo(&[call], &[]).unwrap();
    overwrite(&world.root.join("large"), 30_000, b"mine");
    let mine = world.read("large").unwrap();
    let report = timeline.apply_undo(&plan, now()).unwrap();
    assert_eq!(report.conflicts.len(), 1, "{report:?}");
    assert_eq!(world.read("large").unwrap(), mine);
}

#[test]
fn a_file_that_grows_over_the_limit_and_shrinks_again_is_undone() {
    let Some(disk) = btrfs() else { return };
    let mut world = world_on(&disk);
    world.options.sizes = SIZES;
    world.write("file", &"s".repeat(9_000));
    let growth = world.call("growth", || world.write("file", &"large".repeat(4_000)));
    let shrinkage = world.call("shrinkage", || world.write("file", "small"));
    // Files over both limits are only noted, and so are ignored ones.
    world.write(".gitignore", "*.log\n");
    let noted = world.call("noted", || {
        world.write("huge", &"x".repeat(100_001));
        world.write("large.log", &"x".repeat(10_001));
    });
    assert_eq!(world.open_changes(noted).not_kept.len(), 2);
    world.undo(&[shrinkage]);
    assert_eq!(world.read("file").unwrap(), "large".repeat(4_000));
    world.undo(&[growth]);
    assert_eq!(world.read("file").unwrap(), "s".repeat(9_000));
    assert!(world.root.join("huge").exists());
}

#[test]
fn a_large_file_is_noted_where_blocks_cannot_be_shared() {
    let disk = LoopDisk::mounted(64 << 20);
    let Ok(disk) = disk.map_err(|reason| skipped(format!("no disk can be mounted: {reason}"))) else {
        return;
    };
    let mut world = world_on(&disk);
    world.options.sizes = SIZES;
    world.write("large", &"before".repeat(10_000));
    let call = world.call("call", || world.write("large", &"after!".repeat(10_000)));
    let changes = world.open_changes(call);
    assert!(changes.files.is_empty() && changes.not_kept.len() == 1, "{changes:?}");
    world.undo(&[call]);
    assert_eq!(world.read("large").unwrap(), "after!".repeat(10_000));
    assert_eq!(clones(&world).len(), 0);
    assert_eq!(temporaries(&world), 0);
}

#[test]
#[ignore = "part of another test, in a process of its own"]
fn part_that_captures_or_undoes_a_large_file() {
    let Some(argument) = child::argument() else { return };
    let (timelines, rest) = argument.split_once('\n').unwrap();
    let (root, what) = rest.split_once('\n').unwrap();
    let place = TimelinePlace::of_root(Path::new(timelines), Path::new(root)).unwrap();
    let mut options = TimelineOptions::default();
    (options.sizes, options.free_bytes_min) = (SIZES, 0);
    let mut timeline = Timeline::open(&place, &options).unwrap();
    if what == "capture" {
        timeline.begin_call(shell("killed", None), now()).unwrap();
    } else {
        let plan = timeline.plan_undo(&[1], &[]).unwrap();
        timeline.apply_undo(&plan, now()).unwrap();
    }
    drop(timeline);
    killed::tell_done();
}

fn argument_of(world: &World, what: &str) -> String {
    let timelines = world.place.dir.parent().unwrap();
    format!("{}\n{}\n{what}", timelines.display(), world.root.display())
}

#[test]
fn a_capture_of_a_large_file_that_is_killed_at_any_moment_leaves_no_wrong_state() {
    if !child::is_traced_here() {
        return;
    }
    let Some(disk) = btrfs() else { return };
    let mut world = world_on(&disk);
    world.options.sizes = SIZES;
    let content = |number: usize| format!("{number:6}").repeat(10_000);
    for number in 0..3 {
        world.write("large", &content(number));
        world.open().capture().unwrap();
    }
    world.write("large", &content(3));
    let argument = argument_of(&world, "capture");
    let calls = killed::calls(PART, &argument, &disk.root());
    assert!(calls.iter().any(|call| call.text.contains("/captures/shared")), "{calls:?}");
    for (call, number) in calls.iter().step_by(killed::step(7)).zip(4..) {
        world.write("large", &content(number));
        killed::kill_at(call, PART, &argument);
        let next = world.call("next", || world.write("large", "changed"));
        assert_eq!(damage(&world), [], "{call:?}");
        world.undo(&[next]);
        assert_eq!(world.read("large").unwrap(), content(number), "{call:?}");
    }
    // Leftovers of kills are removed together with captures.
    world.open().collect(0, now()).unwrap();
    assert_eq!(clones(&world).len(), 1);
    assert_eq!(temporaries(&world), 0);
}

#[test]
fn an_undo_of_a_large_file_that_is_killed_at_any_moment_is_completed_and_leaves_nothing() {
    if !child::is_traced_here() {
        return;
    }
    let Some(disk) = btrfs() else { return };
    let mut world = world_on(&disk);
    world.options.sizes = SIZES;
    world.write("large", &"before".repeat(10_000));
    let before = world.manifest();
    let call = world.call("call", || world.write("large", &"after!".repeat(10_000)));
    let after = world.manifest();
    let argument = argument_of(&world, "undo");
    let calls = killed::calls(PART, &argument, &world.root);
    assert!(calls.iter().any(|call| call.name == "renameat2"), "{calls:?}");
    let redo = || {
        let last = world.open().last_undo().unwrap();
        world.undo(&[last]);
        assert_eq!(world.manifest(), after);
    };
    redo();
    for killed_at in calls.iter().step_by(killed::step(3)) {
        killed::kill_at(killed_at, PART, &argument);
        if !world.open().undone().unwrap().wholly.contains(&call) {
            world.undo(&[call]);
        }
        assert_eq!(world.manifest(), before, "{killed_at:?}");
        redo();
    }
}

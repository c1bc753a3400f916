//! Captures that write git packs: kills at each step, a full disk.

use std::fs;
use std::path::Path;

use foldlog::filesystem::{
    CaptureCollectOptions, Error, FilesystemSnapshot, HostFilesystem, HostFilesystemOptions, audit_snapshots,
    collect_snapshots,
};
use foldlog_test_support::child;
use foldlog_test_support::loop_disk::LoopDisk;

use super::Bench;

/// More files than are stored one by one.
const MANY: usize = 1100;

fn write_many(root: &Path) {
    for n in 0..MANY {
        fs::write(root.join(n.to_string()), format!("file {n}\n")).unwrap();
    }
}

fn entries(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_captures() {
    let Some(argument) = child::argument() else { return };
    let (root, store) = argument.split_once(' ').unwrap();
    let files = HostFilesystem::open(root, store, HostFilesystemOptions::default()).unwrap();
    files.snapshot(None, true).unwrap();
}

/// A thread that writes a pack has four steps: two syncs and two renames. The first thread that
/// reaches a step is killed there; only the main thread has further ones.
const STEPS: usize = 6;

#[test]
fn a_capture_that_is_killed_at_any_step_leaves_whole_packs_or_leftovers_that_are_removed() {
    if !child::is_traced_here() {
        return;
    }
    let bench = Bench::new();
    write_many(&bench.root());
    let whole = bench.open().snapshot(None, true).unwrap();
    let empty = bench.directory.path().join("empty");
    fs::create_dir(&empty).unwrap();
    for number in 1..=STEPS {
        fs::remove_dir_all(bench.store()).unwrap();
        // The store's own files precede the steps.
        let options = HostFilesystemOptions::default();
        HostFilesystem::open(&empty, bench.store(), options).unwrap().snapshot(None, false).unwrap();
        let argument = format!("{} {}", bench.root().display(), bench.store().display());
        let inject = format!("inject=rename,fsync:signal=KILL:when={number}");
        let part = "filesystem::git_packs::part_of_a_child_that_captures";
        let passed = child::start_traced(&["-o", "/dev/null", "-e", &inject], part, &argument).passed();
        assert!(!passed, "step {number}");
        is_mended(&bench, &whole, &format!("step {number}"));
    }
}

/// Checks that a capture and a collection after a kill leave intact objects and nothing else.
fn is_mended(bench: &Bench, whole: &FilesystemSnapshot, what: &str) {
    let again = bench.open().snapshot(None, true).unwrap();
    assert_eq!(again.commit, whole.commit, "{what}");
    let is_whole = || {
        let audited = audit_snapshots(&bench.store(), [&again], &|_| true);
        assert!(audited.damaged.is_empty() && audited.snapshots == 1, "{what}: {audited:?}");
    };
    is_whole();
    let keep = std::slice::from_ref(&again);
    let options = CaptureCollectOptions { keep, give_up: &[], pool: None, dry_run: false };
    collect_snapshots(&bench.store(), &options).unwrap();
    let objects = entries(&bench.store().join("objects"));
    let packs = entries(&bench.store().join("objects/pack"));
    assert!(!objects.iter().chain(&packs).any(|name| name.starts_with("tmp_")), "{what}: {objects:?}");
    for name in &packs {
        let (stem, end) = name.rsplit_once('.').unwrap();
        let other = if end == "idx" { "pack" } else { "idx" };
        assert!(packs.contains(&format!("{stem}.{other}")), "{what}: {packs:?}");
    }
    is_whole();
    let _ = bench.git(&["fsck", "--strict", "--full"]);
}

/// The packs are under temporary names when the disk is full, and are removed.
#[test]
fn a_capture_on_a_full_disk_fails_and_leaves_no_part_of_a_pack() {
    let disk = LoopDisk::mounted(24 << 20);
    let Ok(disk) =
        disk.inspect_err(|reason| foldlog_test_support::skipped(format_args!("no disk: {reason}")))
    else {
        return;
    };
    let bench = Bench::new();
    for n in 0..MANY {
        let path = bench.at(&n.to_string());
        fs::write(path, noise(n, 20_000)).unwrap();
    }
    let store = disk.root().join("store");
    let open = || HostFilesystem::open(bench.root(), &store, HostFilesystemOptions::default()).unwrap();
    let error = open().snapshot(None, true).unwrap_err();
    assert!(error.is_full(), "{error}");
    assert!(matches!(error, Error::Io { .. } | Error::Full { .. }), "{error}");
    let left: Vec<String> =
        entries(&store.join("objects")).into_iter().filter(|name| name.starts_with("tmp_")).collect();
    assert!(left.is_empty(), "{left:?}");
    write_many(&bench.root());
    let snapshot = open().snapshot(None, true).unwrap();
    let audited = audit_snapshots(&store, [&snapshot], &|_| true);
    assert!(audited.damaged.is_empty() && audited.snapshots == 1, "{audited:?}");
}

/// Returns incompressible bytes.
fn noise(seed: usize, len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ (seed as u64 + 1).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(step).collect()
}

//! The content of a snapshot, and files that it refuses.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use foldlog::filesystem::Error;
use foldlog::filesystem::{
    Filesystem, FilesystemSnapshot, HostFilesystem, HostFilesystemOptions, Uncapturable,
};
use foldlog_test_support::child;

use super::Bench;

fn reason(result: foldlog::filesystem::Result<impl std::fmt::Debug>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn any_git_reads_a_snapshot() {
    let bench = Bench::new();
    let files = bench.open();
    // Git sorts a directory as if its name ended in a slash, so after `b.txt`.
    bench.shell("mkdir -p b && echo x >b/c && echo x >b.txt");
    bench.shell(
        "mkdir -p src empty a.d && echo code >src/main.rs && echo x >a && echo y >a.d/z && ln -s src link",
    );
    bench.shell("printf '#!/bin/sh\\n' >run && chmod 755 run && head -c 3000000 /dev/zero >large");
    let snapshot = files.snapshot(Some("before the tool\n with two lines"), true).unwrap();
    assert_eq!(snapshot.files, 8);
    let Some(fsck) = bench.git(&["fsck", "--full", "--strict"]) else { return };
    assert!(!fsck.contains("error") && !fsck.contains("missing"), "{fsck}");
    assert_eq!(bench.git(&["cat-file", "-t", &snapshot.commit]).unwrap(), "commit\n");
    let blob = format!("{}:src/main.rs", snapshot.commit);
    assert_eq!(bench.git(&["cat-file", "blob", &blob]).unwrap(), "code\n");
    let tree = bench.git(&["ls-tree", &snapshot.commit]).unwrap();
    let modes: Vec<(&str, &str)> = tree
        .lines()
        .map(|line| (line.split(' ').next().unwrap(), line.split('\t').nth(1).unwrap()))
        .collect();
    assert_eq!(
        modes,
        [
            ("100644", "a"),
            ("040000", "a.d"),
            ("100644", "b.txt"),
            ("040000", "b"),
            ("040000", "empty"),
            ("100644", "large"),
            ("120000", "link"),
            ("100755", "run"),
            ("040000", "src")
        ]
    );
    let subject = bench.git(&["log", "-1", "--format=%s", &snapshot.commit]).unwrap();
    assert_eq!(subject, "before the tool\\x0a with two lines\n");
}

#[test]
fn an_unchanged_workspace_has_the_same_commit_and_nothing_is_written() {
    let bench = Bench::new();
    bench.shell("mkdir -p a/b c && echo 1 >a/1 && echo 2 >a/b/2 && ln -s nowhere c/3");
    let files = bench.open();
    assert!(!bench.store().exists(), "nothing is written before the first snapshot");
    let first = files.snapshot(Some("tag"), true).unwrap();
    let stored = bench.stored();
    for durable in [false, true] {
        assert_eq!(files.snapshot(Some("tag"), durable).unwrap(), first);
    }
    assert_eq!(bench.stored(), stored);
    // Equal content gives an equal commit, whatever its history, and in another process too.
    bench.shell("echo 3 >a/1 && echo 1 >a/1 && touch a/b/2");
    assert_eq!(bench.open().snapshot(Some("tag"), false).unwrap().commit, first.commit);
    let other = files.snapshot(Some("another tag"), false).unwrap();
    assert_ne!(other.commit, first.commit);
    let text = serde_json::to_string(&first).unwrap();
    assert_eq!(serde_json::from_str::<FilesystemSnapshot>(&text).unwrap(), first);
}

#[test]
fn an_edit_of_the_same_size_right_behind_a_snapshot_is_seen() {
    let bench = Bench::new();
    let files = bench.open();
    let mut commits = Vec::new();
    for n in 100..300 {
        fs::write(bench.at("file"), n.to_string()).unwrap();
        commits.push(files.snapshot(None, false).unwrap());
    }
    for (n, snapshot) in (100..300).zip(&commits).step_by(17) {
        files.restore(snapshot).unwrap();
        assert_eq!(fs::read_to_string(bench.at("file")).unwrap(), n.to_string());
    }
    // Both files get the same times, as from a tool that unpacks an archive.
    bench.shell("touch -d '2020-01-01 00:00:00' file");
    let before = files.snapshot(None, false).unwrap();
    fs::write(bench.at("file"), "999").unwrap();
    bench.shell("touch -d '2020-01-01 00:00:00' file");
    assert_ne!(files.snapshot(None, false).unwrap().commit, before.commit);
}

#[test]
fn a_damaged_or_foreign_stat_cache_is_ignored() {
    let bench = Bench::new();
    bench.shell("mkdir a && echo 1 >a/1 && echo 2 >2");
    let first = bench.open().snapshot(None, false).unwrap();
    let cache = bench.store().join("stat-cache");
    let sound = fs::read(&cache).unwrap();
    let mut damages = vec![Vec::new(), b"nonsense".to_vec(), sound[..sound.len() / 2].to_vec()];
    for at in (0..sound.len()).step_by(29) {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x40;
        damages.push(damaged);
    }
    for damaged in damages {
        fs::write(&cache, damaged).unwrap();
        assert_eq!(bench.open().snapshot(None, false).unwrap(), first);
    }
    fs::remove_file(&cache).unwrap();
    symlink("/etc/passwd", &cache).unwrap();
    assert_eq!(bench.open().snapshot(None, false).unwrap(), first);
}

#[test]
fn an_object_that_was_cut_short_is_written_anew() {
    let bench = Bench::new();
    bench.shell("echo content >file");
    let first = bench.open().snapshot(None, false).unwrap();
    fs::remove_file(bench.store().join("stat-cache")).unwrap();
    for object in objects(&bench) {
        fs::remove_file(&object).unwrap();
        fs::write(&object, b"").unwrap();
    }
    assert_eq!(bench.open().snapshot(None, false).unwrap(), first);
    bench.shell("rm file");
    bench.open().restore(&first).unwrap();
    assert_eq!(fs::read(bench.at("file")).unwrap(), b"content\n");
}

/// An obstacle in place of an object or its directory stopped each snapshot, and the error did not
/// say what to do. If the directory was affected, the obstacle was not even named.
#[test]
fn what_stands_in_the_place_of_an_object_is_named_with_the_way_out() {
    for (script, found) in [
        ("rm $0 && mkdir $0", "it is a directory, not a regular file: move it away"),
        ("rm $0 && ln -s /nowhere $0", "it is a symbolic link, not a regular file: move it away"),
        ("rm $0 && mkfifo $0", "it is a pipe, not a regular file: move it away"),
        ("rm -r $1 && touch $1", "$1 is a regular file, not a directory: move it away"),
        ("rm -r $1 && ln -s /dev/null $1", "$1 is a symbolic link, not a directory: move it away"),
    ] {
        let bench = Bench::new();
        bench.shell("echo content >file");
        let first = bench.open().snapshot(None, false).unwrap();
        let blob = bench.git(&["hash-object", bench.at("file").to_str().unwrap()]).unwrap();
        let around = bench.store().join("objects").join(&blob[..2]);
        let object = around.join(blob[2..].trim());
        let in_place =
            |text: &str| text.replace("$0", object.to_str().unwrap()).replace("$1", around.to_str().unwrap());
        bench.shell(&in_place(script));
        fs::remove_file(bench.store().join("stat-cache")).unwrap();
        let said = format!("object {}: {}", object.display(), in_place(found));
        assert_eq!(reason(bench.open().snapshot(None, false)), said);
        // Follows the instructions of the error.
        let stands = if found.starts_with("it ") { &object } else { &around };
        fs::rename(stands, bench.directory.path().join("away")).unwrap();
        assert_eq!(bench.open().snapshot(None, false).unwrap(), first);
        bench.shell("rm file");
        bench.open().restore(&first).unwrap();
        assert_eq!(fs::read(bench.at("file")).unwrap(), b"content\n");
    }
}

/// Waits until the file system's clock differs from the last write, so that the next snapshot need
/// not read files again.
fn let_the_clock_pass(bench: &Bench) {
    let file = bench.directory.path().join("clock");
    let time = || {
        fs::write(&file, "").unwrap();
        fs::metadata(&file).unwrap().modified().unwrap()
    };
    let begin = time();
    while time().duration_since(begin).unwrap_or_default().as_millis() < 50 {}
}

/// Later snapshots relied on the object of an unchanged file without a check. If the object was
/// damaged meanwhile, a restore failed, although the file had been there all the time.
#[test]
fn an_object_of_an_unchanged_file_that_is_damaged_is_written_anew_by_the_next_snapshot() {
    let bench = Bench::new();
    bench.shell("mkdir -p a/b .git/refs && echo 1 >a/b/1 && ln -s a link && echo ref: x >.git/HEAD");
    bench.shell("truncate -s 4M holes && echo data >>holes && echo 2 >2");
    let mut files = bench.open();
    files.snapshot(None, true).unwrap();
    let_the_clock_pass(&bench);
    let first = files.snapshot(None, true).unwrap();
    let sound: Vec<_> = objects(&bench).into_iter().map(|path| (fs::read(&path).unwrap(), path)).collect();
    assert!(sound.len() > 10, "contents, directories, their times, a commit, a repository: {}", sound.len());
    for is_another_process in [false, true] {
        for damage in ["removed", "cut", "flipped"] {
            for (bytes, path) in &sound {
                if is_another_process {
                    drop(files);
                    files = bench.open();
                }
                let mut damaged = bytes.clone();
                let half = damaged.len() / 2;
                match damage {
                    "cut" => damaged.truncate(half),
                    _ => damaged[half] ^= 1,
                }
                fs::remove_file(path).unwrap();
                if damage != "removed" {
                    fs::write(path, damaged).unwrap();
                }
                assert_eq!(files.snapshot(None, true).unwrap(), first, "{damage} {}", path.display());
                assert_eq!(fs::read(path).ok().as_ref(), Some(bytes), "{damage} {}", path.display());
            }
        }
    }
    let before = bench.digest();
    bench.shell("rm -r a link holes && echo 3 >2");
    files.restore(&first).unwrap();
    assert_eq!(bench.digest(), before);
}

/// Rewrites a file with a flipped bit and its old time, like a failing disk.
fn flip_unnoticed(path: &Path) {
    let (mut bytes, time) = (fs::read(path).unwrap(), fs::metadata(path).unwrap().modified().unwrap());
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
    fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

#[test]
fn once_damage_is_known_the_next_snapshot_writes_anew_what_the_workspace_holds() {
    let bench = Bench::new();
    bench.shell("echo 1 >kept && echo 2 >lost");
    // So that equal content has equal objects.
    let without_times = || HostFilesystemOptions::default().times(false);
    let files = bench.open_with(without_times());
    files.snapshot(None, true).unwrap();
    let_the_clock_pass(&bench);
    let first = files.snapshot(None, true).unwrap();
    let all = || [first.clone()];
    let audited = |snapshots: &[FilesystemSnapshot]| {
        foldlog::filesystem::audit_snapshots(&bench.store(), snapshots, &|_| true).damaged.len()
    };
    // An audit by another process.
    let count = objects(&bench).len();
    objects(&bench).iter().for_each(|object| flip_unnoticed(object));
    assert_eq!(files.snapshot(None, true).unwrap(), first);
    assert!(audited(&all()) > 0, "no file's time says that it was changed");
    assert_eq!(files.snapshot(None, true).unwrap(), first);
    assert_eq!((audited(&all()), objects(&bench).len()), (0, count));
    // A failed restore, for this process and for the next one.
    for is_another_process in [false, true] {
        objects(&bench).iter().for_each(|object| flip_unnoticed(object));
        bench.shell("echo other >lost");
        let refused = files.restore(&first).unwrap_err();
        assert!(matches!(refused, Error::Object { .. }), "{refused}");
        bench.shell("echo 2 >lost");
        let another = bench.open_with(without_times());
        let next = if is_another_process { &another } else { &files };
        assert_eq!(next.snapshot(None, true).unwrap(), first);
        bench.shell("echo other >kept && rm lost");
        next.restore(&first).unwrap();
        assert_eq!(fs::read(bench.at("kept")).unwrap(), b"1\n");
    }
}

/// The error named the object alone, so the lost file was unknown.
#[test]
fn a_file_that_cannot_be_restored_without_a_damaged_object_is_named() {
    let bench = Bench::new();
    bench.shell("mkdir deep && echo kept >kept && echo lost >deep/lost");
    let files = bench.open();
    let taken = files.snapshot(None, true).unwrap();
    let names_it = |object: &&PathBuf| {
        bench.shell("echo other >deep/lost");
        let whole = fs::read(object).unwrap();
        fs::write(object, &whole[..whole.len() / 2]).unwrap();
        let refused = files.restore(&taken);
        fs::write(object, whole).unwrap();
        matches!(refused, Err(Error::Object { reason, .. }) if reason.ends_with("; without it deep/lost cannot be restored"))
    };
    assert_eq!(objects(&bench).iter().filter(names_it).count(), 1);
}

#[test]
fn of_many_unchanged_files_each_snapshot_looks_at_a_part_and_several_at_all() {
    let bench = Bench::new();
    bench.shell("for i in $(seq 2500); do echo $i >$i; done");
    let files = bench.open();
    files.snapshot(None, true).unwrap();
    let_the_clock_pass(&bench);
    let first = files.snapshot(None, true).unwrap();
    let gone: Vec<_> = objects(&bench).into_iter().step_by(500).collect();
    gone.iter().for_each(|object| fs::remove_file(object).unwrap());
    let missing = || gone.iter().filter(|object| !object.exists()).count();
    for turn in 1..=3 {
        assert_eq!(files.snapshot(None, true).unwrap(), first, "turn {turn}");
    }
    assert_eq!(missing(), 0);
}

#[test]
fn what_can_be_no_part_of_a_snapshot_is_named() {
    let bench = Bench::new();
    let files = bench.open();
    bench.shell("mkdir -p deep/er && echo x >file && mkfifo deep/er/pipe");
    assert!(reason(files.snapshot(None, false)).contains("deep/er/pipe"));
    // The list is available before any snapshot, and reading it changes nothing.
    let pipe = (Path::new("deep/er/pipe").to_owned(), Uncapturable::Special);
    assert_eq!(bench.open().uncapturable().unwrap(), [pipe]);
    let left_out = HostFilesystemOptions::default().leave_out("pipe");
    assert!(bench.open_with(left_out).uncapturable().unwrap().is_empty());
    bench.shell("rm deep/er/pipe");
    assert!(files.uncapturable().unwrap().is_empty());
    let snapshot = files.snapshot(None, false).unwrap();
    bench.shell("rm file && mkfifo file");
    files.restore(&snapshot).unwrap();
    assert_eq!(fs::read(bench.at("file")).unwrap(), b"x\n");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let bench = Bench::new();
    bench.shell(
        "mkdir -p shut own && echo x >secret && touch own/file && chmod 000 secret shut && chmod 777 .",
    );
    let directory = bench.directory.path();
    fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let mut process =
        child::start("filesystem::storing::part_of_the_unprivileged", &directory.display().to_string());
    let said = process.hear("said").unwrap_or_default();
    if said == "skipped" {
        foldlog_test_support::skipped("privileges cannot be dropped here");
        return;
    }
    let secret = bench.at("secret").display().to_string();
    assert!(said.contains(&secret) && said.contains("denied"), "{said}");
    assert!(process.passed());
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_the_unprivileged() {
    let Some(directory) = child::argument() else { return };
    let nobody = (nix::unistd::Gid::from_raw(65534), nix::unistd::Uid::from_raw(65534));
    if nix::unistd::Uid::effective().is_root()
        && (nix::unistd::setgid(nobody.0).is_err() || nix::unistd::setuid(nobody.1).is_err())
    {
        child::tell("said", "skipped");
        return;
    }
    let directory = std::path::Path::new(&directory);
    let options = HostFilesystemOptions::default();
    let files = HostFilesystem::open(directory.join("workspace"), directory.join("store"), options).unwrap();
    let unreadable = |path: &str| (Path::new(path).to_owned(), Uncapturable::Unreadable);
    assert_eq!(files.uncapturable().unwrap(), [unreadable("secret"), unreadable("shut")]);
    child::tell("said", reason(files.snapshot(None, false)));
    fs::remove_dir_all(directory.join("store")).unwrap();

    // The user's own directories without permission to enter come back too.
    let own = directory.join("own");
    fs::create_dir_all(own.join("closed/deep")).unwrap();
    fs::write(own.join("closed/deep/file"), "x").unwrap();
    let options = HostFilesystemOptions::default();
    let files = HostFilesystem::open(&own, directory.join("store"), options).unwrap();
    let snapshot = files.snapshot(None, false).unwrap();
    let mode = |path: &str, mode| {
        fs::set_permissions(own.join(path), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    fs::write(own.join("closed/deep/file"), "yy").unwrap();
    mode("closed/deep/file", 0);
    mode("closed/deep", 0);
    mode("closed", 0);
    mode(".", 0);
    files.restore(&snapshot).unwrap();
    assert_eq!(fs::read(own.join("closed/deep/file")).unwrap(), b"x");
    // So does the workspace itself, also while it is leased.
    let lease = files.lease(std::time::Instant::now()).unwrap();
    for taken in [0, 0o111, 0o222, 0o444, 0o666] {
        fs::write(own.join("closed/deep/file"), "yy").unwrap();
        mode(".", taken);
        files.restore(&snapshot).unwrap();
        assert_eq!(fs::read(own.join("closed/deep/file")).unwrap(), b"x", "{taken:o}");
    }
    drop(lease);
    mode(".", 0);
    assert!(reason(files.lease(std::time::Instant::now())).contains("denied"));
    files.make_openable(&snapshot).unwrap();
    drop(files.lease(std::time::Instant::now()).unwrap());
    files.restore(&snapshot).unwrap();
    // A read-only directory is no obstacle either.
    mode("closed/deep", 0o555);
    let read_only = files.snapshot(None, false).unwrap();
    mode("closed/deep", 0o755);
    fs::remove_file(own.join("closed/deep/file")).unwrap();
    mode("closed/deep", 0o500);
    files.restore(&read_only).unwrap();
    assert_eq!(fs::read(own.join("closed/deep/file")).unwrap(), b"x");
    files.restore(&snapshot).unwrap();
    fs::remove_dir_all(own).unwrap();
}

#[test]
fn a_workspace_and_its_store_are_two_directories_beside_each_other() {
    let bench = Bench::new();
    let open = |root: &str, store: &str| {
        let options = HostFilesystemOptions::default();
        HostFilesystem::open(bench.directory.path().join(root), bench.directory.path().join(store), options)
    };
    symlink("workspace", bench.directory.path().join("link")).unwrap();
    fs::write(bench.directory.path().join("file"), "").unwrap();
    assert!(reason(open("workspace", "workspace/.store")).contains("inside the workspace"));
    assert!(reason(open("workspace", "link/not/yet/there")).contains("inside the workspace"));
    assert!(reason(open("workspace", "workspace")).contains("inside the workspace"));
    assert!(reason(open("workspace", ".")).contains("inside the store"));
    assert!(reason(open("workspace", "link")).contains("link"));
    assert!(reason(open("none", "store")).contains("none"));
    assert!(reason(open("file", "store")).contains("not a directory"));
    let files = open("link", "not/yet/there").unwrap();
    assert!(!bench.directory.path().join("not").exists());
    let snapshot = files.snapshot(None, true).unwrap();
    fs::remove_dir(bench.root()).unwrap();
    assert!(reason(files.snapshot(None, false)).contains("gone"));
    assert!(reason(files.restore(&snapshot)).contains("gone"));
    assert!(reason(files.read("file")).contains("gone"));
    assert!(reason(files.lease(std::time::Instant::now())).contains("gone"));
}

#[test]
fn what_no_kept_snapshot_needs_is_collected() {
    let bench = Bench::new();
    let files = bench.open();
    let mut snapshots = Vec::new();
    for n in 0..6 {
        bench.shell(&format!("mkdir -p d && echo {n} >d/{n} && echo {n} >now"));
        snapshots.push((files.snapshot(None, false).unwrap(), bench.digest()));
    }
    let before = objects(&bench).len();
    let kept = [snapshots[1].0.clone(), snapshots[4].0.clone()];
    let removed = files.collect(&kept).unwrap();
    assert_eq!(objects(&bench).len() as u64, before as u64 - removed.objects);
    let of_each = 1 + 2 + 2 + 1;
    assert_eq!(
        objects(&bench).len(),
        2 * of_each + 5,
        "two commits of two trees each, their times and metadata, five contents"
    );
    assert_eq!(files.collect(&kept).unwrap().objects, 0);
    if let Some(fsck) = bench.git(&["fsck", "--full"]) {
        assert!(!fsck.contains("missing"), "{fsck}");
    }
    assert!(matches!(files.restore(&snapshots[2].0), Err(Error::Object { .. })));
    for n in [1, 4] {
        files.restore(&snapshots[n].0).unwrap();
        assert_eq!(bench.digest(), snapshots[n].1);
    }
    // Collected content that is still in the workspace is stored again by the next snapshot, of any
    // process.
    let elsewhere = bench.open();
    bench.shell("echo 9 >d/9");
    let nine = elsewhere.snapshot(None, false).unwrap();
    files.collect(&[]).unwrap();
    assert!(objects(&bench).is_empty());
    for files in [&files, &elsewhere] {
        assert_eq!(files.snapshot(None, false).unwrap(), nine);
        bench.shell("rm -r d");
        files.restore(&nine).unwrap();
        assert_eq!(fs::read(bench.at("d/9")).unwrap(), b"9\n");
        files.collect(&[]).unwrap();
    }
}

pub(super) fn objects(bench: &Bench) -> Vec<std::path::PathBuf> {
    let mut objects = Vec::new();
    for directory in fs::read_dir(bench.store().join("objects")).unwrap() {
        let directory = directory.unwrap().path();
        if directory.is_dir() {
            objects.extend(fs::read_dir(directory).unwrap().map(|object| object.unwrap().path()));
        }
    }
    objects.sort();
    objects
}

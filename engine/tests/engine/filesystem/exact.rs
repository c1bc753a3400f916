//! What a restore brings back besides contents, and what it reports if it cannot.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use foldlog::filesystem::{HostFilesystem, HostFilesystemOptions};
use foldlog_test_support::child;
use nix::sys::stat::{Mode, umask};
use nix::unistd::Uid;

use super::Bench;

/// Whether this process may give files away; if not, prints so.
fn may_give_away() -> bool {
    let is_root = Uid::effective().is_root();
    if !is_root {
        foldlog_test_support::skipped("only root gives files away");
    }
    is_root
}

fn owner(path: &Path) -> (u32, u32, u32) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.uid(), found.gid(), found.mode() & 0o7777)
}

/// A file of mode 4755 that belonged to user 1000 came back with that mode and belonged to root, so
/// that it ran as root. A private file of user 1000 became root's. Neither was reported.
#[test]
fn a_file_comes_back_to_its_owner_and_never_bears_the_setuid_bit_of_another() {
    if !may_give_away() {
        return;
    }
    let bench = Bench::new();
    bench.shell("echo run >tool && echo mine >secret && mkdir directory && ln -s tool link");
    for (path, mode) in [("tool", 0o4755), ("secret", 0o600), ("directory", 0o2750)] {
        chown(bench.at(path), Some(1000), Some(1001)).unwrap();
        fs::set_permissions(bench.at(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    std::os::unix::fs::lchown(bench.at("link"), Some(1002), Some(1002)).unwrap();
    let files = bench.open();
    let snapshot = files.snapshot(None, false).unwrap();
    for script in [
        "rm -r tool secret directory link",
        "chown 0:0 tool secret directory && chown -h 0:0 link",
        "echo other >tool && echo other >secret && chmod 777 tool secret directory",
    ] {
        bench.shell(script);
        let restored = files.restore(&snapshot).unwrap();
        assert_eq!(restored.inexact, [], "{script}");
        assert_eq!(owner(&bench.at("tool")), (1000, 1001, 0o4755), "{script}");
        assert_eq!(owner(&bench.at("secret")), (1000, 1001, 0o600), "{script}");
        assert_eq!(owner(&bench.at("directory")), (1000, 1001, 0o2750), "{script}");
        assert_eq!((owner(&bench.at("link")).0, owner(&bench.at("link")).1), (1002, 1002), "{script}");
        assert_eq!(files.restore(&snapshot).unwrap(), Default::default(), "{script}");
    }
    // A snapshot from before owners were recorded does not say whose the bits are.
    let mut old = snapshot.clone();
    old.metadata = None;
    bench.shell("rm tool");
    let restored = files.restore(&old).unwrap();
    assert_eq!(owner(&bench.at("tool")), (0, 0, 0o755));
    assert!(restored.inexact.iter().any(|one| one.path == "tool"), "{:?}", restored.inexact);
}

/// Without the right to give files away, a restore reports the new owner of each file, and omits
/// the bits that would mean something else.
#[test]
pub(super) fn what_cannot_be_given_back_to_its_owner_is_told_and_loses_its_bits() {
    if !may_give_away() {
        return;
    }
    let bench = Bench::new();
    let directory = bench.directory.path();
    bench.shell("echo run >tool && echo plain >plain && chmod 644 plain && chmod 777 .");
    chown(bench.at("tool"), Some(1000), Some(1000)).unwrap();
    chown(bench.at("plain"), Some(1000), Some(1000)).unwrap();
    fs::set_permissions(bench.at("tool"), fs::Permissions::from_mode(0o6755)).unwrap();
    fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
    let mut process = child::start(
        "filesystem::exact::part_of_who_may_not_give_files_away",
        &directory.display().to_string(),
    );
    let told = process.hear("told").unwrap_or_default();
    assert!(process.passed(), "{told}");
    if told == "skipped" {
        foldlog_test_support::skipped("privileges cannot be dropped here");
        return;
    }
    assert_eq!(owner(&bench.at("tool")), (65534, 65534, 0o755));
    assert_eq!(owner(&bench.at("plain")), (65534, 65534, 0o644));
    assert!(told.contains("tool: it belongs to 65534:65534 and belonged to 1000:1000"), "{told}");
    assert!(told.contains("set-user-ID"), "{told}");
    assert!(told.contains("plain: it belongs to 65534:65534 and belonged to 1000:1000"), "{told}");
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_who_may_not_give_files_away() {
    let Some(directory) = child::argument() else { return };
    let nobody = (nix::unistd::Gid::from_raw(65534), Uid::from_raw(65534));
    if nix::unistd::setgroups(&[]).is_err()
        || nix::unistd::setgid(nobody.0).is_err()
        || nix::unistd::setuid(nobody.1).is_err()
    {
        child::tell("told", "skipped");
        return;
    }
    let directory = Path::new(&directory);
    let (root, store) = (directory.join("workspace"), directory.join("store"));
    let files = HostFilesystem::open(&root, store, HostFilesystemOptions::default()).unwrap();
    let snapshot = files.snapshot(None, false).unwrap();
    fs::remove_file(root.join("tool")).unwrap();
    fs::remove_file(root.join("plain")).unwrap();
    let restored = files.restore(&snapshot).unwrap();
    // A second restore finds them so, tries again, and reports them again.
    let again = files.restore(&snapshot).unwrap();
    let again = again.inexact.iter().filter(|one| one.path != ".");
    assert_eq!(again.count(), 2, "beside the root's time, whose owner this process is not");
    let told = restored.inexact.iter().map(|one| format!("{}: {}", one.path, one.reason));
    child::tell("told", told.collect::<Vec<_>>().join(" | "));
}

/// Another user could read a private file of the workspace from the store, whose directories were
/// 0755 and whose objects 0444.
#[test]
fn nobody_else_reads_what_is_in_the_store_whatever_the_umask() {
    for mask in [0o022, 0o000, 0o777] {
        let bench = Bench::new();
        let directory = bench.directory.path().display().to_string();
        let mut process =
            child::start("filesystem::exact::part_of_who_has_a_umask", &format!("{mask} {directory}"));
        process.ended();
        let mut left = vec![bench.store()];
        let mut files = 0;
        while let Some(directory) = left.pop() {
            let mode = fs::metadata(&directory).unwrap().mode() & 0o7777;
            assert_eq!(mode, 0o700, "{mask:o}: {}", directory.display());
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    left.push(path);
                } else {
                    files += 1;
                    let mode = fs::metadata(&path).unwrap().mode() & 0o7777;
                    assert_eq!(mode, 0o600, "{mask:o}: {}", path.display());
                }
            }
        }
        assert!(files > 6, "there are objects, a config, a HEAD and a stat cache: {files}");
    }
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_who_has_a_umask() {
    let Some(argument) = child::argument() else { return };
    let (mask, directory) = argument.split_once(' ').unwrap();
    let directory = Path::new(directory);
    let root = directory.join("workspace");
    fs::write(root.join("secret"), "x").unwrap();
    fs::write(root.join("large"), vec![7; 2 << 20]).unwrap();
    fs::create_dir(root.join("directory")).unwrap();
    fs::write(root.join("directory/file"), "y").unwrap();
    umask(Mode::from_bits_truncate(mask.parse().unwrap()));
    let files =
        HostFilesystem::open(&root, directory.join("workspace.git"), HostFilesystemOptions::default())
            .unwrap();
    files.snapshot(None, true).unwrap();
}

/// Hard links came back as two files, so that a later write to one name left the other unchanged.
#[test]
fn names_of_one_file_are_one_file_again() {
    let bench = Bench::new();
    bench.shell("mkdir a b && echo x >a/1 && ln a/1 b/2 && ln a/1 3 && echo y >other && ln other b/other && echo z >z");
    let files = bench.open();
    let (snapshot, before) = (files.snapshot(None, false).unwrap(), bench.digest());
    let inode = |path: &str| fs::metadata(bench.at(path)).unwrap().ino();
    for script in [
        "rm -r a b 3 other",
        "rm b/2 && echo x >b/2",
        "echo changed >3",
        "ln -f z 3",
        "ln -f other b/2",
        "chmod 600 a/1",
        "mv a c",
        "ln a/1 more",
    ] {
        bench.shell(script);
        let restored = files.restore(&snapshot).unwrap();
        assert_eq!(restored.inexact, [], "{script}");
        assert_eq!(bench.digest(), before, "{script}");
        assert!(inode("a/1") == inode("b/2") && inode("a/1") == inode("3"), "{script}");
        assert_eq!(inode("other"), inode("b/other"), "{script}");
        let names = |path: &str| fs::metadata(bench.at(path)).unwrap().nlink();
        assert_eq!((names("a/1"), names("other"), names("z")), (3, 2, 1), "{script}");
        assert_eq!(files.restore(&snapshot).unwrap(), Default::default(), "{script}");
        assert_eq!(files.snapshot(None, false).unwrap(), snapshot, "{script}");
    }
}

/// A write through a hard link also changes the file's names outside of the workspace.
#[test]
fn what_a_tool_wrote_through_a_link_to_a_file_outside_is_told() {
    let bench = Bench::new();
    bench.shell(
        "echo x >../outside && ln ../outside inside && echo y >../untouched && ln ../untouched second",
    );
    let files = bench.open();
    let snapshot = files.snapshot(None, false).unwrap();
    assert_eq!(files.restore(&snapshot).unwrap(), Default::default());
    bench.shell("echo changed >>inside");
    let restored = files.restore(&snapshot).unwrap();
    let told: Vec<&str> = restored.inexact.iter().map(|one| one.path.as_str()).collect();
    assert_eq!(told, ["inside"]);
    assert!(restored.inexact[0].reason.contains("outside"), "{:?}", restored.inexact);
    assert_eq!(fs::read(bench.at("inside")).unwrap(), b"x\n");
    assert_eq!(fs::read(bench.directory.path().join("outside")).unwrap(), b"x\nchanged\n");
}

fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 4096];
    let len = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

fn set(path: &Path, name: &str, value: &[u8]) -> bool {
    rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty()).is_ok()
}

/// `user::rwx,user:1000:rw-,group::r-x,mask::rwx,other::---`, as Linux encodes it.
const ACL: &[u8] = &[
    2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 6, 0, 232, 3, 0, 0, 4, 0, 5, 0, 255, 255, 255, 255, 16,
    0, 7, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
];

/// `cap_net_raw=ep`, as Linux encodes it.
const CAPABILITY: &[u8] = &[1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
pub(super) fn extended_attributes_come_back_with_capabilities_and_access_lists() {
    let bench = Bench::new();
    bench.shell("echo x >file && mkdir directory && echo y >directory/program && echo z >plain");
    if !set(&bench.at("file"), "user.colour", b"red") {
        foldlog_test_support::skipped("the file system has no extended attributes");
        return;
    }
    set(&bench.at("file"), "user.foldlog.work", b"not the file's own");
    set(&bench.at("directory"), "user.directory", b"\0\xff");
    let acl = set(&bench.at("directory"), "system.posix_acl_default", ACL)
        && set(&bench.at("file"), "system.posix_acl_access", ACL);
    let capable = set(&bench.at("directory/program"), "security.capability", CAPABILITY);
    let files = bench.open();
    let (snapshot, before) = (files.snapshot(None, false).unwrap(), bench.digest());
    for script in
        ["rm -r file directory plain", "echo 2 >file && echo 2 >directory/program && echo z >plain", "true"]
    {
        bench.shell(script);
        if script == "true" {
            assert!(set(&bench.at("file"), "user.colour", b"blue"));
            assert!(set(&bench.at("plain"), "user.new", b"1"));
            rustix::fs::lremovexattr(bench.at("directory"), "user.directory").unwrap();
        }
        let restored = files.restore(&snapshot).unwrap();
        assert_eq!(restored.inexact, [], "{script}");
        assert_eq!(bench.digest(), before, "{script}");
        assert_eq!(attribute(&bench.at("file"), "user.colour").as_deref(), Some(&b"red"[..]), "{script}");
        assert_eq!(
            attribute(&bench.at("directory"), "user.directory").as_deref(),
            Some(&b"\0\xff"[..]),
            "{script}"
        );
        assert_eq!(attribute(&bench.at("plain"), "user.new"), None, "{script}");
        if acl {
            let list = |path: &str, name: &str| attribute(&bench.at(path), name);
            assert_eq!(list("file", "system.posix_acl_access").as_deref(), Some(ACL), "{script}");
            assert_eq!(list("directory", "system.posix_acl_default").as_deref(), Some(ACL), "{script}");
            // It would inherit one from its parent directory.
            assert_eq!(list("directory/program", "system.posix_acl_access"), None, "{script}");
        }
        if capable {
            let found = attribute(&bench.at("directory/program"), "security.capability");
            assert_eq!(found.as_deref(), Some(CAPABILITY), "{script}");
        }
        assert_eq!(files.restore(&snapshot).unwrap(), Default::default(), "{script}");
        assert_eq!(files.snapshot(None, false).unwrap(), snapshot, "{script}");
    }
}

/// Times come back, so that a failed tool does not cause a rebuild.
#[test]
pub(super) fn times_come_back_where_nothing_is_left_out() {
    let bench = Bench::new();
    bench.shell("mkdir -p a/b .git && echo 1 >a/1 && echo 2 >a/b/2 && ln -s 1 a/link");
    bench.shell("touch -h -d '2020-01-01 00:00:00.123456789' a/1 a/link && touch -d '1969-12-31 12:00:00.5' a/b/2 a/b a .");
    let times = |path: &str| {
        let found = fs::symlink_metadata(bench.at(path)).unwrap();
        (found.mtime(), found.mtime_nsec())
    };
    let all = || ["a/1", "a/link", "a/b/2", "a/b", "a", "."].map(times);
    let files = bench.open();
    let (snapshot, before) = (files.snapshot(None, true).unwrap(), all());
    for script in [
        "rm -r a && mkdir .git/more",
        "echo 3 >a/1 && touch a/b/2",
        "touch a/b/new && rm a/b/new",
        "touch a/link && touch -h a/link a .",
    ] {
        bench.shell(script);
        bench.open().restore(&snapshot).unwrap();
        assert_eq!(all(), before, "{script}");
        assert_eq!(files.restore(&snapshot).unwrap(), Default::default(), "{script}");
        assert_eq!(all(), before, "{script}");
        assert_eq!(files.snapshot(None, false).unwrap(), snapshot, "{script}");
    }
}

/// The time came back as another one, and this was not reported.
#[test]
fn a_time_that_no_capture_keeps_is_told() {
    let bench = Bench::new();
    bench.shell("echo 1 >far && touch -d 2400-01-01 far");
    if fs::metadata(bench.at("far")).unwrap().mtime() < 13_000_000_000 {
        // This file system has no such time.
        return;
    }
    let files = bench.open();
    let snapshot = files.snapshot(None, false).unwrap();
    bench.shell("echo 2 >far");
    let restored = files.restore(&snapshot).unwrap();
    let told = "its time of change was before 1677 or after 2262, which no capture keeps";
    let found = restored.inexact.iter().any(|one| one.path == "far" && one.reason.contains(told));
    assert!(found && fs::read(bench.at("far")).unwrap() == b"1\n", "{restored:?}");
}

/// With old times next to an excluded `target/`, a build would take the tool's build products for
/// current.
#[test]
pub(super) fn times_do_not_come_back_beside_what_is_left_out() {
    let bench = Bench::new();
    bench.shell("echo 1 >source && touch -d '2020-01-01 00:00:00' source");
    let old = fs::metadata(bench.at("source")).unwrap().mtime();
    let files = bench.open_with(HostFilesystemOptions::default().leave_out("target/"));
    let snapshot = files.snapshot(None, false).unwrap();
    // Nothing was excluded then; it is now.
    bench.shell("echo 2 >source && mkdir target && cp source target/built");
    files.restore(&snapshot).unwrap();
    assert_eq!(fs::read(bench.at("source")).unwrap(), b"1\n");
    assert_ne!(fs::metadata(bench.at("source")).unwrap().mtime(), old);
    // Nor if it was excluded from the beginning.
    bench.shell("touch -d '2020-01-01 00:00:00' source");
    let snapshot = files.snapshot(None, false).unwrap();
    bench.shell("echo 2 >source && rm -r target");
    files.restore(&snapshot).unwrap();
    assert_ne!(fs::metadata(bench.at("source")).unwrap().mtime(), old);
    // Without times, two runs that do the same have equal snapshots.
    let without = bench.open_with(HostFilesystemOptions::default().times(false));
    let one = without.snapshot(None, false).unwrap();
    bench.shell("touch source");
    assert_eq!(without.snapshot(None, false).unwrap(), one);
}

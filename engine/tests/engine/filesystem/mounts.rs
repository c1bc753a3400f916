//! File systems mounted inside a workspace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use foldlog::filesystem::Error;
use foldlog::filesystem::Filesystem;

use super::{Bench, digest};

/// A bind mount of a directory or file, until this is dropped.
struct Bound(PathBuf);

impl Bound {
    /// `None`, with a printed reason, if this machine or user cannot mount.
    fn new(from: &Path, to: &Path) -> Option<Bound> {
        let mount = Command::new("mount").arg("--bind").arg(from).arg(to).output();
        match mount {
            Ok(output) if output.status.success() => Some(Bound(to.to_owned())),
            output => {
                foldlog_test_support::skipped(format_args!("nothing can be mounted here: {output:?}"));
                None
            }
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A bench, and a directory next to the workspace that must not change.
fn bench() -> (Bench, PathBuf) {
    let bench = Bench::new();
    bench.shell("mkdir src; echo one > src/file; echo keep > page");
    let victim = bench.directory.path().join("victim");
    fs::create_dir_all(victim.join("deep/deeper")).unwrap();
    fs::write(victim.join("deep/deeper/file"), "precious").unwrap();
    fs::write(victim.join("file"), "precious too").unwrap();
    (bench, victim)
}

/// A failed tool had run `mount --bind`. The restore entered the mount like any directory that the
/// snapshot lacks, and emptied its source. By device number it was the same file system.
#[test]
pub(super) fn what_a_tool_mounted_is_reported_and_neither_entered_nor_emptied() {
    let (bench, victim) = bench();
    let files = bench.open();
    let snapshot = files.snapshot(None, false).unwrap();
    let before = digest::of(&victim);
    bench.shell("mkdir -p new/inner; echo two > src/file; echo x > new/beside");
    let Some(bound) = Bound::new(&victim, &bench.at("new/inner")) else { return };
    let restored = files.restore(&snapshot).unwrap();
    assert_eq!(restored.mounts, ["new/inner"]);
    assert_eq!(restored.kept, ["new"]);
    assert_eq!(digest::of(&victim), before);
    assert_eq!(fs::read_to_string(bench.at("src/file")).unwrap(), "one\n");
    assert!(!bench.at("new/beside").exists() && bench.at("new/inner/file").exists());
    drop(bound);
    files.restore(&snapshot).unwrap();
    assert!(!bench.at("new").exists());
    assert_eq!(digest::of(&victim), before);
}

/// A restore with a mount over a path of the snapshot is not complete.
#[test]
fn a_mount_over_what_the_snapshot_has_is_a_path_that_is_not_restored() {
    let (bench, victim) = bench();
    let (files, before, whole) = (bench.open(), digest::of(&victim), bench.digest());
    let snapshot = files.snapshot(None, false).unwrap();
    bench.shell("echo changed > page; echo changed > src/file");
    let Some(directory) = Bound::new(&victim, &bench.at("src")) else { return };
    let Error::NotRestored(left) = files.restore(&snapshot).unwrap_err() else { panic!() };
    assert_eq!((left.len(), left[0].path.as_str()), (1, "src"));
    assert!(left[0].reason.contains("mounted"), "{left:?}");
    assert_eq!(fs::read_to_string(bench.at("page")).unwrap(), "keep\n", "all else is restored");
    drop(directory);
    // A single file can be a mount point as well.
    let file = Bound::new(&victim.join("file"), &bench.at("page")).unwrap();
    let Error::NotRestored(left) = bench.open().restore(&snapshot).unwrap_err() else { panic!() };
    assert_eq!((left.len(), left[0].path.as_str()), (1, "page"), "{left:?}");
    drop(file);
    files.restore(&snapshot).unwrap();
    assert_eq!(bench.digest(), whole);
    assert_eq!(digest::of(&victim), before);
}

/// A path mounted over when a snapshot is taken is no part of it, also later: neither the mounted
/// files nor, after an unmount, the hidden ones.
#[test]
fn a_snapshot_leaves_mounts_out_and_names_them() {
    let (bench, victim) = bench();
    bench.shell("mkdir data; echo hidden > data/hidden; echo hidden > hidden");
    let (files, before) = (bench.open(), digest::of(&victim));
    let Some(directory) = Bound::new(&victim, &bench.at("data")) else { return };
    let file = Bound::new(&victim.join("file"), &bench.at("hidden")).unwrap();
    let snapshot = files.snapshot(None, false).unwrap();
    assert_eq!(snapshot.mounts, ["data", "hidden"]);
    assert_eq!(snapshot.files, 2);
    bench.shell("echo two > src/file; echo from within > data/file");
    files.restore(&snapshot).unwrap();
    assert_eq!(fs::read_to_string(victim.join("file")).unwrap(), "from within\n", "nobody's to take back");
    drop((directory, file));
    fs::write(victim.join("file"), "precious too").unwrap();
    bench.shell("echo two > src/file; echo seen > data/seen");
    bench.open().restore(&snapshot).unwrap();
    assert_eq!(fs::read_to_string(bench.at("src/file")).unwrap(), "one\n");
    let kept = |name| fs::read_to_string(bench.at(name)).unwrap();
    assert_eq!(
        (kept("data/hidden"), kept("data/seen"), kept("hidden")),
        ("hidden\n".to_owned(), "seen\n".to_owned(), "hidden\n".to_owned())
    );
    assert_eq!(digest::of(&victim), before);
    // A snapshot of a workspace without mounts has no field for them.
    let snapshot = files.snapshot(None, false).unwrap();
    assert!(!serde_json::to_string(&snapshot).unwrap().contains("mounts"));
}

#[test]
fn a_tool_that_deletes_a_directory_deletes_no_mount_in_it() {
    let (bench, victim) = bench();
    let (files, before) = (bench.open(), digest::of(&victim));
    bench.shell("mkdir src/inner; echo x > src/a");
    let Some(bound) = Bound::new(&victim, &bench.at("src/inner")) else { return };
    let refused = files.delete("src");
    assert!(matches!(&refused, Err(Error::Path { reason, .. }) if reason.contains("mounted")), "{refused:?}");
    assert!(bench.at("src/a").exists());
    assert_eq!(digest::of(&victim), before);
    drop(bound);
    files.delete("src").unwrap();
}

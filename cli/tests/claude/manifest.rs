//! Manifests of a directory: names, kinds, bytes, modes and links, read without foldlog's code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What a path is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    File { bytes: Vec<u8>, links: u64 },
    Link { target: PathBuf },
    Other,
}

/// A path of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    /// The permission bits, without those of a symbolic link.
    pub(crate) mode: u32,
}

/// The change of a path between two manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Created,
    Changed,
    Removed,
}

/// The paths of a directory, relative to it, without its `.git`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) entries: BTreeMap<String, Entry>,
}

impl Manifest {
    /// Reads a directory.
    pub(crate) fn of(directory: &Path) -> Manifest {
        let mut manifest = Manifest::default();
        manifest.add(directory, directory);
        manifest
    }

    fn add(&mut self, root: &Path, directory: &Path) {
        for found in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let path = found.path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if name == ".git" {
                continue;
            }
            let metadata = fs::symlink_metadata(&path).unwrap();
            let kind = if metadata.is_dir() {
                self.add(root, &path);
                Kind::Directory
            } else if metadata.is_file() {
                Kind::File { bytes: fs::read(&path).unwrap(), links: metadata.nlink() }
            } else if metadata.is_symlink() {
                Kind::Link { target: fs::read_link(&path).unwrap() }
            } else {
                Kind::Other
            };
            let mode = if metadata.is_symlink() { 0 } else { metadata.permissions().mode() & 0o7777 };
            self.entries.insert(name, Entry { kind, mode });
        }
    }

    /// Returns the changed paths from this manifest to a later one, by name.
    pub(crate) fn changes(&self, later: &Manifest) -> Vec<(String, Change)> {
        let names: BTreeSet<&String> = self.entries.keys().chain(later.entries.keys()).collect();
        let change = |name: &String| match (self.entries.get(name), later.entries.get(name)) {
            (None, _) => Some(Change::Created),
            (_, None) => Some(Change::Removed),
            (before, after) => (before != after).then_some(Change::Changed),
        };
        names.into_iter().filter_map(|name| Some((name.clone(), change(name)?))).collect()
    }
}

/// Returns the modification times of a directory's files, to compare them after an undo with exact
/// times.
pub(crate) fn times(directory: &Path, manifest: &Manifest) -> BTreeMap<String, SystemTime> {
    let files = manifest.entries.iter().filter(|(_, entry)| matches!(entry.kind, Kind::File { .. }));
    let time = |name: &str| fs::symlink_metadata(directory.join(name)).unwrap().modified().unwrap();
    files.map(|(name, _)| (name.clone(), time(name))).collect()
}

#[test]
fn a_manifest_shows_created_changed_and_removed_paths() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for name in ["same", "bytes", "mode", "linked", "removed", "replaced"] {
        fs::write(path(name), "one").unwrap();
    }
    symlink("same", path("link")).unwrap();
    let before = Manifest::of(directory.path());
    let times_before = times(directory.path(), &before);

    fs::write(path("bytes"), "two").unwrap();
    fs::set_permissions(path("mode"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(path("linked"), path("hard")).unwrap();
    for name in ["removed", "replaced", "link"] {
        fs::remove_file(path(name)).unwrap();
    }
    fs::create_dir(path("replaced")).unwrap();
    symlink("bytes", path("link")).unwrap();
    let after = Manifest::of(directory.path());

    use Change::{Changed, Created, Removed};
    let changed = ["bytes", "link", "linked", "mode", "replaced"].map(|name| (name.to_owned(), Changed));
    let mut expected = changed.to_vec();
    expected.extend([("hard".to_owned(), Created), ("removed".to_owned(), Removed)]);
    expected.sort_by(|(one, _), (other, _)| one.cmp(other));
    assert_eq!(before.changes(&after), expected);
    let times_after = times(directory.path(), &after);
    assert_eq!(times_before["same"], times_after["same"]);
    assert_ne!(times_before["bytes"], times_after["bytes"]);
}

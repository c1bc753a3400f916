//! The paths that `.gitignore` files ignore, in snapshots that contain them nevertheless.
//!
//! A [partial](super::PartialCapture) snapshot contains ignored files, such as `.env`. Programs that
//! show or copy it leave them out by this list. It is derived from the `.gitignore` files in the
//! snapshots, so a capture neither costs nor records more.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::changes::SnapshotReader;
use super::leave_out::LeaveOut;
use super::manifest::{GitMode, display_path, is_too_deep, join, unescape_path};
use super::objects::{ObjectId, ObjectKind};
use super::regular_files::read_regular_file;
use super::rules::{GITIGNORE, GITIGNORE_BYTES_MAX};
use super::snapshot::FilesystemSnapshot;
use crate::error::Result;

/// Files that usually contain secrets. Users often ignore them by a list outside of the project,
/// which no snapshot contains.
const SECRETS: [&str; 6] = [".env", ".env.*", ".envrc", "!.env.example", "!.env.sample", "!.env.template"];

/// Greatest number of directories of snapshots that are remembered. More are read again.
const SEEN_MAX: usize = 1 << 20;

/// The paths that are ignored in any of some snapshots.
///
/// A path is ignored if a `.gitignore` in one of the snapshots, or a
/// [list around one](FilesystemSnapshot::ignored), ignores it or a directory around it,
/// and none in a directory nearer to it includes it again in all snapshots. Also ignored are
/// `.env`, `.envrc` and `.env.NAME`, except for the names `example`, `sample` and `template`.
#[derive(Debug)]
pub struct IgnoredPaths {
    secrets: LeaveOut,
    /// Lists by their directory.
    lists: HashMap<Vec<u8>, DirectoryLists>,
    /// Lists outside of the workspace.
    around: HashSet<Vec<String>>,
    /// Directories that were read: path and tree.
    seen: HashSet<(Vec<u8>, ObjectId)>,
}

/// The lists of one directory in some snapshots.
#[derive(Debug, Default)]
struct DirectoryLists {
    /// Objects of the lists; `None` if a snapshot has none there.
    ids: HashSet<Option<ObjectId>>,
    lists: Vec<LeaveOut>,
}

impl Default for IgnoredPaths {
    fn default() -> IgnoredPaths {
        let secrets = LeaveOut::new(SECRETS.iter().map(|line| line.as_bytes()));
        IgnoredPaths { secrets, lists: HashMap::new(), around: HashSet::new(), seen: HashSet::new() }
    }
}

impl IgnoredPaths {
    /// Reads the present lists that apply to a path below `root`. A list that cannot be read counts
    /// as ignoring its whole directory.
    pub fn at(root: &Path, path: &Path) -> IgnoredPaths {
        let mut ignored = IgnoredPaths::default();
        for directory in path.parent().into_iter().flat_map(Path::ancestors) {
            if let Some(list) = read_list(&root.join(directory).join(".gitignore")) {
                ignored.add(directory.as_os_str().as_bytes().to_vec(), list);
            }
        }
        ignored
    }

    /// Adds the patterns of a list outside of the workspace, such as git's `info/exclude`.
    pub fn add_patterns(&mut self, patterns: &[String]) {
        if !patterns.is_empty() && !self.around.contains(patterns) {
            self.around.insert(patterns.to_vec());
            self.add(Vec::new(), LeaveOut::new(patterns.iter().map(String::as_bytes)));
        }
    }

    fn add(&mut self, directory: Vec<u8>, list: LeaveOut) {
        self.lists.entry(directory).or_default().lists.push(list);
    }

    /// Returns whether a path is ignored. The path is relative to the workspace's root, and escaped
    /// like that of a [`FileChange`](super::FileChange). A path that is not escaped correctly is
    /// ignored.
    pub fn contains(&self, path: &str) -> bool {
        let Some(path) = unescape_path(path) else { return true };
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let mut ends: Vec<usize> = slashes.collect();
        ends.push(path.len());
        ends.into_iter().any(|end| self.ignores(path.get(..end).unwrap_or_default(), end < path.len()))
    }

    /// Returns whether an entry itself is ignored. Its parent directories are not considered.
    fn ignores(&self, path: &[u8], is_directory: bool) -> bool {
        if self.secrets.says(path, is_directory) == Some(true) {
            return true;
        }
        let mut end = path.len();
        while end > 0 {
            end = path.get(..end).and_then(|above| above.iter().rposition(|byte| *byte == b'/')).unwrap_or(0);
            let directory = path.get(..end).unwrap_or_default();
            let Some(DirectoryLists { lists, .. }) = self.lists.get(directory) else { continue };
            let below = path.get(if end == 0 { 0 } else { end + 1 }..).unwrap_or_default();
            let says: Vec<Option<bool>> = lists.iter().map(|list| list.says(below, is_directory)).collect();
            if says.contains(&Some(true)) {
                return true;
            }
            if says.iter().all(|says| *says == Some(false)) {
                return false;
            }
        }
        false
    }
}

impl SnapshotReader {
    /// Adds the paths that are ignored in a snapshot. Directories that are the same as in snapshots
    /// before it are not read.
    ///
    /// # Errors
    ///
    /// [`Error::Object`](crate::Error::Object) if an object that is needed is missing or damaged.
    pub fn add_ignored(&mut self, snapshot: &FilesystemSnapshot, ignored: &mut IgnoredPaths) -> Result<()> {
        ignored.add_patterns(&snapshot.ignored);
        // A list that is only noted has unknown lines.
        for entry in &snapshot.noted {
            let path = unescape_path(&entry.path).unwrap_or_default();
            if let Some(directory) = path.strip_suffix(GITIGNORE)
                && (directory.is_empty() || directory.ends_with(b"/"))
            {
                let directory = directory.strip_suffix(b"/").unwrap_or_default().to_vec();
                ignored.add(directory, everything());
            }
        }
        let added = self.add_lists(snapshot, ignored);
        if added.is_err() {
            // Directories around the missing object were not read as a whole.
            ignored.seen.clear();
        }
        added
    }

    fn add_lists(&mut self, snapshot: &FilesystemSnapshot, ignored: &mut IgnoredPaths) -> Result<()> {
        let commit = snapshot.read_commit(&self.objects)?;
        let mut left = vec![(Vec::new(), commit.tree)];
        while let Some((path, tree)) = left.pop() {
            if ignored.seen.len() >= SEEN_MAX {
                ignored.seen.clear();
            }
            if !ignored.seen.insert((path.clone(), tree)) {
                continue;
            }
            if is_too_deep(&path) {
                let reason = format!("too many nested directories at `{}`", display_path(&path));
                return Err(self.objects.damaged(tree, reason));
            }
            let mut list = None;
            for entry in self.trees.distinct(&self.objects, tree, &path)?.iter() {
                match entry.mode {
                    GitMode::Directory => left.push((join(&path, &entry.name), entry.id)),
                    GitMode::File | GitMode::Executable if &*entry.name == GITIGNORE => {
                        list = Some(entry.id);
                    }
                    _ => {}
                }
            }
            // A directory without a list counts, too, if it has one in another snapshot.
            let known = ignored.lists.entry(path).or_default();
            if known.ids.insert(list) {
                let read = |id| self.objects.read(id, ObjectKind::Blob, GITIGNORE_BYTES_MAX);
                let bytes = list.map(read).transpose()?.unwrap_or_default();
                known.lists.push(LeaveOut::of_file(&bytes));
            }
        }
        Ok(())
    }
}

fn everything() -> LeaveOut {
    LeaveOut::new([b"*".as_slice()])
}

/// Reads a list; `None` if there is none. As with git, a link is not a list.
fn read_list(path: &Path) -> Option<LeaveOut> {
    if !fs::symlink_metadata(path).ok()?.is_file() {
        return None;
    }
    Some(
        read_regular_file(path, GITIGNORE_BYTES_MAX)
            .map_or_else(|_| everything(), |bytes| LeaveOut::of_file(&bytes)),
    )
}

#[cfg(test)]
mod tests {
    use super::super::{HostFilesystem, HostFilesystemOptions, PartialCapture};
    use super::*;
    use crate::Filesystem as _;

    #[test]
    fn what_any_snapshot_ignores_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let (root, store) = (dir.path().join("work"), dir.path().join("store"));
        fs::create_dir(&root).unwrap();
        let partial = PartialCapture {
            file_bytes_max: 1 << 20,
            ignored_file_bytes_max: 1 << 20,
            shared_file_bytes_max: 0,
        };
        let options = HostFilesystemOptions::default().partial(partial);
        let files = HostFilesystem::open(&root, &store, options).unwrap();
        let (mut reader, mut ignored) = (SnapshotReader::open(&store), IgnoredPaths::default());
        let mut capture = |write: &[(&str, &str)]| {
            write.iter().for_each(|(path, text)| files.write(path, text.as_bytes()).unwrap());
            reader.add_ignored(&files.snapshot(None, false).unwrap(), &mut ignored).unwrap();
            let paths = ["a.log", "in/keep.log", "in/b.log", "build/x/y", "later", "plain", ".env.example"];
            paths.into_iter().filter(|path| ignored.contains(path)).collect::<Vec<_>>()
        };
        assert_eq!(capture(&[("plain", "")]), [""; 0]);
        let lists = [(".gitignore", "*.log\n/build/\n"), ("in/.gitignore", "!keep.log\n")];
        assert_eq!(capture(&lists), ["a.log", "in/b.log", "build/x/y"]);
        assert_eq!(capture(&[(".gitignore", "later\n")]), ["a.log", "in/b.log", "build/x/y", "later"]);
        // The same list again, and then none in the inner directory.
        capture(&[(".gitignore", "*.log\n/build/\n"), ("plain", "x")]);
        files.delete("in/.gitignore").unwrap();
        assert!(capture(&[("in/other", "x")]).contains(&"in/keep.log"));
        let secrets = [".env", "in/.env.local", ".env/a", "a\\b"];
        assert!(secrets.iter().all(|path| ignored.contains(path)));
    }

    #[test]
    fn the_present_lists_are_those_around_a_path() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("in/deep")).unwrap();
        fs::write(dir.path().join("in/.gitignore"), "secret\n").unwrap();
        let contains = |path: &str| IgnoredPaths::at(dir.path(), Path::new(path)).contains(path);
        assert!(contains("in/deep/secret") && contains("in/secret"));
        assert!(!contains("secret") && !contains("in/other"));
        // A list that cannot be read ignores everything around it.
        fs::write(dir.path().join(".gitignore"), vec![b'x'; (1 << 20) + 1]).unwrap();
        assert!(contains("other"));
    }
}

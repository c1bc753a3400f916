//! Reads snapshots from their store alone: the differences between two of them, the files in one,
//! and their contents.
//!
//! This needs no workspace, takes no lock and writes nothing, so an auditor may read another user's
//! store, even while it is written to.
//!
//! # Invariants
//!
//! 1. A directory whose tree is the same on both sides is not read, unless the snapshots differ in
//!    their other data about a path below it (`snapshot_comparison.rs`).
//! 2. Nothing is allocated because an object claims it, before it is present. Memory in use is
//!    bounded: trees of at most [`TREE_BYTES_MAX`], at most [`CHANGES_BYTES_MAX`] of changes.
//! 3. An object's content is returned only after it proved to match its name. A file's length is
//!    the one that its object claims, until its content is read.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::manifest::{FileForm, GitMode, escape_path};
use super::objects::{ObjectKind, Objects, len};
use super::shared::Shared;
use super::snapshot::FilesystemSnapshot;
use super::snapshot_comparison::{CaptureComparison, ComparedCapture, TREE_BYTES_MAX, stored_len};
use super::sparse::Sparse;
use super::trees::Trees;
use crate::error::Result;
use crate::{ChangeKind, FileKind};

/// Greatest memory of a list of changes, in bytes.
pub(super) const CHANGES_BYTES_MAX: u64 = 1 << 30;

/// Approximate memory of a change in addition to its path, in bytes.
pub(super) const CHANGE_BYTES: u64 = 400;

/// Reads the snapshots in a store, without their workspace.
///
/// A reader takes no lock and writes nothing. It caches the directories that it has read, up to a
/// bound, so comparing many snapshots of one workspace is faster with one reader than with many.
///
/// ```
/// use foldlog_filesystem::{ChangeKind, Filesystem, HostFilesystem, HostFilesystemOptions, SnapshotReader};
///
/// let dir = tempfile::tempdir()?;
/// let (directory, store) = (dir.path().join("work"), dir.path().join("store"));
/// std::fs::create_dir(&directory)?;
/// let work = HostFilesystem::open(&directory, &store, HostFilesystemOptions::default())?;
/// work.write("a.txt", b"one")?;
/// let before = work.snapshot(None, true)?;
/// work.write("a.txt", b"other")?;
/// work.write("b.txt", b"new")?;
/// let after = work.snapshot(None, true)?;
///
/// let mut reader = SnapshotReader::open(&store);
/// let changes = reader.changes(Some(&before), &after)?;
/// let found: Vec<_> = changes.iter().map(|change| (change.path.as_str(), change.kind)).collect();
/// assert_eq!(found, [("a.txt", ChangeKind::Modified), ("b.txt", ChangeKind::Created)]);
/// let was = changes[0].before.as_ref().unwrap();
/// assert_eq!(reader.content(was, 1024)?, b"one");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SnapshotReader {
    pub(super) objects: Objects,
    pub(super) trees: Trees,
}

/// Describes the change of one file or link between two snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    /// Path relative to the workspace's root. Backslashes, control characters and bytes that are
    /// not UTF-8 appear as `\xNN`.
    pub path: String,
    /// Kind of the change.
    pub kind: ChangeKind,
    /// The file in the earlier snapshot; `None` if it was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<FileFacts>,
    /// The file in the later snapshot; `None` if it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<FileFacts>,
}

/// Describes a file or link in a snapshot, without its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// [`FileKind::File`] or [`FileKind::Link`].
    pub kind: FileKind,
    /// Permission bits of a file, those of `0o7777`; `None` for a link, which has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<u32>,
    /// Id of the git object for the content in the snapshot, in hexadecimal. Files of one form are
    /// equal exactly if their digests are.
    pub digest: String,
    /// Length of the content in bytes, including holes; for a link, that of its target path.
    pub len: u64,
    /// Storage form of the content in the object.
    #[serde(default, skip_serializing_if = "FileForm::is_whole")]
    pub form: FileForm,
}

/// Describes a directory that only one of two snapshots contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryChange {
    /// Path relative to the workspace's root, escaped like that of a [`FileChange`].
    pub path: String,
    /// [`ChangeKind::Created`] or [`ChangeKind::Removed`].
    pub kind: ChangeKind,
    /// Permission bits in the snapshot that contains it.
    pub permissions: u32,
}

impl FileFacts {
    /// Returns whether the file's owner may execute it. Returns `false` for a link.
    pub fn is_executable(&self) -> bool {
        self.permissions.is_some_and(|permissions| permissions & 0o100 != 0)
    }
}

impl fmt::Debug for SnapshotReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotReader").field("store", &self.objects.store()).finish_non_exhaustive()
    }
}

impl SnapshotReader {
    /// Creates a reader of the snapshots in the directory `store`. Reads nothing yet, and never
    /// writes.
    pub fn open(store: impl Into<PathBuf>) -> SnapshotReader {
        SnapshotReader { objects: Objects::new(store.into()), trees: Trees::bounded(TREE_BYTES_MAX) }
    }

    /// Returns the files and links that differ between two snapshots, in ascending order of their
    /// paths. `None` as `before` means an empty workspace.
    ///
    /// | between the snapshots | result |
    /// |---|---|
    /// | content, the target of a link, a file in place of a link | `Modified` |
    /// | only permissions | `Modified`, with equal digests |
    /// | a file with holes that has other holes or none | `Modified`, even if it reads the same |
    /// | a file in place of a directory, or a directory in place of a file | `Removed` and `Created`, of the paths themselves |
    /// | a file under another name | `Removed` and `Created`, with equal facts |
    /// | times, owners, extended attributes, names of the same file | no change |
    /// | directories: empty ones, and permissions of any | no change |
    /// | paths that a snapshot leaves out, contents of a `.git` or a mount | unknown to it: `Removed` or `Created` if only one of the two leaves them out |
    ///
    /// The cost is that of the directories around the changes: a directory with the same contents
    /// on both sides is not read. If most files of the workspace have other permissions than
    /// before, all directories are read.
    ///
    /// # Errors
    ///
    /// [`Error::Object`](crate::Error::Object), with the path of the object's file and the path in
    /// the workspace:
    ///
    /// - an object that is needed is missing, damaged, or larger than any that a snapshot writes;
    /// - a directory contains two files with one name, or directories are nested more than 256
    ///   deep;
    /// - without `before`, the snapshot contains a different number of files than
    ///   [`FilesystemSnapshot::files`];
    /// - the changes would take more than about 1 GiB.
    pub fn changes(
        &mut self,
        before: Option<&FilesystemSnapshot>,
        after: &FilesystemSnapshot,
    ) -> Result<Vec<FileChange>> {
        let commit = self.objects.named(&after.commit)?;
        let too_much = self.objects.damaged(commit, "too many changes to list");
        let (mut changes, mut bytes) = (Vec::new(), 0_u64);
        self.compare(before, after, &mut |change| {
            bytes = bytes.saturating_add(CHANGE_BYTES).saturating_add(len(change.path.as_bytes()));
            if bytes > CHANGES_BYTES_MAX {
                return Err(too_much.clone());
            }
            changes.push(change);
            Ok(())
        })?;
        Ok(changes)
    }

    /// Returns the directories that only one of two snapshots contains, each before those in it.
    ///
    /// # Errors
    ///
    /// [`Error::Object`](crate::Error::Object) if an object that is needed is missing or damaged.
    pub fn directory_changes(
        &mut self,
        before: &FilesystemSnapshot,
        after: &FilesystemSnapshot,
    ) -> Result<Vec<DirectoryChange>> {
        let was = ComparedCapture::read(&self.objects, before)?;
        let is = ComparedCapture::read(&self.objects, after)?;
        let mut changes = Vec::new();
        self.trees.compare(&self.objects, [was.tree, is.tree], &mut |path, directories| {
            let (side, kind) = match directories {
                [Some(_), None] => (&was, ChangeKind::Removed),
                [None, Some(_)] => (&is, ChangeKind::Created),
                _ => return,
            };
            let permissions = side.permissions.get(path, GitMode::Directory);
            changes.push(DirectoryChange { path: escape_path(path), kind, permissions });
        })?;
        Ok(changes)
    }

    /// Passes each file and link of a snapshot to `visit`, in ascending order of their paths.
    ///
    /// # Errors
    ///
    /// Returns the error of `visit`, after which no more files are passed to it. Otherwise returns
    /// [`Error::Object`](crate::Error::Object) like [`changes`](SnapshotReader::changes); files
    /// before the damage were already passed to `visit`.
    pub fn files(
        &mut self,
        snapshot: &FilesystemSnapshot,
        mut visit: impl FnMut(&str, &FileFacts) -> Result<()>,
    ) -> Result<()> {
        self.compare(None, snapshot, &mut |change| match &change.after {
            Some(facts) => visit(&change.path, facts),
            None => Ok(()),
        })
    }

    /// Returns the paths of the git repositories of a snapshot, such as `.git`, in ascending order.
    /// They are relative to the workspace's root, and escaped like those of a [`FileChange`].
    ///
    /// # Errors
    ///
    /// [`Error::Object`](crate::Error::Object) if the record of repositories is missing or damaged.
    pub fn repositories(&self, snapshot: &FilesystemSnapshot) -> Result<Vec<String>> {
        let repositories = snapshot.read_repositories(&self.objects)?;
        Ok(repositories.roots().map(|path| escape_path(path)).collect())
    }

    /// Returns the git repositories that were created, changed or removed between two snapshots,
    /// with paths like those of [`repositories`](SnapshotReader::repositories).
    ///
    /// # Errors
    ///
    /// [`Error::Object`](crate::Error::Object) if a record of repositories is missing or damaged.
    pub fn changed_repositories(
        &self,
        before: &FilesystemSnapshot,
        after: &FilesystemSnapshot,
    ) -> Result<Vec<String>> {
        if before.repositories == after.repositories {
            return Ok(Vec::new());
        }
        let (was, is) = (before.read_repositories(&self.objects)?, after.read_repositories(&self.objects)?);
        Ok(was.changed_roots(&is, &self.objects).map(|path| escape_path(path)).collect())
    }

    /// Returns the whole content of a file, with its holes filled with zeros, or the target path of
    /// a link. The content of a [`FileForm::Prefix`] is a prefix of the file.
    ///
    /// # Errors
    ///
    /// [`Error::Object`](crate::Error::Object) if the object is missing or damaged, or if the
    /// content has more than `bytes_max` bytes: partial content is never returned.
    pub fn content(&mut self, facts: &FileFacts, bytes_max: u64) -> Result<Vec<u8>> {
        let id = self.objects.named(&facts.digest)?;
        let len = stored_len(&self.objects, facts.form, id)?;
        if len > bytes_max {
            let reason = format!("the content of {len} bytes exceeds the limit of {bytes_max} bytes");
            return Err(self.objects.damaged(id, reason));
        }
        match facts.form {
            FileForm::Shared => Shared::read(&self.objects, id)?.content(&self.objects, id),
            FileForm::Sparse => {
                let (sparse, data) = Sparse::read(&self.objects, id)?;
                let data = self.objects.read(data, ObjectKind::Blob, sparse.data_len())?;
                let unfit = || self.objects.damaged(id, "its data does not have the stated length");
                sparse.fill_holes(&data).ok_or_else(unfit)
            }
            FileForm::Whole | FileForm::Prefix => self.objects.read(id, ObjectKind::Blob, bytes_max),
        }
    }

    fn compare(
        &mut self,
        before: Option<&FilesystemSnapshot>,
        after: &FilesystemSnapshot,
        take: &mut dyn FnMut(FileChange) -> Result<()>,
    ) -> Result<()> {
        let was = before.map(|snapshot| ComparedCapture::read(&self.objects, snapshot)).transpose()?;
        let is = ComparedCapture::read(&self.objects, after)?;
        let miscounted = |found: u64| {
            self.objects.damaged(
                is.commit,
                format!("the snapshot states {} files, but contains {found}", after.files),
            )
        };
        let mut found = 0_u64;
        let mut count = |change: FileChange| {
            found += 1;
            if before.is_none() && found > after.files {
                return Err(miscounted(found));
            }
            take(change)
        };
        CaptureComparison::new(&self.objects, &mut self.trees, was.as_ref(), &is, &mut count).run()?;
        if before.is_none() && found != after.files {
            return Err(miscounted(found));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::objects::ObjectId;
    use super::super::trees::encode_commit;
    use super::*;
    use crate::error::Error;

    /// A store that accepts anything that is a valid object.
    struct Forgery {
        _directory: tempfile::TempDir,
        objects: Objects,
    }

    impl Forgery {
        fn new() -> Forgery {
            let directory = tempfile::tempdir().unwrap();
            let objects = Objects::new(directory.path().join("store"));
            objects.prepare().unwrap();
            Forgery { _directory: directory, objects }
        }

        fn blob(&self, text: &str) -> ObjectId {
            self.objects.write(ObjectKind::Blob, text.as_bytes()).unwrap()
        }

        fn tree(&self, lines: &[(&str, &str, ObjectId)]) -> ObjectId {
            let mut bytes = Vec::new();
            for (mode, name, id) in lines {
                bytes.extend_from_slice(format!("{mode} {name}\0").as_bytes());
                bytes.extend_from_slice(&id.0);
            }
            self.objects.write(ObjectKind::Tree, &bytes).unwrap()
        }

        fn nested(&self, depth: usize, names: &[&str], inmost: ObjectId) -> ObjectId {
            (0..depth).fold(inmost, |id, _| {
                self.tree(&names.iter().map(|name| ("40000", *name, id)).collect::<Vec<_>>())
            })
        }

        fn snapshot(&self, tree: ObjectId, files: u64, metadata: Option<&str>) -> FilesystemSnapshot {
            let commit = encode_commit(tree, &Default::default(), None);
            let commit = self.objects.write(ObjectKind::Commit, commit.as_bytes()).unwrap();
            FilesystemSnapshot {
                commit: commit.to_string(),
                leave_out: Vec::new(),
                gitignore: false,
                files,
                mounts: Vec::new(),
                metadata: metadata.map(|text| self.blob(text).to_string()),
                repositories: None,
                directory: None,
                path: None,
                left_out_by: None,
                partial: false,
                ignored: Vec::new(),
                noted: Vec::new(),
                unless_changed: false,
            }
        }

        fn reader(&self) -> SnapshotReader {
            SnapshotReader::open(self.objects.store())
        }

        fn refusal(&self, tree: ObjectId) -> String {
            self.reader().changes(None, &self.snapshot(tree, 9, None)).unwrap_err().to_string()
        }
    }

    #[test]
    fn trees_that_no_snapshot_writes_are_refused_by_name() {
        let forged = Forgery::new();
        let file = forged.blob("x");
        for name in ["..", ".", "", ".git", "a/b"] {
            let outer = forged.tree(&[("40000", "outer", forged.tree(&[("100644", name, file)]))]);
            let refusal = forged.refusal(outer);
            assert!(refusal.contains("the directory `outer` is not a tree"), "{name:?}: {refusal}");
        }
        let twice = forged.tree(&[("100644", "a", file), ("100644", "a!", file), ("40000", "a", file)]);
        assert!(forged.refusal(twice).contains("it contains `a` twice"));
        let crossed = forged.tree(&[("40000", "a", file)]);
        assert!(forged.refusal(crossed).contains("the directory `a`: it is not a tree"));
        let crossed = forged.tree(&[("100644", "a", crossed)]);
        assert!(forged.refusal(crossed).contains("the file `a`: it is not a blob"));
        let submodule = forged.tree(&[("160000", "a", file)]);
        assert!(forged.refusal(submodule).contains("the directory `.` is not a tree"));
    }

    #[test]
    fn directories_in_one_another_are_followed_as_deep_as_a_workspace_can_be() {
        let forged = Forgery::new();
        let inmost = forged.tree(&[("100644", "file", forged.blob("x"))]);
        let deepest = forged.nested(256, &["d"], inmost);
        assert_eq!(forged.reader().changes(None, &forged.snapshot(deepest, 1, None)).unwrap().len(), 1);
        assert!(
            forged
                .refusal(forged.nested(1, &["d"], deepest))
                .contains("nested directories, or too large ones, at `d/d/")
        );
        // Long names add up to paths that are too long to store for each of the directories.
        let long = "n".repeat(100 << 10);
        assert!(
            forged
                .refusal(forged.nested(20, &[&long], inmost))
                .contains("nested directories, or too large ones, at `nnn")
        );
    }

    /// 200 small trees represent 2^200 directories.
    #[test]
    fn trees_that_stand_for_more_directories_than_can_be_walked_are_walked_once() {
        let forged = Forgery::new();
        let nothing = forged.tree(&[]);
        let two = forged.snapshot(
            forged.nested(200, &["a", "b"], forged.tree(&[("40000", "c", nothing)])),
            0,
            None,
        );
        let one = forged.snapshot(forged.nested(200, &["a", "b"], nothing), 0, None);
        for (before, after) in [(None, &one), (Some(&one), &two), (Some(&two), &one)] {
            assert_eq!(forged.reader().changes(before, after).unwrap(), []);
        }
        // With files in them, the walk also ends.
        let file = forged.tree(&[("100644", "file", forged.blob("x"))]);
        let many = forged.nested(200, &["a", "b"], file);
        assert!(forged.refusal(many).contains("states 9 files, but contains 10"));
        let endless = forged.snapshot(many, u64::MAX, None);
        let mut visited = 0;
        let stopped = forged.reader().files(&endless, |path, _| {
            visited += 1;
            if visited < 1000 { Ok(()) } else { Err(Error::path(path, "enough")) }
        });
        assert!(matches!(stopped, Err(Error::Path { .. })) && visited == 1000);
    }

    #[test]
    fn what_an_object_claims_is_not_allocated() {
        let forged = Forgery::new();
        let claim = |length: u64, pieces: &str, data: &str| {
            let says = format!("foldlog-sparse 1\nlength {length}\ndata {}\n{pieces}", forged.blob(data));
            let tree = forged.tree(&[("100644", "image", forged.blob(&says))]);
            let snapshot = forged.snapshot(tree, 1, Some("foldlog-metadata 1\nowner 0:0\nsparse ./image\n"));
            forged.reader().changes(None, &snapshot).unwrap().remove(0).after.unwrap()
        };
        let whole = claim(5, "1 2\n4 1\n", "abc");
        assert_eq!(forged.reader().content(&whole, 5).unwrap(), b"\0ab\0c");
        for (length, pieces, data) in [(u64::MAX, "", ""), (5, "1 2\n4 1\n", "ab"), (5, "1 2\n", "abc")] {
            let facts = claim(length, pieces, data);
            assert_eq!((facts.form, facts.len), (FileForm::Sparse, length));
            assert!(matches!(forged.reader().content(&facts, u64::MAX), Err(Error::Object { .. })));
        }
    }

    #[test]
    fn a_clone_is_read_only_if_it_is_a_file_with_the_stated_length_and_digest() {
        let forged = Forgery::new();
        let claim = |length: u64| {
            let digest = blake3::hash(blake3::hash(b"content").as_bytes()).to_hex();
            let blob = forged.blob(&format!("foldlog-shared 1\nlength {length}\nblake3 {digest}\n"));
            let tree = forged.tree(&[("100644", "image", blob)]);
            let snapshot = forged.snapshot(tree, 1, Some("foldlog-metadata 1\nowner 0:0\nshared ./image\n"));
            let facts = forged.reader().changes(None, &snapshot).unwrap().remove(0).after.unwrap();
            assert_eq!((facts.form, facts.len), (FileForm::Shared, length));
            let clone = forged.objects.shared_path(blob);
            std::fs::create_dir_all(clone.parent().unwrap()).unwrap();
            (facts, clone)
        };
        let (sound, clone) = claim(7);
        let read = |facts: &FileFacts, bytes_max| {
            forged.reader().content(facts, bytes_max).map_err(|error| error.to_string())
        };
        assert!(read(&sound, 7).unwrap_err().contains("No such file"));
        std::fs::write(&clone, "content").unwrap();
        assert_eq!(read(&sound, 7).unwrap(), b"content");
        assert!(read(&sound, 6).unwrap_err().contains("exceeds the limit of 6 bytes"));
        std::fs::write(&clone, "Content").unwrap();
        assert!(read(&sound, 7).unwrap_err().contains("does not match its digest"));
        for length in [6, 8, 1 << 40] {
            let (lying, clone) = claim(length);
            std::fs::write(&clone, "content").unwrap();
            let reason = format!("it has 7 bytes instead of {length}");
            assert!(read(&lying, u64::MAX).unwrap_err().contains(&reason));
        }
    }

    #[test]
    fn a_file_that_others_appended_to_is_named_as_such() {
        let forged = Forgery::new();
        let tree = forged.tree(&[("100644", "log", forged.blob("so far"))]);
        let grown = forged.snapshot(tree, 1, Some("foldlog-metadata 1\nowner 0:0\nprefix ./log\n"));
        let whole = forged.snapshot(tree, 1, Some("foldlog-metadata 1\nowner 7:7\n"));
        let change = forged.reader().changes(Some(&grown), &whole).unwrap().remove(0);
        let (was, is) = (change.before.unwrap(), change.after.unwrap());
        assert_eq!(
            (change.kind, was.form, is.form),
            (ChangeKind::Modified, FileForm::Prefix, FileForm::Whole)
        );
        assert_eq!(forged.reader().content(&was, 6).unwrap(), b"so far");
        let other_owner = forged.snapshot(tree, 1, Some("foldlog-metadata 1\nowner 8:8\n"));
        assert_eq!(forged.reader().changes(Some(&whole), &other_owner).unwrap(), []);
    }
}

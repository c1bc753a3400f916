//! Takes snapshots of a workspace and makes them durable. A log records a [`FilesystemSnapshot`]
//! for each.

use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::content::CaptureLimits;
use super::manifest::{self, FileForm, ManifestDirectory, ManifestNode, Permissions, Stat};
use super::metadata::Metadata;
use super::new_objects::NewObjects;
use super::objects::{ObjectId, ObjectKind, Objects};
use super::plan::CapturedDirectory;
use super::repositories::{Look, Repositories};
use super::rules::{Gitignore, Rules};
use super::sparse::Sparse;
use super::state::{Last, UNSAVED_FILES, UNSAVED_PART};
use super::trees::{Commit, Trees, encode_commit};
use super::unsynced_snapshots::UnsyncedCapture;
use super::walk::{WalkOutcome, WorkspaceWalk};
use super::{HostFilesystem, WorkspaceNotice, directory_check};
use crate::error::Result;
use crate::{DirectoryIdentity, FileKind};

/// Identifies a snapshot of a [`HostFilesystem`], with everything that a restore in another process
/// needs in addition to the store. A log records it as JSON or MessagePack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesystemSnapshot {
    /// Id of the git commit in the store, in hexadecimal. Equal content, permissions and tag have
    /// equal commits.
    pub commit: String,
    /// Patterns of the paths that the snapshot leaves out.
    pub leave_out: Vec<String>,
    /// Whether `.gitignore` files left paths out as well.
    pub gitignore: bool,
    /// Number of files and links in the snapshot.
    pub files: u64,
    /// Paths of the mounts in the workspace, which the snapshot leaves out entirely. Bytes that are
    /// not UTF-8 appear as `\xNN`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<String>,
    /// Id of the object in the store with owners, extended attributes, times, holes, and names of
    /// the same file, in hexadecimal. `None` in snapshots of versions that captured none of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
    /// Id of the object in the store with the state of the git repositories in the workspace, in
    /// hexadecimal: the copies of `HEAD`, refs, index and the like that a restore brings back.
    /// `None` if there was no repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repositories: Option<String>,
    /// Identity of the workspace's directory, the only one into which the snapshot is restored.
    /// `None` in snapshots of earlier versions: they are restored only after
    /// [`HostFilesystem::rebind`].
    #[serde(default, rename = "folder", skip_serializing_if = "Option::is_none")]
    pub directory: Option<DirectoryIdentity>,
    /// Path of the workspace when the snapshot was taken, with its links resolved. It is a hint for
    /// finding the directory, and never a proof. Bytes that are not UTF-8 appear as `\xNN`. `None`
    /// in snapshots of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Id of the git commit whose `.gitignore` files determine which paths a restore does not
    /// touch, in hexadecimal. `None` means [`commit`](FilesystemSnapshot::commit). Only the
    /// snapshot that a [rewind](super::HostFilesystem::merge_for_rewind) restores has another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out_by: Option<String>,
    /// Whether the snapshot is [partial](super::PartialCapture): it is compared with others, and
    /// never restored as a whole.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// Entries that a partial snapshot leaves out, in ascending order of their paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub noted: Vec<NotedEntry>,
    /// Patterns of paths that a partial snapshot contains, and that are ignored by lists outside of
    /// the workspace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<String>,
    /// Whether a restore is [refused](crate::Error::Changed) if the workspace differs from its last
    /// capture. Never recorded.
    #[serde(skip)]
    pub unless_changed: bool,
}

/// Describes an entry that a [partial](super::PartialCapture) snapshot leaves out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotedEntry {
    /// Path relative to the workspace's root, escaped like the paths of
    /// [`FileChange`](super::FileChange).
    pub path: String,
    /// Kind of the entry. Entries in a directory that is left out are not noted.
    pub kind: FileKind,
    /// Length in bytes; 0 of a directory.
    pub len: u64,
    /// Time of the last change of content, in nanoseconds since 1970; 0 if it is unknown.
    pub modified_ns: i64,
}

impl NotedEntry {
    /// Notes an entry; without `stat`, a directory that cannot be read.
    pub(super) fn new(path: &[u8], stat: Option<&Stat>) -> NotedEntry {
        let kind = stat.map_or(FileKind::Directory, Stat::kind);
        let len = stat.filter(|_| kind != FileKind::Directory).map_or(0, |stat| stat.len);
        let modified_ns = stat.map_or(0, |stat| stat.modified_ns);
        NotedEntry { path: manifest::escape_path(path), kind, len, modified_ns }
    }
}

impl FilesystemSnapshot {
    /// Returns the ids by which a collection identifies the snapshot, in hexadecimal: those of its
    /// commit, of its metadata and of its state of repositories.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        [Some(&self.commit), self.metadata.as_ref(), self.repositories.as_ref()].into_iter().flatten()
    }

    pub(super) fn read_commit(&self, objects: &Objects) -> Result<Commit> {
        Commit::read(objects, objects.named(&self.commit)?)
    }

    /// Returns `None` if the snapshot was taken by a version without metadata.
    pub(super) fn read_metadata(&self, objects: &Objects) -> Result<Option<Metadata>> {
        let name = self.metadata.as_ref();
        name.map(|name| Metadata::read(objects, objects.named(name)?)).transpose()
    }

    /// Reads the state of the repositories; an empty one if there were none.
    pub(super) fn read_repositories(&self, objects: &Objects) -> Result<Repositories> {
        let name = self.repositories.as_ref();
        let read = name.map(|name| Repositories::read(objects, objects.named(name)?)).transpose();
        Ok(read?.unwrap_or_default())
    }
}

impl HostFilesystem {
    /// Takes a snapshot of the workspace.
    ///
    /// If nothing changed since the last one, this walks the directory, checks the files of the
    /// objects that it relies on, and reads and writes no content. If an object is missing, or its
    /// file has a different length or time than when it was last known to be intact, the object is
    /// read, and written again if it is damaged. Of more than 1,024 files, each snapshot checks
    /// about 1,024 in turn. `tag` becomes a part of the commit's message, for people who inspect
    /// the store with git.
    ///
    /// With `durable`, everything that the snapshot needs is durable when this returns. Without it,
    /// a power cut may destroy the snapshot, but a kill does not;
    /// [`sync_captures`](HostFilesystem::sync_captures) makes it durable later.
    ///
    /// # Errors
    ///
    /// No snapshot was taken, and all earlier ones are unchanged:
    ///
    /// - [`Error::Path`](crate::Error::Path) if an entry of the workspace cannot be a part of a
    ///   snapshot (a pipe, a socket, a device, more than 256 nested directories, a `.gitignore` of
    ///   more than 1 MiB, content crafted to cause a SHA-1 collision), if it changes each time it is
    ///   read, or if the workspace no longer exists.
    /// - [`Error::Io`](crate::Error::Io) if a file cannot be read or an object cannot be written.
    ///   [`uncapturable`](HostFilesystem::uncapturable) lists such files in advance.
    /// - [`Error::Full`](crate::Error::Full) if the disk has no space for an object.
    /// - [`Error::CaptureTooLarge`](crate::Error::CaptureTooLarge) if the snapshot would read more
    ///   than [`capture_bytes_max`](super::HostFilesystemOptions::capture_bytes_max) bytes.
    /// - [`Error::Replaced`](crate::Error::Replaced) if the workspace is leased and its path leads to
    ///   a different directory.
    pub fn snapshot(&self, tag: Option<&str>, durable: bool) -> Result<FilesystemSnapshot> {
        self.snapshot_until(tag, durable, None)
    }

    /// Takes a snapshot like [`snapshot`](HostFilesystem::snapshot), but gives up at the moment
    /// `until`. `None` sets no deadline.
    ///
    /// # Errors
    ///
    /// [`Error::DeadlineExceeded`](crate::Error::DeadlineExceeded) if `until` passed; otherwise the
    /// errors of [`snapshot`](HostFilesystem::snapshot).
    pub fn snapshot_until(
        &self,
        tag: Option<&str>,
        durable: bool,
        until: Option<Instant>,
    ) -> Result<FilesystemSnapshot> {
        let mut state = self.state.lock();
        let root = self.bound_root()?;
        self.begin(&mut state, Some(&root));
        self.objects.prepare()?;
        let partial = self.options.partial;
        let gitignore = match self.options.gitignore || partial.is_some() {
            true => Gitignore::Present,
            false => Gitignore::Unread,
        };
        let rules = Rules::new(&self.options.leave_out, gitignore);
        let rules =
            if self.options.gitignore { rules } else { rules.only_marking_ignored(&self.options.ignored) };
        let last = state.last.as_ref().map(|last| Arc::clone(&last.root));
        self.objects.begin_capture(last.as_ref().map_or(0, |last| last.files));
        let new = NewObjects::new(&self.objects);
        let mut walk = WorkspaceWalk::new(Arc::clone(root.directory()), last, &rules, Some(&new));
        walk.times = self.options.times;
        walk.partial = partial;
        walk.limits = CaptureLimits::new(until, self.options.capture_bytes_max);
        walk.limits.progress.clone_from(&self.options.progress);
        let mut walked = self.add_workspace_root(walk.run())?;
        new.finish()?;
        for (id, lines) in std::mem::take(&mut walked.trees) {
            state.trees.hold(id, lines);
        }
        let mut last = match state.last.take() {
            Some(last) if Arc::ptr_eq(&last.root, &walked.root) => last,
            before => {
                // Reading a file again that proves unchanged creates new entries for old content.
                let same =
                    before.filter(|before| before.root.tree == walked.root.tree && before.commit.is_some());
                state.unsaved += walked.read.max(1);
                let permissions = Arc::new(Permissions::from_manifest(&walked.root));
                let commit = same
                    .filter(|before| before.permissions.as_ref() == Some(&permissions))
                    .and_then(|before| before.commit);
                let root = Arc::clone(&walked.root);
                Last { root, permissions: Some(permissions), metadata: None, commit }
            }
        };
        let metadata = self.keep_metadata(&mut last, &walked)?;
        let found = Look {
            root: walk.root(),
            place: &self.root,
            keep: Some((&self.objects, &rules.host)),
            is_racy: &|stat| walk.is_racy(stat),
        };
        let found = found.at(&walked.repositories, &mut state.seen)?;
        let repositories = (!found.is_empty()).then(|| found.write(&self.objects)).transpose()?;
        let commit = match &last.commit {
            Some((commit, before))
                if before.as_deref() == tag && self.objects.is_sound(*commit, ObjectKind::Commit)? =>
            {
                *commit
            }
            _ => {
                let permissions = match &last.permissions {
                    Some(permissions) => Arc::clone(permissions),
                    None => Arc::new(Permissions::from_manifest(&last.root)),
                };
                let text = encode_commit(last.root.tree, &permissions, tag);
                last.permissions = Some(permissions);
                self.objects.write(ObjectKind::Commit, text.as_bytes())?
            }
        };
        last.commit = Some((commit, tag.map(str::to_owned)));
        let files = last.root.files;
        // The object that names the copies comes after them, so that its durability implies theirs.
        let copies = found.copies().filter(|copy| !self.objects.is_durable(*copy));
        let beside: Vec<ObjectId> = copies.chain([metadata]).chain(repositories).collect();
        if durable {
            self.sync(commit, &beside, &last.root)?;
        } else if !beside.iter().chain([&commit]).all(|id| self.objects.is_durable(*id)) {
            self.unsynced.add(UnsyncedCapture { commit, beside, root: Arc::clone(&last.root) });
        }
        state.last = Some(last);
        let mounts: Vec<String> = walked.mounts.iter().map(|path| manifest::escape_path(path)).collect();
        if !mounts.is_empty() {
            state.notice(WorkspaceNotice::Mounted { paths: mounts.clone() });
        }
        self.save(&mut state, (files / UNSAVED_PART).max(UNSAVED_FILES));
        let is_new = root.identity().token.is_none();
        let directory = root.ensure_token(|| state.token.take().unwrap_or_else(directory_check::entropic));
        if durable && is_new {
            // If this fails or the token is lost, the directory is recognized by inode and creation
            // time.
            let _ = nix::unistd::fsync(&**root.directory());
        }
        root.set_captured();
        Ok(FilesystemSnapshot {
            commit: commit.to_string(),
            leave_out: self.options.leave_out.clone(),
            gitignore: self.options.gitignore,
            files,
            mounts,
            directory: Some(directory),
            path: Some(manifest::escape_path(self.root.as_os_str().as_bytes())),
            metadata: Some(metadata.to_string()),
            repositories: repositories.map(|id| id.to_string()),
            left_out_by: None,
            partial: partial.is_some(),
            noted: walked.noted,
            ignored: if partial.is_some() { self.options.ignored.clone() } else { Vec::new() },
            unless_changed: false,
        })
    }

    /// Writes the object of the workspace's metadata, unless nothing changed since it was last
    /// written, and returns its id.
    fn keep_metadata(&self, last: &mut Last, walked: &WalkOutcome) -> Result<ObjectId> {
        if let Some((_, Some(id))) = &last.metadata
            && self.objects.is_sound(*id, ObjectKind::Blob)?
        {
            return Ok(*id);
        }
        let is_whole = self.options.partial.is_some() || !walked.leaves_out;
        let times = Some(last.root.times).filter(|times| *times != ObjectId::UNKNOWN && is_whole);
        let metadata = Metadata::from_manifest(&last.root, &walked.links, times);
        let id = metadata.write(&self.objects)?;
        last.metadata = Some((Arc::new(metadata), Some(id)));
        Ok(id)
    }

    /// Starts to remember the snapshots that are not durable yet, for
    /// [`sync_captures`](Self::sync_captures) to sync.
    pub fn keep_unsynced(&self) {
        self.unsynced.keep();
    }

    /// Makes durable all snapshots that were taken since [`keep_unsynced`](Self::keep_unsynced),
    /// and the snapshots `earlier`, which other processes took. Snapshots and restores can run at
    /// the same time.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) if the store cannot be synced, now or in an earlier call. A
    /// failed sync is not retried, since the next one may succeed without having written anything.
    pub fn sync_captures(&self, earlier: &[FilesystemSnapshot]) -> Result<()> {
        self.unsynced.sync(|pending| {
            let mut earlier = earlier.iter().filter_map(|snapshot| ObjectId::parse(&snapshot.commit));
            if earlier.any(|commit| !self.objects.is_durable(commit) && self.objects.contains(commit)) {
                self.objects.sync_all()?;
            }
            // A snapshot that was collected in the meantime needs no sync.
            let mut pending = pending.into_iter().filter(|one| self.objects.contains(one.commit));
            pending.try_for_each(|one| self.sync(one.commit, &one.beside, &one.root))
        })
    }

    /// Syncs the objects that a snapshot needs and that are not known to be durable.
    fn sync(&self, commit: ObjectId, beside: &[ObjectId], root: &ManifestDirectory) -> Result<()> {
        if beside.iter().chain([&commit]).all(|id| self.objects.is_durable(*id)) {
            return Ok(());
        }
        let mut ids = Vec::new();
        let mut left = vec![root];
        while let Some(directory) = left.pop() {
            ids.push(directory.tree);
            ids.extend(Some(directory.times).filter(|times| *times != ObjectId::UNKNOWN));
            for entry in &directory.entries {
                match &entry.node {
                    ManifestNode::Leaf(leaf) => {
                        if leaf.form == FileForm::Sparse && !self.objects.is_durable(leaf.blob) {
                            ids.push(Sparse::read(&self.objects, leaf.blob)?.1);
                        }
                        ids.push(leaf.blob);
                    }
                    ManifestNode::Directory(directory) => left.push(directory),
                    ManifestNode::Special | ManifestNode::Mount => {}
                }
            }
        }
        ids.sort();
        ids.dedup();
        ids.retain(|id| !self.objects.is_durable(*id));
        // These come last, so that their durability implies that of the rest.
        ids.extend(beside.iter().copied().chain([commit]));
        self.objects.sync(&ids)
    }
}

/// The data of a snapshot that a restore or a merge compares with the workspace.
pub(super) struct RestoreSide {
    pub(super) root: CapturedDirectory,
    pub(super) commit: Commit,
    /// `None` if the snapshot was taken by a version without metadata.
    pub(super) metadata: Option<Metadata>,
    pub(super) rules: Rules,
}

impl RestoreSide {
    /// Reads the data of a snapshot. The recorded `.gitignore` files are those of the commit
    /// `ignored_by`, or of the snapshot's own.
    pub(super) fn read(
        objects: &Objects,
        trees: &mut Trees,
        snapshot: &FilesystemSnapshot,
        ignored_by: Option<&str>,
    ) -> Result<RestoreSide> {
        let commit = snapshot.read_commit(objects)?;
        let gitignore = match (snapshot.gitignore, ignored_by) {
            (true, Some(other)) => {
                let other = Commit::read(objects, objects.named(other)?)?;
                Gitignore::Recorded(trees.gitignores(objects, other.tree)?)
            }
            (true, None) => Gitignore::Recorded(trees.gitignores(objects, commit.tree)?),
            (false, _) => Gitignore::Unread,
        };
        let mounts = snapshot.mounts.iter().filter_map(|path| manifest::unescape_path(path)).collect();
        let rules = Rules::new(&snapshot.leave_out, gitignore).without_mounts(mounts);
        let metadata = snapshot.read_metadata(objects)?;
        let times = metadata.as_ref().and_then(|metadata| metadata.times);
        let root = CapturedDirectory { tree: commit.tree, times };
        Ok(RestoreSide { root, commit, metadata, rules })
    }
}

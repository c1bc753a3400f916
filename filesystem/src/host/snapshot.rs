//! Taking a snapshot of a workspace: what one says, how it is taken, and how it becomes durable.

use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::content::Limits;
use super::manifest::{self, Folder, Form, Node, Permissions};
use super::metadata::Metadata;
use super::objects::{ObjectId, ObjectKind};
use super::repositories::Repositories;
use super::rules::{Gitignore, Rules};
use super::sparse::Sparse;
use super::state::{Last, UNSAVED_FILES, UNSAVED_PART};
use super::trees::encode_commit;
use super::unsynced::Pending;
use super::walk::{Walk, Walked};
use super::{HostFilesystem, WorkspaceNotice, binding};
use crate::FolderIdentity;
use crate::error::{Error, Result};

/// A workspace at one moment: all that a restore in another process needs, beside the store itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesystemSnapshot {
    /// The commit in the store, in hexadecimal. Equal content, permissions and tag have equal commits.
    pub commit: String,
    /// What it leaves out.
    pub leave_out: Vec<String>,
    /// Whether `.gitignore` files counted.
    pub gitignore: bool,
    /// How many files and links it holds.
    pub files: u64,
    /// Where something was mounted, which it leaves out whole. Bytes that are no UTF-8 are shown as `\xNN`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<String>,
    /// The object in the store that says what the commit does not: owners, extended attributes, times, holes, and which
    /// names are one file. In hexadecimal; `None` in snapshots from before there was any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
    /// The object in the store that says what the git repositories in the workspace were like, so that what a tool
    /// changed in one is [told](super::Restored::inexact). In hexadecimal; `None` where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repositories: Option<String>,
    /// The folder that it is of, which alone it is restored into. `None` in snapshots that earlier versions took: these are
    /// restored where the workspace was [rebound](HostFilesystem::rebind) only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<FolderIdentity>,
}

impl HostFilesystem {
    /// Takes a snapshot of the workspace. Where nothing changed since the last one this is a walk, and nothing
    /// is read or written. The tag is for who reads the store with git.
    ///
    /// With `durable` everything that the snapshot needs is synced before this returns; without it nothing is,
    /// and a power cut may take the snapshot, though not a kill.
    ///
    /// # Errors
    ///
    /// An error that names the path where something can be no part of a snapshot (a pipe, a socket, a device),
    /// cannot be read, or changes whenever it is read. There is no snapshot then, and all earlier ones are as
    /// they were.
    pub fn snapshot(&self, tag: Option<&str>, durable: bool) -> Result<FilesystemSnapshot> {
        self.snapshot_until(tag, durable, None)
    }

    /// As [`snapshot`](HostFilesystem::snapshot), but goes on no longer than until a moment.
    ///
    /// # Errors
    ///
    /// As `snapshot`; [`Error::DeadlineExceeded`] where the moment passed.
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
        let gitignore = if self.options.gitignore { Gitignore::Present } else { Gitignore::Unread };
        let rules = Rules::new(&self.options.leave_out, gitignore);
        let last = state.last.as_ref().map(|last| Arc::clone(&last.root));
        let mut walk = Walk::new(Arc::clone(root.folder()), last, &rules, Some(&self.objects));
        walk.times = self.options.times;
        walk.limits = Limits::new(until, self.options.capture_bytes_max);
        let mut walked = walk.run()?;
        for (id, lines) in std::mem::take(&mut walked.trees) {
            state.trees.hold(id, lines);
        }
        let mut last = match state.last.take() {
            Some(last) if Arc::ptr_eq(&last.root, &walked.root) => last,
            before => {
                // Reading a file again that proved unchanged makes new entries for old content.
                let same =
                    before.filter(|before| before.root.tree == walked.root.tree && before.commit.is_some());
                state.unsaved += walked.read.max(1);
                let permissions = Arc::new(Permissions::of(&walked.root));
                let commit = same
                    .filter(|before| before.permissions.as_ref() == Some(&permissions))
                    .and_then(|before| before.commit);
                let root = Arc::clone(&walked.root);
                Last { root, permissions: Some(permissions), metadata: None, commit }
            }
        };
        let metadata = self.keep_metadata(&mut last, &walked)?;
        let found =
            Repositories::of(walk.root(), &walked.repositories, &mut state.seen, &|stat| walk.is_racy(stat));
        let repositories = (!found.is_empty()).then(|| found.write(&self.objects)).transpose()?;
        let commit = match &last.commit {
            Some((commit, before)) if before.as_deref() == tag && self.objects.is_known(*commit) => *commit,
            _ => {
                let permissions = match &last.permissions {
                    Some(permissions) => Arc::clone(permissions),
                    None => Arc::new(Permissions::of(&last.root)),
                };
                let text = encode_commit(last.root.tree, &permissions, tag);
                last.permissions = Some(permissions);
                self.objects.write(ObjectKind::Commit, text.as_bytes())?
            }
        };
        last.commit = Some((commit, tag.map(str::to_owned)));
        let files = last.root.files;
        let beside: Vec<ObjectId> = [metadata].into_iter().chain(repositories).collect();
        if durable {
            self.sync(commit, &beside, &last.root)?;
        } else if !beside.iter().chain([&commit]).all(|id| self.objects.is_durable(*id)) {
            self.unsynced.add(Pending { commit, beside, root: Arc::clone(&last.root) });
        }
        state.last = Some(last);
        let mounts: Vec<String> = walked.mounts.iter().map(|path| manifest::shown(path)).collect();
        if !mounts.is_empty() {
            state.notice(WorkspaceNotice::Mounted { paths: mounts.clone() });
        }
        self.save(&mut state, (files / UNSAVED_PART).max(UNSAVED_FILES));
        let is_new = root.identity().token.is_none();
        let folder = root.named(|| state.token.take().unwrap_or_else(binding::entropic));
        if durable && is_new {
            // Where it cannot be, or is lost, the folder is known by inode and birth.
            let _ = nix::unistd::fsync(&**root.folder());
        }
        root.set_captured();
        Ok(FilesystemSnapshot {
            commit: commit.to_string(),
            leave_out: self.options.leave_out.clone(),
            gitignore: self.options.gitignore,
            files,
            mounts,
            folder: Some(folder),
            metadata: Some(metadata.to_string()),
            repositories: repositories.map(|id| id.to_string()),
        })
    }

    /// Keeps what a snapshot says beside contents and permissions; where nothing changed that is kept already.
    fn keep_metadata(&self, last: &mut Last, walked: &Walked) -> Result<ObjectId> {
        if let Some((_, Some(id))) = &last.metadata
            && self.objects.is_known(*id)
        {
            return Ok(*id);
        }
        let times = last.root.times;
        let times = Some(times).filter(|times| *times != ObjectId::UNKNOWN && !walked.leaves_out);
        let metadata = Metadata::of(&last.root, &walked.links, times);
        let id = metadata.write(&self.objects)?;
        last.metadata = Some((Arc::new(metadata), Some(id)));
        Ok(id)
    }

    /// From now on remembers the snapshots that are not durable yet, for [`sync_captures`](Self::sync_captures).
    pub fn keep_unsynced(&self) {
        self.unsynced.keep();
    }

    /// Syncs what all snapshots need that were remembered, and those that earlier processes took, while others go on.
    pub fn sync_captures(&self, earlier: &[FilesystemSnapshot]) -> Result<()> {
        self.unsynced.sync(|pending| {
            let mut earlier = earlier.iter().filter_map(|snapshot| self.commit_of(snapshot).ok());
            if earlier.any(|commit| !self.objects.is_durable(commit) && self.objects.path(commit).exists()) {
                self.objects.sync_all()?;
            }
            // One that was collected meanwhile is nobody's any more.
            let mut pending = pending.into_iter().filter(|one| self.objects.path(one.commit).exists());
            pending.try_for_each(|one| self.sync(one.commit, &one.beside, &one.root))
        })
    }

    /// Syncs what a snapshot needs and is not known to be durable.
    fn sync(&self, commit: ObjectId, beside: &[ObjectId], root: &Folder) -> Result<()> {
        if beside.iter().chain([&commit]).all(|id| self.objects.is_durable(*id)) {
            return Ok(());
        }
        let mut ids = Vec::new();
        let mut left = vec![root];
        while let Some(folder) = left.pop() {
            ids.push(folder.tree);
            ids.extend(Some(folder.times).filter(|times| *times != ObjectId::UNKNOWN));
            for entry in &folder.entries {
                match &entry.node {
                    Node::Leaf(leaf) => {
                        if leaf.form == Form::Sparse && !self.objects.is_durable(leaf.blob) {
                            ids.push(Sparse::read(&self.objects, leaf.blob)?.1);
                        }
                        ids.push(leaf.blob);
                    }
                    Node::Folder(folder) => left.push(folder),
                    Node::Special | Node::Mount => {}
                }
            }
        }
        ids.sort();
        ids.dedup();
        ids.retain(|id| !self.objects.is_durable(*id));
        // These come last, so that where they are durable they vouch for the rest.
        ids.extend(beside.iter().copied().chain([commit]));
        self.objects.sync(&ids)
    }

    pub(super) fn commit_of(&self, snapshot: &FilesystemSnapshot) -> Result<ObjectId> {
        self.object_of(&snapshot.commit)
    }

    pub(super) fn object_of(&self, name: &str) -> Result<ObjectId> {
        ObjectId::parse(name).ok_or_else(|| Error::Object {
            path: self.objects.store().to_owned(),
            reason: format!("`{}` is no name of an object", name.escape_debug()),
        })
    }
}

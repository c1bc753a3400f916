//! A real folder as a workspace.
//!
//! | module | holds |
//! |---|---|
//! | `root` | the folder that a workspace is: open, and known again |
//! | `binding` | which folder it is at the moment, and what a host is told of that |
//! | `beneath` | paths that never leave the workspace |
//! | `step` | from an open folder to what it holds, through no link and into no mount |
//! | `operations` | what a tool does with files |
//! | `walk` | what is there, and what of it changed |
//! | `rules` | what is left out, and where that is said |
//! | `leave_out` | lists of what is left out |
//! | `manifest` | a workspace's content in memory, and as trees and permissions |
//! | `objects` | git objects in files |
//! | `trees` | trees and commits read back |
//! | `cache` | the stat cache's file |
//! | `content` | from a file to its object, as far as a capture may go |
//! | `sparse` | files with holes |
//! | `attributes` | owner, permissions, extended attributes and time of one file |
//! | `metadata` | what a snapshot says of all files beside contents and permissions |
//! | `times` | when files were last changed |
//! | `plan` | what differs between a snapshot and a workspace |
//! | `restore` | bringing a snapshot back |
//! | `clearing` | what a restore removes before it writes |
//! | `reach` | deep folders, without holding all around them open |
//! | `repositories` | what a tool changed in a `.git`, which stays |
//! | `removal` | removing a folder, however deep |
//! | `lease` | one holder at a time |
//! | `mark` | who works on the workspace, where the process ends meanwhile |
//!
//! # Invariants
//!
//! 1. Nothing named `.git` in a workspace is written, removed or read for a snapshot.
//! 2. The system never follows a link: every part of a path is opened through the folder that holds it.
//! 3. An object's file is named only when it is whole; a commit is written after everything that it names.
//! 4. A restore has read every object that it needs before it changes anything.
//! 5. Nothing depends on the stat cache: without it every answer is the same.
//! 6. A mount inside the workspace is named by snapshots and restores, and never captured, entered or removed. Where one
//!    stands over what the snapshot has, that path is [not restored](Error::NotRestored); elsewhere it stays, with the
//!    folders around it. Tools' own operations go through mounts, but delete none.

mod attributes;
mod beneath;
mod binding;
mod cache;
mod clearing;
mod content;
mod lease;
mod leave_out;
mod manifest;
mod mark;
mod metadata;
mod objects;
mod operations;
mod plan;
mod reach;
mod removal;
mod repositories;
mod restore;
mod root;
mod rules;
mod sparse;
mod step;
mod times;
mod trees;
mod unsynced;
mod walk;

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::stat::{Mode, fchmod};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::sabotage::{self, Breakage};

use crate::error::{Error, Result, Unrestored};
use crate::{FolderIdentity, boot_id};
pub use binding::{Rebind, WorkspaceNotice};
use cache::{Cached, Circumstances};
use content::Limits;
use lease::Place;
pub use lease::WorkspaceLease;
use manifest::{Folder, Form, GitMode, Node, Permissions};
pub use mark::WorkspaceMark;
use metadata::Metadata;
use objects::{ObjectId, ObjectKind, Objects};
use plan::{Planned, Planner, Sides, Then};
use reach::Reach;
use repositories::{Repositories, Seen};
use restore::{Checked, Restorer, Shared};
use root::Root;
use rules::{Gitignore, Rules};
use sparse::Sparse;
use trees::{Commit, Trees, encode_commit};
use unsynced::{Pending, Unsynced};
use walk::{OPEN_FOLDER, Walk, Walked};

/// The stat cache's file in the store.
const CACHE: &str = "stat-cache";

/// A stat cache longer than this is not read.
const CACHE_BYTES_MAX: u64 = 1 << 30;

/// The file that each collection replaces, so that others forget what they know of the store.
const COLLECTED: &str = "collected";

/// The stat cache is written once so large a part of it, and so many files, are new, and at the end: of a large
/// workspace it is itself large.
const UNSAVED_PART: u64 = 8;
const UNSAVED_FILES: u64 = 64;

/// How a [`HostFilesystem`] takes its snapshots.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HostFilesystemOptions {
    /// What snapshots leave out and restores leave alone, as lines of a `.gitignore`: a pattern without `/` is
    /// for names anywhere, one with `/` for paths below the root, one that ends in `/` for folders. Everything
    /// named `.git` is always left out.
    pub leave_out: Vec<String>,
    /// Whether the workspace's `.gitignore` files count as well.
    pub gitignore: bool,
    /// Whether snapshots say when files were last changed, so that restores give that back; so by default. They do so
    /// only where nothing but `.git` is left out: with old times beside a left-out `target/`, a build would take stale
    /// files for fresh ones. Without times two runs that do the same have equal snapshots.
    pub times: bool,
    /// How many bytes of contents one snapshot may read, holes left out; any number by default. Where it comes to more
    /// the snapshot is [`Error::CaptureTooLarge`]: a call does not begin, or fails and is rolled back.
    pub capture_bytes_max: Option<u64>,
}

impl Default for HostFilesystemOptions {
    fn default() -> HostFilesystemOptions {
        HostFilesystemOptions {
            leave_out: Vec::new(),
            gitignore: false,
            times: true,
            capture_bytes_max: None,
        }
    }
}

impl HostFilesystemOptions {
    /// Keeps times, or does not.
    #[must_use]
    pub fn times(mut self, kept: bool) -> Self {
        self.times = kept;
        self
    }

    /// Bounds how many bytes of contents one snapshot may read.
    #[must_use]
    pub fn capture_bytes_max(mut self, bytes: u64) -> Self {
        self.capture_bytes_max = Some(bytes);
        self
    }

    /// Leaves a pattern out.
    #[must_use]
    pub fn leave_out(mut self, pattern: impl Into<String>) -> Self {
        self.leave_out.push(pattern.into());
        self
    }

    /// Lets `.gitignore` files count, or not.
    #[must_use]
    pub fn gitignore(mut self, counts: bool) -> Self {
        self.gitignore = counts;
        self
    }
}

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
    /// changed in one is [told](Restored::inexact). In hexadecimal; `None` where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repositories: Option<String>,
    /// The folder that it is of, which alone it is restored into. `None` in snapshots that earlier versions took: these are
    /// restored where the workspace was [rebound](HostFilesystem::rebind) only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<FolderIdentity>,
}

/// What a restore did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Restored {
    /// How many files, links and folders were made, or given their content or permissions back.
    pub written: u64,
    /// How many were removed.
    pub removed: u64,
    /// Folders that the snapshot does not have, and that remain since what snapshots leave out is in them, or a mount.
    pub kept: Vec<String>,
    /// Where something is mounted that was left alone, with all that is in it.
    pub mounts: Vec<String>,
    /// What was restored, but not as it was, and why: each path once.
    pub inexact: Vec<Unrestored>,
}

impl Restored {
    fn add(&mut self, other: Restored) {
        self.written += other.written;
        self.removed += other.removed;
        self.kept.extend(other.kept);
        self.mounts.extend(other.mounts);
        self.inexact.extend(other.inexact);
    }
}

/// A real folder, whose snapshots are git objects in a store of its own.
///
/// | of a workspace | after a tool that failed |
/// |---|---|
/// | names, contents, folders, symbolic links | as before |
/// | permission bits | as before; the set-user-ID and set-group-ID bits are left off, and told, where the owner or the group is another one |
/// | owner and group | as before where the process may give files away; else told |
/// | extended attributes, access lists and capabilities, of files and folders | as before where the process may set them; else told; not captured: labels of security modules, and `user.foldlog.*` |
/// | which names are one file, inside | as before |
/// | a file that has other names outside | a file of its own with the old content; what was written to it stays under its names outside, and is told |
/// | holes | as before in files of more than 1 MiB, where the file system tells of them |
/// | times of the last change of content | as before where nothing but `.git` is left out of snapshots and `times` is not turned off; else of the restore |
/// | other times, attributes of symbolic links | of the restore |
/// | a file that others append to while it is captured | as the tool left it, and told; captured as far as it was at the beginning |
/// | what the host leaves out | as the tool left it |
/// | `.git` | as the tool left it; what it changed of hooks, config, `HEAD`, refs and `info` is told |
/// | mounts | as the tool left them, and told |
/// | pipes, sockets, devices | removed where the tool made them; no tool begins where there are some |
/// | folders in one another | as before down to 256, removed however many there are |
///
/// What is told stands in [`Restored::inexact`], and of a tool's call in `ToolReport`. Names of
/// `.foldlog-restoring-` and sixteen characters more are a restore's own: no snapshot holds them, and a restore removes
/// them. A store holds what the workspace once held, secrets as well, until it is [collected](HostFilesystem::collect);
/// nobody but its owner may read it.
///
/// Links are never followed out of the workspace, and what is mounted inside it is left out, named
/// ([`FilesystemSnapshot::mounts`], [`Restored::mounts`]) and left alone. What a program writes through a memory mapping
/// may show in a file's times only once the system writes it out; until then a snapshot may miss a second such change.
///
/// It may be used from many threads; snapshots and restores of one value take turns. Whoever else changes the
/// workspace is held off by a [`lease`](HostFilesystem::lease), as far as they ask for one. Calls of a run set a mark
/// beside it, the extended attribute `user.foldlog.work` of the root folder, so that no other session works on what a
/// killed one left half done, before that one is recovered: see `Error::ResourceDirty` of the engine. Where a file system has no such
/// attributes, or the root may not be written, a host has to see to that.
pub struct HostFilesystem {
    root: PathBuf,
    objects: Objects,
    options: HostFilesystemOptions,
    /// The folder that a lease holds.
    bound: Mutex<Weak<Root>>,
    unsynced: Unsynced,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What the workspace was found to hold last: the stat cache. Every object that it names is in the store.
    last: Option<Last>,
    trees: Trees,
    mark: Option<[u8; 16]>,
    unsaved: u64,
    /// What of the workspace's repositories was looked at last.
    seen: Seen,
    /// The folder that all this is of.
    folder: Option<(Place, FolderIdentity)>,
    /// The folder that captures of others may be restored into.
    rebound: Option<(Place, Rebind)>,
    /// What the holder of the lease gives to a folder that has no token.
    token: Option<Uuid>,
    /// Where a restore changed something that is not synced yet.
    unsynced: Option<Arc<Root>>,
    /// Whether it was looked at what another boot left of it.
    is_boot_told: bool,
    notices: Vec<WorkspaceNotice>,
}

struct Last {
    root: Arc<Folder>,
    permissions: Option<Arc<Permissions>>,
    metadata: Option<(Arc<Metadata>, Option<ObjectId>)>,
    /// The commit of the last snapshot, where nothing changed since, and its tag.
    commit: Option<(ObjectId, Option<String>)>,
}

impl fmt::Debug for HostFilesystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = self.objects.store();
        f.debug_struct("HostFilesystem")
            .field("root", &self.root)
            .field("store", &store)
            .finish_non_exhaustive()
    }
}

impl HostFilesystem {
    /// A workspace in the folder `root`, whose snapshots go into the folder `store`. The store is made with the
    /// first snapshot; until then nothing is written.
    ///
    /// # Errors
    ///
    /// [`Error::Path`] where there is no folder at `root`, where one of the two is inside the other, or the
    /// store is a link.
    pub fn open(
        root: impl AsRef<Path>,
        store: impl AsRef<Path>,
        options: HostFilesystemOptions,
    ) -> Result<HostFilesystem> {
        let (root, store) = (root.as_ref(), store.as_ref());
        let refused = |path: &Path, reason: &str| Err(Error::path(path.display().to_string(), reason));
        let root = match fs::canonicalize(root) {
            Ok(found) if found.is_dir() => found,
            Ok(_) => return refused(root, "the workspace is no folder"),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return refused(root, "there is no such workspace");
            }
            Err(error) => return Err(Error::io("open", root, error)),
        };
        if fs::symlink_metadata(store).is_ok_and(|found| !found.is_dir()) {
            return refused(store, "the store is no folder, or a link to one");
        }
        let store = whole(store)?;
        if store.starts_with(&root) {
            return refused(&store, "the store is inside the workspace");
        }
        if root.starts_with(&store) {
            return refused(&store, "the workspace is inside the store");
        }
        Ok(HostFilesystem {
            root,
            objects: Objects::new(store),
            options,
            bound: Mutex::new(Weak::new()),
            unsynced: Unsynced::default(),
            state: Mutex::default(),
        })
    }

    /// The workspace's folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of the snapshots.
    pub fn store(&self) -> &Path {
        self.objects.store()
    }

    /// Whether a folder is the workspace or inside it, whichever path leads there.
    pub fn holds(&self, folder: &Path) -> bool {
        fs::canonicalize(folder).is_ok_and(|folder| folder.starts_with(&self.root))
    }

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

    /// Brings the workspace back to a snapshot, whoever changed it and how: only what differs is touched. It may
    /// be killed at any moment and called again, with the same end. What it changes is durable once it is
    /// [synced](HostFilesystem::sync_restored).
    ///
    /// # Errors
    ///
    /// [`Error::Replaced`] where the snapshot is of another folder than the one that is there: nothing was changed.
    /// [`Error::Object`] where the store lacks something that is needed or holds it damaged: then nothing in the
    /// workspace was changed. [`Error::Full`] where the disk has no room although all was removed first that is to go: make
    /// room, and restore again. [`Error::NotRestored`] where some paths could not be restored: it names each, and
    /// all others are as they were.
    pub fn restore(&self, snapshot: &FilesystemSnapshot) -> Result<Restored> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let bound = match self.bound_root() {
            // Its owner may take the right to open it from everyone, and give it back.
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
                Arc::new(Root::open_again(&self.root, snapshot.folder.as_ref())?)
            }
            root => root?,
        };
        self.check_capture_of(state, &bound, snapshot)?;
        let root = Arc::clone(bound.folder());
        self.begin(state, Some(&bound));
        let id = self.commit_of(snapshot)?;
        let commit = Commit::read(&self.objects, id)?;
        let gitignore = match snapshot.gitignore {
            true => Gitignore::Recorded(state.trees.gitignores(&self.objects, commit.tree)?),
            false => Gitignore::Unread,
        };
        let mounts = snapshot.mounts.iter().filter_map(|path| manifest::unshown(path)).collect();
        let rules = Rules::new(&snapshot.leave_out, gitignore).without_mounts(mounts);
        let metadata = match &snapshot.metadata {
            Some(id) => Some(Metadata::read(&self.objects, self.object_of(id)?)?),
            None => None,
        };
        let then = match &snapshot.repositories {
            Some(id) => Repositories::read(&self.objects, self.object_of(id)?)?,
            None => Repositories::default(),
        };
        let walked = self.walk_all(state, &root, &rules, &commit, metadata.as_ref())?;
        // Whatever bears a new time was not looked at since.
        let found = Repositories::of(&root, &walked.repositories, &mut state.seen, &|_| true);
        let is_told = metadata.is_some() && !sabotage::is(Breakage::RepositoryUntold);
        let in_repositories = if is_told { found.changed(&then) } else { Vec::new() };
        let same_permissions = match &state.last {
            Some(Last { root, permissions: Some(permissions), .. }) if Arc::ptr_eq(root, &walked.root) => {
                **permissions == commit.permissions
            }
            _ => Permissions::of(&walked.root) == commit.permissions,
        };
        let now = match &state.last {
            Some(Last { root, metadata: Some((metadata, _)), .. }) if Arc::ptr_eq(root, &walked.root) => {
                Arc::clone(metadata)
            }
            _ => Arc::new(Metadata::of(&walked.root, &walked.links, None)),
        };
        let sides = Sides {
            permissions: &commit.permissions,
            metadata: metadata.as_ref(),
            now: &now,
            links: &walked.links,
            same_permissions,
            leaves_out: walked.leaves_out,
        };
        let mut planner = Planner::new(&self.objects, &mut state.trees, &sides);
        let then = Then { tree: commit.tree, times: metadata.as_ref().and_then(|metadata| metadata.times) };
        let planned = planner.folder(then, b"", Some((&walked.root, Reach::of(Arc::clone(&root)))))?;
        let mut inexact = planner.inexact;
        inexact.extend(in_repositories);
        let (mut restored, now) = match planned {
            Planned::Same(now) => (Restored::default(), now),
            Planned::Differs(mut plan) => {
                let checked = Checked::new(&self.objects, &plan)?;
                // From here on it is not empty, and no other restore into it is to be refused for that.
                state.rebound = state.rebound.map(|(place, _)| (place, Rebind::Overwrite));
                state.unsynced = Some(Arc::clone(&bound));
                let shared = Shared::new(&root);
                let mut restorer = Restorer::new(&rules, &checked, &shared);
                restorer.clear(&mut plan, &root);
                let now = restorer.folder(plan, Arc::clone(&root), Reach::of(Arc::clone(&root)), b"", None);
                let (restored, mut failures) = restorer.done();
                if !restored.mounts.is_empty() {
                    state.notice(WorkspaceNotice::Mounted { paths: restored.mounts.clone() });
                }
                if let Some(bytes) = shared.unwritten_bytes() {
                    let source = Arc::new(std::io::Error::from(Errno::ENOSPC));
                    return Err(Error::Full { path: self.root.clone(), bytes, source });
                }
                if !failures.is_empty() {
                    failures.extend(inexact.into_iter().chain(restored.inexact));
                    return Err(Error::NotRestored(failures));
                }
                state.unsaved += restored.written + restored.removed;
                (restored, now)
            }
        };
        inexact.append(&mut restored.inexact);
        restored.inexact = inexact;
        let files = now.files;
        state.last = Some(Last { root: now, permissions: None, metadata: None, commit: None });
        self.save(state, (files / UNSAVED_PART).max(UNSAVED_FILES));
        Ok(restored)
    }

    /// Walks the workspace as it is, through folders that must be given permissions first as well.
    fn walk_all(
        &self,
        state: &mut State,
        root: &Arc<OwnedFd>,
        rules: &Rules,
        commit: &Commit,
        metadata: Option<&Metadata>,
    ) -> Result<Walked> {
        let last = state.last.as_ref().map(|last| Arc::clone(&last.root));
        let (mut checked, mut given) = (false, HashSet::new());
        loop {
            let mut walk = Walk::new(Arc::clone(root), last.clone(), rules, None);
            walk.times = metadata.is_some_and(|metadata| metadata.times.is_some());
            let walked = walk.run()?;
            if walked.unreadable.is_empty() {
                return Ok(walked);
            }
            if !checked {
                // What differs cannot be known without changing permissions, so everything is checked first.
                let mut blobs = Vec::new();
                state.trees.visit(&self.objects, commit.tree, None, &mut |line, _| {
                    if line.mode != GitMode::Folder {
                        blobs.push(line.id);
                    }
                    Ok(())
                })?;
                if let Some(metadata) = metadata {
                    blobs.extend(state.trees.sparse_data(&self.objects, commit.tree, metadata)?);
                }
                Checked::of(&self.objects, blobs)?;
                checked = true;
            }
            let failures: Vec<Unrestored> = walked
                .unreadable
                .iter()
                .filter_map(|path| {
                    // What does not open although its permissions were given back is not tried for ever.
                    let again = if given.insert(path.clone()) { Ok(()) } else { Err(Errno::EACCES) };
                    let errno = again.and_then(|()| self.make_readable(root, path)).err()?;
                    Some(Unrestored { path: manifest::told(path), reason: errno.desc().to_owned() })
                })
                .collect();
            if !failures.is_empty() {
                return Err(Error::NotRestored(failures));
            }
        }
    }

    fn make_readable(&self, root: &Arc<OwnedFd>, path: &[u8]) -> Result<(), Errno> {
        let Some((name, folders)) =
            path.split(|byte| *byte == b'/').collect::<Vec<_>>().split_last().map(|(name, folders)| {
                (name.to_vec(), folders.iter().map(|name| name.to_vec()).collect::<Vec<_>>())
            })
        else {
            return Ok(());
        };
        if name.is_empty() {
            return fchmod(&**root, Mode::S_IRWXU);
        }
        let mut folder = Arc::clone(root);
        for part in folders {
            folder = Arc::new(step::open_at(&*folder, &part, OPEN_FOLDER, Mode::empty())?);
        }
        let present = walk::stat_at(&folder, &name)?.permissions();
        restore::set_permissions(&folder, &name, present | 0o700)
    }

    /// Removes what can be made again: the stat cache. What fails here leaves it.
    pub fn free_caches(&self) {
        let mut state = self.state.lock();
        let _ = fs::remove_file(self.objects.store().join(CACHE));
        // Not to be written again before there is more to say.
        state.unsaved = 0;
    }

    /// Removes from the store what none of these snapshots needs, and says how many objects that were. No other
    /// process may take snapshots into the store meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Object`] where a snapshot's commit or a folder of it is damaged or missing: then nothing was
    /// removed.
    pub fn collect(&self, keep: &[FilesystemSnapshot]) -> Result<u64> {
        let mut state = self.state.lock();
        let state = &mut *state;
        self.begin(state, None);
        if !self.objects.store().join("HEAD").is_file() {
            return Ok(0);
        }
        let mut needed = HashSet::new();
        let (mut seen, mut seen_times) = (HashSet::new(), HashSet::new());
        for snapshot in keep {
            let id = self.commit_of(snapshot)?;
            let commit = Commit::read(&self.objects, id)?;
            needed.extend([id, commit.tree]);
            state.trees.visit(&self.objects, commit.tree, Some(&mut seen), &mut |line, _| {
                needed.insert(line.id);
                Ok(())
            })?;
            if let Some(name) = &snapshot.metadata {
                let id = self.object_of(name)?;
                let metadata = Metadata::read(&self.objects, id)?;
                let then = Then { tree: commit.tree, times: metadata.times };
                state.trees.times(&self.objects, then, &mut seen_times)?;
                needed.insert(id);
                if let Some(repositories) = &snapshot.repositories {
                    needed.insert(self.object_of(repositories)?);
                }
                needed.extend(state.trees.sparse_data(&self.objects, commit.tree, &metadata)?);
            }
        }
        needed.extend(seen_times);
        // Whoever knows of objects must forget them before the first one goes.
        let cache = self.objects.store().join(CACHE);
        match fs::remove_file(&cache) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::io("remove", cache, error));
            }
            _ => {}
        }
        self.objects.replace(COLLECTED, b"")?;
        state.mark = Some(self.mark());
        state.trees.forget();
        let mut removed = 0;
        for id in self.objects.list()? {
            if !needed.contains(&id) {
                self.objects.remove(id)?;
                removed += 1;
            }
        }
        self.objects.remove_temporaries()?;
        if let Some(last) = &mut state.last {
            last.root = without(&last.root, &needed);
            (last.commit, last.metadata) = (None, None);
            state.unsaved += 1;
        }
        Ok(removed)
    }

    /// Makes durable what restores changed since this was last called, wherever the workspace's path leads by now: by one
    /// sync of the file system, since a restore changes names, owners, permissions and times in any number of folders.
    ///
    /// # Errors
    ///
    /// Where the file system cannot be synced. Calling it again then promises nothing, since the system may take for written
    /// what never reached the disk; restoring again does not write it once more.
    pub fn sync_restored(&self) -> Result<()> {
        let Some(root) = self.state.lock().unsynced.take() else { return Ok(()) };
        nix::unistd::syncfs(&**root.folder()).map_err(|errno| Error::io("sync", &self.root, errno.into()))
    }

    fn commit_of(&self, snapshot: &FilesystemSnapshot) -> Result<ObjectId> {
        self.object_of(&snapshot.commit)
    }

    fn object_of(&self, name: &str) -> Result<ObjectId> {
        ObjectId::parse(name).ok_or_else(|| Error::Object {
            path: self.objects.store().to_owned(),
            reason: format!("`{}` is no name of an object", name.escape_debug()),
        })
    }

    /// Reads the stat cache, the first time; forgets everything where another process collected the store.
    fn begin(&self, state: &mut State, root: Option<&Root>) {
        if let Some(root) = root {
            state.look_at(root.place(), root.identity());
        }
        let mark = self.mark();
        match state.mark {
            Some(known) if known == mark => {}
            Some(_) => {
                (state.last, state.trees, state.unsaved, state.mark) =
                    (None, Trees::default(), 0, Some(mark));
                state.seen = Seen::default();
                self.objects.forget();
            }
            None => {
                state.mark = Some(mark);
                let path = self.objects.store().join(CACHE);
                if !fs::symlink_metadata(&path)
                    .is_ok_and(|found| found.is_file() && found.len() <= CACHE_BYTES_MAX)
                {
                    return;
                }
                let bytes = fs::read(&path).unwrap_or_default();
                let now = state.folder.map(|(_, now)| now);
                match cache::decode(&bytes, self.circumstances(mark, now), &self.objects) {
                    Some(Cached::Here(root)) => {
                        state.last = Some(Last { root, permissions: None, metadata: None, commit: None });
                    }
                    Some(Cached::Elsewhere(before)) => {
                        state.notices.extend(now.map(|now| WorkspaceNotice::Replaced { before, now }));
                    }
                    None => {}
                }
            }
        }
    }

    fn circumstances(&self, mark: [u8; 16], folder: Option<FolderIdentity>) -> Circumstances {
        let boot = boot_id().unwrap_or_default();
        Circumstances { boot: boot.into_bytes(), mark, folder }
    }

    /// Which collection was the last.
    fn mark(&self) -> [u8; 16] {
        let found = fs::symlink_metadata(self.objects.store().join(COLLECTED));
        let (inode, changed) = found.map_or((0, 0), |found| {
            (found.ino(), found.ctime().wrapping_mul(1_000_000_000).wrapping_add(found.ctime_nsec()))
        });
        let mut mark = [0; 16];
        for (byte, from) in mark.iter_mut().zip(inode.to_le_bytes().into_iter().chain(changed.to_le_bytes()))
        {
            *byte = from;
        }
        mark
    }

    /// Writes the stat cache where more than so much of it is new. What fails here costs the next process time
    /// and nothing else.
    fn save(&self, state: &mut State, new_max: u64) {
        let Some(last) = &state.last else { return };
        if state.unsaved <= new_max {
            return;
        }
        let folder = state.folder.map(|(_, folder)| folder);
        let now = self.circumstances(state.mark.unwrap_or_default(), folder);
        let bytes = cache::encode(now, &last.root, &self.objects);
        let _ = self.objects.replace(CACHE, &bytes);
        state.unsaved = 0;
    }
}

impl Drop for HostFilesystem {
    fn drop(&mut self) {
        let mut state = std::mem::take(&mut *self.state.lock());
        self.save(&mut state, 0);
    }
}

/// A folder's path without links, though the last parts of it may not be there yet.
fn whole(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path).map_err(|error| Error::io("find", path, error))?;
    let mut missing = Vec::new();
    let mut present = absolute.as_path();
    loop {
        match fs::canonicalize(present) {
            Ok(found) => return Ok(missing.iter().rev().fold(found, |path, name| path.join(name))),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(Error::io("open", path, error)),
            Err(error) => match (present.parent(), present.file_name()) {
                (Some(parent), Some(name)) => {
                    missing.push(name);
                    present = parent;
                }
                _ => return Err(Error::io("open", path, error)),
            },
        }
    }
}

/// The same folder, all objects unknown but these.
fn without(folder: &Arc<Folder>, kept: &HashSet<ObjectId>) -> Arc<Folder> {
    let judge = |id: ObjectId| if kept.contains(&id) { id } else { ObjectId::UNKNOWN };
    let mut entries = folder.entries.clone();
    for entry in &mut entries {
        match &mut entry.node {
            Node::Leaf(leaf) => leaf.blob = judge(leaf.blob),
            Node::Folder(child) => *child = without(child, kept),
            Node::Special | Node::Mount => {}
        }
    }
    let mut kept_folder = Folder::new(folder.stat, folder.attributes.clone(), judge(folder.tree), entries);
    kept_folder.times = judge(folder.times);
    kept_folder.checked_ns = folder.checked_ns.load(Ordering::Relaxed).into();
    Arc::new(kept_folder)
}

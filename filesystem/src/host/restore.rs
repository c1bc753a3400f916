//! Brings a workspace back to a snapshot: walks the present files, plans the differences, reads
//! every object that is needed, and only then carries the plan out ([`restorer`](super::restorer)).

use std::collections::HashSet;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::stat::{Mode, fchmod};

use super::checked_objects::CheckedObjects;
use super::deep_directories::Reach;
use super::directory_check;
use super::known_objects::doubt;
use super::manifest::{self, GitMode, Permissions};
use super::metadata::Metadata;
use super::plan::{DirectoryPlanOutcome, Planner, Sides, TouchedPaths};
use super::repositories::{Look, RepositoryRestore, RepositoryStatCache};
use super::restorer::{RestoreContext, Restorer};
use super::root::Root;
use super::rules::Rules;
use super::set_aside::{self, Aside};
use super::snapshot::RestoreSide;
use super::state::{Last, UNSAVED_FILES, UNSAVED_PART, WorkspaceState};
use super::step::{open_around, set_permissions, stat_at};
use super::trees::Commit;
use super::walk::{WalkOutcome, WorkspaceWalk};
use super::{FilesystemSnapshot, HostFilesystem, Rebind, WorkspaceNotice};
use crate::error::{Error, IoContext, Result, UnrestoredPath};

/// Describes what a restore changed, and how the result differs from the snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WorkspaceRestoreReport {
    /// Number of files, links and directories that were created, or whose content or permissions
    /// were restored.
    pub written: u64,
    /// Number of files, links and directories that were removed.
    pub removed: u64,
    /// Paths of existing files and links that got other content or permissions, in ascending order.
    pub changed_paths: Vec<String>,
    /// Paths of removed files and links, and of removed empty directories with a trailing `/`, in
    /// ascending order.
    pub removed_paths: Vec<String>,
    /// Paths of directories that are not in the snapshot but remain, because a part of them is left
    /// out of snapshots or is a mount.
    pub kept: Vec<String>,
    /// Paths of mounts, which were left unchanged with all of their contents.
    pub mounts: Vec<String>,
    /// Paths that differ from the snapshot after the restore, each once, with the reason. The
    /// restore succeeded nevertheless.
    pub inexact: Vec<UnrestoredPath>,
}

impl WorkspaceRestoreReport {
    pub(super) fn add(&mut self, other: WorkspaceRestoreReport) {
        self.written += other.written;
        self.removed += other.removed;
        self.changed_paths.extend(other.changed_paths);
        self.removed_paths.extend(other.removed_paths);
        self.kept.extend(other.kept);
        self.mounts.extend(other.mounts);
        self.inexact.extend(other.inexact);
    }
}

impl HostFilesystem {
    /// Brings the workspace back to `snapshot`, regardless of how it was changed, and returns the
    /// changes. Only differing paths are touched. A restore that was killed at any moment can be
    /// run again, with the same result. Its changes are durable once
    /// [`sync_restored`](HostFilesystem::sync_restored) returns.
    ///
    /// # Errors
    ///
    /// - [`Error::Replaced`] if the snapshot was taken of a different directory. Nothing was
    ///   changed.
    /// - [`Error::Object`] if an object that is needed is missing from the store or damaged.
    ///   Nothing was changed.
    /// - [`Error::Changed`] if the snapshot is to be restored [only while the workspace is
    ///   unchanged](FilesystemSnapshot::unless_changed), and it is not. Nothing was changed.
    /// - [`Error::Full`] if the disk has no space, although all removals were done first. Free some
    ///   space, and restore again.
    /// - [`Error::NotRestored`] if some paths could not be restored: it names each of them. All
    ///   others are restored.
    /// - [`Error::Io`] and [`Error::Path`] if the workspace cannot be read.
    pub fn restore(&self, snapshot: &FilesystemSnapshot) -> Result<WorkspaceRestoreReport> {
        self.or_doubt(self.restore_for(snapshot, None, false))
    }

    /// Restores the workspace like [`restore`](HostFilesystem::restore) to its state before a call,
    /// and [moves aside](HostFilesystem::set_aside) the git repositories that were created since.
    ///
    /// `call` names the call in the refs that preserve its unreferenced commits,
    /// `refs/foldlog/lost/CALL`; it has to be a valid part of a ref's name. If entries were [set
    /// aside](HostFilesystem::set_aside) for the call, [`WorkspaceRestoreReport::inexact`] contains
    /// their location.
    pub fn roll_back(&self, snapshot: &FilesystemSnapshot, call: &str) -> Result<WorkspaceRestoreReport> {
        self.or_doubt(self.restore_for(snapshot, Some(call), false))
    }

    /// Moves aside the entries that a [rollback](HostFilesystem::roll_back) of the call to
    /// `snapshot` will replace or remove, for a workspace that cannot be captured first.
    ///
    /// The entries are files, links, git repositories that the call created, and the files in other
    /// repositories, such as `HEAD`, refs and the index, which get a second name. They are moved to
    /// `.foldlog-aside/CALL` in the workspace's root, under their original paths, on the same file
    /// system, and take no additional space for contents. Snapshots leave that directory out and
    /// restores do not touch it, so it stays until a person removes it.
    ///
    /// # Errors
    ///
    /// - [`Error::Full`] if the disk has no space for the files that the rollback will write in
    ///   addition to the present ones. Everything stays in its place.
    /// - [`Error::Io`] if an entry cannot be moved. Everything stays in its place.
    /// - Otherwise the errors of [`restore`](HostFilesystem::restore).
    pub fn set_aside(&self, snapshot: &FilesystemSnapshot, call: &str) -> Result<()> {
        self.or_doubt(self.restore_for(snapshot, Some(call), true)).map(drop)
    }

    /// Makes later captures check the whole store, if one of its objects proved damaged.
    pub(super) fn or_doubt<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| {
            if matches!(error, Error::Object { .. }) {
                doubt(self.objects.store());
            }
        })
    }

    /// Restores a snapshot; with `aside`, moves the entries to be replaced aside, and restores
    /// nothing.
    fn restore_for(
        &self,
        snapshot: &FilesystemSnapshot,
        call: Option<&str>,
        aside: bool,
    ) -> Result<WorkspaceRestoreReport> {
        if snapshot.partial {
            return Err(Error::path(
                ".",
                "a partial snapshot does not contain all files, and is not restored",
            ));
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        let bound = match self.bound_root() {
            // Its owner may revoke all rights to open it, and grant them again.
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
                Arc::new(Root::open_again(&self.root, snapshot.directory.as_ref())?)
            }
            root => root?,
        };
        self.check_capture_of(state, &bound, snapshot)?;
        let root = Arc::clone(bound.directory());
        self.begin(state, Some(&bound));
        let ignored_by = snapshot.left_out_by.as_deref();
        let RestoreSide { root: then, commit, metadata, rules } =
            RestoreSide::read(&self.objects, &mut state.trees, snapshot, ignored_by)?;
        let repositories = snapshot.read_repositories(&self.objects)?;
        let walked = self.walk_all(state, &root, &rules, &commit, metadata.as_ref())?;
        let is_as_captured = state.last.as_ref().is_some_and(|last| walked.root.is_as(&last.root));
        if snapshot.unless_changed && !is_as_captured {
            return Err(Error::Changed { path: self.root.clone() });
        }
        // No cached state is trusted: every file is read.
        let look = Look { root: &root, place: &self.root, keep: None, is_racy: &|_| true };
        let found = look.at(&walked.repositories, &mut RepositoryStatCache::new())?;
        let mut undoing = RepositoryRestore {
            objects: &self.objects,
            root: &root,
            place: &self.root,
            then: &repositories,
            now: &found,
            call,
            keeps_lost: self.options.keep_lost_commits,
            told: Vec::new(),
            changed: 0,
            replaced_in: Vec::new(),
        };
        // A copy of a `.git` that leads elsewhere would let git work there from two directories.
        let is_here = directory_check::is_of(state, &bound, snapshot);
        let undoes = is_here && self.scratch.is_none() && metadata.is_some();
        let same_permissions = match &state.last {
            Some(Last { root, permissions: Some(permissions), .. }) if Arc::ptr_eq(root, &walked.root) => {
                **permissions == commit.permissions
            }
            _ => Permissions::from_manifest(&walked.root) == commit.permissions,
        };
        let now = match &state.last {
            Some(Last { root, metadata: Some((metadata, _)), .. }) if Arc::ptr_eq(root, &walked.root) => {
                Arc::clone(metadata)
            }
            _ => Arc::new(Metadata::from_manifest(&walked.root, &walked.links, None)),
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
        let planned =
            planner.directory(then, b"", Some((&walked.root, Reach::from_directory(Arc::clone(&root)))))?;
        let mut inexact = planner.inexact;
        if let Some(call) = call.filter(|_| aside) {
            let mut paths = if undoes { undoing.aside() } else { Aside::default() };
            if let DirectoryPlanOutcome::Differs(plan) = &planned {
                let (checked, shared) =
                    (CheckedObjects::new(&self.objects, plan)?, RestoreContext::new(&root));
                Restorer::new(&rules, &checked, &shared).check_room(plan, &root, &self.root)?;
                let mut touched = TouchedPaths::default();
                plan.collect_touched(b"", &mut touched);
                paths.moved.append(&mut touched.contents);
            }
            set_aside::set_all(&root, &self.root, call, &paths)?;
            return Ok(WorkspaceRestoreReport::default());
        }
        let (mut restored, now) = match planned {
            DirectoryPlanOutcome::Same(now) => {
                if undoes {
                    undoing.remove_made();
                }
                (WorkspaceRestoreReport::default(), now)
            }
            DirectoryPlanOutcome::Differs(mut plan) => {
                let checked = CheckedObjects::new(&self.objects, &plan)?;
                if undoes {
                    undoing.remove_made();
                }
                let mut touched = TouchedPaths::default();
                plan.collect_touched(b"", &mut touched);
                // From here on it is not empty, and no other restore into it may be refused for
                // that.
                state.rebound = state.rebound.map(|(place, _)| (place, Rebind::Overwrite));
                state.unsynced = Some(Arc::clone(&bound));
                let shared = RestoreContext::new(&root);
                let mut restorer = Restorer::new(&rules, &checked, &shared);
                restorer.clear(&mut plan, &root);
                let at = Reach::from_directory(Arc::clone(&root));
                let now = restorer.directory(plan, Arc::clone(&root), at, b"", None);
                let Restorer { mut restored, mut failures, .. } = restorer;
                if !restored.mounts.is_empty() {
                    state.notice(WorkspaceNotice::Mounted { paths: restored.mounts.clone() });
                }
                if let Some(bytes) = shared.unwritten_bytes() {
                    return Err(Error::unmade("restore", &self.root, bytes, Errno::ENOSPC.into()));
                }
                if !failures.is_empty() {
                    failures.extend(inexact.into_iter().chain(restored.inexact));
                    return Err(Error::NotRestored(failures));
                }
                state.unsaved += restored.written + restored.removed;
                touched.changed.sort_unstable();
                touched.removed.sort_unstable();
                (restored.changed_paths, restored.removed_paths) = (touched.changed, touched.removed);
                (restored, now)
            }
        };
        if undoes {
            undoing.restore();
        }
        if undoing.changed > 0 {
            state.unsynced = Some(Arc::clone(&bound));
        }
        restored.changed_paths.extend(undoing.replaced_in.iter().map(|path| manifest::display_path(path)));
        inexact.append(&mut undoing.told);
        inexact.append(&mut restored.inexact);
        restored.inexact = inexact;
        if let Some((call, names)) =
            call.map(|call| (call, set_aside::names(&root, call))).filter(|(_, names)| !names.is_empty())
        {
            let (names, directory) = (names.join(", "), set_aside::directory_of(call));
            let mut reason =
                format!("{names} was moved there, since no capture holds it: `mv` brings it back");
            for path in set_aside::parts(&root, call, repositories.roots())
                .into_iter()
                .map(|path| manifest::display_path(path))
            {
                let part =
                    format!("; of {path} it is a part: `cp -a {directory}/{path}/. {path}` brings that back");
                reason.push_str(&part);
            }
            restored.inexact.push(UnrestoredPath::new(directory, reason));
        }
        if call.is_some() && !restored.inexact.is_empty() {
            state.notice(WorkspaceNotice::NotUndone { left: restored.inexact.clone() });
        }
        let files = now.files;
        state.last = Some(Last { root: now, permissions: None, metadata: None, commit: None });
        self.save(state, (files / UNSAVED_PART).max(UNSAVED_FILES));
        Ok(restored)
    }

    /// Walks the present workspace, and gives the owner access to each directory that is otherwise
    /// unreadable.
    fn walk_all(
        &self,
        state: &mut WorkspaceState,
        root: &Arc<OwnedFd>,
        rules: &Rules,
        commit: &Commit,
        metadata: Option<&Metadata>,
    ) -> Result<WalkOutcome> {
        let last = state.last.as_ref().map(|last| Arc::clone(&last.root));
        let (mut checked, mut given) = (false, HashSet::new());
        loop {
            let mut walk = WorkspaceWalk::new(Arc::clone(root), last.clone(), rules, None);
            walk.times = metadata.is_some_and(|metadata| metadata.times.is_some());
            let walked = self.add_workspace_root(walk.run())?;
            if walked.unreadable.is_empty() {
                return Ok(walked);
            }
            if !checked {
                // The differences cannot be determined without changing permissions, so everything
                // is checked first.
                let mut blobs = Vec::new();
                state.trees.visit(&self.objects, commit.tree, None, &mut |line, _| {
                    if line.mode != GitMode::Directory {
                        blobs.push(line.id);
                    }
                    Ok(())
                })?;
                if let Some(metadata) = metadata {
                    blobs.extend(state.trees.sparse_data(&self.objects, commit.tree, metadata)?);
                }
                CheckedObjects::check_blobs(&self.objects, blobs)?;
                checked = true;
            }
            let failures: Vec<UnrestoredPath> = walked
                .unreadable
                .iter()
                .filter_map(|path| {
                    // A directory that does not open although its permissions were restored is not
                    // retried for ever.
                    let again = if given.insert(path.clone()) { Ok(()) } else { Err(Errno::EACCES) };
                    let errno = again.and_then(|()| self.make_readable(root, path)).err()?;
                    Some(UnrestoredPath::new(manifest::display_path(path), errno.desc()))
                })
                .collect();
            if !failures.is_empty() {
                return Err(Error::NotRestored(failures));
            }
        }
    }

    fn make_readable(&self, root: &Arc<OwnedFd>, path: &[u8]) -> Result<(), Errno> {
        if path.is_empty() {
            return fchmod(&**root, Mode::S_IRWXU);
        }
        let (directory, name) = open_around(root, path)?;
        let present = stat_at(&directory, &name)?.permissions();
        set_permissions(&directory, &name, present | 0o700)
    }

    /// Makes durable the changes of restores since the last call, even if the workspace's path has
    /// led to a different directory since. It syncs the whole file system once, since a restore
    /// changes names, owners, permissions and times in any number of directories.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file system cannot be synced. After that, neither a second call nor
    /// another restore, which writes only differences, promises anything, since the system may
    /// regard data as written that never reached the disk.
    pub fn sync_restored(&self) -> Result<()> {
        let Some(root) = self.state.lock().unsynced.take() else { return Ok(()) };
        nix::unistd::syncfs(&**root.directory()).during("sync", &self.root)
    }
}

//! Binds a workspace to the directory at its path, and reports changes of that directory to the
//! host.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use uuid::Uuid;

use super::lease::{self, DeviceInode, WorkspaceLease};
use super::manifest;
use super::root::{Root, open_directory, replaced_error};
use super::state::WorkspaceState;
use super::{FilesystemSnapshot, HostFilesystem};
use crate::DirectoryIdentity;
use crate::error::{Error, Result, UnrestoredPath};

const NOTICES_MAX: usize = 256;

const TOLD_PATHS_MAX: usize = 100;

/// Names the directories into which a snapshot of a different directory may be restored, see
/// [`HostFilesystem::rebind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rebind {
    /// Only an empty directory.
    IfEmpty,
    /// Any directory. Contents that are not in the snapshot are removed.
    Overwrite,
}

/// Describes a fact about a workspace that fails no call but may matter to a person.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkspaceNotice {
    /// The workspace's path leads to a different directory than at the last snapshot, and that
    /// directory is the workspace now.
    ///
    /// This also happens at the first call after a takeover, or in a fork, if the directory has not
    /// been filled: the last snapshot is that of the other worker or of the parent. The next
    /// snapshot reads the directory entirely. Snapshots of the previous directory are not restored
    /// into it, unless the workspace is [rebound](HostFilesystem::rebind).
    Replaced {
        /// Directory at the last snapshot.
        before: DirectoryIdentity,
        /// Directory at the path now.
        now: DirectoryIdentity,
    },
    /// File systems are mounted inside the workspace. A snapshot left them out, or a restore left
    /// them unchanged.
    Mounted {
        /// Paths of the mounts, relative to the root. Bytes that are not UTF-8 appear as `\xNN`.
        paths: Vec<String>,
    },
    /// After the rollback of a call, some paths differ from their state before the call.
    NotUndone {
        /// The paths, each with the reason. They include refs that were created to preserve commits
        /// of the call.
        left: Vec<UnrestoredPath>,
    },
    /// The session is replicated, but the captures of the workspace are not: they are in a
    /// directory that the replica does not cover. A worker that takes the session over has its
    /// records, but not the contents of the workspace.
    CapturesNotHeld {
        /// Directory with the captures.
        store: PathBuf,
        /// Directory whose captures the replica covers.
        held: PathBuf,
    },
    /// The workspace differs from the state that the session's last call left, which another
    /// process recorded: the directory was changed since. The first call has captured the present
    /// state as its start. A [rewind](HostFilesystem::merge_for_rewind) to before that call brings
    /// back the state that the last call left.
    Changed {
        /// The first 100 paths that differ, sorted.
        paths: Vec<String>,
        /// Number of further paths that differ.
        more: u64,
    },
    /// It is unknown whether the workspace is in the state that the session's last call left.
    Unknown {
        /// Error that prevented the comparison.
        reason: String,
    },
    /// The machine was rebooted since the last snapshot, and the workspace has changed since: a
    /// power cut destroys unsynced data, and the directory may have been changed by hand.
    ChangedSinceBoot {
        /// The first 100 paths that differ, sorted.
        paths: Vec<String>,
        /// Number of further paths that differ.
        more: u64,
    },
    /// The machine was rebooted since the last snapshot, and it is unknown whether the workspace
    /// has changed since: a power cut may have destroyed the snapshot itself.
    UnknownSinceBoot {
        /// Error that prevented the comparison of the snapshot and the workspace.
        reason: String,
    },
}

impl HostFilesystem {
    /// Waits for the lease of the workspace, and holds it until the returned value is dropped. The
    /// lease excludes threads, sessions and processes that also use leases. Returns `None` if
    /// `until` passes first. While the lease is held, this workspace is the directory to which its
    /// path led when the lease was taken.
    ///
    /// A lease is independent of the [mark](WorkspaceLease::mark) that a killed process left on the
    /// directory; the engine checks the mark before a tool call.
    ///
    /// # Errors
    ///
    /// - [`Error::Path`] if the workspace does not exist.
    /// - [`Error::Io`] if its directory cannot be opened or its file system has no locks.
    /// - [`Error::Replaced`] if another lease of this value is held and the path leads to a
    ///   different directory now, or if the path keeps changing until `until` passes.
    pub fn lease(&self, until: Instant) -> Result<Option<WorkspaceLease>> {
        self.lease_for(until, entropic)
    }

    /// Leases the workspace like [`lease`](HostFilesystem::lease). If its directory has no token,
    /// the next snapshot gives it the one that `token` returns.
    pub fn lease_for(&self, until: Instant, token: impl FnOnce() -> Uuid) -> Result<Option<WorkspaceLease>> {
        loop {
            // The identity is read once the lease is held, since a token may be set in the
            // meantime.
            let directory = open_directory(&self.root)?;
            if let Some(bound) = self.bound.lock().upgrade()
                && bound.place() != DeviceInode::read(&directory, &self.root)?
            {
                let found = Root::from_directory(directory, &self.root)?.identity();
                return Err(replaced_error(&self.root, Some(&bound.identity()), Some(found)));
            }
            let Some(mut lease) = lease::take(directory, &self.root, until)? else { return Ok(None) };
            let root = Arc::new(Root::from_directory(lease.handle(&self.root)?, &self.root)?);
            // The directory may have been replaced during the wait.
            if root.check_path(&self.root).is_err() && Instant::now() < until {
                continue;
            }
            root.check_path(&self.root)?;
            self.state.lock().token = Some(token());
            *self.bound.lock() = Arc::downgrade(&root);
            lease.bind(root);
            return Ok(Some(lease));
        }
    }

    /// Returns the leased directory or, without a lease, the one at the path, and whether it is
    /// leased.
    fn root_of_lease(&self) -> Result<(Arc<Root>, bool)> {
        match self.bound.lock().upgrade() {
            Some(root) => Ok((root, true)),
            None => Ok((Arc::new(Root::open(&self.root)?), false)),
        }
    }

    /// Returns the directory beneath which a tool's operations are carried out.
    pub(super) fn directory(&self) -> Result<Arc<OwnedFd>> {
        Ok(Arc::clone(self.root_of_lease()?.0.directory()))
    }

    /// Returns the directory for a snapshot or a restore, after checking that the path still leads
    /// to it.
    pub(super) fn bound_root(&self) -> Result<Arc<Root>> {
        let (root, is_leased) = self.root_of_lease()?;
        if is_leased {
            root.check_path(&self.root)?;
        }
        Ok(root)
    }

    /// Checks that a snapshot is of this directory, or that a different directory may replace it.
    pub(super) fn check_capture_of(
        &self,
        state: &WorkspaceState,
        root: &Root,
        snapshot: &FilesystemSnapshot,
    ) -> Result<()> {
        let recorded = snapshot.directory.as_ref();
        if is_of(state, root, snapshot) {
            return Ok(());
        }
        match state.rebound {
            Some((place, Rebind::Overwrite)) if place == root.place() => Ok(()),
            Some((place, Rebind::IfEmpty)) if place == root.place() => self.check_empty(root),
            _ => Err(replaced_error(&self.root, recorded, Some(root.identity()))),
        }
    }

    fn check_empty(&self, root: &Root) -> Result<()> {
        match root.is_empty(&self.root)? {
            true => Ok(()),
            false => {
                let reason = "the directory is not empty; empty it, or allow its files to be overwritten (`Rebind::Overwrite`, or \
                              `RewindOptions::overwrite` of a fill)";
                Err(Error::path(self.root.display().to_string(), reason))
            }
        }
    }

    /// Checks that `snapshot` may be restored into the present directory: it was taken of that
    /// directory, or the workspace was [rebound](HostFilesystem::rebind).
    ///
    /// # Errors
    ///
    /// - [`Error::Replaced`] if the snapshot is of a different directory.
    /// - [`Error::Path`] if the workspace was rebound to an empty directory and the directory is
    ///   not empty, or if it does not exist.
    pub fn check_directory(&self, snapshot: &FilesystemSnapshot) -> Result<()> {
        let state = self.state.lock();
        let root = self.bound_root()?;
        self.check_capture_of(&state, &root, snapshot)
    }

    /// Returns whether a snapshot was taken of a different directory than the present one, or of an
    /// unknown one, regardless of whether the workspace was [rebound](HostFilesystem::rebind).
    /// Returns `false` if there is no directory.
    pub fn is_from_elsewhere(&self, snapshot: &FilesystemSnapshot) -> bool {
        let state = self.state.lock();
        self.bound_root().is_ok_and(|root| !is_of(&state, &root, snapshot))
    }

    /// Accepts the present directory in place of the one of which the snapshot of `last` was taken,
    /// if it has the same token and its contents match the snapshot. This is the case for a volume
    /// that was restored file by file, or moved.
    ///
    /// From then on, all snapshots of directories with this token may be restored into it. If it
    /// also has the same inode or creation time, it is that directory, and replaces others that had
    /// its token before. Only the first call for a directory has an effect. Reads every file if
    /// only the tokens are equal.
    ///
    /// # Errors
    ///
    /// - [`Error::Replaced`] if the workspace is leased and its path leads to a different
    ///   directory.
    /// - [`Error::Path`] if it does not exist.
    pub fn adopt(&self, last: impl FnOnce() -> Option<FilesystemSnapshot>) -> Result<()> {
        let (root, mut state) = (self.bound_root()?, self.state.lock());
        if state.adopted.is_some_and(|(place, _)| place == root.place()) {
            return Ok(());
        }
        state.adopted = Some((root.place(), None));
        drop(state);
        let Some(last) = last() else { return Ok(()) };
        let Some(recorded) = last.directory else { return Ok(()) };
        let found = root.identity();
        let is_token = recorded.token.is_some() && recorded.token == found.token;
        // A failed comparison does not count as equal.
        let is_same = || self.compare_directory(&root, &last).is_ok_and(|differing| differing.is_empty());
        if is_token && (recorded.is_borne_by(&found) || is_same()) {
            self.state.lock().adopted = Some((root.place(), recorded.token));
        }
        Ok(())
    }

    /// Gives the owner back the right to open the workspace's directory, if a call revoked it and
    /// the directory is the one of which `snapshot` was taken. Only then can the directory be
    /// leased, and so restored.
    ///
    /// # Errors
    ///
    /// - [`Error::Replaced`] if the snapshot is of a different directory. Nothing was changed.
    /// - [`Error::Io`] if the permissions cannot be changed.
    /// - [`Error::Path`] if the workspace does not exist.
    pub fn make_openable(&self, snapshot: &FilesystemSnapshot) -> Result<()> {
        Root::open_again(&self.root, snapshot.directory.as_ref()).map(drop)
    }

    /// Allows snapshots of other directories to be restored into the present directory at the path,
    /// if their own directory no longer exists or is not available. Call it before a recovery that
    /// is refused with [`Error::Replaced`]. It applies to this value and this directory. With
    /// [`Rebind::IfEmpty`], the directory has to be empty until the first such restore; if that
    /// restore is interrupted, another process needs [`Rebind::Overwrite`] to run it again.
    ///
    /// # Errors
    ///
    /// - [`Error::Path`] if the directory does not exist, or if it is not empty and `rebind` is
    ///   [`Rebind::IfEmpty`].
    /// - [`Error::Io`] if it cannot be read.
    /// - [`Error::Replaced`] if the workspace is leased and the path leads to a different
    ///   directory.
    pub fn rebind(&self, rebind: Rebind) -> Result<()> {
        let mut state = self.state.lock();
        let root = self.bound_root()?;
        if rebind == Rebind::IfEmpty {
            self.check_empty(&root)?;
        }
        state.rebound = Some((root.place(), rebind));
        Ok(())
    }

    /// Compares the workspace with the snapshot that `last` returns, which was taken before the
    /// machine was rebooted. Leaves a [notice](HostFilesystem::take_notices) with the differences,
    /// or with the reason why they are unknown. Only the first call of this value has an effect;
    /// with `Ok(None)` from `last` nothing is compared. Reads every file.
    pub fn tell_of_boot<E: fmt::Display>(
        &self,
        last: impl FnOnce() -> Result<Option<FilesystemSnapshot>, E>,
    ) {
        if std::mem::replace(&mut self.state.lock().is_boot_told, true) {
            return;
        }
        let differs = last().map_err(|error| error.to_string()).and_then(|last| {
            last.map(|last| self.differences(&last).map_err(|error| error.to_string())).transpose()
        });
        let notice = match differs {
            Ok(None) => return,
            Ok(Some(paths)) if paths.is_empty() => return,
            Ok(Some(paths)) => {
                let (paths, more) = first_of(paths);
                WorkspaceNotice::ChangedSinceBoot { paths, more }
            }
            Err(reason) => WorkspaceNotice::UnknownSinceBoot { reason },
        };
        self.state.lock().notice(notice);
    }

    /// Returns the paths at which the workspace differs from a snapshot in names, contents, links,
    /// or executable files. It takes a snapshot of the present state, for which it reads every file
    /// regardless of the stat cache, and compares the two tree by tree. Bytes of a path that are
    /// not UTF-8 appear as `\xNN`.
    ///
    /// # Errors
    ///
    /// - [`Error::Replaced`] if the snapshot was taken of a different directory.
    /// - [`Error::Object`] if an object of it is missing or damaged.
    /// - Otherwise the errors of [`snapshot`](HostFilesystem::snapshot).
    pub fn differences(&self, snapshot: &FilesystemSnapshot) -> Result<Vec<String>> {
        let root = self.bound_root()?;
        self.check_capture_of(&self.state.lock(), &root, snapshot)?;
        self.compare_directory(&root, snapshot)
    }

    /// Compares like [`differences`](HostFilesystem::differences), but accepts a snapshot of any
    /// directory.
    fn compare_directory(&self, root: &Arc<Root>, snapshot: &FilesystemSnapshot) -> Result<Vec<String>> {
        {
            let mut state = self.state.lock();
            self.begin(&mut state, Some(root));
            state.last = None;
        }
        let now = self.snapshot(None, false)?;
        self.find_differing_paths(&mut self.state.lock(), snapshot, &now)
    }

    /// Leaves a [notice](HostFilesystem::take_notices) if `now`, which was just taken, differs from
    /// the state that an earlier process recorded.
    ///
    /// `left` is the state after the last call. `found` is the state that a recovery found before
    /// it restored `left`, possibly in a different directory. This reads no file, only the
    /// differing trees of both snapshots. It compares nothing if `left` and `now` have different
    /// leave-out rules, or after [`tell_of_boot`](HostFilesystem::tell_of_boot).
    pub fn tell_of_changes(
        &self,
        left: &FilesystemSnapshot,
        found: Option<&FilesystemSnapshot>,
        now: &FilesystemSnapshot,
    ) {
        let mut state = self.state.lock();
        let is_here = |snapshot: &FilesystemSnapshot| snapshot.is_of_directory_of(now);
        if let (Some(before), Some(directory)) = (left.directory, now.directory)
            && !is_here(left)
            && !found.is_some_and(is_here)
        {
            let is_told = state.notices.iter().any(|notice| {
                matches!(notice, WorkspaceNotice::Replaced { now, .. }
                    if (now.inode, now.born_ns) == (directory.inode, directory.born_ns))
            });
            if !is_told {
                state.notice(WorkspaceNotice::Replaced { before, now: directory });
            }
            return;
        }
        let same_rules = (&left.leave_out, left.gitignore) == (&now.leave_out, now.gitignore);
        if left.commit == now.commit || !same_rules || state.is_boot_told {
            return;
        }
        match self.find_differing_paths(&mut state, left, now) {
            Ok(paths) if paths.is_empty() => {}
            Ok(paths) => {
                let (paths, more) = first_of(paths);
                state.notice(WorkspaceNotice::Changed { paths, more });
            }
            Err(error) => state.notice(WorkspaceNotice::Unknown { reason: error.to_string() }),
        }
    }

    /// Leaves a [notice](HostFilesystem::take_notices) if a replica covers the captures of the
    /// directory `held`, but the captures of this workspace are in a different one. Only the first
    /// call of this value has an effect.
    pub fn tell_unless_held(&self, held: &Path) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.is_held_told, true) {
            return;
        }
        let store = self.objects.store();
        if super::resolve_links(held).is_ok_and(|held| held != store) {
            let (store, held) = (store.to_owned(), held.to_owned());
            state.notice(WorkspaceNotice::CapturesNotHeld { store, held });
        }
    }

    fn find_differing_paths(
        &self,
        state: &mut WorkspaceState,
        before: &FilesystemSnapshot,
        now: &FilesystemSnapshot,
    ) -> Result<Vec<String>> {
        let trees = [before.read_commit(&self.objects)?.tree, now.read_commit(&self.objects)?.tree];
        let mut differs = Vec::new();
        state.trees.compare(&self.objects, trees, &mut |path, directories| {
            differs.extend(directories.contains(&None).then(|| path.to_vec()));
        })?;
        differs.sort();
        Ok(differs.iter().map(|path| manifest::display_path(path)).collect())
    }

    /// Returns and removes the notices about the workspace since the last call, the oldest first.
    /// At most 256 are stored; later ones are dropped.
    pub fn take_notices(&self) -> Vec<WorkspaceNotice> {
        std::mem::take(&mut self.state.lock().notices)
    }
}

/// Returns the paths for a notice, and the number of the others.
fn first_of(mut paths: Vec<String>) -> (Vec<String>, u64) {
    let more = u64::try_from(paths.len().saturating_sub(TOLD_PATHS_MAX)).unwrap_or(u64::MAX);
    paths.truncate(TOLD_PATHS_MAX);
    (paths, more)
}

pub(super) fn entropic() -> Uuid {
    Uuid::new_v4()
}

impl WorkspaceState {
    pub(super) fn notice(&mut self, notice: WorkspaceNotice) {
        if self.notices.len() < NOTICES_MAX && self.notices.last() != Some(&notice) {
            self.notices.push(notice);
        }
    }

    /// Forgets the results from a different directory, and leaves a notice if there was one.
    pub(super) fn look_at(&mut self, place: DeviceInode, now: DirectoryIdentity) {
        let before = self.directory.replace((place, now));
        if let Some((was, before)) = before
            && (was != place || before.born_ns != now.born_ns)
        {
            self.last = None;
            self.notice(WorkspaceNotice::Replaced { before, now });
        }
    }
}

/// Returns whether a snapshot was taken of this directory, or of one that it replaces.
pub(super) fn is_of(state: &WorkspaceState, root: &Root, snapshot: &FilesystemSnapshot) -> bool {
    snapshot.directory.as_ref().is_some_and(|directory| {
        let adopted = Some((root.place(), directory.token));
        root.bears(directory) || (directory.token.is_some() && state.adopted == adopted)
    })
}

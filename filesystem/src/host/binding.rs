//! Which folder a workspace is at the moment, and what of that a host is told.

use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use uuid::Uuid;

use super::lease::{self, Place, WorkspaceLease};
use super::manifest::{self, GitMode, TreeEntry, join};
use super::objects::ObjectId;
use super::root::{Root, open_folder, replaced};
use super::state::State;
use super::trees::Commit;
use super::{FilesystemSnapshot, HostFilesystem};
use crate::FolderIdentity;
use crate::error::{Error, Result};
use crate::sabotage::{self, Breakage};

/// So many notices are kept until somebody takes them.
const NOTICES_MAX: usize = 256;

/// So many paths are told of in one notice.
const TOLD_PATHS_MAX: usize = 100;

/// Which folders a capture may be restored into beside its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rebind {
    /// A folder in which nothing is.
    IfEmpty,
    /// Any folder. What is in it and is not in the capture is removed.
    Overwrite,
}

/// Something about a workspace that no call fails for and that a person may want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkspaceNotice {
    /// The path leads to another folder than at the last capture, so that one is the workspace now. It is captured whole;
    /// captures of the one before are not restored into it.
    Replaced {
        /// The folder at the last capture.
        before: FolderIdentity,
        /// The folder now.
        now: FolderIdentity,
    },
    /// File systems are mounted inside the workspace: these paths were left out of a capture, or left alone by a restore.
    Mounted {
        /// The paths, relative to the root; bytes that are no UTF-8 as `\xNN`.
        paths: Vec<String>,
    },
    /// The machine was started again since the session's last capture, and the workspace is not as it was captured: a power
    /// cut takes what was not synced, and somebody may have worked on it since.
    ChangedSinceBoot {
        /// The first paths that differ.
        paths: Vec<String>,
        /// How many more do.
        more: u64,
    },
    /// The machine was started again since the session's last capture, and whether the workspace is as it was captured
    /// cannot be known: a power cut may have taken the capture itself.
    UnknownSinceBoot {
        /// Why not.
        reason: String,
    },
}

impl HostFilesystem {
    /// Waits until nobody else holds the workspace, and holds it: among threads, sessions and processes, as far
    /// as they ask for a lease. `None` where the deadline passes first. For as long as the lease is held, this workspace is
    /// the folder that its path led to when the lease was taken.
    ///
    /// Whether a session that is to be recovered left the workspace half done is looked at where a run's calls lease
    /// it, not here.
    ///
    /// # Errors
    ///
    /// Where the workspace is gone or its file system has no locks. [`Error::Replaced`] where another lease of this
    /// value is held and the path leads elsewhere by now.
    pub fn lease(&self, until: Instant) -> Result<Option<WorkspaceLease>> {
        self.lease_for(until, entropic)
    }

    /// Leases the workspace as [`lease`](HostFilesystem::lease) does, and gives the folder this token where it has none.
    ///
    /// # Errors
    ///
    /// As [`lease`](HostFilesystem::lease).
    pub fn lease_for(&self, until: Instant, token: impl FnOnce() -> Uuid) -> Result<Option<WorkspaceLease>> {
        loop {
            // Who it is is asked once it is held: a token may be set meanwhile.
            let folder = open_folder(&self.root)?;
            if let Some(bound) = self.bound.lock().upgrade()
                && bound.place() != Place::of(&folder, &self.root)?
            {
                let found = Root::of(folder, &self.root)?.identity();
                return Err(replaced(&self.root, Some(&bound.identity()), Some(found)));
            }
            let Some(mut lease) = lease::take(folder, &self.root, until)? else { return Ok(None) };
            let root = Arc::new(Root::of(lease.handle(&self.root)?, &self.root)?);
            // It may have been replaced while this waited.
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

    /// The folder that a lease holds, or else the one that the path leads to.
    fn root_of_lease(&self) -> Result<(Arc<Root>, bool)> {
        match self.bound.lock().upgrade().filter(|_| !sabotage::is(Breakage::WorkspaceByPath)) {
            Some(root) => Ok((root, true)),
            None => Ok((Arc::new(Root::open(&self.root)?), false)),
        }
    }

    /// The folder that tools' operations are beneath.
    pub(super) fn folder(&self) -> Result<Arc<OwnedFd>> {
        Ok(Arc::clone(self.root_of_lease()?.0.folder()))
    }

    /// The folder to be captured or restored, to which the path has to lead still.
    pub(super) fn bound_root(&self) -> Result<Arc<Root>> {
        let (root, is_leased) = self.root_of_lease()?;
        if is_leased {
            root.check_path(&self.root)?;
        }
        Ok(root)
    }

    /// Checks that a capture is of this folder, or that another one may take its place.
    pub(super) fn check_capture_of(
        &self,
        state: &State,
        root: &Root,
        snapshot: &FilesystemSnapshot,
    ) -> Result<()> {
        let recorded = snapshot.folder.as_ref();
        if recorded.is_some_and(|recorded| root.bears(recorded)) || sabotage::is(Breakage::AnyFolderRestored)
        {
            return Ok(());
        }
        match state.rebound {
            Some((place, Rebind::Overwrite)) if place == root.place() => Ok(()),
            Some((place, Rebind::IfEmpty)) if place == root.place() => self.check_empty(root),
            _ => Err(replaced(&self.root, recorded, Some(root.identity()))),
        }
    }

    fn check_empty(&self, root: &Root) -> Result<()> {
        match root.is_empty(&self.root)? {
            true => Ok(()),
            false => {
                let reason = "it is not empty, and what is in it is not to be overwritten";
                Err(Error::path(self.root.display().to_string(), reason))
            }
        }
    }

    /// Checks that a snapshot is of the folder that is there now, or that another one may take its place.
    ///
    /// # Errors
    ///
    /// [`Error::Replaced`] where it is not; [`Error::Path`] where a folder that is to take the place has to be empty and is
    /// not.
    pub fn check_folder(&self, snapshot: &FilesystemSnapshot) -> Result<()> {
        let state = self.state.lock();
        let root = self.bound_root()?;
        self.check_capture_of(&state, &root, snapshot)
    }

    /// Gives the owner back the right to open the workspace's folder, where a call took it from everyone and this is the
    /// folder that a snapshot is of: it cannot be leased otherwise, to be restored.
    ///
    /// # Errors
    ///
    /// [`Error::Replaced`] where it is another folder: nothing was changed. [`Error::Io`] where the permissions cannot be
    /// changed.
    pub fn make_openable(&self, snapshot: &FilesystemSnapshot) -> Result<()> {
        Root::open_again(&self.root, snapshot.folder.as_ref()).map(drop)
    }

    /// Lets captures of other folders be restored into the one that the path leads to now, where these are gone or not to
    /// be had: before a recovery that is refused with [`Error::Replaced`], on a value that was opened on the folder
    /// which is to take the place. Holds for this value and this folder. With [`Rebind::IfEmpty`] the folder has to be empty
    /// until the first such restore; a recovery that was cut short behind that needs [`Rebind::Overwrite`].
    ///
    /// # Errors
    ///
    /// [`Error::Path`] where the folder is not empty and is not to be overwritten, or is gone.
    pub fn rebind(&self, rebind: Rebind) -> Result<()> {
        let mut state = self.state.lock();
        let root = self.bound_root()?;
        if rebind == Rebind::IfEmpty {
            self.check_empty(&root)?;
        }
        state.rebound = Some((root.place(), rebind));
        Ok(())
    }

    /// Tells what is not as a snapshot from before the machine was started says, by a
    /// [notice](HostFilesystem::take_notices): once in the life of this value. `last` reads that snapshot.
    pub fn tell_of_boot<E: fmt::Display>(
        &self,
        last: impl FnOnce() -> Result<Option<FilesystemSnapshot>, E>,
    ) {
        if std::mem::replace(&mut self.state.lock().is_boot_told, true) || sabotage::is(Breakage::BootUntold)
        {
            return;
        }
        let differs = last().map_err(|error| error.to_string()).and_then(|last| {
            last.map(|last| self.differences(&last).map_err(|error| error.to_string())).transpose()
        });
        let notice = match differs {
            Ok(None) => return,
            Ok(Some(paths)) if paths.is_empty() => return,
            Ok(Some(mut paths)) => {
                let more = u64::try_from(paths.len().saturating_sub(TOLD_PATHS_MAX)).unwrap_or(u64::MAX);
                paths.truncate(TOLD_PATHS_MAX);
                WorkspaceNotice::ChangedSinceBoot { paths, more }
            }
            Err(reason) => WorkspaceNotice::UnknownSinceBoot { reason },
        };
        self.state.lock().notice(notice);
    }

    /// The paths at which the workspace is not as a snapshot says: a capture of what is there, for which every file is read
    /// whatever the stat cache says, is compared with it, tree by tree.
    fn differences(&self, snapshot: &FilesystemSnapshot) -> Result<Vec<String>> {
        {
            let mut state = self.state.lock();
            let root = self.bound_root()?;
            self.check_capture_of(&state, &root, snapshot)?;
            self.begin(&mut state, Some(&root));
            state.last = None;
        }
        let now = self.commit_of(&self.snapshot(None, false)?)?;
        let mut state = self.state.lock();
        let (before, now) =
            (Commit::read(&self.objects, self.commit_of(snapshot)?)?, Commit::read(&self.objects, now)?);
        let mut differs = Vec::new();
        let mut left = vec![(Vec::new(), Some(before.tree), Some(now.tree))];
        while let Some((path, before, now)) = left.pop() {
            let mut lines = |tree: Option<ObjectId>| {
                tree.map_or(Ok(Arc::default()), |tree| state.trees.get(&self.objects, tree, &path))
            };
            let (before, now) = (lines(before)?, lines(now)?);
            let names: BTreeSet<&[u8]> = before.iter().chain(now.iter()).map(|line| &*line.name).collect();
            for name in names {
                let line = |lines: &[TreeEntry]| lines.iter().find(|line| *line.name == *name).cloned();
                let (before, now) = (line(&before), line(&now));
                let what = |line: &Option<TreeEntry>| line.as_ref().map(|line| (line.mode, line.id));
                let tree = |line: &Option<TreeEntry>| {
                    line.as_ref().filter(|line| line.mode == GitMode::Folder).map(|line| line.id)
                };
                if what(&before) == what(&now) {
                    continue;
                }
                let (before, now, path) = (tree(&before), tree(&now), join(&path, name));
                if before.is_none() || now.is_none() {
                    differs.push(path.clone());
                }
                if before.is_some() || now.is_some() {
                    left.push((path, before, now));
                }
            }
        }
        differs.sort();
        Ok(differs.iter().map(|path| manifest::told(path)).collect())
    }

    /// Takes what there is to tell about the workspace since this was last asked, the oldest first; of very many, the first
    /// ones.
    pub fn take_notices(&self) -> Vec<WorkspaceNotice> {
        std::mem::take(&mut self.state.lock().notices)
    }
}

/// A token of no session.
pub(super) fn entropic() -> Uuid {
    Uuid::new_v4()
}

impl State {
    pub(super) fn notice(&mut self, notice: WorkspaceNotice) {
        if self.notices.len() < NOTICES_MAX && self.notices.last() != Some(&notice) {
            self.notices.push(notice);
        }
    }

    /// Forgets what was found in another folder, and tells of it.
    pub(super) fn look_at(&mut self, place: Place, now: FolderIdentity) {
        let before = self.folder.replace((place, now));
        if let Some((was, before)) = before
            && (was != place || before.born_ns != now.born_ns)
        {
            self.last = None;
            self.notice(WorkspaceNotice::Replaced { before, now });
        }
    }
}

//! The removals of a restore before it writes anything, so that a disk that a tool has filled has
//! space for the writes.
//!
//! In all directories, entries that are not in the snapshot are removed first, and so are entries
//! in the place of a different kind. Files that are only replaced stay until their replacement is
//! complete. But if the file system has less space than all writes need, they are removed first
//! too. Very deep directories are cleared when their turn comes. The removed contents are not in
//! any snapshot that is to be kept, or they are in the one that is restored. So a restore that is
//! interrupted can be run again like any other.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use rustix::fs::fstatvfs;

use super::deep_directories::is_let_go;
use super::manifest::{FileKind, join};
use super::plan::{DirectoryPlan, RestoreStep};
use super::removal::EntryAt;
use super::restorer::Restorer;
use super::rules::Scope;
use super::step::{OPEN_DIRECTORY, open_at};
use crate::error::Error;

/// Space that a file system may need for a file in addition to its content, in bytes.
const BESIDE_BYTES: u64 = 8 << 10;

fn room_of(root: &OwnedFd) -> u64 {
    fstatvfs(root).map_or(u64::MAX, |found| found.f_bavail.saturating_mul(found.f_frsize))
}

impl Restorer<'_> {
    /// Removes obsolete entries, from the workspace's root on, and deletes these steps from the
    /// plan.
    pub(super) fn clear(&mut self, plan: &mut DirectoryPlan, root: &Arc<OwnedFd>) {
        let is_short = room_of(root) < self.needed_bytes(plan);
        self.clear_directory(plan, root, b"", None, is_short);
    }

    /// Checks that the file system has space for all writes without any removal.
    ///
    /// # Errors
    ///
    /// [`Error::Full`] if it has not.
    pub(super) fn check_room(&self, plan: &DirectoryPlan, root: &OwnedFd, place: &Path) -> Result<(), Error> {
        let bytes = self.needed_bytes(plan);
        match room_of(root) < bytes {
            true => Err(Error::unmade("restore", place, bytes, Errno::ENOSPC.into())),
            false => Ok(()),
        }
    }

    fn needed_bytes(&self, plan: &DirectoryPlan) -> u64 {
        let mut blobs = Vec::new();
        plan.blobs(&mut blobs);
        let needed = blobs.into_iter().map(|blob| self.len_of(blob).saturating_add(BESIDE_BYTES));
        needed.fold(0, u64::saturating_add)
    }

    fn clear_directory(
        &mut self,
        plan: &mut DirectoryPlan,
        directory: &Arc<OwnedFd>,
        path: &[u8],
        around: Option<Arc<Scope>>,
        is_short: bool,
    ) {
        self.open_up(plan, directory, path);
        let scope = self.scope(directory, path, around);
        for (name, mut step) in std::mem::take(&mut plan.steps) {
            let child_path = join(path, &name);
            let at = EntryAt { directory, name: &name, path: &child_path, scope: scope.as_ref() };
            match self.clear_step(&mut step, at, is_short) {
                Ok(true) => {}
                Ok(false) => plan.steps.push((name, step)),
                Err(reason) => self.fail(&child_path, reason),
            }
        }
    }

    /// Carries out the removals of one step. Returns whether the step is then complete.
    fn clear_step(
        &mut self,
        step: &mut RestoreStep,
        at: EntryAt<'_>,
        is_short: bool,
    ) -> Result<bool, String> {
        match step {
            RestoreStep::Remove(kind) => {
                self.take_away(at, *kind)?;
                return Ok(true);
            }
            RestoreStep::Write { replaces, .. } => match *replaces {
                Some(FileKind::Directory) => self.make_way(at, replaces.take())?,
                // If this fails, the next operation also fails, with a better reason.
                Some(_) if is_short => match unlinkat(at.directory, at.name, UnlinkatFlags::NoRemoveDir) {
                    Ok(()) | Err(Errno::ENOENT) => *replaces = None,
                    Err(_) => {}
                },
                _ => {}
            },
            RestoreStep::Directory { replaces: replaces @ Some(_), .. } => {
                self.make_way(at, replaces.take())?;
            }
            RestoreStep::Directory { plan, replaces: None }
                if plan.present.is_some() && !is_let_go(at.path) =>
            {
                // If it cannot be opened, the step itself reports it.
                if let Ok(opened) = open_at(at.directory, at.name, OPEN_DIRECTORY, Mode::empty()) {
                    self.clear_directory(plan, &Arc::new(opened), at.path, at.scope.cloned(), is_short);
                }
            }
            _ => {}
        }
        Ok(false)
    }
}

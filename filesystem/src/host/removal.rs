//! Removes a directory of any depth with all of its contents.
//!
//! Only one directory is open at a time, and one more while another is entered. The way up leads by
//! `..`, and is trusted if it leads to the directory from which the walk came. So neither the stack
//! nor the process's descriptors limit the depth of a tree that a tool left.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::openat;
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{UnlinkatFlags, dup, unlinkat};

use super::manifest::{FileKind, Stat, display_path, join};
use super::rules::{Rules, Scope};
use super::step::{MOUNT, OPEN_DIRECTORY, bits, describe_errno, list, open_at, set_permissions, stat_of};
use crate::error::UnrestoredPath;

const OWNER_ALL: u32 = 0o700;

/// An entry: its open directory and its name there, its path from the workspace's root, and the lists
/// that apply in the directory.
#[derive(Clone, Copy)]
pub(super) struct EntryAt<'a> {
    pub(super) directory: &'a Arc<OwnedFd>,
    pub(super) name: &'a [u8],
    pub(super) path: &'a [u8],
    pub(super) scope: Option<&'a Arc<Scope>>,
}

pub(super) struct Removal<'a> {
    rules: &'a Rules,
    pub(super) removed: u64,
    /// Paths of mounts, which stay.
    pub(super) mounts: Vec<String>,
    pub(super) failures: Vec<UnrestoredPath>,
}

struct Level {
    stat: Stat,
    /// Its original permissions, if they were changed to empty it.
    permissions: Option<u32>,
    /// Length of the path of its parent directory.
    around: usize,
    left: Vec<(Vec<u8>, Stat)>,
    empty: bool,
}

impl<'a> Removal<'a> {
    pub(super) fn new(rules: &'a Rules) -> Removal<'a> {
        Removal { rules, removed: 0, mounts: Vec::new(), failures: Vec::new() }
    }

    /// Removes an entry. Returns whether nothing remained that is left out of snapshots.
    pub(super) fn remove(&mut self, at: EntryAt<'_>, kind: FileKind) -> Result<bool, String> {
        let EntryAt { directory, name, path, scope } = at;
        if kind != FileKind::Directory {
            return self.unlink(directory, name, path).map_err(describe_errno);
        }
        let top = stat_of(directory).map_err(describe_errno)?;
        let mut current = dup(directory).map_err(describe_errno)?;
        let mut path = path.to_vec();
        let around = path.len().saturating_sub(name.len() + 1);
        let mut levels = match self.enter(&mut current, name, &path, around)? {
            Some(level) => vec![level],
            None => return Ok(false),
        };
        let mut gone = true;
        while let Some(level) = levels.last_mut() {
            let Some((child, stat)) = level.left.pop() else {
                let level = match levels.pop() {
                    Some(level) => level,
                    None => break,
                };
                let parent = levels.last().map_or(top, |level| level.stat);
                let removed = self.leave(&mut current, level, &mut path, parent)?;
                match levels.last_mut() {
                    Some(level) => level.empty &= removed,
                    None => gone = removed,
                }
                continue;
            };
            let is_directory = stat.kind() == FileKind::Directory;
            if self.rules.leave_out(&path, &child, is_directory, scope.map(|scope| &**scope)) {
                level.empty = false;
                continue;
            }
            let around = path.len();
            path.push(b'/');
            path.extend_from_slice(&child);
            let done = match is_directory {
                true => self.enter(&mut current, &child, &path, around).map(|entered| (false, entered)),
                false => {
                    self.unlink(&current, &child, &path).map(|gone| (gone, None)).map_err(describe_errno)
                }
            };
            match done {
                Ok((_, Some(entered))) => levels.push(entered),
                Ok((gone, None)) => {
                    path.truncate(around);
                    level.empty &= gone;
                }
                // Only the innermost path that stayed is reported.
                Err(reason) => {
                    self.failures.push(UnrestoredPath { path: display_path(&path), reason });
                    path.truncate(around);
                    level.empty = false;
                }
            }
        }
        Ok(gone)
    }

    fn unlink(&mut self, directory: &OwnedFd, name: &[u8], path: &[u8]) -> Result<bool, Errno> {
        match unlinkat(directory, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) => self.removed += 1,
            Err(Errno::ENOENT) => {}
            // A file on which another one is mounted.
            Err(Errno::EBUSY) => {
                self.mounts.push(display_path(path));
                return Ok(false);
            }
            Err(errno) => return Err(errno),
        }
        Ok(true)
    }

    /// Changes into a directory of the current one, unless it is a mount.
    fn enter(
        &mut self,
        current: &mut OwnedFd,
        name: &[u8],
        path: &[u8],
        around: usize,
    ) -> Result<Option<Level>, String> {
        let open = |current: &OwnedFd| open_at(current, name, OPEN_DIRECTORY, Mode::empty());
        let opened = match open(current) {
            Err(Errno::EACCES) => {
                set_permissions(&*current, name, OWNER_ALL).map_err(describe_errno)?;
                open(current)
            }
            Err(MOUNT) => {
                self.mounts.push(display_path(path));
                return Ok(None);
            }
            opened => opened,
        };
        let opened = opened.map_err(describe_errno)?;
        let stat = stat_of(&opened).map_err(describe_errno)?;
        let permissions = Some(stat.permissions()).filter(|present| present & OWNER_ALL != OWNER_ALL);
        if let Some(present) = permissions {
            // If this fails, the next operation also fails, with a better reason.
            let _ = fchmod(&opened, bits(present | OWNER_ALL));
        }
        let left = list(&opened).map_err(describe_errno)?;
        *current = opened;
        Ok(Some(Level { stat, permissions, around, left, empty: true }))
    }

    /// Changes back to the parent directory, and removes the one that was left if it is empty.
    fn leave(
        &mut self,
        current: &mut OwnedFd,
        level: Level,
        path: &mut Vec<u8>,
        parent: Stat,
    ) -> Result<bool, String> {
        if let Some(present) = level.permissions.filter(|_| !level.empty) {
            let _ = fchmod(current.as_fd(), bits(present));
        }
        let up = openat(&*current, c"..", OPEN_DIRECTORY, Mode::empty()).map_err(describe_errno)?;
        let stat = stat_of(&up).map_err(describe_errno)?;
        if (stat.device, stat.inode) != (parent.device, parent.inode) {
            return Err(format!("`{}` was moved elsewhere meanwhile", display_path(path)));
        }
        *current = up;
        let name = path.split_off(level.around);
        let name = name.strip_prefix(b"/").unwrap_or(&name);
        if !level.empty {
            return Ok(false);
        }
        match unlinkat(&*current, name, UnlinkatFlags::RemoveDir) {
            Ok(()) => {
                self.removed += 1;
                Ok(true)
            }
            Err(Errno::ENOENT) => Ok(true),
            Err(errno) => {
                let path = display_path(&join(path, name));
                self.failures.push(UnrestoredPath::new(path, describe_errno(errno)));
                Ok(false)
            }
        }
    }
}

//! The rules for paths that are left out of snapshots and not touched by restores.

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nix::errno::Errno;

use super::leave_out::LeaveOut;
use super::manifest::{FileKind, display_path, join};
use super::regular_files::read_at_most;
use super::step::{MOUNT, open_file, stat_of};
use crate::error::{Error, Result};

pub(super) const GITIGNORE: &[u8] = b".gitignore";

/// Longer leave-out lists are an error.
pub(super) const GITIGNORE_BYTES_MAX: u64 = 1 << 20;

/// Prefix of the name of an entry that a restore writes, until it is complete. No snapshot contains
/// such a file, and the next restore removes leftovers of a kill.
const TEMPORARY: &str = ".foldlog-restoring-";

/// Returns the name of an incomplete entry that this process writes.
pub(super) fn temporary_name(number: u64) -> String {
    format!("{TEMPORARY}{:08x}{number:08x}", std::process::id())
}

pub(super) fn is_temporary(name: &[u8]) -> bool {
    name.strip_prefix(TEMPORARY.as_bytes()).is_some_and(|rest| rest.len() == 16)
}

/// Prefix of the name of an entry that an edit of a single path writes or takes away. No snapshot
/// contains such an entry, and no restore touches it: it may have the only copy of its content.
pub(super) const EDITING: &str = ".foldlog-editing-";

pub(super) fn is_editing(name: &[u8]) -> bool {
    name.starts_with(EDITING.as_bytes())
}

/// Directory in a workspace's root with exports of sessions.
const EXPORTS: &[u8] = b".aca";

/// Directory in a workspace's root to which entries are moved that a rollback replaces and that
/// cannot be captured.
pub(super) const ASIDE: &[u8] = b".foldlog-aside";

pub(super) enum Gitignore {
    /// They are ignored.
    Unread,
    /// In the present workspace.
    Present,
    /// In the snapshot, by directory: a restore never touches paths that the snapshot left out,
    /// regardless of the present files.
    Recorded(HashMap<Vec<u8>, LeaveOut>),
}

pub(super) struct Rules {
    pub(super) host: LeaveOut,
    pub(super) gitignore: Gitignore,
    /// Paths that a snapshot left out because they were mounts, regardless of their present state.
    mounts: HashSet<Vec<u8>>,
    /// Whether nothing is left out, not even entries named `.git`.
    nothing: bool,
    /// List around all lists of the workspace.
    outermost: Option<Arc<Scope>>,
    /// Whether `.gitignore` files only mark paths as ignored, and leave none out.
    only_marks: bool,
}

/// The list of one directory, and those of its parents.
pub(super) struct Scope {
    around: Option<Arc<Scope>>,
    /// Length in bytes of the part of a path up to the list's directory, including the slash.
    prefix: usize,
    list: LeaveOut,
}

impl Rules {
    pub(super) fn new(leave_out: &[String], gitignore: Gitignore) -> Rules {
        let host = LeaveOut::new(leave_out.iter().map(String::as_bytes));
        Rules { host, gitignore, mounts: HashSet::new(), nothing: false, outermost: None, only_marks: false }
    }

    /// Leaves out nothing, not even entries named `.git`.
    pub(super) fn keep_all() -> Rules {
        Rules { nothing: true, ..Rules::new(&[], Gitignore::Unread) }
    }

    /// Leaves out nothing that `.gitignore` files or these patterns ignore;
    /// [`ignores`](Rules::ignores) reports it.
    pub(super) fn only_marking_ignored(self, ignored: &[String]) -> Rules {
        let list = LeaveOut::new(ignored.iter().map(String::as_bytes));
        Rules { only_marks: true, outermost: scope(Some(list), b"", None), ..self }
    }

    /// Returns the list around all lists of the workspace.
    pub(super) fn outermost(&self) -> Option<Arc<Scope>> {
        self.outermost.clone()
    }

    /// Also leaves out these paths, which are mounts.
    pub(super) fn without_mounts(self, mounts: HashSet<Vec<u8>>) -> Rules {
        Rules { mounts, ..self }
    }

    pub(super) fn enter(
        &self,
        directory: &OwnedFd,
        path: &[u8],
        around: Option<Arc<Scope>>,
    ) -> Result<Option<Arc<Scope>>> {
        let list = match &self.gitignore {
            Gitignore::Unread => return Ok(None),
            Gitignore::Present => read_present(directory, path)?,
            Gitignore::Recorded(lists) => lists.get(path).cloned(),
        };
        Ok(scope(list, path, around))
    }

    /// Returns whether an entry of a snapshot, or a parent directory of it, is left out. Ignores
    /// lists in a workspace.
    pub(super) fn leave_out_path(&self, path: &[u8], is_directory: bool) -> bool {
        let mut scope = self.recorded_scope(b"", None);
        let mut from = 0;
        loop {
            let rest = path.get(from..).unwrap_or_default();
            let end = rest.iter().position(|byte| *byte == b'/');
            let name = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
            let directory = path.get(..from.saturating_sub(1)).unwrap_or_default();
            if self.leave_out(directory, name, is_directory || end.is_some(), scope.as_deref()) {
                return true;
            }
            let Some(end) = end else { return false };
            scope = self.recorded_scope(path.get(..from + end).unwrap_or_default(), scope);
            from += end + 1;
        }
    }

    /// Returns the lists that apply within a directory of a snapshot.
    fn recorded_scope(&self, path: &[u8], around: Option<Arc<Scope>>) -> Option<Arc<Scope>> {
        let Gitignore::Recorded(lists) = &self.gitignore else { return around };
        scope(lists.get(path).cloned(), path, around)
    }

    pub(super) fn leave_out(
        &self,
        directory: &[u8],
        name: &[u8],
        is_directory: bool,
        scope: Option<&Scope>,
    ) -> bool {
        if self.nothing || name == b".git" || is_editing(name) {
            return !self.nothing;
        }
        if is_own(directory, name, is_directory) {
            return name == ASIDE || self.host.says(name, true) != Some(false);
        }
        if is_temporary(name) || (self.host.is_empty() && scope.is_none() && self.mounts.is_empty()) {
            return false;
        }
        let path = join(directory, name);
        if self.mounts.contains(&path) {
            return true;
        }
        if self.host.says(&path, is_directory) == Some(true) {
            return true;
        }
        !self.only_marks && is_listed(&path, is_directory, scope)
    }

    /// Returns whether a `.gitignore` ignores an entry itself. Its parent directories are not
    /// considered.
    pub(super) fn ignores(
        &self,
        directory: &[u8],
        name: &[u8],
        is_directory: bool,
        scope: Option<&Scope>,
    ) -> bool {
        scope.is_some() && is_listed(&join(directory, name), is_directory, scope)
    }
}

/// Returns what the innermost list with a statement about a path says.
fn is_listed(path: &[u8], is_directory: bool, mut scope: Option<&Scope>) -> bool {
    while let Some(here) = scope {
        let below = path.get(here.prefix..).unwrap_or_default();
        if let Some(says) = here.list.says(below, is_directory) {
            return says;
        }
        scope = here.around.as_deref();
    }
    false
}

fn scope(list: Option<LeaveOut>, path: &[u8], around: Option<Arc<Scope>>) -> Option<Arc<Scope>> {
    let Some(list) = list.filter(|list| !list.is_empty()) else { return around };
    let prefix = if path.is_empty() { 0 } else { path.len() + 1 };
    Some(Arc::new(Scope { around, prefix, list }))
}

/// Returns whether an entry is a directory in a workspace's root that foldlog creates itself.
pub(super) fn is_own(directory: &[u8], name: &[u8], is_directory: bool) -> bool {
    is_directory && directory.is_empty() && [EXPORTS, ASIDE].contains(&name)
}

fn read_present(directory: &OwnedFd, path: &[u8]) -> Result<Option<LeaveOut>> {
    let path = || display_path(&join(path, GITIGNORE));
    let file = match open_file(directory, GITIGNORE) {
        Ok(file) => file,
        // As with git, a link is not a list.
        Err(Errno::ENOENT | Errno::ELOOP | MOUNT) => return Ok(None),
        Err(errno) => return Err(Error::io("read", path(), errno)),
    };
    let stat = stat_of(&file).map_err(|errno| Error::io("look at", path(), errno))?;
    if stat.kind() != FileKind::File {
        return Ok(None);
    }
    match read_at_most(file.into(), GITIGNORE_BYTES_MAX) {
        Ok(bytes) => Ok(Some(LeaveOut::of_file(&bytes))),
        Err(error) if error.kind() == ErrorKind::FileTooLarge => {
            Err(Error::path(path(), format!("the file is longer than {GITIGNORE_BYTES_MAX} bytes")))
        }
        Err(error) => Err(Error::io("read", path(), error)),
    }
}

//! Finds the entries of a workspace that cannot be captured.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use nix::errno::Errno;

use super::HostFilesystem;
use super::manifest::{FileKind, ManifestDirectory, ManifestNode, join};
use super::rules::{Gitignore, Rules};
use super::step::{open_around, open_file};
use super::walk::WorkspaceWalk;
use crate::error::{Error, Result};

/// The permissions of a file that every user may read.
const READ_BY_ALL: u32 = 0o444;

/// Names the reasons why an entry of a workspace cannot be captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Uncapturable {
    /// It is a pipe, a socket or a device.
    Special,
    /// It is a file or a directory that this process may not read.
    Unreadable,
}

impl HostFilesystem {
    /// Returns the entries of the workspace that prevent every snapshot, sorted by path, relative
    /// to its root. Skips entries that are left out of snapshots. Reads no file's content, and
    /// writes nothing.
    ///
    /// # Errors
    ///
    /// - [`Error::Path`] if the workspace does not exist or a `.gitignore` has more than 1 MiB.
    /// - [`Error::Io`] if a directory cannot be read.
    pub fn uncapturable(&self) -> Result<Vec<(PathBuf, Uncapturable)>> {
        let gitignore = if self.options.gitignore { Gitignore::Present } else { Gitignore::Unread };
        let rules = Rules::new(&self.options.leave_out, gitignore);
        let root = self.directory()?;
        let walked =
            self.add_workspace_root(WorkspaceWalk::new(Arc::clone(&root), None, &rules, None).run())?;
        let unreadable = walked.unreadable.into_iter();
        let mut found: Vec<_> = unreadable.map(|path| (path, Uncapturable::Unreadable)).collect();
        let is_refused = |path: &[u8]| {
            let opened = open_around(&root, path).and_then(|(directory, name)| open_file(&directory, &name));
            matches!(opened, Err(Errno::EACCES | Errno::EPERM))
        };
        let mut left: Vec<(Vec<u8>, Arc<ManifestDirectory>)> = vec![(Vec::new(), walked.root)];
        while let Some((around, directory)) = left.pop() {
            for entry in &directory.entries {
                let path = join(&around, &entry.name);
                match &entry.node {
                    ManifestNode::Special => found.push((path, Uncapturable::Special)),
                    ManifestNode::Directory(directory) => left.push((path, Arc::clone(directory))),
                    ManifestNode::Leaf(leaf) => {
                        let is_doubtful = leaf.stat.permissions() & READ_BY_ALL != READ_BY_ALL;
                        if leaf.stat.kind() == FileKind::File && is_doubtful && is_refused(&path) {
                            found.push((path, Uncapturable::Unreadable));
                        }
                    }
                    ManifestNode::Mount => {}
                }
            }
        }
        found.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(found.into_iter().map(|(path, why)| (PathBuf::from(OsString::from_vec(path)), why)).collect())
    }

    /// Completes the path in an error of the file system, since the walk only knows paths below the
    /// workspace's root.
    pub(super) fn add_workspace_root<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| match error {
            Error::Io { op, path, source } => Error::Io { op, path: self.root.join(path), source },
            error => error,
        })
    }
}

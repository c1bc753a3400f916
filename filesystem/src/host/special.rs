//! Finds what stands in a workspace and cannot be part of a snapshot.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::HostFilesystem;
use super::manifest::{Folder, Node, join};
use super::rules::{Gitignore, Rules};
use super::walk::Walk;
use crate::error::Result;

impl HostFilesystem {
    /// Returns the paths of the pipes, sockets and devices in the workspace, sorted, below its root. While one of them is there,
    /// no snapshot can be taken. What is left out of snapshots is not looked at, nor are folders that cannot be read. No file's
    /// content is read, and nothing is written.
    ///
    /// # Errors
    ///
    /// [`Error::Path`](crate::Error::Path) if the workspace is gone or a `.gitignore` has more than 1 MiB;
    /// [`Error::Io`](crate::Error::Io) if a folder cannot be looked at.
    pub fn special_files(&self) -> Result<Vec<PathBuf>> {
        let gitignore = if self.options.gitignore { Gitignore::Present } else { Gitignore::Unread };
        let rules = Rules::new(&self.options.leave_out, gitignore);
        let walked = Walk::new(self.folder()?, None, &rules, None).run()?;
        let mut found = Vec::new();
        let mut left: Vec<(Vec<u8>, Arc<Folder>)> = vec![(Vec::new(), walked.root)];
        while let Some((path, folder)) = left.pop() {
            for entry in &folder.entries {
                match &entry.node {
                    Node::Special => found.push(join(&path, &entry.name)),
                    Node::Folder(folder) => left.push((join(&path, &entry.name), Arc::clone(folder))),
                    Node::Leaf(_) | Node::Mount => {}
                }
            }
        }
        found.sort();
        Ok(found.into_iter().map(|path| PathBuf::from(OsString::from_vec(path))).collect())
    }
}

//! Copies of snapshots in directories of their own: somebody may work there, and neither the workspace nor its store changes.

use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::object_files::open_directory;
use super::objects::Objects;
use super::{FilesystemSnapshot, HostFilesystem, Rebind, root, whole};
use crate::DirectoryIdentity;
use crate::error::{Error, Result};

impl HostFilesystem {
    /// Makes a workspace of its own in the system's directory for temporary files, which holds what the workspace held at
    /// `snapshot`. Whatever is done there changes neither this workspace nor its store. The directory is removed when the returned
    /// value is dropped; a killed process leaves it behind, readable for its owner only.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the directory cannot be made; else those of [`restore`](HostFilesystem::restore).
    pub fn scratch(&self, snapshot: &FilesystemSnapshot) -> Result<HostFilesystem> {
        let directory = tempfile::Builder::new().prefix("foldlog-scratch-").tempdir();
        let directory =
            directory.map_err(|error| Error::io("create a folder in", std::env::temp_dir(), error))?;
        // Its path is compared with others, which have no links in them.
        let whole =
            fs::canonicalize(directory.path()).map_err(|error| Error::io("open", directory.path(), error))?;
        let (root, store) = (whole.join("workspace"), whole.join("store"));
        fs::create_dir(&root).map_err(|error| Error::io("create", &root, error))?;
        let objects = Objects::with_borrowed(store, &self.objects);
        let copy = HostFilesystem::at(root, objects, self.options.clone(), Some(directory));
        copy.rebind(Rebind::Overwrite)?;
        copy.restore(snapshot)?;
        Ok(copy)
    }

    /// Checks that nobody who works in this copy of `snapshot` gets by a link into the directory that the snapshot is of.
    ///
    /// # Errors
    ///
    /// [`Error::Path`] names the first link that leads there, also if nothing stands there yet; [`Error::Io`] if the copy cannot
    /// be read.
    pub fn check_apart(&self, snapshot: &FilesystemSnapshot) -> Result<()> {
        let Some(original) = &snapshot.directory else { return Ok(()) };
        let mut known = HashMap::new();
        let mut directories = vec![self.root().to_owned()];
        while let Some(directory) = directories.pop() {
            let failed = |error| Error::io("read", &directory, error);
            for entry in fs::read_dir(&directory).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let kind = entry.file_type().map_err(failed)?;
                if kind.is_dir() {
                    directories.push(entry.path());
                }
                if kind.is_symlink() {
                    let target = fs::read_link(entry.path()).map_err(failed)?;
                    if leads_into(&whole(&directory.join(target))?, original, &mut known) {
                        let path = entry.path();
                        let path =
                            path.strip_prefix(self.root()).unwrap_or(&path).to_string_lossy().into_owned();
                        return Err(Error::path(&path, "a link into the folder of which this is a copy"));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns whether a path leads into a directory. What cannot be opened leads nowhere.
fn leads_into(path: &Path, into: &DirectoryIdentity, known: &mut HashMap<PathBuf, bool>) -> bool {
    path.ancestors().any(|directory| {
        if let Some(is_it) = known.get(directory) {
            return *is_it;
        }
        let opened = open_directory(directory).ok().map(OwnedFd::from);
        let found = opened.and_then(|opened| root::look(&opened, directory).ok());
        let is_it = found.is_some_and(|found| into.is_borne_by(&found));
        known.insert(directory.to_owned(), is_it);
        is_it
    })
}

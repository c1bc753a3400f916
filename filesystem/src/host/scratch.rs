//! Copies of snapshots in their own directories. Work there changes neither the workspace nor its
//! store.

use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::object_files::open_directory;
use super::objects::Objects;
use super::{FilesystemSnapshot, HostFilesystem, Rebind, resolve_links, root};
use crate::DirectoryIdentity;
use crate::error::{Error, IoContext, Result};

impl HostFilesystem {
    /// Creates a separate workspace in the system's directory for temporary files, with the
    /// workspace's contents at `snapshot`. Changes there affect neither this workspace nor its
    /// store. The directory is removed when the returned value is dropped. A killed process leaves
    /// it there, readable only for its owner.
    ///
    /// # Errors
    ///
    /// - [`Error::Io`] if the directory cannot be created.
    /// - Otherwise the errors of [`restore`](HostFilesystem::restore).
    pub fn scratch(&self, snapshot: &FilesystemSnapshot) -> Result<HostFilesystem> {
        let directory = tempfile::Builder::new().prefix("foldlog-scratch-").tempdir();
        let directory =
            directory.map_err(|error| Error::io("create a directory in", std::env::temp_dir(), error))?;
        // Its path is compared with others, which contain no links.
        let whole = fs::canonicalize(directory.path()).during("open", directory.path())?;
        let (root, store) = (whole.join("workspace"), whole.join("store"));
        fs::create_dir(&root).during("create", &root)?;
        let objects = Objects::with_borrowed(store, &self.objects);
        let copy = HostFilesystem::at(root, objects, self.options.clone(), Some(directory));
        copy.rebind(Rebind::Overwrite)?;
        copy.restore(snapshot)?;
        Ok(copy)
    }

    /// Checks that no link in this copy of `snapshot` leads into the original directory of the
    /// snapshot.
    ///
    /// # Errors
    ///
    /// - [`Error::Path`] names the first link that leads there, even if its target does not exist
    ///   yet.
    /// - [`Error::Io`] if the copy cannot be read.
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
                    if leads_into(&resolve_links(&directory.join(target))?, original, &mut known) {
                        let path = entry.path();
                        let path =
                            path.strip_prefix(self.root()).unwrap_or(&path).to_string_lossy().into_owned();
                        return Err(Error::path(
                            &path,
                            "it is a link into the directory of which this is a copy",
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns whether a path leads into a directory. Returns `false` if it cannot be opened.
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

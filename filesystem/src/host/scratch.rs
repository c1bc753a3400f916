//! Copies of snapshots in folders of their own: somebody may work there, and neither the workspace nor its store changes.

use std::fs;

use super::objects::Objects;
use super::{FilesystemSnapshot, HostFilesystem, Rebind};
use crate::error::{Error, Result};

impl HostFilesystem {
    /// Makes a workspace of its own in the system's folder for temporary files, which holds what the workspace held at
    /// `snapshot`. Whatever is done there changes neither this workspace nor its store. The folder is removed when the returned
    /// value is dropped; a killed process leaves it behind, readable for its owner only.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the folder cannot be made; else those of [`restore`](HostFilesystem::restore).
    pub fn scratch(&self, snapshot: &FilesystemSnapshot) -> Result<HostFilesystem> {
        let folder = tempfile::Builder::new().prefix("foldlog-scratch-").tempdir();
        let folder = folder.map_err(|error| Error::io("create a folder in", std::env::temp_dir(), error))?;
        // Its path is compared with others, which have no links in them.
        let whole =
            fs::canonicalize(folder.path()).map_err(|error| Error::io("open", folder.path(), error))?;
        let (root, store) = (whole.join("workspace"), whole.join("store"));
        fs::create_dir(&root).map_err(|error| Error::io("create", &root, error))?;
        let objects = Objects::borrowing(store, &self.objects);
        let copy = HostFilesystem::at(root, objects, self.options.clone(), Some(folder));
        copy.rebind(Rebind::Overwrite)?;
        copy.restore(snapshot)?;
        Ok(copy)
    }
}

//! Makes objects durable, with all names that lead to them.

use std::path::{Path, PathBuf};

use super::object_files::{open_directory, open_file};
use super::objects::{ObjectId, ObjectPlace, Objects};
use crate::error::{IoContext, Result};

/// For more objects than this, one sync of the whole file system takes less time than one for each.
const SYNC_SINGLY_MAX: usize = 64;

impl Objects {
    /// Syncs these objects, and all names that lead to them.
    pub(super) fn sync(&self, ids: &[ObjectId]) -> Result<()> {
        // Some of them may be in the other store.
        if ids.len() > SYNC_SINGLY_MAX || self.borrowed.is_some() {
            self.sync_all()?;
        } else {
            let files = |id: &ObjectId| match self.place(*id) {
                ObjectPlace::File(path) => vec![path],
                // A process may rely on a pack before the one that wrote it has synced its name.
                ObjectPlace::Packed(pack, _) => pack.files().to_vec(),
            };
            let mut paths: Vec<PathBuf> = ids.iter().flat_map(files).collect();
            paths.sort_unstable();
            paths.dedup();
            let mut directories: Vec<&Path> = paths.iter().filter_map(|path| path.parent()).collect();
            directories.dedup();
            let own = ["config", "HEAD"].map(|name| self.store().join(name));
            for path in paths.iter().chain(&own) {
                sync_file(path)?;
            }
            let own = ["objects", "refs"].map(|name| self.store().join(name));
            for path in directories.into_iter().chain(own.iter().map(PathBuf::as_path)) {
                sync_directory(path)?;
            }
            sync_directory(self.store())?;
            self.sync_name()?;
        }
        self.learn_durable(ids);
        self.pool_durable(ids);
        Ok(())
    }

    /// Syncs everything in the store, by one sync of its whole file system.
    pub(super) fn sync_all(&self) -> Result<()> {
        let store = open_directory(self.store()).during("open", self.store())?;
        nix::unistd::syncfs(&store).during("sync", self.store())?;
        self.sync_name()
    }

    /// Syncs the store's own name, which is in a directory that may be on another file system.
    fn sync_name(&self) -> Result<()> {
        self.store().parent().map_or(Ok(()), sync_directory)
    }
}

fn sync_file(path: &Path) -> Result<()> {
    open_file(path).and_then(|file| file.sync_all()).during("sync", path)
}

pub(super) fn sync_directory(path: &Path) -> Result<()> {
    open_directory(path).and_then(|directory| directory.sync_all()).during("sync", path)
}

//! Operations of a storage, with errors that name the path.

use std::io::ErrorKind;
use std::path::Path;

use super::{Error, Result};
use crate::storage::{DirectoryEntry, Storage};

impl dyn Storage + '_ {
    /// Looks up a path. Returns `None` if nothing is there.
    pub(crate) fn look_up(&self, path: &Path) -> Result<Option<DirectoryEntry>> {
        self.entry(path).map_err(|error| Error::io("look up", path, error))
    }

    pub(crate) fn entries(&self, directory: &Path) -> Result<Vec<DirectoryEntry>> {
        self.list(directory).map_err(|error| Error::io("list", directory, error))
    }

    /// Lists a directory. Returns `None` if it does not exist.
    pub(crate) fn entries_if_any(&self, directory: &Path) -> Result<Option<Vec<DirectoryEntry>>> {
        match self.list(directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            listed => listed.map(Some).map_err(|error| Error::io("list", directory, error)),
        }
    }

    pub(crate) fn make_directory(&self, path: &Path) -> Result<()> {
        self.create_dir_all(path).map_err(|error| Error::unmade("create", path, 0, error))
    }

    /// Makes the names in a directory durable.
    pub(crate) fn sync_directory(&self, path: &Path) -> Result<()> {
        self.sync_dir(path).map_err(|error| Error::io("sync", path, error))
    }

    pub(crate) fn rename_to(&self, from: &Path, to: &Path) -> Result<()> {
        self.rename(from, to).map_err(|error| Error::io("rename", to, error))
    }

    /// Writes a small file under the name `building`, makes its bytes durable, and then gives it
    /// the name `path`. The name is durable after the next sync of the directory.
    pub(crate) fn write_file(&self, building: &Path, path: &Path, bytes: &[u8]) -> Result<()> {
        let len = bytes.len() as u64;
        let unmade = |op, error| Error::unmade(op, building, len, error);
        let file = self.create(building, len).map_err(|error| unmade("create", error))?;
        file.write_at(bytes, 0).map_err(|error| unmade("write", error))?;
        file.sync_data().map_err(|error| unmade("sync", error))?;
        self.rename_to(building, path)
    }
}

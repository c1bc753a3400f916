//! What one sync has to do.

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::log::objects::Unsynced;
use crate::log::storage::{Storage, StorageFile};

/// What one sync has to do; it runs without any lock of the session.
#[derive(Debug)]
pub(crate) struct SyncPlan {
    pub(super) objects: Unsynced,
    pub(super) dirs: Vec<PathBuf>,
    pub(super) files: Vec<Written>,
    /// Everything below is durable once the plan has run.
    pub(crate) through: u64,
}

/// A part of a segment that is not known to be durable.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn StorageFile>,
    pub(super) from: u64,
    pub(super) to: u64,
}

impl SyncPlan {
    /// Makes everything durable, in the order that the module above names.
    pub(crate) fn run(&self, storage: &dyn Storage) -> Result<()> {
        for (path, file) in &self.objects.files {
            file.sync_data().map_err(|error| Error::io("sync", path, error))?;
        }
        for dir in self.objects.dirs.iter().chain(&self.dirs) {
            storage.sync_dir(dir).map_err(|error| Error::io("sync", dir, error))?;
        }
        for Written { path, file, from, to } in &self.files {
            file.sync_range(*from, *to).map_err(|error| Error::io("sync", path, error))?;
        }
        Ok(())
    }
}

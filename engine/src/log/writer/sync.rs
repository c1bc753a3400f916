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
    pub(super) files: Vec<(PathBuf, Arc<dyn StorageFile>)>,
    /// Everything below is durable once the plan has run.
    pub(crate) through: u64,
}

impl SyncPlan {
    /// Makes everything durable, in the order that the module above names.
    pub(crate) fn run(&self, storage: &dyn Storage) -> Result<()> {
        let files = |files: &[(PathBuf, Arc<dyn StorageFile>)]| -> Result<()> {
            for (path, file) in files {
                file.sync_data().map_err(|error| Error::io("sync", path, error))?;
            }
            Ok(())
        };
        files(&self.objects.files)?;
        for dir in self.objects.dirs.iter().chain(&self.dirs) {
            storage.sync_dir(dir).map_err(|error| Error::io("sync", dir, error))?;
        }
        files(&self.files)
    }
}

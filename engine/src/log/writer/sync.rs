//! The plan of one sync.

use foldlog_codec::SequenceNumber;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::log::objects::UnsyncedObjects;
use crate::storage::{Storage, StorageFile};

/// Maximum length of a piece of a segment that is synced at once, in bytes. Pieces end at multiples
/// of it. The system keeps pages that were brought in for a fast writer in units that grow to this
/// size, and writes a whole unit for each part of it.
const PIECE_BYTES: u64 = 2 << 20;

/// The steps of one sync; it runs without any lock of the session.
#[derive(Debug)]
pub(crate) struct SyncPlan {
    pub(super) objects: UnsyncedObjects,
    pub(super) dirs: Vec<PathBuf>,
    pub(super) files: Vec<UnsyncedRange>,
    /// Sequence number below which everything is durable once the plan has run.
    pub(crate) through: SequenceNumber,
}

#[derive(Debug)]
pub(super) struct UnsyncedRange {
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn StorageFile>,
    pub(super) range: Range<u64>,
}

impl SyncPlan {
    /// Makes everything durable, in the order of the parent module's docs. Calls `pause` between
    /// the pieces of a long segment.
    ///
    /// If the error is [`Error::NoHandle`], a directory could not be opened, and no sync has
    /// failed.
    pub(crate) fn run(&self, storage: &dyn Storage, pause: &dyn Fn()) -> Result<()> {
        self.sync_objects_and_names(storage)?;
        self.sync_segments(pause)
    }

    fn sync_objects_and_names(&self, storage: &dyn Storage) -> Result<()> {
        for (path, file) in &self.objects.files {
            file.sync_data().map_err(|error| Error::io("sync", path, error))?;
        }
        self.objects.pool(storage);
        for dir in self.objects.dirs.iter().chain(&self.dirs) {
            storage.sync_dir(dir).map_err(|error| Error::unmade("sync", dir, 0, error))?;
        }
        Ok(())
    }

    fn sync_segments(&self, pause: &dyn Fn()) -> Result<()> {
        for written in &self.files {
            written.sync(pause).map_err(|error| Error::io("sync", &written.path, error))?;
        }
        Ok(())
    }
}

impl UnsyncedRange {
    fn sync(&self, pause: &dyn Fn()) -> io::Result<()> {
        let Range { start: mut from, end: to } = self.range;
        while from < to {
            let end = (from / PIECE_BYTES + 1).saturating_mul(PIECE_BYTES).min(to);
            self.file.sync_range(from, end)?;
            from = end;
            pause();
        }
        Ok(())
    }
}

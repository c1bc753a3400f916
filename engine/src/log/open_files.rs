//! Files that readers hold open, so that a compaction does not remove data that they need.
//!
//! A host may open hundreds of files itself. All readers of the process together therefore hold at
//! most 1,024 files, and at most a quarter of the process's limit of open files.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit};

use crate::storage::StorageFile;

const HELD_MAX: u64 = 1_024;

static HELD: AtomicU64 = AtomicU64::new(0);

/// Holds a file of a segment open. Its clones share it.
#[derive(Clone, Debug)]
pub(crate) struct HeldFile(Arc<(Arc<dyn StorageFile>, FilePermit)>);

/// A permit for one of the files that may be held.
#[derive(Debug)]
struct FilePermit;

impl FilePermit {
    fn take() -> Option<FilePermit> {
        let most = getrlimit(Resource::Nofile).current.map_or(HELD_MAX, |files| HELD_MAX.min(files / 4));
        let more = |held: u64| (held < most).then_some(held + 1);
        HELD.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| FilePermit)
    }
}

impl Drop for FilePermit {
    fn drop(&mut self) {
        HELD.fetch_sub(1, Ordering::Relaxed);
    }
}

impl HeldFile {
    /// Holds the file that `open` returns. Returns `None` if there is no file, or no room for
    /// another one.
    pub(super) fn hold(open: impl FnOnce() -> Option<Arc<dyn StorageFile>>) -> Option<HeldFile> {
        let room = FilePermit::take()?;
        Some(HeldFile(Arc::new((open()?, room))))
    }

    pub(super) fn file(&self) -> Arc<dyn StorageFile> {
        Arc::clone(&self.0.0)
    }
}

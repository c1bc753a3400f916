//! Files that readers hold open, so that a compaction takes nothing from them.
//!
//! A reader is only asked for its log, and a host may open hundreds of files itself: all readers of the process together hold 1,024
//! files at most, and no more than a quarter of those that the system lets the process open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit};

use crate::storage::StorageFile;

/// Number of files that the readers of a process hold at most.
const HELD_MAX: u64 = 1_024;

/// Number of files that are held.
static HELD: AtomicU64 = AtomicU64::new(0);

/// Holds a file of a segment open. Its clones hold the same one.
#[derive(Clone, Debug)]
pub(crate) struct HeldFile {
    held: Arc<CountedFile>,
}

#[derive(Debug)]
struct CountedFile {
    file: Arc<dyn StorageFile>,
    _room: FilePermit,
}

/// Stands for one file of those that may be held.
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
    /// Holds the file that `open` opens. `None` if it opens none, or there is no room for another.
    pub(super) fn hold(open: impl FnOnce() -> Option<Arc<dyn StorageFile>>) -> Option<HeldFile> {
        let room = FilePermit::take()?;
        Some(HeldFile { held: Arc::new(CountedFile { file: open()?, _room: room }) })
    }

    /// Returns the file.
    pub(super) fn file(&self) -> Arc<dyn StorageFile> {
        Arc::clone(&self.held.file)
    }
}

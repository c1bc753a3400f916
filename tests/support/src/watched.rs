//! A disk that calls a handler before each call.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use foldlog::storage::{Access, DirectoryEntry, HeldLock, Op, Stamp, Storage, StorageFile};
use uuid::Uuid;

/// Forwards calls to another disk, after its handler has seen them.
pub struct Watched<D> {
    disk: D,
    hear: Box<Hear>,
}

type Hear = dyn Fn(Op, &Path) + Send + Sync;

impl<D: Storage> Watched<D> {
    /// Calls `hear` before each call on files and directories, with the call's path; for a rename
    /// and a hard link that is the new name.
    pub fn new(disk: D, hear: impl Fn(Op, &Path) + Send + Sync + 'static) -> Watched<D> {
        Watched { disk, hear: Box::new(hear) }
    }
}

impl<D: fmt::Debug> fmt::Debug for Watched<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("disk", &self.disk).finish_non_exhaustive()
    }
}

impl<D: Storage> Storage for Watched<D> {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        (self.hear)(Op::CreateDirAll, path);
        self.disk.create_dir_all(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirectoryEntry>> {
        (self.hear)(Op::List, dir);
        self.disk.list(dir)
    }

    fn entry(&self, path: &Path) -> io::Result<Option<DirectoryEntry>> {
        (self.hear)(Op::Entry, path);
        self.disk.entry(path)
    }

    fn create(&self, path: &Path, allocate_bytes: u64) -> io::Result<Arc<dyn StorageFile>> {
        (self.hear)(Op::Create, path);
        self.disk.create(path, allocate_bytes)
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn StorageFile>> {
        (self.hear)(Op::Open, path);
        self.disk.open(path, access)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        (self.hear)(Op::Rename, to);
        self.disk.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        (self.hear)(Op::HardLink, to);
        self.disk.hard_link(from, to)
    }

    fn links(&self, path: &Path) -> io::Result<u64> {
        self.disk.links(path)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        (self.hear)(Op::RemoveFile, path);
        self.disk.remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        (self.hear)(Op::RemoveDirAll, path);
        self.disk.remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        (self.hear)(Op::SyncDir, path);
        self.disk.sync_dir(path)
    }

    fn stamp(&self, path: &Path) -> io::Result<Option<Stamp>> {
        self.disk.stamp(path)
    }

    fn touch(&self, dir: &Path) -> io::Result<()> {
        self.disk.touch(dir)
    }

    fn locked_bytes(&self, path: &Path) -> io::Result<BTreeSet<u64>> {
        self.disk.locked_bytes(path)
    }

    fn boot_id(&self) -> Option<Uuid> {
        self.disk.boot_id()
    }

    fn try_lock(&self, path: &Path, offset: u64) -> io::Result<Option<Box<dyn HeldLock>>> {
        (self.hear)(Op::TryLock, path);
        self.disk.try_lock(path, offset)
    }
}

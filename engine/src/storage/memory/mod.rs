//! A disk in memory. It can lose, tear and refuse data like a real disk.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use parking_lot::{Mutex, MutexGuard};
use uuid::Uuid;

use super::{Access, DirectoryEntry, HeldLock, Storage, StorageFile};

mod body;
mod chance;
mod directory;
mod disk;
mod fault;
#[cfg(test)]
mod tests;

use body::FilePages;
use disk::{Disk, Node, NodeId};
pub use fault::{Fault, Op};

/// Boot id of a new disk. It is fixed, so that tests are repeatable.
const FIRST_BOOT_ID: Uuid = Uuid::from_u128(0x666f_6c64_6c6f_4067_8000_0000_0000_0001);

/// Describes the end of a process or a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashKind {
    /// The process is killed: everything written stays, even if it was not synced.
    Process,
    /// The power is cut. Each unsynced page of 4 KiB, each unsynced file length and each unsynced
    /// change of names independently reached the disk or did not. Some seeds preserve or lose all
    /// of them. Some tear pages: each sector of 512 bytes, or each byte, is old or new. Changes of
    /// the same name reach the disk in their order. The boot id changes.
    Power {
        /// Seed that decides which data is lost.
        seed: u64,
    },
    /// The power is cut, and no unsynced data had reached the disk. The boot id changes.
    PowerLosingAll,
}

/// A disk in memory.
///
/// Clones share the disk. A read always returns the bytes that were written last. A power cut
/// preserves the synced data, and a random part of the rest. The directory `/` always exists, and
/// relative paths start there.
///
/// ```
/// use foldlog::storage::{CrashKind, MemoryStorage, Storage};
/// use std::path::Path;
///
/// let disk = MemoryStorage::new();
/// disk.create(Path::new("/kept"), 4096)?.sync_data()?;
/// disk.sync_dir(Path::new("/"))?;
/// disk.create(Path::new("/lost"), 4096)?.sync_data()?;
/// disk.crash(CrashKind::PowerLosingAll);
/// assert_eq!(disk.files(), [Path::new("/kept")]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct MemoryStorage {
    disk: Arc<Mutex<Disk>>,
    /// The life of the process for which this value was created; it ends at the next crash. `None`
    /// outlives every crash.
    life: Option<u64>,
}

impl Default for MemoryStorage {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStorage").field("life", &self.life).finish_non_exhaustive()
    }
}

impl MemoryStorage {
    /// Returns an empty disk, always with the same boot id.
    pub fn new() -> Self {
        Self::with_boot_id(FIRST_BOOT_ID)
    }

    /// Returns an empty disk of a machine with this boot id. With `None`, the machine has no boot
    /// id.
    pub fn with_boot_id(boot_id: impl Into<Option<Uuid>>) -> Self {
        Self { disk: Arc::new(Mutex::new(Disk::new(boot_id.into()))), life: None }
    }

    /// Returns this disk for one process. After the next crash, each storage call through the
    /// returned value, or through clones of it, returns an error and changes nothing.
    ///
    /// Give the returned value to code whose threads or destructors may still run after the crash:
    /// a dead process would not remove files either.
    #[must_use]
    pub fn process(&self) -> Self {
        let life = self.disk.lock().life;
        Self { disk: Arc::clone(&self.disk), life: Some(life) }
    }

    /// Ends the process or cuts the power. Every lock is released and every open file is dead: each
    /// later call on it returns an error.
    ///
    /// Faults are unchanged. After a power cut everything that is left is durable.
    pub fn crash(&self, kind: CrashKind) {
        self.disk.lock().crash(kind);
    }

    /// Lets some unsynced data reach the disk, as the kernel may at any time. If a page is written
    /// again afterwards, a power cut may leave it in this older state.
    pub fn write_back(&self, seed: u64) {
        self.disk.lock().write_back(seed);
    }

    /// Adds a fault to the disk.
    pub fn inject(&self, fault: Fault) {
        self.disk.lock().faults.add(fault);
    }

    /// Removes all faults. Data that a fault has already lost stays lost.
    pub fn clear_faults(&self) {
        self.disk.lock().faults = fault::Faults::default();
    }

    /// Returns the bytes of a file as a read would. Returns `None` if there is no file.
    ///
    /// Like all methods of the type itself, this method also works on a broken disk, and is not
    /// traced.
    pub fn read_file(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let disk = self.disk.lock();
        let id = disk.find(path.as_ref()).ok()?;
        Some(disk.body(id).ok()?.bytes())
    }

    /// Returns the number of a file, like an inode number: two names with one number lead to the
    /// same bytes.
    pub fn file_number(&self, path: impl AsRef<Path>) -> Option<u64> {
        let disk = self.disk.lock();
        let id = disk.find(path.as_ref()).ok()?;
        disk.body(id).ok().map(|_| id.0)
    }

    /// Creates or replaces a file. Its bytes, its name, the directories above it and the other
    /// names in them are durable at once.
    pub fn write_file(&self, path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        let file = FilePages::from_durable_bytes(bytes.as_ref());
        self.disk.lock().settle_node(path.as_ref(), Node::File(file))
    }

    /// Changes a file's bytes, in the state that a read returns, and makes them durable like
    /// [`MemoryStorage::write_file`].
    pub fn mutate_file(&self, path: impl AsRef<Path>, change: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let path = path.as_ref();
        let mut bytes = self.read_file(path).ok_or(Errno::ENOENT)?;
        // The disk is not locked during the call, so that `change` may read other files.
        change(&mut bytes);
        self.write_file(path, bytes)
    }

    /// Creates an entry, durable at once, that is neither a regular file nor a directory, such as a
    /// link.
    pub fn make_other(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.disk.lock().settle_node(path.as_ref(), Node::Other)
    }

    /// Returns the paths of all files, sorted. A file with two names is listed twice.
    pub fn files(&self) -> Vec<PathBuf> {
        self.disk.lock().files().into_keys().collect()
    }

    /// Returns all files with the bytes that reads would return.
    pub fn dump(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        self.disk.lock().files().into_iter().map(|(path, body)| (path, body.bytes())).collect()
    }

    /// Returns the sum of the lengths of all files, which [`Fault::DiskFull`] limits.
    pub fn used_bytes(&self) -> u64 {
        self.disk.lock().used_bytes()
    }

    /// Returns the storage calls since the trace was last taken, in their order. Failed calls are
    /// included. Calls through a handle or a process that a crash has killed are not.
    pub fn trace(&self) -> Vec<(Op, PathBuf)> {
        self.disk.lock().trace.iter().map(|(op, path)| (*op, path.to_path_buf())).collect()
    }

    /// Returns the [trace](MemoryStorage::trace), and starts a new one.
    pub fn take_trace(&self) -> Vec<(Op, PathBuf)> {
        let trace = std::mem::take(&mut self.disk.lock().trace);
        trace.into_iter().map(|(op, path)| (op, path.to_path_buf())).collect()
    }

    fn begin(&self, op: Op, path: &Path) -> io::Result<MutexGuard<'_, Disk>> {
        let mut disk = self.disk.lock();
        if self.life.is_some_and(|life| life != disk.life) {
            return Err(dead());
        }
        disk.begin(op, path)?;
        Ok(disk)
    }

    /// Begins a call that needs a handle.
    fn opening(&self, op: Op, path: &Path) -> io::Result<MutexGuard<'_, Disk>> {
        let disk = self.begin(op, path)?;
        disk.may_open()?;
        Ok(disk)
    }

    fn handle(&self, disk: &Disk, node: NodeId, path: &Path, access: Access) -> Arc<dyn StorageFile> {
        let (life, path) = (disk.life, path.into());
        let failures = AtomicU64::new(disk.body(node).map_or(0, |body| body.failures));
        Arc::new(MemoryFile { disk: Arc::clone(&self.disk), life, node, path, access, failures })
    }
}

impl Storage for MemoryStorage {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.begin(Op::CreateDirAll, path)?.create_dir_all(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirectoryEntry>> {
        self.opening(Op::List, dir)?.list(dir)
    }

    fn entry(&self, path: &Path) -> io::Result<Option<DirectoryEntry>> {
        self.begin(Op::Entry, path)?.entry(path)
    }

    fn create(&self, path: &Path, allocate_bytes: u64) -> io::Result<Arc<dyn StorageFile>> {
        let mut disk = self.opening(Op::Create, path)?;
        let node = disk.create(path, allocate_bytes)?;
        Ok(self.handle(&disk, node, path, Access::Write))
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn StorageFile>> {
        let disk = self.opening(Op::Open, path)?;
        let node = disk.open(path, access)?;
        Ok(self.handle(&disk, node, path, access))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.begin(Op::Rename, to)?.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.begin(Op::HardLink, to)?.hard_link(from, to)
    }

    fn links(&self, path: &Path) -> io::Result<u64> {
        self.disk.lock().links(path)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.begin(Op::RemoveFile, path)?.remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.begin(Op::RemoveDirAll, path)?.remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.opening(Op::SyncDir, path)?.sync_dir(path)
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        Ok(self.disk.lock().room())
    }

    fn boot_id(&self) -> Option<Uuid> {
        self.disk.lock().boot_id
    }

    fn try_lock(&self, path: &Path, offset: u64) -> io::Result<Option<Box<dyn HeldLock>>> {
        let mut disk = self.opening(Op::TryLock, path)?;
        let Some(node) = disk.lock(path, offset)? else { return Ok(None) };
        let life = disk.life;
        Ok(Some(Box::new(MemoryLock { disk: Arc::clone(&self.disk), life, node, offset })))
    }
}

struct MemoryFile {
    disk: Arc<Mutex<Disk>>,
    life: u64,
    node: NodeId,
    path: Arc<Path>,
    access: Access,
    /// Number of failed syncs of the file that this handle has reported, or that preceded its
    /// opening.
    failures: AtomicU64,
}

impl MemoryFile {
    fn alive(&self) -> io::Result<MutexGuard<'_, Disk>> {
        let disk = self.disk.lock();
        if disk.life == self.life { Ok(disk) } else { Err(dead()) }
    }
}

impl fmt::Debug for MemoryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("MemoryFile");
        shown.field("path", &self.path).field("access", &self.access).finish_non_exhaustive()
    }
}

impl MemoryFile {
    fn sync(&self, sync: impl FnOnce(&mut FilePages)) -> io::Result<()> {
        let mut disk = self.alive()?;
        let begun = disk.begin(Op::SyncData, Arc::clone(&self.path));
        if disk.life != self.life {
            // If a process dies in a sync, the kernel still has its data to write.
            return begun.map(drop);
        }
        let body = disk.body_mut(self.node)?;
        match begun {
            Ok(_) => {
                sync(body);
                let failures = body.failures;
                if self.failures.swap(failures, Ordering::Relaxed) != failures {
                    return Err(io::Error::other("a sync of the file through another handle failed"));
                }
                Ok(())
            }
            Err(error) => {
                body.fail_sync();
                self.failures.store(body.failures, Ordering::Relaxed);
                Err(error)
            }
        }
    }
}

impl StorageFile for MemoryFile {
    fn len(&self) -> io::Result<u64> {
        let mut disk = self.alive()?;
        disk.begin(Op::Len, Arc::clone(&self.path))?;
        Ok(disk.body(self.node)?.len())
    }

    fn next_data(&self, offset: u64) -> io::Result<u64> {
        Ok(self.alive()?.body(self.node)?.next_data(offset))
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut disk = self.alive()?;
        disk.begin(Op::Read, Arc::clone(&self.path))?;
        Ok(disk.body(self.node)?.read(buf, offset))
    }

    /// For a mapped file this is not a system call, so no fault applies to it and no trace shows
    /// it.
    fn peek(&self, offset: u64) -> Option<[u8; 4]> {
        let mut bytes = [0; 4];
        let read = self.alive().ok()?.body(self.node).ok()?.read(&mut bytes, offset);
        (read == bytes.len()).then_some(bytes)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut disk = self.alive()?;
        let limit = disk.begin(Op::Write, Arc::clone(&self.path))?;
        if self.access == Access::Read {
            disk.end_write()?;
            return Err(Errno::EBADF.into());
        }
        let written = disk.write(self.node, bytes, offset, limit);
        disk.end_write()?;
        written
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        let mut disk = self.alive()?;
        disk.begin(Op::Create, Arc::clone(&self.path))?;
        disk.allocate(self.node, bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync(FilePages::sync)
    }

    fn sync_range(&self, from: u64, to: u64) -> io::Result<()> {
        self.sync(|body| body.sync_range(from, to))
    }
}

struct MemoryLock {
    disk: Arc<Mutex<Disk>>,
    life: u64,
    node: NodeId,
    offset: u64,
}

impl HeldLock for MemoryLock {}

impl fmt::Debug for MemoryLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLock").field("offset", &self.offset).finish_non_exhaustive()
    }
}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        let mut disk = self.disk.lock();
        // After a crash another process may hold the same lock.
        if disk.life == self.life {
            disk.unlock(self.node, self.offset);
        }
    }
}

fn dead() -> io::Error {
    io::Error::other("the process that held this has crashed")
}

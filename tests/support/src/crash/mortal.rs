//! Real files under a simulated process that can be killed.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use foldlog::storage::{Access, DirectoryEntry, FileStorage, HeldLock, Storage, StorageFile};
use parking_lot::Mutex;
use uuid::Uuid;

/// The real file system as one process sees it. Once the process is killed, each call fails and
/// changes nothing, so that drops leave no trace. Reads are counted, and actions of others occur
/// [`meanwhile`](Mortal::meanwhile), before any of its calls.
#[derive(Clone, Debug)]
pub struct Mortal {
    real: FileStorage,
    boot: Option<Uuid>,
    life: Arc<Life>,
}

#[derive(Debug, Default)]
struct Life {
    is_over: AtomicBool,
    read_bytes: AtomicU64,
    reads: AtomicU64,
    coming: Mutex<Option<Coming>>,
}

/// An action that occurs before a call of the process.
struct Coming {
    calls: u64,
    is_one: Box<dyn Fn(&Path) -> bool + Send>,
    deed: Box<dyn FnOnce() + Send>,
}

impl std::fmt::Debug for Coming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coming").field("calls", &self.calls).finish_non_exhaustive()
    }
}

impl Life {
    /// Runs the pending action before a call with a path, if it is due.
    fn call(&self, path: &Path) -> io::Result<()> {
        let coming = {
            let mut coming = self.coming.lock();
            let calls = coming.as_mut().filter(|coming| (coming.is_one)(path)).map(|coming| {
                coming.calls -= 1;
                coming.calls
            });
            if calls == Some(0) { coming.take() } else { None }
        };
        if let Some(coming) = coming {
            (coming.deed)();
        }
        self.check()
    }

    fn check(&self) -> io::Result<()> {
        match self.is_over.load(Ordering::SeqCst) {
            true => Err(io::Error::other("the process was killed")),
            false => Ok(()),
        }
    }
}

#[derive(Debug)]
struct MortalFile {
    real: Arc<dyn StorageFile>,
    life: Arc<Life>,
}

impl Mortal {
    /// Returns a new process, in this boot.
    pub fn born(boot: Option<Uuid>) -> Mortal {
        Mortal { real: FileStorage::new(), boot, life: Arc::default() }
    }

    /// Kills the process. Its locks are released when their owner is dropped.
    pub fn kill(&self) {
        self.life.is_over.store(true, Ordering::SeqCst);
    }

    /// Runs an action once, just before the `nth` call from now on with a path for which `is_one`
    /// is true. The first is 1.
    pub fn meanwhile(
        &self,
        nth: u64,
        is_one: impl Fn(&Path) -> bool + Send + 'static,
        deed: impl FnOnce() + Send + 'static,
    ) {
        *self.life.coming.lock() =
            Some(Coming { calls: nth, is_one: Box::new(is_one), deed: Box::new(deed) });
    }

    /// Returns whether the action of [`meanwhile`](Mortal::meanwhile) is still pending, and forgets
    /// it.
    pub fn is_to_come(&self) -> bool {
        self.life.coming.lock().take().is_some()
    }

    /// Returns the number of bytes read, and of the reading calls.
    pub fn read(&self) -> (u64, u64) {
        (self.life.read_bytes.load(Ordering::SeqCst), self.life.reads.load(Ordering::SeqCst))
    }

    fn file(&self, real: io::Result<Arc<dyn StorageFile>>) -> io::Result<Arc<dyn StorageFile>> {
        Ok(Arc::new(MortalFile { real: real?, life: Arc::clone(&self.life) }))
    }
}

impl Storage for Mortal {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.life.call(path)?;
        self.real.create_dir_all(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirectoryEntry>> {
        self.life.call(dir)?;
        self.real.list(dir)
    }

    fn entry(&self, path: &Path) -> io::Result<Option<DirectoryEntry>> {
        self.life.call(path)?;
        self.real.entry(path)
    }

    fn create(&self, path: &Path, allocate_bytes: u64) -> io::Result<Arc<dyn StorageFile>> {
        self.life.call(path)?;
        self.file(self.real.create(path, allocate_bytes))
    }

    fn create_segment(&self, path: &Path, allocate_bytes: u64) -> io::Result<Arc<dyn StorageFile>> {
        self.life.call(path)?;
        self.file(self.real.create_segment(path, allocate_bytes))
    }

    fn open_segment(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        self.life.call(path)?;
        self.file(self.real.open_segment(path))
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn StorageFile>> {
        self.life.call(path)?;
        self.file(self.real.open(path, access))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.life.call(from)?;
        self.real.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.life.call(from)?;
        self.real.hard_link(from, to)
    }

    fn links(&self, path: &Path) -> io::Result<u64> {
        self.life.call(path)?;
        self.real.links(path)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.life.call(path)?;
        self.real.remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.life.call(path)?;
        self.real.remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.life.call(path)?;
        self.real.sync_dir(path)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.life.call(dir)?;
        self.real.free_bytes(dir)
    }

    fn boot_id(&self) -> Option<Uuid> {
        self.boot
    }

    fn try_lock(&self, path: &Path, offset: u64) -> io::Result<Option<Box<dyn HeldLock>>> {
        self.life.call(path)?;
        self.real.try_lock(path, offset)
    }
}

impl StorageFile for MortalFile {
    fn len(&self) -> io::Result<u64> {
        self.life.check()?;
        self.real.len()
    }

    fn next_data(&self, offset: u64) -> io::Result<u64> {
        self.life.check()?;
        self.real.next_data(offset)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.life.check()?;
        let read = self.real.read_at(buf, offset)?;
        self.life.read_bytes.fetch_add(read as u64, Ordering::SeqCst);
        self.life.reads.fetch_add(1, Ordering::SeqCst);
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.life.check()?;
        self.real.write_at(bytes, offset)
    }

    fn is_worth_preparing(&self) -> bool {
        self.real.is_worth_preparing()
    }

    fn prepare(&self, from: u64, to: u64) -> io::Result<()> {
        self.life.check()?;
        self.real.prepare(from, to)
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.life.check()?;
        self.real.allocate(bytes)
    }

    fn give_back(&self, from: u64, to: u64) -> io::Result<()> {
        self.life.check()?;
        self.real.give_back(from, to)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.life.check()?;
        self.real.sync_data()
    }

    fn sync_range(&self, from: u64, to: u64) -> io::Result<()> {
        self.life.check()?;
        self.real.sync_range(from, to)
    }
}

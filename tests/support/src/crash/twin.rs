//! Real files, together with a model of their content after a power cut.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog::storage::{
    Access, DirectoryEntry, EntryKind, FileStorage, HeldLock, MemoryStorage, Storage, StorageFile,
};
use uuid::Uuid;

/// The real file system with mapped segments; each call is also made on a disk in memory. That disk
/// knows which of the real pages a sync has covered, so any image of a power cut can be cut from a
/// real run. Both must read the same. A call that the disk in memory refuses is not made on the
/// real one.
#[derive(Clone, Debug)]
pub struct Twin {
    real: FileStorage,
    shadow: MemoryStorage,
}

#[derive(Debug)]
struct TwinFile {
    real: Arc<dyn StorageFile>,
    shadow: Arc<dyn StorageFile>,
}

#[derive(Debug)]
struct TwinLock {
    _real: Box<dyn HeldLock>,
    _shadow: Box<dyn HeldLock>,
}

impl HeldLock for TwinLock {}

impl Twin {
    pub fn new(shadow: MemoryStorage) -> Twin {
        Twin { real: FileStorage::new(), shadow }
    }

    /// Replaces the files below `dir` by those of the disk in memory; hard links become one file
    /// again.
    pub fn refill(dir: &Path, shadow: &MemoryStorage) -> io::Result<()> {
        Twin::refill_directory(dir, shadow, &mut BTreeMap::new())
    }

    fn refill_directory(
        dir: &Path,
        shadow: &MemoryStorage,
        made: &mut BTreeMap<u64, PathBuf>,
    ) -> io::Result<()> {
        if dir.exists() {
            fs::remove_dir_all(dir)?;
        }
        fs::create_dir_all(dir)?;
        // A directory without a durable name does not exist at all.
        let Some(_) = shadow.entry(dir)? else { return Ok(()) };
        for entry in shadow.list(dir)? {
            let path = dir.join(&entry.name);
            match entry.kind {
                EntryKind::Directory => Twin::refill_directory(&path, shadow, made)?,
                _ => match shadow.file_number(&path).and_then(|number| made.insert(number, path.clone())) {
                    Some(other) => fs::hard_link(other, &path)?,
                    None => fs::write(&path, shadow.read_file(&path).unwrap_or_default())?,
                },
            }
        }
        Ok(())
    }

    fn file(real: Arc<dyn StorageFile>, shadow: Arc<dyn StorageFile>) -> Arc<dyn StorageFile> {
        Arc::new(TwinFile { real, shadow })
    }
}

impl Storage for Twin {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.shadow.create_dir_all(path)?;
        self.real.create_dir_all(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let expected = self.shadow.list(dir)?;
        let found = self.real.list(dir)?;
        // A disk in memory stores no permissions.
        let without_mode = |entry: &DirectoryEntry| DirectoryEntry { mode: None, ..entry.clone() };
        assert_eq!(found.iter().map(without_mode).collect::<Vec<_>>(), expected, "{}", dir.display());
        Ok(found)
    }

    fn entry(&self, path: &Path) -> io::Result<Option<DirectoryEntry>> {
        let expected = self.shadow.entry(path)?.map(|entry| (entry.name, entry.kind));
        let found = self.real.entry(path)?;
        assert_eq!(found.clone().map(|entry| (entry.name, entry.kind)), expected, "{}", path.display());
        Ok(found)
    }

    fn create(&self, path: &Path, allocate_bytes: u64) -> io::Result<Arc<dyn StorageFile>> {
        let shadow = self.shadow.create(path, allocate_bytes)?;
        Ok(Twin::file(self.real.create(path, allocate_bytes)?, shadow))
    }

    fn create_segment(&self, path: &Path, allocate_bytes: u64) -> io::Result<Arc<dyn StorageFile>> {
        let shadow = self.shadow.create_segment(path, allocate_bytes)?;
        Ok(Twin::file(self.real.create_segment(path, allocate_bytes)?, shadow))
    }

    fn open_segment(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        let shadow = self.shadow.open_segment(path)?;
        Ok(Twin::file(self.real.open_segment(path)?, shadow))
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn StorageFile>> {
        let shadow = self.shadow.open(path, access)?;
        Ok(Twin::file(self.real.open(path, access)?, shadow))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.shadow.rename(from, to)?;
        self.real.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.shadow.hard_link(from, to)?;
        self.real.hard_link(from, to)
    }

    fn links(&self, path: &Path) -> io::Result<u64> {
        let expected = self.shadow.links(path)?;
        let found = self.real.links(path)?;
        assert_eq!(found, expected, "{}", path.display());
        Ok(found)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.shadow.remove_file(path)?;
        self.real.remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.shadow.remove_dir_all(path)?;
        self.real.remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.shadow.sync_dir(path)?;
        self.real.sync_dir(path)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.shadow.free_bytes(dir)
    }

    fn boot_id(&self) -> Option<Uuid> {
        self.shadow.boot_id()
    }

    fn try_lock(&self, path: &Path, offset: u64) -> io::Result<Option<Box<dyn HeldLock>>> {
        let shadow = self.shadow.try_lock(path, offset)?;
        let real = self.real.try_lock(path, offset)?;
        assert_eq!(real.is_some(), shadow.is_some(), "{}", path.display());
        Ok(real
            .zip(shadow)
            .map(|(real, shadow)| Box::new(TwinLock { _real: real, _shadow: shadow }) as Box<_>))
    }
}

impl StorageFile for TwinFile {
    fn len(&self) -> io::Result<u64> {
        let expected = self.shadow.len()?;
        let found = self.real.len()?;
        assert_eq!(found, expected);
        Ok(found)
    }

    fn next_data(&self, offset: u64) -> io::Result<u64> {
        self.shadow.next_data(offset)?;
        self.real.next_data(offset)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut expected = vec![0; buf.len()];
        let expected_len = self.shadow.read_at(&mut expected, offset)?;
        let len = self.real.read_at(buf, offset)?;
        assert_eq!(&buf[..len], &expected[..expected_len], "bytes from {offset} on");
        Ok(len)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.shadow.write_at(bytes, offset)?;
        self.real.write_at(bytes, offset)
    }

    fn is_worth_preparing(&self) -> bool {
        self.real.is_worth_preparing()
    }

    fn prepare(&self, from: u64, to: u64) -> io::Result<()> {
        self.real.prepare(from, to)
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.shadow.allocate(bytes)?;
        self.real.allocate(bytes)
    }

    fn give_back(&self, from: u64, to: u64) -> io::Result<()> {
        self.shadow.give_back(from, to)?;
        self.real.give_back(from, to)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.shadow.sync_data()?;
        self.real.sync_data()
    }

    fn sync_range(&self, from: u64, to: u64) -> io::Result<()> {
        self.shadow.sync_range(from, to)?;
        self.real.sync_range(from, to)
    }
}

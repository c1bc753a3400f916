//! The storage of a history: a disk in memory, or mapped files on a real disk.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog::BackgroundSync;
use foldlog::storage::{CrashKind, FileStorage, MemoryStorage, Storage};
use proptest::prelude::*;
use tempfile::TempDir;

/// The storage of a store, and whether background work has its own thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ground {
    /// In memory; each opening folds every record.
    Memory,
    /// In memory; images are written as often as possible.
    MemoryWithImages,
    /// Mapped files; images are written as often as possible.
    Mapped,
    /// Like `Mapped`, with a background thread: the times of segments, seals, syncs and images
    /// vary.
    MappedInBackground,
}

impl Ground {
    pub(super) fn background(self) -> BackgroundSync {
        match self {
            Ground::MappedInBackground => BackgroundSync::Thread,
            _ => BackgroundSync::Inline,
        }
    }

    pub(super) fn image_bytes_min(self) -> u64 {
        if self == Ground::Memory { u64::MAX } else { 1 }
    }
}

/// Any ground; mostly in memory, where syncs take no time.
pub(super) fn grounds() -> impl Strategy<Value = Ground> {
    prop_oneof![
        4 => Just(Ground::Memory),
        8 => Just(Ground::MemoryWithImages),
        1 => Just(Ground::Mapped),
        1 => Just(Ground::MappedInBackground),
    ]
}

/// A disk with one store on it.
#[derive(Clone, Debug)]
pub(super) enum Disk {
    Memory(MemoryStorage),
    /// The directory is removed with its last owner.
    Directory(Arc<TempDir>),
}

impl Disk {
    pub(super) fn new(ground: Ground) -> Disk {
        match ground {
            Ground::Memory | Ground::MemoryWithImages => Disk::Memory(MemoryStorage::new()),
            Ground::Mapped | Ground::MappedInBackground => {
                Disk::Directory(Arc::new(tempfile::tempdir().unwrap()))
            }
        }
    }

    pub(super) fn root(&self) -> &Path {
        match self {
            Disk::Memory(_) => Path::new("/"),
            Disk::Directory(directory) => directory.path(),
        }
    }

    /// The file system for readers.
    pub(super) fn storage(&self) -> Arc<dyn Storage> {
        match self {
            Disk::Memory(disk) => Arc::new(disk.clone()),
            Disk::Directory(_) => Arc::new(FileStorage::new()),
        }
    }

    /// The file system for a process that may be killed.
    pub(super) fn process(&self) -> Arc<dyn Storage> {
        match self {
            Disk::Memory(disk) => Arc::new(disk.process()),
            Disk::Directory(_) => Arc::new(FileStorage::new()),
        }
    }

    /// Returns the disk after a kill of all processes. Mapped files are copied: every reader sees
    /// writes into a mapping at once, so the copy contains exactly the files at the time of the
    /// kill. Threads and destructors of the killed process may still write, but only to the
    /// original files, which are no longer read.
    #[must_use]
    pub(super) fn killed(&self) -> Disk {
        match self {
            Disk::Memory(disk) => {
                disk.crash(CrashKind::Process);
                self.clone()
            }
            Disk::Directory(directory) => {
                let copy = tempfile::tempdir().unwrap();
                copy_directory(directory.path(), copy.path(), &mut BTreeMap::new());
                Disk::Directory(Arc::new(copy))
            }
        }
    }

    #[must_use]
    pub(super) fn copied(&self) -> Disk {
        match self {
            Disk::Memory(disk) => {
                let copy = MemoryStorage::new();
                for (path, bytes) in disk.dump() {
                    copy.write_file(path, bytes).unwrap();
                }
                Disk::Memory(copy)
            }
            Disk::Directory(_) => self.killed(),
        }
    }

    pub(super) fn dump(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        match self {
            Disk::Memory(disk) => disk.dump(),
            Disk::Directory(directory) => {
                let mut files = BTreeMap::new();
                dump_directory(directory.path(), directory.path(), &mut files);
                files
            }
        }
    }
}

/// Hard links, which forks create, are one file in the copy too. Files that the background removes
/// meanwhile are skipped.
fn copy_directory(from: &Path, to: &Path, copied: &mut BTreeMap<u64, PathBuf>) {
    for entry in names(from) {
        let (from, to) = (from.join(&entry), to.join(&entry));
        let Ok(metadata) = fs::symlink_metadata(&from) else { continue };
        if metadata.is_dir() {
            fs::create_dir(&to).unwrap();
            copy_directory(&from, &to, copied);
        } else if let Some(first) = copied.get(&metadata.ino()) {
            fs::hard_link(first, &to).unwrap();
        } else if fs::copy(&from, &to).is_ok() {
            copied.insert(metadata.ino(), to);
        }
    }
}

fn dump_directory(root: &Path, directory: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in names(directory) {
        let path = directory.join(entry);
        if path.is_dir() {
            dump_directory(root, &path, files);
        } else {
            files.insert(path.strip_prefix(root).unwrap().to_owned(), fs::read(&path).unwrap());
        }
    }
}

fn names(directory: &Path) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

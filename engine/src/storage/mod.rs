//! The seam between the log and the file system.
//!
//! Everything the engine does to a disk goes through [`Storage`] and [`StorageFile`]; the code above them is the same
//! for every backend. [`FileStorage`] writes segments through a memory mapping, or, if the host asks for it, with plain
//! positioned writes. `MemoryStorage` (feature `testkit`) keeps everything in memory and can lose, tear and refuse what
//! a real disk may lose, tear and refuse.
//!
//! # What a backend promises
//!
//! 1. A write that returned is seen by every later read of the same file, also through other handles.
//! 2. [`StorageFile::sync_data`] makes the file's bytes and length durable, not its name; [`StorageFile::sync_range`]
//!    makes the length and some of the bytes durable.
//! 3. [`Storage::sync_dir`] makes the names in one directory durable.
//! 4. A rename within one directory is atomic: after a crash the old names or the new one stand, never neither.
//! 5. No call follows a symbolic link in the last component of the path that it is given.
//! 6. A file created with `allocate_bytes` has that length, reads as zeros, and a write below that length never fails
//!    for want of space. On the file systems in the table of `kept.rs` nobody can promise the latter: there a write may
//!    fail with an error as any other write may.
//! 7. Every file and directory that a backend makes has the permissions of its [`StoreAccess`], whatever the process's
//!    umask is.
//! 8. A call that a signal interrupts is made again where that does no harm: creating, opening, locking, reading,
//!    writing and syncing never answer [`io::ErrorKind::Interrupted`].

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use uuid::Uuid;

mod file;
mod mapped;
#[cfg(feature = "testkit")]
mod memory;
mod permissions;
mod preallocation;
mod watch;

pub use file::FileStorage;
pub(crate) use mapped::process_mark;
#[cfg(feature = "testkit")]
pub use memory::{CrashKind, Fault, MemoryStorage, Op};
pub use permissions::StoreAccess;
pub use watch::DirectoryWatch;

/// Returns the absolute path of a directory, without links and, in what is not there yet, without `..`. A directory that is in no real file
/// system keeps its path.
pub(crate) fn whole_path(directory: &Path) -> PathBuf {
    let absolute = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let goes_up = absolute.components().any(|name| name == Component::ParentDir);
    let there = absolute.ancestors().find_map(|above| {
        let (whole, rest) = (fs::canonicalize(above).ok()?, absolute.strip_prefix(above).ok()?);
        Some(rest.components().fold(whole, |whole, name| match name {
            Component::ParentDir => whole.parent().unwrap_or(&whole).to_owned(),
            name => whole.join(name),
        }))
    });
    match there {
        // What a name leads to behind a directory that is yet to be made is known once that directory is left again.
        Some(there) if goes_up => whole_path(&there),
        there => there.unwrap_or(absolute),
    }
}

/// Names what a caller opens a file for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading only. Writes through the handle fail.
    Read,
    /// Reading and writing.
    Write,
}

/// Names what stands behind a name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link. The engine never opens it.
    Link,
    /// A pipe. The engine never opens it.
    Pipe,
    /// A socket. The engine never opens it.
    Socket,
    /// A device. The engine never opens it.
    Device,
    /// Anything else. The engine never opens it.
    Other,
}

impl std::fmt::Display for EntryKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            EntryKind::File => "a regular file",
            EntryKind::Directory => "a folder",
            EntryKind::Link => "a symbolic link",
            EntryKind::Pipe => "a pipe",
            EntryKind::Socket => "a socket",
            EntryKind::Device => "a device",
            EntryKind::Other => "no regular file",
        })
    }
}

impl EntryKind {
    /// Says of what was found that something else should stand in its place.
    pub fn in_place_of(self, wanted: EntryKind) -> String {
        format!("{self}, where {wanted} should be")
    }
}

/// Describes one name in a directory. Where a name is not valid UTF-8, `name` shows it with replacement characters: the
/// engine never made such a name and never opens it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Last component of the path.
    pub name: String,
    /// Kind of what stands behind the name; links are not followed.
    pub kind: EntryKind,
    /// Length in bytes of a regular file, 0 otherwise.
    pub len: u64,
    /// Permission bits that the system keeps for the entry. `None` where the backend keeps none.
    pub mode: Option<u32>,
}

/// Tells two states of a file or directory apart, as far as its file system's clock does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the file within its file system.
    pub inode: u64,
    /// Length in bytes.
    pub len: u64,
    /// Time of the last change of the content, in nanoseconds since 1970-01-01 UTC. Programs may set it.
    pub modified_ns: i64,
    /// Time of the last change of the content or of what the system keeps about it, in nanoseconds since 1970-01-01 UTC.
    pub changed_ns: i64,
}

/// Holds a lock until it is dropped.
pub trait HeldLock: Send + Sync + Debug {}

/// Provides the calls that the engine makes on a file system.
pub trait Storage: Send + Sync + Debug {
    /// Returns a backend for the same files that gives every file and directory it makes the permissions of `access`.
    /// `None` where this backend keeps no permissions.
    fn for_users(&self, access: StoreAccess) -> Option<Arc<dyn Storage>> {
        let _ = access;
        None
    }

    /// Makes a directory and the directories above it. A directory that exists is no error.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Returns the names in a directory, sorted by name.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirectoryEntry>>;

    /// Returns what stands at a path, without following a link. `None` if nothing stands there.
    fn entry(&self, path: &Path) -> io::Result<Option<DirectoryEntry>>;

    /// Makes a new file of `allocate_bytes` zeros whose space is really allocated. Fails with
    /// [`io::ErrorKind::AlreadyExists`] where the name is taken. If the allocation fails, no file is left behind.
    fn create(&self, path: &Path, allocate_bytes: u64) -> io::Result<Arc<dyn StorageFile>>;

    /// Makes a new file like [`create`](Storage::create), for a caller that then appends records to it.
    fn create_segment(&self, path: &Path, allocate_bytes: u64) -> io::Result<Arc<dyn StorageFile>> {
        self.create(path, allocate_bytes)
    }

    /// Opens a file that [`create_segment`](Storage::create_segment) made, for a caller that appends more records to
    /// it.
    fn open_segment(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        self.open(path, Access::Write)
    }

    /// Opens an existing regular file. Fails with [`io::ErrorKind::InvalidInput`] for a link and for anything else that
    /// is not a regular file.
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn StorageFile>>;

    /// Renames a file within one directory, replacing what stood there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Gives a file a second name. Fails with [`io::ErrorKind::CrossesDevices`] where the file system cannot give the
    /// file that name; the caller then copies.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Returns how many names lead to a file. The default implementation, for backends that do not know, returns 1.
    fn links(&self, path: &Path) -> io::Result<u64> {
        let _ = path;
        Ok(1)
    }

    /// Removes the name of a file. The bytes stay for as long as another name or an open handle leads to them.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory and everything in it, without following links.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Returns the stamp of what stands at a path, without following a link; `None` if nothing stands there. The default
    /// implementation, for backends without stamps, returns `None`.
    fn stamp(&self, path: &Path) -> io::Result<Option<Stamp>> {
        let _ = path;
        Ok(None)
    }

    /// Gives a directory a new stamp. The default implementation, for backends without stamps, does nothing.
    fn touch(&self, dir: &Path) -> io::Result<()> {
        let _ = dir;
        Ok(())
    }

    /// Calls `changed` whenever a file takes its name in a directory by a [rename](Storage::rename), until what this returns is dropped. The
    /// default implementation, for backends that cannot watch, returns `None`: the caller looks again from time to time.
    fn watch(
        &self,
        dir: &Path,
        changed: Box<dyn Fn() + Send>,
    ) -> io::Result<Option<Box<dyn DirectoryWatch>>> {
        let _ = (dir, changed);
        Ok(None)
    }

    /// Returns how many bytes are free for new files in a directory. The default implementation, for backends that do not
    /// know, returns `u64::MAX`.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let _ = dir;
        Ok(u64::MAX)
    }

    /// Returns the identity of the machine's present boot. `None` where the machine does not tell.
    fn boot_id(&self) -> Option<Uuid>;

    /// Takes an exclusive lock on the byte at `offset` of the file at `path`, which this call makes where it is
    /// missing. `None` where another holder, in this process or another, has the lock. The lock ends with its holder's
    /// process.
    fn try_lock(&self, path: &Path, offset: u64) -> io::Result<Option<Box<dyn HeldLock>>>;

    /// Returns the offsets of the bytes of the file at `path` that some holder has locked, in this process or another.
    /// Takes no lock. The default implementation, for backends that no other process uses, returns none.
    fn locked_bytes(&self, path: &Path) -> io::Result<BTreeSet<u64>> {
        let _ = path;
        Ok(BTreeSet::new())
    }

    /// Takes an exclusive lock on a directory, whichever paths lead to it. `None` where another holder, in this process or
    /// another, has the lock. The lock ends with its holder's process. The default implementation, for backends in
    /// which only one path leads to a directory, locks nothing.
    fn try_lock_directory(&self, path: &Path) -> io::Result<Option<Box<dyn HeldLock>>> {
        let _ = path;
        Ok(Some(Box::new(NoopLock)))
    }
}

/// Stands for a lock where there is nothing to lock.
#[derive(Debug)]
struct NoopLock;

impl HeldLock for NoopLock {}

/// Reads and writes one open file at given positions; there is no cursor.
pub trait StorageFile: Send + Sync + Debug {
    /// Returns the file's length in bytes, allocated space included.
    fn len(&self) -> io::Result<u64>;

    /// Returns whether the file has no bytes at all.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Returns the position, at or behind `offset`, of the next bytes that may be other than 0; the file's length where
    /// there are none. A backend that cannot tell returns `offset`, and the caller reads on from there.
    fn next_data(&self, offset: u64) -> io::Result<u64> {
        Ok(offset)
    }

    /// Reads up to `buf.len()` bytes and returns how many it read: fewer only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Returns the four bytes at `offset` as cheaply as the backend can, since a writer looks before each append whether another
    /// one has written there. `None` where they cannot be read.
    fn peek(&self, offset: u64) -> Option<[u8; 4]> {
        let mut bytes = [0; 4];
        (self.read_at(&mut bytes, offset).ok()? == bytes.len()).then_some(bytes)
    }

    /// Writes all of `bytes`. After an error any part of them may be in the file.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Returns whether [`prepare`](StorageFile::prepare) is worth calling.
    fn is_worth_preparing(&self) -> bool {
        false
    }

    /// Prepares the bytes `from..to` so that a write there does not have to wait for memory. Changes nothing that can
    /// be read, and may run while other threads write. If this call fails, writing is slower and nothing else.
    fn prepare(&self, from: u64, to: u64) -> io::Result<()> {
        let _ = (from, to);
        Ok(())
    }

    /// Makes the file at least `bytes` long, and its first `bytes` bytes really allocated as by [`Storage::create`], also those
    /// that were [given back](StorageFile::give_back). After an error the file may be longer than before.
    fn allocate(&self, bytes: u64) -> io::Result<()>;

    /// Gives the space of the bytes `from..to` back to the disk: they read as 0 from then on, and the length stays.
    /// Nobody may need the bytes, nor write them before they are [allocated](StorageFile::allocate) anew. Does nothing where the file system cannot do this.
    fn give_back(&self, from: u64, to: u64) -> io::Result<()> {
        let _ = (from, to);
        Ok(())
    }

    /// Makes the file's bytes and length durable. After an error nothing is known of either.
    fn sync_data(&self) -> io::Result<()>;

    /// Makes the bytes `from..to` and the file's length durable; other bytes may become durable too. After an error
    /// nothing is known of any of them.
    fn sync_range(&self, from: u64, to: u64) -> io::Result<()> {
        let _ = (from, to);
        self.sync_data()
    }
}

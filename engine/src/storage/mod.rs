//! The layer between the engine and the file system.
//!
//! All disk access of the engine goes through [`Storage`] and [`StorageFile`]; the code above them
//! is the same for every backend. [`FileStorage`] writes segments through a memory mapping or, at
//! the host's choice, with positioned writes. `MemoryStorage` (feature `testkit`) stores everything
//! in memory. It can lose, tear and refuse data like a real disk.
//!
//! # Guarantees of a backend
//!
//! 1. After a write has returned, every later read of the same file sees it, also through other
//!    handles.
//! 2. [`StorageFile::sync_data`] makes the file's bytes and length durable, but not its name.
//!    [`StorageFile::sync_range`] makes the length and some of the bytes durable.
//! 3. [`Storage::sync_dir`] makes the names in one directory durable.
//! 4. A rename within one directory is atomic: after a crash either the old names or the new one
//!    exist, never neither.
//! 5. No call follows a symbolic link in the last component of its path.
//! 6. A file created with `allocate_bytes` has that length and reads as zeros, and a write below
//!    that length never fails for lack of space. The file systems in the table of
//!    `preallocation.rs` cannot guarantee the latter: there any write may fail.
//! 7. Every file and directory that a backend creates has the permissions of its [`StoreAccess`],
//!    regardless of the process's umask.
//! 8. A call that a signal interrupts is repeated if that is harmless: creating, opening, locking,
//!    reading, writing and syncing never return [`io::ErrorKind::Interrupted`].

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

/// Returns the absolute path of a directory. Links in the existing part are resolved, and `..` in
/// the missing part is removed. A directory outside of any real file system keeps its path.
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
        // A `..` after a missing directory leads back into the existing part, so the result may
        // contain links again.
        Some(there) if goes_up => whole_path(&there),
        there => there.unwrap_or(absolute),
    }
}

/// Specifies the purpose for which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading only. Writes through the handle fail.
    Read,
    /// Reading and writing.
    Write,
}

/// Describes the kind of a directory entry.
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
            EntryKind::Directory => "a directory",
            EntryKind::Link => "a symbolic link",
            EntryKind::Pipe => "a pipe",
            EntryKind::Socket => "a socket",
            EntryKind::Device => "a device",
            EntryKind::Other => "an entry of an unknown kind",
        })
    }
}

impl EntryKind {
    /// Formats the error that an entry of this kind was found in place of a `wanted` one.
    pub fn in_place_of(self, wanted: EntryKind) -> String {
        format!("{self}, not {wanted}")
    }
}

/// Describes one name in a directory. If the name is not valid UTF-8, `name` contains replacement
/// characters: the engine never creates such a name and never opens it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Last component of the path.
    pub name: String,
    /// Kind of the entry; links are not followed.
    pub kind: EntryKind,
    /// Length in bytes of a regular file, 0 otherwise.
    pub len: u64,
    /// Permission bits of the entry. `None` if the backend has no permissions.
    pub mode: Option<u32>,
}

/// Distinguishes two states of a file or directory, within the resolution of its file system's
/// clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the file within its file system.
    pub inode: u64,
    /// Length in bytes.
    pub len: u64,
    /// Time of the last change of the content, in nanoseconds since 1970-01-01 UTC. Programs may
    /// set it.
    pub modified_ns: i64,
    /// Time of the last change of the content or the metadata, in nanoseconds since 1970-01-01 UTC.
    pub changed_ns: i64,
}

/// Releases a lock when dropped.
pub trait HeldLock: Send + Sync + Debug {}

/// Provides the calls that the engine makes on a file system.
pub trait Storage: Send + Sync + Debug {
    /// Returns a backend for the same files that creates every file and directory with the
    /// permissions of `access`. Returns `None` if this backend has no permissions.
    fn for_users(&self, access: StoreAccess) -> Option<Arc<dyn Storage>> {
        let _ = access;
        None
    }

    /// Creates a directory and the directories above it. An existing directory is not an error.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Returns the names in a directory, sorted by name.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirectoryEntry>>;

    /// Returns the entry at a path, without following a link. Returns `None` if there is no entry.
    fn entry(&self, path: &Path) -> io::Result<Option<DirectoryEntry>>;

    /// Creates a new file of `allocate_bytes` zeros, with its space allocated. Fails with
    /// [`io::ErrorKind::AlreadyExists`] if the name is taken. If the allocation fails, no file is
    /// left.
    fn create(&self, path: &Path, allocate_bytes: u64) -> io::Result<Arc<dyn StorageFile>>;

    /// Creates a new file like [`create`](Storage::create), for a caller that then appends records
    /// to it.
    fn create_segment(&self, path: &Path, allocate_bytes: u64) -> io::Result<Arc<dyn StorageFile>> {
        self.create(path, allocate_bytes)
    }

    /// Opens a file created by [`create_segment`](Storage::create_segment), for a caller that
    /// appends more records to it.
    fn open_segment(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        self.open(path, Access::Write)
    }

    /// Opens an existing regular file. Fails with [`io::ErrorKind::InvalidInput`] for a link and
    /// for anything else that is not a regular file.
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn StorageFile>>;

    /// Renames a file within one directory, replacing the entry of the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Gives a file a second name. Fails with [`io::ErrorKind::CrossesDevices`] if the file system
    /// cannot give the file that name; the caller then copies.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Returns the number of names of a file. The default implementation, for backends without this
    /// number, returns 1.
    fn links(&self, path: &Path) -> io::Result<u64> {
        let _ = path;
        Ok(1)
    }

    /// Removes the name of a file. The bytes stay for as long as another name or an open handle
    /// leads to them.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory and everything in it, without following links.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Returns the stamp of the entry at a path, without following a link; `None` if there is no
    /// entry. The default implementation, for backends without stamps, returns `None`.
    fn stamp(&self, path: &Path) -> io::Result<Option<Stamp>> {
        let _ = path;
        Ok(None)
    }

    /// Gives a directory a new stamp. The default implementation, for backends without stamps, does
    /// nothing.
    fn touch(&self, dir: &Path) -> io::Result<()> {
        let _ = dir;
        Ok(())
    }

    /// Calls `changed` whenever a [rename](Storage::rename) puts a file into a directory, until the
    /// returned value is dropped. The default implementation, for backends that cannot watch,
    /// returns `None`: the caller polls instead.
    fn watch(
        &self,
        dir: &Path,
        changed: Box<dyn Fn() + Send>,
    ) -> io::Result<Option<Box<dyn DirectoryWatch>>> {
        let _ = (dir, changed);
        Ok(None)
    }

    /// Returns the number of bytes that are free for new files in a directory. The default
    /// implementation, for backends without this number, returns `u64::MAX`.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let _ = dir;
        Ok(u64::MAX)
    }

    /// Returns the identity of the machine's present boot. Returns `None` if the machine does not
    /// report it.
    fn boot_id(&self) -> Option<Uuid>;

    /// Takes an exclusive lock on the byte at `offset` of the file at `path`. Creates the file if
    /// it is missing. Returns `None` if another holder, in this process or another, has the lock.
    /// The lock ends with its holder's process.
    fn try_lock(&self, path: &Path, offset: u64) -> io::Result<Option<Box<dyn HeldLock>>>;

    /// Returns the offsets of the locked bytes of the file at `path`, with holders in this process
    /// or another. Takes no lock. The default implementation, for backends that only one process
    /// uses, returns none.
    fn locked_bytes(&self, path: &Path) -> io::Result<BTreeSet<u64>> {
        let _ = path;
        Ok(BTreeSet::new())
    }

    /// Takes an exclusive lock on a directory, independent of the path that leads to it. Returns
    /// `None` if another holder, in this process or another, has the lock. The lock ends with its
    /// holder's process. The default implementation, for backends in which only one path leads to a
    /// directory, locks nothing.
    fn try_lock_directory(&self, path: &Path) -> io::Result<Option<Box<dyn HeldLock>>> {
        let _ = path;
        Ok(Some(Box::new(NoopLock)))
    }
}

/// Lock of a backend that needs none.
#[derive(Debug)]
struct NoopLock;

impl HeldLock for NoopLock {}

/// Reads and writes one open file at given positions; there is no cursor.
pub trait StorageFile: Send + Sync + Debug {
    /// Returns the file's length in bytes, including allocated space.
    fn len(&self) -> io::Result<u64>;

    /// Returns whether the file's length is 0.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Returns the position, at or after `offset`, of the next bytes that may be other than 0, or
    /// the file's length if there are none. A backend without this information returns `offset`,
    /// and the caller reads on from there.
    fn next_data(&self, offset: u64) -> io::Result<u64> {
        Ok(offset)
    }

    /// Reads up to `buf.len()` bytes and returns the number of bytes read. It is smaller only at
    /// the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Returns the four bytes at `offset`, or `None` if they cannot be read. Should be cheap:
    /// before each append, a writer checks whether another writer has written there.
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

    /// Prepares the bytes `from..to` so that a write there need not wait for memory. Changes no
    /// readable bytes, and may run while other threads write. A failure only makes writing slower.
    fn prepare(&self, from: u64, to: u64) -> io::Result<()> {
        let _ = (from, to);
        Ok(())
    }

    /// Makes the file at least `bytes` long, and allocates its first `bytes` bytes like
    /// [`Storage::create`], including those that were [given back](StorageFile::give_back). After
    /// an error the file may be longer than before.
    fn allocate(&self, bytes: u64) -> io::Result<()>;

    /// Gives the space of the bytes `from..to` back to the disk. They read as 0 from then on, and
    /// the length is unchanged. The bytes must not be needed any more, and must be
    /// [allocated](StorageFile::allocate) again before they are written. Does nothing if the file
    /// system cannot do this.
    fn give_back(&self, from: u64, to: u64) -> io::Result<()> {
        let _ = (from, to);
        Ok(())
    }

    /// Makes the file's bytes and length durable. After an error the state of both is unknown.
    fn sync_data(&self) -> io::Result<()>;

    /// Makes the bytes `from..to` and the file's length durable; other bytes may become durable
    /// too. After an error the state of all of them is unknown.
    fn sync_range(&self, from: u64, to: u64) -> io::Result<()> {
        let _ = (from, to);
        self.sync_data()
    }
}

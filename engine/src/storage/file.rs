//! The real file system: positioned reads and writes, and mapped segments.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, fallocate, fcntl};
use nix::libc;
use nix::unistd::{Whence, lseek};
use rustix::fs::{FlockOperation, flock};
use uuid::Uuid;

use super::mapped::{MappedFile, process_mark};
use super::preallocation::keeps_allocations;
use super::{
    Access, DirectoryEntry, DirectoryWatch, EntryKind, HeldLock, Stamp, Storage, StorageFile, StoreAccess,
};

mod locks;

/// One page of zeros; a file is filled in pieces of it. Larger writes leave large folios in the
/// page cache, and then each later sync of a few bytes writes a whole folio again.
const FILL_PIECE: [u8; 4096] = [0; 4096];

/// Maximum number of attempts to link a file that exists but is reported missing. Linux reports
/// this if a rename replaces the file at that moment (`vfs_link` finds that it has no name left).
/// The next attempt finds the new file.
const LINK_ATTEMPTS: u32 = 64;

/// Reads and writes the real file system of this machine.
///
/// The type has no state of its own: every value sees the same files, regardless of its way of
/// writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStorage {
    mapped: bool,
    access: StoreAccess,
}

impl Default for FileStorage {
    fn default() -> Self {
        FileStorage::new()
    }
}

impl FileStorage {
    /// Returns the file system of this machine, with segments written through a memory mapping.
    /// Appending a record costs a copy in memory and no system call. On copy-on-write and network
    /// file systems, each record is one positioned write.
    pub fn new() -> Self {
        FileStorage { mapped: true, access: StoreAccess::Private }
    }

    /// Returns the file system of this machine, with one positioned write for each record.
    pub fn with_positioned_writes() -> Self {
        FileStorage { mapped: false, access: StoreAccess::Private }
    }

    /// Maps a segment file. Returns the plain file if its file system does not keep allocated space
    /// ([`preallocation`](super::preallocation)), if it does not map files, or if the process has
    /// reached its limit of mappings.
    fn segment(self, file: PlainFile) -> Arc<dyn StorageFile> {
        if !self.mapped || !keeps_allocations(&file.file) {
            return Arc::new(file);
        }
        match MappedFile::new(file) {
            Ok(mapped) => Arc::new(mapped),
            Err(plain) => Arc::new(plain),
        }
    }
}

fn create(path: &Path, allocate_bytes: u64, access: StoreAccess) -> io::Result<PlainFile> {
    let length = to_offset(allocate_bytes)?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(made_with(access.file_mode()))
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(path)?;
    if let Err(error) = set_mode(&file, access.file_mode()).and_then(|()| allocate(&file, 0, length)) {
        // The cause of the failed allocation is worth more to the caller than an error of the
        // removal.
        let _ = fs::remove_file(path);
        return Err(error);
    }
    Ok(PlainFile { file })
}

/// Returns the permission bits with which to create a file or directory of `mode`: only its owner's
/// bits, until [`set_mode`] sets exactly `mode`.
fn made_with(mode: u32) -> u32 {
    mode & 0o700
}

/// Sets the permission bits of a new file or directory; the umask may have removed some.
fn set_mode(made: &File, mode: u32) -> io::Result<()> {
    match made.set_permissions(fs::Permissions::from_mode(mode)) {
        // Some file systems have no permissions of their own, and report an error when a program
        // sets them.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied) =>
        {
            Ok(())
        }
        answer => answer,
    }
}

/// Creates a directory with these permission bits. Fails with [`io::ErrorKind::AlreadyExists`] if
/// the name is taken.
fn create_dir(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().mode(made_with(mode)).create(path)?;
    set_mode(&open_directory(path)?, mode)
}

fn open_directory(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_DIRECTORY;
    OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)
}

fn open(path: &Path, access: Access) -> io::Result<PlainFile> {
    let mut options = OpenOptions::new();
    options.read(true).write(access == Access::Write);
    let file = open_regular(&mut options, path)?;
    Ok(PlainFile { file })
}

impl Storage for FileStorage {
    fn for_users(&self, access: StoreAccess) -> Option<Arc<dyn Storage>> {
        Some(Arc::new(FileStorage { access, ..*self }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        if let Some(found) = metadata(path)? {
            return require_directory(&found, path);
        }
        if let Some(parent) =
            path.parent().filter(|parent| !parent.as_os_str().is_empty() && !parent.is_dir())
        {
            self.create_dir_all(parent)?;
        }
        match create_dir(path, self.access.directory_mode()) {
            // Another process created this entry first; it may not be a directory.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                require_directory(&fs::symlink_metadata(path)?, path)
            }
            made => made,
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirectoryEntry>> {
        require_directory(&fs::symlink_metadata(dir)?, dir)?;
        let mut entries = Vec::new();
        for found in fs::read_dir(dir)? {
            let found = found?;
            match found.metadata() {
                Ok(metadata) => entries.push(describe(found.file_name().to_string_lossy().into(), &metadata)),
                // The entry was removed after the directory was read, so there is nothing to list.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        entries.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(entries)
    }

    fn entry(&self, path: &Path) -> io::Result<Option<DirectoryEntry>> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok(metadata(path)?.map(|found| describe(name.into(), &found)))
    }

    fn create(&self, path: &Path, allocate_bytes: u64) -> io::Result<Arc<dyn StorageFile>> {
        Ok(Arc::new(create(path, allocate_bytes, self.access)?))
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn StorageFile>> {
        Ok(Arc::new(open(path, access)?))
    }

    fn create_segment(&self, path: &Path, allocate_bytes: u64) -> io::Result<Arc<dyn StorageFile>> {
        Ok(self.segment(create(path, allocate_bytes, self.access)?))
    }

    fn open_segment(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        Ok(self.segment(open(path, Access::Write)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        if from.parent() != to.parent() {
            return Err(invalid("a rename stays within one directory", to));
        }
        fs::rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut attempts = LINK_ATTEMPTS;
        let linked = loop {
            if !fs::symlink_metadata(from)?.is_file() {
                return Err(not_regular(from));
            }
            attempts -= 1;
            match fs::hard_link(from, to) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempts > 0 => {}
                linked => break linked,
            }
        };
        linked.map_err(|error| match error.raw_os_error().map(Errno::from_raw) {
            // File systems use these errors to refuse another name for a file. In each case the
            // caller copies the file.
            Some(Errno::EXDEV | Errno::EPERM | Errno::EMLINK | Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                io::Error::new(io::ErrorKind::CrossesDevices, error)
            }
            _ => error,
        })
    }

    fn links(&self, path: &Path) -> io::Result<u64> {
        Ok(fs::symlink_metadata(path)?.nlink())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        require_directory(&fs::symlink_metadata(path)?, path)?;
        fs::remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        open_directory(path)?.sync_all()
    }

    fn watch(
        &self,
        dir: &Path,
        changed: Box<dyn Fn() + Send>,
    ) -> io::Result<Option<Box<dyn DirectoryWatch>>> {
        Ok(Some(Box::new(super::watch::watch(dir, changed)?)))
    }

    fn stamp(&self, path: &Path) -> io::Result<Option<Stamp>> {
        let Some(found) = metadata(path)? else { return Ok(None) };
        let ns = |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
        Ok(Some(Stamp {
            inode: found.ino(),
            len: found.len(),
            modified_ns: ns(found.mtime(), found.mtime_nsec()),
            changed_ns: ns(found.ctime(), found.ctime_nsec()),
        }))
    }

    fn touch(&self, dir: &Path) -> io::Result<()> {
        // Both times: a process that does not own the directory may set them only together, and
        // only to the present.
        let now = || rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = rustix::fs::Timestamps { last_access: now(), last_modification: now() };
        Ok(rustix::fs::utimensat(rustix::fs::CWD, dir, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let found = rustix::fs::statvfs(dir)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    fn boot_id(&self) -> Option<Uuid> {
        foldlog_filesystem::boot_id()
    }

    fn try_lock(&self, path: &Path, offset: u64) -> io::Result<Option<Box<dyn HeldLock>>> {
        let start = to_offset(offset)?;
        let file = match open(path, Access::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => match create(path, 0, self.access) {
                // Another process created the lock file first.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open(path, Access::Write)?,
                made => made?,
            },
            opened => opened?,
        };
        let lock = locks::take(file.file, start)?;
        Ok(lock.map(|lock| Box::new(lock) as Box<dyn HeldLock>))
    }

    fn locked_bytes(&self, path: &Path) -> io::Result<BTreeSet<u64>> {
        let file = match open(path, Access::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            opened => opened?.file,
        };
        let mut locked = BTreeSet::new();
        // The system reports one lock at a time, and not necessarily the first.
        let mut ranges = vec![(0, libc::off_t::MAX)];
        while let Some((from, end)) = ranges.pop() {
            let Some(start) = lock_within(&file, from, end)? else { continue };
            if !locked.insert(start.unsigned_abs()) {
                continue;
            }
            ranges.extend([(from, start), (start + 1, end)].into_iter().filter(|(from, end)| from < end));
        }
        Ok(locked)
    }

    fn try_lock_directory(&self, path: &Path) -> io::Result<Option<Box<dyn HeldLock>>> {
        let directory = open_directory(path)?;
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            // If a file system cannot lock directories, only the store's own lock remains.
            Ok(())
            | Err(rustix::io::Errno::BADF | rustix::io::Errno::NOLCK | rustix::io::Errno::OPNOTSUPP) => {
                Ok(Some(Box::new(DirectoryLock { directory, process: process_mark() })))
            }
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

#[derive(Debug)]
struct DirectoryLock {
    directory: File,
    /// Mark of the process that took the lock. A forked process shares the open directory and must
    /// not release the lock.
    process: u32,
}

impl HeldLock for DirectoryLock {}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        if self.process == process_mark() {
            let _ = flock(&self.directory, FlockOperation::Unlock);
        }
    }
}

#[derive(Debug)]
pub(super) struct PlainFile {
    pub(super) file: File,
}

impl StorageFile for PlainFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn next_data(&self, offset: u64) -> io::Result<u64> {
        // This call moves the file's cursor; no other call here uses the cursor.
        match lseek(&self.file, to_offset(offset)?, Whence::SeekData) {
            Ok(found) => Ok(found.unsigned_abs()),
            Err(Errno::ENXIO) => Ok(self.len()?.max(offset)),
            // Some file systems do not record their holes.
            Err(_) => Ok(offset),
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut rest = buf;
        let mut position = offset;
        let mut done = 0;
        while !rest.is_empty() {
            match self.file.read_at(rest, position) {
                Ok(0) => break,
                Ok(count) => {
                    done += count;
                    position = position.saturating_add(count as u64);
                    rest = rest.get_mut(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        // `write_all_at` continues after a short or an interrupted write.
        self.file.write_all_at(bytes, offset)
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        allocate(&self.file, to_offset(self.len()?)?, to_offset(bytes)?)
    }

    fn give_back(&self, from: u64, to: u64) -> io::Result<()> {
        let (from, len) = (to_offset(from)?, to_offset(to.saturating_sub(from))?);
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        match retry_interrupted(|| fallocate(&self.file, flags, from, len)) {
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(()),
            answer => Ok(answer?),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Sets or clears the lock on the byte at `start`, without waiting.
fn set_lock(file: &File, kind: libc::c_int, start: libc::off_t) -> nix::Result<()> {
    let lock = range_lock(kind, start, 1);
    retry_interrupted(|| fcntl(file, FcntlArg::F_OFD_SETLK(&lock)).map(drop))
}

fn range_lock(kind: libc::c_int, l_start: libc::off_t, l_len: libc::off_t) -> libc::flock {
    let (l_type, l_whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    libc::flock { l_type, l_whence, l_start, l_len, l_pid: 0 }
}

/// Returns the offset of a locked byte in `from..end`, if there is one.
fn lock_within(file: &File, from: libc::off_t, end: libc::off_t) -> nix::Result<Option<libc::off_t>> {
    let mut lock = range_lock(libc::F_WRLCK, from, end - from);
    retry_interrupted(|| fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock)).map(drop))?;
    let is_held = lock.l_type != libc::F_UNLCK as libc::c_short;
    Ok(is_held.then_some(lock.l_start.max(from)))
}

/// Opens a file without following a link. Fails if it is not a regular file.
fn open_regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // A pipe or a terminal in a file's place must neither block the caller nor become the process's
    // terminal. For a regular file the last two flags have no effect.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let opened = options.custom_flags(flags.bits()).open(path);
    let file = opened.map_err(|error| match error.raw_os_error().map(Errno::from_raw) {
        // The system returns these errors for a link, for a directory opened for writing, and for a
        // socket.
        Some(Errno::ELOOP | Errno::EISDIR | Errno::ENXIO) => not_regular(path),
        _ => error,
    })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular(path)) }
}

/// Allocates the space of the first `to` bytes of a file. `len` is the file's length; a shorter
/// file is lengthened to `to`.
fn allocate(file: &File, len: libc::off_t, to: libc::off_t) -> io::Result<()> {
    if to == 0 {
        return Ok(());
    }
    // The C library's `posix_fallocate` is not used: if the file system cannot allocate, it writes
    // a byte into each block.
    match retry_interrupted(|| fallocate(file, FallocateFlags::empty(), 0, to)) {
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS) if to <= len => Ok(()),
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS) if !keeps_allocations(file) => {
            Ok(file.set_len(to.unsigned_abs())?)
        }
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => {
            fill_with_zeros(file, len.unsigned_abs(), to.unsigned_abs())
        }
        answer => Ok(answer?),
    }
}

/// Writes zeros after a file's end, up to the length `to`. This allocates space on file systems
/// without a call for it.
fn fill_with_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    let mut position = from;
    while position < to {
        let wanted = usize::try_from(to - position).unwrap_or(usize::MAX);
        let piece = FILL_PIECE.get(..wanted).unwrap_or(&FILL_PIECE);
        file.write_all_at(piece, position)?;
        position += piece.len() as u64;
    }
    Ok(())
}

/// Repeats a system call for as long as signals interrupt it.
fn retry_interrupted(mut call: impl FnMut() -> nix::Result<()>) -> nix::Result<()> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            answer => return answer,
        }
    }
}

/// Returns the metadata of the entry at a path, without following a link; `None` if there is no
/// entry.
fn metadata(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

fn describe(name: String, metadata: &Metadata) -> DirectoryEntry {
    let found = metadata.file_type();
    let kind = match found {
        _ if found.is_file() => EntryKind::File,
        _ if found.is_dir() => EntryKind::Directory,
        _ if found.is_symlink() => EntryKind::Link,
        _ if found.is_fifo() => EntryKind::Pipe,
        _ if found.is_socket() => EntryKind::Socket,
        _ if found.is_block_device() || found.is_char_device() => EntryKind::Device,
        _ => EntryKind::Other,
    };
    let len = if found.is_file() { metadata.len() } else { 0 };
    DirectoryEntry { name, kind, len, mode: Some(metadata.permissions().mode() & 0o7777) }
}

fn require_directory(found: &Metadata, path: &Path) -> io::Result<()> {
    if found.is_dir() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::NotADirectory, format!("{} is not a directory", path.display())))
}

/// Converts a position to the system's signed type. Positions of 2^63 and above are
/// [`io::ErrorKind::InvalidInput`].
fn to_offset(position: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(position).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

fn not_regular(path: &Path) -> io::Error {
    invalid("not a regular file", path)
}

fn invalid(what: &str, path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{what}: {}", path.display()))
}

#[cfg(test)]
mod tests;

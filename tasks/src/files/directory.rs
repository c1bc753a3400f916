//! Operations on directories beneath one handle, so that no name leads out of them. Links are not
//! followed, and only regular files are read.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::{Error, Result};

/// Only the owner can read files and directories: they contain conversations.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// Maximum time that a reader or a writer waits for access to a tree.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Interval between attempts to take the lock: the system cannot wait for a lock with a deadline.
const ASK_EVERY: Duration = Duration::from_millis(5);

/// An open directory.
#[derive(Debug)]
pub(super) struct TreeDirectory {
    fd: OwnedFd,
    path: PathBuf,
}

/// Describes the target of a name within a directory.
#[derive(Debug)]
pub(super) enum TreeDirectoryEntry {
    /// A regular file, open for reading, and its length.
    File(File, u64),
    /// The name does not exist.
    Missing,
    /// Anything but a regular file: its kind.
    Other(&'static str),
}

impl TreeDirectory {
    /// Opens a directory by any path, including links: the caller chose it.
    pub(super) fn open(path: &Path) -> Result<Option<TreeDirectory>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => Ok(Some(TreeDirectory { fd, path: path.to_owned() })),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR) => {
                Err(Error::OtherKind { path: path.to_owned(), wanted: "directory", found: "file" })
            }
            Err(errno) => Err(Error::io("opened", path)(errno)),
        }
    }

    /// Opens the directory again, without its lock.
    pub(super) fn reopen(&self) -> Result<TreeDirectory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, ".", flags, Mode::empty());
        Ok(TreeDirectory { fd: fd.map_err(Error::io("opened", &self.path))?, path: self.path.clone() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a directory within this one; returns `None` if it is missing.
    pub(super) fn child(&self, name: &str) -> Result<Option<TreeDirectory>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path = self.path.join(name);
        match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => Ok(Some(TreeDirectory { fd, path })),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                let found = self.kind(name)?.unwrap_or("file");
                Err(Error::OtherKind { path, wanted: "directory", found })
            }
            Err(errno) => Err(Error::io("opened", path)(errno)),
        }
    }

    /// Opens a directory within this one, and creates it if it is missing; also returns whether it
    /// was created. Its name is not yet durable.
    pub(super) fn make_child(&self, name: &str) -> Result<(TreeDirectory, bool)> {
        if let Some(child) = self.child(name)? {
            return Ok((child, false));
        }
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(DIRECTORY_MODE)) {
            // A concurrent process may have created it first.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(Error::io("made", self.path.join(name))(errno)),
        }
        let gone = || Error::io("opened", self.path.join(name))(Errno::NOENT);
        Ok((self.child(name)?.ok_or_else(gone)?, true))
    }

    pub(super) fn entry(&self, name: &str) -> Result<TreeDirectoryEntry> {
        // Opening a FIFO would otherwise block.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let failed = |errno| Err(Error::io("opened", self.path.join(name))(errno));
        let fd = match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(TreeDirectoryEntry::Missing),
            // A link, or a socket.
            Err(errno @ (Errno::LOOP | Errno::NXIO)) => {
                return self
                    .kind(name)?
                    .map_or_else(|| failed(errno), |kind| Ok(TreeDirectoryEntry::Other(kind)));
            }
            Err(errno) => return failed(errno),
        };
        let stat = rustix::fs::fstat(&fd).map_err(Error::io("examined", self.path.join(name)))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                Ok(TreeDirectoryEntry::File(File::from(fd), u64::try_from(stat.st_size).unwrap_or_default()))
            }
            other => Ok(TreeDirectoryEntry::Other(name_of(other))),
        }
    }

    /// Returns the kind of a name's target; `None` if the name does not exist.
    fn kind(&self, name: &str) -> Result<Option<&'static str>> {
        Ok(self.stat(name)?.map(|stat| name_of(FileType::from_raw_mode(stat.st_mode))))
    }

    fn stat(&self, name: &str) -> Result<Option<rustix::fs::Stat>> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Error::io("examined", self.path.join(name))(errno)),
        }
    }

    /// Reads a whole file; returns `None` if it is missing.
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`] if the file has more than `bytes_max` bytes, [`Error::OtherKind`] if it
    /// is no regular file.
    pub(super) fn read(&self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>> {
        match self.entry(name)? {
            TreeDirectoryEntry::Missing => Ok(None),
            TreeDirectoryEntry::Other(found) => {
                Err(Error::OtherKind { path: self.path.join(name), wanted: "file", found })
            }
            TreeDirectoryEntry::File(_, len) if len > bytes_max => Err(Error::TooLong { bytes_max }),
            TreeDirectoryEntry::File(file, len) => self.read_open(name, file, len).map(Some),
        }
    }

    /// Reads an open file, at most `len` bytes.
    pub(super) fn read_open(&self, name: &str, file: File, len: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or_default().saturating_add(1));
        let read = file.take(len).read_to_end(&mut bytes);
        read.map_err(|source| Error::Io { op: "read", path: self.path.join(name), source })?;
        Ok(bytes)
    }

    /// Writes a new file, replaces any file of that name, and returns it, not yet synced.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<File> {
        let mut file = self.create(name)?;
        let path = || self.path.join(name);
        file.write_all(bytes).map_err(|source| Error::Io { op: "written", path: path(), source })?;
        Ok(file)
    }

    /// Creates an empty file, and replaces any file of that name.
    pub(super) fn create(&self, name: &str) -> Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path = || self.path.join(name);
        let open = || rustix::fs::openat(&self.fd, name, flags, Mode::from_raw_mode(FILE_MODE));
        let fd = match open() {
            Err(Errno::EXIST) => {
                self.remove(name)?;
                open()
            }
            opened => opened,
        };
        Ok(File::from(fd.map_err(Error::io("made", path()))?))
    }

    /// Renames a file, and replaces any file of the new name.
    pub(super) fn rename(&self, from: &str, to: &str) -> Result<()> {
        rustix::fs::renameat(&self.fd, from, &self.fd, to).map_err(Error::io("renamed", self.path.join(from)))
    }

    /// Removes a file, a link or the like. A missing file is no error; a directory is not removed.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT | Errno::ISDIR) => Ok(()),
            Err(errno) => Err(Error::io("removed", self.path.join(name))(errno)),
        }
    }

    /// Removes a directory if it is empty; returns whether it was.
    pub(super) fn remove_empty(&self, name: &str) -> Result<bool> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            Err(errno) => Err(Error::io("removed", self.path.join(name))(errno)),
        }
    }

    /// Makes the names in the directory durable.
    pub(super) fn sync(&self) -> Result<()> {
        rustix::fs::fsync(&self.fd).map_err(Error::io("synced", &self.path))
    }

    /// Syncs the whole file system of the directory, if the operating system supports that; returns
    /// whether it does.
    pub(super) fn sync_file_system(&self) -> Result<bool> {
        #[cfg(target_os = "linux")]
        {
            rustix::fs::syncfs(&self.fd).map_err(Error::io("synced", &self.path))?;
            Ok(true)
        }
        #[cfg(not(target_os = "linux"))]
        Ok(false)
    }

    /// Lists the names in the directory in order, each with whether it is a directory. Names that
    /// are not UTF-8 are converted lossily.
    pub(super) fn names(&self) -> Result<Vec<(String, bool)>> {
        let mut names = Vec::new();
        let failed = || Error::io("listed", &self.path);
        for entry in rustix::fs::Dir::read_from(&self.fd).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_string_lossy().into_owned();
            if name == "." || name == ".." {
                continue;
            }
            let is_directory = match entry.file_type() {
                FileType::Unknown => self.kind(&name)? == Some("directory"),
                kind => kind == FileType::Directory,
            };
            names.push((name, is_directory));
        }
        names.sort();
        Ok(names)
    }

    /// Waits for the lock of this directory, at most a minute, and holds it while the directory is
    /// open. On a file system without locks, a reader continues without one.
    pub(super) fn lock(&self, exclusive: bool) -> Result<()> {
        let wanted = match exclusive {
            true => FlockOperation::NonBlockingLockExclusive,
            false => FlockOperation::NonBlockingLockShared,
        };
        let began = Instant::now();
        loop {
            match rustix::fs::flock(&self.fd, wanted) {
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if began.elapsed() < WAIT_MAX => std::thread::sleep(ASK_EVERY),
                Err(Errno::WOULDBLOCK) => {
                    return Err(Error::InUse { path: self.path.clone(), waited: WAIT_MAX });
                }
                Err(Errno::NOTSUP | Errno::NOLCK | Errno::NOSYS | Errno::BADF) if !exclusive => return Ok(()),
                locked => return locked.map_err(Error::io("locked", &self.path)),
            }
        }
    }

    /// Returns a trace that identifies the version of a file without reading it; `None` if it is
    /// missing.
    pub(super) fn trace(&self, name: &str) -> Result<Option<FileTrace>> {
        Ok(self.stat(name)?.as_ref().map(FileTrace::from_stat))
    }

    /// Returns the trace of an open file.
    pub(super) fn trace_of(&self, name: &str, file: &File) -> Result<FileTrace> {
        let stat = rustix::fs::fstat(file).map_err(Error::io("examined", self.path.join(name)))?;
        Ok(FileTrace::from_stat(&stat))
    }
}

/// Metadata that distinguishes a file from a replaced or rewritten version of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileTrace {
    file: (u64, u64),
    len: u64,
    /// Time of the last write.
    written: (i128, i128),
    /// Time of the last write, rename or other change.
    changed: (i128, i128),
}

impl FileTrace {
    fn from_stat(stat: &rustix::fs::Stat) -> FileTrace {
        FileTrace {
            file: (stat.st_dev, stat.st_ino),
            len: stat.st_size.unsigned_abs(),
            // The types of these fields differ between system interfaces.
            written: (i128::from(stat.st_mtime), i128::from(stat.st_mtime_nsec)),
            changed: (i128::from(stat.st_ctime), i128::from(stat.st_ctime_nsec)),
        }
    }

    /// Returns whether it is the same file, possibly under a new name.
    pub(super) fn is_renamed(&self, before: &FileTrace) -> bool {
        (self.file, self.len, self.written) == (before.file, before.len, before.written)
    }

    /// Returns whether a later change would be visible in the trace. `later` is a file of the same
    /// file system that was changed after it. By then even a clock that advances in ticks, or in
    /// seconds, has advanced.
    pub(super) fn is_settled(&self, later: &FileTrace) -> bool {
        self.file.0 == later.file.0 && self.changed < later.changed
    }
}

fn name_of(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "link",
        FileType::Fifo => "FIFO",
        FileType::Socket => "socket",
        FileType::CharacterDevice | FileType::BlockDevice => "device",
        _ => "file of an unknown kind",
    }
}

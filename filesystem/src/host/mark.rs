//! Stores the mark on a workspace's root directory: an extended attribute that names the worker,
//! for others to find if that process ends. The engine decides the content of a mark and its
//! consequences; this module only stores it.
//!
//! A file system without extended attributes, or a directory that is not writable, supports no
//! mark.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr, fsync};
use rustix::io::Errno;

use super::HostFilesystem;
use super::lease::WorkspaceLease;
use crate::error::{Error, Result};

const NAME: &str = "user.foldlog.work";

/// Length of the longest mark in bytes: a path of 4,096, and the other fields.
const BYTES_MAX: usize = 4352;

const XATTR_BYTES_MAX: usize = 64 << 10;

/// Contains the mark of a workspace's root directory, see [`WorkspaceLease::mark`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkspaceMark {
    /// The directory supports no mark: its file system has no extended attributes, or it is not
    /// writable.
    Unsupported,
    /// The directory has no mark.
    Absent,
    /// Content of the mark.
    Bytes(Vec<u8>),
    /// The attribute is longer than any mark, 4,352 bytes.
    TooLong,
}

/// Returns whether an error means that the directory supports no mark, because of its file system
/// or its permissions.
fn takes_none(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::ROFS | Errno::ACCESS | Errno::PERM)
}

impl WorkspaceLease {
    /// Name of the extended attribute with the mark.
    pub const MARK: &'static str = NAME;

    /// Returns the mark of the directory.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the attribute cannot be read.
    pub fn mark(&self) -> Result<WorkspaceMark> {
        mark_of(self.root(), self.path())
    }

    /// Replaces the directory's mark by `bytes`. Returns `false` if the directory supports no mark.
    /// The mark is durable once [`sync`](WorkspaceLease::sync) returns.
    ///
    /// # Errors
    ///
    /// - [`Error::Full`] if the file system has no space for the mark.
    /// - [`Error::Io`] if it refuses the mark for a different reason.
    pub fn set_mark(&self, bytes: &[u8]) -> Result<bool> {
        match fsetxattr(self.root(), NAME, bytes, XattrFlags::empty()) {
            Ok(()) => Ok(true),
            Err(errno) if takes_none(errno) => Ok(false),
            Err(errno) => Err(Error::unmade("mark", self.path(), 0, errno.into())),
        }
    }

    /// Makes the directory itself durable, with its mark and the names in it. Returns `false` if
    /// its file system does not sync directories.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the sync fails.
    pub fn sync(&self) -> Result<bool> {
        match fsync(self.root()) {
            Ok(()) => Ok(true),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(false),
            Err(errno) => Err(Error::io("sync", self.path(), errno)),
        }
    }
}

fn mark_of(directory: &OwnedFd, path: &Path) -> Result<WorkspaceMark> {
    let mut bytes = Vec::with_capacity(BYTES_MAX);
    match fgetxattr(directory, NAME, spare_capacity(&mut bytes)) {
        Ok(_) => Ok(WorkspaceMark::Bytes(bytes)),
        Err(Errno::NODATA) => Ok(WorkspaceMark::Absent),
        Err(Errno::RANGE | Errno::TOOBIG) => Ok(WorkspaceMark::TooLong),
        Err(errno) if takes_none(errno) => Ok(WorkspaceMark::Unsupported),
        Err(errno) => Err(Error::io("read the mark of", path, errno)),
    }
}

impl HostFilesystem {
    /// Returns the mark of the workspace's directory, without a lease: it may change at any time.
    ///
    /// # Errors
    ///
    /// - [`Error::Path`] if the workspace does not exist.
    /// - [`Error::Io`] if its directory cannot be opened or the attribute cannot be read.
    pub fn mark_now(&self) -> Result<WorkspaceMark> {
        mark_of(&*self.directory()?, self.root())
    }

    /// Removes the mark from the workspace's directory and returns its text, or `None` if there was
    /// none.
    ///
    /// Use it for a mark that is wrong: a recovery is refused because of a session that left
    /// nothing unfinished, or that cannot be recovered. If the mark is right, others then work on
    /// files that its session still has to roll back.
    ///
    /// Waits for the lease of the workspace, but not past `until`.
    ///
    /// # Errors
    ///
    /// - [`Error::DeadlineExceeded`] if another holder has the lease until `until`.
    /// - [`Error::Io`] if the attribute cannot be removed.
    /// - Otherwise the errors of [`lease`](HostFilesystem::lease).
    pub fn remove_mark(&self, until: Instant) -> Result<Option<String>> {
        let Some(lease) = self.lease(until)? else { return Err(Error::DeadlineExceeded) };
        let failed = |errno: Errno| Error::io("remove the mark of", self.root(), errno);
        // A mark longer than any that is written is returned in part.
        let mut bytes = vec![0; XATTR_BYTES_MAX];
        let said = match fgetxattr(lease.root(), NAME, &mut bytes[..]) {
            Ok(len) => {
                String::from_utf8_lossy(bytes.get(..len.min(BYTES_MAX)).unwrap_or_default()).into_owned()
            }
            Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        fremovexattr(lease.root(), NAME).map_err(failed)?;
        Ok(Some(said))
    }
}

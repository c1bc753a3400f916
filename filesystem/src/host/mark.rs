//! The mark on a workspace's root folder: an extended attribute in which whoever works there leaves word of themselves, for
//! others to find should their process end. What it says, and what follows from it, is theirs; here is how it is kept.
//!
//! A file system without extended attributes, or a folder that may not be written, takes no mark.

use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr, fsync};
use rustix::io::Errno;

use super::HostFilesystem;
use super::lease::WorkspaceLease;
use crate::error::{Error, Result};
use crate::sabotage::{self, Breakage};

/// The attribute.
const NAME: &str = "user.foldlog.work";

/// No mark is longer, in bytes: a path of 4,096, and what stands beside it.
const BYTES_MAX: usize = 4352;

/// No attribute is longer.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// What a workspace's root folder bears as its mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkspaceMark {
    /// The folder takes none.
    Unsupported,
    /// There is none.
    Absent,
    /// These bytes.
    Bytes(Vec<u8>),
    /// More bytes than any mark has.
    TooLong,
}

/// Whether an error says that the folder takes no mark, by what it is or by whose it is.
fn takes_none(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::ROFS | Errno::ACCESS | Errno::PERM)
}

impl WorkspaceLease {
    /// Names the attribute that holds the mark.
    pub const MARK: &'static str = NAME;

    /// Reads the folder's mark.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where the attribute cannot be read.
    pub fn mark(&self) -> Result<WorkspaceMark> {
        let mut bytes = Vec::with_capacity(BYTES_MAX);
        match fgetxattr(self.root(), NAME, spare_capacity(&mut bytes)) {
            Ok(_) => Ok(WorkspaceMark::Bytes(bytes)),
            Err(Errno::NODATA) => Ok(WorkspaceMark::Absent),
            Err(Errno::RANGE | Errno::TOOBIG) => Ok(WorkspaceMark::TooLong),
            Err(errno) if takes_none(errno) => Ok(WorkspaceMark::Unsupported),
            Err(errno) => Err(Error::io("read the mark of", self.path(), errno.into())),
        }
    }

    /// Gives the folder this mark, in place of the one that it bears. Returns `false` where it takes none. Durable once the
    /// folder is [synced](WorkspaceLease::sync).
    ///
    /// # Errors
    ///
    /// [`Error::Full`] where there is no space for it, else [`Error::Io`].
    pub fn set_mark(&self, bytes: &[u8]) -> Result<bool> {
        match fsetxattr(self.root(), NAME, bytes, XattrFlags::empty()) {
            Ok(()) => Ok(true),
            Err(errno) if takes_none(errno) => Ok(false),
            Err(errno) => Err(Error::unmade("mark", self.path(), 0, errno.into())),
        }
    }

    /// Makes the folder itself durable, with its mark and the names in it. Returns `false` where its file system syncs no
    /// folders.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where the sync fails.
    pub fn sync(&self) -> Result<bool> {
        match fsync(self.root()) {
            Ok(()) => Ok(true),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(false),
            Err(errno) => Err(Error::io("sync", self.path(), errno.into())),
        }
    }
}

impl HostFilesystem {
    /// Removes the mark of whoever worked on the workspace last, and returns what it said, `None` where there was none. For
    /// a mark that is not true: a recovery is refused for the sake of a session that left nothing half done, or that
    /// nobody can recover. Where the mark is true, what that session is to roll back is then worked on by others.
    ///
    /// Waits until nobody holds the workspace, but not past `until`.
    ///
    /// # Errors
    ///
    /// [`Error::DeadlineExceeded`] where somebody holds the workspace for longer; else as
    /// [`lease`](HostFilesystem::lease), and where the attribute cannot be removed.
    pub fn remove_mark(&self, until: Instant) -> Result<Option<String>> {
        let Some(lease) = self.lease(until)? else { return Err(Error::DeadlineExceeded) };
        let failed = |errno: Errno| Error::io("remove the mark of", self.root(), errno.into());
        // A longer one than any that is written is shown in part.
        let mut bytes = vec![0; XATTR_BYTES_MAX];
        let said = match fgetxattr(lease.root(), NAME, &mut bytes[..]) {
            Ok(len) => {
                String::from_utf8_lossy(bytes.get(..len.min(BYTES_MAX)).unwrap_or_default()).into_owned()
            }
            Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        if !sabotage::is(Breakage::ForgedMarkKept) {
            fremovexattr(lease.root(), NAME).map_err(failed)?;
        }
        Ok(Some(said))
    }
}

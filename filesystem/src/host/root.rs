//! The directory of a workspace: an open handle on it, and its recognition.
//!
//! | term | meaning |
//! |---|---|
//! | place | a directory's device and inode: distinguishes open directories of one process |
//! | identity | distinguishes a directory from all others, in other processes too: [`DirectoryIdentity`] |
//! | bound | while a lease is held, a workspace is the directory to which its path led when the lease was taken |
//!
//! # Invariants
//!
//! 1. Within a lease everything happens beneath the handle that was opened with it, and nothing by
//!    the path. Before a capture and before a restore, the path is checked, and still has to lead
//!    to that directory. Otherwise both are refused with [`Error::Replaced`], and nothing is read,
//!    written or removed.
//! 2. A restore is refused in the same way unless its capture was taken of that very directory:
//!    through the same handle, or by the identity that the capture recorded. A capture without an
//!    identity matches no directory.
//! 3. Between leases the path may change to a different directory, such as a new clone. The next
//!    lease is on that one, it is captured as if nothing were known of it, and this is
//!    [reported](super::WorkspaceNotice::Replaced).
//!
//! # Limits
//!
//! If a directory inside the workspace is moved out of it *while* a restore works on it, the
//! restore still writes to it in its new place, since it has it open. The directory belonged to the
//! workspace when the restore entered it, and no other one is entered.

use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, open, openat};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat, fstat, fstatat};
use parking_lot::Mutex;
use rustix::buffer::spare_capacity;
use rustix::fs::{StatxFlags, XattrFlags, fgetxattr, fsetxattr, statx};
use uuid::Uuid;

use super::lease::DeviceInode;
use super::step::{OPEN_DIRECTORY, list};
use crate::DirectoryIdentity;
use crate::error::{Error, IoContext, Result};

const TOKEN: &str = "user.foldlog.token";

const TOKEN_BYTES_MAX: usize = 36;

#[derive(Debug)]
pub(super) struct Root {
    directory: Arc<OwnedFd>,
    place: DeviceInode,
    identity: Mutex<DirectoryIdentity>,
    /// Whether a snapshot was taken through this handle, which proves that the snapshot is of this
    /// directory.
    is_captured: AtomicBool,
}

impl Root {
    pub(super) fn open(path: &Path) -> Result<Root> {
        Root::from_directory(open_directory(path)?, path)
    }

    /// Opens a directory whose owner revoked all rights to it: restores the rights first, if it is
    /// the directory of which a snapshot was taken.
    pub(super) fn open_again(path: &Path, expected: Option<&DirectoryIdentity>) -> Result<Root> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let shut = open(path, flags, Mode::empty()).map_err(|errno| open_error(path, errno))?;
        let found = look(&shut, path)?;
        // Its attributes cannot be read before it is open.
        if !expected
            .is_some_and(|expected| DirectoryIdentity { token: None, ..*expected }.is_borne_by(&found))
        {
            return Err(replaced_error(path, expected, Some(found)));
        }
        let handle = format!("/proc/self/fd/{}", shut.as_raw_fd());
        fchmodat(AT_FDCWD, &*handle, Mode::S_IRWXU, FchmodatFlags::FollowSymlink)
            .during("change the permissions of", path)?;
        let directory = openat(&shut, c".", OPEN_DIRECTORY, Mode::empty());
        Root::from_directory(directory.map_err(|errno| open_error(path, errno))?, path)
    }

    pub(super) fn from_directory(directory: OwnedFd, path: &Path) -> Result<Root> {
        let place = DeviceInode::read(&directory, path)?;
        let identity = Mutex::new(look(&directory, path)?);
        Ok(Root { directory: Arc::new(directory), place, identity, is_captured: AtomicBool::new(false) })
    }

    pub(super) fn directory(&self) -> &Arc<OwnedFd> {
        &self.directory
    }

    pub(super) fn place(&self) -> DeviceInode {
        self.place
    }

    /// Returns the identity of the directory. If the directory has no token, sets this one if
    /// possible.
    pub(super) fn ensure_token(&self, token: impl FnOnce() -> Uuid) -> DirectoryIdentity {
        let mut identity = self.identity.lock();
        if identity.token.is_none() {
            let token = token();
            identity.token = set_token(&self.directory, token).then_some(token);
        }
        *identity
    }

    pub(super) fn identity(&self) -> DirectoryIdentity {
        *self.identity.lock()
    }

    pub(super) fn set_captured(&self) {
        self.is_captured.store(true, Ordering::Relaxed);
    }

    /// Returns whether a capture with this recorded identity was taken of this directory. Restores
    /// a lost token, so that the directory is recognized by it from then on.
    pub(super) fn bears(&self, recorded: &DirectoryIdentity) -> bool {
        let found = self.identity();
        if !recorded.is_borne_by(&found) {
            return self.is_captured.load(Ordering::Relaxed) && *recorded == found;
        }
        if let (Some(token), None) = (recorded.token, found.token) {
            self.ensure_token(|| token);
        }
        true
    }

    /// Checks that the path still leads to this directory.
    pub(super) fn check_path(&self, path: &Path) -> Result<()> {
        let found = fstatat(AT_FDCWD, path, AtFlags::AT_SYMLINK_NOFOLLOW);
        if found.is_ok_and(|found| self.place == DeviceInode::from(&found)) {
            return Ok(());
        }
        let found = Root::open(path).ok().map(|root| root.identity());
        Err(replaced_error(path, Some(&self.identity()), found))
    }

    pub(super) fn is_empty(&self, path: &Path) -> Result<bool> {
        let listed = list(&self.directory).during("list", path)?;
        Ok(listed.is_empty())
    }
}

pub(super) fn open_directory(path: &Path) -> Result<OwnedFd> {
    open(path, OPEN_DIRECTORY, Mode::empty()).map_err(|errno| open_error(path, errno))
}

fn open_error(path: &Path, errno: Errno) -> Error {
    match errno {
        Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP => {
            Error::path(path.display().to_string(), "the workspace is gone")
        }
        errno => Error::io("open", path, errno),
    }
}

pub(super) fn replaced_error(
    path: &Path,
    expected: Option<&DirectoryIdentity>,
    found: Option<DirectoryIdentity>,
) -> Error {
    Error::Replaced {
        workspace: path.to_owned(),
        expected: expected.copied().map(Box::new),
        found: found.map(Box::new),
    }
}

pub(super) fn look(directory: &OwnedFd, path: &Path) -> Result<DirectoryIdentity> {
    let flags = StatxFlags::INO | StatxFlags::BTIME;
    let found = statx(directory, c"", rustix::fs::AtFlags::EMPTY_PATH, flags);
    let (inode, born_ns) = match found {
        Ok(found) => {
            let told = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
            let born = found.stx_btime;
            let ns = born.tv_sec.saturating_mul(1_000_000_000).saturating_add(born.tv_nsec.into());
            (found.stx_ino, told.then_some(ns))
        }
        // A system without this call provides no creation times.
        Err(_) => {
            let found = fstat(directory).during("look at", path)?;
            (found.st_ino, None)
        }
    };
    Ok(DirectoryIdentity::new(token(directory), inode, born_ns))
}

fn set_token(directory: impl AsFd, token: Uuid) -> bool {
    let mut text = Vec::with_capacity(TOKEN_BYTES_MAX);
    // Writing into memory does not fail.
    let _ = write!(text, "{token}");
    fsetxattr(directory, TOKEN, &text, XattrFlags::empty()).is_ok()
}

/// Returns the token of a directory. An invalid token is ignored, and replaced later.
fn token(directory: impl AsFd) -> Option<Uuid> {
    let mut bytes = Vec::with_capacity(TOKEN_BYTES_MAX);
    fgetxattr(directory, TOKEN, spare_capacity(&mut bytes)).ok()?;
    std::str::from_utf8(&bytes).ok()?.parse().ok()
}

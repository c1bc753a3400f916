//! Gives a workspace to one holder at a time: among the threads of a process by a table, among
//! processes by the system's lock on the workspace's directory, which ends with its process.
//!
//! So a process that is killed within a call no longer holds the unfinished directory. A
//! [mark](super::mark) on the directory excludes others until the process's session is recovered.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::{FileStat, fstat};
use parking_lot::{Condvar, Mutex};

use super::root::Root;
use crate::error::{Error, IoContext, Result};

/// Interval between attempts to take another process's lock. The system has no way to wait for one
/// with a deadline.
const ASK_EVERY: Duration = Duration::from_millis(5);

/// Identifies a directory within one process, by any path, by its device and its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DeviceInode {
    pub(super) device: u64,
    pub(super) inode: u64,
}

impl From<&FileStat> for DeviceInode {
    fn from(stat: &FileStat) -> DeviceInode {
        DeviceInode { device: stat.st_dev, inode: stat.st_ino }
    }
}

impl DeviceInode {
    pub(super) fn read(directory: &OwnedFd, path: &Path) -> Result<DeviceInode> {
        let stat = fstat(directory).during("look at", path)?;
        Ok(DeviceInode::from(&stat))
    }
}

/// Contains the directories for which this process holds leases.
struct Table {
    held: Mutex<Option<HashSet<DeviceInode>>>,
    changed: Condvar,
}

static TABLE: Table = Table { held: Mutex::new(None), changed: Condvar::new() };

/// Holds a workspace until it is dropped or the process ends, see
/// [`HostFilesystem::lease`](super::HostFilesystem::lease).
#[derive(Debug)]
#[must_use = "dropping a lease releases the workspace"]
pub struct WorkspaceLease {
    // Dropped in this order: the system's lock before the entry in the table, so that the next
    // thread finds both free.
    root: Flock<OwnedFd>,
    seat: LeaseTableGuard,
    path: PathBuf,
    /// Directory of the workspace while this is held, regardless of its path.
    _bound: Option<Arc<Root>>,
}

impl WorkspaceLease {
    pub(super) fn root(&self) -> &OwnedFd {
        &self.root
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of the directory's device. The next boot or mount may give the device a
    /// different number.
    pub fn device(&self) -> u64 {
        self.seat.0.device
    }

    /// Returns the number of the directory's inode.
    pub fn inode(&self) -> u64 {
        self.seat.0.inode
    }

    pub(super) fn handle(&self, path: &Path) -> Result<OwnedFd> {
        self.root.try_clone().during("open", path)
    }

    pub(super) fn bind(&mut self, root: Arc<Root>) {
        self._bound = Some(root);
    }
}

/// Holds an entry in the table until it is dropped.
#[derive(Debug)]
struct LeaseTableGuard(DeviceInode);

impl Drop for LeaseTableGuard {
    fn drop(&mut self) {
        if let Some(held) = TABLE.held.lock().as_mut() {
            held.remove(&self.0);
        }
        TABLE.changed.notify_all();
    }
}

/// Waits until no other holder has the directory, and takes it. Returns `None` if `until` passes
/// first.
pub(super) fn take(root: OwnedFd, path: &Path, until: Instant) -> Result<Option<WorkspaceLease>> {
    let place = DeviceInode::read(&root, path)?;
    let mut held = TABLE.held.lock();
    while !held.get_or_insert_default().insert(place) {
        if TABLE.changed.wait_until(&mut held, until).timed_out() {
            // It may have been released at the last moment.
            if held.get_or_insert_default().insert(place) {
                break;
            }
            return Ok(None);
        }
    }
    drop(held);
    let seat = LeaseTableGuard(place);
    let mut root = root;
    loop {
        match Flock::lock(root, FlockArg::LockExclusiveNonblock) {
            Ok(root) => return Ok(Some(WorkspaceLease { root, seat, path: path.to_owned(), _bound: None })),
            Err((unlocked, Errno::EWOULDBLOCK | Errno::EINTR)) => root = unlocked,
            Err((_, errno)) => return Err(Error::io("lock", path, errno)),
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        std::thread::sleep(left.min(ASK_EVERY));
    }
}

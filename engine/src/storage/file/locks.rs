//! Locks on single bytes of a file, all of a process through one open file.
//!
//! The system tells the holders of such locks apart by the open file. So whoever locks two bytes of one file through one open
//! file needs one descriptor for both, and has to keep apart himself who asks for one byte twice. A store's sessions lock a
//! byte each of one file: a descriptor for each would count ten thousand sessions twice against what a process may open.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Weak};

use nix::errno::Errno;
use nix::libc;
use parking_lot::{Mutex, MutexGuard};

use super::set_lock;
use crate::storage::HeldLock;
use crate::storage::mapped::process_mark;

/// Files of which this process has locked a byte, and of those above it in the tree of forks.
static OPEN: Mutex<Vec<Weak<LockedFile>>> = Mutex::new(Vec::new());

/// How often a thread asks for [`OPEN`], and lets others run in between, before it does without.
const TRIES_MAX: usize = 10_000;

/// Holds an open file, some bytes of which are locked.
#[derive(Debug)]
struct LockedFile {
    file: File,
    /// Device and number of the file, which its name may not lead to any more.
    identity: (u64, u64),
    /// Mark of the process that opened the file: a process forked from it shares the open file, so what it locked through
    /// that would exclude nobody.
    process: u32,
    held: Mutex<BTreeSet<libc::off_t>>,
}

/// Holds a lock on one byte of a file.
#[derive(Debug)]
pub(super) struct ByteLock {
    file: Arc<LockedFile>,
    start: libc::off_t,
}

impl HeldLock for ByteLock {}

impl Drop for ByteLock {
    fn drop(&mut self) {
        // Closing the file would not release the lock at once where another thread has just forked: until the child
        // runs its own program, it shares this open file. A copy made by `fork` must not release the lock.
        if self.file.process == process_mark() {
            let mut held = self.file.held.lock();
            let _ = set_lock(&self.file.file, libc::F_UNLCK, self.start);
            held.remove(&self.start);
        }
    }
}

/// Locks the byte at `start` without waiting. `None` where another holder, in this process or another, has the lock. Of
/// several open files of one file, the first is kept.
pub(super) fn take(file: File, start: libc::off_t) -> io::Result<Option<ByteLock>> {
    let file = shared(file)?;
    let mut held = file.held.lock();
    if held.contains(&start) {
        return Ok(None);
    }
    match set_lock(&file.file, libc::F_WRLCK, start) {
        Ok(()) => {
            held.insert(start);
            drop(held);
            Ok(Some(ByteLock { file, start }))
        }
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the open file through which this process locks bytes of this one.
fn shared(file: File) -> io::Result<Arc<LockedFile>> {
    let metadata = file.metadata()?;
    let (identity, process) = ((metadata.dev(), metadata.ino()), process_mark());
    let opened = || Arc::new(LockedFile { file, identity, process, held: Mutex::default() });
    // Another thread may have held this lock when it was copied by `fork`, and nobody would release it in the copy. A
    // descriptor of its own is as good.
    let Some(mut open) = locked_soon(&OPEN) else { return Ok(opened()) };
    open.retain(|file| file.strong_count() > 0);
    let mut there = open.iter().filter_map(Weak::upgrade);
    if let Some(there) = there.find(|there| (there.identity, there.process) == (identity, process)) {
        return Ok(there);
    }
    let opened = opened();
    open.push(Arc::downgrade(&opened));
    Ok(opened)
}

/// Locks what other threads hold for microseconds. `None` where it was not released for much longer.
fn locked_soon<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    for _ in 0..TRIES_MAX {
        if let Some(locked) = mutex.try_lock() {
            return Some(locked);
        }
        std::thread::yield_now();
    }
    None
}

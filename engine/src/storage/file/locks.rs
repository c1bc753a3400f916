//! Locks on single bytes of a file. A process uses one open file for all of them.
//!
//! The system identifies the holder of such a lock by the open file. Two locks through one open
//! file therefore need only one descriptor, but the process itself must refuse a second lock on the
//! same byte. Each of a store's sessions locks one byte of the same file. With a descriptor for
//! each lock, ten thousand sessions would count twice against the limit of open files.

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

/// Files in which this process, or a process from which it was forked, has locked a byte.
static OPEN: Mutex<Vec<Weak<LockedFile>>> = Mutex::new(Vec::new());

/// Maximum number of attempts to lock [`OPEN`]; the thread yields after each. Then the caller
/// continues without it.
const TRIES_MAX: usize = 10_000;

#[derive(Debug)]
struct LockedFile {
    file: File,
    /// Device and inode number of the file. Its name may lead to another file by now.
    identity: (u64, u64),
    /// Mark of the process that opened the file. A forked process shares the open file, so its
    /// locks through that file would exclude no one.
    process: u32,
    held: Mutex<BTreeSet<libc::off_t>>,
}

#[derive(Debug)]
pub(super) struct ByteLock {
    file: Arc<LockedFile>,
    start: libc::off_t,
}

impl HeldLock for ByteLock {}

impl Drop for ByteLock {
    fn drop(&mut self) {
        // The lock is released explicitly. If another thread has just forked, the child shares this
        // open file until it runs its own program, and closing the file would not release the lock
        // at once. A copy made by `fork` must not release the lock.
        if self.file.process == process_mark() {
            let mut held = self.file.held.lock();
            let _ = set_lock(&self.file.file, libc::F_UNLCK, self.start);
            held.remove(&self.start);
        }
    }
}

/// Locks the byte at `start` without waiting. Returns `None` if another holder, in this process or
/// another, has the lock. If this process already has an open file for the same file, that one is
/// used.
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

/// Returns the open file through which this process locks bytes of the given file.
fn shared(file: File) -> io::Result<Arc<LockedFile>> {
    let metadata = file.metadata()?;
    let (identity, process) = ((metadata.dev(), metadata.ino()), process_mark());
    let opened = || Arc::new(LockedFile { file, identity, process, held: Mutex::default() });
    // If another thread held this lock during a `fork`, it is never released in the copy. A
    // separate descriptor works as well.
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

/// Locks a mutex that other threads hold for microseconds. Returns `None` if it is not released for
/// much longer.
fn locked_soon<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    for _ in 0..TRIES_MAX {
        if let Some(locked) = mutex.try_lock() {
            return Some(locked);
        }
        std::thread::yield_now();
    }
    None
}

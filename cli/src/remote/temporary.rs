//! Directories for copies of held sessions: of this user alone, and gone when their readers are.
//!
//! A directory is removed when its owner drops it, and when a signal ends the process. A SIGKILL leaves it, and so does a power cut. So its
//! owner holds a lock on it for as long as it lives, and whoever makes a directory removes those of the same user that nobody holds.
//!
//! # Invariants
//!
//! 1. Nothing is made in a directory before it is locked. An empty directory is left: its owner may be about to lock it.
//! 2. No link is followed, and a directory that is another user's, or that others may enter, is left.
//! 3. Where the file system knows no locks, no directory is removed but by its owner.

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::net::Shutdown;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{io, thread};

use foldlog_codec::escape;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{SigId, flag, low_level};
use tempfile::TempDir;

use crate::failure::{CommandError, Result};

/// What the names of the directories begin with. Those of earlier versions, which held no lock, had no `held` in them.
const PREFIX: &str = "foldlog-held-";

/// Is a directory of this user alone, which is removed when this is dropped, when a signal ends the process, and otherwise by the next one.
#[derive(Debug)]
pub(super) struct TemporaryDirectory {
    directory: TempDir,
    guard: Option<Guard>,
    /// Locks the directory; `None` where that cannot be done.
    _lock: Option<File>,
}

/// Waits in a thread for signals that end the process.
#[derive(Debug)]
struct Guard {
    stop: UnixStream,
    actions: Vec<SigId>,
}

impl TemporaryDirectory {
    /// Makes the directory, and removes those whose owners are gone. Signals are handled where this is a process of its own.
    pub(super) fn new(is_process: bool) -> Result<TemporaryDirectory> {
        let refused = |error: io::Error| {
            let what = format!("no temporary folder can be made: {}", escape::display(error));
            CommandError::usage(what, "name another place for temporary files by TMPDIR")
        };
        let alone = Permissions::from_mode(0o700);
        let directory =
            tempfile::Builder::new().prefix(PREFIX).permissions(alone).tempdir().map_err(refused)?;
        let lock = File::open(directory.path()).and_then(|opened| opened.lock().map(|()| opened)).ok();
        // What cannot be removed is left to the next one.
        let _ = remove_abandoned(directory.path());
        let guard = if is_process { Some(Guard::over(directory.path()).map_err(refused)?) } else { None };
        Ok(TemporaryDirectory { directory, guard, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes the directories beside `own` whose owners are gone, of the same user.
fn remove_abandoned(own: &Path) -> io::Result<()> {
    let user = fs::symlink_metadata(own)?.uid();
    let Some(beside) = own.parent() else { return Ok(()) };
    for entry in fs::read_dir(beside)?.flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            let _ = remove_if_abandoned(&entry.path(), user);
        }
    }
    Ok(())
}

fn remove_if_abandoned(directory: &Path, user: u32) -> io::Result<()> {
    let found = fs::symlink_metadata(directory)?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        return Ok(());
    }
    let opened = File::open(directory)?;
    if opened.try_lock().is_err() || fs::read_dir(directory)?.next().is_none() {
        return Ok(());
    }
    fs::remove_dir_all(directory)
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        if let Some(Guard { stop, actions }) = self.guard.take() {
            // The handlers stay without effect: what is left of the process is to return its exit code.
            for action in actions {
                low_level::unregister(action);
            }
            let _ = stop.shutdown(Shutdown::Both);
        }
    }
}

impl Guard {
    /// Has a signal that ends the process remove a directory before it does.
    fn over(directory: &Path) -> std::io::Result<Guard> {
        let (mut wake, waker) = UnixStream::pair()?;
        let met = Arc::new(AtomicUsize::new(0));
        let mut actions = Vec::new();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            actions.push(flag::register_usize(
                signal,
                Arc::clone(&met),
                usize::try_from(signal).unwrap_or(0),
            )?);
            actions.push(low_level::pipe::register(signal, waker.try_clone()?)?);
        }
        let directory = directory.to_owned();
        let stop = wake.try_clone()?;
        thread::Builder::new().name("foldlog-signals".to_owned()).spawn(move || {
            let woken = wake.read(&mut [0]);
            if matches!(woken, Ok(1)) {
                // Whoever writes there still may make a file meanwhile, so it is tried twice.
                let _ = std::fs::remove_dir_all(&directory).or_else(|_| std::fs::remove_dir_all(&directory));
                let signal = i32::try_from(met.load(Ordering::SeqCst)).unwrap_or(SIGTERM);
                let _ = low_level::emulate_default_handler(signal);
            }
        })?;
        Ok(Guard { stop, actions })
    }
}

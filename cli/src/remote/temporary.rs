//! Directories for copies of replicated sessions: private to this user, and removed when their
//! readers end.
//!
//! A directory is removed when its owner drops it, and when a signal ends the process. A SIGKILL or
//! a power cut leaves it. Its owner therefore holds a lock on it for its whole lifetime. Creating a
//! directory removes the unlocked directories of the same user.
//!
//! # Invariants
//!
//! 1. A directory is locked before any file is created in it. An empty directory is not removed:
//!    its owner may be about to lock it.
//! 2. Links are not followed. A directory of another user, or one that other users may enter, is
//!    not removed.
//! 3. On a file system without locks, only its owner removes a directory.

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

/// Prefix of the directories' names. Earlier versions used names without `held` and took no lock.
const PREFIX: &str = "foldlog-held-";

/// A directory private to this user. It is removed on drop, when a signal ends the process, or else
/// by the next reader.
#[derive(Debug)]
pub(super) struct TemporaryDirectory {
    directory: TempDir,
    guard: Option<Guard>,
    /// Lock of the directory; `None` if it cannot be locked.
    _lock: Option<File>,
}

/// Waits in a thread for signals that end the process.
#[derive(Debug)]
struct Guard {
    stop: UnixStream,
    actions: Vec<SigId>,
}

impl TemporaryDirectory {
    /// Creates the directory, and removes directories whose owners have ended. Signals are handled
    /// if this is a separate process.
    pub(super) fn new(is_process: bool) -> Result<TemporaryDirectory> {
        let refused = |error: io::Error| {
            let what = format!("a temporary directory cannot be created: {}", escape::display(error));
            CommandError::usage(what, "set TMPDIR to another directory for temporary files")
        };
        let alone = Permissions::from_mode(0o700);
        let directory =
            tempfile::Builder::new().prefix(PREFIX).permissions(alone).tempdir().map_err(refused)?;
        let lock = File::open(directory.path()).and_then(|opened| opened.lock().map(|()| opened)).ok();
        // The next reader removes any directory that cannot be removed now.
        let _ = remove_abandoned(directory.path());
        let guard = if is_process { Some(Guard::over(directory.path()).map_err(refused)?) } else { None };
        Ok(TemporaryDirectory { directory, guard, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes the same user's directories next to `own` whose owners have ended.
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
            // The handlers remain without effect: the process only has to return its exit code.
            for action in actions {
                low_level::unregister(action);
            }
            let _ = stop.shutdown(Shutdown::Both);
        }
    }
}

impl Guard {
    /// Removes a directory when a signal ends the process.
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
                // A writer in that directory may create a file meanwhile, so removal is tried
                // twice.
                let _ = std::fs::remove_dir_all(&directory).or_else(|_| std::fs::remove_dir_all(&directory));
                let signal = i32::try_from(met.load(Ordering::SeqCst)).unwrap_or(SIGTERM);
                let _ = low_level::emulate_default_handler(signal);
            }
        })?;
        Ok(Guard { stop, actions })
    }
}

//! Locks that limit a session to one writer.
//!
//! A store has one lock file; each session locks one byte of it, at an offset derived from its id,
//! so that ten thousand sessions do not need as many lock files. The system releases a lock when
//! its holder's process dies.
//!
//! A small file, the note, names the holder of the lock. The note is best effort: it may be missing
//! or out of date. It is used in error messages, for the detection of a second writer, for the wait
//! described below, and by a listing, which reads the logs of sessions whose writers have not
//! removed their notes.
//!
//! The session's directory has a lock of its own. It excludes a process that reaches the directory
//! through another store, by a link, a mount or a second name, or that finds the lock file missing.
//! Copies that share segments by hard links (`cp -al`) have separate directories, and no lock
//! excludes their writers from each other.
//!
//! Some file systems have locks that exclude no one. The note therefore identifies the writer by
//! its process, its machine and the microsecond in which it opened the session, and a writer reads
//! the note before each sync. The writer that opened the session last continues, and the others end
//! with [`Error::SecondWriter`]. Between syncs a writer checks the bytes that it is about to
//! overwrite (`Active::found_foreign`). Both checks are best effort. Two machines that see each
//! other's writes late may each acknowledge records up to the next sync, and without notes, nothing
//! is detected.
//!
//! A process that forks shares its lock with the copy, as it shares the open file. The copy writes
//! nothing, and never releases the lock. If the parent ends first, the lock is held until the copy
//! also ends, or runs another program. A process that was killed while it started a program leaves
//! such a copy for milliseconds, so opening the session waits up to a second for it.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use foldlog_filesystem::is_out_of_space;
use uuid::Uuid;

use super::{layout, notes};
use crate::error::{Error, Holder, Result, host_name};
use crate::storage::{EntryKind, HeldLock, Storage, process_mark};

const HOLDER_BYTES_MAX: u64 = 4096;

/// Interval and number of attempts while waiting for a process that shares the lock of one that was
/// killed while it started a program. It releases the lock as soon as it runs that program.
const FORK_WAIT: Duration = Duration::from_millis(10);
const FORK_WAITS: u32 = 100;

/// Holds a session's lock until it is dropped.
#[derive(Debug)]
pub(crate) struct WriterLock {
    storage: Arc<dyn Storage>,
    /// Directory of the session; it may not exist yet.
    dir: PathBuf,
    /// Path and content of the note that was left.
    note: Option<(PathBuf, Holder)>,
    held: Option<Box<dyn HeldLock>>,
    /// Lock of the session's directory, once the directory exists.
    directory: Option<Box<dyn HeldLock>>,
    process: u32,
}

pub(crate) enum Attempt {
    Held(WriterLock),
    /// The disk is not writable, so no process can write, and reading needs no lock. The text
    /// states the reason.
    ReadOnlyDisk(String),
}

pub(crate) fn take(storage: &Arc<dyn Storage>, store: &Path, session: Uuid, now_us: i64) -> Result<Attempt> {
    waiting_for_forks(storage, store, session, || take_now(storage, store, session, now_us))
}

/// Takes a lock, and retries for a while if its holder's process has ended.
fn waiting_for_forks<T>(
    storage: &Arc<dyn Storage>,
    store: &Path,
    session: Uuid,
    take: impl Fn() -> Result<T>,
) -> Result<T> {
    let holder_path = layout::holder_file(store, session);
    let has_ended = || read_holder(storage, &holder_path).is_some_and(|holder| holder.ended);
    for _ in 0..FORK_WAITS {
        match take() {
            Err(Error::Locked { .. }) if has_ended() => std::thread::sleep(FORK_WAIT),
            taken => return taken,
        }
    }
    take()
}

/// Takes the lock of a session. Returns the system's error if the disk is not writable.
fn try_lock(
    storage: &Arc<dyn Storage>,
    store: &Path,
    session: Uuid,
) -> Result<std::result::Result<Box<dyn HeldLock>, std::io::Error>> {
    let path = layout::lock_file(store);
    match storage.try_lock(&path, byte_of(session)) {
        Ok(Some(held)) => Ok(Ok(held)),
        Ok(None) => {
            let holder = read_holder(storage, &layout::holder_file(store, session)).unwrap_or_default();
            Err(Error::Locked { session, holder })
        }
        Err(error) if is_read_only(&error) => Ok(Err(error)),
        Err(error) => Err(Error::access_failed("lock", storage.as_ref(), &path, error)),
    }
}

fn take_now(storage: &Arc<dyn Storage>, store: &Path, session: Uuid, now_us: i64) -> Result<Attempt> {
    let held = match try_lock(storage, store, session)? {
        Ok(held) => held,
        Err(error) => {
            return Ok(Attempt::ReadOnlyDisk(format!("{}: {error}", layout::lock_file(store).display())));
        }
    };
    let dir = layout::session_dir(store, session);
    let directory = match directory_lock(storage, &dir, session) {
        // The directory will be created soon.
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => None,
        locked => locked?,
    };
    let holder_path = layout::holder_file(store, session);
    let note = leave_word(storage, store, &holder_path, now_us).map(|note| (holder_path, note));
    stamp(storage.as_ref(), &dir);
    Ok(Attempt::Held(WriterLock {
        storage: Arc::clone(storage),
        dir,
        note,
        held: Some(held),
        directory,
        process: process_mark(),
    }))
}

/// Gives a session's directory a new stamp, so that a listing knows that its data about the session
/// may be out of date ([`crate::store`]). On some file systems, a write through a mapping does not
/// change the segment's time.
fn stamp(storage: &dyn Storage, dir: &Path) {
    // A disk that cannot be stamped cannot be written, or has no stamps to compare.
    let _ = storage.touch(dir);
}

fn directory_lock(
    storage: &Arc<dyn Storage>,
    dir: &Path,
    session: Uuid,
) -> Result<Option<Box<dyn HeldLock>>> {
    let locked = storage.try_lock_directory(dir);
    let locked = locked.map_err(|error| Error::access_failed("lock", storage.as_ref(), dir, error))?;
    // The holder left its note in another store, if anywhere.
    locked.map(Some).ok_or_else(|| Error::Locked { session, holder: Holder::default() })
}

impl WriterLock {
    /// Returns the writer that has left another note since, and therefore assumes that it has the
    /// lock.
    fn read_other_holder(&self) -> Option<Holder> {
        let (path, own) = self.note.as_ref()?;
        let found: Holder = notes::read(self.storage.as_ref(), path, HOLDER_BYTES_MAX)?;
        // Every sync calls this, so the process is looked up only after it is known to be another
        // one.
        let is_other = (&found.pid, &found.host, &found.since) != (&own.pid, &own.host, &own.since);
        is_other.then(|| with_end(found))
    }

    /// Checks that no other writer has taken the lock of `session` since, according to notes.
    ///
    /// # Errors
    ///
    /// [`Error::SecondWriter`].
    pub(crate) fn check(&self, session: Uuid) -> Result<()> {
        let Some(other) = self.read_other_holder() else { return Ok(()) };
        let found = format!("another process took its lock: {other}");
        Err(Error::SecondWriter { session, found })
    }

    /// Locks the session's directory, unless that was done before.
    pub(crate) fn lock_directory(&mut self, dir: &Path, session: Uuid) -> Result<()> {
        if self.directory.is_none() {
            self.directory = directory_lock(&self.storage, dir, session)?;
        }
        Ok(())
    }
}

/// Excludes writers from the session in the directory `dir` while it is read, if the directory is
/// in a store that was ever written. Leaves no note, and creates no file. Returns `None` if there
/// can be no writer.
pub(crate) fn keep_writers_away(storage: &Arc<dyn Storage>, dir: &Path) -> Result<Option<Box<dyn HeldLock>>> {
    let (Some(session), Some(store)) = (layout::session_of(dir), layout::store_of(dir)) else {
        return Ok(None);
    };
    let path = layout::lock_file(store);
    if storage.look_up(&path)?.is_none_or(|entry| entry.kind != EntryKind::File) {
        return Ok(None);
    }
    waiting_for_forks(storage, store, session, || Ok(try_lock(storage, store, session)?.ok()))
}

/// Returns those of the `sessions` in `store` whose locks are held, each with its holder's note.
/// Takes no lock.
pub(crate) fn find_holders(
    storage: &Arc<dyn Storage>,
    store: &Path,
    sessions: &[Uuid],
) -> Result<BTreeMap<Uuid, Holder>> {
    let path = layout::lock_file(store);
    let locked = storage.locked_bytes(&path).map_err(|error| Error::io("read the locks of", &path, error))?;
    if locked.is_empty() {
        return Ok(BTreeMap::new());
    }
    let held = sessions.iter().filter(|session| locked.contains(&byte_of(**session)));
    let holder = |session| read_holder(storage, &layout::holder_file(store, session)).unwrap_or_default();
    Ok(held.map(|session| (*session, holder(*session))).collect())
}

/// Returns the byte that a session locks, a file position below 2^63. Hashing separates ids that a
/// host counts up or builds from a pattern.
fn byte_of(session: Uuid) -> u64 {
    let hash = blake3::hash(session.as_bytes());
    let bytes = hash.as_bytes().first_chunk().copied().unwrap_or_default();
    u64::from_le_bytes(bytes) >> 1
}

/// Returns whether an error means that the disk, or the directory, is not writable at present.
pub(crate) fn is_read_only(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied)
        || is_out_of_space(error)
}

/// Writes a note with the holder of the lock. Returns the note if it exists now.
fn leave_word(storage: &Arc<dyn Storage>, store: &Path, path: &Path, now_us: i64) -> Option<Holder> {
    let holder = Holder {
        pid: Some(std::process::id()),
        host: host_name(),
        since: Some(foldlog_codec::record::time_text(now_us)),
        ended: false,
    };
    // A failure here costs the next caller a useful error message, and delays the detection of a
    // second writer.
    notes::leave(storage, store, path, &holder, HOLDER_BYTES_MAX).then_some(holder)
}

fn read_holder(storage: &Arc<dyn Storage>, path: &Path) -> Option<Holder> {
    notes::read(storage.as_ref(), path, HOLDER_BYTES_MAX).map(with_end)
}

fn with_end(holder: Holder) -> Holder {
    let ended = has_ended(&holder);
    Holder { ended, ..holder }
}

/// Returns whether the holder was a process of this machine that has ended: then a process that it
/// forked still holds the lock.
fn has_ended(holder: &Holder) -> bool {
    let here = host_name();
    let pid =
        holder.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|_| here.is_some() && holder.host == here);
    pid.is_some_and(|pid| {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None) == Err(nix::Error::ESRCH)
    })
}

impl Drop for WriterLock {
    fn drop(&mut self) {
        if self.process != process_mark() {
            return;
        }
        stamp(self.storage.as_ref(), &self.dir);
        // The note is removed first: without the lock, it might already be the next holder's.
        if let Some((path, _)) = self.note.as_ref().filter(|_| self.read_other_holder().is_none()) {
            let _ = self.storage.remove_file(path);
        }
        self.directory.take();
        self.held.take();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The lowest bit of an id was ignored, so a host with sequential ids could not open sessions 2
    /// and 3 at once. All ids with equal halves shared one byte.
    #[test]
    fn sessions_whose_ids_are_alike_lock_bytes_of_their_own() {
        let counted = (0..500).map(|n: u128| n);
        let ids = counted.clone().chain(counted.map(|n| n << 64 | (n + 1)));
        let patterns = (1..500).map(|n: u128| n << 64 | n);
        let bytes: BTreeSet<u64> = ids.chain(patterns).map(|id| byte_of(Uuid::from_u128(id))).collect();
        assert_eq!(bytes.len(), 1498);
        assert!(bytes.iter().all(|byte| i64::try_from(*byte).is_ok()));
    }
}

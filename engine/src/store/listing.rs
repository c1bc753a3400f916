//! Overviews of all sessions of a store.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use uuid::Uuid;

use super::Store;
use super::index::{self, IndexEntry, Stamps};
use crate::error::Result;
use crate::inspect::{SessionOverview, overview_on};
use crate::log::{layout, lock};
use crate::storage::{EntryKind, Storage};

/// Up to this many newly read sessions, no index is written: reading them again is quick.
const READ_ANEW_MAX: usize = 64;

/// Number of sessions that justify the start of one more thread.
const SESSIONS_PER_THREAD: usize = 64;

struct ListedSession<'a> {
    session: Uuid,
    overview: Result<SessionOverview>,
    entry: Option<Cow<'a, IndexEntry>>,
    was_read: bool,
}

impl Store {
    /// Returns an overview of each session at the time `now_us`, in microseconds since 1970-01-01
    /// UTC, in ascending order of the ids. Each overview is that of
    /// [`inspect::overview`](crate::inspect::overview), or the error that prevents it. The memory
    /// for each session, in addition to its image, is limited by
    /// [`ReadOptions::memory_bytes`](crate::inspect::ReadOptions::memory_bytes). `progress`
    /// receives the number of sessions seen so far, from time to time.
    ///
    /// The results for closed sessions without waiting operations are cached in a file of the
    /// store, `sessions.index`, if the store is writable. The next listing reads only logs that
    /// have changed since. It does not notice bytes of the other logs that rot on the disk, nor
    /// changes in place of an object or of a segment before the last one.
    /// [`inspect::walk`](crate::inspect::walk) finds both. The file is a cache and may be removed.
    ///
    /// ```
    /// # use foldlog::{SessionTypes, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let store = Store::open(directory.path())?;
    /// # store.create(&SessionTypes::builder().build()?)?.close()?;
    /// for (id, found) in store.overviews(0, None, &mut |_| {})? {
    ///     println!("{id} has {} records", found?.records);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) if the directory, or the locks, cannot be read.
    pub fn overviews(
        &self,
        now_us: i64,
        memory_bytes: Option<u64>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<(Uuid, Result<SessionOverview>)>> {
        let (storage, sessions) = (self.storage(), self.session_ids()?);
        let known = index::read(storage.as_ref(), self.path(), sessions.len());
        let written = self.maybe_written(&sessions)?;
        let look = |session: Uuid| {
            let at = known.binary_search_by_key(&session, |entry| entry.overview.session).ok();
            let known = at.and_then(|at| known.get(at));
            let known = known.filter(|_| !written.as_ref().is_none_or(|written| written.contains(&session)));
            self.look_at(session, known, now_us, memory_bytes)
        };
        let found = in_parallel(&sessions, &look, progress);
        let read = found.iter().filter(|found| found.was_read && found.entry.is_some()).count();
        // Rewriting the whole index for a few entries is not worth it.
        if read > READ_ANEW_MAX.max(sessions.len() / 64) {
            index::write(
                storage.as_ref(),
                self.path(),
                found.iter().filter_map(|found| found.entry.as_deref()),
            );
        }
        Ok(found.into_iter().map(|found| (found.session, found.overview)).collect())
    }

    fn look_at<'a>(
        &self,
        session: Uuid,
        known: Option<&'a IndexEntry>,
        now_us: i64,
        memory_bytes: Option<u64>,
    ) -> ListedSession<'a> {
        let (storage, dir) = (self.storage(), self.session_dir(session));
        let stands = |entry: &&'a IndexEntry| entry.stamps.stand(storage.as_ref(), &dir);
        if let Some(entry) = known.filter(stands) {
            let overview = Ok(entry.overview.clone());
            return ListedSession { session, overview, entry: Some(Cow::Borrowed(entry)), was_read: false };
        }
        let before = Stamps::before(storage.as_ref(), &dir);
        let overview = overview_on(storage, &dir, now_us, memory_bytes);
        let stood = before.filter(|before| before.stand(storage.as_ref(), &dir));
        let entry = stood.zip(overview.as_ref().ok());
        let entry = entry.and_then(|(stamps, overview)| IndexEntry::from_overview(stamps, overview, now_us));
        ListedSession { session, overview, entry: entry.map(Cow::Owned), was_read: true }
    }

    /// Returns the sessions that a process may be writing, or was writing when it ended. `None` if
    /// that cannot be determined.
    fn maybe_written(&self, sessions: &[Uuid]) -> Result<Option<BTreeSet<Uuid>>> {
        let held = lock::find_holders(self.storage(), self.path(), sessions)?;
        let noted = notes_of_writers(self.storage().as_ref(), self.path());
        Ok(noted.map(|noted| held.into_keys().chain(noted).collect()))
    }
}

/// Returns the sessions whose writers have left a note and not removed it. `None` if the directory
/// of notes exists but cannot be read. If it does not exist, writers left no notes.
fn notes_of_writers(storage: &dyn Storage, store: &Path) -> Option<Vec<Uuid>> {
    let entries = match storage.list(&layout::writers_dir(store)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        entries => entries.ok()?,
    };
    let files = entries.iter().filter(|entry| entry.kind == EntryKind::File);
    Some(files.filter_map(|file| Uuid::try_parse(file.name.strip_suffix(".json")?).ok()).collect())
}

/// Reads the sessions, several at a time, and returns the results in ascending order of the ids.
fn in_parallel<'a>(
    sessions: &[Uuid],
    look: &(dyn Fn(Uuid) -> ListedSession<'a> + Sync),
    progress: &mut dyn FnMut(u64),
) -> Vec<ListedSession<'a>> {
    let next = AtomicUsize::new(0);
    let work = |mut progress: Option<&mut dyn FnMut(u64)>| {
        let mut found = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(session) = sessions.get(at) else { return found };
            found.push(look(*session));
            if let Some(progress) = progress.as_mut() {
                progress(at as u64);
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.min(sessions.len().div_ceil(SESSIONS_PER_THREAD));
    let mut all = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(|| work(None))).collect();
        let mut all = work(Some(progress));
        for other in others {
            all.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    });
    all.sort_by_key(|found| found.session);
    all
}

//! A host's options for the snapshots of a workspace.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Configures how a [`HostFilesystem`](super::HostFilesystem) takes snapshots. The default leaves
/// out only `.git` and exports of sessions, captures times and sets no limit.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HostFilesystemOptions {
    /// Patterns of paths that snapshots leave out and restores do not touch, written like lines of
    /// a `.gitignore`. A pattern without `/` matches names in any directory, one with a `/` before
    /// its end matches paths relative to the root, and one that ends in `/` matches only
    /// directories. The last matching pattern decides, and a leading `!` includes paths again.
    /// Entries named `.git` are always left out. The directory `.aca` in the root, which contains
    /// exports of sessions, is left out unless `!/.aca/` includes it. Each snapshot records the
    /// patterns and is restored by them.
    pub leave_out: Vec<String>,
    /// Whether the workspace's `.gitignore` files also leave paths out. Default: `false`.
    pub gitignore: bool,
    /// Whether snapshots capture the times of the last change of content, for restores to bring
    /// back. Default: `true`. A snapshot that leaves out anything but `.git` and `.aca` captures no
    /// times: with old times next to a left-out `target/`, a build would take stale files for fresh
    /// ones. A partial one captures them nevertheless, because it is not restored as a whole.
    /// Without times, equal content has equal snapshots.
    pub times: bool,
    /// Largest number of bytes of contents, without their holes, that one snapshot may read.
    /// `None`, the default, sets no limit. A snapshot that would read more fails with
    /// [`Error::CaptureTooLarge`](crate::Error::CaptureTooLarge). A tool call then does not start,
    /// or it fails and is rolled back.
    pub capture_bytes_max: Option<u64>,
    /// Directory in which objects of several stores have additional names, so that each is stored
    /// once. Workspaces with the same files take the space of one, and the first snapshot of the
    /// second one links objects instead of writing them. The directory has to be on the same file
    /// system as the stores, and for the same user. `None`, the default, shares nothing.
    pub pool: Option<PathBuf>,
    /// Whether the [rollback](super::HostFilesystem::roll_back) of a call preserves commits that
    /// the call made in a git repository of the workspace and that are no longer referenced, by
    /// refs within `refs/foldlog/lost`. Default: `true`. Otherwise such a commit is only reported,
    /// and git removes it in time.
    pub keep_lost_commits: bool,
    /// Sizes from which snapshots leave files out. `None`, the default, captures files of all
    /// sizes. With sizes, entries that cannot be captured, such as sockets and unreadable files,
    /// are left out, too, and such snapshots are never restored as a whole.
    pub partial: Option<PartialCapture>,
    /// Patterns of further ignored paths, such as those of git's `info/exclude`. Partial snapshots
    /// treat them like a `.gitignore` around the workspace.
    pub ignored: Vec<String>,
    pub(super) progress: Option<OnProgress>,
}

/// Sizes from which snapshots leave files out, and only
/// [note](super::FilesystemSnapshot::noted) them.
///
/// Without [`gitignore`](HostFilesystemOptions::gitignore), `.gitignore` files of the workspace
/// leave out nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialCapture {
    /// Greatest length in bytes of a file that is captured as an object.
    pub file_bytes_max: u64,
    /// Greatest length in bytes of a captured file that a `.gitignore` ignores.
    pub ignored_file_bytes_max: u64,
    /// Greatest length in bytes of a longer file that is captured as a clone, which shares its
    /// blocks, unless it is ignored. It is noted if the file system cannot clone it into the store,
    /// or if reading such files takes half of the time until a
    /// [deadline](super::HostFilesystem::snapshot_until). 0 for none. Packs of snapshots contain no
    /// clones.
    pub shared_file_bytes_max: u64,
}

/// Describes the progress of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CaptureProgress {
    /// Number of files and links read.
    pub files: u64,
    /// Number of bytes read of their contents, without holes.
    pub bytes: u64,
}

#[derive(Clone)]
pub(super) struct OnProgress(pub(super) Arc<dyn Fn(CaptureProgress) + Send + Sync>);

impl fmt::Debug for OnProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnProgress")
    }
}

impl Default for HostFilesystemOptions {
    fn default() -> HostFilesystemOptions {
        HostFilesystemOptions {
            leave_out: Vec::new(),
            gitignore: false,
            times: true,
            capture_bytes_max: None,
            pool: None,
            keep_lost_commits: true,
            partial: None,
            ignored: Vec::new(),
            progress: None,
        }
    }
}

impl HostFilesystemOptions {
    /// Sets whether snapshots capture [times](HostFilesystemOptions::times).
    #[must_use]
    pub fn times(mut self, kept: bool) -> Self {
        self.times = kept;
        self
    }

    /// Sets the largest number of [bytes that a snapshot may
    /// read](HostFilesystemOptions::capture_bytes_max).
    #[must_use]
    pub fn capture_bytes_max(mut self, bytes: u64) -> Self {
        self.capture_bytes_max = Some(bytes);
        self
    }

    /// Sets whether [lost commits are preserved](HostFilesystemOptions::keep_lost_commits).
    #[must_use]
    pub fn keep_lost_commits(mut self, kept: bool) -> Self {
        self.keep_lost_commits = kept;
        self
    }

    /// Sets the [directory of shared objects](HostFilesystemOptions::pool).
    #[must_use]
    pub fn pool(mut self, directory: impl Into<PathBuf>) -> Self {
        self.pool = Some(directory.into());
        self
    }

    /// Makes snapshots [partial](HostFilesystemOptions::partial).
    #[must_use]
    pub fn partial(mut self, sizes: PartialCapture) -> Self {
        self.partial = Some(sizes);
        self
    }

    /// Calls `told` while a snapshot is taken, once for every few files that are read. A first
    /// snapshot reads all files, a later one those that have changed. The calls come one after the
    /// other, from the reading threads; a snapshot waits for each.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let directory = dir.path().join("work");
    /// # std::fs::create_dir(&directory)?;
    /// # std::fs::write(directory.join("a"), "four")?;
    /// use std::sync::{Arc, Mutex};
    ///
    /// use foldlog_filesystem::{HostFilesystem, HostFilesystemOptions};
    ///
    /// let last = Arc::new(Mutex::new(None));
    /// let shown = Arc::clone(&last);
    /// let options = HostFilesystemOptions::default()
    ///     .on_progress(move |progress| *shown.lock().unwrap() = Some((progress.files, progress.bytes)));
    /// let files = HostFilesystem::open(directory, dir.path().join("store"), options)?;
    /// files.snapshot(None, false)?;
    /// assert_eq!(*last.lock().unwrap(), Some((1, 4)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn on_progress(mut self, told: impl Fn(CaptureProgress) + Send + Sync + 'static) -> Self {
        self.progress = Some(OnProgress(Arc::new(told)));
        self
    }

    /// Adds a pattern of paths that snapshots [leave out](HostFilesystemOptions::leave_out).
    #[must_use]
    pub fn leave_out(mut self, pattern: impl Into<String>) -> Self {
        self.leave_out.push(pattern.into());
        self
    }

    /// Sets whether [`.gitignore` files](HostFilesystemOptions::gitignore) leave paths out.
    #[must_use]
    pub fn gitignore(mut self, counts: bool) -> Self {
        self.gitignore = counts;
        self
    }
}

//! One walk over a workspace: all entries, and their changes since the last walk.
//!
//! Directories wait on one stack, from which several threads take them. A directory is open while a
//! directory in it waits. The stack limits this to one directory for each level, and
//! [`deep_directories`](super::deep_directories) to few of the deep ones. Links are never followed:
//! each directory is opened through its parent. Mounts are never entered: a snapshot leaves them
//! out and reports them, and a restore finds a
//! [`ManifestNode::Mount`](super::manifest::ManifestNode::Mount) there.
//!
//! `scan` examines one directory; `assemble` builds directories and their objects from the results
//! of all scans.

mod assemble;
mod scan;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex};

use super::content::CaptureLimits;
use super::deep_directories::Reach;
use super::manifest::{Leaf, ManifestDirectory, Stat, TreeEntry};
use super::metadata::Links;
use super::new_objects::NewObjects;
use super::objects::ObjectId;
use super::options::PartialCapture;
use super::parallel::{join_thread, threads};
use super::rules::{Rules, Scope};
use super::snapshot::NotedEntry;
use crate::error::{Error, Result};
use scan::ScannedDirectory;

/// A workspace of up to this many files is walked faster than a thread is started.
const ALONE_FILES_MAX: u64 = 256;

pub(super) struct WorkspaceWalk<'a> {
    pub(super) root: Arc<OwnedFd>,
    pub(super) last: Option<Arc<ManifestDirectory>>,
    pub(super) rules: &'a Rules,
    /// Store for contents and trees that the last walk did not find. Without it they are not read,
    /// and stay unknown.
    pub(super) keep: Option<&'a NewObjects<'a>>,
    /// Whether times are also captured, if nothing is left out or the snapshot is partial.
    pub(super) times: bool,
    /// Sizes from which files are left out.
    pub(super) partial: Option<PartialCapture>,
    pub(super) limits: CaptureLimits,
    /// Whether anything is left out, other than entries named `.git`.
    leaves_out: AtomicBool,
    now: OnceLock<Option<(u64, i64)>>,
}

pub(super) type TreeObject = (ObjectId, Vec<TreeEntry>);

pub(super) struct WalkOutcome {
    pub(super) root: Arc<ManifestDirectory>,
    pub(super) trees: Vec<TreeObject>,
    pub(super) read: u64,
    /// The directories that could not be opened, if contents are not stored; otherwise this is an
    /// error.
    pub(super) unreadable: Vec<Vec<u8>>,
    /// Paths of mounts that were not entered, sorted.
    pub(super) mounts: Vec<Vec<u8>>,
    /// The paths of all entries named `.git`, sorted.
    pub(super) repositories: Vec<Vec<u8>>,
    pub(super) links: Links,
    /// Whether anything is left out, other than entries named `.git`.
    pub(super) leaves_out: bool,
    /// Entries that a partial capture leaves out, in ascending order of their paths.
    pub(super) noted: Vec<NotedEntry>,
}

enum WalkTask {
    Scan(DirectoryScan),
    Read(FileReadBatch),
}

struct DirectoryScan {
    id: usize,
    at: Reach,
    path: Vec<u8>,
    last: Option<Arc<ManifestDirectory>>,
    scope: Option<Arc<Scope>>,
    /// Whether a `.gitignore` of the workspace ignores the directory.
    is_ignored: bool,
}

struct FileReadBatch {
    id: usize,
    directory: Arc<OwnedFd>,
    path: Arc<[u8]>,
    files: Vec<(usize, Arc<[u8]>, Stat)>,
}

#[derive(Default)]
struct Results {
    scanned: Vec<ScannedDirectory>,
    read: Vec<(usize, usize, Option<Leaf>)>,
    unreadable: Vec<Vec<u8>>,
    /// The scans that reached a mount, and the paths of these and of files that are mounts.
    mounts: Vec<(Option<usize>, Vec<u8>)>,
    /// The paths of all entries named `.git`.
    repositories: Vec<Vec<u8>>,
    /// Device, inode and path of each file that has several names.
    links: Vec<(u64, u64, Vec<u8>)>,
    noted: Vec<NotedEntry>,
}

struct Queue {
    tasks: Vec<WalkTask>,
    /// Number of tasks in progress, each of which may add further ones.
    working: usize,
    next_id: usize,
    failed: Option<Error>,
}

struct WalkQueue {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl<'a> WorkspaceWalk<'a> {
    pub(super) fn new(
        root: Arc<OwnedFd>,
        last: Option<Arc<ManifestDirectory>>,
        rules: &'a Rules,
        keep: Option<&'a NewObjects<'a>>,
    ) -> WorkspaceWalk<'a> {
        let (leaves_out, now) = (AtomicBool::new(false), OnceLock::new());
        WorkspaceWalk {
            root,
            last,
            rules,
            keep,
            times: false,
            partial: None,
            limits: CaptureLimits::default(),
            leaves_out,
            now,
        }
    }

    pub(super) fn run(&self) -> Result<WalkOutcome> {
        let at = Reach::from_directory(Arc::clone(&self.root));
        let first = DirectoryScan {
            id: 0,
            at,
            path: Vec::new(),
            last: self.last.clone(),
            scope: self.rules.outermost(),
            is_ignored: false,
        };
        let queue = Queue { tasks: vec![WalkTask::Scan(first)], working: 0, next_id: 1, failed: None };
        let shared = WalkQueue { queue: Mutex::new(queue), changed: Condvar::new() };
        let threads = match &self.last {
            Some(last) if last.files <= ALONE_FILES_MAX => 1,
            _ => threads(),
        };
        let mut results = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(|| self.work(&shared))).collect();
            let mut results = self.work(&shared);
            others.into_iter().map(join_thread).for_each(|other| results.add(other));
            results
        });
        if let Some(error) = shared.queue.lock().failed.take() {
            return Err(error);
        }
        let unreadable = std::mem::take(&mut results.unreadable);
        let read = u64::try_from(results.read.len()).unwrap_or(u64::MAX);
        let mut mounts: Vec<Vec<u8>> = results.mounts.iter().map(|(_, path)| path.clone()).collect();
        mounts.sort();
        let mut repositories = std::mem::take(&mut results.repositories);
        repositories.sort();
        let mut noted = std::mem::take(&mut results.noted);
        noted.sort_by(|one, other| one.path.cmp(&other.path));
        let links = Links::new(std::mem::take(&mut results.links));
        let (root, trees) = match unreadable.iter().any(Vec::is_empty) {
            true => (
                Arc::new(ManifestDirectory::new(Stat::UNKNOWN, None, ObjectId::UNKNOWN, Vec::new())),
                Vec::new(),
            ),
            false => self.assemble(results)?,
        };
        let leaves_out = self.leaves_out.load(Ordering::Relaxed);
        Ok(WalkOutcome { root, trees, read, unreadable, mounts, repositories, links, leaves_out, noted })
    }

    pub(super) fn root(&self) -> &OwnedFd {
        &self.root
    }

    fn work(&self, shared: &WalkQueue) -> Results {
        let mut results = Results::default();
        let mut queue = shared.queue.lock();
        loop {
            if queue.failed.is_some() || (queue.tasks.is_empty() && queue.working == 0) {
                shared.changed.notify_all();
                return results;
            }
            let Some(task) = queue.tasks.pop() else {
                shared.changed.wait(&mut queue);
                continue;
            };
            queue.working += 1;
            drop(queue);
            let done = match task {
                WalkTask::Scan(scan) => self.scan(scan, shared, &mut results),
                WalkTask::Read(batch) => self.read_batch(&batch, &mut results),
            };
            queue = shared.queue.lock();
            queue.working -= 1;
            if let Err(error) = done {
                queue.failed.get_or_insert(error);
            }
        }
    }
}

impl WalkQueue {
    fn push(&self, tasks: Vec<WalkTask>) {
        if tasks.is_empty() {
            return;
        }
        self.queue.lock().tasks.extend(tasks);
        self.changed.notify_all();
    }

    fn ids(&self, count: usize) -> usize {
        let mut queue = self.queue.lock();
        let first = queue.next_id;
        queue.next_id += count;
        first
    }
}

impl Results {
    fn add(&mut self, other: Results) {
        self.scanned.extend(other.scanned);
        self.read.extend(other.read);
        self.unreadable.extend(other.unreadable);
        self.mounts.extend(other.mounts);
        self.links.extend(other.links);
        self.repositories.extend(other.repositories);
        self.noted.extend(other.noted);
    }
}

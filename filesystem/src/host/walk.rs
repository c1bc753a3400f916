//! One walk over a workspace: what is there, and what of it is not as the last walk found it.
//!
//! Folders wait in one stack, from which several threads take. A folder is open for as long as a folder in it
//! waits, which a stack keeps to one folder for each level, and [`reach`](super::reach) to few of the deep ones. Links are never followed: each folder is opened
//! through the one that holds it. Mounts are never entered: a snapshot leaves them out and names them, and a restore
//! finds a [`Node::Mount`] there.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{Mode, fstat, fstatat};
use parking_lot::{Condvar, Mutex};

use super::attributes;
use super::content::{Limits, Reading};
use super::manifest::{
    Attributes, Entry, Folder, Kind, Leaf, Node, Stat, TreeEntry, encode_tree, in_order, is_too_deep, join,
    told,
};
use super::metadata::Links;
use super::objects::{Hasher, ObjectId, ObjectKind, Objects};
use super::reach::{Reach, depth, is_let_go};
use super::rules::{Rules, Scope, is_temporary};
use super::step::{MOUNT, open_at};
use super::times;
use crate::error::{Error, Result};

/// Two writes within the grain of a file system's clock leave the same time behind.
const CLOCK_GRAIN_NS: i64 = 20_000_000;

/// So many files of a folder are read by the thread that found them; another may take the next ones.
const BATCH: usize = 16;

/// A workspace of so few files is walked in less time than it takes to start a thread.
const ALONE_FILES_MAX: u64 = 256;

const THREADS_MAX: usize = 4;

/// Fewer things than this are done by one thread.
const IN_PARALLEL_MIN: usize = 32;

pub(super) const OPEN_FOLDER: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

pub(super) const OPEN_FILE: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_NONBLOCK)
    .union(OFlag::O_NOCTTY)
    .union(OFlag::O_CLOEXEC);

/// What a walk is to do.
pub(super) struct Walk<'a> {
    pub(super) root: Arc<OwnedFd>,
    /// What the last walk found.
    pub(super) last: Option<Arc<Folder>>,
    pub(super) rules: &'a Rules,
    /// Where contents and trees are kept that the last walk did not find. Without it they are not read, and
    /// stay unknown.
    pub(super) keep: Option<&'a Objects>,
    /// Whether times are kept as well, where nothing is left out.
    pub(super) times: bool,
    pub(super) limits: Limits,
    /// Whether something is left out, other than what is named `.git`.
    leaves_out: AtomicBool,
    now: OnceLock<Option<(u64, i64)>>,
}

/// A tree object and its lines.
pub(super) type Tree = (ObjectId, Vec<TreeEntry>);

/// What a walk found.
pub(super) struct Walked {
    pub(super) root: Arc<Folder>,
    /// The trees that were made for it.
    pub(super) trees: Vec<Tree>,
    /// How many files and links were read.
    pub(super) read: u64,
    /// The folders that could not be opened, where contents are not kept; else that is an error.
    pub(super) unreadable: Vec<Vec<u8>>,
    /// Where something is mounted that was not entered, sorted.
    pub(super) mounts: Vec<Vec<u8>>,
    /// The paths of all that is named `.git`, sorted.
    pub(super) repositories: Vec<Vec<u8>>,
    /// Which names are one file.
    pub(super) links: Links,
    /// Whether something is left out, other than what is named `.git`.
    pub(super) leaves_out: bool,
}

enum Task {
    Scan(Scan),
    Read(Batch),
}

struct Scan {
    id: usize,
    at: Reach,
    path: Vec<u8>,
    last: Option<Arc<Folder>>,
    scope: Option<Arc<Scope>>,
}

struct Batch {
    id: usize,
    folder: Arc<OwnedFd>,
    path: Arc<[u8]>,
    files: Vec<(usize, Arc<[u8]>, Stat)>,
}

struct Scanned {
    id: usize,
    depth: usize,
    stat: Stat,
    attributes: Attributes,
    /// Whether the attributes may change once more without a new time.
    racy: bool,
    last: Option<Arc<Folder>>,
    found: Vec<Found>,
}

/// What a scan found under a name.
enum Found {
    /// The last walk's entry of this place, unchanged.
    Same(usize),
    Leaf(Arc<[u8]>, Leaf),
    Folder {
        name: Arc<[u8]>,
        id: usize,
        last: Option<usize>,
    },
    Special(Arc<[u8]>),
    Gone,
}

#[derive(Default)]
struct Results {
    scanned: Vec<Scanned>,
    read: Vec<(usize, usize, Option<Leaf>)>,
    unreadable: Vec<Vec<u8>>,
    /// The scans that came to a mount, and the paths of these and of files that are mounts.
    mounts: Vec<(Option<usize>, Vec<u8>)>,
    /// The paths of all that is named `.git`.
    repositories: Vec<Vec<u8>>,
    /// Device, inode and path of each file that has several names.
    links: Vec<(u64, u64, Vec<u8>)>,
}

struct Queue {
    tasks: Vec<Task>,
    /// How many tasks are being worked on, each of which may bring further ones.
    working: usize,
    next_id: usize,
    failed: Option<Error>,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

fn io(op: &'static str, path: &[u8], errno: Errno) -> Error {
    Error::io(op, OsStr::from_bytes(if path.is_empty() { b"." } else { path }), errno.into())
}

pub(super) fn stat_at(folder: &OwnedFd, name: &[u8]) -> Result<Stat, Errno> {
    fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW).map(|stat| Stat::from(&stat))
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        root: Arc<OwnedFd>,
        last: Option<Arc<Folder>>,
        rules: &'a Rules,
        keep: Option<&'a Objects>,
    ) -> Walk<'a> {
        let (leaves_out, now) = (AtomicBool::new(false), OnceLock::new());
        Walk { root, last, rules, keep, times: false, limits: Limits::default(), leaves_out, now }
    }

    pub(super) fn run(&self) -> Result<Walked> {
        let at = Reach::of(Arc::clone(&self.root));
        let first = Scan { id: 0, at, path: Vec::new(), last: self.last.clone(), scope: None };
        let queue = Queue { tasks: vec![Task::Scan(first)], working: 0, next_id: 1, failed: None };
        let shared = Shared { queue: Mutex::new(queue), changed: Condvar::new() };
        let threads = match &self.last {
            Some(last) if last.files <= ALONE_FILES_MAX => 1,
            _ => threads(),
        };
        let mut results = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(|| self.work(&shared))).collect();
            let mut results = self.work(&shared);
            for other in others {
                match other.join() {
                    Ok(other) => results.add(other),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
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
        let links = Links::new(std::mem::take(&mut results.links));
        let (root, trees) = match unreadable.iter().any(Vec::is_empty) {
            true => (Arc::new(Folder::new(Stat::UNKNOWN, None, ObjectId::UNKNOWN, Vec::new())), Vec::new()),
            false => self.assemble(results)?,
        };
        let leaves_out = self.leaves_out.load(Ordering::Relaxed);
        Ok(Walked { root, trees, read, unreadable, mounts, repositories, links, leaves_out })
    }

    pub(super) fn root(&self) -> &OwnedFd {
        &self.root
    }

    fn work(&self, shared: &Shared) -> Results {
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
                Task::Scan(scan) => self.scan(scan, shared, &mut results),
                Task::Read(batch) => self.read_batch(&batch, &mut results),
            };
            queue = shared.queue.lock();
            queue.working -= 1;
            if let Err(error) = done {
                queue.failed.get_or_insert(error);
            }
        }
    }

    fn scan(&self, scan: Scan, shared: &Shared, results: &mut Results) -> Result<()> {
        let Scan { id, at, path, last, scope } = scan;
        self.limits.check(&path)?;
        if is_too_deep(&path) {
            if self.keep.is_none() {
                // No snapshot goes so deep: what a restore removes, it removes with what is in it.
                let (stat, depth) = (Stat::UNKNOWN, depth(&path));
                let found = Vec::new();
                results.scanned.push(Scanned {
                    id,
                    depth,
                    stat,
                    attributes: None,
                    racy: true,
                    last: None,
                    found,
                });
                return Ok(());
            }
            return Err(Error::path(told(&path), "too many folders in one another"));
        }
        let folder = match at.open() {
            Ok(folder) => folder,
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Ok(()),
            Err(MOUNT) => {
                results.mounts.push((Some(id), path));
                return Ok(());
            }
            Err(Errno::EACCES) if self.keep.is_none() => {
                results.unreadable.push(path);
                return Ok(());
            }
            Err(errno) => return Err(io("open", &path, errno)),
        };
        let at = at.opened(&folder, &path);
        let (stat, attributes, racy) = self.look_at_folder(&folder, &path, last.as_deref())?;
        let scope = self.rules.enter(&folder, &path, scope)?;
        // Read through a descriptor of its own: the one that entries are opened through is shared.
        let listed = openat(&*folder, c".", OPEN_FOLDER, Mode::empty()).and_then(Dir::from_fd);
        let mut listed = match listed {
            Err(Errno::EACCES) if self.keep.is_none() => {
                results.unreadable.push(path);
                return Ok(());
            }
            listed => listed.map_err(|errno| io("list", &path, errno))?,
        };
        let mut names = Names::new(last.as_deref());
        let mut found = Vec::with_capacity(last.as_ref().map_or(0, |last| last.entries.len()));
        let mut folders = Vec::new();
        let mut to_read = Vec::new();
        for entry in listed.iter() {
            let entry = entry.map_err(|errno| io("list", &path, errno))?;
            let name = entry.file_name();
            if name.to_bytes() == b".git" {
                results.repositories.push(join(&path, b".git"));
            }
            let stat = match self.look_at(&folder, &path, name, scope.as_deref()) {
                // It may be listed and not entered.
                Err(Error::Io { source, .. })
                    if self.keep.is_none() && source.kind() == std::io::ErrorKind::PermissionDenied =>
                {
                    results.unreadable.push(path);
                    return Ok(());
                }
                stat => stat?,
            };
            let Some(stat) = stat else { continue };
            let name = name.to_bytes();
            if stat.names > 1 && stat.kind() == Kind::File {
                results.links.push((stat.device, stat.inode, join(&path, name)));
            }
            let place = names.find(name);
            let before = place.and_then(|place| Some((place, last.as_ref()?.entries.get(place)?)));
            let shared_name = || match &before {
                Some((_, before)) => Arc::clone(&before.name),
                None => Arc::from(name),
            };
            found.push(match (stat.kind(), before) {
                (Kind::Folder, before) => {
                    folders.push(found.len());
                    Found::Folder { name: shared_name(), id: 0, last: before.map(|(place, _)| place) }
                }
                (Kind::Special, _) if self.keep.is_some() => {
                    let reason = "a pipe, a socket or a device cannot be part of a snapshot";
                    return Err(Error::path(told(&join(&path, name)), reason));
                }
                (Kind::Special, _) => Found::Special(shared_name()),
                (_, Some((place, Entry { node: Node::Leaf(leaf), .. })))
                    if leaf.stat == stat && !leaf.racy && leaf.blob != ObjectId::UNKNOWN =>
                {
                    Found::Same(place)
                }
                _ => {
                    let name = shared_name();
                    to_read.push((found.len(), Arc::clone(&name), stat));
                    Found::Leaf(name, Leaf::unread(stat))
                }
            });
        }
        drop(listed);
        let mut tasks = Vec::new();
        if self.keep.is_some() && !to_read.is_empty() {
            let path: Arc<[u8]> = Arc::from(path.as_slice());
            let batch = |files: &[_]| Batch {
                id,
                folder: Arc::clone(&folder),
                path: Arc::clone(&path),
                files: files.to_vec(),
            };
            let mut batches = to_read.chunks(BATCH).map(batch);
            // What waits to be read holds its folder open.
            let own = if is_let_go(&path) { usize::MAX } else { 1 };
            let own: Vec<Batch> = batches.by_ref().take(own).collect();
            shared.push(batches.map(Task::Read).collect());
            own.iter().try_for_each(|own| self.read_batch(own, results))?;
        }
        let first_id = shared.ids(folders.len());
        for (place_in, child_id) in folders.into_iter().zip(first_id..) {
            let Some(Found::Folder { name, id, last: place }) = found.get_mut(place_in) else { continue };
            *id = child_id;
            let before = place.and_then(|place| last.as_ref()?.entries.get(place));
            let last = before.and_then(|entry| match &entry.node {
                Node::Folder(folder) => Some(Arc::clone(folder)),
                _ => None,
            });
            tasks.push(Task::Scan(Scan {
                id: child_id,
                at: at.to(name),
                path: join(&path, name),
                last,
                scope: scope.clone(),
            }));
        }
        shared.push(tasks);
        let depth = depth(&path);
        results.scanned.push(Scanned { id, depth, stat, attributes, racy, last, found });
        Ok(())
    }

    /// A folder's own state, its attributes read where they may have changed, and whether they may do so once more
    /// without a new time.
    fn look_at_folder(
        &self,
        folder: &OwnedFd,
        path: &[u8],
        last: Option<&Folder>,
    ) -> Result<(Stat, Attributes, bool)> {
        let stat = Stat::from(&fstat(folder).map_err(|errno| io("look at", path, errno))?);
        if let Some(last) = last
            && last.checked_ns.load(Ordering::Relaxed) == stat.changed_ns
            && last.stat.inode == stat.inode
        {
            return Ok((stat, last.attributes.clone(), false));
        }
        let racy = self.is_racy(&stat);
        let attributes = attributes::read(folder);
        let attributes =
            attributes.map_err(|errno| Error::io("read the attributes of", told(path), errno.into()))?;
        Ok((stat, attributes, racy))
    }

    /// What stands under a name, unless it is gone by now or left out.
    fn look_at(
        &self,
        folder: &OwnedFd,
        path: &[u8],
        name: &CStr,
        scope: Option<&Scope>,
    ) -> Result<Option<Stat>> {
        let bytes = name.to_bytes();
        if matches!(bytes, b"." | b".." | b".git") || (self.keep.is_some() && is_temporary(bytes)) {
            return Ok(None);
        }
        let stat = match fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => return Ok(None),
            stat => stat.map_err(|errno| io("look at", &join(path, bytes), errno))?,
        };
        let stat = Stat::from(&stat);
        let left_out = self.rules.leave_out(path, bytes, stat.kind() == Kind::Folder, scope);
        if left_out {
            self.leaves_out.store(true, Ordering::Relaxed);
        }
        Ok((!left_out).then_some(stat))
    }

    fn read_batch(&self, batch: &Batch, results: &mut Results) -> Result<()> {
        let Some(objects) = self.keep else { return Ok(()) };
        for (at, name, stat) in &batch.files {
            let path = || join(&batch.path, name);
            let mounted = Cell::new(false);
            let reading = Reading {
                objects,
                limits: &self.limits,
                folder: &batch.folder,
                name,
                path: &path,
                mounted: &mounted,
                is_racy: &|stat| self.is_racy(stat),
            };
            let read = reading.keep(*stat).map_err(|error| match error {
                // Objects know contents and no paths.
                Error::Io { source, .. } if source.kind() == std::io::ErrorKind::InvalidData => {
                    Error::path(told(&path()), source.to_string())
                }
                error => error,
            })?;
            if mounted.get() {
                results.mounts.push((None, path()));
            }
            results.read.push((batch.id, *at, read));
        }
        Ok(())
    }

    /// Whether a file may be written once more without a new time. Asked before the file is read: what is
    /// written later has the file system's time of now or a later one.
    pub(super) fn is_racy(&self, stat: &Stat) -> bool {
        match self.now.get_or_init(|| now_of(&self.root)) {
            Some((device, now_ns)) if *device == stat.device => {
                stat.changed_ns.saturating_add(CLOCK_GRAIN_NS) >= *now_ns
            }
            _ => true,
        }
    }

    /// From what the scans found to folders, those within before those around them.
    fn assemble(&self, results: Results) -> Result<(Arc<Folder>, Vec<Tree>)> {
        let Results { mut scanned, read, mounts, .. } = results;
        let mounts: HashSet<usize> = mounts.into_iter().filter_map(|(scan, _)| scan).collect();
        scanned.sort_by_key(|scanned| scanned.id);
        for (id, at, leaf) in read {
            let Ok(place) = scanned.binary_search_by_key(&id, |scanned| scanned.id) else { continue };
            let Some(found) = scanned.get_mut(place).and_then(|scanned| scanned.found.get_mut(at)) else {
                continue;
            };
            match (leaf, found) {
                (Some(leaf), Found::Leaf(_, found)) => *found = leaf,
                (_, found) => *found = Found::Gone,
            }
        }
        scanned.sort_by_key(|scanned| std::cmp::Reverse(scanned.depth));
        let mut trees = Vec::new();
        let mut done: HashMap<usize, Arc<Folder>> = HashMap::new();
        // Those of one depth do not need each other, and may be many.
        for level in scanned.chunk_by(|left, right| left.depth == right.depth) {
            let folders = in_parallel(level, &|scanned| self.folder(scanned, &done, &mounts))?;
            for (scanned, (folder, tree)) in level.iter().zip(folders) {
                done.insert(scanned.id, folder);
                trees.extend(tree);
            }
        }
        let root = done.remove(&0).ok_or_else(|| Error::path(".", "the workspace cannot be read"))?;
        Ok((root, trees))
    }

    fn folder(
        &self,
        scanned: &Scanned,
        done: &HashMap<usize, Arc<Folder>>,
        mounts: &HashSet<usize>,
    ) -> Result<(Arc<Folder>, Option<Tree>)> {
        let Scanned { stat, attributes, racy, last, found, .. } = scanned;
        let checked_ns = if *racy { 0 } else { stat.changed_ns };
        let with_times = self.times && !self.leaves_out.load(Ordering::Relaxed);
        if let Some(last) = last
            && (!with_times || last.times != ObjectId::UNKNOWN)
            && is_same(last, scanned, done)
        {
            last.checked_ns.store(checked_ns, Ordering::Relaxed);
            return Ok((Arc::clone(last), None));
        }
        let mut entries = Vec::with_capacity(found.len());
        for found in found {
            let node = |name: &Arc<[u8]>, node| Some(Entry { name: Arc::clone(name), node });
            entries.extend(match found {
                Found::Same(place) => last.as_ref().and_then(|last| last.entries.get(*place)).cloned(),
                Found::Leaf(name, leaf) => node(name, Node::Leaf(leaf.clone())),
                // A snapshot leaves it out; a restore has to know of it.
                Found::Folder { name, id, .. } if mounts.contains(id) => match self.keep {
                    Some(_) => None,
                    None => node(name, Node::Mount),
                },
                Found::Folder { name, id, .. } => {
                    done.get(id).and_then(|folder| node(name, Node::Folder(Arc::clone(folder))))
                }
                Found::Special(name) => node(name, Node::Special),
                Found::Gone => None,
            });
        }
        let is_known = |entry: &Entry| match &entry.node {
            Node::Leaf(leaf) => leaf.blob != ObjectId::UNKNOWN,
            Node::Folder(folder) => folder.tree != ObjectId::UNKNOWN,
            Node::Special | Node::Mount => false,
        };
        let (mut tree, mut of_times, mut made) = (ObjectId::UNKNOWN, ObjectId::UNKNOWN, None);
        if entries.iter().all(is_known) {
            let ordered = in_order(&entries);
            let (bytes, lines) = encode_tree(&ordered);
            tree = self.object(ObjectKind::Tree, &bytes)?;
            made = self.keep.map(|_| (tree, lines));
            if let Some(bytes) = times::encode(stat, &ordered).filter(|_| with_times) {
                of_times = self.object(ObjectKind::Blob, &bytes)?;
            }
        }
        let mut folder = Folder::new(*stat, attributes.clone(), tree, entries);
        folder.times = of_times;
        folder.checked_ns = checked_ns.into();
        Ok((Arc::new(folder), made))
    }

    /// Keeps an object, or says what it is called.
    fn object(&self, kind: ObjectKind, bytes: &[u8]) -> Result<ObjectId> {
        match self.keep {
            Some(objects) => objects.write(kind, bytes),
            None => Hasher::of(kind, bytes).map_err(|error| Error::io("hash", "a folder", error)),
        }
    }
}

/// Does the same with each of many, in several threads where they are enough.
pub(super) fn in_parallel<T: Sync, U: Send>(
    items: &[T],
    each: &(dyn Fn(&T) -> Result<U> + Sync),
) -> Result<Vec<U>> {
    let threads = if items.len() < IN_PARALLEL_MIN { 1 } else { threads() };
    let mut parts = items.chunks(items.len().div_ceil(threads).max(1));
    let first = parts.next().unwrap_or_default();
    std::thread::scope(|scope| {
        let others: Vec<_> =
            parts.map(|part| scope.spawn(|| part.iter().map(each).collect::<Result<Vec<U>>>())).collect();
        let mut done = first.iter().map(each).collect::<Result<Vec<U>>>();
        for other in others {
            let other = match other.join() {
                Ok(other) => other,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            done = done.and_then(|mut done| {
                done.extend(other?);
                Ok(done)
            });
        }
        done
    })
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).clamp(2, THREADS_MAX)
}

fn is_same(last: &Folder, scanned: &Scanned, done: &HashMap<usize, Arc<Folder>>) -> bool {
    let Scanned { stat, attributes, found, .. } = scanned;
    let own = |stat: &Stat| (stat.device, stat.inode, stat.mode, stat.owner, stat.modified_ns);
    own(&last.stat) == own(stat)
        && last.attributes == *attributes
        && last.tree != ObjectId::UNKNOWN
        && last.entries.len() == found.len()
        && found.iter().enumerate().all(|(at, found)| match found {
            Found::Same(place) => *place == at,
            Found::Folder { id, last: Some(place), .. } if *place == at => {
                match (done.get(id), last.entries.get(at).map(|entry| &entry.node)) {
                    (Some(now), Some(Node::Folder(before))) => Arc::ptr_eq(now, before),
                    _ => false,
                }
            }
            _ => false,
        })
}

impl Shared {
    fn push(&self, tasks: Vec<Task>) {
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
    }
}

/// Finds names among the last walk's, which mostly come in the same order.
struct Names<'a> {
    last: Option<&'a Folder>,
    next: usize,
    places: Option<HashMap<&'a [u8], usize>>,
}

impl<'a> Names<'a> {
    fn new(last: Option<&'a Folder>) -> Names<'a> {
        Names { last, next: 0, places: None }
    }

    fn find(&mut self, name: &[u8]) -> Option<usize> {
        let last = self.last?;
        let place = match last.entries.get(self.next) {
            Some(entry) if *entry.name == *name => self.next,
            _ => {
                let places = self.places.get_or_insert_with(|| {
                    last.entries.iter().enumerate().map(|(at, entry)| (&*entry.name, at)).collect()
                });
                *places.get(name)?
            }
        };
        self.next = place + 1;
        Some(place)
    }
}

/// The device and the time of the file system, by a file without a name. `None` where it makes none: then every
/// file is read again at the next walk.
fn now_of(root: &OwnedFd) -> Option<(u64, i64)> {
    let flags = OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    let file = openat(root, c".", flags, Mode::S_IRUSR | Mode::S_IWUSR).ok()?;
    let stat = Stat::from(&fstat(&file).ok()?);
    Some((stat.device, stat.changed_ns))
}

/// Opens a file to be read, unless it is a mount; what became a pipe meanwhile does not block.
pub(super) fn open_file(folder: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    open_at(folder, name, OPEN_FILE, Mode::empty())
}

pub(super) fn read_link(folder: &OwnedFd, name: &[u8]) -> Result<Vec<u8>, Errno> {
    readlinkat(folder, name).map(OsString::into_vec)
}

#[cfg(test)]
mod tests {
    use nix::fcntl::open;

    use super::*;
    use crate::host::rules::Gitignore;

    /// Where a file system's clock is coarse, a second write leaves the first one's time behind.
    #[test]
    fn what_was_written_within_the_clocks_grain_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), "x").unwrap();
        let root = Arc::new(open(folder.path(), OPEN_FOLDER, Mode::empty()).unwrap());
        let rules = Rules::new(&[], Gitignore::Unread);
        let walk = Walk::new(Arc::clone(&root), None, &rules, None);
        let new = stat_at(&root, b"file").unwrap();
        assert!(now_of(&root).is_none() || walk.is_racy(&new));
        let old = Stat { changed_ns: new.changed_ns - 2 * CLOCK_GRAIN_NS, ..new };
        assert!(now_of(&root).is_none() || !walk.is_racy(&old));
        assert!(
            walk.is_racy(&Stat { device: old.device + 1, ..old }),
            "another file system has its own clock"
        );
        let blob = ObjectId([1; 20]);
        let found = |racy| {
            let node = Node::Leaf(Leaf { blob, racy, ..Leaf::unread(new) });
            let entry = Entry { name: Arc::from(&b"file"[..]), node };
            let stat = Stat::from(&fstat(&*root).unwrap());
            let last = Arc::new(Folder::new(stat, None, ObjectId([2; 20]), vec![entry]));
            let walked = Walk::new(Arc::clone(&root), Some(last), &rules, None).run().unwrap();
            match walked.root.entries.first().map(|entry| entry.node.clone()) {
                Some(Node::Leaf(leaf)) => leaf.blob,
                node => panic!("{node:?}"),
            }
        };
        assert_eq!(found(false), blob);
        assert_eq!(found(true), ObjectId::UNKNOWN);
    }
}

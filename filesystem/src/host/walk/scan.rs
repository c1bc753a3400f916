//! Scans one directory: all of its entries, and the contents of files that changed since the last
//! walk.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, fstatat};

use super::{DirectoryScan, FileReadBatch, Results, WalkQueue, WalkTask, WorkspaceWalk};
use crate::error::{Error, Result};
use crate::host::attributes;
use crate::host::content::ContentReader;
use crate::host::deep_directories::{depth, is_let_go};
use crate::host::manifest::{
    Attributes, FileForm, FileKind, Leaf, ManifestDirectory, ManifestEntry, ManifestNode, Stat, display_path,
    is_too_deep, join,
};
use crate::host::objects::{ObjectId, ObjectKind};
use crate::host::rules::{Scope, is_editing, is_own, is_temporary};
use crate::host::snapshot::NotedEntry;
use crate::host::sparse::Sparse;
use crate::host::step::{MOUNT, OPEN_DIRECTORY, stat_at, stat_of};

/// Two writes within the granularity of a file system's clock result in the same time.
const CLOCK_GRAIN_NS: i64 = 20_000_000;

/// Number of files of a directory that the thread that found them reads; another thread may take
/// the next ones.
const BATCH: usize = 16;

pub(super) struct ScannedDirectory {
    pub(super) id: usize,
    pub(super) depth: usize,
    pub(super) stat: Stat,
    pub(super) attributes: Attributes,
    /// Whether the attributes may change once more without a new time.
    pub(super) racy: bool,
    pub(super) last: Option<Arc<ManifestDirectory>>,
    pub(super) found: Vec<ScannedEntry>,
}

pub(super) enum ScannedEntry {
    /// The unchanged entry with this index in the last walk.
    Same(usize),
    Leaf(Arc<[u8]>, Leaf),
    Directory {
        name: Arc<[u8]>,
        id: usize,
        last: Option<usize>,
    },
    Special(Arc<[u8]>),
    Gone,
}

fn io(op: &'static str, path: &[u8], errno: Errno) -> Error {
    Error::io(op, OsStr::from_bytes(if path.is_empty() { b"." } else { path }), errno)
}

impl WorkspaceWalk<'_> {
    pub(super) fn scan(&self, scan: DirectoryScan, shared: &WalkQueue, results: &mut Results) -> Result<()> {
        let DirectoryScan { id, at, path, last, scope, is_ignored } = scan;
        self.limits.check(&path)?;
        if is_too_deep(&path) {
            if self.keep.is_none() {
                // No snapshot is so deep: a restore removes such a directory with all of its
                // contents.
                results.scanned.push(ScannedDirectory {
                    id,
                    depth: depth(&path),
                    stat: Stat::UNKNOWN,
                    attributes: None,
                    racy: true,
                    last: None,
                    found: Vec::new(),
                });
                return Ok(());
            }
            return Err(Error::path(display_path(&path), "too many nested directories"));
        }
        let directory = match at.open() {
            Ok(directory) => directory,
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Ok(()),
            Err(MOUNT) => {
                results.mounts.push((Some(id), path));
                return Ok(());
            }
            Err(Errno::EACCES) if self.keep.is_none() => {
                results.unreadable.push(path);
                return Ok(());
            }
            Err(Errno::EACCES) if self.partial.is_some() && !path.is_empty() => {
                results.noted.push(NotedEntry::new(&path, None));
                return Ok(());
            }
            Err(errno) => return Err(io("open", &path, errno)),
        };
        let at = at.advance_to(&directory, &path);
        let (stat, attributes, racy) = self.look_at_directory(&directory, &path, last.as_deref())?;
        // It may be listed but not entered.
        let is_closed = || stat_at(&directory, b".") == Err(Errno::EACCES);
        let scope = match self.rules.enter(&directory, &path, scope) {
            Err(_) if self.partial.is_some() && !path.is_empty() && is_closed() => {
                results.noted.push(NotedEntry::new(&path, None));
                return Ok(());
            }
            scope => scope?,
        };
        // Uses its own descriptor, because the one through which entries are opened is shared.
        let listed = openat(&*directory, c".", OPEN_DIRECTORY, Mode::empty()).and_then(Dir::from_fd);
        let mut listed = match listed {
            Err(Errno::EACCES) if self.keep.is_none() => {
                results.unreadable.push(path);
                return Ok(());
            }
            listed => listed.map_err(|errno| io("list", &path, errno))?,
        };
        let mut names = NameLookup::new(last.as_deref());
        let mut found = Vec::with_capacity(last.as_ref().map_or(0, |last| last.entries.len()));
        let mut directories = Vec::new();
        let mut to_read = Vec::new();
        for entry in listed.iter() {
            let entry = entry.map_err(|errno| io("list", &path, errno))?;
            let name = entry.file_name();
            if name.to_bytes() == b".git" {
                results.repositories.push(join(&path, b".git"));
            }
            let stat = match self.look_at(&directory, &path, name, scope.as_deref(), results) {
                // It may be listed but not entered.
                Err(Error::Io { source, .. })
                    if self.keep.is_none() && source.kind() == ErrorKind::PermissionDenied =>
                {
                    results.unreadable.push(path);
                    return Ok(());
                }
                stat => stat?,
            };
            let Some(stat) = stat else { continue };
            let name = name.to_bytes();
            let is_directory = stat.kind() == FileKind::Directory;
            let is_ignored = self.partial.is_some_and(|partial| {
                (is_directory || stat.len > partial.ignored_file_bytes_max)
                    && (is_ignored || self.rules.ignores(&path, name, is_directory, scope.as_deref()))
            });
            if self.notes(&stat, is_ignored) {
                results.noted.push(NotedEntry::new(&join(&path, name), Some(&stat)));
                continue;
            }
            if stat.names > 1 && stat.kind() == FileKind::File {
                results.links.push((stat.device, stat.inode, join(&path, name)));
            }
            let place = names.find(name);
            let before = place.and_then(|place| Some((place, last.as_ref()?.entries.get(place)?)));
            let shared_name = || match &before {
                Some((_, before)) => Arc::clone(&before.name),
                None => Arc::from(name),
            };
            found.push(match (stat.kind(), before) {
                (FileKind::Directory, before) => {
                    directories.push((found.len(), is_ignored));
                    ScannedEntry::Directory {
                        name: shared_name(),
                        id: 0,
                        last: before.map(|(place, _)| place),
                    }
                }
                (FileKind::Special, _) if self.keep.is_some() => {
                    let reason = "a pipe, a socket or a device cannot be part of a snapshot";
                    return Err(Error::path(display_path(&join(&path, name)), reason));
                }
                (FileKind::Special, _) => ScannedEntry::Special(shared_name()),
                (_, Some((place, ManifestEntry { node: ManifestNode::Leaf(leaf), .. })))
                    if leaf.stat == stat
                        && !leaf.racy
                        && leaf.blob != ObjectId::UNKNOWN
                        && self.is_kept(leaf) =>
                {
                    ScannedEntry::Same(place)
                }
                _ => {
                    let name = shared_name();
                    to_read.push((found.len(), Arc::clone(&name), stat));
                    ScannedEntry::Leaf(name, Leaf::unread(stat))
                }
            });
        }
        drop(listed);
        let mut tasks = Vec::new();
        if self.keep.is_some() && !to_read.is_empty() {
            let path: Arc<[u8]> = Arc::from(path.as_slice());
            let batch = |files: &[_]| FileReadBatch {
                id,
                directory: Arc::clone(&directory),
                path: Arc::clone(&path),
                files: files.to_vec(),
            };
            let mut batches = to_read.chunks(BATCH).map(batch);
            // A file that waits to be read keeps its directory open.
            let own = if is_let_go(&path) { usize::MAX } else { 1 };
            let own: Vec<FileReadBatch> = batches.by_ref().take(own).collect();
            shared.push(batches.map(WalkTask::Read).collect());
            own.iter().try_for_each(|own| self.read_batch(own, results))?;
        }
        let first_id = shared.ids(directories.len());
        for ((place_in, is_ignored), child_id) in directories.into_iter().zip(first_id..) {
            let Some(ScannedEntry::Directory { name, id, last: place }) = found.get_mut(place_in) else {
                continue;
            };
            *id = child_id;
            let before = place.and_then(|place| last.as_ref()?.entries.get(place));
            let last = before.and_then(|entry| match &entry.node {
                ManifestNode::Directory(directory) => Some(Arc::clone(directory)),
                _ => None,
            });
            tasks.push(WalkTask::Scan(DirectoryScan {
                id: child_id,
                at: at.to(name),
                path: join(&path, name),
                last,
                scope: scope.clone(),
                is_ignored,
            }));
        }
        shared.push(tasks);
        let depth = depth(&path);
        results.scanned.push(ScannedDirectory { id, depth, stat, attributes, racy, last, found });
        Ok(())
    }

    /// Returns whether the store has the objects that a snapshot needs for an unchanged file, as
    /// far as they are checked.
    fn is_kept(&self, leaf: &Leaf) -> bool {
        let Some(objects) = self.keep.map(|new| new.objects) else { return true };
        let has_data = || Sparse::read(objects, leaf.blob).is_ok_and(|(_, data)| objects.is_there(data));
        objects.is_trusted(leaf.blob, ObjectKind::Blob)
            && match leaf.form {
                _ if !objects.is_due(leaf.blob) => true,
                FileForm::Sparse => has_data(),
                FileForm::Shared => objects.has_shared(leaf.blob, leaf.stat.len),
                FileForm::Whole | FileForm::Prefix => true,
            }
    }

    /// Returns a directory's own state, its attributes, which are read if they may have changed,
    /// and whether they may change once more without a new time.
    fn look_at_directory(
        &self,
        directory: &OwnedFd,
        path: &[u8],
        last: Option<&ManifestDirectory>,
    ) -> Result<(Stat, Attributes, bool)> {
        let stat = stat_of(directory).map_err(|errno| io("look at", path, errno))?;
        if let Some(last) = last
            && last.checked_ns.load(Ordering::Relaxed) == stat.changed_ns
            && last.stat.inode == stat.inode
        {
            return Ok((stat, last.attributes.clone(), false));
        }
        let racy = self.is_racy(&stat);
        let attributes = attributes::read(directory);
        let attributes =
            attributes.map_err(|errno| Error::io("read the attributes of", display_path(path), errno))?;
        Ok((stat, attributes, racy))
    }

    /// Returns the entry with a name, unless it no longer exists or is left out.
    fn look_at(
        &self,
        directory: &OwnedFd,
        path: &[u8],
        name: &CStr,
        scope: Option<&Scope>,
        results: &mut Results,
    ) -> Result<Option<Stat>> {
        let bytes = name.to_bytes();
        let is_incomplete = self.keep.is_some() && (is_temporary(bytes) || is_editing(bytes));
        if matches!(bytes, b"." | b".." | b".git") || is_incomplete {
            return Ok(None);
        }
        let stat = match fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => return Ok(None),
            stat => stat.map_err(|errno| io("look at", &join(path, bytes), errno))?,
        };
        let stat = Stat::from(&stat);
        let is_directory = stat.kind() == FileKind::Directory;
        let left_out = self.rules.leave_out(path, bytes, is_directory, scope);
        // Nothing in a workspace depends on exports.
        if left_out && !is_own(path, bytes, is_directory) {
            self.leaves_out.store(true, Ordering::Relaxed);
            if self.partial.is_some() {
                results.noted.push(NotedEntry::new(&join(path, bytes), Some(&stat)));
            }
        }
        Ok((!left_out).then_some(stat))
    }

    /// Returns whether a partial capture leaves out an entry because of its size or kind.
    fn notes(&self, stat: &Stat, is_ignored: bool) -> bool {
        let Some(partial) = &self.partial else { return false };
        let bytes_max = if is_ignored { partial.ignored_file_bytes_max } else { partial.file_bytes_max };
        match stat.kind() {
            FileKind::File => {
                stat.len > bytes_max && (is_ignored || stat.len > partial.shared_file_bytes_max)
            }
            FileKind::Special => true,
            FileKind::Directory | FileKind::Link => false,
        }
    }

    /// Returns whether a file is captured only by a clone.
    fn is_large(&self, stat: &Stat) -> bool {
        let is_large = self.partial.is_some_and(|partial| stat.len > partial.file_bytes_max);
        is_large && stat.kind() == FileKind::File
    }

    pub(super) fn read_batch(&self, batch: &FileReadBatch, results: &mut Results) -> Result<()> {
        let Some(objects) = self.keep else { return Ok(()) };
        for (at, name, stat) in &batch.files {
            let path = || join(&batch.path, name);
            let mounted = Cell::new(false);
            let reading = ContentReader {
                objects,
                limits: &self.limits,
                directory: &batch.directory,
                name,
                path: &path,
                mounted: &mounted,
                is_racy: &|stat| self.is_racy(stat),
            };
            let is_large = self.is_large(stat);
            let read = match if is_large { reading.share() } else { reading.keep(*stat) } {
                Err(Error::Io { source, .. })
                    if (self.partial.is_some() && source.kind() == ErrorKind::PermissionDenied)
                        || (is_large && source.kind() == ErrorKind::Unsupported) =>
                {
                    results.noted.push(NotedEntry::new(&path(), Some(stat)));
                    None
                }
                // Objects know contents but no paths.
                Err(Error::Io { source, .. }) if source.kind() == ErrorKind::InvalidData => {
                    return Err(Error::path(display_path(&path()), source.to_string()));
                }
                read => read?,
            };
            if mounted.get() {
                results.mounts.push((None, path()));
            }
            results.read.push((batch.id, *at, read));
        }
        self.limits.read_files(batch.files.len());
        Ok(())
    }

    /// Returns whether a file may be written once more without a new time. This is determined
    /// before the file is read: a later write gets the file system's present time or a later one.
    pub(in crate::host) fn is_racy(&self, stat: &Stat) -> bool {
        match self.now.get_or_init(|| now_of(&self.root)) {
            Some((device, now_ns)) if *device == stat.device => {
                stat.changed_ns.saturating_add(CLOCK_GRAIN_NS) >= *now_ns
            }
            _ => true,
        }
    }
}

/// Finds names in the last walk, which mostly has the same order.
struct NameLookup<'a> {
    last: Option<&'a ManifestDirectory>,
    next: usize,
    places: Option<HashMap<&'a [u8], usize>>,
}

impl<'a> NameLookup<'a> {
    fn new(last: Option<&'a ManifestDirectory>) -> NameLookup<'a> {
        NameLookup { last, next: 0, places: None }
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

/// Returns the device and the time of the file system, from a file without a name. Returns `None`
/// if it supports no such file; then every file is read again at the next walk.
fn now_of(root: &OwnedFd) -> Option<(u64, i64)> {
    let flags = OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    let file = openat(root, c".", flags, Mode::S_IRUSR | Mode::S_IWUSR).ok()?;
    let stat = stat_of(&file).ok()?;
    Some((stat.device, stat.changed_ns))
}

#[cfg(test)]
mod tests {
    use nix::fcntl::open;

    use super::*;
    use crate::host::rules::{Gitignore, Rules};
    use crate::host::step::stat_at;

    /// With a coarse file system clock, a second write does not change the time.
    #[test]
    fn what_was_written_within_the_clocks_grain_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), "x").unwrap();
        let root = Arc::new(open(directory.path(), OPEN_DIRECTORY, Mode::empty()).unwrap());
        let rules = Rules::new(&[], Gitignore::Unread);
        let walk = WorkspaceWalk::new(Arc::clone(&root), None, &rules, None);
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
            let node = ManifestNode::Leaf(Leaf { blob, racy, ..Leaf::unread(new) });
            let entry = ManifestEntry { name: Arc::from(&b"file"[..]), node };
            let stat = stat_of(&*root).unwrap();
            let last = Arc::new(ManifestDirectory::new(stat, None, ObjectId([2; 20]), vec![entry]));
            let walked = WorkspaceWalk::new(Arc::clone(&root), Some(last), &rules, None).run().unwrap();
            match walked.root.entries.first().map(|entry| entry.node.clone()) {
                Some(ManifestNode::Leaf(leaf)) => leaf.blob,
                node => panic!("{node:?}"),
            }
        };
        assert_eq!(found(false), blob);
        assert_eq!(found(true), ObjectId::UNKNOWN);
    }
}

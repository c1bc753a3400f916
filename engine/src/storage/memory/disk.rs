//! The disk of the in-memory storage: its files and directories, its locks, and its faults.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use uuid::{Builder, Uuid};

use super::CrashKind;
use super::body::FilePages;
use super::chance::{Chance, Grain, PowerCutOutcome};
use super::directory::MemoryDirectory;
use super::fault::{FaultEffect, Faults, Op};
use crate::storage::{Access, DirectoryEntry, EntryKind};

/// Identifies a file or directory, like an inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeId(pub(super) u64);

/// The directory `/`, which always exists.
const ROOT: NodeId = NodeId(0);

pub(super) enum Node {
    File(FilePages),
    Directory(MemoryDirectory),
    /// A link, or anything else that the engine never opens.
    Other,
}

pub(super) struct Disk {
    nodes: BTreeMap<NodeId, Node>,
    next_node: u64,
    /// Number of crashes so far. Handles and locks of an earlier life are dead.
    pub(super) life: u64,
    pub(super) boot_id: Option<Uuid>,
    /// Locked bytes, each with its file. As on a real disk, locks are held on files, not on paths.
    locks: BTreeSet<(NodeId, u64)>,
    pub(super) faults: Faults,
    /// Set during the call in which a [`Fault::Die`](super::Fault::Die) kills the process.
    dying: bool,
    pub(super) trace: Vec<(Op, Arc<Path>)>,
}

/// The last name of a path, and the directory that contains this name.
struct DirectorySlot {
    directory: NodeId,
    name: OsString,
}

impl Disk {
    pub(super) fn new(boot_id: Option<Uuid>) -> Self {
        Self {
            nodes: BTreeMap::from([(ROOT, Node::Directory(MemoryDirectory::default()))]),
            next_node: 1,
            life: 0,
            boot_id,
            locks: BTreeSet::new(),
            faults: Faults::default(),
            dying: false,
            trace: Vec::new(),
        }
    }

    /// Traces a call, and fails it if a fault applies. Returns the number of bytes that the call
    /// may write.
    pub(super) fn begin(&mut self, op: Op, path: impl Into<Arc<Path>>) -> io::Result<usize> {
        let path = path.into();
        self.trace.push((op, Arc::clone(&path)));
        match self.faults.count(op) {
            Some(FaultEffect::Fail(io::ErrorKind::Interrupted)) if op.is_made_again() => self.begin(op, path),
            Some(FaultEffect::Fail(kind)) => Err(io::Error::new(kind, "an injected fault")),
            Some(FaultEffect::Short(bytes)) => Ok(bytes),
            Some(FaultEffect::Die(bytes)) if op == Op::Write => {
                self.dying = true;
                Ok(bytes.min(usize::MAX - 1))
            }
            Some(FaultEffect::Die(_)) => {
                self.crash(CrashKind::Process);
                Err(super::dead())
            }
            None => Ok(usize::MAX),
        }
    }

    /// Ends the process if the write that was just done is its last call.
    pub(super) fn end_write(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.dying) {
            self.crash(CrashKind::Process);
            return Err(super::dead());
        }
        Ok(())
    }

    fn directory(&self, id: NodeId) -> io::Result<&MemoryDirectory> {
        match self.nodes.get(&id) {
            Some(Node::Directory(directory)) => Ok(directory),
            Some(_) => Err(Errno::ENOTDIR.into()),
            None => Err(Errno::ENOENT.into()),
        }
    }

    fn directory_mut(&mut self, id: NodeId) -> io::Result<&mut MemoryDirectory> {
        match self.nodes.get_mut(&id) {
            Some(Node::Directory(directory)) => Ok(directory),
            Some(_) => Err(Errno::ENOTDIR.into()),
            None => Err(Errno::ENOENT.into()),
        }
    }

    pub(super) fn body(&self, id: NodeId) -> io::Result<&FilePages> {
        match self.nodes.get(&id) {
            Some(Node::File(body)) => Ok(body),
            Some(_) => Err(not_regular()),
            None => Err(Errno::ENOENT.into()),
        }
    }

    pub(super) fn body_mut(&mut self, id: NodeId) -> io::Result<&mut FilePages> {
        match self.nodes.get_mut(&id) {
            Some(Node::File(body)) => Ok(body),
            Some(_) => Err(not_regular()),
            None => Err(Errno::ENOENT.into()),
        }
    }

    pub(super) fn find(&self, path: &Path) -> io::Result<NodeId> {
        self.walk(links(path)?)
    }

    fn walk(&self, names: Vec<&OsStr>) -> io::Result<NodeId> {
        names.into_iter().try_fold(ROOT, |at, name| Ok(self.directory(at)?.get(name).ok_or(Errno::ENOENT)?))
    }

    fn place(&self, path: &Path) -> io::Result<DirectorySlot> {
        let mut names = links(path)?;
        let name = names.pop().ok_or(Errno::EBUSY)?.to_owned();
        let directory = self.walk(names)?;
        self.directory(directory)?;
        Ok(DirectorySlot { directory, name })
    }

    fn at(&self, place: &DirectorySlot) -> io::Result<Option<NodeId>> {
        Ok(self.directory(place.directory)?.get(&place.name))
    }

    fn add(&mut self, place: &DirectorySlot, node: Node) -> io::Result<NodeId> {
        let id = NodeId(self.next_node);
        self.directory_mut(place.directory)?.add(&place.name, id);
        self.nodes.insert(id, node);
        self.next_node += 1;
        Ok(id)
    }

    pub(super) fn may_open(&self) -> io::Result<()> {
        self.faults.may_open()
    }

    fn may_change(&self) -> io::Result<()> {
        if self.faults.read_only { Err(Errno::EROFS.into()) } else { Ok(()) }
    }

    /// Returns the number of bytes by which the files may still grow.
    pub(super) fn room(&self) -> u64 {
        match self.faults.capacity {
            Some(capacity) => capacity.saturating_sub(self.used_bytes()),
            None => u64::MAX,
        }
    }

    /// Fails if there is no room for `len` more bytes, or if the disk is full.
    fn may_grow(&self, len: u64) -> io::Result<()> {
        let room = self.room();
        if room == 0 || len > room { Err(Errno::ENOSPC.into()) } else { Ok(()) }
    }

    pub(super) fn create_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let mut at = ROOT;
        for name in links(path)? {
            at = match self.directory(at)?.get(name) {
                Some(found) => found,
                None => {
                    self.may_change()?;
                    self.may_grow(0)?;
                    let place = DirectorySlot { directory: at, name: name.to_owned() };
                    self.add(&place, Node::Directory(MemoryDirectory::default()))?
                }
            };
        }
        self.directory(at).map(drop)
    }

    fn describe(&self, name: &OsStr, id: NodeId) -> DirectoryEntry {
        let (kind, len) = match self.nodes.get(&id) {
            Some(Node::File(body)) => (EntryKind::File, body.len()),
            Some(Node::Directory(_)) => (EntryKind::Directory, 0),
            Some(Node::Other) | None => (EntryKind::Other, 0),
        };
        DirectoryEntry { name: name.to_string_lossy().into(), kind, len, mode: None }
    }

    pub(super) fn list(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let directory = self.directory(self.find(path)?)?;
        let mut entries: Vec<_> = directory.names().map(|(name, id)| self.describe(name, id)).collect();
        entries.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(entries)
    }

    pub(super) fn entry(&self, path: &Path) -> io::Result<Option<DirectoryEntry>> {
        match self.find(path) {
            Ok(id) => Ok(Some(self.describe(path.file_name().unwrap_or_default(), id))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn create(&mut self, path: &Path, len: u64) -> io::Result<NodeId> {
        let place = self.place(path)?;
        if self.at(&place)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        is_position(len)?;
        self.may_change()?;
        self.may_grow(len)?;
        self.add(&place, Node::File(FilePages::with_zeros(len)))
    }

    pub(super) fn open(&self, path: &Path, access: Access) -> io::Result<NodeId> {
        let id = self.find(path)?;
        self.body(id)?;
        if access == Access::Write {
            self.may_change()?;
        }
        Ok(id)
    }

    /// Writes as much of `bytes` as `limit` and the room on the disk allow. Fails if that is not
    /// all of them.
    pub(super) fn write(&mut self, id: NodeId, bytes: &[u8], offset: u64, limit: usize) -> io::Result<()> {
        self.may_change()?;
        let end = offset.checked_add(bytes.len() as u64).ok_or(Errno::EFBIG)?;
        is_position(end)?;
        let len = self.body(id)?.len();
        // Only bytes that lengthen a file need room; allocated bytes never do.
        let fits = if end > len { len.saturating_add(self.room()).saturating_sub(offset) } else { u64::MAX };
        let fits = usize::try_from(fits).unwrap_or(usize::MAX);
        let kept = bytes.get(..limit.min(fits)).unwrap_or(bytes);
        self.body_mut(id)?.write(kept, offset);
        if kept.len() == bytes.len() && limit == usize::MAX {
            Ok(())
        } else if fits < limit {
            Err(Errno::ENOSPC.into())
        } else {
            Err(io::Error::other("an injected short write"))
        }
    }

    pub(super) fn allocate(&mut self, id: NodeId, bytes: u64) -> io::Result<()> {
        let len = self.body(id)?.len();
        if bytes <= len {
            return Ok(());
        }
        is_position(bytes)?;
        self.may_change()?;
        self.may_grow(bytes - len)?;
        self.body_mut(id)?.lengthen(bytes);
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        if from.directory != to.directory {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a rename stays within one directory"));
        }
        let id = self.at(&from)?.ok_or(Errno::ENOENT)?;
        match self.at(&to)? {
            // Both are names of one file: the system does nothing at all.
            Some(found) if found == id => return Ok(()),
            Some(found) => match (self.directory(id), self.directory(found)) {
                (Ok(_), Ok(there)) if there.is_empty() => {}
                (Ok(_), Ok(_)) => return Err(Errno::ENOTEMPTY.into()),
                (Ok(_), Err(_)) => return Err(Errno::ENOTDIR.into()),
                (Err(_), Ok(_)) => return Err(Errno::EISDIR.into()),
                (Err(_), Err(_)) => {}
            },
            None => {}
        }
        self.may_change()?;
        self.directory_mut(from.directory)?.rename(&from.name, &to.name, id);
        Ok(())
    }

    pub(super) fn hard_link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let id = self.find(from)?;
        self.body(id)?;
        let place = self.place(to)?;
        if self.at(&place)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        self.may_change()?;
        self.directory_mut(place.directory)?.add(&place.name, id);
        Ok(())
    }

    /// Returns the number of names of the node at a path.
    pub(super) fn links(&self, path: &Path) -> io::Result<u64> {
        let id = self.find(path)?;
        let directories = self.nodes.keys().filter_map(|node| self.directory(*node).ok());
        Ok(directories.flat_map(MemoryDirectory::names).filter(|(_, found)| *found == id).count() as u64)
    }

    pub(super) fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        let place = self.place(path)?;
        let id = self.at(&place)?.ok_or(Errno::ENOENT)?;
        if self.directory(id).is_ok() {
            return Err(Errno::EISDIR.into());
        }
        self.may_change()?;
        self.directory_mut(place.directory)?.remove(&place.name);
        Ok(())
    }

    pub(super) fn remove_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let place = self.place(path)?;
        let top = self.at(&place)?.ok_or(Errno::ENOENT)?;
        self.directory(top)?;
        self.may_change()?;
        // Each name below is removed separately, so that a power cut may leave a half-emptied
        // directory.
        for (directory, name, _) in self.names_below(top) {
            self.directory_mut(directory)?.remove(&name);
        }
        self.directory_mut(place.directory)?.remove(&place.name);
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        let id = self.find(path)?;
        self.directory_mut(id)?.sync();
        Ok(())
    }

    /// Takes the lock on one byte. Returns the locked file, or `None` if the lock is held.
    pub(super) fn lock(&mut self, path: &Path, offset: u64) -> io::Result<Option<NodeId>> {
        is_position(offset)?;
        let place = self.place(path)?;
        self.may_change()?;
        let id = match self.at(&place)? {
            Some(found) => found,
            None => {
                self.may_grow(0)?;
                self.add(&place, Node::File(FilePages::default()))?
            }
        };
        self.body(id)?;
        let is_free = self.locks.insert((id, offset)) || self.faults.locks_exclude_nobody;
        Ok(is_free.then_some(id))
    }

    pub(super) fn unlock(&mut self, id: NodeId, offset: u64) {
        self.locks.remove(&(id, offset));
    }

    /// Returns each name below a directory, with its directory and its node, in the state that
    /// reads return.
    fn names_below(&self, top: NodeId) -> Vec<(NodeId, OsString, NodeId)> {
        let mut found = Vec::new();
        let mut open = vec![top];
        while let Some(id) = open.pop() {
            if let Ok(directory) = self.directory(id) {
                for (name, below) in directory.names() {
                    found.push((id, name.clone(), below));
                    open.push(below);
                }
            }
        }
        found
    }

    pub(super) fn used_bytes(&self) -> u64 {
        let seen: BTreeSet<_> = self.names_below(ROOT).into_iter().map(|(_, _, id)| id).collect();
        let lengths = seen.into_iter().filter_map(|id| self.body(id).ok()).map(FilePages::len);
        lengths.fold(0, u64::saturating_add)
    }

    /// Returns all files that a path leads to, with their bytes.
    pub(super) fn files(&self) -> BTreeMap<PathBuf, &FilePages> {
        let mut files = BTreeMap::new();
        let mut open = vec![(PathBuf::from("/"), ROOT)];
        while let Some((path, id)) = open.pop() {
            match self.nodes.get(&id) {
                Some(Node::Directory(directory)) => {
                    open.extend(directory.names().map(|(name, below)| (path.join(name), below)));
                }
                Some(Node::File(body)) => {
                    files.insert(path, body);
                }
                Some(Node::Other) | None => {}
            }
        }
        files
    }

    pub(super) fn settle_node(&mut self, path: &Path, node: Node) -> io::Result<()> {
        let mut names = links(path)?;
        let last = names.pop().ok_or(Errno::EISDIR)?.to_owned();
        let mut directory = ROOT;
        for name in names {
            let place = DirectorySlot { directory, name: name.to_owned() };
            directory = match self.at(&place)? {
                Some(found) => found,
                None => self.add(&place, Node::Directory(MemoryDirectory::default()))?,
            };
            self.directory_mut(place.directory)?.sync();
        }
        let place = DirectorySlot { directory, name: last };
        match self.at(&place)? {
            Some(found) if self.directory(found).is_ok() => return Err(Errno::EISDIR.into()),
            // The node id is unchanged, so that open handles and other names see its new bytes.
            Some(found) => drop(self.nodes.insert(found, node)),
            None => drop(self.add(&place, node)?),
        }
        self.directory_mut(directory)?.sync();
        Ok(())
    }

    pub(super) fn write_back(&mut self, seed: u64) {
        let mut chance = Chance::new(seed);
        for node in self.nodes.values_mut() {
            match node {
                Node::File(body) => body.write_back(PowerCutOutcome::Mixed, &mut chance),
                Node::Directory(directory) => directory.write_back(PowerCutOutcome::Mixed, &mut chance),
                Node::Other => {}
            }
        }
    }

    pub(super) fn crash(&mut self, kind: CrashKind) {
        self.life += 1;
        self.locks.clear();
        match kind {
            CrashKind::Process => {}
            CrashKind::Power { seed } => {
                let mut chance = Chance::new(seed);
                let (pages, names) = (PowerCutOutcome::draw(&mut chance), PowerCutOutcome::draw(&mut chance));
                let grain = Grain::draw(&mut chance);
                self.lose_power(pages, grain, names, chance);
            }
            CrashKind::PowerLosingAll => {
                let (old, chance) = (PowerCutOutcome::AllOld, Chance::new(self.life));
                self.lose_power(old, Grain::Page, old, chance);
            }
        }
    }

    fn lose_power(
        &mut self,
        pages: PowerCutOutcome,
        grain: Grain,
        names: PowerCutOutcome,
        mut chance: Chance,
    ) {
        for node in self.nodes.values_mut() {
            match node {
                Node::File(body) => body.lose_power(pages, grain, &mut chance),
                Node::Directory(directory) => directory.lose_power(names, &mut chance),
                Node::Other => {}
            }
        }
        // The current and the durable state are equal now, and no handle is left. Nodes without a
        // name are therefore lost.
        let kept: BTreeSet<_> = self.names_below(ROOT).into_iter().map(|(_, _, id)| id).collect();
        self.nodes.retain(|id, _| *id == ROOT || kept.contains(id));
        self.boot_id = self.boot_id.map(|old| {
            // The old id takes part, so that two crashes with the same seed still give two
            // different boots.
            let (high, low) = old.as_u64_pair();
            let mut draw = || u128::from(chance.next()) << 64 | u128::from(chance.next());
            let drawn = draw() ^ (u128::from(low) << 64 | u128::from(high));
            let fresh = Builder::from_random_bytes(drawn.to_be_bytes()).into_uuid();
            if fresh == old { Uuid::from_u128(!old.as_u128()) } else { fresh }
        });
    }
}

/// Splits a path into its names from the root. A relative path also starts at the root.
fn links(path: &Path) -> io::Result<Vec<&OsStr>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => names.push(name),
            Component::ParentDir | Component::Prefix(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "a path in memory cannot contain `..`",
                ));
            }
        }
    }
    Ok(names)
}

/// Refuses a position of 2^63 or above, like a system with signed positions.
fn is_position(position: u64) -> io::Result<()> {
    i64::try_from(position).map(drop).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

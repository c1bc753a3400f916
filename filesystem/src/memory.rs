//! Files in memory. A directory is a persistent tree of its entries, so a snapshot is a pointer to
//! the root. A change copies only the directories above it, and of each only the few blocks that it
//! touches.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::RwLock;
use rpds::RedBlackTreeMapSync;

use super::path::{self, DEPTH_MAX};
use super::pattern::Pattern;
use super::{FileKind, FileStat, Filesystem, FilesystemEntry};
use crate::error::{Error, IoContext, Result};

const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

#[derive(Clone)]
struct InMemoryDirectory {
    children: RedBlackTreeMapSync<Arc<str>, InMemoryNode>,
    modified_us: i64,
}

#[derive(Clone)]
enum InMemoryNode {
    File(File),
    Directory(Arc<InMemoryDirectory>),
}

#[derive(Clone)]
struct File {
    bytes: Arc<[u8]>,
    modified_us: i64,
}

/// Stores files in memory, for tests and for tools that need no real directory.
///
/// Taking or restoring a snapshot costs the same for ten files and for ten thousand. Nothing
/// outlives the process. There are no links and no permissions: files have the mode `0o644`,
/// directories `0o755`.
///
/// ```
/// use foldlog_filesystem::{Filesystem, InMemoryFilesystem};
///
/// let files = InMemoryFilesystem::new();
/// files.write("notes/today.md", b"write the plan")?;
/// let before = files.snapshot();
///
/// files.delete("notes")?;
/// assert!(!files.exists("notes/today.md")?);
///
/// files.restore(&before);
/// assert_eq!(files.read("notes/today.md")?, b"write the plan");
/// # Ok::<(), foldlog_filesystem::Error>(())
/// ```
pub struct InMemoryFilesystem {
    now_us: Box<dyn Fn() -> i64 + Send + Sync>,
    root: RwLock<Arc<InMemoryDirectory>>,
}

/// Contains the state of an [`InMemoryFilesystem`] at one moment. Cloning it copies a pointer.
#[derive(Clone)]
pub struct MemorySnapshot {
    root: Arc<InMemoryDirectory>,
}

impl std::fmt::Debug for InMemoryFilesystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InMemoryFilesystem").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for MemorySnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemorySnapshot").finish_non_exhaustive()
    }
}

impl MemorySnapshot {
    /// Returns whether `self` and `other` contain the same files and directories with the same
    /// content, regardless of their times.
    pub fn is_same(&self, other: &MemorySnapshot) -> bool {
        self.root.is_same(&other.root)
    }
}

impl InMemoryDirectory {
    /// Compares two directories. They are at most [`DEPTH_MAX`] deep, so the recursion is bounded.
    fn is_same(&self, other: &InMemoryDirectory) -> bool {
        let mut pairs = self.children.iter().zip(other.children.iter());
        self.children.size() == other.children.size()
            && pairs.all(|((name, node), (other_name, other))| {
                name == other_name
                    && match (node, other) {
                        (InMemoryNode::File(file), InMemoryNode::File(other)) => file.bytes == other.bytes,
                        (InMemoryNode::Directory(directory), InMemoryNode::Directory(other)) => {
                            Arc::ptr_eq(directory, other) || directory.is_same(other)
                        }
                        _ => false,
                    }
            })
    }
}

impl Default for InMemoryFilesystem {
    fn default() -> Self {
        InMemoryFilesystem::new()
    }
}

impl InMemoryFilesystem {
    /// Creates an empty filesystem that reads no clock. It counts its changes: each change is one
    /// microsecond later than the previous one, from 1970-01-01 UTC on. So the same calls give the
    /// same times.
    pub fn new() -> InMemoryFilesystem {
        let changes = AtomicI64::new(0);
        InMemoryFilesystem::with_time(move || changes.fetch_add(1, Ordering::Relaxed))
    }

    /// Creates an empty filesystem whose times come from `now_us`, in microseconds since 1970-01-01
    /// UTC.
    pub fn with_time(now_us: impl Fn() -> i64 + Send + Sync + 'static) -> InMemoryFilesystem {
        let root = Arc::new(InMemoryDirectory::new(now_us()));
        InMemoryFilesystem { now_us: Box::new(now_us), root: RwLock::new(root) }
    }

    /// Returns all current files and directories, with their times.
    pub fn snapshot(&self) -> MemorySnapshot {
        MemorySnapshot { root: Arc::clone(&self.root.read()) }
    }

    /// Replaces all files and directories by those of `snapshot`, with their times.
    pub fn restore(&self, snapshot: &MemorySnapshot) {
        let before = std::mem::replace(&mut *self.root.write(), Arc::clone(&snapshot.root));
        // Free the unshared nodes here, after the lock is released.
        drop(before);
    }

    /// Returns `true` only if the content is that of `snapshot`. It may return `false` for equal
    /// content that was written again; to find out, compare snapshots with
    /// [`MemorySnapshot::is_same`].
    pub fn is_at(&self, snapshot: &MemorySnapshot) -> bool {
        Arc::ptr_eq(&self.root.read(), &snapshot.root)
    }

    fn present(&self) -> Arc<InMemoryDirectory> {
        Arc::clone(&self.root.read())
    }

    /// Applies a change to the tree, or leaves the tree unchanged if the change fails.
    fn change(&self, change: impl FnOnce(&mut Arc<InMemoryDirectory>, i64) -> Result<()>) -> Result<()> {
        let now_us = (self.now_us)();
        let mut present = self.root.write();
        let mut root = Arc::clone(&present);
        change(&mut root, now_us)?;
        let before = std::mem::replace(&mut *present, root);
        drop(present);
        drop(before);
        Ok(())
    }

    fn put(&self, op: &'static str, path: &str, bytes: &dyn Fn(Option<&File>) -> Arc<[u8]>) -> Result<()> {
        let parts = path::parts(path)?;
        let (name, directories) =
            parts.split_last().ok_or_else(|| Error::io(op, path, ErrorKind::IsADirectory))?;
        self.change(|root, now_us| {
            edit(root, directories, Missing::Make(now_us), &mut |directory| {
                let key: Arc<str> = Arc::from(*name);
                let before = match directory.children.get(&key) {
                    Some(InMemoryNode::Directory(_)) => return Err(ErrorKind::IsADirectory),
                    Some(InMemoryNode::File(file)) => Some(file),
                    None => None,
                };
                let is_new = before.is_none();
                let file = File { bytes: bytes(before), modified_us: now_us };
                directory.children.insert_mut(key, InMemoryNode::File(file));
                if is_new {
                    directory.modified_us = now_us;
                }
                Ok(())
            })
            .during(op, path)
        })
    }
}

impl InMemoryDirectory {
    fn new(modified_us: i64) -> InMemoryDirectory {
        InMemoryDirectory { children: RedBlackTreeMapSync::default(), modified_us }
    }
}

#[derive(Clone, Copy)]
enum Missing {
    Make(i64),
    Refuse,
}

/// Applies a change to the directory at a path, and copies those directories above it that are
/// shared.
fn edit<T>(
    directory: &mut Arc<InMemoryDirectory>,
    parts: &[&str],
    missing: Missing,
    change: &mut dyn FnMut(&mut InMemoryDirectory) -> Result<T, ErrorKind>,
) -> Result<T, ErrorKind> {
    let directory = Arc::make_mut(directory);
    let Some((name, rest)) = parts.split_first() else { return change(directory) };
    let key: Arc<str> = Arc::from(*name);
    let mut child = match (directory.children.get(&key), missing) {
        (Some(InMemoryNode::Directory(child)), _) => Arc::clone(child),
        (Some(InMemoryNode::File(_)), _) => return Err(ErrorKind::NotADirectory),
        (None, Missing::Refuse) => return Err(ErrorKind::NotFound),
        (None, Missing::Make(now_us)) => {
            directory.modified_us = now_us;
            Arc::new(InMemoryDirectory::new(now_us))
        }
    };
    let changed = edit(&mut child, rest, missing, change)?;
    directory.children.insert_mut(key, InMemoryNode::Directory(child));
    Ok(changed)
}

fn take_out(directory: &mut InMemoryDirectory, name: &str, now_us: i64) -> Result<(), ErrorKind> {
    if !directory.children.remove_mut(name) {
        return Err(ErrorKind::NotFound);
    }
    directory.modified_us = now_us;
    Ok(())
}

fn find(root: Arc<InMemoryDirectory>, parts: &[&str]) -> Result<InMemoryNode, ErrorKind> {
    let mut found = InMemoryNode::Directory(root);
    for part in parts {
        let InMemoryNode::Directory(directory) = &found else { return Err(ErrorKind::NotADirectory) };
        found = directory.children.get(*part).cloned().ok_or(ErrorKind::NotFound)?;
    }
    Ok(found)
}

fn depth(node: &InMemoryNode) -> usize {
    let mut deepest = 0;
    let mut left = vec![(node.clone(), 1)];
    while let Some((node, depth)) = left.pop() {
        deepest = deepest.max(depth);
        if let InMemoryNode::Directory(directory) = node {
            left.extend(directory.children.iter().map(|(_, child)| (child.clone(), depth + 1)));
        }
    }
    deepest
}

impl Filesystem for InMemoryFilesystem {
    fn read(&self, path: &str) -> Result<Vec<u8>> {
        let parts = path::parts(path)?;
        match find(self.present(), &parts).during("read", path)? {
            InMemoryNode::File(file) => Ok(file.bytes.to_vec()),
            InMemoryNode::Directory(_) => Err(Error::io("read", path, ErrorKind::IsADirectory)),
        }
    }

    fn write(&self, path: &str, bytes: &[u8]) -> Result<()> {
        self.put("write", path, &|_| Arc::from(bytes))
    }

    fn append(&self, path: &str, bytes: &[u8]) -> Result<()> {
        self.put("append to", path, &|before| match before {
            Some(before) => before.bytes.iter().chain(bytes).copied().collect(),
            None => Arc::from(bytes),
        })
    }

    fn delete(&self, path: &str) -> Result<()> {
        let parts = path::parts(path)?;
        let Some((name, directories)) = parts.split_last() else {
            return Err(Error::path(path, "the root cannot be deleted"));
        };
        self.change(|root, now_us| {
            edit(root, directories, Missing::Refuse, &mut |directory| take_out(directory, name, now_us))
                .during("delete", path)
        })
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from_parts, to_parts) = (path::parts(from)?, path::parts(to)?);
        let (Some((from_name, from_directories)), Some((to_name, to_directories))) =
            (from_parts.split_last(), to_parts.split_last())
        else {
            return Err(Error::path(".", "the root cannot be renamed"));
        };
        self.change(|root, now_us| {
            let node = find(Arc::clone(root), &from_parts).during("rename", from)?;
            if from_parts == to_parts {
                return Ok(());
            }
            let is_directory = matches!(node, InMemoryNode::Directory(_));
            if is_directory && to_parts.starts_with(&from_parts) {
                return Err(Error::path(to, "a directory cannot be moved into itself"));
            }
            if is_directory && to_directories.len() + depth(&node) > DEPTH_MAX {
                return Err(Error::path(to, "too many nested directories"));
            }
            edit(root, from_directories, Missing::Refuse, &mut |directory| {
                take_out(directory, from_name, now_us)
            })
            .during("rename", from)?;
            edit(root, to_directories, Missing::Make(now_us), &mut |directory| {
                let key: Arc<str> = Arc::from(*to_name);
                match directory.children.get(&key) {
                    Some(InMemoryNode::File(_)) if !is_directory => {}
                    Some(_) => return Err(ErrorKind::AlreadyExists),
                    None => {}
                }
                directory.children.insert_mut(key, node.clone());
                directory.modified_us = now_us;
                Ok(())
            })
            .during("rename to", to)
        })
    }

    fn list(&self, directory: &str) -> Result<Vec<FilesystemEntry>> {
        let parts = path::parts(directory)?;
        match find(self.present(), &parts).during("list", directory)? {
            InMemoryNode::Directory(directory) => Ok(directory
                .children
                .iter()
                .map(|(name, node)| FilesystemEntry { name: name.to_string(), kind: node.kind() })
                .collect()),
            InMemoryNode::File(_) => Err(Error::io("list", directory, ErrorKind::NotADirectory)),
        }
    }

    fn glob(&self, pattern: &str) -> Result<Vec<String>> {
        let pattern = Pattern::new(pattern)?;
        let mut found = Vec::new();
        let mut left = vec![(String::new(), self.present())];
        while let Some((path, directory)) = left.pop() {
            for (name, node) in directory.children.iter() {
                let path = if path.is_empty() { name.to_string() } else { format!("{path}/{name}") };
                let matches = pattern.matches(path.as_bytes());
                if let InMemoryNode::Directory(directory) = node
                    && &**name != ".git"
                {
                    left.push((path.clone(), Arc::clone(directory)));
                }
                if matches {
                    found.push(path);
                }
            }
        }
        found.sort();
        Ok(found)
    }

    fn stat(&self, path: &str) -> Result<FileStat> {
        let parts = path::parts(path)?;
        let node = find(self.present(), &parts).during("look at", path)?;
        let (kind, len, mode, modified_us) = match &node {
            InMemoryNode::File(file) => (FileKind::File, file.bytes.len(), FILE_MODE, file.modified_us),
            InMemoryNode::Directory(directory) => {
                (FileKind::Directory, 0, DIRECTORY_MODE, directory.modified_us)
            }
        };
        Ok(FileStat { kind, len: u64::try_from(len).unwrap_or(u64::MAX), mode, modified_us })
    }

    fn exists(&self, path: &str) -> Result<bool> {
        let parts = path::parts(path)?;
        Ok(find(self.present(), &parts).is_ok())
    }
}

impl InMemoryNode {
    fn kind(&self) -> FileKind {
        match self {
            InMemoryNode::File(_) => FileKind::File,
            InMemoryNode::Directory(_) => FileKind::Directory,
        }
    }
}

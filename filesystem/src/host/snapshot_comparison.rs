//! Walks through two snapshots in parallel.
//!
//! Two directories with the same tree have the same contents. The permissions of a path and the
//! form of its content are not in the trees. So equal directories are skipped only if these data do
//! not differ below them either. A store may be hostile: the same few trees can occur under more
//! paths than could ever be walked. So pairs of trees without a difference are not walked again.

use std::cmp::Ordering;
use std::collections::HashSet;

use super::changes::{FileChange, FileFacts};
use super::manifest::{
    FileForm, GitMode, Permissions, TreeEntry, display_path, escape_path, is_too_deep, join,
};
use super::metadata::Metadata;
use super::objects::{ObjectId, ObjectKind, Objects, len};
use super::shared::Shared;
use super::snapshot::FilesystemSnapshot;
use super::sparse::Sparse;
use super::trees::{Commit, LINE_BYTES, Trees};
use crate::error::{Error, Result};
use crate::{ChangeKind, FileKind};

/// Larger than the tree of a directory of two million files.
pub(super) const TREE_BYTES_MAX: u64 = 128 << 20;

/// A commit's message has a line for each file of unusual permissions.
const COMMIT_BYTES_MAX: u64 = 256 << 20;

/// Greatest memory for the parent directories of the compared directory, in bytes.
const OPEN_BYTES_MAX: u64 = 1 << 30;

/// Far longer than any path in a real directory, even one too deep for a system call.
const PATH_BYTES_MAX: usize = 1 << 20;

/// Greatest number of pairs of trees remembered as equal. More are walked again.
const UNCHANGED_MAX: usize = 1 << 20;

impl Trees {
    /// Returns the entries of a tree, in the order of their paths, and their size in memory.
    fn lines(&mut self, objects: &Objects, id: ObjectId, path: &[u8]) -> Result<(Vec<KeyedTreeEntry>, u64)> {
        let entries = self.distinct(objects, id, path)?;
        let mut lines: Vec<KeyedTreeEntry> = entries.iter().map(KeyedTreeEntry::new).collect();
        lines.sort_by(|left, right| left.key.cmp(&right.key));
        let bytes = lines.iter().map(|line| LINE_BYTES + 2 * len(line.key.as_bytes())).sum();
        Ok((lines, bytes))
    }
}

struct KeyedTreeEntry {
    /// The name as in paths, with a trailing slash for a directory. In the order of these keys,
    /// directory by directory, the paths of all files are in ascending order.
    key: String,
    entry: TreeEntry,
}

impl KeyedTreeEntry {
    fn new(entry: &TreeEntry) -> KeyedTreeEntry {
        let mut key = escape_path(&entry.name);
        if entry.mode == GitMode::Directory {
            key.push('/');
        }
        KeyedTreeEntry { key, entry: entry.clone() }
    }
}

/// The data of one of the two snapshots outside of trees.
pub(super) struct ComparedCapture {
    pub(super) commit: ObjectId,
    pub(super) tree: ObjectId,
    pub(super) permissions: Permissions,
    /// The files whose blob is not their content, by path, sorted.
    forms: Vec<(Vec<u8>, FileForm)>,
}

impl ComparedCapture {
    pub(super) fn read(objects: &Objects, snapshot: &FilesystemSnapshot) -> Result<ComparedCapture> {
        let commit = objects.named(&snapshot.commit)?;
        let said = objects.said_len(commit, ObjectKind::Commit)?;
        if said > COMMIT_BYTES_MAX {
            let reason = format!("a commit of {said} bytes exceeds the limit of {COMMIT_BYTES_MAX} bytes");
            return Err(objects.damaged(commit, reason));
        }
        let Commit { tree, permissions } = Commit::read(objects, commit)?;
        let forms = snapshot.read_metadata(objects)?.map(Metadata::into_forms).unwrap_or_default();
        Ok(ComparedCapture { commit, tree, permissions, forms })
    }

    /// Returns the facts of a file in the snapshot, except its length.
    fn file(&self, path: &[u8], entry: &TreeEntry) -> File {
        let is_link = entry.mode == GitMode::Link;
        let at = self.forms.binary_search_by(|(other, _)| other.as_slice().cmp(path));
        File {
            kind: if is_link { FileKind::Link } else { FileKind::File },
            permissions: (!is_link).then(|| self.permissions.get(path, entry.mode)),
            form: at.ok().and_then(|at| self.forms.get(at)).map_or(FileForm::Whole, |(_, form)| *form),
            blob: entry.id,
        }
    }

    /// Returns whether the snapshot has data about a path below a directory that differ from those
    /// of most paths.
    fn is_any_told_below(&self, directory: &[u8]) -> bool {
        is_any_below(self.permissions.others(), |(path, _)| path, directory)
            || is_any_below(&self.forms, |(path, _)| path, directory)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct File {
    kind: FileKind,
    permissions: Option<u32>,
    form: FileForm,
    blob: ObjectId,
}

impl File {
    fn facts(self, objects: &Objects, path: &[u8]) -> Result<FileFacts> {
        let File { kind, permissions, form, blob } = self;
        let len = stored_len(objects, form, blob).map_err(|error| add_path(error, "file", path))?;
        Ok(FileFacts { kind, permissions, digest: blob.to_string(), len, form })
    }
}

/// Returns the length of a content according to its object.
pub(super) fn stored_len(objects: &Objects, form: FileForm, blob: ObjectId) -> Result<u64> {
    match form {
        FileForm::Sparse => Sparse::read(objects, blob).map(|(sparse, _)| sparse.length),
        FileForm::Shared => Shared::read(objects, blob).map(|shared| shared.length),
        FileForm::Whole | FileForm::Prefix => objects.said_len(blob, ObjectKind::Blob),
    }
}

/// Trees of one directory on both sides, of which one may be missing.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct TreePair {
    before: Option<ObjectId>,
    after: Option<ObjectId>,
}

pub(super) struct CaptureComparison<'a> {
    objects: &'a Objects,
    trees: &'a mut Trees,
    before: Option<&'a ComparedCapture>,
    after: &'a ComparedCapture,
    /// Paths whose permissions or form differ between the two, sorted.
    told_apart: Vec<&'a [u8]>,
    /// Whether the usual permissions of files differ between the two.
    usual_differs: bool,
    /// Pairs below which nothing differs, and whose paths have no other data.
    unchanged: HashSet<TreePair>,
    /// Memory of the entries of the open directories, in bytes.
    open_bytes: u64,
    take: &'a mut dyn FnMut(FileChange) -> Result<()>,
}

impl<'a> CaptureComparison<'a> {
    pub(super) fn new(
        objects: &'a Objects,
        trees: &'a mut Trees,
        before: Option<&'a ComparedCapture>,
        after: &'a ComparedCapture,
        take: &'a mut dyn FnMut(FileChange) -> Result<()>,
    ) -> CaptureComparison<'a> {
        let (mut told_apart, mut usual_differs) = (Vec::new(), false);
        if let Some(before) = before {
            let (was, is) = (&before.permissions, &after.permissions);
            told_apart.extend(apart(was.others(), is.others()).chain(apart(&before.forms, &after.forms)));
            told_apart.sort();
            usual_differs = !was.is_usual_same_for_files(is);
        }
        let unchanged = HashSet::new();
        CaptureComparison {
            objects,
            trees,
            before,
            after,
            told_apart,
            usual_differs,
            unchanged,
            open_bytes: 0,
            take,
        }
    }

    /// Walks through all directories that may differ, and passes the differences on.
    pub(super) fn run(mut self) -> Result<()> {
        let pair = TreePair { before: self.before.map(|side| side.tree), after: Some(self.after.tree) };
        self.directory(b"", pair).map(drop)
    }

    /// Compares a directory, and returns whether anything differs in it.
    fn directory(&mut self, path: &[u8], pair: TreePair) -> Result<bool> {
        let TreePair { before, after } = pair;
        if before == after && !self.usual_differs && !is_any_below(&self.told_apart, |path| path, path) {
            return Ok(false);
        }
        let sides = self.before.into_iter().chain([self.after]);
        let nothing_told = !sides.into_iter().any(|side| side.is_any_told_below(path));
        if nothing_told && self.unchanged.contains(&pair) {
            return Ok(false);
        }
        if is_too_deep(path) || path.len() > PATH_BYTES_MAX {
            return Err(self.too_deep(path, pair));
        }
        let mut read = |tree: Option<ObjectId>| match tree {
            Some(tree) => self.trees.lines(self.objects, tree, path),
            None => Ok((Vec::new(), 0)),
        };
        let ((before, before_bytes), (after, after_bytes)) = (read(before)?, read(after)?);
        let bytes = before_bytes + after_bytes;
        self.open_bytes += bytes;
        if self.open_bytes > OPEN_BYTES_MAX {
            return Err(self.too_deep(path, pair));
        }
        let differs = self.lines(path, before, after)?;
        self.open_bytes -= bytes;
        if nothing_told && !differs {
            if self.unchanged.len() >= UNCHANGED_MAX {
                self.unchanged.clear();
            }
            self.unchanged.insert(pair);
        }
        Ok(differs)
    }

    fn too_deep(&self, path: &[u8], pair: TreePair) -> Error {
        let shown: String = display_path(path).chars().take(1000).collect();
        self.objects.damaged(
            pair.after.or(pair.before).unwrap_or_default(),
            format!("too many nested directories, or too large ones, at `{shown}`"),
        )
    }

    fn lines(
        &mut self,
        directory: &[u8],
        before: Vec<KeyedTreeEntry>,
        after: Vec<KeyedTreeEntry>,
    ) -> Result<bool> {
        let (mut before, mut after) = (before.into_iter().peekable(), after.into_iter().peekable());
        let mut differs = false;
        loop {
            let order = match (before.peek(), after.peek()) {
                (None, None) => return Ok(differs),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(was), Some(is)) => was.key.cmp(&is.key),
            };
            let was = before.next_if(|_| order.is_le()).map(|line| line.entry);
            let is = after.next_if(|_| order.is_ge()).map(|line| line.entry);
            let Some(entry) = was.as_ref().or(is.as_ref()) else { return Ok(differs) };
            let path = join(directory, &entry.name);
            // A key distinguishes a directory from a file, so equal keys belong to two directories
            // or to two files.
            differs |= match entry.mode {
                GitMode::Directory => {
                    let pair = TreePair { before: was.map(|was| was.id), after: is.map(|is| is.id) };
                    self.directory(&path, pair)?
                }
                _ => self.file(&path, was.as_ref(), is.as_ref())?,
            };
        }
    }

    fn file(&mut self, path: &[u8], was: Option<&TreeEntry>, is: Option<&TreeEntry>) -> Result<bool> {
        let before = was.zip(self.before).map(|(entry, side)| side.file(path, entry));
        let after = is.map(|entry| self.after.file(path, entry));
        if before == after {
            return Ok(false);
        }
        let kind = match (before, after) {
            (None, _) => ChangeKind::Created,
            (_, None) => ChangeKind::Removed,
            _ => ChangeKind::Modified,
        };
        let facts = |file: Option<File>| file.map(|file| file.facts(self.objects, path)).transpose();
        let change =
            FileChange { path: escape_path(path), kind, before: facts(before)?, after: facts(after)? };
        (self.take)(change)?;
        Ok(true)
    }
}

/// Returns the paths that only one of two sorted lists has, or for which they have different
/// values.
fn apart<'a, T: PartialEq>(
    left: &'a [(Vec<u8>, T)],
    right: &'a [(Vec<u8>, T)],
) -> impl Iterator<Item = &'a [u8]> {
    let has = |list: &'a [(Vec<u8>, T)], (path, value): &(Vec<u8>, T)| {
        let at = list.binary_search_by(|(other, _)| other.cmp(path));
        at.ok().and_then(|at| list.get(at)).is_some_and(|(_, other)| other == value)
    };
    let of_left = left.iter().filter(move |line| !has(right, line));
    let of_right = right.iter().filter(move |line| !has(left, line));
    of_left.chain(of_right).map(|(path, _)| path.as_slice())
}

fn is_any_below<T>(list: &[T], path: impl Fn(&T) -> &[u8], directory: &[u8]) -> bool {
    let below = if directory.is_empty() { Vec::new() } else { [directory, b"/"].concat() };
    let at = list.partition_point(|one| path(one) < below.as_slice());
    list.get(at).is_some_and(|one| path(one).starts_with(&below))
}

/// Adds the path of the object's file or directory in the workspace to an error.
fn add_path(error: Error, what: &str, path: &[u8]) -> Error {
    match error {
        Error::Object { path: object, reason } => {
            Error::Object { path: object, reason: format!("the {what} `{}`: {reason}", display_path(path)) }
        }
        error => error,
    }
}

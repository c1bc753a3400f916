//! The contents of a workspace: the walk's result, the stat cache, and the data of a snapshot, in
//! one form.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use nix::libc;
use nix::sys::stat::FileStat as SystemStat;
use serde::{Deserialize, Serialize};

use super::objects::ObjectId;
pub(super) use crate::FileKind;
use crate::path::DEPTH_MAX;

/// The system's metadata of a file, as far as they change with the file's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stat {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) mode: u32,
    pub(super) owner: Owner,
    /// Number of names of the file, in the workspace or outside.
    pub(super) names: u32,
    pub(super) len: u64,
    pub(super) modified_ns: i64,
    pub(super) changed_ns: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) struct Owner {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

impl From<&SystemStat> for Stat {
    fn from(stat: &SystemStat) -> Stat {
        let ns = |s: i64, ns: i64| s.saturating_mul(1_000_000_000).saturating_add(ns);
        Stat {
            device: stat.st_dev,
            inode: stat.st_ino,
            mode: stat.st_mode,
            owner: Owner { uid: stat.st_uid, gid: stat.st_gid },
            names: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
            len: u64::try_from(stat.st_size).unwrap_or(0),
            modified_ns: ns(stat.st_mtime, stat.st_mtime_nsec),
            changed_ns: ns(stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

impl Stat {
    /// For entries that could not be examined: no entry ever has this state.
    pub(super) const UNKNOWN: Stat = Stat {
        device: 0,
        inode: 0,
        mode: 0,
        owner: Owner { uid: 0, gid: 0 },
        names: 0,
        len: 0,
        modified_ns: 0,
        changed_ns: 0,
    };

    pub(super) fn kind(&self) -> FileKind {
        match self.mode & libc::S_IFMT {
            libc::S_IFREG => FileKind::File,
            libc::S_IFLNK => FileKind::Link,
            libc::S_IFDIR => FileKind::Directory,
            _ => FileKind::Special,
        }
    }

    pub(super) fn permissions(&self) -> u32 {
        self.mode & 0o7777
    }
}

#[derive(Debug)]
pub(super) struct ManifestDirectory {
    pub(super) stat: Stat,
    pub(super) attributes: Attributes,
    /// The time of the last change at which the attributes were as they are here; 0 if they have to
    /// be read again. It is separate from `stat`, since the attributes can prove to be the same
    /// after a change of something else.
    pub(super) checked_ns: AtomicI64,
    /// The tree object for the directory, unless it is unknown or was collected.
    pub(super) tree: ObjectId,
    /// The object of the times of everything in the tree, unless it is unknown or was not
    /// requested.
    pub(super) times: ObjectId,
    /// In the order of the system's listing, in which the next walk will most likely find them
    /// again.
    pub(super) entries: Vec<ManifestEntry>,
    /// Number of files and links in the directory and below.
    pub(super) files: u64,
}

impl ManifestDirectory {
    /// Returns whether all files and links are unchanged, as far as their times and lengths show.
    pub(super) fn is_as(self: &Arc<ManifestDirectory>, before: &Arc<ManifestDirectory>) -> bool {
        if Arc::ptr_eq(self, before) {
            return true;
        }
        let captured =
            |entry: &&ManifestEntry| matches!(entry.node, ManifestNode::Leaf(_) | ManifestNode::Directory(_));
        let found = before.entries.iter().filter(captured).map(|entry| (&*entry.name, &entry.node));
        let mut found: HashMap<&[u8], &ManifestNode> = found.collect();
        let as_before = |entry: &ManifestEntry| match (&entry.node, found.remove(&*entry.name)) {
            (ManifestNode::Leaf(now), Some(ManifestNode::Leaf(before))) => now.stat == before.stat,
            (ManifestNode::Directory(now), Some(ManifestNode::Directory(before))) => now.is_as(before),
            _ => false,
        };
        self.entries.iter().filter(captured).all(as_before) && found.is_empty()
    }
}

/// Extended attributes, sorted by their names; `None` if there are none.
pub(super) type Attributes = Option<Arc<Vec<(Vec<u8>, Vec<u8>)>>>;

#[derive(Clone, Debug)]
pub(super) struct ManifestEntry {
    pub(super) name: Arc<[u8]>,
    pub(super) node: ManifestNode,
}

#[derive(Clone, Debug)]
pub(super) enum ManifestNode {
    /// A file or a link.
    Leaf(Leaf),
    Directory(Arc<ManifestDirectory>),
    /// A pipe, a socket or a device.
    Special,
    /// A mount point, in the walk of a restore: its contents do not belong to the workspace.
    Mount,
}

#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub(super) stat: Stat,
    /// Its extended attributes, if its content is known.
    pub(super) attributes: Attributes,
    pub(super) form: FileForm,
    /// Its content, unless it is unknown or was collected.
    pub(super) blob: ObjectId,
    /// Whether it may change once more without a change of its times.
    pub(super) racy: bool,
}

/// Names the forms in which a snapshot's object stores the content of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileForm {
    /// The object is the content.
    #[default]
    Whole,
    /// The file has holes: the object lists the ranges of data, and names the object with the data.
    Sparse,
    /// The file was appended to while the snapshot was taken: the object is a prefix of the
    /// content.
    Prefix,
    /// The object describes the content, which is in a separate file that shares blocks with the
    /// captured one.
    Shared,
}

impl FileForm {
    pub(super) fn is_whole(&self) -> bool {
        matches!(self, FileForm::Whole)
    }
}

impl ManifestDirectory {
    pub(super) fn new(
        stat: Stat,
        attributes: Attributes,
        tree: ObjectId,
        entries: Vec<ManifestEntry>,
    ) -> ManifestDirectory {
        let files = entries.iter().map(|entry| entry.node.files()).sum();
        let checked_ns = AtomicI64::new(0);
        ManifestDirectory { stat, attributes, checked_ns, tree, times: ObjectId::UNKNOWN, entries, files }
    }
}

impl Leaf {
    /// A leaf with known metadata and unknown content.
    pub(super) fn unread(stat: Stat) -> Leaf {
        Leaf { stat, attributes: None, form: FileForm::Whole, blob: ObjectId::UNKNOWN, racy: true }
    }
}

impl ManifestNode {
    fn files(&self) -> u64 {
        match self {
            ManifestNode::Directory(directory) => directory.files,
            ManifestNode::Leaf(_) => 1,
            ManifestNode::Special | ManifestNode::Mount => 0,
        }
    }

    pub(super) fn git_mode(&self) -> GitMode {
        match self {
            ManifestNode::Directory(_) => GitMode::Directory,
            ManifestNode::Leaf(leaf) if leaf.stat.kind() == FileKind::Link => GitMode::Link,
            ManifestNode::Leaf(leaf) => GitMode::of_file(leaf.stat.permissions()),
            ManifestNode::Special | ManifestNode::Mount => GitMode::File,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GitMode {
    Directory,
    File,
    Executable,
    Link,
}

impl GitMode {
    pub(super) fn of_file(permissions: u32) -> GitMode {
        if permissions & 0o100 == 0 { GitMode::File } else { GitMode::Executable }
    }

    fn text(self) -> &'static str {
        match self {
            GitMode::Directory => "40000",
            GitMode::File => "100644",
            GitMode::Executable => "100755",
            GitMode::Link => "120000",
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct TreeEntry {
    pub(super) mode: GitMode,
    pub(super) name: Arc<[u8]>,
    pub(super) id: ObjectId,
}

/// Returns a directory's entries in the order of its tree object, with their modes there.
pub(super) fn in_order(entries: &[ManifestEntry]) -> Vec<(GitMode, &ManifestEntry)> {
    let mut ordered: Vec<_> = entries.iter().map(|entry| (entry.node.git_mode(), entry)).collect();
    ordered.sort_by(|(left_mode, left), (right_mode, right)| {
        line_key(*left_mode, &left.name).cmp(line_key(*right_mode, &right.name))
    });
    ordered
}

/// Returns the bytes by which Git sorts the lines of a tree object: a directory sorts as if its
/// name ended in a slash.
fn line_key(mode: GitMode, name: &[u8]) -> impl Iterator<Item = u8> + '_ {
    name.iter().copied().chain((mode == GitMode::Directory).then_some(b'/'))
}

/// Encodes the tree object of a directory from its ordered entries.
pub(super) fn encode_tree(ordered: &[(GitMode, &ManifestEntry)]) -> (Vec<u8>, Vec<TreeEntry>) {
    let line = |(mode, entry): &(GitMode, &ManifestEntry)| {
        let id = match &entry.node {
            ManifestNode::Directory(directory) => directory.tree,
            ManifestNode::Leaf(leaf) => leaf.blob,
            ManifestNode::Special | ManifestNode::Mount => ObjectId::UNKNOWN,
        };
        TreeEntry { mode: *mode, name: Arc::clone(&entry.name), id }
    };
    let lines: Vec<TreeEntry> = ordered.iter().map(line).collect();
    (encode_lines(&lines), lines)
}

pub(super) fn sort_lines<T>(lines: &mut [(TreeEntry, T)]) {
    lines.sort_by(|(left, _), (right, _)| {
        line_key(left.mode, &left.name).cmp(line_key(right.mode, &right.name))
    });
}

/// Encodes the tree object of these lines, which are in order.
pub(super) fn encode_lines<'a>(lines: impl IntoIterator<Item = &'a TreeEntry>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in lines {
        bytes.extend_from_slice(line.mode.text().as_bytes());
        bytes.push(b' ');
        bytes.extend_from_slice(&line.name);
        bytes.push(0);
        bytes.extend_from_slice(&line.id.0);
    }
    bytes
}

/// Reads a tree object. A name that would lead out of its directory, or into a `.git`, counts as
/// damage.
pub(super) fn decode_tree(bytes: &[u8]) -> Option<Vec<TreeEntry>> {
    let mut lines = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let space = rest.iter().position(|byte| *byte == b' ')?;
        let (mode, after) = rest.split_at_checked(space)?;
        let nul = after.iter().position(|byte| *byte == 0)?;
        let name = after.get(1..nul)?;
        let (id, after) = after.get(nul + 1..)?.split_first_chunk()?;
        let mode = [GitMode::Directory, GitMode::File, GitMode::Executable, GitMode::Link]
            .into_iter()
            .find(|known| known.text().as_bytes() == mode)?;
        if matches!(name, b"" | b"." | b".." | b".git") || name.contains(&b'/') {
            return None;
        }
        lines.push(TreeEntry { mode, name: Arc::from(name), id: ObjectId(*id) });
        rest = after;
    }
    Some(lines)
}

/// The permissions of everything in a workspace, of which git's trees store one bit: the usual
/// ones, and each path that has others.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Permissions {
    directory: u32,
    file: u32,
    executable: u32,
    /// By path, sorted; the root's is empty.
    others: Vec<(Vec<u8>, u32)>,
}

const PERMISSIONS_HEAD: &str = "foldlog-permissions 1";

impl Permissions {
    pub(super) fn from_manifest(root: &ManifestDirectory) -> Permissions {
        let mut counts = [ValueCounts::default(), ValueCounts::default(), ValueCounts::default()];
        visit(root, &mut |found| {
            let Some(permissions) = found.permissions() else { return };
            if let Some(counts) = counts.get_mut(class(found.mode)) {
                counts.add(permissions);
            }
        });
        let [directory, file, executable] = counts.map(|counts| counts.most());
        let mut all = Permissions { directory, file, executable, others: Vec::new() };
        let mut others = Vec::new();
        visit(root, &mut |found| {
            if let Some(permissions) = found.permissions()
                && permissions != all.usual(found.mode)
            {
                others.push((found.path(), permissions));
            }
        });
        others.sort();
        all.others = others;
        all
    }

    /// Returns the permissions of these paths, with the same usual ones. The paths are sorted, each
    /// with its permissions.
    pub(super) fn with_others(&self, paths: impl Iterator<Item = (Vec<u8>, GitMode, u32)>) -> Permissions {
        let others = paths.filter(|(_, mode, permissions)| *permissions != self.usual(*mode));
        let others = others.map(|(path, _, permissions)| (path, permissions)).collect();
        Permissions { others, ..self.clone() }
    }

    /// Returns the paths with unusual permissions, sorted; the root's is empty.
    pub(super) fn others(&self) -> &[(Vec<u8>, u32)] {
        &self.others
    }

    /// Returns whether most files have the same permissions on both sides. A side without
    /// executables has 0 for them.
    pub(super) fn is_usual_same_for_files(&self, other: &Permissions) -> bool {
        let (was, is) = (self.executable, other.executable);
        self.file == other.file && (was == is || was == 0 || is == 0)
    }

    fn usual(&self, mode: GitMode) -> u32 {
        match mode {
            GitMode::Directory => self.directory,
            GitMode::File | GitMode::Link => self.file,
            GitMode::Executable => self.executable,
        }
    }

    pub(super) fn get(&self, path: &[u8], mode: GitMode) -> u32 {
        match self.others.binary_search_by(|(other, _)| other.as_slice().cmp(path)) {
            Ok(at) => self.others.get(at).map_or(0, |(_, permissions)| *permissions),
            Err(_) => self.usual(mode),
        }
    }

    /// Encodes them as lines of text, with each byte of a path that is not plain as `\xNN`.
    pub(super) fn encode(&self, text: &mut String) {
        let Permissions { directory, file, executable, others } = self;
        let _ = writeln!(
            text,
            "{PERMISSIONS_HEAD}\nfolder {directory:o}\nfile {file:o}\nexecutable {executable:o}"
        );
        for (path, permissions) in others {
            let _ = writeln!(text, "{permissions:o} ./{}", escape_path(path));
        }
    }

    pub(super) fn decode(text: &str) -> Option<Permissions> {
        let mut lines = text.lines();
        if lines.next()? != PERMISSIONS_HEAD {
            return None;
        }
        let octal = |text: &str| u32::from_str_radix(text, 8).ok().filter(|found| *found <= 0o7777);
        let mut usual = |name: &str| octal(lines.next()?.strip_prefix(name)?.strip_prefix(' ')?);
        let (directory, file, executable) = (usual("folder")?, usual("file")?, usual("executable")?);
        let mut others = Vec::new();
        for line in lines {
            let (permissions, path) = line.split_once(' ')?;
            others.push((unescape_path(path.strip_prefix("./")?)?, octal(permissions)?));
        }
        others.is_sorted_by(|left, right| left.0 < right.0).then_some(Permissions {
            directory,
            file,
            executable,
            others,
        })
    }
}

fn class(mode: GitMode) -> usize {
    match mode {
        GitMode::Directory => 0,
        GitMode::File | GitMode::Link => 1,
        GitMode::Executable => 2,
    }
}

/// Counts the occurrences of a few values.
pub(super) struct ValueCounts<T>(Vec<(T, u64)>);

impl<T> Default for ValueCounts<T> {
    fn default() -> ValueCounts<T> {
        ValueCounts(Vec::new())
    }
}

impl<T: Ord + Copy + Default> ValueCounts<T> {
    pub(super) fn add(&mut self, value: T) {
        match self.0.iter_mut().find(|(known, _)| *known == value) {
            Some((_, count)) => *count += 1,
            None => self.0.push((value, 1)),
        }
    }

    /// Returns the smallest of the most frequent values, so that the result does not depend on the
    /// order of insertion.
    pub(super) fn most(self) -> T {
        self.0
            .into_iter()
            .max_by_key(|(value, count)| (*count, std::cmp::Reverse(*value)))
            .map_or(T::default(), |(value, _)| value)
    }
}

/// An entry of a workspace, or its root, whose directory and name are both empty.
pub(super) struct VisitedNode<'a> {
    pub(super) mode: GitMode,
    directory: &'a [u8],
    name: &'a [u8],
    pub(super) stat: &'a Stat,
    pub(super) attributes: &'a Attributes,
    pub(super) form: FileForm,
}

impl VisitedNode<'_> {
    pub(super) fn path(&self) -> Vec<u8> {
        join(self.directory, self.name)
    }

    /// Links have none.
    fn permissions(&self) -> Option<u32> {
        (self.mode != GitMode::Link).then(|| self.stat.permissions())
    }
}

pub(super) fn visit(root: &ManifestDirectory, show: &mut dyn FnMut(&VisitedNode<'_>)) {
    let of_directory = |found: &ManifestDirectory,
                        directory: &[u8],
                        name: &[u8],
                        show: &mut dyn FnMut(&VisitedNode<'_>)| {
        let (mode, form) = (GitMode::Directory, FileForm::Whole);
        show(&VisitedNode { mode, directory, name, stat: &found.stat, attributes: &found.attributes, form });
    };
    of_directory(root, b"", b"", show);
    let mut left: Vec<(Vec<u8>, &ManifestDirectory)> = vec![(Vec::new(), root)];
    while let Some((path, directory)) = left.pop() {
        for entry in &directory.entries {
            match &entry.node {
                ManifestNode::Directory(child) => {
                    of_directory(child, &path, &entry.name, show);
                    left.push((join(&path, &entry.name), child));
                }
                ManifestNode::Leaf(leaf) => {
                    let Leaf { stat, attributes, form, .. } = leaf;
                    let mode = entry.node.git_mode();
                    show(&VisitedNode {
                        mode,
                        directory: &path,
                        name: &entry.name,
                        stat,
                        attributes,
                        form: *form,
                    });
                }
                ManifestNode::Special | ManifestNode::Mount => {}
            }
        }
    }
}

pub(super) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory {
        [] => name.to_vec(),
        directory => [directory, b"/", name].concat(),
    }
}

pub(super) fn is_too_deep(path: &[u8]) -> bool {
    path.iter().filter(|byte| **byte == b'/').count() >= DEPTH_MAX
}

/// Formats a path as text that can be read back: bytes that are neither printable nor UTF-8 appear
/// as `\xNN`.
pub fn escape_path(path: &[u8]) -> String {
    let mut text = String::new();
    for chunk in path.utf8_chunks() {
        for found in chunk.valid().chars() {
            if found == '\\' || found.is_control() || found == '\u{2028}' || found == '\u{2029}' {
                let mut buffer = [0; 4];
                for byte in found.encode_utf8(&mut buffer).bytes() {
                    let _ = write!(text, "\\x{byte:02x}");
                }
            } else {
                text.push(found);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Parses the text of [`escape_path`]. Returns `None` if it has another escape.
pub fn unescape_path(text: &str) -> Option<Vec<u8>> {
    let mut path = Vec::new();
    let mut rest = text;
    while let Some((plain, escaped)) = rest.split_once('\\') {
        path.extend_from_slice(plain.as_bytes());
        let (digits, after) = escaped.strip_prefix('x')?.split_at_checked(2)?;
        path.push(u8::from_str_radix(digits, 16).ok()?);
        rest = after;
    }
    path.extend_from_slice(rest.as_bytes());
    Some(path)
}

/// Formats a path for a message; the root is `.`.
pub(super) fn display_path(path: &[u8]) -> String {
    if path.is_empty() { ".".to_owned() } else { escape_path(path) }
}

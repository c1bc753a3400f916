//! Tree objects and commits, with a cache of trees.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::leave_out::LeaveOut;
use super::manifest::{
    FileForm, GitMode, Permissions, TreeEntry, decode_tree, display_path, is_too_deep, join,
};
use super::metadata::Metadata;
use super::objects::{ObjectId, ObjectKind, Objects, STRUCTURE_BYTES_MAX, len};
use super::plan::CapturedDirectory;
use super::rules::{GITIGNORE, GITIGNORE_BYTES_MAX};
use super::sparse::Sparse;
use super::times::{EntryTime, Times};
use crate::error::{Error, Result};

/// Greatest memory for cached trees, in bytes.
const HELD_BYTES_MAX: u64 = 256 << 20;
/// Approximate memory of a line in addition to its name, in bytes.
pub(super) const LINE_BYTES: u64 = 160;

/// Takes a path whose entries differ between two trees, with the directories there.
type ShowDifference<'s> = dyn FnMut(&[u8], [Option<ObjectId>; 2]) + 's;

/// Trees by name. They are immutable, so the cache stays valid.
pub(super) struct Trees {
    held: HashMap<ObjectId, Arc<[TreeEntry]>>,
    /// Memory of the cached trees.
    bytes: u64,
    tree_bytes_max: u64,
}

impl Default for Trees {
    fn default() -> Trees {
        Trees::bounded(STRUCTURE_BYTES_MAX)
    }
}

impl Trees {
    /// Refuses trees of more bytes.
    pub(super) fn bounded(tree_bytes_max: u64) -> Trees {
        Trees { held: HashMap::new(), bytes: 0, tree_bytes_max }
    }

    pub(super) fn hold(&mut self, id: ObjectId, lines: Vec<TreeEntry>) -> Arc<[TreeEntry]> {
        let bytes: u64 = lines.iter().map(|line| LINE_BYTES + 2 * len(&line.name)).sum();
        if self.bytes + bytes > HELD_BYTES_MAX {
            self.forget();
        }
        let lines: Arc<[TreeEntry]> = Arc::from(lines);
        if self.held.insert(id, Arc::clone(&lines)).is_none() {
            self.bytes += bytes;
        }
        lines
    }

    pub(super) fn forget(&mut self) {
        *self = Trees::bounded(self.tree_bytes_max);
    }

    /// Returns the lines of a tree. The directory's path is only for the error.
    pub(super) fn get(&mut self, objects: &Objects, id: ObjectId, path: &[u8]) -> Result<Arc<[TreeEntry]>> {
        if let Some(lines) = self.held.get(&id) {
            return Ok(Arc::clone(lines));
        }
        let damaged = |reason: String| objects.damaged(id, reason);
        if is_too_deep(path) {
            return Err(damaged(format!("too many nested directories at `{}`", display_path(path))));
        }
        let bytes = objects.read(id, ObjectKind::Tree, self.tree_bytes_max).map_err(|error| match error {
            Error::Object { path: file, reason } => Error::Object {
                path: file,
                reason: format!("the directory `{}`: {reason}", display_path(path)),
            },
            error => error,
        })?;
        let lines = decode_tree(&bytes).ok_or_else(|| {
            damaged(format!("the directory `{}` is not a tree of a snapshot", display_path(path)))
        })?;
        Ok(self.hold(id, lines))
    }

    /// Finds the entry at a path below a directory, and its time if the directory has times.
    pub(super) fn find(
        &mut self,
        objects: &Objects,
        root: CapturedDirectory,
        path: &[u8],
    ) -> Result<Option<(TreeEntry, Option<EntryTime>)>> {
        let (mut around, mut found) = (root, None);
        for name in path.split(|byte| *byte == b'/') {
            let lines = self.get(objects, around.tree, path)?;
            let Some((at, line)) = lines.iter().enumerate().find(|(_, line)| *line.name == *name) else {
                return Ok(None);
            };
            let times = around.times.map(|times| Times::read(objects, times, &lines)).transpose()?;
            let time = times.and_then(|times| times.lines.get(at).copied());
            around = CapturedDirectory { tree: line.id, times: time.and_then(EntryTime::directory) };
            found = Some((line.clone(), time));
        }
        Ok(found)
    }

    pub(super) fn sparse_data(
        &mut self,
        objects: &Objects,
        root: ObjectId,
        metadata: &Metadata,
    ) -> Result<Vec<ObjectId>> {
        let sparse = self.of_form(objects, root, metadata, FileForm::Sparse)?;
        sparse.into_iter().map(|id| Sparse::read(objects, id).map(|(_, data)| data)).collect()
    }

    /// Returns the blobs of the files of a form.
    pub(super) fn of_form(
        &mut self,
        objects: &Objects,
        root: ObjectId,
        metadata: &Metadata,
        form: FileForm,
    ) -> Result<Vec<ObjectId>> {
        let root = CapturedDirectory { tree: root, times: None };
        let found = metadata.of_form(form).map(|path| self.find(objects, root, path));
        found.filter_map(|found| found.map(|found| found.map(|(line, _)| line.id)).transpose()).collect()
    }

    /// Reads the times of a directory and of those below it for which `is_new` returns `true`.
    pub(super) fn times(
        &mut self,
        objects: &Objects,
        root: CapturedDirectory,
        is_new: &mut dyn FnMut(ObjectId) -> bool,
    ) -> Result<()> {
        let mut left = vec![(Vec::new(), root)];
        while let Some((path, CapturedDirectory { tree, times })) = left.pop() {
            let Some(times) = times.filter(|times| is_new(*times)) else { continue };
            let lines = self.get(objects, tree, &path)?;
            let times = Times::read(objects, times, &lines)?;
            for (line, time) in lines.iter().zip(times.lines) {
                if let EntryTime::Directory(times) = time {
                    left.push((
                        join(&path, &line.name),
                        CapturedDirectory { tree: line.id, times: Some(times) },
                    ));
                }
            }
        }
        Ok(())
    }

    /// Calls a function for every object below a tree, with its path, directories before their
    /// contents. With `once`, skips a tree that was visited at another path already.
    pub(super) fn visit(
        &mut self,
        objects: &Objects,
        root: ObjectId,
        once: Option<&mut HashSet<ObjectId>>,
        show: &mut dyn FnMut(&TreeEntry, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut seen = once;
        let mut left = vec![(Vec::new(), root)];
        while let Some((path, tree)) = left.pop() {
            if let Some(seen) = &mut seen
                && !seen.insert(tree)
            {
                continue;
            }
            for line in self.get(objects, tree, &path)?.iter() {
                let path = join(&path, &line.name);
                show(line, &path)?;
                if line.mode == GitMode::Directory {
                    left.push((path, line.id));
                }
            }
        }
        Ok(())
    }

    /// Returns the lines of a tree, which all have different names.
    pub(super) fn distinct(
        &mut self,
        objects: &Objects,
        id: ObjectId,
        path: &[u8],
    ) -> Result<Arc<[TreeEntry]>> {
        let lines = self.get(objects, id, path)?;
        let mut names = HashSet::with_capacity(lines.len());
        if let Some(twice) = lines.iter().find(|line| !names.insert(&*line.name)) {
            let (path, twice) = (display_path(path), display_path(&twice.name));
            return Err(objects.damaged(id, format!("the directory `{path}`: it contains `{twice}` twice")));
        }
        Ok(lines)
    }

    /// Calls a function for each path whose entries differ between two trees, directories before their
    /// contents, with the directories there.
    pub(super) fn compare(
        &mut self,
        objects: &Objects,
        trees: [ObjectId; 2],
        show: &mut ShowDifference<'_>,
    ) -> Result<()> {
        let mut left = vec![(Vec::new(), trees.map(Some))];
        while let Some((path, trees)) = left.pop() {
            let mut inside: BTreeMap<Arc<[u8]>, [Option<TreeEntry>; 2]> = BTreeMap::new();
            for (side, tree) in trees.into_iter().enumerate() {
                let lines = tree.map_or(Ok(Arc::default()), |tree| self.distinct(objects, tree, &path))?;
                for line in lines.iter() {
                    if let Some(place) = inside.entry(Arc::clone(&line.name)).or_default().get_mut(side) {
                        *place = Some(line.clone());
                    }
                }
            }
            for (name, sides) in inside {
                let [was, is] = sides.each_ref().map(|line| line.as_ref().map(|line| (line.mode, line.id)));
                if was == is {
                    continue;
                }
                let path = join(&path, &name);
                let directories = [was, is].map(|line| line.filter(|(mode, _)| *mode == GitMode::Directory));
                let directories = directories.map(|line| line.map(|(_, id)| id));
                show(&path, directories);
                if directories != [None, None] {
                    left.push((path, directories));
                }
            }
        }
        Ok(())
    }

    /// Returns the leave-out lists in a snapshot, by directory.
    pub(super) fn gitignores(
        &mut self,
        objects: &Objects,
        root: ObjectId,
    ) -> Result<HashMap<Vec<u8>, LeaveOut>> {
        let mut lists = HashMap::new();
        self.visit(objects, root, None, &mut |line, path| {
            if &*line.name == GITIGNORE && matches!(line.mode, GitMode::File | GitMode::Executable) {
                let bytes = objects.read(line.id, ObjectKind::Blob, GITIGNORE_BYTES_MAX)?;
                let directory = path.strip_suffix(GITIGNORE).unwrap_or_default();
                lists.insert(
                    directory.strip_suffix(b"/").unwrap_or(directory).to_vec(),
                    LeaveOut::of_file(&bytes),
                );
            }
            Ok(())
        })?;
        Ok(lists)
    }
}

/// A snapshot's commit. It has no parents, so that it can be kept without earlier ones; and no
/// time, so that the same content always has the same commit.
pub(super) struct Commit {
    pub(super) tree: ObjectId,
    pub(super) permissions: Permissions,
}

const PERSON: &str = "foldlog <foldlog@localhost> 0 +0000";
const UNTAGGED: &str = "workspace snapshot";

pub(super) fn encode_commit(tree: ObjectId, permissions: &Permissions, tag: Option<&str>) -> String {
    let tag = match tag {
        // Git removes an empty first line.
        None | Some("") => UNTAGGED.to_owned(),
        Some(tag) => display_path(tag.as_bytes()),
    };
    let mut text = format!("tree {tree}\nauthor {PERSON}\ncommitter {PERSON}\n\n{tag}\n\n");
    permissions.encode(&mut text);
    text
}

impl Commit {
    pub(super) fn read(objects: &Objects, id: ObjectId) -> Result<Commit> {
        let bytes = objects.read(id, ObjectKind::Commit, STRUCTURE_BYTES_MAX)?;
        Commit::decode(&bytes)
            .ok_or_else(|| objects.damaged(id, "it is not a commit of a workspace snapshot"))
    }

    fn decode(bytes: &[u8]) -> Option<Commit> {
        let text = std::str::from_utf8(bytes).ok()?;
        let tree = ObjectId::parse(text.strip_prefix("tree ")?.split_once('\n')?.0)?;
        let (_, message) = text.split_once("\n\n")?;
        let (_, permissions) = message.split_once("\n\n")?;
        Some(Commit { tree, permissions: Permissions::decode(permissions)? })
    }
}

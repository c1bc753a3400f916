//! Tree objects and commits, with a cache of trees.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::leave_out::LeaveOut;
use super::manifest::{
    FileForm, GitMode, Permissions, TreeEntry, decode_tree, display_path, is_too_deep, join,
};
use super::metadata::Metadata;
use super::objects::{ObjectId, ObjectKind, Objects, STRUCTURE_BYTES_MAX};
use super::plan::CapturedDirectory;
use super::rules::{GITIGNORE, GITIGNORE_BYTES_MAX};
use super::sparse::Sparse;
use super::times::{EntryTime, Times};
use crate::error::{Error, Result};

/// Greatest number of cached lines, over all trees.
const LINES_MAX: usize = 1 << 20;

/// Trees by name. They are immutable, so the cache stays valid.
#[derive(Default)]
pub(super) struct Trees {
    held: HashMap<ObjectId, Arc<[TreeEntry]>>,
    lines: usize,
}

impl Trees {
    pub(super) fn hold(&mut self, id: ObjectId, lines: Vec<TreeEntry>) -> Arc<[TreeEntry]> {
        self.lines += lines.len();
        if self.lines > LINES_MAX {
            self.held.clear();
            self.lines = lines.len();
        }
        let lines: Arc<[TreeEntry]> = Arc::from(lines);
        if let Some(before) = self.held.insert(id, Arc::clone(&lines)) {
            self.lines -= before.len().min(self.lines);
        }
        lines
    }

    pub(super) fn forget(&mut self) {
        *self = Trees::default();
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
        let bytes = objects.read(id, ObjectKind::Tree, STRUCTURE_BYTES_MAX).map_err(|error| match error {
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

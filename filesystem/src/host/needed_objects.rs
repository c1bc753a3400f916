//! The objects that snapshots need.

use std::collections::HashSet;

use super::FilesystemSnapshot;
use super::manifest::{GitMode, join};
use super::metadata::Metadata;
use super::objects::{ObjectId, ObjectKind, Objects};
use super::plan::CapturedDirectory;
use super::repositories::Repositories;
use super::trees::{Commit, Trees};
use crate::error::Result;

/// The objects that the added snapshots need.
#[derive(Default)]
pub(super) struct NeededObjects {
    /// If a tree is one of them, so is everything beneath it.
    ids: HashSet<ObjectId>,
    /// Objects with times and lists of repositories. A file may have the content of one, and does not
    /// need the objects that it names.
    lists: HashSet<ObjectId>,
    /// Commits and metadata of the snapshots that were added completely.
    whole: HashSet<(ObjectId, ObjectId)>,
    pub(super) trees: Trees,
}

impl NeededObjects {
    /// Adds the objects that a snapshot needs. Returns those that were not added before, each after
    /// the objects that it names.
    pub(super) fn add(
        &mut self,
        objects: &Objects,
        snapshot: &FilesystemSnapshot,
    ) -> Result<Vec<(ObjectId, ObjectKind)>> {
        let named = |name: &Option<String>| name.as_ref().map(|name| objects.named(name)).transpose();
        let commit = objects.named(&snapshot.commit)?;
        let (metadata, repositories) = (named(&snapshot.metadata)?, named(&snapshot.repositories)?);
        let left_out_by = named(&snapshot.left_out_by)?;
        let mut found = Vec::new();
        if !self.whole.contains(&(commit, metadata.unwrap_or_default())) {
            let tree = self.commit(objects, commit, &mut found)?;
            if let Some(metadata) = metadata {
                self.metadata(objects, metadata, tree, &mut found)?;
            }
        }
        if let Some(left_out_by) = left_out_by {
            self.commit(objects, left_out_by, &mut found)?;
        }
        if let Some(repositories) = repositories.filter(|id| !self.lists.contains(id)) {
            self.blobs(Repositories::read(objects, repositories)?.copies(), &mut found);
            self.lists.insert(repositories);
            found.push((repositories, ObjectKind::Blob));
        }
        self.whole.insert((commit, metadata.unwrap_or_default()));
        Ok(found)
    }

    /// Finds a commit and everything beneath it, and returns its tree.
    fn commit(
        &mut self,
        objects: &Objects,
        id: ObjectId,
        found: &mut Vec<(ObjectId, ObjectKind)>,
    ) -> Result<ObjectId> {
        let root = Commit::read(objects, id)?.tree;
        let mut left = vec![(Vec::new(), root)];
        while let Some((path, tree)) = left.pop() {
            if !self.ids.insert(tree) {
                continue;
            }
            for line in self.trees.get(objects, tree, &path)?.iter() {
                match line.mode {
                    GitMode::Directory => left.push((join(&path, &line.name), line.id)),
                    GitMode::File | GitMode::Executable | GitMode::Link => self.blobs([line.id], found),
                }
            }
            found.push((tree, ObjectKind::Tree));
        }
        if self.ids.insert(id) {
            found.push((id, ObjectKind::Commit));
        }
        Ok(root)
    }

    /// Finds the metadata of a commit's files, and the data of its files with holes.
    fn metadata(
        &mut self,
        objects: &Objects,
        id: ObjectId,
        tree: ObjectId,
        found: &mut Vec<(ObjectId, ObjectKind)>,
    ) -> Result<()> {
        let metadata = Metadata::read(objects, id)?;
        let data = self.trees.sparse_data(objects, tree, &metadata)?;
        self.blobs(data, found);
        let root = CapturedDirectory { tree, times: metadata.times };
        self.trees.times(objects, root, &mut |times| {
            let is_new = self.lists.insert(times);
            found.extend(is_new.then_some((times, ObjectKind::Blob)));
            is_new
        })?;
        self.blobs([id], found);
        Ok(())
    }

    fn blobs(&mut self, ids: impl IntoIterator<Item = ObjectId>, found: &mut Vec<(ObjectId, ObjectKind)>) {
        let missing = ids.into_iter().filter(|id| self.ids.insert(*id));
        found.extend(missing.map(|id| (id, ObjectKind::Blob)));
    }

    pub(super) fn with_trees(trees: Trees) -> NeededObjects {
        NeededObjects { trees, ..NeededObjects::default() }
    }

    pub(super) fn count(&self) -> usize {
        self.ids.len() + self.lists.len()
    }

    pub(super) fn into_ids(mut self) -> HashSet<ObjectId> {
        self.ids.extend(self.lists);
        self.ids
    }
}

//! Removes from the store what no snapshot needs any more.

use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::manifest::{Folder, Node};
use super::metadata::Metadata;
use super::objects::ObjectId;
use super::plan::Then;
use super::state::CACHE;
use super::trees::Commit;
use super::{FilesystemSnapshot, HostFilesystem};
use crate::error::{Error, Result};

/// The file that each collection replaces, so that others forget what they know of the store.
const COLLECTED: &str = "collected";

impl HostFilesystem {
    /// Removes from the store every object that none of the snapshots `keep` needs, and returns the number of objects
    /// that it removed. No other process may take snapshots into the store meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Object`] if a snapshot's commit, or a folder of it, is missing or damaged: nothing was removed then.
    /// [`Error::Io`] if an object cannot be removed: some objects that no snapshot needs may remain.
    pub fn collect(&self, keep: &[FilesystemSnapshot]) -> Result<u64> {
        let mut state = self.state.lock();
        let state = &mut *state;
        self.begin(state, None);
        if !self.objects.store().join("HEAD").is_file() {
            return Ok(0);
        }
        let mut needed = HashSet::new();
        let (mut seen, mut seen_times) = (HashSet::new(), HashSet::new());
        for snapshot in keep {
            let id = self.commit_of(snapshot)?;
            let commit = Commit::read(&self.objects, id)?;
            needed.extend([id, commit.tree]);
            state.trees.visit(&self.objects, commit.tree, Some(&mut seen), &mut |line, _| {
                needed.insert(line.id);
                Ok(())
            })?;
            if let Some(name) = &snapshot.metadata {
                let id = self.object_of(name)?;
                let metadata = Metadata::read(&self.objects, id)?;
                let then = Then { tree: commit.tree, times: metadata.times };
                state.trees.times(&self.objects, then, &mut seen_times)?;
                needed.insert(id);
                if let Some(repositories) = &snapshot.repositories {
                    needed.insert(self.object_of(repositories)?);
                }
                needed.extend(state.trees.sparse_data(&self.objects, commit.tree, &metadata)?);
            }
        }
        needed.extend(seen_times);
        // Whoever knows of objects must forget them before the first one goes.
        let cache = self.objects.store().join(CACHE);
        match fs::remove_file(&cache) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::io("remove", cache, error));
            }
            _ => {}
        }
        self.objects.replace(COLLECTED, b"")?;
        state.mark = Some(self.mark());
        state.trees.forget();
        let mut removed = 0;
        for id in self.objects.list()? {
            if !needed.contains(&id) {
                self.objects.remove(id)?;
                removed += 1;
            }
        }
        self.objects.remove_temporaries()?;
        if let Some(last) = &mut state.last {
            last.root = without(&last.root, &needed);
            (last.commit, last.metadata) = (None, None);
            state.unsaved += 1;
        }
        Ok(removed)
    }

    /// Returns a number that every collection of the store changes.
    pub(super) fn mark(&self) -> [u8; 16] {
        let found = fs::symlink_metadata(self.objects.store().join(COLLECTED));
        let (inode, changed) = found.map_or((0, 0), |found| {
            (found.ino(), found.ctime().wrapping_mul(1_000_000_000).wrapping_add(found.ctime_nsec()))
        });
        let mut mark = [0; 16];
        for (byte, from) in mark.iter_mut().zip(inode.to_le_bytes().into_iter().chain(changed.to_le_bytes()))
        {
            *byte = from;
        }
        mark
    }
}

/// Copies a folder's content, in which only the objects `kept` stay known.
fn without(folder: &Arc<Folder>, kept: &HashSet<ObjectId>) -> Arc<Folder> {
    let judge = |id: ObjectId| if kept.contains(&id) { id } else { ObjectId::UNKNOWN };
    let mut entries = folder.entries.clone();
    for entry in &mut entries {
        match &mut entry.node {
            Node::Leaf(leaf) => leaf.blob = judge(leaf.blob),
            Node::Folder(child) => *child = without(child, kept),
            Node::Special | Node::Mount => {}
        }
    }
    let mut kept_folder = Folder::new(folder.stat, folder.attributes.clone(), judge(folder.tree), entries);
    kept_folder.times = judge(folder.times);
    kept_folder.checked_ns = folder.checked_ns.load(Ordering::Relaxed).into();
    Arc::new(kept_folder)
}

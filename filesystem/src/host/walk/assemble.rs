//! Builds directories and their objects from the results of the scans, children before parents.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::scan::{ScannedDirectory, ScannedEntry};
use super::{Results, TreeObject, WorkspaceWalk};
use crate::error::{Error, IoContext, Result};
use crate::host::manifest::{ManifestDirectory, ManifestEntry, ManifestNode, Stat, encode_tree, in_order};
use crate::host::objects::{Hasher, ObjectId, ObjectKind};
use crate::host::parallel::in_parallel;
use crate::host::times;

impl WorkspaceWalk<'_> {
    pub(super) fn assemble(&self, results: Results) -> Result<(Arc<ManifestDirectory>, Vec<TreeObject>)> {
        let Results { mut scanned, read, mounts, .. } = results;
        let mounts: HashSet<usize> = mounts.into_iter().filter_map(|(scan, _)| scan).collect();
        scanned.sort_by_key(|scanned| scanned.id);
        for (id, at, leaf) in read {
            let Ok(place) = scanned.binary_search_by_key(&id, |scanned| scanned.id) else { continue };
            let Some(found) = scanned.get_mut(place).and_then(|scanned| scanned.found.get_mut(at)) else {
                continue;
            };
            match (leaf, found) {
                (Some(leaf), ScannedEntry::Leaf(_, found)) => *found = leaf,
                (_, found) => *found = ScannedEntry::Gone,
            }
        }
        scanned.sort_by_key(|scanned| std::cmp::Reverse(scanned.depth));
        let mut trees = Vec::new();
        let mut done: HashMap<usize, Arc<ManifestDirectory>> = HashMap::new();
        // Directories of one depth are independent of each other, and may be many.
        for level in scanned.chunk_by(|left, right| left.depth == right.depth) {
            let directories = in_parallel(level, &|scanned| self.directory(scanned, &done, &mounts))?;
            for (scanned, (directory, tree)) in level.iter().zip(directories) {
                done.insert(scanned.id, directory);
                trees.extend(tree);
            }
        }
        let root = done.remove(&0).ok_or_else(|| Error::path(".", "the workspace cannot be read"))?;
        Ok((root, trees))
    }

    fn directory(
        &self,
        scanned: &ScannedDirectory,
        done: &HashMap<usize, Arc<ManifestDirectory>>,
        mounts: &HashSet<usize>,
    ) -> Result<(Arc<ManifestDirectory>, Option<TreeObject>)> {
        let ScannedDirectory { stat, attributes, racy, last, found, .. } = scanned;
        let checked_ns = if *racy { 0 } else { stat.changed_ns };
        // A partial snapshot leaves paths out, and is never restored as a whole.
        let with_times = self.times && (self.partial.is_some() || !self.leaves_out.load(Ordering::Relaxed));
        if let Some(last) = last
            && (!with_times || last.times != ObjectId::UNKNOWN)
            && is_same(last, scanned, done)
            && self.has_objects_of(last)
        {
            last.checked_ns.store(checked_ns, Ordering::Relaxed);
            return Ok((Arc::clone(last), None));
        }
        let mut entries = Vec::with_capacity(found.len());
        for found in found {
            let node = |name: &Arc<[u8]>, node| Some(ManifestEntry { name: Arc::clone(name), node });
            entries.extend(match found {
                ScannedEntry::Same(place) => last.as_ref().and_then(|last| last.entries.get(*place)).cloned(),
                ScannedEntry::Leaf(name, leaf) => node(name, ManifestNode::Leaf(leaf.clone())),
                // A snapshot leaves it out; a restore has to know of it.
                ScannedEntry::Directory { name, id, .. } if mounts.contains(id) => match self.keep {
                    Some(_) => None,
                    None => node(name, ManifestNode::Mount),
                },
                ScannedEntry::Directory { name, id, .. } => done
                    .get(id)
                    .and_then(|directory| node(name, ManifestNode::Directory(Arc::clone(directory)))),
                ScannedEntry::Special(name) => node(name, ManifestNode::Special),
                ScannedEntry::Gone => None,
            });
        }
        let is_known = |entry: &ManifestEntry| match &entry.node {
            ManifestNode::Leaf(leaf) => leaf.blob != ObjectId::UNKNOWN,
            ManifestNode::Directory(directory) => directory.tree != ObjectId::UNKNOWN,
            ManifestNode::Special | ManifestNode::Mount => false,
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
        let mut directory = ManifestDirectory::new(*stat, attributes.clone(), tree, entries);
        directory.times = of_times;
        directory.checked_ns = checked_ns.into();
        Ok((Arc::new(directory), made))
    }

    /// Returns whether the store has the objects of an unchanged directory, as far as they are
    /// checked.
    fn has_objects_of(&self, last: &ManifestDirectory) -> bool {
        let has = |id, kind| {
            id == ObjectId::UNKNOWN || self.keep.is_none_or(|keep| keep.objects.is_trusted(id, kind))
        };
        has(last.tree, ObjectKind::Tree) && has(last.times, ObjectKind::Blob)
    }

    /// Writes an object, or only computes its name.
    fn object(&self, kind: ObjectKind, bytes: &[u8]) -> Result<ObjectId> {
        match self.keep {
            Some(new) => new.write(kind, bytes),
            None => Hasher::hash_bytes(kind, bytes).during("hash", "a directory"),
        }
    }
}

fn is_same(
    last: &ManifestDirectory,
    scanned: &ScannedDirectory,
    done: &HashMap<usize, Arc<ManifestDirectory>>,
) -> bool {
    let ScannedDirectory { stat, attributes, found, .. } = scanned;
    let own = |stat: &Stat| (stat.device, stat.inode, stat.mode, stat.owner, stat.modified_ns);
    own(&last.stat) == own(stat)
        && last.attributes == *attributes
        && last.tree != ObjectId::UNKNOWN
        && last.entries.len() == found.len()
        && found.iter().enumerate().all(|(at, found)| match found {
            ScannedEntry::Same(place) => *place == at,
            ScannedEntry::Directory { id, last: Some(place), .. } if *place == at => {
                match (done.get(id), last.entries.get(at).map(|entry| &entry.node)) {
                    (Some(now), Some(ManifestNode::Directory(before))) => Arc::ptr_eq(now, before),
                    _ => false,
                }
            }
            _ => false,
        })
}

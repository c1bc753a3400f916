//! Removes from the store the objects that no snapshot needs any more.
//!
//! # The file `collected`
//!
//! It contains the ids of the commits, of the metadata and of the states of repositories of
//! collected snapshots, 40 digits and a line feed each, the oldest first, at most the last
//! [`COLLECTED_MAX`] of them. If this store was built from the remains of another one, it also
//! contains the ids that the other one had collected. The file distinguishes a collected snapshot
//! ([`Error::Collected`]) from a damaged one. Each collection replaces it, and
//! [`doubt`](super::known_objects::doubt) gives it a new time; either makes all processes forget
//! their knowledge of the store's objects.
//!
//! # State after a kill
//!
//! 1. The file `collected` names a snapshot before anything of it is removed.
//! 2. Commits are removed before the objects that they name, so that no commit without its tree is
//!    found.
//! 3. The next collection removes the rest.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use super::git_packs::{PackRewrites, sweep_packs};
use super::listing::remove_if_present;
use super::manifest::{ManifestDirectory, ManifestNode};
use super::needed_objects::NeededObjects;
use super::object_files::{is_file, read_file};
use super::objects::{ObjectId, Objects};
use super::pool::is_pool;
use super::state::CACHE;
use super::trees::Trees;
use super::{FilesystemSnapshot, HostFilesystem};
use crate::error::{Error, Result};

/// The file that each collection replaces.
pub(super) const COLLECTED: &str = "collected";

const COLLECTED_MAX: usize = 1 << 20;

const LINE_LEN: usize = 41;

/// Counts the objects that a collection removed, or would remove, and lists the paths that it did
/// not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Collection {
    /// Number of objects.
    pub objects: u64,
    /// Bytes that the disk regains: those of objects that have no other name. Files that share blocks
    /// with captured ones count whole, so the disk may regain less.
    pub bytes: u64,
    /// Paths of unexpected entries, which were left unchanged with their targets: entries other
    /// than regular files in the place of objects, or other than directories in the place of
    /// directories, such as a link, a pipe or a directory.
    pub left: Vec<PathBuf>,
}

/// Selects the snapshots of a store that are collected.
#[derive(Clone, Copy, Debug)]
pub struct CaptureCollectOptions<'a> {
    /// Snapshots to keep. Those whose commit is not in the store are skipped: another store has
    /// them. If the commit is present and the metadata is not, only the commit and its tree are
    /// kept: a session and its fork may have captured the same files.
    pub keep: &'a [FilesystemSnapshot],
    /// Known snapshots to give up, which the store remembers as collected. Snapshots in neither
    /// list are also collected.
    pub give_up: &'a [FilesystemSnapshot],
    /// Pool of the store, from which collected objects are also removed, unless other stores have
    /// them.
    pub pool: Option<&'a Path>,
    /// Whether to remove nothing, and only report what would be removed.
    pub dry_run: bool,
}

/// Removes from the store of snapshots in the directory `store` every object that no kept snapshot
/// needs, except from git packs that another store shares and needs. No process may take snapshots
/// into the store at the same time. A directory that is not
/// such a store is left unchanged.
///
/// # Errors
///
/// - [`Error::Object`] if the commit of a kept snapshot, or a directory of it, is damaged. Nothing
///   was removed.
/// - [`Error::Io`] if an object cannot be removed. Some objects that no snapshot needs may remain.
pub fn collect_snapshots(store: &Path, asked: &CaptureCollectOptions<'_>) -> Result<Collection> {
    let pool = asked.pool.filter(|pool| is_pool(pool));
    let objects = Objects::new(store.to_owned()).with_pool(pool.map(Path::to_owned));
    if !is_store(&objects) {
        return Ok(Collection::default());
    }
    // Only git packs commits, if somebody runs it on the store.
    let is_packed = |name: &str| ObjectId::parse(name).is_some_and(|id| objects.contains(id));
    let mut keep = Vec::new();
    for snapshot in asked.keep {
        let Some(path) = ObjectId::parse(&snapshot.commit).map(|commit| objects.path(commit)) else {
            continue;
        };
        // If a different kind of entry is in the commit's place, the objects that the snapshot
        // needs cannot be determined.
        match is_file(&path).map(|is_file| is_file || is_packed(&snapshot.commit)) {
            Ok(true) => {
                let named = snapshot.metadata.as_ref().and_then(|name| ObjectId::parse(name));
                let is_elsewhere = named.is_some_and(|id| !objects.contains(id));
                keep.push(if is_elsewhere { Cow::Owned(tree_of(snapshot)) } else { Cow::Borrowed(snapshot) });
            }
            Ok(false) => {}
            Err(error) => return Err(Error::Object { path, reason: error.to_string() }),
        }
    }
    let keep: Vec<&FilesystemSnapshot> = keep.iter().map(AsRef::as_ref).collect();
    let needed = needed_by(&objects, &mut Trees::default(), &keep)?;
    if !asked.dry_run {
        give_up(&objects, asked.give_up, &needed)?;
    }
    sweep(&objects, &needed, asked, PackRewrites::All)
}

impl HostFilesystem {
    /// Removes from the store every object that none of the snapshots `keep` needs. Those in a git
    /// pack remain until they take more than half of it; [`collect_snapshots`] removes them too. No other
    /// process may take snapshots into the store at the same time.
    ///
    /// # Errors
    ///
    /// - [`Error::Object`] if a snapshot's commit, or a directory of it, is missing or damaged.
    ///   Nothing was removed.
    /// - [`Error::Io`] if an object cannot be removed. Some objects that no snapshot needs may
    ///   remain.
    pub fn collect(&self, keep: &[FilesystemSnapshot]) -> Result<Collection> {
        let mut state = self.state.lock();
        let state = &mut *state;
        self.begin(state, None);
        if !is_store(&self.objects) {
            return Ok(Collection::default());
        }
        let all: Vec<&FilesystemSnapshot> = keep.iter().collect();
        let needed = needed_by(&self.objects, &mut state.trees, &all)?;
        give_up(&self.objects, &[], &needed)?;
        state.mark = Some(self.mark());
        state.trees.forget();
        let removed = sweep(
            &self.objects,
            &needed,
            &CaptureCollectOptions { keep, give_up: &[], pool: None, dry_run: false },
            PackRewrites::Mostly,
        )?;
        if let Some(last) = &mut state.last {
            last.root = without(&last.root, &needed);
            (last.commit, last.metadata) = (None, None);
            state.unsaved += 1;
        }
        Ok(removed)
    }

    /// Checks that a snapshot was not [collected](collect_snapshots). Only a restore finds out
    /// whether all its objects are present and intact.
    ///
    /// # Errors
    ///
    /// [`Error::Collected`] if it was.
    pub fn check_kept(&self, snapshot: &FilesystemSnapshot) -> Result<()> {
        let store = self.objects.store();
        for name in snapshot.names() {
            let id = self.objects.named(name)?;
            if !self.objects.contains(id) && was_collected(store, id) {
                return Err(Error::Collected { store: store.to_owned(), object: id.to_string() });
            }
        }
        Ok(())
    }

    /// Returns a number that changes with every collection of the store, and with every doubt about
    /// it.
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

/// Makes the store at `store` remember snapshots as collected, for snapshots whose remaining
/// objects were given to it. Snapshots that it still has are skipped, and a directory that is not
/// such a store is left unchanged.
///
/// # Errors
///
/// - [`Error::Object`] if a snapshot contains an invalid object id.
/// - [`Error::Io`] if the file that remembers them cannot be replaced.
pub fn remember_collected<'a>(
    store: &Path,
    snapshots: impl IntoIterator<Item = &'a FilesystemSnapshot>,
) -> Result<()> {
    let objects = Objects::new(store.to_owned()).exactly();
    match is_store(&objects) {
        true => remember(&objects, snapshots, |id| !objects.contains(id)),
        false => Ok(()),
    }
}

/// Adds the ids of snapshots, except those for which `is_gone` returns false, to the file of
/// collected snapshots.
fn remember<'a>(
    objects: &Objects,
    snapshots: impl IntoIterator<Item = &'a FilesystemSnapshot>,
    is_gone: impl Fn(ObjectId) -> bool,
) -> Result<()> {
    let mut ids = read_collected(objects.store());
    let mut known: HashSet<ObjectId> = ids.iter().copied().collect();
    for name in snapshots.into_iter().flat_map(FilesystemSnapshot::names) {
        let id = objects.named(name)?;
        if is_gone(id) && known.insert(id) {
            ids.push(id);
        }
    }
    let from = ids.len().saturating_sub(COLLECTED_MAX);
    let lines: String = ids.iter().skip(from).map(|id| format!("{id}\n")).collect();
    objects.replace(COLLECTED, lines.as_bytes())
}

/// Returns the snapshot with its tree only.
fn tree_of(snapshot: &FilesystemSnapshot) -> FilesystemSnapshot {
    FilesystemSnapshot {
        metadata: None,
        repositories: None,
        left_out_by: None,
        path: None,
        ..snapshot.clone()
    }
}

fn is_store(objects: &Objects) -> bool {
    objects.store().join("HEAD").is_file()
}

fn needed_by(
    objects: &Objects,
    trees: &mut Trees,
    keep: &[&FilesystemSnapshot],
) -> Result<HashSet<ObjectId>> {
    let mut needed = NeededObjects::with_trees(std::mem::take(trees));
    for snapshot in keep {
        // A session and its fork may have captured the same files, and only one of them the same
        // repositories.
        let repositories = snapshot.repositories.clone();
        let is_here = |name: &String| objects.named(name).map_or(true, |id| objects.contains(id));
        let repositories = repositories.filter(is_here);
        needed.add(objects, &FilesystemSnapshot { repositories, ..(*snapshot).clone() })?;
    }
    *trees = std::mem::take(&mut needed.trees);
    Ok(needed.into_ids())
}

/// Makes all processes forget their knowledge of the store, and the store remember the snapshots
/// that it is about to give up.
fn give_up(objects: &Objects, snapshots: &[FilesystemSnapshot], needed: &HashSet<ObjectId>) -> Result<()> {
    // Processes must forget known objects before the first object is removed.
    remove_if_present(&objects.store().join(CACHE))?;
    remember(objects, snapshots, |id| !needed.contains(&id) && objects.contains(id))
}

fn sweep(
    objects: &Objects,
    needed: &HashSet<ObjectId>,
    asked: &CaptureCollectOptions<'_>,
    rewrites: PackRewrites,
) -> Result<Collection> {
    let given_up = |snapshot: &FilesystemSnapshot| ObjectId::parse(&snapshot.commit);
    let commits: BTreeSet<ObjectId> = asked.give_up.iter().filter_map(given_up).collect();
    let (first, others): (Vec<_>, Vec<_>) =
        objects.list()?.into_iter().filter(|id| !needed.contains(id)).partition(|id| commits.contains(id));
    let mut removed = Collection::default();
    for id in first.into_iter().chain(others) {
        let found = fs::symlink_metadata(objects.path(id));
        let is_last =
            objects.unpool(id, asked.dry_run) || found.as_ref().is_ok_and(|found| found.nlink() == 1);
        removed.objects += 1;
        removed.bytes += found.ok().filter(|_| is_last).map_or(0, |found| found.len());
        if !asked.dry_run {
            objects.remove(id)?;
        }
    }
    // Packs come last, since they contain no commits.
    let packed = sweep_packs(objects, needed, rewrites, asked.dry_run)?;
    removed.objects += packed.objects;
    removed.bytes += packed.bytes;
    for id in objects.list_shared()?.into_iter().filter(|id| !needed.contains(id)) {
        let path = objects.shared_path(id);
        removed.objects += 1;
        removed.bytes += fs::symlink_metadata(&path).map_or(0, |found| found.len());
        if !asked.dry_run {
            remove_if_present(&path)?;
        }
    }
    if !asked.dry_run {
        objects.remove_temporaries()?;
    }
    removed.left = objects.irregular()?;
    Ok(removed)
}

/// Returns the ids in the file of collected snapshots of a store, the oldest first. None if it
/// cannot be read.
pub(super) fn read_collected(store: &Path) -> Vec<ObjectId> {
    let path = store.join(COLLECTED);
    let bytes = read_file(&path, (COLLECTED_MAX * LINE_LEN) as u64).unwrap_or_default();
    let text = String::from_utf8(bytes).unwrap_or_default();
    text.lines().filter_map(ObjectId::parse).collect()
}

/// Returns whether a snapshot with the commit or metadata `id` was collected.
pub(super) fn was_collected(store: &Path, id: ObjectId) -> bool {
    read_collected(store).contains(&id)
}

/// Copies a directory's content, in which only the objects `kept` remain known.
fn without(directory: &Arc<ManifestDirectory>, kept: &HashSet<ObjectId>) -> Arc<ManifestDirectory> {
    let judge = |id: ObjectId| if kept.contains(&id) { id } else { ObjectId::UNKNOWN };
    let mut entries = directory.entries.clone();
    for entry in &mut entries {
        match &mut entry.node {
            ManifestNode::Leaf(leaf) => leaf.blob = judge(leaf.blob),
            ManifestNode::Directory(child) => *child = without(child, kept),
            ManifestNode::Special | ManifestNode::Mount => {}
        }
    }
    let mut kept_directory =
        ManifestDirectory::new(directory.stat, directory.attributes.clone(), judge(directory.tree), entries);
    kept_directory.times = judge(directory.times);
    kept_directory.checked_ns = directory.checked_ns.load(Ordering::Relaxed).into();
    Arc::new(kept_directory)
}

//! Reads the objects of snapshots in a store, and reports those that are damaged or missing.
//! Changes nothing; but after a finding, later captures into the store check all of it.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::FilesystemSnapshot;
use super::collect::read_collected;
use super::known_objects::doubt;
use super::manifest::GitMode;
use super::metadata::Metadata;
use super::objects::{ObjectId, ObjectKind, Objects};
use super::plan::CapturedDirectory;
use super::repositories::Repositories;
use super::snapshot::named_object;
use super::trees::{Commit, Trees};
use crate::error::{Error, Result};

const DAMAGED_MAX: usize = 100;

/// Identifies an object of a snapshot that is damaged or missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedObject {
    /// Path of the object's file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// Contains the results of an audit of snapshots.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SnapshotsAudited {
    /// Number of snapshots whose objects were checked.
    pub snapshots: u64,
    /// Number of snapshots that were [collected](super::collect_snapshots).
    pub collected: u64,
    /// Paths of the missing commits of snapshots that the store does not remember as collected, in
    /// ascending order. If the store has other snapshots of the workspace, it has lost these.
    pub absent: BTreeSet<PathBuf>,
    /// Objects that are damaged or missing, each once: the first 100.
    pub damaged: Vec<DamagedObject>,
    /// Number of further damaged or missing objects.
    pub damaged_more: u64,
}

/// Checks every object that these snapshots need, in the store at `store`.
///
/// Commits, directories and metadata are read and verified. Contents are read if `is_to_be_read`
/// returns `true` for the object's file, and otherwise only have to exist. A file that is read has
/// to match entirely, byte for byte, including its length. An object that several snapshots need is
/// checked once. If one is damaged, the next capture into the store reads everything that it relies
/// on, and writes damaged objects again from the workspace's contents.
pub fn audit_snapshots<'a>(
    store: &Path,
    snapshots: impl IntoIterator<Item = &'a FilesystemSnapshot>,
    is_to_be_read: &dyn Fn(&Path) -> bool,
) -> SnapshotsAudited {
    let objects = Objects::new(store.to_owned()).exactly();
    let mut audit = Audit {
        objects: &objects,
        is_to_be_read,
        trees: Trees::default(),
        seen: HashSet::new(),
        seen_times: HashSet::new(),
        looked_at: HashSet::new(),
        told: HashSet::new(),
        audited: SnapshotsAudited::default(),
    };
    let mut given_up = None;
    for snapshot in snapshots {
        if let Some(missing) = ObjectId::parse(&snapshot.commit).filter(|id| !objects.path(*id).exists()) {
            match given_up.get_or_insert_with(|| given_up_by(store)).contains(&missing) {
                true => audit.audited.collected += 1,
                false => {
                    audit.audited.absent.insert(objects.path(missing));
                }
            }
            continue;
        }
        audit.audited.snapshots += 1;
        if let Err(error) = audit.snapshot(snapshot) {
            audit.tell(error);
        }
    }
    if !audit.audited.damaged.is_empty() {
        doubt(store);
    }
    audit.audited
}

/// Returns whether the store at `store` has, or had and collected, any of these snapshots.
pub fn keeps_any<'a>(store: &Path, snapshots: impl IntoIterator<Item = &'a FilesystemSnapshot>) -> bool {
    let objects = Objects::new(store.to_owned());
    let mut given_up = None;
    snapshots.into_iter().filter_map(|snapshot| ObjectId::parse(&snapshot.commit)).any(|commit| {
        objects.path(commit).exists() || given_up.get_or_insert_with(|| given_up_by(store)).contains(&commit)
    })
}

fn given_up_by(store: &Path) -> HashSet<ObjectId> {
    read_collected(store).into_iter().collect()
}

/// Reads the object whose file is at `path`, and returns its damage. Returns `None` if it is
/// intact, or if no object has such a path.
pub fn damage_of_object(path: &Path) -> Option<DamagedObject> {
    let directory = path.parent()?;
    let name = [directory.file_name()?.to_str()?, path.file_name()?.to_str()?].concat();
    let id = ObjectId::parse(&name)?;
    let objects = Objects::new(directory.parent()?.parent()?.to_owned()).exactly();
    let mut reason = String::new();
    for kind in [ObjectKind::Commit, ObjectKind::Tree, ObjectKind::Blob] {
        match objects.check(id, kind, 0) {
            Ok(_) => return None,
            // For an object of a different kind, this error only means that it is not of this kind.
            Err(Error::Object { reason: told, .. })
                if reason.is_empty() || !told.starts_with("it is not a ") =>
            {
                reason = told;
            }
            Err(Error::Object { .. }) => {}
            Err(other) => reason = other.to_string(),
        }
    }
    Some(DamagedObject { path: path.to_owned(), reason })
}

struct Audit<'a> {
    objects: &'a Objects,
    is_to_be_read: &'a dyn Fn(&Path) -> bool,
    trees: Trees,
    seen: HashSet<ObjectId>,
    seen_times: HashSet<ObjectId>,
    looked_at: HashSet<ObjectId>,
    told: HashSet<PathBuf>,
    audited: SnapshotsAudited,
}

impl Audit<'_> {
    fn tell(&mut self, error: Error) {
        let (path, reason) = match error {
            Error::Object { path, reason } => (path, reason),
            // It was collected during the check.
            Error::Collected { .. } => {
                self.audited.collected += 1;
                return;
            }
            other => (self.objects.store().to_owned(), other.to_string()),
        };
        if !self.told.insert(path.clone()) {
            return;
        }
        match self.audited.damaged.len() < DAMAGED_MAX {
            true => self.audited.damaged.push(DamagedObject { path, reason }),
            false => self.audited.damaged_more += 1,
        }
    }

    fn snapshot(&mut self, snapshot: &FilesystemSnapshot) -> Result<()> {
        let commit = self.commit(&snapshot.commit)?;
        if let Some(left_out_by) = &snapshot.left_out_by {
            self.commit(left_out_by)?;
        }
        let Some(name) = &snapshot.metadata else { return Ok(()) };
        let metadata = Metadata::read(self.objects, named_object(self.objects, name)?)?;
        let then = CapturedDirectory { tree: commit.tree, times: metadata.times };
        let seen = &mut self.seen_times;
        self.trees.times(self.objects, then, &mut |times| seen.insert(times))?;
        let repositories = snapshot.repositories.as_ref();
        let repositories = repositories.map(|name| named_object(self.objects, name)).transpose()?;
        let data = self.trees.sparse_data(self.objects, commit.tree, &metadata)?;
        data.into_iter().for_each(|id| self.content(id));
        if let Some(id) = repositories {
            let copies = Repositories::read(self.objects, id)?;
            copies.copies().chain([id]).for_each(|id| self.content(id));
        }
        Ok(())
    }

    fn commit(&mut self, name: &str) -> Result<Commit> {
        let commit = Commit::read(self.objects, named_object(self.objects, name)?)?;
        let mut contents = Vec::new();
        let walked = self.trees.visit(self.objects, commit.tree, Some(&mut self.seen), &mut |line, _| {
            if line.mode != GitMode::Directory && self.looked_at.insert(line.id) {
                contents.push(line.id);
            }
            Ok(())
        });
        contents.into_iter().for_each(|id| self.look_at(id));
        walked.map(|()| commit)
    }

    fn content(&mut self, id: ObjectId) {
        if self.looked_at.insert(id) {
            self.look_at(id);
        }
    }

    fn look_at(&mut self, id: ObjectId) {
        let path = self.objects.path(id);
        let is_file = fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
        // Opening an entry that is not a file returns an error that names its kind, or that it is
        // missing.
        if ((self.is_to_be_read)(&path) || !is_file)
            && let Err(error) = self.objects.check(id, ObjectKind::Blob, 0)
        {
            self.tell(error);
        }
    }
}

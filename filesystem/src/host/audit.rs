//! Reads the objects of snapshots in a store, and reports those that are damaged or missing.
//! Changes nothing; but after a finding, later captures into the store check all of it.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::FilesystemSnapshot;
use super::collect::read_collected;
use super::git_packs::{GitPack, damage_of_file, is_pack_file};
use super::known_objects::doubt;
use super::manifest::{FileForm, GitMode};
use super::metadata::Metadata;
use super::object_files::verify_file;
use super::objects::{ObjectId, ObjectKind, ObjectPlace, Objects};
use super::plan::CapturedDirectory;
use super::repositories::Repositories;
use super::shared::Shared;
use super::trees::{Commit, Trees};
use crate::error::{Error, Result};

const DAMAGED_MAX: usize = 100;

/// Identifies an object of a snapshot that is damaged or missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedObject {
    /// Path of the object's file, or of a git pack or its index.
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
/// to match entirely, byte for byte, including its length. A git pack that is read is also compared
/// with its checksum and its index. An object that several snapshots need is checked once. If one is
/// damaged, the next capture into the store reads everything that it relies on, and writes damaged
/// objects again from the workspace's contents.
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
        shared: HashSet::new(),
        told: HashSet::new(),
        packs: HashSet::new(),
        audited: SnapshotsAudited::default(),
    };
    let mut given_up = None;
    for snapshot in snapshots {
        if let Some(missing) = ObjectId::parse(&snapshot.commit).filter(|id| !objects.contains(*id)) {
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
    if !(audit.audited.damaged.is_empty() && audit.audited.absent.is_empty()) {
        objects.packs.damaged().into_iter().for_each(|damaged| audit.tell_one(damaged));
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
        objects.contains(commit) || given_up.get_or_insert_with(|| given_up_by(store)).contains(&commit)
    })
}

fn given_up_by(store: &Path) -> HashSet<ObjectId> {
    read_collected(store).into_iter().collect()
}

/// Reads the object, the git pack or the index of one whose file is at `path`, and returns its
/// damage. Returns `None` if it is intact, or if no such file has such a path.
pub fn damage_of_object(path: &Path) -> Option<DamagedObject> {
    if is_pack_file(path) {
        return damage_of_file(path);
    }
    let directory = path.parent()?;
    let name = [directory.file_name()?.to_str()?, path.file_name()?.to_str()?].concat();
    let id = ObjectId::parse(&name)?;
    let reason = verify_file(path, id).err()?;
    Some(DamagedObject { path: path.to_owned(), reason })
}

struct Audit<'a> {
    objects: &'a Objects,
    is_to_be_read: &'a dyn Fn(&Path) -> bool,
    trees: Trees,
    seen: HashSet<ObjectId>,
    seen_times: HashSet<ObjectId>,
    looked_at: HashSet<ObjectId>,
    /// Blobs of the files with shared blocks that were checked.
    shared: HashSet<ObjectId>,
    told: HashSet<(PathBuf, String)>,
    /// Paths of the packs that were compared with their checksums.
    packs: HashSet<PathBuf>,
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
        self.tell_one(DamagedObject { path, reason });
    }

    fn tell_one(&mut self, damaged: DamagedObject) {
        // A pack contains many objects, each of which is named at the beginning.
        let object = damaged.reason.split(": ").next().filter(|_| is_pack_file(&damaged.path));
        if !self.told.insert((damaged.path.clone(), object.unwrap_or_default().to_owned())) {
            return;
        }
        match self.audited.damaged.len() < DAMAGED_MAX {
            true => self.audited.damaged.push(damaged),
            false => self.audited.damaged_more += 1,
        }
    }

    fn snapshot(&mut self, snapshot: &FilesystemSnapshot) -> Result<()> {
        let commit = self.commit(&snapshot.commit)?;
        if let Some(left_out_by) = &snapshot.left_out_by {
            self.commit(left_out_by)?;
        }
        let Some(name) = &snapshot.metadata else { return Ok(()) };
        let metadata = Metadata::read(self.objects, self.objects.named(name)?)?;
        let then = CapturedDirectory { tree: commit.tree, times: metadata.times };
        let seen = &mut self.seen_times;
        self.trees.times(self.objects, then, &mut |times| seen.insert(times))?;
        let repositories = snapshot.repositories.as_ref();
        let repositories = repositories.map(|name| self.objects.named(name)).transpose()?;
        let data = self.trees.sparse_data(self.objects, commit.tree, &metadata)?;
        data.into_iter().for_each(|id| self.content(id));
        for id in self.trees.of_form(self.objects, commit.tree, &metadata, FileForm::Shared)? {
            if self.shared.insert(id)
                && let Err(error) = self.look_at_shared(id)
            {
                self.tell(error);
            }
        }
        if let Some(id) = repositories {
            let copies = Repositories::read(self.objects, id)?;
            copies.copies().chain([id]).for_each(|id| self.content(id));
        }
        Ok(())
    }

    fn commit(&mut self, name: &str) -> Result<Commit> {
        let commit = Commit::read(self.objects, self.objects.named(name)?)?;
        let (mut contents, mut directories) = (Vec::new(), vec![commit.tree]);
        let walked = self.trees.visit(self.objects, commit.tree, Some(&mut self.seen), &mut |line, _| {
            match line.mode {
                GitMode::Directory => directories.push(line.id),
                _ if self.looked_at.insert(line.id) => contents.push(line.id),
                _ => {}
            }
            Ok(())
        });
        for id in directories {
            self.look_at_pack(id);
        }
        contents.into_iter().for_each(|id| self.look_at(id));
        walked.map(|()| commit)
    }

    fn content(&mut self, id: ObjectId) {
        if self.looked_at.insert(id) {
            self.look_at(id);
        }
    }

    /// Checks the git pack that contains an object, if it is to be read. Returns the path from which
    /// the object is read.
    fn look_at_pack(&mut self, id: ObjectId) -> PathBuf {
        let place = self.objects.place(id);
        let path = place.path().to_owned();
        if let ObjectPlace::Packed(pack, _) = place
            && !self.packs.contains(&path)
            && (self.is_to_be_read)(&path)
        {
            self.packs.insert(path.clone());
            self.check_pack(&pack);
        }
        path
    }

    fn check_pack(&mut self, pack: &Arc<GitPack>) {
        let entries = match pack.check() {
            Ok(entries) => entries,
            Err(damaged) => return self.tell_one(damaged),
        };
        // Those that were written again are not read from the pack.
        for entry in entries.into_iter().filter(|entry| !self.objects.path(entry.id).exists()) {
            let reason = "its bytes do not match the index of the pack".to_owned();
            self.tell(ObjectPlace::Packed(Arc::clone(pack), entry.offset).damaged(entry.id, reason));
        }
    }

    fn look_at_shared(&self, id: ObjectId) -> Result<()> {
        let (shared, path) = (Shared::read(self.objects, id)?, self.objects.shared_path(id));
        match (self.is_to_be_read)(&path) || !self.objects.has_shared(id, shared.length) {
            true => shared.open(self.objects, id).map(drop),
            false => Ok(()),
        }
    }

    fn look_at(&mut self, id: ObjectId) {
        let path = self.look_at_pack(id);
        let is_file = fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
        let is_to_be_read = (self.is_to_be_read)(&path);
        // Opening an entry that is not a file returns an error that names its kind, or that it is
        // missing.
        if (is_to_be_read || !is_file)
            && let Err(error) = self.objects.check(id, ObjectKind::Blob, 0)
        {
            self.tell(error);
        }
    }
}

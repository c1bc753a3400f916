//! The new objects of one capture: each in its own file if they are few, otherwise in git packs.
//!
//! Most objects contain a few kilobytes. Creating a file for each took three quarters of a capture of
//! 20,000 files. The first objects wait in memory until there are [`PACKED_MIN`] of them, or until they
//! take [`WAITING_BYTES_MAX`] bytes. If there are more, each thread writes a pack of its own.
//!
//! Objects need not be in the store before [`NewObjects::finish`] returns. A commit that names them
//! is written after that.

use std::collections::HashSet;
use std::path::PathBuf;

use parking_lot::Mutex;

use super::git_packs::{NewPack, PACKED_OBJECT_BYTES_MAX, PackWriter};
use super::known_objects::Soundness;
use super::object_sync::sync_directory;
use super::objects::{Hasher, ObjectId, ObjectKind, Objects};
use super::parallel::{in_parallel, join_thread};
use crate::error::{Error, IoContext, Result};

/// Number of new objects from which on they are written into packs.
const PACKED_MIN: usize = 1000;

/// Greatest number of bytes of objects that wait.
const WAITING_BYTES_MAX: usize = 32 << 20;

pub(super) struct NewObjects<'a> {
    pub(super) objects: &'a Objects,
    waiting: Mutex<Waiting>,
    /// Unfinished packs to which no thread is adding an object.
    open: Mutex<Vec<PackWriter>>,
    finished: Mutex<Vec<NewPack>>,
}

struct NewObject {
    id: ObjectId,
    kind: ObjectKind,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Waiting {
    /// All objects so far.
    ids: HashSet<ObjectId>,
    objects: Vec<NewObject>,
    bytes: usize,
}

impl<'a> NewObjects<'a> {
    pub(super) fn new(objects: &'a Objects) -> NewObjects<'a> {
        NewObjects { objects, waiting: Mutex::default(), open: Mutex::default(), finished: Mutex::default() }
    }

    /// Stores an object, unless the store has it.
    pub(super) fn write(&self, kind: ObjectKind, bytes: &[u8]) -> Result<ObjectId> {
        let named = |error| Error::io("hash", self.objects.directory(), error);
        let id = Hasher::hash_bytes(kind, bytes).map_err(named)?;
        if self.waiting.lock().ids.contains(&id) {
            return Ok(id);
        }
        match self.objects.soundness(id, kind)? {
            Soundness::Intact => return Ok(id),
            _ if self.objects.link_pooled(id, kind) => return Ok(id),
            // Only its own file precedes the damaged object.
            Soundness::Damaged => return self.objects.write_file(id, kind, bytes).map(|()| id),
            Soundness::Missing if bytes.len() > PACKED_OBJECT_BYTES_MAX => {
                return self.objects.write_file(id, kind, bytes).map(|()| id);
            }
            Soundness::Missing => {}
        }
        let mut waiting = self.waiting.lock();
        if !waiting.ids.insert(id) {
            return Ok(id);
        }
        if waiting.ids.len() > PACKED_MIN {
            let before = std::mem::take(&mut waiting.objects);
            drop(waiting);
            self.pack(before.iter().map(|one| (one.id, one.kind, &*one.bytes)).chain([(id, kind, bytes)]))?;
            return Ok(id);
        }
        waiting.bytes += bytes.len();
        waiting.objects.push(NewObject { id, kind, bytes: bytes.to_vec() });
        if waiting.bytes > WAITING_BYTES_MAX {
            waiting.bytes = 0;
            let before = std::mem::take(&mut waiting.objects);
            drop(waiting);
            self.write_files(&before)?;
        }
        Ok(id)
    }

    /// Writes each object into its own file.
    fn write_files(&self, objects: &[NewObject]) -> Result<()> {
        in_parallel(objects, &|one| self.objects.write_file(one.id, one.kind, &one.bytes)).map(drop)
    }

    fn pack<'b>(&self, objects: impl Iterator<Item = (ObjectId, ObjectKind, &'b [u8])>) -> Result<()> {
        let open = self.open.lock().pop();
        let mut pack = match open {
            Some(open) => open,
            None => self.objects.create_pack()?,
        };
        for (id, kind, bytes) in objects {
            let added = pack.add((id, kind), bytes, &self.objects.compressors);
            added.during("write", self.objects.packs.directory())?;
        }
        match pack.is_full() {
            true => {
                let finished = self.objects.finish_pack(pack)?;
                self.finished.lock().push(finished);
            }
            false => self.open.lock().push(pack),
        }
        Ok(())
    }

    /// Completes the objects: all of them are in the store when this returns, and those in packs are
    /// durable.
    pub(super) fn finish(&self) -> Result<()> {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        self.write_files(&waiting.objects)?;
        let mut packs = std::mem::take(&mut *self.finished.lock());
        let open = std::mem::take(&mut *self.open.lock());
        let objects = self.objects;
        let last: Result<Vec<NewPack>> = std::thread::scope(|scope| {
            let started: Vec<_> =
                open.into_iter().map(|pack| scope.spawn(|| objects.finish_pack(pack))).collect();
            started.into_iter().map(join_thread).collect()
        });
        packs.extend(last?);
        objects.sync_packs(&packs)
    }
}

impl Objects {
    pub(super) fn create_pack(&self) -> Result<PackWriter> {
        let temporary = self.temporary();
        PackWriter::create(temporary.clone()).during("create", temporary)
    }

    /// Gives a pack its name. It is durable once [`sync_packs`](Self::sync_packs) returns.
    pub(super) fn finish_pack(&self, pack: PackWriter) -> Result<NewPack> {
        let directory = self.packs.directory();
        let finished = pack.finish(directory, self.temporary());
        finished.during("write", directory)
    }

    /// Makes the names of packs durable.
    pub(super) fn sync_packs(&self, packs: &[NewPack]) -> Result<()> {
        if packs.is_empty() {
            return Ok(());
        }
        sync_directory(self.packs.directory())?;
        sync_directory(&self.directory())?;
        for new in packs {
            let stamp = new.stamp();
            self.learn(stamp.into_iter().flat_map(|stamp| new.ids.iter().map(move |id| (*id, true, stamp))));
        }
        let paths: Vec<PathBuf> = packs.iter().map(|new| new.path.clone()).collect();
        self.pool_packs(&paths);
        Ok(())
    }
}

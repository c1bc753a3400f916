//! The pool: a directory in which objects of several stores have additional names, so that each is
//! stored once.
//!
//! 1. An object gets a name in the pool once it is durable, and its file is never written again.
//! 2. A store that needs the same content links the pool's file, after it has read it and found it
//!    intact.
//! 3. Nothing else is read from the pool, and nothing is lost with it: if a link fails, the object
//!    is written into its own file.
//! 4. A collection removes a name from the pool if it is the file's last one ([`collect_pool`]), or
//!    the last but one and the other is about to be removed.
//! 5. A git pack gets names like an object. A store that needs one of its objects, and has read it,
//!    links the whole pack. Its other objects are read when the store first relies on them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::collect::Collection;
use super::git_packs::{GitPack, GitPacks};
use super::listing::remove_if_present;
use super::objects::{ObjectId, ObjectKind, Objects, path_in, with_directory};
use crate::error::Result;

pub(super) struct Pool {
    directory: PathBuf,
    packs: GitPacks,
}

impl Objects {
    pub(super) fn with_pool(mut self, pool: Option<PathBuf>) -> Objects {
        self.pool = pool.map(|directory| {
            let packs = GitPacks::new(&directory.join("objects"));
            Pool { directory, packs }
        });
        self
    }

    /// Links the pool's file of an object into the store, if there is an intact one. Returns
    /// whether it did.
    pub(super) fn link_pooled(&self, id: ObjectId, kind: ObjectKind) -> bool {
        let Some(pool) = &self.pool else { return false };
        let (path, pooled) = (self.path(id), path_in(&pool.directory, id));
        if !fs::symlink_metadata(&pooled).is_ok_and(|found| found.is_file()) {
            return pool.packs.find(id).is_some_and(|(pack, offset)| self.link_pack(id, &pack, offset));
        }
        // An existing file is damaged.
        let _ = fs::remove_file(&path);
        let linked = link(&pooled, &path).is_ok();
        if linked && self.verify(id, kind).is_err() {
            let _ = fs::remove_file(&path);
            return false;
        }
        if linked {
            self.learn_sound(id);
        }
        linked
    }

    /// Links a pack of the pool into the store, if its object with this name is intact, and the store
    /// has no other one.
    fn link_pack(&self, id: ObjectId, pack: &GitPack, offset: u64) -> bool {
        let opened = pack.open_object(offset).ok().and_then(Result::ok);
        if opened.is_none_or(|opened| opened.drain(id, true, &mut |_| {}).is_err()) {
            return false;
        }
        // The store may have a damaged one, in another pack that precedes this one.
        let linked = link_files(pack, self.packs.directory()) && self.has_intact(id);
        if linked {
            self.learn_sound(id);
        }
        linked
    }

    /// Gives names in the pool to packs that are durable.
    pub(super) fn pool_packs(&self, packs: &[PathBuf]) {
        let Some(pool) = &self.pool else { return };
        for pack in self.packs.all().iter().filter(|pack| packs.iter().any(|path| path == pack.path())) {
            let _ = link_files(pack, pool.packs.directory());
        }
    }

    /// Removes a pack from the pool like [`unpool`](Self::unpool). Returns whether it was removed, or
    /// would be.
    pub(super) fn unpool_pack(&self, pack: &GitPack, dry_run: bool) -> bool {
        let Some(pool) = &self.pool else { return false };
        let mut is_last = false;
        for own in pack.files() {
            let pooled = pool.packs.directory().join(own.file_name().unwrap_or_default());
            is_last = is_last_but_one(&own, &pooled) && (dry_run || fs::remove_file(pooled).is_ok());
        }
        is_last
    }

    /// Gives names in the pool to objects that have become durable. An object without one only
    /// costs space.
    pub(super) fn pool_durable(&self, ids: &[ObjectId]) {
        let Some(pool) = &self.pool else { return };
        for id in ids {
            let own = self.path(*id);
            if own.exists() {
                let _ = link(&own, &path_in(&pool.directory, *id));
            }
        }
    }

    /// Removes an object from the pool if its only names are that one and the one in the store,
    /// which is about to be removed. Returns whether it was removed, or would be.
    pub(super) fn unpool(&self, id: ObjectId, dry_run: bool) -> bool {
        let Some(pool) = &self.pool else { return false };
        let pooled = path_in(&pool.directory, id);
        is_last_but_one(&self.path(id), &pooled) && (dry_run || fs::remove_file(pooled).is_ok())
    }
}

/// Returns whether two paths are the only names of one file.
fn is_last_but_one(own: &Path, pooled: &Path) -> bool {
    let (Ok(own), Ok(found)) = (fs::symlink_metadata(own), fs::symlink_metadata(pooled)) else {
        return false;
    };
    (own.dev(), own.ino()) == (found.dev(), found.ino()) && found.nlink() == 2
}

/// Links the files of a pack into a directory of packs. The index, without which there is no pack,
/// comes last. Returns whether both are there.
fn link_files(pack: &GitPack, directory: &Path) -> bool {
    let [index, pack] = pack.files();
    [pack, index].iter().all(|path| match link(path, &directory.join(path.file_name().unwrap_or_default())) {
        Err(error) => error.kind() == io::ErrorKind::AlreadyExists,
        Ok(()) => true,
    })
}

fn link(from: &Path, to: &Path) -> io::Result<()> {
    with_directory(to, || fs::hard_link(from, to))
}

/// Removes from the pool in the directory `pool` the objects that only the store in the directory
/// `store` has. Use it for a store that is about to be deleted.
///
/// # Errors
///
/// [`Error::Io`](crate::Error::Io) if the store cannot be listed.
pub fn unpool(store: &Path, pool: &Path) -> Result<()> {
    if !is_pool(pool) {
        return Ok(());
    }
    let objects = Objects::new(store.to_owned()).with_pool(Some(pool.to_owned()));
    for id in objects.list()? {
        objects.unpool(id, false);
    }
    for pack in objects.packs.all() {
        objects.unpool_pack(&pack, false);
    }
    Ok(())
}

/// Removes from the pool in the directory `pool` every object that no store has. Stores may read
/// from it and add to it at the same time.
///
/// # Errors
///
/// [`Error::Io`](crate::Error::Io) if the pool cannot be listed, or if an object cannot be removed.
pub fn collect_pool(pool: &Path, dry_run: bool) -> Result<Collection> {
    let objects = Objects::new(pool.to_owned());
    let mut removed = Collection::default();
    if !is_pool(pool) {
        removed.left.extend(fs::symlink_metadata(pool).is_ok().then(|| pool.to_owned()));
        return Ok(removed);
    }
    for id in objects.list()? {
        let path = objects.path(id);
        let Some(found) = fs::symlink_metadata(&path).ok().filter(|found| found.nlink() == 1) else {
            continue;
        };
        if !dry_run {
            remove_if_present(&path)?;
        }
        removed.objects += 1;
        removed.bytes += found.len();
    }
    for pack in objects.packs.all() {
        if !pack.is_last_name() {
            continue;
        }
        let (count, bytes) = (pack.count(), pack.bytes());
        if !dry_run {
            objects.remove_pack(&pack)?;
        }
        removed.objects += count;
        removed.bytes += bytes;
    }
    removed.left = objects.irregular()?;
    Ok(removed)
}

/// Returns whether a pool is a directory, and not a link to another user's.
pub(super) fn is_pool(pool: &Path) -> bool {
    fs::symlink_metadata(pool).is_ok_and(|found| found.is_dir())
}

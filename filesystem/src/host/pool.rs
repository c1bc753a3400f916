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

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::collect::Collection;
use super::listing::remove_if_present;
use super::objects::{ObjectId, ObjectKind, Objects, path_in, with_directory};
use crate::error::Result;

impl Objects {
    pub(super) fn with_pool(mut self, pool: Option<PathBuf>) -> Objects {
        self.pool = pool;
        self
    }

    /// Links the pool's file of an object into the store, if there is an intact one. Returns
    /// whether it did.
    pub(super) fn link_pooled(&self, id: ObjectId, kind: ObjectKind) -> bool {
        let Some(pooled) = self.pool.as_ref().map(|pool| path_in(pool, id)) else { return false };
        let path = self.path(id);
        if !fs::symlink_metadata(&pooled).is_ok_and(|found| found.is_file()) {
            return false;
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

    /// Gives names in the pool to objects that have become durable. An object without one only
    /// costs space.
    pub(super) fn pool_durable(&self, ids: &[ObjectId]) {
        let Some(pool) = &self.pool else { return };
        for id in ids {
            let _ = link(&self.path(*id), &path_in(pool, *id));
        }
    }

    /// Removes an object from the pool if its only names are that one and the one in the store,
    /// which is about to be removed. Returns whether it was removed, or would be.
    pub(super) fn unpool(&self, id: ObjectId, dry_run: bool) -> bool {
        let Some(pooled) = self.pool.as_ref().map(|pool| path_in(pool, id)) else { return false };
        let (Ok(own), Ok(found)) = (fs::symlink_metadata(self.path(id)), fs::symlink_metadata(&pooled))
        else {
            return false;
        };
        let is_own = (own.dev(), own.ino()) == (found.dev(), found.ino());
        is_own && found.nlink() == 2 && (dry_run || fs::remove_file(pooled).is_ok())
    }
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
    removed.left = objects.irregular()?;
    Ok(removed)
}

/// Returns whether a pool is a directory, and not a link to another user's.
pub(super) fn is_pool(pool: &Path) -> bool {
    fs::symlink_metadata(pool).is_ok_and(|found| found.is_dir())
}

//! Git packs: many objects of a capture in one file, as any git reads them.
//!
//! They are in the directory `objects/pack` of a store. (The packs that a replica receives have
//! another format, see [`packs`](super::packs).) A pack has a name, `pack-` and 40 hexadecimal
//! digits, which are the checksum at its end, and two files:
//!
//! ```text
//! pack-*.pack  magic "PACK", version 2 (4), number of objects (4)
//!              an entry for each object: its kind and length (1 to 10), its content as a zlib stream
//!              SHA-1 of all bytes before it (20)
//! pack-*.idx   where each object is, see `index`
//! ```
//!
//! All integers are big-endian. No object is stored as a difference from another one, and no pack
//! here contains a commit.
//!
//! # Invariants
//!
//! 1. Both files are written under temporary names, and are synced before they get their own. The
//!    index gets its name last. A pack without an index does not exist for any reader; it is a
//!    leftover of a kill.
//! 2. A pack never changes. To remove objects, a collection writes the others into a new pack, and
//!    then removes the old one, its index first.
//! 3. No length in a file determines how much memory is allocated, except the file's own length.
//! 4. An object that is read from a pack is hashed like any other. A wrong offset is found by that.
//! 5. A file with an object of its own precedes packs, so that a damaged object of a pack can be
//!    written again.

mod index;
mod pack;
mod sweep;
mod writer;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use sha1_checked::Sha1;

use super::audit::DamagedObject;
use super::known_objects::Stamp;
use super::objects::ObjectId;
pub(super) use pack::{GitPack, damage_of_file};
pub(super) use sweep::{PackRewrites, sweep_packs};
pub(super) use writer::{NewPack, PACKED_OBJECT_BYTES_MAX, PackWriter};

const MAGIC: [u8; 4] = *b"PACK";
const VERSION: u32 = 2;
const HEAD_BYTES: usize = 12;
const TAIL_BYTES: usize = 20;

/// A directory may change once more without a new time for this long.
const CLOCK_GRAIN: Duration = Duration::from_millis(50);

/// An entry of a pack that is being written.
struct Entry {
    id: ObjectId,
    crc: u32,
    offset: u32,
}

/// Returns a hash for a pack or an index. It detects damage; nothing is recognized by it, so crafted
/// collisions are not looked for, which would take several times as long.
fn new_hash() -> Sha1 {
    Sha1::builder().detect_collision(false).build()
}

fn finish(hash: Sha1) -> [u8; 20] {
    (*hash.try_finalize().hash()).into()
}

/// The packs of a store. They are listed when they are first needed, and again if an object is not
/// found and the directory has changed since.
pub(super) struct GitPacks {
    directory: PathBuf,
    listed: Mutex<Listed>,
}

#[derive(Default)]
struct Listed {
    /// Inode and time of the directory before it was listed. `None` if it is to be listed again.
    of: Option<(u64, i64)>,
    is_listed: bool,
    packs: Vec<Arc<GitPack>>,
    damaged: Vec<DamagedObject>,
}

impl GitPacks {
    /// Creates the packs of the store with this directory of objects.
    pub(super) fn new(objects: &Path) -> GitPacks {
        GitPacks { directory: objects.join("pack"), listed: Mutex::default() }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the pack that contains an object, and the offset of its entry.
    pub(super) fn find(&self, id: ObjectId) -> Option<(Arc<GitPack>, u64)> {
        let mut listed = self.listed.lock();
        listed.find(id).or_else(|| if listed.update(&self.directory) { listed.find(id) } else { None })
    }

    /// Lists the packs if they may have changed.
    pub(super) fn refresh(&self) {
        self.listed.lock().update(&self.directory);
    }

    /// Returns whether a pack that is known contains an object.
    pub(super) fn has_listed(&self, id: ObjectId) -> bool {
        let mut listed = self.listed.lock();
        if !listed.is_listed {
            listed.update(&self.directory);
        }
        listed.find(id).is_some()
    }

    /// Lists the packs again at the next search.
    pub(super) fn forget(&self) {
        *self.listed.lock() = Listed::default();
    }

    /// Returns all packs that can be used, as they are now.
    pub(super) fn all(&self) -> Vec<Arc<GitPack>> {
        self.refresh();
        self.listed.lock().packs.clone()
    }

    /// Returns the damage of packs that cannot be used.
    pub(super) fn damaged(&self) -> Vec<DamagedObject> {
        self.refresh();
        self.listed.lock().damaged.clone()
    }
}

impl Listed {
    fn find(&self, id: ObjectId) -> Option<(Arc<GitPack>, u64)> {
        self.packs.iter().find_map(|pack| Some((Arc::clone(pack), pack.find(id)?)))
    }

    /// Lists the packs if the directory has changed. Returns whether it did.
    fn update(&mut self, directory: &Path) -> bool {
        let Some(found) = fs::symlink_metadata(directory).ok().filter(fs::Metadata::is_dir) else {
            let was_any = !self.packs.is_empty() || !self.damaged.is_empty();
            *self = Listed { is_listed: true, ..Listed::default() };
            return was_any;
        };
        self.is_listed = true;
        let now = (found.ino(), Stamp::of(&found).modified_ns);
        if self.of == Some(now) {
            return false;
        }
        let age = found.modified().ok().and_then(|modified| SystemTime::now().duration_since(modified).ok());
        self.of = age.filter(|age| *age > CLOCK_GRAIN).map(|_| now);
        let mut known: HashMap<PathBuf, Arc<GitPack>> =
            self.packs.drain(..).map(|pack| (pack.path().to_owned(), pack)).collect();
        self.damaged.clear();
        for path in paths(directory) {
            let kept = known.remove(&path).filter(|pack| pack.stamp() == Some(pack.opened));
            match kept.map_or_else(|| GitPack::open(&path).map(Arc::new), Ok) {
                Ok(pack) => self.packs.push(pack),
                Err(damaged) => self.damaged.push(damaged),
            }
        }
        true
    }
}

/// Returns the paths of the packs in a directory that have an index, sorted.
fn paths(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let indexes = entries
        .map(|entry| entry.path())
        .filter(|path| is_pack_file(path) && path.extension().is_some_and(|extension| extension == "idx"));
    let mut paths: Vec<PathBuf> = indexes.map(|path| path.with_extension("pack")).collect();
    paths.sort_unstable();
    paths
}

/// Returns whether a path is that of one of the two files of a git pack.
pub(super) fn is_pack_file(path: &Path) -> bool {
    let name = path.file_name().and_then(std::ffi::OsStr::to_str).unwrap_or_default();
    let digits = name
        .strip_prefix("pack-")
        .and_then(|name| name.strip_suffix(".pack").or_else(|| name.strip_suffix(".idx")));
    digits.is_some_and(|digits| ObjectId::parse(digits).is_some())
        && path.parent().and_then(Path::file_name).is_some_and(|directory| directory == "pack")
}

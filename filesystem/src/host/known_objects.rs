//! What is known of the objects of a store: that they are there, sound and durable.
//!
//! An object that was written or read whole is known by the length of its file and the time of its last change, its
//! [`Stamp`]. A capture that relies on it without reading it looks at that stamp, and reads the object where it differs:
//! a file that was cut, removed or written by somebody is found so, and written anew of what the workspace holds. Looking
//! costs as much as looking at a file of the workspace, so a capture does it for [`LOOKED_AT_MAX`] objects of files, in
//! turn where there are more. Bytes that changed under the file system are found by whoever reads them, who
//! [says so](doubt) to all later captures.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use super::collect::COLLECTED;
use super::directory_check;
use super::object_files::{is_file, open_file};
use super::objects::{ObjectId, ObjectKind, Objects, create_new};
use crate::error::{Error, Result};

/// What is known of more objects than this is forgotten, which costs nothing but time.
const KNOWN_MAX: usize = 1 << 21;

/// At so many objects a capture looks that it relies on without reading them, about. Of 10,000 unchanged files, 4,096 looks cost half as
/// much as the walk, 1 to 5 us each; these an eighth.
const LOOKED_AT_MAX: u64 = 1024;

/// Length of an object's file, and the time of its last change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    pub(super) len: u64,
    pub(super) modified_ns: i64,
}

impl Stamp {
    /// The stamp of no file.
    pub(super) const UNKNOWN: Stamp = Stamp { len: 0, modified_ns: i64::MIN };
}

/// What is known of an object that was found sound.
#[derive(Clone, Copy)]
pub(super) struct KnownObject {
    is_durable: bool,
    stamp: Stamp,
}

impl Objects {
    /// Forgets what is known, where somebody else may have changed the store.
    pub(super) fn forget(&self) {
        self.known.lock().clear();
    }

    pub(super) fn forget_one(&self, id: ObjectId) {
        self.known.lock().remove(&id);
    }

    pub(super) fn is_known(&self, id: ObjectId) -> bool {
        self.known.lock().contains_key(&id)
    }

    pub(super) fn is_durable(&self, id: ObjectId) -> bool {
        self.known.lock().get(&id).is_some_and(|known| known.is_durable)
    }

    /// The stamp of an object when it was last found sound.
    pub(super) fn known_stamp(&self, id: ObjectId) -> Stamp {
        self.known.lock().get(&id).map_or(Stamp::UNKNOWN, |known| known.stamp)
    }

    /// Takes objects for known: whether they are durable, if they were not before, and their stamps.
    pub(super) fn learn(&self, ids: impl IntoIterator<Item = (ObjectId, bool, Stamp)>) {
        let mut known = self.known.lock();
        if known.len() > KNOWN_MAX {
            known.clear();
        }
        for (id, is_durable, stamp) in ids {
            self.has_durable.fetch_or(is_durable, Ordering::Relaxed);
            let before = known.get(&id).is_some_and(|known| known.is_durable);
            known.insert(id, KnownObject { is_durable: is_durable || before, stamp });
        }
    }

    /// Takes an object for known that was written or read just now.
    pub(super) fn learn_sound(&self, id: ObjectId) {
        self.learn(self.stamp(id).map(|stamp| (id, false, stamp)));
    }

    pub(super) fn learn_durable(&self, ids: &[ObjectId]) {
        let mut known = self.known.lock();
        self.has_durable.store(true, Ordering::Relaxed);
        for id in ids {
            let unknown = KnownObject { is_durable: true, stamp: Stamp::UNKNOWN };
            known.entry(*id).or_insert(unknown).is_durable = true;
        }
    }

    /// Forgets an object that is missing or was written by somebody else. What names it vouches for it no more, so all of that is
    /// synced again.
    fn distrust(&self, id: ObjectId) {
        let mut known = self.known.lock();
        known.remove(&id);
        // Of many damaged objects only the first finds any that counts as durable.
        if self.has_durable.swap(false, Ordering::Relaxed) {
            known.values_mut().for_each(|known| known.is_durable = false);
        }
    }

    /// The stamp of an object's file; `None` if there is none.
    fn stamp(&self, id: ObjectId) -> Option<Stamp> {
        let found = fs::symlink_metadata(self.locate_object(id)).ok().filter(fs::Metadata::is_file)?;
        let modified_ns = found.mtime().wrapping_mul(1_000_000_000).wrapping_add(found.mtime_nsec());
        Some(Stamp { len: found.len(), modified_ns })
    }

    /// Begins a capture of a workspace of so many files, as far as it is known.
    pub(super) fn begin_capture(&self, files: u64) {
        let turns = files.div_ceil(LOOKED_AT_MAX).max(1);
        if self.turns.swap(turns, Ordering::Relaxed) != turns {
            // Processes that take one capture each do not all look at the same objects.
            self.turn.store(directory_check::entropic().as_u64_pair().0 >> 1, Ordering::Relaxed);
        }
        self.turn.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it is this capture's turn to look at an object.
    pub(super) fn is_due(&self, id: ObjectId) -> bool {
        let turns = self.turns.load(Ordering::Relaxed);
        let [first, second, ..] = id.0;
        let at = u64::from(u16::from_le_bytes([first, second]));
        at % turns == self.turn.load(Ordering::Relaxed) % turns
    }

    /// Whether a capture may rely on an object without reading it: its turn did not come, or it is there and sound.
    pub(super) fn stands(&self, id: ObjectId, kind: ObjectKind) -> bool {
        // What is in its place and no file is named by whoever writes it.
        !self.is_due(id) || self.is_sound(id, kind).unwrap_or(false)
    }

    /// Whether an object is there, as it was known if it was.
    pub(super) fn is_there(&self, id: ObjectId) -> bool {
        let known = self.known_stamp(id);
        self.stamp(id).is_some_and(|stamp| known == Stamp::UNKNOWN || stamp == known)
    }

    /// Whether an object is there and sound. One that a power cut left damaged, or that somebody changed, is not, and is written
    /// anew. Fails where no file stands in its place, but something else, which is nobody's to replace.
    pub(super) fn is_sound(&self, id: ObjectId, kind: ObjectKind) -> Result<bool> {
        let known = self.known.lock().get(&id).copied();
        if known.is_some_and(|known| self.stamp(id) == Some(known.stamp)) {
            return Ok(true);
        }
        let path = self.locate_object(id);
        let is_there = is_file(&path);
        let is_there = is_there.map_err(|error| Error::Object { path, reason: error.to_string() })?;
        let is_sound = is_there && self.verify(id, kind).is_ok();
        if known.is_some() || (is_there && !is_sound) {
            self.distrust(id);
        }
        if is_sound {
            self.learn_sound(id);
        }
        Ok(is_sound)
    }
}

/// Has later captures into a store look at all that they rely on, since something of it was found damaged: whoever knows of its
/// objects forgets them, as behind a collection. Where that cannot be, they look in turn.
pub(super) fn doubt(store: &Path) {
    let path = store.join(COLLECTED);
    let opened = match create_new(&path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => open_file(&path),
        created => created,
    };
    // Its time, and so the store's mark, is another one.
    let _ = opened.and_then(|file| file.set_modified(SystemTime::now()));
}

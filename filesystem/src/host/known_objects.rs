//! Knowledge about the objects of a store: that they are present, intact and durable.
//!
//! An object that was written or read entirely is known by the length of its file and the time of
//! its last change, its [`Stamp`]; if it is in a git pack, by those of the pack and its index. A capture that relies on it without reading it checks that
//! stamp, and reads the object if it differs. So a file that was truncated, removed or overwritten
//! is found, and written again from the workspace's contents. A check costs as much as the stat of
//! a file in the workspace. So a capture does it for [`LOOKED_AT_MAX`] objects of files, in turn if
//! there are more. Bytes that changed under the file system are found when they are read; the
//! reader then [informs](doubt) all later captures.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use super::collect::COLLECTED;
use super::directory_check;
use super::object_files::{is_file, open_file};
use super::objects::{ObjectId, ObjectKind, ObjectPlace, Objects, create_new};
use crate::error::{Error, Result};

/// Beyond this number, all known objects are forgotten, which costs only time.
const KNOWN_MAX: usize = 1 << 21;

/// Approximate number of objects that a capture relies on and checks without reading them. For
/// 10,000 unchanged files, 4,096 checks cost half as much as the walk, 1 to 5 us each; these cost
/// an eighth.
const LOOKED_AT_MAX: u64 = 1024;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    pub(super) len: u64,
    pub(super) modified_ns: i64,
}

impl Stamp {
    /// The stamp of a missing file.
    pub(super) const UNKNOWN: Stamp = Stamp { len: 0, modified_ns: i64::MIN };

    pub(super) fn of(found: &fs::Metadata) -> Stamp {
        let modified_ns = found.mtime().wrapping_mul(1_000_000_000).wrapping_add(found.mtime_nsec());
        Stamp { len: found.len(), modified_ns }
    }
}

/// State of an object in the store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Soundness {
    Intact,
    Damaged,
    Missing,
}

#[derive(Clone, Copy)]
pub(super) struct KnownObject {
    is_durable: bool,
    stamp: Stamp,
}

impl Objects {
    /// Forgets all known objects, because another process may have changed the store.
    pub(super) fn forget(&self) {
        self.known.lock().clear();
        self.packs.forget();
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

    /// Returns the stamp of an object when it was last found intact.
    pub(super) fn known_stamp(&self, id: ObjectId) -> Stamp {
        self.known.lock().get(&id).map_or(Stamp::UNKNOWN, |known| known.stamp)
    }

    /// Registers objects as known: their stamps, and whether they are durable, unless they were
    /// durable before.
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

    /// Registers an object as known that was just written or read.
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

    /// Forgets an object that is missing or was overwritten. Objects that name it are no longer
    /// evidence for it, so all of them are synced again.
    fn distrust(&self, id: ObjectId) {
        let mut known = self.known.lock();
        known.remove(&id);
        // Of many damaged objects, only the first finds any that counts as durable.
        if self.has_durable.swap(false, Ordering::Relaxed) {
            known.values_mut().for_each(|known| known.is_durable = false);
        }
    }

    fn stamp(&self, id: ObjectId) -> Option<Stamp> {
        let found = match self.place(id) {
            ObjectPlace::File(path) => fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file),
            ObjectPlace::Packed(pack, _) => return pack.stamp(),
        };
        found.as_ref().map(Stamp::of)
    }

    /// Starts a capture of a workspace with this number of files, as far as it is known.
    pub(super) fn begin_capture(&self, files: u64) {
        self.packs.refresh();
        let turns = files.div_ceil(LOOKED_AT_MAX).max(1);
        if self.turns.swap(turns, Ordering::Relaxed) != turns {
            // Processes that take one capture each should not all check the same objects.
            self.turn.store(directory_check::entropic().as_u64_pair().0 >> 1, Ordering::Relaxed);
        }
        self.turn.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether it is this capture's turn to check an object.
    pub(super) fn is_due(&self, id: ObjectId) -> bool {
        let turns = self.turns.load(Ordering::Relaxed);
        let [first, second, ..] = id.0;
        let at = u64::from(u16::from_le_bytes([first, second]));
        at % turns == self.turn.load(Ordering::Relaxed) % turns
    }

    /// Returns whether a capture may rely on an object without reading it: either it is not its
    /// turn, or it is present and intact.
    pub(super) fn is_trusted(&self, id: ObjectId, kind: ObjectKind) -> bool {
        // An entry of a different kind in its place is reported by the later write.
        !self.is_due(id) || self.is_sound(id, kind).unwrap_or(false)
    }

    /// Returns whether an object is present and, if its stamp is known, has that stamp.
    pub(super) fn is_there(&self, id: ObjectId) -> bool {
        let known = self.known_stamp(id);
        self.stamp(id).is_some_and(|stamp| known == Stamp::UNKNOWN || stamp == known)
    }

    /// Returns whether an object is present and intact. An object that a power cut damaged, or that
    /// was overwritten, is not, and is written again. Fails if an entry of a different kind is in
    /// its place, which must not be replaced.
    pub(super) fn is_sound(&self, id: ObjectId, kind: ObjectKind) -> Result<bool> {
        Ok(self.soundness(id, kind)? == Soundness::Intact)
    }

    /// Examines an object like [`is_sound`](Self::is_sound).
    pub(super) fn soundness(&self, id: ObjectId, kind: ObjectKind) -> Result<Soundness> {
        let known = self.known.lock().get(&id).copied();
        if known.is_some_and(|known| self.stamp(id) == Some(known.stamp)) {
            return Ok(Soundness::Intact);
        }
        let path = self.path(id);
        let has_file = is_file(&path).map_err(|error| Error::Object { path, reason: error.to_string() })?;
        let is_there = has_file || self.has_elsewhere(id);
        let is_sound = is_there && self.verify(id, kind).is_ok();
        if known.is_some() || (is_there && !is_sound) {
            self.distrust(id);
        }
        if is_sound {
            self.learn_sound(id);
        }
        Ok(match (is_there, is_sound) {
            (_, true) => Soundness::Intact,
            (true, false) => Soundness::Damaged,
            (false, false) => Soundness::Missing,
        })
    }
}

/// Makes later captures into a store check everything that they rely on, because one of its objects
/// was found damaged: all processes forget their known objects, as after a collection. If this
/// fails, captures check the objects in turn.
pub(super) fn doubt(store: &Path) {
    let path = store.join(COLLECTED);
    let opened = match create_new(&path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => open_file(&path),
        created => created,
    };
    // This changes the file's time, and so the store's mark.
    let _ = opened.and_then(|file| file.set_modified(SystemTime::now()));
}

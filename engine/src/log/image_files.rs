//! The files of images, in the session's `snapshots` directory.
//!
//! An image is a cache: an unreadable image is ignored, and a failure to write one has no other
//! effect. If the disk has no room for a record or an object, the images are removed to make room.
//! An image is written under a temporary name, part by part, synced and renamed. A name in the
//! directory therefore nearly always means a complete image; its digest, which is written last,
//! detects an incomplete one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::image::{Front, IMAGE_BYTES_MAX};
use parking_lot::Mutex;

use super::layout;
use crate::storage::{Access, EntryKind, Storage, StorageFile};

/// Number of images that are kept: if the newest is unusable, the previous one may be usable.
const KEPT_MAX: usize = 2;

pub(crate) const UNFINISHED_SUFFIX: &str = ".image.new";

/// Number of bytes that are read first: a file that is not an image is not read completely.
const MAGIC_LEN: usize = 8;

/// Lists the images of a session, newest first.
pub(crate) fn list(storage: &dyn Storage, dir: &Path) -> Vec<(SequenceNumber, PathBuf)> {
    let directory = layout::snapshots_dir(dir);
    let entries = storage.list(&directory).unwrap_or_default();
    let mut images: Vec<(SequenceNumber, PathBuf)> = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::File)
        .filter_map(|entry| Some((layout::image_position(&entry.name)?, directory.join(&entry.name))))
        .collect();
    images.sort_by(|left, right| right.cmp(left));
    images
}

/// Returns the images that may be used to open a log with this many records.
pub(crate) fn usable_images(
    storage: &dyn Storage,
    dir: &Path,
    next_sequence: SequenceNumber,
) -> impl Iterator<Item = PathBuf> {
    let of_log = list(storage, dir).into_iter().filter(move |(at, _)| *at <= next_sequence);
    of_log.take(KEPT_MAX).map(|(_, path)| path)
}

/// Removes a session's images and abandons the one that is being written, so that the disk has
/// their room.
pub(crate) fn remove_all(storage: &dyn Storage, dir: &Path, unfinished: &UnfinishedImage) {
    let mut unfinished = unfinished.0.lock();
    if let Some(unfinished) = unfinished.take() {
        unfinished.remove(storage);
    }
    for (_, path) in list(storage, dir) {
        // An image that cannot be removed only takes up room.
        let _ = storage.remove_file(&path);
    }
}

/// The file of the image that is being written. The log's writer removes it if it needs the room.
/// The lock is held while the image grows and while it gets its name. No part of the image is
/// therefore written after [`remove_all`], and an image is either removed by it or does not exist
/// yet.
#[derive(Debug, Default)]
pub(crate) struct UnfinishedImage(Mutex<Option<UnfinishedFile>>);

#[derive(Debug)]
struct UnfinishedFile {
    path: PathBuf,
    file: Arc<dyn StorageFile>,
}

impl UnfinishedFile {
    fn remove(&self, storage: &dyn Storage) {
        // The image's writer holds the file open, and the room of an open file is not free when its
        // name is removed.
        let _ = self.file.len().and_then(|len| self.file.give_back(0, len));
        let _ = storage.remove_file(&self.path);
    }
}

/// Removes the images that killed writers have not finished. A writer builds one at a time.
fn remove_unfinished(storage: &dyn Storage, dir: &Path) {
    let directory = layout::snapshots_dir(dir);
    for entry in storage.list(&directory).unwrap_or_default() {
        if entry.kind == EntryKind::File && entry.name.ends_with(UNFINISHED_SUFFIX) {
            let _ = storage.remove_file(&directory.join(entry.name));
        }
    }
}

/// Reads the bytes of an image. Returns `None` if they cannot be read or are too many.
pub(crate) fn read(storage: &dyn Storage, path: &Path) -> Option<Vec<u8>> {
    let file = storage.open(path, Access::Read).ok()?;
    let len = file.len().ok().filter(|len| *len <= IMAGE_BYTES_MAX)?;
    let mut magic = [0; MAGIC_LEN];
    if file.read_at(&mut magic, 0).ok()? < MAGIC_LEN || magic == [0; MAGIC_LEN] {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    let read = file.read_at(&mut bytes, 0).ok()?;
    bytes.truncate(read);
    Some(bytes)
}

/// Number of bytes that are buffered before they are written.
const GATHERED_BYTES: usize = 256 << 10;

/// An image that is being written, part by part.
#[derive(Debug)]
pub(crate) struct Building {
    storage: Arc<dyn Storage>,
    path: PathBuf,
    unfinished: Arc<UnfinishedImage>,
    front: Front,
    offset: u64,
    gathered: Vec<u8>,
}

impl Building {
    /// Begins the image of all records below `next_sequence`. Its file is in `unfinished` until it
    /// has its name.
    pub(crate) fn begin(
        storage: &Arc<dyn Storage>,
        dir: &Path,
        next_sequence: SequenceNumber,
        unfinished: &Arc<UnfinishedImage>,
    ) -> std::io::Result<Building> {
        let path = layout::image_file(dir, next_sequence);
        let building = path.with_extension("image.new");
        storage.create_dir_all(&layout::snapshots_dir(dir))?;
        remove_unfinished(storage.as_ref(), dir);
        let file = storage.create(&building, 0)?;
        *unfinished.0.lock() = Some(UnfinishedFile { path: building, file });
        let (storage, unfinished) = (Arc::clone(storage), Arc::clone(unfinished));
        let (front, gathered) = (Front::default(), Vec::new());
        Ok(Building { storage, path, unfinished, front, offset: Front::LEN, gathered })
    }

    pub(crate) fn len(&self) -> u64 {
        self.offset + self.gathered.len() as u64
    }

    pub(crate) fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> std::io::Result<()> {
        write(&mut self.gathered);
        if self.gathered.len() >= GATHERED_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.front.take(&self.gathered);
        let unfinished = self.unfinished.0.lock();
        unfinished.as_ref().ok_or_else(given_up)?.file.write_at(&self.gathered, self.offset)?;
        self.offset += self.gathered.len() as u64;
        self.gathered.clear();
        // One large item must not occupy its memory for long.
        self.gathered.shrink_to(2 * GATHERED_BYTES);
        Ok(())
    }

    /// Makes the image durable, gives it its name, and removes the oldest images. Also removes
    /// images of positions that the log had not reached: these belong to another log, as after
    /// restoring a backup. Returns the length of the image in bytes.
    pub(crate) fn finish(mut self, dir: &Path, next_sequence: SequenceNumber) -> std::io::Result<u64> {
        self.flush()?;
        let mut unfinished = self.unfinished.0.lock();
        let whole = unfinished.as_ref().ok_or_else(given_up)?;
        whole.file.write_at(&self.front.finish(), 0)?;
        whole.file.sync_data()?;
        self.storage.rename(&whole.path, &self.path)?;
        *unfinished = None;
        let images = list(self.storage.as_ref(), dir);
        let (ahead, own): (Vec<_>, Vec<_>) = images.into_iter().partition(|(at, _)| *at > next_sequence);
        for (_, path) in ahead.into_iter().chain(own.into_iter().skip(KEPT_MAX)) {
            let _ = self.storage.remove_file(&path);
        }
        Ok(self.offset)
    }
}

fn given_up() -> std::io::Error {
    std::io::Error::other("the image was abandoned, because the disk has no space for records")
}

impl Drop for Building {
    fn drop(&mut self) {
        if let Some(unfinished) = self.unfinished.0.lock().take() {
            unfinished.remove(self.storage.as_ref());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::MemoryStorage;

    #[test]
    fn an_image_that_is_being_written_gives_its_room_to_records() {
        // A record was refused on a full disk while an unfinished image occupied over a megabyte of
        // it.
        let disk = MemoryStorage::new();
        let storage: Arc<dyn Storage> = Arc::new(disk.clone());
        let (dir, unfinished) = (Path::new("/session"), Arc::default());
        let part = |into: &mut Vec<u8>| into.extend([7; GATHERED_BYTES]);
        let mut building = Building::begin(&storage, dir, SequenceNumber::new(9), &unfinished).unwrap();
        building.write(part).unwrap();
        assert!(disk.used_bytes() >= GATHERED_BYTES as u64);
        remove_all(&disk, dir, &unfinished);
        assert_eq!(disk.used_bytes(), 0);
        assert!(building.write(part).is_err());
        assert!(building.finish(dir, SequenceNumber::new(9)).is_err());
        assert_eq!(disk.used_bytes(), 0);
        assert_eq!(list(&disk, dir), []);

        // The next one is written normally.
        let mut building = Building::begin(&storage, dir, SequenceNumber::new(12), &unfinished).unwrap();
        building.write(part).unwrap();
        building.finish(dir, SequenceNumber::new(12)).unwrap();
        assert_eq!(list(&disk, dir).len(), 1);
        remove_all(&disk, dir, &unfinished);
        assert_eq!(disk.used_bytes(), 0);
    }
}

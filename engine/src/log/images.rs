//! The files of images, in the session's `snapshots` folder.
//!
//! An image is a cache: what cannot be read is passed over, and what cannot be written is done without. It is
//! written under a temporary name, synced and renamed, so a name in the folder mostly means a whole image; its
//! digest tells where it does not.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::image::IMAGE_BYTES_MAX;

use super::layout;
use super::storage::{Access, EntryKind, Storage};

/// How many images are kept: should the newest not do, the one before may.
const KEPT_MAX: usize = 2;

/// The first bytes are read before the rest: a file that is no image is not read whole.
const MAGIC_LEN: usize = 8;

/// The images of a session, the newest first.
pub(crate) fn list(storage: &dyn Storage, dir: &Path) -> Vec<(u64, PathBuf)> {
    let folder = layout::snapshots_dir(dir);
    let entries = storage.list(&folder).unwrap_or_default();
    let mut images: Vec<(u64, PathBuf)> = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::File)
        .filter_map(|entry| Some((layout::image_position(&entry.name)?, folder.join(&entry.name))))
        .collect();
    images.sort_by(|left, right| right.cmp(left));
    images
}

/// The bytes of an image; `None` where they cannot be read or are too many.
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

/// Writes the image of all records below `next_sequence` and lets go of the oldest, and of those of positions that
/// the log had not reached: they are of another log, as a restored backup leaves them.
pub(crate) fn write(
    storage: &Arc<dyn Storage>,
    dir: &Path,
    next_sequence: u64,
    bytes: &[u8],
) -> std::io::Result<()> {
    let (folder, path) = (layout::snapshots_dir(dir), layout::image_file(dir, next_sequence));
    let building = path.with_extension("image.new");
    storage.create_dir_all(&folder)?;
    // A leftover of the same name is of an attempt that never ended.
    let _ = storage.remove_file(&building);
    let written = storage.create(&building, bytes.len() as u64).and_then(|file| {
        file.write_at(bytes, 0)?;
        file.sync_data()?;
        storage.rename(&building, &path)
    });
    if written.is_err() {
        let _ = storage.remove_file(&building);
    }
    written?;
    let images = list(storage.as_ref(), dir);
    let (ahead, own): (Vec<_>, Vec<_>) = images.into_iter().partition(|(at, _)| *at > next_sequence);
    for (_, path) in ahead.into_iter().chain(own.into_iter().skip(KEPT_MAX)) {
        let _ = storage.remove_file(&path);
    }
    Ok(())
}

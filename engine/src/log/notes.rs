//! Small files beside the lock file, which say of a session's writer what its log does not.
//!
//! They are best effort: one may be missing, out of date, or something else than a note. Nothing but what people are shown depends on them, and
//! on the note of a lock's holder which logs a listing reads.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::layout;
use crate::storage::{Access, Storage};

/// Leaves a note of at most `bytes_max` bytes in the place of the one before. Returns whether there is one now, which may be empty.
pub(super) fn leave(
    storage: &Arc<dyn Storage>,
    store: &Path,
    path: &Path,
    note: &impl Serialize,
    bytes_max: u64,
) -> bool {
    let Ok(text) = serde_json::to_vec(note) else { return false };
    // A link in the place of the directory is not followed.
    if text.len() as u64 > bytes_max || storage.create_dir_all(&layout::writers_dir(store)).is_err() {
        return false;
    }
    let _ = storage.remove_file(path);
    match storage.create(path, 0) {
        Ok(file) => {
            let _ = file.write_at(&text, 0);
            true
        }
        Err(_) => false,
    }
}

/// Returns what a note says, of which at most `bytes_max` bytes are read; `None` if there is none.
pub(super) fn read<T: DeserializeOwned>(storage: &dyn Storage, path: &Path, bytes_max: u64) -> Option<T> {
    let file = storage.open(path, Access::Read).ok()?;
    let len = file.len().ok()?.min(bytes_max);
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    let read = file.read_at(&mut bytes, 0).ok()?;
    serde_json::from_slice(bytes.get(..read)?).ok()
}

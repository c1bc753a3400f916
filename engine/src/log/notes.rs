//! Small files next to the lock file, with facts about a session's writer that its log does not
//! contain.
//!
//! They are best effort: one may be missing, out of date, or not a note. They affect only messages
//! to people and, for the note of a lock's holder, the logs that a listing reads, the wait for
//! forked processes, and the detection of a second writer ([`super::lock`]).

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::layout;
use crate::storage::{Access, Storage};

/// Writes a note of at most `bytes_max` bytes, replacing the previous one. Returns whether there is
/// one now, which may be empty.
pub(super) fn leave(
    storage: &Arc<dyn Storage>,
    store: &Path,
    path: &Path,
    note: &impl Serialize,
    bytes_max: u64,
) -> bool {
    let Ok(text) = serde_json::to_vec(note) else { return false };
    // A link in place of the directory is not followed.
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

/// Reads a note, at most `bytes_max` bytes of it; `None` if there is none.
pub(super) fn read<T: DeserializeOwned>(storage: &dyn Storage, path: &Path, bytes_max: u64) -> Option<T> {
    let file = storage.open(path, Access::Read).ok()?;
    let len = file.len().ok()?.min(bytes_max);
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    let read = file.read_at(&mut bytes, 0).ok()?;
    serde_json::from_slice(bytes.get(..read)?).ok()
}

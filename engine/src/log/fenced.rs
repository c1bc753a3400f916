//! Notes that the writer of a session was fenced, and from which record on.
//!
//! A log cannot say it: a fenced session takes no records, and those that were never acknowledged stand in it like all others. So the writer
//! leaves a small file beside the note of its lock. The file is best effort: nothing but what is shown to people depends on it. It goes once the session is
//! opened with its replicator again, or deleted.

use std::path::Path;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use uuid::Uuid;

use super::layout;
use crate::storage::{Access, Storage};

/// More than such a note has.
const NOTE_BYTES_MAX: u64 = 16 << 10;

/// Says that another writer claimed a session while this folder's had it open.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Fenced {
    /// First record of the local log that was not acknowledged: it and all behind it count nowhere, unless the replicator
    /// says otherwise.
    pub from: SequenceNumber,
    /// Epoch of the other writer.
    pub epoch: u64,
    /// Who it is, in words. It chose them itself, so they are escaped where they are shown.
    pub by: String,
}

/// Leaves the note.
pub(crate) fn note(storage: &Arc<dyn Storage>, store: &Path, session: Uuid, fenced: &Fenced) {
    let Ok(text) = serde_json::to_vec(fenced) else { return };
    if text.len() as u64 > NOTE_BYTES_MAX || storage.create_dir_all(&layout::writers_dir(store)).is_err() {
        return;
    }
    let path = layout::fenced_file(store, session);
    let _ = storage.remove_file(&path);
    if let Ok(file) = storage.create(&path, 0) {
        let _ = file.write_at(&text, 0);
    }
}

/// Takes the note away.
pub(crate) fn forget(storage: &dyn Storage, store: &Path, session: Uuid) {
    let _ = storage.remove_file(&layout::fenced_file(store, session));
}

/// Returns what the note of the session in the folder `dir` says; `None` if there is none.
pub(crate) fn read(storage: &dyn Storage, dir: &Path) -> Option<Fenced> {
    let (session, store) = (layout::session_of(dir)?, layout::store_of(dir)?);
    let file = storage.open(&layout::fenced_file(store, session), Access::Read).ok()?;
    let len = file.len().ok()?.min(NOTE_BYTES_MAX);
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    let read = file.read_at(&mut bytes, 0).ok()?;
    serde_json::from_slice(bytes.get(..read)?).ok()
}

//! Notes that the writer of a session was fenced, and from which record on.
//!
//! A log cannot say it: a fenced session takes no records, and those that were never acknowledged stand in it like all others. So the writer
//! leaves a small file beside the note of its lock. It goes once the session is
//! opened with its replicator again, or deleted.

use std::path::Path;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use uuid::Uuid;

use super::{layout, notes};
use crate::storage::Storage;

/// Greatest length of such a note in bytes.
const NOTE_BYTES_MAX: u64 = 16 << 10;

/// Says that another writer claimed a session while this directory's had it open.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct SessionFence {
    /// First record of the local log that was not acknowledged: it and all behind it count nowhere, unless the replicator
    /// says otherwise.
    pub from: SequenceNumber,
    /// Epoch of the other writer.
    pub epoch: u64,
    /// Who it is, in words. It chose them itself, so they are escaped where they are shown.
    pub by: String,
}

/// Leaves the note.
pub(crate) fn note(storage: &Arc<dyn Storage>, store: &Path, session: Uuid, fenced: &SessionFence) {
    notes::leave(storage, store, &layout::fenced_file(store, session), fenced, NOTE_BYTES_MAX);
}

/// Takes the note away.
pub(crate) fn forget(storage: &dyn Storage, store: &Path, session: Uuid) {
    let _ = storage.remove_file(&layout::fenced_file(store, session));
}

/// Returns what the note of the session in the directory `dir` says; `None` if there is none.
pub(crate) fn read(storage: &dyn Storage, dir: &Path) -> Option<SessionFence> {
    let (session, store) = (layout::session_of(dir)?, layout::store_of(dir)?);
    notes::read(storage, &layout::fenced_file(store, session), NOTE_BYTES_MAX)
}

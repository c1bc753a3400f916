//! Notes that the writer of a session was fenced, and from which record on.
//!
//! A log cannot contain this: a fenced session accepts no records, and records that were never
//! acknowledged look like all others in it. The writer therefore leaves a small file next to the
//! note of its lock. The file is removed when the session is opened with its replicator again, or
//! deleted.

use std::path::Path;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use uuid::Uuid;

use super::{layout, notes};
use crate::storage::Storage;

const NOTE_BYTES_MAX: u64 = 16 << 10;

/// Reports that another writer claimed a session while this directory's writer had it open.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct SessionFence {
    /// First record of the local log that was not acknowledged. It and all later ones do not count,
    /// unless the replicator reports otherwise.
    pub from: SequenceNumber,
    /// Epoch of the other writer.
    pub epoch: u64,
    /// Description of the other writer, in its own words. It must be escaped for display.
    pub by: String,
}

pub(crate) fn note(storage: &Arc<dyn Storage>, store: &Path, session: Uuid, fenced: &SessionFence) {
    notes::leave(storage, store, &layout::fenced_file(store, session), fenced, NOTE_BYTES_MAX);
}

pub(crate) fn forget(storage: &dyn Storage, store: &Path, session: Uuid) {
    let _ = storage.remove_file(&layout::fenced_file(store, session));
}

/// Reads the note of the session in the directory `dir`; `None` if there is none.
pub(crate) fn read(storage: &dyn Storage, dir: &Path) -> Option<SessionFence> {
    let (session, store) = (layout::session_of(dir)?, layout::store_of(dir)?);
    notes::read(storage, &layout::fenced_file(store, session), NOTE_BYTES_MAX)
}

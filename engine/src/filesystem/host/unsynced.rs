//! Snapshots that were taken without being synced, and that a record names which is to become durable.

use std::sync::Arc;

use parking_lot::Mutex;

use super::manifest::Folder;
use super::objects::ObjectId;

/// A snapshot that is not known to be durable.
pub(super) struct Pending {
    pub(super) commit: ObjectId,
    /// What it needs beside what the workspace holds.
    pub(super) beside: Vec<ObjectId>,
    pub(super) root: Arc<Folder>,
}

/// The snapshots in the order in which they were taken; `None` as long as nobody asks for them.
#[derive(Default)]
pub(super) struct Unsynced(Mutex<Option<Vec<Pending>>>);

impl Unsynced {
    /// Remembers them from now on.
    pub(super) fn keep(&self) {
        self.0.lock().get_or_insert_default();
    }

    /// Remembers a snapshot, unless it was the last one too.
    pub(super) fn add(&self, pending: Pending) {
        if let Some(kept) = self.0.lock().as_mut()
            && kept.last().is_none_or(|last| (last.commit, &last.beside) != (pending.commit, &pending.beside))
        {
            kept.push(pending);
        }
    }

    /// Hands them over.
    pub(super) fn take(&self) -> Vec<Pending> {
        self.0.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }
}

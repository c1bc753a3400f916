//! Snapshots that were taken without being synced, and that a record names which is to become durable.

use std::sync::Arc;

use parking_lot::Mutex;

use super::manifest::ManifestDirectory;
use super::objects::ObjectId;
use crate::error::{Error, Result};

/// A snapshot that is not known to be durable.
pub(super) struct UnsyncedCapture {
    pub(super) commit: ObjectId,
    /// What it needs beside what the workspace holds.
    pub(super) beside: Vec<ObjectId>,
    pub(super) root: Arc<ManifestDirectory>,
}

/// What is to be synced before the next log is that names it. Sessions may share it.
#[derive(Default)]
pub(super) struct CaptureSyncQueue {
    /// The snapshots in the order in which they were taken; `None` as long as nobody asks for them.
    pending: Mutex<Option<Vec<UnsyncedCapture>>>,
    /// Held while snapshots are synced, so that whoever asks meanwhile goes on once they are durable. The first failure
    /// stays: a sync that failed is not tried again, since the next one may succeed without having written anything.
    failed: Mutex<Option<Error>>,
}

impl CaptureSyncQueue {
    /// Remembers them from now on.
    pub(super) fn keep(&self) {
        self.pending.lock().get_or_insert_default();
    }

    /// Remembers a snapshot, unless it was the last one too.
    pub(super) fn add(&self, pending: UnsyncedCapture) {
        if let Some(kept) = self.pending.lock().as_mut()
            && kept.last().is_none_or(|last| (last.commit, &last.beside) != (pending.commit, &pending.beside))
        {
            kept.push(pending);
        }
    }

    /// Hands the snapshots to `sync`, one caller at a time.
    pub(super) fn sync(&self, sync: impl FnOnce(Vec<UnsyncedCapture>) -> Result<()>) -> Result<()> {
        let mut failed = self.failed.lock();
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        let pending = self.pending.lock().as_mut().map(std::mem::take).unwrap_or_default();
        sync(pending).inspect_err(|error| *failed = Some(error.clone()))
    }
}

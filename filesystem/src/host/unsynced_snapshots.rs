//! Snapshots that were taken without a sync. They have to become durable before a record that names
//! them does.

use std::sync::Arc;

use parking_lot::Mutex;

use super::manifest::ManifestDirectory;
use super::objects::ObjectId;
use crate::error::{Error, Result};

pub(super) struct UnsyncedCapture {
    pub(super) commit: ObjectId,
    /// Objects that it needs in addition to the workspace's contents.
    pub(super) beside: Vec<ObjectId>,
    pub(super) root: Arc<ManifestDirectory>,
}

/// The snapshots to sync before the next sync of a log that names them. Sessions may share it.
#[derive(Default)]
pub(super) struct CaptureSyncQueue {
    /// The snapshots in the order in which they were taken; `None` until they are requested.
    pending: Mutex<Option<Vec<UnsyncedCapture>>>,
    /// Locked while snapshots are synced, so that concurrent callers continue once they are
    /// durable. Stores the first failure: a failed sync is not retried, since the next one may
    /// succeed without having written anything.
    failed: Mutex<Option<Error>>,
}

impl CaptureSyncQueue {
    pub(super) fn keep(&self) {
        self.pending.lock().get_or_insert_default();
    }

    /// Remembers a snapshot, unless it equals the last one.
    pub(super) fn add(&self, pending: UnsyncedCapture) {
        if let Some(kept) = self.pending.lock().as_mut()
            && kept.last().is_none_or(|last| (last.commit, &last.beside) != (pending.commit, &pending.beside))
        {
            kept.push(pending);
        }
    }

    /// Passes the snapshots to `sync`, one caller at a time.
    pub(super) fn sync(&self, sync: impl FnOnce(Vec<UnsyncedCapture>) -> Result<()>) -> Result<()> {
        let mut failed = self.failed.lock();
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        let pending = self.pending.lock().as_mut().map(std::mem::take).unwrap_or_default();
        sync(pending).inspect_err(|error| *failed = Some(error.clone()))
    }
}

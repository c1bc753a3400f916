//! A replicator's state of each session between two calls of the engine.

use std::collections::BTreeMap;
use std::sync::Mutex;

use foldlog::replication::ReplicaError;
use uuid::Uuid;

/// Stores, for each session, a reader at its end, or the writer that claimed it there.
#[derive(Debug)]
pub(crate) struct Slots<R, W>(Mutex<BTreeMap<Uuid, Slot<R, W>>>);

#[derive(Debug)]
enum Slot<R, W> {
    Read(R),
    Claimed(W),
}

impl<R, W> Default for Slots<R, W> {
    fn default() -> Slots<R, W> {
        Slots(Mutex::default())
    }
}

impl<R, W> Slots<R, W> {
    /// Stores the reader of a session.
    pub(crate) fn note_read(&self, session: Uuid, reader: R) {
        crate::lock(&self.0).insert(session, Slot::Read(reader));
    }

    /// Stores the writer that claimed a session.
    pub(crate) fn note_claimed(&self, session: Uuid, writer: W) {
        crate::lock(&self.0).insert(session, Slot::Claimed(writer));
    }

    /// Removes and returns the reader of a session, for a claim at its position. Any other entry of
    /// the session is dropped.
    ///
    /// # Errors
    ///
    /// [`ReplicaError::Failed`] if there is no reader at the expected position.
    pub(crate) fn take_read(
        &self,
        session: Uuid,
        stands: impl FnOnce(&R) -> bool,
    ) -> Result<R, ReplicaError> {
        match crate::lock(&self.0).remove(&session) {
            Some(Slot::Read(reader)) if stands(&reader) => Ok(reader),
            _ => Err(ReplicaError::Failed {
                reason: "the session was not read up to this position".to_owned(),
            }),
        }
    }

    /// Removes and returns the writer of a session, if it is the expected one.
    ///
    /// # Errors
    ///
    /// [`ReplicaError::Failed`] if it is a different one, or there is none.
    pub(crate) fn take_claimed(
        &self,
        session: Uuid,
        is_it: impl FnOnce(&W) -> bool,
    ) -> Result<W, ReplicaError> {
        let mut slots = crate::lock(&self.0);
        match slots.remove(&session) {
            Some(Slot::Claimed(writer)) if is_it(&writer) => Ok(writer),
            other => {
                slots.extend(other.map(|other| (session, other)));
                let reason = "the session is not claimed here under this epoch".to_owned();
                Err(ReplicaError::Failed { reason })
            }
        }
    }
}

//! Confirms, directly before a tool starts, that this worker still owns the session.
//! [`crate::replication`] explains why an acknowledged start record is not enough, and which window
//! remains.

use std::sync::Arc;

use super::replica_feed::{Replica, replica_error};
use super::{SessionCalls, SessionInner};
use crate::error::{Error, Result};
use crate::log::fence::SessionFence;
#[cfg(feature = "async")]
use crate::offload::offload;
use crate::options::Durability;
use crate::replication::ReplicaError;

/// Maximum number of consecutive confirmations that may have expired on arrival.
const CONFIRMATIONS_MAX: u32 = 10;

impl SessionCalls<'_> {
    /// Returns once the claim is known to be the session's newest one, as recently as the
    /// replicator demands. No wait may come between this and the start of the tool.
    ///
    /// # Errors
    ///
    /// [`Error::Fenced`] if a different worker took the session over, [`Error::ReplicaUnknown`] or
    /// [`Error::ReplicaFailed`] if that cannot be determined. The session then accepts no more
    /// writes.
    pub(crate) fn confirm_claim(&self) -> Result<()> {
        for _ in 0..CONFIRMATIONS_MAX {
            if self.session.inner.is_confirmed()? {
                return Ok(());
            }
            self.session.inner.confirm()?;
        }
        self.session.inner.require_confirmed()
    }

    /// Confirms the claim as [`confirm_claim`](SessionCalls::confirm_claim) does, on a thread of
    /// the pool.
    #[cfg(feature = "async")]
    pub(crate) async fn confirm_claim_async(&self) -> Result<()> {
        for _ in 0..CONFIRMATIONS_MAX {
            if self.session.inner.is_confirmed()? {
                return Ok(());
            }
            let inner = Arc::clone(&self.session.inner);
            offload(move || inner.confirm()).await?;
        }
        self.session.inner.require_confirmed()
    }
}

impl SessionInner {
    /// Returns the replica that has to confirm the claim before a tool starts, if there is one.
    fn confirms(&self) -> Option<&Replica> {
        let waits = self.durability != Durability::Process;
        self.replica.as_ref().filter(|_| waits)
    }

    /// Returns whether a tool may start now. Does no I/O.
    fn is_confirmed(&self) -> Result<bool> {
        let Some(replica) = self.confirms() else { return Ok(true) };
        match replica.gate.failure() {
            Some(cause) => Err(Error::clone(&cause)),
            None => Ok(replica.replication.replicator.is_confirmed(self.id, replica.epoch)),
        }
    }

    fn require_confirmed(&self) -> Result<()> {
        match self.is_confirmed()? {
            true => Ok(()),
            false => {
                let reason = "each confirmation of the session's claim arrived after the lease had expired: the lease may be \
                              shorter than the place needs to answer";
                Err(self.stop_unconfirmed(ReplicaError::Failed { reason: reason.to_owned() }))
            }
        }
    }

    fn confirm(&self) -> Result<()> {
        self.check_process()?;
        let Some(replica) = self.confirms() else { return Ok(()) };
        let confirmed = replica.replication.replicator.confirm(self.id, replica.epoch);
        confirmed.map_err(|error| self.stop_unconfirmed(error))
    }

    /// Stops writes to the session, since the claim was not confirmed.
    fn stop_unconfirmed(&self, error: ReplicaError) -> Error {
        let Some(replica) = &self.replica else { return replica_error(self.id, error) };
        if let ReplicaError::Fenced { epoch, by } = &error {
            self.note_fenced(SessionFence { from: replica.replicated_end(), epoch: *epoch, by: by.clone() });
        }
        self.stop_for(&replica.gate.fail(Arc::new(replica_error(self.id, error))))
    }
}

//! Keeps a worker's lease: renews it by a timer while the worker has sessions claimed.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time;
use uuid::Uuid;

/// Number of renewals in the length of a lease: one renewal may be lost.
const RENEWALS: u32 = 3;

/// Writes leases into a place. A failed write is not tried again until the next renewal: a lost
/// lease only costs time.
pub trait Leases: Send + Sync + 'static {
    /// Renews the worker's lease.
    fn renew(&self) -> impl Future<Output = ()> + Send;

    /// Records that the session was claimed under this lease. Returns whether that is written.
    fn link(&self, session: Uuid, epoch: u64) -> impl Future<Output = bool> + Send;

    /// Records that the session is not written under this lease any more.
    fn unlink(&self, session: Uuid, epoch: u64) -> impl Future<Output = ()> + Send;

    /// Gives up the lease, under which nothing is claimed any more. It may be renewed later.
    fn end(&self) -> impl Future<Output = ()> + Send;
}

/// Keeps the lease of one worker.
#[derive(Debug)]
pub struct LeaseRenewer<L> {
    pub(crate) leases: L,
    length: Duration,
    held: Mutex<LeasedSessions>,
}

#[derive(Debug, Default)]
struct LeasedSessions {
    sessions: BTreeMap<Uuid, ClaimedSession>,
    /// Whether a task renews.
    is_renewed: bool,
    /// Whether the lease was given up while the task waits.
    is_ended: bool,
}

/// A session that is claimed.
#[derive(Clone, Copy, Debug)]
struct ClaimedSession {
    epoch: u64,
    is_linked: bool,
}

impl<L: Leases> LeaseRenewer<L> {
    pub(crate) fn new(leases: L, length: Duration) -> Arc<LeaseRenewer<L>> {
        Arc::new(LeaseRenewer { leases, length, held: Mutex::default() })
    }

    /// Keeps the lease for a session that was claimed. Runs within a runtime, whose timer renews
    /// from then on.
    pub(crate) async fn hold(self: &Arc<Self>, session: Uuid, epoch: u64) {
        let (begins, is_ended) = {
            let mut held = crate::lock(&self.held);
            held.sessions.insert(session, ClaimedSession { epoch, is_linked: false });
            let begins = !std::mem::replace(&mut held.is_renewed, true);
            let is_ended = std::mem::take(&mut held.is_ended);
            (begins, is_ended)
        };
        if begins || is_ended {
            // Before the session names it.
            self.leases.renew().await;
        }
        if begins {
            tokio::spawn(keep(Arc::downgrade(self), self.length / RENEWALS));
        }
        self.link(session, epoch).await;
    }

    async fn link(&self, session: Uuid, epoch: u64) {
        let is_linked = self.leases.link(session, epoch).await;
        if let Some(claimed) =
            crate::lock(&self.held).sessions.get_mut(&session).filter(|held| held.epoch == epoch)
        {
            claimed.is_linked = is_linked;
        }
    }

    /// Forgets a session that another worker has claimed. Returns whether it was held under that
    /// epoch.
    pub(crate) fn lose(&self, session: Uuid, epoch: u64) -> bool {
        let mut held = crate::lock(&self.held);
        let is_held = held.sessions.get(&session).is_some_and(|claimed| claimed.epoch == epoch);
        is_held && held.sessions.remove(&session).is_some()
    }

    /// Records that a session is not written any more, so that a takeover need not wait for it.
    /// After the last one the lease is given up, since the process may end before the timer runs.
    pub(crate) async fn release(&self, session: Uuid, epoch: u64) {
        if !self.lose(session, epoch) {
            return;
        }
        self.leases.unlink(session, epoch).await;
        let ends = {
            let mut held = crate::lock(&self.held);
            let ends = held.sessions.is_empty();
            held.is_ended |= ends;
            ends
        };
        if ends {
            self.end().await;
        }
    }

    /// Gives up the lease. Renews it again if a session was claimed meanwhile, whose renewal may have
    /// been given up as well.
    async fn end(&self) {
        self.leases.end().await;
        if !crate::lock(&self.held).sessions.is_empty() {
            self.leases.renew().await;
        }
    }

    /// Renews for the sessions that are held, and returns whether there are any.
    async fn renew_held(&self) -> bool {
        let (is_renewed, unlinked) = {
            let mut held = crate::lock(&self.held);
            held.is_renewed = !held.sessions.is_empty();
            let unlinked = held.sessions.iter().filter(|(_, claimed)| !claimed.is_linked);
            let unlinked = unlinked.map(|(session, claimed)| (*session, claimed.epoch));
            (held.is_renewed, unlinked.collect::<Vec<_>>())
        };
        if !is_renewed {
            self.end().await;
            return false;
        }
        self.leases.renew().await;
        for (session, epoch) in unlinked {
            self.link(session, epoch).await;
        }
        true
    }
}

/// Renews while the keeper exists and holds sessions.
async fn keep<L: Leases>(keeper: Weak<LeaseRenewer<L>>, every: Duration) {
    loop {
        time::sleep(every).await;
        let Some(keeper) = keeper.upgrade() else { return };
        if !keeper.renew_held().await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::runtime::Builder;
    use tokio::sync::Notify;

    use super::*;

    /// A lease that is given up only after a signal.
    #[derive(Default)]
    struct SlowEnd {
        is_valid: AtomicBool,
        ending: Notify,
        ends: Notify,
    }

    impl Leases for SlowEnd {
        async fn renew(&self) {
            self.is_valid.store(true, Ordering::SeqCst);
        }

        async fn link(&self, _: Uuid, _: u64) -> bool {
            true
        }

        async fn unlink(&self, _: Uuid, _: u64) {}

        async fn end(&self) {
            self.ending.notify_one();
            self.ends.notified().await;
            self.is_valid.store(false, Ordering::SeqCst);
        }
    }

    /// The renewal for the claim was given up, and the worker had no lease until the timer ran.
    #[test]
    fn a_session_that_is_claimed_while_the_lease_is_given_up_has_a_lease() {
        Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
            let renewer = LeaseRenewer::new(SlowEnd::default(), Duration::from_secs(3_600));
            let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
            renewer.hold(one, 1).await;
            let releases = Arc::clone(&renewer);
            let released = tokio::spawn(async move { releases.release(one, 1).await });
            renewer.leases.ending.notified().await;
            renewer.hold(other, 1).await;
            renewer.leases.ends.notify_one();
            released.await.unwrap();
            assert!(renewer.leases.is_valid.load(Ordering::SeqCst));
            let releases = Arc::clone(&renewer);
            let released = tokio::spawn(async move { releases.release(other, 1).await });
            renewer.leases.ends.notify_one();
            released.await.unwrap();
            assert!(!renewer.leases.is_valid.load(Ordering::SeqCst));
        });
    }
}

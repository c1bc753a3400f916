//! Remembers the last confirmation of each session's claim by a place.
//!
//! An answer is only valid for the time of its request: a process may be stopped between the
//! place's answer and its own next step. So a confirmation has the time *before* its request was
//! sent, on a clock that also runs while the machine sleeps ([`clock`](crate::clock)). It is valid
//! for a sixth of the lease ([`fresh_for`]). A worker renews its lease three times in the lease's
//! length. Even if one renewal is lost, a process that waits for the lease takes the session over
//! only after that time.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use foldlog::replication::ReplicaError;
use uuid::Uuid;

use crate::lease::LEASE_LENGTH;

/// Number of parts of a lease, for one of which a confirmation is valid.
const PARTS: u32 = 6;

/// Returns the validity of a confirmation under a lease of this length. Without a lease, it is that
/// of a usual one.
pub(crate) fn fresh_for(lease: Option<Duration>) -> Duration {
    lease.unwrap_or(LEASE_LENGTH) / PARTS
}

/// Stores the last confirmation of each claimed session, with the state of the log at that time.
#[derive(Debug)]
pub(crate) struct Confirmations<S>(Mutex<BTreeMap<Uuid, Confirmation<S>>>);

#[derive(Clone, Copy, Debug)]
struct Confirmation<S> {
    epoch: u64,
    /// Time just before the request was sent.
    asked: Duration,
    stand: S,
}

impl<S> Default for Confirmations<S> {
    fn default() -> Confirmations<S> {
        Confirmations(Mutex::default())
    }
}

impl<S: Copy> Confirmations<S> {
    /// Notes that the claim of `epoch` was the session's last one at some moment after `asked`. An
    /// older confirmation of the same claim changes nothing.
    pub(crate) fn note(&self, session: Uuid, epoch: u64, asked: Duration, stand: S) {
        let mut all = crate::lock(&self.0);
        if all.get(&session).is_none_or(|known| (known.epoch, known.asked) <= (epoch, asked)) {
            all.insert(session, Confirmation { epoch, asked, stand });
        }
    }

    /// Forgets the claim of `epoch`, which was replaced by a later claim or has no writer any more.
    pub(crate) fn forget(&self, session: Uuid, epoch: u64) {
        let mut all = crate::lock(&self.0);
        if all.get(&session).is_some_and(|known| known.epoch == epoch) {
            all.remove(&session);
        }
    }

    /// Returns whether the claim of `epoch` was confirmed by a request that was sent less than
    /// `fresh` before `now`.
    pub(crate) fn is_fresh(&self, session: Uuid, epoch: u64, now: Duration, fresh: Duration) -> bool {
        let all = crate::lock(&self.0);
        let known = all.get(&session).filter(|known| known.epoch == epoch);
        known.is_some_and(|known| now.saturating_sub(known.asked) < fresh)
    }

    /// Returns the time of the last confirmation of the claim of `epoch`, and the state of the log
    /// at that time.
    ///
    /// # Errors
    ///
    /// [`ReplicaError::Failed`] if the session is not claimed under this epoch.
    pub(crate) fn last(&self, session: Uuid, epoch: u64) -> Result<(Duration, S), ReplicaError> {
        let all = crate::lock(&self.0);
        let known = all.get(&session).filter(|known| known.epoch == epoch);
        let unclaimed =
            || ReplicaError::Failed { reason: "the session is not claimed here under this epoch".to_owned() };
        known.map(|known| (known.asked, known.stand)).ok_or_else(unclaimed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confirmation_counts_for_a_part_of_the_lease_from_before_it_was_asked_for() {
        let (session, second) = (Uuid::from_u128(1), Duration::from_secs(1));
        let confirmations = Confirmations::default();
        let fresh = fresh_for(Some(second * 6));
        assert_eq!((fresh, fresh_for(None)), (second, LEASE_LENGTH / 6));
        confirmations.note(session, 2, second * 10, "first");
        let just_before = second * 11 - Duration::from_nanos(1);
        assert!(confirmations.is_fresh(session, 2, just_before, fresh));
        assert!(!confirmations.is_fresh(session, 2, second * 11, fresh));
        assert!(!confirmations.is_fresh(session, 1, second * 10, fresh));
        // An answer that arrives late does not replace a newer one; another claim does.
        confirmations.note(session, 2, second * 9, "late");
        assert_eq!(confirmations.last(session, 2).ok(), Some((second * 10, "first")));
        confirmations.note(session, 3, second * 9, "again");
        assert!(confirmations.last(session, 2).is_err());
        confirmations.forget(session, 2);
        assert_eq!(confirmations.last(session, 3).ok(), Some((second * 9, "again")));
        confirmations.forget(session, 3);
        assert!(confirmations.last(session, 3).is_err());
    }
}

//! Leases show when it is time to take a session over. They never decide whether that is safe:
//! claims and fencing do.
//!
//! A *worker* is one replicator in one process. While it has sessions claimed, it renews one lease
//! for all of them, by a timer of the thread that sends requests to the place. For each session,
//! the place records the worker under whose lease it was last claimed. So the cost of a lease does
//! not grow with the number of sessions.
//!
//! A process that wants a session requests its lease ([`Place::lease`]) and *watches* it
//! ([`LeaseWatch`]). The lease has run out once two looks that are its length apart, by the
//! watcher's own steady clock, found no renewal in between. The clocks of two machines are never
//! compared. A database uses its server's clock, which also wrote the time of the renewal.
//!
//! # Costs of a wrong lease
//!
//! | case | cost |
//! |---|---|
//! | the lease is alive, but its worker is idle, or does not write the session any more | a waiting process waits in vain, for as long as the host permits |
//! | the lease has run out, but its worker works | a takeover fences the worker: its open calls are recovered there, as after a crash |
//! | there is no lease, but a worker writes | as in the second case |
//!
//! The second case occurs if a worker was paused, was cut off from the place, or put its renewals
//! and the place did not show them. The third occurs between a claim in a bucket and the object
//! that names its worker, and for workers without a lease.
//!
//! # Modules
//!
//! | module | contains |
//! |---|---|
//! | `watch` | the result of a look at a lease, and a judgement from two of them; waiting for a session |
//! | `renewal` | renewal, for any place |

pub(crate) mod renewal;
mod watch;

use std::time::Duration;

use uuid::Uuid;

pub use watch::{
    LeasePacer, LeaseStanding, LeaseWait, LeaseWaitOutcome, LeaseWatch, SteadyPacing, wait_for_lease,
};

use crate::error::{Error, Result};

/// Default length of a lease. It is renewed three times in that time.
pub const LEASE_LENGTH: Duration = Duration::from_secs(30);

/// Minimum length of a lease.
pub const LEASE_LENGTH_MIN: Duration = Duration::from_millis(100);

/// Maximum length of a lease.
pub const LEASE_LENGTH_MAX: Duration = Duration::from_secs(3_600);

/// Describes the lease under which a session was last claimed, from a place's view.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionLease {
    /// Epoch of the claim.
    pub epoch: u64,
    /// The worker: one replicator in one process.
    pub worker: Uuid,
    /// Name of the claimant, which chose it; escape it before showing it.
    pub name: String,
    /// Length of the lease from a renewal on.
    pub length: Duration,
    /// Distinguishes one renewal from another, without further meaning; 0 if there is none.
    pub renewal: u64,
    /// Time of the last renewal, in microseconds since 1970 by the place's clock; `None` if the
    /// place does not report it. It is for people: only the place's own clock can be compared with
    /// it.
    pub renewed_us: Option<i64>,
    /// Remaining time by the place's own clock, and zero once it has run out; `None` if the place
    /// compares no times.
    pub left: Option<Duration>,
}

/// Checks the length of a lease that a host requests.
pub(crate) fn check_length(length: Duration) -> Result<Duration> {
    if (LEASE_LENGTH_MIN..=LEASE_LENGTH_MAX).contains(&length) {
        return Ok(length);
    }
    Err(Error::LeaseLength { length })
}

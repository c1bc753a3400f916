//! Leases: what says when it is time to take a session over. Whether that is safe they never decide: claims and fencing do.
//!
//! A *worker* is one replicator in one process. While it has sessions claimed it renews one lease for all of them, by a timer of
//! the thread that speaks to the place, and the place says of each session under which worker's lease it was claimed last. So what a lease
//! costs does not grow with the sessions. Whoever wants a session asks the place for its lease ([`Place::lease`]) and *watches* it
//! ([`LeaseWatch`]): it has run out once two looks that are its length apart by the watcher's own steady clock found it not renewed in
//! between. The clocks of two machines are never compared. A database judges by its server's clock, which wrote the time of the renewal too.
//!
//! # What a lease that lies costs
//!
//! | lie | costs |
//! |---|---|
//! | it is alive, and its worker does nothing, or does not write the session any more | whoever waits for it waits in vain, for as long as the host lets it |
//! | it has run out, and its worker works | the worker is fenced by whoever takes over: its open calls are recovered there, as after a crash |
//! | there is none, and somebody writes | the same |
//!
//! The second happens where a worker was paused, cut off from the place, or put its renewals and the place did not show them. The third
//! happens between a claim in a bucket and the object that names its worker, and of workers that keep none.
//!
//! # Rooms
//!
//! | module | holds |
//! |---|---|
//! | `watch` | what a look at a lease says, and judging it by two of them; waiting for a session |
//! | `renewal` | renewing, for any place |
//! | `objects` | the objects of a lease in a bucket |

#[cfg(feature = "object-store")]
pub(crate) mod objects;
pub(crate) mod renewal;
mod watch;

use std::time::Duration;

use uuid::Uuid;

pub use watch::{
    LeasePacer, LeaseStanding, LeaseWait, LeaseWaitOutcome, LeaseWatch, SteadyPacing, wait_for_lease,
};

use crate::error::{Error, Result};

/// How long a lease lasts where nobody says otherwise. It is renewed three times in that time.
pub const LEASE_LENGTH: Duration = Duration::from_secs(30);

/// The shortest lease that a worker may keep.
pub const LEASE_LENGTH_MIN: Duration = Duration::from_millis(100);

/// The longest lease that a worker may keep.
pub const LEASE_LENGTH_MAX: Duration = Duration::from_secs(3_600);

/// Says what a place knows of the lease under which a session was claimed last.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionLease {
    /// Epoch of the claim.
    pub epoch: u64,
    /// The worker: one replicator in one process.
    pub worker: Uuid,
    /// Name under which it claims. It chose that itself, so it is escaped where it is shown.
    pub name: String,
    /// How long the lease lasts from a renewal on.
    pub length: Duration,
    /// Tells one renewal from another, and says nothing else; 0 if none is there.
    pub renewal: u64,
    /// When it was renewed last, in microseconds since 1970 by the place's clock; `None` if the place does not say. It is for people: no
    /// clock but the place's own can be compared with it.
    pub renewed_us: Option<i64>,
    /// What is left of it by the place's own clock, and zero once it has run out; `None` if the place compares no times.
    pub left: Option<Duration>,
}

/// Checks the length of a lease that a host asks for.
pub(crate) fn check_length(length: Duration) -> Result<Duration> {
    if (LEASE_LENGTH_MIN..=LEASE_LENGTH_MAX).contains(&length) {
        return Ok(length);
    }
    Err(Error::LeaseLength { length })
}

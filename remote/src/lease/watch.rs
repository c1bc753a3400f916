//! Judges leases by repeated looks, and waits for sessions.

use std::fmt;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use foldlog::{Clock, SystemClock};
use uuid::Uuid;

use super::SessionLease;
use crate::error::Result;
use crate::place::Place;

/// Watches the lease of one session, from one look at it to the next.
///
/// Two looks that found the same renewal mean that nothing was renewed from the end of the first to
/// the start of the second: a living worker renews three times in a lease's length.
#[derive(Clone, Debug, Default)]
pub struct LeaseWatch {
    /// Last renewal seen, and the end of the first look that saw it.
    seen: Option<(LeaseVersion, Duration)>,
    was_renewed: bool,
}

type LeaseVersion = (u64, Uuid, u64);

/// Describes the state of a session's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStanding {
    /// There is no lease: the session was closed, or its writer keeps none.
    None,
    /// It is unknown whether its worker lives. The lease runs out after `left`, unless it is
    /// renewed before.
    Watched {
        /// Remaining time by the watcher's clock.
        left: Duration,
    },
    /// Its worker lives, from the place's view: it was renewed while it was watched, or has not run
    /// out by the place's own clock.
    Alive {
        /// Remaining time, unless it is renewed again.
        left: Duration,
    },
    /// It has run out.
    RanOut,
}

impl LeaseWatch {
    /// Starts to watch.
    pub fn new() -> LeaseWatch {
        LeaseWatch::default()
    }

    /// Judges the result of a look at the lease. The two times are readings of a steady clock
    /// before the request and after its answer.
    pub fn look(
        &mut self,
        lease: Option<&SessionLease>,
        asked: Duration,
        answered: Duration,
    ) -> LeaseStanding {
        let Some(lease) = lease else {
            *self = LeaseWatch::new();
            return LeaseStanding::None;
        };
        // A place that compares its own times needs only one look.
        match lease.left {
            Some(Duration::ZERO) => return LeaseStanding::RanOut,
            Some(left) => return LeaseStanding::Alive { left },
            None => {}
        }
        let now: LeaseVersion = (lease.epoch, lease.worker, lease.renewal);
        match self.seen {
            Some((seen, since)) if seen == now => {
                let left = lease.length.saturating_sub(asked.saturating_sub(since));
                match left {
                    Duration::ZERO => LeaseStanding::RanOut,
                    left if self.was_renewed => LeaseStanding::Alive { left },
                    left => LeaseStanding::Watched { left },
                }
            }
            seen => {
                // A worker that claimed the session in the meantime lives as well.
                self.was_renewed = seen.is_some();
                self.seen = Some((now, answered));
                let left = lease.length;
                if self.was_renewed { LeaseStanding::Alive { left } } else { LeaseStanding::Watched { left } }
            }
        }
    }
}

/// Reads a steady clock, and waits: decides when a lease is looked at again. A test's own pacer
/// lets no time pass.
pub trait LeasePacer: fmt::Debug + Send + Sync {
    /// Returns the time since a fixed moment, on a clock that cannot be set.
    fn now(&self) -> Duration;

    /// Waits for this time, or until the wait is to end. Returns whether to continue.
    fn pause(&self, wait: Duration) -> bool;
}

/// Paces by the machine's steady clock, until [`SteadyPacing::stop`] is called.
#[derive(Debug, Default)]
pub struct SteadyPacing {
    is_stopped: Mutex<bool>,
    stops: Condvar,
}

impl SteadyPacing {
    /// Creates a pacer that is not stopped.
    pub fn new() -> SteadyPacing {
        SteadyPacing::default()
    }

    /// Ends every wait that is paced by this, and every later one.
    pub fn stop(&self) {
        *crate::lock(&self.is_stopped) = true;
        self.stops.notify_all();
    }
}

impl LeasePacer for SteadyPacing {
    fn now(&self) -> Duration {
        Duration::from_micros(SystemClock.steady_us().unsigned_abs())
    }

    fn pause(&self, wait: Duration) -> bool {
        let stopped =
            self.stops.wait_timeout_while(crate::lock(&self.is_stopped), wait, |is_stopped| !*is_stopped);
        !*stopped.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Configures a wait for a session's lease to run out.
#[derive(Debug)]
#[non_exhaustive]
pub struct LeaseWait<'a> {
    /// Maximum time to wait.
    pub at_most: Duration,
    /// Whether to give up as soon as its worker is known to live.
    pub until_it_lives: bool,
    /// The clock, which can also end the wait.
    pub pacing: &'a dyn LeasePacer,
}

impl<'a> LeaseWait<'a> {
    /// Waits at most for this time.
    pub fn new(at_most: Duration, pacing: &'a dyn LeasePacer) -> LeaseWait<'a> {
        LeaseWait { at_most, until_it_lives: false, pacing }
    }

    /// Gives up as soon as the worker is known to live.
    #[must_use]
    pub fn until_it_lives(self) -> LeaseWait<'a> {
        LeaseWait { until_it_lives: true, ..self }
    }
}

/// Describes the result of waiting for a session's lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseWaitOutcome {
    /// The lease has run out, or there is none: it is time to take the session over. Several
    /// processes may have waited for it; the last one to take over continues.
    Free {
        /// The lease that has run out.
        lease: Option<SessionLease>,
    },
    /// The lease may still be alive.
    Kept {
        /// The lease as it was seen last.
        lease: SessionLease,
        /// Whether it was seen to be alive, and not only not to have run out.
        lives: bool,
    },
    /// The host ended the wait.
    Stopped,
}

/// Number of looks at a lease in its length.
const LOOKS: u32 = 6;

/// Waits until a session may be taken over: until it has no lease that is still running.
///
/// The result shows when to take over, and not that it is safe: safety needs no lease. Blocks, and
/// must not be called on an async runtime's own threads.
pub fn wait_for_lease(place: &dyn Place, session: Uuid, wait: &LeaseWait<'_>) -> Result<LeaseWaitOutcome> {
    let LeaseWait { at_most, until_it_lives, pacing } = *wait;
    let (begun, mut watch) = (pacing.now(), LeaseWatch::new());
    loop {
        let asked = pacing.now();
        let lease = place.lease(session)?;
        let answered = pacing.now();
        let standing = watch.look(lease.as_ref(), asked, answered);
        let (left, lives) = match standing {
            LeaseStanding::None | LeaseStanding::RanOut => return Ok(LeaseWaitOutcome::Free { lease }),
            LeaseStanding::Watched { left } => (left, false),
            LeaseStanding::Alive { left } => (left, true),
        };
        let Some(lease) = lease else { return Ok(LeaseWaitOutcome::Free { lease: None }) };
        let still = at_most.saturating_sub(answered.saturating_sub(begun));
        if still.is_zero() || lives && until_it_lives {
            return Ok(LeaseWaitOutcome::Kept { lease, lives });
        }
        let next_look = (lease.length / LOOKS).max(Duration::from_millis(1));
        if !pacing.pause(left.min(still).min(next_look)) {
            return Ok(LeaseWaitOutcome::Stopped);
        }
    }
}

//! Where time is read: nobody else asks the system for it.

mod counter;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(crate) use self::counter::{is_learnt as counter_is_learnt, learn as learn_counter};

/// The present moment, by the clock that nobody sets.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The moment so long from now, by the clock that nobody sets.
pub(crate) fn after(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait).unwrap_or(now)
}

/// Whether that moment is over.
pub(crate) fn is_past(moment: Instant) -> bool {
    Instant::now() >= moment
}

/// A source of time. A session reads it once for each record.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Microseconds since 1970-01-01 UTC.
    fn now_us(&self) -> i64;

    /// Microseconds since some moment, by a clock that nobody sets: what waits for a while waits by this one. By default
    /// the system's.
    fn steady_us(&self) -> i64 {
        static BEGIN: OnceLock<Instant> = OnceLock::new();
        let since = Instant::now().saturating_duration_since(*BEGIN.get_or_init(Instant::now));
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    }
}

/// The system's clock.
///
/// Once a store's background thread has had a moment for it, a thread that asks often is told what the system said within
/// the last millisecond and what the processor's counter has counted since: the same to a microsecond, in half the time.
/// A system's clock that is set shows a millisecond later then.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_us(&self) -> i64 {
        match counter::now_ns(system_ns) {
            Some(ns) => i64::try_from(ns / 1_000).unwrap_or(i64::MAX),
            None => system_us_out_of_range(),
        }
    }
}

/// Nanoseconds since 1970 by the system's clock, which go on until the year 2554; `None` outside these years.
fn system_ns() -> Option<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    since.as_secs().checked_mul(1_000_000_000)?.checked_add(u64::from(since.subsec_nanos()))
}

/// What the system's clock says where it is set to a time that [`system_ns`] cannot tell.
fn system_us_out_of_range() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |us| -us),
    }
}

/// A clock that stands still until it is moved, for tests and for deterministic runs.
#[derive(Debug, Default)]
pub struct FixedClock {
    now_us: AtomicI64,
    step_us: i64,
}

impl FixedClock {
    /// A clock that always says `now_us`.
    pub fn new(now_us: i64) -> FixedClock {
        FixedClock { now_us: AtomicI64::new(now_us), step_us: 0 }
    }

    /// A clock that says `now_us` first and `step_us` more at each reading after.
    pub fn stepping(now_us: i64, step_us: i64) -> FixedClock {
        FixedClock { now_us: AtomicI64::new(now_us), step_us }
    }

    /// Moves the clock by so many microseconds.
    pub fn advance_us(&self, by_us: i64) {
        self.now_us.fetch_add(by_us, Ordering::Relaxed);
    }

    /// Sets the clock.
    pub fn set_us(&self, now_us: i64) {
        self.now_us.store(now_us, Ordering::Relaxed);
    }
}

impl Clock for FixedClock {
    fn now_us(&self) -> i64 {
        self.now_us.fetch_add(self.step_us, Ordering::Relaxed)
    }

    /// The same clock, since nobody but a test sets it; a reading of it is no step.
    fn steady_us(&self) -> i64 {
        self.now_us.load(Ordering::Relaxed)
    }
}

//! Clocks, by which the engine reads time. No other module reads it from the system.

mod counter;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(crate) use self::counter::{is_learnt as counter_is_learnt, learn as learn_counter};

/// Returns the current moment on the monotonic clock, which cannot be set.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Maximum wait, about 136 years: no process runs that long.
const WAIT_MAX: Duration = Duration::from_secs(u32::MAX as u64);

/// Returns the moment `wait` from now on the monotonic clock. Longer waits than 136 years are cut
/// to that.
pub(crate) fn after(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait.min(WAIT_MAX)).unwrap_or(now)
}

pub(crate) fn is_past(moment: Instant) -> bool {
    Instant::now() >= moment
}

/// Source of time. A session reads its clock once for each record.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Returns microseconds since 1970-01-01 UTC.
    fn now_us(&self) -> i64;

    /// Returns microseconds since some fixed moment, on a clock that cannot be set. Timeouts and
    /// delays use this reading. The default implementation reads the system's monotonic clock.
    fn steady_us(&self) -> i64 {
        static BEGIN: OnceLock<Instant> = OnceLock::new();
        let since = Instant::now().saturating_duration_since(*BEGIN.get_or_init(Instant::now));
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    }
}

/// Reads the system's clock.
///
/// For a thread with frequent readings, the result is a system reading from the last millisecond
/// plus the time that the processor's counter has counted since. That requires that the store's
/// background thread has measured the counter's rate. The readings agree to a microsecond, and take
/// half the time. If the system's clock is set, readings show that up to a millisecond later.
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

/// Returns nanoseconds since 1970 by the system's clock, for the years 1970 to 2554; `None` outside
/// these years.
#[expect(clippy::disallowed_methods, reason = "the clock of a session whose host gives none")]
fn system_ns() -> Option<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    since.as_secs().checked_mul(1_000_000_000)?.checked_add(u64::from(since.subsec_nanos()))
}

/// Returns microseconds since 1970 by the system's clock, for times outside the range of
/// [`system_ns`].
#[expect(clippy::disallowed_methods, reason = "the clock of a session whose host gives none")]
fn system_us_out_of_range() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |us| -us),
    }
}

/// Clock that changes only when a caller changes it, or by a fixed step per reading. For tests,
/// replays and deterministic runs.
#[derive(Debug, Default)]
pub struct FixedClock {
    now_us: AtomicI64,
    step_us: i64,
}

impl FixedClock {
    /// Creates a clock that always returns `now_us`.
    pub fn new(now_us: i64) -> FixedClock {
        FixedClock { now_us: AtomicI64::new(now_us), step_us: 0 }
    }

    /// Creates a clock that returns `now_us` first, and `step_us` more at each reading after that.
    pub fn with_step(now_us: i64, step_us: i64) -> FixedClock {
        FixedClock { now_us: AtomicI64::new(now_us), step_us }
    }

    /// Moves the clock by `by_us` microseconds; a negative number sets it back.
    pub fn advance_us(&self, by_us: i64) {
        self.now_us.fetch_add(by_us, Ordering::Relaxed);
    }

    /// Sets the clock to `now_us`, in microseconds since 1970-01-01 UTC.
    pub fn set_us(&self, now_us: i64) {
        self.now_us.store(now_us, Ordering::Relaxed);
    }
}

impl Clock for FixedClock {
    fn now_us(&self) -> i64 {
        self.now_us.fetch_add(self.step_us, Ordering::Relaxed)
    }

    /// Returns the clock's current value without a step: only tests set this clock, so it serves as
    /// the steady one too.
    fn steady_us(&self) -> i64 {
        self.now_us.load(Ordering::Relaxed)
    }
}

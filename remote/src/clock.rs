//! Reads how much time has passed, by a clock that nobody sets and that goes on while the machine sleeps.
//!
//! Two decisions depend on it: whether what a place said of the number of a chunk, or of the names of payloads, still holds, or is asked for once
//! more, and whether a claim was confirmed recently enough for a tool to start. On Linux it is `CLOCK_BOOTTIME`, on Apple's systems `CLOCK_MONOTONIC`, which goes on in sleep there, elsewhere what the standard library takes for a steady clock. A machine that
//! is stopped from outside, so that this clock stands still (a virtual machine that is paused), is not seen to be: the first decision allows that for half
//! of [`MIN_AGE`](crate::MIN_AGE), the second one not at all.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Reads one clock. A clone reads the same one.
#[derive(Clone)]
pub(crate) struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").finish_non_exhaustive()
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock(Arc::new(since_boot))
    }
}

impl Clock {
    /// Reads a clock of the host's.
    pub(crate) fn new(read: impl Fn() -> Duration + Send + Sync + 'static) -> Clock {
        Clock(Arc::new(read))
    }

    /// Returns the time that has passed since some moment.
    pub(crate) fn now(&self) -> Duration {
        (self.0)()
    }
}

#[cfg(target_os = "linux")]
fn since_boot() -> Duration {
    use rustix::time::{ClockId, clock_gettime};

    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

#[cfg(target_vendor = "apple")]
fn since_boot() -> Duration {
    use rustix::time::{ClockId, clock_gettime};

    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn since_boot() -> Duration {
    use std::sync::LazyLock;
    use std::time::Instant;

    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGIN.elapsed()
}

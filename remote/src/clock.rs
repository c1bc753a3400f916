//! Measures elapsed time, by a clock that cannot be set and that also runs while the machine
//! sleeps.
//!
//! Two decisions depend on it: whether a place's earlier answer about the number of a chunk, or
//! about the names of payloads, is still valid or must be requested again; and whether a claim was
//! confirmed recently enough for a tool to start. On Linux the clock is `CLOCK_BOOTTIME`, on
//! Apple's systems `CLOCK_MONOTONIC`, which also runs in sleep there, elsewhere the standard
//! library's steady clock. A stop of the whole machine, such as a paused virtual machine, also
//! stops this clock and is not detected. The first decision tolerates that for half of
//! [`MIN_AGE`](crate::MIN_AGE), the second one not at all.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A clock. A clone reads the same one.
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
    pub(crate) fn new(read: impl Fn() -> Duration + Send + Sync + 'static) -> Clock {
        Clock(Arc::new(read))
    }

    /// Returns the time since an arbitrary but fixed moment.
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

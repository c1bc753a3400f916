//! A clock that advances only by waits.

use std::sync::Mutex;
use std::time::Duration;

use foldlog_remote::LeasePacer;

/// Advances by each wait at once, and calls a function after it.
pub(crate) struct NoTime {
    now: Mutex<Duration>,
    /// Takes the time that has passed, and returns whether to continue.
    after: Box<dyn Fn(Duration) -> bool + Send + Sync>,
}

impl NoTime {
    pub(crate) fn new() -> NoTime {
        NoTime::and_then(|_| true)
    }

    pub(crate) fn and_then(after: impl Fn(Duration) -> bool + Send + Sync + 'static) -> NoTime {
        NoTime { now: Mutex::default(), after: Box::new(after) }
    }
}

impl std::fmt::Debug for NoTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NoTime").finish_non_exhaustive()
    }
}

impl LeasePacer for NoTime {
    fn now(&self) -> Duration {
        *self.now.lock().unwrap()
    }

    fn pause(&self, wait: Duration) -> bool {
        let mut now = self.now.lock().unwrap();
        *now += wait;
        (self.after)(*now)
    }
}

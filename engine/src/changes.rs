//! Waking the threads and the futures that wait for something to change.

use std::time::Instant;

use parking_lot::{Condvar, MutexGuard, WaitTimeoutResult};

#[cfg(feature = "async")]
use crate::sabotage::{self, Breakage};

/// Wakes those that wait for a change of what a lock guards.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    threads: Condvar,
    #[cfg(feature = "async")]
    futures: event_listener::Event,
}

impl Changes {
    /// Wakes all that wait. Call this under the lock, or after a change that was made under it.
    pub(crate) fn notify_all(&self) {
        self.threads.notify_all();
        #[cfg(feature = "async")]
        if !sabotage::is(Breakage::FuturesUnwoken) {
            self.futures.notify(usize::MAX);
        }
    }

    /// Waits on this thread for a change, until that moment at the latest.
    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> WaitTimeoutResult {
        self.threads.wait_until(guard, until)
    }

    /// Returns a future that ends with the next change from now on.
    #[cfg(feature = "async")]
    pub(crate) fn listen(&self) -> event_listener::EventListener {
        self.futures.listen()
    }
}

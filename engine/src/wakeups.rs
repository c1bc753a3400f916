//! Notification of threads and futures that wait for a change.
//!
//! Waking a future runs code of its host. A waker may take its own locks, such as that of a Python
//! interpreter, call into the session, or drop other futures. Wakers are therefore cloned, called
//! and dropped while no lock is held.

#[cfg(feature = "async")]
mod listeners;

use std::time::Instant;

use parking_lot::{Condvar, MutexGuard, WaitTimeoutResult};

#[cfg(feature = "async")]
pub(crate) use listeners::{Listener, Wakers};

/// Wakes waiters after a change of the data that a lock guards.
#[derive(Debug, Default)]
pub(crate) struct ChangeNotifier {
    threads: Condvar,
    #[cfg(feature = "async")]
    futures: Wakers,
}

impl ChangeNotifier {
    /// Wakes all waiters after a change that was made under the lock. Call it after releasing the
    /// lock, if futures may wait.
    pub(crate) fn notify_all(&self) {
        self.threads.notify_all();
        #[cfg(feature = "async")]
        self.futures.wake_all();
    }

    /// Blocks the thread until a change or until the given time.
    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> WaitTimeoutResult {
        self.threads.wait_until(guard, until)
    }

    /// Returns a future that completes with the next change.
    #[cfg(feature = "async")]
    pub(crate) fn listen(&self) -> Listener {
        self.futures.listen()
    }
}

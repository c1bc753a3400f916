//! Notification of threads and futures that wait for a change.
//!
//! Waking a future runs code of its host. A waker may take its own locks, such as that of a Python
//! interpreter, call into the session, or drop other futures. Wakers are therefore cloned, called
//! and dropped while no lock is held.

#[cfg(feature = "async")]
use std::collections::BTreeMap;
#[cfg(feature = "async")]
use std::future::Future;
#[cfg(feature = "async")]
use std::pin::Pin;
#[cfg(feature = "async")]
use std::sync::Arc;
#[cfg(feature = "async")]
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(feature = "async")]
use std::task::{Context, Poll, Waker};
use std::time::Instant;

#[cfg(feature = "async")]
use parking_lot::Mutex;
use parking_lot::{Condvar, MutexGuard, WaitTimeoutResult};

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

/// Wakes futures that wait for an event.
#[cfg(feature = "async")]
#[derive(Debug, Default)]
pub(crate) struct Wakers(Arc<WakerSet>);

#[cfg(feature = "async")]
#[derive(Debug, Default)]
struct WakerSet {
    /// Number of events so far.
    happened: AtomicU64,
    listeners: AtomicU64,
    /// Wakers of the pending listeners, by number.
    wakers: Mutex<BTreeMap<u64, Waker>>,
}

#[cfg(feature = "async")]
impl Wakers {
    /// Completes all futures that are listening.
    pub(crate) fn wake_all(&self) {
        // First, so that a listener either observes the increment or has registered its waker by
        // now.
        self.0.happened.fetch_add(1, Ordering::SeqCst);
        let woken = std::mem::take(&mut *self.0.wakers.lock());
        woken.into_values().for_each(Waker::wake);
    }

    /// Returns a future that completes with the next event.
    pub(crate) fn listen(&self) -> Listener {
        let seen = self.0.happened.load(Ordering::SeqCst);
        Listener { waiting: Arc::clone(&self.0), seen, number: None }
    }
}

/// Completes with the next event.
#[cfg(feature = "async")]
#[derive(Debug)]
pub(crate) struct Listener {
    waiting: Arc<WakerSet>,
    seen: u64,
    /// Key of its registered waker.
    number: Option<u64>,
}

#[cfg(feature = "async")]
impl Future for Listener {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let waiting = Arc::clone(&self.waiting);
        let number = *self.number.get_or_insert_with(|| waiting.listeners.fetch_add(1, Ordering::Relaxed));
        let waker = context.waker().clone();
        let before = {
            let mut wakers = waiting.wakers.lock();
            if waiting.happened.load(Ordering::SeqCst) != self.seen {
                return Poll::Ready(());
            }
            wakers.insert(number, waker)
        };
        drop(before);
        Poll::Pending
    }
}

#[cfg(feature = "async")]
impl Drop for Listener {
    fn drop(&mut self) {
        let waker = self.number.and_then(|number| self.waiting.wakers.lock().remove(&number));
        drop(waker);
    }
}

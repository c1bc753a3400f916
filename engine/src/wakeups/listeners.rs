//! Futures that wait for an event.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// Wakes futures that wait for an event.
#[derive(Debug, Default)]
pub(crate) struct Wakers(Arc<WakerSet>);

#[derive(Debug, Default)]
struct WakerSet {
    /// Number of events so far.
    happened: AtomicU64,
    listeners: AtomicU64,
    /// Wakers of the pending listeners, by number.
    wakers: Mutex<BTreeMap<u64, Waker>>,
}

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
#[derive(Debug)]
pub(crate) struct Listener {
    waiting: Arc<WakerSet>,
    seen: u64,
    /// Key of its registered waker.
    number: Option<u64>,
}

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

impl Drop for Listener {
    fn drop(&mut self) {
        let waker = self.number.and_then(|number| self.waiting.wakers.lock().remove(&number));
        drop(waker);
    }
}

//! Offloads blocking work from executors to a thread pool that all stores share, and passes futures
//! from blocked threads back to the executor.
//!
//! A tool may be a future, and some futures work only where their runtime polls them.
//! [`offload_and_poll`] runs a job on the pool. The futures that the job passes to [`wait_for`] are
//! polled by the task that awaits the job.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use blocking::{Task, unblock};
use futures_timer::Delay;
use parking_lot::Mutex;

use crate::clock;
use crate::wakeups::{Listener, Wakers};

pub(crate) type BoxedFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Waits for work on a thread of the pool. The work continues if the handle is dropped.
pub(crate) struct OffloadHandle<T>(Option<Task<T>>);

impl<T> Future for OffloadHandle<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(task) = self.0.as_mut() else { return Poll::Pending };
        let done = Pin::new(task).poll(context);
        if done.is_ready() {
            self.0 = None;
        }
        done
    }
}

impl<T> Drop for OffloadHandle<T> {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.detach();
        }
    }
}

/// Runs work on a thread of the pool.
pub(crate) fn offload<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> OffloadHandle<T> {
    OffloadHandle(Some(unblock(work)))
}

/// Returns after the first of these events, or at the given time.
pub(crate) async fn wait_for_any(happened: impl IntoIterator<Item = Listener>, until: Option<Instant>) {
    let mut happened: Vec<Listener> = happened.into_iter().collect();
    let mut over = until.map(Alarm::at);
    poll_fn(|context| {
        let heard = happened.iter_mut().any(|one| Pin::new(one).poll(context).is_ready());
        let over = over.as_mut().is_some_and(|over| over.is_over(context));
        if heard || over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Longest delay of a timer; longer waits set it again.
const ALARM_MAX: Duration = Duration::from_secs(60 * 60);

/// Wakes a task at a given time.
pub(crate) struct Alarm {
    at: Instant,
    delay: Delay,
}

impl Alarm {
    pub(crate) fn at(at: Instant) -> Alarm {
        Alarm { at, delay: Delay::new(time_left(at)) }
    }

    /// Returns whether the time has passed; otherwise registers the task to be woken.
    pub(crate) fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        while !clock::is_past(self.at) {
            if Pin::new(&mut self.delay).poll(context).is_pending() {
                return false;
            }
            self.delay.reset(time_left(self.at));
        }
        true
    }
}

/// Returns the delay of a timer that should end at that time.
fn time_left(at: Instant) -> Duration {
    at.saturating_duration_since(clock::now()).min(ALARM_MAX)
}

thread_local! {
    /// Receiver of the futures that this thread waits for.
    static CARRIER: RefCell<Option<Arc<Carrier>>> = const { RefCell::new(None) };
}

/// Transfers the futures of a job to the task that polls them.
struct Carrier {
    /// Futures in transit; `None` once the polling task is dropped.
    asked: Mutex<Option<VecDeque<BoxedFuture<()>>>>,
    changed: Wakers,
}

impl Carrier {
    /// Passes a future on. Returns `false` if the polling task is dropped.
    fn pass(&self, future: BoxedFuture<()>) -> bool {
        let refused = match self.asked.lock().as_mut() {
            Some(asked) => {
                asked.push_back(future);
                None
            }
            None => Some(future),
        };
        self.changed.wake_all();
        refused.is_none()
    }

    fn next(&self) -> Option<BoxedFuture<()>> {
        self.asked.lock().as_mut()?.pop_front()
    }
}

/// Drops the unpolled futures, which notifies the job.
struct CarrierGuard(Arc<Carrier>);

impl Drop for CarrierGuard {
    fn drop(&mut self) {
        let unpolled = self.0.asked.lock().take();
        drop(unpolled);
    }
}

/// Returns whether the task is dropped that polls the futures this thread [waits for](wait_for).
pub(crate) fn is_given_up() -> bool {
    CARRIER.with_borrow(|carrier| carrier.as_ref().is_some_and(|carrier| carrier.asked.lock().is_none()))
}

/// Runs a job on a thread of the pool, and polls the futures that the job [waits for](wait_for). If
/// this future is dropped, the job continues, and its pending future is dropped.
pub(crate) async fn offload_and_poll<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    let carrier = Arc::new(Carrier { asked: Mutex::new(Some(VecDeque::new())), changed: Wakers::default() });
    let asked = CarrierGuard(Arc::clone(&carrier));
    let mut job = offload(move || {
        // A guard restores the previous carrier, because other jobs run on this thread later.
        struct PreviousCarrier(Option<Arc<Carrier>>);
        impl Drop for PreviousCarrier {
            fn drop(&mut self) {
                CARRIER.set(self.0.take());
            }
        }
        let _left = PreviousCarrier(CARRIER.replace(Some(carrier)));
        job()
    });
    let mut changed = asked.0.changed.listen();
    let mut carried: Option<BoxedFuture<()>> = None;
    poll_fn(|context| {
        loop {
            if let Some(future) = &mut carried
                && future.as_mut().poll(context).is_pending()
            {
                break;
            }
            carried = asked.0.next();
            if carried.is_none() {
                if Pin::new(&mut changed).poll(context).is_pending() {
                    break;
                }
                changed = asked.0.changed.listen();
            }
        }
        Pin::new(&mut job).poll(context)
    })
    .await
}

/// Blocks until a future completes. It is polled by [`offload_and_poll`] if this thread runs such a
/// job, else on this thread. Returns `None` if the polling task is dropped first.
pub(crate) fn wait_for<T: Send + 'static>(future: BoxedFuture<T>) -> Option<T> {
    let Some(carrier) = CARRIER.with_borrow(Option::clone) else {
        return Some(futures_lite::future::block_on(future));
    };
    let (answers, answer) = mpsc::sync_channel(1);
    let asked = Box::pin(async move {
        // The receiver is dropped if the thread has ended.
        let _ = answers.send(future.await);
    });
    if !carrier.pass(asked) {
        return None;
    }
    answer.recv().ok()
}

//! Work that would block an executor, done by threads of a pool that all stores share; and what brings the futures of a
//! thread that must block to the executor.
//!
//! A tool may be a future, and a future may only work where its runtime polls it. [`carried`] runs a job on the pool and
//! polls, in its own place, the futures that [`wait_for`] is asked for on the job's thread.

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

use crate::changes::{Listener, Wakers};
use crate::clock;

/// Future of any kind, for an executor that may move it between threads.
pub(crate) type BoxedFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Waits for work that a thread of the pool does. The work goes on if the wait is given up.
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

/// Has a thread of the pool do some work.
pub(crate) fn offload<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> OffloadHandle<T> {
    OffloadHandle(Some(unblock(work)))
}

/// Returns once one of these has happened, or at that moment.
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

/// Longest time for which a timer is set at once: it cannot be set for an eternity.
const ALARM_MAX: Duration = Duration::from_secs(60 * 60);

/// Wakes a task at a moment.
pub(crate) struct Alarm {
    at: Instant,
    delay: Delay,
}

impl Alarm {
    pub(crate) fn at(at: Instant) -> Alarm {
        Alarm { at, delay: Delay::new(time_left(at)) }
    }

    /// Returns whether the moment is over, and else has the task woken then.
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

/// Returns for how long a timer is set that is to end at that moment.
fn time_left(at: Instant) -> Duration {
    at.saturating_duration_since(clock::now()).min(ALARM_MAX)
}

thread_local! {
    /// Where the futures go that this thread waits for.
    static CARRIER: RefCell<Option<Arc<Carrier>>> = const { RefCell::new(None) };
}

/// Takes the futures that a job waits for to where they are polled.
struct Carrier {
    /// Futures on their way; `None` once nobody polls them any more.
    asked: Mutex<Option<VecDeque<BoxedFuture<()>>>>,
    changed: Wakers,
}

impl Carrier {
    /// Passes a future on. Returns `false` if nobody polls it.
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

/// Drops the futures that nobody polls any more, so that the job hears of it.
struct CarrierGuard(Arc<Carrier>);

impl Drop for CarrierGuard {
    fn drop(&mut self) {
        let unpolled = self.0.asked.lock().take();
        drop(unpolled);
    }
}

/// Returns whether nobody polls the futures any more that this thread [waits for](wait_for).
pub(crate) fn is_given_up() -> bool {
    CARRIER.with_borrow(|carrier| carrier.as_ref().is_some_and(|carrier| carrier.asked.lock().is_none()))
}

/// Has a thread of the pool do a job, and polls the futures that the job [waits for](wait_for). If the wait is given up, the
/// job goes on, and such a future is dropped.
pub(crate) async fn offload_and_poll<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    let carrier = Arc::new(Carrier { asked: Mutex::new(Some(VecDeque::new())), changed: Wakers::default() });
    let asked = CarrierGuard(Arc::clone(&carrier));
    let mut job = offload(move || {
        // Put back by a guard, since another job runs on this thread later.
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

/// Waits on this thread for a future: where [`carried`] polls it, or else here. Returns `None` if nobody polls it to its end.
pub(crate) fn wait_for<T: Send + 'static>(future: BoxedFuture<T>) -> Option<T> {
    let Some(carrier) = CARRIER.with_borrow(Option::clone) else {
        return Some(futures_lite::future::block_on(future));
    };
    let (answers, answer) = mpsc::sync_channel(1);
    let asked = Box::pin(async move {
        // Nobody reads it if the thread is gone.
        let _ = answers.send(future.await);
    });
    if !carrier.pass(asked) {
        return None;
    }
    answer.recv().ok()
}

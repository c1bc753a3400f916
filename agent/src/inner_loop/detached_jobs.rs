//! Jobs on threads whose future was dropped, and the wait for them.
//!
//! A job that has started continues to its end when its evaluation is dropped, and so does the
//! rollback of a call. A new evaluation of the same session could then request an answer that is
//! just being recorded, or run a call that is just being ended. So each evaluation first waits for
//! the jobs that earlier ones have [left](wait_until_ended).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use blocking::unblock;
use event_listener::Event;
use foldlog::Session;
use futures_lite::future::{block_on, or};
use parking_lot::Mutex;
use uuid::Uuid;

use super::futures::timer;
use crate::deadline::Deadline;
use crate::provider::CancelToken;

/// Running jobs whose future was dropped.
static LEFT: Mutex<Vec<Arc<Job>>> = Mutex::new(Vec::new());

/// Notified when one of these jobs has ended.
static ENDED: Event = Event::new();

struct Job {
    session: Uuid,
    has_ended: AtomicBool,
}

/// Marks a job as ended when it is dropped, which happens with the job.
struct Ends(Arc<Job>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Release);
        LEFT.lock().retain(|left| !Arc::ptr_eq(left, &self.0));
        ENDED.notify(usize::MAX);
    }
}

/// Adds an unfinished job to `LEFT` when it is dropped.
struct DetachOnDrop(Arc<Job>);

impl Drop for DetachOnDrop {
    fn drop(&mut self) {
        let mut left = LEFT.lock();
        if !self.0.has_ended.load(Ordering::Acquire) {
            left.push(Arc::clone(&self.0));
        }
    }
}

/// Runs work on a session on a thread of the pool. If the future is dropped before the work has
/// started, it never starts.
pub(crate) async fn on_thread<T: Send + 'static>(
    session: &Session,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let job = Arc::new(Job { session: session.id(), has_ended: AtomicBool::new(false) });
    let ends = Ends(Arc::clone(&job));
    // Declared before the task, so that a task that never ran is dropped first, and has ended.
    let _wanted = DetachOnDrop(job);
    let task = unblock(move || {
        let _ends = ends;
        work()
    });
    task.await
}

/// Waits until no job or rollback of earlier evaluations of this session is running, until the
/// deadline passes, or until the cancellation.
pub(crate) async fn wait_until_ended(session: &Session, deadline: Deadline, cancel: &CancelToken) {
    let is_left = || LEFT.lock().iter().any(|job| job.session == session.id());
    let ended = async {
        loop {
            let job_ended = ENDED.listen();
            if !is_left() {
                break;
            }
            job_ended.await;
        }
        session.calls().until_stopped_calls_ended().await;
    };
    or(ended, or(timer(deadline.instant()), cancel.cancelled())).await;
}

/// Blocks this thread until the jobs have ended. Does nothing within an operation or in a replay.
pub fn wait(session: &Session, deadline: Deadline, cancel: &CancelToken) {
    if session.calls().inside_operation().is_none() && !session.replays() {
        block_on(wait_until_ended(session, deadline, cancel));
    }
}

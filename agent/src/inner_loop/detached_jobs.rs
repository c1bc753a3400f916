//! Jobs of threads that go on when nobody waits for them any more, and what waits for them then.
//!
//! A job that has begun goes on to its end when the evaluation that wants it is dropped, and so does the rollback of a call. An
//! evaluation of the same session that began meanwhile could ask for an answer that is just being recorded, or run a call that
//! is just being ended. So each evaluation first waits for what those before it have [left](ended).

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

/// Jobs that go on although nobody waits for them.
static LEFT: Mutex<Vec<Arc<Job>>> = Mutex::new(Vec::new());

/// Is notified when one of those has ended.
static ENDED: Event = Event::new();

struct Job {
    session: Uuid,
    has_ended: AtomicBool,
}

/// Says that a job has ended when it is dropped, with the job.
struct Ends(Arc<Job>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Release);
        LEFT.lock().retain(|left| !Arc::ptr_eq(left, &self.0));
        ENDED.notify(usize::MAX);
    }
}

/// Leaves a job behind when it is dropped before the job has ended.
struct DetachOnDrop(Arc<Job>);

impl Drop for DetachOnDrop {
    fn drop(&mut self) {
        let mut left = LEFT.lock();
        if !self.0.has_ended.load(Ordering::Acquire) {
            left.push(Arc::clone(&self.0));
        }
    }
}

/// Has a thread of the pool do some work on a session. If the future is dropped before the work has begun, it never begins.
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

/// Returns once nothing goes on that evaluations of this session have left, when the deadline passes, or when somebody cancels.
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
        session.until_stopped_calls_ended().await;
    };
    or(ended, or(timer(deadline.instant()), cancel.cancelled())).await;
}

/// Waits on this thread as `ended` does.
pub fn wait(session: &Session, deadline: Deadline, cancel: &CancelToken) {
    if session.inside_operation().is_none() && !session.replays() {
        block_on(wait_until_ended(session, deadline, cancel));
    }
}

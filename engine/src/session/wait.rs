//! Limits of blocking: the patience of a call, its description for the calls that it blocks, orders
//! to stop, and code that must not wait on its thread.

use std::cell::RefCell;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use foldlog_codec::{OperationId, SequenceNumber};
use parking_lot::Mutex;
use smol_str::SmolStr;
use uuid::Uuid;

use super::Session;
use super::schedule::RunningCalls;
use crate::clock;
use crate::error::{Blocker, Error, Result};
#[cfg(feature = "async")]
use crate::wakeups::{Listener, Wakers};

/// Limit of a call's wait, from the creation of this value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Deadline of the call itself, or of one around it.
    until: Option<Instant>,
    /// Longest time that the call may wait.
    limit: Duration,
    since: Instant,
    /// Whether the wait blocks this thread, so that the thread must not wait for an operation that
    /// only it can end.
    pub(super) holds_thread: bool,
}

impl Patience {
    pub(super) fn new(until: Option<Instant>, limit: Duration) -> Patience {
        Patience { until, limit, since: clock::now(), holds_thread: true }
    }

    /// Returns the same patience for a wait that blocks no thread.
    #[cfg(feature = "async")]
    pub(crate) fn holding_no_thread(self) -> Patience {
        Patience { holds_thread: false, ..self }
    }

    /// Returns the same patience for an attempt that does not wait.
    #[cfg(feature = "async")]
    pub(crate) fn for_no_wait(self) -> Patience {
        Patience { limit: Duration::ZERO, holds_thread: false, ..self }
    }

    /// Returns the same patience, but for a call that has to end by `until`, if that is earlier.
    pub(crate) fn by(self, until: Option<Instant>) -> Patience {
        Patience { until: self.until.into_iter().chain(until).min(), ..self }
    }

    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Returns the moment at which the call stops waiting.
    pub(crate) fn over_at(&self) -> Instant {
        let limit = self.since.checked_add(self.limit).unwrap_or_else(|| clock::after(self.limit));
        self.until.map_or(limit, |until| until.min(limit))
    }

    /// Fails once the patience is over: with [`Error::DeadlineExceeded`] if the call's deadline has
    /// passed, and with [`Error::WaitedTooLong`] for `blocker` otherwise.
    pub(crate) fn check(&self, blocker: impl FnOnce() -> Blocker) -> Result<()> {
        if self.until.is_some_and(clock::is_past) {
            return Err(Error::DeadlineExceeded { operation: None });
        }
        if clock::is_past(self.over_at()) {
            return Err(self.waited_for(blocker()));
        }
        Ok(())
    }

    /// Returns the error of a call that gives up the wait for `blocker`.
    pub(crate) fn waited_for(&self, blocker: Blocker) -> Error {
        if self.until.is_some_and(clock::is_past) {
            return Error::DeadlineExceeded { operation: None };
        }
        Error::WaitedTooLong { waited: self.since.elapsed(), blocker: Box::new(blocker) }
    }
}

/// Describes the call that requests an admission from the schedule, for calls that have to wait for
/// it.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    /// Tool of the call, or the name of other work.
    pub(crate) what: SmolStr,
    /// Location of the request in the host's code.
    pub(crate) at: &'static Location<'static>,
    /// Thread that has to end the operation; `None` if any thread may end it.
    pub(crate) held_by: Option<ThreadId>,
}

impl Asker {
    /// Creates an asker that is bound to no thread.
    pub(crate) fn new(what: impl Into<SmolStr>, at: &'static Location<'static>) -> Asker {
        Asker { what: what.into(), at, held_by: None }
    }

    /// Binds the operation to this thread, which has to end it.
    pub(crate) fn held_here(self) -> Asker {
        Asker { held_by: Some(thread::current().id()), ..self }
    }

    /// Returns whether this thread has to end the operation.
    pub(super) fn is_held_here(&self) -> bool {
        self.held_by.is_some_and(|thread| thread == thread::current().id())
    }
}

/// State of an operation that its handle shares.
pub(crate) struct CallScope {
    pub(super) ticket: u64,
    pub(super) operation: OperationId,
    /// Start record of the run that owns these handles. For work that is no operation, that of the
    /// run around it, if any.
    pub(super) run: Option<SequenceNumber>,
    pub(super) until: Option<Instant>,
    /// Operations suspended within an earlier run of this one that were called again in this run.
    pub(super) made_again: Mutex<Vec<OperationId>>,
    /// Order to stop the operation.
    pub(super) stop: Stop,
    /// Operation within which this one runs.
    pub(super) parent: Option<Arc<CallScope>>,
    pub(super) session: Uuid,
    /// Guest of the parent session's schedule as which this operation runs, if its session is a
    /// child that works under its parent's lease.
    pub(super) guest_of: Option<Arc<CallScope>>,
}

/// Order to stop an operation, since it was cancelled or is about to end.
#[derive(Default)]
pub(super) struct Stop {
    is_told: AtomicBool,
    /// Wakes the futures that listen for the order to stop.
    #[cfg(feature = "async")]
    futures: Wakers,
}

impl fmt::Debug for CallScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallScope").field("operation", &self.operation).finish_non_exhaustive()
    }
}

impl CallScope {
    pub(crate) fn operation(&self) -> OperationId {
        self.operation
    }

    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Orders the operation to stop, and wakes the futures that listen for that.
    pub(crate) fn cancel(&self) {
        self.tell_to_stop();
        self.wake();
    }

    /// Orders the operation to stop. The holder of the writer's lock [wakes](CallScope::wake) its
    /// futures later.
    pub(super) fn tell_to_stop(&self) {
        self.stop.is_told.store(true, Ordering::Release);
    }

    /// Wakes the futures that listen for the order to stop. Their wakers are the host's code, which
    /// may take locks or drop other futures: no lock of the engine may be held.
    pub(super) fn wake(&self) {
        #[cfg(feature = "async")]
        self.stop.futures.wake_all();
    }

    /// Returns a future for the operation and for each one within which it runs. The future ends
    /// with the next order to stop.
    #[cfg(feature = "async")]
    pub(crate) fn listen(&self) -> Vec<Listener> {
        let around = self.parent.iter().chain(&self.guest_of);
        around.flat_map(|one| one.listen()).chain([self.stop.futures.listen()]).collect()
    }

    /// Returns whether the operation should stop: it, or one within which it runs, was cancelled,
    /// or its deadline passed.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.was_cancelled() || self.is_late()
    }

    pub(crate) fn was_cancelled(&self) -> bool {
        self.stop.is_told.load(Ordering::Acquire)
            || self.parent.as_ref().is_some_and(|parent| parent.was_cancelled())
            || self.guest_of.as_ref().is_some_and(|guest| guest.was_cancelled())
    }

    pub(crate) fn is_late(&self) -> bool {
        self.until.is_some_and(clock::is_past)
    }

    /// Returns whether the operation's tool runs again in a replay.
    pub(super) fn runs_again(&self) -> bool {
        self.ticket == RUNS_AGAIN
    }

    /// Returns whether the operation is that one or runs within it.
    pub(super) fn is_of(&self, operation: OperationId) -> bool {
        self.operation == operation || self.parent.as_deref().is_some_and(|parent| parent.is_of(operation))
    }

    pub(super) fn check(&self) -> Result<()> {
        let operation = self.operation;
        if self.is_late() {
            return Err(Error::DeadlineExceeded { operation: Some(operation) });
        }
        if self.is_cancelled() {
            return Err(Error::Revoked { operation, reason: "it was cancelled" });
        }
        Ok(())
    }
}

/// Ticket of calls that run again in replays: they are in no schedule.
pub(super) const RUNS_AGAIN: u64 = u64::MAX;

thread_local! {
    /// Sessions, tickets and operations with tools or subscribers that run on this thread.
    static INSIDE: RefCell<Vec<(Uuid, u64, OperationId)>> = const { RefCell::new(Vec::new()) };
}

/// Runs code that must not wait on this thread for an operation to end: the operation's handler, or
/// a subscriber.
pub(super) fn inside<T>(session: Uuid, ticket: u64, operation: OperationId, run: impl FnOnce() -> T) -> T {
    struct InsideGuard;
    impl Drop for InsideGuard {
        fn drop(&mut self) {
            INSIDE.with_borrow_mut(|inside| inside.pop());
        }
    }
    INSIDE.with_borrow_mut(|inside| inside.push((session, ticket, operation)));
    let _left = InsideGuard;
    run()
}

/// Runs a tool's handler, which must not block this thread until its operation, or one for which
/// its session works, ends.
pub(crate) fn inside_call<T>(begun: &Session, run: impl FnOnce() -> T) -> T {
    match begun.within.as_deref() {
        Some(within) => inside_scope(within, run),
        None => run(),
    }
}

fn inside_scope<T>(scope: &CallScope, run: impl FnOnce() -> T) -> T {
    let run = || inside(scope.session, scope.ticket, scope.operation, run);
    match scope.guest_of.as_deref() {
        // Boxed, since each level would otherwise be a new type.
        Some(guest) => inside_scope(guest, Box::new(run) as Box<dyn FnOnce() -> T + '_>),
        None => run(),
    }
}

/// Returns an operation of the session that runs on this thread, if any.
pub(super) fn runs_here(session: Uuid) -> Option<OperationId> {
    INSIDE.with_borrow(|inside| {
        inside.iter().rev().find(|own| own.0 == session).map(|(_, _, operation)| *operation)
    })
}

/// Returns the innermost operation that runs again on this thread, in a replay of the session, if
/// any.
pub(super) fn runs_again_here(session: Uuid) -> Option<OperationId> {
    let again = |own: &&(Uuid, u64, OperationId)| own.0 == session && own.1 == RUNS_AGAIN;
    INSIDE.with_borrow(|inside| inside.iter().rev().find(again).map(|(_, _, operation)| *operation))
}

impl RunningCalls {
    /// Returns the operation, if any, that runs on this thread and would have to end before the one
    /// with `ticket`.
    pub(super) fn waits_for_itself(&self, session: Uuid, ticket: u64) -> Option<OperationId> {
        let ends_first = |own: &&(Uuid, u64, OperationId)| own.0 == session && self.is_within(own.1, ticket);
        INSIDE.with_borrow(|inside| inside.iter().rev().find(ends_first).map(|(_, _, operation)| *operation))
    }
}

//! The schedule of calls: the order of writes while operations run, and the state of an operation's
//! handle.
//!
//! Operations form a tree. A nested operation runs concurrently with its ancestors and does not
//! wait for them. All other operations run one after the other, except that operations without
//! local changes run together: they only read, or act outside only.
//!
//! | access | waits while |
//! |---|---|
//! | the start of an operation | a non-ancestor runs, unless both make no local changes |
//! | a write of STATE through an operation's handle | an operation runs within it that may change STATE |
//! | a write of STATE from outside | an operation runs that may change STATE |
//! | a write of LOG alone | never |
//!
//! # Terms
//!
//! Each admitted operation has a *ticket*, a number that is unique within this process. An
//! operation is *abandoned* if its owner dropped it without ending it; the next call that it would
//! block ends it.
//!
//! A *guest* is a call of a child session that is also admitted by the schedule of its parent,
//! within the operation for which it works. The guest, the nested calls of that operation, and
//! calls of its other child sessions wait for each other, since all of them work on the same
//! resources. A guest leaves no record in the parent's log.
//!
//! # Invariants
//!
//! 1. No call blocks a thread to wait for an operation that runs on that very thread, or that this
//!    thread started and has not ended: such a call fails at once. Every wait has a limit.
//! 2. No call waits longer than the store's grace for an operation that should stop, because of its
//!    deadline or a cancellation. The operation is then *stuck*, and so is every operation that has
//!    to wait for its end.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use foldlog_codec::{OperationId, SequenceNumber};
use parking_lot::{Mutex, MutexGuard};
use uuid::Uuid;

use super::wait::{Asker, Patience};
use super::{Session, WriterState};
use crate::clock;
use crate::error::{Blocker, Error, Result};
#[cfg(feature = "async")]
use crate::wakeups::{Listener, Wakers};

/// Slices that a write changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteScope {
    /// STATE or CACHE, and perhaps LOG.
    State,
    /// LOG only.
    Log,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Access {
    Write(WriteScope),
    Begin { reads_only: bool },
}

impl Access {
    /// Returns the name of this access in the refusal by an operation that only reads. `None` if
    /// such an operation may do this.
    pub(super) fn changes(self) -> Option<&'static str> {
        match self {
            Access::Write(WriteScope::State) => Some("change STATE"),
            Access::Begin { reads_only: false } => Some("run a tool that changes something"),
            Access::Write(WriteScope::Log) | Access::Begin { reads_only: true } => None,
        }
    }

    /// Returns whether the operation `other` must end before this can be done within the operation
    /// with the ticket `asker`.
    fn is_blocked_by(
        self,
        other: &AdmittedOperation,
        running_calls: &RunningCalls,
        asker: Option<u64>,
    ) -> bool {
        match self {
            Access::Write(WriteScope::State) => running_calls.changes(other, asker),
            Access::Write(WriteScope::Log) => false,
            Access::Begin { reads_only } => running_calls.conflicts(other, asker, reads_only),
        }
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

/// Ends an operation that its owner dropped without ending it.
pub(crate) type Abandon = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// Time at which an access may happen.
pub(super) enum Turn {
    Now,
    /// Once this has ended an abandoned operation.
    Behind(Abandon),
    /// Once a running operation has ended: check again when the schedule changes, and at this
    /// moment.
    Later(Instant),
}

/// Operations of this process that have not ended.
#[derive(Default)]
pub(super) struct RunningCalls {
    pub(super) next: u64,
    pub(super) admitted: Vec<AdmittedOperation>,
}

/// An operation that the schedule has admitted, before and after its start.
pub(super) struct AdmittedOperation {
    pub(super) ticket: u64,
    /// Ticket of the operation within which this one runs.
    pub(super) parent: Option<u64>,
    pub(super) reads_only: bool,
    pub(super) until: Option<Instant>,
    /// Call that requested the admission. `since` is the time of the admission.
    pub(super) asker: Asker,
    pub(super) since: Instant,
    /// Time of the first order to stop before the deadline: by a cancellation of the operation or
    /// of an enclosing one, or by the end of the latter.
    pub(super) told_to_stop: Option<Instant>,
    /// The operation, once it has started.
    pub(super) begun: Option<Arc<CallScope>>,
    /// Whether this is a call of a child session, which has no records in this session's log.
    /// `begun` then names the operation that it works for.
    pub(super) is_guest: bool,
    pub(super) abandon: Option<Abandon>,
    /// Whether a thread took the `abandon` function and is ending it.
    pub(super) is_being_ended: bool,
    /// Whether it is being ended, or is to be ended without a waiter once it is abandoned.
    #[cfg(feature = "async")]
    pub(super) ends_soon: bool,
}

impl AdmittedOperation {
    pub(super) fn operation(&self) -> Option<OperationId> {
        self.begun.as_ref().map(|begun| begun.operation)
    }

    /// Describes the operation for a blocked call.
    fn as_blocker(&self) -> Blocker {
        Blocker::Operation {
            operation: self.operation(),
            tool: self.asker.what.to_string(),
            open_for: self.since.elapsed(),
            begun_at: self.asker.at,
        }
    }

    /// Returns the time at which the operation becomes stuck if it still runs then. An abandoned
    /// operation does not become stuck: the next call that would wait for it ends it, and from then
    /// on it counts as running.
    fn stuck_at(&self, grace: Duration) -> Option<Instant> {
        if self.abandon.is_some() {
            return None;
        }
        self.until.into_iter().chain(self.told_to_stop).min()?.checked_add(grace)
    }
}

impl RunningCalls {
    #[inline]
    fn is_empty(&self) -> bool {
        self.admitted.is_empty()
    }

    pub(super) fn get(&self, ticket: u64) -> Option<&AdmittedOperation> {
        self.admitted.iter().find(|admitted| admitted.ticket == ticket)
    }

    /// Returns the operations that have started and still run after their grace.
    pub(super) fn stuck_operations(&self, grace: Duration) -> impl Iterator<Item = OperationId> {
        let is_stuck =
            move |admitted: &&AdmittedOperation| admitted.stuck_at(grace).is_some_and(clock::is_past);
        self.admitted.iter().filter(is_stuck).filter_map(AdmittedOperation::operation)
    }

    /// Returns the operation that becomes stuck first, and when. Only operations count that have to
    /// end before `access` can be done within `asker`, including operations nested in them.
    fn stuck_first(
        &self,
        access: Access,
        asker: Option<u64>,
        grace: Duration,
    ) -> Option<(Instant, OperationId)> {
        let ends_first = |one: &&AdmittedOperation| {
            let waits_for_it = |other: &AdmittedOperation| {
                access.is_blocked_by(other, self, asker) && self.is_within(one.ticket, other.ticket)
            };
            self.admitted.iter().any(waits_for_it)
        };
        let stuck =
            |one: &AdmittedOperation| Some((one.stuck_at(grace)?, one.operation().unwrap_or_default()));
        self.admitted.iter().filter(ends_first).filter_map(stuck).min_by_key(|(at, _)| *at)
    }

    /// Notes the time of the order to stop for the operations within the one with `ticket`, and for
    /// that one itself if `too` is set. Retains an earlier time.
    pub(super) fn tell_to_stop(&mut self, ticket: u64, too: bool) {
        let told = |one: &u64| self.is_within(*one, ticket) && (too || *one != ticket);
        let told: Vec<u64> = self.admitted.iter().map(|one| one.ticket).filter(told).collect();
        // Nested operations are rare, so the clock is rarely read.
        for one in self.admitted.iter_mut().filter(|one| told.contains(&one.ticket)) {
            one.told_to_stop.get_or_insert_with(clock::now);
        }
    }

    /// Removes an operation, and returns whether its start record is in the log.
    pub(super) fn remove(&mut self, ticket: u64) -> bool {
        let begun = self.get(ticket).is_some_and(|admitted| admitted.begun.is_some() && !admitted.is_guest);
        self.admitted.retain(|admitted| admitted.ticket != ticket);
        begun
    }

    /// Returns whether `ticket` is `of` or runs within it.
    pub(super) fn is_within(&self, ticket: u64, of: u64) -> bool {
        let mut at = Some(ticket);
        while let Some(ticket) = at {
            if ticket == of {
                return true;
            }
            at = self.get(ticket).and_then(|admitted| admitted.parent);
        }
        false
    }

    /// Returns whether `other` must end before an operation within `parent` may start.
    fn conflicts(&self, other: &AdmittedOperation, parent: Option<u64>, reads_only: bool) -> bool {
        let ancestor = parent.is_some_and(|parent| self.is_within(parent, other.ticket));
        let together = other.reads_only && reads_only;
        !ancestor && !together
    }

    /// Returns whether `other` may change STATE, and runs within `below` if that is given.
    fn changes(&self, other: &AdmittedOperation, below: Option<u64>) -> bool {
        let counts = below.is_none_or(|of| other.ticket != of && self.is_within(other.ticket, of));
        counts && !other.reads_only && !other.is_guest
    }

    /// Returns the function that ends an abandoned operation. Skips operations with running work in
    /// them, such as the asker. From then on no work can start within the operation, so its end is
    /// not delayed.
    pub(super) fn take_abandoned(&mut self, asker: Option<u64>) -> Option<Abandon> {
        let is_free = |of: &AdmittedOperation| {
            let works = |other: &AdmittedOperation| {
                other.abandon.is_none() && self.is_within(other.ticket, of.ticket)
            };
            of.abandon.is_some()
                && !self.admitted.iter().any(works)
                && asker.is_none_or(|asker| !self.is_within(asker, of.ticket))
        };
        // The inner ones first: an operation cannot end before its nested ones.
        let at = self.admitted.iter().rposition(is_free)?;
        let admitted = self.admitted.get_mut(at)?;
        // Done under the lock of admissions. The end itself does so as well, but later and without
        // that lock.
        let begun = admitted.begun.clone();
        begun.iter().for_each(|begun| begun.tell_to_stop());
        admitted.is_being_ended = true;
        let abandon = admitted.abandon.take()?;
        Some(Arc::new(move || {
            begun.iter().for_each(|begun| begun.wake());
            abandon()
        }))
    }

    /// Returns whether an abandoned operation is being ended.
    pub(super) fn is_any_being_ended(&self) -> bool {
        self.admitted.iter().any(|one| one.is_being_ended)
    }

    /// Returns whether an operation was abandoned that is to be ended without a waiter.
    #[cfg(feature = "async")]
    pub(super) fn has_to_end(&self) -> bool {
        self.admitted.iter().any(|one| one.ends_soon && one.abandon.is_some())
    }

    /// Returns the next time to check whether the stopping operations have ended. An operation is
    /// stopping if it is being ended, or has got the order to stop and is not stuck yet. `None` if
    /// no other thread has to end one. A starting operation is checked again shortly.
    #[cfg(feature = "async")]
    pub(super) fn next_stop_check(&self, grace: Duration) -> Option<Instant> {
        const BEGINS_WITHIN: Duration = Duration::from_millis(2);
        let look_again = |one: &AdmittedOperation| {
            if one.begun.is_none() {
                return Some(clock::after(BEGINS_WITHIN));
            }
            let is_told = one.told_to_stop.is_some() || one.is_being_ended || one.ends_soon;
            is_told.then(|| one.stuck_at(grace).unwrap_or_else(|| clock::after(grace)))
        };
        let others = self.admitted.iter().filter(|one| !one.asker.is_held_here());
        others.filter_map(look_again).filter(|at| !clock::is_past(*at)).min()
    }

    /// Returns whether an operation has nested ones.
    #[cfg(feature = "async")]
    pub(super) fn has_inner(&self, ticket: u64) -> bool {
        self.admitted.iter().any(|one| one.ticket != ticket && self.is_within(one.ticket, ticket))
    }

    /// Returns whether this process still works on an operation.
    pub(super) fn holds(&self, operation: OperationId) -> bool {
        self.admitted.iter().any(|admitted| admitted.operation() == Some(operation))
    }
}

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

impl RunningCalls {
    /// Returns an operation that a subscriber of this session must not wait for.
    pub(super) fn told_within(&self) -> Option<(u64, OperationId)> {
        let changing = self.admitted.iter().find(|admitted| self.changes(admitted, None));
        changing.map(|admitted| (admitted.ticket, admitted.operation().unwrap_or_default()))
    }

    /// Returns the operation, if any, that runs on this thread and would have to end before the one
    /// with `ticket`.
    pub(super) fn waits_for_itself(&self, session: Uuid, ticket: u64) -> Option<OperationId> {
        let ends_first = |own: &&(Uuid, u64, OperationId)| own.0 == session && self.is_within(own.1, ticket);
        INSIDE.with_borrow(|inside| inside.iter().rev().find(ends_first).map(|(_, _, operation)| *operation))
    }

    /// Returns the operation, if any, that this thread started and has to end, and that would have
    /// to end before the one with `ticket`.
    fn waits_for_own(&self, ticket: u64) -> Option<OperationId> {
        let is_own = |one: &&AdmittedOperation| {
            one.abandon.is_none() && one.asker.is_held_here() && self.is_within(one.ticket, ticket)
        };
        self.admitted.iter().rfind(is_own)?.operation()
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

impl Session {
    /// Locks the writer's state, once it is the turn of this change.
    pub(super) fn writable(&self, change: WriteScope) -> Result<MutexGuard<'_, WriterState>> {
        let state = self.inner.writable()?;
        self.turn_to_write(state, || change, None)
    }

    /// Waits until the schedule allows this change. Returns at once if no operation runs.
    #[inline]
    pub(super) fn wait_to_write<'a>(
        &'a self,
        state: MutexGuard<'a, WriterState>,
        change: impl FnOnce() -> WriteScope,
    ) -> Result<MutexGuard<'a, WriterState>> {
        if state.running_calls.is_empty() && self.within.is_none() {
            return Ok(state);
        }
        let patience = self.patience(self.within.as_deref().and_then(CallScope::until), None);
        self.wait_until_allowed(state, Access::Write(change()), &patience)
    }

    /// Waits until the schedule allows `access` to this handle, but no longer than `patience`
    /// allows.
    #[cold]
    pub(super) fn wait_until_allowed<'a>(
        &'a self,
        mut state: MutexGuard<'a, WriterState>,
        access: Access,
        patience: &Patience,
    ) -> Result<MutexGuard<'a, WriterState>> {
        loop {
            match self.turn(&mut state, access, patience)? {
                Turn::Now => return Ok(state),
                Turn::Behind(abandon) => {
                    drop(state);
                    abandon()?;
                }
                Turn::Later(until) => {
                    self.inner.schedule.wait_until(&mut state, until);
                    drop(state);
                }
            }
            state = self.inner.writable()?;
        }
    }

    /// Returns whether the schedule allows `access` to this handle now, or the condition for it.
    ///
    /// # Errors
    ///
    /// The errors of a call that cannot wait: its operation has ended or should stop, it only
    /// reads, it would block itself, the blocking operation is stuck, or `patience` is over.
    pub(super) fn turn(&self, state: &mut WriterState, access: Access, patience: &Patience) -> Result<Turn> {
        let asker = self.within.as_deref().map(|within| within.ticket);
        if let Some(abandon) = state.running_calls.take_abandoned(asker) {
            return Ok(Turn::Behind(abandon));
        }
        let running_calls = &state.running_calls;
        if let Some(within) = &self.within {
            within.check()?;
            let operation = within.operation;
            let Some(admitted) = running_calls.get(within.ticket) else {
                return Err(Error::Revoked { operation, reason: "it has ended" });
            };
            if let Some(tried) = access.changes().filter(|_| admitted.reads_only) {
                return Err(Error::ReadsOnly { operation, tried });
            }
        }
        let blocks = |other: &&AdmittedOperation| access.is_blocked_by(other, running_calls, asker);
        let Some(other) = running_calls.admitted.iter().find(blocks) else { return Ok(Turn::Now) };
        if let Some(operation) = running_calls.waits_for_itself(self.inner.id, other.ticket) {
            return Err(Error::InsideOperation { operation });
        }
        let stuck = running_calls.stuck_first(access, asker, self.inner.store.options.grace);
        if let Some((_, operation)) = stuck.filter(|(at, _)| clock::is_past(*at)) {
            return Err(Error::Stuck { operation });
        }
        if let Some(operation) = running_calls.waits_for_own(other.ticket).filter(|_| patience.holds_thread())
        {
            return Err(Error::InsideOperation { operation });
        }
        patience.check(|| other.as_blocker())?;
        Ok(Turn::Later(stuck.map_or(patience.over_at(), |(at, _)| at.min(patience.over_at()))))
    }
}

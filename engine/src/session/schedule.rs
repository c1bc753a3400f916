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

use std::sync::Arc;
use std::time::{Duration, Instant};

use foldlog_codec::OperationId;
use parking_lot::MutexGuard;

use super::operations::Admission;
use super::replay::Attempt;
use super::wait::{Asker, CallScope, Patience, runs_here};
use super::write::Mode;
use super::{Session, WriterState};
use crate::clock;
use crate::error::{Blocker, Error, Result};

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
    next: u64,
    admitted: Vec<AdmittedOperation>,
}

/// An operation that the schedule has admitted, before and after its start.
pub(super) struct AdmittedOperation {
    ticket: u64,
    /// Ticket of the operation within which this one runs.
    parent: Option<u64>,
    reads_only: bool,
    until: Option<Instant>,
    /// Call that requested the admission. `since` is the time of the admission.
    pub(super) asker: Asker,
    since: Instant,
    /// Time of the first order to stop before the deadline: by a cancellation of the operation or
    /// of an enclosing one, or by the end of the latter.
    told_to_stop: Option<Instant>,
    /// The operation, once it has started.
    pub(super) begun: Option<Arc<CallScope>>,
    /// Whether this is a call of a child session, which has no records in this session's log.
    /// `begun` then names the operation that it works for.
    pub(super) is_guest: bool,
    pub(super) abandon: Option<Abandon>,
    /// Whether a thread took the `abandon` function and is ending it.
    is_being_ended: bool,
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

    /// Adds an operation, and returns its ticket.
    fn admit(&mut self, parent: Option<u64>, reads_only: bool, until: Option<Instant>, asker: Asker) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.admitted.push(AdmittedOperation {
            ticket,
            parent,
            reads_only,
            until,
            asker,
            since: clock::now(),
            told_to_stop: None,
            begun: None,
            is_guest: false,
            abandon: None,
            is_being_ended: false,
            #[cfg(feature = "async")]
            ends_soon: false,
        });
        ticket
    }

    pub(super) fn get_mut(&mut self, ticket: u64) -> Option<&mut AdmittedOperation> {
        self.admitted.iter_mut().find(|admitted| admitted.ticket == ticket)
    }

    /// Returns the operation that was admitted last within the one with `ticket`.
    pub(super) fn last_within(&mut self, ticket: u64) -> Option<&mut AdmittedOperation> {
        let is_inner = |one: &AdmittedOperation| one.ticket != ticket && self.is_within(one.ticket, ticket);
        let at = self.admitted.iter().rposition(is_inner)?;
        self.admitted.get_mut(at)
    }

    /// Returns the operations that have started.
    pub(super) fn begun(&self) -> impl Iterator<Item = &Arc<CallScope>> {
        self.admitted.iter().filter_map(|admitted| admitted.begun.as_ref())
    }

    fn get(&self, ticket: u64) -> Option<&AdmittedOperation> {
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

impl RunningCalls {
    /// Returns an operation that a subscriber of this session must not wait for.
    pub(super) fn told_within(&self) -> Option<(u64, OperationId)> {
        let changing = self.admitted.iter().find(|admitted| self.changes(admitted, None));
        changing.map(|admitted| (admitted.ticket, admitted.operation().unwrap_or_default()))
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
        if let Some(operation) = running_calls.waits_for_own(other.ticket).filter(|_| patience.holds_thread) {
            return Err(Error::InsideOperation { operation });
        }
        patience.check(|| other.as_blocker())?;
        Ok(Turn::Later(stuck.map_or(patience.over_at(), |(at, _)| at.min(patience.over_at()))))
    }

    /// Returns whether this session replays recorded records, and writes none.
    pub fn replays(&self) -> bool {
        matches!(self.inner.mode, Mode::Replay(_))
    }

    /// Waits for the turn of a write through this handle. `attempt` is the write, if its refusal
    /// leaves no record.
    #[inline]
    pub(super) fn turn_to_write<'a>(
        &'a self,
        state: MutexGuard<'a, WriterState>,
        change: impl FnOnce() -> WriteScope,
        attempt: Option<Attempt<'_>>,
    ) -> Result<MutexGuard<'a, WriterState>> {
        match &self.inner.mode {
            Mode::Live => self.wait_to_write(state, change),
            Mode::Replay(_) => self.turn_again(state, Some(change()), attempt),
        }
    }

    /// Returns the result of a write that `known` finds in a replay before the write's turn: a call
    /// that writes no record has none.
    pub(super) fn known_before_turn<T>(&self, known: impl FnOnce(&WriterState) -> Option<T>) -> Option<T> {
        self.inner.replay().and_then(|_| known(&self.inner.state.lock()))
    }

    /// Waits for the turn of a record that the schedule never delays.
    pub(super) fn turn_to_settle<'a>(
        &'a self,
        state: MutexGuard<'a, WriterState>,
        attempt: Option<Attempt<'_>>,
    ) -> Result<MutexGuard<'a, WriterState>> {
        match &self.inner.mode {
            Mode::Live => Ok(state),
            Mode::Replay(_) => {
                let change = attempt.is_some().then_some(WriteScope::Log);
                self.turn_again(state, change, attempt)
            }
        }
    }

    /// Waits for an admission by the schedule as [`admit_live`](Session::admit_live) does. Returns
    /// `None` in a replay, where the log has the order of the operations.
    pub(crate) fn admit(
        &self,
        reads_only: bool,
        patience: &Patience,
        asker: Asker,
    ) -> Result<Option<Admission<'_>>> {
        match &self.inner.mode {
            Mode::Live => self.admit_live(reads_only, patience, asker).map(Some),
            Mode::Replay(_) => Ok(None),
        }
    }

    /// Blocks until the schedule admits an operation within this handle's operation, if any. Writes
    /// no record.
    pub(crate) fn admit_live(
        &self,
        reads_only: bool,
        patience: &Patience,
        asker: Asker,
    ) -> Result<Admission<'_>> {
        let parent = self.within.as_deref();
        // A call must end before the one within which it runs.
        let patience = patience.by(parent.and_then(CallScope::until));
        let until = patience.until();
        let state = self.inner.writable()?;
        let mut state = self.wait_until_allowed(state, Access::Begin { reads_only }, &patience)?;
        let ticket = state.running_calls.admit(parent.map(|parent| parent.ticket), reads_only, until, asker);
        drop(state);
        Ok(Admission::new(self, ticket, until))
    }

    /// Locks the recovery of the session, and checks that the session can be recovered: only a
    /// handle that may write the result may change the resources.
    pub(crate) fn lock_recovery(&self, patience: &Patience) -> Result<MutexGuard<'_, ()>> {
        if let Some(operation) = runs_here(self.inner.id) {
            return Err(Error::InsideOperation { operation });
        }
        let recovering = self.inner.recovering.try_lock_until(patience.over_at());
        let recovering = recovering.ok_or_else(|| patience.waited_for(Blocker::Recovery))?;
        drop(self.inner.settleable()?);
        Ok(recovering)
    }
}

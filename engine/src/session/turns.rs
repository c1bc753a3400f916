//! Who may write while operations run, and what their handles know.
//!
//! Operations form a tree. One that is begun within another runs beside its ancestors and does not wait for them;
//! all others take turns, but for those that read only, which run together.
//!
//! | who | waits while |
//! |---|---|
//! | an operation that is to begin | one runs that is none of its ancestors, unless both read only |
//! | a write of STATE through an operation's own handle | an operation runs within it that may change STATE |
//! | a write of STATE from outside | an operation runs that may change STATE |
//! | a write of LOG alone | never |
//!
//! Whoever would wait on a thread for what runs on that very thread is told so, and does not wait.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use foldlog_codec::sabotage::{self, Breakage};
use parking_lot::MutexGuard;
use uuid::Uuid;

use super::{Inner, Session, WriterState};
use crate::clock;
use crate::error::{Error, Result};

/// What a write changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// STATE or CACHE, perhaps beside others.
    State,
    /// Nothing but LOG.
    Log,
}

/// What a handle is to do in its turn.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn {
    /// Write a record.
    Write(Change),
    /// Begin an operation.
    Begin { reads_only: bool },
}

impl Turn {
    /// What it is called where it is refused to an operation that only reads; nothing, where that may do it.
    fn changes(self) -> Option<&'static str> {
        match self {
            Turn::Write(Change::State) => Some("change STATE"),
            Turn::Begin { reads_only: false } => Some("run a tool that changes something"),
            Turn::Write(Change::Log) | Turn::Begin { reads_only: true } => None,
        }
    }

    /// The operation that is in the way, for one who asks within the operation with the ticket `asker`.
    fn in_the_way(self, table: &Table, asker: Option<u64>) -> Option<&Admitted> {
        match self {
            Turn::Write(Change::State) => table.changing(asker),
            Turn::Write(Change::Log) => None,
            Turn::Begin { reads_only } => table.conflict(asker, reads_only),
        }
    }
}

/// What an operation's handle knows of it.
pub(crate) struct Within {
    pub(super) ticket: u64,
    /// The operation's name.
    pub(super) operation: u64,
    pub(super) until: Option<Instant>,
    /// Set where it is to stop.
    pub(super) cancelled: AtomicBool,
    /// The operation within which it runs.
    pub(super) parent: Option<Arc<Within>>,
}

impl fmt::Debug for Within {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Within").field("operation", &self.operation).finish_non_exhaustive()
    }
}

impl Within {
    pub(crate) fn operation(&self) -> u64 {
        self.operation
    }

    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    /// Whether it is to stop: it, or one within which it runs, was cancelled, or its time is over.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.was_cancelled() || self.is_late()
    }

    pub(crate) fn was_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
            || self.parent.as_ref().is_some_and(|parent| parent.was_cancelled())
    }

    pub(crate) fn is_late(&self) -> bool {
        self.until.is_some_and(clock::is_past)
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

/// What brings an operation to its end that whoever ran it let go of.
pub(crate) type Abandon = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// Operations of this process that are not over.
#[derive(Default)]
pub(super) struct Table {
    pub(super) next: u64,
    pub(super) admitted: Vec<Admitted>,
}

pub(super) struct Admitted {
    pub(super) ticket: u64,
    /// The ticket of the operation within which it runs.
    pub(super) parent: Option<u64>,
    pub(super) reads_only: bool,
    pub(super) until: Option<Instant>,
    /// The operation's name, from its begin on.
    pub(super) operation: Option<u64>,
    pub(super) abandon: Option<Abandon>,
}

impl Table {
    #[inline]
    fn is_empty(&self) -> bool {
        self.admitted.is_empty()
    }

    pub(super) fn get(&self, ticket: u64) -> Option<&Admitted> {
        self.admitted.iter().find(|admitted| admitted.ticket == ticket)
    }

    /// The names of those that have begun and still run so long after their deadlines.
    pub(super) fn stuck(&self, grace: Duration) -> impl Iterator<Item = u64> {
        let is_stuck = move |admitted: &&Admitted| {
            let stuck_at = admitted.until.and_then(|until| until.checked_add(grace));
            stuck_at.is_some_and(clock::is_past) && !sabotage::is(Breakage::StuckUntold)
        };
        self.admitted.iter().filter(is_stuck).filter_map(|admitted| admitted.operation)
    }

    /// Takes one out; whether it had begun.
    pub(super) fn remove(&mut self, ticket: u64) -> bool {
        let begun = self.get(ticket).is_some_and(|admitted| admitted.operation.is_some());
        self.admitted.retain(|admitted| admitted.ticket != ticket);
        begun
    }

    /// Whether `ticket` is `of` or runs within it.
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

    /// One that is in the way of an operation within `parent`.
    fn conflict(&self, parent: Option<u64>, reads_only: bool) -> Option<&Admitted> {
        self.admitted.iter().find(|other| {
            let ancestor = parent.is_some_and(|parent| self.is_within(parent, other.ticket));
            let together = other.reads_only && reads_only;
            !ancestor && !together
        })
    }

    /// One that may change STATE, and runs within `ticket` where one is given.
    fn changing(&self, below: Option<u64>) -> Option<&Admitted> {
        self.admitted.iter().find(|other| {
            let counts = below.is_none_or(|of| other.ticket != of && self.is_within(other.ticket, of));
            counts && !other.reads_only
        })
    }

    /// What brings one to its end that was let go of: none within which somebody still works, be it the asker.
    pub(super) fn take_abandoned(&mut self, asker: Option<u64>) -> Option<Abandon> {
        let is_free = |of: &Admitted| {
            let works = |other: &Admitted| other.abandon.is_none() && self.is_within(other.ticket, of.ticket);
            of.abandon.is_some()
                && !self.admitted.iter().any(works)
                && asker.is_none_or(|asker| !self.is_within(asker, of.ticket))
        };
        // The inner ones first: an operation cannot end before those within it.
        let at = self.admitted.iter().rposition(is_free)?;
        self.admitted.get_mut(at)?.abandon.take()
    }

    /// Whether somebody of this process still works on an operation.
    pub(super) fn holds(&self, operation: u64) -> bool {
        self.admitted.iter().any(|admitted| admitted.operation == Some(operation))
    }
}

thread_local! {
    /// The sessions, tickets and operations whose tools run on this thread, or whose records it tells of.
    static INSIDE: RefCell<Vec<(Uuid, u64, u64)>> = const { RefCell::new(Vec::new()) };
}

/// Runs what must not wait on this thread for an operation to end: its own handler, or a subscriber.
pub(super) fn inside<T>((session, ticket, operation): (Uuid, u64, u64), run: impl FnOnce() -> T) -> T {
    struct Left;
    impl Drop for Left {
        fn drop(&mut self) {
            INSIDE.with_borrow_mut(|inside| inside.pop());
        }
    }
    INSIDE.with_borrow_mut(|inside| inside.push((session, ticket, operation)));
    let _left = Left;
    run()
}

/// Runs a tool's handler, which must not wait on this thread for its own operation to end.
pub(crate) fn inside_call<T>(begun: &Session, run: impl FnOnce() -> T) -> T {
    match &begun.within {
        Some(within) => inside((begun.inner.id, within.ticket, within.operation), run),
        None => run(),
    }
}

impl Table {
    /// One whose end a subscriber of this session must not wait for.
    pub(super) fn told_within(&self) -> Option<(u64, u64)> {
        self.changing(None).map(|admitted| (admitted.ticket, admitted.operation.unwrap_or_default()))
    }

    /// The operation of this thread, if there is one, that would have to end before the one with `ticket` can.
    pub(super) fn waits_for_itself(&self, session: Uuid, ticket: u64) -> Option<u64> {
        let ends_first = |own: &&(Uuid, u64, u64)| own.0 == session && self.is_within(own.1, ticket);
        INSIDE.with_borrow(|inside| inside.iter().rev().find(ends_first).map(|(_, _, operation)| *operation))
    }
}

/// Whether an operation of the session runs on this thread.
pub(super) fn runs_here(session: Uuid) -> Option<u64> {
    INSIDE.with_borrow(|inside| {
        inside.iter().rev().find(|own| own.0 == session).map(|(_, _, operation)| *operation)
    })
}

impl Session {
    /// Locks the writer's state for a write; waits for its turn.
    pub(super) fn writable(&self, change: Change) -> Result<MutexGuard<'_, WriterState>> {
        let state = self.inner.writable()?;
        self.turn(state, || change)
    }

    /// Waits for its turn where operations run.
    #[inline]
    pub(super) fn turn<'a>(
        &'a self,
        state: MutexGuard<'a, WriterState>,
        change: impl FnOnce() -> Change,
    ) -> Result<MutexGuard<'a, WriterState>> {
        if state.table.is_empty() && self.within.is_none() {
            return Ok(state);
        }
        let until = self.within.as_deref().and_then(Within::until);
        self.wait_for_turn(state, Turn::Write(change()), until)
    }

    /// Waits until nothing is in the way of what this handle is to do, or until `until`.
    #[cold]
    pub(super) fn wait_for_turn<'a>(
        &'a self,
        mut state: MutexGuard<'a, WriterState>,
        turn: Turn,
        until: Option<Instant>,
    ) -> Result<MutexGuard<'a, WriterState>> {
        let asker = self.within.as_deref().map(|within| within.ticket);
        loop {
            if let Some(abandon) = state.table.take_abandoned(asker) {
                drop(state);
                abandon()?;
                state = self.inner.writable()?;
                continue;
            }
            if let Some(within) = &self.within {
                within.check()?;
                let operation = within.operation;
                let Some(admitted) = state.table.get(within.ticket) else {
                    return Err(Error::Revoked { operation, reason: "it is over" });
                };
                if let Some(tried) = turn.changes().filter(|_| admitted.reads_only) {
                    return Err(Error::ReadsOnly { operation, tried });
                }
            }
            let Some(other) = turn.in_the_way(&state.table, asker) else { return Ok(state) };
            let waited_for = (other.operation.unwrap_or_default(), other.until);
            if let Some(operation) = state.table.waits_for_itself(self.inner.id, other.ticket) {
                return Err(Error::InsideOperation { operation });
            }
            self.inner.wait(&mut state, waited_for, until)?;
            drop(state);
            state = self.inner.writable()?;
        }
    }
}

impl Inner {
    /// Waits until some operation is over, or until `until`.
    fn wait(
        &self,
        state: &mut MutexGuard<'_, WriterState>,
        (operation, deadline): (u64, Option<Instant>),
        until: Option<Instant>,
    ) -> Result<()> {
        let stuck_at = deadline.and_then(|deadline| deadline.checked_add(self.store.options.grace));
        let stuck_at = stuck_at.filter(|_| !sabotage::is(Breakage::StuckUntold));
        if stuck_at.is_some_and(clock::is_past) {
            return Err(Error::Stuck { operation });
        }
        if until.is_some_and(clock::is_past) {
            return Err(Error::DeadlineExceeded { operation: None });
        }
        match until.into_iter().chain(stuck_at).min() {
            Some(until) => drop(self.turns.wait_until(state, until)),
            None => self.turns.wait(state),
        }
        Ok(())
    }
}

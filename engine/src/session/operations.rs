//! Operations: tool calls as transactions, with their start and end records. The
//! [schedule](super::schedule) decides which writes may happen in the meantime.
//!
//! # Terms
//!
//! An operation is *left open* if no thread of this process works on it: a different process
//! started it, or its end record could not be written. It has to be recovered.
//!
//! # Invariants
//!
//! 1. The record that an operation failed also rolls back the operation's writes: no crash falls
//!    between the two.
//! 2. An operation is among the running calls from before its start record until its end is folded.
//!    An open operation outside of them was left open.
//! 3. The writer's lock is not held while a tool runs, nor while a resource is captured or
//!    restored.

use std::sync::Arc;
use std::time::Instant;

use foldlog_codec::body::{Declare, Lane, ToolBegin, ToolEnd};
use foldlog_codec::{OperationId, RecordKind, SequenceNumber};
use parking_lot::{Mutex, MutexGuard};
use uuid::Uuid;

use super::event_plan::slice_declaration;
use super::schedule::{Abandon, AdmittedOperation};
use super::sync::promises_sync;
use super::wait::{CallScope, Stop, runs_here};
use super::write::PendingRecord;
use super::{Session, SessionCalls, SessionInner, WriterState};
use crate::clock;
use crate::error::{Error, Result};
use crate::fold::live::LiveState;
use crate::fold::record_kinds::{MaybeOwned, RecordBody};
use crate::log::writer::{END_BYTES, ReservationKind, check_body_len};
#[cfg(feature = "async")]
use crate::offload::offload;
use crate::operation::OpenOperation;
use crate::options::Durability;
use crate::types::{Slice, ToolInvocations};

impl SessionCalls<'_> {
    /// Returns the open operations, in the order of their starts.
    pub fn open_operations(&self) -> Vec<OpenOperation> {
        self.session.inner.state.lock().live.projection.operations.open().cloned().collect()
    }

    /// Cancels a running operation and its nested calls: its handle is revoked, its programs are
    /// terminated, and its changes are rolled back once it has ended, even if it reports success.
    /// Returns `false` if this process runs no such operation.
    ///
    /// A host finds calls that other threads [run](crate::tools::ToolRunner::execute) in
    /// [`open_operations`](crate::SessionCalls::open_operations). The cancellation itself is not
    /// recorded; the end record of the operation states that it was cancelled.
    pub fn cancel(&self, operation: impl Into<OperationId>) -> bool {
        let operation = operation.into();
        let state = self.session.inner.state.lock();
        let open = state.running_calls.begun().find(|begun| begun.operation() == operation);
        let Some(within) = open.cloned() else { return false };
        self.session.inner.cancel(state, &within);
        true
    }

    /// Returns the operations of this process that still run after the store's
    /// [grace](crate::StoreOptions::grace) period. The period starts when the deadline passes, when
    /// the operation or one around it is [cancelled](crate::tools::Operation::cancel), or when one
    /// around it ends, whichever comes first.
    ///
    /// A call that waits for such an operation, and closing the session, fail with
    /// [`Error::Stuck`]. If the operation ends after all, it is rolled back and the session
    /// continues; until then no other call can change STATE or the tool's resources.
    pub fn stuck_operations(&self) -> Vec<OpenOperation> {
        let state = self.session.inner.state.lock();
        let stuck: Vec<OperationId> =
            state.running_calls.stuck_operations(self.session.inner.store.options.grace).collect();
        let open = state.live.projection.operations.open();
        open.filter(|open| stuck.contains(&open.operation)).cloned().collect()
    }

    /// Returns whether the session accepts no writes until it is recovered.
    pub fn is_interrupted(&self) -> bool {
        self.session.inner.state.lock().interrupted
    }

    /// Returns the operation that owns this handle, or else the one that the calling thread runs on
    /// this session.
    pub fn inside_operation(&self) -> Option<OperationId> {
        let own = self.session.within.as_ref().map(|within| within.operation());
        own.or_else(|| runs_here(self.session.inner.id))
    }

    pub(crate) fn call_scope(&self) -> Option<&Arc<CallScope>> {
        self.session.within.as_ref()
    }

    /// Returns the first open operation that may have made changes, also of a closed session.
    pub(crate) fn changing_operation(&self) -> Option<OpenOperation> {
        self.session.inner.state.lock().live.projection.operations.changing_operation().cloned()
    }

    pub(crate) fn left_open(&self) -> Vec<OpenOperation> {
        self.session.inner.state.lock().left_open().cloned().collect()
    }

    /// Returns whether no open operation may make changes, and none can be open at the next
    /// opening. After a failed write, the contents of the log are unknown.
    pub(crate) fn is_at_rest(&self) -> bool {
        let state = self.session.inner.settleable();
        state.is_ok_and(|state| state.live.projection.operations.changing_operation().is_none())
    }

    /// Returns the session that started the first open operation with possible changes. It differs
    /// from this one if this one was salvaged; a fork shares no open operation.
    pub(crate) fn open_call_of(&self) -> Option<Uuid> {
        let state = self.session.inner.state.lock();
        let begin = state.live.projection.operations.changing_operation()?.begin;
        let before = state.openings.iter().rev().find(|(sequence, _)| *sequence < begin);
        before.map(|(_, opened)| opened.session)
    }

    /// Records the end of an operation that was left open.
    pub(crate) fn end_interrupted(&self, end: ToolEnd<'_>) -> Result<SequenceNumber> {
        let inner = &self.session.inner;
        let state = inner.settleable()?;
        let sequence = inner.write_end(state, inner.now_us(), end, None, false)?;
        let mut state = inner.state.lock();
        let left = state.left_open().next().is_some();
        state.interrupted = left;
        Ok(sequence)
    }
}

impl WriterState {
    pub(super) fn left_open(&self) -> impl Iterator<Item = &OpenOperation> {
        self.live.projection.operations.open().filter(|open| !self.running_calls.holds(open.operation))
    }
}

/// An admission by the schedule. Dropping it returns it, unless the operation has started.
pub(crate) struct Admission<'a> {
    session: &'a Session,
    ticket: u64,
    until: Option<Instant>,
    /// Guest of the parent session's schedule as which the operation runs.
    guest_of: Option<Arc<CallScope>>,
    begun: bool,
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        if !self.begun {
            self.session.inner.leave(self.ticket);
        }
    }
}

/// An admission by the schedule of the parent session for a call of a child session. Dropping it
/// returns it.
pub(crate) struct Guest {
    /// Handle of the admission, which does not keep the parent session open.
    call: Session,
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(within) = &self.call.within {
            self.call.inner.leave(within.ticket);
        }
    }
}

impl Guest {
    /// Lets any waiter for the guest end the abandoned calls of its session, `child`.
    pub(crate) fn abandon(&self, child: &Session) {
        let Some(within) = &self.call.within else { return };
        let child = Arc::clone(&child.inner);
        let end = move || {
            end_abandoned(&child);
            Ok(())
        };
        self.call.inner.abandon(within.ticket, Arc::new(end));
    }
}

/// An open operation. Does not keep its session open.
pub(crate) struct ActiveCall {
    pub(super) inner: Arc<SessionInner>,
    pub(crate) within: Arc<CallScope>,
    pub(crate) begin: SequenceNumber,
    /// Time of the start record, in microseconds since 1970-01-01 UTC.
    pub(crate) began_us: i64,
}

pub(crate) struct OperationEnd {
    pub(crate) end: SequenceNumber,
    pub(crate) elapsed_us: u64,
}

impl<'a> Admission<'a> {
    pub(super) fn new(session: &'a Session, ticket: u64, until: Option<Instant>) -> Admission<'a> {
        Admission { session, ticket, until, guest_of: None, begun: false }
    }

    /// Returns a handle that may write while other handles are blocked, for admitted work that is
    /// no operation.
    pub(crate) fn handle(&self) -> Session {
        let around = self.session.within.as_ref().and_then(|within| within.run);
        let lane = self.session.lane.clone();
        Session { lane, ..self.session.through(self.make_scope(OperationId::default(), around)) }
    }

    fn make_scope(&self, operation: OperationId, run: Option<SequenceNumber>) -> Arc<CallScope> {
        let parent = self.session.within.clone();
        let outer = parent.as_ref().and_then(|parent| parent.guest_of.clone());
        let (session, guest_of) = (self.session.inner.id, self.guest_of.clone().or(outer));
        let (ticket, until) = (self.ticket, self.until);
        Arc::new(CallScope {
            ticket,
            operation,
            run,
            until,
            made_again: Mutex::default(),
            stop: Stop::default(),
            parent,
            session,
            guest_of,
        })
    }

    /// Lets the operation run as a guest of the schedule of its session's parent.
    pub(crate) fn run_as(&mut self, guest: &Guest) {
        self.guest_of.clone_from(&guest.call.within);
    }

    /// Converts the admission for a call of a child session, which works for this session's
    /// operation. `None` if this session is no operation's handle.
    pub(crate) fn into_guest(mut self) -> Option<Guest> {
        let around = self.session.within.as_deref()?;
        let within = self.make_scope(around.operation, around.run);
        self.session.inner.change_admitted(self.ticket, |own| {
            (own.begun, own.is_guest) = (Some(Arc::clone(&within)), true);
        });
        self.begun = true;
        Some(Guest { call: self.session.clone_uncounted().through(within) })
    }

    /// Records the start. `keep` retains the position before it, for checkpoints.
    pub(crate) fn begin(mut self, mut begin: ToolBegin<'_>, keep: bool) -> Result<ActiveCall> {
        let inner = &self.session.inner;
        let mut state = inner.writable()?;
        let refused = |(operation, reason)| Error::NoSuchOperation { operation, reason };
        state.live.projection.operations.check_begin(&begin).map_err(refused)?;
        let time_us = inner.now_us();
        let references = inner.references(&state, begin.payloads_mut())?;
        let mut begin = begin;
        inner.refer(begin.payloads_mut(), &references);
        let (again, only_reads) = (begin.again, begin.reads_only && !begin.outside_only);
        let mut body = begin.encode_into(std::mem::take(&mut state.body));
        // The start record names the enclosing operation in a separate field.
        Lane { within: None, ..self.session.record_lane() }.add_to(&mut body, 0);
        let declare = inner.declare_invocations(&state)?;
        let declare_body = declare.as_ref().map(Declare::encode);
        // The end record repeats the names of the start record, and has to fit whatever the outcome
        // of the call.
        let names = begin.tool.len() + begin.call_id.as_deref().map_or(0, str::len);
        check_body_len(names.saturating_add(END_BYTES as usize))?;
        let bodies = declare_body.iter().chain([&body]).map(Vec::as_slice);
        inner.reserve(&mut state, time_us, bodies, ReservationKind::Call)?;
        if let Some((declare, body)) = declare.zip(declare_body.as_ref()) {
            let pending = PendingRecord::declare(declare, body);
            inner.write_pending(&mut state, time_us, pending, inner.durability == Durability::Every)?;
        }
        if keep && let Some(before) = state.log.next_sequence().checked_sub(1) {
            let frozen = Arc::new(state.live.projection.freeze());
            state.live.positions.keep_snapshot(before, frozen);
        }
        let pending = PendingRecord::new(
            RecordKind::ToolBegin,
            &body,
            RecordBody::ToolBegin(MaybeOwned::Borrowed(&begin)),
        );
        // The start record of a call that only reads is synced only if every record is.
        let promised = promises_sync(inner.durability, RecordKind::ToolBegin)
            && (!only_reads || inner.durability == Durability::Every);
        let sequence = inner.write_pending(&mut state, time_us, pending, promised)?;
        state.body = body;
        state.log.keep_room_for_end();
        let within = self.make_scope(again.unwrap_or(sequence.into()), Some(sequence));
        if let Some(admitted) = state.running_calls.get_mut(self.ticket) {
            admitted.begun = Some(Arc::clone(&within));
        }
        self.begun = true;
        let begun = ActiveCall { inner: Arc::clone(inner), within, begin: sequence, began_us: time_us };
        // If the sync fails, the start record may exist after reopening, and is recovered then.
        inner.finish_write(state, sequence, promised).inspect_err(|_| inner.leave_open(self.ticket))?;
        Ok(begun)
    }
}

impl ActiveCall {
    /// Returns the handle of the operation, which does not keep the session open.
    pub(crate) fn handle(&self) -> Session {
        let (inner, within) = (Arc::clone(&self.inner), Some(Arc::clone(&self.within)));
        Session { inner, _handles: None, within, lane: None, wait: None }
    }

    /// Sets the function that ends the operation, since its owner drops it. The next call that
    /// would wait for the operation calls it.
    pub(crate) fn abandon(&self, abandon: Abandon) {
        self.inner.abandon(self.within.ticket, abandon);
    }

    /// Orders an abandoned operation to stop, and ends it on a thread once no work runs within it.
    #[cfg(feature = "async")]
    pub(crate) fn end_soon(&self) {
        self.cancel();
        self.ends_soon();
        let inner = Arc::clone(&self.inner);
        drop(offload(move || end_abandoned(&inner)));
    }

    /// Notes that a thread ends the operation, even if no call waits for that.
    #[cfg(feature = "async")]
    pub(crate) fn ends_soon(&self) {
        self.inner.change_admitted(self.within.ticket, |own| own.ends_soon = true);
    }

    /// Returns whether an operation runs within this one.
    #[cfg(feature = "async")]
    pub(crate) fn has_inner(&self) -> bool {
        self.inner.state.lock().running_calls.has_inner(self.within.ticket)
    }

    /// Records the end, and revokes the operation's handle. Fills in the elapsed time. `keep`
    /// retains the position, for checkpoints. If this fails, the operation is still open, and has
    /// to be ended again or given up.
    pub(crate) fn end(&self, end: ToolEnd<'_>, keep: bool) -> Result<OperationEnd> {
        let inner = &self.inner;
        let state = inner.settleable()?;
        // Only a recovery ends operations that were left open within this one, and then this one as
        // well.
        if state.left_open().any(|open| open.parent == Some(self.within.operation)) {
            return Err(inner.interrupted_error(&state));
        }
        let time_us = inner.now_us();
        let elapsed_us = u64::try_from(time_us.saturating_sub(self.began_us)).unwrap_or_default();
        let end = ToolEnd { elapsed_us, ..end };
        let end = inner.write_end(state, time_us, end, Some(self.within.ticket), keep)?;
        Ok(OperationEnd { end, elapsed_us })
    }

    /// Allows this thread to wait for the operation, since a different one ends it.
    pub(crate) fn hand_over(&self) {
        self.inner.change_admitted(self.within.ticket, |own| own.asker.held_by = None);
    }

    /// Gives up an operation whose end is not in the log. The session accepts no writes until it is
    /// recovered, since they would seem to be within the operation.
    pub(crate) fn give_up(&self) {
        self.inner.leave_open(self.within.ticket);
    }

    /// Orders the tool and its nested calls to stop, and wakes blocked threads.
    pub(crate) fn cancel(&self) {
        let inner = &self.inner;
        inner.cancel(inner.state.lock(), &self.within);
    }

    /// Revokes the operation's handle, orders its nested calls to stop, and waits until none runs.
    /// Ends abandoned ones. The operation itself gets no order to stop: its tool has returned, and
    /// the time for capturing or restoring its resources does not count towards the grace.
    pub(crate) fn end_inner(&self) -> Result<()> {
        self.within.cancel();
        let inner = &self.inner;
        let ticket = self.within.ticket;
        let mut until = None;
        let mut state = inner.state.lock();
        state.running_calls.tell_to_stop(ticket, false);
        MutexGuard::unlocked(&mut state, || inner.schedule.notify_all());
        loop {
            let Some(admitted) = state.running_calls.last_within(ticket) else { return Ok(()) };
            let operation = admitted.operation().unwrap_or_default();
            if let Some(abandon) = admitted.abandon.take() {
                drop(state);
                // The call is over now, or left open. If it is left open, later writes report
                // that.
                let _ = abandon();
                state = inner.state.lock();
                continue;
            }
            if inner
                .schedule
                .wait_until(&mut state, *until.get_or_insert_with(|| clock::after(inner.store.options.grace)))
                .timed_out()
            {
                return Err(Error::Stuck { operation });
            }
        }
    }
}

/// Ends the operations that were abandoned. One that cannot be ended is left open, to be recovered.
pub(super) fn end_abandoned(inner: &SessionInner) {
    loop {
        let abandon = inner.state.lock().running_calls.take_abandoned(None);
        match abandon {
            Some(abandon) => drop(abandon()),
            None => return,
        }
    }
}

/// Waits until no abandoned operation is being ended, but no longer than the grace.
pub(super) fn await_abandoned(inner: &SessionInner) {
    let mut state = inner.state.lock();
    let mut until = None;
    while state.running_calls.is_any_being_ended() {
        let until = *until.get_or_insert_with(|| clock::after(inner.store.options.grace));
        if inner.schedule.wait_until(&mut state, until).timed_out() {
            return;
        }
    }
}

/// Removes an operation from the running calls, and releases the space reserved for its end record.
fn leave(state: &mut WriterState, ticket: u64) {
    if state.running_calls.remove(ticket) {
        state.log.release_end();
    }
}

impl SessionInner {
    /// Changes what the schedule knows of an operation, unless it has left the schedule.
    fn change_admitted(&self, ticket: u64, change: impl FnOnce(&mut AdmittedOperation)) {
        if let Some(admitted) = self.state.lock().running_calls.get_mut(ticket) {
            change(admitted);
        }
    }

    fn abandon(&self, ticket: u64, abandon: Abandon) {
        self.change_admitted(ticket, |admitted| admitted.abandon = Some(abandon));
        self.schedule.notify_all();
    }

    /// Orders an operation and its nested calls to stop, and wakes blocked threads.
    pub(super) fn cancel(&self, mut state: MutexGuard<'_, WriterState>, within: &CallScope) {
        // Under the lock: otherwise a thread that has checked but does not wait yet would never be
        // woken.
        within.tell_to_stop();
        state.running_calls.tell_to_stop(within.ticket, true);
        drop(state);
        within.wake();
        self.schedule.notify_all();
    }

    fn leave(self: &Arc<Self>, ticket: u64) {
        let mut state = self.state.lock();
        leave(&mut state, ticket);
        self.end_what_may(&state);
        drop(state);
        self.schedule.notify_all();
    }

    /// Ends abandoned operations on a thread. Running work within them prevented that before.
    fn end_what_may(self: &Arc<Self>, state: &WriterState) {
        #[cfg(feature = "async")]
        if state.running_calls.has_to_end() {
            let inner = Arc::clone(self);
            drop(offload(move || end_abandoned(&inner)));
        }
        #[cfg(not(feature = "async"))]
        let _ = state;
    }

    /// Removes an operation without an end record from the running calls. Shows STATE as it was
    /// before the operation, as the next opening would.
    fn leave_open(self: &Arc<Self>, ticket: u64) {
        let mut state = self.state.lock();
        leave(&mut state, ticket);
        let left = state.left_open().next().map(|open| (open.begin, open.reads_only));
        let WriterState { live: LiveState { projection, positions, .. }, interrupted, .. } = &mut *state;
        if let Some((begin, reads_only)) = left {
            *interrupted = true;
            positions.before_change(projection);
            if let Some(frozen) = positions.get(begin).filter(|_| !reads_only) {
                projection.show_state_at(begin, &frozen);
            }
        }
        self.end_what_may(&state);
        drop(state);
        self.schedule.notify_all();
    }

    /// Returns the declaration of the slice of tool calls, if the log has none yet.
    fn declare_invocations(&self, state: &WriterState) -> Result<Option<Declare>> {
        let names = &state.live.projection.names;
        if names.slice_named(ToolInvocations::NAME).is_some() {
            return Ok(None);
        }
        let slice = slice_declaration(self.types()?, ToolInvocations::NAME, names.slices().len());
        let declare = slice.map(|slice| Declare { events: Vec::new(), slices: vec![slice] });
        declare.iter().try_for_each(|declare| names.check_len(declare))?;
        Ok(declare)
    }

    /// Records the end of an operation, which also adds its item to `tool_invoked`.
    fn write_end(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, WriterState>,
        time_us: i64,
        mut end: ToolEnd<'_>,
        ticket: Option<u64>,
        keep: bool,
    ) -> Result<SequenceNumber> {
        let refused = |(operation, reason)| Error::NoSuchOperation { operation, reason };
        state.live.projection.operations.check_end(&end).map_err(refused)?;
        let references = self.references(&state, end.payloads_mut())?;
        let mut end = end;
        self.refer(end.payloads_mut(), &references);
        let reason = "the end record of a tool requires it, but no start record declared it";
        let declared = state.live.projection.names.slice_named(ToolInvocations::NAME);
        end.slice = declared.ok_or_else(|| Error::no_slice(ToolInvocations::NAME, reason))?.id;
        let body = end.encode_into(std::mem::take(&mut state.body));
        let pending =
            PendingRecord::new(RecordKind::ToolEnd, &body, RecordBody::ToolEnd(MaybeOwned::Borrowed(&end)));
        let promised = promises_sync(self.durability, RecordKind::ToolEnd);
        let sequence = self.write_pending(&mut state, time_us, pending, promised)?;
        state.body = body;
        if keep {
            let frozen = Arc::new(state.live.projection.freeze());
            state.live.positions.keep_snapshot(sequence, frozen);
        }
        // Before waiting writers are notified.
        let Some(ticket) = ticket else { return self.finish_write(state, sequence, promised) };
        leave(&mut state, ticket);
        self.end_what_may(&state);
        let due = self.due(&mut state);
        let promised = self.falls_behind(&state, sequence) || promised;
        self.see_to_write(state, sequence, promised, due, || self.schedule.notify_all())
    }
}

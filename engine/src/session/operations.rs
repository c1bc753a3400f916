//! Operations: tools' transactions, and the records that begin and end them. Who may write meanwhile is `schedule`' to say.
//!
//! # Invariants
//!
//! 1. What an operation wrote is taken back by the record that says that it failed: no crash falls between.
//! 2. An operation is in the table from before its begin until its end is folded. One that is open and not in the
//!    table was left open, by another process or because its end could not be written: it is to be recovered.
//! 3. The writer's lock is not held while a tool runs, nor while a resource is captured or restored.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use foldlog_codec::body::{Decision, Declare, Payload, Settle, ToolBegin, ToolEnd};
use foldlog_codec::msgpack::Value;
use foldlog_codec::{Kind, OperationId, SequenceNumber};
use parking_lot::MutexGuard;
use uuid::Uuid;

use super::declaring::slice_declaration;
use super::schedule::{Abandon, Access, Admitted, CallScope, runs_here};
use super::writing::{PendingRecord, promises_sync};
use super::{Inner, Session, WriterState};
use crate::clock;
use crate::error::{Error, Result};
use crate::fold::live::LiveState;
use crate::fold::record_body::{Lent, RecordBody};
use crate::log::writer::{END_BYTES, Room, check_body_len};
use crate::operation::{OpenOperation, UnsettledOperation};
use crate::options::Durability;
use crate::sabotage::{self, Breakage};
use crate::types::{Slice, ToolInvocations, encode};

impl Session {
    /// Asks for a turn for an operation within the one whose handle this is, if it is one. Nothing is recorded yet.
    pub(crate) fn admit(&self, reads_only: bool, until: Option<Instant>) -> Result<Admission<'_>> {
        let parent = self.within.as_deref();
        // No call outlasts the one within which it runs.
        let until = until.into_iter().chain(parent.and_then(CallScope::until)).min();
        let state = self.inner.writable()?;
        let mut state = self.wait_for_turn(state, Access::Begin { reads_only }, until)?;
        let table = &mut state.table;
        let ticket = table.next;
        table.next += 1;
        let parent_ticket = parent.map(|parent| parent.ticket);
        table.admitted.push(Admitted {
            ticket,
            parent: parent_ticket,
            reads_only,
            until,
            told_to_stop: None,
            begun: None,
            abandon: None,
        });
        drop(state);
        Ok(Admission { session: self, ticket, until, begun: false })
    }

    /// The operations that have begun and not ended.
    pub fn open_operations(&self) -> Vec<OpenOperation> {
        self.inner.state.lock().live.projection.operations.open().cloned().collect()
    }

    /// Tells the tool of an operation of this process to stop, and those within its call, whoever runs it: its handle is
    /// no longer good, and the programs that it started are ended. What it did is taken back once it has ended, be it
    /// with success. False where no such operation is open, or it was left open by another process.
    ///
    /// A host finds a call that another thread [runs](crate::tools::ToolRunner::execute) among the
    /// [open ones](Session::open_operations). The log says that it was cancelled; that it is to stop is not recorded.
    pub fn cancel(&self, operation: impl Into<OperationId>) -> bool {
        let operation = operation.into();
        let mut state = self.inner.state.lock();
        let open = state.table.admitted.iter().find(|admitted| admitted.operation() == Some(operation));
        let Some(within) = open.and_then(|admitted| admitted.begun.clone()) else { return false };
        self.inner.cancel(&mut state, &within);
        true
    }

    /// The operations of this process that still run although they were to stop longer ago than the store's
    /// [grace](crate::StoreOptions::grace): their deadlines passed, or they, or those within which they run, were
    /// [cancelled](crate::tools::Operation::cancel) or ended; the first of these counts. Whoever would wait for one is
    /// told so by [`Error::Stuck`], and so is whoever closes the session. One that does end after all is taken back as
    /// any that is late or cancelled, and the session goes on; until then nothing else can change STATE, nor what the
    /// tool works on.
    pub fn stuck_operations(&self) -> Vec<OpenOperation> {
        let state = self.inner.state.lock();
        let stuck: Vec<OperationId> = state.table.stuck(self.inner.store.options.grace).collect();
        state
            .live
            .projection
            .operations
            .open()
            .filter(|open| stuck.contains(&open.operation))
            .cloned()
            .collect()
    }

    /// The operations that were interrupted, and neither run again nor settled since.
    pub fn unsettled_operations(&self) -> Vec<UnsettledOperation> {
        self.inner.state.lock().live.projection.operations.unsettled().cloned().collect()
    }

    /// Whether the session takes no writes until it is recovered.
    pub fn is_interrupted(&self) -> bool {
        self.inner.state.lock().interrupted
    }

    /// The operation whose handle this is.
    pub(crate) fn within(&self) -> Option<&Arc<CallScope>> {
        self.within.as_ref()
    }

    /// Has nobody else recover the session meanwhile, and checks that it can be: what is to be recovered is changed only
    /// by whoever may also say so in the log.
    pub(crate) fn recovering(&self) -> Result<MutexGuard<'_, ()>> {
        if let Some(operation) = runs_here(self.inner.id) {
            return Err(Error::InsideOperation { operation });
        }
        let recovering = self.inner.recovering.lock();
        drop(self.inner.settleable()?);
        Ok(recovering)
    }

    /// The operations that were left open: nobody of this process works on them.
    pub(crate) fn left_open(&self) -> Vec<OpenOperation> {
        self.inner.state.lock().left_open().cloned().collect()
    }

    /// Whether nothing is open that may change something, nor can be when the session is opened next: after a failed
    /// write nobody knows what is in the log.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.inner.settleable().is_ok_and(|state| state.live.projection.operations.changing().is_none())
    }

    /// The session that began the first operation which is open and may change something. It is another one where this
    /// one was salvaged from that: a fork shares no open operation.
    pub(crate) fn open_call_of(&self) -> Option<Uuid> {
        let state = self.inner.state.lock();
        let begin = state.live.projection.operations.changing()?.begin;
        let before = state.openings.iter().rev().find(|(sequence, _)| *sequence < begin);
        before.map(|(_, opened)| opened.session)
    }

    /// Ends an operation that was left open.
    pub(crate) fn end_interrupted(&self, end: ToolEnd<'_>) -> Result<SequenceNumber> {
        let inner = &self.inner;
        let state = inner.settleable()?;
        let sequence = inner.write_end(state, (inner.now_us(), end), None, false)?;
        let mut state = inner.state.lock();
        let left = state.left_open().next().is_some();
        state.interrupted = left;
        Ok(sequence)
    }

    /// Decides about an operation that was interrupted and that nobody but a person or the host can judge. One that is
    /// to be run again is run by the next recovery.
    ///
    /// Durable as a [`snapshot`](Session::snapshot) is. Needs no types.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchOperation`] where the operation is not one that waits for it; where it is still open, the session
    /// is to be recovered first. Else as [`dispatch`](Session::dispatch).
    pub fn settle(
        &self,
        operation: impl Into<OperationId>,
        settlement: &Settlement,
        by: &str,
        reason: &str,
    ) -> Result<SequenceNumber> {
        let operation = operation.into();
        let inner = &self.inner;
        let state = inner.settleable()?;
        let operations = &state.live.projection.operations;
        if operations.open().any(|open| open.operation == operation) {
            let reason = "it is still open: recover the session first";
            return Err(Error::NoSuchOperation { operation, reason });
        }
        if operations.unsettled_one(operation).is_none() {
            let reason = "it is not one that was interrupted and waits to be settled";
            return Err(Error::NoSuchOperation { operation, reason });
        }
        let time_us = inner.now_us();
        let (decision, result) = match settlement {
            Settlement::Committed(result) => (Decision::Committed, result.as_ref()),
            Settlement::Failed => (Decision::Failed, None),
            Settlement::RunAgain => (Decision::RunAgain, None),
        };
        // What cannot be read again would make the log unreadable.
        let result = result.map(|result| encode("a settled result", result)).transpose()?;
        let reference = result.as_deref().map(|result| inner.recorded(&state, result)).transpose()?.flatten();
        let (by, reason) = (by.to_owned(), reason.to_owned());
        let result = reference.as_deref().or(result.as_deref()).map(Payload::new);
        let settle = Settle { operation, decision, result, by, reason };
        let body = settle.encode();
        inner.write(state, time_us, [PendingRecord::new(Kind::SETTLE, &body, RecordBody::Settle(settle))])
    }
}

impl WriterState {
    /// The operations that were left open: nobody of this process works on them.
    fn left_open(&self) -> impl Iterator<Item = &OpenOperation> {
        self.live.projection.operations.open().filter(|open| !self.table.holds(open.operation))
    }
}

/// What is decided about an interrupted operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Settlement {
    /// It had done its work, with this result.
    Committed(Option<Value>),
    /// It had not, and is not to be run again.
    Failed,
    /// It is to be run again.
    RunAgain,
}

/// A turn that was given. Let go of, it is given back, unless the operation has begun.
pub(crate) struct Admission<'a> {
    session: &'a Session,
    ticket: u64,
    until: Option<Instant>,
    begun: bool,
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        if !self.begun {
            self.session.inner.leave(self.ticket);
        }
    }
}

/// An operation that has begun and not ended. Its session is not kept open by it.
pub(crate) struct ActiveCall {
    inner: Arc<Inner>,
    pub(crate) within: Arc<CallScope>,
    pub(crate) begin: SequenceNumber,
    /// The begin's time, in microseconds since 1970-01-01 UTC.
    pub(crate) began_us: i64,
}

/// An operation that has ended.
pub(crate) struct Ended {
    pub(crate) end: SequenceNumber,
    pub(crate) elapsed_us: u64,
}

impl Admission<'_> {
    /// A handle that may write while others wait, for what is done in a turn without being an operation.
    pub(crate) fn handle(&self) -> Session {
        self.session.through(self.within(OperationId::default()))
    }

    fn within(&self, operation: OperationId) -> Arc<CallScope> {
        let cancelled = AtomicBool::new(false);
        let parent = self.session.within.clone();
        Arc::new(CallScope { ticket: self.ticket, operation, until: self.until, cancelled, parent })
    }

    /// Records the begin. `keep` has the position before it kept, for checkpoints.
    pub(crate) fn begin(mut self, mut begin: ToolBegin<'_>, keep: bool) -> Result<ActiveCall> {
        let inner = &self.session.inner;
        let mut state = inner.writable()?;
        let refused = |(operation, reason)| Error::NoSuchOperation { operation, reason };
        state.live.projection.operations.check_begin(&begin).map_err(refused)?;
        let time_us = inner.now_us();
        let references = inner.references(&state, begin.payloads_mut())?;
        let mut begin = begin;
        inner.refer(begin.payloads_mut(), &references);
        let (reads_only, again) = (begin.reads_only, begin.again);
        let body = begin.encode_into(std::mem::take(&mut state.body));
        let declare = inner.declare_invocations(&state)?;
        let declare_body = declare.as_ref().map(Declare::encode);
        // An end names its call as the begin does, and has to fit whatever becomes of the call.
        let names = begin.tool.len() + begin.call_id.as_deref().map_or(0, str::len);
        check_body_len(names.saturating_add(END_BYTES as usize))?;
        let bodies = declare_body.iter().chain([&body]).map(Vec::as_slice);
        inner.reserve(&mut state, time_us, bodies, Room::Call)?;
        if let Some((declare, body)) = declare.zip(declare_body.as_ref()) {
            let draft = PendingRecord::declare(declare, body);
            inner.write_draft(&mut state, time_us, draft, inner.durability == Durability::Every)?;
        }
        if keep && let Some(before) = state.log.next_sequence().checked_sub(1) {
            let frozen = Arc::new(state.live.projection.freeze());
            state.live.positions.keep_snapshot(before, frozen);
        }
        let draft = PendingRecord::new(Kind::TOOL_BEGIN, &body, RecordBody::ToolBegin(Lent::Of(&begin)));
        // One that reads only needs no sync but where every record has one.
        let promised = promises_sync(inner.durability, Kind::TOOL_BEGIN)
            && (!reads_only || inner.durability == Durability::Every);
        let promised = promised && !sabotage::is(Breakage::BeginNotDurable);
        let sequence = inner.write_draft(&mut state, time_us, draft, promised)?;
        state.body = body;
        if !sabotage::is(Breakage::NoRoomForEnd) {
            state.log.keep_room_for_end();
        }
        let within = self.within(again.unwrap_or(sequence.into()));
        if let Some(admitted) = state.table.admitted.iter_mut().find(|one| one.ticket == self.ticket) {
            admitted.begun = Some(Arc::clone(&within));
        }
        self.begun = true;
        let begun = ActiveCall { inner: Arc::clone(inner), within, begin: sequence, began_us: time_us };
        // Where the sync fails, the begin may be there after reopening, which is what recovering is for.
        inner.finish_write(state, sequence, promised).inspect_err(|_| inner.leave_open(self.ticket))?;
        Ok(begun)
    }
}

impl ActiveCall {
    /// The operation's own handle, which does not keep the session open.
    pub(crate) fn handle(&self) -> Session {
        let (inner, within) = (Arc::clone(&self.inner), Some(Arc::clone(&self.within)));
        Session { inner, _handles: None, within }
    }

    /// Has `abandon` bring the operation to its end when somebody waits for it.
    pub(crate) fn abandon(&self, abandon: Abandon) {
        let inner = &self.inner;
        let mut state = inner.state.lock();
        if let Some(admitted) = state.table.admitted.iter_mut().find(|one| one.ticket == self.within.ticket) {
            admitted.abandon = Some(abandon);
        }
        inner.schedule.notify_all();
    }

    /// Records the end, with which the operation's handle is no longer good. `keep` has the position kept, for checkpoints.
    ///
    /// How long it took is filled in here. Where this fails the operation is still open, and is to be tried again or
    /// given up.
    pub(crate) fn end(&self, end: ToolEnd<'_>, keep: bool) -> Result<Ended> {
        let inner = &self.inner;
        let state = inner.settleable()?;
        // What was left open within it is nobody's to end but a recovery's, and so is this one then.
        if state.left_open().any(|open| open.parent == Some(self.within.operation)) {
            return Err(inner.interrupted(&state));
        }
        let time_us = inner.now_us();
        let elapsed_us = u64::try_from(time_us.saturating_sub(self.began_us)).unwrap_or_default();
        let end = ToolEnd { elapsed_us, ..end };
        let end = inner.write_end(state, (time_us, end), Some(self.within.ticket), keep)?;
        Ok(Ended { end, elapsed_us })
    }

    /// Lets go of an operation whose end is not in the log: until the session is recovered nothing may be written that
    /// would seem to be within it.
    pub(crate) fn give_up(&self) {
        self.inner.leave_open(self.within.ticket);
    }

    /// Tells the tool, and those within its call, to stop, and whoever waits to look again.
    pub(crate) fn cancel(&self) {
        let inner = &self.inner;
        inner.cancel(&mut inner.state.lock(), &self.within);
    }

    /// Has the operation's handle be no longer good, tells those within it to stop and waits until none runs; those that
    /// were let go of are brought to their end. The operation itself is not told: its tool is done, and how long its
    /// resources take to be captured or restored is no matter of the grace.
    pub(crate) fn end_inner(&self) -> Result<()> {
        self.within.cancel();
        let inner = &self.inner;
        let ticket = self.within.ticket;
        let mut until = None;
        let mut state = inner.state.lock();
        state.table.tell_to_stop(ticket, false);
        inner.schedule.notify_all();
        loop {
            let own = |admitted: &Admitted| {
                admitted.ticket != ticket && state.table.is_within(admitted.ticket, ticket)
            };
            let Some(at) = state.table.admitted.iter().rposition(own) else { return Ok(()) };
            let Some(admitted) = state.table.admitted.get_mut(at) else { return Ok(()) };
            let operation = admitted.operation().unwrap_or_default();
            if let Some(abandon) = admitted.abandon.take() {
                drop(state);
                // Whatever could not be restored of it is told where somebody asks for it; it is over now, or left open.
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

/// Brings to their ends the operations that somebody let go of. What fails is left open, to be recovered.
pub(super) fn end_abandoned(inner: &Inner) {
    loop {
        let abandon = inner.state.lock().table.take_abandoned(None);
        match abandon {
            Some(abandon) => drop(abandon()),
            None => return,
        }
    }
}

/// Takes an operation out of the table, and gives back the room that was kept for its end.
fn leave(state: &mut WriterState, ticket: u64) {
    if state.table.remove(ticket) {
        state.log.release_end();
    }
}

impl Inner {
    /// Tells an operation, and those within it, to stop, and whoever waits to look again.
    fn cancel(&self, state: &mut WriterState, within: &CallScope) {
        within.cancel();
        state.table.tell_to_stop(within.ticket, true);
        // Under the lock: whoever has looked and not yet begun to wait would never hear of it.
        if !sabotage::is(Breakage::CancelUnheard) {
            self.schedule.notify_all();
        }
    }

    /// Takes an operation out of the table.
    fn leave(&self, ticket: u64) {
        leave(&mut self.state.lock(), ticket);
        self.schedule.notify_all();
    }

    /// Takes an operation out of the table whose end is not in the log. STATE is shown as it was before it, as the next
    /// opening would.
    fn leave_open(&self, ticket: u64) {
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
        drop(state);
        self.schedule.notify_all();
    }

    /// The declaration of the slice of tool calls, where the log does not know it yet.
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

    /// Records an operation's end, with its one `tool_invoked`.
    fn write_end(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, WriterState>,
        (time_us, mut end): (i64, ToolEnd<'_>),
        ticket: Option<u64>,
        keep: bool,
    ) -> Result<SequenceNumber> {
        let refused = |(operation, reason)| Error::NoSuchOperation { operation, reason };
        state.live.projection.operations.check_end(&end).map_err(refused)?;
        let references = self.references(&state, end.payloads_mut())?;
        let mut end = end;
        self.refer(end.payloads_mut(), &references);
        let missing = || Error::NoSuchSlice {
            slice: ToolInvocations::NAME.to_owned(),
            reason: "a tool's end needs it, and no begin has declared it",
        };
        let declared = state.live.projection.names.slice_named(ToolInvocations::NAME);
        end.slice = declared.ok_or_else(missing)?.id;
        end.rolls_back &= !sabotage::is(Breakage::EndWithoutRollback);
        let body = end.encode_into(std::mem::take(&mut state.body));
        let draft = PendingRecord::new(Kind::TOOL_END, &body, RecordBody::ToolEnd(Lent::Of(&end)));
        let promised =
            promises_sync(self.durability, Kind::TOOL_END) && !sabotage::is(Breakage::EndNotDurable);
        let sequence = self.write_draft(&mut state, time_us, draft, promised)?;
        state.body = body;
        if keep {
            let frozen = Arc::new(state.live.projection.freeze());
            state.live.positions.keep_snapshot(sequence, frozen);
        }
        // Before anybody is told, who may write in turn.
        if let Some(ticket) = ticket {
            leave(&mut state, ticket);
            self.schedule.notify_all();
        }
        self.finish_write(state, sequence, promised)
    }
}

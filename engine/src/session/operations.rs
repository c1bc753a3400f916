//! Operations: tools' transactions, who may write while they run, and the records that begin and end them.
//!
//! # Who waits for whom
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
//! # Invariants
//!
//! 1. What an operation wrote is taken back by the record that says that it failed: no crash falls between.
//! 2. An operation is in the table from before its begin until its end is folded. One that is open and not in the
//!    table was left open, by another process or because its end could not be written: it is to be recovered.
//! 3. The writer's lock is not held while a tool runs, nor while a resource is captured or restored.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use foldlog_codec::Kind;
use foldlog_codec::body::{
    Decision, Declare, Observed, Payload, ResourceSnapshot, Settle, ToolBegin, ToolEnd,
};
use foldlog_codec::msgpack::{self, Value};
use parking_lot::MutexGuard;
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::dispatching::slice_declaration;
use super::writing::{Draft, promises_sync};
use super::{Inner, Session, WriterState};
use crate::clock;
use crate::error::{Error, Result};
use crate::fold::content::Content;
use crate::fold::operations::{OpenOperation, UnsettledOperation};
use crate::store::Level;
use crate::types::{Slice, ToolInvocations, encode};

/// How long after its deadline an operation may still take to stop before those who wait are told that it is stuck.
const GRACE: Duration = Duration::from_secs(10);

/// Room that is kept for the end of each open operation, in bytes: a full disk does not keep a tool from ending, though
/// what it answered may have to be left out.
const END_BYTES: usize = 4096;

/// What a write changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// STATE or CACHE, perhaps beside others.
    State,
    /// Nothing but LOG.
    Log,
}

/// What an operation's handle knows of it.
pub(crate) struct Within {
    ticket: u64,
    /// The operation's name.
    operation: u64,
    until: Option<Instant>,
    /// Set where it is to stop.
    cancelled: AtomicBool,
    /// The operation within which it runs.
    parent: Option<Arc<Within>>,
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

    fn check(&self) -> Result<()> {
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
    next: u64,
    admitted: Vec<Admitted>,
}

struct Admitted {
    ticket: u64,
    /// The ticket of the operation within which it runs.
    parent: Option<u64>,
    reads_only: bool,
    until: Option<Instant>,
    /// The operation's name, from its begin on.
    operation: Option<u64>,
    abandon: Option<Abandon>,
}

impl Table {
    #[inline]
    fn is_empty(&self) -> bool {
        self.admitted.is_empty()
    }

    fn get(&self, ticket: u64) -> Option<&Admitted> {
        self.admitted.iter().find(|admitted| admitted.ticket == ticket)
    }

    /// Takes one out; whether it had begun.
    fn remove(&mut self, ticket: u64) -> bool {
        let begun = self.get(ticket).is_some_and(|admitted| admitted.operation.is_some());
        self.admitted.retain(|admitted| admitted.ticket != ticket);
        begun
    }

    /// Whether `ticket` is `of` or runs within it.
    fn is_within(&self, ticket: u64, of: u64) -> bool {
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
    fn take_abandoned(&mut self, asker: Option<u64>) -> Option<Abandon> {
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
    fn holds(&self, operation: u64) -> bool {
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
    fn waits_for_itself(&self, session: Uuid, ticket: u64) -> Option<u64> {
        let ends_first = |own: &&(Uuid, u64, u64)| own.0 == session && self.is_within(own.1, ticket);
        INSIDE.with_borrow(|inside| inside.iter().rev().find(ends_first).map(|(_, _, operation)| *operation))
    }
}

/// Whether an operation of the session runs on this thread.
fn runs_here(session: Uuid) -> Option<u64> {
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
        self.wait_for_turn(state, change())
    }

    #[cold]
    fn wait_for_turn<'a>(
        &'a self,
        mut state: MutexGuard<'a, WriterState>,
        change: Change,
    ) -> Result<MutexGuard<'a, WriterState>> {
        loop {
            let asker = self.within.as_deref().map(|within| within.ticket);
            if let Some(abandon) = state.table.take_abandoned(asker) {
                drop(state);
                abandon()?;
                state = self.inner.writable()?;
                continue;
            }
            let below = self.within.as_deref().map(|within| within.ticket);
            if let Some(within) = &self.within {
                within.check()?;
                let operation = within.operation;
                let Some(admitted) = state.table.get(within.ticket) else {
                    return Err(Error::Revoked { operation, reason: "it is over" });
                };
                if admitted.reads_only && change == Change::State {
                    return Err(Error::ReadsOnly { operation, tried: "change STATE" });
                }
            }
            let Some(other) = state.table.changing(below).filter(|_| change == Change::State) else {
                return Ok(state);
            };
            let (operation, until) = (other.operation.unwrap_or_default(), other.until);
            if let Some(operation) = state.table.waits_for_itself(self.inner.id, other.ticket) {
                return Err(Error::InsideOperation { operation });
            }
            let own = self.within.as_deref().and_then(Within::until);
            self.inner.wait(&mut state, (operation, until), own)?;
            drop(state);
            state = self.inner.writable()?;
        }
    }

    /// Asks for a turn for an operation within the one whose handle this is, if it is one. Nothing is recorded yet.
    pub(crate) fn admit(&self, reads_only: bool, until: Option<Instant>) -> Result<Admission> {
        let parent = self.within.as_deref();
        // No call outlasts the one within which it runs.
        let until = until.into_iter().chain(parent.and_then(Within::until)).min();
        let mut state = self.inner.writable()?;
        loop {
            if let Some(abandon) = state.table.take_abandoned(parent.map(|parent| parent.ticket)) {
                drop(state);
                abandon()?;
                state = self.inner.writable()?;
                continue;
            }
            if let Some(parent) = parent {
                parent.check()?;
                let operation = parent.operation;
                let Some(admitted) = state.table.get(parent.ticket) else {
                    return Err(Error::Revoked { operation, reason: "it is over" });
                };
                if admitted.reads_only && !reads_only {
                    return Err(Error::ReadsOnly { operation, tried: "run a tool that changes something" });
                }
            }
            let Some(other) = state.table.conflict(parent.map(|parent| parent.ticket), reads_only) else {
                break;
            };
            let stuck = (other.operation.unwrap_or_default(), other.until);
            if let Some(operation) = state.table.waits_for_itself(self.inner.id, other.ticket) {
                return Err(Error::InsideOperation { operation });
            }
            self.inner.wait(&mut state, stuck, until)?;
            drop(state);
            state = self.inner.writable()?;
        }
        let table = &mut state.table;
        let ticket = table.next;
        table.next += 1;
        let parent_ticket = parent.map(|parent| parent.ticket);
        let (operation, abandon) = (None, None);
        table.admitted.push(Admitted {
            ticket,
            parent: parent_ticket,
            reads_only,
            until,
            operation,
            abandon,
        });
        drop(state);
        Ok(Admission { session: self.clone(), ticket, until, begun: false })
    }

    /// The operations that have begun and not ended.
    pub fn open_operations(&self) -> Vec<OpenOperation> {
        self.inner.state.lock().projection.operations.open().cloned().collect()
    }

    /// The operations that were interrupted, and neither run again nor settled since.
    pub fn unsettled_operations(&self) -> Vec<UnsettledOperation> {
        self.inner.state.lock().projection.operations.unsettled().cloned().collect()
    }

    /// Whether the session takes no writes until it is recovered.
    pub fn is_interrupted(&self) -> bool {
        self.inner.state.lock().interrupted
    }

    /// Records a fact for whoever recovers the session.
    pub(crate) fn observe<T: Serialize>(&self, name: &'static str, data: &T) -> Result<u64> {
        let state = self.writable(Change::Log)?;
        let time_us = self.inner.now_us();
        let data = encode(name, data)?;
        let body = Observed { name: name.to_owned(), data: Payload::new(&data) }.encode();
        self.inner.write(state, time_us, [Draft::new(Kind::OBSERVED, &body, Content::Observed)])
    }

    /// The facts of that name that were recorded from a record on.
    pub(crate) fn observed<T: DeserializeOwned>(&self, name: &'static str, from: u64) -> Result<Vec<T>> {
        let source = self.inner.log_source(&self.inner.state.lock());
        let mut found = Vec::new();
        source.places.read(&source.storage, from, u64::MAX, &mut |record| {
            if record.kind == Kind::OBSERVED {
                let bad = |error: foldlog_codec::Error| Error::Inconsistent {
                    sequence: record.sequence,
                    reason: error.to_string(),
                };
                let observed = Observed::decode(record.body).map_err(bad)?;
                if observed.name == name {
                    found.push(msgpack::from_slice(&source.objects.resolve(observed.data)?).map_err(bad)?);
                }
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Hands the begin of an operation on to `read`, its payloads resolved.
    pub(crate) fn read_begin<T>(&self, begin: u64, read: impl FnOnce(BeginRead) -> T) -> Result<T> {
        let source = self.inner.log_source(&self.inner.state.lock());
        let mut found = None;
        source.places.read(&source.storage, begin, begin, &mut |record| {
            let bad = |error: foldlog_codec::Error| Error::Inconsistent {
                sequence: begin,
                reason: error.to_string(),
            };
            let body = ToolBegin::decode(record.body).map_err(bad)?;
            let resources = body.resources.iter().map(|resource| {
                let snapshot =
                    resource.snapshot.map(|it| source.objects.resolve(it).map(|it| it.into_owned()));
                Ok((resource.resource.clone(), snapshot.transpose()?))
            });
            let resources = resources.collect::<Result<_>>()?;
            let arguments = source.objects.resolve(body.arguments)?.into_owned();
            found = Some(BeginRead { arguments, asked_by: body.asked_by, resources });
            Ok(())
        })?;
        let missing = Error::NoSuchOperation { operation: begin, reason: "the log does not hold its begin" };
        found.map(read).ok_or(missing)
    }

    /// The result of an operation, and what the model saw of it, as its end holds them.
    pub(crate) fn read_end(&self, end: u64) -> Result<(Option<Value>, String)> {
        let source = self.inner.log_source(&self.inner.state.lock());
        let bad =
            |error: foldlog_codec::Error| Error::Inconsistent { sequence: end, reason: error.to_string() };
        let mut found = (None, String::new());
        source.places.read(&source.storage, end, end, &mut |record| {
            let body = ToolEnd::decode(record.body).map_err(bad)?;
            let value = |payload: Payload<'_>| Value::decode(&source.objects.resolve(payload)?).map_err(bad);
            let shown = body.shown.map(value).transpose()?;
            let shown = shown.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
            found = (body.result.map(value).transpose()?, shown);
            Ok(())
        })?;
        Ok(found)
    }

    /// What somebody decided about an operation, looked for from a record on: the decision, its result, by whom and why.
    pub(crate) fn read_settlement(&self, operation: u64, from: u64) -> Result<Option<Settlement>> {
        let source = self.inner.log_source(&self.inner.state.lock());
        let mut found = None;
        source.places.read(&source.storage, from, u64::MAX, &mut |record| {
            if record.kind != Kind::SETTLE {
                return Ok(());
            }
            let bad = |error: foldlog_codec::Error| Error::Inconsistent {
                sequence: record.sequence,
                reason: error.to_string(),
            };
            let settle = Settle::decode(record.body).map_err(bad)?;
            if settle.operation == operation {
                let value =
                    |payload: Payload<'_>| Value::decode(&source.objects.resolve(payload)?).map_err(bad);
                found = Some(match settle.decision {
                    Decision::Committed => Settlement::Committed(settle.result.map(value).transpose()?),
                    Decision::Failed => Settlement::Failed,
                    Decision::RunAgain => Settlement::RunAgain,
                });
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// The operation whose handle this is.
    pub(crate) fn within(&self) -> Option<&Arc<Within>> {
        self.within.as_ref()
    }

    /// Has nobody else recover the session meanwhile, and checks that it can be: what is to be recovered is changed only
    /// by whoever may also say so in the log.
    pub(crate) fn recovering(&self) -> Result<MutexGuard<'_, ()>> {
        if let Some(operation) = runs_here(self.inner.id) {
            return Err(Error::InsideOperation { operation });
        }
        let recovering = self.inner.recovering.lock();
        drop(self.inner.writable_for(true)?);
        Ok(recovering)
    }

    /// The operations that were left open: nobody of this process works on them.
    pub(crate) fn left_open(&self) -> Vec<OpenOperation> {
        let state = self.inner.state.lock();
        let open = state.projection.operations.open();
        open.filter(|open| !state.table.holds(open.operation)).cloned().collect()
    }

    /// Ends an operation that was left open.
    pub(crate) fn end_interrupted(&self, end: &ToolEnd<'_>) -> Result<u64> {
        let inner = &self.inner;
        let state = inner.writable_for(true)?;
        let sequence = inner.write_end(state, end.clone(), None, false)?;
        let mut state = inner.state.lock();
        let WriterState { projection, table, .. } = &*state;
        let left = projection.operations.open().any(|open| !table.holds(open.operation));
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
    pub fn settle(&self, operation: u64, settlement: &Settlement, by: &str, reason: &str) -> Result<u64> {
        let inner = &self.inner;
        let state = inner.settleable()?;
        let operations = &state.projection.operations;
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
        let result = result.map(|result| inner.recorded_or_own(&state, &result)).transpose()?;
        let (by, reason) = (by.to_owned(), reason.to_owned());
        let result = result.as_deref().map(Payload::new);
        let settle = Settle { operation, decision, result, by, reason };
        let body = settle.encode();
        inner.write(state, time_us, [Draft::new(Kind::SETTLE, &body, Content::Settle(settle))])
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

/// What a begin says that is needed to run the tool again.
pub(crate) struct BeginRead {
    /// One MessagePack string.
    pub(crate) arguments: Vec<u8>,
    pub(crate) asked_by: Option<(u64, u32)>,
    pub(crate) resources: Vec<(String, Option<Vec<u8>>)>,
}

/// A turn that was given. Let go of, it is given back, unless the operation has begun.
pub(crate) struct Admission {
    session: Session,
    ticket: u64,
    until: Option<Instant>,
    begun: bool,
}

impl Drop for Admission {
    fn drop(&mut self) {
        if !self.begun {
            self.session.inner.leave(self.ticket);
        }
    }
}

/// An operation that has begun and not ended.
pub(crate) struct Begun {
    /// The operation's own handle.
    pub(crate) session: Session,
    pub(crate) within: Arc<Within>,
    pub(crate) begin: u64,
}

impl Admission {
    /// A handle that may write while others wait, for what is done in a turn without being an operation.
    pub(crate) fn handle(&self) -> Session {
        let within = self.within(0);
        Session { within: Some(within), ..self.session.clone() }
    }

    fn within(&self, operation: u64) -> Arc<Within> {
        let cancelled = AtomicBool::new(false);
        let parent = self.session.within.clone();
        Arc::new(Within { ticket: self.ticket, operation, until: self.until, cancelled, parent })
    }

    /// Records the begin. `keep` has the position before it kept, for checkpoints.
    pub(crate) fn begin(mut self, begin: ToolBegin<'_>, keep: bool) -> Result<Begun> {
        let inner = &self.session.inner;
        let mut state = inner.writable()?;
        let refused = |(operation, reason)| Error::NoSuchOperation { operation, reason };
        state.projection.operations.check_begin(&begin).map_err(refused)?;
        let time_us = inner.now_us();
        let arguments = inner.recorded_or_own(&state, begin.arguments.bytes())?;
        let snapshots = inner.recorded_all(&state, &begin.resources)?;
        let (reads_only, again) = (begin.reads_only, begin.again);
        let begin = ToolBegin {
            arguments: Payload::new(&arguments),
            resources: resources(&begin.resources, &snapshots),
            ..begin
        };
        let body = begin.encode();
        let declare = inner.declare_invocations(&state)?;
        let declare_body = declare.as_ref().map(Declare::encode);
        let lens = declare_body.iter().map(Vec::len).chain([body.len(), END_BYTES]);
        inner.reserve(&mut state, time_us, lens)?;
        if let Some((declare, body)) = declare.zip(declare_body.as_ref()) {
            let draft = Draft::declare(declare, body);
            inner.write_draft(&mut state, time_us, draft, inner.level == Level::Every)?;
        }
        if keep && let Some(before) = state.log.next_sequence().checked_sub(1) {
            let frozen = Arc::new(state.projection.freeze());
            state.positions.keep_snapshot(before, frozen);
        }
        let draft = Draft::new(Kind::TOOL_BEGIN, &body, Content::ToolBegin(Box::new(begin)));
        // One that reads only needs no sync but where every record has one.
        let promised =
            promises_sync(inner.level, Kind::TOOL_BEGIN) && (!reads_only || inner.level == Level::Every);
        let sequence = inner.write_draft(&mut state, time_us, draft, promised)?;
        state.log.reserved_bytes += END_BYTES as u64;
        let operation = again.unwrap_or(sequence);
        if let Some(admitted) = state.table.admitted.iter_mut().find(|one| one.ticket == self.ticket) {
            admitted.operation = Some(operation);
        }
        self.begun = true;
        let within = self.within(operation);
        let session = Session { within: Some(Arc::clone(&within)), ..self.session.clone() };
        let begun = Begun { session, within, begin: sequence };
        // Where the sync fails, the begin may be there after reopening, which is what recovering is for.
        inner
            .finish_write(state, time_us, sequence, promised)
            .inspect_err(|_| inner.leave_open(self.ticket))?;
        Ok(begun)
    }
}

impl Begun {
    /// Has `abandon` bring the operation to its end when somebody waits for it.
    pub(crate) fn abandon(&self, abandon: Abandon) {
        let inner = &self.session.inner;
        let mut state = inner.state.lock();
        if let Some(admitted) = state.table.admitted.iter_mut().find(|one| one.ticket == self.within.ticket) {
            admitted.abandon = Some(abandon);
        }
        inner.turns.notify_all();
    }

    /// Records the end, with which the operation's handle is no longer good. `keep` has the position kept, for checkpoints.
    ///
    /// Where this fails the operation is still open, and is to be tried again or given up.
    pub(crate) fn end(&self, end: &ToolEnd<'_>, keep: bool) -> Result<u64> {
        let inner = &self.session.inner;
        inner
            .writable_for(true)
            .and_then(|state| inner.write_end(state, end.clone(), Some(self.within.ticket), keep))
    }

    /// Lets go of an operation whose end is not in the log: until the session is recovered nothing may be written that
    /// would seem to be within it.
    pub(crate) fn give_up(&self) {
        self.session.inner.leave_open(self.within.ticket);
    }

    /// Tells the tool to stop, and whoever waits to look again.
    pub(crate) fn cancel(&self) {
        self.within.cancel();
        self.session.inner.turns.notify_all();
    }

    /// Waits until no operation runs within this one; those that were let go of are brought to their end.
    pub(crate) fn join_inner(&self) -> Result<()> {
        let inner = &self.session.inner;
        let ticket = self.within.ticket;
        let until = clock::after(GRACE);
        let mut state = inner.state.lock();
        loop {
            let own = |admitted: &Admitted| {
                admitted.ticket != ticket && state.table.is_within(admitted.ticket, ticket)
            };
            let Some(at) = state.table.admitted.iter().rposition(own) else { return Ok(()) };
            let Some(admitted) = state.table.admitted.get_mut(at) else { return Ok(()) };
            let operation = admitted.operation.unwrap_or_default();
            if let Some(abandon) = admitted.abandon.take() {
                drop(state);
                // Whatever could not be restored of it is told where somebody asks for it; it is over now, or left open.
                let _ = abandon();
                state = inner.state.lock();
                continue;
            }
            if inner.turns.wait_until(&mut state, until).timed_out() {
                return Err(Error::Stuck { operation });
            }
        }
    }
}

fn resources<'a>(
    resources: &[ResourceSnapshot<'_>],
    recorded: &'a [Option<Vec<u8>>],
) -> Vec<ResourceSnapshot<'a>> {
    let named = resources.iter().zip(recorded);
    named
        .map(|(resource, snapshot)| ResourceSnapshot {
            resource: resource.resource.clone(),
            snapshot: snapshot.as_deref().map(Payload::new),
        })
        .collect()
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
        state.log.reserved_bytes = state.log.reserved_bytes.saturating_sub(END_BYTES as u64);
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
        let stuck_at = deadline.and_then(|deadline| deadline.checked_add(GRACE));
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

    /// Takes an operation out of the table.
    fn leave(&self, ticket: u64) {
        leave(&mut self.state.lock(), ticket);
        self.turns.notify_all();
    }

    /// As [`leave`](Inner::leave), of an operation whose end is not in the log. STATE is shown as it was before it, as the
    /// next opening would.
    fn leave_open(&self, ticket: u64) {
        let mut state = self.state.lock();
        leave(&mut state, ticket);
        let WriterState { projection, table, positions, interrupted, .. } = &mut *state;
        let left = projection.operations.open().find(|open| !table.holds(open.operation));
        if let Some((begin, reads_only)) = left.map(|open| (open.begin, open.reads_only)) {
            *interrupted = true;
            if let Some(frozen) = positions.get(begin).filter(|_| !reads_only) {
                projection.set_back_to(begin, &frozen);
            }
        }
        drop(state);
        self.turns.notify_all();
    }

    /// The declaration of the slice of tool calls, where the log does not know it yet.
    fn declare_invocations(&self, state: &WriterState) -> Result<Option<Declare>> {
        let names = &state.projection.names;
        if names.slice_named(ToolInvocations::NAME).is_some() {
            return Ok(None);
        }
        let slice = slice_declaration(self.types()?, ToolInvocations::NAME, names.slices().len())?;
        Ok(slice.map(|slice| Declare { events: Vec::new(), slices: vec![slice] }))
    }

    fn recorded_all(
        &self,
        state: &WriterState,
        resources: &[ResourceSnapshot<'_>],
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let snapshots = resources.iter().map(|resource| resource.snapshot);
        snapshots
            .map(|snapshot| snapshot.map(|it| self.recorded_or_own(state, it.bytes())).transpose())
            .collect()
    }

    /// Records an operation's end, with its one `tool_invoked`.
    fn write_end(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, WriterState>,
        end: ToolEnd<'_>,
        ticket: Option<u64>,
        keep: bool,
    ) -> Result<u64> {
        let refused = |(operation, reason)| Error::NoSuchOperation { operation, reason };
        state.projection.operations.check_end(&end).map_err(refused)?;
        let time_us = self.now_us();
        let own = |payload: Option<Payload<'_>>| -> Result<Option<Vec<u8>>> {
            payload.map(|payload| self.recorded_or_own(&state, payload.bytes())).transpose()
        };
        let (result, shown, overrides) = (own(end.result)?, own(end.shown)?, own(end.overrides)?);
        let snapshots = self.recorded_all(&state, &end.resources)?;
        let declared = state.projection.names.slice_named(ToolInvocations::NAME);
        let missing = Error::NoSuchSlice {
            slice: ToolInvocations::NAME.to_owned(),
            reason: "a tool's end needs it, and no begin has declared it",
        };
        let slice = declared.ok_or(missing)?.id;
        let end = ToolEnd {
            result: result.as_deref().map(Payload::new),
            shown: shown.as_deref().map(Payload::new),
            overrides: overrides.as_deref().map(Payload::new),
            resources: resources(&end.resources, &snapshots),
            slice,
            ..end
        };
        let body = end.encode();
        let draft = Draft::new(Kind::TOOL_END, &body, Content::ToolEnd(Box::new(end)));
        let promised = promises_sync(self.level, Kind::TOOL_END);
        let sequence = self.write_draft(&mut state, time_us, draft, promised)?;
        if keep {
            let frozen = Arc::new(state.projection.freeze());
            state.positions.keep_snapshot(sequence, frozen);
        }
        // Before anybody is told, who may write in turn.
        if let Some(ticket) = ticket {
            leave(&mut state, ticket);
            self.turns.notify_all();
        }
        self.finish_write(state, time_us, sequence, promised)
    }
}

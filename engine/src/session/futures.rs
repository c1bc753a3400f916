//! Forms of a session's calls for async hosts (feature `async`). They belong to no runtime: any executor may poll them.
//!
//! # Invariants
//!
//! 1. Whoever waits for the schedule holds no thread, and hears of each change of it that comes after the schedule was asked.
//! 2. What touches files or waits for the disk is done by a thread of a shared pool ([`offload`]), and goes on to its end when
//!    the future that waits for it is dropped.
//! 3. In a replay each call is made by a thread of the pool, in no order: tasks whose records may interleave need a
//!    [lane](Session::lane) each.
//! 4. Which thread polls a future says nothing: a call is refused as one that waits for itself only while the tool of the
//!    operation that it waits for is being polled on that thread.

use std::future::Future;

use foldlog_codec::msgpack::Value;
use foldlog_codec::{OperationId, RecordKind, SequenceNumber};
use parking_lot::MutexGuard;
use smol_str::SmolStr;

use super::dispatch::{DispatchedEvent, types_change};
use super::event_plan::EncodeBuffer;
use super::positions::{RollbackReport, Snapshot, SnapshotOptions};
use super::schedule::{Access, Turn, WriteScope};
use super::settle::Settlement;
use super::wait::Patience;
use super::write::promises_sync;
use super::{Session, WriterState};
use crate::clock;
use crate::error::Result;
use crate::offload::{offload, wait_for_any};
use crate::types::Event;

/// What came of a write that the schedule had to allow; or what was to be written, as it was given.
type WriteAttempt<A, T> = std::result::Result<Result<T>, A>;

/// An event's name, its value, and its encoded payload.
type NamedEvent = (SmolStr, DispatchedEvent, Box<EncodeBuffer>);

impl Session {
    /// Records an event as [`dispatch`](Session::dispatch) does, for async hosts. While it waits for an operation to end, and with
    /// [`Durability::Every`](crate::Durability::Every) for the disk, it holds no thread of the executor.
    ///
    /// If the future is dropped while it waits for an operation, nothing is recorded; if it is dropped later, the event may be
    /// recorded.
    ///
    /// ```
    /// # use foldlog::{Event, SessionTypes, Slice, Store};
    /// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    /// # struct Said(String);
    /// # impl Event for Said {
    /// #     const NAME: &'static str = "chat.said";
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let session = Store::open(directory.path())?.create(&SessionTypes::builder().build()?)?;
    /// # futures_lite::future::block_on(async {
    /// let sequence = session.dispatch_async(Said("hello".to_owned())).await?;
    /// assert_eq!(session.position(), Some(sequence));
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`dispatch`](Session::dispatch). That this thread began the operation that it waits for is none: another task
    /// may end it.
    pub fn dispatch_async<E: Event>(
        &self,
        event: E,
    ) -> impl Future<Output = Result<SequenceNumber>> + Send + use<E> {
        let session = self.clone();
        async move {
            if session.replays() {
                return offload(move || session.dispatch(event)).await;
            }
            let access = Access::Write(types_change(session.inner.types.as_ref(), E::NAME));
            session.when_allowed(access, RecordKind::DISPATCH, event, Session::try_dispatch).await
        }
    }

    /// Records an event by its name as [`dispatch_value`](Session::dispatch_value) does, for async hosts; what
    /// [`dispatch_async`](Session::dispatch_async) says of waiting and of a dropped future holds here too.
    ///
    /// # Errors
    ///
    /// Those of [`dispatch_value`](Session::dispatch_value) and [`dispatch_async`](Session::dispatch_async).
    pub fn dispatch_value_async<V: Into<Value>>(
        &self,
        event: &str,
        value: V,
    ) -> impl Future<Output = Result<SequenceNumber>> + Send + use<V> {
        let (session, event, value) = (self.clone(), SmolStr::new(event), value.into());
        async move {
            if session.replays() {
                return offload(move || session.dispatch_value(&event, value)).await;
            }
            let access = Access::Write(types_change(session.inner.types.as_ref(), &event));
            let (dispatched, buffer) = session.event_of_value(&event, value)?;
            let asked = (event, dispatched, buffer);
            session.when_allowed(access, RecordKind::DISPATCH, asked, Session::try_dispatch_named).await
        }
    }

    /// Dispatches an event by its name if the schedule allows that now, and else gives it back.
    fn try_dispatch_named(
        &self,
        access: Access,
        event: NamedEvent,
    ) -> WriteAttempt<NamedEvent, SequenceNumber> {
        match self.try_turn(access) {
            Ok(Some(state)) => {
                let (name, event, buffer) = event;
                Ok(self.dispatch_named_now(state, &name, event, buffer))
            }
            Ok(None) => Err(event),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Dispatches an event if the schedule allows that now, and else gives it back.
    fn try_dispatch<E: Event>(&self, access: Access, event: E) -> WriteAttempt<E, SequenceNumber> {
        let mut buffer = EncodeBuffer::take();
        if let Err(error) = buffer.encode(&event) {
            return Ok(Err(error));
        }
        match self.try_turn(access) {
            Ok(Some(state)) => Ok(self.dispatch_now(state, event, buffer)),
            Ok(None) => Err(event),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Takes a snapshot as [`snapshot`](Session::snapshot) does, for async hosts. If the future is dropped, a snapshot may be
    /// taken all the same.
    ///
    /// # Errors
    ///
    /// Those of [`snapshot`](Session::snapshot).
    pub fn snapshot_async(
        &self,
        options: SnapshotOptions,
    ) -> impl Future<Output = Result<Snapshot>> + Send + use<> {
        let session = self.clone();
        async move {
            if session.replays() {
                return offload(move || session.snapshot(options)).await;
            }
            let access = Access::Write(WriteScope::State);
            session.when_allowed(access, RecordKind::SNAPSHOT, options, Session::try_snapshot).await
        }
    }

    /// Takes a snapshot if the schedule allows that now, and else gives its options back.
    fn try_snapshot(
        &self,
        access: Access,
        options: SnapshotOptions,
    ) -> WriteAttempt<SnapshotOptions, Snapshot> {
        match self.try_turn(access) {
            Ok(Some(state)) => Ok(self.snapshot_now(state, options, Vec::new())),
            Ok(None) => Err(options),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Rolls STATE back to a snapshot as [`rollback`](Session::rollback) does, for async hosts. While it waits for an operation to
    /// end, it holds no thread of the executor; the log is read by a thread of a pool.
    ///
    /// If the future is dropped while it waits for an operation, nothing is recorded; if it is dropped later, the rollback may be
    /// recorded.
    ///
    /// ```
    /// # use foldlog::{SessionTypes, SnapshotOptions, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let session = Store::open(directory.path())?.create(&SessionTypes::builder().build()?)?;
    /// # futures_lite::future::block_on(async {
    /// let before = session.snapshot_async(SnapshotOptions::default()).await?;
    /// session.dispatch_value_async("noted", "a mistake").await?;
    /// let report = session.rollback_async(&before).await?;
    /// assert_eq!(report.to, before.position);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`rollback`](Session::rollback).
    pub fn rollback_async(
        &self,
        snapshot: &Snapshot,
    ) -> impl Future<Output = Result<RollbackReport>> + Send + use<> {
        let (session, checked) = (self.clone(), self.check_own(snapshot));
        let position = snapshot.position;
        async move {
            checked?;
            session.rollback_to_async(position).await
        }
    }

    /// Rolls STATE back to a position as [`rollback_to`](Session::rollback_to) does, for async hosts; what
    /// [`rollback_async`](Session::rollback_async) says of waiting and of a dropped future holds here too.
    ///
    /// # Errors
    ///
    /// Those of [`rollback_to`](Session::rollback_to).
    pub fn rollback_to_async<P: Into<SequenceNumber>>(
        &self,
        position: P,
    ) -> impl Future<Output = Result<RollbackReport>> + Send + use<P> {
        let (session, to) = (self.clone(), position.into());
        async move {
            if session.replays() {
                return offload(move || session.rollback_to(to)).await;
            }
            let access = Access::Write(WriteScope::State);
            session.when_allowed(access, RecordKind::ROLLBACK, to, Session::try_roll_back).await
        }
    }

    /// Rolls back if the schedule allows that now, and else gives the position back.
    fn try_roll_back(
        &self,
        access: Access,
        to: SequenceNumber,
    ) -> WriteAttempt<SequenceNumber, RollbackReport> {
        match self.try_turn(access) {
            Ok(Some(state)) => Ok(self.roll_back_now(state, to, true, None)),
            Ok(None) => Err(to),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Decides about an operation that waits for somebody, as [`settle`](Session::settle) does, for async hosts. If the future is
    /// dropped after it was first polled, the decision is recorded all the same.
    ///
    /// # Errors
    ///
    /// Those of [`settle`](Session::settle).
    pub fn settle_async<O: Into<OperationId>>(
        &self,
        operation: O,
        settlement: &Settlement,
        by: &str,
        reason: &str,
    ) -> impl Future<Output = Result<SequenceNumber>> + Send + use<O> {
        let (session, operation) = (self.clone(), operation.into());
        let (settlement, by, reason) = (settlement.clone(), by.to_owned(), reason.to_owned());
        async move { offload(move || session.settle(operation, &settlement, &by, &reason)).await }
    }

    /// Waits until the schedule allows `access`, and then attempts a write of that kind: on a thread of the pool if the write
    /// is synced, or has to read the log first. An attempt that the schedule does not allow any more gives back what was to be written.
    async fn when_allowed<A: Send + 'static, T: Send + 'static>(
        self,
        access: Access,
        kind: RecordKind,
        mut asked: A,
        attempt: fn(&Session, Access, A) -> WriteAttempt<A, T>,
    ) -> Result<T> {
        let patience = self.patience_of_future();
        let blocks = promises_sync(self.durability(), kind) || kind == RecordKind::ROLLBACK;
        loop {
            self.until_allowed(access, &patience).await?;
            let attempted = if blocks {
                let session = self.clone();
                offload(move || attempt(&session, access, asked)).await
            } else {
                attempt(&self, access, asked)
            };
            match attempted {
                Ok(written) => return written,
                Err(again) => asked = again,
            }
        }
    }

    /// Makes every record written so far durable, as [`sync`](Session::sync) does, for async hosts.
    ///
    /// # Errors
    ///
    /// Those of [`sync`](Session::sync).
    pub fn sync_async(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let session = self.clone();
        async move { offload(move || session.sync()).await }
    }

    /// Returns once no call of the session is open that was told to stop, by a cancellation or since the future that ran it was
    /// dropped, or that a thread is just beginning or ending. Does not wait for one that is
    /// [stuck](Session::stuck_operations), and no longer than a call through this handle would wait for others.
    pub fn until_stopped_calls_ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let session = self.clone();
        async move {
            let (patience, grace) = (session.patience_of_future(), session.inner.store.options.grace);
            while !clock::is_past(patience.over_at()) {
                let changed = session.inner.schedule.listen();
                let stopping = session.inner.state.lock().running_calls.next_stop_check(grace);
                let Some(at) = stopping else { return };
                wait_for_any([changed], Some(at.min(patience.over_at()))).await;
            }
        }
    }

    /// Returns how long a call through this handle may wait, without a thread.
    fn patience_of_future(&self) -> Patience {
        self.patience(self.call_scope().and_then(|within| within.until()), None).holding_no_thread()
    }

    /// Returns once the schedule allows that an operation begins within the one whose handle this is, if any; it may no longer
    /// when the caller asks again.
    ///
    /// # Errors
    ///
    /// Those of a call that does not wait, or waits no longer than `patience` allows.
    pub(crate) async fn until_may_begin(&self, reads_only: bool, patience: &Patience) -> Result<()> {
        self.until_allowed(Access::Begin { reads_only }, patience).await
    }

    async fn until_allowed(&self, access: Access, patience: &Patience) -> Result<()> {
        loop {
            let changed = self.inner.schedule.listen();
            let turn = self.turn(&mut *self.inner.writable()?, access, patience)?;
            match turn {
                Turn::Now => return Ok(()),
                Turn::Behind(abandon) => offload(move || abandon()).await?,
                Turn::Later(until) => wait_for_any([changed], Some(until)).await,
            }
        }
    }

    /// Locks the writer's state if the schedule allows `access` now.
    fn try_turn(&self, access: Access) -> Result<Option<MutexGuard<'_, WriterState>>> {
        let mut state = self.inner.writable()?;
        let turn = self.turn(&mut state, access, &self.patience_of_future())?;
        if matches!(turn, Turn::Now) {
            return Ok(Some(state));
        }
        drop(state);
        // Whoever is told to end it has to: nobody else is.
        if let Turn::Behind(abandon) = turn {
            drop(offload(move || abandon()));
        }
        Ok(None)
    }
}

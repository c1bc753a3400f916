//! `async` variants of a session's blocking methods (feature `async`). They belong to no runtime:
//! any executor may poll them.
//!
//! # Invariants
//!
//! 1. A future that waits for the schedule blocks no thread, and is notified of each change of the
//!    schedule after its last check.
//! 2. File access and waiting for the disk happen on a thread of a shared pool ([`offload`]), and
//!    continue to their end if the future is dropped.
//! 3. In a replay each call runs on a thread of the pool, in no order: each task whose records may
//!    interleave needs a [lane](Session::lane).
//! 4. The polling thread is irrelevant: a call counts as waiting for itself only while that thread
//!    polls the tool of the awaited operation.

use std::future::Future;

use foldlog_codec::msgpack::Value;
use foldlog_codec::{OperationId, RecordKind, SequenceNumber};
use parking_lot::MutexGuard;
use smol_str::SmolStr;

use super::dispatch::{DispatchedEvent, HostEvent, types_change};
use super::event_plan::EncodeBuffer;
use super::positions::{RollbackReport, Snapshot, SnapshotOptions};
use super::schedule::{Access, Turn, WriteScope};
use super::settle::Settlement;
use super::sync::promises_sync;
use super::wait::Patience;
use super::{DynamicSession, Session, SessionCalls, WriterState};
use crate::clock;
use crate::error::Result;
use crate::offload::{offload, wait_for_any};
use crate::types::Event;

/// Result of a write that the schedule had to allow, or the input of the write if it was not
/// allowed.
type WriteAttempt<A, T> = std::result::Result<Result<T>, A>;

type NamedEvent = (SmolStr, DispatchedEvent, Box<EncodeBuffer>);

impl Session {
    /// Records an event as [`dispatch`](Session::dispatch) does. It blocks no thread of the
    /// executor while it waits for an operation to end or, with
    /// [`Durability::Every`](crate::Durability::Every), for the disk.
    ///
    /// Dropping the future while it waits for an operation leaves no record. If it is dropped
    /// later, the event may be recorded.
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
    /// assert_eq!(session.log().position(), Some(sequence));
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`dispatch`](Session::dispatch). It is no error if this thread started the
    /// operation that it waits for: a different task may end it.
    pub fn dispatch_async<E: Event>(
        &self,
        event: E,
    ) -> impl Future<Output = Result<SequenceNumber>> + Send + use<E> {
        let session = self.clone();
        async move {
            let access = Access::Write(types_change(session.inner.types.as_ref(), E::NAME));
            let attempt = |session: &Session, access, event| {
                let mut buffer = EncodeBuffer::take();
                if let Err(error) = buffer.encode(&event) {
                    return Ok(Err(error));
                }
                session.try_write(access, event, |state, event| {
                    session.dispatch_now(state, HostEvent::new(event), buffer)
                })
            };
            session.when_allowed(access, RecordKind::Dispatch, event, attempt, Session::dispatch).await
        }
    }

    /// Takes a snapshot as [`snapshot`](Session::snapshot) does. If the future is dropped, a
    /// snapshot may still be taken.
    pub fn snapshot_async(
        &self,
        options: SnapshotOptions,
    ) -> impl Future<Output = Result<Snapshot>> + Send + use<> {
        let session = self.clone();
        async move {
            let access = Access::Write(WriteScope::State);
            let attempt = |session: &Session, access, options| {
                session.try_write(access, options, |state, options| {
                    session.snapshot_now(state, options, Vec::new())
                })
            };
            session.when_allowed(access, RecordKind::Snapshot, options, attempt, Session::snapshot).await
        }
    }

    /// Rolls STATE back to a snapshot as [`rollback`](Session::rollback) does. It blocks no thread
    /// of the executor while it waits for an operation to end; a thread of a pool reads the log.
    ///
    /// Dropping the future while it waits for an operation leaves no record. If it is dropped
    /// later, the rollback may be recorded.
    ///
    /// ```
    /// # use foldlog::{SessionTypes, SnapshotOptions, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let session = Store::open(directory.path())?.create(&SessionTypes::builder().build()?)?;
    /// # futures_lite::future::block_on(async {
    /// let before = session.snapshot_async(SnapshotOptions::default()).await?;
    /// session.dynamic().dispatch_async("noted", "a mistake").await?;
    /// let report = session.rollback_async(&before).await?;
    /// assert_eq!(report.to, before.position);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
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

    /// Rolls STATE back to a position as [`rollback_to`](Session::rollback_to) does. Waiting and
    /// dropping the future work as for [`rollback_async`](Session::rollback_async).
    pub fn rollback_to_async<P: Into<SequenceNumber>>(
        &self,
        position: P,
    ) -> impl Future<Output = Result<RollbackReport>> + Send + use<P> {
        let (session, to) = (self.clone(), position.into());
        async move {
            let access = Access::Write(WriteScope::State);
            let attempt = |session: &Session, access, to| {
                session.try_write(access, to, |state, to| session.roll_back_now(state, to, true, None))
            };
            let in_turn = |session: &Session, to: SequenceNumber| session.rollback_to(to);
            session.when_allowed(access, RecordKind::Rollback, to, attempt, in_turn).await
        }
    }

    /// Waits until the schedule allows `access`, and then attempts a write of that kind: on a
    /// thread of the pool if the write is synced, or has to read the log first. If the schedule no
    /// longer allows the attempt, it returns its input and the loop repeats. In a replay, the write
    /// waits for its turn on a thread, by `in_turn`.
    async fn when_allowed<A: Send + 'static, T: Send + 'static>(
        self,
        access: Access,
        kind: RecordKind,
        mut asked: A,
        attempt: fn(&Session, Access, A) -> WriteAttempt<A, T>,
        in_turn: fn(&Session, A) -> Result<T>,
    ) -> Result<T> {
        if self.replays() {
            return offload(move || in_turn(&self, asked)).await;
        }
        let patience = self.patience_of_future();
        let blocks = promises_sync(self.log().durability(), kind) || kind == RecordKind::Rollback;
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

    /// Makes every record written so far durable, as [`sync`](Session::sync) does.
    pub fn sync_async(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let session = self.clone();
        async move { offload(move || session.sync()).await }
    }

    /// Returns how long a call through this handle may wait, without a thread.
    fn patience_of_future(&self) -> Patience {
        self.patience(self.calls().call_scope().and_then(|within| within.until()), None).holding_no_thread()
    }

    /// Returns once the schedule allows an operation to start within this handle's operation, if
    /// any. The permission may be lost before the caller uses it.
    ///
    /// # Errors
    ///
    /// The errors of a call that cannot wait, or that has waited as long as `patience` allows.
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

    /// Passes `asked` to `write` if the schedule allows `access` now, and otherwise returns it.
    fn try_write<A, T>(
        &self,
        access: Access,
        asked: A,
        write: impl FnOnce(MutexGuard<'_, WriterState>, A) -> Result<T>,
    ) -> WriteAttempt<A, T> {
        match self.try_turn(access) {
            Ok(Some(state)) => Ok(write(state, asked)),
            Ok(None) => Err(asked),
            Err(error) => Ok(Err(error)),
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
        // The `abandon` was handed to this caller only, so it has to end the operation.
        if let Turn::Behind(abandon) = turn {
            drop(offload(move || abandon()));
        }
        Ok(None)
    }
}

impl DynamicSession<'_> {
    /// Records an event by name as [`dispatch`](crate::DynamicSession::dispatch) does. Waiting and
    /// dropping the future work as for [`Session::dispatch_async`].
    pub fn dispatch_async<V: Into<Value>>(
        &self,
        event: &str,
        value: V,
    ) -> impl Future<Output = Result<SequenceNumber>> + Send + use<V> {
        let (session, event, value) = (self.session.clone(), SmolStr::new(event), value.into());
        async move {
            let access = Access::Write(types_change(session.inner.types.as_ref(), &event));
            let (dispatched, buffer) = session.dynamic().event_of_value(&event, value)?;
            let asked = (event, dispatched, buffer);
            let attempt = |session: &Session, access, asked: NamedEvent| {
                session.try_write(access, asked, |state, (name, event, buffer)| {
                    session.dispatch_named_now(state, &name, event, buffer)
                })
            };
            let in_turn = |session: &Session, (name, event, buffer): NamedEvent| {
                session.dispatch_named(&name, event, buffer)
            };
            session.when_allowed(access, RecordKind::Dispatch, asked, attempt, in_turn).await
        }
    }
}

impl SessionCalls<'_> {
    /// Decides about an operation as [`settle`](crate::SessionCalls::settle) does. If the future is
    /// dropped after it was first polled, the decision is still recorded.
    pub fn settle_async<O: Into<OperationId>>(
        &self,
        operation: O,
        settlement: &Settlement,
        by: &str,
        reason: &str,
    ) -> impl Future<Output = Result<SequenceNumber>> + Send + use<O> {
        let (session, operation) = (self.session.clone(), operation.into());
        let (settlement, by, reason) = (settlement.clone(), by.to_owned(), reason.to_owned());
        async move { offload(move || session.calls().settle(operation, &settlement, &by, &reason)).await }
    }

    /// Returns once no stopping call of the session is open, and no thread is just starting or
    /// ending a call. A stopping call was cancelled, or the future that ran it was dropped. Does
    /// not wait for a call that is [stuck](crate::SessionCalls::stuck_operations), and no longer
    /// than a call through this handle would wait for others.
    pub fn until_stopped_calls_ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let session = self.session.clone();
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
}

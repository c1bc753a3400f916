//! Snapshots and rollbacks.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use foldlog_codec::body::{self, ExternalEffects, Outcome, Policy, ResourceSnapshot};
use foldlog_codec::{OperationId, RecordKind, SequenceNumber};
use parking_lot::MutexGuard;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;
use uuid::Uuid;

use super::replay::Attempt;
use super::schedule::WriteScope;
use super::write::PendingRecord;
use super::{Session, SessionInner, SessionLog, WriterState};
use crate::error::{Error, Result};
use crate::fold::projection::FrozenProjection;
use crate::fold::record_kinds::RecordBody;
use crate::log::reader::RecordLocator;
use crate::storage::Storage;
use crate::types::{ToolInvocations, ToolInvoked};

/// Options of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// Name that the host gives the snapshot.
    pub tag: Option<String>,
    /// Policies of the slices in an export of the snapshot. A rollback to it always restores STATE
    /// and retains LOG.
    pub policies: BTreeSet<Policy>,
}

impl Default for SnapshotOptions {
    /// Returns options without a tag, for STATE only.
    fn default() -> Self {
        SnapshotOptions { tag: None, policies: BTreeSet::from([Policy::State]) }
    }
}

impl SnapshotOptions {
    /// Returns options with a tag, for STATE only.
    pub fn with_tag(tag: impl Into<String>) -> SnapshotOptions {
        SnapshotOptions { tag: Some(tag.into()), ..SnapshotOptions::default() }
    }

    /// Adds the slices of all policies to the snapshot.
    #[must_use]
    pub fn include_all(self) -> SnapshotOptions {
        SnapshotOptions { policies: Policy::ALL.iter().copied().collect(), ..self }
    }
}

/// A position that the session recorded for later rollbacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Session that can be rolled back to it: the one that took the snapshot, or a fork that
    /// contains its record.
    pub session: Uuid,
    /// Sequence number of the snapshot's record, which is the position.
    pub position: SequenceNumber,
    /// Time of the snapshot, in microseconds since 1970-01-01 UTC.
    pub time_us: i64,
    /// Name that the host gave the snapshot.
    pub tag: Option<String>,
    /// Policies of the slices in an export of the snapshot.
    pub policies: BTreeSet<Policy>,
}

/// A committed tool call that a rollback abandoned although it may have effects that no rollback
/// undoes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbandonedCall {
    /// Operation id of the call.
    pub operation: OperationId,
    /// Name of the tool.
    pub tool: SmolStr,
    /// The model provider's id for the call.
    pub call_id: Option<SmolStr>,
}

/// Reports the effects of a rollback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollbackReport {
    /// Sequence number of the rollback's record.
    pub sequence: SequenceNumber,
    /// Position that STATE was rolled back to.
    pub to: SequenceNumber,
    /// Ranges of records that were live before the rollback and no longer are. They remain in the
    /// log.
    pub abandoned: Vec<RangeInclusive<SequenceNumber>>,
    /// Calls among the abandoned records that may have effects outside of the session and its
    /// resources, in the order of their ends. These effects remain.
    pub outside: Vec<AbandonedCall>,
}

/// Lists the snapshots in a log. `session` is the session to which they apply.
pub(crate) fn list(
    places: &RecordLocator,
    storage: &Arc<dyn Storage>,
    session: Uuid,
) -> Result<Vec<Snapshot>> {
    let mut found = Vec::new();
    places.read(storage, SequenceNumber::MIN, SequenceNumber::MAX, &mut |record| {
        if record.kind == RecordKind::Snapshot {
            let (position, time_us) = (record.sequence, record.time_us);
            let body::SnapshotBody { tag, policies, .. } =
                body::SnapshotBody::decode(record.body).map_err(Error::unread(position))?;
            let policies = policies.into_iter().collect();
            found.push(Snapshot { session, position, time_us, tag, policies });
        }
        Ok(())
    })?;
    Ok(found)
}

impl Session {
    /// Records a snapshot of the present position. The cost does not depend on the size of the
    /// session. May [wait](Session#who-waits).
    ///
    /// With [`Durability::Boundary`](crate::Durability::Boundary) and
    /// [`Durability::Every`](crate::Durability::Every), the record is durable when this returns.
    ///
    /// ```
    /// # use foldlog::{Event, Session, SessionTypes, Slice, Store};
    /// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    /// # struct Said(String);
    /// # impl Event for Said {
    /// #     const NAME: &'static str = "chat.said";
    /// # }
    /// # struct Chat;
    /// # impl Slice for Chat {
    /// #     const NAME: &'static str = "chat";
    /// #     type Item = Said;
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
    /// # let store = Store::open(directory.path())?;
    /// # let session = store.create(&types)?;
    /// use foldlog::SnapshotOptions;
    ///
    /// let snapshot = session.snapshot(SnapshotOptions::with_tag("before the attempt"))?;
    /// assert_eq!(snapshot.tag.as_deref(), Some("before the attempt"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`dispatch`](Session::dispatch) that do not concern events.
    pub fn snapshot(&self, options: SnapshotOptions) -> Result<Snapshot> {
        self.snapshot_of(options, Vec::new())
    }

    /// Records a snapshot with captures of resources.
    pub(crate) fn snapshot_of(
        &self,
        options: SnapshotOptions,
        resources: Vec<ResourceSnapshot<'_>>,
    ) -> Result<Snapshot> {
        self.snapshot_now(self.writable(WriteScope::State)?, options, resources)
    }

    /// Takes a snapshot. The schedule must allow it now.
    pub(super) fn snapshot_now(
        &self,
        state: MutexGuard<'_, WriterState>,
        options: SnapshotOptions,
        resources: Vec<ResourceSnapshot<'_>>,
    ) -> Result<Snapshot> {
        let inner = &self.inner;
        let time_us = inner.now_us();
        let policies = options.policies.iter().copied().collect();
        let mut body = body::SnapshotBody { tag: options.tag.clone(), policies, resources };
        let references = inner.references(&state, body.payloads_mut())?;
        inner.refer(body.payloads_mut(), &references);
        let body = self.in_lane(body.encode());
        let pending = PendingRecord::new(RecordKind::Snapshot, &body, RecordBody::Snapshot);
        let position = inner.write(state, time_us, [pending])?;
        let SnapshotOptions { tag, policies } = options;
        Ok(Snapshot { session: inner.id, position, time_us, tag, policies })
    }

    /// Rolls STATE back to a snapshot, as [`rollback_to`](Session::rollback_to) does to a position.
    /// Workspaces and other resources are unchanged;
    /// [`ExecutionState::restore`](crate::ExecutionState::restore) rolls both back.
    ///
    /// ```
    /// # use foldlog::{Event, Session, SessionTypes, Slice, Store};
    /// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    /// # struct Said(String);
    /// # impl Event for Said {
    /// #     const NAME: &'static str = "chat.said";
    /// # }
    /// # struct Chat;
    /// # impl Slice for Chat {
    /// #     const NAME: &'static str = "chat";
    /// #     type Item = Said;
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
    /// # let store = Store::open(directory.path())?;
    /// # let session = store.create(&types)?;
    /// use foldlog::SnapshotOptions;
    ///
    /// session.dispatch(Said("hello".to_owned()))?;
    /// let snapshot = session.snapshot(SnapshotOptions::default())?;
    /// session.dispatch(Said("a mistake".to_owned()))?;
    /// session.rollback(&snapshot)?;
    /// assert_eq!(session.view::<Chat>()?.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::WrongSession`] if the snapshot belongs to a different session; an import differs
    /// from the exported session. Otherwise the errors of [`rollback_to`](Session::rollback_to).
    pub fn rollback(&self, snapshot: &Snapshot) -> Result<RollbackReport> {
        self.check_own(snapshot)?;
        self.rollback_to(snapshot.position)
    }

    /// Checks that a snapshot belongs to this session.
    pub(super) fn check_own(&self, snapshot: &Snapshot) -> Result<()> {
        match (self.id(), snapshot.session) {
            (expected, found) if expected != found => {
                Err(Error::WrongSession { path: self.dir().to_owned(), expected, found })
            }
            _ => Ok(()),
        }
    }

    /// Rolls STATE back to its state after the record at `position` was written, even if an earlier
    /// rollback abandoned that record. LOG slices and tags are unchanged, CACHE slices are emptied.
    /// The abandoned records remain in the log. May [wait](Session#who-waits).
    ///
    /// Rollbacks to the latest 256 snapshots take microseconds; for other positions the log is
    /// folded up to there. If tools have run since, their calls are read from the log. With
    /// [`Durability::Boundary`](crate::Durability::Boundary) and
    /// [`Durability::Every`](crate::Durability::Every), the record is durable when this returns.
    ///
    /// # Errors
    ///
    /// - [`Error::NoSuchPosition`] if the log has no record at `position`
    /// - [`Error::InsideTransaction`] if an operation was open there that has ended now
    /// - [`Error::OutsideTransaction`] if an operation that started later is open now, such as the
    ///   one that owns this handle
    /// - [`Error::Compacted`] if a compaction has dropped the position
    /// - the errors of [`dispatch`](Session::dispatch) that do not concern events
    pub fn rollback_to(&self, position: impl Into<SequenceNumber>) -> Result<RollbackReport> {
        self.roll_back(position.into(), true, None)
    }

    /// Rolls back to a position before the operation of this handle, which restores a composite
    /// snapshot.
    pub(crate) fn restore_to(&self, position: SequenceNumber) -> Result<RollbackReport> {
        self.roll_back(position, true, self.calls().call_scope().map(|within| within.operation()))
    }

    /// Rolls back to `to`. The operation `past` may have started later than that.
    pub(crate) fn roll_back(
        &self,
        to: SequenceNumber,
        preserve_logs: bool,
        past: Option<OperationId>,
    ) -> Result<RollbackReport> {
        let inner = &self.inner;
        let attempt = Attempt {
            brings: &|recorded, _| recorded.kind == RecordKind::Rollback,
            refused: &mut |state| inner.target(state, to, past).map(drop),
            left_out: None,
        };
        let state = self.turn_to_write(inner.writable()?, || WriteScope::State, Some(attempt))?;
        self.roll_back_now(state, to, preserve_logs, past)
    }

    /// Rolls back. The schedule must allow it now.
    pub(super) fn roll_back_now(
        &self,
        mut state: MutexGuard<'_, WriterState>,
        to: SequenceNumber,
        preserve_logs: bool,
        past: Option<OperationId>,
    ) -> Result<RollbackReport> {
        let inner = &self.inner;
        let next = state.log.next_sequence();
        let frozen = inner.target(&state, to, past)?;
        let abandoned = state.live.path.abandoned_by(next, to);
        let outside = inner.calls_with_effects(&mut state, &abandoned)?;
        let rollback = body::Rollback { to, preserve_logs };
        let body = self.in_lane(rollback.encode());
        state.live.positions.hold(to, frozen);
        let result = inner.write_now(state, RecordKind::Rollback, &body, RecordBody::Rollback(rollback));
        let mut state = inner.state.lock();
        match &result {
            Ok(_) => state.imaged.rolled_back_to(to),
            Err(_) => {
                state.live.positions.count_rollback(to);
            }
        }
        drop(state);
        Ok(RollbackReport { sequence: result?, to, abandoned, outside })
    }
}

impl SessionLog<'_> {
    /// Lists the snapshots in the log, in the order of their positions. The list includes snapshots
    /// of earlier processes, abandoned ones, and in a fork the shared ones of its parent. A
    /// rollback may go to each of them. Reads the log once.
    ///
    /// ```
    /// # use foldlog::{SessionTypes, SnapshotOptions, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().build()?;
    /// # let store = Store::open(directory.path())?;
    /// let session = store.create(&types)?;
    /// let taken = session.snapshot(SnapshotOptions::with_tag("before the attempt"))?;
    /// let id = session.id();
    /// session.close()?;
    /// let session = store.open_session(id, &types)?; // another day
    /// assert_eq!(session.log().snapshots()?, [taken.clone()]);
    /// assert_eq!(session.log().snapshot_tagged("before the attempt")?, Some(taken));
    /// # Ok(())
    /// # }
    /// ```
    pub fn snapshots(&self) -> Result<Vec<Snapshot>> {
        let source = self.session.inner.log_source(&self.session.inner.state.lock());
        list(&source.places, &source.storage, self.session.inner.id)
    }

    /// Returns the latest snapshot with a tag; `None` if there is none.
    pub fn snapshot_tagged(&self, tag: &str) -> Result<Option<Snapshot>> {
        Ok(self.snapshots()?.into_iter().rfind(|snapshot| snapshot.tag.as_deref() == Some(tag)))
    }
}

impl Session {
    /// Returns the records, and the calls with effects outside, that a rollback to `to` abandons if
    /// it is written at `next`.
    pub(crate) fn abandoned_by(
        &self,
        next: SequenceNumber,
        to: SequenceNumber,
    ) -> Result<(Vec<RangeInclusive<SequenceNumber>>, Vec<AbandonedCall>)> {
        let mut state = self.inner.state.lock();
        let abandoned = state.live.path.abandoned_by(next, to);
        let outside = self.inner.calls_with_effects(&mut state, &abandoned)?;
        Ok((abandoned, outside))
    }
}

impl SessionInner {
    /// Returns the slices at `to`, if STATE can be rolled back to there now. The operation `past`
    /// may have started later.
    pub(super) fn target(
        &self,
        state: &WriterState,
        to: SequenceNumber,
        past: Option<OperationId>,
    ) -> Result<Arc<FrozenProjection>> {
        let frozen = self.frozen_at(state, to)?;
        // If other operations were open at the position than now, rolling back would leave half of
        // the changes of one.
        let then = frozen.projection.operations.all_changing();
        let now = state.live.projection.operations.all_changing();
        if let Some(operation) = then.iter().find(|open| !now.contains(open)) {
            return Err(Error::InsideTransaction { position: to, operation: *operation });
        }
        if let Some(operation) = now.iter().find(|open| !then.contains(open) && past != Some(**open)) {
            return Err(Error::OutsideTransaction { position: to, operation: *operation });
        }
        Ok(frozen)
    }

    /// Returns the committed calls that ended within these ranges and may have effects outside.
    fn calls_with_effects(
        &self,
        state: &mut WriterState,
        abandoned: &[RangeInclusive<SequenceNumber>],
    ) -> Result<Vec<AbandonedCall>> {
        let Some(before) = abandoned.first().and_then(|first| first.start().checked_sub(1)) else {
            return Ok(Vec::new());
        };
        let mut calls = Vec::new();
        for invoked in self.log::<ToolInvocations>(state)?.items_after(before) {
            let invoked = invoked?;
            let is_abandoned =
                invoked.position().is_some_and(|(end, _)| abandoned.iter().any(|range| range.contains(&end)));
            let ToolInvoked { operation, tool, call_id, outcome, outside, .. } = &*invoked;
            if is_abandoned && *outcome == Outcome::Committed && *outside == ExternalEffects::Unknown {
                calls.push(AbandonedCall {
                    operation: *operation,
                    tool: tool.clone(),
                    call_id: call_id.clone(),
                });
            }
        }
        Ok(calls)
    }

    /// Returns the slices at a position, from a retained projection or by folding.
    pub(super) fn frozen_at(
        &self,
        state: &WriterState,
        position: SequenceNumber,
    ) -> Result<Arc<FrozenProjection>> {
        state.log.places.check_position(position)?;
        self.check_held(state, position)?;
        if let Some(frozen) = state.live.positions.get(position).filter(|frozen| frozen.is_whole) {
            return Ok(frozen);
        }
        if position + 1 == state.log.next_sequence() {
            return Ok(Arc::new(state.live.projection.freeze()));
        }
        let log_slices = state.live.projection.log_slices();
        let folded =
            self.history(state).fold(position + 1, self.types.as_ref(), log_slices, &mut |_, _| Ok(()))?;
        Ok(Arc::new(folded.projection.freeze()))
    }
}

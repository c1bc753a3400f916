//! Snapshots and rollbacks.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use foldlog_codec::body::{self, ExternalEffects, Outcome, Policy};
use foldlog_codec::{Kind, OperationId, SequenceNumber};
use smol_str::SmolStr;
use uuid::Uuid;

use super::schedule::WriteScope;
use super::writing::PendingRecord;
use super::{Inner, Session, WriterState};
use crate::error::{Error, Result};
use crate::fold::projection::{Frozen, LogSlices};
use crate::fold::record_body::RecordBody;
use crate::types::{ToolInvocations, ToolInvoked};

/// What a snapshot is to stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// What the host calls it.
    pub tag: Option<String>,
    /// The policies whose slices it stands for when it is exported. A rollback to it always takes STATE back
    /// and leaves LOG.
    pub policies: BTreeSet<Policy>,
}

impl Default for SnapshotOptions {
    /// No tag, STATE alone.
    fn default() -> Self {
        SnapshotOptions { tag: None, policies: BTreeSet::from([Policy::State]) }
    }
}

impl SnapshotOptions {
    /// STATE alone, under a tag.
    pub fn tagged(tag: impl Into<String>) -> SnapshotOptions {
        SnapshotOptions { tag: Some(tag.into()), ..SnapshotOptions::default() }
    }

    /// Takes in slices of all policies.
    #[must_use]
    pub fn include_all(self) -> SnapshotOptions {
        SnapshotOptions { policies: Policy::ALL.into_iter().collect(), ..self }
    }
}

/// A position worth coming back to. A record in the log; this is its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The session.
    pub session: Uuid,
    /// The sequence number of the snapshot's record, which is the position.
    pub position: SequenceNumber,
    /// When it was taken, in microseconds since 1970-01-01 UTC.
    pub time_us: i64,
    /// What the host calls it.
    pub tag: Option<String>,
    /// The policies whose slices it stands for when it is exported.
    pub policies: BTreeSet<Policy>,
}

/// A tool call that was committed and that a rollback went back behind, although it may have done what no rollback
/// takes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbandonedCall {
    /// The operation's name.
    pub operation: OperationId,
    /// The tool.
    pub tool: SmolStr,
    /// The provider's name for the call.
    pub call_id: Option<SmolStr>,
}

/// What a rollback did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollbackReport {
    /// The sequence number of the rollback's record.
    pub sequence: SequenceNumber,
    /// The position that STATE went back to.
    pub to: SequenceNumber,
    /// The records that were live before and no longer are. They stay in the log.
    pub abandoned: Vec<RangeInclusive<SequenceNumber>>,
    /// The calls among them whose effects outside of the session and its resources are not known to be none, in the
    /// order in which they ended: those stay as they are.
    pub outside: Vec<AbandonedCall>,
}

impl Session {
    /// Records a position. Costs the same however much the session holds.
    ///
    /// Durable when this returns at [`Durability::Boundary`](crate::Durability::Boundary) and
    /// [`Durability::Every`](crate::Durability::Every).
    ///
    /// # Errors
    ///
    /// As [`dispatch`](Session::dispatch).
    pub fn snapshot(&self, options: SnapshotOptions) -> Result<Snapshot> {
        let inner = &self.inner;
        let state = self.writable(WriteScope::State)?;
        let time_us = inner.now_us();
        let body =
            body::Snapshot { tag: options.tag.clone(), policies: options.policies.iter().copied().collect() };
        let body = body.encode();
        let draft = PendingRecord::new(Kind::SNAPSHOT, &body, RecordBody::Snapshot);
        let position = inner.write(state, time_us, [draft])?;
        let SnapshotOptions { tag, policies } = options;
        Ok(Snapshot { session: inner.id, position, time_us, tag, policies })
    }

    /// STATE goes back to what it was at the snapshot; see [`rollback_to`](Session::rollback_to).
    ///
    /// # Errors
    ///
    /// [`Error::WrongSession`] for a snapshot of another session, which an import takes; else as
    /// [`rollback_to`](Session::rollback_to).
    pub fn rollback(&self, snapshot: &Snapshot) -> Result<RollbackReport> {
        if snapshot.session != self.id() {
            let (expected, found) = (self.id(), snapshot.session);
            return Err(Error::WrongSession { path: self.dir().to_owned(), expected, found });
        }
        self.rollback_to(snapshot.position)
    }

    /// STATE goes back to what it was when the record at `position` had been written, also where an earlier
    /// rollback had abandoned that record. LOG slices stay, CACHE slices are emptied, tags stay. The
    /// abandoned records stay in the log.
    ///
    /// Takes microseconds for the latest 256 snapshots; for other positions the log is folded up to there. Where tools
    /// have run since, what the log says of their calls is read. Durable as a [`snapshot`](Session::snapshot) is.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPosition`] where there is no such record, [`Error::InsideTransaction`] where a tool was
    /// running then that is over, [`Error::OutsideTransaction`] through the handle of an operation that began later; else as [`dispatch`](Session::dispatch).
    pub fn rollback_to(&self, position: impl Into<SequenceNumber>) -> Result<RollbackReport> {
        let position = position.into();
        self.roll_back(position, true)
    }

    pub(crate) fn roll_back(&self, to: SequenceNumber, preserve_logs: bool) -> Result<RollbackReport> {
        self.roll_back_past(to, preserve_logs, None)
    }

    /// Rolls back to a position through the handle of the operation that restores a composite snapshot, which began later
    /// than what it goes back to.
    pub(crate) fn restore_to(&self, position: SequenceNumber) -> Result<RollbackReport> {
        self.roll_back_past(position, true, self.within().map(|within| within.operation()))
    }

    /// Goes back, past the begin of one operation where that is given.
    fn roll_back_past(
        &self,
        to: SequenceNumber,
        preserve_logs: bool,
        past: Option<OperationId>,
    ) -> Result<RollbackReport> {
        let inner = &self.inner;
        let mut state = self.writable(WriteScope::State)?;
        let next = state.log.next_sequence();
        if to >= next {
            return Err(Error::NoSuchPosition { position: to, last: next.checked_sub(1) });
        }
        let frozen = inner.frozen_at(&state, to)?;
        // Back to where other operations were open than are now would leave half of what one did.
        let then = frozen.projection().operations.all_changing();
        let now = state.live.projection.operations.all_changing();
        if let Some(operation) = then.iter().find(|open| !now.contains(open)) {
            return Err(Error::InsideTransaction { position: to, operation: *operation });
        }
        if let Some(operation) = now.iter().find(|open| !then.contains(open) && past != Some(**open)) {
            return Err(Error::OutsideTransaction { position: to, operation: *operation });
        }
        let time_us = inner.now_us();
        let abandoned = state.live.path.abandoned_by(next, to);
        let outside = inner.calls_with_effects(&mut state, &abandoned)?;
        let rollback = body::Rollback { to, preserve_logs };
        let body = rollback.encode();
        let draft = PendingRecord::new(Kind::ROLLBACK, &body, RecordBody::Rollback(rollback));
        state.live.positions.hold(to, frozen);
        let result = inner.write(state, time_us, [draft]);
        if result.is_err() {
            inner.state.lock().live.positions.done(to);
        }
        Ok(RollbackReport { sequence: result?, to, abandoned, outside })
    }
}

impl Inner {
    /// The committed calls whose ends are in these ranges, and that may have had effects outside.
    fn calls_with_effects(
        &self,
        state: &mut WriterState,
        abandoned: &[RangeInclusive<SequenceNumber>],
    ) -> Result<Vec<AbandonedCall>> {
        let Some(before) = abandoned.first().and_then(|first| first.start().checked_sub(1)) else {
            return Ok(Vec::new());
        };
        let mut calls = Vec::new();
        for invoked in self.log::<ToolInvocations>(state)?.behind(before) {
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

    /// The slices as they were at a position, kept or folded anew.
    pub(super) fn frozen_at(&self, state: &WriterState, position: SequenceNumber) -> Result<Arc<Frozen>> {
        if let Some(frozen) = state.live.positions.get(position).filter(|frozen| frozen.is_whole()) {
            return Ok(frozen);
        }
        if position + 1 == state.log.next_sequence() {
            return Ok(Arc::new(state.live.projection.freeze()));
        }
        let folded =
            self.history(state)
                .fold(position + 1, self.types.as_ref(), LogSlices::InLog, &mut |_, _| Ok(()))?;
        Ok(Arc::new(folded.projection.freeze()))
    }
}

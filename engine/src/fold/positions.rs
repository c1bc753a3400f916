//! Projections at earlier positions, for rollbacks.
//!
//! A rollback needs STATE as it was at its target. Keeping it costs little, since items are shared: a session
//! keeps the positions of its latest snapshots and of the begins of its open operations, and a fold over a
//! log with rollbacks keeps each target from when it passes it until the last rollback to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;

use super::projection::{FrozenProjection, Projection};

/// Number of snapshots whose positions are kept.
const KEPT_MAX: usize = 256;

/// Holds projections at earlier positions.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    /// Positions of the latest snapshots.
    snapshots: BTreeMap<SequenceNumber, Arc<FrozenProjection>>,
    /// Targets of rollbacks in the log: how many of these are still to come, and the projection there.
    targets: BTreeMap<SequenceNumber, (usize, Option<Arc<FrozenProjection>>)>,
    /// Begins of operations that have not ended, a few at most. `None` at the last one as long as nothing has
    /// changed since.
    begun: Vec<(SequenceNumber, Option<Arc<FrozenProjection>>)>,
}

impl Positions {
    /// Expects one more rollback to a position, which is kept once the fold has passed it.
    pub(crate) fn expect_target(&mut self, sequence: SequenceNumber) {
        self.targets.entry(sequence).or_insert((0, None)).0 += 1;
    }

    /// Returns whether the position of a record that was just applied must be kept.
    pub(crate) fn wants(&self, sequence: SequenceNumber) -> bool {
        self.targets.contains_key(&sequence)
    }

    /// Keeps the target of a rollback in the log.
    pub(crate) fn keep_target(&mut self, sequence: SequenceNumber, frozen: Arc<FrozenProjection>) {
        if let Some((_, slot)) = self.targets.get_mut(&sequence) {
            *slot = Some(frozen);
        }
    }

    /// Returns the targets of rollbacks to come that are kept, in ascending order.
    pub(crate) fn into_targets(self) -> Vec<(SequenceNumber, Arc<FrozenProjection>)> {
        self.targets.into_iter().filter_map(|(to, (_, frozen))| Some((to, frozen?))).collect()
    }

    /// Keeps the position of a snapshot, and drops the oldest if there are too many. Returns the one that was dropped.
    pub(crate) fn keep_snapshot(
        &mut self,
        sequence: SequenceNumber,
        frozen: Arc<FrozenProjection>,
    ) -> Option<SequenceNumber> {
        self.snapshots.insert(sequence, frozen);
        if self.snapshots.len() <= KEPT_MAX {
            return None;
        }
        self.snapshots.pop_first().map(|(dropped, _)| dropped)
    }

    /// Returns the projection at a position, if it is kept.
    pub(crate) fn get(&self, sequence: SequenceNumber) -> Option<Arc<FrozenProjection>> {
        let target = || self.targets.get(&sequence).and_then(|(_, frozen)| frozen.clone());
        let begun = || self.begun.iter().find(|(begin, _)| *begin == sequence)?.1.as_ref();
        self.snapshots.get(&sequence).or_else(begun).cloned().or_else(target)
    }

    /// Keeps the position at which an operation began, until it ends. Without `frozen` it is kept [before
    /// anything changes](Positions::before_change), which spares operations that change nothing the cost.
    pub(crate) fn begin(&mut self, sequence: SequenceNumber, frozen: Option<Arc<FrozenProjection>>) {
        self.begun.push((sequence, frozen));
    }

    /// Keeps the position at which the last operation began, unless it is kept already. `present` has not
    /// changed since.
    #[inline]
    pub(crate) fn before_change(&mut self, present: &Projection) {
        if let Some((_, frozen @ None)) = self.begun.last_mut() {
            *frozen = Some(Arc::new(present.freeze()));
        }
    }

    /// Returns the positions at which open operations began. `present` is the present projection.
    pub(crate) fn begun_positions(
        &self,
        present: &Projection,
    ) -> Vec<(SequenceNumber, Arc<FrozenProjection>)> {
        let state = |frozen: &Option<Arc<FrozenProjection>>| match frozen {
            Some(frozen) => Arc::clone(frozen),
            None => Arc::new(present.freeze()),
        };
        self.begun.iter().map(|(sequence, frozen)| (*sequence, state(frozen))).collect()
    }

    /// Drops the position of an operation that has ended.
    pub(crate) fn end(&mut self, begin: SequenceNumber) {
        self.begun.retain(|(sequence, _)| *sequence != begin);
    }

    /// Keeps a position for a rollback that is about to be written.
    pub(crate) fn hold(&mut self, sequence: SequenceNumber, frozen: Arc<FrozenProjection>) {
        self.expect_target(sequence);
        self.keep_target(sequence, frozen);
    }

    /// Counts one rollback to `sequence` as done, and returns whether it was the last one to come.
    pub(crate) fn count_rollback(&mut self, sequence: SequenceNumber) -> bool {
        if let Some((left, _)) = self.targets.get_mut(&sequence) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.targets.remove(&sequence);
                return true;
            }
        }
        false
    }
}

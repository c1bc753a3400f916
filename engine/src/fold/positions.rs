//! Projections at earlier positions, for rollbacks.
//!
//! A rollback needs STATE as it was at its target. Retaining it costs little, since items are
//! shared. A session retains the positions of its latest snapshots and of the start records of its
//! open operations. A fold over a log with rollbacks retains each target, from the moment at which
//! it passes the target until the last rollback to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;

use super::projection::{FrozenProjection, Projection};

/// Maximum number of snapshots whose positions are retained.
const KEPT_MAX: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Positions {
    snapshots: BTreeMap<SequenceNumber, Arc<FrozenProjection>>,
    /// Targets of rollbacks in the log: the number of rollbacks still to come, and the projection
    /// there.
    targets: BTreeMap<SequenceNumber, (usize, Option<Arc<FrozenProjection>>)>,
    /// Start records of operations that have not ended; a few at most. The last one has `None` as
    /// long as nothing has changed since.
    begun: Vec<(SequenceNumber, Option<Arc<FrozenProjection>>)>,
}

impl Positions {
    /// Expects one more rollback to a position. The position is retained once the fold has passed
    /// it.
    pub(crate) fn expect_target(&mut self, sequence: SequenceNumber) {
        self.targets.entry(sequence).or_insert((0, None)).0 += 1;
    }

    /// Returns whether the position of a record that was just applied must be retained.
    pub(crate) fn wants(&self, sequence: SequenceNumber) -> bool {
        self.targets.contains_key(&sequence)
    }

    pub(crate) fn keep_target(&mut self, sequence: SequenceNumber, frozen: Arc<FrozenProjection>) {
        if let Some((_, slot)) = self.targets.get_mut(&sequence) {
            *slot = Some(frozen);
        }
    }

    /// Returns the retained targets of rollbacks to come, in ascending order.
    pub(crate) fn into_targets(self) -> Vec<(SequenceNumber, Arc<FrozenProjection>)> {
        self.targets.into_iter().filter_map(|(to, (_, frozen))| Some((to, frozen?))).collect()
    }

    /// Retains the position of a snapshot, and drops the oldest if there are too many. Returns the
    /// dropped one.
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

    /// Returns the projection at a position, if it is retained.
    pub(crate) fn get(&self, sequence: SequenceNumber) -> Option<Arc<FrozenProjection>> {
        let target = || self.targets.get(&sequence).and_then(|(_, frozen)| frozen.clone());
        let begun = || self.begun.iter().find(|(begin, _)| *begin == sequence)?.1.as_ref();
        self.snapshots.get(&sequence).or_else(begun).cloned().or_else(target)
    }

    /// Retains the position of an operation's start record until the operation ends. Without
    /// `frozen` it is captured [before the next change](Positions::before_change), which saves the
    /// cost for operations that change nothing.
    pub(crate) fn begin(&mut self, sequence: SequenceNumber, frozen: Option<Arc<FrozenProjection>>) {
        self.begun.push((sequence, frozen));
    }

    /// Captures the position of the last operation's start record, unless that was done before.
    /// `present` has not changed since.
    #[inline]
    pub(crate) fn before_change(&mut self, present: &Projection) {
        if let Some((_, frozen @ None)) = self.begun.last_mut() {
            *frozen = Some(Arc::new(present.freeze()));
        }
    }

    /// Returns the positions of the start records of open operations. `present` is the present
    /// projection.
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

    pub(crate) fn end(&mut self, begin: SequenceNumber) {
        self.begun.retain(|(sequence, _)| *sequence != begin);
    }

    /// Retains a position for a rollback that is about to be written.
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
